"""Power cuts: synced data is on the disk, and of the rest any part."""

import os

import pytest
from disks import Contents, Disk, events_of, never, put_back, states
from disturbed import COMMANDS, Command, command_of, failure_of, processes, shim

from support.fork_server import fault
from support.soak import in_soak

fixtures = processes, shim


def check_after_power_cut(command: Command, number: int, was_over: bool) -> None:
    """Fail if a user could not continue, or if results of completed commands are missing."""
    is_new = command.is_new(command.place)
    assert is_new or not was_over
    begun = [command.place.glob(f"*.unfinished/{name}") for name in ("plan.json", "drop.json")]
    is_over = is_new and command.is_over() and not any(map(list, begun))
    if is_over and (not command.is_repeatable or command.words[0] in ("convert", "drop")):
        found = command.result(command.place)
        assert [name for name in command.expected if found.get(name) != command.expected[name]] == []
        return
    again = command.again(number)
    assert again.code == 0, again
    command.check_same(tidy=False)


def same_disk(contents: Contents) -> str:
    """A key that is equal for disks with equal content."""
    return repr({name: same_disk(node) if isinstance(node, dict) else node for name, node in contents.items()})


@pytest.mark.parametrize("name", COMMANDS)
def test_power_is_cut(processes, tmp_path, name):
    journal, failures, tried = tmp_path / "journal", [], set()
    only = os.environ.get("OOCPEG_FAULT")
    with command_of(name, processes, tmp_path) as command:
        disk = Disk(command.place)
        assert command.run(number=0, journal=journal).code == 0
        command.check_same()
        events = events_of(journal)
        for number, event in enumerate(events, 1):
            disk.apply(event)
            if only and number != int(only):
                continue
            is_end = number == len(events)
            if not is_end and number % in_soak(21, 1):
                continue
            for contents in states(disk, number):
                told = same_disk(contents)
                if told in tried and not is_end:
                    continue
                tried.add(told)
                put_back(contents, command.place)
                try:
                    check_after_power_cut(command, number, is_end)
                except Exception as error:
                    failures.append(f"{number} {event.what} {event.first}: {failure_of(error)}")
                    print(failures[-1], flush=True)
    print(f"{name}: {len(events)} changes, {len(tried)} disks tried, {len(failures)} failures")
    assert not failures, f"{len(failures)} of {len(tried)}:\n" + "\n".join(failures)


@pytest.mark.parametrize("name", ["convert", "append", "force"])
def test_power_is_cut_after_a_killed_run_was_resumed(processes, tmp_path, name):
    """Files of the killed process were not synced by earlier processes."""
    journal = tmp_path / "journal"
    with command_of(name, processes, tmp_path) as command:
        words = list(command.words)
        steps = processes.start("oocpeg", command.place, words, 1, under=command.place).steps
        number = in_soak(4, steps)
        for step in sorted({1 + at * (steps - 1) // (number - 1) for at in range(number)}):
            command.prepare()
            disk = Disk(command.place)
            how = {"under": command.place, "die_before": step, "fault": fault(command.place, 0, journal=journal)}
            processes.start("oocpeg", command.place, words, 1, **how).wait()
            for event in events_of(journal):
                disk.apply(event)
            assert command.run("--resume", number=0, journal=journal).code == 0
            for event in events_of(journal):
                disk.apply(event)
            put_back(disk.after_power_cut(never, never), command.place)
            check_after_power_cut(command, 0, was_over=True)
    print(f"{name}: {number} of {steps} steps")


def test_what_is_not_synced_is_dropped(processes, tmp_path):
    """The model of a disk itself, on a file that is replaced with and without fsync."""
    place, journal = tmp_path / "place", tmp_path / "journal"
    seen = {}
    for way in ("synced", "not synced"):
        place.mkdir()
        (place / "a").write_bytes(b"old")
        disk = Disk(place)
        recorded = fault(place, 0, journal=journal)
        processes.start("replace", place / "a", way == "synced", fault=recorded).succeed()
        assert (place / "a").read_bytes() == b"new"
        for event in events_of(journal):
            disk.apply(event)
        found = []
        for contents in states(disk, 0)[:2]:
            put_back(contents, place)
            found.append({path.name: path.read_bytes() for path in place.iterdir()})
        seen[way] = found
        put_back({}, place)
        place.rmdir()
    assert seen == {"synced": [{"a": b"new"}] * 2, "not synced": [{"a": b"old"}, {"a": b""}]}
