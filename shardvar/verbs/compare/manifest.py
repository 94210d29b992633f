"""Manifests: the digests of a checkpoint in a file, next to it or anywhere else.

    # shardvar digest 1
    # checkpoint 3b6c...
    # tensor c25e... "table"
    6f1c...  model.svdata-5f-00000-of-00001
    90ab...  model.svindex

The lines of tensors are true of every copy of the checkpoint, in any format. ``sha256sum --check
model.sha256`` compares the files, and takes the other lines for comments. The digest of the
checkpoint covers all tensors, so a lost line of a tensor is noticed. Checksums of other programs
(``statements``) are compared as well, and never replaced: a manifest has another name then.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from shardvar.engine.pool import Progress
from shardvar.errors import (
    CheckpointError,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    MalformedCheckpoint,
    MissingFile,
    TargetExists,
)
from shardvar.formats.files import look_into, write_file
from shardvar.formats.protocol import Source
from shardvar.limits import MAX_MANIFEST_NBYTES
from shardvar.storage.local import split_place
from shardvar.storage.protocol import Storage
from shardvar.verbs.compare.digest import DigestReport, digest_reader
from shardvar.verbs.compare.statements import (
    SummedFiles,
    beside,
    checkpoint_files,
    compare_sums,
    has_sums,
    is_manifest,
    judge_sums,
    summed_checkpoint,
    summed_files,
    tensors_of_statement,
)
from shardvar.verbs.locate import Location, Path
from shardvar.verbs.problems import Damage
from shardvar.verbs.reader import Reader
from shardvar.verbs.remove import find_named
from shardvar.verbs.reports import DAMAGED, OK, VALUES_MATCH, VerifyReport
from shardvar.verbs.steps import natural_key
from shardvar.wire.damage import past_limit
from shardvar.wire.digests import (
    HEAD,
    decode_digests,
    encode_digests,
    is_digests,
    not_digests,
)

__all__ = [
    "Manifest",
    "differences",
    "read_manifest",
    "write_manifest",
]

ENDING = ".sha256"
"""The ending of a manifest's name; before it is the checkpoint's."""

_MOST_HEAD_NBYTES = 64
_SAVE_AGAIN = "Copy the checkpoint again, or write it again with digest=True (--digest)."
_CHANGED = "Copy the checkpoint again; if it was meant to change, write its manifest again."
_WRITE_ONE = "`shardvar digest PATH --write` writes one."


@dataclass(frozen=True, slots=True)
class Manifest:
    """Digests as they were once."""

    place: str
    """The path of the file, for messages."""
    tensors: Mapping[str, str]
    """The digest of each tensor, by its key."""
    files: Mapping[str, str]
    """The SHA-256 of each file, by its name relative to the manifest."""
    is_carried: bool = False
    """True for the digests that a checkpoint carries in its metadata."""
    is_list: bool = False
    """True for a list of checksums of files that another program wrote, which is at ``place``."""

    @property
    def remedy(self) -> str:
        """The remedy where the digests disagree."""
        return _SAVE_AGAIN if self.is_carried else _CHANGED


def manifest_path(found: Location) -> str:
    """Return the path of the manifest next to a checkpoint, or of one to be written: not the path of
    another program's checksum."""
    storage, name = beside(found, ENDING)
    head = look_into(
        storage, name, lambda file: file.read(0, min(file.size, _MOST_HEAD_NBYTES)), None
    )
    return found.path + (ENDING if head is None or is_digests(head) else f".shardvar{ENDING}")


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest's file."""
    lines = []
    for name, value in manifest.files.items():
        # As sha256sum writes names with such characters.
        escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        lines.append(f"{'' if escaped == name else chr(92)}{value}  {escaped}")
    text = encode_digests(manifest.tensors) + "".join(f"{line}\n" for line in lines)
    return text.encode("utf-8", "surrogateescape")


def decode_manifest(octets: bytes, place: str) -> Manifest:
    """Return the manifest in the bytes of a file; ``MalformedCheckpoint`` if they are not one, or
    not a whole one."""
    return Manifest(place, *decode_digests(octets.decode("utf-8", "surrogateescape"), place))


def read_manifest(path: Path) -> Manifest:
    """Return the manifest in a file.

    Parameters
    ----------
    path : path_like
        The file: a manifest, or an in-toto statement that `shardvar digest --in-toto` printed,
        signed or not. Signatures are not compared.

    Returns
    -------
    Manifest
        The digests that it holds.

    Raises
    ------
    MalformedCheckpoint
        If the file is not a manifest, or not a whole one.
    MissingFile
        If there is no such file.
    """
    return _read(*split_place(path), os.fspath(path))


def _read(storage: Storage, name: str, place: str) -> Manifest:
    if not name:
        raise MissingFile(f"{place} is a folder, and not a manifest.", _WRITE_ONE)
    try:
        file = storage.open(name)
    except MissingFile:
        raise MissingFile(f"There is no manifest at {place}.", _WRITE_ONE) from None
    except MalformedCheckpoint as error:  # a device: its error speaks of checkpoints
        raise MalformedCheckpoint(error.cause, _WRITE_ONE) from None
    try:
        # Some other file may be of any size: its first line tells.
        head = (
            file.read(0, min(file.size, _MOST_HEAD_NBYTES))
            .decode("utf-8", "replace")
            .partition("\n")[0]
        )
        is_json = head.lstrip().startswith("{")
        if head != HEAD and not is_json:
            raise not_digests(place, head)
        if file.size > MAX_MANIFEST_NBYTES:
            raise past_limit(f"{place} has {file.size} bytes", "MAX_MANIFEST_NBYTES")
        octets = bytes(file.read(0, file.size))
        if is_json:
            return Manifest(place, tensors_of_statement(octets, place), {})
        return decode_manifest(octets, place)
    finally:
        file.close()


def read_against(path: Path) -> Manifest:
    """Return a manifest as ``read_manifest`` does, or a list of checksums of files."""
    storage, name = split_place(path)
    is_list = bool(name) and not is_manifest(storage, name) and has_sums(storage, name)
    return Manifest(os.fspath(path), {}, {}, is_list=True) if is_list else read_manifest(path)


def manifest_beside(found: Location) -> Manifest | None:
    """Return the manifest next to a checkpoint; None without one."""
    for ending in (manifest_path(found).removeprefix(found.path), ENDING):
        with suppress(MissingFile):
            if is_manifest(*beside(found, ending)):
                return _read(*beside(found, ending), found.path + ending)
    return None


def write_manifest(report: DigestReport, force: bool = False) -> str:
    """Write the digests of a report, and of its checkpoint's files, next to the checkpoint.

    Parameters
    ----------
    report : DigestReport
        The digests of the checkpoint, by ``digest``.
    force : bool, default False
        Replace another manifest.

    Returns
    -------
    str
        The path of the manifest.

    Raises
    ------
    TargetExists
        If a manifest is there and ``force`` is not set: the digests of a checkpoint that was
        damaged since would hide the damage.
    CorruptCheckpoint
        If a tensor could not be read, or a file disagrees with the checksum of another program.
    """
    for each in report.unreadable:
        raise CorruptCheckpoint(
            f"{each.key!r} has no digest: {each.message}", "Take a checkpoint that is whole."
        )
    found = find_named(report.path)
    path = check_without_manifest(found, force)
    manifest = Manifest(path, report.tensors, _digest_files(found))
    octets = encode_manifest(manifest)
    storage, name = split_place(path)
    with storage.lock(name):
        check_without_manifest(found, force)
        write_file(storage, f"{name}.tmp", octets)
        storage.rename(f"{name}.tmp", name)
    return path


def check_without_manifest(found: Location, force: bool) -> str:
    """Return the path for a manifest; ``TargetExists`` if there is one that may not be replaced."""
    path = manifest_path(found)
    storage, name = split_place(path)
    if not force and storage.status(name) is not None:
        raise TargetExists(
            f"{path} exists.", "Compare with it (--against), or pass force=True (--force)."
        )
    return path


def _digest_files(found: Location) -> dict[str, str]:
    """The SHA-256 of each file of a checkpoint, by its name as seen from the checkpoint's place.

    ``CorruptCheckpoint`` if a file disagrees with another program's checksum: a manifest would hide
    the damage.
    """
    with closing(found.open()) as source:
        files = checkpoint_files(found, source)
    sums = summed_files(found.storage, files).sums
    agreed, others, digests = compare_sums(found.storage, sums, files)
    for each in others:
        if each.names_file and each.file not in agreed:
            raise CorruptCheckpoint(each.disagreement.cause, each.remedy)
    folder = f"{os.path.basename(found.path)}/" if found.is_folder else ""
    return {f"{folder}{name}": value for name, value in digests.items()}


def differences(manifest: Manifest, report: DigestReport) -> dict[str, Damage]:
    """Return the tensors on which a manifest and the digests of a checkpoint disagree.

    Parameters
    ----------
    manifest : Manifest
        The digests as they were.
    report : DigestReport
        The digests as they are.

    Returns
    -------
    dict of str to Damage
        The differences by key. Tensors that cannot be read are not among them: their errors are
        known.

    Raises
    ------
    CorruptCheckpoint
        If the two have no key in common, since they are of different checkpoints then.
    """
    unreadable = {each.key for each in report.unreadable if each.key is not None}
    there = unreadable.union(report.tensors)
    check_lists_some(manifest, there, report.path)
    errors = dict[str, CheckpointError]()
    for key, value in manifest.tensors.items():
        if key not in there:
            errors[key] = IncompleteCheckpoint(
                f"{key!r}: {manifest.place} lists it, and the checkpoint does not have it.",
                manifest.remedy,
            )
        elif key not in unreadable and report.tensors[key] != value:
            errors[key] = CorruptCheckpoint(
                f"{key!r}: Its digest is not the one in {manifest.place}: its dtype, shape or "
                "values changed.",
                manifest.remedy,
            )
    for key in report.tensors:
        if key not in manifest.tensors:
            errors[key] = CorruptCheckpoint(
                f"{key!r}: {manifest.place} does not list it.", manifest.remedy
            )
    return {key: Damage.of(errors[key], key) for key in sorted(errors, key=natural_key)}


def check_lists_some(manifest: Manifest, keys: Collection[str], path: str) -> None:
    """Raise ``CorruptCheckpoint`` if a manifest lists tensors, but none of a checkpoint's."""
    if manifest.tensors and keys and manifest.tensors.keys().isdisjoint(keys):
        raise CorruptCheckpoint(
            f"{manifest.place} is the manifest of another checkpoint: it lists none of the "
            f"tensors of {path}.",
            "Give the manifest of this checkpoint.",
        )


Choose = Callable[[Sequence[str]], set[str]]
"""Returns the verified ones of some keys."""


def confirmed(
    report: VerifyReport,
    found: Location,
    source: Source,
    against: Manifest | None,
    progress: Progress,
    choose: Choose | None,
) -> VerifyReport:
    """Return the report of ``verify`` with the outcomes of the digests that the checkpoint carries,
    of ``against`` (``read_against``), or of what is next to it."""
    place = manifest_path(found) if against is None else against.place
    digests: DigestReport | None = None
    own = found.path if source.index.metadata.has_digests else None
    for at in [each for each in (own, place) if each]:
        try:
            claim = _carried(source) if at == own else against or manifest_beside(found)
            # Without outcomes, the index cannot be read as far as the chosen keys.
            if claim is None or claim.is_list or (choose is not None and not report.outcomes):
                continue
            claim = claim if choose is None else _chosen(claim, report, source, choose)
            if digests is None:
                reader = Reader(report.path, report.format, source)
                digests = digest_reader(reader, progress, report.outcomes)
            report = _with_outcomes(report, source, claim, digests)
        except CheckpointError as error:
            # What was verified without the digests is still said. A manifest is not the checkpoint:
            # if it cannot be compared, nothing is known.
            damage = (Damage.of(error, None, at),)
            if at == own:
                report = replace(report, damages=report.damages + damage)
            else:
                report = replace(report, doubts=report.doubts + damage)
    summed = sums_beside(found, source, against)
    if choose is not None and summed.sums:
        note = "Checksums of whole files were not compared, since only some tensors are chosen."
        report, summed = replace(report, notes=(*report.notes, note)), replace(summed, sums=())
    if summed == SummedFiles() or (report.damages and not report.outcomes):
        return report
    compared, doubts = _with_sums(report, found, source, summed, progress)
    # Checksums of all bytes settle a doubt, unless it is about what the caller gave.
    if compared.verdict == OK and against is None:
        return replace(compared, notes=(*compared.notes, *(each.message for each in doubts)))
    return replace(compared, doubts=(*compared.doubts, *doubts))


def sums_beside(found: Location, source: Source, against: Manifest | None) -> SummedFiles:
    """Return the checksums of files with which a checkpoint is compared."""
    if against is not None and not against.is_list:
        return SummedFiles()
    return summed_checkpoint(found, source, None if against is None else against.place)


def _with_sums(
    report: VerifyReport, found: Location, source: Source, summed: SummedFiles, progress: Progress
) -> tuple[VerifyReport, list[Damage]]:
    """The report with the outcomes of checksums of files, and doubts about the files."""
    judged = judge_sums(found.storage, summed, progress)
    covers_index = judged.right.issuperset(checkpoint_files(found, source))
    entries = Reader(report.path, report.format, source).entries()
    right = [n for n, name in enumerate(source.index.files) if name in judged.right]
    bad = {*entries.slices.tensor[~np.isin(entries.file, right)].tolist()}
    outcome = VALUES_MATCH if report.bare_index and not covers_index else OK
    outcomes = {
        key: outcome
        for row, key in enumerate(entries.slices.tensors.keys)
        if row not in bad and report.outcomes.get(key) != DAMAGED
    }
    report = _settled(report, source, outcomes, covers_index=covers_index)
    notes = (*report.notes, *judged.notes)
    return replace(report, damages=(*report.damages, *judged.damages), notes=notes), judged.doubts


def _carried(source: Source) -> Manifest:
    """The digests that a checkpoint carries."""
    digests = source.index.metadata.digests
    return Manifest("its own metadata", dict(digests), {}, is_carried=True)


def _chosen(manifest: Manifest, report: VerifyReport, source: Source, choose: Choose) -> Manifest:
    """The manifest of the chosen keys."""
    check_lists_some(manifest, list(Reader(report.path, report.format, source)), report.path)
    # Also a key that only the manifest has: a tensor that was lost.
    chosen = choose([*dict.fromkeys([*report.outcomes, *manifest.tensors])])
    kept = {key: manifest.tensors[key] for key in manifest.tensors if key in chosen}
    return replace(manifest, tensors=kept)


def _with_outcomes(
    report: VerifyReport, source: Source, manifest: Manifest, digests: DigestReport
) -> VerifyReport:
    """The report with the outcomes of a manifest.

    A tensor whose digest agrees is right, whether its format has checksums or not. One that
    disagrees is damaged.
    """
    wrong = differences(manifest, digests)
    right = {
        key for key in digests.tensors if key not in wrong and report.outcomes.get(key) != DAMAGED
    }
    covers_index = right == {*report.outcomes}
    return _settled(report, source, dict.fromkeys(right, OK), wrong, covers_index=covers_index)


def _settled(
    report: VerifyReport,
    source: Source,
    right: Mapping[str, str],
    wrong: Mapping[str, Damage] = MappingProxyType({}),
    *,
    covers_index: bool,
) -> VerifyReport:
    """The report with the outcomes of tensors that are right, and with the ones that are wrong."""
    known = {damage.key for damage in report.damages}
    settled = {*right, *wrong}
    slices = Reader(report.path, report.format, source).entries().slices
    nbytes = dict(zip(slices.tensors.keys, slices.nbytes_of_tensors().tolist(), strict=True))
    return replace(
        report,
        damages=(*report.damages, *(damage for key, damage in wrong.items() if key not in known)),
        unverified=tuple(each for each in report.unverified if each.key not in settled),
        outcomes={**report.outcomes, **right, **dict.fromkeys(wrong, DAMAGED)},
        unguarded_nbytes=sum(
            nbytes[each.key] for each in report.unguarded if each.key not in settled
        ),
        bare_index="" if covers_index else report.bare_index,
    )
