"""Settings of all tests, and fixtures for real data and for the command."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from support.fork_server import COMMAND, program
from support.paths import ROOT, SHARED_DATA

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as it is for what a shell starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

MEMORY, ROOM = Path("/dev/shm"), 4 << 30
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM:
    # fsync takes milliseconds on a disk, and tests wait for it thousands of times
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

settings.register_profile("here", deadline=None, print_blob=True)
settings.load_profile("here")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if ROOT / "tests" / "faults" in item.path.parents:
            item.add_marker("faults")


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder of one test, in memory if there is enough; on a disk for the marker `disk`."""
    if request.node.get_closest_marker("disk") is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture(scope="module", autouse=True)
def default_scheduler() -> Iterator[None]:
    """Restore Dask's default scheduler after each module.

    Clients restore it when they are closed, but in the wrong order where workers in this process have clients too.
    """
    yield
    if "dask" in sys.modules:
        sys.modules["dask"].config.config.pop("scheduler", None)


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data sets, or a skip that says so."""
    if not SHARED_DATA.exists():
        pytest.skip("the real data sets are not here (../shared/data)")
    return SHARED_DATA


@pytest.fixture
def oocpeg(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `oocpeg` with these words in the temporary folder, as a new interpreter if it is given an input."""

    def run(*words: object, code: int | None = 0, **given: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ooc_pegasos", *map(str, words)]
        env = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
        if given:
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=env, **given)
        else:
            child = program(COMMAND, *words, folder=tmp_path, env=env)
            out, err = child.communicate()
            done = subprocess.CompletedProcess(command, child.returncode, out, err)
        assert "Traceback" not in done.stderr, done.stderr
        assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    return run
