"""Write docs/options.md, the reference of all options, from their declarations.

python scripts/make_options_page.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ooc_pegasos.cli import stores, training
from ooc_pegasos.config import ConvertConfig, TrainConfig
from ooc_pegasos.options import Option, by_group

PAGE = Path(__file__).resolve().parents[1] / "docs" / "options.md"


def page() -> str:
    """Return the page as Markdown."""
    lines = [
        "# Options",
        "",
        "Options of `oocpeg convert` and `oocpeg train` that can also be given in a TOML file (`--config FILE`) and",
        "in Python (`ConvertConfig`, `TrainConfig`), by the names on the left. Options of a single command, as",
        "`--output` and `--resume`, are in its `--help`. This page is made by `scripts/make_options_page.py`.",
    ]
    for command, config, groups in (
        ("convert", ConvertConfig, stores.GROUPS),
        ("train", TrainConfig, training.GROUPS),
    ):
        lines += ["", f"## oocpeg {command}: `{config.__name__}`"]
        for group in groups:
            lines += table(group, [one for one in by_group(config, groups) if one.group == group])
    return "\n".join(lines) + "\n"


def table(group: str, declared: list[Option]) -> Iterator[str]:
    """Yield the lines of a panel; none if no option is in it."""
    if declared:
        yield from ("", f"### {group}", "", "| name | command line | meaning | default |", "|---|---|---|---|")
    for one in declared:
        flags = "Python and TOML only" if one.is_hidden else f"`{' '.join(one.flags or (one.flag,))}`"
        value = one.metavar or "\\|".join(one.choices())
        shown = flags if one.is_hidden or not value else f"{flags[:-1]} {value}`"
        text = one.help.replace("|", "\\|")
        yield f"| `{one.name}` | {shown} | {text} | {one.default} |"


if __name__ == "__main__":
    PAGE.write_text(page())
