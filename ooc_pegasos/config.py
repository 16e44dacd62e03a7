"""One frozen dataclass a job: the defaults, the checks, and the way from and to a TOML file."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from ooc_pegasos import typed
from ooc_pegasos.errors import UsageError
from ooc_pegasos.labels import Declared, TaskChoice
from ooc_pegasos.parallel import cores

Config = TypeVar("Config")

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def parse_size(text: str) -> int:
    """Bytes from `64MB`, `1.5GiB`, `800k` or a plain number; units are powers of 1024."""
    parts = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([kmgt]?)i?b?\s*", text.lower())
    if not parts:
        raise UsageError(f"{text!r} is not a size; write it like 64MB or 2GB")
    return int(float(parts[1]) * {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1 << 40}[parts[2]])


@dataclass(frozen=True)
class ConvertConfig:
    """Options of `oocpeg convert`. Sizes are in bytes."""

    chunk_size: int = 64 * MIB
    normalize: Literal["l2"] | None = None
    features: int | None = None
    index_base: Literal["auto", "0", "1"] = "auto"
    task: TaskChoice = "auto"
    classes: tuple[str, ...] = ()
    positive_label: str | None = None
    on_bad_row: Literal["stop", "skip"] = "stop"
    shuffle: bool = True
    seed: int = 0
    memory: int = GIB
    threads: int | None = None
    block_size: int | None = None
    """Bytes of text read at a time; by default as many as suit the memory budget."""

    def __post_init__(self) -> None:
        if self.memory < 32 * MIB:
            raise UsageError(f"--memory {self.memory:,} bytes is too little; give it at least 32MB")
        if not KIB <= self.chunk_size <= GIB:
            raise UsageError(f"--chunk-size {self.chunk_size:,} bytes is out of range; choose 1kB to 1GB")
        if self.features is not None and not 1 <= self.features <= 2**32 - 2:
            raise UsageError(f"--features {self.features} is out of range; choose 1 to {2**32 - 2}")
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"--threads {self.threads} is out of range; choose at least 1")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed {self.seed} is out of range; choose 0 to 2^63 - 1")
        if self.block_size is not None and self.block_size < 64:
            raise UsageError("block_size must be at least 64 bytes")
        self.declared()

    def declared(self) -> Declared:
        """What is said of the labels."""
        return Declared(self.task, self.classes, self.positive_label)

    @property
    def workers(self) -> int:
        """Threads to use."""
        return self.threads or cores()

    def text_block(self) -> int:
        """Bytes of text in a block. The store depends on it, so it depends on nothing but the memory budget."""
        return self.block_size or min(16 * MIB, self.memory // 64)

    def reading_threads(self) -> int:
        """Threads that parse. A block and its rows take up to six times its text; there are two more than threads."""
        return max(1, min(self.workers, self.memory // (6 * self.text_block()) - 2))

    def bucket_limit(self) -> int:
        """Bytes of rows shuffled at a time."""
        return self.memory // 8


def load_toml(cls: type[Config], path: Path) -> dict[str, Any]:
    """The settings a TOML file makes for a job, checked against its dataclass."""
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a TOML file: {error}; correct it") from error
    try:
        for name in ("chunk_size", "memory"):
            if isinstance(table.get(name), str):
                table[name] = parse_size(table[name])
        if isinstance(table.get("index_base"), int):
            table["index_base"] = str(table["index_base"])
        typed.load(cls, table)
    except typed.TypedError as error:
        raise UsageError(f"{path}: {error}; correct it") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return table
