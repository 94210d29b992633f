"""In-toto statements: the digests of a checkpoint in the form that tools for signatures carry.

    {"_type": "https://in-toto.io/Statement/v1",
     "subject": [{"name": "model", "digest": {"shardvarDigest1": "8dbf..."}}],
     "predicateType": "https://shardvar/tensor-digest/v1",
     "predicate": {"tensors": [{"name": "step", "digest": {"shardvarDigest1": "828d..."}}, ...]}}

The subject is the digest of all tensors, so the statement is true of the model in every format. A
signed statement is in a DSSE envelope, and that may be in a Sigstore bundle. Both are read here.
Their signatures are not compared: only the tool that signed knows the key.
"""

import base64
import os
import re
from typing import Any

from shardvar.errors import MalformedCheckpoint
from shardvar.verbs.compare.digest import DigestReport
from shardvar.wire.digests import digest_of_all
from shardvar.wire.strict_json import parse_json

TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://shardvar/tensor-digest/v1"
ALGORITHM = "shardvarDigest1"
"""The name of the digest in a set of digests; the number is the version of docs/digest.md."""
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_DIGEST = re.compile("[0-9a-f]{64}")
_MAX_DEPTH = 64
_WRITE_AGAIN = "`shardvar digest PATH --in-toto` prints one."


def statement_of(report: DigestReport) -> dict[str, Any]:
    """Return the statement of a checkpoint whose tensors all have digests."""
    tensors = [{"name": key, "digest": {ALGORITHM: value}} for key, value in report.tensors.items()]
    name = os.path.basename(report.path.rstrip("/"))
    return {
        "_type": TYPE,
        "subject": [{"name": name, "digest": {ALGORITHM: report.checkpoint}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {"tensors": tensors},
    }


def tensors_of_statement(octets: bytes, place: str) -> dict[str, str]:
    """Return the digests of tensors by key; ``MalformedCheckpoint`` if the bytes are not a whole
    statement, or not of these digests."""
    try:
        found = _unwrapped(parse_json(octets, _MAX_DEPTH))
        kind, predicate_type = found["_type"], found["predicateType"]
    except (ValueError, KeyError, TypeError):
        raise MalformedCheckpoint(
            f"{place} is neither a manifest nor an in-toto statement.", _WRITE_AGAIN
        ) from None
    if (kind, predicate_type) != (TYPE, PREDICATE_TYPE):
        raise MalformedCheckpoint(
            f"{place} is a statement of type {kind!r} with the predicate {predicate_type!r}, not "
            f"of tensor digests.",
            _WRITE_AGAIN,
        )
    try:
        listed = [(each["name"], each["digest"][ALGORITHM]) for each in _tensors(found)]
        subjects = [each["digest"][ALGORITHM] for each in found["subject"]]
    except (KeyError, TypeError):
        raise MalformedCheckpoint(
            f"{place} lacks a name or a digest {ALGORITHM!r}.", _WRITE_AGAIN
        ) from None
    tensors = dict(listed)
    if len(tensors) < len(listed) or not all(map(_is_entry, tensors.items())):
        raise MalformedCheckpoint(
            f"{place} has a wrong name or digest, or a name twice.", _WRITE_AGAIN
        )
    if subjects != [digest_of_all(tensors)]:
        raise MalformedCheckpoint(
            f"The digest of the subject in {place} does not match the tensors that it lists.",
            _WRITE_AGAIN,
        )
    return tensors


def _tensors(statement: Any) -> list[Any]:
    found = statement["predicate"]["tensors"]
    if not isinstance(found, list) or not isinstance(statement["subject"], list):
        raise TypeError
    return found


def _unwrapped(value: Any) -> Any:
    """The statement in a bundle or an envelope, or itself."""
    value = value.get("dsseEnvelope", value) if isinstance(value, dict) else value
    if "payload" not in value:
        return value
    if value["payloadType"] != _PAYLOAD_TYPE:
        raise ValueError
    return parse_json(base64.b64decode(value["payload"], validate=True), _MAX_DEPTH)


def _is_entry(entry: tuple[Any, Any]) -> bool:
    key, value = entry
    return isinstance(key, str) and isinstance(value, str) and bool(_DIGEST.fullmatch(value))
