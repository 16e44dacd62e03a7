"""One frozen dataclass a job: the defaults, the checks, and the way from and to a TOML file."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from ooc_pegasos import typed
from ooc_pegasos.errors import InputError, OocPegasosError, UsageError
from ooc_pegasos.machine import available_memory
from ooc_pegasos.parallel import cores

Config = TypeVar("Config")

VECTORS = 10
"""Vectors as long as there are features that a run may hold: sums, snapshots, candidates, the best so far."""
LEAST_VECTORS = 3
"""That it holds of each model in any case."""
MOST_THREADS, MOST_MEMORY = 4096, 1 << 62
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def _check_threads(threads: int | None) -> None:
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise UsageError(f"--threads {threads} is out of range; choose at least 1 and at most {MOST_THREADS}")


def _check_memory(memory: int | None) -> None:
    if memory is not None and memory > MOST_MEMORY:
        raise UsageError("--memory is more than any machine has; give what is to be used")


def parse_size(text: str) -> int:
    """Bytes from `64MB`, `1.5GiB`, `800k` or a plain number; units are powers of 1024."""
    parts = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([kmgt]?)i?b?\s*", text.lower())
    if not parts:
        raise UsageError(f"{text!r} is not a size; write it like 64MB or 2GB")
    if float(parts[1]) > MOST_MEMORY:
        raise UsageError(f"{text[:40]!r} is more bytes than there can be; write it like 64MB or 2GB")
    return int(float(parts[1]) * {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1 << 40}[parts[2]])


def _plainly(name: str, value: Any) -> Any:
    """A setting as its dataclass has it: sizes in bytes, and what may be written in two ways in one."""
    if name in ("chunk_size", "memory", "reserve") and isinstance(value, str):
        return parse_size(value)
    if name == "delay" and isinstance(value, str) and value == "auto":
        return None
    return str(value) if name == "index_base" and type(value) is int else value


def _settle(config: ConvertConfig | TrainConfig) -> None:
    """Refuse settings of a wrong type, wherever they come from: most would do something else, without a word."""
    try:
        typed.settle(config, _plainly)
    except (typed.TypedError, UsageError) as error:
        raise UsageError(f"{type(config).__name__}: {error}") from error


# --- conversions --------------------------------------------------------------------------------

EXACT = 2.0**53
"""From here on not all whole numbers are float64, so that one label may be taken for another."""
MOST_NAMES = 2**31 - 1
"""Of features in a dictionary."""
TaskChoice = Literal["auto", "binary", "multiclass", "regression"]


def is_delimiter(text: str) -> bool:
    """True if the text can stand between cells."""
    return len(text) == 1 and text.isascii() and text not in '\0\r\n"'


def spell(number: float) -> str:
    """Return a numeric label as people write it: 1, -1, 0.5."""
    return str(int(number)) if number == int(number) and abs(number) < 1e16 else repr(number)


def is_number(text: str) -> bool:
    """True if a label given as an option is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def refuse_large(classes: Iterable[float], error: type[OocPegasosError]) -> None:
    """Refuse numbers for classes of which float64 has several in one: nobody can tell then whether these were one."""
    large = next((number for number in classes if abs(number) >= EXACT), None)
    if large is not None:
        problem = f"the label {spell(large)} is no number below 2^53, so others may have been taken for it"
        raise error(f"{problem}; write labels as words or as smaller numbers, or say --task regression")


@dataclass(frozen=True)
class Declared:
    """What the user, or the store that is appended to, says of the labels."""

    task: TaskChoice = "auto"
    classes: tuple[str, ...] = ()
    positive: str | None = None
    rest: bool = False
    as_text: bool | None = None
    """Whether labels are text; None: as the first row says."""

    def __post_init__(self) -> None:
        if self.classes and (len(self.classes) < 2 or not all(self.classes)):
            raise UsageError("--classes needs at least two labels with commas between, like --classes=-1,1")
        if self.task != "regression" and self.wants_text() is False:
            refuse_large(map(float, self.named()), UsageError)
        are_numbers = all(is_number(name) for name in self.classes)
        different: set[float] | set[str] = set(map(float, self.classes)) if are_numbers else set(self.classes)
        if len(different) != len(self.classes):
            raise UsageError("--classes names a class twice; name each one once")
        if self.task == "regression" and (self.classes or self.positive is not None):
            raise UsageError("--task regression has no classes; leave out --classes and --positive-label")
        if self.task == "multiclass" and self.positive is not None:
            raise UsageError("--positive-label makes the task binary; leave out --task multiclass")
        if self.positive is not None and self.classes and self.positive not in self.classes:
            raise UsageError(f"--positive-label {self.positive} is not among --classes {','.join(self.classes)}")
        if self.task == "binary" and len(self.classes) not in (0, 2):
            raise UsageError(f"--task binary needs two --classes, not {len(self.classes)}")

    def has_classes(self) -> bool:
        """True if labels are said to be classes."""
        return self.task in ("binary", "multiclass") or bool(self.classes) or self.positive is not None

    def named(self) -> list[str]:
        """Return the labels that were said."""
        return [*self.classes, *([self.positive] if self.positive is not None else [])]

    def wants_text(self) -> bool | None:
        """Return whether labels must be read as text (True) or as numbers (False); None: as the first row has them."""
        named = self.named()
        if self.as_text is not None:
            return self.as_text
        if self.task == "regression":
            return False
        return not all(is_number(name) for name in named) if named else None


@dataclass(frozen=True)
class ConvertConfig:
    """Options of `oocpeg convert`. Sizes are in bytes."""

    chunk_size: int = 64 * MIB
    normalize: Literal["l2"] | None = None
    values: Literal["float32", "float16", "bfloat16"] | None = None
    """What values are stored as: rounded to two bytes, or float32 even where fewer bytes would hold them exactly, so
    that any can be appended. None: as few bytes as hold them exactly, or what the store has that is appended to."""
    features: int | None = None
    index_base: Literal["auto", "0", "1"] = "auto"
    task: TaskChoice = "auto"
    classes: tuple[str, ...] = ()
    positive_label: str | None = None
    on_bad_row: Literal["stop", "skip"] = "stop"
    weights: str | None = None
    """A text file with a line for each row of all inputs, in their order: its weight."""
    format: Literal["auto", "svmlight", "vw", "table", "arrays", "folders"] = "auto"
    """How inputs are read; auto: as their first bytes or names say."""
    label: str | None = None
    weight: str | None = None
    id: str | None = None
    """Columns of tables: the label, the weight, and what predictions are told apart by."""
    labels: str | None = None
    """A file with the labels of arrays that have none: .npy, or text with one number a line."""
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    """Columns that count, as patterns; if none are given all count, as their types say."""
    preset: Literal["criteo"] | None = None
    hash_bits: int | None = None
    """Names of features are hashed to 2^hash_bits places: 22 by default; 0: names are indices (Vowpal Wabbit text)."""
    hash_signed: bool = True
    dictionary: int | None = None
    """At most so many names, those in most rows, get places of their own instead, in a first pass."""
    ngrams: str = "1"
    """How many tokens of text are joined: 1, or from 1 to 2 as 1:2."""
    characters: bool = False
    """Text falls into characters instead of words."""
    idf: bool = False
    """Counts of words are multiplied by how rare the words are, found in a first pass."""
    nulls: Literal["absent", "mark", "bad"] = "absent"
    log1p: bool = False
    clip: float | None = None
    standardize: bool = False
    """Numbers of tables are divided by their standard deviation, found in a first pass."""
    header: bool = True
    delimiter: str | None = None
    multiline: bool = False
    """Of delimited text: whether line breaks may stand in quotes."""
    feature_names: int = 0
    """How many names of hashed features are kept in the store."""
    shuffle: bool = True
    seed: int = 0
    memory: int = GIB
    threads: int | None = None
    block_size: int | None = None
    """Bytes of text read at a time; by default as many as suit the memory budget."""

    def __post_init__(self) -> None:
        _settle(self)
        if self.memory < 32 * MIB:
            raise UsageError(f"--memory {self.memory:,} bytes is too little; give it at least 32MB")
        _check_memory(self.memory)
        if not KIB <= self.chunk_size <= GIB:
            raise UsageError(f"--chunk-size {self.chunk_size:,} bytes is out of range; choose 1kB to 1GB")
        if self.features is not None and not 1 <= self.features <= 2**32 - 2:
            raise UsageError(f"--features {self.features} is out of range; choose 1 to {2**32 - 2}")
        _check_threads(self.threads)
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed {self.seed} is out of range; choose 0 to 2^63 - 1")
        self.ngram_range()
        if self.hash_bits is not None and not 0 <= self.hash_bits <= 31:
            raise UsageError(f"--hash-bits {self.hash_bits} is out of range; choose 1 to 31")
        if self.dictionary is not None and not 1 <= self.dictionary <= MOST_NAMES:
            raise UsageError(f"--dictionary {self.dictionary} is out of range; choose 1 to {MOST_NAMES}")
        if self.dictionary is not None and self.hash_bits is not None:
            raise UsageError("--dictionary gives names places of their own and --hash-bits hashes them; give one")
        if self.clip is not None and not 0 < self.clip < float("inf"):
            raise UsageError(f"--clip {self.clip} is out of range; choose a positive number")
        if self.delimiter is not None and not is_delimiter(self.delimiter):
            raise UsageError(
                f"--delimiter {self.delimiter!r} is not one character of ASCII that can stand between cells"
            )
        if not 0 <= self.feature_names <= 10_000_000:
            raise UsageError(f"--feature-names {self.feature_names} is out of range; choose 0 to 10000000")
        if self.weight is not None and self.weights is not None:
            raise UsageError("--weight names a column and --weights a file; give one")
        if self.block_size is not None and not 64 <= self.block_size <= 64 * MIB:
            raise UsageError("block_size must be 64 bytes to 64 MB")
        self.declared()

    def declared(self) -> Declared:
        """What is said of the labels."""
        return Declared(self.task, self.classes, self.positive_label)

    def ngram_range(self) -> tuple[int, int]:
        """The least and the most tokens that are joined."""
        parts = re.fullmatch(r"(\d{1,2})(?::(\d{1,2}))?", self.ngrams)
        least, most = (int(parts[1]), int(parts[2] or parts[1])) if parts else (0, 0)
        if not 1 <= least <= most <= 10:
            raise UsageError(f"--ngrams {self.ngrams} is out of range; write one number or two, like 1:2, from 1 to 10")
        return least, most

    @property
    def rounding(self) -> Literal["float16", "bfloat16"] | None:
        """What values are rounded to: nothing if they stay the float32 that they are read as."""
        return None if self.values == "float32" else self.values

    @property
    def workers(self) -> int:
        """Threads to use."""
        return self.threads or cores()

    def text_block(self) -> int:
        """Bytes of text in a block. The store depends on it, so it depends on nothing but the memory budget."""
        return self.block_size or min(16 * MIB, self.memory // 64)

    def reading_threads(self) -> int:
        """Threads that parse. A block and its rows take up to six times its text; there are two more than threads."""
        return max(1, min(self.workers, self.memory // (6 * self.text_block()) - 2))

    def bucket_limit(self) -> int:
        """Bytes of rows shuffled at a time."""
        return self.memory // 8


# --- training -----------------------------------------------------------------------------------

LossName = Literal[
    "hinge",
    "logistic",
    "smoothed-hinge",
    "epsilon-insensitive",
    "absolute",
    "huber",
    "multiclass-hinge",
    "multiclass-logistic",
]
Algorithm = Literal["auto", "sdca", "sgd-s", "sgd-m", "sgd-r", "pegasos"]
MOST_MODELS = 4096
"""That may be trained in one pass."""
HOLDOUT = 0.1
"""Of the rows, where lambdas are to be compared and nothing else is said."""


def parse_lambdas(text: str) -> tuple[float, ...]:
    """`1e-4`, several like `1e-3,1e-4`, or `1e-7:1e-3:9`, nine from the first to the second in equal ratios."""
    try:
        if ":" in text:
            least, most, count = text.split(":")
            ends = sorted((float(least), float(most)))
            number = int(count)
            if number < 2 or not 0 < ends[0] < ends[1] < float("inf"):
                raise ValueError
            ratio = math.log(ends[1] / ends[0]) / (number - 1)
            return (*(ends[1] * math.exp(-ratio * i) for i in range(number - 1)), ends[0])
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise UsageError(
            f"--lambda {text} is not understood; write a number, several like 1e-3,1e-4, or a path like 1e-7:1e-3:9"
        ) from None


@dataclass(frozen=True)
class TrainConfig:
    """Options of `oocpeg train`. Without `lam` (--lambda) and `C` a path of lambdas is tried."""

    lam: float | tuple[float, ...] | str | None = None
    """One, several, or a path as `parse_lambdas` takes it."""
    C: float | None = None
    loss: LossName | None = None
    """None: hinge for classes, epsilon-insensitive for real targets."""
    loss_parameter: float | None = None
    bias: Literal["none", "feature", "free", "unregularized", "batch", "search"] | None = None
    """None, not regularised (free), or one of the four ways of section 6 of the paper. By default a feature where the
    lambda is left open, and none where it is given: then the objective is the one that was asked for."""
    bias_scale: float = 1.0
    """The value of the constant feature."""
    cost: tuple[tuple[float, ...], ...] | None = None
    """Of taking a class (row) for another (column), for the multiclass hinge; 1 if not given."""
    folds: int | None = None
    """Compare lambdas by cross-validation instead of a holdout."""
    select: Literal["best", "1se"] = "best"
    """The lambda with the least loss on rows kept apart, or the largest within a standard error of that."""
    calibrate: Literal["platt", "isotonic"] | None = None
    """Fit probabilities to the scores of rows kept apart."""
    tolerance: float | None = None
    """None: `enough`."""
    max_epochs: int | None = None
    max_seconds: float | None = None
    algorithm: Algorithm = "auto"
    sampling: Literal["permutation", "fixed", "iid", "sequential"] | None = None
    batch_size: int = 1
    project: bool = False
    average: bool = False
    delay: float | None = None
    """None: 3 R^2 / lam with R the largest row norm, or 0 for `pegasos`, which is the paper's."""
    coefficient: float = 1.2
    """An exact pass is made when the estimated gap is within this factor of the tolerance; thrice it for the first."""
    seed: int = 0
    memory: int | None = None
    """Bytes for data; by default half of what is available, less what the weights take."""
    loading: Literal["mapped", "read"] | None = None
    """How data comes to memory; by default mapped if the store fits, else read ahead."""
    threads: int | None = None
    """Threads that present rows side by side, if that pays; by default one, and all cores load and measure."""
    class_weight: Literal["balanced"] | tuple[float, ...] | None = None
    """Weights of the negative and the positive class."""
    holdout: float | None = None
    """A fraction of rows to keep apart. None: a tenth where lambdas are compared, else nothing."""
    checkpoint_minutes: float = 5.0
    checkpoint_epochs: int | None = None
    """Write a checkpoint after every so many epochs as well."""

    def __post_init__(self) -> None:
        _settle(self)
        positive = {"C": self.C, "tolerance": self.tolerance, "coefficient": self.coefficient}
        positive |= {"max-epochs": self.max_epochs, "max-seconds": self.max_seconds, "batch-size": self.batch_size}
        positive |= {"memory": self.memory, "checkpoint-minutes": self.checkpoint_minutes}
        positive |= {"checkpoint-epochs": self.checkpoint_epochs}
        for name, value in positive.items():
            if value is not None and not 0 < value < float("inf"):
                raise UsageError(f"--{name} {value} is out of range; choose a positive number")
        _check_threads(self.threads)
        _check_memory(self.memory)
        if self.loss_parameter is not None and not 0 <= self.loss_parameter < float("inf"):
            raise UsageError(f"--loss-parameter {self.loss_parameter} is out of range; choose 0 or a positive number")
        if self.lam is not None and self.C is not None:
            raise UsageError("--lambda and --C both say how strongly to regularise; give one, like --lambda 1e-4")
        for lam in self.lambdas or ():
            if not 0 < lam < float("inf"):
                raise UsageError(f"--lambda {lam} is out of range; choose positive numbers")
        if self.lambdas is not None and not 1 <= len(self.lambdas) <= MOST_MODELS:
            raise UsageError(f"--lambda takes 1 to {MOST_MODELS} values, not {len(self.lambdas)}")
        if self.lambdas is not None and len(set(self.lambdas)) < len(self.lambdas):
            twice = next(lam for number, lam in enumerate(self.lambdas) if lam in self.lambdas[:number])
            raise UsageError(f"--lambda names {twice:g} twice; leave one of them out")
        if self.tolerance is not None and self.tolerance >= 1:
            raise UsageError(f"--tolerance {self.tolerance:g} is any gap at all; choose a number below 1, like 0.01")
        if not 1e-9 <= self.bias_scale <= 1e9:
            raise UsageError(f"--bias-scale {self.bias_scale:g} is out of range; choose 1e-9 to 1e9")
        if self.bias_scale != 1.0 and self.biased != "feature":
            raise UsageError("--bias-scale is the value of the constant feature; add --bias feature, or leave it out")
        if self.holdout is not None and not 0 <= self.holdout < 1:
            raise UsageError(f"--holdout {self.holdout} is out of range; choose a fraction from 0 to below 1")
        if self.folds is not None and not 2 <= self.folds <= 100:
            raise UsageError(f"--folds {self.folds} is out of range; choose 2 to 100")
        if self.folds is not None and self.holdout:
            raise UsageError("--folds and --holdout both keep rows apart; give one")
        if self.comparing and self.holdout == 0 and self.folds is None:
            raise UsageError("--holdout 0 leaves no rows to compare lambdas by; leave it out, or give one --lambda")
        if self.calibrate and self.holdout_fraction == 0:
            where = "give --holdout 0.1 instead of --folds" if self.folds else "add --holdout, like --holdout 0.1"
            raise UsageError(f"--calibrate needs rows that no model is trained on; {where}")
        if self.delay is not None and not 0 <= self.delay < float("inf"):
            raise UsageError(f"--delay {self.delay} is out of range; choose auto, 0 or a positive number of rows")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed {self.seed} is out of range; choose 0 to 2^63 - 1")
        if self.algorithm == "sgd-m" and (self.batch_size > 1 or self.project):
            raise UsageError("--algorithm sgd-m presents rows one by one; leave out --batch-size and --project")
        if self.bias == "batch" and self.batch_size == 1:
            raise UsageError("--bias batch finds the best bias of each batch; add --batch-size, like --batch-size 1000")
        if self.algorithm == "sgd-m" and self.bias in ("unregularized", "batch"):
            raise UsageError(f"--algorithm sgd-m knows no --bias {self.bias}; choose --algorithm sgd-s")
        if self.bias == "free" and (self.algorithm in ("sgd-r", "pegasos") or self.project):
            what = "--project" if self.project else f"--algorithm {self.algorithm}"
            raise UsageError(f"{what} does not go with --bias free; leave it out, or choose --bias unregularized")
        if self.bias == "search" and (self.comparing or self.folds):
            raise UsageError("--bias search is for one lambda; give one, like --lambda 1e-4")
        if self.algorithm == "sdca" and self.of_pegasos:
            raise UsageError(
                f"--algorithm sdca knows no {self.of_pegasos[0]}; leave it out, or choose --algorithm sgd-s"
            )
        weights = self.class_weight
        if isinstance(weights, tuple) and (len(weights) < 2 or not all(1e-9 <= w <= 1e9 for w in weights)):
            raise UsageError(
                "--class-weight takes 'balanced' or two numbers from 1e-9 to 1e9, negative class first, like 1,5"
            )

    @property
    def lambdas(self) -> tuple[float, ...] | None:
        """The lambdas that were given, if any."""
        if isinstance(self.lam, str):
            return parse_lambdas(self.lam)
        if self.lam is None:
            return None
        return tuple(self.lam) if isinstance(self.lam, tuple | list) else (float(self.lam),)

    @property
    def enough(self) -> float:
        """The relative gap at which a model is done: less where models are compared, as neighbours differ by little."""
        if self.tolerance is not None:
            return self.tolerance
        return 0.005 if self.comparing else 0.01

    @property
    def biased(self) -> str:
        """The way of the bias."""
        if self.bias is not None:
            return self.bias
        return "feature" if self.lam is None and self.C is None else "none"

    @property
    def comparing(self) -> bool:
        """Whether there are several lambdas, of which one is to be chosen."""
        return self.C is None and (self.lambdas is None or len(self.lambdas) > 1)

    @property
    def holdout_fraction(self) -> float:
        """Of the rows, those that are kept apart."""
        if self.holdout is not None:
            return self.holdout
        return HOLDOUT if self.comparing and self.folds is None else 0.0

    @property
    def of_pegasos(self) -> list[str]:
        """The options given that only Pegasos and its kin know."""
        asked = {
            "--batch-size": self.batch_size > 1,
            "--project": self.project,
            "--average": self.average,
            "--delay": self.delay is not None,
            f"--bias {self.bias}": self.bias in ("unregularized", "batch"),
        }
        return [name for name, given in asked.items() if given]

    @property
    def workers(self) -> int:
        """Threads that load data and measure the objective; results do not depend on them."""
        return self.threads or cores()

    @property
    def sampler(self) -> str:
        """The sampling asked for, or that of the algorithm."""
        return self.sampling or ("iid" if self.algorithm in ("sgd-r", "pegasos") else "permutation")

    def budget(self, features: int, models: int = 1) -> int:
        """Bytes for data; weights, averages and snapshots of so many features have to find room beside it."""
        free = available_memory()
        if LEAST_VECTORS * models * 8 * features > free:
            needed = LEAST_VECTORS * models * 8 * features / GIB
            raise UsageError(
                f"{models:,} vectors of {features:,} weights take {needed:,.0f} GB, and {free / GIB:,.0f} GB "
                "are free; give fewer lambdas or folds, or convert to fewer features"
            )
        return self.memory or max(free - (VECTORS + 5 * (models - 1)) * 8 * features, 0) // 2


def load_toml(
    cls: type[Config], path: Path, complete: Callable[[dict[str, Any]], None] | None = None
) -> dict[str, Any]:
    """The settings a TOML file makes for a job, checked against its dataclass; `complete` may add some before that."""
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: {(error.strerror or 'unreadable').lower()}; check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a TOML file: {error}; correct it") from error
    try:
        for part in (table, *(inner for inner in table.values() if isinstance(inner, dict))):
            part.update({name: _plainly(name, value) for name, value in part.items()})
        if complete is not None:
            complete(table)
        typed.load(cls, table)
    except typed.TypedError as error:
        raise UsageError(f"{path}: {error}; correct it") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return table
