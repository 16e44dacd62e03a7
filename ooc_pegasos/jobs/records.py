"""What a run leaves for those who were asleep: a log, a record, metrics, and a word to whoever wants one."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ooc_pegasos.files import write_atomically

_PATIENCE = 60
"""Seconds that a command to notify may take."""


def timestamp(now: datetime | None = None) -> str:
    """The time as ISO 8601 has it."""
    return (now or datetime.now(UTC)).isoformat(timespec="seconds").replace("+00:00", "Z")


class Log:
    """Lines of JSON, one an event; each is whole, whoever else writes to the file."""

    def __init__(self, path: str | None, **always: Any) -> None:
        self._path = path
        self._always = always

    def write(self, event: str, **facts: Any) -> None:
        """Add a line."""
        if self._path is None:
            return
        line = json.dumps({"time": timestamp(), "event": event, **self._always, **facts}, default=str) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def write_metrics(path: Path, job: str, record: dict[str, Any]) -> None:
    """The text format of Prometheus, for its node exporter to pick up."""
    lines: list[str] = []

    def add(name: str, value: float | None, help_text: str, **labels: Any) -> None:
        if value is None:
            return
        head = f"# HELP oocpeg_{name} {help_text}"
        if head not in lines:
            lines.extend([head, f"# TYPE oocpeg_{name} gauge"])
        told = ",".join(f'{key}="{_escaped(str(one))}"' for key, one in {"job": job, **labels}.items())
        lines.append(f"oocpeg_{name}{{{told}}} {float(value):.17g}")

    ended = datetime.fromisoformat(record["ended"])
    add("run_timestamp_seconds", ended.timestamp(), "When the last run ended.")
    add("run_exit_code", record["exit_code"], "What the last run ended with.")
    for outcome in ("promoted", "refused", "unchanged", "failed", "interrupted"):
        add("run_outcome", outcome == record["outcome"], "1 for the outcome of the last run.", outcome=outcome)
    for step, seconds in record.get("seconds", {}).items():
        add("run_step_seconds", seconds, "How long a step of the last run took.", step=step)
    add("store_rows", record.get("store", {}).get("rows"), "Rows of the store.")
    add("new_rows", record.get("store", {}).get("new_rows"), "Rows appended by the last run.")
    add("model_gap", (record.get("model") or {}).get("gap"), "Certified relative gap of the new model.")
    for name, pair in record.get("metrics", {}).items():
        for model, metrics in pair.items():
            for metric, value in (metrics or {}).items():
                if isinstance(value, int | float):
                    add("metric", value, "A metric of a model.", set=name, model=model, metric=metric)
    for side, facts in (record.get("drift") or {}).items():
        for label, share in facts["label_shares"].items():
            add("label_share", share, "Share of the rows with a label.", rows=side, label=label)
        for name in ("known_features", "mean_score", "nonzeros_per_row"):
            add(name, facts.get(name), "Of the rows before, and of the new ones.", rows=side)
    lines = _by_family(lines)
    write_atomically(path, ("\n".join(lines) + "\n").encode())


def _by_family(lines: list[str]) -> list[str]:
    """Samples of a name follow its help and type."""
    heads = [line for line in lines if line.startswith("# HELP")]
    found = []
    for head in heads:
        name = head.split(" ")[2]
        found += [head, f"# TYPE {name} gauge", *(line for line in lines if line.startswith(name + "{"))]
    return found


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def notify(command: str, record: dict[str, Any]) -> str | None:
    """Run a command with the record on its standard input; what went wrong, if anything did."""
    environment = {**os.environ, "OOCPEG_JOB": record["job"], "OOCPEG_OUTCOME": record["outcome"]}
    try:
        done = subprocess.run(  # noqa: S603 (the job's owner says what to run, and no shell looks at it)
            shlex.split(command),
            input=json.dumps(record, default=str),
            text=True,
            capture_output=True,
            timeout=_PATIENCE,
            env=environment,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"{command}: {error}"
    return f"{command}: exit code {done.returncode}: {done.stderr.strip()[:200]}" if done.returncode else None
