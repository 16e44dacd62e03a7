"""The command `train`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ooc_pegasos.cli import stores
from ooc_pegasos.cli.converting import Inputs
from ooc_pegasos.cli.declared import Settings, with_options
from ooc_pegasos.cli.options import Json, Quiet, app, check_new_file, examples, note_compilation, print_json
from ooc_pegasos.cli.streams import say
from ooc_pegasos.config import ConvertConfig, TrainConfig
from ooc_pegasos.errors import UsageError
from ooc_pegasos.exit_codes import NOT_CERTIFIED

if TYPE_CHECKING:
    from ooc_pegasos.cli.converting import Opened
    from ooc_pegasos.reporting.steps import Steps
    from ooc_pegasos.store.store import Store
    from ooc_pegasos.training.result import TrainResult

_STARTED = time.perf_counter()
GROUPS = ("Problem", "Choosing lambda", "Algorithm", "Stopping", "Machine", "Output")
SETTINGS = Settings("settings", TrainConfig, GROUPS)
CONVERSION = Settings("conversion", ConvertConfig, stores.GROUPS, ("--recipe",))


@app.command(
    epilog=examples(
        "oocpeg train clicks.csv --label clicked -o clicks.model",
        "oocpeg train clicks.store -o clicks.model --lambda 1e-5 --tolerance 0.001 --proof clicks.proof",
    ),
)
@with_options(SETTINGS, CONVERSION)
def train(
    *,
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="STORE|INPUT...", help="A store, or files, patterns or - to convert to a store first."),
    ],
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
    conversion: ConvertConfig,
    named: dict[str, frozenset[str]],
    store: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            metavar="STORE",
            help="Keep the store of the files here, and use it if it is there already. Default: a temporary store.",
            rich_help_panel="Storage",
        ),
    ] = None,
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
            help="Folder for a temporary store, and for the dual variables of sdca if they exceed memory. Default: "
            "that of --checkpoint, or a temporary folder.",
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
        bool,
        typer.Option(
            "--force",
            help="Replace an existing model, and other data at --store.",
            rich_help_panel="Output",
        ),
    ] = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a linear model on a store or on files, with a certified bound on its distance to the optimum.

    Exit code 4: a limit was reached before the tolerance was certified; the model is saved nevertheless.
    """
    if checkpoint is None and named["settings"] & {"checkpoint_epochs", "checkpoint_minutes"}:
        raise UsageError(
            "--checkpoint-epochs and --checkpoint-minutes need a folder for checkpoints; add --checkpoint DIR"
        )
    if parts is not None and scheduler is None:
        raise UsageError("--parts are for several machines; add --scheduler, like --scheduler local:2, or leave it out")
    check_new_file(output, force)
    from ooc_pegasos.reporting.steps import Steps
    from ooc_pegasos.util.files import refuse_to_write_over

    data = Inputs(inputs, conversion, named["conversion"], store)
    later = {"--checkpoint": checkpoint, "--proof": proof, "--scheduler": scheduler and "tcp" in scheduler}
    data.check([name for name, given in later.items() if given])
    read = {"the store": data.store or store} | {f"the input {name}": name for name in inputs}
    refuse_to_write_over("--output", output, read)
    outputs = read | {"the output": output, "the model of --warm-start": warm_start}
    refuse_to_write_over("--log", log, outputs)
    if proof is not None:
        check_new_file(proof, force)
        refuse_to_write_over("--proof", proof, outputs | {"the log": log})
        if scheduler is not None:
            raise UsageError("--proof is for one machine; leave out --scheduler, or leave out --proof")
    shared: dict[str, Any] = {"checkpoint": checkpoint, "resume": resume, "log": log, "scratch": scratch}
    is_tested = data.store is None and conversion.test is not None
    steps = Steps(later=settings.steps + is_tested)
    shared |= {"quiet": quiet, "steps": steps}
    with data.opened(scratch or checkpoint, force, resume, quiet, steps) as opened:
        steps.later = int(is_tested)
        if data.store and not ignore_sources:
            from ooc_pegasos.conversion.source_check import refuse_changed

            refuse_changed(str(data.store), opened.store.manifest)
        if not quiet and not json_output:
            say(*opened.lines(data.title))
        if scheduler is not None:
            result = _train_on_workers(opened.store, settings, output, warm_start, scheduler, parts, **shared)
        else:
            result = _train(opened.store, settings, output, warm_start, proof=proof, **shared)
        converted = opened.summary(data.title)
        steps.later = 0
        tested = _tested(result, opened, quiet, steps)
    from ooc_pegasos.reporting.text import profile_lines, test_lines, training_lines, training_summary

    if profile:
        say(*profile_lines(result, time.perf_counter() - _STARTED), err=True)
    if json_output:
        print_json(training_summary(result, str(output)) | converted | ({"test": tested} if tested else {}))
    elif not quiet:
        say(*training_lines(result, str(output)))
        if tested:
            say(*test_lines(tested, result.model.info.labels.classes))
    if not result.converged and result.why_uncertified is None:
        raise typer.Exit(NOT_CERTIFIED)


def _tested(result: TrainResult, opened: Opened, quiet: bool, steps: Steps) -> dict[str, Any] | None:
    """Return the metrics of the model on the test rows of the conversion, if there are some."""
    from ooc_pegasos.reporting.progress import progress_for
    from ooc_pegasos.scoring.evaluate import evaluate

    test = opened.store.test if opened.seconds is not None else None
    if test is None:
        return None
    progress = progress_for(quiet, steps)
    progress.expect(1)
    try:
        return evaluate(result.model, test.path, progress=progress)
    finally:
        progress.end()


def _train_on_workers(
    store: Store,
    settings: TrainConfig,
    output: Path,
    warm_start: Path | None,
    scheduler: str,
    parts: int | None,
    **shared: Any,
) -> TrainResult:
    from ooc_pegasos.distributed.api import train_dask
    from ooc_pegasos.distributed.cluster import connected

    with connected(scheduler) as client:
        run = functools.partial(train_dask, client)
        return _train(store, settings, output, warm_start, run=run, parts=parts, **shared)


def _train(
    store: Store,
    settings: TrainConfig,
    output: Path,
    warm_start: Path | None,
    quiet: bool,
    steps: Steps,
    run: Callable[..., TrainResult] | None = None,
    **more: Any,
) -> TrainResult:
    """Train with progress, and write the model."""
    from ooc_pegasos.reporting.progress import training_progress_for
    from ooc_pegasos.scoring.model import Model
    from ooc_pegasos.training.api import train as train_here
    from ooc_pegasos.util.locks import making

    start = Model.load(warm_start) if warm_start else None
    progress = training_progress_for(quiet, steps)
    note_compilation(progress, "fit")
    try:
        with making(output, progress.note):
            result = (run or train_here)(store, settings, warm_start=start, progress=progress, **more)
            result.model.save(output)
    except KeyboardInterrupt:
        progress.end()
        checkpoint = more["checkpoint"]
        if checkpoint:
            say(f"interrupted; run again with --checkpoint {checkpoint} --resume to continue", err=True)
        else:
            say("interrupted; no --checkpoint was given", err=True)
        raise
    finally:
        progress.end()
    return result
