"""What a run leaves for those who were asleep: a log, a record, metrics, and a word to whoever wants one."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ooc_pegasos import __version__
from ooc_pegasos.checked import plainly
from ooc_pegasos.files import write_atomically
from ooc_pegasos.jobs.job import Job
from ooc_pegasos.jobs.state import State
from ooc_pegasos.jobs.versions import FORM
from ooc_pegasos.machine import peak_rss

_PATIENCE = 60
"""Seconds that a command to notify may take."""
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
    job: Job, state: State, outcome: str, exit_code: int, now: datetime, error: str | None = None
) -> dict[str, Any]:
    """All that is known of a run."""
    compared, appended, trained = state.compare, state.append, plainly(state.train)
    store: dict[str, Any] = {"path": job.store}
    if compared:
        store |= {"rows": compared.rows, "features": compared.features, "checksum": compared.checksum}
    store |= {"new_rows": appended.rows if appended else None, "expired_rows": state.expire}
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
        "in_use": state.run if outcome == "promoted" else state.champion,
        "metrics": compared.metrics if compared else {},
        "checks": compared.checks if compared else [],
        "drift": compared.drift if compared else None,
        "options": job,
        "training": job.training(),
        "versions": software(),
    }
    table: dict[str, Any] = plainly(record)
    return table


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
        line = json.dumps(plainly({"time": timestamp(), "event": event, **self._always, **facts})) + "\n"
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(descriptor, line.encode())
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
        for name in ("known_features", "mean_score", "deviation_of_scores", "nonzeros_per_row"):
            add(name, facts[name], "Of the rows before, and of the new ones.", rows=side)
    text = "".join(f"{line}\n" for lines in families.values() for line in lines)
    write_atomically(path, text.encode(errors="replace"))


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def notify(command: str, record: dict[str, Any]) -> str | None:
    """Run a command with the record on its standard input; what went wrong, if anything did."""
    environment = {**os.environ, "OOCPEG_JOB": record["job"], "OOCPEG_OUTCOME": record["outcome"]}
    try:
        done = subprocess.run(  # noqa: S603 (the job's owner says what to run, and no shell looks at it)
            shlex.split(command),
            input=json.dumps(record),
            text=True,
            errors="replace",
            capture_output=True,
            timeout=_PATIENCE,
            env=environment,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"{command}: {error}"
    return f"{command}: exit code {done.returncode}: {done.stderr.strip()[:200]}" if done.returncode else None
