"""The registry of input formats: configurations and manifests are checked against their names.

Their classes are in `readers/`, one module each; `readers.registry.register` adds a format.
"""

from __future__ import annotations

from typing import Any, Final, get_args

from ooc_pegasos.registry import FILE_TYPES, BuiltInFormat, Registry

ANY: Final = "auto"
"""The choice that leaves the format to first bytes and names."""
FORMATS: Registry[Any] = Registry("format", "ooc_pegasos.readers.registry", get_args(BuiltInFormat), FILE_TYPES)
"""Of `readers.base.Format`. The first is that of files of which nothing else is known."""


def choices() -> tuple[str, ...]:
    """Return the values of the option that chooses the format."""
    return (ANY, *FORMATS)
