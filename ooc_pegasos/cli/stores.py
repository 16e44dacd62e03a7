"""Commands on stores: convert, info, verify."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ooc_pegasos.cli.options import Json, Quiet, RecipeFile, StorePath, app, note_compilation, print_json, settings_of
from ooc_pegasos.cli.streams import say
from ooc_pegasos.errors import UsageError


@app.command(
    epilog="Example: oocpeg convert day-*.svm.gz -o clicks.store --memory 4GB",
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
    delimiter: Annotated[
        str | None, typer.Option(metavar="C", help="CSV: what stands between cells; '\\t' is a tab.")
    ] = None,
    multiline: Annotated[
        bool | None, typer.Option("--multiline", help="CSV: line breaks may stand in quotes. Default: a line is a row.")
    ] = None,
    feature_names: Annotated[
        int | None, typer.Option(metavar="N", help="Keep the names of up to N hashed features. Default: 0.")
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
        "delimiter": "\t" if delimiter == r"\t" else delimiter,
        "multiline": multiline,
        "feature_names": feature_names,
        "shuffle": shuffle,
        "seed": seed,
        "memory": parse_size(memory) if memory is not None else None,
        "threads": threads,
    }
    settings = settings_of(ConvertConfig, config, chosen)
    progress = progress_for(quiet)
    note_compilation(progress)
    if dry_run:
        from ooc_pegasos.preview import preview

        found = preview(inputs, settings)
        print_json(found.table()) if json_output else say(*found.lines())
        return
    if output is None:
        raise UsageError("--output is missing; name the store to write, like -o clicks.store")
    from ooc_pegasos.conversion import convert as convert_inputs
    from ooc_pegasos.describe import conversion_lines, conversion_summary
    from ooc_pegasos.existing import Existing

    began = time.perf_counter()
    try:
        store = convert_inputs(inputs, output, settings, existing=Existing(force, append, resume), progress=progress)
    except KeyboardInterrupt:
        progress.end()
        unfinished = output.with_name(output.name + ".unfinished")
        kept = f"run again with --resume to continue (or delete {unfinished})" if unfinished.exists() else "start again"
        say(f"interrupted; {kept}", err=True)
        raise
    finally:
        progress.end()
    seconds = time.perf_counter() - began
    if json_output:
        print_json(conversion_summary(store, str(output), seconds))
    elif not quiet:
        say(*conversion_lines(store, str(output), seconds))


@app.command(epilog="Example: oocpeg info clicks.store --json")
def info(
    store: StorePath,
    features: Annotated[bool, typer.Option("--features", help="Show the names of features, one a line.")] = False,
    json_output: Json = False,
) -> None:
    """Show what is in a store: rows, features, labels, row norms, size, origin."""
    from ooc_pegasos.describe import summary, table
    from ooc_pegasos.loading.disk import measure_speed
    from ooc_pegasos.store import Store

    opened = Store.open(store)
    if features:
        from ooc_pegasos import vocabulary

        names = vocabulary.of_store(opened.path, opened.manifest).known_names()
        if json_output:
            print_json({"features": opened.features, "names": {str(place): names[place] for place in sorted(names)}})
        elif not names:
            say("no names are known; convert with --feature-names N or --dictionary N to keep them")
        else:
            say(*(f"{place}\t{names[place]}" for place in sorted(names)))
        return
    speed, sample = measure_speed(opened.path, opened.manifest.chunks)
    if json_output:
        print_json(summary(opened, speed, sample))
        return
    lines = table(opened, speed, sample)
    width = max(len(name) for name, _text in lines)
    say(str(store), *(f"  {name.ljust(width)}  {text}".rstrip() for name, text in lines))


@app.command(epilog="Example: oocpeg verify clicks.store")
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
    progress = progress_for(quiet)
    try:
        found = verify_store(opened, progress)
    finally:
        progress.end()
    if sources:
        from ooc_pegasos.provenance import changed_sources

        found.problems.extend(changed_sources(opened.manifest, every_byte=True))
    if json_output:
        print_json(vars(found))
    elif not quiet:
        strays = [f"{store / stray}: no part of the store; it does no harm" for stray in found.strays]
        state = f"{len(found.problems)} problems" if found.problems else "sound"
        summary = f"{store}: {state}: {found.chunks:,} chunks, {found.rows:,} rows, {found.bytes:,} bytes"
        say(*found.problems, *strays, summary)
    if found.problems:
        raise typer.Exit(5)
