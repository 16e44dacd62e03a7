"""The guard against loss of speed notices a loss, and does not fail where instructions cannot be counted."""

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

from support.paths import ROOT

_spec = importlib.util.spec_from_file_location("bench_guard", ROOT / "scripts" / "bench_guard.py")
guard = importlib.util.module_from_spec(_spec)
sys.modules["bench_guard"] = guard  # dataclasses look their module up
_spec.loader.exec_module(guard)

BASELINE = json.loads(guard.BASELINE.read_text())
KINDS = {guard.INSTRUCTIONS: 0.3, guard.RATIO: 0.5}
"""The measures, and the loss that each has to notice."""
TOYS = """
import sys
sys.path.insert(0, {scripts!r})
import bench_guard as guard
import numpy as np
numbers = np.arange(100_000.0)
def work():
    for _ in range(20):
        np.sqrt(numbers).sum()
def twice():
    work()
    work()
guard.count({{"toy": guard.whole(twice if {twice} else work)}})
"""


def baseline_of(values, tolerance, kind, versions=None):
    paths = {path: {kind: {"value": value, "tolerance": tolerance}} for path, value in values.items()}
    return {"versions": {kind: versions or guard.versions()}, "paths": paths}


def run_main(monkeypatch, kind, values, *words):
    """Run the script with these values instead of measured ones; return what it exits with."""
    monkeypatch.setattr(guard, "measure", lambda wanted: (wanted or kind, values))
    monkeypatch.setattr(sys, "argv", ["bench_guard.py", *words])
    try:
        guard.main()
    except SystemExit as error:
        return error.code


@pytest.mark.parametrize("kind", KINDS)
def test_the_baseline_is_complete_and_notices_a_loss(kind, monkeypatch, capsys):
    monkeypatch.setattr(guard, "versions", lambda: BASELINE["versions"][kind])
    values = {path: known[kind]["value"] for path, known in BASELINE["paths"].items()}
    assert list(values) == list(guard.PATHS)
    assert run_main(monkeypatch, kind, values, "--measure", kind) is None
    assert capsys.readouterr().out.count("  ok\n") == len(values)
    for slow in values:
        slower = {**values, slow: (1 + KINDS[kind]) * 1.01 * values[slow]}
        message = run_main(monkeypatch, kind, slower, "--measure", kind)
        assert message.startswith(f"error: slower than before: {slow} (1.")
        assert "--update" in message
        assert message.count("times the baseline") == 1
        assert capsys.readouterr().out.count("  SLOWER\n") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_by_default_only_instructions_fail(kind, monkeypatch, capsys):
    monkeypatch.setattr(guard, "versions", lambda: BASELINE["versions"][kind])
    doubled = {path: 2 * known[kind]["value"] for path, known in BASELINE["paths"].items()}
    message = run_main(monkeypatch, kind, doubled)
    assert (message is None) == (kind == guard.RATIO)
    assert ("note: slower than before: " in capsys.readouterr().out) == (kind == guard.RATIO)


def test_a_doubled_measurement_is_slower_and_a_halved_one_is_not():
    known = baseline_of({"a": 100.0, "b": 100.0, "c": 100.0}, 0.05, guard.INSTRUCTIONS)
    found = guard.compare(guard.INSTRUCTIONS, {"a": 200.0, "b": 104.9, "c": 50.0}, known)
    assert [one.is_slower for one in found] == [True, False, False]
    assert [str(one).split()[-1] for one in found] == ["SLOWER", "ok", "faster"]
    assert "a (2.00 times the baseline);" in guard.advice(found)
    assert guard.advice(found[1:]) is None


def test_other_versions_widen_the_tolerance(monkeypatch, capsys):
    known = baseline_of({"a": 100.0}, 0.05, guard.INSTRUCTIONS, {"python": "2.7"})
    slower = [guard.compare(guard.INSTRUCTIONS, {"a": value}, known)[0].is_slower for value in (129.0, 131.0)]
    assert slower == [False, True]


def test_a_path_in_which_nothing_is_measured_is_an_error():
    known = baseline_of({"a": 100.0, "b": 100.0}, 0.05, guard.RATIO)
    with pytest.raises(SystemExit, match="nothing was measured in b; "):
        guard.compare(guard.RATIO, {"a": 1.0, "b": 0.0}, known)


@pytest.mark.parametrize("words", [["--measure", guard.RATIO], []], ids=["one measure", "both"])
def test_update_writes_values_and_keeps_tolerances(words, tmp_path, monkeypatch):
    paths = {"a": {kind: {"value": 1.0, "tolerance": 0.2} for kind in KINDS}, "removed": {}}
    file = tmp_path / "baseline.json"
    file.write_text(json.dumps({"versions": {kind: {} for kind in KINDS}, "paths": paths}))
    monkeypatch.setattr(guard, "BASELINE", file)
    assert run_main(monkeypatch, None, {"a": 123.456, "added": 2.0}, "--update", *words) is None
    written = json.loads(file.read_text())
    assert list(written["paths"]) == ["a", "added"]
    assert written["paths"]["a"][guard.RATIO] == {"value": 123.5, "tolerance": 0.2}
    assert written["paths"]["a"][guard.INSTRUCTIONS]["value"] == (1.0 if words else 123.5)
    assert written["paths"]["added"][guard.RATIO] == {"value": 2.0, "tolerance": 0.4}
    assert written["versions"][guard.RATIO] == guard.versions()
    assert written["versions"][guard.INSTRUCTIONS] == ({} if words else guard.versions())


@pytest.mark.parametrize("valgrind", [None, "#!/bin/sh\necho cannot start >&2\nexit 1\n"], ids=["missing", "fails"])
def test_without_a_counter_times_are_compared(valgrind, tmp_path, monkeypatch, capsys):
    if valgrind:
        (tmp_path / "valgrind").write_text(valgrind)
        (tmp_path / "valgrind").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(guard, "step", lambda _name, _folder: ["/bin/true"])
    monkeypatch.setattr(guard, "measure_ratios", lambda _folder: {"a": 1.0})
    assert guard.measure(None) == (guard.RATIO, {"a": 1.0})
    assert capsys.readouterr().out.startswith("note: times are compared, because instructions cannot be counted: ")
    with pytest.raises(SystemExit, match="install valgrind, or give --measure ratio"):
        guard.measure(guard.INSTRUCTIONS)


def test_only_the_named_method_is_measured():
    events = []

    class Solver:
        def process(self, value):
            events.append(value)
            return value

    class Recorder:
        def __enter__(self):
            events.append("begin")

        def __exit__(self, *_error):
            events.append("end")

    def train():
        assert Solver().process(1) == 1
        events.append("not measured")
        assert Solver().process(value=2) == 2

    original = Solver.process
    guard.inside(Solver, "process", train)(Recorder())
    assert events == ["begin", 1, "end", "not measured", "begin", 2, "end"]
    assert Solver.process is original


@pytest.mark.slow
@pytest.mark.skipif(not guard.can_count(), reason="instructions cannot be counted without valgrind")
def test_instructions_of_a_path_that_does_its_work_twice_are_reported(tmp_path):
    found = []
    for number, twice in enumerate((False, False, True)):
        script = tmp_path / f"toys{number}.py"
        script.write_text(TOYS.format(scripts=str(ROOT / "scripts"), twice=twice))
        found.append(guard.counts_of([sys.executable, str(script)], on_request=True)["toy"])
    once, again, doubled = found
    assert 0.99 < again / once < 1.01
    assert 1.95 < doubled / once < 2.05
    known = baseline_of(
        {"toy": once}, BASELINE["paths"]["evaluate"][guard.INSTRUCTIONS]["tolerance"], guard.INSTRUCTIONS
    )
    assert guard.advice(guard.compare(guard.INSTRUCTIONS, {"toy": again}, known)) is None
    assert "toy" in guard.advice(guard.compare(guard.INSTRUCTIONS, {"toy": doubled}, known))


@pytest.mark.slow
def test_the_time_of_a_path_that_does_its_work_twice_is_reported():
    numbers = np.arange(100_000.0)
    roots = np.empty_like(numbers)

    def work():  # in the caches, like its reference, so that other programs change both alike
        for _ in range(20):
            np.sqrt(numbers, out=roots)

    once, twice = guard.whole(work), guard.whole(lambda: (work(), work()))
    reference = guard.references()["parse"]
    values = [
        guard.ratio(lambda one=one: guard.seconds(one), lambda: guard.seconds(reference)) for one in (once, twice)
    ]
    found = guard.compare(guard.RATIO, {"toy": values[1]}, baseline_of({"toy": values[0]}, 0.5, guard.RATIO))
    assert "toy" in guard.advice(found)


@pytest.mark.slow
def test_the_time_of_a_command():
    spend = "import time\nwhile time.process_time() < {}: pass"
    assert guard.seconds_of_command([sys.executable, "-c", spend.format(0.3)]) >= 0.3
    with pytest.raises(subprocess.CalledProcessError):
        guard.seconds_of_command([sys.executable, "-c", "raise SystemExit(3)"])
