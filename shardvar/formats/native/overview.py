"""The metadata block of a native index, which describes the checkpoint as a whole. Nothing is
believed.

    description, writer     texts
    generation              the text that the data files' names contain: 1 to 64 letters and digits
    run_nbytes              the size of a run of a payload; each run has a checksum
    file_nbytes             u64 for each data file: its exact size
    file_name               only in the versions 3 and 4, packed strings: of each data file, the
                            end of its name, such as ``1f-00002-of-00005``
    file_owner              only in version 4, packed strings: of each data file, the prefix of the
                            checkpoint in the same directory that wrote it; empty for this one
    user_name, user_value   packed strings: the user's metadata, and the digests of tensors as one
                            text (``wire.digests``)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from shardvar.errors import ArgumentError, UnsupportedError
from shardvar.formats.native.names import (
    data_names,
    is_generation,
    is_name_end,
    native_data_name,
)
from shardvar.layout.dtypes import Ints
from shardvar.limits import MAX_FILES, MAX_NBYTES, MAX_RUN_NBYTES
from shardvar.planning.index import Metadata
from shardvar.wire.block_file import (
    INDEX_VERSION,
    NAMED_VERSION,
    REFERRING_VERSION,
    IndexBlock,
    encode_index_block,
    pack_strings,
)
from shardvar.wire.damage import invalid
from shardvar.wire.digests import DIGESTS, take_digests, with_digests

RUN_NBYTES = 1 << 18
"""The run of this writer: a slice reads at most half a MiB more, 4 bytes guard 256 KiB."""


@dataclass(frozen=True, slots=True, eq=False)
class Overview:
    """The metadata block of a native index."""

    metadata: Metadata
    """The description, the writer and the user's metadata."""
    generation: str
    """The token that distinguishes the data files of one commit from the files of another."""
    file_nbytes: Ints
    """[files] the exact size of each data file."""
    run_nbytes: int = RUN_NBYTES
    """Size of a run in bytes."""
    file_names: Sequence[str] = ()
    """[files] the end of the name of each data file; empty if the generation gives all of them."""
    file_owners: Sequence[str] = ()
    """[files] the prefix of the checkpoint that wrote each data file, empty for this one; empty if it
    has written all of them."""

    @property
    def version(self) -> int:
        """The version of the index."""
        if self.file_owners:
            return REFERRING_VERSION
        return NAMED_VERSION if self.file_names else INDEX_VERSION

    def encode(self) -> bytes:
        """Return the metadata block."""
        texts, digests = self.metadata.user, self.metadata.digests
        texts = with_digests(texts, digests) if digests else texts
        user = sorted(zip(map(encode_text, texts), map(encode_text, texts.values()), strict=True))
        return encode_index_block(
            {
                "description": self.metadata.description,
                "writer": self.metadata.writer,
                "generation": self.generation,
                "run_nbytes": self.run_nbytes,
                "file_nbytes": self.file_nbytes.astype("<u8"),
                **(
                    pack_strings("file_name", list(map(encode_text, self.file_names)))
                    if self.file_names
                    else {}
                ),
                **(
                    pack_strings("file_owner", list(map(encode_text, self.file_owners)))
                    if self.file_owners
                    else {}
                ),
                **pack_strings("user_name", [name for name, _ in user]),
                **pack_strings("user_value", [value for _, value in user]),
            }
        )

    @classmethod
    def decode(cls, block: IndexBlock) -> Self:
        """Return the content of a metadata block; ``InvalidCheckpoint`` if it breaks a law."""
        generation = block.text("generation")
        if not is_generation(generation):
            raise invalid(f"The generation {generation!r} is not 1 to 64 letters and digits.")
        sizes = block.numbers("file_nbytes", "<u8")
        if len(sizes) > MAX_FILES or int(sizes.max(initial=0)) > MAX_NBYTES:
            raise invalid(
                f"The index claims {len(sizes)} data files of up to {sizes.max(initial=0)} bytes."
            )
        ends, owners = _read_names(block, len(sizes))
        names = block.strings("user_name")
        values = block.strings("user_value", len(names))
        user = dict(zip(map(decode_text, names), map(decode_text, values), strict=True))
        digests: Mapping[str, str] = take_digests(user) if DIGESTS in user else {}
        about = block.text("description"), block.text("writer")
        metadata = Metadata(*about, user, generation=generation, digests=digests)
        run_nbytes = block.integer("run_nbytes", MAX_RUN_NBYTES)
        if not run_nbytes:
            raise invalid("The index has runs of 0 bytes.")
        return cls(metadata, generation, sizes.astype(np.int64), run_nbytes, ends, owners)

    def names(self, prefix: str) -> list[str]:
        """Return [files] the names of the data files of a prefix."""
        if self.file_owners:
            named = zip(self.file_owners, self.file_names, strict=True)
            return [native_data_name(owner or prefix, end) for owner, end in named]
        if self.file_names:
            return [native_data_name(prefix, end) for end in self.file_names]
        return data_names(prefix, self.generation, len(self.file_nbytes))


def _read_names(block: IndexBlock, count: int) -> tuple[list[str], list[str]]:
    """Return the ends of the data files' names and the prefixes of their writers, as far as the
    block has them."""
    if "file_name" not in block.values:
        return [], []
    ends, owners = list(map(decode_text, block.strings("file_name", count))), list[str]()
    for end in ends:
        if not is_name_end(end):
            raise invalid(f"{end!r} is not the end of a data file's name.")
    if "file_owner" in block.values:
        owners = list(map(decode_text, block.strings("file_owner", count)))
        from shardvar.formats.sets import is_bare  # few checkpoints refer to others

        for owner in owners:
            if owner and not is_bare(owner):
                raise invalid(f"{owner!r} is not the name of a checkpoint in the same directory.")
    if len(set(zip(owners, ends, strict=True) if owners else ends)) != count:
        raise invalid("Two data files have one name.")
    return ends, owners


def encode_text(text: str) -> bytes:
    """Return the bytes of a key or of a user's text: UTF-8, in which surrogate escapes become the
    bytes they stand for.

    >>> encode_text("\\udcff"), encode_text("é")
    (b'\\xff', b'\\xc3\\xa9')
    """
    try:
        octets = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ArgumentError(f"{text!r} is not valid Unicode.", "Choose another name.") from error
    # Escapes that together spell a character, such as the two of b"\xc3\xa9", would come back as
    # that character.
    if not text.isascii() and decode_text(octets) != text:
        raise UnsupportedError(
            f"{text!r} has escapes for bytes that are valid UTF-8.", "Write the characters."
        )
    return octets


def decode_text(octets: bytes) -> str:
    """Return the text that the bytes encode; bytes that are not UTF-8 become surrogate escapes."""
    return octets.decode("utf-8", "surrogateescape")
