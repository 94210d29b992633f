"""Native checkpoints: indexes with right checksums that lie, and files that were harmed."""

from typing import Any

import crc32c
import numpy as np

from spec_tests.helpers.native_checkpoints import hand_made
from spec_tests.hostile.case import Evidence, Files


def u64(*numbers: int) -> Any:
    return np.array(numbers, "<u8")


def u32(*numbers: int) -> Any:
    return np.array(numbers, "<u4")


def native(index: bytes, data: bytes = bytes(4)) -> Files:
    return {"ck.svindex": index, "ck.svdata-g1-00000-of-00001": data}


def native_slices(*regions: tuple[int, int]) -> bytes:
    """A tensor of four bytes in slices (start, length), all of zeros."""
    offset, extent = zip(*regions, strict=True)
    count = len(regions)
    crc = [crc32c.crc32c(bytes(length)) for length in extent]
    columns = {
        "offset": u64(*offset),
        "extent": u64(*extent),
        "nbytes": u64(*extent),
        "crc": u32(*crc),
    }
    zeros = {"file": u32(*[0] * count), "start": u64(*[0] * count), "count": u32(count)}
    return hand_made({**columns, **zeros})


EVIDENCE = {"shardvar": Evidence("native/tiny/ck", "native_")}
