"""Manifests: the digests of a checkpoint in a file, next to it or anywhere else.

    # shardvar digest 1
    # checkpoint 3b6c...
    # tensor c25e... "table"
    6f1c...  model.svdata-5f-00000-of-00001
    90ab...  model.svindex

The lines of tensors are true of every copy of the checkpoint, in any format. ``sha256sum --check
model.sha256`` compares the files, and takes the other lines for comments. The digest of the
checkpoint covers all tensors, so a lost line of a tensor is noticed. Checksums of other programs
are compared as well, and never replaced: a manifest has another name then.

An in-toto statement has the digests of tensors in the form that tools for signatures carry.

    {"_type": "https://in-toto.io/Statement/v1",
     "subject": [{"name": "model", "digest": {"shardvarDigest1": "8dbf..."}}],
     "predicateType": "https://shardvar/tensor-digest/v1",
     "predicate": {"tensors": [{"name": "step", "digest": {"shardvarDigest1": "828d..."}}, ...]}}

The subject is the digest of all tensors, so the statement is true of the model in every format. A
signed statement is in a DSSE envelope, and that may be in a Sigstore bundle. Both are read here.
Their signatures are not compared: only the tool that signed knows the key.

Checksums of files are in lists next to them, as sha256sum writes them, and in stores that name a
file by its checksum, such as caches of Hugging Face. The name of a list suggests it, and its lines
decide. A checksum that disagrees proves damage only if the list names the file and no other
checksum of the file agrees. Also here: downloads that are not finished.
"""

import base64
import os
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from types import MappingProxyType
from typing import Any

import numpy as np

from shardvar.engine.pool import Progress, block_ranges, new_buffer, run_all
from shardvar.errors import (
    CheckpointError,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    MalformedCheckpoint,
    MissingFile,
    TargetExists,
)
from shardvar.formats.files import first_bytes, look_into, open_below, read_beginning, replace_file
from shardvar.formats.protocol import Source
from shardvar.limits import MAX_MANIFEST_NBYTES
from shardvar.pictures.words import count, natural_key
from shardvar.records import frozen, replace
from shardvar.storage.local import LocalStorage, split_place
from shardvar.storage.protocol import Storage
from shardvar.verbs.compare.digest import DigestReport, digest_reader
from shardvar.verbs.locate import DOWNLOADS, UNFINISHED_DOWNLOAD, Location, Path
from shardvar.verbs.problems import DAMAGED, OK, VALUES_MATCH, Damage, VerifyReport
from shardvar.verbs.reader import Reader
from shardvar.wire.damage import past_limit
from shardvar.wire.digests import (
    HEAD,
    decode_digests,
    decode_sums,
    digest_of_all,
    encode_digests,
    is_digests,
    not_digests,
)
from shardvar.wire.strict_json import parse_json

__all__ = ["Manifest", "differences", "read_manifest", "write_manifest"]

TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://shardvar/tensor-digest/v1"
ALGORITHM = "shardvarDigest1"
"""The name of the digest in a set of digests; the number is the version of docs/digest.md."""
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_DIGEST = re.compile("[0-9a-f]{64}")
_MAX_DEPTH = 64
_WRITE_AGAIN = "`shardvar digest PATH --in-toto` prints one, and `shardvar reshard SRC DST --certify FILE` another."


def statement_of(report: DigestReport) -> dict[str, Any]:
    tensors = [{"name": key, "digest": {ALGORITHM: value}} for key, value in report.tensors.items()]
    name = os.path.basename(report.path.rstrip("/"))
    return {
        "_type": TYPE,
        "subject": [{"name": name, "digest": {ALGORITHM: report.checkpoint}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {"tensors": tensors},
    }


def parse_statement(octets: bytes, place: str) -> tuple[Any, dict[str, Any]]:
    """Return the type of the predicate of an in-toto statement, in an envelope or not, and the
    statement."""
    try:
        found = parse_json(octets, _MAX_DEPTH)
        found = found.get("dsseEnvelope", found) if isinstance(found, dict) else found
        if "payload" in found:
            if found["payloadType"] != _PAYLOAD_TYPE:
                raise ValueError
            found = parse_json(base64.b64decode(found["payload"], validate=True), _MAX_DEPTH)
        kind, predicate_type = found["_type"], found["predicateType"]
    except (ValueError, KeyError, TypeError):
        raise MalformedCheckpoint(
            f"{place} is neither a manifest nor an in-toto statement.", _WRITE_AGAIN
        ) from None
    if kind != TYPE:
        raise MalformedCheckpoint(f"{place} is a statement of type {kind!r}.", _WRITE_AGAIN)
    return predicate_type, found


def tensors_of_statement(octets: bytes, place: str) -> dict[str, str]:
    """``MalformedCheckpoint`` unless the bytes are a whole statement of these digests."""
    predicate_type, found = parse_statement(octets, place)
    if predicate_type != PREDICATE_TYPE:
        raise MalformedCheckpoint(
            f"{place} is a statement with the predicate {predicate_type!r}, not of tensor digests.",
            _WRITE_AGAIN,
        )
    try:
        listed, subjects = found["predicate"]["tensors"], found["subject"]
        if not isinstance(listed, list) or not isinstance(subjects, list):
            raise TypeError
        listed = [(each["name"], each["digest"][ALGORITHM]) for each in listed]
        subjects = [each["digest"][ALGORITHM] for each in subjects]
    except (KeyError, TypeError):
        raise MalformedCheckpoint(
            f"{place} lacks a name or a digest {ALGORITHM!r}.", _WRITE_AGAIN
        ) from None
    tensors = dict(listed)
    if len(tensors) < len(listed) or not all(
        isinstance(key, str) and isinstance(value, str) and _DIGEST.fullmatch(value)
        for key, value in tensors.items()
    ):
        raise MalformedCheckpoint(
            f"{place} has a wrong name or digest, or a name twice.", _WRITE_AGAIN
        )
    if subjects != [digest_of_all(tensors)]:
        raise MalformedCheckpoint(
            f"The digest of the subject in {place} does not match the tensors that it lists.",
            _WRITE_AGAIN,
        )
    return tensors


# Checksums of files.

_ALGORITHM = r"(?:md5|sha-?(?:1|224|256|384|512))"
_LIST_OF_FILE = re.compile(rf"(.+?)[._-]{_ALGORITHM}(?:sums?)?(?:\.txt)?", re.IGNORECASE)
"""The name of a list that is of one file, whose name is the group, or of several."""
_LIST = re.compile(
    rf".*(?:checksums?|sums|checklist|{_ALGORITHM}(?:sum)?)(?:\.(?:txt|chk|{_ALGORITHM}))?",
    re.IGNORECASE,
)
_STORES = re.compile(
    r"(?:.*/)?(?:blobs/([0-9a-f]{40}|[0-9a-f]{64})|blobs/sha256[-/]([0-9a-f]{64})"
    r"|lfs/objects/../../([0-9a-f]{64})|SHA256E?-s\d+--([0-9a-f]{64})[^/]*)",
    re.DOTALL,
)
"""Files that are named by their checksum: in caches of Hugging Face, of Ollama and OCI, of Git LFS, of
git-annex. One of 40 digits is the checksum of a blob of Git."""
_BLOB = "the name of its blob"
_LEVELS = 4
"""The folders above a file in which these notes are looked for."""
_MOST_NOTE_NBYTES = 4096


@frozen
class FileSum:
    file: str
    """The file, by its name in the checkpoint's directory."""
    algorithm: str
    """The algorithm, as ``hashlib`` names it; ``"git"`` for a blob of Git."""
    digits: str
    place: str
    """The place of the checksum, for messages."""
    names_file: bool = True
    """False if it may be another file's."""

    @property
    def label(self) -> str:
        return {"git": "Git SHA-1", "md5": "MD5"}.get(self.algorithm, f"SHA-{self.algorithm[3:]}")

    @property
    def disagreement(self) -> Damage:
        cause = f"{self.file}: Its {self.label} is not the one in {self.place}, {self.digits}."
        return Damage("CorruptCheckpoint", None, self.file, cause, self.remedy)

    @property
    def remedy(self) -> str:
        if self.place == _BLOB:  # a cache keeps a blob that it has
            return (
                "Remove the blob that the file is, or that it is a link to, and download it again."
            )
        return f"Remove the file and fetch it again; if it was meant to change, mend or remove {self.place}."


@frozen
class SummedFiles:
    sums: tuple[FileSum, ...] = ()
    unknown: tuple[str, ...] = ()
    """Lists of one file without a checksum of it in a known form."""
    unfinished: tuple[str, ...] = ()
    """Files that a download leaves next to a file until it is finished."""

    @property
    def doubts(self) -> Iterator[Damage]:
        for name in self.unknown:
            cause = (
                f"{name} has no checksum in the form of sha256sum: nothing was compared with it."
            )
            remedy = "Compare it with the program that wrote it, or move it to another folder."
            yield Damage("UnsupportedError", None, name, cause, remedy)
        for name in self.unfinished:
            cause = f"{name} is there, as long as a download is not finished."
            remedy = "Finish the download; if it has been finished since, remove that file."
            yield Damage("IncompleteCheckpoint", None, name, cause, remedy)


def sums_in_list(
    storage: Storage, name: str, files: Collection[str], own: str = "", prefix: str = ""
) -> list[FileSum]:
    """``own`` is the file of lines without a name; ``prefix`` leads from the list to the files."""
    lines = decode_sums(read_beginning(storage, name, MAX_MANIFEST_NBYTES))
    sums = []
    for algorithm, digits, listed in lines:
        path = posixpath.normpath(listed.replace("\\", "/")) if listed else ""
        path = (listed if listed in files else path).removeprefix(prefix)
        names_own = path in ("", own) or posixpath.basename(path) == own
        if path in files:
            sums.append(FileSum(path, algorithm, digits, name))
        elif own in files and (names_own or len(lines) == 1):
            sums.append(FileSum(own, algorithm, digits, name, names_own))
        else:  # an absolute path, or from a folder above
            ends = [file for file in files if path.endswith(f"/{file}")]
            sums += [FileSum(file, algorithm, digits, name, names_file=False) for file in ends]
    return sums


def summed_files(
    storage: Storage, files: Collection[str], own: Collection[str] = ()
) -> SummedFiles:
    """Checksums next to files, or in the names of their stores; ``own`` names the checkpoint."""
    names, sums, unknown = storage.names(), list[FileSum](), list[str]()
    for name in names:
        one = found[1] if (found := _LIST_OF_FILE.fullmatch(name)) else ""
        if name in files or not (found or _LIST.fullmatch(name)):
            continue
        if is_manifest(storage, name):
            continue
        listed = sums_in_list(storage, name, files, one)
        sums += listed
        if not listed and (one in files or one in own):
            unknown.append(name)
    unfinished = [
        name
        for name in [*names, *storage.folders()]
        if (found := UNFINISHED_DOWNLOAD.fullmatch(name)) and found[1] in files
    ]
    if storage.local_path is not None:
        of_hub, begun = _of_hub(os.path.abspath(storage.local_path), files)
        sums, unfinished = sums + of_hub, unfinished + begun
    return SummedFiles(tuple(sums), tuple(unknown), tuple(unfinished))


def is_manifest(storage: Storage, name: str) -> bool:
    head = read_beginning(storage, name, 64)
    return is_digests(head) or head.lstrip().startswith(b"{")


def _of_hub(folder: str, files: Collection[str]) -> tuple[list[FileSum], list[str]]:
    """The checksums in the names of stores and in the notes of downloads, and unfinished downloads."""
    sums, begun, real = list[FileSum](), list[str](), os.path.realpath(folder)
    above = [folder]
    for _ in range(_LEVELS):
        above.append(os.path.dirname(above[-1]))
    roots = [root for root in dict.fromkeys(above) if os.path.isdir(os.path.join(root, DOWNLOADS))]
    for file in files:
        path = os.path.join(folder, file)
        target = os.path.realpath(path) if os.path.islink(path) else os.path.join(real, file)
        stored = _STORES.fullmatch(target.replace(os.sep, "/"))
        places = [(each, _BLOB) for each in (stored.groups() if stored else ()) if each]
        for root in roots:
            note = os.path.join(DOWNLOADS, f"{os.path.relpath(path, root)}.metadata")
            notes = LocalStorage(os.path.join(root, os.path.dirname(note)))
            name = os.path.basename(note)
            lines = (
                read_beginning(notes, name, _MOST_NOTE_NBYTES)
                .decode("utf-8", "replace")
                .split("\n")
            )
            if re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", etag := "".join(lines[1:2]).strip()):
                places.append((etag, note))
            # It is named after the note, or after the hash of its name.
            import hashlib

            hashed = hashlib.sha1(name.encode(), usedforsecurity=False).digest()
            heads = (os.path.basename(path), base64.urlsafe_b64encode(hashed).decode())
            begun += [
                os.path.join(os.path.dirname(note), each)
                for each in notes.names()
                if each.endswith(".incomplete") and (each.startswith(heads) or len(lines) == 1)
            ]
        sums += [
            FileSum(file, "git" if len(each) == 40 else "sha256", each, place)
            for each, place in places
        ]
    return sums, begun


def compare_sums(
    storage: Storage,
    sums: Iterable[FileSum],
    files: Collection[str],
    progress: Progress = lambda _nbytes: None,
) -> tuple[dict[str, FileSum], list[FileSum], dict[str, str]]:
    """An agreeing checksum by file, the disagreeing ones, and the SHA-256 of ``files``."""
    sums = [*sums]
    algorithms = {name: {"sha256"} for name in files}
    for each in sums:
        algorithms.setdefault(each.file, set()).add(each.algorithm)

    def digits_of(name: str) -> dict[str, str]:
        import hashlib

        with suppress(CheckpointError), closing(open_below(storage, name)) as file:
            states = {
                each: hashlib.new("sha1" if each == "git" else each, usedforsecurity=False)
                for each in algorithms[name]
            }
            if "git" in states:
                states["git"].update(b"blob %d\0" % file.size)
            for start, stop in block_ranges(0, file.size):
                block = new_buffer(stop - start)
                file.read_into(start, block)
                for state in states.values():
                    state.update(block)
                progress(stop - start)
            return {each: state.hexdigest() for each, state in states.items()}
        return {}

    digits = dict(zip(algorithms, run_all(digits_of, [*algorithms]), strict=True))
    right = [each for each in sums if digits[each.file].get(each.algorithm) == each.digits]
    others = [each for each in sums if each not in right and digits[each.file]]
    whole = {name: digits[name]["sha256"] for name in files if digits[name]}
    return {each.file: each for each in right}, others, whole


def neighbour(found: Location, ending: str) -> tuple[Storage, str]:
    """The place of a file that is named as a checkpoint, with another ending behind it."""
    if not found.is_folder:
        return found.storage, found.name + ending
    # The folder above is not listed: it may be long, and that may need another right.
    above, name = os.path.split(found.path)
    return split_place(f"{above}/")[0], name + ending


def sums_beside(found: Location, source: Source, against: "Manifest | None") -> SummedFiles:
    """The checksums next to a checkpoint, or in the list ``against``; none for a manifest."""
    if against is not None and not against.is_list:
        return SummedFiles()
    files = found.files_of(source)
    if against is not None:
        own = files[0] if len(files) == 1 else ""
        sums = sums_in_list(*split_place(against.place), files, own)
        return SummedFiles(tuple(sums), () if sums else (against.place,))
    summed = summed_files(found.storage, files, {found.name, found.stem})
    storage, name = neighbour(found, ".sha256")
    if (
        not found.is_folder
        or is_manifest(storage, name)
        or not look_into(storage, name, lambda _: True, otherwise=False)
    ):
        return summed
    sums = sums_in_list(storage, name, files, prefix=f"{os.path.basename(found.path)}/")
    unknown = summed.unknown if sums else (*summed.unknown, f"{found.path}.sha256")
    return replace(summed, sums=(*summed.sums, *sums), unknown=unknown)


ENDING = ".sha256"
"""The ending of a manifest's name; before it is the checkpoint's."""

_MOST_HEAD_NBYTES = 64
_SAVE_AGAIN = "Copy the checkpoint again, or write it again with digest=True (--digest)."
_CHANGED = "Copy the checkpoint again; if it was meant to change, write its manifest again."
_WRITE_ONE = "`shardvar digest PATH --write` writes one."


@frozen
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
    """Not the path of another program's checksum."""
    storage, name = neighbour(found, ENDING)
    head = look_into(storage, name, lambda file: first_bytes(file, _MOST_HEAD_NBYTES), None)
    return found.path + (ENDING if head is None or is_digests(head) else f".shardvar{ENDING}")


def encode_manifest(manifest: Manifest) -> bytes:
    lines = []
    for name, value in manifest.files.items():
        # As sha256sum writes names with such characters.
        escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        lines.append(f"{'' if escaped == name else chr(92)}{value}  {escaped}")
    text = encode_digests(manifest.tensors) + "".join(f"{line}\n" for line in lines)
    return text.encode("utf-8", "surrogateescape")


def decode_manifest(octets: bytes, place: str) -> Manifest:
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


def read_statement(path: Path) -> tuple[Any, dict[str, Any]]:
    """Return the type of the predicate of the in-toto statement in a file, and the statement."""
    return parse_statement(_content(*split_place(path), os.fspath(path))[1], os.fspath(path))


def _read(storage: Storage, name: str, place: str) -> Manifest:
    is_json, octets = _content(storage, name, place)
    if is_json:
        return Manifest(place, tensors_of_statement(octets, place), {})
    return decode_manifest(octets, place)


def _content(storage: Storage, name: str, place: str) -> tuple[bool, bytes]:
    """Return True for JSON, and False for a manifest, and the bytes; another file is refused."""
    if not name:
        raise MissingFile(f"{place} is a folder, and not a manifest.", _WRITE_ONE)
    try:
        file = storage.open(name)
    except MissingFile:
        raise MissingFile(f"There is no manifest at {place}.", _WRITE_ONE) from None
    except MalformedCheckpoint as error:  # a device: its error speaks of checkpoints
        raise MalformedCheckpoint(error.cause, _WRITE_ONE) from None
    with closing(file):
        # Some other file may be of any size: its first line tells.
        octets = bytes(first_bytes(file, _MOST_HEAD_NBYTES))
        head = octets.decode("utf-8", "replace").partition("\n")[0]
        is_json = head.lstrip().startswith("{")
        if head != HEAD and not is_json:
            raise not_digests(place, head)
        if file.size > MAX_MANIFEST_NBYTES:
            raise past_limit(f"{place} has {file.size} bytes", "MAX_MANIFEST_NBYTES")
        return is_json, bytes(file.read(0, file.size))


def read_against(path: Path) -> Manifest:
    """Return a manifest as ``read_manifest`` does, or a list of checksums of files."""
    storage, name = split_place(path)
    is_list = (
        bool(name)
        and not is_manifest(storage, name)
        and bool(decode_sums(read_beginning(storage, name, MAX_MANIFEST_NBYTES)))
    )
    return Manifest(os.fspath(path), {}, {}, is_list=True) if is_list else read_manifest(path)


def manifest_beside(found: Location) -> Manifest | None:
    for ending in (manifest_path(found).removeprefix(found.path), ENDING):
        with suppress(MissingFile):
            if is_manifest(*neighbour(found, ending)):
                return _read(*neighbour(found, ending), found.path + ending)
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
            f"{each.key or each.file!r} has no digest: {each.message}",
            "Take a checkpoint that is whole.",
        )
    from shardvar.verbs.remove import find_named  # of a write

    found = find_named(report.path)
    path = check_without_manifest(found, force)
    with closing(found.open()) as source:
        files = found.files_of(source)
    sums = summed_files(found.storage, files).sums
    agreed, others, digests = compare_sums(found.storage, sums, files)
    for other in others:  # the manifest would hide it
        if other.names_file and other.file not in agreed:
            raise CorruptCheckpoint(other.disagreement.cause, other.remedy)
    folder = f"{os.path.basename(found.path)}/" if found.is_folder else ""
    digests = {f"{folder}{name}": value for name, value in digests.items()}
    octets = encode_manifest(Manifest(path, report.tensors, digests))
    storage, name = split_place(path)
    with storage.lock(name):
        check_without_manifest(found, force)
        replace_file(storage, name, octets)
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
    reader: Reader,
    against: Manifest | None,
    progress: Progress,
    choose: Choose | None,
) -> VerifyReport:
    """The report with the outcomes of carried digests, and of ``against`` or files next to it."""
    place = manifest_path(found) if against is None else against.place
    digests: DigestReport | None = None
    metadata = reader.metadata
    own = found.path if metadata.has_digests else None
    for at in [each for each in (own, place) if each]:
        try:
            claim = (
                Manifest("its own metadata", dict(metadata.digests), {}, is_carried=True)
                if at == own
                else against or manifest_beside(found)
            )
            # Without outcomes, the index cannot be read as far as the chosen keys.
            if claim is None or claim.is_list or (choose is not None and not report.outcomes):
                continue
            claim = claim if choose is None else _chosen(claim, report, reader, choose)
            if digests is None:
                digests = digest_reader(reader, progress, report.outcomes)
            # A tensor whose digest agrees is right, with or without checksums; one that disagrees
            # is damaged.
            wrong = differences(claim, digests)
            right = {
                key
                for key in digests.tensors
                if key not in wrong and report.outcomes.get(key) != DAMAGED
            }
            covers_index = right == {*report.outcomes}
            report = _settled(
                report, reader, dict.fromkeys(right, OK), wrong, covers_index=covers_index
            )
        except CheckpointError as error:
            # The outcomes without the digests stay. A manifest is not the checkpoint:
            # if it cannot be compared, nothing is known.
            damage = (Damage.of(error, None, at),)
            if at == own:
                report = replace(report, damages=report.damages + damage)
            else:
                report = replace(report, doubts=report.doubts + damage)
    summed = sums_beside(found, reader.source, against)
    if choose is not None and summed.sums:
        note = "Checksums of whole files were not compared, since only some tensors are chosen."
        report, summed = replace(report, notes=(*report.notes, note)), replace(summed, sums=())
    if summed == SummedFiles() or (report.damages and not report.outcomes):
        return report
    compared, doubts = _with_sums(report, found, reader, summed, progress)
    # Checksums of all bytes settle a doubt, unless it is about what the caller gave.
    if compared.verdict == OK and against is None:
        return replace(compared, notes=(*compared.notes, *(each.message for each in doubts)))
    return replace(compared, doubts=(*compared.doubts, *doubts))


def _with_sums(
    report: VerifyReport, found: Location, reader: Reader, summed: SummedFiles, progress: Progress
) -> tuple[VerifyReport, list[Damage]]:
    agreeing, others, _ = compare_sums(found.storage, summed.sums, (), progress)
    wrong = [each for each in others if each.names_file and each.file not in agreeing]
    doubts = [each.disagreement for each in others if each not in wrong]
    agreed = dict[str, list[str]]()
    for each in agreeing.values():
        agreed.setdefault(f"{each.label} in {each.place}", []).append(each.file)
    notes = [
        f"{files[0]} agrees with its {what}."
        if len(files) == 1
        else f"{count(len(files), 'file')} agree with their {what}."
        for what, files in agreed.items()
    ]
    covers_index = agreeing.keys() >= {*found.files_of(reader.source)}
    entries = reader.entries()
    right = [n for n, name in enumerate(reader.index.files) if name in agreeing]
    bad = {*entries.slices.tensor[~np.isin(entries.file, right)].tolist()}
    outcome = VALUES_MATCH if report.bare_index and not covers_index else OK
    outcomes = {
        key: outcome
        for row, key in enumerate(entries.slices.tensors.keys)
        if row not in bad and report.outcomes.get(key) != DAMAGED
    }
    report = _settled(report, reader, outcomes, covers_index=covers_index)
    damages = (*report.damages, *(each.disagreement for each in wrong))
    report = replace(report, damages=damages, notes=(*report.notes, *notes))
    return report, [*summed.doubts, *doubts]


def _chosen(manifest: Manifest, report: VerifyReport, reader: Reader, choose: Choose) -> Manifest:
    check_lists_some(manifest, [*reader], report.path)
    # Also a key that only the manifest has: a tensor that was lost.
    chosen = choose([*dict.fromkeys([*report.outcomes, *manifest.tensors])])
    kept = {key: manifest.tensors[key] for key in manifest.tensors if key in chosen}
    return replace(manifest, tensors=kept)


def _settled(
    report: VerifyReport,
    reader: Reader,
    right: Mapping[str, str],
    wrong: Mapping[str, Damage] = MappingProxyType({}),
    *,
    covers_index: bool,
) -> VerifyReport:
    known = {damage.key for damage in report.damages}
    settled = {*right, *wrong}
    slices = reader.entries().slices
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
