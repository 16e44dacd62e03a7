"""Commands on models: evaluate, predict, inspect."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ooc_pegasos.cli.options import (
    DataPath,
    Json,
    Memory,
    ModelPath,
    Quiet,
    StorePath,
    app,
    bytes_of,
    check_new_file,
    examples,
    print_json,
)
from ooc_pegasos.cli.streams import say
from ooc_pegasos.errors import UsageError
from ooc_pegasos.util.kind_of_path import VERSIONS, kind_of_path, refuse_other_than_model

if TYPE_CHECKING:
    from ooc_pegasos.reporting.progress import Progress


def _check_paths(model: Path, data: list[str], is_store: bool = False) -> None:
    """Refuse arguments in the wrong order, and of the wrong kind, before slow imports."""
    models = ("a model", "a version of a job", VERSIONS)
    swapped = next((one for one in data if kind_of_path(one) in models), None)
    if swapped is not None and kind_of_path(model) not in models:
        raise UsageError(
            f"{swapped} is {kind_of_path(swapped)} and {model} is not; give the model first, then the data"
        )
    refuse_other_than_model(model)
    if not is_store:
        from ooc_pegasos.readers.names import refuse_missing

        refuse_missing(data)


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    """Show the progress of a command."""
    from ooc_pegasos.reporting.progress import progress_for

    progress = progress_for(quiet)
    try:
        yield progress
    finally:
        progress.end()


Part = Annotated[
    Literal["train", "test"],
    typer.Option("--part", help="Rows of a store made with --test: those to train on, or those reserved for tests."),
]


def _part_of(data: list[str], part: str) -> list[str]:
    """Return the stores of a part of the given stores."""
    from ooc_pegasos.store.store import Store

    if part == "train":
        return data
    found = [(one, Store.open(one).test) for one in data]
    for name, test in found:
        if test is None:
            raise UsageError(f"{name}: has no test part; make one with 'oocpeg convert --test 0.2'")
    return [str(test.path) for _name, test in found if test is not None]


@app.command(
    epilog=examples(
        "oocpeg evaluate clicks.model clicks.store --part test", "oocpeg evaluate clicks.model tomorrow.svm.gz --json"
    )
)
def evaluate(
    model: ModelPath,
    data: DataPath,
    part: Part = "train",
    labels: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            metavar="FILE",
            help="Labels of matrices or lines of text: .npy, or text with one a line.",
        ),
    ] = None,
    memory: Memory = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads to use. Default: all cores.")] = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a model on a store or on raw files: errors, areas under curves, loss, confusion matrix."""
    _check_paths(model, data)
    from ooc_pegasos.reporting.text import evaluation_lines
    from ooc_pegasos.scoring.evaluate import evaluate as evaluate_on
    from ooc_pegasos.scoring.evaluate import seen_in_training
    from ooc_pegasos.scoring.model import Model

    size = bytes_of(memory)
    loaded, data = Model.load(model), _part_of(data, part)
    with _progress(quiet) as progress:
        result = evaluate_on(loaded, data, threads, progress, size, labels=labels)
    is_seen = seen_in_training(loaded, data)
    if json_output:
        print_json(result | {"seen_in_training": is_seen})
    else:
        say(*evaluation_lines(result, loaded.info.labels.classes))
        if is_seen:
            say("  the model was trained on these rows, or some of them: expect larger errors on new ones")


@app.command(
    epilog=examples(
        "oocpeg predict clicks.model tomorrow.svm.gz -o scores.csv",
        "oocpeg predict clicks.model tomorrow.svm.gz -o scores.parquet",
    )
)
def predict(
    model: ModelPath,
    data: DataPath,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", readable=False, metavar="FILE|-", help="A .parquet, .csv or .arrow file; - prints CSV."
        ),
    ],
    part: Part = "train",
    proba: Annotated[bool, typer.Option("--proba", help="Write probabilities as well.")] = False,
    memory: Memory = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads to use. Default: all cores.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the score and the label of every row, in the order of the data."""
    _check_paths(model, data)
    from ooc_pegasos.scoring.evaluate import predict as predict_on
    from ooc_pegasos.scoring.model import Model
    from ooc_pegasos.util.files import refuse_to_write_over

    size = bytes_of(memory)
    data = _part_of(data, part)
    if str(output) == "-":
        if json_output:
            raise UsageError("{json} and predictions both go to standard output; name a file for one of them")
        with _progress(quiet or sys.stdout.isatty()) as progress:  # scores go to the same terminal
            predict_on(Model.load(model), data, output, threads, proba=proba, progress=progress, memory=size)
        return
    check_new_file(output, force)
    refuse_to_write_over("--output", output, {"the model": model} | {f"the data {one}": one for one in data})
    began = time.perf_counter()
    with _progress(quiet) as progress:
        rows = predict_on(Model.load(model), data, output, threads, proba=proba, progress=progress, memory=size)
    if json_output:
        print_json({"rows": rows, "output": str(output), "seconds": time.perf_counter() - began})
    elif not quiet:
        say(f"{output}: {rows:,} rows")


@app.command(
    epilog=examples(
        "oocpeg prove clicks.model clicks.store --proof clicks.proof",
        "oocpeg prove clicks.model clicks.store --proof clicks.proof --json",
    )
)
def prove(
    model: ModelPath,
    store: StorePath,
    proof: Annotated[
        Path, typer.Option("--proof", readable=False, metavar="FILE", help="A file made by 'oocpeg train --proof'.")
    ],
    threads: Annotated[int, typer.Option(min=1, max=64, help="Threads to use.")] = 2,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check the proof of a model: recompute the objective and the lower bound in one pass over the store.

    Exit code 5: the proof is of another model or store, is damaged, or claims more than it proves.
    """
    _check_paths(model, [str(store)], is_store=True)
    from ooc_pegasos.proof.check import prove as prove_on
    from ooc_pegasos.reporting.text import proof_summary, proof_words

    with _progress(quiet) as progress:
        found = prove_on(model, store, proof, threads, progress.begin, progress.advance)
    if json_output:
        print_json(proof_summary(found))
    else:
        say(proof_words(found))


@app.command(epilog=examples("oocpeg inspect clicks.model", "oocpeg inspect clicks.model --top 30"))
def inspect(
    model: ModelPath,
    top: Annotated[int, typer.Option(min=1, help="Number of features to show.")] = 30,
    json_output: Json = False,
    quiet: Quiet = False,  # there is nothing to leave out, but scripts give this option to all commands
) -> None:
    """Show the features with the largest weights, by name where names are known."""
    refuse_other_than_model(model)
    from ooc_pegasos.scoring.heaviest_features import weighed
    from ooc_pegasos.scoring.model import Model

    opened = Model.load(model)
    found = weighed(opened.weights, top, opened.vocabulary, opened.info.recipe)
    rows = [{"feature": at, "name": name, "weight": weight.tolist()} for at, name, weight in found]
    if json_output:
        print_json({"bias": opened.bias.tolist(), "features": rows, "classes": opened.info.labels.classes})
        return
    from ooc_pegasos.reporting.text import inspection_lines
    from ooc_pegasos.scoring.heaviest_features import weighed_by_class

    classes, several = opened.info.labels.classes, opened.weights.ndim > 1
    say(f"bias: {opened.bias.tolist()}" if several else f"bias: {float(opened.bias):.6g}")
    if several:
        lists = weighed_by_class(opened.weights, top, opened.vocabulary, opened.info.recipe)
    else:
        more = weighed(opened.weights, 4 * top, opened.vocabulary, opened.info.recipe)
        lists = [[one for one in more if (one[2] > 0) == side][: (top + 1) // 2] for side in (True, False)]
        classes = [classes[1], classes[0]] if classes else ["larger targets", "smaller targets"]
    for name, chosen in zip(classes, lists, strict=True):
        say(*inspection_lines(name, chosen))
