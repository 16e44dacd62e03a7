"""What a run leaves for those who were asleep: a log, a record, metrics, and a word to whoever wants one."""

from __future__ import annotations

import errno
import json
import os
import platform
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ooc_pegasos import __version__
from ooc_pegasos.errors import OocPegasosError
from ooc_pegasos.jobs.job import Job
from ooc_pegasos.jobs.state import Compared, State
from ooc_pegasos.jobs.versions import FORM
from ooc_pegasos.store import manifest
from ooc_pegasos.util.escaping import printable
from ooc_pegasos.util.files import open_in_place, write_atomically
from ooc_pegasos.util.json_checksum import plainly
from ooc_pegasos.util.memory_limits import peak_rss

NOTIFY_SECONDS = 60.0
"""Seconds that a command to notify may take."""
_PAUSE = 0.02
"""Seconds between two looks at it."""
_HEARD = 1 << 12
"""Bytes of what it says on standard error that are kept; the rest is read and forgotten, so that it need not wait."""
_LIBRARIES = ("numpy", "numba", "pyarrow")
OUTCOMES = ("promoted", "refused", "unchanged", "failed", "interrupted")


def timestamp(now: datetime | None = None) -> str:
    """The time as ISO 8601 has it."""
    return (now or datetime.now(UTC)).isoformat(timespec="seconds").replace("+00:00", "Z")


@cache
def software() -> dict[str, str]:
    """Versions of what runs. Asked for when a run begins: at its end it may be allowed to open no file any more."""
    libraries = {name: version(name) for name in _LIBRARIES}
    return {"ooc-pegasos": __version__, "python": platform.python_version(), **libraries}


def record_of(
    job: Job,
    state: State,
    outcome: str,
    exit_code: int,
    now: datetime,
    in_use: str | None = None,
    error: str | None = None,
) -> dict[str, Any]:
    """All that is known of a run; `in_use`: the version that is, at its end."""
    compared, appended, trained = state.compare, state.append, plainly(state.train)
    store = {"path": job.store, **_store(job, compared)}
    store |= {
        "new_rows": appended.rows if appended else None,
        "rejected_rows": appended.rejected if appended else None,
        "expired_rows": state.expire,
    }
    record = {
        "job": job.name,
        "run": state.run,
        "outcome": outcome,
        "exit_code": exit_code,
        "error": error,
        "began": state.began,
        "ended": timestamp(now),
        "seconds": state.seconds,
        "peak_rss": peak_rss(),
        "inputs": [source.name for source in appended.sources] if appended else [],
        "fingerprints": [
            {name: getattr(source, name) for name in ("name", "size", "modified_ns", "samples", "xxh64", "rows")}
            for source in (appended.sources if appended else [])
        ],
        "store": store,
        "model": {"lambda": trained.pop("lam"), **trained} if trained else None,
        "champion": state.champion,
        "in_use": in_use,
        "metrics": compared.metrics if compared else {},
        "golden": compared.golden if compared else {},
        "checks": compared.checks if compared else [],
        "drift": state.drift,
        "options": job,
        "training": job.training(),
        "versions": software(),
    }
    table: dict[str, Any] = plainly(record)
    return table


def _store(job: Job, compared: Compared | None) -> dict[str, Any]:
    """The store that models were compared on, else what it is by now, if that can be told."""
    if compared:
        return {"rows": compared.rows, "features": compared.features, "checksum": compared.checksum}
    try:
        made = manifest.read(Path(job.store))
    except (OocPegasosError, OSError):
        return {}
    return {"rows": made.rows, "features": made.features, "checksum": manifest.checksum_of(made)}


def as_json(record: dict[str, Any]) -> bytes:
    """A record as a file."""
    return (json.dumps(record, indent=1, allow_nan=False) + "\n").encode()


class Log:
    """Lines of JSON, one an event; each is whole, whoever else writes to the file.

    A log that cannot be written is no reason to stop: `problem` is what it was, if anything.
    """

    def __init__(self, path: str | None, **always: Any) -> None:
        self._path = path
        self._always = always
        self.problem: str | None = None

    def write(self, event: str, **facts: Any) -> None:
        """Add a line."""
        if self._path is None:
            return
        table = plainly({"time": timestamp(), "event": event, **self._always, **facts})
        line = (json.dumps(table) + "\n").encode()
        # a pipe that nobody reads, or not fast enough, must not keep the run waiting
        try:
            descriptor = open_in_place(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, streams=True)
            try:
                if os.write(descriptor, line) < len(line):
                    raise OSError(errno.EAGAIN, "a line was cut short")
            finally:
                os.close(descriptor)
        except OSError as error:
            self.problem = f"{self._path}: {error.strerror}"


def write_metrics(path: Path, record: dict[str, Any]) -> None:
    """The text format of Prometheus, for its node exporter to pick up."""
    families: dict[str, list[str]] = {}

    def add(name: str, value: float | None, help_text: str, **labels: Any) -> None:
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, OverflowError):  # not known
            return
        head = [f"# HELP oocpeg_{name} {help_text}", f"# TYPE oocpeg_{name} gauge"]
        told = ",".join(f'{key}="{_escaped(str(one))}"' for key, one in {"name": record["job"], **labels}.items())
        families.setdefault(name, head).append(f"oocpeg_{name}{{{told}}} {number:.17g}")

    add("run_timestamp_seconds", _seconds(record["ended"]), "When the last run ended.")
    add("run_exit_code", record["exit_code"], "What the last run ended with.")
    for outcome in OUTCOMES:
        add("run_outcome", outcome == record["outcome"], "1 for the outcome of the last run.", outcome=outcome)
    for step, seconds in record["seconds"].items():
        add("run_step_seconds", seconds, "How long a step of the last run took.", step=step)
    add("run_peak_memory_bytes", record["peak_rss"], "The most memory that the last run had in use.")
    if record["in_use"]:
        made = datetime.strptime(record["in_use"], FORM).replace(tzinfo=UTC).timestamp()
        add("model_timestamp_seconds", made, "When the run began that made the model in use.")
    add("store_rows", record["store"].get("rows"), "Rows of the store.")
    add("new_rows", record["store"]["new_rows"], "Rows appended by the last run.")
    add("rejected_rows", record["store"]["rejected_rows"], "Rows of new files that the last run left out as bad.")
    add("expired_rows", record["store"]["expired_rows"], "Rows that the last run took out of the store.")
    model = record["model"] or {}
    add("model_gap", model.get("gap"), "Certified relative gap of the new model.")
    add("model_certified", model.get("converged"), "1 if the gap of the new model is within the tolerance.")
    for name, pair in record["metrics"].items():
        for which, metrics in pair.items():
            for metric, value in (metrics or {}).items():
                if isinstance(value, int | float):
                    add("metric", value, "A metric of a model.", set=name, model=which, metric=metric)
    for side, facts in (record["drift"] or {}).items():
        for label, share in facts["label_shares"].items():
            add("label_share", share, "Share of the rows with a label.", rows=side, label=label)
        names = ("known_features", "mean_score", "deviation_of_scores", "mean_label", "deviation_of_labels")
        for name in (*names, "nonzeros_per_row"):
            add(name, facts[name], "Of the rows before, and of the new ones.", rows=side)
    text = "".join(f"{line}\n" for lines in families.values() for line in lines)
    write_atomically(path, text.encode(errors="replace"))


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def notify(command: str, record: dict[str, Any], seconds: float = NOTIFY_SECONDS) -> str | None:
    """Run a command with the record on its standard input; what went wrong, if anything did.

    It is waited for, not what it may have started in the background; what it prints is not kept, but for the first of
    its complaints.
    """
    environment = {**os.environ, "OOCPEG_JOB": record["job"], "OOCPEG_OUTCOME": record["outcome"]}
    told = f"{printable(command)}: "
    try:
        words = shlex.split(command)
        with _in_memory(json.dumps(record).encode()) as content:
            process = subprocess.Popen(  # noqa: S603 (the job's owner says what to run, and no shell looks at it)
                words,
                stdin=content,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # so that all of it can be stopped
            )
    except (OSError, ValueError) as error:
        return f"{told}{error}"
    complaints = _complaints(process, seconds)
    if complaints is None:
        return f"{told}took longer than {seconds:g} seconds, and was stopped"
    return f"{told}exit code {process.returncode}: {complaints}" if process.returncode else None


@contextmanager
def _in_memory(content: bytes) -> Iterator[int]:
    """A file of this content that needs no disk, which may be what the record tells is full."""
    descriptor = os.memfd_create("record")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def _complaints(process: subprocess.Popen[bytes], seconds: float) -> str | None:
    """The first that a command says on standard error, on one line, when it has ended; None if it had to be stopped."""
    assert process.stderr is not None
    head, end = b"", time.monotonic() + seconds
    try:
        with process.stderr as pipe:
            os.set_blocking(pipe.fileno(), False)
            while process.poll() is None:
                if time.monotonic() >= end:
                    return None
                head = (head + _heard(pipe.fileno(), _PAUSE))[:_HEARD]
            while len(head) < _HEARD and (more := _heard(pipe.fileno(), 0.0)):
                head += more
    finally:  # after Ctrl-C as well
        if process.poll() is None:
            with suppress(OSError):  # what runs as somebody else cannot be stopped, and is not waited for
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return printable(head.decode(errors="backslashreplace").strip()[:200])


def _heard(pipe: int, seconds: float) -> bytes:
    """What has come through a pipe, after a wait for it; nothing if it is closed, after the same wait."""
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN)
    if not waiting.poll(1000 * seconds):
        return b""
    some = os.read(pipe, _HEARD)
    if not some:
        time.sleep(seconds)
    return some
