"""JSON of untrusted origin, read more strictly than ``json.loads`` does.

A name that stands twice in one object is refused, since which of the two counts is a parser's secret. So are values
nested deeper than the format needs (before anything recurses), bytes that are not UTF-8, half of a surrogate pair,
``NaN`` and ``Infinity``. Integers keep all their digits: whether one fits in 64 bits is for the format to ask.
"""

import json
import re
from typing import Any, NoReturn

import numpy as np

from shardvar.errors import CheckpointError
from shardvar.wire.damage import invalid, malformed

_ESCAPE = re.compile(rb"\\.", re.DOTALL)

_STEP = np.zeros(256, np.int32)
"""What each byte does to the depth."""
_STEP[list(b"[{")] = 1
_STEP[list(b"]}")] = -1

_IS_MARK = _STEP != 0
_IS_MARK[ord('"')] = True


def parse(data: bytes, max_depth: int) -> Any:
    """The value that ``data`` says; offsets in errors are bytes of ``data``."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise malformed(f"The JSON is not UTF-8 at offset {error.start}.") from None
    _check_depth(data, max_depth)
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode())
        raise malformed(f"The JSON breaks off or goes wrong at offset {offset}: {error.msg}.") from None
    except CheckpointError:
        raise  # those of the hooks are ValueErrors, too
    except ValueError:
        raise malformed("The JSON holds a number of thousands of digits.") from None
    if b"\\u" in data:
        _check_surrogates(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        last = {name: place for place, (name, _) in enumerate(pairs)}
        twice = next(name for place, (name, _) in enumerate(pairs) if place != last[name])
        raise invalid(f"The name {twice!r} stands twice in one JSON object.")
    return value


def _no_constant(name: str) -> NoReturn:
    raise malformed(f"The JSON holds {name}, which is no JSON number.")


def _check_depth(data: bytes, max_depth: int) -> None:
    """Count brackets outside strings; a quote outside an escape opens or closes a string."""
    octets = np.frombuffer(_ESCAPE.sub(b"  ", data) if b"\\" in data else data, np.uint8)
    marks = octets[_IS_MARK[octets]]
    outside = np.cumsum(marks == ord('"'), dtype=np.int32) & 1 == 0
    if np.cumsum(_STEP[marks] * outside, dtype=np.int32).max(initial=0) > max_depth:
        raise malformed(f"The JSON nests values more than {max_depth} deep.")


def _check_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise malformed("The JSON escapes half of a surrogate pair, which is no character.") from None
