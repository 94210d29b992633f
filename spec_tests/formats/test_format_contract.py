"""What every format promises, held against each through the protocol alone: no verb, no engine, no
knowledge of files.

A format that another package adds is held to the same sentences by being in the table.
"""

import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    CheckpointNotFound,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MalformedCheckpoint,
    MissingFile,
    UnknownKey,
    UnsupportedError,
)
from shardvar.formats.protocol import FileChecksums, Format, Sink, Source
from shardvar.formats.table import (
    all_formats,
    ending_of_other_files,
    format_named,
    format_names,
    format_of_name,
    formats_of,
)
from shardvar.layout.dtypes import (
    ITEMSIZES,
    NAMES,
    PACKED_BITS,
    STRING,
    VARIANT,
    code,
    is_opaque,
    numpy_dtype,
)
from shardvar.layout.region import Region
from shardvar.limits import MAX_RANK
from shardvar.planning.index import EntryTable, Metadata
from shardvar.planning.slices import Assignment, Capabilities
from shardvar.storage.local import LocalStorage
from shardvar.verbs.locate import _locate
from shardvar.wire.sstable import TABLE_MAGIC
from spec_tests.helpers.format_protocol import GOLDEN, open_path, read_payload, write_aside
from spec_tests.helpers.native_checkpoints import Piece, assignment_of, whole
from spec_tests.helpers.native_checkpoints import cut as parts_of
from spec_tests.helpers.orbax_files import settled
from spec_tests.hostile.case import CASES, HERE
from spec_tests.hostile.evidence import EVIDENCE

Payloads = dict[tuple[str, Region], tuple[str, tuple[int, ...], bytes]]

DAMAGED = (CorruptCheckpoint, IncompleteCheckpoint, InvalidCheckpoint, MalformedCheckpoint)


WRITTEN = [name for name in format_names() if format_named(name).capabilities.dtypes]
READ_ONLY = sorted({*format_names()}.difference(WRITTEN))


@dataclass(frozen=True)
class Place:
    """A format that writes, and an empty folder."""

    form: Format
    storage: LocalStorage

    @property
    def can(self) -> Capabilities:
        return self.form.capabilities

    def called(self, name: str) -> str:
        """The name of a checkpoint in its directory: a folder's only checkpoint is called by its
        index."""
        return self.can.folder_index or name

    def locate(self, name: str) -> list[str]:
        return self.form.locate(self.storage, name)

    def sample(self) -> list[Piece]:
        """A tensor of every dtype that the format says it holds, and of every shape that anybody trips
        over."""
        held = sorted(self.can.dtypes)
        pieces = [
            whole(f"dtypes/{name}", np.arange(4) % 2, name) for name in filter(is_number, held)
        ]
        for name in filter(is_opaque, held):
            # safetensors writes these elements of PyTorch as the two of four bits that each is.
            if name != VARIANT and (self.form.name, name) != ("safetensors", "float4_e2m1fn_x2"):
                octets = bytes(range(4 * int(ITEMSIZES[code(name)]) or PACKED_BITS[name] // 2))
                pieces.append(Piece(f"opaque/{name}", name, (4,), Region((0,), (4,)), octets))
        if STRING in held:
            pieces += [whole("strings", [[b"a", b""], [b"\x00\xff", b"long " * 40]], STRING)]
            pieces += [whole("no strings", np.empty((2, 0), object), STRING)]
        if VARIANT in held:
            pieces += [Piece(VARIANT, VARIANT, (), Region((), ()), b"\x02hi\x00\x00\x00\x00")]
        pieces += [whole("scalar", np.float64(2.5)), whole("empty", np.zeros((0, 3), np.float32))]
        pieces += [
            whole("long", np.arange(70000, dtype=np.int64)),
            whole("odd é name .-0", np.ones((1, 1, 2), np.uint8)),
        ]
        return pieces

    def spread(self, count: int = 3) -> list[Piece]:
        """Tensors of the same size and different bytes in several files, two in each, or in one where
        one is all."""
        files = count if self.can.many_files else 1
        return [
            whole(f"t{number}", np.full((5, 4), number + 1, np.float32), file=number % files)
            for number in range(2 * count)
        ]

    def write_files(
        self, name: str, pieces: Sequence[Piece], generation: str, files: int | None = None
    ) -> tuple[Sink, list[FileChecksums], Assignment]:
        """Everything that comes before the commit. In formats whose slices are files, each piece is
        in a file by itself."""
        if self.can.is_grid:
            pieces = [replace(piece, file=number) for number, piece in enumerate(pieces)]
        assignment, metadata = assignment_of(pieces, files), Metadata("d", "w", {"k": "v"})
        how = assignment, [piece.payload for piece in pieces], metadata, generation
        return *write_aside(self.form, self.storage, self.called(name), *how), assignment

    def write(
        self, name: str, pieces: Sequence[Piece], generation: str = "g1", files: int | None = None
    ) -> Source:
        """Write a checkpoint, locate it by the name that it was given, and open it."""
        sink, checksums, _ = self.write_files(name, pieces, generation, files)
        sink.commit(checksums)
        return self.reopen(name)

    def reopen(self, name: str) -> Source:
        (found,) = self.locate(self.called(name))
        return self.form.open(self.storage, found)

    def write_and_read(self, name: str, pieces: Sequence[Piece], files: int | None = None) -> None:
        """Fail unless keys, dtypes, shapes, regions and payloads come back."""
        source = self.write(name, pieces, files=files)
        assert contents(source) == expected(pieces) and dict(source.index.faults) == {}
        source.close()

    def refuse(self, pieces: Sequence[Piece], words: str = "") -> None:
        """Fail unless the pieces are refused before a byte is written."""
        with pytest.raises(UnsupportedError, match=words or None):
            self.form.create(self.storage, "ck", assignment_of(pieces), Metadata(), "g1")
        assert self.storage.names() == []


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path))


@pytest.fixture(params=WRITTEN)
def place(request: pytest.FixtureRequest, storage: LocalStorage) -> Place:
    return Place(format_named(request.param), storage)


def is_number(name: str) -> bool:
    return bool(ITEMSIZES[code(name)]) and not is_opaque(name)


def halves(dtype: str) -> list[Piece]:
    """A tensor of four rows in two slices."""
    array = (np.arange(12).reshape(4, 3) % 2).astype(numpy_dtype(dtype))
    return parts_of("halves", array, Region((0, 0), (2, 3)), Region((2, 0), (2, 3)))


def contents(source: Source) -> Payloads:
    """Every payload, verified, by key and region."""
    found: Payloads = {}
    for entries in source.index.scan():
        for row in range(len(entries)):
            slice_ = entries.slices[row]
            payload = read_payload(source, entries, row)
            found[slice_.key, slice_.region] = (slice_.dtype, slice_.full_shape, payload)
    return found


def expected(pieces: Sequence[Piece]) -> Payloads:
    return {
        (piece.key, piece.region): (piece.dtype, piece.shape, piece.payload) for piece in pieces
    }


def outcome(source: Source, key: str) -> bytes | Exception:
    """The payload of a tensor in one slice, or what is raised instead."""
    try:
        if key in source.index.faults:
            raise source.index.faults[key]
        return read_payload(source, source.index.find(key), 0)
    except CheckpointError as error:
        return error


def described(entries: EntryTable, rows: Iterable[int]) -> list[tuple[Any, ...]]:
    columns = entries.file, entries.start, entries.checksum, entries.plain
    return [(entries.slices[row], *(column[row] for column in columns)) for row in rows]


def check_reads(source: Source) -> None:
    """A key is found with its rows of a scan, which are in one table, and any part of any payload is
    read in any order: to go back in an entry that is not plain is to begin anew. Of a plain entry,
    ``read_span`` and ``map`` at its place give what ``read_into`` gives."""
    seen: set[str] = set()
    for entries in source.index.scan():
        keys = [entries.slices.key(row) for row in range(len(entries))]
        assert seen.isdisjoint(keys)
        seen.update(keys)
        for key in {*keys}:
            found = source.index.find(key)
            rows = [row for row, other in enumerate(keys) if other == key]
            assert described(found, range(len(found))) == described(entries, rows)
        for row in range(len(entries)):
            payload = read_payload(source, entries, row)
            file, begin, nbytes = int(entries.file[row]), int(entries.start[row]), len(payload)
            for start, stop in ((2, 5), (nbytes // 3, nbytes), (nbytes - 1, nbytes), (1, 2)):
                if not 0 <= start < stop <= nbytes:
                    continue
                part, span = bytearray(stop - start), bytearray(stop - start)
                source.read_into(entries, row, start, memoryview(part))
                assert part == payload[start:stop]
                if entries.plain[row]:
                    source.read_span(file, begin + start, memoryview(span))
                    assert span == part == source.map(file)[begin + start : begin + stop]
    assert seen and dict(source.index.faults) == {} and source.map(0).readonly
    with pytest.raises(UnknownKey, match="no such key"):
        source.index.find("no such key")


@pytest.mark.parametrize("name", format_names())
def test_what_another_program_wrote_is_found_by_key_and_read_in_parts(name: str) -> None:
    """The golden checkpoint of each format, also of those that are only read."""
    assert name in EVIDENCE, "add a row EVIDENCE to a module of spec_tests/hostile"
    source = open_path(format_named(name), GOLDEN / EVIDENCE[name].golden)
    check_reads(source)
    source.close()


@pytest.mark.parametrize("name", format_names())
def test_a_fault_is_told_of_its_key_as_in_the_list_and_no_key_is_listed_twice(name: str) -> None:
    """These are the hostile checkpoints of a format; what cannot be opened has no list."""
    for case in (each for each in CASES if each.name.startswith(EVIDENCE[name].cases)):
        with suppress(CheckpointError), ExitStack() as stack:
            listed, asked = (
                stack.enter_context(
                    closing(open_path(format_named(name), HERE / case.name / case.path))
                )
                for _ in range(2)
            )
            faults = dict(listed.index.faults)
            for key, fault in faults.items():
                assert repr(asked.index.faults[key]) == repr(fault)
            keys = [key for each in listed.index.scan() for key in each.slices.tensors.keys]
            assert len({*keys}) == len(keys), case.name


def test_what_is_written_is_read(place: Place) -> None:
    """Of everything that the capabilities name; and the metadata of the user."""
    cut = halves("float32") if "float32" in place.can.slice_dtypes else []
    pieces = [*place.sample(), *cut]
    source = place.write("ck", pieces)
    assert contents(source) == expected(pieces)
    assert source.index.metadata.user == ({"k": "v"} if place.can.holds_texts else {})
    check_reads(source)
    source.close()


def test_a_checkpoint_of_nothing_is_a_checkpoint(place: Place) -> None:
    """Whether the policy made no file or an empty one."""
    for files in (0, 1):
        place.write_and_read(f"ck{files}", [], files)


PARTS_OF_NAMES = "a ck x - .npz .index .svindex .svdata-1f .data .safetensors .index.json".split()
PARTS_OF_NAMES += ["-00000-of-00001", "-00001-of-00002"]
NAMES_OF_FILES = st.lists(st.sampled_from(PARTS_OF_NAMES), min_size=1, max_size=4).map("".join)


@given(files=st.lists(NAMES_OF_FILES, max_size=4, unique=True), name=NAMES_OF_FILES | st.just(""))
@example(files=["ck.svindex"], name="ck.svdata-1f-00000-of-00001")
@example(files=["a.npz.npz"], name="a.npz")
@example(files=["ck-00001-of-00002.safetensors"], name="ck.safetensors")
@example(files=["ck.data-00000-of-00001"], name="ck")
@example(files=["checkpoint_10"], name="")
@example(files=["metadata.pkl"], name="")
@example(files=[], name="")
def test_a_format_that_is_not_asked_would_find_nothing(files: list[str], name: str) -> None:
    """A folder is there in any case: of a Universal Checkpoint, it may be all that is left."""
    with TemporaryDirectory() as directory:
        Path(directory, "zero", "w").mkdir(parents=True)
        Path(directory, "zero", "w", "fp32.pt").touch()
        for file in files:
            # The end of TensorFlow's V1 files and the beginning of a safetensors file: bytes that
            # formats look for.
            is_told = name == "" and (format_of_name(file) or ending_of_other_files(file))
            content = b"\x02\0\0\0\0\0\0\0{}" + (b"" if is_told else TABLE_MAGIC)
            Path(directory, file).write_bytes(content)
        storage = LocalStorage(directory)
        asked = {form.name for form in formats_of(storage.names(), name)}
        for form in all_formats():
            assert form.name in asked or form.locate(storage, name) == []


FOLDERS = [
    folder
    for root in (GOLDEN, GOLDEN.parent / "hostile")
    for folder in sorted({path.parent for path in root.rglob("*") if path.is_file()})
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("part", range(8))
def test_a_path_means_the_same_whether_some_formats_are_asked_or_all(part: int) -> None:
    """A folder and each file in it, golden or hostile; each part has folders of all formats."""
    for folder in FOLDERS[part::8]:
        storage = LocalStorage(str(folder))
        for name in ("", *storage.names()):
            some, of_all = (_locate(storage, name, asked) for asked in (None, all_formats()))
            assert some == of_all, (folder, name)


def test_files_are_as_many_as_the_capabilities_allow(place: Place) -> None:
    pieces = [whole(f"t{number}", np.arange(9), file=number % 3) for number in range(7)]
    if not place.can.many_files:
        place.refuse(pieces)
        return
    if place.can.is_separate:
        place.refuse(pieces, "a file for each slice")
    source = place.write("ck", pieces)
    assert contents(source) == expected(pieces)
    # A database of Orbax is one for its readers.
    one = 7 if place.can.is_separate else 3
    assert len(source.index.files) == (1 if place.form.name == "orbax" else one)
    source.close()


@pytest.mark.parametrize("form", [*WRITTEN, "orbax-plain", "universal", "gguf-blocks"])
def test_what_cannot_be_held_is_refused_with_its_key(form: str, storage: LocalStorage) -> None:
    """Before a byte is written."""
    place = Place(format_named(form), storage)
    capabilities = place.can
    for name in NAMES:
        if name in capabilities.dtypes and is_number(name):
            if name not in capabilities.slice_dtypes:
                place.refuse(halves(name), "halves")
        else:
            assert name not in capabilities.slice_dtypes or is_opaque(name)
        if name not in capabilities.dtypes:
            nbytes = max(1, int(ITEMSIZES[code(name)]))
            place.refuse([Piece(name, name, (1,), Region((0,), (1,)), bytes(nbytes))], name)


def test_slices_of_the_dtypes_that_are_named_are_read_again(place: Place) -> None:
    capabilities = place.can
    for name in sorted(capabilities.dtypes & capabilities.slice_dtypes):
        if is_number(name):
            place.write_and_read("ck", halves(name))


def test_slices_have_as_many_axes_as_the_capabilities_allow(place: Place) -> None:
    most = place.can.max_slice_rank
    for rank in {1, most, most + 1} if place.can.slice_dtypes else {1}:
        if not 0 < rank <= MAX_RANK:
            continue
        array = np.arange(4, dtype=np.float32).reshape((4,) + (1,) * (rank - 1))
        rest = (0,) * (rank - 1), (1,) * (rank - 1)
        first = 3 if place.can.is_grid else 1
        cuts = (0, first), (first, 4 - first)
        regions = [Region((at, *rest[0]), (size, *rest[1])) for at, size in cuts]
        pieces = parts_of("k", array, *regions)
        if rank <= most:
            place.write_and_read(f"ck{rank}", pieces)
        else:
            with pytest.raises(UnsupportedError):
                place.write_files(f"ck{rank}", pieces, "g1")


def test_empty_slices_are_held_or_refused(place: Place) -> None:
    """A slice without elements, beside others of its tensor."""
    pieces = parts_of("k", np.arange(3, dtype=np.float32), Region((0,), (0,)), Region((0,), (3,)))
    if place.can.empty_slices:
        place.write_and_read("ck", pieces)
    else:
        place.refuse(pieces)


def test_placements_are_disjoint_and_rise_and_lie_within_the_file(place: Place) -> None:
    """Payloads and what frames them: no byte of a file is claimed twice, and none lies past its
    end."""
    pieces = [*place.sample(), *place.spread()]
    sink, checksums, assignment = place.write_files("ck", pieces, "g1")
    for number in range(assignment.num_files):
        rows = np.flatnonzero(assignment.file == number)
        start, nbytes = sink.start[rows], assignment.slices.nbytes[rows]
        assert (np.diff(start) >= 0).all() and (start >= 0).all()
        frames = sink.writer.frame(assignment.slices.take(rows), start, checksums[number])
        spans = [
            *zip(start.tolist(), nbytes.tolist(), strict=True),
            *((at, len(octets)) for at, octets in frames),
        ]
        stops = [0, *(begin + size for begin, size in sorted(span for span in spans if span[1]))]
        begins = sorted(begin for begin, size in spans if size)
        assert all(stop <= begin for stop, begin in zip(stops, begins, strict=False))
        file = place.storage.open(sink.asides[number])
        assert max(stops) == file.size
        file.close()
    assert len(set(sink.asides)) == len(sink.asides)


def test_nothing_is_there_before_the_commit(place: Place) -> None:
    """Neither to who knows the name nor to who lists the directory; and an old checkpoint stays
    what it is."""
    place.write_files("ck", place.spread(), "g1")
    assert place.locate(place.called("ck")) == place.locate("") == []
    for name in place.storage.names():
        # Who names a file that stands aside may be shown that file, and nothing else.
        assert place.locate(name) in ([], [name])
    old = [whole("old", np.arange(5))]
    place.write("ck", old).close()
    (found,) = place.locate("")
    place.write_files("ck", place.spread(), "g3")
    assert place.locate("") == place.locate(place.called("ck")) == [found]
    source = place.form.open(place.storage, found)
    assert contents(source) == expected(old)
    source.close()


def test_a_commit_removes_what_it_replaces_and_what_dead_writers_left(place: Place) -> None:
    """The files of the directory are those that one clean write makes, and whatever else was there
    before.

    Other checkpoints stay, and so do copies that somebody made of files of this one.
    """
    beside = "ck2" if not place.can.folder_index else ""
    if beside:
        place.write(beside, place.spread()).close()
    place.write("ck", place.spread(), "g0").close()
    for name in place.storage.names():
        (Path(place.storage.path) / f"{name}.bak").write_bytes(b"a copy")
    others = [name for name in place.storage.names() if "ck2" in name or name.endswith(".bak")]
    place.write_files("ck", place.spread(), "dead")
    place.write("ck", place.spread(), "g1").close()
    place.write("ck", [whole("new", np.arange(5))], "g2").close()
    left = set(place.storage.names()).difference(others)
    clean = LocalStorage(os.path.join(place.storage.path, "clean"))
    clean.make()
    Place(place.form, clean).write("ck", [whole("new", np.arange(5))], "g2").close()
    assert set(others) <= set(place.storage.names()) and len(left) == len(clean.names())
    if beside:
        assert contents(place.reopen(beside)) == expected(place.spread())


def test_a_checkpoint_is_found_by_every_name_and_by_no_other(place: Place) -> None:
    """The name that it was given, each of its files, and none for all that are there; and by no
    other format."""
    place.write("ck", place.spread()).close()
    (found,) = place.locate(place.called("ck"))
    for name in (found, "", *place.storage.names()):
        assert place.locate(name) == [found], name
        for other in all_formats():
            assert other.name == place.form.name or other.locate(place.storage, name) == [], (
                other.name,
                name,
            )
    strays = [
        "c",
        "ck2",
        "k",
        "ck.",
        ".ck",
        "ck-",
        "CK",
        *(name + "x" for name in place.storage.names()),
    ]
    strays += [f".{found}.lock", f"{found}.done", f"{found}.g9.tmp"]
    strays += [name[1:] for name in place.storage.names()]
    for name in strays:
        assert place.locate(name) == [], name
        if name not in place.storage.names():
            (Path(place.storage.path) / name).write_bytes(b"a stranger")
            assert place.locate(place.called("ck")) == [found], name
            (Path(place.storage.path) / name).unlink()
    if not place.can.folder_index:
        place.write("other", [whole("t", np.arange(3))]).close()
        (other_name,) = place.locate("other")
        assert sorted(place.locate("")) == sorted([found, other_name])


def test_equal_input_makes_equal_bytes(place: Place, tmp_path: Path) -> None:
    """Where the generation's name stands in a file or in its name, they differ by it alone."""
    pieces = [*place.sample(), *place.spread()]

    def written(directory: str, generation: str) -> dict[str, bytes]:
        storage = LocalStorage(str(tmp_path / directory))
        storage.make()
        Place(place.form, storage).write("ck", pieces, generation).close()
        files = filter(Path.is_file, (tmp_path / directory).rglob("*"))
        return {str(path.relative_to(tmp_path / directory)): path.read_bytes() for path in files}

    first, again, other = (
        settled(written(*each)) for each in (("a", "gen1"), ("b", "gen1"), ("c", "gen2"))
    )
    assert first == again
    assert {name.replace("gen1", "gen2") for name in first} == other.keys()
    for name, octets in first.items():
        twin = other[name.replace("gen1", "gen2")]
        assert octets == twin or (
            b"gen1" in octets and b"gen2" in twin and len(octets) == len(twin)
        )


def test_closing_gives_files_back_and_leaves_maps(place: Place) -> None:
    """No descriptor stays open, a map that was handed out stays, nothing is read any more, and
    twice is as once."""
    before = len(os.listdir("/dev/fd"))
    source = place.write("ck", [whole("t", np.arange(5))])
    entries = next(iter(source.index.scan()))
    view = source.map(0)
    contents(source)
    source.close()
    source.close()
    begin = int(entries.start[0])
    if entries.plain[0]:
        assert bytes(view[begin : begin + 40]) == np.arange(5).tobytes()
    with pytest.raises(ArgumentError):
        source.read_span(0, begin, memoryview(bytearray(8)))
    del view
    assert len(os.listdir("/dev/fd")) == before


def test_a_missing_data_file_is_a_fault_of_its_own_keys(place: Place) -> None:
    """``MissingFile`` names the file; the keys of other files are read."""
    pieces = place.spread()
    for number in range(len(place.write("ck", pieces).index.files)):
        source = place.write("ck", pieces)
        name = source.index.files[number]
        lost = {
            entries.slices.key(row)
            for entries in source.index.scan()
            for row in np.flatnonzero(entries.file == number).tolist()
        }
        source.close()
        (Path(place.storage.path) / name).unlink()
        try:
            source = place.reopen("ck")
        except (MissingFile, ValueError):
            assert len(source.index.files) == 1
            continue
        for piece in pieces:
            found = outcome(source, piece.key)
            if piece.key in lost:
                # A chunk is named in its folder, whose index tells that it is lost.
                error = IncompleteCheckpoint if place.can.is_grid else MissingFile
                assert isinstance(found, error) and all(
                    step in str(found) for step in name.split("/")
                ), found
            else:
                assert found == piece.payload
        source.close()


def test_few_files_of_many_are_open_and_one_that_was_replaced_is_noticed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is opened again has to be the same; those that stay open are."""
    if not place.can.many_files or place.can.is_grid:
        pytest.skip("there is one file, or files hold nothing but elements and a checksum")
    monkeypatch.setattr("shardvar.formats.files.OPEN_FILES", 3)
    source = place.write("ck", place.spread(6))
    before = len(os.listdir("/dev/fd"))
    for _ in range(2):
        for piece in (*place.spread(6), *reversed(place.spread(6))):
            assert outcome(source, piece.key) == piece.payload
    assert len(os.listdir("/dev/fd")) - before <= 3
    changed = [replace(piece, payload=piece.payload[::-1]) for piece in place.spread(6)]
    place.write("ck", changed, "g2").close()
    found = [outcome(source, piece.key) for piece in place.spread(6)]
    errors = [each for each in found if isinstance(each, Exception)]
    assert errors and all("replaced" in str(error) for error in errors)
    assert {*(each for each in found if each not in errors)} <= {
        piece.payload for piece in place.spread(6)
    }
    source.close()


def test_formats_and_writers_travel_to_other_processes(place: Place) -> None:
    sink, _, _ = place.write_files("ck", place.spread(), "g1")
    for value in (place.form, sink.writer):
        assert pickle.loads(pickle.dumps(value)) == value


def cut(keep: int) -> Callable[[list[Path]], object]:
    """Keep so many bytes of the first file, or leave so many out."""
    return lambda paths: os.truncate(
        paths[0], keep if keep >= 0 else max(0, paths[0].stat().st_size + keep)
    )


def swap(paths: list[Path]) -> None:
    """Let two files of equal size and framing stand under each other's names."""
    paths[0].rename(paths[0].parent / "other")
    paths[1].rename(paths[0])
    (paths[0].parent / "other").rename(paths[1])


def instead(make: Callable[[Path], object]) -> Callable[[list[Path]], object]:
    """Make something in the place of the first file."""
    return lambda paths: (paths[0].unlink(), make(paths[0]))


DAMAGES: dict[str, Callable[[list[Path]], object]] = {
    **{f"cut at {keep}": cut(keep) for keep in (0, 1, 9, -1, -9, -85)},
    "swapped": swap,
    "no checkpoint": instead(lambda path: path.write_bytes(b"not a checkpoint")),
    "zeros": instead(lambda path: path.write_bytes(bytes(4096))),
    "a directory": instead(os.mkdir),
    "a fifo that nobody writes to": instead(os.mkfifo),
    "a link to itself": instead(lambda path: os.symlink(path.name, path)),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_damage_of_a_data_file_is_never_a_value(place: Place, how: str) -> None:
    """An error at once that names the file, for the keys that need it; no key gets other bytes."""
    one = not place.can.many_files or place.can.is_grid
    if how == "swapped" and one:
        pytest.skip("there is one file, or files hold nothing but elements and a checksum")
    errors = damage(place, place.spread(), DAMAGES[how])
    assert errors
    assert not how.startswith("cut") or any(
        isinstance(error, IncompleteCheckpoint | MalformedCheckpoint) for error in errors.values()
    ), errors


def damage(
    place: Place, pieces: list[Piece], change: Callable[[list[Path]], object]
) -> dict[str, Exception]:
    """Change data files and read every key: the errors; whatever is read all the same is what was
    written."""
    source = place.write("ck", pieces)
    paths = [Path(place.storage.path) / name for name in source.index.files]
    source.close()
    change(paths)
    if not place.locate(place.called("ck")):
        return {piece.key: CheckpointNotFound("no file of that name") for piece in pieces}
    try:
        source = place.reopen("ck")
    except DAMAGED as error:
        assert any(path.name in str(error) for path in paths), error
        return {piece.key: error for piece in pieces}
    errors: dict[str, Exception] = {}
    for piece in pieces:
        found = outcome(source, piece.key)
        if isinstance(found, Exception):
            assert isinstance(found, DAMAGED), found
            assert any(path.name in str(found) for path in paths) or isinstance(
                found, CorruptCheckpoint
            ), found
            errors[piece.key] = found
        else:
            assert found == piece.payload
    errors |= source.file_faults()
    source.close()
    return errors
