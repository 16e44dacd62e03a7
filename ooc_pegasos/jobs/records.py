"""Reports of a run: log, record, metrics, and a notification."""

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
"""Timeout of the notification command in seconds."""
_PAUSE = 0.02
"""Seconds between two polls of the command."""
_HEARD = 1 << 12
"""Bytes of its standard error that are kept; the rest is read and discarded, so that the command is not blocked."""
_LIBRARIES = ("numpy", "numba", "pyarrow")
OUTCOMES = ("promoted", "refused", "unchanged", "failed", "interrupted")


def timestamp(now: datetime | None = None) -> str:
    """Return the time in ISO 8601."""
    return (now or datetime.now(UTC)).isoformat(timespec="seconds").replace("+00:00", "Z")


@cache
def software() -> dict[str, str]:
    """Return the versions of the software. Called when a run begins: at its end opening files may fail."""
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
    """Return the record of a run; `in_use` is the version in use at its end."""
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
        "set_aside": [
            {"name": one.source.name, "run": one.run, "reason": one.reason}
            for one in [*(state.plan.set_aside if state.plan else []), *state.set_aside]
        ],
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
    """Return the store on which models were compared, else the current store if it can be read."""
    if compared:
        return {"rows": compared.rows, "features": compared.features, "checksum": compared.checksum}
    try:
        made = manifest.read(Path(job.store))
    except (OocPegasosError, OSError):
        return {}
    return {"rows": made.rows, "features": made.features, "checksum": manifest.checksum_of(made)}


def as_json(record: dict[str, Any]) -> bytes:
    """Return a record as the content of a file."""
    return (json.dumps(record, indent=1, allow_nan=False) + "\n").encode()


class Log:
    """Log of JSON lines, one an event, each written at once, so that other writers cannot split a line.

    A log that cannot be written does not stop a run: `problem` is the last error.
    """

    def __init__(self, path: str | None, **always: Any) -> None:
        self._path = path
        self._always = always
        self.problem: str | None = None

    def write(self, event: str, **facts: Any) -> None:
        """Append a line."""
        if self._path is None:
            return
        table = plainly({"time": timestamp(), "event": event, **self._always, **facts})
        line = (json.dumps(table) + "\n").encode()
        # a pipe without a reader, or with a slow one, must not block the run
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
    """Write metrics in the text format of Prometheus, for the textfile collector of its node exporter."""
    families: dict[str, list[str]] = {}

    def add(name: str, value: float | None, help_text: str, **labels: Any) -> None:
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, OverflowError):  # unknown
            return
        head = [f"# HELP oocpeg_{name} {help_text}", f"# TYPE oocpeg_{name} gauge"]
        shown = ",".join(f'{key}="{_escaped(str(one))}"' for key, one in {"name": record["job"], **labels}.items())
        families.setdefault(name, head).append(f"oocpeg_{name}{{{shown}}} {number:.17g}")

    add("run_timestamp_seconds", _seconds(record["ended"]), "When the last run ended.")
    add("run_exit_code", record["exit_code"], "Exit code of the last run.")
    for outcome in OUTCOMES:
        add("run_outcome", outcome == record["outcome"], "1 for the outcome of the last run.", outcome=outcome)
    for step, seconds in record["seconds"].items():
        add("run_step_seconds", seconds, "Duration of a step of the last run.", step=step)
    add("run_peak_memory_bytes", record["peak_rss"], "Peak memory of the last run.")
    if record["in_use"]:
        made = datetime.strptime(record["in_use"], FORM).replace(tzinfo=UTC).timestamp()
        add("model_timestamp_seconds", made, "When the run that trained the model in use began.")
    add("store_rows", record["store"].get("rows"), "Rows of the store.")
    add("new_rows", record["store"]["new_rows"], "Rows appended by the last run.")
    add("rejected_rows", record["store"]["rejected_rows"], "Rows of new files that the last run rejected.")
    add("files_set_aside", len(record["set_aside"]), "Input files that are set aside.")
    add("expired_rows", record["store"]["expired_rows"], "Rows that the last run removed from the store.")
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
            add(name, facts[name], "A statistic of the earlier rows, and of the new rows.", rows=side)
    text = "".join(f"{line}\n" for lines in families.values() for line in lines)
    write_atomically(path, text.encode(errors="replace"))


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def notify(command: str, record: dict[str, Any], seconds: float = NOTIFY_SECONDS) -> str | None:
    """Run a command with the record on its standard input; return a description of the failure, or None.

    The command is waited for, but not its background processes. Its output is discarded except for the beginning of
    standard error.
    """
    environment = {**os.environ, "OOCPEG_JOB": record["job"], "OOCPEG_OUTCOME": record["outcome"]}
    prefix = f"{printable(command)}: "
    try:
        words = shlex.split(command)
        with _in_memory(json.dumps(record).encode()) as content:
            process = subprocess.Popen(  # noqa: S603 (the owner of the job chooses the command, and no shell parses it)
                words,
                stdin=content,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # so that its whole process group can be stopped
            )
    except (OSError, ValueError) as error:
        return f"{prefix}{error}"
    complaints = _standard_error(process, seconds)
    if complaints is None:
        return f"{prefix}took longer than {seconds:g} seconds, and was stopped"
    return f"{prefix}exit code {process.returncode}: {complaints}" if process.returncode else None


@contextmanager
def _in_memory(content: bytes) -> Iterator[int]:
    """Yield an in-memory file, because the problem to be reported may be a full disk."""
    descriptor = os.memfd_create("record")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def _standard_error(process: subprocess.Popen[bytes], seconds: float) -> str | None:
    """Return the beginning of a command's standard error on one line, after its end; None if it was stopped."""
    assert process.stderr is not None
    head, end = b"", time.monotonic() + seconds
    try:
        with process.stderr as pipe:
            os.set_blocking(pipe.fileno(), False)
            while process.poll() is None:
                if time.monotonic() >= end:
                    return None
                head = (head + read_pipe(pipe.fileno(), _PAUSE))[:_HEARD]
            while len(head) < _HEARD and (more := read_pipe(pipe.fileno(), 0.0)):
                head += more
    finally:  # also after Ctrl-C
        if process.poll() is None:
            with suppress(OSError):  # a process of another user cannot be stopped, and is not waited for
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return printable(head.decode(errors="backslashreplace").strip()[:200])


def read_pipe(pipe: int, seconds: float) -> bytes:
    """Return the bytes that arrive in a pipe within some seconds, none if the pipe is closed or silent."""
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN)
    if not waiting.poll(1000 * seconds):
        return b""
    some = os.read(pipe, _HEARD)
    if not some:
        time.sleep(seconds)
    return some
