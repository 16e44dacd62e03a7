"""Raw data sets as people have them, made with fixed seeds: a training and a test file or folder for each.

Quotes, a byte order mark, missing values, umlauts, rare classes, ids, dates, amounts, folders by day, mails.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_BEGINNINGS = ["ba", "ko", "li", "mu", "ne", "pro", "sta", "tri", "vo", "we"]
_ENDS = ["den", "fal", "gor", "kim", "lor", "mas"]
WORDS = np.array([f"{begin}{end}" for begin in _BEGINNINGS for end in _ENDS])
TOWNS = ["Oslo", "Tromsø", "Bergen", "Ås", "Trondheim", "Bodø"]


@dataclass(frozen=True)
class RawData:
    """A data set: its files, the options of the one command, and the column of labels."""

    name: str
    make: Callable[[Path, np.random.Generator, int], None]
    """Writes the rows of a part to a path."""
    suffix: str
    options: tuple[str, ...]
    label: str
    rows: int = 12_000
    metric: str = "roc_auc"


def _sigmoid(scores: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-scores))


def clicks(path: Path, rng: np.random.Generator, rows: int) -> None:
    """Advertising: 4 % of positive rows, an id, categories with many values, counts from 0 to thousands."""
    user, site, hour = rng.integers(10**18, 4 * 10**18, rows), rng.zipf(1.5, rows) % 500, rng.integers(0, 24, rows)
    seen, age = rng.lognormal(2, 1.5, rows).astype(int), rng.integers(18, 90, rows)
    effect = np.random.default_rng(1).standard_normal(500)
    scores = effect[site] + 0.03 * (age - 50) - 0.3 * np.log1p(seen) + 0.8 * np.isin(hour, (20, 21, 22)) - 3.3
    clicked = rng.random(rows) < _sigmoid(scores)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["user_id", "site", "hour", "times seen", "age", "clicked"])
        columns = zip(user, site, hour, seen, age, clicked, strict=True)
        out.writerows([u, f"site-{s}.example, inc", f"{h:02}h", n, a, int(c)] for u, s, h, n, a, c in columns)


def houses(path: Path, rng: np.random.Generator, rows: int) -> None:
    """Prices: columns of all sizes, missing values, a few gross errors, a skewed target of whole numbers."""
    area, year, rooms = rng.lognormal(4.6, 0.4, rows), rng.integers(1900, 2021, rows), rng.integers(1, 9, rows)
    town, distance = rng.integers(0, len(TOWNS), rows), rng.exponential(8000, rows)
    price = np.exp(11 + 0.9 * np.log(area) + 0.004 * (year - 1970) - distance / 4e4 + 0.2 * (town < 2))
    price *= np.exp(0.15 * rng.standard_normal(rows))
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        out = csv.writer(file, lineterminator="\r\n")
        out.writerow(["area", "year", "rooms", "town", "distance in m", "price"])
        for i in range(rows):
            built = "" if rng.random() < 0.1 else year[i]
            out.writerow([f"{area[i]:.1f}", built, rooms[i], TOWNS[town[i]], f"{distance[i]:.0f}", f"{price[i]:.0f}"])


def _text(rng: np.random.Generator, topic: int, topics: int, length: int) -> str:
    common, own = rng.zipf(1.4, length) % len(WORDS), topic * len(WORDS) // topics + rng.integers(0, 8, length)
    return " ".join(WORDS[np.where(rng.random(length) < 0.25, own % len(WORDS), common)])


def reviews(path: Path, rng: np.random.Generator, rows: int) -> None:
    """Reviews: a text with quotes and commas, stars, and whether they were liked."""
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["stars", "review", "liked"])
        for _ in range(rows):
            liked = int(rng.random() < 0.7)
            text = f'"{_text(rng, liked, 2, int(rng.integers(5, 40)))}", they said: très bien'
            out.writerow([int(np.clip(rng.normal(3 + liked, 1.2), 1, 5)), text, "yes" if liked else "no"])


def tickets(path: Path, rng: np.random.Generator, rows: int) -> None:
    """Support tickets as JSON lines: nine queues, a subject, missing fields, whole numbers that are categories."""
    with path.open("w") as file:
        for _ in range(rows):
            queue = int(rng.zipf(1.6) % 9)
            line = {"subject": _text(rng, queue, 9, 8), "product": f"P{rng.integers(40)}", "queue": f"queue {queue}"}
            if rng.random() < 0.8:
                line["priority"] = int(rng.integers(1, 5))
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def sensors(path: Path, rng: np.random.Generator, rows: int) -> None:
    """Measurements by day in folders of Parquet files, with units from 1e-6 to 1e5 and nulls."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    hidden = rng.standard_normal((rows, 6))
    failed = hidden @ np.array([1.0, -0.8, 0.6, 0.0, 0.4, -0.2]) + 0.7 * rng.standard_normal(rows) > 1.2
    units = np.array([1e-6, 1e-3, 1.0, 10.0, 1e3, 1e5])
    means = np.array([5e-6, 0.0, 20.0, 1013.0, 0.0, 3e5])
    values = hidden * units + means
    for day in range(4):
        part = np.arange(rows) % 4 == day
        columns = {
            f"sensor {number}": pa.array(values[part, number], mask=rng.random(part.sum()) < 0.02)
            for number in range(6)
        }
        folder = path / f"day=2024-03-0{day + 1}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table(columns | {"failed": pa.array(failed[part])}), folder / "part-0.parquet")


def mails(path: Path, rng: np.random.Generator, rows: int) -> None:
    """Mails in a folder for each class."""
    for kind in ("ham", "spam"):
        (path / kind).mkdir(parents=True)
    for number in range(rows):
        spam = rng.random() < 0.3
        text = f"Subject: {_text(rng, spam, 2, 5)}\n\n{_text(rng, spam, 2, 60)}\n"
        (path / ("spam" if spam else "ham") / f"{number:05}.txt").write_text(text)


def bank(path: Path, rng: np.random.Generator, rows: int) -> None:
    """Customers in a table with semicolons: yes and no, unknown values as words, campaign counts."""
    jobs = ["admin.", "blue-collar", "technician", "services", "unknown", "retired"]
    age, balance, campaign = rng.integers(18, 95, rows), rng.normal(1500, 3000, rows), rng.geometric(0.4, rows)
    job = rng.integers(0, len(jobs), rows)
    scores = 0.02 * (age - 40) + balance / 6000 - 0.4 * campaign + 0.9 * (job == 5) - 0.8
    bought = rng.random(rows) < _sigmoid(scores)
    lines = ['"age";"job";"balance";"campaign";"y"']
    for i in range(rows):
        lines.append(f'{age[i]};"{jobs[job[i]]}";{balance[i]:.0f};{campaign[i]};"{"yes" if bought[i] else "no"}"')
    path.write_text("\n".join(lines) + "\n")


def energy(path: Path, rng: np.random.Generator, rows: int) -> None:
    """Consumption: tiny targets, outliers in one row of fifty."""
    x = rng.standard_normal((rows, 5))
    y = 1e-6 * (3 + x @ np.array([1.0, -0.5, 0.3, 0.0, 0.1]) + 0.3 * rng.standard_normal(rows))
    y[rng.random(rows) < 0.02] *= 3
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([*(f"x{number}" for number in range(5)), "joule"])
        out.writerows([*(f"{value:.5g}" for value in line), f"{target:.6g}"] for line, target in zip(x, y, strict=True))


def genes(path: Path, rng: np.random.Generator, rows: int) -> None:
    """More columns than rows, as svmlight text with three classes."""
    weights = np.random.default_rng(7).standard_normal((5000, 3)) * (np.random.default_rng(8).random((5000, 1)) < 0.02)
    with path.open("w") as file:
        for _ in range(rows):
            found = np.unique(rng.integers(0, 5000, 60))
            values = rng.exponential(1, len(found))
            scores = values @ weights[found] + 0.5 * rng.standard_normal(3)
            file.write(
                f"{scores.argmax() + 1} "
                + " ".join(f"{f + 1}:{v:.3g}" for f, v in zip(found, values, strict=True))
                + "\n"
            )


def churn(path: Path, rng: np.random.Generator, rows: int) -> None:
    """Tab-separated, booleans, a constant column, whole numbers that are nearly all 0."""
    months, calls = rng.integers(1, 72, rows), rng.poisson(0.3, rows)
    online, plan = rng.random(rows) < 0.5, rng.integers(0, 3, rows)
    left = rng.random(rows) < _sigmoid(1.0 - 0.06 * months + 0.8 * calls - 0.7 * online + 0.5 * (plan == 2))
    with path.open("w", newline="") as file:
        out = csv.writer(file, delimiter="\t")
        out.writerow(["months", "calls", "online", "plan", "country", "left"])
        columns = zip(months, calls, online, plan, left, strict=True)
        out.writerows([m, c, str(bool(o)).lower(), "ABC"[p], "NO", int(gone)] for m, c, o, p, gone in columns)


def orders(path: Path, rng: np.random.Generator, rows: int) -> None:
    """Returned orders: semicolons, amounts with decimal commas, dates with the day first, an invoice number."""
    seconds = rng.integers(0, 3 * 365 * 86_400, rows)
    times = np.datetime64("2021-01-01T00:00:00") + seconds.astype("m8[s]")
    total, channel = rng.lognormal(4, 1.2, rows), rng.integers(0, 4, rows)
    discount = np.where(rng.random(rows) < 0.3, rng.integers(5, 50, rows), 0)
    days = times.astype("M8[D]").astype(int)
    evening = (seconds % 86_400) // 3600 >= 18
    scores = 0.8 * ((days + 3) % 7 >= 5) + 0.7 * evening + 0.005 * total + 0.9 * (channel == 2) - 0.03 * discount
    scores += 0.6 * np.isin(times.astype("M8[M]").astype(int) % 12, (10, 11)) + seconds / 1e8 - 3
    returned = rng.random(rows) < _sigmoid(scores)
    lines = ["invoice;created;total;discount;channel;returned"]
    for i in range(rows):
        day, clock = str(times[i]).split("T")
        amount = f"{total[i]:,.2f} €".translate(str.maketrans(",.", ".,"))
        when = ".".join(reversed(day.split("-"))) + " " + clock[:5]
        answer = "ja" if returned[i] else "nein"
        lines.append(
            f"R-{i * 7919:08};{when};{amount};{discount[i]} %;{['web', 'app', 'fax', 'shop'][channel[i]]};{answer}"
        )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


DATA = (
    RawData("clicks", clicks, ".csv", ("--label", "clicked", "--id", "user_id"), "clicked", 40_000),
    RawData("houses", houses, ".csv", ("--label", "price"), "price", metric="r2"),
    RawData("reviews", reviews, ".csv", ("--label", "liked", "--numeric", "stars", "--text", "review"), "liked"),
    RawData(
        "tickets",
        tickets,
        ".jsonl",
        ("--label", "queue", "--text", "subject", "--categorical", "p*"),
        "queue",
        metric="accuracy",
    ),
    RawData("sensors", sensors, "", ("--label", "failed"), "failed"),
    RawData("mails", mails, "", (), "folder", 3_000),
    RawData("bank", bank, ".csv", ("--label", "y"), "y"),
    RawData("energy", energy, ".csv", ("--label", "joule"), "joule", metric="r2"),
    RawData("genes", genes, ".svm", (), "class", 2_000, "accuracy"),
    RawData(
        "orders",
        orders,
        ".csv",
        ("--label", "returned", "--dates", "created", "--ignore", "invoice"),
        "returned",
        20_000,
    ),
    RawData("churn", churn, ".tsv", ("--label", "left"), "left"),
)
