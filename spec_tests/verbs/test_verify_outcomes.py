"""``verify`` has three outcomes for each tensor, and calls nothing ``ok`` that it did not
compare."""

import io
import struct
import zipfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import shardvar as sv
from shardvar.cli.verify import code_of_report, print_report
from shardvar.errors import CheckpointError, MalformedCheckpoint, UnsupportedError
from shardvar.verbs import verify as module
from shardvar.verbs.locate import Location, find_checkpoint
from shardvar.verbs.problems import Damage, VerifyReport, lines_of_problems
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.damage import flip

__all__ = ["run"]

STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED

UNSUPPORTED: dict[str, Any] = {
    "text": np.array(["ab", "cdé"]),
    "bytes": np.array([b"ab", b"cde"]),
    "dates": np.array(["2026-01-01", "1970-01-01"], "M8[D]"),
    "differences": np.array([1, 2, 3], "m8[s]"),
    "structured": np.array([(1, 2.5), (3, 4.5)], [("a", "<i4"), ("b", "<f8")]),
    "longdouble": np.array([1, 2], np.longdouble),
    "void": np.array([b"ab", b"cd"], "V2"),
    "empty": np.zeros((0, 2), "U3"),
}


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array))
    return file.getvalue()


def archive(members: dict[str, bytes], method: int = STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as written:
        for name, data in members.items():
            written.writestr(name, data)
    return file.getvalue()


def printed(report: VerifyReport, strict: bool = False) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        print_report(report, strict)
    return out.getvalue()


def verified(path: Path, data: bytes) -> VerifyReport:
    path.write_bytes(data)
    return sv.verify(path)


@pytest.mark.parametrize("method", [STORED, DEFLATED])
@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_an_array_whose_dtype_cannot_be_held_is_not_verifiable_and_its_bytes_are_compared(
    kind: str, method: int, tmp_path: Path
) -> None:
    """Never ok; and damaged wherever one of its bytes is. Damage beats what is not verifiable."""
    path = tmp_path / "m.npz"
    data = archive({"x.npy": npy(UNSUPPORTED[kind]), "y.npy": npy(np.ones(2))}, method)
    report = verified(path, data)
    assert dict(report.outcomes) == {"x": "not verifiable", "y": "ok"}
    (unverified,) = report.unverified
    assert (unverified.key, unverified.guarded, unverified.kind) == ("x", True, "UnsupportedError")
    assert "agree with their checksum" in unverified.message
    assert (report.ok, report.damages, report.read_nbytes) == (False, (), 16)
    assert code_of_report(report) == 3
    assert printed(report).startswith("not verified: 1 of 2 tensors in ")
    start, second = 30 + len("x.npy"), data.index(b"PK\x03\x04", 30)
    for offset in {start + 6, start + (second - start) // 2, second - 1, second + 36}:
        damaged = bytearray(data)
        damaged[offset] ^= 2
        report = verified(path, bytes(damaged))
        others = (
            {"x": "damaged", "y": "ok"}
            if offset < second
            else {"x": "not verifiable", "y": "damaged"}
        )
        assert dict(report.outcomes) == others, offset
        assert code_of_report(report) == code_of_report(report, strict=True) == 1


@pytest.mark.parametrize(
    ("position", "value"), [(6, 1), (6, 1 | 1 << 6), (8, 9), (8, 12), (8, 93), (8, 99)]
)
def test_what_is_encrypted_or_compressed_otherwise_is_not_verifiable(
    position: int, value: int, tmp_path: Path
) -> None:
    """Where both headers say so; where only one does, the member is damaged."""
    data = bytearray(archive({"x.npy": npy(np.ones(2)), "y.npy": npy(np.ones(2))}, DEFLATED))
    struct.pack_into("<H", data, data.index(b"PK\x01\x02") + 2 + position, value)
    for outcome, code in (("damaged", 1), ("not verifiable", 3)):
        report = verified(tmp_path / "m.npz", bytes(data))
        assert dict(report.outcomes) == {"x": outcome, "y": "ok"} and code_of_report(report) == code
        struct.pack_into("<H", data, position, value)


def test_a_member_that_is_not_an_array_is_noted_and_its_bytes_are_compared(tmp_path: Path) -> None:
    data = bytearray(archive({"x.npy": npy(np.ones(2)), "README": b"about this archive"}))
    report = verified(tmp_path / "m.npz", bytes(data))
    assert report.ok and any("README" in note for note in report.notes)
    data[data.index(b"about")] ^= 1
    report = verified(tmp_path / "m.npz", bytes(data))
    assert [damage.file for damage in report.damages] == ["README"]
    report = verified(tmp_path / "m.npz", archive({}))  # an empty checkpoint
    assert (report.ok, report.num_tensors) == (True, 0)


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (("m/data.pkl", "m/data/0", "m/version"), "torch.save"),
        (("metadata.json", "config.json", "model.weights.h5"), "Keras"),
        (("word/document.xml", "[Content_Types].xml"), "a zip archive around 'word/document.xml'"),
    ],
)
def test_the_archive_of_another_program_is_refused_by_name(
    names: tuple[str, ...], what: str, tmp_path: Path
) -> None:
    """By every verb; it is not an empty checkpoint."""
    path = tmp_path / "m.npz"
    path.write_bytes(archive(dict.fromkeys(names, b"x" * 40)))
    (damage,) = sv.verify(path).damages
    assert what in damage.message and "m.npz" in damage.message
    for act in (
        lambda: sv.open_checkpoint(path),
        lambda: sv.diff(path, path),
        lambda: sv.load(path),
        lambda: sv.reshard(path, tmp_path / "t", dry_run=True),
    ):
        with pytest.raises(MalformedCheckpoint, match=what) as caught:
            act()
        assert caught.value.remedy


def test_a_file_whose_ending_means_a_format_is_no_other_formats(tmp_path: Path) -> None:
    """An archive of arrays under the name of torch.save, and the other way round: refused, and not
    ambiguous."""
    for name, data in (
        ("m.pt", archive({"x.npy": npy(np.ones(2))})),
        ("m.npz", archive({"m/data.pkl": b"\x80\x02}.", "m/version": b"3\n"})),
    ):
        (tmp_path / name).write_bytes(data)
        assert not sv.verify(tmp_path / name).ok
        with pytest.raises(CheckpointError) as caught:
            sv.open_checkpoint(tmp_path / name)
        assert caught.value.remedy


def test_a_dtype_that_numpy_lacks_is_read_compared_and_carried_and_its_values_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "m.safetensors"
    header = b'{"f":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\1\2\3")
    report = sv.verify(path)
    assert dict(report.outcomes) == {"f": "not verifiable"}
    assert (report.read_nbytes, code_of_report(report)) == (3, 0)
    sv.reshard(path, tmp_path / "t", format="shardvar")
    for other in (path, tmp_path / "t"):
        assert sv.diff(path, other).num_equal == 1
    with pytest.raises(UnsupportedError, match="NumPy"):
        sv.load(path)
    with sv.open_checkpoint(path) as reader:
        assert reader.index.find("f").slices[0].full_shape == (4,)


@pytest.mark.parametrize(
    ("form", "index"),
    [("shardvar", "m"), ("tensorflow", "m"), ("safetensors", "m/model.safetensors.index.json")],
)
def test_a_missing_file_is_named_once(form: str, index: str, tmp_path: Path) -> None:
    """One line with the number of tensors, whatever the format; the report has every key."""
    tensors, path = {f"t{number}": np.ones(100) for number in range(8)}, tmp_path / index
    sv.save(tmp_path / "m", tensors, format=form, policy=sv.MaxShardSizePolicy(3200))
    with sv.open_checkpoint(path) as reader:
        lost = reader.index.files[int(reader.find("t4").file[0])]
    (path.parent / lost).unlink()
    report = sv.verify(path)
    missing = [damage.key for damage in report.damages if damage.kind == "MissingFile"]
    assert missing == [key for key, outcome in report.outcomes.items() if outcome == "damaged"]
    assert missing == ["t4", "t5", "t6", "t7"] and report.read_nbytes == 3200
    (line,) = [line for line in printed(report).splitlines() if lost in line]
    assert line.startswith("damaged: 4 tensors (t4, t5, t6, t7): MissingFile: ")


def test_many_problems_that_differ_in_numbers_alone_are_counted(tmp_path: Path) -> None:
    """In one file they are one line; of lines for many files, the first ones are printed."""
    path = tmp_path / "m.npz"
    sv.save(path, {f"t{number}": np.ones(4) for number in range(100)})
    with sv.open_checkpoint(path) as reader:
        starts = reader.entries().start.tolist()
    for start in starts:
        flip(path, start)
    report = sv.verify(path)
    assert len(report.damages) == 100
    lines = printed(report).splitlines()
    assert len(lines) == 2 and "99 more in this file" in lines[1]
    faults = [Damage("MissingFile", f"t{n}", f"f{n}", f"f{n} is missing.") for n in range(100)]
    lines = list(lines_of_problems("", faults))
    assert len(lines) == 17 and "84 problems more like those above" in lines[16]
    assert len(list(lines_of_problems("", faults, everything=True))) == 100


@pytest.mark.parametrize("length", [1, 37, 38, 50])
def test_a_line_names_tensors_in_40_characters_or_counts_them(length: int) -> None:
    names = ["a", "b" * length]
    problems = [Damage("MissingFile", name, "f", "f is missing.") for name in names]
    whole = f"2 tensors ({', '.join(names)}): MissingFile: f is missing."
    counted = "2 tensors: MissingFile: f is missing."
    expected = whole if len(", ".join(names)) <= 40 else counted
    assert [*lines_of_problems("", problems)] == [expected]
    assert [*lines_of_problems("", problems, everything=True)] == [whole]


@dataclass(frozen=True)
class Mixed:
    """A source of a format that guards some keys and not others, and reads some not at all."""

    inner: Any
    bare: frozenset[str]
    unreadable: frozenset[str] = frozenset()
    damaged: frozenset[str] = frozenset()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def index(self) -> Any:
        faults = {
            key: UnsupportedError(f"{key!r} is of a kind that is not read.")
            for key in self.unreadable
        }
        return replace(self.inner.index.read(), faults=faults)

    def is_guarded(self, key: str) -> bool:
        return key not in self.bare

    def compare_bytes(self, key: str) -> bool:
        if key in self.damaged:
            raise CheckpointError("Its bytes are wrong.")
        return key == "compared"


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Any]:
    """Returns the report of a checkpoint with the keys a, b, compared and unknown, opened as
    ``Mixed``."""
    sv.save(tmp_path / "m.npz", {key: np.ones(3) for key in ("a", "b", "compared", "unknown")})
    found = find_checkpoint(tmp_path / "m.npz")

    def report(**about: Any) -> VerifyReport:
        def opened(_self: Location) -> Any:
            return Mixed(found.format.open(found.storage, found.name), **about)

        with patch.object(module.Location, "open", opened):
            return sv.verify(tmp_path / "m.npz")

    yield report


OUTCOMES: list[tuple[str, str, str, str, int, int]] = [
    ("b", "", "", "b", 0, 96), ("b", "compared unknown", "", "b compared unknown", 3, 48),
    ("b", "b", "", "b", 3, 72), ("", "a", "a", "", 1, 72),
]  # fmt: skip
"""The keys that are bare, unreadable, damaged, and not verifiable; the exit code, and the bytes read."""


@pytest.mark.parametrize(
    ("bare", "unreadable", "damaged", "unverified", "code", "nbytes"), OUTCOMES
)
def test_a_format_may_guard_some_keys_and_not_others(
    bare: str, unreadable: str, damaged: str, unverified: str, code: int, nbytes: int, mixed: Any
) -> None:
    """What is not read is 3, guarded or not."""
    lists = {"bare": bare, "unreadable": unreadable, "damaged": damaged}
    report = mixed(**{name: frozenset(keys.split()) for name, keys in lists.items()})
    expected = dict.fromkeys(("a", "b", "compared", "unknown"), "ok")
    expected |= dict.fromkeys(unverified.split(), "not verifiable") | dict.fromkeys(
        damaged, "damaged"
    )
    assert report.outcomes == expected and report.ok == (code == 0)
    assert (code_of_report(report), code_of_report(report, strict=True)) == (code, code or 1)
    assert report.read_nbytes == nbytes and not report.is_bare_format
    agree = [each.key for each in report.unverified if "agree" in each.message]
    assert agree == (["compared"] if "compared" in unreadable else [])
    if not unreadable:
        assert report.unguarded_nbytes == 24
        assert "; 1 tensor (24 B) without a checksum, 'b': structure only" in printed(report)
        assert "Its file has no checksum" in report.unguarded[0].message
        report = mixed(bare=frozenset(expected))
        assert "; no checksums in this checkpoint: structure only" in printed(report)
    elif code == 3:
        count = len({*unreadable.split()})
        assert f"not verified: {count} of 4 tensors in " in printed(report)


# The word of a report follows from what checksums cover: "ok" is said of keys, dtypes, shapes and values.

COVERED = {
    "alpha/w": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.array(7, np.int64),
    "c": np.zeros((0, 2), np.float16),
    "e": np.arange(5).astype(np.int16),
}

WORDS = dict.fromkeys(["shardvar", "tensorflow", "npz", "pt", "orbax"], "ok")
WORDS |= {"torch": "values match", "zarr": "values match", "safetensors": "complete"}


@pytest.mark.parametrize("form", WORDS)
def test_the_word_of_a_sound_checkpoint_says_what_was_covered(
    form: str, tmp_path: Path, run: Run
) -> None:
    path = tmp_path / (f"m.{form}" if form in ("npz", "pt", "safetensors") else "m")
    sv.save(path, COVERED, format=form)
    report, word = sv.verify(path), WORDS[form]
    outcome = "not verifiable" if word == "complete" else word
    assert report.ok and report.verdict == word and set(report.outcomes.values()) == {outcome}
    assert report.to_json()["verdict"] == word and code_of_report(report) == 0
    shown = run("verify", path).out
    assert shown.startswith(f"{word}: ")
    assert word != "values match" or "no checksum covers keys, dtypes and shapes" in shown
    strict = run("verify", path, "--strict")
    assert strict.code == (word != "ok") and ("digest" in strict.err) == (word != "ok")
    # The digests of a manifest cover all of it.
    assert run("digest", path, "--write").code == 0
    assert sv.verify(path).verdict == "ok" and run("verify", path, "--strict").code == 0


def test_a_key_of_an_index_without_a_checksum_is_not_called_ok(tmp_path: Path) -> None:
    """One bit of .metadata makes another key, which nothing can tell from the right one."""
    sv.save(tmp_path / "ck", {"alpha": np.ones(3)}, format="torch")
    index = tmp_path / "ck" / ".metadata"
    index.write_bytes(index.read_bytes().replace(b"alpha", b"alphc"))
    report = sv.verify(tmp_path / "ck")
    assert report.ok and report.outcomes == {"alphc": "values match"}
    assert report.bare_index == ".metadata"


def test_a_checkpoint_without_tensors_is_not_called_ok_by_a_format_without_checksums(
    tmp_path: Path, run: Run
) -> None:
    head = b"GGUF" + (3).to_bytes(4, "little") + bytes(16)
    (tmp_path / "m.gguf").write_bytes(head)
    assert sv.verify(tmp_path / "m.gguf").verdict == "complete"
    assert run("verify", tmp_path / "m.gguf").out.startswith("complete: ")
    sv.save(tmp_path / "e.safetensors", {})
    assert sv.verify(tmp_path / "e.safetensors").verdict == "complete"
