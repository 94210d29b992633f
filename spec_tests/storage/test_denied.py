"""An error of rights names the operation and the right, and no right is asked for that is not needed."""

from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import AccessDenied
from shardvar.storage.requests import FolderListing, Head, Operation, denied_error
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket

TENSORS = {"w": np.arange(9.0), "v": np.ones(3)}
FILES = {
    "shardvar": ("m", "m.svindex"),
    "tensorflow": ("m", "m.index"),
    "torch": ("m", "m/.metadata"),
    "safetensors": ("m.safetensors", "m.safetensors"),
    "npz": ("m.npz", "m.npz"),
    "pt": ("m.pt", "m.pt"),
}


class ReadOnlyBucket(MemoryBucket):
    """A bucket whose files may be read, and not listed: then a missing file is denied, too."""

    denies = False

    def deny(self, key: str, operation: Operation) -> None:
        if self.denies:
            raise denied_error(f"s3://bucket/{key}", operation, "AccessDenied")

    def listing(self, key: str) -> FolderListing:
        self.deny(key, "list")
        return super().listing(key)

    def walk(self, key: str) -> dict[str, Head]:
        self.deny(key, "list")
        return super().walk(key)

    def head(self, key: str) -> Head:
        if key not in self.files:
            self.deny(key, "get")
        return super().head(key)


@pytest.mark.parametrize("form", FILES)
def test_a_checkpoint_is_read_without_the_right_to_list_and_not_written_or_removed(
    form: str,
) -> None:
    """A file that is not seen may be needed."""
    saved, index = FILES[form]
    bucket = ReadOnlyBucket()
    with in_bucket(bucket):
        sv.save(f"s3://bucket/run/{saved}", TENSORS, format=form)
        whole = sv.verify(f"s3://bucket/run/{saved}")
        bucket.denies = True
        loaded = sv.load(f"s3://bucket/run/{index}")
        assert all(np.array_equal(loaded[key], TENSORS[key]) for key in TENSORS)
        found = sv.verify(f"s3://bucket/run/{index}")
        assert (found.verdict, found.doubts) == (whole.verdict, ())
        assert sv.digest(f"s3://bucket/run/{index}").checkpoint
        for path in ("run", f"run/{saved.partition('.')[0]}"):
            with pytest.raises(AccessDenied, match=r"to list \(.*s3:ListBucket.*URL of an index"):
                sv.load(f"s3://bucket/{path}")
        before = dict(bucket.files)
        with pytest.raises(AccessDenied, match="to list"):
            sv.remove(f"s3://bucket/run/{index}")
        with pytest.raises(AccessDenied, match="to list"):
            sv.save(f"s3://bucket/run/{index}", TENSORS, format=form)
    assert bucket.files == before


@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "abfss", "hf"])
@pytest.mark.parametrize("operation", ["list", "get", "put", "delete"])
def test_an_error_of_rights_names_operation_and_right(scheme: str, operation: Any) -> None:
    error = denied_error(f"{scheme}://b/m", operation)
    assert isinstance(error, PermissionError)
    assert f"denied to {operation}." in error.cause and f"{scheme}://b/m" in error.cause
    right = {"s3": "s3:", "gs": "storage.objects.", "hf": f"to {operation}"}.get(scheme, "")
    assert f"the right {right}" in error.remedy
