"""A checkpoint that another one replaces while it is being opened: one of them is read, whole."""

from pathlib import Path
from typing import Any

import pytest

import shardvar as sv
from shardvar.storage.local import LocalStorage
from spec_tests.helpers.faulty_storage import FORMATS, NEW, OLD, is_same, save


@pytest.mark.parametrize("form", FORMATS)
def test_of_two_checkpoints_one_is_read_whole(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer commits before any one of the files is opened."""
    opens, number, is_over = LocalStorage.open, 0, False
    found = []
    while not is_over:
        save(tmp_path, form, OLD, force=True)
        count = 0

        def open_and_write(storage: LocalStorage, name: str) -> Any:
            nonlocal count
            count += 1
            if count == number + 1:  # noqa: B023 - called within this turn
                with monkeypatch.context() as quiet:
                    quiet.setattr(LocalStorage, "open", opens)
                    save(tmp_path, form, NEW, force=True)
            return opens(storage, name)

        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, "open", open_and_write)
            values = sv.load(tmp_path / FORMATS[form][1])
        found.append(is_same(values, NEW))
        assert found[-1] or is_same(values, OLD)
        number, is_over = number + 1, number >= count
    assert found[0] and not found[-1]
