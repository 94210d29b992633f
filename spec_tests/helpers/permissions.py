"""A directory in which permissions count: root may read and write anything, and so acts as another
user there."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534
"""The user and group that own nothing, on Linux and macOS."""


@contextmanager
def bound_by_permissions() -> Iterator[Path]:
    """Yield a new directory of a user whom its permissions bind.

    That is the user who runs the tests, or nobody if this is root: for the time, since what a
    process may do depends on its effective user. What the test imports must have been imported
    before, because nobody may be unable to read where it is installed. A container that does not
    let root become another user skips the test.
    """
    place = Path(
        tempfile.mkdtemp()
    )  # pytest's own directories are closed to others, and so is what is in them
    root = os.geteuid() == 0
    try:
        if root:
            _become_nobody(place)
        yield place
    finally:
        if root:
            os.seteuid(0)
        for directory in [place, *(path for path in place.rglob("*") if path.is_dir())]:
            directory.chmod(0o700)
        shutil.rmtree(place)


def _become_nobody(place: Path) -> None:
    try:
        os.chown(place, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    except PermissionError:
        pytest.skip("root may not become another user here")
