"""Digests depend on keys, dtypes, shapes and values alone, and a manifest of them finds what
changed."""

import json
import os
import shutil
import subprocess
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.cli import main
from shardvar.errors import (
    CheckpointError,
    CorruptCheckpoint,
    MalformedCheckpoint,
    MissingFile,
    TargetExists,
    UnsupportedError,
)
from shardvar.limits import MAX_MANIFEST_NBYTES
from shardvar.testing.arrays import arrays
from shardvar.verbs.compare.digest import digest_array
from shardvar.verbs.compare.manifest import (
    Manifest,
    decode_manifest,
    encode_manifest,
    read_manifest,
    write_manifest,
)
from shardvar.wire.digests import LEAF_NBYTES
from spec_tests.helpers.damage import flip

MODEL: dict[str, Any] = {
    "bf16": np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3),
    "bool": np.array([True, False]),
    "empty": np.zeros((0, 3), np.float32),
    "large": np.arange(3 * LEAF_NBYTES // 4 + 7, dtype=np.float32).reshape(-1, 1),
    "scalar": np.array(7),
}


def plain(key: str, array: Any) -> str:
    """The definition of docs/howto/certify-a-checkpoint.md once more, for numbers."""
    data, name = array.tobytes(), key.encode()
    leaves = [sha256(data[i : i + 2**20]).digest() for i in range(0, len(data), 2**20)]
    head = (
        f"shardvar digest 1\n{array.dtype.name}\n{','.join(map(str, array.shape))}\n{len(name)}\n"
    )
    return sha256(head.encode() + name + b"".join(leaves)).hexdigest()


@pytest.mark.parametrize(
    ("form", "partition"),
    [*product(["shardvar", "tensorflow"], [None, 3]), ("safetensors", None), ("npz", None)],
)
def test_digests_are_those_of_the_definition_in_every_format_and_slicing(
    form: str, partition: int | None, tmp_path: Path
) -> None:
    model = {key: array for key, array in MODEL.items() if form != "npz" or key != "bf16"}
    sv.save(tmp_path / "m", model, format=form, partition=partition)
    report = sv.digest(tmp_path / "m")
    assert report.tensors == {key: plain(key, array) for key, array in model.items()}
    together = sha256(b"".join(sorted(map(bytes.fromhex, report.tensors.values())))).hexdigest()
    assert report.checkpoint == together and not report.unreadable


@pytest.mark.parametrize(
    ("shape", "cuts"), [((5, 1_000_003), 2), ((2, (4 << 20) + 1000), 2), ((1500, 4004), [2, 5])], ids=str
)  # fmt: skip
def test_leaves_that_lie_in_two_blocks_are_those_of_the_array(
    shape: tuple[int, int], cuts: Any, tmp_path: Path
) -> None:
    """Of blocks that end within a leaf, of one that does not fill the leaf that another one began, and
    of columns that lie interleaved in the file."""
    table = np.resize(np.arange(251, dtype=np.uint8), shape)
    sv.save(tmp_path / "model", {"t": table}, partition={"t": cuts})
    assert sv.digest(tmp_path / "model").tensors == {"t": plain("t", table)}


@given(st.data())
def test_another_key_dtype_shape_or_bit_has_another_digest(data: st.DataObject) -> None:
    dtypes = ["uint8", "int16", "float32"]
    array = data.draw(arrays(dtypes=dtypes, max_rank=2).filter(lambda each: each.size > 1))
    array = np.ascontiguousarray(array)
    changed = array.copy()
    bits = changed.reshape(-1).view(np.uint8)
    bits[data.draw(st.integers(0, len(bits) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    others = [
        digest_array("b", array),
        digest_array("a", array.view(np.dtype(f"V{array.itemsize}"))),
        digest_array("a", array.reshape(1, *array.shape)),
        digest_array("a", changed),
    ]
    assert len({digest_array("a", array), *others}) == 5


def test_bits_that_only_fill_the_byte_of_an_element_do_not_count() -> None:
    negative = np.array([-1, 3], ml_dtypes.int4)
    other = np.array([0x0F, 0xF3], np.uint8).view(ml_dtypes.int4)
    assert digest_array("q", negative) == digest_array("q", other)


def damaged(folder: Path) -> Path:
    """Return the path of a checkpoint in which one byte of ``large`` is wrong."""
    sv.save(folder / "m", {key: MODEL[key] for key in ("large", "scalar")})
    flip(*folder.glob("m.svdata*"), mask=4)
    return folder / "m"


def test_a_damaged_tensor_has_no_digest_and_hides_no_other(tmp_path: Path) -> None:
    report = sv.digest(damaged(tmp_path))
    assert set(report.tensors) == {"scalar"} and report.checkpoint is None
    assert [(each.key, each.kind) for each in report.unreadable] == [("large", "CorruptCheckpoint")]
    with pytest.raises(CorruptCheckpoint, match="'large' has no digest"):
        write_manifest(report)


def test_a_manifest_that_agrees_makes_every_tensor_verified_and_is_not_replaced_unasked(
    tmp_path: Path,
) -> None:
    """Or the digests of a damaged checkpoint would take the place of the right ones."""
    path = tmp_path / "m.safetensors"
    sv.save(path, MODEL)
    assert sv.verify(path).unguarded
    manifest = Path(write_manifest(sv.digest(path)))
    report = sv.verify(path)
    assert report.ok and set(report.outcomes.values()) == {"ok"}
    assert not report.unguarded and not report.unguarded_nbytes
    assert main(["verify", str(path), "--strict"]) == 0
    before = manifest.read_bytes()
    flip(path, mask=4)
    with pytest.raises(TargetExists, match="exists.*force=True"):
        write_manifest(sv.digest(path))
    assert manifest.read_bytes() == before and not sv.verify(path).ok
    write_manifest(sv.digest(path), force=True)
    assert sv.verify(path).ok


def test_the_manifest_of_another_checkpoint_is_called_that(tmp_path: Path) -> None:
    sv.save(tmp_path / "one", {"a": np.ones(3)})
    sv.save(tmp_path / "two", {"b": np.ones(3)})
    manifest = write_manifest(sv.digest(tmp_path / "one"))
    for chosen in (None, "b"):
        report = sv.verify(tmp_path / "two", against=manifest, filter=chosen)
        (doubt,) = report.doubts
        assert "the manifest of another checkpoint" in doubt.message and doubt.file == manifest
        assert (report.verdict, report.damages) == ("not verified", ())
    assert main(["digest", str(tmp_path / "two"), "--against", manifest]) == 3


@pytest.mark.parametrize("given", ["nowhere.sha256", ".", "", "fifo"])
def test_what_cannot_be_a_manifest_is_not_called_a_lost_file_of_a_checkpoint(
    given: str, tmp_path: Path
) -> None:
    sv.save(tmp_path / "m", {"a": np.ones(3)})
    os.mkfifo(tmp_path / "fifo")
    words = "fifo is a fifo, not a file" if given == "fifo" else "manifest.*"
    told = rf"{words}\. `shardvar digest PATH --write` writes one\.$"
    with pytest.raises(CheckpointError if given == "fifo" else MissingFile, match=told):
        sv.verify(tmp_path / "m", against=f"{tmp_path}/{given}")


@pytest.mark.parametrize(
    ("head", "nbytes", "words"),
    [
        (b"", 1 << 33, "is not a manifest"),
        (b"# shardvar digest 1\n", MAX_MANIFEST_NBYTES + 1, "MAX_MANIFEST_NBYTES"),
    ],
)
def test_a_file_that_is_too_large_is_not_read(
    head: bytes, nbytes: int, words: str, tmp_path: Path
) -> None:
    """Such as a model that is given for its manifest."""
    (tmp_path / "m").write_bytes(head)
    os.truncate(tmp_path / "m", nbytes)  # without a byte on the disk
    with pytest.raises(CheckpointError, match=words):
        read_manifest(tmp_path / "m")


def test_a_manifest_that_is_there_is_said_before_the_checkpoint_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is given for its checkpoint is called that."""
    sv.save(tmp_path / "m", {"a": np.ones(3)})
    manifest = write_manifest(sv.digest(tmp_path / "m"))
    with pytest.raises(UnsupportedError, match="is a manifest of digests.*--against"):
        sv.digest(manifest)
    monkeypatch.setattr("shardvar.cli.digest.digest", None)
    assert main(["digest", str(tmp_path / "m"), "--write"]) == 3


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.9])
def test_a_manifest_that_was_cut_is_refused(kept: float, tmp_path: Path) -> None:
    """Within a line, and between lines of tensors."""
    sv.save(tmp_path / "m", {f"{n}": np.array(n) for n in range(10)})
    octets = Path(write_manifest(sv.digest(tmp_path / "m"))).read_bytes()
    cut = octets[: int(len(octets) * kept)]
    for each in (cut, cut[: cut.rindex(b"\n") + 1]):
        if b"tensor" in octets[len(each) :]:
            with pytest.raises(MalformedCheckpoint):
                decode_manifest(each, "m.sha256")


_HEAD = f"# shardvar digest 1\n# checkpoint {sha256().hexdigest()}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{_HEAD}# signed by nobody\n", "line 3 of no kind"),
        (f'{_HEAD}# tensor {"0" * 64} "\\q"\n', "wrong key"),
        (f'{_HEAD}# tensor {"0" * 63} "a"\n', "of no kind"),
        ("# shardvar digest 1\r\n", "end in CR LF.*as it is"),
        ("# shardvar digest 2\n", "of version 2.*a later one"),
        ("\n", "is not a manifest.*digest PATH --write"),
    ],
)
def test_a_text_that_is_no_manifest_is_refused_with_its_cause(text: str, words: str) -> None:
    with pytest.raises(MalformedCheckpoint, match=words):
        decode_manifest(text.encode(), "m.sha256")


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.just("0" * 64)))
def test_a_manifest_keeps_every_key(tensors: dict[str, str]) -> None:
    manifest = Manifest("m", tensors, {})
    assert decode_manifest(encode_manifest(manifest), "m") == manifest


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="sha256sum is not installed")
def test_sha256sum_checks_the_files_of_a_manifest(tmp_path: Path) -> None:
    sv.save(tmp_path / "m", MODEL, partition=2)
    path = write_manifest(sv.digest(tmp_path / "m"))
    assert set(read_manifest(path).files) == {each.name for each in tmp_path.iterdir()} - {
        "m.sha256"
    }
    check = ["sha256sum", "--check", "--strict", "m.sha256"]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 0
    (tmp_path / "m.svindex").write_bytes(b"")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 1


@pytest.mark.smoke
def test_the_command_prints_a_line_for_each_tensor_and_one_for_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sv.save(tmp_path / "m", {"a": np.ones(3), "b": np.array(7)})
    report = sv.digest(tmp_path / "m")
    assert main(["digest", str(tmp_path / "m")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{report.tensors['a']}  a",
        f"{report.tensors['b']}  b",
        f"checkpoint {report.checkpoint}",
    ]
    assert main(["digest", str(tmp_path / "m"), "--write", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["manifest"] == str(tmp_path / "m.sha256")
    sv.save(tmp_path / "m", {"a": np.ones(3), "b": np.array(8)}, force=True)
    assert main(["digest", str(tmp_path / "m"), "--against", str(tmp_path / "m.sha256")]) == 1
    assert "differs: 'b'" in capsys.readouterr().out
    assert main(["digest", str(tmp_path / "m"), "--force"]) == 2
    assert main(["digest", str(damaged(tmp_path / "d"))]) == 3
