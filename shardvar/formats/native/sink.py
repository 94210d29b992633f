"""A native checkpoint that is being written.

Data files carry their final names from the start, for a name with a fresh generation in it means nothing to anybody
until an index names it. The commit is one rename: of the new index over the old one. What the new index does not name
is removed afterwards, by this writer or, should it die here, by the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shardvar.errors import CheckpointError, UnsupportedError, prefix_errors
from shardvar.formats.commit import put_in_place, remove_unnamed
from shardvar.formats.native.layout import encode_rows, plan_places, sort_rows
from shardvar.formats.native.names import MAX_FILES, aside_name, check_generation, data_names, index_name, leftovers
from shardvar.formats.native.overview import RUN_NBYTES, Overview, encode_text
from shardvar.formats.protocol import FileChecksums
from shardvar.layout.dtypes import ITEMSIZES, NAMES
from shardvar.layout.region import Ints
from shardvar.planning.capabilities import Capabilities, check_holds
from shardvar.planning.index import Metadata
from shardvar.planning.plan import Assignment
from shardvar.planning.slices import SliceTable
from shardvar.storage.protocol import Storage
from shardvar.wire.block_file import encode_block_file, open_block_file
from shardvar.wire.crc import CRC32C, Checksum

MAX_KEY_NBYTES = (1 << 16) - 1
"""The longest key: so that a block with it stays a block."""

MAX_SLICE_NBYTES = 1 << 41
"""The largest slice: the checksums of its runs take half of the largest block that readers accept."""

CAPABILITIES = Capabilities(
    dtypes=frozenset(NAMES),
    slice_dtypes=frozenset(name for name, itemsize in zip(NAMES, ITEMSIZES.tolist(), strict=True) if itemsize),
    max_slice_rank=64,
    empty_slices=True,
)
"""Everything; only what tells its own size, strings and variants, is never cut."""


_OTHER = "x"
"""Added to a generation whose name is taken."""


@dataclass(frozen=True, slots=True)
class NativeWriter:
    """How a data file is guarded; nothing frames it."""

    run_nbytes: int = RUN_NBYTES
    """The bytes of a run."""

    @property
    def crc(self) -> Checksum:
        """The checksum of payloads and runs."""
        return CRC32C

    def checksum_whole(self, dtype: str, count: int, payload: memoryview) -> int:
        """That of any other payload."""
        return CRC32C.compute(payload)

    def frame(self, slices: SliceTable, start: Ints, checksums: FileChecksums) -> Sequence[tuple[int, bytes]]:
        """Nothing stands around the payloads."""
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class NativeSink:
    """A checkpoint that is being written."""

    storage: Storage
    """Where the files go."""
    prefix: str
    """The checkpoint's name."""
    assignment: Assignment
    """What goes where."""
    keys: Sequence[bytes]
    """The keys of the assignment's tensors, as they are stored."""
    overview: Overview
    """What the index says as a whole."""
    start: Ints
    """[m] where each payload begins in its file."""
    writer: NativeWriter = NativeWriter()
    """How each file is guarded."""

    @property
    def asides(self) -> list[str]:
        """The data files' names, which are final."""
        return data_names(self.prefix, self.overview.generation, self.assignment.num_files)

    def commit(self, checksums: Sequence[FileChecksums]) -> None:
        """Write the index aside, rename it over the old one, and remove what it does not name."""
        rows = sort_rows(self.assignment, self.keys, self.start, checksums)
        octets = b"".join(encode_block_file(encode_rows(rows), self.overview.encode()))
        aside = aside_name(self.prefix, self.overview.generation)
        data = [(name, name) for name in self.asides]
        put_in_place(self.storage, data, (aside, index_name(self.prefix)), octets)
        remove_unnamed(self.storage, lambda names: leftovers(names, self.prefix, self.asides))


def create_sink(
    storage: Storage, prefix: str, assignment: Assignment, metadata: Metadata, generation: str
) -> NativeSink:
    """Lay the slices out; ``UnsupportedError`` where the format cannot hold them."""
    for name in (generation, generation + _OTHER):
        check_generation(name)
    _check_holds(assignment)
    keys = [encode_text(key) for key in assignment.slices.tensors.keys]
    longest = max(map(len, keys), default=0)
    if longest > MAX_KEY_NBYTES:
        raise UnsupportedError(f"A key has {longest} bytes; {MAX_KEY_NBYTES} are the most.", "Choose a shorter one.")
    start, sizes = plan_places(assignment)
    description = metadata.description or assignment.description
    metadata = Metadata(description, metadata.writer, metadata.user)
    fresh = _fresh(storage, prefix, generation)
    return NativeSink(storage, prefix, assignment, keys, Overview(metadata, fresh, sizes), start)


def _check_holds(assignment: Assignment) -> None:
    slices = assignment.slices
    check_holds(slices, CAPABILITIES, "shardvar")
    if assignment.num_files > MAX_FILES:
        raise UnsupportedError(f"{assignment.num_files} files are too many; {MAX_FILES} are the most.", "Join some.")
    if slices.nbytes.max(initial=0) > MAX_SLICE_NBYTES:
        row = int(slices.nbytes.argmax())
        cause = f"The slice {slices.region(row)} of {slices.key(row)!r} has {slices.nbytes[row]} bytes."
        raise UnsupportedError(cause, f"A slice has {MAX_SLICE_NBYTES} at most; cut the tensor into more slices.")
    cut = (ITEMSIZES[slices.codes()] == 0) & ~slices.is_whole()
    if cut.any():
        raise UnsupportedError(f"{slices.key(int(cut.argmax()))!r} is cut, and its payload has no parts.", "Join it.")


def _fresh(storage: Storage, prefix: str, generation: str) -> str:
    """The generation, or one beside it where the index that is there has files of that name.

    Writing these anew would break the old checkpoint before the new one is there.
    """
    try:
        file = storage.open(index_name(prefix))
        try:
            with prefix_errors(file.name):
                old = Overview.decode(open_block_file(file.read, file.size).metadata).generation
        finally:
            file.close()
    except (CheckpointError, UnsupportedError):
        return generation  # there is none, or none that could be broken
    return generation + _OTHER if old == generation else generation
