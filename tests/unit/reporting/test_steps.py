"""Steps of commands: their numbers and fractions never go back, on a terminal and in logs."""

import re

import numpy as np
import pytest

from ooc_pegasos import ConvertConfig, TrainConfig, convert, train
from ooc_pegasos.reporting import progress as displays
from ooc_pegasos.reporting.steps import Steps
from support.nights import job_of, put_day
from support.rows import random_rows
from support.stores import store_of
from support.terminals import EVERY_TEXT, Terminal, check_shown


@pytest.fixture(scope="module")
def mails(tmp_path_factory):
    """A table of texts and numbers."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("mails") / "mails.csv"
    words = rng.choice(["win", "cash", "hello", "lunch", "report"], (600, 4))
    labels = np.isin(words, ["win", "cash"]).any(axis=1).astype(int)
    rows = (
        f"{label},{' '.join(row)},{number:.2f}\n"
        for label, row, number in zip(labels, words, rng.gamma(2, 9, 600), strict=True)
    )
    path.write_text("label,text,size\n" + "".join(rows))
    return path


def marks_of(texts):
    """The different steps of status lines in order, as (number, total, name), without later rounds of a step."""
    found = [re.match(r"(\d+)/(\d+) (?!round)([a-z ]+)", text) for text in texts]
    return list(dict.fromkeys((int(one[1]), int(one[2]), one[3].strip()) for one in found if one))


def check_fractions(texts):
    """Fractions of a step, and of an epoch of a run, never go back."""
    least = {}
    for text in texts:
        step, run, share = re.match(r"((?:\d+/\d+ )?)(.*?)(?:(\d+) %(?:,| of it)|$)", text).groups()
        run = re.sub(r"[0-9.]+ on all", "on all", run)
        if share is not None:
            assert int(share) >= least.get((step, run), 0), texts
            least[step, run] = int(share)
    return least


def test_steps_that_are_announced():
    steps, seen = Steps(later=2), []
    assert steps.mark == ""
    for announced in (3, None, None, 2, None):
        if announced:
            steps.later = 0 if announced == 2 else 2
            steps.expect(announced)
        steps.begin()
        seen.append(steps.mark)
    assert seen == ["1/5 ", "2/5 ", "3/5 ", "4/5 ", "5/5 "]


def test_the_total_never_shrinks_and_is_not_shown_when_unknown():
    steps = Steps(later=1)
    steps.expect(4)
    steps.begin()
    steps.expect(1)  # two of the steps are not needed
    steps.begin()
    assert steps.mark == "4/5 "
    steps.begin()
    assert steps.mark == "5/5 "
    steps.begin()  # a step that was not announced
    assert steps.mark == "step 6: "
    unknown = Steps(later=None)
    unknown.expect(2)
    unknown.begin()
    assert unknown.mark == "step 1: "
    alone = Steps()
    alone.expect(1)
    alone.begin()
    assert alone.mark == ""


def test_steps_of_training_from_files_on_a_terminal(mails, tmp_path):
    options = ["--text", "text", "--numeric", "size", "--idf", "--standardize", "--dictionary", "50", "--test", "0.3"]
    words = ["train", mails, "-o", "m", *options, "--loss", "logistic", "--calibrate", "platt", "--max-epochs", "20"]
    code, shown = Terminal(tmp_path, *words, columns=300, before=EVERY_TEXT).end()
    assert code in (0, 4), shown
    texts = check_shown(shown, 300)
    names = [
        *("measuring numbers", "counting names", "counting words", "reading rows", "writing chunks"),
        *("reading test rows", "writing test rows", "comparing lambdas", "fitting probabilities"),
        *("training lambda", "evaluating"),
    ]
    assert marks_of(texts) == [(number, 11, name) for number, name in enumerate(names, 1)]
    assert len(check_fractions(texts)) > 12


def test_steps_of_other_commands_on_a_terminal(mails, tmp_path):
    commands = {
        "convert": (["convert", mails, "-o", "s"], ["reading rows", "writing chunks"]),
        "train": (["train", "s", "-o", "m", "--folds", "3"], ["comparing lambdas", "training lambda"]),
        "one lambda": (["train", mails, "-o", "n", "--lambda", "0.1"], ["reading rows", "writing chunks", "training"]),
        "verify": (["verify", "s", "--sources"], ["verifying", "reading sources"]),
        "evaluate": (["evaluate", "m", "s"], []),
    }
    for words, names in commands.values():
        code, shown = Terminal(tmp_path, *words, columns=300, before=EVERY_TEXT).end()
        assert code == 0, shown
        texts = check_shown(shown, 300)
        assert marks_of(texts) == [(number, len(names), name) for number, name in enumerate(names, 1)], words
        assert check_fractions(texts)


def test_a_job_shows_no_total(tmp_path):
    job_of(tmp_path)
    put_day(tmp_path, 1)
    code, shown = Terminal(tmp_path, "run", "nightly.toml", columns=200, before=EVERY_TEXT).end()
    assert code == 0, shown
    numbers = [int(found) for found in re.findall(r"\rstep (\d+): ", shown)]
    assert numbers == sorted(numbers)
    assert numbers[-1] >= 3
    assert not re.search(r"\r\d+/\d+ ", shown)


def test_a_store_that_is_there_already_is_no_step(mails, tmp_path):
    words = ["train", mails, "--store", "s", "-o", "m", "--lambda", "0.1", "--test", "0.3", "--force"]
    for names in (["reading rows", "writing chunks", "reading test rows", "writing test rows"], []):
        code, shown = Terminal(tmp_path, *words, columns=300, before=EVERY_TEXT).end()
        assert code == 0, shown
        names = [*names, "training", "evaluating"]
        assert marks_of(check_shown(shown, 300)) == [(at, len(names), name) for at, name in enumerate(names, 1)]


def test_logs_have_lines_of_steps_only_in_long_commands(mails, tmp_path, capsys, monkeypatch):
    def run(name):
        steps = Steps(later=2)
        config = ConvertConfig(label="label", text=("text",), idf=True)
        store = convert(mails, tmp_path / name, config, progress=displays.LoggedProgress(steps))
        steps.later = 0
        train(store, TrainConfig(loss="logistic"), progress=displays.LoggedTraining(steps=steps))
        return [line for line in capsys.readouterr().err.splitlines() if re.match(r"note: (\d+/\d+|step) ", line)]

    assert run("short") == []
    monkeypatch.setattr(displays, "LOG_SECONDS", 0.0)
    lines = [line.removeprefix("note: ") for line in run("long")]
    names = ["counting words", "reading rows", "writing chunks", "comparing lambdas", "training lambda"]
    assert marks_of(lines) == [(at, 5, one) for at, one in enumerate(names, 1)]
    assert any("reading rows 100 %" in line for line in lines)
    assert any(re.match(r"4/5 comparing lambdas: epoch \d+, objective", line) for line in lines)
    check_fractions(lines)


def test_epochs_that_are_reported_late_do_not_go_back(monkeypatch):
    shown = []
    monkeypatch.setattr(displays._line, "show", shown.append)
    display = displays.LiveTraining()
    for epoch, rows in [(0, 50), (0, 30), (1, 10), (0, 90)]:
        display.presented(epoch, rows, 100)
    assert [re.sub(r" of it.*", "", text) for text in shown[1:]] == [
        *("epoch 1, 50 %", "epoch 1, 50 %", "epoch 2, 10 %", "epoch 2, 10 %")
    ]
    display.begin_round("other biases")
    display.presented(0, 20, 100)
    assert "round 2, other biases: epoch 1, 20 %" in shown[-1]


def test_the_search_for_a_bias_counts_its_rounds(tmp_path):
    store_of(tmp_path, *random_rows(200, 10, 1, 0.3))
    words = ["train", "store", "-o", "m", "--lambda", "0.1", "--bias", "search"]
    code, shown = Terminal(tmp_path, *words, columns=200, before=EVERY_TEXT).end()
    assert code == 0, shown
    texts = check_shown(shown, 200)
    assert any(text.startswith("searching the bias: epoch 1") for text in texts)
    assert any(text.startswith("round 2, other biases: epoch 1") for text in texts)
