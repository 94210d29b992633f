"""The checkpoint that the tests of this folder reshard."""

from pathlib import Path

import pytest

import shardvar as sv
from spec_tests.helpers.faulty_storage import NEW


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The new tensors as a checkpoint, to be resharded."""
    path = tmp_path_factory.mktemp("source") / "source"
    sv.save(path, NEW, partition=2)
    return path
