"""Bit flips in the files of a job are detected by the first use, and nothing is promoted."""

import dataclasses
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ooc_pegasos import OocPegasosError
from ooc_pegasos.jobs import run as running
from support.file_bytes import flipped, folder_bytes
from support.nights import after_first_night, run_night
from support.soak import in_soak

FLIPS = in_soak(12, 1000)


def killed_in_training(*words: object, **named: object) -> None:
    """After the first epoch, when there is a checkpoint."""
    store, config = words
    running_train(store, dataclasses.replace(config, max_epochs=1), **named)
    sys.exit()


def killed(*_words: object, **_named: object) -> None:
    sys.exit()


running_train = running.train
SCENES: dict[str, tuple[object, str, Callable[..., None]]] = {
    "training": (running, "train", killed_in_training),
    "comparing": (running.JobRun, "compare", killed),
}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Copies of the folder `place` from each instant at which a second night was killed."""
    folder = tmp_path_factory.mktemp("scenes")
    after_first_night(folder, folder / "place")
    shutil.copytree(folder / "place", folder / "first", symlinks=True)
    made = {}
    for name, (home, step, ending) in SCENES.items():
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(home, step, ending)
            with pytest.raises(SystemExit):
                run_night(folder / "place", 3)
        made[name] = (folder / "place").rename(folder / name)
        shutil.copytree(folder / "first", folder / "place", symlinks=True)
    return made


@pytest.mark.parametrize(
    ("scene", "pattern"),
    [
        ("training", "models/.run/state.json"),
        ("training", "models/.run/checkpoint/*.checkpoint"),
        ("training", "models/20*/model"),
        ("training", "clicks.store/manifest.json"),
        ("training", "clicks.store/chunk-*"),
        ("comparing", "models/.run/state.json"),
        ("comparing", "models/.run/candidate/model"),
        ("comparing", "models/20*/model"),
        ("comparing", "clicks.store/chunk-*"),
    ],
)
def test_a_flipped_bit(scenes, scene, pattern):
    files = sorted(scenes[scene].glob(pattern))
    assert files
    place = scenes[scene].with_name("place")
    rng = np.random.default_rng(len(pattern))
    for number in range(FLIPS):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(scenes[scene], place, symlinks=True)
        file = place / files[number % len(files)].relative_to(scenes[scene])
        content, where = flipped(rng, file.read_bytes())
        file.write_bytes(content)
        before = os.readlink(place / "models" / "current")
        models = folder_bytes(place / "models" / before)
        try:
            run_night(place, 3)
        except OocPegasosError as error:
            assert error.exit_code in (3, 5), (file.name, where, error)
            assert "\n" not in str(error)
        else:
            pytest.fail(f"{file.name}: {where} was not missed")
        assert os.readlink(place / "models" / "current") == before
        assert folder_bytes(place / "models" / before) == models
    shutil.rmtree(place)
    shutil.copytree(scenes[scene], place, symlinks=True)
    assert run_night(place, 3)["outcome"] == "promoted"
    shutil.rmtree(place)
