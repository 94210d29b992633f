"""The records of a zip archive, field by field: each that contradicts another is refused, and what
agrees is not."""

import io
import zipfile
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import (
    CheckpointError,
    InvalidCheckpoint,
    MalformedCheckpoint,
    OutOfBounds,
    UnsupportedError,
)
from shardvar.wire.zip import (
    CENTRAL,
    END,
    END64,
    END64_MAGIC,
    END_MAGIC,
    LOCAL,
    LOCATOR,
    LOCATOR_MAGIC,
    MEMBER_ALIGNMENT,
    ONES_16,
    ONES_32,
    TAIL_NBYTES,
    DirectoryPlace,
    Member,
    build_central,
    build_end,
    build_local,
    check_local,
    check_member,
    check_supported,
    find_directory,
    first_name,
    local_nbytes,
    locate_member,
    overlapping,
    parse_directory,
    plan_local_nbytes,
    read_members,
)
from spec_tests.helpers.octets import reads_of

START, NBYTES, COUNT = 1000, 46, 1


def end_of(
    disk: int = 0, first: int = 0, here: int = COUNT, count: int = COUNT, comment: bytes = b""
) -> bytes:
    return END.pack(END_MAGIC, disk, first, here, count, NBYTES, START, len(comment)) + comment


def end64_of(
    *,
    record: int = START + NBYTES,
    start: int = START,
    size: int = END64.size - 12,
    disk: int = 0,
    first: int = 0,
    here: int = COUNT,
    count: int = COUNT,
    locator_disk: int = 0,
    disks: int = 1,
    narrow: int = COUNT,
) -> bytes:
    """The three records of zip64, of which the last agrees with the first."""
    wide = END64.pack(END64_MAGIC, size, 45, 45, disk, first, here, count, NBYTES, start)
    locator = LOCATOR.pack(LOCATOR_MAGIC, locator_disk, record, disks)
    return wide + locator + END.pack(END_MAGIC, 0, 0, COUNT, narrow, NBYTES, START, 0)


def found(tail: bytes) -> DirectoryPlace:
    """What is found in an archive whose directory ends where these bytes begin."""
    return find_directory(bytes(START + NBYTES) + tail, START + NBYTES + len(tail))


@pytest.mark.parametrize(
    "tail", [end_of(), end_of(comment=b"PK\x05\x06" * 9), end64_of(), end64_of(narrow=ONES_16)]
)
def test_records_that_agree_give_the_directory(tail: bytes) -> None:
    """Each number of the short record is the wide one or all ones; a comment may look like a
    record."""
    assert found(tail) == DirectoryPlace(START, NBYTES, COUNT)


@pytest.mark.parametrize(
    ("tail", "cause"),
    [
        (end_of(disk=1), "several disks"),
        (end_of(first=1), "several disks"),
        (end_of(here=COUNT + 1), "several disks"),
        (end64_of(disk=1), "several disks"),
        (end64_of(first=1), "several disks"),
        (end64_of(here=COUNT + 1), "several disks"),
        (end64_of(locator_disk=1), "several disks"),
        (end64_of(disks=2), "several disks"),
        (end64_of(narrow=COUNT + 1), "disagree: one says 2, the other 1"),
        (end64_of(start=START + 1), "disagree: one says 1000, the other 1001"),
        (end64_of(size=END64.size - 11), "does not end where its locator begins"),
        (end64_of(record=START + NBYTES + 1), "not a zip64 end record"),
        (end64_of(record=START), "not a zip64 end record"),
        (b"x" + end_of(), "should end at offset 1047"),
        (end_of()[:-1], "no end record"),
        (end_of() + b"x", "no end record"),
        (END_MAGIC, "no end record"),
    ],
)
def test_records_that_contradict_each_other_are_refused(tail: bytes, cause: str) -> None:
    with pytest.raises(CheckpointError, match=cause):
        found(tail)


def test_a_tail_in_which_the_records_do_not_begin_is_refused() -> None:
    """The bytes before the tail are not there to be read: a record before them is no record, even
    at their edge."""
    tail = end64_of()
    with pytest.raises(MalformedCheckpoint, match="not a zip64 end record"):
        find_directory(tail[1:], START + NBYTES + len(tail))
    assert find_directory(tail, START + NBYTES + len(tail)) == DirectoryPlace(START, NBYTES, COUNT)


@pytest.mark.parametrize("count", [0, 1, ONES_16 - 1, ONES_16, ONES_16 + 1])
@pytest.mark.parametrize("start", [0, ONES_32 - 1, ONES_32, ONES_32 + 1])
@pytest.mark.parametrize("nbytes", [0, ONES_32 - 1, ONES_32, ONES_32 + 1])
def test_the_end_that_is_written_is_found(count: int, start: int, nbytes: int) -> None:
    """All ones in a short record say that the wide one counts: such a number is itself written
    wide."""
    tail = build_end(start, nbytes, count)
    assert find_directory(tail, start + nbytes + len(tail)) == DirectoryPlace(start, nbytes, count)
    assert (len(tail) > END.size) == (count >= ONES_16 or start >= ONES_32 or nbytes >= ONES_32)


SIZES = st.sampled_from([0, 1, 64, ONES_32 - 1, ONES_32, ONES_32 + 1, 1 << 40])


@given(st.lists(st.tuples(st.text(max_size=70), SIZES, SIZES, st.integers(0, ONES_32)), max_size=4))
def test_members_that_are_written_are_read(members: list[tuple[str, int, int, int]]) -> None:
    """Their local headers agree with the directory, and end at a multiple of 64."""
    directory = b"".join(
        build_central(start, name.encode(), crc, nbytes) for name, start, nbytes, crc in members
    )
    read = parse_directory(directory, len(members))
    assert [
        (each.name, each.start, each.stored_nbytes, each.nbytes, each.crc) for each in read
    ] == [(name, start, nbytes, nbytes, crc) for name, start, nbytes, crc in members]
    for each, (_, start, nbytes, crc) in zip(read, members, strict=True):
        size = plan_local_nbytes(start, each.raw_name, nbytes)
        local = build_local(size, each.raw_name, crc, nbytes)
        assert len(local) == size == local_nbytes(local[: LOCAL.size])
        assert (start + size) % MEMBER_ALIGNMENT == 0 and size < LOCAL.size + len(
            each.raw_name
        ) + 20 + 70
        check_local(local, each)
        # A reader is told that it needs zip64, 4.5, where a number is too large for 32 bits, and
        # 2.0 elsewhere.
        assert LOCAL.unpack_from(local)[1] == (45 if nbytes >= ONES_32 else 20)
        central = CENTRAL.unpack_from(build_central(start, each.raw_name, crc, nbytes))
        assert central[1] & 0xFF == central[2] == (45 if max(nbytes, start) >= ONES_32 else 20)
        # No time, no comment, the first disk, and no attributes but Unix's.
        assert central[5] == 0 and central[12:15] == (0, 0, 0)


def test_a_directory_that_lists_fewer_or_more_than_it_says_is_refused() -> None:
    directory = build_central(0, b"a", 0, 1) + build_central(64, b"b", 0, 1)
    for data, count in (
        (directory, 1),
        (directory, 3),
        (directory[:-1], 2),
        (directory + b"x", 2),
        (directory, 0),
    ):
        with pytest.raises(MalformedCheckpoint):
            parse_directory(data, count)
    other = bytearray(directory)
    other[CENTRAL.size + 1] ^= 1
    with pytest.raises(MalformedCheckpoint, match="lists? 2 members but ends after 1"):
        parse_directory(bytes(other), 2)


MEMBER = Member("a", b"a", 0, 0, 7, 5, 5, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"raw_name": b"b"},
        {"flags": 2},
        {"method": 8},
        {"crc": 8},
        {"stored_nbytes": 6},
        {"nbytes": 6},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_local_header_that_differs_from_the_directory_is_refused(
    changes: dict[str, object],
) -> None:
    local = build_local(plan_local_nbytes(0, b"a", 5), b"a", 7, 5)
    check_local(local, MEMBER)
    with pytest.raises(InvalidCheckpoint):
        check_local(local, MEMBER._replace(**changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("known", [{}, {"crc": 7}, {"stored": 5}, {"nbytes": 5}], ids="".join)
def test_a_stream_knows_nothing_of_what_follows_or_the_truth(known: dict[str, int]) -> None:
    """Its header has three zeros. With any of the three it must have them all, or it is another
    member's."""
    numbers = [known.get(name, 0) for name in ("crc", "stored", "nbytes")]
    local = LOCAL.pack(b"PK\3\4", 20, 8, 0, 0, 0, *numbers, 1, 0) + b"a"
    if known:
        with pytest.raises(InvalidCheckpoint, match="size or its CRC"):
            check_local(local, MEMBER._replace(flags=8))
    else:
        check_local(local, MEMBER._replace(flags=8))
        zeros = LOCAL.pack(b"PK\3\4", 20, 0, 0, 0, 0, 0, 0, 0, 1, 0) + b"a"
        with pytest.raises(InvalidCheckpoint, match="size or its CRC"):
            check_local(zeros, MEMBER)
    assert local_nbytes(LOCAL.pack(b"PK\3\4", *[0] * 8, 5, 7)) == LOCAL.size + 12
    with pytest.raises(MalformedCheckpoint, match="bytes that are not a local header"):
        local_nbytes(LOCAL.pack(b"PK\3\5", *[0] * 10))


@pytest.mark.parametrize(
    "changes",
    [
        {"flags": 1 << 5},
        {"name": ""},
        {"name": "a\0"},
        {"nbytes": 6},
        {"method": 8, "nbytes": 5 * 1032 + 1},
    ],
)
def test_a_member_that_breaks_the_standard_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises((InvalidCheckpoint, ValueError)):
        check_member(MEMBER._replace(**changes))  # type: ignore[arg-type]
    check_member(MEMBER)
    check_member(MEMBER._replace(method=8, nbytes=5 * 1032))


@pytest.mark.parametrize(
    "changes", [{"flags": 1}, {"flags": 1 << 6}, {"flags": 1 << 13}, {"method": 12}]
)
def test_a_member_that_is_encrypted_or_compressed_in_another_way_is_not_supported(
    changes: dict[str, int],
) -> None:
    """It is not damaged: its size and its headers are checked like those of any other."""
    member = MEMBER._replace(**changes)
    check_member(member)
    with pytest.raises(UnsupportedError):
        check_supported(member)


def test_a_member_is_a_regular_file_that_its_owner_may_read_and_write() -> None:
    """As `unzip` makes it: mode 0600 in the high half of the attributes, of a system that is
    Unix. The sizes of the records are those of the standard."""
    sizes = [record.size for record in (LOCATOR, END, LOCAL, CENTRAL, END64)]
    assert sizes == [20, 22, 30, 46, 56]
    fields = CENTRAL.unpack_from(build_central(0, b"a", 0, 1))
    assert fields[-2] >> 16 == 0o600 and fields[1] >> 8 == 3


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5)), max_size=8))
def test_ranges_overlap_as_their_definition_says(ranges: list[tuple[int, int]]) -> None:
    held = [set(range(start, start + nbytes)) for start, nbytes in ranges]
    expected = [
        row
        for row, own in enumerate(held)
        if any(own & other for n, other in enumerate(held) if n != row)
    ]
    start, nbytes = np.array(ranges, np.int64).reshape(-1, 2).T
    assert overlapping(start, start + nbytes).tolist() == expected


class Pipe(io.BytesIO):
    """A file that a writer cannot go back in: sizes follow each member."""

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        raise OSError


@given(
    st.lists(st.sampled_from(["a", "b/c", "ü", "data.pkl"]), min_size=1, unique=True),
    st.lists(st.binary(min_size=1, max_size=60), min_size=4, max_size=4),
    st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
    st.booleans(),
    st.sampled_from([5, 16, 1 << 16]),
    st.data(),
)
def test_members_are_those_of_zipfile_by_the_directory_or_by_local_headers(
    names: list[str],
    values: list[bytes],
    method: int,
    is_streamed: bool,
    block: int,
    data: st.DataObject,
) -> None:
    """Of an archive that is cut off, those in front of the cut, and the name of the one that is cut."""
    file: Any = Pipe() if is_streamed else io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.comment = data.draw(st.sampled_from([b"", b"a comment"]))
        for name, value in zip(names, values, strict=False):
            archive.writestr(name, value)
    octets = file.getvalue()
    read = reads_of(octets)
    infos = zipfile.ZipFile(io.BytesIO(octets)).infolist()
    expected = [
        Member(
            each.filename, each.filename.encode(), each.flag_bits, each.compress_type, each.CRC,
            each.compress_size, each.file_size, each.header_offset,
        )
        for each in infos
    ]  # fmt: skip
    found = read_members(
        read, len(octets), data.draw(st.sampled_from([(TAIL_NBYTES,), (22, 60, TAIL_NBYTES)]))
    )
    assert (found.members, found.fault, found.cut) == (expected, None, "")
    begins = [locate_member(read, each, found.stop) for each in expected]
    for begin, each, value in zip(begins, expected, values, strict=False):
        held = read(begin, each.stored_nbytes)
        assert (zlib.decompress(held, -15) if method else held) == value
        assert first_name(octets[each.start : begin]) == each.raw_name
        with pytest.raises(OutOfBounds):
            locate_member(read, each, begin + each.stored_nbytes - 1)
    ends = [*(each.start for each in expected[1:]), found.stop]
    nbytes_of = data.draw(st.integers(0, len(octets) - 1))
    read = reads_of(octets[:nbytes_of])
    whole = sum(end <= nbytes_of for end in ends)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardvar.wire.zip._BLOCK_NBYTES", block)
        if not whole:
            with pytest.raises(MalformedCheckpoint):
                read_members(read, nbytes_of)
            return
        cut = read_members(read, nbytes_of)
    is_cut = whole < len(expected) and begins[whole] <= nbytes_of
    assert (cut.members, cut.cut) == (expected[:whole], expected[whole].name if is_cut else "")
    assert isinstance(cut.fault, MalformedCheckpoint)
    assert cut.stop == (
        ends[whole - 1]
        if whole == len(expected) and nbytes_of - ends[-1] >= LOCAL.size
        else nbytes_of
    )
    assert (
        cut.lost().cause
        == f"It is cut off: what can be read of the archive ends at byte {cut.stop}."
    )
