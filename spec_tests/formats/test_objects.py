"""Objects in the metadata of a checkpoint: what every verb sees of them, and documents that are
wrong. Arrays of NumPy in pickles, which are tensors."""

import json
import tempfile
from argparse import Namespace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.cli.main import main
from shardvar.errors import InvalidCheckpoint, UnsupportedError
from shardvar.planning.index import OBJECTS
from shardvar.wire.opcode_writer import Call
from shardvar.wire.plain import OrderedMap, Size, Tagged, build_objects, encode_value
from spec_tests.helpers.damage import flip
from spec_tests.helpers.format_protocol import GOLDEN
from spec_tests.helpers.torch_files import save_pickled, write_torch
from spec_tests.hostile.safetensors import safetensors, tensor

FORMS = ["shardvar", "safetensors", "zarr", "orbax", "npz", "tensorflow"]
ENDINGS = {"safetensors": ".safetensors", "pt": ".pt", "npz": ".npz"}
W = np.arange(12, dtype=np.float32).reshape(4, 3)


def save_with(path: Path, document: str, **tensors: Any) -> None:
    """Save a file whose metadata have that document, as only a faulty writer would."""
    held = {key: np.float32(array) for key, array in ({"w": W} | tensors).items()}
    stops = [0, *accumulate(array.nbytes for array in held.values())]
    header: dict[str, object] = {"__metadata__": {OBJECTS: document}}
    header |= {
        key: tensor(*stops[n : n + 2], array.shape) for n, (key, array) in enumerate(held.items())
    }
    path.write_bytes(safetensors(header, b"".join(map(bytes, held.values()))))


def document(**values: Any) -> str:
    return build_objects({key: encode_value(value) for key, value in values.items()})


def named(folder: Path, name: str, form: str) -> Path:
    return folder / f"{name}{ENDINGS.get(form, '')}"


@pytest.mark.parametrize("form", [*FORMS, "torch", "pt"])
def test_a_copy_keeps_the_objects(form: str, tmp_path: Path) -> None:
    """In the same format and from any format to any other, in another cut; a filter chooses among
    them, and the metadata of the user stay. Also without any tensor."""
    values = {"lr": 0.1, "betas": (0.9, 0.99), "size": Size([2]), "kind": Tagged("torch.dtype", "int8"),
              "step": np.int64(3), "map": OrderedMap({"a": None}), "name": "adam",
              "raw": bytearray(b"\0\xff"), "z": 1 - 2j}  # fmt: skip
    save_with(tmp_path / "a.safetensors", document(**values))
    first, second = named(tmp_path, "b", form), named(tmp_path, "c", form)
    sv.reshard(tmp_path / "a.safetensors", first, format=form)
    cut = 2 if form in ("shardvar", "torch", "zarr", "orbax", "tensorflow") else None
    report = sv.reshard(first, second, format=form, partition=cut, exclude="name")
    assert (report.num_objects, report.num_tensors) == (len(values) - 1, 1)
    with sv.open_checkpoint(first) as reader, sv.open_checkpoint(second) as copy:
        assert {*copy} == {*reader} - {"name"} == {"w", *values} - {"name"}
        held = {key: encode_value(value).encode() for key, value in values.items()}
        assert reader.source.objects(values, "") == held
        held.pop("name")
        assert copy.source.objects(values, "") == held
        assert reader.read("step")[()] == b"np.int64(3)" and not reader.metadata.user
        assert reader.read("betas")[()] == b"(0.9, 0.99)"
    assert sv.verify(second).ok and np.array_equal(sv.load(second)["w"], W)
    write_torch(tmp_path / "x.pt", {"lr": 0.5, "name": "x"})
    alone = named(tmp_path, "y", form)
    assert sv.reshard(tmp_path / "x.pt", alone, format=form).num_objects == 2
    sv.reshard(alone, tmp_path / "z.pt")
    assert sv.diff(tmp_path / "x.pt", tmp_path / "z.pt").equal


def test_verbs_see_objects_as_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Verify says what covers them: the index of the native format has checksums, and the header of
    safetensors has none."""
    for name, rate in (("a", 0.125), ("b", 0.25)):
        save_with(tmp_path / f"{name}.safetensors", document(lr=rate))
        sv.reshard(tmp_path / f"{name}.safetensors", tmp_path / f"n{name}", format="shardvar")
    for path in (tmp_path / "na", tmp_path / "a.safetensors"):
        assert main(["inspect", str(path), "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (len(shown["tensors"]), shown["num_settings"], shown["metadata"]) == (2, 1, {})
        assert main(["show", str(path), "lr"]) == 0
        assert "0.125" in capsys.readouterr().out
        unverified = {each.key for each in sv.verify(path).unverified}
        assert unverified == ({"w", "lr"} if path.suffix else set())
        assert sv.diff(tmp_path / "na", path).equal
        for other in ("nb", "b.safetensors"):
            report = sv.diff(path, tmp_path / other)
            assert [each.key for each in report.differences] == ["lr"]


@pytest.mark.parametrize(
    ("text", "key", "error"),
    [
        ('{"version":1,"objects":[["lr",{"float":"0.5"}],["x",{"datetime":1}]]}', "x", UnsupportedError),
        ('{"version":1,"objects":[["lr",{"float":"0.5"}],["x",{"float":"1"}]]}', "x", InvalidCheckpoint),
        ('{"version":1,"objects":[["lr",{"float":"0.5"}],["w",1]]}', "w", InvalidCheckpoint),
        ('{"version":1,"objects":[["lr",1],["lr",2]]}', OBJECTS, InvalidCheckpoint),
        ('{"version":7,"objects":[]}', OBJECTS, UnsupportedError),
        ("no JSON", OBJECTS, InvalidCheckpoint),
    ],
)  # fmt: skip
def test_a_wrong_object_is_a_fault_of_its_key(
    text: str, key: str, error: type[Exception], tmp_path: Path
) -> None:
    """Nothing is dropped silently: a conversion of all is refused with the key, and the others can
    be read."""
    save_with(tmp_path / "a.safetensors", text, v=W)
    with sv.open_checkpoint(tmp_path / "a.safetensors") as reader:
        assert {*reader.faults} == {key} and key in reader
        assert np.array_equal(reader.read("v"), W)
        if key != OBJECTS:
            assert reader.read("lr")[()] == b"0.5"
        with pytest.raises((error, sv.errors.MalformedCheckpoint)):
            reader.read(key)
    with pytest.raises((error, sv.errors.MalformedCheckpoint), match=key):
        sv.reshard(tmp_path / "a.safetensors", tmp_path / "b", format="shardvar")
    assert not [*tmp_path.glob("b*")]
    sv.reshard(tmp_path / "a.safetensors", tmp_path / "b", format="shardvar", exclude=key)
    assert "v" in sv.load(tmp_path / "b")


def test_texts_of_orbax_stay_texts_of_orbax(tmp_path: Path) -> None:
    """By way of another format, with the same digests; elsewhere they are texts."""
    source = GOLDEN / "orbax" / "strings" / "ckpt"
    for form in FORMS:
        between, back = named(tmp_path, form, form), tmp_path / f"{form}-back"
        sv.reshard(source, between, format=form)
        sv.reshard(between, back, format="orbax")
        for path in (between, back):
            assert sv.diff(source, path).equal and sv.verify(path).ok
        assert (back / "_strings.json").read_bytes()
    sv.reshard(source, tmp_path / "x.pt")


def test_every_object_that_is_refused_is_named(tmp_path: Path) -> None:
    values = {name: Call("builtins.range", (1, 2, 1)) for name in ("first", "second")}
    write_torch(tmp_path / "a.pt", {"lr": 0.5} | values)
    with pytest.raises(UnsupportedError, match=r"first.*builtins.range.*'second'.*exclude"):
        sv.reshard(tmp_path / "a.pt", tmp_path / "b", format="shardvar")
    assert not [*tmp_path.glob("b*")]


@pytest.mark.parametrize("form", ["npz", "tensorflow"])
def test_a_document_in_a_tensor_is_compared_with_its_checksum(form: str, tmp_path: Path) -> None:
    """With any bit of it changed, it is a fault with the name of the document; the tensors are read.
    No tensor can have that name, with objects and without, nor the user's metadata."""
    source, path = tmp_path / "a.safetensors", named(tmp_path, "b", form)
    save_with(source, document(lr=0.5))
    with pytest.raises(UnsupportedError, match=OBJECTS):
        sv.reshard(source, path, format=form, rename={"w": OBJECTS})
    with pytest.raises(UnsupportedError, match=OBJECTS):
        sv.save(path, {OBJECTS: W}, format=form)
    with pytest.raises(sv.errors.ArgumentError, match=OBJECTS):
        sv.save(tmp_path / "b", {"w": W}, metadata={OBJECTS: "{}"})
    assert not [*tmp_path.glob("b*")]
    sv.reshard(source, path, format=form)
    file = path if form == "npz" else tmp_path / "b.data-00001-of-00002"
    flip(file, file.read_bytes().index(b"0.5"), 4)
    assert np.array_equal(sv.load(path, "w")["w"], W)
    report = sv.verify(path)
    assert not report.ok and {each.key for each in report.damages} == {OBJECTS}
    with pytest.raises(sv.errors.CorruptCheckpoint, match=OBJECTS):
        sv.reshard(path, tmp_path / "c", format="shardvar")


# --- Arrays of NumPy in pickles


GENERATORS = {
    "legacy": np.random.RandomState(1).get_state(),
    "pcg": np.random.PCG64(1).state,
    "philox": np.random.Philox(1).state,
    "sfc": np.random.SFC64(1).state,
    "twister": np.random.MT19937(1).state,
}
ARRAY_DTYPES = "? i1 <i2 >i2 <u4 >u8 <f2 >f4 <f8 >c8 <c16".split()


def arrays(dtype: str, extents: list[int], order: Any, shift: int) -> Any:
    values = np.arange(np.prod(extents, dtype=int)).reshape(extents) * 37 + shift
    return np.array(values.astype(dtype), order=order)


@given(
    drawn=st.lists(
        st.builds(
            arrays, st.sampled_from(ARRAY_DTYPES), st.lists(st.integers(0, 4), max_size=3),
            st.sampled_from("CF"), st.integers(0, 99),
        ), min_size=1, max_size=4,
    ),
    nest=st.sampled_from([dict, list, tuple]),
    protocol=st.integers(2, 5),
    is_old=st.booleans(),
    generator=st.sampled_from([*GENERATORS]),
)  # fmt: skip
def test_numeric_arrays_in_a_pickle_are_tensors_like_any_other(
    drawn: list[Any], nest: Any, protocol: int, is_old: bool, generator: str
) -> None:
    """In each order, of any extents, in any container, under several keys, in both forms of
    torch.save; only those in the state of a generator stay objects."""
    names = [*map(str, range(len(drawn)))]
    held = dict(zip(names, drawn, strict=True)) if nest is dict else nest(drawn)
    state = {"model": held, "again": drawn[0], "any": GENERATORS[generator], "lr": 0.1}
    wanted = {f"model.{name}": array for name, array in zip(names, drawn, strict=True)}
    wanted |= {"again": drawn[0]}
    with tempfile.TemporaryDirectory() as folder:
        path = save_pickled(Path(folder) / "m.pt", state, 2 if is_old else protocol, is_old)
        found = sv.load(path)
        assert {key for key, each in found.items() if each.dtype != object} == {*wanted}
        for key, array in wanted.items():
            assert found[key].dtype == array.dtype.newbyteorder("=")
            assert found[key].shape == array.shape and np.array_equal(found[key], array)
        sv.save(Path(folder) / "own", {key: found[key] for key in wanted})
        sv.reshard(path, Path(folder) / "copy")
        assert sv.diff(path, Path(folder) / "copy").equal
        digests = [sv.digest(Path(folder) / name) for name in ("own", "m.pt", "copy")]
        assert {key: digests[1].tensors[key] for key in wanted} == digests[0].tensors
        assert digests[1].tensors == digests[2].tensors
        assert sv.verify(path).ok


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array([None, 1]), "dtype object"),
        (np.array(["a", "bc"]), "dtype str"),
        (np.zeros(2, "f4,i2"), "dtype void, or of fields"),
        (np.zeros(2, "M8[s]"), "dtype datetime64"),
        (np.ma.array([1, 2]), "class numpy"),
    ],
)  # fmt: skip
def test_arrays_without_numbers_are_refused_by_name(array: Any, words: str, tmp_path: Path) -> None:
    path = save_pickled(tmp_path / "m.pt", {"a": array, "w": np.ones(2)})
    with pytest.raises(UnsupportedError, match=rf"'a'.*{words}"):
        sv.load(path, "a")
    assert sv.load(path, "w")["w"].tolist() == [1, 1]


def test_an_array_in_an_object_is_not_carried_as_text(tmp_path: Path) -> None:
    state = {"args": Namespace(mean=np.ones(3)), "w": np.ones(2), "rng": ("MT19937", np.ones(3))}
    path = save_pickled(tmp_path / "m.pt", state)
    with pytest.raises(UnsupportedError, match="'args': It is an object with an array"):
        sv.reshard(path, tmp_path / "x.safetensors")
    assert sv.load(path, "rng.1")["rng.1"].tolist() == [1, 1, 1]


def test_the_limit_of_a_pickle_does_not_count_its_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardvar.formats.torch.archive.MAX_PICKLE_NBYTES", 1 << 12)
    long = np.arange(1 << 17)
    path = save_pickled(tmp_path / "long.pt", {"a": long})
    assert np.array_equal(sv.load(path)["a"], long)
    path = save_pickled(tmp_path / "many.pt", {"a": [{}] * (1 << 12)})
    with pytest.raises(InvalidCheckpoint, match="MAX_PICKLE_NBYTES"):
        sv.load(path)
