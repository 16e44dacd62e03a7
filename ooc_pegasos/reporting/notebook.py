"""Displays in notebooks: stores, models and runs as tables, the gap by epoch as a plot, progress of a run."""

from __future__ import annotations

import html
import math
import time
from typing import TYPE_CHECKING, Any, TypeGuard

from ooc_pegasos.reporting.progress import TrainingProgress, epoch_line, guarded
from ooc_pegasos.reporting.text import FEATURE_WIDTH, holdout_words, size_text
from ooc_pegasos.util.escaping import printable
from ooc_pegasos.util.short_names import short

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np

    from ooc_pegasos.reporting.history import EpochRecord
    from ooc_pegasos.scoring.model import Model
    from ooc_pegasos.store.store import Store
    from ooc_pegasos.training.result import TrainResult

_MOST_CLASSES, _MOST_POINTS = 8, 500
_WIDTH, _HEIGHT = 440, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 10, 34
_SECONDS = 0.25
"""Seconds between two updates of a display."""


def _safe(text: object) -> str:
    """Return any text as part of HTML, with control characters escaped: XML forbids most of them."""
    return html.escape(printable(str(text)).encode("utf-8", "replace").decode())


def _framed(*parts: str) -> str:
    """Return parts as one element, in which a dollar does not begin a formula."""
    return f'<div class="tex2jax_ignore mathjax_ignore">{"".join(parts)}</div>'


def _table(title: str, rows: Iterable[Sequence[object]], heads: Sequence[str] = ()) -> str:
    """Return a small table with escaped cells."""
    lines = [f"<table><caption>{_safe(title)}</caption>"]
    if heads:
        lines.append("<tr>" + "".join(f"<th>{_safe(head)}</th>" for head in heads) + "</tr>")
    for name, *cells in rows:
        columns = "".join(f'<td style="text-align:left">{_safe(cell)}</td>' for cell in cells)
        lines.append(f'<tr><th style="text-align:left">{_safe(name)}</th>{columns}</tr>')
    return "".join([*lines, "</table>"])


# --- the plot -----------------------------------------------------------------------------------------


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)


def _points(history: Sequence[EpochRecord]) -> list[tuple[float, float, bool]]:
    """Return (epoch, relative gap, True if certified) of the epochs with a known gap."""
    found = []
    for record in history:
        gap = record.estimated_gap if record.gap is None else record.gap
        if _is_number(gap):
            found.append((float(record.epoch), float(gap), record.gap is not None))
    step = -(-len(found) // _MOST_POINTS)
    return [point for at, point in enumerate(found) if point[2] or at % step == 0]


def gap_plot(history: Sequence[EpochRecord], tolerance: float | None = None) -> str:
    """Return the gap by epoch as SVG, on a logarithmic scale: a line for estimates, dots for certified gaps."""
    points = _points(history)
    positive = [gap for _epoch, gap, _measured in points if gap > 0]
    if not positive:
        return ""
    if not _is_number(tolerance) or tolerance <= 0:
        tolerance = None
    levels = [*positive, *([tolerance] if tolerance else [])]
    low, high = math.floor(math.log10(min(levels))), math.ceil(math.log10(max(levels)))
    high = max(high, low + 1)
    last = max(epoch for epoch, _gap, _measured in points)
    first = min(points[0][0], last - 1)

    def across(epoch: float) -> float:
        return _LEFT + (epoch - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    def down(gap: float) -> float:
        level = math.log10(gap) if gap > 0 else low  # a gap of 0 is drawn at the bottom
        return _TOP + (high - level) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    right, floor = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" fill="currentColor" font-family="sans-serif" font-size="11">',
        "<title>gap by epoch</title>",
    ]
    for power in range(low, high + 1, max(1, (high - low) // 5)):
        y = down(10.0**power)
        lines.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="currentColor" stroke-opacity="0.2"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{100 * 10.0**power:g} %</text>')
    lines.append(f'<path d="M{_LEFT} {_TOP}V{floor}H{right}" fill="none" stroke="currentColor"/>')
    for epoch in sorted({points[0][0], last}):
        lines.append(f'<text x="{across(epoch):.1f}" y="{floor + 15}" text-anchor="middle">{epoch:g}</text>')
    lines.append(f'<text x="{(_LEFT + right) / 2:.1f}" y="{floor + 28}" text-anchor="middle">epoch</text>')
    if tolerance:
        dashes = 'stroke="#d55e00" stroke-dasharray="4 3"'
        lines.append(f'<path d="M{_LEFT} {down(tolerance):.1f}H{right}" {dashes}>')
        lines.append(f"<title>tolerance {100 * tolerance:.3g} %</title></path>")
    trace = " ".join(f"{across(epoch):.1f},{down(gap):.1f}" for epoch, gap, _measured in points)
    lines.append(f'<polyline points="{trace}" fill="none" stroke="#0072b2" stroke-width="1.5"/>')
    for epoch, gap, measured in points:
        if measured:
            text = f"epoch {epoch:g}: certified gap {100 * gap:.3g} %"
            dot = f'<circle cx="{across(epoch):.1f}" cy="{down(gap):.1f}" r="3.5" fill="#0072b2">'
            lines.append(f"{dot}<title>{text}</title></circle>")
    return "".join([*lines, "</svg>"])


def _plot_of(model: Model) -> str:
    info = model.info
    plot = gap_plot(info.history, info.config.get("tolerance"))
    if not plot:
        return ""
    one_vs_rest = model.bias.ndim and info.costs is None
    whose = f" of the class {info.labels.classes[0]} against the rest" if one_vs_rest else ""
    return f"<div>{_safe(f'gap by epoch{whose}: estimated (line), certified (dots)')}</div>{plot}"


# --- tables -------------------------------------------------------------------------------------------


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.3g} %"


def _certificate_rows(model: Model) -> list[tuple[str, str]]:
    info = model.info
    found = info.certificate
    state = "" if found.gap is None or found.converged else " (not within the tolerance)"
    return [
        ("lambda", f"{info.lam:.6g}"),
        ("loss", info.loss),
        ("algorithm", info.algorithm),
        ("epochs", f"{info.epochs:,}"),
        ("objective", f"{found.primal:.6g}"),
        ("lower bound", "unknown" if found.lower_bound is None else f"{found.lower_bound:.6g}"),
        ("certified gap", _percent(found.gap) + state),
    ]


def _heaviest(model: Model, heaviest: Iterable[tuple[int, str | None, np.ndarray]]) -> str:
    """Return a table of the features with the largest weights, by name if known."""
    classes = model.info.labels.classes
    rows: list[list[object]] = []
    for place, name, weight in heaviest:
        row: list[object] = [f"#{place}" if name is None else short(name, FEATURE_WIDTH)]
        if model.bias.ndim:
            largest = int(weight.argmax())  # the class with the largest weight
            rows.append([*row, classes[largest], f"{weight[largest]:.6g}"])
        else:
            rows.append([*row, f"{weight:.6g}"])
    heads = ("feature", "most for", "weight") if model.bias.ndim else ("feature", "weight")
    return _table("heaviest features", rows, heads) if rows else ""


def store_html(store: Store) -> str:
    """Return a table of a store's properties, without reading the store."""
    made = store.manifest
    rows = [
        ("rows", f"{made.rows:,}"),
        ("features", f"{made.features:,}"),
        ("non-zeros", f"{made.nonzeros:,}"),
        ("size", size_text(made.bytes)),
        ("chunks", f"{len(made.chunks):,}"),
        ("task", made.labels.task),
    ]
    counts = list(zip(made.labels.classes, made.labels.counts, strict=True))
    rows += [(f"label {short(name)}", f"{count:,} rows") for name, count in counts[:_MOST_CLASSES]]
    if len(counts) > _MOST_CLASSES:
        rows.append(("", f"and {len(counts) - _MOST_CLASSES:,} more labels"))
    return _framed(_table(f"Store {store.path}", rows))


def model_html(model: Model, heaviest: Iterable[tuple[int, str | None, np.ndarray]]) -> str:
    """Return a model's certificate, heaviest features (number, name, weight or one a class), and gap by epoch."""
    rows = [("features", f"{model.info.features:,}"), *_certificate_rows(model)]
    return _framed(_table("Model", rows), _heaviest(model, heaviest), _plot_of(model))


def result_html(result: TrainResult) -> str:
    """Return a run's certificate, the lambdas compared, and the gap by epoch."""
    rows = _certificate_rows(result.model)
    rows.append(("stopped by", result.stopped_by))
    if result.holdout:
        rows.append(("holdout", holdout_words(result.holdout).removeprefix("holdout: ")))
    rows += [("warning", text) for text in result.warnings]
    rows.append(("seconds", f"{result.seconds:.2f}"))
    parts = [_table("TrainResult", rows)]
    if len(result.trials) > 1:
        tried = []
        for trial in result.trials:
            kept = "kept" if trial.lam == result.model.info.lam else ""
            tried.append((f"{trial.lam:.4g}", f"{trial.loss:.5g}", _percent(trial.error) if trial.error else "", kept))
        parts.append(_table("lambdas compared", tried, ("lambda", "holdout loss", "holdout error", "")))
    return _framed(*parts, _plot_of(result.model))


# --- while it goes on ---------------------------------------------------------------------------------


@guarded
class NotebookTraining(TrainingProgress):
    """A display below the cell that is updated during the run, and is one line at the end."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._began = time.monotonic()
        self._looked = -math.inf
        self._epochs: list[EpochRecord] = []
        self._models = 1
        self._notes: list[str] = []
        self._tolerance: float | None = None
        self._now = ""

    def presented(self, epoch: int, rows: int, total: int) -> None:
        share = min(100 * rows // max(total, 1), 100)
        self._now = f"epoch {epoch + 1}, {share} % of it"
        self._look()

    def epoch_done(self, record: EpochRecord, tolerance: float, models: int) -> None:
        if self._epochs and record.epoch <= self._epochs[-1].epoch:
            self._epochs = []  # another run, as in the search for a bias
        self._epochs.append(record)
        self._models = models
        self._tolerance, self._now = tolerance, ""
        self._look()

    def note(self, text: str) -> None:
        self._notes.append(text)
        self._look()

    def end(self) -> None:
        if self._epochs or self._notes:
            seconds = time.monotonic() - self._began
            self._show([*self._known(), f"{seconds:.1f} seconds"], "")

    def _known(self) -> list[str]:
        return [epoch_line(self._epochs[-1], self._models)] if self._epochs else []

    def _look(self) -> None:
        if time.monotonic() - self._looked >= _SECONDS:
            words = [*self._known(), *([self._now] if self._now else [])]
            self._show(words, gap_plot(self._epochs, self._tolerance))
            self._looked = time.monotonic()

    def _show(self, words: list[str], plot: str) -> None:
        from IPython.display import HTML, display

        notes = "".join(f"<div>note: {_safe(text)}</div>" for text in self._notes)
        page = _framed(f"<div>{_safe('; '.join(words))}</div>{plot}{notes}")
        content = HTML(page)  # type: ignore[no-untyped-call]
        if self._handle is None:
            self._handle = display(content, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(content)
