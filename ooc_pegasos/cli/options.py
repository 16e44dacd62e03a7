"""What commands have in common: the application, options, settings, output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ooc_pegasos import __version__
from ooc_pegasos.cli.streams import say
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.machine import refuse_low_limits

app = typer.Typer(
    name="oocpeg",
    help="Train linear models on sparse data larger than memory, with a proof of how close to the optimum they are.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    epilog="Example: oocpeg convert clicks.svm.gz -o clicks.store, then oocpeg info clicks.store",
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on the last line of stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option(readable=False, metavar="FILE", help="A TOML file with any of these options; options given here win."),
]
RecipeFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "--recipe",
        readable=False,
        metavar="FILE",
        help="A TOML file with any of these options; options given here win.",
    ),
]
ModelPath = Annotated[Path, typer.Argument(readable=False, metavar="MODEL", help="A model made by 'oocpeg train'.")]
DataPath = Annotated[
    str,
    typer.Argument(metavar="DATA", help="A store, or files like those the store was made of (a name or a pattern)."),
]
StorePath = Annotated[Path, typer.Argument(readable=False, metavar="STORE", help="A store made by 'oocpeg convert'.")]


def _version(wanted: bool) -> None:
    if wanted:
        say(f"oocpeg {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    refuse_low_limits()


def settings_of(cls: Any, path: Path | None, chosen: dict[str, Any]) -> Any:
    """A job's dataclass from its TOML file and the options given, with words for what does not fit."""
    from ooc_pegasos import typed
    from ooc_pegasos.config import load_toml

    table = load_toml(cls, path) if path else {}
    if {"lam", "C"} & {name for name, value in chosen.items() if value is not None}:
        table = {name: value for name, value in table.items() if name not in ("lam", "C")}
    table.update({name: value for name, value in chosen.items() if value is not None})
    try:
        return typed.load(cls, table)
    except typed.TypedError as error:
        name, _, rest = str(error).partition(" ")
        option = "--" + name.strip("'").replace("_", "-").replace("lam", "lambda")
        raise UsageError(f"{option} {rest}") from error


def print_json(result: dict[str, Any]) -> None:
    """Print JSON on one line, as the last of the output. JSON itself escapes all other control characters."""
    print(json.dumps(result, allow_nan=False).replace("\x7f", r"\u007f"), flush=True)


def note_compilation(progress: Any) -> None:
    """Say why the first run takes longer."""
    from ooc_pegasos.kernels.jit import is_compiled

    if not is_compiled():
        progress.note("compiling kernels, once; this takes some seconds")


def check_new_file(path: Path, force: bool) -> None:
    """Refuse before the work what could not be written after it."""
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: no such folder; create it first")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file")
    if path.exists() and not force:
        raise InputError(f"{path}: exists already; add --force to replace it")
    from ooc_pegasos.files import check_can_be_replaced, writing_errors

    with writing_errors(path):
        check_can_be_replaced(path)
