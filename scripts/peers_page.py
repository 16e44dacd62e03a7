"""Page of the comparison with other programs, made from the results that bench_peers.py writes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from typing import Any

INTRODUCTION = """# Comparison with other programs

You get: time, memory and true accuracy of ooc-pegasos and other programs on the same svmlight files in one run.
Repeat the run with

```sh
python scripts/bench_peers.py --install DIR
python scripts/bench_peers.py --environments DIR
```

This page is made by `scripts/bench_peers.py --page` from `docs/peers.json`."""

METHOD = """Every program runs in a process and an environment of its own, for each data set. Runs of different programs
alternate. Times are the minimum of the repetitions. All minimise lambda/2 |w|^2 plus the mean loss, without a bias,
where they can; m is the number of rows, so C is 1 / (lambda m).

- Load: from svmlight text to the form on which the program trains, the store for ooc-pegasos. Programs in memory get
  the reader of scikit-learn; libocas reads its text itself; Vowpal Wabbit reads its text while it trains, and
  so does dask-ml with a memory limit, in each pass.
- Training: the call that trains. Total: start of the process, with imports and a run on 300 rows in which code is
  compiled, plus load and training.
- Peak: largest resident memory of the process over all its runs, with mapped files and libraries, which a memory limit
  counts only in part. Disk: bytes that training reads, as a store, a cache
  or text.
- Suboptimality: (J - bound) / J, with J computed in float64 from the weights, and a lower bound of the optimum. Bounds
  are certified by `train` to 1e-5 where that takes less than a minute, so smaller differences mean nothing. Every J
  of every program was checked to be above the bound."""

MEANS = "Geometric means over data sets of the figure of a program divided by that of `oocpeg` with the same loss"


def page(result: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    sections = [[INTRODUCTION], machine(result), [METHOD], programs(result), defaults(result), same_accuracy(result)]
    sections += [limited(result), faster(result), details(result)]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


# --- figures ------------------------------------------------------------------------------------


def geometric_mean(numbers: Iterable[float]) -> float:
    """Return the geometric mean of positive numbers."""
    return math.exp(statistics.fmean(map(math.log, numbers)))


def baseline(result: dict[str, Any], peer: str) -> str:
    """Return the name under which ooc-pegasos minimises the loss of a program."""
    loss = next(one["loss"] for one in result["peers"] if one["name"] == peer)
    return "oocpeg" if loss == "hinge" else "oocpeg, logistic"


def run_of(result: dict[str, Any], name: str, peer: str, limited: bool = False) -> dict[str, Any]:
    """Return the results of a program on a set; empty if it was not run."""
    found = (run for run in result["runs"] if (run["set"], run["peer"], run["limited"]) == (name, peer, limited))
    return next(found, {})


def fit_of(run: dict[str, Any], clock: float) -> dict[str, Any]:
    """Return the results with default settings; empty if there are none."""
    found = (fit for fit in run.get("fits", ()) if (fit["lambda_m"], fit["setting"]) == (clock, 0))
    return next(found, {})


def total(run: dict[str, Any], fit: dict[str, Any]) -> float:
    """Return the seconds of a process that trains one model."""
    return float(run["start"] + run["load"] + fit["training"])


def seconds_to(run: dict[str, Any], clock: float, gap: float) -> float | None:
    """Return the seconds of the fastest setting that is within a true suboptimality, None if none is."""
    several = (fit for fit in run.get("fits", ()) if fit["lambda_m"] == clock and fit["suboptimality"] <= gap)
    return min((float(fit["training"]) for fit in several), default=None)


# --- sections -----------------------------------------------------------------------------------


def table(*columns: str) -> list[str]:
    """Return the head of a table."""
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]


def row(*cells: object) -> str:
    """Return a line of a table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def size(number: float) -> str:
    """Return bytes as megabytes."""
    return f"{number / 1e6:,.0f} MB" if number >= 1e7 else f"{number / 1e6:.1f} MB"


def percent(number: float) -> str:
    """Return a share in percent with two significant digits."""
    return f"{100 * number:.2f} %" if number >= 1e-4 else f"{100 * number:.1g} %"


def machine(result: dict[str, Any]) -> list[str]:
    """Return the lines on the machine and the data."""
    lines = [
        f"Measured on {result['date']}: {result['processor']}, {result['cores']} cores, {size(result['memory'])} of"
        f" memory, Python {result['python']}; number of repetitions: {result['repeats']}; limit of a process: "
        f"{result['timeout']:g} s. {result.get('remark', '')}".rstrip(),
        "",
        *table("Data", "Rows", "Features", "Non-zeros", "Positive", "Text"),
    ]
    for name, one in result["sets"].items():
        sizes = (f"{one[key]:,}" for key in ("rows", "features", "nonzeros"))
        lines.append(row(name, *sizes, f"{one['positive']:.1%}", size(one["text_bytes"])))
    return lines


def programs(result: dict[str, Any]) -> list[str]:
    """Return the table of programs, with those that are missing."""
    lines = ["## Programs", "", *table("Program", "Version", "Loss", "Settings, the first are its defaults", "Remarks")]
    for one in result["peers"]:
        lines.append(row(one["name"], one["version"], one["loss"], "; ".join(one["settings"]), one["note"]))
    lines += [row(name, "missing", "", "", reason) for name, reason in result["missing"].items()]
    return lines


def defaults(result: dict[str, Any]) -> list[str]:
    """Return the means with default settings."""
    lines = [
        "## With default settings, in memory",
        "",
        f"{MEANS}:",
        "more than 1 is slower or larger than ooc-pegasos.",
    ]
    lines += [
        "Programs stop at different accuracies: the last columns show the worst suboptimality and the mean test error."
    ]
    columns = ("Program", "Sets", "Load", "Training", "Total", "Peak", "Disk", "Worst suboptimality", "Test error")
    for clock in result["lambda_m"]:
        lines += ["", f"lambda m = {clock:g}:", "", *table(*columns)]
        lines += [mean_row(result, one["name"], clock) for one in result["peers"]]
    return lines


def mean_row(result: dict[str, Any], peer: str, clock: float) -> str:
    """Return the row of a program: means over the sets on which it and ooc-pegasos finished."""
    figures: list[Callable[[dict[str, Any], dict[str, Any]], float]] = [
        lambda run, fit: run["load"],
        lambda run, fit: fit["training"],
        total,
        lambda run, fit: run["peak"],
        lambda run, fit: run["disk"],
    ]
    both = []
    for name in result["sets"]:
        run, ours = run_of(result, name, peer), run_of(result, name, baseline(result, peer))
        if fit_of(run, clock) and fit_of(ours, clock):
            both.append(((run, fit_of(run, clock)), (ours, fit_of(ours, clock))))
    sets = f"{len(both)} of {len(result['sets'])}"
    if not both:
        return row(peer, sets, reason_of(result, peer), *[""] * 6)
    cells = []
    for figure in figures:
        pairs = [(figure(*theirs), figure(*ours)) for theirs, ours in both]
        is_known = all(their > 0 for their, _ in pairs)  # a load of 0 is part of training
        cells.append(f"{geometric_mean(their / our for their, our in pairs):.2f}" if is_known else "")
    fits = [fit for (_, fit), _ in both]
    worst = percent(max(fit["suboptimality"] for fit in fits))
    return row(peer, sets, *cells, worst, percent(statistics.fmean(fit["test_error"] for fit in fits)))


def reason_of(result: dict[str, Any], peer: str) -> str:
    """Return why a program has no result on any set."""
    reasons = (run.get("failure") for run in result["runs"] if run["peer"] == peer and not run["limited"])
    return next((reason for reason in reasons if reason), "not run")


def same_accuracy(result: dict[str, Any]) -> list[str]:
    """Return the ratios of training times to the same true suboptimality."""
    lines = ["## To the same accuracy, in memory", ""]
    lines += [f"{MEANS}:"]
    lines += ["seconds of training with the fastest of its settings that is within the true suboptimality. In"]
    lines += ["brackets the number of sets on which the program has such a setting, where that is not all of them."]
    columns = [(clock, gap) for clock in result["lambda_m"] for gap in (0.01, 0.001)]
    lines += ["", *table("Program", *(f"lambda m = {clock:g}, {100 * gap:g} %" for clock, gap in columns))]
    for one in result["peers"]:
        lines.append(row(one["name"], *(ratio_cell(result, one["name"], *column) for column in columns)))
    return lines


def ratio_cell(result: dict[str, Any], peer: str, clock: float, gap: float) -> str:
    """Return the mean ratio of a program, with the number of sets on which it was within the suboptimality."""
    ratios = [ratio for _, ratio in ratios_of(result, peer, clock, gap)]
    several = len(result["sets"])
    count = "" if len(ratios) == several else f" ({len(ratios)} of {several})"
    return f"{geometric_mean(ratios):.2f}{count}" if ratios else f"none of {several}"


def ratios_of(result: dict[str, Any], peer: str, clock: float, gap: float) -> Iterator[tuple[str, float]]:
    """Yield (set, seconds of a program / seconds of ooc-pegasos) where both are within the suboptimality."""
    for name in result["sets"]:
        theirs = seconds_to(run_of(result, name, peer), clock, gap)
        ours = seconds_to(run_of(result, name, baseline(result, peer)), clock, gap)
        if theirs is not None and ours is not None:
            yield name, theirs / ours


def limited(result: dict[str, Any]) -> list[str]:
    """Return the table of runs with a memory limit; nothing if there were none."""
    limit = result["limit"]
    lines = ["## With a memory limit", ""]
    lines += [
        f"{size(limit['bytes'])} for the process, by {limit['by']}; lambda m = 1; default settings; data sets whose"
    ]
    lines += ["matrix in float64 takes more than a quarter of the limit."]
    names = [name for name in result["sets"] if any(run["set"] == name and run["limited"] for run in result["runs"])]
    for name in names:
        matrix = size(12 * result["sets"][name]["nonzeros"])
        lines += ["", f"{name}, a matrix of {matrix}:", ""]
        lines += table("Program", "Load", "Training", "Total", "Peak", "Suboptimality", "Test error")
        for one in result["peers"]:
            run = run_of(result, name, one["name"], limited=True)
            lines.append(row(one["name"], *cells_of(run, 1.0, with_disk=False)))
    return lines if names else []


def cells_of(run: dict[str, Any], clock: float, with_disk: bool) -> list[str]:
    """Return the figures of a program on a set, or its failure."""
    fit = fit_of(run, clock)
    if not fit:
        return [run.get("failure", "not run").replace("|", "/").replace("\n", " "), *[""] * (5 + with_disk)]
    times = (f"{one:.3g} s" if one else "" for one in (run["load"], fit["training"], total(run, fit)))
    disk = [size(run["disk"])] if with_disk else []
    return [*times, size(run["peak"]), *disk, percent(fit["suboptimality"]), percent(fit["test_error"])]


def faster(result: dict[str, Any]) -> list[str]:
    """Return the cases in which another program is faster to the same accuracy."""
    found = []
    for one in result["peers"]:
        for clock in result["lambda_m"]:
            for gap in (0.01, 0.001):
                for name, ratio in ratios_of(result, one["name"], clock, gap):
                    if ratio < 1 and one["name"] != baseline(result, one["name"]):
                        found.append((ratio, row(one["name"], name, f"{clock:g}", f"{100 * gap:g} %", f"{ratio:.2f}")))
    lines = ["## Cases in which other programs train faster", ""]
    lines += ["Seconds of training of the program divided by those of ooc-pegasos, to the same true suboptimality."]
    return [
        *lines,
        "",
        *table("Program", "Data", "lambda m", "Suboptimality", "Ratio"),
        *(line for _, line in sorted(found)),
    ]


def details(result: dict[str, Any]) -> list[str]:
    """Return a table for each set, with default settings."""
    lines = ["## Each data set", "", "Default settings, in memory."]
    columns = ("Program", "lambda m", "Load", "Training", "Total", "Peak", "Disk", "Suboptimality", "Test error")
    for name in result["sets"]:
        lines += ["", f"### {name}", "", tightness(result, name), "", *table(*columns)]
        for one in result["peers"]:
            run = run_of(result, name, one["name"])
            for clock in result["lambda_m"]:
                lines.append(row(one["name"], f"{clock:g}", *cells_of(run, clock, with_disk=True)))
    return lines


def tightness(result: dict[str, Any], name: str) -> str:
    """Return a sentence on the distance of the bounds to the optima: at most the smallest suboptimality of all runs."""
    found = []
    for loss in dict.fromkeys(one["loss"] for one in result["peers"]):
        peers = {one["name"] for one in result["peers"] if one["loss"] == loss}
        runs = [run for run in result["runs"] if run["set"] == name and run["peer"] in peers]
        for clock in result["lambda_m"]:
            gaps = [fit["suboptimality"] for run in runs for fit in run["fits"] if fit["lambda_m"] == clock]
            found += [f"{percent(min(gaps))} ({loss}, lambda m = {clock:g})"] if gaps else []
    return f"Smallest suboptimality of all runs, with all settings: {', '.join(found)}."
