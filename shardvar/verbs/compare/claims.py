"""Claims: the digests that checkpoints carry in their metadata, and digests that a write gives
them.

A carried digest is the claim of a writer. ``sv.verify`` compares it, and a new checkpoint gets
only digests that were computed from its own tensors:

    the source carries digests     they are compared with its tensors; another one is damage
    names and values stay          the compared digests are kept
    a name or values change        the digests are computed again
    the format holds none          they are left out, and reported

So a stale digest is never written. Tensors are hashed before they are written, and so read twice.
"""

from collections.abc import Collection, Mapping

from shardvar.engine.arrays import ArraySource
from shardvar.errors import READ_ERRORS, CorruptCheckpoint, MalformedCheckpoint, UnsupportedError
from shardvar.formats.protocol import Source
from shardvar.pictures.words import count
from shardvar.planning.index import EntryTable
from shardvar.records import replace
from shardvar.verbs.compare.blocks import Blocks
from shardvar.verbs.compare.digest import digests_of, digests_of_blocks
from shardvar.verbs.reader import Reader
from shardvar.verbs.writing import WritePlan, check_may_write

IN_A_FILE = "`shardvar digest PATH --write` keeps digests in a file."
"""The remedy where a checkpoint cannot carry digests."""
_LEFT_OUT = "The digests of the source are left out: "


def digest_arrays(work: WritePlan, source: ArraySource) -> WritePlan:
    _check_can_carry(work)
    if source.is_lazy.any():
        raise UnsupportedError(
            "The digest of a lazy array is not known before it is written.",
            f"Leave digest out: {IN_A_FILE}",
        )
    check_may_write(work)
    found = _digests(source, work.entries, work.target.path)
    return replace(work, metadata=replace(work.metadata, digests=found))


def _digests(source: Source, entries: EntryTable, path: str) -> dict[str, str]:
    try:
        found = digests_of_blocks(Blocks.of_entries(source, entries))
    except READ_ERRORS as error:
        raise error.at(path) from None
    return {key: found[key] for key in entries.slices.tensors.keys}


def _check_can_carry(work: WritePlan) -> None:
    form, remedy = work.target.format, f"Leave digest= (--digest) out: {IN_A_FILE}"
    if not form.capabilities.holds_digests:
        raise UnsupportedError(f"The format {form.name} cannot carry digests.", remedy)
    if work.substitutes is not None:
        raise UnsupportedError("The policy changes values, so their digests are not known.", remedy)


def carry_digests(
    stored: Reader,
    are_keys: bool,
    is_asked: bool,
    may_lose: bool,
    work: WritePlan,
    reader: Reader,
    source: Source,
    entries: EntryTable,
    names: Mapping[str, str],
    objects: Collection[str],
    *,
    is_dry: bool,
) -> tuple[WritePlan, str]:
    """``are_keys``: tensors have the keys of the digests; ``may_lose``: go on despite damage."""
    is_carried = stored.metadata.has_digests
    if is_asked:
        _check_can_carry(work)
    elif not work.target.format.capabilities.holds_digests or work.substitutes is not None:
        why = "cannot carry them" if work.substitutes is None else "gets values from the policy"
        return work, f"{_LEFT_OUT}{work.target.format.name} {why}. {IN_A_FILE}"
    if is_dry:
        # Texts of the same length, so that the sizes of the files are right.
        keys = [*entries.slices.tensors.keys, *(names[key] for key in objects)]
        return _with(work, dict.fromkeys(keys, "0" * 64)), ""
    check_may_write(work)
    found = _digests(source, entries, reader.path)
    if objects:
        found |= digests_of(reader, objects, names=names)
    how = ", computed again" if is_carried else ""
    if is_carried and are_keys:
        is_same, read = source is stored.source, names if reader is stored else stored
        try:
            carried = stored.digests
            for key, value in (found if is_same else digests_of(stored, {*read})).items():
                if carried.get(key, value) != value:
                    raise CorruptCheckpoint(
                        f"{stored.path}: {key!r} does not have the digest that the checkpoint carries.",
                        "Copy the checkpoint again; `shardvar verify` lists all that is damaged.",
                    )
        except CorruptCheckpoint as error:
            if not may_lose:
                raise
            return work, f"{_LEFT_OUT}{error.cause}"
        except MalformedCheckpoint as error:
            if not is_asked:
                return work, f"{_LEFT_OUT}{error.cause}"
        how = ", as in the source" if is_same else how
    return _with(work, found), f"It carries the digests of {count(len(found), 'tensor')}{how}."


def _with(work: WritePlan, digests: Mapping[str, str]) -> WritePlan:
    return replace(work, metadata=replace(work.metadata, digests=digests))
