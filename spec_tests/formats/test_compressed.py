"""Frames of Zstandard, and checksums by their names. The oracles are the packages themselves."""

import hashlib
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import InvalidCheckpoint, MalformedCheckpoint
from shardvar.formats.compressed import CHECKSUMS, new_checksum, unpack_frame

blake3: Any = pytest.importorskip("blake3")
xxhash: Any = pytest.importorskip("xxhash")
zstandard: Any = pytest.importorskip("zstandard")

ORACLES: dict[str, Callable[[bytes], str]] = {
    "adler32": lambda octets: f"{zlib.adler32(octets):08x}",
    "sha256": lambda octets: hashlib.sha256(octets).hexdigest(),
    "xxh3-128": lambda octets: xxhash.xxh3_128(octets).hexdigest(),
    "blake3": lambda octets: blake3.blake3(octets).hexdigest(),
}


@given(
    st.binary(max_size=9).map(lambda octets: octets * 40),
    st.fixed_dictionaries({"write_checksum": st.booleans(), "write_content_size": st.booleans()}),
)
def test_a_frame_is_unpacked_if_it_is_all_there_and_nothing_follows(
    content: bytes, options: dict[str, bool]
) -> None:
    """A decoder gives the same bytes of a frame that lost its checksum."""
    frame = zstandard.ZstdCompressor(**options).compress(content)
    assert unpack_frame(frame, len(content)) == content
    for stop in range(len(frame)):
        with pytest.raises(MalformedCheckpoint):
            unpack_frame(frame[:stop], len(content))
    with pytest.raises(InvalidCheckpoint, match="1 bytes follow"):
        unpack_frame(frame + b"\0", len(content))


@pytest.mark.parametrize("name", CHECKSUMS)
@given(parts=st.lists(st.binary(max_size=9)))
def test_a_checksum_of_parts_is_that_of_the_whole(name: str, parts: list[bytes]) -> None:
    checksum = new_checksum(name)
    for part in parts:
        checksum.update(part)
    assert checksum.hexdigest() == ORACLES[name](b"".join(parts))
    assert len(checksum.hexdigest()) == CHECKSUMS[name][0]
