"""A slip of the caller's is told in the error tree's words: by key or value, before anything is
written."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    LayoutError,
    OutOfRange,
    UnsupportedError,
)
from shardvar.verbs.arguments import as_array

ARRAYS = {"b": np.arange(12.0).reshape(4, 3), "a": np.arange(5), "z": np.float32(3)}


class Unwilling:
    """What PyTorch's tensors do when they are on another device, or have a gradient."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise RuntimeError("not now")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    sv.save(tmp_path / "model", ARRAYS, partition=2)
    return tmp_path / "model"


@pytest.mark.parametrize(
    "value",
    [
        [[1], [1, 2]],
        None,
        {1},
        {"w": np.ones(2)},
        2**70,
        (i for i in range(3)),
        Unwilling(),
        np.array(None),
    ],
    ids=["ragged", "none", "set", "nested", "huge", "generator", "unwilling", "object"],
)
def test_what_is_no_array_is_named_by_its_key_and_nothing_is_written(
    value: Any, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match="'k'"):
        sv.save(tmp_path / "m", {"k": value})
    assert list(tmp_path.iterdir()) == []


def test_text_of_variable_width_is_refused_as_text_of_fixed_width_is(tmp_path: Path) -> None:
    for dtype in (np.dtypes.StringDType(), "U3"):
        with pytest.raises(UnsupportedError, match="object array of bytes"):
            sv.save(tmp_path / "m", {"k": np.array(["abc"], dtype)})


@pytest.mark.parametrize("step", [1, 2])
def test_bools_that_could_never_be_loaded_again_are_not_saved(step: int, tmp_path: Path) -> None:
    value = np.array([0, 1, 2, 1], np.uint8).view(np.bool)[::step]
    with pytest.raises(ArgumentError, match="'k' is of dtype bool"):
        sv.save(tmp_path / "m", {"k": value})


@pytest.mark.parametrize("tensors", [[np.ones(2)], np.ones(2), [("a", np.ones(2))], None])
def test_tensors_are_a_mapping(tensors: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentTypeError, match="not a mapping from keys to arrays"):
        sv.save(tmp_path / "m", tensors)


@pytest.mark.parametrize("metadata", [{"a": 1}, {1: "a"}, [1], "ab", {"a": None}, {"a": "\ud800"}])
@pytest.mark.parametrize("name", ["m", "m.safetensors"])
def test_metadata_are_text_for_text_in_every_format(
    name: str, metadata: Any, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError):
        sv.save(tmp_path / name, ARRAYS, metadata=metadata)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("policy", ["x", lambda slices: slices, 5, sv.MaxShardSizePolicy])
def test_what_assigns_nothing_is_no_policy(policy: Any, model: Path) -> None:
    with pytest.raises(ArgumentTypeError, match="is (?:a class, )?not a policy"):
        sv.save(model.parent / "m", ARRAYS, policy=policy)
    with pytest.raises(ArgumentTypeError, match="is (?:a class, )?not a policy"):
        sv.reshard(model, model.parent / "m", policy=policy)


def test_a_limit_is_a_number() -> None:
    with pytest.raises(ArgumentTypeError, match="'1MB'"):
        sv.MaxShardSizePolicy("1MB")  # type: ignore[arg-type]


@pytest.mark.parametrize("path", [None, 3, 2.5, ["m"]])
def test_a_path_is_a_path(path: Any) -> None:
    for verb in (sv.load, sv.open_checkpoint, sv.verify, lambda path: sv.save(path, ARRAYS)):
        with pytest.raises(ArgumentTypeError, match="Invalid path"):
            verb(path)


@pytest.mark.parametrize("format", ["", [], {}, ["npz"], b"npz", 3])
def test_a_format_is_the_name_of_one(format: Any, model: Path) -> None:
    """An empty text, such as that of an unset variable of a shell, is not the default."""
    for verb in (
        lambda path: sv.save(path, ARRAYS, format=format),
        lambda path: sv.reshard(model, path, format=format),
    ):
        with pytest.raises(ArgumentError, match="[Tt]he format is|Unknown format"):
            verb(model.parent / "new")
    assert not list(model.parent.glob("new*"))


@pytest.mark.parametrize("partition", ["", "3", b"", b"2", bytearray(b"2")])
def test_text_is_not_a_list_of_counts(partition: Any, model: Path) -> None:
    target = model.parent / "new"
    for verb in (partial(sv.save, target, ARRAYS), partial(sv.reshard, model, target)):
        with pytest.raises(LayoutError, match="does not cut the shape"):
            verb(partition=partition)
    assert not list(model.parent.glob("new*"))


@pytest.mark.parametrize("progress", [None, 3, "print", []])
def test_progress_is_a_function(progress: Any, model: Path) -> None:
    """It is refused before anything is read or written."""
    for verb in (
        partial(sv.verify, model),
        partial(sv.digest, model),
        partial(sv.diff, model, model),
        partial(sv.reshard, model, model.parent / "new"),
    ):
        with pytest.raises(ArgumentTypeError, match=r"progress is .*\. Give a function"):
            verb(progress=progress)
    assert not list(model.parent.glob("new*"))


@pytest.mark.parametrize("keys", [5, b"b", [1], ["b", None], [["b"]]])
def test_keys_are_strings(keys: Any, model: Path) -> None:
    with pytest.raises(ArgumentTypeError):
        sv.load(model, keys)


def test_one_key_may_be_given_alone(model: Path) -> None:
    assert list(sv.load(model, "b")) == ["b"]
    with sv.open_checkpoint(model) as reader, pytest.raises(ArgumentTypeError):
        reader[0]  # type: ignore[index]


@pytest.mark.parametrize(
    "how",
    [
        *(
            {"filter": 3},
            {"filter": [3]},
            {"rename": [("a", "b")]},
            {"cast": 5},
            {"cast": {"b": [1]}},
        ),
        *(
            {"cast": {3: "f4"}},
            {"partition": {3: 2}},
            {"format": 3},
            {"source": 3},
            {"source": None},
        ),
    ],
)
def test_the_ways_to_reshard_have_types(how: dict[str, Any], model: Path) -> None:
    with pytest.raises(ArgumentTypeError):
        sv.reshard(**{"source": model, "target": model.parent / "target", **how})
    assert not list(model.parent.glob("target*"))


@pytest.mark.parametrize("dtype", ["float32", np.float32, np.dtype(">f4")])
def test_a_cast_is_to_a_dtype_by_name_or_as_numpy_has_it(dtype: Any, model: Path) -> None:
    for name, cast in (("one", {"b": dtype}), ("all", dtype)):
        sv.reshard(model, model.parent / name, cast=cast)
        assert sv.load(model.parent / name, "b")["b"].dtype == np.float32


def test_an_index_that_its_axis_does_not_have_is_out_of_range(model: Path) -> None:
    with sv.open_checkpoint(model) as reader:
        for index in (4, -5, 10**30, (0, 3), (0, 0, 0), (..., ...)):
            with pytest.raises(OutOfRange):
                reader["b"][index]
        assert len(list(reader["a"])) == 5  # iteration ends where the index errors begin


def test_a_lazy_tensor_has_a_length_a_short_name_and_never_a_view(model: Path) -> None:
    with sv.open_checkpoint(model) as reader:
        assert len(reader["b"]) == 4
        with pytest.raises(TypeError):
            len(reader["z"])
        assert repr(reader["b"]) == "LazyTensor(key='b', dtype='float64', shape=(4, 3))"
        assert repr(reader) == f"Reader(path={str(model)!r}, format='shardvar', 3 tensors, 140 B)"
        with pytest.raises(ValueError, match="copy"):
            np.array(reader["b"], copy=False)


def test_a_tensor_of_pytorch_is_its_values_whatever_numpy_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a stand-in that refuses as PyTorch does; the real one is asked where it is installed."""

    class Tensor:
        def __init__(self, dtype: str, array: Any) -> None:
            self.dtype, self.array = f"torch.{dtype}", array

        def detach(self) -> "Tensor":
            return self

        cpu = resolve_conj = resolve_neg = contiguous = detach

        def element_size(self) -> int:
            return int(self.array.itemsize)

        def view(self, dtype: Any) -> "Tensor":
            return Tensor(np.dtype(dtype).name, self.array.view(dtype))

        def numpy(self) -> Any:
            if not hasattr(np, self.dtype.removeprefix("torch.")):
                raise TypeError("Got unsupported ScalarType")
            return self.array

    monkeypatch.setitem(
        __import__("sys").modules,
        "torch",
        SimpleNamespace(Tensor=Tensor, uint8=np.uint8, int16=np.int16),
    )
    half = as_array("k", Tensor("bfloat16", np.array([0x3F80, 0xC000], np.uint16)))  # type: ignore[arg-type]
    assert (half.dtype.name, half.astype(np.float32).tolist()) == ("bfloat16", [1.0, -2.0])
    eighth = as_array("k", Tensor("float8_e5m2", np.array(0x3C, np.uint8)))  # type: ignore[arg-type]
    assert (eighth.dtype.name, eighth.shape, float(eighth)) == ("float8_e5m2", (), 1.0)
    assert as_array("k", Tensor("int32", np.arange(3, dtype=np.int32))).tolist() == [0, 1, 2]  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="'k'"):
        as_array("k", Tensor("float4_e2m1fn_x2", np.zeros(2, np.uint8)))  # type: ignore[arg-type]
