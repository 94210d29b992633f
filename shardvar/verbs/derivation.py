"""Derivations: in-toto statements of the rules that made a checkpoint of others, and the run that
decides whether they did.

    {"_type": "https://in-toto.io/Statement/v1",
     "subject": [{"name": "out.safetensors", "digest": {"shardvarDigest1": "8dbf..."}}],
     "predicateType": "https://shardvar/derivation/v1",
     "predicate": {"definition": 1,
                   "sources": [{"name": "model", "digest": {"shardvarDigest1": "828d..."}}],
                   "files": [{"source": 0, "name": "config.json", "digest": {"sha256": "6f1c..."}}],
                   "options": {"map": {"rules": ["w[o i] -> v[i o]"], "sizes": {}}, "cast": "bfloat16"},
                   "classes": {"moved": 290, "rounded": 0, "computed": 1},
                   "tool": "shardvar 1.2.0"}}

The options are the arguments of ``sv.reshard`` that change tensors, as values of JSON. Sizes that a file gave
are numbers. A file is listed if more than a size depends on it. The definition is the number of
the arithmetic in docs/maps.md: a program with another one cannot decide.

A run plans as the reshard did, from nothing but the statement, and compares what the plan makes with the
result, block by block. The result is digested from the same blocks. Nothing is written.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from inspect import signature
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from shardvar._version import __version__
from shardvar.engine.cast import CastSource
from shardvar.engine.pool import Progress
from shardvar.engine.quantised import EncodedSource
from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    CorruptCheckpoint,
    MalformedCheckpoint,
    MapError,
    ShardvarError,
    TargetExists,
)
from shardvar.formats.files import read_beginning, replace_file
from shardvar.formats.protocol import Format
from shardvar.layout.meshes.layout import Mesh
from shardvar.limits import MAX_MANIFEST_NBYTES
from shardvar.maps.map import Map, chosen, with_files
from shardvar.maps.matching import PREFIX, exact_number, read_beside, sizes_at
from shardvar.pictures.words import count, human_shape, named, natural_key, printable
from shardvar.records import asdict, frozen, replace
from shardvar.storage.local import split_place
from shardvar.verbs.arguments import check_progress, named_arguments
from shardvar.verbs.compare.blocks import Blocks
from shardvar.verbs.compare.digest import digest_reader, digests_of
from shardvar.verbs.compare.manifest import ALGORITHM, TYPE, compare_sums, read_statement
from shardvar.verbs.compare.walk import PairWalk
from shardvar.verbs.delta.apply import applied
from shardvar.verbs.delta.chain import find_deltas
from shardvar.verbs.delta.contents import is_delta
from shardvar.verbs.locate import Location, Path, find_checkpoint, paths_of
from shardvar.verbs.mapping import as_map
from shardvar.verbs.problems import SCHEMA
from shardvar.verbs.reader import Reader
from shardvar.verbs.reshard import Derived, derived, reshard
from shardvar.wire.digests import digest_of_all, hash_of

__all__ = ["DerivationReport", "certify", "verify_derivation"]

PREDICATE_TYPE = "https://shardvar/derivation/v1"
DEFINITION = 1
"""The number of the definition of arithmetic. A change of any result is another number."""

DERIVED, NOT_DERIVED, UNDECIDED = "derived", "not derived", "cannot be decided"
_KINDS = ("moved", "rounded", "computed")
CONFIG = "config.json"
_WRITE_AGAIN = "`shardvar reshard SRC DST --certify FILE` writes one."


@frozen
class DerivationReport:
    """Report of ``verify_derivation``."""

    path: str
    """The checkpoint."""
    sources: tuple[str, ...]
    """The checkpoints that it is said to be made of."""
    statement: str
    """The file of the statement."""
    verdict: str
    """``derived``, ``not derived``, or ``cannot be decided``."""
    problems: tuple[str, ...]
    """The differences, or why nothing could be decided; empty if it is derived."""
    classes: Mapping[str, int]
    """The numbers of tensors that were moved, rounded and computed."""

    @property
    def ok(self) -> bool:
        """True if the result is what the statement makes of the sources."""
        return self.verdict == DERIVED

    def __str__(self) -> str:
        made = ", ".join(f"{number:,} {kind}" for kind, number in self.numbers().items() if number)
        of = ", ".join(self.sources)
        about = f": {count(sum(self.classes.values()), 'tensor')}, {made}" if made else ""
        first = f"{self.verdict}: {self.path} from {of} by {self.statement}{about}"
        return "\n".join([first, *(f"  {problem}" for problem in self.problems)])

    def numbers(self) -> dict[str, int]:
        """Return the numbers of tensors by kind, in their order."""
        return {kind: self.classes.get(kind, 0) for kind in _KINDS}

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object with stable keys."""
        return {"schema": SCHEMA, **asdict(self), "classes": self.numbers(), "ok": self.ok}


# --- Options, as values of JSON


def _plain(value: Any) -> Any:
    if isinstance(value, Map):
        return {"rules": list(value.rules), "sizes": dict(value.sizes)}
    if isinstance(value, Mesh):
        return [list(value.shape), value.axis_names and list(value.axis_names), list(value.devices)]
    if isinstance(value, Mapping):
        return [[key, _plain(each)] for key, each in value.items()]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return [_plain(each) for each in value]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [_text(each) for each in value]


def _pairs(value: Any, what: Callable[[Any], Any] = _text) -> dict[str, Any]:
    return {_text(key): what(each) for key, each in value}


def _renames(value: Any) -> dict[str, Any]:
    found = _pairs(value)
    if any(old.startswith("re:") for old in found):  # one of a stranger may take for ever
        raise ValueError(
            "a regular expression, which a statement does not have: use globs or rules"
        )
    return found


def _join(value: Any) -> Any:
    if isinstance(value, int):
        return value
    mesh, spec = value
    return Mesh(*mesh), tuple(each if each is None else tuple(_texts(each)) for each in spec)


APPLY = "apply"
"""The option of a result of deltas, whose first source is their base."""
_READ: Mapping[str, Callable[[Any], Any]] = {
    "filter": _texts,
    "exclude": _texts,
    "map": lambda value: Map(_texts(value["rules"]), sizes=dict(value["sizes"])),
    "strip_prefix": _text,
    "rename": _renames,
    "add_prefix": _text,
    "concat": lambda value: _pairs(value, _join),
    "transpose": _texts,
    "dequantize": lambda value: value if isinstance(value, bool) else _text(value),
    "cast": lambda value: value if isinstance(value, str) else _pairs(value),
    "quantize": _text,
    "keep": _texts,
    APPLY: bool,
}
"""The arguments of a reshard that change tensors, and what makes each of its value in JSON; or
``apply``."""


def _options_of(given: Mapping[str, Any], paths: Sequence[str]) -> tuple[dict[str, Any], bool]:
    """The options as JSON has them, and whether more than sizes depends on ``config.json``."""
    found = {name: given[name] for name in _READ if given.get(name)}
    needs_file = bool(found.get("dequantize"))
    if "map" in found:
        made = chosen(as_map(found["map"], paths=paths), paths[0])
        sizes, size_of = dict[str, Any](), sizes_at(made.sizes, paths[0])
        for name, size in made.sizes.items():
            if isinstance(size, str) and PREFIX in size:
                with suppress(MapError):  # of a rule that is switched off
                    value = size_of(name)
                    exact = value if isinstance(value, list) else [value]
                    numbers = [float(n) if n % 1 else int(n) for n in exact]
                    if [*map(exact_number, numbers)] == exact:
                        sizes[name] = numbers if isinstance(value, list) else numbers[0]
        found["map"] = made = with_files(made, paths).extended((), sizes)
        texts = [str(size) for size in made.sizes.values()]
        needs_file |= any(PREFIX in text for text in texts)
        needs_file |= any(PREFIX in rule.text or rule.condition for rule in made.parsed)
    return {name: _plain(value) for name, value in found.items()}, needs_file


# --- The run


@frozen
class _Run:
    sources: tuple[str | None, ...]
    """The digest of each source; None if a tensor of it cannot be read."""
    result: str | None
    """The digest of the result, if every tensor of it could be read."""
    unreadable: tuple[str, ...]
    problems: tuple[str, ...]
    classes: Mapping[str, int]


def _digest_of(found: Location, progress: Progress) -> str | None:
    """The digest of the tensors of a checkpoint; of a delta, a SHA-256 of its files."""
    with Reader(found.path, found.format.name, found.open()) as reader:
        if not is_delta(reader):
            return digest_reader(reader, progress).checkpoint
        files = sorted(found.files_of(reader.source))
    _, _, digests = compare_sums(found.storage, (), files)
    return hash_of("".join(digests[name] for name in files).encode()).hex()


@contextmanager
def _made_of(
    sources: Sequence[Location], form: Format, options: Mapping[str, Any]
) -> Iterator[Derived]:
    if not options.get(APPLY):
        with derived(sources, form, options) as made:
            yield made
        return
    with applied(sources[0], sources[1:]) as result:
        yield Derived(result.entries(), result.source, {}, {}, None, ())


def _run(
    result: Location,
    sources: Sequence[Location],
    options: Mapping[str, Any],
    progress: Progress,
    known: Mapping[str, str | None] = MappingProxyType({}),
) -> _Run:
    """``known`` are the digests of checkpoints by their paths."""
    digests = [known.get(each.path) or _digest_of(each, progress) for each in sources]
    opened = Reader(result.path, result.format.name, result.open())
    with opened as other, _made_of(sources, result.format, options) as made:
        tensors = made.entries.slices.tensors
        kinds, rules = _facts(made, tensors.keys)
        blocks = Blocks.of_entries(made.source, made.entries)
        hashed = dict[str, str]()
        walk = PairWalk(blocks, Blocks.of(other), None, False, progress, hashed)
        keys = [key for key in tensors.keys if key in other and key not in other.faults]
        walk.compare(keys)
        broken = [*walk.unreadable.values()]
        unreadable = [
            f"{each.key!r} cannot be read in the {'result' if each.side == 'b' else 'sources'}: "
            f"{each.message}"
            for each in broken
        ]
        problems = list[str]()
        for key, each in sorted(walk.differences.items(), key=lambda item: natural_key(item[0])):
            first = None if each.values is None else each.values.first
            at = "" if first is None else f", first at {human_shape(first)}"
            problems.append(f"{key!r} differs in {each.kind}{at}{rules.get(key, '')}")
        objects = {key: other.source.objects((key,), result.format.name) for key in made.objects}
        there = {*tensors.keys, *made.objects}
        problems += [f"{key!r} is not in the result" for key in there if key not in other]
        problems += [f"{key!r} is made by no rule" for key in other if key not in there]
        problems += [
            f"{key!r}: the setting differs"
            for key, encoding in made.objects.items()
            if key in other and (objects[key] or {}).get(key) != encoding
        ]
        left = [key for key in other.entries().slices.tensors.keys if key not in hashed]
        digest = None
        if not broken and not other.faults.keys() - made.objects.keys():
            digest = digest_of_all({**hashed, **digests_of(other, left, progress)})
    return _Run(tuple(digests), digest, tuple(unreadable), tuple(problems), Counter(kinds.values()))


def _facts(made: Derived, keys: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """By name, the kind of each tensor, and the rule that makes it, as the end of a sentence."""
    numbers, old = {*made.numbers}, {name: key for key, name in made.names.items()}
    before = [old.get(name, name) for name in keys]
    ranks, rules = [2 * (key in numbers) for key in before], dict[str, str]()
    if made.map is not None:
        plan, listed = made.map.plan, made.map.rules
        by_target = plan.rules_by_target()
        computed = {t.key for t in plan.targets for p in t.pieces if not numbers.isdisjoint(p.keys)}
        computed |= {plan.names[key] for key in numbers & plan.names.keys()}
        for row, key in enumerate(before):
            of_key = sorted(by_target.get(key, ()))
            kinds = [_KINDS.index(listed[number].kind) for number in of_key]
            ranks[row] = max([*kinds, 2 * (key in computed)])
            if of_key:
                rules[keys[row]] = f", made by rule {of_key[0] + 1}, {listed[of_key[0]].rule!r}"
    source, entries = made.source, made.entries
    if isinstance(source, EncodedSource):
        for row in np.flatnonzero(~entries.plain).tolist():
            is_code = int(entries.start[row]) in source.quantised
            ranks[entries.slices.tensor[row]] = 2 if is_code else ranks[entries.slices.tensor[row]]
        source = source.inner
    if isinstance(source, CastSource):
        new, before_cast = entries.slices.tensors, source.stored.slices.tensors
        dtypes = dict(zip(before_cast.keys, before_cast.codes.tolist(), strict=True))
        for row, key in enumerate(new.keys):
            if dtypes.get(key, new.codes[row]) != new.codes[row]:
                ranks[row] = max(1, ranks[row])
    return {key: _KINDS[rank] for key, rank in zip(keys, ranks, strict=True)}, rules


# --- Statements


def _subject(path: str, digest: str) -> dict[str, Any]:
    return {"name": os.path.basename(path.rstrip("/")), "digest": {ALGORITHM: digest}}


def certify(
    result: Path,
    source: Path | Sequence[Path],
    file: Path,
    *,
    force: bool = False,
    progress: Progress = lambda _nbytes: None,
    **options: Any,
) -> DerivationReport:
    """Write a statement that a checkpoint is what ``sv.reshard`` makes of others, after making sure.

    Parameters
    ----------
    result : path_like
        The checkpoint that a reshard wrote.
    source : path_like or sequence of path_like
        The checkpoints that it was made of, in the order of the reshard.
    file : path_like
        The file to write: an in-toto statement, to be signed by tools for signatures.
    force : bool, default False
        Replace an existing file.
    progress : callable, optional
        Called with numbers of payload bytes as they are read.
    **options : Any
        The arguments of the reshard. Those that change no tensor, such as ``partition``, are left
        out. ``apply=True`` for a result of ``sv.apply``: the first source is the base, the others
        are its deltas.

    Returns
    -------
    DerivationReport
        The report, whose verdict is ``derived``.

    Raises
    ------
    CorruptCheckpoint
        If the result is not what the arguments make of the sources.
    TargetExists
        If the file exists and ``force`` is not set.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import shardvar as sv
    >>> a, b, file = (os.path.join(tempfile.mkdtemp(), name) for name in ("a", "b.npz", "b.json"))
    >>> _ = sv.save(a, {"w": np.ones((2, 3))}), sv.reshard(a, b, transpose="w")
    >>> sv.certify(b, a, file, transpose="w").verdict
    'derived'
    >>> sv.verify_derivation(b, a, file).ok
    True
    """
    check_progress(progress)
    if unknown := sorted(options.keys() - signature(reshard).parameters.keys() - {APPLY}):
        raise ArgumentTypeError(f"reshard() has no argument {unknown[0]!r}.", "Give its arguments.")
    found, sources = find_checkpoint(result), _sources(paths_of(source), options)
    storage, name = split_place(file)
    if not force and storage.status(name) is not None:
        raise TargetExists(f"{os.fspath(file)} exists.", "Pass force=True (--force).")
    plain, needs_file = _options_of(options, [each.path for each in sources])
    run = _run(found, sources, _read_options(plain, "the options"), progress)
    if run.unreadable or run.problems or run.result is None or None in run.sources:
        problem = [*run.unreadable, *run.problems, "A source cannot be read whole"][0]
        cause = f"{found.path} is not what these options make of {sources[0].path}: {problem}."
        raise CorruptCheckpoint(cause, "Give the options of the reshard that wrote it.")
    statement = {
        "_type": TYPE,
        "subject": [_subject(found.path, run.result)],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "definition": DEFINITION,
            "sources": [
                _subject(each.path, digest or "")
                for each, digest in zip(sources, run.sources, strict=True)
            ],
            "files": _files_of(sources) if needs_file else [],
            "options": plain,
            "classes": dict(run.classes),
            "tool": f"shardvar {__version__}",
        },
    }
    with storage.lock(name):
        replace_file(storage, name, f"{json.dumps(statement, indent=1)}\n".encode())
    paths = tuple(each.path for each in sources)
    return DerivationReport(found.path, paths, os.fspath(file), DERIVED, (), run.classes)


def _files_of(sources: Sequence[Location]) -> list[dict[str, Any]]:
    found = []
    for number, each in enumerate(sources):
        if (digest := _config_digest(each)) is not None:
            found.append({"source": number, "name": CONFIG, "digest": {"sha256": digest}})
    return found


def _config_digest(found: Location) -> str | None:
    """The SHA-256 of ``config.json`` next to a checkpoint; None without one."""
    try:
        where, _ = read_beside(found.path)
    except MapError:
        return None
    return hash_of(read_beginning(*split_place(where), MAX_MANIFEST_NBYTES)).hex()


def _read_options(plain: Any, place: str) -> dict[str, Any]:
    try:
        return {name: _READ[name](value) for name, value in plain.items()}
    except (KeyError, TypeError, ValueError, ShardvarError) as error:
        cause = error.cause if isinstance(error, ShardvarError) else repr(error)
        raise MalformedCheckpoint(
            f"{place} has options that cannot be read: {cause}.", _WRITE_AGAIN
        ) from None


@frozen
class _Statement:
    place: str
    name: str
    result: str
    origins: tuple[tuple[str, str], ...]
    """The name and the digest of each source."""
    files: Mapping[int, str]
    options: Mapping[str, Any]
    classes: Mapping[str, int]
    unknown: str
    """The part of it that this version does not know; else empty."""

    @classmethod
    def read(cls, path: Path) -> Self:
        place, (kind, content) = os.fspath(path), read_statement(path)
        if kind != PREDICATE_TYPE:
            cause = f"{place} is a statement with the predicate {kind!r}, not of a derivation."
            raise MalformedCheckpoint(cause, _WRITE_AGAIN)
        try:
            (subject,), predicate = content["subject"], content["predicate"]
            definition, plain = predicate["definition"], dict(predicate["options"])
            unknown = [f"the option {name!r}" for name in plain if name not in _READ]
            if definition != DEFINITION:
                unknown = [f"the definition {definition!r} of arithmetic"]
            origins = [(each["name"], _digest_in(each)) for each in predicate["sources"]]
            return cls(
                place,
                _text(subject["name"]),
                _digest_in(subject),
                tuple(origins),
                {int(each["source"]): each["digest"]["sha256"] for each in predicate["files"]},
                {} if unknown else _read_options(plain, place),
                {kind: int(predicate["classes"].get(kind, 0)) for kind in _KINDS},
                unknown[0] if unknown else "",
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            cause = f"{place} lacks a part of a derivation."
            raise MalformedCheckpoint(cause, _WRITE_AGAIN) from None

    def decide(
        self,
        found: Location,
        sources: Sequence[Location],
        progress: Progress,
        known: Mapping[str, str | None] = MappingProxyType({}),
    ) -> DerivationReport:
        paths = tuple(each.path for each in sources)
        report = DerivationReport(found.path, paths, self.place, UNDECIDED, (), {})
        if self.unknown:
            problem = f"the statement has {self.unknown}, which this version does not know: use a newer one"
            return replace(report, problems=(problem,))
        if len(self.origins) != len(sources):
            cause = f"{self.place} has {count(len(self.origins), 'source')}, and {len(sources)} are given."
            raise ArgumentError(cause, "Give all of them, in its order.")
        for number, known_file in self.files.items():
            if number >= len(sources) or _config_digest(sources[number]) != known_file:
                problem = f"{CONFIG} of source {number} is another file than the statement names"
                return replace(report, problems=(problem,))
        try:
            run = _run(found, sources, self.options, progress, known)
        except (ArgumentError, MapError) as error:
            problem = f"the options do not fit the sources: {error.cause}"
            return replace(report, verdict=NOT_DERIVED, problems=(problem,))
        problems = list(run.problems)
        sides = zip(
            (*paths, found.path),
            (*run.sources, run.result),
            (*self.digests, self.result),
            strict=True,
        )
        for number, (path, digest, claimed) in enumerate(sides):
            if digest not in (None, claimed):
                what = "result" if number == len(sources) else "source"
                problems.append(f"{what} differs: {path} has the digest {digest}, not {claimed}")
        if not problems and {k: n for k, n in self.classes.items() if n} != dict(run.classes):
            problems.append(
                "the statement has other numbers of moved, rounded and computed tensors"
            )
        is_read = run.result is not None and None not in run.sources
        verdict = NOT_DERIVED if problems else DERIVED if is_read else UNDECIDED
        problems = [*run.unreadable, *problems]
        return replace(report, verdict=verdict, problems=tuple(problems), classes=run.classes)

    @property
    def digests(self) -> list[str]:
        return [digest for _, digest in self.origins]


def _digest_in(value: Any) -> str:
    return _text(value["digest"][ALGORITHM])


@named_arguments
def verify_derivation(
    result: Path,
    source: Path | Sequence[Path],
    statement: Path | Sequence[Path],
    *,
    progress: Progress = lambda _nbytes: None,
) -> DerivationReport:
    """Make the tensors of a checkpoint again by a statement of ``sv.certify``, and compare them.

    Parameters
    ----------
    result : path_like
        The checkpoint.
    source : path_like or sequence of path_like
        The checkpoints that it is said to be made of, in the order of the statement. Of several
        statements: all checkpoints of the lineage, in any order.
    statement : path_like or sequence of path_like
        The file of the statement: as it was written, in a DSSE envelope, or in a Sigstore bundle.
        Signatures are not compared. Several statements are steps of one lineage.
    progress : callable, optional
        Called with numbers of payload bytes as they are read.

    Returns
    -------
    DerivationReport
        The report: derived, not derived, or that it cannot be decided. Metadata and other files are not
        compared.

    Raises
    ------
    MalformedCheckpoint
        If the file is not such a statement.
    CheckpointNotFound
        If there is no checkpoint at a path.

    Examples
    --------
    See ``sv.certify``.
    """
    check_progress(progress)
    claims = [_Statement.read(each) for each in paths_of(statement)]
    found, paths = find_checkpoint(result), paths_of(source)
    if len(claims) == 1:
        return claims[0].decide(found, _sources(paths, claims[0].options), progress)
    given = [found, *map(find_checkpoint, paths)]
    known = {each.path: _digest_of(each, progress) for each in given}
    return _lineage(claims, found, {known[each.path]: each for each in given}, known, progress)


def _lineage(
    claims: Sequence[_Statement],
    found: Location,
    by_digest: Mapping[str | None, Location],
    known: Mapping[str, str | None],
    progress: Progress,
) -> DerivationReport:
    """Walk from a checkpoint to its first sources, and decide each step."""
    makers = {each.result: each for each in claims}
    verdicts, problems, classes = [DERIVED], list[str](), Counter[str]()
    ahead, seen, roots = [known[found.path]], set[str | None](), list[str]()
    if ahead[0] not in makers:
        verdicts.append(NOT_DERIVED)
        problems.append(f"no statement is about {found.path}, whose digest is {ahead[0]}")
    while ahead:
        digest = ahead.pop()
        claim = None if digest in seen or digest is None else makers.get(digest)
        seen.add(digest)
        if claim is None:
            continue
        missing = [name for name, each in claim.origins if each not in by_digest]
        for name, origin in claim.origins:
            if origin in makers:
                ahead.append(origin)
            elif origin in by_digest:
                roots.append(by_digest[origin].path)
            else:
                problems.append(
                    f"missing link: {printable(name)}, of which {printable(claim.name)} is made, is not given"
                )
        if missing or digest not in by_digest:
            verdicts.append(UNDECIDED)
            gone = missing[0] if missing else claim.name
            problems.append(
                f"the step of {claim.place} was not run again without {printable(gone)}"
            )
            continue
        sources = [by_digest[each] for each in claim.digests]
        step = claim.decide(by_digest[digest], sources, progress, known)
        verdicts.append(step.verdict)
        classes.update(step.classes)
        problems += [f"{claim.place}: {each}" for each in step.problems]
    idle = [each.place for each in claims if each.result not in seen]
    if idle:
        verdicts.append(UNDECIDED)
        problems.append(f"{named(idle)} leads to nothing that {found.path} is made of")
    verdict = max(verdicts, key=[DERIVED, UNDECIDED, NOT_DERIVED].index)
    places = ", ".join(each.place for each in claims)
    return DerivationReport(found.path, tuple(roots), places, verdict, tuple(problems), classes)


def _sources(paths: Sequence[Path], options: Mapping[str, Any]) -> list[Location]:
    if not options.get(APPLY):
        return [find_checkpoint(each) for each in paths]
    return [find_checkpoint(paths[0]), *find_deltas(list(paths[1:]))]
