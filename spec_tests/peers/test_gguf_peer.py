"""Blocks are dequantized as by the gguf package, bit for bit.

``python -m spec_tests.peers.test_gguf_peer`` records the golden files.
"""

import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardvar.wire.ggml import BLOCKS, NUMBERS, dequantize
from spec_tests.helpers.ggml_blocks import TYPES, numbers_of_block
from spec_tests.helpers.paths import GOLDEN

gguf = pytest.importorskip("gguf", reason="gguf is not installed")
quants = pytest.importorskip("gguf.quants", reason="gguf is not installed")


def blocks_of(number: int, rows: tuple[int, ...] = (3,)) -> np.ndarray:
    """Random blocks, two in a row, whose scales are numbers."""
    block = BLOCKS[number]
    rng = np.random.default_rng(number)
    return rng.integers(0, 60, (*rows, 2 * block.nbytes), dtype=np.uint8)


@pytest.mark.parametrize("number", BLOCKS)
def test_block_types_are_those_of_ggml(number: int) -> None:
    kind = gguf.GGMLQuantizationType(number)
    assert (kind.name, *gguf.GGML_QUANT_SIZES[kind]) == tuple(BLOCKS[number])


def numbers_of(blocks: np.ndarray, number: int) -> np.ndarray:
    """The numbers of rows of blocks by the package, or from the layout of a block where the package
    has none."""
    block = BLOCKS[number]
    try:
        return quants.dequantize(blocks, gguf.GGMLQuantizationType(number))
    except NotImplementedError:
        assert block.name in TYPES
        each = [
            numbers_of_block(block.name, octets.tobytes())
            for octets in blocks.reshape(-1, block.nbytes)
        ]
        with np.errstate(all="ignore"):
            return np.array(each, np.float32).reshape(*blocks.shape[:-1], -1)


@pytest.mark.parametrize("number", BLOCKS)
def test_any_blocks_are_dequantized_to_the_same_bits(number: int) -> None:
    blocks = np.random.default_rng(number).integers(
        0, 256, (5, 7, 3 * BLOCKS[number].nbytes), dtype=np.uint8
    )
    with np.errstate(all="ignore"):
        found = dequantize(blocks, BLOCKS[number].name)
        expected = numbers_of(blocks, number)
    is_nan = np.isnan(expected)
    assert found.shape == expected.shape and (np.isnan(found) == is_nan).all()
    assert (found.view(np.uint32) == expected.view(np.uint32))[~is_nan].all()


def write(
    path: Path, big: bool = False, blocks: bool = True, **how: Any
) -> dict[str, dict[str, Any]]:
    """Write a file of every type, and return what is to be read."""
    endian = gguf.GGUFEndian.BIG if big else gguf.GGUFEndian.LITTLE
    writer = gguf.GGUFWriter(path, "llama", endianess=endian, **how)
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_array("tokenizer.ggml.tokens", [f"token {number}" for number in range(40)])
    expected = {}
    for number, dtype in NUMBERS.items():
        plain = (np.arange(24) % 7 - 3).reshape(2, 3, 4)
        name = f"numbers.{dtype}"
        if dtype == "bfloat16":
            stored = quants.quantize(plain.astype(np.float32), gguf.GGMLQuantizationType(number))
            octets = stored.tobytes()
            if big:
                stored = (
                    np.frombuffer(octets, np.uint16).byteswap().view(np.uint8).reshape(stored.shape)
                )
            writer.add_tensor(name, stored, raw_dtype=gguf.GGMLQuantizationType(number))
        else:
            octets = plain.astype(dtype).tobytes()
            writer.add_tensor(name, plain.astype(dtype))
        expected[name] = entry(dtype, (2, 3, 4), octets)
    for number, block in BLOCKS.items() if blocks else ():
        stored = blocks_of(number, (2, 3))
        writer.add_tensor(
            f"blocks.{block.name}", stored, raw_dtype=gguf.GGMLQuantizationType(number)
        )
        expected[f"blocks.{block.name}"] = entry("uint8", stored.shape, stored.tobytes()) | {
            "encoding": block.name
        }
        numbers = numbers_of(stored, number)
        expected[f"blocks.{block.name}"]["dequantized"] = entry(
            "float32", numbers.shape, numbers.tobytes()
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def entry(dtype: str, shape: tuple[int, ...], octets: bytes) -> dict[str, Any]:
    return {
        "dtype": dtype,
        "shape": list(shape),
        "nbytes": len(octets),
        "sha256": sha256(octets).hexdigest(),
    }


CASES: dict[str, dict[str, Any]] = {
    "every_type": {},
    "big_endian": {"big": True, "blocks": False},
    "three_parts": {"blocks": False, "split_max_tensors": 3},
}


def record() -> None:
    """Write the golden files anew."""
    for case, how in CASES.items():
        shutil.rmtree(GOLDEN / "gguf" / case, ignore_errors=True)
        (GOLDEN / "gguf" / case).mkdir(parents=True)
        told = {
            "format": "gguf",
            "verdict": "accept",
            "written_by": {"gguf": "0.19.0"},
            "open": "m",
        }
        told["tensors"] = write(GOLDEN / "gguf" / case / "m.gguf", **how)
        (GOLDEN / "gguf" / case / "expected.json").write_text(
            json.dumps(told, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    record()
