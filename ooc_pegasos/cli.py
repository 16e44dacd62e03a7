"""The command line: parse, call, print, and turn errors into exit codes. No logic.

Each command imports what it needs when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from ooc_pegasos import __version__
from ooc_pegasos.errors import InputError, OocPegasosError, UsageError

app = typer.Typer(
    name="oocpeg",
    help="Train linear models on sparse data larger than memory, with a proof of how close to the optimum they are.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    epilog="Example: [bold]oocpeg convert clicks.svm.gz -o clicks.store[/bold], "
    "then [bold]oocpeg info clicks.store[/bold]",
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on the last line of stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.")]
StorePath = Annotated[Path, typer.Argument(metavar="STORE", help="A store made by 'oocpeg convert'.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"oocpeg {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(
    epilog="Example: [bold]oocpeg convert day-*.svm.gz -o clicks.store --memory 4GB[/bold]",
)
def convert(
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT...", help="Files, patterns, or - for standard input.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="STORE", help="The store to write.")],
    config: Annotated[
        Path | None, typer.Option(help="A TOML file with any of these options; options given here win.")
    ] = None,
    chunk_size: Annotated[str | None, typer.Option(metavar="SIZE", help="Size of a chunk file. Default: 64MB.")] = None,
    normalize: Annotated[str | None, typer.Option(metavar="l2", help="Scale every row to length 1.")] = None,
    features: Annotated[
        int | None, typer.Option(metavar="N", help="Number of features; larger indices are refused.")
    ] = None,
    index_base: Annotated[
        str | None,
        typer.Option(metavar="auto|0|1", help="What the first index is. Default: auto, 0 if any index is 0."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="auto|binary|multiclass|regression", help="What the labels are. Default: auto."),
    ] = None,
    classes: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="The only labels allowed; of two, the second is positive.")
    ] = None,
    positive_label: Annotated[
        str | None, typer.Option(metavar="LABEL", help="The positive class; all others are negative.")
    ] = None,
    on_bad_row: Annotated[
        str | None,
        typer.Option(metavar="stop|skip", help="skip: list bad rows in STORE/rejected.jsonl. Default: stop."),
    ] = None,
    shuffle: Annotated[
        bool | None, typer.Option("--shuffle/--no-shuffle", help="Put rows in random order. Default: shuffle.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the shuffle. Default: 0.")] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory to use. Default: 1GB.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads to use. Default: all cores.")] = None,
    append: Annotated[bool, typer.Option("--append", help="Add the rows to an existing store.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing store.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted conversion.")] = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn svmlight text (plain, .gz, .bz2, .xz, .zst) into a store to train on again and again.

    Reads on all cores within the memory budget. Rows are shuffled once, here, because sorted data ruins
    stochastic training. A crash leaves the old store or none; --resume continues.
    """
    from ooc_pegasos.config import ConvertConfig, parse_size
    from ooc_pegasos.progress import progress_for

    chosen = {
        "chunk_size": parse_size(chunk_size) if chunk_size is not None else None,
        "normalize": normalize,
        "features": features,
        "index_base": index_base,
        "task": task,
        "classes": tuple(word.strip() for word in classes.split(",")) if classes is not None else None,
        "positive_label": positive_label,
        "on_bad_row": on_bad_row,
        "shuffle": shuffle,
        "seed": seed,
        "memory": parse_size(memory) if memory is not None else None,
        "threads": threads,
    }
    settings = _settings(ConvertConfig, config, chosen)
    progress = progress_for(quiet)
    from ooc_pegasos.kernels.jit import is_compiled

    if not is_compiled():
        progress.note("compiling kernels, once; this takes some seconds")
    from ooc_pegasos.conversion import Existing
    from ooc_pegasos.conversion import convert as convert_inputs
    from ooc_pegasos.describe import size_text

    began = time.perf_counter()
    try:
        store = convert_inputs(inputs, output, settings, existing=Existing(force, append, resume), progress=progress)
    except KeyboardInterrupt:
        progress.end()
        unfinished = output.with_name(output.name + ".unfinished")
        kept = f"run again with --resume to continue (or delete {unfinished})" if unfinished.exists() else "start again"
        typer.echo(f"interrupted; {kept}", err=True)
        raise
    finally:
        progress.end()
    made = store.manifest
    result = {
        "rows": made.rows,
        "features": made.features,
        "nonzeros": made.nonzeros,
        "chunks": len(made.chunks),
        "bytes": made.bytes,
        "rejected": made.rejected,
        "seconds": time.perf_counter() - began,
        "output": str(output),
    }
    if json_output:
        _print_json(result)
    elif not quiet:
        labels = ", ".join(
            f"{name}: {count:,}" for name, count in zip(made.labels.classes[:6], made.labels.counts, strict=False)
        )
        more = ", ..." if len(made.labels.classes) > 6 else ""
        typer.echo(f"{output}: {made.rows:,} rows, {made.features:,} features, {made.nonzeros:,} non-zeros")
        typer.echo(f"task: {made.labels.task}" + (f" (rows by label: {labels}{more})" if labels else ""))
        typer.echo(f"{size_text(made.bytes)} in {len(made.chunks)} chunks, {result['seconds']:.1f} seconds")
        if made.rejected:
            typer.echo(f"{made.rejected:,} rows were rejected; see {output / 'rejected.jsonl'}")


@app.command(epilog="Example: [bold]oocpeg info clicks.store --json[/bold]")
def info(store: StorePath, json_output: Json = False) -> None:
    """Show what is in a store: rows, features, labels, row norms, size, origin."""
    from ooc_pegasos.describe import summary, table
    from ooc_pegasos.store import Store

    opened = Store.open(store)
    if json_output:
        _print_json(summary(opened))
        return
    lines = table(opened)
    width = max(len(name) for name, _text in lines)
    typer.echo(str(store))
    for name, text in lines:
        typer.echo(f"  {name.ljust(width)}  {text}".rstrip())


@app.command(epilog="Example: [bold]oocpeg verify clicks.store[/bold]")
def verify(store: StorePath, json_output: Json = False, quiet: Quiet = False) -> None:
    """Check every byte of a store and the structure of its rows. Exit code 5 if anything is wrong."""
    from ooc_pegasos.progress import progress_for
    from ooc_pegasos.store import Store
    from ooc_pegasos.verification import verify as verify_store

    found = verify_store(Store.open(store), progress_for(quiet))
    if json_output:
        _print_json(vars(found))
    elif not quiet:
        for problem in found.problems:
            typer.echo(problem)
        for stray in found.strays:
            typer.echo(f"{store / stray}: no part of the store; it does no harm")
        state = f"{len(found.problems)} problems" if found.problems else "sound"
        typer.echo(f"{store}: {state}: {found.chunks:,} chunks, {found.rows:,} rows, {found.bytes:,} bytes")
    if found.problems:
        raise typer.Exit(5)


@app.command(epilog="Example: [bold]oocpeg demo[/bold]")
def demo(
    folder: Annotated[Path, typer.Option(help="Where to put the results.")] = Path("oocpeg-demo"),
) -> None:
    """Do the whole job on real data that comes with the package, showing each command."""
    from ooc_pegasos.demo import run
    from ooc_pegasos.files import writing_errors

    with writing_errors(folder):
        run(folder, lambda words: app(words, standalone_mode=False), typer.echo)


def _settings(cls: Any, path: Path | None, chosen: dict[str, Any]) -> Any:
    """A job's dataclass from its TOML file and the options given, with words for what does not fit."""
    from ooc_pegasos import typed
    from ooc_pegasos.config import load_toml

    table = load_toml(cls, path) if path else {}
    table.update({name: value for name, value in chosen.items() if value is not None})
    try:
        return typed.load(cls, table)
    except typed.TypedError as error:
        name, _, rest = str(error).partition(" ")
        option = "--" + name.strip("'").replace("_", "-")
        raise UsageError(f"{option} {rest}") from error


def _print_json(result: dict[str, Any]) -> None:
    typer.echo(json.dumps(result, allow_nan=False))


def _interrupt(_signal: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    """The `oocpeg` command."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except OocPegasosError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:  # stdout is closed or full, for example
        print(f"error: {error.filename or 'output'}: {error.strerror}; check where the output goes", file=sys.stderr)
        sys.exit(InputError.exit_code)
    except MemoryError:
        print("error: out of memory; give a smaller --memory", file=sys.stderr)
        sys.exit(InputError.exit_code)
