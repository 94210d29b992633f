"""Writers that are really killed, and readers that come while a checkpoint is replaced."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import shardvar as sv
from shardvar.errors import CorruptCheckpoint
from shardvar.formats.files import ATTEMPTS
from shardvar.storage.local import LocalStorage
from spec_tests.helpers.faulty_storage import FORMATS, NEW, OLD, is_same, save
from spec_tests.helpers.programs import ENVIRONMENT, command_of
from spec_tests.helpers.thoroughness import stride

KILLS, SEED = 200 // stride(2), 20201116
"""``make crash`` has more kills, and another seed each time."""


def run(program: str, *arguments: str) -> str:
    """Return the output of a program among the helpers; it must come to its end."""
    command = command_of(f"helpers.{program}", *arguments)
    done = subprocess.run(
        command, capture_output=True, text=True, env=ENVIRONMENT | {"OPENBLAS_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_writers_killed_at_random_calls_leave_the_old_or_the_new() -> None:
    """Every verb in every format, checkpoints of objects, rotations; and each was really killed
    before and after."""
    said = run("killed_writers", str(KILLS), str(SEED))
    counts = re.findall(r"'(old|new|none)': (\d+)", said)
    # None is what a kill leaves of a first write, and of what is removed.
    kinds = {kind for kind, _ in counts}
    assert sum(int(count) for _, count in counts) == KILLS and {"old", "new"} <= kinds
    assert len(said.splitlines()) == 1 + 20, said


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("times", [1, 2])
def test_a_reader_keeps_the_checkpoint_that_it_opened(
    form: str, times: int, tmp_path: Path
) -> None:
    """However often it is overwritten, its files are open; TensorFlow's names are the same again
    every other time."""
    save(tmp_path, form, OLD)
    with sv.open_checkpoint(tmp_path / FORMATS[form][1]) as reader:
        for number in range(times):
            save(tmp_path, form, (NEW, OLD)[number], force=True)
        assert is_same({key: reader.read(key) for key in reader}, OLD)
    assert is_same(sv.load(tmp_path / FORMATS[form][1]), (NEW, OLD)[times - 1])


@pytest.mark.parametrize("form", ["shardvar", "tensorflow"])
@pytest.mark.parametrize("times", [1, 2, 3, 1000])
def test_a_reader_that_comes_between_index_and_data_files_begins_anew(
    form: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time that it opens a data file, two writers have been there; who is never left in peace
    is told so."""
    save(tmp_path, form, OLD)
    opens, written = LocalStorage.open, 0

    def open_and_write(storage: LocalStorage, name: str) -> Any:
        nonlocal written
        if "data-" in name and written < times:
            written += 1
            with monkeypatch.context() as quiet:
                quiet.setattr(LocalStorage, "open", opens)
                for tensors in (OLD, NEW):
                    save(tmp_path, form, tensors)
        return opens(storage, name)

    monkeypatch.setattr(LocalStorage, "open", open_and_write)
    if times > 2 * FORMATS[form][2] * ATTEMPTS:
        with pytest.raises(CorruptCheckpoint, match="was replaced while"):
            sv.load(tmp_path / FORMATS[form][1])
    else:
        assert is_same(sv.load(tmp_path / FORMATS[form][1]), NEW)
        assert written == times
