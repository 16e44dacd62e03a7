"""Commands with an option for each field of a configuration dataclass."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from ooc_pegasos.cli import completion
from ooc_pegasos.errors import UsageError
from ooc_pegasos.options import Option, by_group

Command = Callable[..., None]
_WIDE = 24
"""Longer lists of choices do not fit into their column of the help."""


@dataclass(frozen=True)
class Settings:
    """A parameter of a command that is a configuration dataclass."""

    parameter: str
    config: type
    groups: tuple[str, ...]
    """The panels of its options, in order."""
    file_flags: tuple[str, ...] = ("--config",)
    """The option for a TOML file."""

    def declared(self) -> list[Option]:
        """Return the options for the command line."""
        return [one for one in by_group(self.config, self.groups) if not one.is_hidden]

    @property
    def file(self) -> str:
        """The name of the parameter for the TOML file."""
        return f"{self.parameter}_file"


def with_options(*all_settings: Settings) -> Callable[[Command], Command]:
    """Replace configuration parameters of a command by an option for each of their fields, and one for a TOML file.

    The command is called with the configurations from these options. An option of several configurations is declared
    by the first, and is for all of them. A parameter `named` receives for each configuration the names of the options
    given on the command line. In the help, options are in panels: those of the command itself, then those of each
    configuration in order.
    """
    groups = tuple(dict.fromkeys(group for one in all_settings for group in one.groups))

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters
        declared: dict[str, Option] = {}
        for one in all_settings:
            declared = {option.name: option for option in one.declared()} | declared

        def run(**given: Any) -> None:
            values = {name: _value_of(option, given.pop(name)) for name, option in declared.items()}
            named = {}
            for one in all_settings:
                chosen = {option.name: values[option.name] for option in one.declared()}
                given[one.parameter] = settings_of(one.config, given.pop(one.file), chosen)
                named[one.parameter] = frozenset(name for name, value in chosen.items() if value is not None)
            command(**given, **({"named": named} if "named" in own else {}))

        replaced = {one.parameter for one in all_settings}
        parameters = [one for name, one in own.items() if name not in replaced | {"named"}]
        for one in all_settings:
            parameters.append(_parameter(one.file, Path | None, _config_file(one.groups[0], *one.file_flags)))
        parameters += [_parameter_of(option) for option in declared.values()]
        parameters.sort(key=lambda one: _rank(one, groups))
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def settings_of(config: Any, path: Path | None, chosen: dict[str, Any]) -> Any:
    """Return a configuration from a TOML file and the given options, which override the file."""
    from ooc_pegasos.config import load_toml
    from ooc_pegasos.util import typed_json

    table = load_toml(config, path) if path else {}
    if {"lam", "C"} & {name for name, value in chosen.items() if value is not None}:
        table = {name: value for name, value in table.items() if name not in ("lam", "C")}
    table.update({name: value for name, value in chosen.items() if value is not None})
    try:
        return typed_json.load(config, table)
    except typed_json.TypedError as error:
        name, _, rest = str(error).partition(" ")
        raise UsageError(f"{{{name.strip(chr(39))}}} {rest}") from error


def _value_of(declared: Option, given: Any) -> Any:
    if isinstance(given, list):
        return given[0] if len(given) == 1 and str in _parts_of(declared.hint) else tuple(given) or None
    return declared.value_of(given, on_command_line=True) if isinstance(given, str) else given


def _parameter_of(declared: Option) -> inspect.Parameter:
    choices, text, metavar = "|".join(declared.choices()), declared.help, declared.metavar
    if len(choices) > _WIDE:
        text, metavar = f"{text} Choices: {choices.replace('|', ', ')}.", declared.name.upper()
    text += f" Default: {declared.default}." if declared.default else ""
    info = typer.Option(
        *(declared.flags or (declared.flag,)),
        metavar=metavar or choices or None,
        help=text,
        rich_help_panel=declared.group,
        show_default=False,
        autocompletion=completion.columns if declared.is_column else _words_completion(declared),
    )
    return _parameter(declared.name, _type_of(declared), info)


def _words_completion(declared: Option) -> completion.Completion | None:
    return completion.one_of(declared.words) if declared.words() else None


def _parameter(name: str, kind: Any, info: Any) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=None, annotation=Annotated[kind, info])


def _type_of(declared: Option) -> Any:
    """Return the type that the command line parses: text if the declaration has a parser."""
    if declared.is_repeated:
        return list[str] | None
    kinds = {kind for kind in _parts_of(declared.hint) if kind in (int, float, bool)}
    return (kinds.pop() if len(kinds) == 1 and not (declared.parse or declared.parse_words) else str) | None


def _parts_of(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _config_file(group: str, *flags: str) -> Any:
    text = "A TOML file with any of these options; options given here override it."
    return typer.Option(*flags, metavar="FILE", readable=False, help=text, rich_help_panel=group)


def _rank(parameter: inspect.Parameter, groups: tuple[str, ...]) -> int:
    """Return the sort key of a parameter: arguments, then options by group. Within a group the order is kept."""
    (info,) = parameter.annotation.__metadata__
    panel = getattr(info, "rich_help_panel", None)
    return groups.index(panel) + 1 if panel in groups else len(groups) + 1 if "--" in str(info.param_decls) else 0
