"""Run each command once on small data with the packages that are installed, and end with 1 at the first that fails."""

import csv
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from ooc_pegasos.cli.main import app

ROWS = [(number % 2, number % 7 / 8, "red" if number % 3 else "blue") for number in range(400)]
JOB = """
store = "job.store"
models = "models"
inputs = ["day-*.svm"]
golden = ["golden.svm"]
[train]
lam = 0.01
"""
COMMANDS = """
--version
demo --folder demo
convert a.svm -o a.store
convert b.svm -o a.store --append
convert table.csv -o table.store --label clicked --feature-names 100
convert table.parquet -o parquet.store --label clicked --dry-run
info a.store --json
info table.store --features
verify a.store
train a.store -o a.model --lambda 0.01 --json
train a.store -o many.model --loss logistic --bias feature --calibrate isotonic --profile
train a.store -o pegasos.model --lambda 0.05 --algorithm sgd-s --max-epochs 3 --tolerance 0.5
train a.store -o workers.model --lambda 0.01 --scheduler local:2
inspect a.model --top 3
evaluate a.model b.svm
predict a.model b.svm -o scores.csv
predict many.model b.svm -o scores.parquet --proba
train table.store -o table.model --lambda 0.01
predict table.model table.parquet -o table-scores.csv
run job.toml
run job.toml
"""


def write_inputs(folder: Path) -> None:
    """Write the files that the commands read."""
    text = "".join(f"{2 * label - 1} 1:{value} {3 + label}:1\n" for label, value, _colour in ROWS)
    for name in ("a.svm", "b.svm", "day-1.svm"):
        (folder / name).write_text(text)
    (folder / "golden.svm").write_text(text.replace("1:0.125", "1:0.25"))  # no rows of the inputs
    (folder / "job.toml").write_text(JOB)
    with (folder / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("clicked", "amount", "colour"), *ROWS])
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = dict(zip(("clicked", "amount", "colour"), map(list, zip(*ROWS, strict=True)), strict=True))
    pq.write_table(pa.table(columns), folder / "table.parquet")


def main() -> None:
    """Run all commands, each in a process of its own; print the output of one that fails."""
    names = [command.name or command.callback.__name__ for command in app.registered_commands]
    lines = [*(f"{name} --help" for name in names), *COMMANDS.split("\n")[1:-1]]
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(Path(folder))
        for line in lines:
            words = [sys.executable, "-m", "ooc_pegasos", *shlex.split(line)]
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
            print("FAILED" if done.returncode else "passed", "oocpeg", line, flush=True)
            if done.returncode:
                sys.exit(f"exit code {done.returncode}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
