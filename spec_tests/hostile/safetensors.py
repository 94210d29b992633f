"""safetensors: single files and sets."""

import json
import struct
from collections.abc import Sequence

from spec_tests.hostile.case import Evidence, Files


def safetensors(header: object, data: bytes = bytes(16), nbytes: int | None = None) -> bytes:
    """A file with this header: text as it is, anything else as JSON."""
    octets = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(octets) if nbytes is None else nbytes) + octets + data


def tensor(
    start: int = 0, stop: int = 16, shape: Sequence[int] = (4,), dtype: str = "F32"
) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def shard(rank: int, offsets: dict[str, object], shape: Sequence[int] = (4,)) -> Files:
    """The file of one rank, whose slices begin at these offsets."""
    info = json.dumps({key: {"saved_offsets": each} for key, each in offsets.items()})
    header: dict[str, object] = {"__metadata__": {"DCP_SHARDING_INFO": info}}
    header |= {
        key: tensor(16 * number, 16 * number + 16, shape) for number, key in enumerate(offsets)
    }
    return {
        f"shard-{rank:05}-model-00001-of-00001.safetensors": safetensors(
            header, bytes(16 * len(offsets))
        )
    }


EVIDENCE = {
    "safetensors": Evidence(
        "safetensors/numpy_all_dtypes/ckpt/model.safetensors",
        "safetensors_",
        file="ck.safetensors",
    )
}
