"""Verify: read every payload, compare every checksum, and check that every tensor is covered
exactly once.

1. Open. A damaged index is reported like any other damage. Often nothing else can be checked then.
2. Laws. Report keys that cannot be read, slices that overlap, leave a hole or reach out of their
   tensor, and oddities of the files.
3. Payloads. Read all of them, and compare their checksums (``together.executors``).
4. Values. Bools must be 0 or 1, and strings as long as announced, or a load would refuse them.
5. Digests. Where digests are kept of the checkpoint, in its metadata or in a manifest, compute
   them and compare (``compare.manifest``), and the checksums that other programs have of its files.

Each step continues after a finding, so one damaged tensor hides no other. Each tensor has one of
four outcomes:

    ok               key, dtype, shape and every byte of its values were compared with checksums,
                     and are right
    values match     the values were, and no checksum covers the key, dtype and shape
    damaged          a checksum, a law of the format or the values are wrong
    not verifiable   it was read and the format has no checksum of it; or it could not be read,
                     though it may be whole

The format tells which keys its checksums cover, and whether they cover the index
(``formats.protocol``). All else follows from that (``VerifyReport.verdict``). A tensor that could
not be read keeps the report from being ``ok``, covered or not; one that was read and that nothing
covers does not, and is named.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

import numpy as np

from shardvar.engine.pool import Progress
from shardvar.errors import (
    AmbiguousPath,
    ArgumentError,
    CheckpointError,
    CheckpointNotFound,
    IncompleteCheckpoint,
    MalformedCheckpoint,
    OutOfBounds,
    ReadError,
    UnsupportedError,
)
from shardvar.formats.deferred import prefer_whole
from shardvar.formats.files import FileSource
from shardvar.formats.protocol import Finding, Source
from shardvar.formats.published import delta_of
from shardvar.formats.table import is_companion
from shardvar.layout.dtypes import Shape
from shardvar.pictures.words import all_tensors, count
from shardvar.planning.index import DELTA, NO_CHECKSUM, EntryTable, find_faults, take_tensors
from shardvar.planning.slices import TensorTable, concatenate, sum_by
from shardvar.records import replace
from shardvar.verbs.arguments import check_progress, named_arguments
from shardvar.verbs.compare.manifest import Choose, confirmed, read_against
from shardvar.verbs.locate import (
    NOT_OPENED,
    Location,
    Path,
    arrays_alone,
    find_below,
    look_at,
    only_one,
)
from shardvar.verbs.newest import FolderContents, candidates_of, contents_of
from shardvar.verbs.parameters import empty_note
from shardvar.verbs.problems import (
    DAMAGED,
    FOLDER,
    NO_CHECKSUMS,
    NOT_VERIFIABLE,
    OK,
    QUICK,
    VALUES_MATCH,
    Damage,
    Unverified,
    VerifyReport,
    untold,
)
from shardvar.verbs.reader import Reader, settings_in
from shardvar.verbs.renaming import select_keys
from shardvar.verbs.together.executors import Check, check_executor, payload_checker


@named_arguments
def verify(
    path: Path,
    *,
    progress: Progress = lambda _nbytes: None,
    filter: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    against: Path | None = None,
    quick: bool = False,
    nan: bool = False,
    executor: Executor | None = None,
) -> VerifyReport:
    """Check a checkpoint from end to end and return a report of every problem.

    Digests that the checkpoint carries, a manifest next to it (``sv.digest``), and checksums that
    other programs have of its files are compared as well. They guard formats without checksums.

    Parameters
    ----------
    path : path_like
        The checkpoint. Of a folder, everything in it is verified: the report is about the
        checkpoint that the path means, ``others`` has the reports of all others, and ``not_read``
        the files that belong to none.
    progress : callable, optional
        Called with numbers of payload bytes as they are read, and of bytes of files with checksums.
    filter : str or iterable of str, optional
        Globs of keys. Only tensors that match one are read and reported, which a note tells; the
        index and the list of files are checked as a whole.
    exclude : str or iterable of str, optional
        Globs of keys of tensors to leave out. With ``filter``, ``exclude`` or ``against``, of a
        folder only the checkpoint that the path means is verified.
    against : path_like, optional
        The manifest, or the list of checksums of files as sha256sum writes them, to compare with,
        instead of files next to the checkpoint.
    quick : bool, default False
        Check only indexes, and the sizes of files. No payload is read.
    nan : bool, default False
        Also look for NaNs and infinities in the values, while they are read.
    executor : concurrent.futures.Executor, optional
        An executor whose workers read the payloads.

    Returns
    -------
    VerifyReport
        The report. It lists every damage, also of the index.

    Raises
    ------
    CheckpointNotFound
        If there is no checkpoint at ``path``.
    AmbiguousPath
        If ``path`` is a prefix of several checkpoints.
    UnsupportedError
        If this release cannot read the checkpoint, and there is no other in the folder.
    MissingFile
        If there is no file at ``against``.
    MalformedCheckpoint
        If the file at ``against`` is not a manifest.
    StorageError
        If a file cannot be read. The checkpoint may be whole.

    Notes
    -----
    Memory: some blocks of 4 MiB, the index, and the largest string tensor.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import shardvar as sv
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> _ = sv.save(path, {"table": np.ones((13, 4), np.float32)}, partition=5)
    >>> sv.verify(path).ok
    True
    """
    check_executor(executor)
    check_progress(progress)
    options = VerifyOptions(filter, exclude, against, quick, nan, executor)
    check = partial(verify_location, options=options, progress=progress)
    contents, is_whole = contents_to_verify(path, options)
    return joined_report(contents, [*reports_of(contents, check, is_whole)])


class VerifyOptions(NamedTuple):
    filter: str | Iterable[str] | None = None
    exclude: str | Iterable[str] | None = None
    against: Path | None = None
    quick: bool = False
    nan: bool = False
    executor: Executor | None = None


def contents_to_verify(path: Path, options: VerifyOptions) -> tuple[FolderContents, bool]:
    """All that a path means, and True if all else in its folder is verified too: nothing is chosen."""
    place = look_at(path)
    meant = [each.location for each in candidates_of(place, find_below(place))]
    chosen = options.filter, options.exclude, options.against
    is_whole = not place.name and all(each is None for each in chosen)
    if not is_whole or len(meant) < 2:
        only_one(place, meant)
    elif kind := arrays_alone(meant):
        raise AmbiguousPath(f"The folder {place.path} is {kind.what}.", kind.remedy)
    return contents_of(place, meant), is_whole


def reports_of(
    contents: FolderContents, check: Callable[[Location], VerifyReport], is_whole: bool
) -> Iterator[VerifyReport]:
    """Yield the report of each checkpoint; one that cannot be opened hides no other."""
    found = contents.all if is_whole else contents.meant
    if len(found) == 1:
        yield check(found[0])
        return
    files = set[str]()
    for each in found:
        if each.path in files:  # it belongs to an earlier one
            continue
        try:
            report = check(each)
            files.update(report.files)
            yield report
        except NOT_OPENED as error:
            # Programs keep their arguments next to a model, in classes that no other one reads.
            if not (isinstance(error, UnsupportedError) and is_companion(each.name)):
                doubt = Damage.of(error, file=os.path.basename(each.path))
                yield VerifyReport(each.path, each.format.name, (), (), doubts=(doubt,))


def joined_report(contents: FolderContents, reports: Sequence[VerifyReport]) -> VerifyReport:
    """The report of a path: of the only checkpoint that it means, or of a folder of several."""
    folder = contents.place.storage.path
    is_one = len(contents.meant) == 1
    own = reports[0] if is_one else VerifyReport(folder, FOLDER, (), ())
    done = {each.path for each in reports}
    files = done.union(*(each.files for each in reports))
    rest = [os.path.relpath(each.path, folder) for each in contents.all if each.path not in files]
    unread = [name for name in contents.unread(files) if name not in rest]
    return replace(own, others=tuple(reports[is_one:]), not_read=(*rest, *unread))


def verify_location(
    found: Location, options: VerifyOptions, progress: Progress = lambda _nbytes: None
) -> VerifyReport:
    """As ``verify``, of one checkpoint."""
    chosen, excluded, against, quick, nan, executor = options
    if quick and nan:
        cause = "nan (--nan) looks at values, and quick (--quick) reads none."
        raise ArgumentError(cause, "Leave one of them out.")
    claims = None if against is None else read_against(against)
    try:
        source = found.open()
    except CheckpointNotFound:
        raise
    except CheckpointError as error:
        return VerifyReport(
            found.path, found.format.name, (Damage.of(error),), (), files=(found.path,)
        )
    try:
        data = source.data if isinstance(source, FileSource) else None
        if data and (fault := data.fault(0) if data.names else None) and data.strangers:
            # The index is of other files: nothing is known of the files here.
            doubts = (Damage.of(fault),)
            return VerifyReport(found.path, found.format.name, (), (), doubts=doubts)
        choose = (
            None
            if chosen is None and excluded is None
            else partial(select_keys, filter=chosen, exclude=excluded)
        )
        if executor is None and source.traits is not None and not quick:
            prefer_whole(source.index)
        odd = set[tuple[str, int]]() if nan and not quick else None
        check = payload_checker(executor, found, source, progress, odd)
        report = _report(found, source, None if quick else check, choose)
        if found.members:
            report = replace(report, notes=(*report.notes, f"{found.about_members}."))
        if not quick:
            reader = Reader(found.path, found.format.name, source)
            report = confirmed(report, found, reader, claims, progress, choose)
        if odd is not None:
            report = _with_odd(report, odd, source)
        return replace(report, files=tuple(found.paths_of(source)))
    finally:
        source.close()


def _with_odd(
    report: VerifyReport, odd: Collection[tuple[str, int]], source: Source
) -> VerifyReport:
    """Add the tensors with NaNs (1) and infinities (2), and the number of tensors that were not looked at."""
    damaged = {each.key for each in report.damages}
    kinds = ("NaN", "infinity", "NaN and infinity")
    flags: dict[str, int] = {}
    for key, flag in odd:
        flags[key] = flags.get(key, 0) | flag
    blocks = sum(key in source.encodings() for key in report.outcomes)
    note = [f"Not looked at for NaN: {count(blocks, 'quantised tensor')}."] * bool(blocks)
    found = {
        key: kinds[flags[key] - 1]
        for key in report.outcomes
        if flags.get(key) and key not in damaged
    }
    return replace(report, not_finite=found, notes=(*report.notes, *note))


_Problem = tuple[str, str | None, ReadError]
"""A key, the file in which it was read, and the error."""

_NO_CHECKSUM = (
    "Its file has no checksum of it, as others of the format have: only its structure was verified."
)
_UNREAD = (UnsupportedError, IncompleteCheckpoint, MalformedCheckpoint, OutOfBounds)
"""Errors of payloads that were not read to their end."""


def _report(
    found: Location, source: Source, check: Check | None, choose: Choose | None
) -> VerifyReport:
    """``check`` reads the payloads; without it, only the index and the sizes of files are judged."""
    tables, unreadable, faults, findings, damages = _laws(source)
    delta, user = None, source.index.metadata.user
    if DELTA in user or found.format.name == "safetensors":
        tensors = tables[0].slices.tensors if tables else TensorTable.of(())
        delta = delta_of(found.storage, found.format.name, user, tensors)
    tables, faults, note = _chosen(source, tables, faults, choose, damages)
    problems: list[_Problem] = [
        (key, None, _compare_bytes(source, key, error) if check else error)
        for key, error in faults.items()
    ]
    read = _read_all(source, check, tables, unreadable, problems) if check else Counter[str]()
    guarded = guarded_keys(source, tables, faults)  # checksums may be in frames, which were read
    # A tensor that spans its storage is compared when it is read. If that failed, it is left out
    # here, so that the storage is compared for the others.
    known = {key for key, _, _ in problems}
    errors = source.storage_errors({*guarded}.difference(known)) if check else {}
    problems += [(key, None, error) for key, error in errors.items() if key not in known]
    if delta:
        note.append(f"It is {delta.what}.")
        if check and not problems:
            problems += _delta_problems(found, source, guarded.keys(), note)

    # Outcomes.
    damages += [
        Damage.of(error, key or None, file)
        for key, file, error in problems
        if not isinstance(error, UnsupportedError)
    ]
    damaged = {damage.key for damage in damages}
    reasons = {key: error for key, _, error in problems if isinstance(error, UnsupportedError)}
    no_checksum = NO_CHECKSUMS if source.crc is None else _NO_CHECKSUM
    if check is None:
        no_checksum, guarded = QUICK, dict.fromkeys(guarded, False)
    unverified = _unverified(guarded, reasons, damaged, no_checksum)
    outcomes = dict.fromkeys(guarded, VALUES_MATCH if source.bare_index else OK)
    outcomes |= {each.key: NOT_VERIFIABLE for each in unverified}
    notes = [f"{each.place}: {each.message}" for each in findings if not each.is_damage]
    facts = _facts_of(tables)
    if empty := empty_note(facts):
        notes.append(f"{empty}.")
    return VerifyReport(
        path=found.path,
        format=found.format.name,
        damages=tuple(damages),
        notes=(*notes, *note),
        doubts=tuple(_of_files(source, (), is_doubt=True)),
        unverified=tuple(unverified),
        outcomes=outcomes | {key: DAMAGED for key in damaged if key is not None},
        bare_index=source.bare_index,
        num_tensors=len(guarded),
        num_settings=len(settings_in(source, facts)),
        num_slices=sum(len(entries) for entries in tables),
        num_files=len(source.index.files),
        read_nbytes=read.total(),
        unguarded_nbytes=sum(nbytes for key, nbytes in read.items() if not guarded[key]),
    )


def _unverified(
    guarded: Mapping[str, bool],
    reasons: Mapping[str, ReadError],
    damaged: Collection[str | None],
    no_checksum: str,
) -> list[Unverified]:
    return [
        Unverified(key, is_guarded, type(error).__name__, str(error))
        if (error := reasons.get(key))
        else Unverified(key, is_guarded, None, no_checksum)
        for key, is_guarded in guarded.items()
        if key not in damaged and (key in reasons or not is_guarded)
    ]


_Faults = dict[str, ReadError]


def _laws(
    source: Source,
) -> tuple[list[EntryTable], _Faults, _Faults, Sequence[Finding], list[Damage]]:
    """Entries, keys without places of payloads, all unreadable keys, findings and damage."""
    tables, damages = list[EntryTable](), list[Damage]()
    unreadable, faults = _Faults(), _Faults()
    findings: Sequence[Finding] = ()
    try:
        for entries in source.index.scan():
            tables.append(entries)  # what was read before an error is kept
    except CheckpointError as error:
        damages.append(Damage.of(error))
    if not damages:  # an index that cannot be read to its end cannot be asked for its faults either
        faults = unreadable = dict(source.index.faults.items())
        try:
            found = find_faults(concatenate([each.slices for each in tables]))
            faults = {**found, **unreadable}
        except CheckpointError as error:
            damages.append(Damage.of(error))
    try:
        findings = source.findings()
    except CheckpointError as error:
        damages.append(Damage.of(error))
    damages += _of_files(source, faults.values(), is_doubt=False)
    # A missing file is the fault of its keys: it is not told once more.
    causes = {error.cause.removeprefix(f"{key!r}: ") for key, error in faults.items()}
    damages += [
        Damage("InvalidCheckpoint", None, each.place, f"{each.place}: {each.message}")
        for each in findings
        if each.is_damage and each.message not in causes
    ]
    return tables, unreadable, faults, findings, damages


def _of_files(source: Source, told: Iterable[ReadError], *, is_doubt: bool) -> list[Damage]:
    """The faults of files that no key tells; an unsupported file is a doubt."""
    files = untold(source.file_faults(), told)
    return [each for each in files if (each.kind == UnsupportedError.__name__) == is_doubt]


def _read_all(
    source: Source,
    check: Check,
    tables: Iterable[EntryTable],
    unreadable: Collection[str],
    problems: list[_Problem],
) -> Counter[str]:
    """Read payloads, also of keys with holes or overlaps; return the number of bytes by key."""
    read = Counter[str]()
    for entries in tables:
        tensors = entries.slices.tensors
        if unreadable:  # the places of their payloads are unknown
            keep = np.array([key not in unreadable for key in tensors.keys], dtype=np.bool)
            entries = entries.take(np.flatnonzero(keep[entries.slices.tensor]))
        errors = check(entries)
        for row in sorted(errors):
            file = source.index.files[int(entries.file[row])]
            problems.append((entries.slices.key(row), file, errors[row]))
        nbytes = entries.slices.nbytes.copy()
        nbytes[[row for row, error in errors.items() if isinstance(error, _UNREAD)]] = 0
        totals = sum_by(entries.slices.tensor, nbytes, len(tensors))
        read.update(dict(zip(tensors.keys, totals.tolist(), strict=True)))
    return read


def _delta_problems(
    found: Location, source: Source, keys: Collection[str], notes: list[str]
) -> list[_Problem]:
    """The problems of a delta that no checksum shows; notes are added on values not compared."""
    from shardvar.verbs.delta.chain import errors_of_delta  # only for deltas

    reader = Reader(found.path, found.format.name, source)
    errors = errors_of_delta(reader, found.storage, notes).items()
    # Of chosen keys. The table is the delta's.
    return [(key, None, error) for key, error in errors if key in keys or key not in reader]


def _facts_of(tables: Iterable[EntryTable]) -> dict[str, tuple[str, Shape]]:
    return {key: fact for each in tables for key, fact in each.slices.tensors.facts().items()}


def _chosen(
    source: Source,
    tables: list[EntryTable],
    faults: dict[str, ReadError],
    choose: Choose | None,
    damages: Sequence[Damage],
) -> tuple[list[EntryTable], dict[str, ReadError], list[str]]:
    """The entries and the faults of the chosen keys, and a note of the number of others."""
    if choose is None:
        return tables, faults, []
    keys = dict.fromkeys(
        key for entries in tables for key in entries.slices.tensors.keys
    ) | dict.fromkeys(faults)
    try:
        chosen = choose([*keys])
    except ArgumentError:
        # Where something else is damaged, such as the index, that error comes first.
        if not damages:
            raise
        chosen = set()
    total = all_tensors(len(keys), len(settings_in(source, _facts_of(tables))))
    note = [f"Not chosen, and not verified: {len(keys) - len(chosen):,} of {total}."]
    kept = {key: error for key, error in faults.items() if key in chosen}
    return [take_tensors(entries, chosen) for entries in tables], kept, note


def guarded_keys(
    source: Source, tables: Sequence[EntryTable], faults: Collection[str]
) -> dict[str, bool]:
    """Every key of the index, with True if checksums cover all its bytes."""
    guarded: dict[str, bool] = {}
    for entries in tables:
        covered = np.full(len(entries.slices.tensors), source.crc is not None)
        covered[entries.slices.tensor[entries.plain & (entries.checksum == NO_CHECKSUM)]] = False
        guarded |= zip(entries.slices.tensors.keys, covered.tolist(), strict=True)
    for key in faults:
        guarded.setdefault(key, source.crc is not None)
    # The source may know better: of checksums that cover several tensors, or of parts without one.
    answers = {key: source.is_guarded(key) for key in guarded}
    return guarded | {key: answer for key, answer in answers.items() if answer is not None}


def _compare_bytes(source: Source, key: str, error: ReadError) -> ReadError:
    """Return the error of a key that cannot be read; of an unsupported one, after a comparison."""
    if not isinstance(error, UnsupportedError):
        return error
    try:
        if not source.compare_bytes(key):
            return error
    except CheckpointError as damage:
        return damage
    return UnsupportedError(f"{error.cause} Its bytes agree with their checksum.", error.remedy)
