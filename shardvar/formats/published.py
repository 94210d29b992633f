"""Deltas: checkpoints that have only the changes of a model, and the marks by which each is known.

A delta of shardvar has ``DELTA`` in its metadata. Trainers publish the changes between two versions
of a model under the names of its tensors, or with endings. Each dialect leaves its own marks, and
none tells that it is less than a model:

    slime        metadata of the index with delta_encoding: slime, miles, SGLang, vime, ModelExpress
    trl          format sparse_weight_patch in the metadata of a file
    SkyRL        a manifest.json next to it, with base_version and payload_files
    prime-rl     a sparse_manifest.json next to it, with base_step and patch_files
    slime-v1     the tensors __positions__ and __values__, for many tensors at once
    unknown      pairs of keys for positions and values; bytes only, with a checksum for each key;
                 names in the metadata that only a delta has, such as base_version

The first two are read (``verbs.delta.dialects``); the others are named and refused.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress

from shardvar.errors import ShardvarError, UnsupportedError
from shardvar.formats.files import read_beginning
from shardvar.formats.sets import DELTA_ENCODING
from shardvar.pictures.words import message
from shardvar.planning.index import DELTA, Index
from shardvar.planning.slices import TensorTable
from shardvar.records import frozen
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import FileKind
from shardvar.wire.strict_json import parse_json

SLIME, TRL, SKYRL, PRIME_RL, SLIME_V1, UNKNOWN = (
    "slime",
    "trl",
    "SkyRL",
    "prime-rl",
    "slime-v1",
    "unknown",
)
READ = (SLIME, TRL)  # the dialects that are read
TRL_FORMAT = "sparse_weight_patch"
"""The text ``format`` in the metadata of a file of TRL."""
PAIRS = ((".indices", ".values"), (".idx", ".val"), (".positions", ".values"), (".pos", ".val"))
"""The endings of keys with the positions and the values of a tensor."""
_HALVES = tuple(ending for pair in PAIRS for ending in pair)

_ABOUT_SLIME = (DELTA_ENCODING, "compression_format", "version", "base_version")
_DIGEST = r"[0-9a-f]{8,64}|\d{1,20}"
_MANIFESTS = {
    "manifest.json": (SKYRL, {"base_version", "payload_files"}),
    "sparse_manifest.json": (PRIME_RL, {"base_step", "patch_files"}),
}
"""The files next to a delta that name its base, and the keys that they have for it."""
_OF_A_DELTA = r"delta_(?:format|version|type)|base_(?:version|version_id|step)"
"""The names of texts in metadata that only a delta has."""
_INDEX_NBYTES, _MAX_DEPTH = 1 << 26, 32
_SHOWN_DIGITS = 12
"""The digits of a digest that tell checkpoints apart for a person."""
_APPLY = "Apply it to its base: `shardvar apply BASE DELTA OUT`."
_ELSEWHERE = (
    "Apply it to its base with the program that published it, and give the result; or copy its files "
    "as they are."
)


@frozen
class Published:
    """A delta of another program, as far as its marks tell."""

    dialect: str
    details: str  # its own words about itself, maybe none

    def kind(self) -> FileKind:
        what = "a published weight delta, the changes between two versions of a model and no model"
        named = ", ".join(filter(None, (f"dialect {self.dialect}", self.details)))
        return FileKind(
            message(f"{what} ({named})"), _APPLY if self.dialect in READ else _ELSEWHERE
        )


def published_of(
    storage: Storage, user: Mapping[str, str], tensors: TensorTable
) -> Published | None:
    """Return the delta in files of safetensors, by their metadata and keys; None for a model."""
    keys = [*tensors.keys]
    if DELTA_ENCODING in user:
        return Published(
            SLIME, ", ".join(f"{name} {user[name]}" for name in _ABOUT_SLIME if name in user)
        )
    are_pairs = is_in_pairs(keys)
    if user.get("format") == TRL_FORMAT:
        # Its anchors are models, with the same format, and its first files have no mark.
        is_delta = user.get("sparse", str(are_pairs)) == "True"
        return Published(TRL, TRL_FORMAT) if is_delta else None
    if {*keys} == {"__positions__", "__values__"}:
        return Published(SLIME_V1, "positions and values")
    there = storage.names()
    for name, (dialect, fields) in _MANIFESTS.items():
        if name in there and fields <= _fields_of(storage, name):
            return Published(dialect, f"by {name}")
    if are_pairs:
        return Published(UNKNOWN, "positions and values")
    are_bytes = all(tensors.dtype(row) == "uint8" for row in range(len(tensors)))
    if keys and are_bytes and all(re.fullmatch(_DIGEST, user.get(key, "")) for key in keys):
        return Published(UNKNOWN, "encoded bytes, and a checksum of each tensor")
    telling = next((name for name in user if re.fullmatch(_OF_A_DELTA, name)), None)
    return Published(UNKNOWN, f"its metadata have {telling}") if telling else None


def is_in_pairs(keys: Iterable[str]) -> bool:
    """Return True if each key is one half of a pair, positions and values, of a tensor."""
    there = {*keys}
    if not all(key.endswith(_HALVES) for key in there):
        return False
    halves = {
        f"{key.removesuffix(at)}{value}" for at, value in PAIRS for key in there if key.endswith(at)
    }
    return bool(there) and 2 * len(halves) == len(there) and halves <= there


def _fields_of(storage: Storage, name: str) -> set[str]:
    try:
        document = parse_json(read_beginning(storage, name, _INDEX_NBYTES), _MAX_DEPTH)
    except ShardvarError:
        return set()
    return {*document} if isinstance(document, dict) and document.get("type") != "full" else set()


def delta_of(
    storage: Storage, form: str, user: Mapping[str, str], tensors: TensorTable
) -> FileKind | None:
    """Return the kind of a delta; None for a model. Other programs write only safetensors."""
    if DELTA in user:
        return own_delta(user)
    delta = published_of(storage, user, tensors) if form == "safetensors" else None
    return delta.kind() if delta else None


def own_delta(user: Mapping[str, str]) -> FileKind:
    named = ""
    with suppress(ShardvarError):
        mark = parse_json(user[DELTA].encode("utf-8", "surrogateescape"), _MAX_DEPTH)
        about = mark if isinstance(mark, dict) else {}
        base, result = about.get("base"), about.get("result")
        if isinstance(base, str) and isinstance(result, str):
            named = f": sha256:{base[:_SHOWN_DIGITS]} to sha256:{result[:_SHOWN_DIGITS]}"
    what = f"a delta, the changes between two checkpoints{named}"
    return FileKind(message(what), "Apply it to its base: `shardvar apply BASE DELTA OUT`.")


def delta_error(path: str, index: Index) -> UnsupportedError:
    delta = own_delta(index.metadata.user)
    return UnsupportedError(f"{path} is {delta.what}.", delta.remedy)


def check_no_delta(path: str, storage: Storage, form: str, index: Index) -> None:
    """Raise ``UnsupportedError`` for a checkpoint that has only the changes of a model."""
    if DELTA in index.metadata.user:
        raise delta_error(path, index)
    if form != "safetensors":
        return
    tables = [*index.scan()]
    tensors = tables[0].slices.tensors if tables else TensorTable.of(())
    delta = delta_of(storage, form, index.metadata.user, tensors)
    if delta:
        raise UnsupportedError(f"{storage.path} has {delta.what}.", delta.remedy)
