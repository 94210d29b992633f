"""Check a delta without its base, for ``verify``: the table, the frames of each changed tensor, and
the digest of each tensor that is stored whole."""

from collections.abc import Iterator

from shardvar.engine.pool import run_all
from shardvar.errors import COPY_AGAIN, READ_ERRORS, CorruptCheckpoint, ReadError
from shardvar.verbs.compare.digest import digests_of
from shardvar.verbs.delta.contents import (
    CHANGED,
    CHANGED_PREFIX,
    TABLE,
    WHOLE,
    WHOLE_PREFIX,
    Delta,
    DeltaRow,
    delta_of_reader,
    is_delta,
)
from shardvar.verbs.reader import Reader
from shardvar.wire.digests import LEAF_NBYTES


def errors_of_delta(reader: Reader) -> dict[str, ReadError]:
    """Return what is wrong with an open delta by its own keys; nothing for other checkpoints.

    Checksums are not compared again: a payload that cannot be read is left to ``verify``.
    """
    if not is_delta(reader):
        return {}
    try:
        delta = delta_of_reader(reader)
    except READ_ERRORS as error:
        return {TABLE: error}
    found: dict[str, ReadError] = {}
    for change in delta.contents.changes.values():
        if change.kind == WHOLE:
            first = _error_of_whole(delta, change)
            found |= {WHOLE_PREFIX + change.key: first} if first else {}
        elif change.kind == CHANGED:
            errors = run_all(_error_of_leaf, _leaves(delta, change))
            first = next((each for each in errors if each is not None), None)
            found |= {CHANGED_PREFIX + change.key: first} if first else {}
    return found


def _error_of_whole(delta: Delta, change: DeltaRow) -> ReadError | None:
    key = WHOLE_PREFIX + change.key
    try:
        # Under the name of the tensor, which is part of its digest.
        digests = digests_of(delta.reader, [key], names={key: change.key})
    except READ_ERRORS as error:
        return error
    if digests[change.key] == change.result:
        return None
    return CorruptCheckpoint(
        f"{delta.path}: {change.key!r} does not have the digest that the table gives.", COPY_AGAIN
    )


def _leaves(delta: Delta, change: DeltaRow) -> Iterator[tuple[Delta, DeltaRow, int | None]]:
    try:
        numbers = delta.frames(change).by_leaf
    except READ_ERRORS:
        yield delta, change, None
        return
    for number in numbers:
        yield delta, change, number


def _error_of_leaf(leaf: tuple[Delta, DeltaRow, int | None]) -> ReadError | None:
    delta, change, number = leaf
    try:
        frames = delta.frames(change)
        if number is not None:
            nbytes = min(LEAF_NBYTES, change.nbytes - number * LEAF_NBYTES)
            with delta.at(change.key):
                frames.mask(number, nbytes, change.width)
    except READ_ERRORS as error:
        return error
    return None
