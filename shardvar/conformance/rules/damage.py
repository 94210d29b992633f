"""Level 8: a damaged checkpoint is refused or gives the right values, never silently wrong ones.

The kit damages checkpoints of float32 tables and scalars, so that a breach of level 6 for other dtypes
is not counted again here. It knows nothing of the format: it damages any of the files that
``save`` wrote. ``restore`` runs in another process, since a reader may also end, hang or exhaust
its process.
"""

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from itertools import combinations, product
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import Calls, expect
from shardvar.conformance.rules import rules
from shardvar.conformance.rules.checkpoints import (
    NamedArrays,
    checkpoint_path,
    expect_tensors,
    templates_of,
)
from shardvar.records import frozen
from shardvar.testing import counting

# Places are fractions of a length: in another run a file may be some bytes longer or shorter.
PLACES = 10_000


@frozen
class FileDamage:
    """The place of a damage; every number is taken modulo its bound."""

    file: int
    """The number of the file, in the order of ``files_of``."""
    place: int
    """The position in the file, in ten-thousandths of its length, which ``_opened`` spreads."""
    extra: int
    """The flipped bit, the number of zeroed bytes, or the other file of an exchange."""


def files_of(directory: str) -> list[Path]:
    """Return the files with bytes, by directory, size and content, since their names may be random."""
    files = [path for path in Path(directory).rglob("*") if path.is_file() and path.stat().st_size]
    return sorted(
        files,
        key=lambda path: (
            path.parent,
            path.stat().st_size,
            sha256(path.read_bytes()).digest(),
            path,
        ),
    )


def flip(directory: str, file: int, place: int, extra: int) -> None:
    path, data, at = _opened(directory, file, place)
    # ``%`` binds before ``<<``, so this is one of the eight bits of the byte.
    data[at] ^= 1 << extra % 8
    path.write_bytes(data)


def truncate(directory: str, file: int, place: int, _extra: int) -> None:
    path, data, at = _opened(directory, file, place)
    path.write_bytes(data[:at])


def zero(directory: str, file: int, place: int, extra: int) -> None:
    """Overwrite up to 64 bytes with zeros, as a lost sector does."""
    path, data, at = _opened(directory, file, place)
    # Not beyond the end: at position 5 of 8 bytes, at most 3.
    count = min(1 + extra % 64, len(data) - at)
    data[at : at + count] = bytes(count)
    path.write_bytes(data)


def turn(directory: str, file: int, place: int, extra: int) -> None:
    """Exchange two neighbouring blocks of up to 64 bytes, as blocks written out of order do."""
    path, data, at = _opened(directory, file, place)
    count = min(1 + extra % 64, len(data) // 2)
    at = min(at, len(data) - 2 * count)
    data[at : at + 2 * count] = data[at + count : at + 2 * count] + data[at : at + count]
    path.write_bytes(data)


def misprint(directory: str, file: int, place: int, extra: int) -> None:
    """Change a digit of text into another one; without a file of text, nothing changes."""
    printable = {9, 10, 13, *range(32, 127)}
    texts = [path for path in files_of(directory) if printable.issuperset(path.read_bytes()[16:])]
    if not texts:
        return
    path = texts[file % len(texts)]
    data = bytearray(path.read_bytes())
    at = place * len(data) // PLACES
    digits = [number for number, octet in enumerate(data) if 48 <= octet < 58]
    if digits:
        chosen = digits[at % len(digits)]
        data[chosen] = 48 + (data[chosen] - 48 + 1 + extra % 9) % 10
    path.write_bytes(data)


def remove_file(directory: str, file: int, _place: int, _extra: int) -> None:
    files = files_of(directory)
    files[file % len(files)].unlink()


def swap(directory: str, file: int, _place: int, extra: int) -> None:
    files = files_of(directory)
    # Both may be the same file; then nothing is damaged, and the values must come back.
    one, other = files[file % len(files)], files[extra % len(files)]
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


def _opened(directory: str, file: int, place: int) -> tuple[Path, bytearray, int]:
    files = files_of(directory)
    path = files[file % len(files)]
    data = bytearray(path.read_bytes())
    # Small numbers are drawn most often, so they are spread over the file, 7,919 being prime. Always inside
    # it: the highest place in 3 bytes is 9,999 * 3 // 10,000 = 2.
    return path, data, place * 7919 % PLACES * len(data) // PLACES


DamageCase = tuple[NamedArrays, int, FileDamage]

# Payloads of 96 and of 19,200 bytes, some of one row: damage hits mostly headers and indexes in the one,
# mostly values, also behind the first block, in the other, which is therefore drawn more often.
_TABLES = [{"w": counting(shape), "b": -counting((5,))} for shape in ((6, 4), (3, 8), (300, 16))]
_TABLES.append({str(number): np.array(number + 0.5, np.float32) for number in range(12)})
_SAVED = [*product(_TABLES, (1, 2, 3))]
_DRAWN = st.tuples(
    st.sampled_from([*_TABLES, _TABLES[2]]),
    st.integers(1, 3),
    st.builds(FileDamage, st.integers(0, 9), st.integers(0, PLACES - 1), st.integers(0, 63)),
)
# In three shards most formats write four files at most.
_FILES = [(*saved, FileDamage(file, 0, 0)) for saved in _SAVED for file in range(4)]
_PAIRS = [
    (*saved, FileDamage(file, 0, other))
    for saved in _SAVED
    for file, other in combinations(range(4), 2)
]


def check_damage(
    adapter: Calls, case: DamageCase, harm: Callable[[str, int, int, int], None]
) -> None:
    tensors, num_shards, damage = case
    # Save. In one to three shards, in the files that the format makes of them.
    with checkpoint_path(adapter, tensors, num_shards) as path:
        directory = str(Path(path).parent)
        expect(
            bool(files_of(directory)),
            "It wrote no files.",
            "It must write the checkpoint under its path.",
        )
        # Damage. The program repeats it: the function can be imported, and it finds files by
        # number, not by name.
        adapter.note(f"from shardvar.conformance.rules.damage import {harm.__name__}")
        adapter.note(
            f'{harm.__name__}(path[: -len("/model")], {damage.file}, {damage.place}, '
            f"{damage.extra})"
        )
        harm(directory, damage.file, damage.place, damage.extra)
        # Restore. In two shards, so that the slices of one and of three shards are divided
        # differently.
        expect_tensors(adapter.attempt("restore", path, templates_of(tensors), 2), tensors)


rules(*(
    (f"R-DAMAGE-1-{suffix}", "save restore", cases, partial(check_damage, harm=harm),
     f"After {phrase}, restoring is refused or right")
    for suffix, harm, cases, phrase in (
        ("remove", remove_file, _FILES, "the loss of a file"),
        ("truncate", truncate, _DRAWN, "a file was cut off"),
        ("flip", flip, _DRAWN, "one bit of a file was flipped"),
        ("zero", zero, _DRAWN, "some bytes of a file became zeros"),
        ("swap", swap, _PAIRS, "two files changed places"),
        ("turn", turn, _DRAWN, "two blocks of a file changed places"),
        ("misprint", misprint, _DRAWN, "a digit in a file became another one"),
    )
), level=8, isolated=True)  # fmt: skip
