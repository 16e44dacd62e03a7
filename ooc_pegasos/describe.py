"""What `oocpeg info` shows of a store."""

from __future__ import annotations

from typing import Any

from ooc_pegasos.store import Store


def summary(store: Store) -> dict[str, Any]:
    """All of it, as for --json."""
    made = store.manifest
    sizes = sorted(chunk.bytes for chunk in made.chunks)
    cells = made.rows * made.features
    return {
        "path": str(store.path),
        "rows": made.rows,
        "features": made.features,
        "nonzeros": made.nonzeros,
        "density": made.nonzeros / cells if cells else 0.0,
        "bytes": made.bytes,
        "bytes_per_nonzero": made.bytes / made.nonzeros if made.nonzeros else None,
        "task": made.labels.task,
        "labels": dict(zip(made.labels.classes, made.labels.counts, strict=True)),
        "max_row_norm": made.statistics.max_row_norm,
        "mean_row_norm": made.statistics.mean_row_norm,
        "max_row_nonzeros": made.statistics.max_row_nonzeros,
        "empty_rows": made.statistics.empty_rows,
        "index_coding": made.layout.index_coding,
        "values": made.layout.values,
        "index_base": made.recipe.index_base,
        "normalize": made.recipe.normalize,
        "shuffle_seed": made.shuffle_seed,
        "rejected": made.rejected,
        "chunks": len(made.chunks),
        "chunk_bytes": [sizes[0], sizes[len(sizes) // 2], sizes[-1]] if sizes else [],
        "sources": [{"name": s.name, "size": s.size, "xxh64": s.xxh64, "rows": s.rows} for s in made.sources],
        "written_by": made.written_by,
    }


def size_text(count: float) -> str:
    """Bytes as people write them."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if abs(count) < 1024 or unit == "GB":
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError


def table(store: Store) -> list[tuple[str, str]]:
    """(name, text) lines for people."""
    told, made = summary(store), store.manifest
    rows = [
        ("rows", f"{told['rows']:,}"),
        ("features", f"{told['features']:,}"),
        (
            "non-zeros",
            f"{made.nonzeros:,} ({made.nonzeros / max(made.rows, 1):.1f} a row, density {told['density']:.2g})",
        ),
        ("task", told["task"]),
    ]
    total = max(made.rows, 1)
    shown = list(told["labels"].items())[:8]
    meaning = {"binary": ("-1", "+1")}.get(told["task"], ())
    for number, (name, count) in enumerate(shown):
        sign = f"  stored as {meaning[number]}" if meaning else ""
        rows.append((f"  label {name}", f"{count:,} rows ({100 * count / total:.1f} %){sign}"))
    if len(told["labels"]) > len(shown):
        rows.append(("", f"and {len(told['labels']) - len(shown):,} more labels"))
    shuffled = f"seed {told['shuffle_seed']}" if told["shuffle_seed"] is not None else "no: rows are in input order"
    small, middle, large = (size_text(size) for size in told["chunk_bytes"])
    values = told["values"] or "all 1, not stored"
    rows += [
        ("row norms", f"mean {told['mean_row_norm']:.4g}, largest {told['max_row_norm']:.4g}"),
        ("longest row", f"{told['max_row_nonzeros']:,} non-zeros; {told['empty_rows']:,} rows are empty"),
        ("size", f"{size_text(told['bytes'])}, {told['bytes_per_nonzero'] or 0:.2f} bytes a non-zero"),
        ("coding", f"indices {told['index_coding']}, values {values}"),
        ("chunks", f"{told['chunks']:,} files: smallest {small}, median {middle}, largest {large}"),
        ("shuffled", shuffled),
        ("recipe", f"indices from {told['index_base']}, normalize {told['normalize'] or 'no'}"),
    ]
    if told["rejected"]:
        rows.append(("rejected", f"{told['rejected']:,} rows, listed in rejected.jsonl"))
    for source in told["sources"][:8]:
        origin = f"{source['name']}, {size_text(source['size'])}, {source['rows']:,} rows, xxh64 {source['xxh64']}"
        rows.append(("source", origin))
    if len(told["sources"]) > 8:
        rows.append(("", f"and {len(told['sources']) - 8:,} more sources"))
    rows.append(("written by", told["written_by"]))
    return rows
