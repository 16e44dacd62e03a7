"""Options are declared once: command line, TOML files, checks and reference page agree with the declarations."""

import dataclasses
import importlib.util
import pydoc
import re
import shlex

import pytest
import typer
from typer.main import get_command

from ooc_pegasos import ConvertConfig, TrainConfig
from ooc_pegasos.cli import stores, training
from ooc_pegasos.cli.main import app
from ooc_pegasos.config import load_toml
from ooc_pegasos.errors import OocPegasosError, UsageError, literal
from ooc_pegasos.options import Option, options_of
from support.paths import ROOT

COMMANDS = {"convert": (ConvertConfig, stores.GROUPS), "train": (TrainConfig, training.GROUPS)}
ALL = [(command, one) for command, (config, _groups) in COMMANDS.items() for one in options_of(config).values()]
NAMES = [f"{command}-{one.name}" for command, one in ALL]


@pytest.fixture(scope="module")
def panels():
    """For each command the parameters by name, as Typer has them."""
    commands = get_command(app).commands
    return {name: {parameter.name: parameter for parameter in commands[name].params} for name in COMMANDS}


@pytest.mark.parametrize(("command", "one"), ALL, ids=NAMES)
def test_an_option_is_everywhere(command, one, panels):
    _config, groups = COMMANDS[command]
    assert one.group in groups
    assert one.help.endswith(".")
    page = (ROOT / "docs" / "options.md").read_text()
    section = page[page.index(f"## oocpeg {command}") :]
    assert f"| `{one.name}` |" in section
    if one.is_hidden:
        assert one.name not in panels[command]
        return
    parameter = panels[command][one.name]
    assert parameter.rich_help_panel == one.group
    assert parameter.help.startswith(one.help)
    assert one.flag in parameter.opts


def test_the_reference_page_is_up_to_date():
    spec = importlib.util.spec_from_file_location("page", ROOT / "scripts" / "make_options_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "options.md").read_text() == module.page(), "run scripts/make_options_page.py"


RANGED = [(command, one) for command, one in ALL if one.allowed is not None]


@pytest.mark.parametrize(("command", "one"), RANGED, ids=[f"{command}-{one.name}" for command, one in RANGED])
def test_a_value_out_of_range(command, one, tmp_path, oocpeg):
    """Python names the field, the command line the option, and a file says where it was found."""
    config, _groups = COMMANDS[command]
    least = one.allowed.least
    wrong = 0 if 0 < least < 1 else least - 1
    shown = f"{wrong:,}"
    with pytest.raises(UsageError) as caught:
        config(**{one.name: wrong})
    assert str(caught.value).startswith(f"{one.name}={shown}")
    assert str(caught.value).endswith(f"is out of range; choose {one.allowed.words}")
    assert isinstance(caught.value, ValueError)
    file = tmp_path / "options.toml"
    file.write_text(f"{one.name} = {wrong}\n")
    with pytest.raises(UsageError, match=re.escape(str(caught.value))):
        load_toml(config, file)
    if not one.is_hidden:
        done = oocpeg(command, "x", "-o", "y", f"{one.flag}={wrong}", code=2)
        assert done.stderr == f"error: {one.flag} {shown} is out of range; choose {one.allowed.words}\n"


def test_docstrings_have_a_line_for_each_option():
    for config, _groups in COMMANDS.values():
        summary, *lines = pydoc.getdoc(config).splitlines()
        assert summary.startswith("Options of `oocpeg ")
        assert lines == ["", "Options:", *(f"    {one.name}: {one.help}" for one in options_of(config).values())]


def test_every_field_is_declared():
    for config, _groups in COMMANDS.values():
        declared = options_of(config)
        assert [field.name for field in dataclasses.fields(config)] == list(declared)
        assert all(isinstance(one, Option) for one in declared.values())


def test_examples_in_the_help_can_be_parsed():
    """Each command shows two examples, whose options exist."""
    group = get_command(app)
    for name, command in group.commands.items():
        lines = [line for line in command.epilog.split("\n\n") if "oocpeg" in line]
        assert len(lines) == 2, name
        for line in lines:
            _program, called, *words = shlex.split(line)
            assert called == name
            with command.make_context(name, words, parent=typer.Context(group)) as context:
                assert context.command is command


def test_messages_spell_options_for_their_reader():
    error = OocPegasosError("{lam=1e-4} and {batch_size} differ; leave out {C}, not {1} or {x y}")
    assert str(error) == "lam=1e-4 and batch_size differ; leave out C, not {1} or {x y}"
    assert error.with_flags == "--lambda 1e-4 and --batch-size differ; leave out --C, not {1} or {x y}"
    quoted = OocPegasosError(f"the label {literal('{lam}')} is no number; give {{classes}}").within("in.svm:1")
    assert str(quoted) == "in.svm:1: the label {lam} is no number; give classes"
    assert quoted.with_flags == "in.svm:1: the label {lam} is no number; give --classes"
