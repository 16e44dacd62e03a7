"""What the fault tests need of a machine: processes to kill at any instant, small disks, groups with little memory."""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# --- processes ----------------------------------------------------------------------------------

_NURSERY = """
import ctypes, gc, json, os, signal, sys, traceback
from ooc_pegasos.errors import OocPegasosError

exec(sys.argv[1], globals())
STEPS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
MADE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

def count_steps(under, die_before):
    count = [0]
    def hook(event, words):
        if event in STEPS and str(words[0]).startswith(under) and (event != "open" or words[2] & MADE):
            count[0] += 1
            if count[0] == die_before:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    return count

def arm(fault):
    files = [fault["report"], fault["journal"]]
    report, journal = (os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if file else -1 for file in files)
    under, number = fault["under"].encode(), ctypes.c_long(fault["number"])
    ctypes.CDLL(None).shim_arm(under, number, fault["variant"], report, journal)

def live(task, told):
    for number, stream in ((1, "said"), (2, "complained")):
        os.dup2(os.open(task[stream], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    count = count_steps(task["under"], task["die_before"]) if task["under"] else [0]
    if task["fault"]:
        arm(task["fault"])
    try:
        globals()[task["name"]](*task["words"])
        code = 0
    except OocPegasosError as error:
        print(f"error: {error}", file=sys.stderr)
        code = error.exit_code
    except SystemExit as error:
        code = error.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(told, str(count[0]).encode())
    os._exit(code)

gc.collect()
gc.freeze()  # or each child would copy what its collector looks at
print("ready", flush=True)
child = 0
for line in sys.stdin:
    if child:
        os.waitpid(child, 0)  # not before now: until then its number is nobody else's
    read, told = os.pipe()
    child = os.fork()
    if not child:
        live(json.loads(line), told)
    os.close(told)
    print(child, flush=True)
    end = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
    print(code, os.read(read, 20).decode() or 0, flush=True)
    os.close(read)
"""


class Nursery:
    """A process that has everything loaded and forks one child after the other, which saves each a second.

    `code` defines the functions that children call; what it calls itself is done once, before the first child.
    `preload`: a library that is loaded before all others (see `disturb`).
    """

    def __init__(self, code: str, folder: Path, preload: Path | None = None) -> None:
        self._said, self._complained = folder / "said", folder / "complained"
        self._fault: dict[str, Any] | None = None
        words = [sys.executable, "-c", _NURSERY, code]
        env = {**os.environ, "LD_PRELOAD": str(preload)} if preload else None
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, bufsize=1, env=env)
        self._last: Child | None = None
        assert self._line() == "ready"

    def start(self, name: str, *words: object, under: Path | None = None, die_before: int = 0) -> "Child":
        """Have a child call a function.

        With `under` it counts its steps, all that it makes, opens to write, renames or removes in that folder, and
        with `die_before` it kills itself before that step.
        """
        if self._last is not None:
            self._last.wait()
        told = [str(word) if isinstance(word, Path) else word for word in words]
        task = {"name": name, "words": told, "die_before": die_before}
        task |= {"said": str(self._said), "complained": str(self._complained), "fault": self._fault}
        self._fault = None
        assert self._process.stdin is not None
        print(json.dumps({**task, "under": str(under) if under else ""}), file=self._process.stdin, flush=True)
        self._last = Child(self, int(self._line()))
        return self._last

    def disturb(self, under: Path, number: int, variant: int = 0, report: object = "", journal: object = "") -> None:
        """Have the next child counted, recorded and, if the number is not 0, disturbed by the library (see shim.c)."""
        words = {"under": str(under), "number": number, "variant": variant}
        self._fault = {**words, "report": str(report), "journal": str(journal)}

    def has_news(self, seconds: float) -> bool:
        """Whether the child has ended, after so many seconds at most."""
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def news(self) -> tuple[int, int]:
        """How the child has ended: its exit code or minus a signal, and its steps if it came to the end."""
        code, steps = self._line().split()
        return int(code), int(steps)

    def said(self) -> tuple[str, str]:
        """What the last child wrote to stdout and stderr."""
        return self._said.read_text(), self._complained.read_text()

    def close(self) -> None:
        """End it, and the child that is at work, if there is one."""
        if self._last is not None:
            self._last.kill()
            self._last.wait()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()
        self._said.unlink(missing_ok=True)
        self._complained.unlink(missing_ok=True)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the nursery is no more; see what it wrote to stderr"
        return line


class Child:
    """A child of a nursery."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self._pid = pid
        self._end: tuple[int, int] | None = None

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Whether it has, after so many seconds at most."""
        return self._end is not None or self._nursery.has_news(max(seconds, 0.0))

    def kill(self) -> None:
        """SIGKILL."""
        if self._end is None:
            os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> int:
        """Its exit code, or minus the signal that ended it."""
        if self._end is None:
            self._end = self._nursery.news()
        return self._end[0]

    @property
    def steps(self) -> int:
        """That it took, if it was not killed."""
        self.wait()
        assert self._end is not None
        return self._end[1]

    def succeed(self) -> None:
        """Wait, and be sure that it did what it was to do."""
        assert self.wait() == 0, self._nursery.said()


@contextmanager
def nursery(code: str, folder: Path, preload: Path | None = None) -> Iterator[Nursery]:
    """A nursery that is closed at the end, whatever happens."""
    made = Nursery(code, folder, preload)
    try:
        yield made
    finally:
        made.close()


# --- being killed -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """Something that may be killed at any instant.

    `start(die_before, again)` begins it, or goes on with it if it was begun before; it dies before that step, if it is
    not 0. `prepare()` brings back the state before the first start, `check_untorn()` refuses halves, `finish()` goes on
    to the end, and `same()` refuses anything but what an undisturbed run leaves.
    """

    prepare: Callable[[], None]
    start: Callable[[int, bool], Child]
    check_untorn: Callable[[], None]
    same: Callable[[], None]

    def finish(self) -> float:
        """Go on to the end; returns the seconds that took."""
        began = time.monotonic()
        self.start(0, True).succeed()
        return time.monotonic() - began


def kill_at_random(job: Job, kills: int, seed: int = 0) -> int:
    """Kill a job so many times, at instants spread evenly over all that it takes; returns how many hit it alive.

    Every other time what goes on with it is killed as well. What came too late does not count, and is tried again.
    """
    rng = random.Random(seed)
    job.prepare()
    began = time.monotonic()
    job.start(0, False).succeed()
    length = time.monotonic() - began
    job.same()
    hit = 0
    for attempt in range(10 * kills):
        if hit >= kills:
            break
        job.prepare()
        instants = [(attempt % kills + rng.random()) / kills * length]
        while rng.random() < 0.5:
            instants.append(rng.uniform(0, length))
        for number, instant in enumerate(instants):
            child = job.start(0, number > 0)
            if not child.has_ended(instant):
                child.kill()
            code = child.wait()
            assert code in (0, -signal.SIGKILL), job
            hit += code != 0
            job.check_untorn()
            if code == 0:
                break
        job.finish()
        job.same()
    return hit


def kill_at_steps(job: Job, most: int) -> tuple[int, int]:
    """Kill a job before each step it takes, or before so many of them; returns how many were tried, and how many are.

    Between two steps a job computes and writes to files that it has opened: the instants that matter are few, and some
    of them far too short to be hit by chance.
    """
    job.prepare()
    child = job.start(0, False)
    child.succeed()
    job.same()
    steps = child.steps
    assert steps > 0
    tried = sorted({1 + number * (steps - 1) // max(most - 1, 1) for number in range(most)}) if most < steps else None
    for step in tried or range(1, steps + 1):
        job.prepare()
        child = job.start(step, False)
        assert child.wait() in (0, -signal.SIGKILL), step
        job.check_untorn()
        job.finish()
        job.same()
    return len(tried) if tried else steps, steps


# --- machines -----------------------------------------------------------------------------------


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Callable[..., None]]:
    """A file system of this size at `place`; what is given remounts it (`mount("ro")`).

    Skips where that is not allowed.
    """
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("mounting a small file system is not permitted here")

    def mount(options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", place], check=True)

    try:
        yield mount
    finally:
        if subprocess.run(["umount", place], capture_output=True).returncode:
            subprocess.run(["umount", "--lazy", place], check=True)
        place.rmdir()


def without_power() -> None:
    """What root may do beyond everybody else is gone, from now on and for programs begun from here."""
    if os.geteuid() != 0:
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    powers = (1, 2, 3)  # to override permissions of files, to read any, to act as their owner
    head, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    failed = any(libc.prctl(24, power, 0, 0, 0) for power in powers) or libc.capget(head, sets)
    for number in range(3):
        sets[number] &= ~sum(1 << power for power in powers)
    if failed or libc.capset(head, sets):
        raise OSError(ctypes.get_errno(), "giving up power")


@contextmanager
def little_memory(limit: int) -> Iterator[Callable[[], None]]:
    """A control group with so many bytes of memory, version 1 or 2; what is given puts a new process there.

    Where no group can be made, a limit on addresses takes its place.
    """
    import resource

    name = f"oocpeg-test-{os.getpid()}"
    root = Path("/sys/fs/cgroup")
    for top, file in ((root / "memory", "memory.limit_in_bytes"), (root, "memory.max")):
        group = top / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / file).write_text(str(limit))
            for swap in ("memory.memsw.limit_in_bytes", "memory.swap.max"):
                if (group / swap).exists():
                    (group / swap).write_text(str(limit) if "memsw" in swap else "0")
        except OSError:
            group.rmdir()
            continue
        procs = str(group / "cgroup.procs")

        def enter(procs: str = procs) -> None:
            with open(procs, "w") as file:
                file.write(str(os.getpid()))

        try:
            yield enter
        finally:
            for _ in range(100):  # the last process may be on its way out
                try:
                    group.rmdir()
                    break
                except OSError:
                    time.sleep(0.05)
            assert not group.exists(), group
        return
    yield lambda: resource.setrlimit(resource.RLIMIT_AS, (8 * limit, 8 * limit))
