"""Commands on stores: convert, info, verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ooc_pegasos.cli import completion
from ooc_pegasos.cli.converting import run_conversion
from ooc_pegasos.cli.declared import Settings, with_options
from ooc_pegasos.cli.options import Json, Memory, Quiet, StorePath, app, bytes_of, examples, print_json
from ooc_pegasos.cli.streams import say
from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.errors import UsageError
from ooc_pegasos.exit_codes import CORRUPT_FILE
from ooc_pegasos.util.short_names import padded, width_of

GROUPS = ("Input", "Columns", "Text", "Labels", "Storage", "Output")


@app.command(
    epilog=examples(
        "oocpeg convert day-*.svm.gz -o clicks.store --memory 4GB",
        "oocpeg convert visits.csv --label clicked --text query -o visits.store",
    ),
)
@with_options(Settings("settings", ConvertConfig, GROUPS, ("--config", "--recipe")))
def convert(
    *,
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT...", help="Files, patterns, or - for standard input.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            readable=False,
            metavar="STORE",
            help="The store to write.",
            show_default=False,
            rich_help_panel="Output",
        ),
    ] = None,
    settings: ConvertConfig,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Write nothing: print the recipe, some rows, and the expected size and time.",
            rich_help_panel="Output",
        ),
    ] = False,
    append: Annotated[
        bool, typer.Option("--append", help="Add the rows to an existing store.", rich_help_panel="Output")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing store.", rich_help_panel="Output")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted conversion.", rich_help_panel="Output")
    ] = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Convert files to a store, which can be trained on any number of times.

    Reads svmlight and Vowpal Wabbit text, CSV, TSV and JSON lines (plain, .gz, .bz2, .xz, .zst), Parquet, Arrow, .npz,
    .npy, and folders of texts or of tables, on all cores within the memory budget.

    A crash leaves the old store or none; --resume continues an interrupted conversion.
    """
    if dry_run:
        from ooc_pegasos.conversion.preview import preview

        found = preview(inputs, settings)
        print_json(found.table()) if json_output else say(*found.lines())
        return
    if output is None:
        raise UsageError("{output} is missing; name the store to write, like -o clicks.store")
    from ooc_pegasos.readers.names import refuse_missing

    refuse_missing(inputs)
    from ooc_pegasos.conversion.output_check import Existing
    from ooc_pegasos.reporting.steps import Steps
    from ooc_pegasos.reporting.text import conversion_lines, conversion_summary

    store, seconds = run_conversion(inputs, output, settings, Existing(force, append, resume), quiet, Steps())
    if json_output:
        print_json(conversion_summary(store, str(output), seconds))
    elif not quiet:
        say(*conversion_lines(store, str(output), seconds))


@app.command(epilog=examples("oocpeg info clicks.store", "oocpeg info clicks.model"))
def info(
    store: Annotated[
        Path, typer.Argument(readable=False, metavar="STORE|MODEL", help="A store, or a model made by 'oocpeg train'.")
    ],
    features: Annotated[bool, typer.Option("--features", help="Show the names of features, one a line.")] = False,
    benchmark: Annotated[
        bool,
        typer.Option("--benchmark", help="Measure the disk and predict the time of an epoch from it."),
    ] = False,
    json_output: Json = False,
    quiet: Quiet = False,  # there is nothing to leave out, but scripts give this option to all commands
) -> None:
    """Show what is in a store or a model: rows, features, labels, size, origin; or lambda, gap, data, metrics."""
    from ooc_pegasos.reporting.text import summary, table
    from ooc_pegasos.store.store import Store
    from ooc_pegasos.util.kind_of_path import VERSIONS, kind_of_path

    if features and benchmark:
        raise UsageError("{features} lists names and {benchmark} measures the disk; give one")
    if kind_of_path(store) in ("a model", "a version of a job", VERSIONS):
        _info_of_model(store, features or benchmark, json_output)
        return
    opened = Store.open(store)
    if features:
        from ooc_pegasos.store import vocabulary

        names = vocabulary.of_store(opened.path, opened.manifest).known_names()
        if json_output:
            print_json({"features": opened.features, "names": {str(place): names[place] for place in sorted(names)}})
        elif not names:
            say("no names are known; convert with --feature-names N or --dictionary N to keep them")
        else:
            say(*(f"{place}\t{names[place]}" for place in sorted(names)))
        return
    disk = None
    if benchmark:
        from ooc_pegasos.store.chunk_reader import measure_speed

        disk = measure_speed(opened.path, opened.manifest.chunks)
    if json_output:
        print_json(summary(opened, disk))
        return
    lines = table(opened, disk)
    width = max(width_of(name) for name, _text in lines)
    say(str(store), *(f"  {padded(name, width)}  {text}".rstrip() for name, text in lines))


def _info_of_model(path: Path, has_options_of_stores: bool, json_output: bool) -> None:
    from ooc_pegasos.reporting.text import model_summary, model_table
    from ooc_pegasos.scoring.model import Model

    if has_options_of_stores:
        raise UsageError(f"{{features}} and {{benchmark}} are for stores, and {path} is a model; see 'oocpeg inspect'")
    model = Model.load(path)
    if json_output:
        print_json(model_summary(model))
        return
    lines = model_table(model)
    width = max(width_of(name) for name, _text in lines)
    say(str(path), *(f"  {padded(name, width)}  {text}".rstrip() for name, text in lines))


@app.command(
    epilog=examples(
        "oocpeg drop clicks.store --source incoming/day-17.svm",
        "oocpeg drop clicks.store --source day-17.svm --source day-18.svm --json",
    )
)
def drop(
    store: StorePath,
    source: Annotated[
        list[str],
        typer.Option(
            "--source",
            metavar="FILE",
            help="A file whose rows are removed. May be repeated.",
            autocompletion=completion.sources,
        ),
    ],
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Remove the rows of files from a store, as if they had never been appended.

    All files of one conversion go together. Where the job of the store would append a file again, move it away first.
    """
    from ooc_pegasos.reporting.progress import progress_for
    from ooc_pegasos.store.drop import drop as drop_sources

    dropped = drop_sources(store, source, progress_for(quiet).note)
    if json_output:
        print_json({"store": str(store), "dropped_rows": dropped.rows, "rows": dropped.left})
    elif not quiet:
        say(f"{store}: {dropped.rows:,} rows dropped, {dropped.left:,} left")


@app.command(epilog=examples("oocpeg verify clicks.store", "oocpeg verify clicks.store --sources"))
def verify(
    store: StorePath,
    sources: Annotated[
        bool, typer.Option("--sources", help="Also check that the files the store was made of are unchanged.")
    ] = False,
    memory: Memory = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check every byte of a store and the structure of its rows. Exit code 5 if anything is wrong."""
    from ooc_pegasos.reporting.progress import progress_for
    from ooc_pegasos.store.store import Store
    from ooc_pegasos.store.verify import verify as verify_store

    opened = Store.open(store)
    progress = progress_for(quiet)
    progress.expect(1 + sources)
    try:
        found = verify_store(opened, progress, bytes_of(memory))
        if sources:
            from ooc_pegasos.conversion.source_check import changed_sources

            progress.begin("reading sources", sum(source.size for source in opened.manifest.sources))
            found.problems.extend(changed_sources(opened.manifest, every_byte=True, advance=progress.advance))
    finally:
        progress.end()
    if json_output:
        print_json(vars(found))
    elif not quiet:
        strays = [f"{store / stray}: not part of the store; harmless" for stray in found.strays]
        state = f"{len(found.problems)} problems" if found.problems else "sound"
        summary = f"{store}: {state}: {found.chunks:,} chunks, {found.rows:,} rows, {found.bytes:,} bytes"
        say(*found.problems, *strays, summary)
    if found.problems:
        raise typer.Exit(CORRUPT_FILE)
