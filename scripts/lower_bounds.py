"""Print the lower bounds in pyproject.toml as constraints for pip, which installs the newest versions without them."""

import re
import tomllib
from pathlib import Path


def lower_bounds(project: dict) -> dict[str, str]:
    """Return the lowest version allowed of each dependency, including those of all extras."""
    extras = project["optional-dependencies"].values()
    bounds: dict[str, str] = {}
    for requirement in [*project["dependencies"], *(one for extra in extras for one in extra)]:
        found = re.fullmatch(r"([\w-]+)(?:\[[\w,-]+\])?>=([\w.]+)(?:,<[\w.]+)?", requirement)
        if not found:
            raise SystemExit(f"pyproject.toml: {requirement}: no lower bound; write it as name>=version")
        name, version = found.groups()
        if bounds.setdefault(name, version) != version:
            raise SystemExit(f"pyproject.toml: {name}: two lower bounds, {bounds[name]} and {version}; make them equal")
    return bounds


if __name__ == "__main__":
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    for name, version in lower_bounds(tomllib.loads(text)["project"]).items():
        print(f"{name}=={version}")
