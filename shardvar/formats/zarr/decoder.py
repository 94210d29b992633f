"""TensorStore, which decodes chunks: the one module that imports it, when the first chunk is
decoded.

TensorStore ends the process when it is asked for more memory than there is. So it is given only
descriptions that ``wire.zarr_metadata`` has checked, and only arrays whose claims ``contents`` has
compared with the bytes that are stored. It does not read chunks that are absent, unless told that
the fill value stands for them.

Its threads do not survive a fork. A child of a process that has used it is refused.
"""

import os
import re
from collections.abc import Iterator, Mapping
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
    replaced_error,
)
from shardvar.extras import missing_extra
from shardvar.forks import new_lock
from shardvar.layout.dtypes import Array
from shardvar.storage.protocol import Storage

_OPEN_ARRAYS = 256
"""Arrays that are held open at a time."""
_NODES_NBYTES = 1 << 26
"""Bytes of index nodes of OCDBT that are kept; chunks are not."""

_lock = new_lock()
_loaded: dict[str, Any] = {}
"""The module, and the process that imported it."""
_POOLS = {
    "cache_pool": {"total_bytes_limit": 0},
    "cache_pool#nodes": {"total_bytes_limit": _NODES_NBYTES},
}
"""Caches of one checkpoint: a database keeps what it has seen of the folder."""


def _tensorstore() -> Any:
    """Return the module; ``MissingExtra`` if it is not installed."""
    with _lock:
        if not _loaded:
            try:
                import tensorstore
            except ImportError:
                cause = (
                    "Reading compressed chunks and OCDBT needs the package tensorstore, which is "
                    "not installed."
                )
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
class Decoder:
    """The folder of a checkpoint, as TensorStore sees it."""

    storage: Storage
    """The folder."""
    is_ocdbt: bool
    """True if files are values of a database in the folder."""
    _arrays: dict[str, Any]
    """The arrays that are open, by path."""
    _contexts: list[Any]
    """The caches, as the only item, once something was read."""
    _databases: dict[str, Any]
    """The database, once it is open, under an empty name."""

    @classmethod
    def of(cls, storage: Storage, is_ocdbt: bool) -> "Decoder":
        """Return the decoder of a folder; nothing is imported or opened."""
        return cls(storage, is_ocdbt, {}, [], {})

    def keys(self) -> list[str]:
        """Return the keys of the database, sorted."""
        with _Translation("manifest.ocdbt"):
            return sorted(
                key.decode("utf-8", "surrogateescape") for key in self._database().list().result()
            )

    def values(self, keys: list[str]) -> Iterator[bytes]:
        """Yield small values of the database, in order."""
        database = self._database()
        for start in range(0, len(keys), 1000):
            some = keys[start : start + 1000]
            for key, future in [
                (key, database.read(key.encode("utf-8", "surrogateescape"))) for key in some
            ]:
                with _Translation(key):
                    value: bytes = future.result().value
                yield value

    def has_bytes(self, key: str, nbytes: int) -> bool:
        """Return True if a value of the database has at least that many bytes."""
        if not nbytes:
            return True
        last, database = slice(nbytes - 1, nbytes), self._database()
        try:
            name = key.encode("utf-8", "surrogateescape")
            result = database.read(name, byte_range=last).result()
        except ShardvarError:
            raise
        except (ValueError, IndexError) as error:
            if "OUT_OF_RANGE" in str(error):
                return False
            raise _translated(error, key) from None
        return bool(result.state == "value")

    def start_reading(
        self, path: str, document: Mapping[str, Any], fills: bool, region: tuple[slice, ...]
    ) -> Any:
        """Begin to decode a region of an array; ``finish_reading`` waits for it."""
        with _Translation(path):
            return self._array(path, document, fills)[region].read(order="C")

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
                {
                    "driver": "zarr3" if document["zarr_format"] == 3 else "zarr",
                    "kvstore": {"driver": "memory"},
                    "metadata": dict(document),
                    "fill_missing_data_reads": True,
                },
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
                spec = {
                    "driver": "zarr3" if document["zarr_format"] == 3 else "zarr",
                    "kvstore": self._place(f"{path}/" if path else ""),
                    "metadata": dict(document),
                    "fill_missing_data_reads": fills,
                }
                module = _tensorstore()
                found = module.open(
                    spec, context=self._context(), open=True, assume_metadata=True, read=True
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

    def _database(self) -> Any:
        with _lock:
            if "" not in self._databases:
                with _Translation("manifest.ocdbt"):
                    opened = (
                        _tensorstore()
                        .KvStore.open(self._place(""), context=self._context())
                        .result()
                    )
                self._databases[""] = opened
            return self._databases[""]

    def _place(self, path: str) -> dict[str, Any]:
        # TensorStore takes paths that are absolute and free of links that lead up.
        if self.storage.local_path is None:
            cause = (
                f"{self.storage.path} is not on a local disk. Compressed chunks and OCDBT are "
                "read only there."
            )
            raise UnsupportedError(cause, "Copy the checkpoint to a local disk.")
        folder = os.path.realpath(self.storage.local_path) + "/"
        if not self.is_ocdbt:
            return {"driver": "file", "path": folder + path}
        base = {"driver": "file", "path": folder}
        return {"driver": "ocdbt", "base": base, "path": path, "cache_pool": "cache_pool#nodes"}


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
    if "Configuration mismatch" in text:
        return replaced_error(place)
    if isinstance(error, PermissionError) or status == "PERMISSION_DENIED":
        return StorageError(cause, "Change the permissions of the files.")
    if "Digest mismatch" in text or "checksum verification failed" in text:
        return CorruptCheckpoint(cause, COPY_AGAIN)
    # Of a data file of a database that is missing, it says only that it is not long enough.
    is_short = ": Truncated " in text or "Not enough data" in text
    if status in ("NOT_FOUND", "OUT_OF_RANGE") or is_short:
        return IncompleteCheckpoint(cause, "Copy the checkpoint again, with all its folders.")
    return MalformedCheckpoint(cause, COPY_AGAIN)
