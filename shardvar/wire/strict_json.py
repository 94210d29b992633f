"""JSON of untrusted origin, read more strictly than ``json.loads`` reads it.

A name that occurs twice in one object is refused, because parsers disagree on which of the two
counts. So are values nested deeper than the format needs (before anything recurses), bytes that are
not UTF-8, half of a surrogate pair, and, unless the format's writers use them, ``NaN`` and
``Infinity``. Integers keep all their digits; the format checks their range.
"""

import codecs
import json
import re
from typing import Any, NoReturn

import numpy as np

from shardvar.errors import CheckpointError, MalformedCheckpoint
from shardvar.wire.damage import invalid, malformed

MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""The marks with which editors begin texts in UTF-8 and in UTF-16."""
_ESCAPE = re.compile(rb"\\.", re.DOTALL)

_STEP = np.zeros(256, np.int32)  # the change of the depth at each byte value
_STEP[list(b"[{")] = 1
_STEP[list(b"]}")] = -1

_NO_MARKS = bytes(octet for octet in range(256) if octet not in b'"[]{}')


def parse_json(data: bytes, max_depth: int, *, allow_nan: bool = False) -> Any:
    """Return the value that ``data`` encodes; offsets in errors are bytes of ``data``."""
    if data.startswith(MARKS):
        raise MalformedCheckpoint(
            "The JSON begins with a byte order mark, which JSON does not allow.",
            "Save it as UTF-8 without a byte order mark.",
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise malformed(f"The JSON is not UTF-8 at offset {error.start}.") from None
    # A quote that is not escaped opens or closes a string, so a mark is outside strings if the
    # number of quotes up to it is even. In ``{"a[": [1]}`` the marks are { " [ " [ ] }; the first [
    # has one quote before it; the depth of the others is 1, 2, 1, 0. Escapes are blanked first, so
    # that \\" is not taken for a quote.
    octets = _ESCAPE.sub(b"  ", data) if b"\\" in data else data
    marks = np.frombuffer(octets.translate(None, delete=_NO_MARKS), np.uint8)
    outside = np.cumsum(marks == ord('"'), dtype=np.int32) & 1 == 0
    if np.cumsum(_STEP[marks] * outside, dtype=np.int32).max(initial=0) > max_depth:
        raise malformed(f"The JSON nests values deeper than {max_depth}.")
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=float if allow_nan else _no_constant
        )
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode())
        raise malformed(f"The JSON is wrong or ends at offset {offset}: {error.msg}.") from None
    except CheckpointError:
        raise  # the hooks' errors are ValueErrors too
    except ValueError:
        raise malformed("The JSON has a number of thousands of digits.") from None
    if b"\\u" in data:
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise malformed(
                "The JSON escapes half of a surrogate pair, which is not a character."
            ) from None
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        last = {name: place for place, (name, _) in enumerate(pairs)}
        twice = next(name for place, (name, _) in enumerate(pairs) if place != last[name])
        raise invalid(f"The name {twice!r} occurs twice in one JSON object.")
    return value


def _no_constant(name: str) -> NoReturn:
    raise malformed(f"The JSON has {name}, which JSON does not allow.")
