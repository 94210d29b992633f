"""Check a delta without its base, for ``verify``: the table, the frames of each changed tensor, and
the digest of each tensor that is stored whole; of another program, the positions and the frames."""

from collections.abc import Callable, Iterator

from shardvar.engine.pool import run_all
from shardvar.errors import (
    COPY_AGAIN,
    READ_ERRORS,
    CheckpointError,
    CorruptCheckpoint,
    MissingExtra,
    ReadError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.published import Published
from shardvar.storage.protocol import Storage
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
from shardvar.verbs.delta.dialects.table import marks_of, open_published
from shardvar.verbs.reader import Reader
from shardvar.wire.digests import LEAF_NBYTES


def errors_of_delta(reader: Reader, storage: Storage, notes: list[str]) -> dict[str, ReadError]:
    """Return what is wrong with an open delta by its own keys; nothing for other checkpoints. Add
    notes on what cannot be compared.

    Checksums are not compared again: a payload that cannot be read is left to ``verify``.
    """
    if not is_delta(reader):
        marks = marks_of(reader, storage)
        return {} if marks is None else _errors_of_published(reader, marks, notes)
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


def _errors_of_published(
    reader: Reader, marks: Published, notes: list[str]
) -> dict[str, ReadError]:
    """Return what is wrong with a delta of another program, by the keys of its base."""
    try:
        delta = open_published(reader, marks)
        changes = {key: change.check for key, change in delta.changes.items()}
        errors = run_all(_error_of_published, [(delta.path, *each) for each in changes.items()])
    except MissingExtra as error:
        notes.append(f"It was not unpacked. {error.cause} {error.remedy}")
        return {}
    except UnsupportedError as error:
        notes.append(f"It cannot be applied by this release. {error.cause}")
        return {}
    except CheckpointError as error:
        return {"": error}
    if changes and (delta.algorithm or delta.whole_sha256):
        notes.append("Its checksums are of the result, so that `shardvar apply` compares them.")
    elif changes:
        notes.append("No checksum of it is of the result.")
    found = zip(changes, errors, strict=True)
    return {key: error for key, error in found if error is not None}


def _error_of_published(work: tuple[str, str, Callable[[], None]]) -> ReadError | None:
    path, key, check = work
    try:
        with prefix_errors(f"{path}: {key!r}"):
            check()
    except READ_ERRORS as error:
        return error
    return None


def _error_of_whole(delta: Delta, change: DeltaRow) -> ReadError | None:
    key = delta.stored_key(change)
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
    # The frames of tied tensors are unpacked once, and compared with the digest of each.
    for number in numbers if delta.stored_key(change) == change.stored_key else ():
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
