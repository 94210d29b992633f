"""Values from typed text: sizes, counts, pairs, indexes. ``ArgumentError`` for others."""

import re
from collections.abc import Sequence
from typing import Any

from shardvar.errors import ArgumentError, UnsupportedError
from shardvar.layout.dtypes import parse_dtype

_SIZE = r"(?i)([0-9]{1,15})(?:\.([0-9]{1,15}))? ?(?:([KMGTP])(I?))?B?"
_UNITS = ("", "K", "M", "G", "T", "P")
_INTEGER = r"[+-]?[0-9]{1,18}"


def parse_size(text: str) -> int:
    """The unit is optional: of powers of 1000 (``MB``) or 1024 (``MiB``)."""
    match = re.fullmatch(_SIZE, text.strip())
    if match is None:
        raise ArgumentError(
            f"Invalid size {text!r}.",
            "Give a number with an optional unit, such as 64MB, 64MiB or 4096.",
        )
    whole, fraction, unit, binary = match.groups()
    scale: int = (1024 if binary else 1000) ** _UNITS.index((unit or "").upper())
    # In integers, since a float of 64 bits rounds large sizes: 1.5 kB is 15 * 1000 / 10.
    decimals: int = 10 ** len(fraction or "")
    scaled = int(whole + (fraction or "")) * scale
    nbytes, rest = divmod(scaled, decimals)
    if rest or not nbytes:
        wrong = "not a whole number of bytes" if rest else "less than one byte"
        raise ArgumentError(
            f"Invalid size {text!r}: it is {wrong}.",
            "Give whole bytes, such as 64MB, 64MiB or 4096.",
        )
    return nbytes


def parse_count(text: str, option: str) -> int:
    """Return an integer from 1 to 999,999,999; ``option`` is named in the error."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        cause = f"Invalid {option} {text!r}: expected an integer from 1 to 999999999."
        raise ArgumentError(cause, f"For example: {option} 4.")
    return int(text)


def parse_pairs(texts: Sequence[str], option: str, form: str) -> dict[str, str]:
    """Return pairs of ``NAME=VALUE``, cut at the first ``=``; ``form`` is for the error."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name and value):
            raise ArgumentError(
                f"Invalid {option} {text!r}: expected {form}.", f"Quote it: {option} '{form}'."
            )
        if name in pairs:
            raise ArgumentError(f"{option} is given twice for {name!r}.", "Give each name once.")
        pairs[name] = value
    return pairs


def parse_renames(texts: Sequence[str], file: str | None) -> dict[str, str]:
    """Return new names by old ones, from options and from a TOML file of one table; the file's come
    first.

    An option is cut at the first ``=``, and one with a regular expression, which may contain that
    sign, at the last.

    >>> parse_renames(["a/*=b/*", "re:(?P<n>[0-9]+)=layer_.*"], None)
    {'a/*': 'b/*', 're:(?P<n>[0-9]+)': 'layer_.*'}
    """
    from shardvar.verbs.renaming import REGULAR  # of the commands that rename

    names = {} if file is None else _read_renames(file)
    for text in texts:
        old, equals, new = text.rpartition("=") if text.startswith(REGULAR) else text.partition("=")
        if not (equals and old and new):
            raise ArgumentError(
                f"Invalid --rename {text!r}: expected OLD=NEW.", "Quote it: --rename 'OLD=NEW'."
            )
        if old in names:
            raise ArgumentError(f"{old!r} is renamed twice.", "Give each name once.")
        names[old] = new
    return names


def _read_renames(path: str) -> dict[str, str]:
    import tomllib  # not above: few commands read such a file

    try:
        with open(path, "rb") as file:
            # Editors of Windows begin with that mark.
            table = tomllib.loads(file.read().decode("utf-8-sig"))
    except OSError as error:
        raise ArgumentError(
            f"Cannot read {path}: {error.strerror}.", "Give a file of lines 'old' = 'new'."
        ) from None
    except (ValueError, RecursionError) as error:  # text that is not UTF-8, or not TOML
        raise ArgumentError(
            f"{path} is not TOML: {error}.", "Write lines such as 'old' = 'new'."
        ) from None
    if not table:
        raise ArgumentError(
            f"{path} has no names.", "Write lines such as 'old' = 'new', or leave the file out."
        )
    for old, new in table.items():
        if not isinstance(new, str) or not new:
            cause = f"{path} gives {old!r} no new name."
            raise ArgumentError(
                cause, "Write 'old' = 'new', with quotes around a name that has dots."
            )
    return table


def parse_casts(texts: Sequence[str]) -> dict[str, str] | str:
    """Return dtypes by globs, or the one dtype of all floating-point tensors."""
    bare = next((text for text in texts if "=" not in text), None)
    if bare is not None and len(texts) > 1:
        cause = f"--cast {bare} is for all floating-point tensors, and another --cast is given."
        raise ArgumentError(
            cause, f"Give each a glob; the last that matches applies: --cast '*={bare}'."
        )
    try:
        if bare is not None:
            return parse_dtype(bare)
        return {
            glob: parse_dtype(given)
            for glob, given in parse_pairs(texts, "--cast", "GLOB=DTYPE").items()
        }
    except UnsupportedError as error:
        # The dtype was typed and not read from a checkpoint, so the fault is the caller's.
        raise ArgumentError(error.cause, error.remedy) from None


def parse_index_text(text: str, shape: Sequence[int]) -> list[int | range]:
    """Return the positions of a basic index along each axis; the text is read, not evaluated."""
    body = text.strip()
    if body.startswith("[") and body.endswith("]"):
        body = body[1:-1]
    words = [word.strip() for word in body.split(",")] if body.strip() else []
    if len(words) > 1 and not words[-1]:
        words.pop()  # a trailing comma makes a tuple of one, as in Python
    key: list[Any] = []
    for word in words:
        parts = [part.strip() for part in word.split(":")]
        are_numbers = all(part == "" or re.fullmatch(_INTEGER, part) for part in parts)
        if word == "...":
            key.append(...)
        elif word == "" or len(parts) > 3 or not are_numbers:
            raise ArgumentError(
                f"{word!r} in the index {text!r} is neither an integer nor a slice.",
                "Write it like '3:7, 0' or '..., -1'.",
            )
        elif len(parts) == 1:
            key.append(int(word))
        else:
            key.append(slice(*(int(part) if part else None for part in parts)))
    from shardvar.layout.indexing import select_basic  # of one command

    # The text has no word for a new axis, so that every selection is of an axis.
    return [along for along in select_basic(tuple(key), tuple(shape)) if along is not None]
