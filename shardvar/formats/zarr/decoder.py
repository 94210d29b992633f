"""TensorStore, which decodes chunks: the one module that imports it, when the first chunk is
decoded.

On a disk it reads the files of chunks itself. Of a bucket, and of a database, it is given the bytes
of each chunk (``StoredChunk``), in a storage in memory that has nothing else.

TensorStore ends the process when it is asked for more memory than there is. So it is given only
descriptions that ``wire.zarr_metadata`` has checked, and only arrays whose claims ``contents`` has
compared with the bytes that are stored. It does not read chunks that are absent, unless told that
the fill value stands for them.

Its threads do not survive a fork. A child of a process that has used it is refused.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardvar.errors import (
    COPY_AGAIN,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    MalformedCheckpoint,
    ShardvarError,
    StorageError,
    UnsupportedError,
)
from shardvar.extras import missing_extra
from shardvar.forks import new_lock
from shardvar.layout.dtypes import Array
from shardvar.storage.protocol import Storage

_OPEN_ARRAYS = 256
"""Arrays that are held open at a time."""

_lock = new_lock()
_loaded: dict[str, Any] = {}
"""The module, and the process that imported it."""
_POOLS = {"cache_pool": {"total_bytes_limit": 0}}
"""No chunk is kept."""


def _tensorstore() -> Any:
    """Return the module; ``MissingExtra`` if it is not installed."""
    with _lock:
        if not _loaded:
            try:
                import tensorstore
            except ImportError:
                cause = "Reading compressed chunks needs the package tensorstore, which is not installed."
                raise missing_extra(cause, "orbax") from None
            _loaded.update(module=tensorstore, process=os.getpid())
        if _loaded["process"] != os.getpid():
            cause = (
                "This process was forked from one that has read chunks, whose threads it does not "
                "have."
            )
            raise UnsupportedError(
                cause, "Start it with multiprocessing's method 'spawn', or read before the fork."
            )
        return _loaded["module"]


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """The bytes of a chunk, for TensorStore."""

    array: Any
    """An array that has no other chunk."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """The folder of a checkpoint, as TensorStore sees it."""

    storage: Storage
    """The folder."""
    takes_bytes: bool
    """True if it is given the bytes of chunks, and reads no file itself."""
    _arrays: dict[str, Any]
    """The arrays that are open, by path."""
    _contexts: list[Any]
    """The caches, as the only item, once something was read."""

    @classmethod
    def of(cls, storage: Storage, has_files: bool = True) -> "Decoder":
        """Return the decoder of a folder; nothing is imported or opened."""
        return cls(storage, not has_files or storage.local_path is None, {}, [])

    def take(
        self, path: str, name: str, document: Mapping[str, Any], fills: bool, octets: memoryview
    ) -> StoredChunk:
        """Return a chunk of an array from its bytes."""
        module = _tensorstore()
        with _Translation(f"{path}/{name}"):
            context = module.Context(_POOLS)
            place = {"driver": "memory", "path": f"{path}/" if path else ""}
            store = module.KvStore.open(place, context=context).result()
            held = octets.obj  # a copy of a large chunk would take long
            is_whole = type(held) is bytes and len(held) == len(octets)
            store[name.encode()] = held if is_whole else bytes(octets)
            spec = _spec(document, place, fills)
            return StoredChunk(
                module.open(
                    spec, context=context, open=True, assume_metadata=True, read=True
                ).result()
            )

    def start_reading(
        self,
        path: str,
        document: Mapping[str, Any],
        fills: bool,
        region: tuple[slice, ...],
        chunk: StoredChunk | None,
    ) -> Any:
        """Begin to decode a region of an array; ``finish_reading`` waits for it.

        ``chunk`` has the region; None for one that is in the folder.
        """
        with _Translation(path):
            array = self._array(path, document, fills) if chunk is None else chunk.array
            return array[region].read(order="C")

    def finish_reading(self, path: str, pending: Any) -> memoryview:
        """Return the bytes of a region, in C order."""
        with _Translation(path):
            array: Array = np.ascontiguousarray(pending.result())
        return array.reshape(-1).view(np.uint8).data

    def fill_value(self, path: str, document: Mapping[str, Any]) -> bytes:
        """Return the element that stands for absent chunks of an array; no file is looked at."""
        module = _tensorstore()
        with _Translation(path):
            empty = module.open(
                _spec(document, {"driver": "memory"}, fills=True),
                open=True,
                assume_metadata=True,
                read=True,
            ).result()
            element: bytes = empty[(0,) * empty.rank].read().result().tobytes()
        return element

    def _array(self, path: str, document: Mapping[str, Any], fills: bool) -> Any:
        with _lock:
            found = self._arrays.get(path)
            if found is None:
                # TensorStore takes paths that are absolute and free of links that lead up.
                folder = os.path.realpath(self.storage.local_path or "") + "/"
                place = {"driver": "file", "path": f"{folder}{path}/" if path else folder}
                module = _tensorstore()
                found = module.open(
                    _spec(document, place, fills),
                    context=self._context(),
                    open=True,
                    assume_metadata=True,
                    read=True,
                ).result()
                if len(self._arrays) >= _OPEN_ARRAYS:
                    self._arrays.clear()
                self._arrays[path] = found
            return found

    def _context(self) -> Any:
        with _lock:
            if not self._contexts:
                self._contexts.append(_tensorstore().Context(_POOLS))
            return self._contexts[0]


def _spec(document: Mapping[str, Any], place: Mapping[str, Any], fills: bool) -> dict[str, Any]:
    """Return TensorStore's specification of an array."""
    return {
        "driver": "zarr3" if document["zarr_format"] == 3 else "zarr",
        "kvstore": dict(place),
        "metadata": dict(document),
        "fill_missing_data_reads": fills,
    }


class _Translation:
    """A context that turns TensorStore's errors into shardvar's."""

    __slots__ = ("place",)

    def __init__(self, place: str) -> None:
        self.place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, ShardvarError):
            raise _translated(error, self.place) from None


def _translated(error: Exception, place: str) -> ShardvarError:
    """Return shardvar's error for one of TensorStore."""
    # The message goes on with the whole specification, and the source lines of the library.
    text = re.split(r" \[(?:tensorstore_spec|source)", str(error))[0].replace("\n", " ")
    cause = f"{place}: {text[:500]}."
    # The status is the first word; the rest may have names of arrays in it.
    status = text.partition(":")[0]
    if isinstance(error, PermissionError) or status == "PERMISSION_DENIED":
        return StorageError(cause, "Change the permissions of the files.")
    if "Digest mismatch" in text or "checksum verification failed" in text:
        return CorruptCheckpoint(cause, COPY_AGAIN)
    is_short = ": Truncated " in text or "Not enough data" in text
    if status in ("NOT_FOUND", "OUT_OF_RANGE") or is_short:
        return IncompleteCheckpoint(cause, "Copy the checkpoint again, with all its folders.")
    return MalformedCheckpoint(cause, COPY_AGAIN)
