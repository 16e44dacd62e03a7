"""One run of a job: append, expire, train, compare, promote or refuse.

What has been done stands in `MODELS/.run/state.json`, so that a run that was killed goes on where it stood, under the
name that it began with. Nothing that is in use changes before the last step, which switches a link.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ooc_pegasos import __version__, manifest, typed
from ooc_pegasos.config import TrainConfig
from ooc_pegasos.conversion import convert
from ooc_pegasos.errors import DamagedError, InputError, OocPegasosError
from ooc_pegasos.existing import Existing
from ooc_pegasos.files import locked, write_atomically, writing_errors
from ooc_pegasos.growth import expire
from ooc_pegasos.jobs import gate, records
from ooc_pegasos.jobs.drift import drift
from ooc_pegasos.jobs.job import Job
from ooc_pegasos.jobs.plan import Plan, plan
from ooc_pegasos.jobs.versions import MODEL, RECORD, Versions
from ooc_pegasos.losses import loss_for
from ooc_pegasos.model import Model
from ooc_pegasos.progress import Progress, TrainingProgress, default_training_progress
from ooc_pegasos.solvers.choice import PEGASOS_FROM
from ooc_pegasos.store import Store
from ooc_pegasos.trainer import train

REFUSED = 7
_STATE, _CANDIDATE = "state.json", "candidate"
_RECORDS_KEPT = 100


def run(
    job: Job,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    progress: Progress | None = None,
    training_progress: TrainingProgress | None = None,
) -> dict[str, Any]:
    """Run a job to its end; first to the end of the run that was interrupted, if there is one. Returns the record."""
    versions = Versions(job.models)
    with ExitStack() as stack:
        with writing_errors(versions.folder):
            versions.folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(versions.lock, str(versions.folder)))
        while True:
            shown = training_progress or default_training_progress()
            one = _Run(job, versions, now, progress or Progress(), shown)
            record = one.go()
            if not one.resumed or record["exit_code"] not in (0, REFUSED):
                return record


class _Run:
    """One run, new or taken up again."""

    def __init__(
        self,
        job: Job,
        versions: Versions,
        now: Callable[[], datetime],
        progress: Progress,
        training_progress: TrainingProgress,
    ) -> None:
        self.job, self.versions, self.now = job, versions, now
        self.progress, self.training_progress = progress, training_progress
        self.work, self.candidate = versions.work, versions.work / _CANDIDATE
        state = self._read_state()
        self.resumed = state is not None
        self.state: dict[str, Any] = state or {
            "job": job.digest(),
            "run": versions.new_name(now()),
            "began": records.timestamp(now()),
            "seconds": {},
            "done": {},
        }
        self.log = records.Log(job.log, job=job.name, run=self.state["run"])

    # --- what stands on disk ----------------------------------------------------------------------

    def _read_state(self) -> dict[str, Any] | None:
        """That of the run that was interrupted; a run of another job is given up."""
        try:
            state: dict[str, Any] = json.loads((self.work / _STATE).read_text())
        except (FileNotFoundError, NotADirectoryError):
            state = {}
        except (OSError, ValueError) as error:
            raise DamagedError(f"{self.work / _STATE}: {error}; remove {self.work} to begin anew") from error
        if state.get("job") == self.job.digest():
            return state
        shutil.rmtree(self.work, ignore_errors=True)
        return None

    def _save(self) -> None:
        self.work.mkdir(exist_ok=True)
        write_atomically(self.work / _STATE, json.dumps(self.state).encode())

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        self.log.write(f"{name} begins")
        yield
        took = self.state["seconds"].get(name, 0.0) + time.monotonic() - began
        self.state["seconds"][name] = took
        self.log.write(f"{name} done", seconds=took, **{name: self.state["done"].get(name)})

    def _did(self, step: str, facts: Any) -> None:
        """Remember what a step came to, so that it is not done again."""
        self.state["done"][step] = facts
        self._save()

    # --- the run ----------------------------------------------------------------------------------

    def go(self) -> dict[str, Any]:
        """All steps that are left; whatever comes of them is recorded."""
        if self.resumed:
            self.progress.note(f"run {self.state['run']} was interrupted and goes on")
        try:
            with writing_errors(self.versions.folder):
                outcome = self._steps()
            record = self._record(outcome, REFUSED if outcome == "refused" else 0)
        except KeyboardInterrupt:
            self._report(self._record("interrupted", 130))
            raise
        except (OocPegasosError, MemoryError) as error:
            self._give_up_if_hopeless(error)
            code = getattr(error, "exit_code", InputError.exit_code)
            self._report(self._record("failed", code, str(error) or "out of memory"))
            raise
        with writing_errors(self.versions.folder):
            self._end(record)
        return record

    def _steps(self) -> str:
        job, done = self.job, self.state["done"]
        if "plan" not in done:
            with self._step("plan"):
                self._did("plan", dataclasses.asdict(plan(job, self.now())))
        planned = typed.load(Plan, done["plan"])
        if "append" not in done:
            with self._step("append"):
                self._did("append", self._append(planned))
        if "expire" not in done:
            with self._step("expire"):
                before = planned.expire_before_ns
                self._did("expire", expire(Path(job.store), before) if before is not None else 0)
        if "compare" not in done:  # then the old model may be gone already
            store = Store.open(job.store)
            champion = self.state["champion"] = self.versions.current()
            old = Model.load(self.versions.model(champion)) if champion else None
            if old and not self._is_due(old, store):
                return "unchanged"
            if "train" not in done:
                with self._step("train"):
                    self._did("train", self._train(store, old))
            with self._step("compare"):
                self._did("compare", self._compare(store, old))
        passed = all(check["passed"] for check in done["compare"]["checks"])
        if self.candidate.exists():
            record = self._record("promoted" if passed else "refused", 0 if passed else REFUSED)
            write_atomically(self.candidate / RECORD, _json(record))
        if passed:
            self.versions.publish(self.candidate, self.state["run"])
        else:
            self.versions.refuse(self.candidate, self.state["run"])
        return "promoted" if passed else "refused"

    def _append(self, planned: Plan) -> dict[str, Any]:
        """The new files, at the end of the store; done already if a crash came between that and the note of it."""
        job = self.job
        if not planned.new:
            return {"rows": 0, "files": []}
        target = Path(job.store)
        there = (target / manifest.FILE_NAME).exists()
        existing = Existing(append=there, resume=True)
        store = convert(planned.new, target, job.convert, existing=existing, progress=self.progress)
        rows = sum(source.rows for source in store.manifest.sources[-len(planned.new) :])
        return {"rows": rows, "files": planned.new, "rejected": store.manifest.rejected}

    def _is_due(self, champion: Model, store: Store) -> bool:
        """Whether there is anything to train: other rows, or other options, than those of the champion."""
        done = self.state["done"]
        if "train" in done or champion.info.store_checksum != manifest.checksum_of(store.manifest):
            return True
        record = json.loads((self.versions.folder / self.state["champion"] / RECORD).read_text())
        return bool(record.get("training") != _plainly(self.job.training()))

    def _train(self, store: Store, champion: Model | None) -> dict[str, Any]:
        config, start, why = self._how_to_train(store, champion)
        if why:
            self.progress.note(why)
        self.candidate.mkdir(exist_ok=True)
        result = train(
            store,
            config,
            warm_start=start,
            checkpoint=self.work / "checkpoint",
            resume=True,
            log=self.candidate / "epochs.jsonl",
            progress=self.training_progress,
        )
        self.training_progress.end()
        result.model.save(self.candidate / MODEL)
        certificate = result.model.info.certificate
        return {
            "lambda": result.model.info.lam,
            "algorithm": result.model.info.algorithm,
            "epochs": result.model.info.epochs,
            "converged": result.converged,
            "objective": certificate.primal,
            "lower_bound": certificate.lower_bound,
            "gap": certificate.gap,
            "warm_start": start is not None,
            "why": why,
        }

    def _how_to_train(self, store: Store, champion: Model | None) -> tuple[TrainConfig, Model | None, str]:
        """(options, weights to begin with, why so)."""
        job, config = self.job, self.job.training()
        if champion is None:
            return config, None, ""
        why = ""
        same_loss = champion.info.loss == loss_for(config.loss, store.manifest.labels.task).name
        if config.lam is None and config.C is None and not job.retune and same_loss:
            bias = config.bias or champion.info.config.get("bias") or "feature"
            config = dataclasses.replace(config, lam=champion.info.lam, bias=bias)
            why = f"lambda {champion.info.lam:.3g} is that of the model in use; retune = true looks for it anew"
        one = config.C is not None or (config.lambdas is not None and len(config.lambdas) == 1)
        if not (job.warm_start and one and same_loss and champion.weights.ndim == 1):
            return config, None, why
        rows = store.rows * (1 - config.holdout_fraction)
        lam = config.lambdas[0] if config.lambdas else 1.0 / (config.C or 1.0) / rows
        if config.algorithm == "sdca" or (config.algorithm == "auto" and lam * rows * config.enough < PEGASOS_FROM):
            return config, None, f"{why}; sdca begins from nothing, and is faster here".removeprefix("; ")
        if bool(champion.bias) and config.biased != "feature":
            return config, None, why
        return config, champion, why

    def _compare(self, store: Store, champion: Model | None) -> dict[str, Any]:
        """Both models on the rows kept apart and on each golden set."""
        job = self.job
        challenger = Model.load(self.candidate / MODEL)
        if champion and champion.info.labels.classes != challenger.info.labels.classes:
            raise InputError(
                f"{job.store}: its classes are not those of the model in use; use another folder of models"
            )
        models = [challenger, champion]
        holdout = job.training().holdout_fraction
        sets: dict[str, Any] = {}
        if holdout:
            sets["holdout"] = tuple(m and gate.measure_apart(m, store, holdout) for m in models)
        for golden in job.golden:
            sets[Path(golden).name] = tuple(m and gate.measure(m, golden) for m in models)
        checks = gate.verdict(job.gate, challenger, champion, sets)
        metrics = {
            name: {"challenger": new.metrics, "champion": old.metrics if old else None}
            for name, (new, old) in sets.items()
        }
        new_parts = 1 if self.state["done"]["append"]["rows"] else 0
        return {
            "checks": gate.as_tables(checks),
            "metrics": metrics,
            "drift": drift(store, new_parts, champion),
            "store": {"rows": store.rows, "features": store.features, "checksum": manifest.checksum_of(store.manifest)},
        }

    # --- its end ----------------------------------------------------------------------------------

    def _record(self, outcome: str, exit_code: int, error: str | None = None) -> dict[str, Any]:
        done, job = self.state["done"], self.job
        compared = done.get("compare") or {}
        appended = done.get("append") or {}
        return {
            "job": job.name,
            "run": self.state["run"],
            "outcome": outcome,
            "exit_code": exit_code,
            "error": error,
            "began": self.state["began"],
            "ended": records.timestamp(self.now()),
            "seconds": self.state["seconds"],
            "inputs": appended.get("files", []),
            "store": {
                "path": job.store,
                **compared.get("store", {}),
                "new_rows": appended.get("rows"),
                "expired_rows": done.get("expire"),
            },
            "model": done.get("train"),
            "champion": self.state.get("champion"),
            "metrics": compared.get("metrics", {}),
            "checks": compared.get("checks", []),
            "drift": compared.get("drift"),
            "options": _plainly(job),
            "training": _plainly(job.training()),
            "versions": {"ooc-pegasos": __version__},
        }

    def _end(self, record: dict[str, Any]) -> None:
        """The record in its place, old versions gone, and nothing left of the work."""
        self._report(record)
        removed = self.versions.prune(self.job.keep)
        if removed:
            self.log.write("versions removed", versions=removed)
        shutil.rmtree(self.work, ignore_errors=True)

    def _report(self, record: dict[str, Any]) -> None:
        """Tell of the end; what cannot be told does not change it."""
        try:
            folder = self.versions.folder / "runs"
            folder.mkdir(exist_ok=True)
            write_atomically(folder / f"{record['run']}.json", _json(record))
            for old in sorted(folder.glob("*.json"))[:-_RECORDS_KEPT]:
                old.unlink()
            self.log.write(record["outcome"], exit_code=record["exit_code"], error=record["error"])
            if self.job.metrics:
                records.write_metrics(Path(self.job.metrics), self.job.name, record)
        except OSError as error:
            self.progress.note(f"the record of the run could not be written: {error}")
        if self.job.notify:
            problem = records.notify(self.job.notify, record)
            if problem:
                self.progress.note(f"notify: {problem}")

    def _give_up_if_hopeless(self, error: BaseException) -> None:
        """Forget what would fail in the same way when it is taken up again."""
        if isinstance(error, DamagedError) or "append" not in self.state["done"]:
            shutil.rmtree(self.work, ignore_errors=True)


def _plainly(record: Any) -> Any:
    """As JSON gives it back."""
    return json.loads(json.dumps(dataclasses.asdict(record)))


def _json(record: dict[str, Any]) -> bytes:
    return (json.dumps(record, indent=1, default=str) + "\n").encode()
