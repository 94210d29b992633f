"""The golden native checkpoints and docs/format.md: the same bytes today, and read as they say."""

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

from shardvar import errors
from shardvar.formats.native import FORMAT
from shardvar.formats.native.source import NativeSource
from shardvar.storage.local import LocalStorage
from spec_tests.helpers import native_checkpoints
from spec_tests.helpers.format_protocol import read_payload
from spec_tests.helpers.native_checkpoints import CASES, GOLDEN, Piece, write

HEX_LINE = re.compile(r"(?P<offset>[0-9a-f]{4})  (?P<bytes>[0-9a-f]{2}( [0-9a-f]{2})*)(  .*)?")


def digest(octets: bytes) -> str:
    return hashlib.sha256(octets).hexdigest()


def opened(case: str) -> NativeSource:
    return FORMAT.open(LocalStorage(str(GOLDEN / case)), CASES[case]["prefix"])


@pytest.mark.parametrize("case", CASES)
def test_golden_files_are_the_ones_that_are_described(case: str) -> None:
    files = [path for path in (GOLDEN / case).iterdir() if path.suffix != ".json"]
    told = {path.name: (path.stat().st_size, digest(path.read_bytes())) for path in files}
    said = CASES[case]["files"]
    assert told == {name: (each["size"], each["sha256"]) for name, each in said.items()}


@pytest.mark.parametrize("case", [case for case in CASES if "tensors" in CASES[case]])
def test_golden_checkpoints_read_as_they_say_and_are_written_again(
    case: str, tmp_path: Path
) -> None:
    """Keys, dtypes, shapes, slices and the digest of every payload, by this reader and by the one
    that the page prints. Another byte would be another format: it needs another version, and keeps
    the old ones readable."""
    source, pieces = opened(case), []
    found: dict[str, dict[str, Any]] = {}
    for entries in source.index.scan():
        for row in range(len(entries)):
            each, place = entries.slices[row], (int(entries.file[row]), int(entries.start[row]))
            payload = read_payload(source, entries, row)
            piece = Piece(each.key, each.dtype, each.full_shape, each.region, payload, place[0])
            pieces.append((*place, len(payload), row, piece))
            about = {"dtype": each.dtype, "shape": [*each.full_shape], "slices": []}
            region = {"offset": [*each.region.offset], "shape": [*each.region.shape]}
            region |= {"nbytes": len(payload), "sha256": digest(payload)}
            found.setdefault(each.key, about)["slices"].append(region)
    assert found == CASES[case]["tensors"]
    assert "bad" in case or (not source.index.faults and not source.findings())
    read = native_checkpoints.book()["read"](GOLDEN / case / CASES[case]["prefix"])
    by_the_book = {
        key: (dtype, [*shape], [digest(payload) for *_, payload in slices])
        for key, (dtype, shape, slices) in read.items()
    }
    assert by_the_book == {
        key: (each["dtype"], each["shape"], [one["sha256"] for one in each["slices"]])
        for key, each in found.items()
    }
    overview, metadata = source.index.overview, source.index.metadata
    if any(overview.file_owners):
        return  # its files belong to an older checkpoint
    in_order = [each[-1] for each in sorted(pieces, key=lambda each: each[:4])]
    how = {"files": len(overview.file_nbytes), "generation": overview.generation}
    write(tmp_path, CASES[case]["prefix"], in_order, metadata=metadata, **how)
    golden = {path.name: path.read_bytes() for path in (GOLDEN / case).glob("*.sv*")}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == golden


@pytest.mark.parametrize("case", [case for case in CASES if "error" in CASES[case]])
def test_what_makes_no_sense_is_refused_at_once(case: str) -> None:
    expected = CASES[case]
    with pytest.raises(errors.ShardvarError) as caught:
        opened(case)
    assert type(caught.value).__name__ == expected["error"]
    assert "ck.svindex" in caught.value.cause and caught.value.remedy


@pytest.mark.parametrize("case", [case for case in CASES if CASES[case].get("errors")])
def test_damage_is_refused_key_by_key(case: str) -> None:
    """Reading the key raises the error's class, found by itself; every other key reads."""
    source, wrong = opened(case), CASES[case]["errors"]
    for key in {"n", "t"} if "a1" in source.index.overview.generation else {"t"}:
        try:
            fault = source.index.faults.get(key)
            if fault is not None:
                raise fault
            entries = source.index.find(key)
            for row in range(len(entries)):
                read_payload(source, entries, row)
            found = None
        except errors.CheckpointError as error:
            found = type(error).__name__
        assert found == wrong.get(key), key
    # The index cannot know, or not be scanned.
    if case not in ("bad_index_byte", "bad_data_byte", "bad_data_swapped"):
        assert {key: type(error).__name__ for key, error in source.index.faults.items()} == wrong


def test_the_page_prints_the_tiny_checkpoint() -> None:
    """The annotated bytes of docs/format.md are those of a real checkpoint, file by file."""
    dumps = re.findall(
        r"```hexdump\n(.*?)```", native_checkpoints.FORMAT_MD.read_text(encoding="utf-8"), re.DOTALL
    )
    printed = []
    for dump in dumps:
        octets = bytearray()
        for line in dump.splitlines():
            match = HEX_LINE.fullmatch(line)
            assert match and int(match["offset"], 16) == len(octets), line
            octets += bytes.fromhex(match["bytes"])
        printed.append(bytes(octets))
    names = ["ck.svindex", "ck.svdata-a1-00000-of-00002", "ck.svdata-a1-00001-of-00002"]
    assert printed == [(GOLDEN / "tiny" / name).read_bytes() for name in names]


def test_the_reader_of_the_page_refuses_what_its_checksums_tell() -> None:
    read = native_checkpoints.book()["read"]
    for what in ("index_byte", "index_footer", "index_newlines", "data_byte", "version"):
        with pytest.raises(ValueError, match=r"checksum|index"):
            read(GOLDEN / f"bad_{what}" / "ck")
