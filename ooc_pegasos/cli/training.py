"""The command `train`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ooc_pegasos.cli.declared import with_options
from ooc_pegasos.cli.options import Json, Quiet, StorePath, app, check_new_file, examples, note_compilation, print_json
from ooc_pegasos.cli.streams import say
from ooc_pegasos.config import TrainConfig
from ooc_pegasos.errors import UsageError
from ooc_pegasos.exit_codes import NOT_CERTIFIED

_STARTED = time.perf_counter()
GROUPS = ("Problem", "Choosing lambda", "Algorithm", "Stopping", "Machine", "Output")


@app.command(
    epilog=examples(
        "oocpeg train clicks.store -o clicks.model",
        "oocpeg train clicks.store -o clicks.model --lambda 1e-5 --tolerance 0.001 --proof clicks.proof",
    ),
)
@with_options(TrainConfig, GROUPS)
def train(
    *,
    store: StorePath,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            readable=False,
            metavar="MODEL",
            help="The model to write.",
            rich_help_panel="Output",
        ),
    ],
    settings: TrainConfig,
    named: frozenset[str],
    warm_start: Annotated[
        Path | None,
        typer.Option(
            readable=False, metavar="MODEL", help="Start from the weights of a model.", rich_help_panel="Algorithm"
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(readable=False, metavar="DIR", help="Folder for checkpoints.", rich_help_panel="Output"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the checkpoint, if there is one.", rich_help_panel="Output")
    ] = False,
    log: Annotated[
        Path | None,
        typer.Option(
            readable=False, metavar="FILE", help="Write one JSON object an epoch and model.", rich_help_panel="Output"
        ),
    ] = None,
    scratch: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            metavar="DIR",
            help="Folder for the dual variables of sdca if they exceed memory. Default: that of --checkpoint, or a "
            "temporary folder.",
            rich_help_panel="Machine",
        ),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Print a profile of the run time on stderr.", rich_help_panel="Output")
    ] = False,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="tcp://HOST:PORT|local:N",
            help="Train on the workers of dask.distributed, or on N processes here. All must see the store.",
            rich_help_panel="Machine",
        ),
    ] = None,
    parts: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=1,
            help="Number of parts of the store, with --scheduler; the result depends on it. Default: one for each "
            "thread of the workers.",
            rich_help_panel="Machine",
        ),
    ] = None,
    proof: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            metavar="FILE",
            help="Write the dual variables of the model, for 'oocpeg prove'.",
            rich_help_panel="Output",
        ),
    ] = None,
    ignore_sources: Annotated[
        bool,
        typer.Option(
            "--ignore-sources",
            help="Train even if the files that the store was made of have changed.",
            rich_help_panel="Machine",
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing model.", rich_help_panel="Output")
    ] = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a linear model, with a certified bound on its distance to the optimum.

    Exit code 4: a limit was reached before the tolerance was certified; the model is saved nevertheless.
    """
    if checkpoint is None and named & {"checkpoint_epochs", "checkpoint_minutes"}:
        raise UsageError(
            "--checkpoint-epochs and --checkpoint-minutes need a folder for checkpoints; add --checkpoint DIR"
        )
    if parts is not None and scheduler is None:
        raise UsageError("--parts are for several machines; add --scheduler, like --scheduler local:2, or leave it out")
    check_new_file(output, force)
    from ooc_pegasos.util.files import refuse_to_write_over

    refuse_to_write_over("--output", output, {"the store": store})
    outputs = {"the store": store, "the output": output, "the model of --warm-start": warm_start}
    refuse_to_write_over("--log", log, outputs)
    if proof is not None:
        check_new_file(proof, force)
        refuse_to_write_over("--proof", proof, outputs | {"the log": log})
        if scheduler is not None:
            raise UsageError("--proof is for one machine; leave out --scheduler, or leave out --proof")
    from ooc_pegasos.reporting.progress import training_progress_for
    from ooc_pegasos.store.store import Store

    opened = Store.open(store)
    if not ignore_sources:
        from ooc_pegasos.conversion.source_check import refuse_changed

        refuse_changed(str(store), opened.manifest)
    from ooc_pegasos.scoring.model import Model
    from ooc_pegasos.training.api import train as train_on
    from ooc_pegasos.util.locks import making

    start = Model.load(warm_start) if warm_start else None
    progress = training_progress_for(quiet)
    note_compilation(progress, "fit")
    shared: dict[str, Any] = {"checkpoint": checkpoint, "resume": resume, "log": log, "progress": progress}
    shared |= {"warm_start": start, "scratch": scratch}
    try:
        with making(output, progress.note):
            if scheduler is not None:
                from ooc_pegasos.distributed.api import train_dask
                from ooc_pegasos.distributed.cluster import connected

                with connected(scheduler) as client:
                    result = train_dask(client, opened, settings, parts=parts, **shared)
            else:
                result = train_on(opened, settings, proof=proof, **shared)
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
    from ooc_pegasos.reporting.text import profile_lines, training_lines, training_summary

    if profile:
        say(*profile_lines(result, time.perf_counter() - _STARTED), err=True)
    if json_output:
        print_json(training_summary(result, str(output)))
    elif not quiet:
        say(*training_lines(result, str(output)))
    if not result.converged and result.why_uncertified is None:
        raise typer.Exit(NOT_CERTIFIED)
