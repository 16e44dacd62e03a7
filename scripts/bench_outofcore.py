"""Larger than memory: epoch time relative to raw disk reads and to memory; peak memory, scaling, shuffles, codings.

    python scripts/bench_outofcore.py [--limit 800MB] [--repeats 3] [--scaling]

Data: arxiv_math of ../shared/data if present, else a CCAT-like set, converted once; larger stores contain copies of its
chunk files. The page cache is dropped before each measurement, and commands run in a memory control group, version 1 or
2, if this user may create one; skipped measurements are reported. Prints ratios within one run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bench_convert import DATASETS, report
from make_ccat_like import make

from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert, train
from ooc_pegasos.compiled.rows.values import ROUNDINGS, round_values
from ooc_pegasos.loading.window import cost_of
from ooc_pegasos.option_texts import parse_size
from ooc_pegasos.reporting.epoch_cost import epoch_seconds, nanoseconds_per_nonzero
from ooc_pegasos.store import manifest
from ooc_pegasos.store.chunk_file import write_chunk
from ooc_pegasos.store.chunk_reader import READERS, REQUEST, ChunkReader, measure_speed, parts_of
from ooc_pegasos.store.csr_block import CsrBlock, all_levels
from ooc_pegasos.store.page_memory import Arena
from ooc_pegasos.util.thread_map import ordered_map

OOCPEG = Path(sys.executable).with_name("oocpeg")


# --- the machine --------------------------------------------------------------------------------


def drop_caches(store: Store) -> None:
    """Drop the pages of a store from the page cache."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:  # not root: drop file by file
        for chunk in store.manifest.chunks:
            with open(store.path / chunk.file, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class ControlGroup:
    """A control group for some commands; `folder` is None if this user may not create one."""

    def __init__(self, name: str, *rules: tuple[str, str, str]) -> None:
        """`rules` are the folder of groups, a file of a group and its content, for version 1, then for version 2."""
        self.folder: Path | None = None
        for version, (top, file, content) in enumerate(rules, start=1):
            folder = Path(top) / f"oocpeg-{name}-{os.getpid()}"
            try:
                folder.mkdir()
                (folder / file).write_text(content)
                self.folder, self.version = folder, version
                return
            except OSError:
                if folder.is_dir():
                    folder.rmdir()

    def enter(self) -> None:
        """Move this process into the group."""
        if self.folder:
            (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def close(self) -> None:
        """Remove the group."""
        for _ in range(50):
            try:
                if self.folder:
                    self.folder.rmdir()
                return
            except OSError:
                time.sleep(0.1)


class Group(ControlGroup):
    """Control group with a memory limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            "bench",
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", str(limit)),
            ("/sys/fs/cgroup", "memory.max", str(limit)),
        )

    def number(self, one: str, two: str) -> int:
        """Return a number of the group by its file names in version 1 and 2."""
        assert self.folder
        return int((self.folder / (one if self.version == 1 else two)).read_text())

    def killed(self) -> int:
        """Return the number of processes killed by the memory limit."""
        assert self.folder
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        lines = (self.folder / name).read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


class SlowDisk(ControlGroup):
    """Control group with a limit on the read speed of the disk of `place`."""

    def __init__(self, place: Path, bytes_per_second: int) -> None:
        device = place.stat().st_dev
        disk = f"{os.major(device)}:{os.minor(device)}"
        super().__init__(
            "disk",
            ("/sys/fs/cgroup/blkio", "blkio.throttle.read_bps_device", f"{disk} {bytes_per_second}"),
            ("/sys/fs/cgroup", "io.max", f"{disk} rbps={bytes_per_second}"),
        )


@contextmanager
def group_of(limit: int) -> Iterator[Group]:
    """Create a control group for some commands."""
    group = Group(limit)
    try:
        yield group
    finally:
        group.close()


def run_train(store: Store, group: Group | None, *words: object, disk: SlowDisk | None = None) -> dict[str, Any]:
    """Run `oocpeg train --json` in a group, on a store that is not in the page cache."""
    drop_caches(store)
    command = [OOCPEG, "train", store.path, "-o", store.path.parent / "bench.model", "--force", "--json", *words]

    def enter() -> None:
        for one in (group, disk):
            if one:
                one.enter()

    done = subprocess.run(list(map(str, command)), preexec_fn=enter, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 4):
        raise SystemExit(f"train ended with {done.returncode}: {done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def raw_read(store: Store, direct: bool) -> float:
    """Return the seconds to read all chunk files, sequentially or with several direct requests at a time."""
    drop_caches(store)
    arena = Arena(READERS * REQUEST + (1 << 20))
    slots = [arena.bytes(REQUEST) for _ in range(READERS)]
    began = time.perf_counter()
    for info in store.manifest.chunks:
        path = store.path / info.file
        if direct:
            reader = ChunkReader(path, info)
            places = (slots[number % READERS] for number in range(-(-info.bytes // REQUEST)))
            for _part in ordered_map(lambda p: p.reader.read(p.at, p.into), parts_of(reader, places), READERS - 1):
                pass
            reader.close()
        else:
            with open(path, "rb", buffering=0) as file:
                while file.readinto(slots[0]):
                    pass
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return time.perf_counter() - began


# --- stores -------------------------------------------------------------------------------------


def base_store(folder: Path) -> Store:
    """Return the set from which all stores are made."""
    if DATASETS.exists():
        subprocess.run([sys.executable, str(DATASETS), "arxiv_math", str(folder)], check=True, capture_output=True)
        return convert([str(folder / "arxiv_math.train.svm")], folder / "base", ConvertConfig())
    print("the data sets are not here (../shared/data): CCAT-like data instead")
    from sklearn.datasets import dump_svmlight_file

    matrix, labels = make(800_000, 47_000, 75, 0)
    dump_svmlight_file(matrix, labels, str(folder / "ccat.svm"), zero_based=False)
    return convert([str(folder / "ccat.svm")], folder / "base", ConvertConfig())


def save(folder: Path, made: manifest.Manifest, chunks: list[manifest.ChunkInfo]) -> Store:
    """Return a store of these chunks, whose files exist."""
    counts = [sum(column) for column in zip(*(chunk.label_counts for chunk in chunks), strict=True)]
    made = dataclasses.replace(
        made,
        chunks=chunks,
        rows=sum(chunk.rows for chunk in chunks),
        nonzeros=sum(chunk.nonzeros for chunk in chunks),
        labels=dataclasses.replace(made.labels, counts=counts),
    )
    manifest.write(folder, made)
    return Store.open(folder)


def copies(store: Store, size: int, folder: Path) -> Store:
    """Make a store of about `size` bytes from repeated copies of the chunks of another."""
    folder.mkdir()
    chunks: list[manifest.ChunkInfo] = []
    while sum(chunk.bytes for chunk in chunks) < size:
        info = store.manifest.chunks[len(chunks) % len(store.manifest.chunks)]
        name = f"chunk-{len(chunks):06d}-{info.crc32}.arrow"
        shutil.copyfile(store.path / info.file, folder / name)
        chunks.append(dataclasses.replace(info, file=name))
    os.sync()
    return save(folder, store.manifest, chunks)


def recoded(store: Store, indices: str, values: str | None, folder: Path) -> Store:
    """Return the same rows in other codings; `code8` and no values change the values."""
    folder.mkdir()
    chunks, levels = [], [0.0]
    for number, info in enumerate(store.manifest.chunks):
        block = store.block(number)
        plain = block.decode()
        offsets, codes, data = block.indptr, block.indices, block.values
        assert data is not None
        if indices == "uint32":
            offsets, codes, data = plain.indptr, plain.indices, plain.values
            assert data is not None
        table = np.empty(0, np.float32)
        if values == "code8":
            levels = [0.0, *(np.arange(1, 256) / 256).tolist()]
            table = all_levels(levels)
            data = np.where(data == 0, 0, np.clip(np.rint(np.abs(data) * 256), 1, 255)).astype(np.uint8)
        elif values == "float16":
            data = data.astype(np.float16)
        elif values == "bfloat16":
            data = data.copy()
            round_values(data, ROUNDINGS["bfloat16"])
            data = (data.view(np.uint32) >> 16).astype(np.uint16)
        elif values is None:
            data = None
        new = CsrBlock(offsets.astype(np.int32), codes, data, block.labels, block.features, levels=table)
        written = write_chunk(folder / "chunk", new)
        name = f"chunk-{number:06d}-{written.crc32}.arrow"
        os.rename(folder / "chunk", folder / name)
        chunks.append(
            dataclasses.replace(
                info,
                file=name,
                entries=len(codes),
                bytes=written.bytes,
                crc32=written.crc32,
                xxh64=written.xxh64,
                starts=written.starts,
            )
        )
    kept = levels if values == "code8" else []
    layout: Any = manifest.Layout(indices, values, store.manifest.layout.labels, kept)  # type: ignore[arg-type]
    return save(folder, dataclasses.replace(store.manifest, layout=layout), chunks)


# --- measurements ------------------------------------------------------------------------------


def epochs_of(result: dict[str, Any]) -> list[float]:
    """Return the seconds of each epoch without the final exact objective."""
    return [cost["seconds"] for cost in result["per_epoch"]][:-1]


def in_memory_epoch(store: Store) -> float:
    """Return the seconds of an epoch on the same rows, in memory, with the faster way of loading."""
    words = ("--lambda", "1e-4", "--tolerance", "1e-12", "--max-epochs", "5", "--loading", "read", "--memory", "1TB")
    return statistics.median(epochs_of(run_train(store, None, *words))[1:])


def epoch_from_disk(store: Store, limit: int, repeats: int) -> None:
    """Measure an epoch with a memory limit of a fifth of the store, relative to the disk and to memory."""
    raw, ours, first, again = [], [], [], 0
    with group_of(limit) as group:
        if not group.folder:
            print("skipped: this user may not make a memory control group; --memory alone limits what follows")
        words: list[object] = ["--lambda", "1e-4", "--tolerance", "1e-12", "--max-epochs", "4"]
        words += [] if group.folder else ["--memory", limit // 2]
        for _ in range(repeats):
            raw.append(min(raw_read(store, direct=False), raw_read(store, direct=True)))
            result = run_train(store, group, *words)
            assert result["loading"] == "read"
            epochs = epochs_of(result)
            first.append(epochs[0])
            ours.append(statistics.median(epochs))
            again += result["windows"]
    memory = in_memory_epoch(store)
    slowest = max(statistics.median(raw), memory)
    size = store.manifest.bytes
    speeds = [f"{size / seconds / 1e9:.2f}" for seconds in (*raw, statistics.median(ours), memory)]
    print(f"{size / 1e9:.2f} GB, limit {limit / 1e9:.2f} GB, {again // repeats} windows an epoch")
    print(f"GB/s: raw reads {', '.join(speeds[:-2])}; an epoch {speeds[-2]}; in memory {speeds[-1]}")
    ratios = [epoch / max(read, memory) for epoch, read in zip(ours, raw, strict=True)]
    report("epoch / the larger of raw read and epoch in memory", statistics.median(ratios), "at most 1.2")
    report("the first epoch, when nothing is read ahead / the same", statistics.median(first) / slowest, "")


def peak_and_linear(base: Store, folder: Path, limit: int) -> None:
    """Measure stores of 1, 4 and 16 times the limit."""
    per_byte = {}
    for times in (1, 4, 16):
        store = copies(base, times * limit, folder / f"times-{times}")
        with group_of(limit) as group:
            if not group.folder:
                print("skipped: peak memory within a limit (this user may not make a memory control group)")
                return
            result = run_train(store, group, "--lambda", "1e-4", "--tolerance", "1e-12", "--max-epochs", "4")
            peak = group.number("memory.max_usage_in_bytes", "memory.peak")
            report(f"{times} times the limit: peak of the group, page cache and all / limit", peak / limit, "at most 1")
            report(f"{times} times the limit: peak RSS / limit", result["peak_rss"] / limit, "at most 1")
            assert group.killed() == 0
        per_byte[times] = statistics.median(epochs_of(result)) / store.manifest.bytes
        shutil.rmtree(store.path)
    for times in (4, 16):
        report(f"time a byte, {times} times the limit / once the limit", per_byte[times] / per_byte[1], "0.85 to 1.15")


def two_level_shuffle(folder: Path) -> None:
    """Compare windows of a few chunks with an exact permutation, on data that was shuffled when converted."""
    text = max(folder.glob("*.svm"), key=lambda path: path.stat().st_size)
    store = convert([str(text)], folder / "small-chunks", ConvertConfig(chunk_size=4 << 20))
    memory = 8 * max(cost_of(chunk) for chunk in store.manifest.chunks)
    for lam in (1e-3, 1e-4, 1e-5):
        options = {"lam": lam, "tolerance": 1e-9, "max_epochs": 8, "coefficient": 1e9}
        exact = train(store, TrainConfig(**options)).model.info.history
        result = train(store, TrainConfig(**options, memory=memory))
        gaps = [entry.gap for entry in result.model.info.history if entry.gap is not None]
        bounds = [entry.lower_bound for entry in result.model.info.history]
        primals = [entry.primal for entry in result.model.info.history[1:]]  # measured during the next epoch
        gaps = [(p - max(bounds[: i + 1])) / p for i, p in enumerate(primals)]
        needed = [next((i + 1 for i, gap in enumerate(gaps) if gap <= e["gap"]), 99) for e in exact[:5]]
        more = max(n - e for e, n in enumerate(needed, start=1))
        report(
            f"lambda {lam:g}: epochs more with {result.windows} windows for the gap of the exact order",
            more,
            "at most 1",
        )


def codings(base: Store, folder: Path, size: int, limit: int) -> None:
    """Measure epoch time by bytes a non-zero: from this disk, and from a disk of 1 GB/s, which is the bottleneck."""
    slow = SlowDisk(folder, 10**9)
    if not slow.folder:
        print("skipped: a disk held to 1 GB/s (this user may not make an io control group)")
    print("nanoseconds a non-zero                              a disk of 1 GB/s: time a byte")
    print("coding                 bytes/nnz   disk  memory     ns/nnz  against the first row")
    first = None
    for indices, values in (
        ("uint32", "float32"),
        ("gap16", "float32"),
        ("gap16", "float16"),
        ("gap16", "bfloat16"),
        ("gap16", "code8"),
        ("gap16", None),
    ):
        one = recoded(base, indices, values, folder / "recoded")
        wide = base.manifest.bytes * (8.1 / 6.1)
        store = copies(one, int(size * one.manifest.bytes / wide), folder / "copied")
        seconds = []
        for disk in (None, slow):
            with group_of(limit) as group:
                words: list[object] = ["--lambda", "1e-4", "--tolerance", "1e-12", "--max-epochs", "4" if disk else "6"]
                words += [] if group.folder else ["--memory", limit // 2]
                if disk is None or disk.folder:
                    result = run_train(store, group, *words, disk=disk)
                    seconds.append(1e9 * statistics.median(epochs_of(result)[1:]) / store.nonzeros)
        memory = 1e9 * in_memory_epoch(store) / store.nonzeros
        width = store.manifest.bytes / store.nonzeros
        line = f"{indices:7} {values or 'all 1':12} {width:9.2f} {seconds[0]:8.2f} {memory:7.2f}"
        if slow.folder:
            first = first or seconds[1] / width
            line += f" {seconds[1]:10.2f} {seconds[1] / width / first:12.2f}"
        print(line)
        shutil.rmtree(one.path)
        shutil.rmtree(store.path)
    slow.close()


def scaling(base: Store, folder: Path, limit: int) -> None:
    """Compare the model of docs/scaling.md with measurements, from 10 MB to half of the free disk space."""
    print("       size      rows from    GB/s   predicted    measured  measured / predicted")
    text = max(folder.glob("*.svm"), key=lambda path: path.stat().st_size)
    free = shutil.disk_usage(folder).free
    for size in (size for size in (10e6, 100e6, 300e6, 1e9, 4e9, 16e9, 32e9) if size < 0.5 * free):
        path = folder / "scaled"
        if size < base.manifest.bytes:
            head = folder / "head.svm"
            with open(text, "rb") as file:
                head.write_bytes(file.read(int(3.05 * size)).rsplit(b"\n", 1)[0] + b"\n")
            store = convert([str(head)], path, ConvertConfig(chunk_size=max(1 << 20, int(size) // 20)))
            head.unlink()
        else:
            store = copies(base, int(size), path)
        entries = sum(chunk.entries for chunk in store.manifest.chunks)
        for source in ("memory", "disk"):
            if source == "memory" and store.manifest.bytes > 8e9:
                continue
            drop_caches(store)
            speed, memory = None, 1 << 40
            if source == "disk":
                speed, _ = measure_speed(store.path, store.manifest.chunks, 2.0)
                memory = max(min(limit // 2, store.manifest.bytes // 3), 1 << 20)
            windows = -(-2 * store.manifest.bytes // memory)
            expected = epoch_seconds(store.manifest.bytes, entries, store.features, speed, windows)
            words = ["--lambda", "1e-4", "--tolerance", "1e-12", "--max-epochs", "5", "--memory", memory]
            found = statistics.median(epochs_of(run_train(store, None, *words))[1:])
            print(
                f"{store.manifest.bytes / 1e6:8,.0f} MB {store.rows:10,} {source:6} {(speed or 0) / 1e9:5.2f}"
                f" {expected:9.3f} s {found:9.3f} s {found / expected:10.2f}"
            )
        shutil.rmtree(path)
    print(f"model: {nanoseconds_per_nonzero(base.features):.2f} ns a non-zero in memory at {base.features:,} features")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", default="800MB")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="folder for the stores, some 20 GB (by default that of the system)")
    parser.add_argument("--only", help="epoch, peak, shuffle, codings or scaling")
    options = parser.parse_args()
    limit, only = parse_size(options.limit), options.only
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        base = base_store(folder)
        run_train(base, None, "--lambda", "1e-4", "--max-epochs", "1")  # compiles once
        if only in (None, "epoch"):
            store = copies(base, max(5 * limit, 4 << 30), folder / "large")
            epoch_from_disk(store, limit, options.repeats)
            shutil.rmtree(store.path)
        if only in (None, "peak"):
            peak_and_linear(base, folder, limit)
        if only in (None, "shuffle"):
            two_level_shuffle(folder)
        if only in (None, "codings"):
            codings(base, folder, max(5 * limit, 4 << 30), limit)
        if only in (None, "scaling"):
            scaling(base, folder, limit)


if __name__ == "__main__":
    main()
