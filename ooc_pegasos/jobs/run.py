"""A run of a job: append, expire, train, compare, promote or refuse.

`MODELS/.run/state.json` records the finished steps, so that an interrupted run resumes, under its first name. The model
in use does not change before the last step, which switches a link.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from ooc_pegasos import exit_codes
from ooc_pegasos.algorithms import ALGORITHMS, ANY
from ooc_pegasos.config import TrainConfig
from ooc_pegasos.conversion.output_check import Existing
from ooc_pegasos.conversion.pipeline import convert
from ooc_pegasos.errors import (
    CheckpointMismatchError,
    CorruptFileError,
    InputError,
    OocPegasosError,
    PublishedError,
    UsageError,
)
from ooc_pegasos.jobs import gate, records, set_aside
from ooc_pegasos.jobs import state as states
from ooc_pegasos.jobs.drift import drift
from ooc_pegasos.jobs.job import HOLDOUT, Job
from ooc_pegasos.jobs.plan import Plan, plan, refuse_changed_sources
from ooc_pegasos.jobs.reference_sets import check_reference_sets, fingerprints
from ooc_pegasos.jobs.set_aside import SetAside
from ooc_pegasos.jobs.state import Appended, Compared, State, Trained
from ooc_pegasos.jobs.versions import MODEL, RECORD, Versions
from ooc_pegasos.objective.losses import completed, loss_for
from ooc_pegasos.readers.sources import manifest_name
from ooc_pegasos.registry import LOSSES
from ooc_pegasos.reporting.progress import Progress, TrainingProgress, default_training_progress
from ooc_pegasos.reporting.text import check_text
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.scoring.score import check_store
from ooc_pegasos.solvers.registry import choice_by_clock
from ooc_pegasos.store import manifest
from ooc_pegasos.store.append_expire import expire
from ooc_pegasos.store.drop import UnknownSourceError, drop, full_name
from ooc_pegasos.store.manifest import Manifest, SourceInfo
from ooc_pegasos.store.store import Store
from ooc_pegasos.training.api import train
from ooc_pegasos.util.files import read_file, remove_folder, write_atomically, writing_errors
from ooc_pegasos.util.json_checksum import plainly
from ooc_pegasos.util.locks import locked

_RECORDS_KEPT = 100


def run(
    job: Job,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    progress: Progress | None = None,
    training_progress: TrainingProgress | None = None,
    retry: Sequence[str] = (),
) -> dict[str, Any]:
    """Run a job, after resuming an interrupted run if there is one; return the record of the last run.

    `retry`: files set aside that are appended all the same.
    """
    versions, shown = Versions(job.models), progress or Progress()
    with ExitStack() as stack:
        try:
            with writing_errors(versions.folder):
                versions.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(versions.lock, str(versions.folder), shown.note))
        except OocPegasosError as error:
            _report_failed_start(job, error, now(), shown)
            raise
        while True:
            one = JobRun(job, versions, now, shown, training_progress or default_training_progress(), retry)
            record = one.go()
            tried = set(record["inputs"])  # by the interrupted run
            retry = [name for name in retry if full_name(name, tried) not in tried]
            if not one.resumed or (one.state.job == job.digest() and not _has_new_input(job, now(), retry)):
                return record
            shown.note(f"run {record['run']}: {record['outcome']}; new files have arrived since, so another run begins")


def preview(job: Job, now: datetime, retry: Sequence[str] = ()) -> Plan:
    """Return the plan of the next run, or of the interrupted run that it would resume."""
    found = states.load(Versions(job.models).work)
    if found and found.plan and found.job == job.digest() and (found.compare or not found.failed):
        return dataclasses.replace(found.plan, unfinished=found.run)
    return plan(job, now, retry)


def rollback(versions: Versions, to: str | None = None) -> tuple[str | None, str]:
    """Put an older version in use; return the version that was in use, and the one that is.

    An interrupted run is discarded, because its model was compared with a version that is no longer in use. The next
    run still knows the rows that it has appended.
    """
    was, to = versions.choose(to)
    with suppress(CorruptFileError):
        found = states.load(versions.work)
        if found:
            dataclasses.replace(found, job="", train=None, compare=None).save(versions.work)
    versions.switch(to)
    return was, to


def _report_failed_start(job: Job, error: OocPegasosError, now: datetime, progress: Progress) -> None:
    """Report that no run could begin. The records are left to the process that holds the lock."""
    state = State(job.digest(), "", records.timestamp(now))
    record = records.record_of(job, state, "failed", error.exit_code, now, error=str(error))
    records.Log(job.log, job=job.name).write("failed", exit_code=error.exit_code, error=str(error))
    problem = records.notify(job.notify, record) if job.notify else None
    if problem:
        progress.note(f"notify: {problem}")


def _has_new_input(job: Job, now: datetime, retry: Sequence[str]) -> bool:
    """True if another run has work to do, or would fail."""
    try:
        return bool(plan(job, now, retry).new)
    except OocPegasosError:
        return True


class JobRun:
    """A run, new or resumed."""

    def __init__(
        self,
        job: Job,
        versions: Versions,
        now: Callable[[], datetime],
        progress: Progress,
        training_progress: TrainingProgress,
        retry: Sequence[str] = (),
    ) -> None:
        self.job, self.versions, self.now, self.retry = job, versions, now, retry
        self.progress, self.training_progress = progress, training_progress
        self.work = versions.work
        self.candidate, self.checkpoint = self.work / "candidate", self.work / "checkpoint"
        self.state = State(job.digest(), versions.new_name(now()), records.timestamp(now()))
        self.resumed = False
        self.problem: OocPegasosError | None = None
        try:
            with writing_errors(self.work):
                self._resume()
        except OocPegasosError as error:  # reported and recorded by `go`
            self.problem = error
        self.log = records.Log(job.log, job=job.name, run=self.state.run)
        records.software()

    # --- state on disk ----------------------------------------------------------------------

    def _resume(self) -> None:
        """Resume the interrupted run if it belongs to this job.

        A failed run is discarded if there are new files, because too few rows may be the reason of the failure. A run
        that only has to be published is not discarded.
        """
        found = states.load(self.work)
        if found is None:
            remove_folder(self.work)
        elif found.compare and not self.candidate.exists():  # the candidate was published or refused
            self.resumed, self.state = True, found
        elif found.plan is None or found.job != self.job.digest() or self._is_outdated(found):
            self.state.carried = self._discard(found)
        else:
            self.resumed, self.state = True, dataclasses.replace(found, failed=False)

    def _is_outdated(self, found: State) -> bool:
        if not found.failed or found.compare:
            return False
        try:
            return bool(plan(self.job, self.now(), self.retry).new)
        except OocPegasosError:  # the resumed run may not fail by it
            return False

    def _discard(self, state: State) -> Appended:
        """Discard a run except for the record of the rows that it appended. May be repeated after an interruption."""
        carried = _rows_left_by(state, Path(self.job.store))
        if carried.sources:
            State(state.job, state.run, state.began, carried=carried).save(self.work)
        else:
            # first, because it refers to the folders removed next
            (self.work / states.FILE_NAME).unlink(missing_ok=True)
        for folder in (self.candidate, self.checkpoint):
            remove_folder(folder)
        return carried

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """Record a step of the run when it is done, so that it is not repeated."""
        began = time.monotonic()
        self.log.write(f"{name} begins")
        yield
        took = max(time.monotonic() - began, 0.0)
        self.state.seconds[name] = self.state.seconds.get(name, 0.0) + took
        self.state.save(self.work)
        self.log.write(f"{name} done", seconds=took, **{name: getattr(self.state, name)})

    # --- the run ----------------------------------------------------------------------------------

    def go(self) -> dict[str, Any]:
        """Do the remaining steps, and record the outcome."""
        if self.resumed:
            self.progress.note(f"run {self.state.run} was interrupted and is resumed")
        try:
            if self.problem:
                raise self.problem
            with writing_errors(self.versions.folder):
                outcome = self._steps()
        except KeyboardInterrupt:
            self._report(self._record("interrupted", exit_codes.INTERRUPTED))
            raise
        except Exception as error:  # also internal errors, because runs are unattended
            if error is not self.problem:
                self._record_failure(error)
            code, words = _exit_code_and_message(error)
            self._report(self._record("failed", code, error=words))
            raise
        problems = self._remove_old_versions()
        record = self._record(outcome, exit_codes.REFUSED if outcome == "refused" else 0)
        self._report(record, problems)  # if that is interrupted, the next run repeats it
        self._remove_work()
        return record

    def _remove_work(self) -> None:
        """Remove the folder of the run. Anything left is reported, and removed by the next run."""
        with suppress(OSError):
            (self.work / states.FILE_NAME).unlink(missing_ok=True)  # first: without it nothing is resumed
        if not remove_folder(self.work):
            self.progress.note(f"{self.work}: could not be removed; the next run removes it")

    def _steps(self) -> str:
        """Do the steps; return the outcome: promoted, refused, or unchanged."""
        self._update_store()
        state = self.state
        if state.compare is not None and self.candidate.exists() and self._in_use() != state.champion:
            state.compare = None  # another version was put in use since
        if state.compare is None and not self._make_candidate():
            return "unchanged"
        assert state.compare is not None
        return self.promote_or_refuse(state.compare)

    def _update_store(self) -> None:
        """Append the new files and remove the expired rows."""
        job, state = self.job, self.state
        if state.plan is None:
            state.champion = self._in_use()
            with self._step("plan"):
                state.plan = plan(job, self.now(), self.retry)
        if state.append is None:
            with self._step("append"):
                state.append = self.append(state.plan)
        if state.expire is None:
            if state.drift is None and state.append.sources:
                with self._step("drift"):  # before the earlier rows expire
                    store = Store.open(job.store)
                    state.drift = drift(store, len(state.append.sources), self._champion(store))
            with self._step("expire"):
                state.expire = self._expire(state.plan)

    def _make_candidate(self) -> bool:
        """Train if there is a reason to, and compare; return False if there is none."""
        job, state, store = self.job, self.state, Store.open(self.job.store)
        gate.refuse_unfit(job.gate, store.manifest.labels)
        refuse_changed_sources(store.manifest)  # since it was planned
        state.champion = self._in_use()
        old = self._champion(store)
        if old and (not self._is_due(old, store) or self._was_tried(store)):
            return False
        if state.train and not (self.candidate / MODEL).exists():
            state.train = None
        if state.train is None:
            if state.plan and not state.plan.rows_before:  # a new store is known only now
                check_reference_sets(job, store)
            with self._step("train"):
                state.train = self.train_candidate(store, old)
        with self._step("compare"):
            state.compare = self.compare(store, old)
        return True

    def promote_or_refuse(self, compared: Compared) -> str:
        """Put the candidate in use, or store it among the refused versions."""
        passed = all(check.passed for check in compared.checks)
        self.state.set_aside = [] if passed else self._refused_files(compared)
        if self.candidate.exists():
            record = (
                self._record("promoted", 0, self.state.run) if passed else self._record("refused", exit_codes.REFUSED)
            )
            write_atomically(self.candidate / RECORD, records.as_json(record))
        if passed:
            self.versions.publish(self.candidate, self.state.run)
        else:
            self.versions.refuse(self.candidate, self.state.run)  # first: from now on no other outcome is possible
        self._set_aside()
        return "promoted" if passed else "refused"

    def _refused_files(self, compared: Compared) -> list[SetAside]:
        """Return the appended files that are to be taken out of the store again; does not depend on whether they are.

        Without a model in use nothing shows that the new files rather than the older ones, or the gate, are at fault.
        """
        state = self.state
        if not self.job.provisional or not state.append or not state.append.sources:
            return []
        names = {source.name for source in state.append.sources}
        if state.champion is None:
            self.progress.note("no model is in use yet, so no file is set aside: the new files stay in the store")
            return []
        if {source.name for source in manifest.read(Path(self.job.store)).sources} <= names:
            self.progress.note("all rows of the store are of the new files, so they stay in it, and none is set aside")
            return []
        failed = [check for check in compared.checks if not check.passed]
        reason = "; ".join(check_text(check.what, check.found, check.needed) for check in failed)
        return [SetAside(source, state.run, reason) for source in state.append.sources]

    def _set_aside(self) -> None:
        """Take the refused files out of the store, and list them. May be repeated after an interruption."""
        refused, append = self.state.set_aside, self.state.append
        if refused:
            with self._step("set_aside"), suppress(UnknownSourceError):  # done before an interruption
                drop(self.job.store, [one.source.name for one in refused], self.progress.note)
        if append and append.sources:
            set_aside.update(self.versions.folder, append.sources, refused)

    def _in_use(self) -> str | None:
        return self.versions.current(self.state.run)

    def append(self, planned: Plan) -> Appended:
        """Append the new files to the store; those of a discarded run are reported with them."""
        carried = self.state.carried
        if not planned.new:
            return carried
        made = self.converted(planned)
        sources = made.sources[-len(planned.new) :]
        rejected = made.rejected - planned.rejected_before
        rows = sum(source.rows for source in sources)
        return Appended(carried.rows + rows, carried.rejected + rejected, [*carried.sources, *sources])

    def converted(self, planned: Plan) -> Manifest:
        """Return the manifest of the store with the new files, which an interrupted run may have appended already."""
        target = Path(self.job.store)
        there = (target / manifest.FILE_NAME).exists()
        existing = Existing(append=there, resume=self.resumed, grows=True)
        words = (planned.new, target, self.job.convert)
        try:
            return convert(*words, existing=existing, progress=self.progress).manifest
        except UsageError:
            if not self.resumed:
                raise
            fresh = dataclasses.replace(existing, resume=False)  # the interrupted conversion is another one
            return convert(*words, existing=fresh, progress=self.progress).manifest
        except InputError:
            if self.resumed and _appended_by(planned, target):  # appended, and the files were moved since
                return manifest.read(target)
            raise

    def _expire(self, planned: Plan) -> int:
        """Remove the expired rows; return their number, also if an interrupted run has removed them."""
        if planned.expire_before_ns is None:
            return 0
        expire(Path(self.job.store), planned.expire_before_ns)
        return max(Store.open(self.job.store).manifest.first_row - planned.expired_before, 0)

    def _champion(self, store: Store) -> Model | None:
        """Return the model in use, which must be compatible with the store."""
        if self.state.champion is None:
            return None
        model = Model.load(self.versions.model(self.state.champion))
        try:
            check_store(model, store, with_labels=True)
        except InputError as error:
            raise InputError(f"{error}, or use another folder of models than {self.versions.folder}") from error
        return model

    def _is_due(self, champion: Model, store: Store) -> bool:
        """True if rows or options differ from those of the champion."""
        if self.state.train or champion.info.store_checksum != store.checksum:
            return True
        try:
            record = json.loads(read_file(self.versions.folder / str(self.state.champion) / RECORD))
            looking = self.job.retune and not record["options"]["retune"]
            return bool(looking or record["training"] != plainly(self.job.training()))
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            self.progress.note(f"the options of version {self.state.champion} cannot be read; training again")
            return True

    def _was_tried(self, store: Store) -> bool:
        """True if a model of the same rows and options was refused, or was in use and is not any more."""
        if self.state.train or (self.job.provisional and self.state.append and self.state.append.sources):
            return False  # files that were set aside are tried again
        options, sets = plainly(self.job), plainly(fingerprints(self.job, store.manifest))
        for name, record in self.versions.tried():
            rows = record.get("store")
            same_rows = isinstance(rows, dict) and rows.get("checksum") == store.checksum
            same_rows = same_rows and record.get("golden") == sets
            if not same_rows or record.get("options") != options or name == self.state.champion:
                continue
            is_refused = record.get("outcome") == "refused"
            if is_refused and record.get("champion") != self.state.champion:
                continue
            what = "was refused" if is_refused else "is not in use any more"
            self.progress.note(f"version {name}, of the same rows and options, {what}; nothing has changed since")
            return True
        return False

    def train_candidate(self, store: Store, champion: Model | None) -> Trained:
        config, start, why = self._how_to_train(store, champion)
        if why:
            self.progress.note(why)
        self.candidate.mkdir(exist_ok=True)
        log = self.candidate / "epochs.jsonl"
        go_on = partial(
            train,
            store,
            config,
            warm_start=start,
            checkpoint=self.checkpoint,
            resume=True,
            log=log,
            keep_holdout=True,
        )
        try:
            result = go_on(progress=self.training_progress)
        except CheckpointMismatchError as error:
            self.progress.note(f"training begins anew, as the store, the model in use or the program changed ({error})")
            shutil.rmtree(self.checkpoint)
            result = go_on(progress=self.training_progress)
        self.training_progress.end()
        result.model.save(self.candidate / MODEL)
        info, known = result.model.info, result.model.info.certificate
        made = (info.lam, info.algorithm, info.epochs, result.converged)
        return Trained(*made, known.primal, known.lower_bound, known.gap, start is not None, why, info.loss)

    def _how_to_train(self, store: Store, champion: Model | None) -> tuple[TrainConfig, Model | None, str]:
        """Return the options, the initial weights, and an explanation."""
        job, task, given = self.job, store.manifest.labels.task, self.job.training()
        if champion is None:
            return given, None, ""
        config, why = completed(self._with_loss_of(champion, given, task), task), ""
        same_loss = champion.info.loss == loss_for(config.loss, store.manifest.labels.task).name
        if config.lam is None and config.C is None and not job.retune and same_loss:
            bias = config.bias or champion.info.config.get("bias") or "feature"
            config = dataclasses.replace(config, lam=champion.info.lam, bias=bias)
            why = f"lambda {champion.info.lam:.3g} is that of the model in use; retune = true searches again"
        if config.comparing:
            return given, None, ""  # without a loss if none is given, so that the search may choose it
        one = config.C is not None or (config.lambdas is not None and len(config.lambdas) == 1)
        if not (job.warm_start and one and same_loss and champion.weights.ndim == 1):
            return config, None, why
        rows = store.rows * (1 - config.holdout_fraction)
        lam = config.lambdas[0] if config.lambdas else 1.0 / (config.C or 1.0) / rows
        algorithm: str = config.algorithm
        if algorithm == ANY:
            algorithm, _ = choice_by_clock(lam * rows, config.enough, store.manifest.statistics.largest_square)
        if "warm_start" not in ALGORITHMS[algorithm].supports:
            return config, None, f"{why}; {algorithm} starts from 0, and is faster here".removeprefix("; ")
        if bool(champion.bias) and config.biased not in ("feature", "free"):
            return config, None, why
        return config, champion, why

    def _with_loss_of(self, champion: Model, config: TrainConfig, task: str) -> TrainConfig:
        """Return the options with the loss of the model in use, if a search chose it instead of the default loss."""
        info, default = champion.info, loss_for(completed(config, task).loss, task).name
        is_given = config.loss is not None or config.loss_parameter is not None
        if self.job.retune or not config.comparing or is_given or info.loss == default:
            return config
        try:
            record = json.loads(read_file(self.versions.folder / str(self.state.champion) / RECORD))
            if record["training"]["loss"] is not None:  # the job gave it then
                return config
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return config
        parameter = info.parameter if LOSSES.find(info.loss).parameter is not None else None
        name: Any = info.loss
        return dataclasses.replace(config, loss=name, loss_parameter=parameter)

    def compare(self, store: Store, champion: Model | None) -> Compared:
        """Evaluate both models on the holdout rows and on each reference set."""
        job = self.job
        challenger = Model.load(self.candidate / MODEL)
        holdout = job.training().holdout_fraction
        before = float(champion.info.config.get("holdout") or 0) if champion else 0.0
        sets: dict[str, Any] = {}
        if holdout:
            # the smaller fraction is part of the larger, so neither model was trained on it
            kept = min(holdout, before) if before else holdout
            models = [challenger, champion if before else None]
            sets[HOLDOUT] = tuple(m and gate.measure_holdout(m, store, kept, challenger) for m in models)
        for name, golden in job.sets().items():
            sets[name] = tuple(m and gate.measure(m, golden, challenger) for m in (challenger, champion))
        checks = gate.verdict(job.gate, challenger, champion, sets)
        metrics = {
            name: {"challenger": new.metrics, "champion": old.metrics if old else None}
            for name, (new, old) in sets.items()
        }
        golden_sets = fingerprints(job, store.manifest)
        return Compared(checks, metrics, golden_sets, store.rows, store.features, store.checksum)

    # --- end of the run ----------------------------------------------------------------------------------

    def _record(
        self, outcome: str, exit_code: int, in_use: str | None = None, error: str | None = None
    ) -> dict[str, Any]:
        with suppress(OocPegasosError, OSError):  # the failure to be recorded may be that there is none
            in_use = in_use or self._in_use()
        return records.record_of(self.job, self.state, outcome, exit_code, self.now(), in_use, error)

    def _remove_old_versions(self) -> list[str]:
        """Remove the versions that are not to be kept; return the problems."""
        try:
            removed = self.versions.prune(self.job.keep)
        except (OSError, OocPegasosError) as error:
            return [f"old versions could not be removed: {error}"]
        if removed:
            self.log.write("versions removed", versions=removed)
        return []

    def _report(self, record: dict[str, Any], before: Sequence[str] = ()) -> None:
        """Report the end of the run and earlier problems. Failures to report do not change the outcome."""
        problems = list(before)
        try:
            folder = self.versions.records
            folder.mkdir(exist_ok=True)
            write_atomically(folder / f"{record['run']}.json", records.as_json(record))
            for old in sorted(folder.glob("*.json"))[:-_RECORDS_KEPT]:
                old.unlink()
            if self.job.metrics:
                records.write_metrics(Path(self.job.metrics), record)
        except OSError as error:
            problems.append(f"the record of the run could not be written: {error}")
        if self.job.notify:
            problem = records.notify(self.job.notify, record)
            problems += [f"notify: {problem}"] if problem else []
        self.log.write(record["outcome"], exit_code=record["exit_code"], error=record["error"], problems=problems)
        problems += [f"the log could not be written: {self.log.problem}"] if self.log.problem else []
        for problem in problems:
            self.progress.note(problem)

    def _record_failure(self, error: BaseException) -> None:
        """Discard a run that would fail in the same way when resumed; mark others as failed."""
        nothing_came = self.state.append is None and not isinstance(error, PublishedError)
        if isinstance(error, CorruptFileError) or nothing_came:
            with suppress(OSError):
                self._discard(self.state)
            return
        self.state.failed = True
        with suppress(OSError):
            self.state.save(self.work)


def _appended_by(planned: Plan, target: Path) -> list[SourceInfo]:
    """Return the sources of a store that the plan has appended, none if the run was interrupted before that."""
    made = manifest.read(target)
    last = made.sources[-len(planned.new) :] if planned.new else []
    came = made.first_row + made.rows > planned.expired_before + planned.rows_before
    return last if came and [source.name for source in last] == [*map(manifest_name, planned.new)] else []


def _rows_left_by(found: State, target: Path) -> Appended:
    """Return the rows that a discarded run has appended and that are still there: no model was trained on them."""
    known = found.append or found.carried
    try:
        made = manifest.read(target)
        came = [] if found.append or not found.plan else _appended_by(found.plan, target)
    except (OocPegasosError, OSError):  # may be repaired later
        return known
    rejected = known.rejected + (made.rejected - found.plan.rejected_before if came and found.plan else 0)
    there = set(made.sources)
    kept = [source for source in (*known.sources, *came) if source in there]
    return Appended(sum(source.rows for source in kept), rejected, kept)


def _exit_code_and_message(error: Exception) -> tuple[int, str]:
    """Return the exit code and the message of the error that ended a run."""
    if isinstance(error, OocPegasosError):
        return error.exit_code, str(error)
    if isinstance(error, MemoryError):
        return InputError.exit_code, "out of memory; give a smaller memory in [train] or [convert]"
    return OocPegasosError.exit_code, f"{type(error).__name__}: {error}"
