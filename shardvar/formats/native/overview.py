"""What a native index says about the checkpoint as a whole: its metadata block.

description, writer     texts
generation              the text that the data files' names have in them: 1 to 64 letters and digits
run_nbytes              the bytes of a run that has a checksum of its own
file_nbytes             u64 for each data file: its exact size
user_name, user_value   packed strings: what the user keeps with the checkpoint
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from shardvar.errors import ArgumentError, UnsupportedError
from shardvar.formats.native.names import MAX_FILES, is_generation
from shardvar.layout.dtypes import MAX_NBYTES
from shardvar.layout.region import Ints
from shardvar.planning.index import Metadata
from shardvar.wire.block_file import Block, encode_block, pack_strings
from shardvar.wire.damage import invalid

RUN_NBYTES = 1 << 18
"""The run of this writer: a 2.4 MB slice reads at most half a MiB more, and 4 bytes guard each 256 KiB."""

MAX_RUN_NBYTES = 1 << 30
"""The largest run that a reader takes: it reads that much to verify one byte."""


@dataclass(frozen=True, slots=True, eq=False)
class Overview:
    """The metadata block of a native index."""

    metadata: Metadata
    """What the checkpoint says about itself."""
    generation: str
    """What tells the data files of one commit from those of another."""
    file_nbytes: Ints
    """[files] the exact size of each data file."""
    run_nbytes: int = RUN_NBYTES
    """The bytes of a run."""

    def encode(self) -> bytes:
        """The metadata block."""
        user = sorted((encode_text(name), encode_text(value)) for name, value in self.metadata.user.items())
        return encode_block(
            {
                "description": self.metadata.description,
                "writer": self.metadata.writer,
                "generation": self.generation,
                "run_nbytes": self.run_nbytes,
                "file_nbytes": self.file_nbytes.astype("<u8"),
                **pack_strings("user_name", [name for name, _ in user]),
                **pack_strings("user_value", [value for _, value in user]),
            }
        )

    @classmethod
    def decode(cls, block: Block) -> Self:
        """What the metadata block says; ``InvalidCheckpoint`` where it breaks a law."""
        generation = block.text("generation")
        if not is_generation(generation):
            raise invalid(f"The generation {generation!r} is not made of 1 to 64 letters and digits.")
        sizes = block.numbers("file_nbytes", "<u8")
        if len(sizes) > MAX_FILES or int(sizes.max(initial=0)) > MAX_NBYTES:
            raise invalid(f"There are {len(sizes)} data files, of up to {sizes.max(initial=0)} bytes.")
        names = block.strings("user_name")
        values = block.strings("user_value", len(names))
        user = {decode_text(name): decode_text(value) for name, value in zip(names, values, strict=True)}
        metadata = Metadata(block.text("description"), block.text("writer"), user)
        run_nbytes = block.integer("run_nbytes", MAX_RUN_NBYTES)
        if not run_nbytes:
            raise invalid("Runs of no bytes guard nothing.")
        return cls(metadata, generation, sizes.astype(np.int64), run_nbytes)


def encode_text(text: str) -> bytes:
    """The bytes of a key or of a user's text: UTF-8, and for surrogate escapes the bytes that they stand for."""
    try:
        octets = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ArgumentError(f"{text!r} is no valid Unicode.", "Choose another name.") from error
    if not text.isascii() and decode_text(octets) != text:
        raise UnsupportedError(f"{text!r} has escapes for bytes that are valid UTF-8.", "Write the characters.")
    return octets


def decode_text(octets: bytes) -> str:
    """The text that the bytes are; those that are no UTF-8 become surrogate escapes."""
    return octets.decode("utf-8", "surrogateescape")
