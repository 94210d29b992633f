"""Digests depend on keys, dtypes, shapes and values alone, and a manifest of them finds what
changed."""

import json
import os
import shutil
import subprocess
from hashlib import sha256
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
from shardvar.verbs.compare.digest import digest, digest_array
from shardvar.verbs.compare.manifest import (
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


@pytest.mark.parametrize("form", ["shardvar", "tensorflow", "safetensors", "npz"])
@pytest.mark.parametrize("partition", [None, 3])
def test_digests_are_those_of_the_definition_in_every_format_and_slicing(
    form: str, partition: int | None, tmp_path: Path
) -> None:
    model = {key: array for key, array in MODEL.items() if form != "npz" or key != "bf16"}
    sv.save(
        tmp_path / "m",
        model,
        format=form,
        partition=partition if form in ("shardvar", "tensorflow") else None,
    )
    report = sv.digest(tmp_path / "m")
    assert report.tensors == {key: plain(key, array) for key, array in model.items()}
    together = sha256(b"".join(sorted(map(bytes.fromhex, report.tensors.values())))).hexdigest()
    assert report.checkpoint == together and not report.unreadable


def test_columns_that_lie_interleaved_in_the_file_have_the_digest_of_the_whole(
    tmp_path: Path,
) -> None:
    table = np.arange(1500 * 1001, dtype=np.float32).reshape(1500, 1001)
    sv.save(tmp_path / "m", {"table": table}, partition={"table": [2, 5]})
    assert sv.digest(tmp_path / "m").tensors == {"table": plain("table", table)}


@given(st.data())
def test_another_key_dtype_shape_or_bit_has_another_digest(data: st.DataObject) -> None:
    array = data.draw(
        arrays(dtypes=["uint8", "int16", "float32"], max_rank=2).filter(lambda each: each.size > 1)
    )
    bits = (
        array.copy().view(np.uint8).reshape(-1)
        if array.flags.c_contiguous
        else array.copy().reshape(-1).view("u1")
    )
    bits[data.draw(st.integers(0, len(bits) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    changed = np.frombuffer(bits.tobytes(), array.dtype).reshape(array.shape)
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


def damaged(tmp_path: Path, form: str = "safetensors") -> Path:
    """Return the path of a checkpoint in which one byte of ``large`` is wrong."""
    path = tmp_path / "m.safetensors" if form == "safetensors" else tmp_path / "m"
    sv.save(path, {key: MODEL[key] for key in ("large", "scalar")}, format=form)
    if form == "safetensors":
        write_manifest(sv.digest(path))
    file = path if form == "safetensors" else next(tmp_path.glob("m.svdata*"))
    flip(file, mask=4)
    return path


def test_a_damaged_tensor_has_no_digest_and_hides_no_other(tmp_path: Path) -> None:
    report = sv.digest(damaged(tmp_path, "shardvar"))
    assert set(report.tensors) == {"scalar"} and report.checkpoint is None
    assert [(each.key, each.kind) for each in report.unreadable] == [("large", "CorruptCheckpoint")]
    with pytest.raises(CorruptCheckpoint, match="'large' has no digest"):
        write_manifest(report)


def test_a_manifest_that_agrees_makes_every_tensor_verified(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    sv.save(path, MODEL)
    assert sv.verify(path).unguarded
    write_manifest(sv.digest(path))
    report = sv.verify(path)
    assert (
        report.ok
        and set(report.outcomes.values()) == {"ok"}
        and not report.unguarded
        and not report.unguarded_nbytes
    )
    assert main(["verify", str(path), "--strict"]) == 0


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


@pytest.mark.parametrize(
    ("given", "words"),
    [("nowhere.sha256", "manifest.*"), (".", "manifest.*"), ("", "manifest.*"),
     ("fifo", "fifo is a fifo, not a file")],
    ids=["absent", "folder", "separator", "fifo"],
)  # fmt: skip
def test_what_cannot_be_a_manifest_is_not_called_a_lost_file_of_a_checkpoint(
    given: str, words: str, tmp_path: Path
) -> None:
    sv.save(tmp_path / "m", {"a": np.ones(3)})
    os.mkfifo(tmp_path / "fifo")
    told = rf"{words}\. `shardvar digest PATH --write` writes one\.$"
    with pytest.raises(CheckpointError, match=told) as caught:
        sv.verify(tmp_path / "m", against=f"{tmp_path}/{given}")
    assert isinstance(caught.value, MissingFile) or given == "fifo"


@pytest.mark.parametrize(
    ("head", "nbytes", "words"),
    [
        (b"", 1 << 33, "is not a manifest"),
        (b"# shardvar digest 1\n", MAX_MANIFEST_NBYTES + 1, "MAX_MANIFEST_NBYTES"),
    ],
    ids=["model", "manifest"],
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
    sv.save(tmp_path / "m", {"a": np.ones(3)})
    write_manifest(sv.digest(tmp_path / "m"))
    monkeypatch.setattr("shardvar.cli.digest.digest", None)
    assert main(["digest", str(tmp_path / "m"), "--write"]) == 3


def test_a_manifest_is_not_replaced_unasked(tmp_path: Path) -> None:
    """Or the digests of a damaged checkpoint would take the place of the right ones."""
    path = damaged(tmp_path)
    before = Path(f"{path}.sha256").read_bytes()
    with pytest.raises(TargetExists, match="exists.*force=True"):
        write_manifest(sv.digest(path))
    assert Path(f"{path}.sha256").read_bytes() == before
    write_manifest(sv.digest(path), force=True)
    assert sv.verify(path).ok


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


def test_a_manifest_that_is_given_for_its_checkpoint_is_called_that(tmp_path: Path) -> None:
    sv.save(tmp_path / "m", {"a": np.ones(3)})
    with pytest.raises(UnsupportedError, match="is a manifest of digests.*--against"):
        sv.digest(write_manifest(sv.digest(tmp_path / "m")))


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), st.just("0" * 64), max_size=4
    )
)
def test_a_manifest_keeps_every_key(tensors: dict[str, str]) -> None:
    from shardvar.verbs.compare.manifest import Manifest

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
    assert main(["digest", str(damaged(tmp_path / "d", "shardvar"))]) == 3


@pytest.mark.parametrize("shape", [(5, 1_000_003), (2, (4 << 20) + 1000)], ids=str)
def test_leaves_that_lie_in_two_blocks_are_those_of_the_array(
    shape: tuple[int, int], tmp_path: Path
) -> None:
    """Of blocks that end within a leaf, and of one that does not fill the leaf that another one
    began."""
    table = np.resize(np.arange(251, dtype=np.uint8), shape)
    sv.save(tmp_path / "model", {"t": table}, partition=2)
    assert digest(tmp_path / "model").tensors == {"t": digest_array("t", table)}
