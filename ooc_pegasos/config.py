"""Options of conversions and training: a frozen dataclass each, with defaults and checks, also read from TOML."""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_type_hints

from ooc_pegasos import formats, options
from ooc_pegasos.algorithms import ALGORITHMS, ANY, Algorithm, lacking
from ooc_pegasos.declared_labels import Declared, TaskChoice
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.option_texts import (
    GIB,
    KIB,
    MIB,
    MOST_MEMORY,
    canonical_split,
    is_delimiter,
    number_or_text,
    parse_class_weight,
    parse_delay,
    parse_delimiter,
    parse_lambdas,
    parse_size,
    read_costs,
    split_words,
)
from ooc_pegasos.options import POSITIVE, Described, Range, option, options_of
from ooc_pegasos.registry import LOSSES, SAMPLERS, Registered
from ooc_pegasos.util import typed_json
from ooc_pegasos.util.kind_of_path import kind_of_path
from ooc_pegasos.util.memory_limits import available_memory
from ooc_pegasos.util.thread_map import cores

if TYPE_CHECKING:
    from ooc_pegasos.registry import AlgorithmName, FormatName, LossName, SamplerName
else:
    AlgorithmName = FormatName = LossName = SamplerName = str  # the registries check them when the program runs

Config = TypeVar("Config")
VECTORS = 10
"""Upper bound of the vectors of length `features` in a run: sums, snapshots, candidates, the best so far."""
LEAST_VECTORS = 3
"""Vectors of length `features` for each model, at least."""
MOST_NAMES = 2**31 - 1
"""Largest number of feature names in a dictionary."""
MOST_THREADS = 4096
LEAST_MEMORY = 32 * MIB
"""Bytes that a conversion needs at least."""


SEEDS = Range(0, 2**63 - 1, "0 to 2^63 - 1")
THREADS = Range(1, MOST_THREADS, f"1 to {MOST_THREADS}")
MEMORY = Range(1, MOST_MEMORY, "a positive size that a machine can have")


def _plainly(name: str, value: Any, config: type) -> Any:
    """Return the canonical form of an option that can be written in several ways."""
    declared = options_of(config).get(name)
    if isinstance(value, str) and declared:
        return declared.value_of(value)
    return str(value) if name == "index_base" and type(value) is int else value


def _settle(config: ConvertConfig | TrainConfig) -> None:
    """Raise UsageError for values of a wrong type or out of range."""
    kind = type(config)
    try:
        typed_json.settle(config, lambda name, value: _plainly(name, value, kind))
        options.check(config)
    except typed_json.TypedError as error:
        raise UsageError(f"{kind.__name__}: {error}") from error


@dataclass(frozen=True)
class ConvertConfig:
    """Options of `oocpeg convert`. Sizes are in bytes."""

    chunk_size: int = option(
        64 * MIB,
        "Size of a chunk file.",
        "Storage",
        metavar="SIZE",
        default_text="64MB",
        parse=parse_size,
        allowed=Range(KIB, GIB, "1kB to 1GB"),
    )
    normalize: Literal["l2"] | None = option(None, "Scale every row to Euclidean length 1.", "Columns")
    values: Literal["float32", "float16", "bfloat16"] | None = option(
        None,
        "Type of stored values: two bytes, rounded, or float32, to which any values can be appended later. Default: "
        "the fewest bytes that hold the values exactly.",
        "Storage",
    )
    features: int | None = option(
        None,
        "Number of features; larger indices are refused.",
        "Input",
        metavar="N",
        allowed=Range(1, 2**32 - 2, f"1 to {2**32 - 2}"),
    )
    index_base: Literal["auto", "0", "1"] = option(
        "auto", "The first index of svmlight text. auto: 0 if any index is 0, else 1.", "Input"
    )
    task: TaskChoice = option("auto", "Kind of labels.", "Labels")
    classes: tuple[str, ...] = option(
        (),
        "The only labels allowed; of two, the second is positive.",
        "Labels",
        metavar="A,B,...",
        parse_words=split_words,
    )
    positive_label: str | tuple[str, ...] | None = option(
        None,
        "The positive class; all others are negative. A shell pattern, like 'math*', or for numbers a comparison or a "
        "range, like '>=4' or '10..20', stands for all labels that match, and 'a|b' for both. Tables: 'is null' and "
        "'is not null' are rows without a label, and with one. May be repeated.",
        "Labels",
        metavar="LABEL",
        is_repeated=True,
    )
    on_bad_row: Literal["stop", "skip"] = option(
        "stop", "skip: leave bad rows out and list them in STORE/rejected.jsonl.", "Input"
    )
    weights: str | None = option(
        None,
        "Text file of row weights: one positive number a line, for all rows of all inputs in order.",
        "Labels",
        metavar="FILE",
    )
    format: FormatName = option(
        formats.ANY,
        "Format of the inputs. table: Parquet, Arrow, CSV, TSV, JSON lines. arrays: .npz, .npy. folders: a folder of "
        "text files for each class. text-lines: a document a line. auto: by first bytes and names. Also csv, tsv "
        "and jsonl, which are tables.",
        "Input",
        one_of=formats.choices,
        parse=formats.FORMATS.our_name,
    )
    label: str | None = option(None, "Tables: the column of the labels.", "Labels", metavar="COLUMN", is_column=True)
    weight: str | None = option(None, "Tables: the column of row weights.", "Labels", metavar="COLUMN", is_column=True)
    id: str | None = option(
        None, "Tables: the column of row ids, which predictions repeat.", "Labels", metavar="COLUMN", is_column=True
    )
    labels: str | None = option(
        None,
        "Arrays and lines of text: the file of labels, .npy or text with one label a line, numbers or words.",
        "Labels",
        metavar="FILE",
    )
    numeric: tuple[str, ...] = option(
        (),
        "Tables: columns of numbers. May be repeated.",
        "Columns",
        metavar="PATTERN",
        is_repeated=True,
        is_column=True,
    )
    categorical: tuple[str, ...] = option(
        (),
        "Tables: columns of categories; each value is a feature, 'column=value'. May be repeated.",
        "Columns",
        metavar="PATTERN",
        is_repeated=True,
        is_column=True,
    )
    text: tuple[str, ...] = option(
        (),
        "Tables: columns of text; each word is a feature. May be repeated. Without --numeric, --categorical and --text "
        "all columns are used, by their types.",
        "Columns",
        metavar="PATTERN",
        is_repeated=True,
        is_column=True,
    )
    dates: tuple[str, ...] = option(
        (),
        "Tables: columns of dates or times; day of the week, month, hour, and years since 2020 are features. The other "
        "columns are still used by their types. May be repeated.",
        "Columns",
        metavar="PATTERN",
        is_repeated=True,
        is_column=True,
    )
    ignore: tuple[str, ...] = option(
        (),
        "Tables: columns that are not used. May be repeated.",
        "Columns",
        metavar="PATTERN",
        is_repeated=True,
        is_column=True,
    )
    test: float | None = option(
        None,
        "Reserve this share of the rows to test models, in the store STORE.test: by a hash of the ids, or of the "
        "positions of rows.",
        "Labels",
        metavar="FRACTION",
        allowed=Range(math.nextafter(0.0, 1.0), math.nextafter(1.0, 0.0), "a fraction between 0 and 1"),
    )
    split: str | None = option(
        None,
        "Tables: reserve the rows that match to test models, in the store STORE.test: fold=test, or a pattern, or a "
        "comparison with a number or a date, like 'date>=2026-10-01'.",
        "Labels",
        metavar="COLUMN=PATTERN",
        parse=canonical_split,
    )
    like: str | None = option(
        None,
        "Make rows as another store has them: same columns, scales, hash and classes, so that models of one can be "
        "evaluated on the other.",
        "Columns",
        metavar="STORE",
    )
    cross: tuple[str, ...] = option(
        (),
        "Tables: categorical columns of which each combination of values is a feature, 'A*B=x*y'. May be repeated.",
        "Columns",
        metavar="A,B",
        is_repeated=True,
    )
    preset: Literal["criteo", "text", "clicks"] | None = option(
        None,
        "Options for typical tables. text: columns of strings are text, with 1:2-grams, idf and rows of length 1. "
        "clicks: columns are categories except fractions, missing values are marked, numbers are not scaled. criteo: "
        "tabs, no header, a label, 13 numeric and 26 categorical columns.",
        "Columns",
    )
    hash_bits: int | None = option(
        None,
        "Hash feature names to 2^B buckets. 0, for Vowpal Wabbit text: names are indices.",
        "Columns",
        metavar="B",
        default_text="22, less for inputs below 16 MB",
        allowed=Range(0, 31, "1 to 31"),
    )
    hash_signed: bool = option(
        True,
        "Hashes give a sign as well.",
        "Columns",
        flags=("--hash-signed/--no-hash-signed",),
        default_text="--hash-signed",
    )
    dictionary: int | None = option(
        None,
        "Keep a dictionary of the N most frequent feature names instead of hashing. Reads the inputs once more.",
        "Columns",
        metavar="N",
        allowed=Range(1, MOST_NAMES, f"1 to {MOST_NAMES}"),
    )
    ngrams: str | None = option(
        None, "Lengths of word n-grams: N, or from N to M.", "Text", metavar="N|N:M", default_text="1"
    )
    characters: bool = option(False, "Character n-grams instead of word n-grams.", "Text")
    idf: bool | None = option(
        None,
        "Multiply counts by the inverse document frequency (tf-idf). Reads the inputs once more.",
        "Text",
        flags=("--idf/--no-idf",),
    )
    nulls: Literal["absent", "mark", "bad"] | None = option(
        None,
        "Missing values. absent: no feature. mark: the feature 'column=null'. bad: a bad row.",
        "Columns",
        default_text="absent",
    )
    log1p: bool = option(False, "Replace numbers x by sign(x) log(1 + |x|).", "Columns")
    clip: float | None = option(
        None, "Clip numbers to at most this size, after --log1p.", "Columns", metavar="X", allowed=POSITIVE
    )
    standardize: bool | None = option(
        None,
        "Subtract the mean of numbers and divide by the standard deviation; columns of mostly 0 keep their zeros. "
        "Reads the inputs once more. Default: by the first rows alone, where numbers stand beside categories or "
        "texts, differ in size by more than a factor of 10, or have a mean of more than 10 deviations.",
        "Columns",
        flags=("--standardize/--no-standardize",),
    )
    header: bool = option(
        True,
        "CSV: the first line names the columns; without it they are 0, 1, ...",
        "Columns",
        flags=("--header/--no-header",),
        default_text="--header",
    )
    delimiter: str | None = option(
        None, "CSV: the delimiter; '\\t' is a tab.", "Columns", metavar="C", parse_words=parse_delimiter
    )
    multiline: bool = option(False, "CSV: quoted cells may contain line breaks.", "Columns")
    feature_names: int = option(
        0,
        "Keep the names of up to N hashed features in the store.",
        "Columns",
        metavar="N",
        allowed=Range(0, 10_000_000, "0 to 10000000"),
    )
    shuffle: bool = option(
        True,
        "Put rows in random order, because sorted data ruins stochastic training.",
        "Storage",
        flags=("--shuffle/--no-shuffle",),
        default_text="--shuffle",
    )
    seed: int = option(0, "Seed of the shuffle.", "Storage", metavar="N", allowed=SEEDS)
    memory: int = option(
        GIB,
        "Memory to use.",
        "Storage",
        metavar="SIZE",
        default_text="1GB",
        parse=parse_size,
        allowed=MEMORY,
    )
    threads: int | None = option(None, "Threads.", "Storage", metavar="N", default_text="all cores", allowed=THREADS)
    block_size: int | None = option(
        None,
        "Bytes of text read at a time. Default: by the memory budget.",
        "Storage",
        allowed=Range(64, 64 * MIB, "64 bytes to 64 MB"),
        is_hidden=True,
    )

    def __post_init__(self) -> None:
        given: Any = self.format
        if isinstance(given, str) and given == "tsv" and self.delimiter is None:
            object.__setattr__(self, "delimiter", "\t")
        _settle(self)
        self.ngram_range()
        if self.dictionary is not None and self.hash_bits is not None:
            raise UsageError("{dictionary} keeps feature names and {hash_bits} hashes them; give one")
        if self.delimiter is not None and not is_delimiter(self.delimiter):
            raise UsageError(f"{{delimiter={self.delimiter!r}}} is not one ASCII character that can separate cells")
        if self.test is not None and self.split is not None:
            raise UsageError("{test} and {split} both choose the rows for tests; give one")
        if self.weight is not None and self.weights is not None:
            raise UsageError("{weight} names a column and {weights} a file; give one")
        self.declared_labels()

    def check_memory(self) -> None:
        """Raise UsageError if a conversion needs more memory; `train` takes the same option, for any store."""
        if self.memory < LEAST_MEMORY:
            raise UsageError(f"{{memory={self.memory:,}}} is too little for a conversion; choose at least 32MB")

    def of_format(self, name: str) -> ConvertConfig:
        """Return the options with a format."""
        return dataclasses.replace(self, format=Registered(name))

    def declared_labels(self) -> Declared:
        """Return the declared task and classes."""
        positive = (self.positive_label,) if isinstance(self.positive_label, str) else self.positive_label or ()
        return Declared(self.task, self.classes, positive)

    def ngram_range(self) -> tuple[int, int]:
        """Return the smallest and the largest length of n-grams."""
        parts = re.fullmatch(r"(\d{1,2})(?::(\d{1,2}))?", self.ngrams or "1")
        least, most = (int(parts[1]), int(parts[2] or parts[1])) if parts else (0, 0)
        if not 1 <= least <= most <= 10:
            raise UsageError(
                f"{{ngrams={self.ngrams}}} is out of range; write one number or two, like 1:2, from 1 to 10"
            )
        return least, most

    @property
    def rounding(self) -> Literal["float16", "bfloat16"] | None:
        """The type to which values are rounded; None if they stay float32."""
        return None if self.values == "float32" else self.values

    @property
    def names_columns(self) -> bool:
        """True if options name the columns that count."""
        return bool(self.numeric or self.categorical or self.text)

    @property
    def workers(self) -> int:
        """Threads to use."""
        return self.threads or cores()

    def text_block(self) -> int:
        """Return the bytes of text in a block. The store depends on it: so no other option may."""
        return self.block_size or min(16 * MIB, self.memory // 64)

    def reading_threads(self) -> int:
        """Return the number of parser threads. A block with its rows takes up to six times the size of its text."""
        return max(1, min(self.workers, self.memory // (6 * self.text_block()) - 2))

    def bucket_limit(self) -> int:
        """Return the bytes of rows that are shuffled at a time."""
        return self.memory // 8

    def room_for_rows(self) -> int:
        """Return the bytes of rows that are kept in memory between the passes: half of it, if parsers leave as much."""
        return max(0, min(4 * self.bucket_limit(), self.memory - 6 * self.text_block() * (self.reading_threads() + 2)))


MOST_MODELS = 4096
"""Largest number of models trained in one pass."""
HOLDOUT = 0.1
"""Default fraction of holdout rows where lambdas are compared."""


Bias = Literal["none", "feature", "free", "unregularized", "batch", "search"]


@dataclass(frozen=True)
class TrainConfig:
    """Options of `oocpeg train`. Without `lam` (--lambda) and `C` a path of lambdas is compared."""

    lam: float | tuple[float, ...] | str | None = option(
        None,
        "Strength of the regularisation: one, several, or N from A to B in equal ratios. Default: eight that suit the "
        "data, compared on holdout rows.",
        "Problem",
        metavar="L|L,L,...|A:B:N",
        parse_words=number_or_text,
    )
    C: float | None = option(None, "The same as --lambda 1 / (C rows).", "Problem", flags=("--C",), allowed=POSITIVE)
    loss: LossName | None = option(
        None,
        "The loss. Default: hinge for classes (one against the rest where there are several), squared for real "
        "targets; epsilon-insensitive where an option needs Pegasos.",
        "Problem",
        one_of=lambda: LOSSES,
        parse=lambda text: LOSSES.our_name(text),
    )
    loss_parameter: float | None = option(
        None,
        "Parameter of smoothed-hinge (default 1), epsilon-insensitive (a tenth of the standard deviation of the "
        "targets) or huber (1).",
        "Problem",
        metavar="P",
        allowed=Range(0, POSITIVE.most, "0 or a positive number"),
    )
    bias: Bias | None = option(
        None,
        "feature: a constant feature, regularised. free: not regularised, as in the classical SVM. search: an outer "
        "search over biases. unregularized, batch: subgradient methods of the paper. Default: feature without "
        "--lambda, else none.",
        "Problem",
    )
    bias_scale: float = option(
        1.0, "Value of the constant feature.", "Problem", metavar="B", allowed=Range(1e-9, 1e9, "1e-9 to 1e9")
    )
    cost: tuple[tuple[float, ...], ...] | None = option(
        None,
        "For multiclass-hinge: a text file with a line for each class, the cost of predicting each other one.",
        "Problem",
        metavar="FILE",
        parse_words=read_costs,
    )
    folds: int | None = option(
        None,
        "Compare lambdas by cross-validation with K folds, not on holdout rows.",
        "Choosing lambda",
        metavar="K",
        allowed=Range(2, 100, "2 to 100"),
    )
    select_by: Literal["loss", "error", "balanced-error", "auc", "mae", "r2"] | None = option(
        None,
        "Compare lambdas by this metric of the holdout rows, and by the loss where it differs by noise only. Default: "
        "error, or loss for real targets.",
        "Choosing lambda",
    )
    select: Literal["best", "1se"] = option(
        "best",
        "Keep the best lambda, or the largest lambda within a standard error of it.",
        "Choosing lambda",
    )
    refit: bool = option(
        True,
        "Train the chosen lambda once more, on all rows. Without: keep the model that was trained without the holdout "
        "rows, and try no lambdas beyond the given ones or the default eight.",
        "Choosing lambda",
        flags=("--refit/--no-refit",),
    )
    calibrate: Literal["platt", "isotonic"] | None = option(
        None, "Fit probabilities to the scores of holdout rows.", "Choosing lambda"
    )
    tolerance: float | None = option(
        None,
        "Stop when the certified gap (P - D)/P is this small, with P the objective and D a lower bound on the optimum "
        "P*. Then (P - P*)/P* is at most tolerance/(1 - tolerance). Default: 0.01, or 0.005 where lambdas are "
        "compared.",
        "Stopping",
        metavar="GAP",
        allowed=Range(POSITIVE.least, math.nextafter(1.0, 0.0), "a number above 0 and below 1, like 0.01"),
    )
    max_epochs: int | None = option(
        None,
        "Stop after N epochs. Default: 100, 5000 for sdca, or 10 without a certificate.",
        "Stopping",
        metavar="N",
        allowed=POSITIVE,
    )
    max_seconds: float | None = option(None, "Stop after S seconds.", "Stopping", metavar="S", allowed=POSITIVE)
    algorithm: AlgorithmName = option(
        ANY,
        "sdca: dual coordinate ascent. sgd-s: epochs of Pegasos with a certified stop. sgd-m: hinge loss, rows several "
        "times at once while the gap is large. sgd-r: i.i.d. rows, a fixed number of steps. pegasos: as in the paper. "
        "auto: sdca or sgd-s.",
        "Algorithm",
        one_of=lambda: (ANY, *ALGORITHMS),
    )
    sampling: SamplerName | None = option(
        None,
        "Order of rows. Default: permutation, or that of the algorithm.",
        "Algorithm",
        one_of=lambda: SAMPLERS,
    )
    batch_size: int = option(1, "Rows in a step.", "Algorithm", metavar="K", allowed=POSITIVE)
    project: bool = option(False, "Project onto the ball of radius 1/sqrt(lambda) after each step.", "Algorithm")
    average: bool = option(False, "Average the iterates.", "Algorithm")
    delay: float | None = option(
        None,
        "Steps of 1/(lambda (t + N)). auto: 3 R^2/lambda with R the largest row norm, or 0 for pegasos.",
        "Algorithm",
        metavar="auto|N",
        default_text="auto",
        parse=parse_delay,
        allowed=Range(0, POSITIVE.most, "auto, 0 or a positive number of rows"),
    )
    coefficient: float = option(
        1.2,
        "Measure the objective exactly when the estimated gap is within this factor of the tolerance.",
        "Algorithm",
        allowed=POSITIVE,
        is_hidden=True,
    )
    seed: int = option(0, "Seed of the order of rows.", "Algorithm", metavar="N", allowed=SEEDS)
    memory: int | None = option(
        None,
        "Memory for data. Default: half of the free memory, less what the weights take.",
        "Machine",
        metavar="SIZE",
        parse=parse_size,
        allowed=MEMORY,
    )
    loading: Literal["mapped", "read"] | None = option(
        None, "Map the store into memory or read it ahead. Default: mapped if it fits --memory.", "Machine"
    )
    threads: int | None = option(
        None,
        "Threads that train concurrently and average, where that is faster; the result depends on N. Loading and "
        "measuring use all cores in any case.",
        "Machine",
        metavar="N",
        default_text="1",
        allowed=THREADS,
    )
    class_weight: Literal["balanced"] | tuple[float, ...] | None = option(
        None,
        "Weights of the negative and the positive class. balanced: inversely proportional to their frequencies.",
        "Problem",
        metavar="balanced|A,B",
        parse_words=parse_class_weight,
    )
    holdout: float | None = option(
        None,
        "Fraction of rows that are held out, always the same ones. Default: 0.1 where lambdas are compared, else 0.",
        "Choosing lambda",
        metavar="FRACTION",
        allowed=Range(0, math.nextafter(1.0, 0.0), "a fraction from 0 to below 1"),
    )
    checkpoint_minutes: float = option(
        5.0, "Write a checkpoint every M minutes.", "Output", metavar="M", default_text="5", allowed=POSITIVE
    )
    checkpoint_epochs: int | None = option(
        None, "Write a checkpoint every N epochs as well.", "Output", metavar="N", allowed=POSITIVE
    )

    def __post_init__(self) -> None:
        _settle(self)
        if self.lam is not None and self.C is not None:
            raise UsageError("{lam} and {C} both set the regularisation; give one, like {lam=1e-4}")
        lambdas = self.lambdas or ()
        if any(lam not in POSITIVE for lam in lambdas):
            wrong = next(lam for lam in lambdas if lam not in POSITIVE)
            raise UsageError(f"{{lam={wrong}}} is out of range; choose positive numbers")
        if self.lambdas is not None and not 1 <= len(lambdas) <= MOST_MODELS:
            raise UsageError(f"{{lam}} takes 1 to {MOST_MODELS} values, not {len(lambdas)}")
        if len(set(lambdas)) < len(lambdas):
            twice = next(lam for number, lam in enumerate(lambdas) if lam in lambdas[:number])
            raise UsageError(f"{{lam}} contains {twice:g} twice; leave one of them out")
        if self.bias_scale != 1.0 and self.biased != "feature":
            raise UsageError("{bias_scale} is the value of the constant feature; add {bias=feature}, or leave it out")
        if self.folds is not None and self.holdout:
            raise UsageError("{folds} and {holdout} both hold out rows; give one")
        if self.comparing and self.holdout == 0 and self.folds is None:
            raise UsageError("{holdout=0} leaves no rows to compare lambdas by; leave it out, or give one {lam}")
        if self.calibrate and self.holdout_fraction == 0:
            where = "give {holdout=0.1} instead of {folds}" if self.folds else "add {holdout}, like {holdout=0.1}"
            raise UsageError(f"{{calibrate}} needs rows that no model is trained on; {where}")
        # a run of a search has one lambda as well
        is_alone = not self.comparing and (self.refit or not self.holdout_fraction)
        if self.select_by not in (None, "loss") and (is_alone or self.folds is not None):
            other = "{folds}" if self.folds else "a single lambda"
            raise UsageError(
                f"{{select_by={self.select_by}}} compares several lambdas on holdout rows, and not with {other}; "
                "leave one of them out"
            )
        self._check_algorithm()
        weights = self.class_weight
        if isinstance(weights, tuple) and (len(weights) < 2 or not all(1e-9 <= w <= 1e9 for w in weights)):
            raise UsageError(
                "{class_weight} takes 'balanced' or two numbers from 1e-9 to 1e9, negative class first, like 1,5"
            )

    def _check_algorithm(self) -> None:
        """Raise UsageError for options that the algorithm does not support."""
        if self.bias == "batch" and self.batch_size == 1:
            raise UsageError("{bias=batch} finds the best bias of each batch; add {batch_size}, like {batch_size=1000}")
        if self.bias == "free" and self.project:
            raise UsageError("{project} does not support {bias=free}; leave it out, or choose {bias=unregularized}")
        if self.bias == "search" and (self.comparing or self.folds):
            raise UsageError("{bias=search} is for one lambda; give one, like {lam=1e-4}")
        if self.algorithm != ANY:
            declared = ALGORITHMS[self.algorithm]
            for capability, mark in self.demands.items():
                if capability not in declared.supports:
                    raise UsageError(lacking(declared, capability, mark))

    @property
    def lambdas(self) -> tuple[float, ...] | None:
        """The given lambdas, None if there are none."""
        if isinstance(self.lam, str):
            return parse_lambdas(self.lam)
        if self.lam is None:
            return None
        return tuple(self.lam) if isinstance(self.lam, tuple | list) else (float(self.lam),)

    @property
    def enough(self) -> float:
        """The tolerance: smaller where lambdas are compared, because neighbouring models differ by little."""
        if self.tolerance is not None:
            return self.tolerance
        return 0.005 if self.comparing else 0.01

    @property
    def biased(self) -> Bias:
        """The kind of bias, with its default."""
        if self.bias is not None:
            return self.bias
        return "feature" if self.lam is None and self.C is None else "none"

    @property
    def comparing(self) -> bool:
        """True if several lambdas are compared."""
        return self.C is None and (self.lambdas is None or len(self.lambdas) > 1)

    @property
    def is_search(self) -> bool:
        """True if the best of several lambdas is trained once more on all rows."""
        return self.comparing and self.refit and self.bias != "search"

    @property
    def steps(self) -> int:
        """The number of steps of a run for its display: the search, a fit for probabilities, the last fit."""
        return 2 + bool(self.calibrate) if self.is_search else 1

    @property
    def holdout_fraction(self) -> float:
        """The fraction of holdout rows."""
        if self.holdout is not None:
            return self.holdout
        return HOLDOUT if self.comparing and self.folds is None else 0.0

    @property
    def demands(self) -> dict[str, str]:
        """The options given that not every algorithm supports: names as in `Algorithm.supports`, and their marks."""
        given = {
            "batch_size": self.batch_size > 1,
            "project": self.project,
            "average": self.average,
            "delay": self.delay is not None,
            f"bias={self.bias}": self.bias in ("unregularized", "batch", "free"),
        }
        return {name: f"{{{name}}}" for name, is_given in given.items() if is_given}

    @property
    def workers(self) -> int:
        """Threads that load data and measure the objective; results do not depend on them."""
        return self.threads or cores()

    @property
    def sampler(self) -> str:
        """The sampling: the given one, or the default of the algorithm."""
        return self.sampling or (Algorithm if self.algorithm == ANY else ALGORITHMS[self.algorithm]).default_sampling

    def budget(self, features: int, models: int = 1) -> int:
        """Return the bytes for data, after those for weights, averages and snapshots of all models."""
        free = available_memory()
        if LEAST_VECTORS * models * 8 * features > free:
            needed = LEAST_VECTORS * models * 8 * features / GIB
            raise UsageError(
                f"{models:,} vectors of {features:,} weights take {needed:,.0f} GB, and {free / GIB:,.0f} GB "
                "are free; give fewer lambdas or folds, or convert to fewer features"
            )
        return self.memory or max(free - (VECTORS + 5 * (models - 1)) * 8 * features, 0) // 2


ConvertConfig.__doc__ = Described(str(ConvertConfig.__doc__))  # type: ignore[assignment]
TrainConfig.__doc__ = Described(str(TrainConfig.__doc__))  # type: ignore[assignment]


def _parse_all(cls: type, table: dict[str, Any]) -> None:
    """Parse the texts in a table and in the configurations that it contains."""
    for name, hint in get_type_hints(cls).items():
        if hint in (ConvertConfig, TrainConfig) and isinstance(table.get(name), dict):
            _parse_all(hint, table[name])
    if cls in (ConvertConfig, TrainConfig):
        table.update({name: _plainly(name, value, cls) for name, value in table.items()})


def load_toml(
    cls: type[Config], path: Path, complete: Callable[[dict[str, Any]], None] | None = None
) -> dict[str, Any]:
    """Return the checked settings of a TOML file; `complete` may add settings before the check."""
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        if path.is_dir():
            raise InputError(f"{path}: {kind_of_path(path)}, not a TOML file; check the path") from error
        raise InputError(f"{path}: {(error.strerror or 'unreadable').lower()}; check the path") from error
    except UnicodeDecodeError as error:
        kind = kind_of_path(path) or "no text in UTF-8"
        raise UsageError(f"{path}: {kind}, not a TOML file; name another") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a TOML file: {error}; correct it") from error
    try:
        _parse_all(cls, table)
        if complete is not None:
            complete(table)
        typed_json.load(cls, table)
    except typed_json.TypedError as error:
        raise UsageError(f"{path}: {error}; correct it") from error
    except UsageError as error:
        raise error.within(str(path)) from error
    return table
