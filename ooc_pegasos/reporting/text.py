"""Stores, training runs and metrics as text and as JSON."""

from __future__ import annotations

import dataclasses
import decimal
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ooc_pegasos.errors import OocPegasosError, literal, with_flags, with_keywords
from ooc_pegasos.registry import LOSSES
from ooc_pegasos.reporting.epoch_cost import epoch_seconds
from ooc_pegasos.util import typed_json
from ooc_pegasos.util.escaping import printable
from ooc_pegasos.util.memory_limits import available_memory, peak_rss
from ooc_pegasos.util.short_names import listed, padded, short, width_of

if TYPE_CHECKING:
    from ooc_pegasos.proof.proof_file import Claim
    from ooc_pegasos.reporting.history import HoldoutResult
    from ooc_pegasos.scoring.model import Model, ModelInfo
    from ooc_pegasos.store.manifest import Manifest
    from ooc_pegasos.store.store import Store
    from ooc_pegasos.training.result import TrainResult


_MOST_SHOWN = 20
"""Classes up to which a confusion matrix is printed."""
_RARE = 0.1
"""Share of rows below which a class is rare."""
FEATURE_WIDTH, _CLASS_WIDTH = 60, 30
"""Widths of the names of features, which stand in lines of their own, and of classes in a table."""
_LABELS_SHOWN = 6
_MEAN = "the mean of the targets; look at the features, or try another lambda"
"""Number of labels whose row counts are printed after a conversion."""


def summary(store: Store, disk: tuple[float, int] | None = None) -> dict[str, Any]:
    """Return the properties of a store for --json.

    `disk` is the measured speed of the disk in bytes a second, and the number of bytes that were read to measure it.
    """
    made = store.manifest
    speed, sample = disk or (None, None)
    entries = sum(chunk.entries for chunk in made.chunks)
    windows = -(-4 * made.bytes // max(available_memory(), 1))  # two windows share half of the free memory
    sizes = sorted(chunk.bytes for chunk in made.chunks)
    cells = made.rows * made.features
    return {
        "path": str(store.path),
        "rows": made.rows,
        "features": made.features,
        "nonzeros": made.nonzeros,
        "density": made.nonzeros / cells if cells else 0.0,
        "bytes": made.bytes,
        "bytes_per_nonzero": made.bytes / made.nonzeros if made.nonzeros else None,
        "task": made.labels.task,
        "labels": dict(zip(made.labels.classes, made.labels.counts, strict=True)),
        "max_row_norm": made.statistics.max_row_norm,
        "mean_row_norm": made.statistics.mean_row_norm,
        "max_row_nonzeros": made.statistics.max_row_nonzeros,
        "empty_rows": made.statistics.empty_rows,
        "index_coding": made.layout.index_coding,
        "values": made.layout.values,
        "index_base": made.recipe.index_base,
        "normalize": made.recipe.normalize,
        "shuffle_seed": made.shuffle_seed,
        "rejected": made.rejected,
        "rounding_error": made.statistics.rounding_error,
        "weighted": made.weighted,
        "weight_sum": made.weight_sum,
        "max_weight": made.statistics.max_weight,
        "disk_bytes_per_second": speed,
        "disk_sample_bytes": sample,
        "epoch_seconds_from_disk": speed and epoch_seconds(made.bytes, entries, made.features, speed, windows),
        "epoch_seconds_in_memory": epoch_seconds(made.bytes, entries, made.features, None),
        "chunks": len(made.chunks),
        "chunk_bytes": [sizes[0], sizes[len(sizes) // 2], sizes[-1]] if sizes else [],
        "sources": [dataclasses.asdict(source) for source in made.sources],
        "written_by": made.written_by,
    }


def size_text(count: float) -> str:
    """Return a size with its unit."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if abs(count) < 1024 or unit == "GB":
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError


def weight_words(made: Manifest) -> str:
    """Return the statistics of row weights as text."""
    found = made.statistics
    return f"mean {found.mean_weight:.4g}, largest {found.max_weight:.4g}, together {made.weight_sum:.6g}"


def table(store: Store, disk: tuple[float, int] | None = None) -> list[tuple[str, str]]:
    """Return the properties of a store as pairs of name and text; `disk` as for `summary`."""
    found, made = summary(store, disk), store.manifest
    rows = [
        ("rows", f"{found['rows']:,}"),
        ("features", f"{found['features']:,}"),
        (
            "non-zeros",
            f"{made.nonzeros:,} ({made.nonzeros / max(made.rows, 1):.1f} a row, density {found['density']:.2g})",
        ),
        ("task", found["task"]),
    ]
    total = max(made.rows, 1)
    shown = list(found["labels"].items())[:8]
    meaning = {"binary": ("-1", "+1")}.get(found["task"], ())
    for number, (name, count) in enumerate(shown):
        sign = f"  stored as {meaning[number]}" if meaning else ""
        rows.append((f"  label {short(name)}", f"{count:,} rows ({100 * count / total:.1f} %){sign}"))
    if len(found["labels"]) > len(shown):
        rows.append(("", f"and {len(found['labels']) - len(shown):,} more labels"))
    shuffled = f"seed {found['shuffle_seed']}" if found["shuffle_seed"] is not None else "no: rows are in input order"
    small, middle, large = (size_text(size) for size in found["chunk_bytes"])
    values = found["values"] or "all 1, not stored"
    if found["values"] == "code8":
        values = f"as codes of {len(made.layout.levels)} levels, exact"
    if found["values"] == "count8":
        values = f"as codes of {len(made.layout.levels)} counts of words, exact"
    if made.recipe.values:
        values += f" (rounded to {made.recipe.values}, relative error at most {found['rounding_error']:.1e})"
    rows += [
        ("row norms", f"mean {found['mean_row_norm']:.4g}, largest {found['max_row_norm']:.4g}"),
        ("weights", weight_words(made) if made.weighted else "all 1, not stored"),
        ("longest row", f"{found['max_row_nonzeros']:,} non-zeros; {found['empty_rows']:,} rows are empty"),
        ("size", f"{size_text(found['bytes'])}, {found['bytes_per_nonzero'] or 0:.2f} bytes a non-zero"),
        ("coding", f"indices {found['index_coding']}, values {values}"),
        ("chunks", f"{found['chunks']:,} files: smallest {small}, median {middle}, largest {large}"),
        ("an epoch", _epoch_words(found)),
        ("shuffled", shuffled),
        ("recipe", f"indices from {found['index_base']}, normalize {found['normalize'] or 'no'}"),
    ]
    if found["rejected"]:
        rows.append(("rejected", f"{found['rejected']:,} rows, listed in rejected.jsonl"))
    for source in found["sources"][:8]:
        origin = f"{source['name']}, {size_text(source['size'])}, {source['rows']:,} rows, xxh64 {source['xxh64']}"
        if source["weights"]:
            origin += f", weights {source['weights']}"
        rows.append(("source", origin))
    if len(found["sources"]) > 8:
        rows.append(("", f"and {len(found['sources']) - 8:,} more sources"))
    rows.append(("written by", found["written_by"]))
    return rows


def _epoch_words(found: dict[str, Any]) -> str:
    """Return the predicted time of an epoch as text."""
    in_memory = f"about {found['epoch_seconds_in_memory']:.2g} s in memory"
    if found["disk_bytes_per_second"] is None:
        return f"{in_memory}; --benchmark measures the disk"
    disk = f"{found['disk_bytes_per_second'] / 1e9:.1f} GB/s, measured on {size_text(found['disk_sample_bytes'])}"
    return f"{in_memory}, {found['epoch_seconds_from_disk']:.2g} s from disk (at {disk})"


def conversion_summary(store: Store, output: str, seconds: float) -> dict[str, Any]:
    """Return the result of a conversion for --json."""
    made = store.manifest
    return {
        "rows": made.rows,
        "features": made.features,
        "nonzeros": made.nonzeros,
        "chunks": len(made.chunks),
        "bytes": made.bytes,
        "rejected": made.rejected,
        "rounding_error": made.statistics.rounding_error,
        "weight_sum": made.weight_sum,
        "max_weight": made.statistics.max_weight,
        "seconds": seconds,
        "output": output,
        "test_rows": _test_rows(store),
    }


def conversion_lines(store: Store, output: str, seconds: float, is_kept: bool = True) -> list[str]:
    """Return the result of a conversion as lines of text. The rejected rows are in the store, if it `is_kept`."""
    made = store.manifest
    counts = zip(made.labels.classes[:_LABELS_SHOWN], made.labels.counts, strict=False)
    labels = ", ".join(f"{short(name)}: {count:,}" for name, count in counts)
    hidden = len(made.labels.classes) - _LABELS_SHOWN
    more = f" and {hidden:,} more" if hidden > 0 else ""
    lines = [
        f"{output}: {made.rows:,} rows, {made.features:,} features, {made.nonzeros:,} non-zeros",
        f"task: {made.labels.task}" + (f" (rows by label: {labels}{more})" if labels else ""),
        f"{size_text(made.bytes)} in {len(made.chunks)} chunks, {seconds:.1f} seconds",
    ]
    reserved = _test_rows(store)
    if reserved is not None:
        lines.append(f"{f'{output}.test: ' if is_kept else ''}{reserved:,} rows reserved for tests")
    if made.recipe.values:
        lines.append(rounding_words(made))
    if made.weighted:
        lines.append(f"weights: {weight_words(made)}")
    if made.rejected:
        where = f"see {output}/rejected.jsonl" if is_kept else "add --store my.store to see them in that folder"
        lines.append(f"{made.rejected:,} rows were rejected; {where}")
    return lines


def _test_rows(store: Store) -> int | None:
    """Return the number of test rows of a store; None if there are none, or they cannot be read."""
    with suppress(OocPegasosError, OSError):
        return store.test.rows if store.test else None
    return None


def rounding_words(made: Manifest) -> str:
    """Return the rounding error of the values of a store as text."""
    error = made.statistics.rounding_error
    above = decimal.Context(prec=2, rounding=decimal.ROUND_CEILING).create_decimal_from_float(error)
    effect = f"relative error at most {float(above):.1e}" if error else "none changed by it"
    return f"values rounded to {made.recipe.values}: {effect}"


def training_summary(result: TrainResult, output: str) -> dict[str, Any]:
    """Return the result of a training run for --json."""
    info = result.model.info
    return {
        "model": output,
        "lambda": info.lam,
        "loss": info.loss,
        "loss_parameter": _parameter(info),
        "algorithm": info.algorithm,
        "sampling": info.sampling,
        "seed": info.seed,
        "epochs": info.epochs,
        "converged": result.converged,
        "certified": result.certified,
        "primal": info.certificate.primal,
        "lower_bound": info.certificate.lower_bound,
        "gap": info.certificate.gap,
        "relative_accuracy": info.certificate.relative_accuracy,
        "stopped_by": result.stopped_by,
        "seconds": result.seconds,
        "seconds_computing": result.seconds_computing,
        "seconds_waiting": result.seconds_waiting,
        "bytes_read": result.bytes_read,
        "peak_rss": peak_rss(),
        "holdout": result.holdout and vars(result.holdout),
        "constant_loss": result.constant_loss,
        "constant_error": result.constant_error,
        "memory": result.memory,
        "loading": result.loading,
        "windows": result.windows,
        "presenters": result.presenters,
        "per_epoch": [cost.table() for cost in result.costs],
        "notes": result.notes,
        "why_algorithm": result.why_algorithm,
        "trials": [vars(trial) for trial in result.trials],
        "models": [
            {
                "lambda": model.lam,
                "class": model.one_class,
                "fold": model.fold,
                "epochs": model.epochs,
                "primal": model.certificate.primal,
                "lower_bound": model.certificate.lower_bound,
                "gap": model.certificate.gap,
                "relative_accuracy": model.certificate.relative_accuracy,
                "converged": model.certificate.converged,
                "holdout": model.holdout and vars(model.holdout),
            }
            for model in result.models
        ],
    }


def model_summary(model: Model) -> dict[str, Any]:
    """Return the properties of a model for JSON."""
    info = model.info
    return {
        "loss": info.loss,
        "loss_parameter": _parameter(info),
        "lambda": info.lam,
        "algorithm": info.algorithm,
        "epochs": info.epochs,
        "features": info.features,
        "nonzero_features": int(model.weights.reshape(len(model.weights), -1).any(axis=1).sum()),
        "task": info.labels.task,
        "labels": dict(zip(info.labels.classes, info.labels.counts, strict=False)),
        "primal": info.certificate.primal,
        "lower_bound": info.certificate.lower_bound,
        "gap": info.certificate.gap,
        "converged": info.certificate.converged,
        "has_probabilities": model.has_probabilities,
        "recipe": typed_json.dump(info.recipe),
        "trials": [vars(trial) for trial in info.trials],
        "store": info.store_checksum,
        "versions": info.versions,
    }


def model_table(model: Model) -> list[tuple[str, str]]:
    """Return the properties of a model as names and texts."""
    info, found = model.info, model_summary(model)
    gap = "unknown" if found["gap"] is None else f"at most {100 * found['gap']:.3g} %, certified"
    table = info.recipe.table
    columns = [] if table is None else [f"{short(column.name)} ({column.kind})" for column in table.columns]
    columns += [] if table is None else [f"{short('*'.join(cross))} (cross)" for cross in table.crosses]
    counts = [f"{short(name)}: {count:,}" for name, count in found["labels"].items()]
    kept = next((trial for trial in info.trials if trial.lam == info.lam), None)
    lines = [
        ("loss", _loss_words(info)),
        ("lambda", f"{info.lam:.6g}" + (f", the best of {len(info.trials)}" if len(info.trials) > 1 else "")),
        ("gap", gap if info.certificate.converged or found["gap"] is None else f"{gap}, NOT within the tolerance"),
        ("objective", f"{info.certificate.primal:.6g}"),
        ("algorithm", f"{info.algorithm}, {info.epochs} epochs"),
        ("features", f"{info.features:,}, of which {found['nonzero_features']:,} have a weight"),
        ("task", info.labels.task),
        ("trained on", listed(counts, width=FEATURE_WIDTH)),
        ("read as", info.recipe.reader + (f": {listed(columns, width=FEATURE_WIDTH)}" if columns else "")),
    ]
    if kept is not None:
        error = "" if kept.error is None else f", error {100 * kept.error:.2f} %"
        lines.append(("holdout", f"mean loss {kept.loss:.4g}{error}"))
    lines.append(("made by", ", ".join(f"{name} {version}" for name, version in info.versions.items())))
    return [line for line in lines if line[1]]


def _parameter(info: ModelInfo) -> float | None:
    """Return the parameter of the loss; None if the loss has none."""
    known = LOSSES.get(info.loss)
    return info.parameter if known is not None and known.parameter is not None else None


def _loss_words(info: ModelInfo) -> str:
    """Return the loss with its parameter and what that means."""
    parameter, known = _parameter(info), LOSSES.get(info.loss)
    if parameter is None or known is None:
        return info.loss
    is_default = known.in_deviations and info.config.get("loss_parameter") is None
    why = f", {known.parameter:g} times the standard deviation of the targets" if is_default else ""
    return f"{info.loss} loss with parameter {parameter:.6g}, {known.meaning}{why}"


def profile_lines(result: TrainResult, since_start: float) -> list[str]:
    """Return the time of a command by activity, and that of the loader threads."""
    foreground = {"starting, and writing the model": since_start - result.seconds, **result.profile["foreground"]}
    rest = since_start - sum(foreground.values())
    lines = [f"{since_start:.3f} seconds, {len(result.costs)} epochs"]
    for name, seconds in [*sorted(foreground.items(), key=lambda item: -item[1]), ("the rest", rest)]:
        lines.append(f"  {seconds:9.3f}  {100 * seconds / max(since_start, 1e-9):5.1f} %  {name}")
    lines.append("concurrently, in loader threads:")
    for name, seconds in sorted(result.profile["background"].items(), key=lambda item: -item[1]):
        lines.append(f"  {seconds:9.3f}  {100 * seconds / max(since_start, 1e-9):5.1f} %  {name}")
    speed = result.bytes_read / max(result.profile["background"].get("reading and checksums", 0.0), 1e-9) / 1e9
    mapped = result.loading == "mapped"
    how = "mapped, once" if mapped else f"read ahead at {speed:.2f} GB/s"
    windows = "1 window" if result.windows == 1 else f"{result.windows} windows an epoch"
    lines.append(f"{size_text(result.bytes_read)} {how}; {windows}; peak memory {size_text(peak_rss())}")
    return lines


def _trials_words(result: TrainResult) -> list[str]:
    """Return a table of the lambdas that were compared."""
    if len(result.trials) < 2:
        return []
    lines = ["  lambda      holdout loss  +-         error      gap          epochs"]
    for trial in result.trials:
        of_lambda = [model for model in result.models if model.lam == trial.lam]
        gaps = [model.certificate.gap for model in of_lambda]
        known = [gap for gap in gaps if gap is not None]
        gap = f"{100 * max(known):.3g} %" if len(known) == len(gaps) else "unknown"
        error = "" if trial.error is None else f"{100 * trial.error:.2f} %"
        mark = "  <- kept" if trial.lam == result.model.info.lam else ""
        epochs = max(model.epochs for model in of_lambda)
        line = (
            f"  {trial.lam:<10.4g}  {trial.loss:<12.5g}  {trial.deviation:<9.2g}  {error:<9}  {gap:<11}  {epochs}{mark}"
        )
        lines.append(line)
    return lines


def training_lines(result: TrainResult, output: str) -> list[str]:
    """Return the result of a training run as lines of text."""
    info = result.model.info
    found = info.certificate
    why = f" ({result.why_algorithm})" if result.why_algorithm else ""
    lines = [f"{output}: {info.algorithm}{why}"]
    lines += _trials_words(result)
    rows = " on all rows" if result.is_refit else ""
    if _parameter(info) is not None:
        lines.append(_loss_words(info))
    lines.append(f"lambda {info.lam:g}{rows}, {info.epochs} epochs, {result.seconds:.2f} seconds")
    if found.gap is not None:
        lines.append(f"objective {found.primal:.6g}, the optimum is at least {found.lower_bound:.6g}")
        state = "certified" if result.converged else "NOT within the tolerance"
        reason = {
            "epochs": "--max-epochs",
            "seconds": "--max-seconds",
            "rounding": "rounding errors: float64 is not enough here; scale the data, or give a larger --tolerance",
        }.get(result.stopped_by)
        stopped = f"; stopped by {reason}" if reason else ""
        lines.append(f"relative gap at most {100 * found.gap:.3g} % ({state}{stopped})")
    else:
        why = result.why_uncertified or "time ran out before the first epoch was over"
        lines.append(f"objective {found.primal:.6g}; {why}")
    if result.holdout:
        lines.append(holdout_words(result.holdout))
        labels = info.labels
        if result.holdout.error is not None and labels.counts:
            classes = [short(name) for name in labels.classes]
            ranks = result.model.has_probabilities
            lines += _compared_with_constant(result.holdout.error, labels.counts, classes, ranks, result.constant_error)
        lines += _compared_with_mean(result)
    return lines


def _compared_with_mean(result: TrainResult) -> list[str]:
    """Return the loss of the mean target as an answer to all rows, and a warning if it is not larger."""
    constant, loss = result.constant_loss, result.holdout.loss if result.holdout else None
    if constant is None or loss is None:
        return []
    explained = f", which is reduced by {100 * (1 - loss / constant):.1f} %" if loss < constant else ""
    lines = [f"  always answering the mean: mean loss {constant:.4g}{explained}"]
    return lines + [f"  NO BETTER than {_MEAN}"] * (loss >= constant)


def holdout_words(found: HoldoutResult) -> str:
    """Return the holdout metrics as text."""
    parts = [] if found.error is None else [f"error {100 * found.error:.2f} %"]
    parts += [] if found.loss is None else [f"mean loss {found.loss:.4g}"]
    return f"holdout: {', '.join(parts)}"


def proof_summary(found: list[Claim]) -> dict[str, Any]:
    """Return the bounds that a proof shows for JSON: over all classes, and of each class."""
    primal, bound = math.fsum(one.primal for one in found), math.fsum(one.lower_bound for one in found)
    if len(found) > 1:
        primal, bound = math.nextafter(primal, math.inf), math.nextafter(bound, 0.0)
    return {
        "primal": primal,
        "lower_bound": bound,
        "gap": (primal - bound) / primal if primal else 0.0,
        "relative_accuracy": max(primal - bound, 0.0) / bound if bound else None,
        "claims": [{"primal": one.primal, "lower_bound": one.lower_bound} for one in found],
    }


def proof_words(found: list[Claim]) -> str:
    """Return the bounds that a proof shows as text, rounded so that the statement remains true."""
    bounds = proof_summary(found)
    within = bounds["relative_accuracy"]
    if within is None and bounds["primal"]:
        return f"proved: the objective is at most {_upward(bounds['primal']):g}, and the optimum not negative"
    words = f"proved: within {_upward(100 * (within or 0.0), 3):f} % of the optimum"
    objective, optimum = _upward(bounds["primal"]), -_upward(-bounds["lower_bound"])
    return f"{words}; objective at most {objective:g}, optimum at least {optimum:g}"


def _upward(number: float, digits: int = 6) -> decimal.Decimal:
    """Return a number rounded up to some significant digits."""
    return decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING).create_decimal(number).normalize()


def evaluation_lines(result: dict[str, Any], classes: list[str]) -> list[str]:
    """Return metrics as lines of text."""

    def text(name: str) -> str:
        value = result[name]
        return "not defined" if value is None else f"{value:.4f}"

    loss = f"  mean loss {result['mean_loss']:.6g}, objective {result['objective']:.6g}"
    if result["task"] == "regression":
        lines = [f"{result['rows']:,} rows, mean absolute error {result['mean_absolute_error']:.6g}"]
        lines.append(f"  root mean squared error {result['root_mean_squared_error']:.6g}, R2 {text('r2')}")
        if result["r2"] is not None and result["r2"] <= 0:
            lines.append(
                "  NO BETTER than the mean of the targets, whose R2 is 0; try another lambda, or scale the data"
            )
        return [*lines, loss]
    lines = [f"{result['rows']:,} rows, error {100 * result['error']:.2f} %"]
    if result["confusion"] is not None and result["error"] is not None:
        counts = [sum(row) for row in result["confusion"]]
        names = [short(name) for name in classes]
        lines += _compared_with_constant(result["error"], counts, names, "log_loss" in result)
    lines.append(f"  accuracy {text('accuracy')}, balanced {text('balanced_accuracy')}")
    if result["task"] == "multiclass":
        lines += [f"  macro F1 {text('macro_f1')}", loss]
        if result["confusion"] is not None and len(classes) <= _MOST_SHOWN:
            lines += _confusion(result["confusion"], classes)
        return lines
    lines += [
        f"  precision {text('precision')}, recall {text('recall')}, F1 {text('f1')}",
        f"  ROC AUC {text('roc_auc')}, PR AUC {text('pr_auc')} ({result['auc_method']})",
        loss,
    ]
    if "log_loss" in result:
        lines.append(f"  log loss {text('log_loss')}, Brier score {text('brier')}")
    return [*lines, *_confusion(result["confusion"], classes)]


def test_lines(result: dict[str, Any], classes: list[str]) -> list[str]:
    """Return the metrics on test rows as lines of text."""
    first, *others = evaluation_lines(result, classes)
    return [f"test on {first}", *others]


def inspection_lines(name: str, features: Sequence[tuple[int, str | None, Any]]) -> list[str]:
    """Return the features that speak for a class, and their weights, as lines of text."""
    lines = [f"for {short(name)}:"] if features else []
    for place, known, weight in features:
        lines.append(f"{float(weight):>12.6g}  {f'#{place}' if known is None else short(known, FEATURE_WIDTH)}")
    return lines


def _compared_with_constant(
    error: float,
    counts: Sequence[float],
    classes: list[str],
    has_probabilities: bool,
    constant: float | None = None,
) -> list[str]:
    """Return the error of the most frequent class as an answer to all rows, and a warning if it is not larger."""
    total, most = sum(counts), max(counts)
    if not total:
        return []
    name, constant = classes[list(counts).index(most)], 1 - most / total if constant is None else constant
    positive = f"; the positive class is {classes[1]}" if len(classes) == 2 else ""
    lines = [f"  always answering {name}: error {100 * constant:.2f} %{positive}"]
    found = _no_better(error, constant, counts, classes, has_probabilities)
    return lines + ([f"  NO BETTER than {with_flags(found)}"] if found else [])


def _no_better(
    error: float, constant: float | None, counts: Sequence[float], classes: list[str], has_probabilities: bool
) -> str | None:
    """Return the constant answer that is as good as a model, with advice; None if the model is better."""
    total, most = sum(counts), max(counts)
    name, constant = classes[list(counts).index(most)], 1 - most / total if constant is None else constant
    if not error >= constant > 0:
        return None
    is_rare = min(count for count in counts if count) < _RARE * total
    advice = "try another lambda, and look at the features"
    if has_probabilities:
        advice = "the scores may rank the rows nevertheless: see ROC AUC, and choose a threshold of your own"
    elif is_rare:
        advice = "train with {class_weight=balanced}, or with {loss=logistic} and a threshold of your own"
    return f"always answering {literal(name)}; {advice}"


def warnings_of(result: TrainResult) -> list[str]:
    """Return why a model is of little use by its holdout rows, with options as Python writes them."""
    info, holdout = result.model.info, result.holdout
    if holdout is None:
        return []
    found = None
    if holdout.error is not None and any(info.labels.counts):
        classes = [short(name) for name in info.labels.classes]
        found = _no_better(
            holdout.error, result.constant_error, info.labels.counts, classes, result.model.has_probabilities
        )
    elif result.constant_loss is not None and holdout.loss is not None and holdout.loss >= result.constant_loss:
        found = _MEAN
    return [f"no better than {with_keywords(found)}"] if found else []


def _confusion(table: list[list[float]], classes: list[str]) -> list[str]:
    """Return the lines of a confusion matrix: a line for each class, a column for each prediction."""
    classes = [short(name, _CLASS_WIDTH) for name in classes]
    width = max(*map(width_of, classes), 10)
    lines = [f"  {'':{width}}  predicted " + " ".join(" " * (width - width_of(name)) + name for name in classes)]
    for name, counts in zip(classes, table, strict=True):
        lines.append(f"  {padded(name, width)}            " + " ".join(f"{int(count):>{width},}" for count in counts))
    return lines


def check_text(what: str, found: float | None, needed: float | None) -> str:
    """Return a check of the gate with the value found and the limit."""
    return what + ("" if found is None else f" {found:.4g}") + ("" if needed is None else f" (limit {needed:.4g})")


def run_lines(record: dict[str, Any]) -> list[str]:
    """Return the result of a run of a job as lines of text."""
    store, model = record["store"], record["model"]
    lines = [f"{record['job']}, run {record['run']}: {record['outcome']}"]
    if store.get("new_rows"):
        files = len(record["inputs"])
        lines.append(f"{store['new_rows']:,} rows appended from {files:,} file{'s' if files != 1 else ''}")
    if store.get("rejected_rows"):
        lines.append(f"{store['rejected_rows']:,} rows rejected; see {store['path']}/rejected.jsonl")
    if store.get("expired_rows"):
        lines.append(f"{store['expired_rows']:,} rows expired")
    if model:
        gap = f"certified gap {100 * model['gap']:.3g} %" if model["gap"] is not None else "no certificate"
        how = model["algorithm"] + (f", {model['loss']} loss" if model["loss"] else "")
        lines.append(f"model: {how}, lambda {model['lambda']:.3g}, {model['epochs']} epochs, {gap}")
    if record["checks"] and record["champion"] is None:
        lines.append("no model was in use to compare with")
    for check in record["checks"]:
        words = check_text(check["what"], check["found"], check["needed"])
        lines.append(f"{'passed' if check['passed'] else 'FAILED'}: {words}")
    aside = {one["name"]: one for one in record["set_aside"]}
    mine = [name for name, one in aside.items() if one["run"] == record["run"]]
    if mine:
        are = "files are" if len(mine) > 1 else "file is"
        lines.append(f"set aside, as the model was refused: {len(mine):,} {are} no longer in the store")
        lines += [f"  {printable(name)}" for name in mine]
        lines.append("later runs leave them out until they change; oocpeg run --retry FILE appends one as it is")
    if len(aside) > len(mine):
        lines.append(f"left out, as earlier runs have set them aside: {len(aside) - len(mine):,}")
    if record["outcome"] == "unchanged":
        lines.append("rows and options are the same as those of a model that was made before")
    return lines
