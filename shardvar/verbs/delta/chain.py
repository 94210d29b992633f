"""Chains: deltas that follow each other, and the check of one delta without its base.

Each delta has the digests of all tensors before and after. So the digests link: the base of each is
the result of its predecessor. This is checked without the base, before a payload is read. ``verify``
also compares the digest of each tensor that is stored whole, and unpacks the frames of the others; of
another program, positions and frames.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise

from shardvar.engine.pool import run_all
from shardvar.errors import (
    COPY_AGAIN,
    READ_ERRORS,
    AmbiguousPath,
    ArgumentError,
    CheckpointError,
    CorruptCheckpoint,
    MissingExtra,
    ReadError,
    UnsupportedError,
)
from shardvar.formats.published import Published, published_of
from shardvar.planning.slices import TensorTable
from shardvar.storage.local import split_place
from shardvar.storage.protocol import Storage
from shardvar.verbs.compare.digest import digests_of
from shardvar.verbs.delta.contents import (
    CHANGED,
    CHANGED_PREFIX,
    EQUAL,
    TABLE,
    WHOLE,
    WHOLE_PREFIX,
    Delta,
    check_faults,
    delta_of_reader,
    is_delta,
)
from shardvar.verbs.delta.dialects import PublishedDelta, check_versions, marks_of, open_published
from shardvar.verbs.locate import Location, Path, find_checkpoint, paths_of
from shardvar.verbs.reader import Reader, open_found

_HELD = 16
"""Deltas whose files are held open, so that they are read to their end if they are replaced."""
_PROBED = 8
"""Tensors that are read first to tell whether a checkpoint is a result."""
_ANOTHER_BASE = (
    "Give the checkpoint that the delta was made of, or the deltas between: `shardvar inspect DELTA` "
    "names it by its digest."
)


def open_deltas(found: Sequence[Location], stack: ExitStack) -> list[Delta]:
    own, others = by_kind(open_all(found, stack))
    if others:
        raise UnsupportedError(
            f"{others[0].path} is a delta of another program, of the dialect {others[0].dialect}.",
            "Apply it to its base: `shardvar apply BASE DELTA OUT`.",
        )
    return own


def open_chain(
    found: Sequence[Location], stack: ExitStack
) -> tuple[list[Delta], list[PublishedDelta]]:
    """Open deltas that follow each other: own ones, or those of another program."""
    own, others = by_kind(open_all(found, stack))
    check_follows(own)
    check_versions(others)
    return own, others


def open_all(found: Sequence[Location], stack: ExitStack) -> list[Delta | PublishedDelta]:
    opened: list[Delta | PublishedDelta] = []
    for each in found:
        reader = stack.enter_context(open_found(each, dequantize=False))
        if is_delta(reader):
            opened.append(delta_of_reader(reader))
        else:
            marks = marks_of(reader, each.storage)
            if marks is None:
                cause = f"{each.path} is a checkpoint and not a delta."
                raise UnsupportedError(cause, "`shardvar delta A B OUT` makes one.")
            opened.append(open_published(reader, marks))
        if len(found) > _HELD:
            reader.source.hold_no_files()
    return opened


def find_deltas(paths: Path | Iterable[Path]) -> list[Location]:
    """The paths may be of other checkpoints. ``UnsupportedError`` names one of several files."""
    given = paths_of(paths)
    if not given:
        raise ArgumentError("There is no delta.", "Give the path of one, or of several in order.")
    listings: dict[str, list[str]] = {}
    found: list[Location] = []
    for path in given:
        try:
            found.append(find_checkpoint(path, listings))
        except AmbiguousPath:
            storage, name = split_place(path)
            marks = None if name else published_of(storage, {}, TensorTable.of(()))
            if marks is None:
                raise
            kind = marks.kind()
            raise UnsupportedError(f"{storage.path} is {kind.what}.", kind.remedy) from None
    return found


def ends_of_chain(paths: Sequence[Path]) -> tuple[str, str] | None:
    """Return the digests, or versions, of the first base and the last result; None unless all are deltas."""
    listings: dict[str, list[str]] = {}
    found = [find_checkpoint(path, listings) for path in paths]
    for each in found:
        with open_found(each, dequantize=False) as reader:
            if not is_delta(reader) and marks_of(reader, each.storage) is None:
                return None
    with ExitStack() as stack:
        own, others = open_chain(found, stack)
        if others:
            return f"version {others[0].base_version}", f"version {others[-1].version}"
        return _short(own[0].contents.base), _short(own[-1].contents.result)


def by_kind(deltas: Sequence[Delta | PublishedDelta]) -> tuple[list[Delta], list[PublishedDelta]]:
    """Either list may be empty: a mixture is refused."""
    own = [each for each in deltas if isinstance(each, Delta)]
    others = [each for each in deltas if isinstance(each, PublishedDelta)]
    if own and others:
        raise ArgumentError(
            f"{own[0].path} is a delta of shardvar, and {others[0].path} of another program: nothing "
            "says that they follow each other.",
            "Apply each kind by itself.",
        )
    return own, others


def check_follows(deltas: Sequence[Delta]) -> None:
    for before, after in pairwise(deltas):
        if before.contents.result == after.contents.base:
            continue
        order = ", ".join(each.path for each in chain_order(deltas))
        raise ArgumentError(
            f"{after.path} does not follow {before.path}: its base is {_short(after.contents.base)}, "
            f"and its predecessor makes {_short(before.contents.result)}.",
            f"Give them in the order {order}."
            if order
            else "Give the delta between them, or leave one out.",
        )


def chain_order(deltas: Sequence[Delta]) -> list[Delta]:
    """Return all deltas so that each follows its predecessor; empty if no order does."""
    by_base = {each.contents.base: each for each in deltas}
    results = {each.contents.result for each in deltas}
    firsts = [each for each in deltas if each.contents.base not in results]
    order = firsts[:1]
    while order and len(order) < len(deltas):
        following = by_base.get(order[-1].contents.result)
        if following is None:
            return []
        order.append(following)
    return order


def _short(digest: str) -> str:
    return f"sha256:{digest[:12]}"


def check_base(reader: Reader, deltas: Sequence[Delta]) -> None:
    """Raise ``ArgumentError`` if the index of a base is another one; values are compared as they are read."""
    first = deltas[0]
    changes, facts = first.contents.changes, reader.entries().slices.tensors.facts()
    check_faults(reader)
    for key, change in changes.items():
        if change.base is not None and key not in facts:
            raise another_base(reader.path, first.path, key, "is missing")
        if change.kind not in (EQUAL, CHANGED):
            continue
        dtype, shape = facts[key]
        if dtype != change.dtype:
            how = f"is {dtype}, not {change.dtype}"
            raise another_base(reader.path, first.path, key, how)
        if shape != change.shape:
            how = f"has the shape {list(shape)}, not {list(change.shape)}"
            raise another_base(reader.path, first.path, key, how)
    for key in facts:
        if key not in changes or changes[key].base is None:
            raise another_base(reader.path, first.path, key, "is not in it")


def another_base(base: str, delta: str, key: str, how: str) -> ArgumentError:
    return ArgumentError(
        f"{base} is not the base of {delta}: its tensor {key!r} {how}.", _ANOTHER_BASE
    )


def count_applied(reader: Reader, deltas: Sequence[Delta], has_texts: bool) -> int:
    """Count from 1; 0 if there is none. A result also has the last delta's metadata."""
    keys = [*reader]
    numbers = [n for n, each in enumerate(deltas) if each.contents.num_after == len(keys)]
    # Tensors that change tell results apart.
    last = deltas[-1].contents.changes
    keys.sort(key=lambda key: key in last and last[key].kind == EQUAL)
    for some in (keys[:_PROBED], keys[_PROBED:]):
        found = digests_of(reader, some) if numbers else {}
        for key, digest in found.items():
            rows = ((n, deltas[n].contents.changes.get(key)) for n in numbers)
            numbers = [n for n, row in rows if row is not None and row.result == digest]
    texts, last_texts = reader.metadata.user, deltas[-1].contents.user
    if has_texts and not last_texts.items() <= texts.items():
        numbers = [n for n in numbers if n < len(deltas) - 1]
    return max(numbers, default=-1) + 1


# Checking a delta without its base.


def errors_of_delta(reader: Reader, storage: Storage, notes: list[str]) -> dict[str, ReadError]:
    """Add notes on the rest. A payload that cannot be read is left to ``verify``."""
    if not is_delta(reader):
        marks = marks_of(reader, storage)
        return {} if marks is None else _errors_of_published(reader, marks, notes)
    try:
        delta = delta_of_reader(reader)
    except READ_ERRORS as error:
        return {TABLE: error}
    errors: dict[str, ReadError | None] = {}
    for key, change in delta.contents.changes.items():
        stored = delta.stored_key(key)
        if change.kind == WHOLE:
            errors[WHOLE_PREFIX + key] = _error_of(_check_whole, delta, key, stored)
        elif change.kind == CHANGED:
            name = CHANGED_PREFIX + key
            errors[name] = _error_of(delta.frames, key)
            # The frames of tied tensors are unpacked once, and compared with the digest of each.
            if errors[name] is None and stored == name:
                unpack = partial(_error_of, delta.mask, key)
                wrong = run_all(unpack, delta.frames(key).by_leaf)
                errors[name] = next((error for error in wrong if error is not None), None)
    return {key: error for key, error in errors.items() if error is not None}


def _check_whole(delta: Delta, key: str, stored: str) -> None:
    # Under the name of the tensor, which is part of its digest.
    digest = digests_of(delta.reader, [stored], names={stored: key})[key]
    if digest != delta.contents.changes[key].result:
        cause = f"{delta.path}: {key!r} does not have the digest that the table gives."
        raise CorruptCheckpoint(cause, COPY_AGAIN)


def _errors_of_published(
    reader: Reader, marks: Published, notes: list[str]
) -> dict[str, ReadError]:
    """Return the errors of a delta of another program, by the keys of its base."""

    def check(key: str) -> None:
        with delta.at(key):
            delta.changes[key].check()

    try:
        delta = open_published(reader, marks)
        errors = run_all(partial(_error_of, check), delta.changes)
    except MissingExtra as error:
        notes.append(f"It was not unpacked. {error.cause} {error.remedy}")
        return {}
    except UnsupportedError as error:
        notes.append(f"It cannot be applied by this release. {error.cause}")
        return {}
    except CheckpointError as error:
        return {"": error}
    if delta.changes and (delta.algorithm or delta.whole_sha256):
        notes.append("Its checksums are of the result, so that `shardvar apply` compares them.")
    elif delta.changes:
        notes.append("No checksum of it is of the result.")
    wrong = zip(delta.changes, errors, strict=True)
    return {key: error for key, error in wrong if error is not None}


def _error_of(check: Callable[..., object], *given: object) -> ReadError | None:
    try:
        check(*given)
    except READ_ERRORS as error:
        return error
    return None
