"""The numbers of a few types of ggml's blocks, one by one, from the layout of a block."""

import struct

TYPES = ("Q4_0", "Q5_0", "Q8_0", "Q8_1", "Q8_K", "Q1_0")
"""The types that are defined here; the package gguf does not dequantize the last three."""


def numbers_of_block(name: str, block: bytes) -> list[float]:
    """Return the numbers of one block, exactly."""
    if name in ("Q8_1", "Q8_K"):  # the scale, and then or at the end sums of the integers
        (d,) = struct.unpack_from("<f", block)
        start, count = {"Q8_1": (8, 32), "Q8_K": (4, 256)}[name]
        return [d * q for q in struct.unpack_from(f"<{count}b", block, start)]
    (d,) = struct.unpack_from("<e", block)
    if name == "Q8_0":
        return [d * q for q in struct.unpack_from("<32b", block, 2)]
    if name == "Q1_0":
        return [d if block[2 + at // 8] >> at % 8 & 1 else -d for at in range(128)]
    halves = [byte & 15 for byte in block[-16:]] + [byte >> 4 for byte in block[-16:]]
    if name == "Q4_0":
        return [d * (q - 8) for q in halves]
    (high,) = struct.unpack_from("<I", block, 2)
    return [d * ((q | (high >> at & 1) << 4) - 16) for at, q in enumerate(halves)]
