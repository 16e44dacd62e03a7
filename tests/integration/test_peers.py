"""The comparison with other programs: its figures against textbook formulas, its page, and failures in it."""

import importlib.util
import json
import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

from support.paths import ROOT
from support.rows import random_rows, svmlight_text

SCRIPT = ROOT / "scripts" / "bench_peers.py"


@pytest.fixture(scope="module")
def peers():
    spec = importlib.util.spec_from_file_location("bench_peers", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for their module
    path = list(sys.path)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path
    del sys.modules[spec.name]


def textbook_objective(x, y, weights, clock, loss):
    losses = []
    for row, label in zip(x.toarray().tolist(), y.tolist(), strict=True):
        margin = label * math.fsum(value * weight for value, weight in zip(row, weights, strict=True))
        losses.append(max(0.0, 1 - margin) if loss == "hinge" else math.log1p(math.exp(-margin)))
    return clock / len(y) / 2 * math.fsum(w * w for w in weights) + math.fsum(losses) / len(y)


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_the_objective_is_that_of_the_textbook(peers, loss):
    x, y = random_rows(40, 12, 3, density=0.4)
    x, weights = x.astype(np.float64), np.random.default_rng(0).standard_normal(12)
    found = peers.objective(x, y, weights, 0.3, loss)
    assert found == pytest.approx(textbook_objective(x, y, weights.tolist(), 0.3, loss), rel=1e-12)


def test_an_objective_below_the_bound_ends_the_benchmark(peers):
    assert peers.suboptimality(2.0, 1.5, "a program") == 0.25
    assert peers.suboptimality(1.5, 1.5 + 1e-9, "a program") == 0
    with pytest.raises(SystemExit, match=r"a program: objective 1\.4 below the lower bound 1\.5"):
        peers.suboptimality(1.4, 1.5, "a program")


def made_comparison():
    """Results of two sets: a program that takes 2 and 8 times as long, and half as long with another setting."""
    fit = {"lambda_m": 1.0, "setting": 0, "training": 1.0, "suboptimality": 0.005, "test_error": 0.1}
    run = {"limited": False, "start": 1.0, "load": 2.0, "peak": 10**8, "disk": 10**6, "fits": [fit]}
    runs = []
    for name, ratio in (("first", 2.0), ("second", 8.0)):
        other = [fit | {"training": ratio}, fit | {"setting": 1, "training": 0.5, "suboptimality": 0.02}]
        runs += [run | {"set": name, "peer": "oocpeg"}, run | {"set": name, "peer": "other", "fits": other}]
    runs.append({"set": "first", "peer": "other", "limited": True, "fits": [], "failure": "out of memory"})
    sizes = {"rows": 10, "features": 5, "nonzeros": 20, "test_rows": 4, "text_bytes": 99, "positive": 0.5}
    peer = {"version": "1.0", "loss": "hinge", "note": "", "settings": ["defaults", "tol=1"]}
    return {
        "date": "2026-01-01",
        "processor": "a processor",
        "cores": 2,
        "memory": 10**9,
        "python": "3.11.1",
        "repeats": 2,
        "timeout": 10.0,
        "lambda_m": [1.0],
        "limit": {"bytes": 10**8, "by": "control group"},
        "peers": [peer | {"name": "oocpeg"}, peer | {"name": "other"}],
        "missing": {"a third": "not installed"},
        "sets": {"first": sizes, "second": sizes},
        "runs": runs,
    }


def rows_beginning(text, *cells):
    """The cells of each line of a table that begins with these."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return [row for row in rows if row[: len(cells)] == list(cells)]


def test_the_page_has_geometric_means_and_failures(peers):
    page = peers.page(made_comparison())
    # sqrt(2 * 8) = 4 for training; totals are 5 / 4 and 11 / 4
    assert ["2 of 2", "1.00", "4.00", f"{math.sqrt(55) / 4:.2f}", "1.00"] in [
        r[1:6] for r in rows_beginning(page, "other")
    ]
    assert ["other", "4.00", "none of 2"] in rows_beginning(page, "other")  # to 1 % and 0.1 %
    assert rows_beginning(page, "other", "out of memory")
    assert rows_beginning(page, "a third", "missing")[0][-1] == "not installed"


def test_the_page_lists_where_others_are_faster(peers):
    result = made_comparison()
    assert rows_beginning(peers.page(result), "other", "first", "1", "1 %") == []
    result["runs"][1]["fits"][1]["suboptimality"] = 0.01
    assert rows_beginning(peers.page(result), "other", "first", "1", "1 %") == [["other", "first", "1", "1 %", "0.50"]]


def test_means_say_on_how_many_sets_a_program_finished(peers):
    result = made_comparison()
    result["runs"][3] |= {"fits": [], "failure": "not within 10 s"}
    page = peers.page(result)
    assert "1 of 2" in rows_beginning(page, "other")[1]
    assert ["other", "1", "not within 10 s"] in [row[:3] for row in rows_beginning(page, "other")]


def test_the_page_of_the_repository_is_up_to_date(peers):
    result = json.loads((ROOT / "docs" / "peers.json").read_text())
    assert (ROOT / "docs" / "peers.md").read_text() == peers.page(result), "run scripts/bench_peers.py --page"
    named = {one["name"] for one in result["peers"]} | set(result["missing"])
    assert named == {peer.name for peer in peers.PEERS} | set(peers.NOT_AVAILABLE)


def write_tiny_set(folder):
    x, y = random_rows(300, 20, 7, density=0.3)
    truth = np.random.default_rng(1).standard_normal(20)
    y = np.where(x @ truth + 0.5 * y > 0, 1, -1)
    for part, rows in (("train", slice(0, 200)), ("test", slice(200, 300))):
        (folder / f"tiny.{part}.svm").write_text(svmlight_text(x[rows], y[rows]))
    return x[:200].toarray().astype(np.float64), y[:200]


def exact_optimum(x, y, clock):
    """The optimum of the hinge loss by its dual, a quadratic program in a box."""
    lam, signed = clock / len(y), x * y[:, None]

    def dual(a):
        w = signed.T @ a / clock
        return lam / 2 * w @ w - a.mean(), (signed @ w - 1) / len(y)

    options = {"maxiter": 20_000, "maxfun": 10**6, "ftol": 1e-15, "gtol": 1e-12}
    found = minimize(dual, np.zeros(len(y)), jac=True, method="L-BFGS-B", bounds=[(0, 1)] * len(y), options=options)
    return -found.fun


@pytest.mark.slow
def test_it_runs_the_programs_that_are_installed(tmp_path):
    x, y = write_tiny_set(tmp_path)
    words = ["--data", tmp_path, "--sets", "tiny", "--repeats", "1", "--output", tmp_path / "out.json"]
    words += ["--folder", tmp_path / "work", "--limit", "20kB"]
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    assert "missing: LIBLINEAR cdblock: neither on PyPI nor a Debian package" in done.stdout
    for name, module in (("snapml", "snapml"), ("skglm", "skglm"), ("LIBLINEAR", "liblinear"), ("dask-ml", "dask_ml")):
        is_missing = importlib.util.find_spec(module) is None
        assert (f"missing: {name}: not installed" in done.stdout) == is_missing == (name in result["missing"])
    runs = {(run["peer"], run["limited"]): run for run in result["runs"]}
    for name in ("oocpeg", "LinearSVC", "SGDClassifier", "LogisticRegression"):
        assert name not in result["missing"]
        settings = next(one["settings"] for one in result["peers"] if one["name"] == name)
        assert len(runs[name, False]["fits"]) == 3 * len(settings)
        assert runs[name, True]["failure"] == "out of memory"
    for clock in (10.0, 1.0, 0.1):
        bound = result["sets"]["tiny"]["bounds"]["hinge"][f"{clock:g}"]
        optimum = exact_optimum(x, y, clock)
        assert bound == pytest.approx(optimum, rel=2e-5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            svc = LinearSVC(loss="hinge", C=1 / clock, fit_intercept=False, tol=0.1, random_state=0).fit(x, y)
        value = textbook_objective(sp.csr_matrix(x), y, svc.coef_.ravel().tolist(), clock, "hinge")
        fits = runs["LinearSVC", False]["fits"]
        (found,) = (fit for fit in fits if (fit["lambda_m"], fit["setting"]) == (clock, 1))
        assert found["suboptimality"] == pytest.approx(1 - optimum / value, rel=1e-3, abs=3e-5)
    assert "out of memory" in (tmp_path / "out.md").read_text()


@pytest.mark.slow
def test_a_program_that_takes_too_long_is_shown(tmp_path):
    write_tiny_set(tmp_path)
    words = ["--data", tmp_path, "--sets", "tiny", "--repeats", "1", "--output", tmp_path / "out.json"]
    done = subprocess.run([sys.executable, SCRIPT, *words, "--timeout", "0.2"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not within 0.2 s" in (tmp_path / "out.md").read_text()


def test_mistakes_are_named(peers, tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match=r"unknown: neither unknown\.train\.svm nor datasets\.py in "):
        peers.write_set("unknown", tmp_path, tmp_path / "work", 10)
    monkeypatch.setattr(sys, "argv", ["bench_peers.py", "--data", str(tmp_path), "--environments", "absent"])
    with pytest.raises(SystemExit, match="absent: no such folder; make it with --install"):
        peers.main()
