"""Commands on jobs, and the demo: run, rollback, demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ooc_pegasos.cli import completion
from ooc_pegasos.cli.options import Json, Quiet, app, examples, note_compilation, print_json
from ooc_pegasos.cli.streams import OutputError, say
from ooc_pegasos.errors import InputError


@app.command(epilog=examples("oocpeg run nightly.toml --dry-run", "oocpeg run nightly.toml --retry day-17.svm"))
def run(
    job: Annotated[Path, typer.Argument(readable=False, metavar="JOB.toml", help="The job file.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing: print the plan.")] = False,
    notify: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND", help="A command to run at the end; its standard input is the record of the run."
        ),
    ] = None,
    retry: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Append a file that was set aside all the same; may be repeated."),
    ] = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Append new files to a store, train, compare with the model in use, and promote the new one if it passes.

    An interrupted run resumes when the job is run again. Exit code 7: the new model was refused, with the reasons; the
    model in use stays. Files of a job, and how to schedule a job: docs/jobs.md.
    """
    from ooc_pegasos.jobs.job import Job

    loaded = Job.load(job, notify)
    if dry_run:
        from datetime import UTC, datetime

        from ooc_pegasos.jobs.run import preview
        from ooc_pegasos.util import typed_json

        found = preview(loaded, datetime.now(UTC), retry or ())
        print_json(typed_json.dump(found)) if json_output else say(*found.lines())
        return
    from ooc_pegasos.jobs.run import run as run_job
    from ooc_pegasos.reporting.progress import progress_for, training_progress_for
    from ooc_pegasos.reporting.steps import Steps
    from ooc_pegasos.reporting.text import run_lines

    steps = Steps(later=None)
    progress, training_progress = progress_for(quiet, steps), training_progress_for(quiet, steps)
    note_compilation(progress, "fit")
    try:
        record = run_job(loaded, progress=progress, training_progress=training_progress, retry=retry or ())
    finally:
        progress.end()
        training_progress.end()
    try:
        if json_output:
            print_json(record)
        elif not quiet or record["exit_code"]:
            say(*run_lines(record))
    except OutputError as error:  # the run is complete and recorded
        progress.note(str(error))
    if record["exit_code"]:
        raise typer.Exit(record["exit_code"])


@app.command(epilog=examples("oocpeg rollback models", "oocpeg rollback models --json"))
def rollback(
    models: Annotated[Path, typer.Argument(readable=False, metavar="MODELS", help="The folder of models of a job.")],
    to: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", help="Default: the version before the current.", autocompletion=completion.versions
        ),
    ] = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Put an older version of a model in use again."""
    from ooc_pegasos.jobs.run import rollback as roll_back
    from ooc_pegasos.jobs.versions import Versions
    from ooc_pegasos.reporting.progress import progress_for
    from ooc_pegasos.util.files import writing_errors
    from ooc_pegasos.util.locks import locked

    versions = Versions(models)
    if not models.is_dir():
        problem = "not a folder" if models.exists() else "no such folder"
        raise InputError(f"{models}: {problem}; name the folder of models of a job")
    if not versions.names() and not versions.lock.exists():
        raise InputError(f"{models}: no version of a model in it; name the folder of models of a job")
    with writing_errors(models), locked(versions.lock, str(models), progress_for(quiet).note):
        before, after = roll_back(versions, to)
    if json_output:
        print_json({"before": before, "current": after})
    elif not quiet:
        was = "" if before is None else ", as before" if before == after else f", no longer {before}"
        say(f"{models / 'current'}: {after}{was}")


@app.command(epilog=examples("oocpeg demo", "oocpeg demo --folder demo"))
def demo(
    folder: Annotated[Path, typer.Option(readable=False, help="Folder for the results.")] = Path("oocpeg-demo"),
) -> None:
    """Run the main commands on real data that comes with the package, and show each command."""
    from ooc_pegasos.cli.demo import run
    from ooc_pegasos.util.files import writing_errors

    with writing_errors(folder):
        run(folder, _call, lambda text: say(*text.split("\n")))


def _call(words: list[str]) -> None:
    code = app(words, standalone_mode=False)
    if code:
        raise typer.Exit(code)
