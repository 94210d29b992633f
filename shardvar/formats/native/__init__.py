"""The native format: sharded checkpoints in which every byte is guarded and any part is found at
once.

docs/format.md describes a checkpoint on disk byte by byte. The modules:

    names       file names, and what a person may type for them
    index       the metadata block and blocks of entries <-> values in memory
    source      an open checkpoint: keys -> index blocks -> entries -> payloads
    references  files that several checkpoints need: found, kept, and removed by the last
    sink        a checkpoint being written: places of payloads, commit

Two checkpoints of the same input differ only in the name of the generation.
"""

import os
from dataclasses import dataclass

from shardvar.formats.native.names import (
    aside_name,
    find_native,
    mark_name,
    native_data_name,
    native_index_name,
    owner_of,
)
from shardvar.formats.native.references import names_of_others, release, write_mark
from shardvar.formats.native.sink import CAPABILITIES, NativeSink, generation_of, native_sink
from shardvar.formats.native.source import NativeSource, open_native
from shardvar.formats.protocol import NewCheckpoint, SharedFormat
from shardvar.formats.sinks import take_away
from shardvar.planning.slices import Capabilities
from shardvar.storage.concurrency import do_all
from shardvar.storage.protocol import Storage
from shardvar.storage.requests import overtaken_error


@dataclass(frozen=True, slots=True)
class NativeFormat(SharedFormat):
    """The native format; its methods name a checkpoint by its prefix."""

    name: str = "shardvar"

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def locate(self, storage: Storage, name: str) -> list[str]:
        return find_native(storage.names(), name)

    def open(self, storage: Storage, name: str) -> NativeSource:
        return open_native(storage, name)

    def lay_out(self, new: NewCheckpoint) -> NativeSink:
        """Lay the slices out; a commit of written files that was killed can be made again."""
        return native_sink(new)

    def remove(self, storage: Storage, name: str) -> None:
        index, aside, done = native_index_name(name), aside_name(name, "removed"), list[str]()
        seen = storage.status(index)
        freed = {*names_of_others(storage, name)}
        freed.update(each for each in storage.names() if owner_of(each) == name)
        if seen and freed:
            write_mark(storage, mark_name(name, "gone", "removed"), freed)
        # Without a claim, another writer may have put its index in place since.
        if seen and storage.stamp(index) not in (None, seen.stamp):
            raise overtaken_error(os.path.join(storage.path, index))
        storage.announce([index])

        def unnamed(_names: list[str]) -> list[str]:
            left, marks = release(storage, name, (), freed)
            done.extend(marks)
            storage.announce([*left, *marks])
            return left

        take_away(storage, [(index, aside)], unnamed, has_mark=True)
        do_all(storage.remove, done, storage.traits)

    def process_file(self, name: str, token: str, process: int, count: int) -> str:
        return native_data_name(name, f"{token}-{process:05}-of-{count:05}")

    def generation_of(self, storage: Storage, name: str) -> str:
        return generation_of(storage, name) or ""

    def adopts_objects(self) -> bool:
        return True


FORMAT = NativeFormat()
