"""Checkpoint of a training run: vectors, counters and a position. No state of a random generator is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.errors import CorruptFileError, InputError, UsageError
from ooc_pegasos.util.arrow import array_of
from ooc_pegasos.util.arrow_checksum import PLACE, is_sealed, seal
from ooc_pegasos.util.files import read_file, write_atomically

FILE_NAME = "training.checkpoint"
_KEY = b"ooc-pegasos-checkpoint"


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema([pa.field("values", pa.list_(pa.float64()))])


@contextmanager
def sound(place: Path) -> Iterator[None]:
    """Refuse a checkpoint whose content is invalid for this run, because compiled loops do not check their arguments.

    The checksum of such a file is right: another version of the program has written the file, or it was forged.
    """
    try:
        yield
    except UsageError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        problem = " ".join(str(error).split())[:100]
        path = place / FILE_NAME
        raise CorruptFileError(f"{path}: not a checkpoint of this run ({problem}); start without {{resume}}") from error


def take(arrays: dict[str, np.ndarray], name: str, like: np.ndarray) -> np.ndarray:
    """Return an array of a checkpoint, which must have the shape of `like`. Raises ValueError."""
    if arrays[name].shape != like.shape:
        raise ValueError(f"{len(arrays[name]):,} numbers for '{name}' instead of {like.size:,}")
    return arrays[name]


def whole(number: Any, least: int, most: int, what: str) -> int:
    """Return an integer from `least` to `most`. Raises ValueError."""
    if type(number) is not int or not least <= number <= most:
        raise ValueError(f"{what} {number!r:.40}")
    return number


@dataclass(frozen=True)
class Checkpoint:
    """Arrays by name, and facts in JSON, which keeps floats exactly."""

    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]

    def save(self, folder: Path) -> None:
        """Replace the checkpoint in `folder` by this one, atomically."""
        import pyarrow as pa

        folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps(self.facts)
        sink = pa.BufferOutputStream()
        columns = {name: np.ascontiguousarray(array, np.float64) for name, array in self.arrays.items()}
        head = json.dumps({"facts": content, "names": list(columns)})
        schema = _schema().with_metadata({_KEY: head.encode(), **PLACE})
        with pa.ipc.new_file(sink, schema) as writer:
            for array in columns.values():
                offsets = array_of(np.array([0, len(array)], np.int32))
                column = pa.ListArray.from_arrays(offsets, array_of(array))
                writer.write_batch(pa.record_batch([column], schema=schema))
        write_atomically(folder / FILE_NAME, seal(sink.getvalue().to_pybytes()))

    @classmethod
    def load(cls, folder: Path) -> Checkpoint | None:
        """Return the checkpoint in `folder`, or None if there is none."""
        import pyarrow as pa

        path = folder / FILE_NAME
        try:
            content = read_file(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; check its permissions") from error
        try:
            if not is_sealed(content):
                raise CorruptFileError(
                    f"{path}: the checksum does not match, so it is damaged; start without {{resume}}"
                )
            reader = pa.ipc.open_file(content)
            if not reader.schema.equals(_schema()):
                raise ValueError("other columns")
            head = json.loads(reader.schema.metadata[_KEY])
            arrays = {}
            for number, name in enumerate(head["names"]):
                batch = reader.get_batch(number)
                batch.validate(full=True)
                array = batch.column("values").values.to_numpy(zero_copy_only=False)
                arrays[name] = np.array(array)
            facts = json.loads(head["facts"])
            if not isinstance(facts, dict):
                raise ValueError("facts that are not a table")
            return cls(arrays, facts)
        except (pa.ArrowException, KeyError, TypeError, ValueError, AttributeError, RecursionError, OSError) as error:
            problem = " ".join(str(error).split())[:100]
            raise CorruptFileError(
                f"{path}: not a checkpoint, or damaged ({problem}); start without {{resume}}"
            ) from error
