"""Blocks of ggml: the numbers of every type are those of ggml's own package, as golden files have
them."""

from hashlib import sha256

import shardvar as sv
from spec_tests.helpers.format_protocol import GOLDEN, expectation


def test_every_type_of_blocks_has_the_recorded_numbers() -> None:
    expected = expectation("gguf", "every_type")["tensors"]
    with sv.open_checkpoint(GOLDEN / "gguf" / "every_type" / "m", dequantize=True) as reader:
        for key, row in expected.items():
            numbers = reader.read(key)
            recorded = row.get("dequantized", row)
            assert sha256(numbers.tobytes()).hexdigest() == recorded["sha256"], key
            assert list(numbers.shape) == recorded["shape"]
