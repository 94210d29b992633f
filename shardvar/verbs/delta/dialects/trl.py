"""The layouts of TRL: one file of safetensors for each step, with the positions and values of elements.

    deltas/step_000007.safetensors    the metadata are texts: format sparse_weight_patch, version 1,
                                      sparse True, model_version, and counts

    NAME.indices, NAME.values    int32 positions; bfloat16 values; changed_params is a list of the names
    NAME.idx, NAME.val           encoding raw: int32 positions. gap_delta: uint16 or uint32 gaps, each
                                 the position less the one before, less 1

Positions count elements in C order. No file has a checksum but the first ones of TRL: checksum_sha256
is of all tensors of the result in the order of their names. docs/delta.md names the sources.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from shardvar.errors import UnsupportedError, prefix_errors
from shardvar.formats.published import PAIRS, TRL_FORMAT
from shardvar.layout.dtypes import Ints
from shardvar.verbs.delta.dialects.changes import (
    ChangedTensor,
    Patcher,
    PlacesPatcher,
    PublishedDelta,
    in_ascent,
    numbers_of,
    stored_payload,
)
from shardvar.verbs.reader import Reader
from shardvar.wire.damage import invalid, malformed
from shardvar.wire.strict_json import parse_json
from shardvar.wire.zstd_frame import ReadPayload

VALUE = "bfloat16"
"""The dtype of all values."""
RAW, GAPS = "raw", "gap_delta"
"""The encodings of positions that are read."""
INDICES, IDX = PAIRS[:2]
"""The endings of keys, of the first layout and of the later ones."""
_GAP_DTYPES = ("uint16", "uint32")
_MAX_DEPTH = 2


def open_trl(reader: Reader) -> PublishedDelta:
    """Return the delta that a file of this layout is; no payload is read."""
    user = reader.metadata.user
    if user.get("version") != "1":
        found = repr(user["version"]) if "version" in user else "missing"
        raise UnsupportedError(
            f"{reader.path}: The version of {TRL_FORMAT} is {found}; version 1 is read.",
            "Update shardvar, or apply it with the program that published it.",
        )
    for key, error in reader.faults.items():
        raise error.at(f"{reader.path}: {key!r}")
    keys = [*reader]
    # A file without tensors is of either layout.
    endings = next((pair for pair in (INDICES, IDX) if any(map(_ends(pair), keys))), INDICES)
    encoding = user.get("encoding", GAPS) if endings == IDX else RAW
    if encoding not in (RAW, GAPS):
        raise UnsupportedError(
            f"{reader.path}: The positions have the encoding {encoding!r}; {RAW} and {GAPS} are read.",
            f"Publish it with the encoding {GAPS}, or apply it with the program that published it.",
        )
    names = _names(reader, keys, endings)
    changes = {name: _changed(reader, name, endings, encoding) for name in names}
    version = _number(reader, "model_version")
    # The first files say their base; later ones are published one step after the other.
    base = user.get("prev_model_version", "").replace("-1", "")
    base = base or (str(int(version) - 1) if version else "")
    return PublishedDelta(
        reader, "trl", changes, version, base, whole_sha256=user.get("checksum_sha256", "")
    )


def _ends(pair: tuple[str, str]) -> "partial[bool]":
    return partial(_has_ending, pair)


def _has_ending(pair: tuple[str, str], key: str) -> bool:
    return key.endswith(pair)


def _number(reader: Reader, name: str) -> str:
    found = reader.metadata.user.get(name, "")
    if found and not (found.isascii() and found.isdigit() and len(found) < 19):
        raise invalid(f"{reader.path}: {name} is {found!r}, and not a number.")
    return found


def _names(reader: Reader, keys: list[str], endings: tuple[str, str]) -> list[str]:
    """Return the names of the changed tensors: each has positions and values, and nothing else is
    there."""
    at, _ = endings
    names = [key.removesuffix(at) for key in keys if key.endswith(at)]
    wanted = {name + ending for name in names for ending in endings}
    for key in keys:
        if key not in wanted:
            raise invalid(
                f"{reader.path}: There is {key!r}, and not {_other_half(key, endings)!r}."
            )
    for key in sorted(wanted.difference(keys)):
        raise invalid(f"{reader.path}: There are positions, and no {key!r}.")
    listed = reader.metadata.user.get("changed_params")
    if listed is not None:
        document = parse_json(listed.encode("utf-8", "surrogateescape"), _MAX_DEPTH)
        if not isinstance(document, list) or not all(isinstance(each, str) for each in document):
            raise malformed(f"{reader.path}: changed_params is not a list of names.")
        if sorted(document) != sorted(names):
            other = min({*document} ^ {*names}, default=min(document, default=""))
            raise invalid(
                f"{reader.path}: changed_params and the tensors disagree about {other!r}."
            )
    return names


def _other_half(key: str, endings: tuple[str, str]) -> str:
    at, value = endings
    return key.removesuffix(value) + at if key.endswith(value) else key + at


def _changed(reader: Reader, name: str, endings: tuple[str, str], encoding: str) -> ChangedTensor:
    at, value = endings
    (places, num), (values, num_values) = (_vector(reader, name + each) for each in endings)
    allowed = ("int32",) if encoding == RAW else _GAP_DTYPES
    with prefix_errors(f"{reader.path}: {name!r}"):
        if places not in allowed:
            raise invalid(f"Its positions are {places}, not {' or '.join(allowed)}.")
        if values != VALUE:
            raise UnsupportedError(
                f"Its values are {values}; the dialect has {VALUE}.",
                "Apply it with the program that published it.",
            )
        if num != num_values:
            raise invalid(f"It has {num} positions and {num_values} values.")
    source = _Source(reader, name + at, name + value, places, encoding)
    return ChangedTensor(partial(_open, source), partial(_check, source))


def _vector(reader: Reader, key: str) -> tuple[str, int]:
    tensors = reader.find(key).slices.tensors
    if len(tensors.shape(0)) != 1:
        raise invalid(f"{reader.path}: {key!r} has the shape {list(tensors.shape(0))}.")
    return tensors.dtype(0), tensors.shape(0)[0]


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """The places and values of one tensor."""

    reader: Reader
    places: str
    values: str
    dtype: str
    encoding: str

    def positions(self) -> Iterator[Ints]:
        """Yield the positions, in portions."""
        read, nbytes = stored_payload(self.reader, self.places)
        numbers = numbers_of(read, nbytes, np.dtype(self.dtype).newbyteorder("<").str)
        return numbers if self.encoding == RAW else _of_gaps(numbers)


def _of_gaps(gaps: Iterator[Ints]) -> Iterator[Ints]:
    before = -1
    for each in gaps:
        places = before + np.cumsum(each + 1)
        before = int(places[-1])
        yield places


class _Values:
    """The values of a tensor, one after the other."""

    def __init__(self, read: ReadPayload) -> None:
        self._read, self._at = read, 0

    def read(self, nbytes: int, /) -> bytes:
        """Return the next bytes."""
        self._at += nbytes
        return self._read(self._at - nbytes, nbytes)

    def finish(self) -> None:
        """Do nothing: there are as many as positions."""


def _open(source: _Source, dtype: str, nbytes: int) -> Patcher:
    if dtype != VALUE:
        raise UnsupportedError(
            f"The base has it as {dtype}, and the delta has values of {VALUE}.",
            f"Give a base of {VALUE}: `shardvar reshard BASE NEW --cast {VALUE}` makes one.",
        )
    width = np.dtype("<u2").itemsize
    values = _Values(stored_payload(source.reader, source.values)[0])
    return PlacesPatcher(source.positions(), values, width, nbytes // width)


def _check(source: _Source) -> None:
    """Raise what is wrong with the positions, as far as that shows without the base."""
    for _ in in_ascent(source.positions(), None):
        pass
