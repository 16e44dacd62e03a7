"""The command line: parse, call, print, and turn errors into exit codes. No logic.

Each command imports what it needs when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from ooc_pegasos import __version__
from ooc_pegasos.errors import InputError, OocPegasosError, UsageError

_STARTED = time.perf_counter()

app = typer.Typer(
    name="oocpeg",
    help="Train linear models on sparse data larger than memory, with a proof of how close to the optimum they are.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    epilog="Example: [bold]oocpeg convert clicks.svm.gz -o clicks.store[/bold], "
    "then [bold]oocpeg info clicks.store[/bold]",
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on the last line of stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option(readable=False, metavar="FILE", help="A TOML file with any of these options; options given here win."),
]
RecipeFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "--recipe",
        readable=False,
        metavar="FILE",
        help="A TOML file with any of these options; options given here win.",
    ),
]
ModelPath = Annotated[Path, typer.Argument(readable=False, metavar="MODEL", help="A model made by 'oocpeg train'.")]
DataPath = Annotated[
    str,
    typer.Argument(metavar="DATA", help="A store, or files like those the store was made of (a name or a pattern)."),
]
StorePath = Annotated[Path, typer.Argument(readable=False, metavar="STORE", help="A store made by 'oocpeg convert'.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"oocpeg {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(
    epilog="Example: [bold]oocpeg convert day-*.svm.gz -o clicks.store --memory 4GB[/bold]",
)
def convert(
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT...", help="Files, patterns, or - for standard input.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", readable=False, metavar="STORE", help="The store to write.", show_default=False),
    ] = None,
    config: RecipeFile = None,
    chunk_size: Annotated[str | None, typer.Option(metavar="SIZE", help="Size of a chunk file. Default: 64MB.")] = None,
    normalize: Annotated[str | None, typer.Option(metavar="l2", help="Scale every row to length 1.")] = None,
    values: Annotated[
        str | None,
        typer.Option(
            metavar="float32|float16|bfloat16",
            help="What values are stored as: rounded to two bytes; or four, then any can be appended later. "
            "Default: as few bytes as hold them exactly.",
        ),
    ] = None,
    features: Annotated[
        int | None, typer.Option(metavar="N", help="Number of features; larger indices are refused.")
    ] = None,
    index_base: Annotated[
        str | None,
        typer.Option(metavar="auto|0|1", help="What the first index is. Default: auto, 0 if any index is 0."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="auto|binary|multiclass|regression", help="What the labels are. Default: auto."),
    ] = None,
    classes: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="The only labels allowed; of two, the second is positive.")
    ] = None,
    positive_label: Annotated[
        str | None, typer.Option(metavar="LABEL", help="The positive class; all others are negative.")
    ] = None,
    on_bad_row: Annotated[
        str | None,
        typer.Option(metavar="stop|skip", help="skip: list bad rows in STORE/rejected.jsonl. Default: stop."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Weights: a text file with one positive number a line, a line for each row of all inputs in order.",
        ),
    ] = None,
    read_as: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="auto|svmlight|vw|table|arrays|folders",
            help="What the inputs are: tables are Parquet, Arrow, CSV, TSV, JSON lines; arrays are .npz, .npy; folders "
            "have a folder of texts a class. Default: as their first bytes or names say.",
        ),
    ] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="Tables: the column of the labels.")] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="FILE", help="Arrays: their labels, .npy or text with one number a line.")
    ] = None,
    weight: Annotated[str | None, typer.Option(metavar="COLUMN", help="Tables: the column of the weights.")] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="Tables: a column that predict gives back.")
    ] = None,
    numeric: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Tables: columns that are numbers. May be repeated.")
    ] = None,
    categorical: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Tables: columns of which each value is a feature, 'column=value'."),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Tables: columns of which each word is a feature.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="criteo", help="Tables: tabs, no header, a label, 13 numbers, 26 categories.")
    ] = None,
    hash_bits: Annotated[
        int | None,
        typer.Option(
            metavar="B", help="Names of features are hashed to 2^B places. Default: 22; 0, for vw: as they stand."
        ),
    ] = None,
    hash_signed: Annotated[
        bool | None, typer.Option("--hash-signed/--no-hash-signed", help="Hashes give a sign as well. Default: yes.")
    ] = None,
    dictionary: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Instead of hashing: names have places of their own, N at most, those in most rows. A first pass.",
        ),
    ] = None,
    ngrams: Annotated[
        str | None, typer.Option(metavar="N|N:M", help="Text: how many words are joined. Default: 1.")
    ] = None,
    characters: Annotated[
        bool | None, typer.Option("--characters", help="Text falls into characters instead of words.")
    ] = None,
    idf: Annotated[
        bool | None, typer.Option("--idf", help="Text: counts times how rare a word is (tf-idf). A first pass.")
    ] = None,
    nulls: Annotated[
        str | None,
        typer.Option(
            metavar="absent|mark|bad", help="Tables: a null adds nothing, a feature 'column=null', or is refused."
        ),
    ] = None,
    log1p: Annotated[
        bool | None, typer.Option("--log1p", help="Tables: numbers x become sign(x) log(1 + |x|).")
    ] = None,
    clip: Annotated[
        float | None, typer.Option(metavar="X", help="Tables: numbers are cut to at most this size, after that.")
    ] = None,
    standardize: Annotated[
        bool | None,
        typer.Option("--standardize", help="Tables: numbers are divided by their deviation, found in a first pass."),
    ] = None,
    header: Annotated[
        bool | None,
        typer.Option("--header/--no-header", help="CSV: the first line names the columns, or they are 0, 1, ..."),
    ] = None,
    delimiter: Annotated[str | None, typer.Option(metavar="C", help="CSV: what stands between cells.")] = None,
    feature_names: Annotated[
        int | None, typer.Option(metavar="N", help="Tables, vw: keep the names of up to N hashed features. Default: 0.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write nothing: show the recipe, some rows, and what to expect.")
    ] = False,
    shuffle: Annotated[
        bool | None, typer.Option("--shuffle/--no-shuffle", help="Put rows in random order. Default: shuffle.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the shuffle. Default: 0.")] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory to use. Default: 1GB.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads to use. Default: all cores.")] = None,
    append: Annotated[bool, typer.Option("--append", help="Add the rows to an existing store.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing store.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted conversion.")] = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn files into a store to train on again and again.

    Reads svmlight and Vowpal Wabbit text, CSV, TSV and JSON lines (plain, .gz, .bz2, .xz, .zst), Parquet, Arrow, .npz,
    .npy, and folders of texts or of tables.

    Reads on all cores within the memory budget. Rows are shuffled once, here, because sorted data ruins
    stochastic training. A crash leaves the old store or none; --resume continues.
    """
    from ooc_pegasos.config import ConvertConfig, parse_size
    from ooc_pegasos.progress import progress_for

    chosen = {
        "chunk_size": parse_size(chunk_size) if chunk_size is not None else None,
        "normalize": normalize,
        "values": values,
        "features": features,
        "index_base": index_base,
        "task": task,
        "classes": tuple(word.strip() for word in classes.split(",")) if classes is not None else None,
        "positive_label": positive_label,
        "on_bad_row": on_bad_row,
        "weights": weights,
        "format": read_as,
        "label": label,
        "labels": labels,
        "weight": weight,
        "id": id_column,
        "numeric": tuple(numeric) if numeric else None,
        "categorical": tuple(categorical) if categorical else None,
        "text": tuple(text) if text else None,
        "preset": preset,
        "hash_bits": hash_bits,
        "hash_signed": hash_signed,
        "dictionary": dictionary,
        "ngrams": ngrams,
        "characters": characters,
        "idf": idf,
        "nulls": nulls,
        "log1p": log1p,
        "clip": clip,
        "standardize": standardize,
        "header": header,
        "delimiter": delimiter,
        "feature_names": feature_names,
        "shuffle": shuffle,
        "seed": seed,
        "memory": parse_size(memory) if memory is not None else None,
        "threads": threads,
    }
    settings = _settings(ConvertConfig, config, chosen)
    progress = progress_for(quiet)
    _note_compilation(progress)
    if dry_run:
        from ooc_pegasos.preview import preview

        found = preview(inputs, settings)
        _print_json(found.table()) if json_output else typer.echo("\n".join(found.lines()))
        return
    if output is None:
        raise UsageError("--output is missing; name the store to write, like -o clicks.store")
    from ooc_pegasos.conversion import Existing, rounding_words
    from ooc_pegasos.conversion import convert as convert_inputs
    from ooc_pegasos.describe import size_text, weight_words

    began = time.perf_counter()
    try:
        store = convert_inputs(inputs, output, settings, existing=Existing(force, append, resume), progress=progress)
    except KeyboardInterrupt:
        progress.end()
        unfinished = output.with_name(output.name + ".unfinished")
        kept = f"run again with --resume to continue (or delete {unfinished})" if unfinished.exists() else "start again"
        typer.echo(f"interrupted; {kept}", err=True)
        raise
    finally:
        progress.end()
    made = store.manifest
    result = {
        "rows": made.rows,
        "features": made.features,
        "nonzeros": made.nonzeros,
        "chunks": len(made.chunks),
        "bytes": made.bytes,
        "rejected": made.rejected,
        "rounding_error": made.statistics.rounding_error,
        "weight_sum": made.weight_sum,
        "max_weight": made.statistics.max_weight,
        "seconds": time.perf_counter() - began,
        "output": str(output),
    }
    if json_output:
        _print_json(result)
    elif not quiet:
        labels = ", ".join(
            f"{name}: {count:,}" for name, count in zip(made.labels.classes[:6], made.labels.counts, strict=False)
        )
        more = ", ..." if len(made.labels.classes) > 6 else ""
        typer.echo(f"{output}: {made.rows:,} rows, {made.features:,} features, {made.nonzeros:,} non-zeros")
        typer.echo(f"task: {made.labels.task}" + (f" (rows by label: {labels}{more})" if labels else ""))
        typer.echo(f"{size_text(made.bytes)} in {len(made.chunks)} chunks, {result['seconds']:.1f} seconds")
        if made.recipe.values:
            typer.echo(rounding_words(made))
        if made.weighted:
            typer.echo(f"weights: {weight_words(made)}")
        if made.rejected:
            typer.echo(f"{made.rejected:,} rows were rejected; see {output / 'rejected.jsonl'}")


@app.command(epilog="Example: [bold]oocpeg info clicks.store --json[/bold]")
def info(
    store: StorePath,
    features: Annotated[bool, typer.Option("--features", help="Show the names of features, one a line.")] = False,
    json_output: Json = False,
) -> None:
    """Show what is in a store: rows, features, labels, row norms, size, origin."""
    from ooc_pegasos.describe import summary, table
    from ooc_pegasos.store import Store

    opened = Store.open(store)
    if features:
        from ooc_pegasos import vocabulary

        names = vocabulary.of_store(opened.path, opened.manifest).known_names()
        if json_output:
            _print_json({"features": opened.features, "names": {str(place): names[place] for place in sorted(names)}})
        elif not names:
            typer.echo("no names are known; convert with --feature-names N or --dictionary N to keep them")
        else:
            typer.echo("\n".join(f"{place}\t{names[place]}" for place in sorted(names)))
        return
    if json_output:
        _print_json(summary(opened))
        return
    lines = table(opened)
    width = max(len(name) for name, _text in lines)
    typer.echo(str(store))
    for name, text in lines:
        typer.echo(f"  {name.ljust(width)}  {text}".rstrip())


@app.command(epilog="Example: [bold]oocpeg inspect clicks.model --top 30[/bold]")
def inspect(
    model: ModelPath,
    top: Annotated[int, typer.Option(min=1, help="How many features to show.")] = 30,
    json_output: Json = False,
) -> None:
    """Show the features with the largest weights, by name where names are known."""
    from ooc_pegasos.model import Model
    from ooc_pegasos.vocabulary import weighed

    opened = Model.load(model)
    found = weighed(opened.weights, top, opened.vocabulary, opened.info.recipe)
    rows = [{"feature": at, "name": name, "weight": weight.tolist()} for at, name, weight in found]
    if json_output:
        _print_json({"bias": opened.bias.tolist(), "features": rows, "classes": opened.info.labels.classes})
        return
    several = opened.weights.ndim > 1
    typer.echo(f"bias: {opened.bias.tolist()}" if several else f"bias: {float(opened.bias):.6g}")
    for row in rows:
        weights = row["weight"] if several else [row["weight"]]
        told = "  ".join(f"{weight:>12.6g}" for weight in weights)
        typer.echo(f"{told}  {row['name'] if row['name'] is not None else '#' + str(row['feature'])}")


@app.command(epilog="Example: [bold]oocpeg verify clicks.store[/bold]")
def verify(
    store: StorePath,
    sources: Annotated[
        bool, typer.Option("--sources", help="Also read the files that it was made of, and say if they have changed.")
    ] = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check every byte of a store and the structure of its rows. Exit code 5 if anything is wrong."""
    from ooc_pegasos.progress import progress_for
    from ooc_pegasos.store import Store
    from ooc_pegasos.verification import verify as verify_store

    opened = Store.open(store)
    found = verify_store(opened, progress_for(quiet))
    if sources:
        from ooc_pegasos.provenance import changed_sources

        found.problems.extend(changed_sources(opened.manifest, every_byte=True))
    if json_output:
        _print_json(vars(found))
    elif not quiet:
        for problem in found.problems:
            typer.echo(problem)
        for stray in found.strays:
            typer.echo(f"{store / stray}: no part of the store; it does no harm")
        state = f"{len(found.problems)} problems" if found.problems else "sound"
        typer.echo(f"{store}: {state}: {found.chunks:,} chunks, {found.rows:,} rows, {found.bytes:,} bytes")
    if found.problems:
        raise typer.Exit(5)


@app.command(
    epilog="Example: [bold]oocpeg train clicks.store -o clicks.model --lambda 1e-5[/bold]",
)
def train(
    store: StorePath,
    output: Annotated[
        Path, typer.Option("--output", "-o", readable=False, metavar="MODEL", help="The model to write.")
    ],
    config: ConfigFile = None,
    lam: Annotated[
        str | None,
        typer.Option(
            "--lambda",
            metavar="L|L,L,...|A:B:N",
            help="Strength of the regularisation: one, several, or N from A to B in equal ratios. "
            "Default: eight that suit the data, compared on a holdout.",
        ),
    ] = None,
    c: Annotated[float | None, typer.Option("--C", metavar="C", help="The same as --lambda 1 / (C rows).")] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="hinge|logistic|smoothed-hinge|multiclass-hinge|multiclass-logistic|epsilon-insensitive|absolute|huber",
            help="The loss. Default: hinge for classes (of several, one against the rest), epsilon-insensitive for "
            "real targets.",
        ),
    ] = None,
    loss_parameter: Annotated[
        float | None,
        typer.Option(metavar="P", help="Of smoothed-hinge (1), epsilon-insensitive (0.1) or huber (1)."),
    ] = None,
    bias: Annotated[
        str | None,
        typer.Option(
            metavar="none|feature|unregularized|batch|search",
            help="feature: a constant one, regularised, keeps the certificate. search: outer search over biases, each "
            "certified. unregularized: by subgradients, batch: the best of each --batch-size, both without "
            "certificate. Default: feature without --lambda, else none.",
        ),
    ] = None,
    bias_scale: Annotated[float | None, typer.Option(metavar="B", help="Value of that feature. Default: 1.")] = None,
    cost: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            metavar="FILE",
            help="For multiclass-hinge: a line a class, what it costs to take it for each.",
        ),
    ] = None,
    folds: Annotated[
        int | None, typer.Option(metavar="K", help="Compare lambdas by cross-validation, not on a holdout.")
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            metavar="best|1se",
            help="Keep the lambda with the least loss on rows kept apart, or the largest within a standard error "
            "of it. Default: best.",
        ),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(metavar="platt|isotonic", help="Fit probabilities to the scores of rows kept apart."),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Stop when the relative gap to the optimum is proved to be this small. Default: 0.01, or 0.005 "
            "where lambdas are compared."
        ),
    ] = None,
    max_epochs: Annotated[
        int | None, typer.Option(help="Default: 100, 5000 for sdca, or 10 without a certificate.")
    ] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Stop after so many seconds.")] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            metavar="auto|sdca|sgd-s|sgd-m|sgd-r|pegasos",
            help="sdca: dual coordinate ascent. sgd-s: epochs of Pegasos and a certified stop. sgd-m: rows several "
            "times at once while the gap is large. sgd-r: i.i.d. rows, a fixed number of steps. pegasos: as in the "
            "paper. Default: auto, sdca or sgd-s.",
        ),
    ] = None,
    sampling: Annotated[
        str | None,
        typer.Option(
            metavar="permutation|fixed|iid|sequential",
            help="Order of rows. Default: permutation, or that of the algorithm.",
        ),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(metavar="K", help="Rows a step. Default: 1.")] = None,
    project: Annotated[
        bool | None, typer.Option("--project", help="Project onto the ball of radius 1/sqrt(lambda).")
    ] = None,
    average: Annotated[bool | None, typer.Option("--average", help="Average the iterates.")] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="auto|N", help="Steps of 1/(lambda (t + N)). Default: auto, 0 for pegasos.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the order of rows. Default: 0.")] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory for data. Default: half of what is free.")
    ] = None,
    loading: Annotated[
        str | None,
        typer.Option(
            metavar="mapped|read", help="Map the store or read it ahead. Default: mapped if it fits --memory."
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Present rows in N threads that average, where that pays; the result depends on N. Default: 1. "
            "All cores load data and measure.",
        ),
    ] = None,
    class_weight: Annotated[
        str | None, typer.Option(metavar="balanced|A,B", help="Weights of the negative and the positive class.")
    ] = None,
    holdout: Annotated[
        float | None,
        typer.Option(
            metavar="FRACTION",
            help="Rows to keep apart, always the same ones. Default: 0.1 where lambdas are compared, else 0.",
        ),
    ] = None,
    warm_start: Annotated[
        Path | None, typer.Option(readable=False, metavar="MODEL", help="Begin with the weights of a model.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(readable=False, metavar="DIR", help="Where to keep checkpoints.")
    ] = None,
    checkpoint_epochs: Annotated[int | None, typer.Option(metavar="N", help="Write one every N epochs.")] = None,
    checkpoint_minutes: Annotated[
        float | None, typer.Option(metavar="M", help="Write one every M minutes. Default: 5.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint, if there is one.")] = False,
    log: Annotated[
        Path | None, typer.Option(readable=False, metavar="FILE", help="Write one JSON object an epoch and model.")
    ] = None,
    scratch: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            metavar="DIR",
            help="Where sdca keeps what it knows of rows, if they outgrow memory. Default: that of --checkpoint, or a "
            "temporary folder.",
        ),
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Print where the time went, on stderr.")] = False,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="tcp://HOST:PORT|local:N",
            help="Train on the workers of dask.distributed, or on N processes here. All must see the store.",
        ),
    ] = None,
    parts: Annotated[
        int | None,
        typer.Option(
            metavar="K", min=1, help="Of the store, with --scheduler; the result depends on it. Default: one a worker."
        ),
    ] = None,
    ignore_sources: Annotated[
        bool, typer.Option("--ignore-sources", help="Train though files that the store was made of have changed.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing model.")] = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a linear model, and say how close to the optimum it provably is.

    Exit code 4: a limit was reached before the tolerance was certified; the model is saved all the same.
    """
    from ooc_pegasos.config import TrainConfig, parse_size

    chosen = {
        "lam": _lambdas(lam),
        "C": c,
        "loss": loss,
        "loss_parameter": loss_parameter,
        "bias": bias,
        "bias_scale": bias_scale,
        "cost": _costs(cost),
        "folds": folds,
        "select": select,
        "calibrate": calibrate,
        "tolerance": tolerance,
        "max_epochs": max_epochs,
        "max_seconds": max_seconds,
        "algorithm": algorithm,
        "sampling": sampling,
        "batch_size": batch_size,
        "project": project,
        "average": average,
        "delay": None if delay in (None, "auto") else _number("--delay", str(delay)),
        "seed": seed,
        "memory": parse_size(memory) if memory is not None else None,
        "loading": loading,
        "threads": threads,
        "class_weight": _class_weight(class_weight),
        "holdout": holdout,
        "checkpoint_epochs": checkpoint_epochs,
        "checkpoint_minutes": checkpoint_minutes,
    }
    settings = _settings(TrainConfig, config, chosen)
    _check_new_file(output, force)
    from ooc_pegasos.progress import training_progress_for
    from ooc_pegasos.store import Store

    opened = Store.open(store)
    if not ignore_sources:
        from ooc_pegasos.provenance import refuse_changed

        refuse_changed(str(store), opened.manifest)
    progress = training_progress_for(quiet)
    _note_compilation(progress)
    from ooc_pegasos.files import making
    from ooc_pegasos.model import Model
    from ooc_pegasos.trainer import train as train_on

    start = Model.load(warm_start) if warm_start else None
    kept_in: dict[str, Any] = {"checkpoint": checkpoint, "resume": resume, "log": log, "progress": progress}
    with making(output):
        try:
            if scheduler is not None:
                if start is not None:
                    raise UsageError("--warm-start is for one machine; leave it out, or --scheduler")
                from ooc_pegasos.distributed.cluster import connected
                from ooc_pegasos.distributed.training import train_dask

                with connected(scheduler) as client:
                    result = train_dask(client, opened, settings, parts=parts, **kept_in)
            else:
                result = train_on(opened, settings, warm_start=start, scratch=scratch, **kept_in)
        except KeyboardInterrupt:
            progress.end()
            kept = (
                f"run again with --checkpoint {checkpoint} --resume to continue"
                if checkpoint
                else "no --checkpoint was given"
            )
            typer.echo(f"interrupted; {kept}", err=True)
            raise
        finally:
            progress.end()
        result.model.save(output)
    from ooc_pegasos.describe import profile_words, training_summary, training_words

    if profile:
        typer.echo(profile_words(result, time.perf_counter() - _STARTED), err=True)
    if json_output:
        _print_json(training_summary(result, str(output)))
    elif not quiet:
        typer.echo(training_words(result, str(output)))
    if not result.converged and result.why_uncertified is None:
        raise typer.Exit(4)


@app.command(epilog="Example: [bold]oocpeg evaluate clicks.model tomorrow.svm.gz[/bold]")
def evaluate(
    model: ModelPath,
    data: DataPath,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads to use. Default: all cores.")] = None,
    json_output: Json = False,
) -> None:
    """Measure a model on a store or on raw files: errors, areas under curves, loss, confusion matrix."""
    from ooc_pegasos.describe import evaluation_words
    from ooc_pegasos.evaluation import evaluate as evaluate_on
    from ooc_pegasos.model import Model

    loaded = Model.load(model)
    result = evaluate_on(loaded, data, threads)
    if json_output:
        _print_json(result)
    else:
        typer.echo(evaluation_words(result, loaded.info.labels.classes))


@app.command(epilog="Example: [bold]oocpeg predict clicks.model tomorrow.svm.gz -o scores.parquet[/bold]")
def predict(
    model: ModelPath,
    data: DataPath,
    output: Annotated[
        Path, typer.Option("--output", "-o", readable=False, metavar="FILE", help="A .parquet, .csv or .arrow file.")
    ],
    proba: Annotated[bool, typer.Option("--proba", help="Write probabilities as well.")] = False,
    threads: Annotated[int | None, typer.Option(help="Threads to use. Default: all cores.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    json_output: Json = False,
) -> None:
    """Write the score and the label of every row, in the order of the data."""
    from ooc_pegasos.evaluation import predict as predict_on
    from ooc_pegasos.model import Model

    _check_new_file(output, force)
    began = time.perf_counter()
    rows = predict_on(Model.load(model), data, output, threads, proba=proba)
    if json_output:
        _print_json({"rows": rows, "output": str(output), "seconds": time.perf_counter() - began})
    else:
        typer.echo(f"{output}: {rows:,} rows")


def _note_compilation(progress: Any) -> None:
    from ooc_pegasos.kernels.jit import is_compiled

    if not is_compiled():
        progress.note("compiling kernels, once; this takes some seconds")


def _check_new_file(path: Path, force: bool) -> None:
    """Refuse before the work what could not be written after it."""
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: no such folder; create it first")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file")
    if path.exists() and not force:
        raise InputError(f"{path}: exists already; add --force to replace it")
    from ooc_pegasos.files import writing_errors

    attempt = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing_errors(path):
        attempt.touch()
        attempt.unlink(missing_ok=True)


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{option} {text} is not a number; see oocpeg train --help") from None


def _lambdas(text: str | None) -> float | str | None:
    """One number as that, several as they are written."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _costs(path: Path | None) -> tuple[tuple[float, ...], ...] | None:
    """The numbers of a text file, line by line."""
    if path is None:
        return None
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
        return tuple(tuple(float(word) for word in line.replace(",", " ").split()) for line in lines)
    except OSError as error:
        raise InputError(f"{path}: {(error.strerror or 'unreadable').lower()}; check the path") from error
    except ValueError as error:
        raise InputError(f"{path}: not a table of numbers ({error}); write a line for each class") from error


def _class_weight(text: str | None) -> str | tuple[float, ...] | None:
    if text is None or text == "balanced":
        return text
    return tuple(_number("--class-weight", word) for word in text.split(","))


@app.command(epilog="Example: [bold]oocpeg run nightly.toml[/bold]")
def run(
    job: Annotated[Path, typer.Argument(readable=False, metavar="JOB.toml", help="What to do.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Do nothing: show what would be done.")] = False,
    notify: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="Run this at the end, with the record of the run on its standard input."),
    ] = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Append new files to a store, train, compare with the model in use, and promote the new one if it passes.

    Killed at any moment it goes on where it stood when it is run again. Exit code 7: the new model was refused, with
    the reasons; the one in use stays. The files it keeps, and how to call it every night: docs/jobs.md.
    """
    from ooc_pegasos.jobs.job import Job

    loaded = Job.load(job, notify)
    if dry_run:
        from datetime import UTC, datetime

        from ooc_pegasos import typed
        from ooc_pegasos.jobs.plan import plan

        found = plan(loaded, datetime.now(UTC))
        _print_json(typed.dump(found)) if json_output else typer.echo("\n".join(found.lines()))
        return
    from ooc_pegasos.describe import run_words
    from ooc_pegasos.jobs.run import run as run_job
    from ooc_pegasos.progress import progress_for, training_progress_for

    progress, training_progress = progress_for(quiet), training_progress_for(quiet)
    _note_compilation(progress)
    try:
        record = run_job(loaded, progress=progress, training_progress=training_progress)
    finally:
        progress.end()
        training_progress.end()
    if json_output:
        _print_json(record)
    elif not quiet or record["exit_code"]:
        typer.echo(run_words(record))
    if record["exit_code"]:
        raise typer.Exit(record["exit_code"])


@app.command(epilog="Example: [bold]oocpeg rollback models[/bold]")
def rollback(
    models: Annotated[Path, typer.Argument(readable=False, metavar="MODELS", help="The folder of models of a job.")],
    to: Annotated[str | None, typer.Option(metavar="VERSION", help="Default: the one before the current.")] = None,
    json_output: Json = False,
) -> None:
    """Put an older version of a model in use again."""
    from ooc_pegasos.files import locked, writing_errors
    from ooc_pegasos.jobs.versions import Versions

    versions = Versions(models)
    if not models.is_dir():
        raise InputError(f"{models}: no such folder; name the folder of models of a job")
    with writing_errors(models), locked(versions.lock, str(models)):
        before, after = versions.rollback(to)
    if json_output:
        _print_json({"before": before, "current": after})
    else:
        typer.echo(f"{models / 'current'}: {after}" + (f", no longer {before}" if before else ""))


@app.command(epilog="Example: [bold]oocpeg demo[/bold]")
def demo(
    folder: Annotated[Path, typer.Option(readable=False, help="Where to put the results.")] = Path("oocpeg-demo"),
) -> None:
    """Do the whole job on real data that comes with the package, showing each command."""
    from ooc_pegasos.demo import run
    from ooc_pegasos.files import writing_errors

    with writing_errors(folder):
        run(folder, _call, typer.echo)


def _call(words: list[str]) -> None:
    code = app(words, standalone_mode=False)
    if code:
        raise typer.Exit(code)


def _settings(cls: Any, path: Path | None, chosen: dict[str, Any]) -> Any:
    """A job's dataclass from its TOML file and the options given, with words for what does not fit."""
    from ooc_pegasos import typed
    from ooc_pegasos.config import load_toml

    table = load_toml(cls, path) if path else {}
    if {"lam", "C"} & {name for name, value in chosen.items() if value is not None}:
        table = {name: value for name, value in table.items() if name not in ("lam", "C")}
    table.update({name: value for name, value in chosen.items() if value is not None})
    try:
        return typed.load(cls, table)
    except typed.TypedError as error:
        name, _, rest = str(error).partition(" ")
        option = "--" + name.strip("'").replace("_", "-").replace("lam", "lambda")
        raise UsageError(f"{option} {rest}") from error


def _print_json(result: dict[str, Any]) -> None:
    typer.echo(json.dumps(result, allow_nan=False))


def _interrupt(_signal: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    """The `oocpeg` command."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except OocPegasosError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:  # stdout is closed or full, for example
        print(f"error: {error.filename or 'output'}: {error.strerror}; check where the output goes", file=sys.stderr)
        sys.exit(InputError.exit_code)
    except MemoryError:
        print("error: out of memory; give a smaller --memory", file=sys.stderr)
        sys.exit(InputError.exit_code)
