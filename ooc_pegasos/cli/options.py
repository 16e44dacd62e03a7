"""The application, and options and functions shared by commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from ooc_pegasos import __version__
from ooc_pegasos.cli.streams import say
from ooc_pegasos.config import LEAST_MEMORY, TrainConfig
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.options import options_of
from ooc_pegasos.util.memory_limits import refuse_low_limits

Command = TypeVar("Command", bound=Callable[..., Any])


class _Words:
    """Typer's conversion of the words of a parameter, without pydantic for text and paths: its import is slow."""

    def __init__(self, parameter: Any) -> None:
        self._kind, self._full = parameter.type_descriptor.annotation, parameter.get_runtime_param

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """Return the value of an option or argument."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if type(value) is self._kind or value in get_args(self._kind):  # a default, or one of the literals
            return value
        if isinstance(value, str) and self._kind is Path:
            return Path(value)
        if isinstance(value, list | tuple) and self._kind == list[str]:
            return list(value)
        return self._full().coerce(value, param=param, ctx=ctx)


class _RichHelp:
    """Help in panels. Errors stay plain text, because Typer would wrap and frame them."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in found:
            if hasattr(parameter, "get_runtime_param") and "get_runtime_param" not in vars(parameter):
                words = _Words(parameter)
                parameter.get_runtime_param = lambda words=words: words
        return found

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help without colours, because standard output escapes control characters."""
        from typer import rich_utils

        rich_utils.COLOR_SYSTEM = None
        rich_utils.rich_format_help(obj=self, ctx=ctx, markup_mode="rich")  # type: ignore[arg-type]


class _Command(_RichHelp, TyperCommand):
    """A command."""


class _Group(_RichHelp, TyperGroup):
    """The application."""


class _App(typer.Typer):
    """The application, with one class for all commands."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Command], Command]:
        """Add a command."""
        return super().command(name, cls=_Command, **options)


def examples(*lines: str) -> str:
    """Return the examples at the end of the help of a command."""
    return "\n\n".join(["Examples:", *(f"  {line}" for line in lines)])


app = _App(
    name="oocpeg",
    help="Train linear models on sparse data larger than memory, with a proof of how close to the optimum they are.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    cls=_Group,
    rich_markup_mode=None,
    epilog=examples(
        "oocpeg convert clicks.svm.gz -o clicks.store",
        "oocpeg train clicks.store -o clicks.model",
    ),
)

Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object on stdout, and nothing else there.", rich_help_panel="Output"),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="No progress, no notes, and no summary of what was written.", rich_help_panel="Output"
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Memory for data, at least 32MB. Default: half of the free memory."),
]
ModelPath = Annotated[Path, typer.Argument(readable=False, metavar="MODEL", help="A model made by 'oocpeg train'.")]
DataPath = Annotated[
    list[str],
    typer.Argument(metavar="DATA...", help="A store, or files like those the store was made of: names or patterns."),
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


def bytes_of(memory: str | None) -> int | None:
    """Return the bytes of the option --memory."""
    declared = options_of(TrainConfig)["memory"]
    value = None if memory is None else declared.value_of(memory)
    declared.check(value)
    if value is not None and value < LEAST_MEMORY:
        raise UsageError(f"{{memory={memory}}} is too little; choose at least 32MB")
    return value


def print_json(result: dict[str, Any]) -> None:
    """Print JSON on one line, the last of the output. JSON itself escapes all other control characters."""
    print(json.dumps(result, allow_nan=False).replace("\x7f", r"\u007f"), flush=True)


def note_compilation(progress: Any, folder: str) -> None:
    """Print a note if this run takes longer, because the kernels of a folder of `compiled` are not compiled yet."""
    from ooc_pegasos.compiled.jit import is_compiled

    if not is_compiled(folder):
        progress.note("compiling, once; this takes a few seconds")


def check_new_file(path: Path, force: bool) -> None:
    """Refuse an output that cannot be written, before the work begins."""
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: no such folder; create it first")
    if path.is_dir():
        from ooc_pegasos.util.kind_of_path import kind_of_path

        raise InputError(f"{path}: is {kind_of_path(path)}; name a file to write")
    if path.exists() and not force:
        raise InputError(f"{path}: exists already; add --force to replace it")
    from ooc_pegasos.util.files import check_can_be_replaced, writing_errors

    with writing_errors(path):
        check_can_be_replaced(path)
