"""Frames of pandas written to files."""

import json
from pathlib import Path

import pandas as pd


def write_frame(frame: pd.DataFrame, path: Path) -> Path:
    """Write a frame in the format that the suffix of a path names; absent cells are absent keys in JSON lines."""
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        assert path.suffix == ".jsonl"
        rows = ({name: cell for name, cell in row.items() if cell == cell} for row in frame.to_dict("records"))
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path
