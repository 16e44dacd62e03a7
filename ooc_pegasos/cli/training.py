"""The command that trains."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ooc_pegasos.cli.options import (
    ConfigFile,
    Json,
    Quiet,
    StorePath,
    app,
    check_new_file,
    note_compilation,
    print_json,
    settings_of,
)
from ooc_pegasos.cli.streams import say
from ooc_pegasos.errors import InputError, UsageError

_STARTED = time.perf_counter()


@app.command(
    epilog="Example: oocpeg train clicks.store -o clicks.model --lambda 1e-5",
)
def train(
    store: StorePath,
    output: Annotated[
        Path, typer.Option("--output", "-o", readable=False, metavar="MODEL", help="The model to write.")
    ],
    config: ConfigFile = None,
    lam: Annotated[
        str | None,
        typer.Option(
            "--lambda",
            metavar="L|L,L,...|A:B:N",
            help="Strength of the regularisation: one, several, or N from A to B in equal ratios. "
            "Default: eight that suit the data, compared on a holdout.",
        ),
    ] = None,
    c: Annotated[float | None, typer.Option("--C", metavar="C", help="The same as --lambda 1 / (C rows).")] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="hinge|logistic|smoothed-hinge|multiclass-hinge|multiclass-logistic|epsilon-insensitive|absolute|huber",
            help="The loss. Default: hinge for classes (of several, one against the rest), epsilon-insensitive for "
            "real targets.",
        ),
    ] = None,
    loss_parameter: Annotated[
        float | None,
        typer.Option(metavar="P", help="Of smoothed-hinge (1), epsilon-insensitive (0.1) or huber (1)."),
    ] = None,
    bias: Annotated[
        str | None,
        typer.Option(
            metavar="none|feature|free|unregularized|batch|search",
            help="feature: a constant one, regularised. free: not regularised, as in the classical SVM. search: outer "
            "search over biases, each certified. unregularized: by subgradients, batch: the best of each --batch-size, "
            "as in the paper. Default: feature without --lambda, else none.",
        ),
    ] = None,
    bias_scale: Annotated[float | None, typer.Option(metavar="B", help="Value of that feature. Default: 1.")] = None,
    cost: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            metavar="FILE",
            help="For multiclass-hinge: a line a class, what it costs to take it for each.",
        ),
    ] = None,
    folds: Annotated[
        int | None, typer.Option(metavar="K", help="Compare lambdas by cross-validation, not on a holdout.")
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            metavar="best|1se",
            help="Keep the lambda with the least loss on rows kept apart, or the largest within a standard error "
            "of it. Default: best.",
        ),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(metavar="platt|isotonic", help="Fit probabilities to the scores of rows kept apart."),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Stop when the certified gap (P - D)/P is this small, with P the objective and D a lower bound on the "
            "optimum P*. Then (P - P*)/P* is at most tolerance/(1 - tolerance). Default: 0.01, or 0.005 where lambdas "
            "are compared."
        ),
    ] = None,
    max_epochs: Annotated[
        int | None, typer.Option(help="Default: 100, 5000 for sdca, or 10 without a certificate.")
    ] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Stop after so many seconds.")] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            metavar="auto|sdca|sgd-s|sgd-m|sgd-r|pegasos",
            help="sdca: dual coordinate ascent. sgd-s: epochs of Pegasos and a certified stop. sgd-m: hinge, rows "
            "several times at once while the gap is large. sgd-r: i.i.d. rows, a fixed number of steps. pegasos: as in "
            "the paper. Default: auto, sdca or sgd-s.",
        ),
    ] = None,
    sampling: Annotated[
        str | None,
        typer.Option(
            metavar="permutation|fixed|iid|sequential",
            help="Order of rows. Default: permutation, or that of the algorithm.",
        ),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(metavar="K", help="Rows a step. Default: 1.")] = None,
    project: Annotated[
        bool | None, typer.Option("--project", help="Project onto the ball of radius 1/sqrt(lambda).")
    ] = None,
    average: Annotated[bool | None, typer.Option("--average", help="Average the iterates.")] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="auto|N", help="Steps of 1/(lambda (t + N)). Default: auto, 0 for pegasos.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the order of rows. Default: 0.")] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory for data. Default: half of what is free.")
    ] = None,
    loading: Annotated[
        str | None,
        typer.Option(
            metavar="mapped|read", help="Map the store or read it ahead. Default: mapped if it fits --memory."
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Present rows in N threads that average, where that pays; the result depends on N. Default: 1. "
            "All cores load data and measure.",
        ),
    ] = None,
    class_weight: Annotated[
        str | None, typer.Option(metavar="balanced|A,B", help="Weights of the negative and the positive class.")
    ] = None,
    holdout: Annotated[
        float | None,
        typer.Option(
            metavar="FRACTION",
            help="Rows to keep apart, always the same ones. Default: 0.1 where lambdas are compared, else 0.",
        ),
    ] = None,
    warm_start: Annotated[
        Path | None, typer.Option(readable=False, metavar="MODEL", help="Begin with the weights of a model.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(readable=False, metavar="DIR", help="Where to keep checkpoints.")
    ] = None,
    checkpoint_epochs: Annotated[int | None, typer.Option(metavar="N", help="Write one every N epochs.")] = None,
    checkpoint_minutes: Annotated[
        float | None, typer.Option(metavar="M", help="Write one every M minutes. Default: 5.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint, if there is one.")] = False,
    log: Annotated[
        Path | None, typer.Option(readable=False, metavar="FILE", help="Write one JSON object an epoch and model.")
    ] = None,
    scratch: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            metavar="DIR",
            help="Where sdca keeps what it knows of rows, if they outgrow memory. Default: that of --checkpoint, or a "
            "temporary folder.",
        ),
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Print where the time went, on stderr.")] = False,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="tcp://HOST:PORT|local:N",
            help="Train on the workers of dask.distributed, or on N processes here. All must see the store.",
        ),
    ] = None,
    parts: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=1,
            help="Of the store, with --scheduler; the result depends on it. Default: one a thread of the workers.",
        ),
    ] = None,
    proof: Annotated[
        Path | None,
        typer.Option(readable=False, metavar="FILE", help="Write the dual variables of the model, for 'oocpeg prove'."),
    ] = None,
    ignore_sources: Annotated[
        bool, typer.Option("--ignore-sources", help="Train though files that the store was made of have changed.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing model.")] = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a linear model, and say how close to the optimum it provably is.

    Exit code 4: a limit was reached before the tolerance was certified; the model is saved all the same.
    """
    from ooc_pegasos.config import TrainConfig, parse_size

    chosen = {
        "lam": _lambdas(lam),
        "C": c,
        "loss": loss,
        "loss_parameter": loss_parameter,
        "bias": bias,
        "bias_scale": bias_scale,
        "cost": _costs(cost),
        "folds": folds,
        "select": select,
        "calibrate": calibrate,
        "tolerance": tolerance,
        "max_epochs": max_epochs,
        "max_seconds": max_seconds,
        "algorithm": algorithm,
        "sampling": sampling,
        "batch_size": batch_size,
        "project": project,
        "average": average,
        "delay": None if delay in (None, "auto") else _number("--delay", str(delay)),
        "seed": seed,
        "memory": parse_size(memory) if memory is not None else None,
        "loading": loading,
        "threads": threads,
        "class_weight": _class_weight(class_weight),
        "holdout": holdout,
        "checkpoint_epochs": checkpoint_epochs,
        "checkpoint_minutes": checkpoint_minutes,
    }
    settings = settings_of(TrainConfig, config, chosen)
    if checkpoint is None and (checkpoint_epochs or checkpoint_minutes):
        raise UsageError("--checkpoint-epochs and --checkpoint-minutes say when; say where with --checkpoint DIR")
    if parts is not None and scheduler is None:
        raise UsageError("--parts are for several machines; add --scheduler, like --scheduler local:2, or leave it out")
    check_new_file(output, force)
    from ooc_pegasos.files import refuse_to_write_over

    refuse_to_write_over("--output", output, {"the store": store})
    outputs = {"the store": store, "the model that is to be made": output, "the model to begin with": warm_start}
    refuse_to_write_over("--log", log, outputs)
    if proof is not None:
        check_new_file(proof, force)
        refuse_to_write_over("--proof", proof, outputs | {"the log": log})
        if scheduler is not None:
            raise UsageError("--proof is for one machine; leave out --scheduler, or leave out --proof")
    from ooc_pegasos.progress import training_progress_for
    from ooc_pegasos.store import Store

    opened = Store.open(store)
    if not ignore_sources:
        from ooc_pegasos.provenance import refuse_changed

        refuse_changed(str(store), opened.manifest)
    from ooc_pegasos.locks import making
    from ooc_pegasos.model import Model
    from ooc_pegasos.trainer import train as train_on

    start = Model.load(warm_start) if warm_start else None
    progress = training_progress_for(quiet)
    note_compilation(progress)
    kept_in: dict[str, Any] = {"checkpoint": checkpoint, "resume": resume, "log": log, "progress": progress}
    kept_in |= {"warm_start": start, "scratch": scratch}
    try:
        with making(output, progress.note):
            if scheduler is not None:
                from ooc_pegasos.distributed.cluster import connected
                from ooc_pegasos.distributed.training import train_dask

                with connected(scheduler) as client:
                    result = train_dask(client, opened, settings, parts=parts, **kept_in)
            else:
                result = train_on(opened, settings, proof=proof, **kept_in)
            result.model.save(output)
    except KeyboardInterrupt:
        progress.end()
        how = (
            f"run again with --checkpoint {checkpoint} --resume to continue"
            if checkpoint
            else "no --checkpoint was given"
        )
        say(f"interrupted; {how}", err=True)
        raise
    finally:
        progress.end()
    from ooc_pegasos.describe import profile_lines, training_lines, training_summary

    if profile:
        say(*profile_lines(result, time.perf_counter() - _STARTED), err=True)
    if json_output:
        print_json(training_summary(result, str(output)))
    elif not quiet:
        say(*training_lines(result, str(output)))
    if not result.converged and result.why_uncertified is None:
        raise typer.Exit(4)


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{option} {text} is not a number; see oocpeg train --help") from None


def _lambdas(text: str | None) -> float | str | None:
    """One number as that, several as they are written."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _costs(path: Path | None) -> tuple[tuple[float, ...], ...] | None:
    """The numbers of a text file, line by line."""
    if path is None:
        return None
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
        return tuple(tuple(float(word) for word in line.replace(",", " ").split()) for line in lines)
    except OSError as error:
        raise InputError(f"{path}: {(error.strerror or 'unreadable').lower()}; check the path") from error
    except ValueError as error:
        raise InputError(f"{path}: not a table of numbers ({error}); write a line for each class") from error


def _class_weight(text: str | None) -> str | tuple[float, ...] | None:
    if text is None or text == "balanced":
        return text
    return tuple(_number("--class-weight", word) for word in text.split(","))
