"""Every file system call of a command fails in turn: no file is torn, and the error reports the state."""

import os
from pathlib import Path

import pytest
from disturbed import COMMANDS, check_disturbed, command_of, failure_of, processes, shim

from support.soak import in_soak

fixtures = processes, shim


Call = tuple[str, int, str, str]
"""Kind, number of errors that it can have, the one that it had, file."""


def calls_of(report: Path) -> list[Call]:
    """All calls that were counted."""
    found = []
    for line in report.read_text(errors="surrogateescape").splitlines():
        kind, among, error, path = line.split(" ", 3)
        found.append((kind, int(among), error, path))
    return found


def chosen(number: int, call: Call) -> set[int]:
    """Errors of a call that are tried: all of reading and writing, which may be short, and two in turn of others."""
    kind, among, _error, _path = call
    return set(range(among)) if kind in ("read", "write") else {number % among, (number + 1) % among}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_call_fails(processes, tmp_path, name):
    report, failures = tmp_path / "report", []
    only = os.environ.get("OOCPEG_FAULT")
    with command_of(name, processes, tmp_path) as command:
        assert command.run(number=0, report=report).code == 0
        calls = calls_of(report)
        command.check_same()
        every = 14 if name == "run" else 7
        some = [(number, number // every) for number in range(1, len(calls) + 1, every)]
        faults = in_soak(
            some, [(number, variant) for number, call in enumerate(calls, 1) for variant in chosen(number, call)]
        )
        if only:
            faults = [tuple(map(int, only.split(":")))]
        hit = 0
        for number, variant in faults:
            command.prepare()
            ended = command.run(number=number, variant=variant, report=report)
            fault = next((call for call in calls_of(report) if call[2] != "-"), None)
            hit += fault is not None
            try:
                check_disturbed(command, number, ended)
            except Exception as error:
                failures.append(f"{number}:{variant} {fault}: {ended} {failure_of(error)}")
                print(failures[-1], flush=True)
    print(f"{name}: {len(calls)} calls, {hit} of {len(faults)} faults tried, {len(failures)} failures")
    assert not failures, f"{len(failures)} of {len(faults)}:\n" + "\n".join(failures)
    assert hit > 0.9 * len(faults)
