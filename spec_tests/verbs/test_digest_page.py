"""docs/digest.md, its vectors, its checker and the JavaScript reader give the digests of shardvar."""

import json
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.layout.dtypes import Array, numpy_dtype
from shardvar.verbs.compare.digest import digest_array
from shardvar.verbs.compare.manifest import write_manifest
from spec_tests.formats.test_javascript_reader import NODE, READER
from spec_tests.helpers.damage import flip
from spec_tests.helpers.metadata_saves import save_with
from spec_tests.helpers.paths import module_of_page
from spec_tests.vector_generators import digests

CASES = digests.vectors()["cases"]


def array_of(case: dict[str, Any]) -> Array:
    """The array of a case, from its bytes."""
    data, shape = digests.data_of(case["data"]), tuple(case["shape"])
    if case["dtype"] != "string":
        return np.frombuffer(data, numpy_dtype(case["dtype"])).reshape(shape)
    found = list[bytes]()
    while data:
        end = 8 + int.from_bytes(data[:8], "little")
        found, data = [*found, data[8:end]], data[end:]
    array = np.empty(len(found), object)
    array[:] = found
    return array.reshape(shape)


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    """docs/tensor_digest.py."""
    return module_of_page("tensor_digest")


def test_the_vectors_are_those_of_the_generator() -> None:
    assert digests.PATH.read_text(encoding="utf-8") == digests.text()
    assert json.loads(digests.text()) == digests.vectors()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["why"])
def test_digests_in_memory_are_those_of_the_vectors(case: dict[str, Any]) -> None:
    assert digest_array(case["key"], array_of(case)) == case["digest"]


ALL = {each["key"]: array_of(each) for each in CASES}
DIGESTS = {each["key"]: each["digest"] for each in CASES}


def digests_of_lines(lines: list[str]) -> tuple[dict[str, str], str]:
    """The digests by key, and the last line."""
    *rows, last = lines
    return {json.loads(key): value for value, key in (row.split("  ", 1) for row in rows)}, last


def test_digests_of_a_checkpoint_are_those_of_the_vectors(tmp_path: Path) -> None:
    sv.save(tmp_path / "all", ALL)
    found = sv.digest(tmp_path / "all")
    assert found.tensors == DIGESTS
    assert found.checkpoint == digests.vectors()["checkpoint"]
    sv.save(tmp_path / "none", {})
    assert sv.digest(tmp_path / "none").checkpoint == digests.vectors()["empty"]


@pytest.mark.skipif(NODE is None, reason="node is not installed, so JavaScript was not tried")
def test_javascript_prints_and_compares_the_digests_that_a_checkpoint_carries(
    tmp_path: Path,
) -> None:
    sv.save(tmp_path / "all", ALL, partition=2, digest=True)
    sv.reshard(tmp_path / "all", tmp_path / "some", exclude="step")
    # A text of other digests, in place of the right ones.
    with sv.open_checkpoint(tmp_path / "all") as reader:
        stale = dict(reader.digests) | {"step": "0" * 64}
    save_with(tmp_path / "stale", ALL, digests=stale)
    sv.save(tmp_path / "plain", ALL, partition=2)
    for name, code in (("all", 0), ("some", 0), ("plain", 0), ("stale", 1)):
        words = [str(NODE), str(READER), str(tmp_path / name), "--digest"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, done.stderr
        if name == "plain":
            told = f"checkpoint {digests.vectors()['checkpoint']}"
            assert digests_of_lines(done.stdout.splitlines()) == (DIGESTS, told)
    assert done.stdout.splitlines()[-1] == 'differs: "step"'
    assert [each.key for each in sv.verify(tmp_path / "stale").damages] == ["step"]


def test_the_checker_compares_the_digests_that_a_file_carries(
    tmp_path: Path, checker: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.safetensors"
    sv.save(path, {"a": np.arange(4), "b": np.arange(3, dtype=np.int16)}, digest=True)
    assert checker.main([str(path)]) == 0
    flip(path, -1)
    assert checker.main([str(path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == 'differs: "b"'
    octets = path.read_bytes().replace(b"# shardvar digest 1", b"# shardvar digest 2")
    path.write_bytes(octets)
    assert checker.main([str(path)]) == 2


@pytest.mark.parametrize("format", ["safetensors", "npz"])
def test_the_checker_agrees_with_shardvar_on_files_and_manifests(
    format: str, tmp_path: Path, checker: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    numpy = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
    known = {*numpy.split(), "complex64", "complex128"}
    if format == "safetensors":
        known = {name for name, _ in checker.SAFETENSORS.values()}
    some = [each for each in CASES if each["dtype"] in known and each["key"].isprintable()]
    tensors = {each["key"]: array_of(each) for each in some if each["key"]}
    path = tmp_path / f"model.{format}"
    sv.save(path, tensors)
    report = sv.digest(path)
    assert len(tensors) > 15 and checker.main([str(path)]) == 0
    found = digests_of_lines(capsys.readouterr().out.splitlines())
    assert found == (dict(report.tensors), f"checkpoint {report.checkpoint}")
    manifest = write_manifest(report)
    assert checker.main([str(path), manifest]) == 0
    del tensors["step"]
    sv.save(path, {**tensors, "leaf-1": tensors["leaf-1"] + np.uint8(1)}, force=True)
    assert checker.main([str(path), manifest]) == 1
    assert capsys.readouterr().out.splitlines() == ['differs: "leaf-1"', 'differs: "step"']


def test_the_checker_refuses_what_is_cut_or_wrong(
    tmp_path: Path, checker: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.safetensors"
    sv.save(path, {"w": np.ones((3, 4), np.float32)})
    octets, manifest = path.read_bytes(), Path(write_manifest(sv.digest(path)))
    text = manifest.read_text(encoding="utf-8")
    for stop in range(len(octets)):
        path.write_bytes(octets[:stop])
        assert checker.main([str(path)]) == 2
    for wrong in ([1, 2], [3, 5], [-3, -4], [3.0, 4], "12", None):
        head = json.dumps({"w": {"dtype": "F32", "shape": wrong, "data_offsets": [0, 48]}})
        path.write_bytes(len(head).to_bytes(8, "little") + head.encode() + bytes(48))
        assert checker.main([str(path)]) == 2, wrong
    head = '{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{}}'
    path.write_bytes(len(head).to_bytes(8, "little") + head.encode() + bytes(1))
    assert checker.main([str(path)]) == 2
    path.write_bytes(octets)
    lines = text.splitlines(keepends=True)
    for left in ([0, 1], [1, 2], [2], range(len(lines))):
        broken = "".join(line for row, line in enumerate(lines) if row in left)
        manifest.write_text(broken if len(left) < len(lines) else text[:-1], encoding="utf-8")
        assert checker.main([str(path), str(manifest)]) == 2, left
    assert "Traceback" not in capsys.readouterr().err
