"""Files of Orbax: without what differs from save to save, which are times, the path of the folder, and the
names of files that a database has by chance; and databases as TensorStore writes them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spec_tests.hostile.zarr import BYTES

_NAME = re.compile(r"[0-9a-f]{32}")


def settled(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return files by path, equal for equal checkpoints of Orbax; all others are as they are."""
    if not any(path.rpartition("/")[2] == "_CHECKPOINT_METADATA" for path in files):
        return dict(files)
    found: dict[str, bytes] = {}
    for path, octets in sorted(files.items()):
        name = path.rpartition("/")[2]
        if name == "_CHECKPOINT_METADATA":
            octets = re.sub(rb"\d{19}", b"TIME", octets)
        elif name == "commit_success.txt":
            octets = re.sub(rb"(?<= to )/.*", b"PATH", octets)
        elif name == "manifest.ocdbt":
            # The magic and the size; a random name, the time and a checksum are further on.
            octets = octets[:12]
        elif _NAME.fullmatch(name):
            # Nodes have names of files, and end with a checksum of all that.
            octets = re.sub(rb"[0-9a-f]{32}", b"NAME", octets)
            octets = octets[:-4] if octets.startswith(bytes.fromhex("0cdb20de")) else octets
            path = path.removesuffix(name) + "NAME"
            while path in found:
                path += "+"
        found[path] = octets
    return found


def sharded(chunks: list[int], inner: list[Any]) -> dict[str, Any]:
    """The codec of chunks that have inner ones."""
    codecs = {"codecs": [BYTES, *inner], "index_codecs": [BYTES, {"name": "crc32c"}]}
    return {"name": "sharding_indexed", "configuration": {"chunk_shape": chunks} | codecs}


METADATA: dict[str, dict[str, Any]] = {
    "plain": {"driver": "zarr", "metadata": {"compressor": None, "chunks": [16, 8]}},
    "compressed": {"driver": "zarr", "metadata": {"compressor": {"id": "zstd"}, "chunks": [7, 5]}},
    "large": {"driver": "zarr", "metadata": {"compressor": {"id": "zstd"}, "chunks": [64, 64]}},
    "guarded": {"driver": "zarr3", "metadata": {"codecs": [BYTES, {"name": "crc32c"}]}},
    "packed": {"driver": "zarr3", "metadata": {"codecs": [BYTES, {"name": "gzip"}]}},
    "inner": {"driver": "zarr3", "metadata": {"codecs": [sharded([4, 4], [{"name": "zstd"}])]}},
}


def write_database(folder: Path, arrays: Mapping[str, Any], **config: Any) -> dict[str, Any]:
    """Write arrays into a database, each as its name says; return them."""
    import tensorstore

    base = {"driver": "file", "path": f"{folder}/"}
    context = tensorstore.Context()
    with tensorstore.Transaction(atomic=False) as transaction:
        for key, values in arrays.items():
            kind = METADATA[key.split(".")[0]]
            spec = {
                "driver": kind["driver"],
                "kvstore": {"driver": "ocdbt", "base": base, "path": f"{key}/", "config": config},
                "metadata": kind["metadata"],
            }
            how = {"dtype": values.dtype, "shape": values.shape, "transaction": transaction}
            opened = tensorstore.open(spec, create=True, context=context, **how).result()
            opened[...] = values
    return dict(arrays)


def open_database(
    path: Path, config: Mapping[str, Any] | None = None, context: Any | None = None
) -> Any:
    """Return a database as TensorStore opens it."""
    import tensorstore

    base = {"driver": "file", "path": f"{path}/"}
    place = {"driver": "ocdbt", "base": base, "config": dict(config or {})}
    return tensorstore.KvStore.open(place, context=context or tensorstore.Context()).result()
