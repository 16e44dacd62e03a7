"""XXH64 of data that arrives in parts, with a state that can be saved and restored."""

from typing import Any

import numpy as np

from ooc_pegasos.compiled.rows import xxh64

WORD = 0xFFFFFFFFFFFFFFFF


class RunningHash:
    """XXH64 of everything passed to `update`."""

    def __init__(self) -> None:
        self._lanes = np.array([lane & WORD for lane in xxh64.START], dtype=np.uint64)
        self._tail = b""
        self.total = 0

    def update(self, data: Any) -> None:
        """Add bytes (anything with the buffer protocol)."""
        view = np.frombuffer(data, dtype=np.uint8)
        view.flags.writeable = False
        self.total += len(view)
        if self._tail:
            missing = 32 - len(self._tail)
            self._tail += view[:missing].tobytes()
            view = view[missing:]
            if len(self._tail) < 32:
                return
            xxh64.absorb_stripes(np.frombuffer(self._tail, dtype=np.uint8), self._lanes)
        xxh64.absorb_stripes(view, self._lanes)
        self._tail = view[len(view) // 32 * 32 :].tobytes()

    def hexdigest(self) -> str:
        """Return the hash as `xxhsum -H64` prints it."""
        tail = np.frombuffer(self._tail.ljust(40, b"\0"), dtype=np.uint8)
        return f"{int(xxh64.finish(self._lanes, self.total, tail)) & WORD:016x}"

    def state(self) -> dict[str, Any]:
        """Return the state in JSON types, for `resume`."""
        return {"lanes": [f"{int(x):016x}" for x in self._lanes], "tail": self._tail.hex(), "total": self.total}

    @classmethod
    def resume(cls, state: dict[str, Any]) -> "RunningHash":
        """Return the hash with a state that `state` returned."""
        running = cls()
        running._lanes[:] = [int(x, 16) for x in state["lanes"]]
        running._tail = bytes.fromhex(state["tail"])
        running.total = state["total"]
        return running


def xxh64_hex(data: Any) -> str:
    """XXH64 of one buffer."""
    running = RunningHash()
    running.update(data)
    return running.hexdigest()
