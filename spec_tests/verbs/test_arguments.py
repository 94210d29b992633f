"""A slip of the caller's is told in the error tree's words: by key or value, before anything is
written."""

from collections.abc import Callable
from inspect import signature
from itertools import product
from pathlib import Path
from types import FunctionType, SimpleNamespace
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


SOME_BOOLS = np.array([0, 1, 2, 1], np.uint8).view(np.bool)
NO_ARRAYS: dict[str, tuple[Any, type[Exception], str]] = {
    **{
        name: (value, ArgumentError, "'k'")
        for name, value in {
            "ragged": [[1], [1, 2]],
            "none": None,
            "set": {1},
            "nested": {"w": np.ones(2)},
            "huge": 2**70,
            "generator": (i for i in range(3)),
            "unwilling": Unwilling(),
            "object": np.array(None),
        }.items()
    },
    "bools that could never be loaded again": (SOME_BOOLS, ArgumentError, "'k' is of dtype bool"),
    "the same with steps": (SOME_BOOLS[::2], ArgumentError, "'k' is of dtype bool"),
    **{
        f"text of {name} width": (np.array(["abc"], d), UnsupportedError, "object array of bytes")
        for name, d in (("variable", np.dtypes.StringDType()), ("fixed", "U3"))
    },
}


@pytest.mark.parametrize("name", NO_ARRAYS)
def test_what_is_no_array_is_named_by_its_key_and_nothing_is_written(
    name: str, tmp_path: Path
) -> None:
    value, error, words = NO_ARRAYS[name]
    with pytest.raises(error, match=words):
        sv.save(tmp_path / "m", {"k": value})
    assert list(tmp_path.iterdir()) == []


Call = Callable[[Any, Path, Path], Any]
"""A call with a wrong value, of a checkpoint that is there and a path where none is."""


def saved(name: str) -> Call:
    return lambda value, _, new: sv.save(new, ARRAYS, **{name: value})


def resharded(name: str) -> Call:
    return lambda value, model, new: sv.reshard(model, new, **{name: value})


def watched(verb: Any) -> Call:
    """Progress is checked first, so that the model may stand for every other argument."""
    parameters = signature(verb).parameters.values()
    num_needed = sum(
        each.kind is each.POSITIONAL_OR_KEYWORD and each.default is each.empty
        for each in parameters
    )
    return lambda value, model, _: verb(*[model] * num_needed, progress=value)


VERBS = [each for name in dir(sv) if isinstance(each := getattr(sv, name), FunctionType)]
TEXTS = [{"a": 1}, {1: "a"}, [1], "ab", {"a": None}, {"a": "\ud800"}]
POLICIES = ["x", lambda slices: slices, 5, sv.MaxShardSizePolicy]
FORMATS = ["", [], {}, ["npz"], b"npz", 3]
CUTS = ["", "3", b"", b"2", bytearray(b"2")]
PROGRESS = [None, 3, "print", []]
PROGRESS_WORDS = r"progress is .*\. Give a function"
WRONG: list[tuple[list[Any], type[Exception], str, list[Call]]] = [
    ([[np.ones(2)], np.ones(2), [("a", np.ones(2))], None], ArgumentTypeError, "not a mapping from keys to arrays",
     [lambda value, _, new: sv.save(new, value)]),
    (TEXTS, ArgumentError, "", [saved("metadata"),
     lambda value, _, new: sv.save(f"{new}.safetensors", ARRAYS, metadata=value)]),
    (POLICIES, ArgumentTypeError, "is (?:a class, )?not a policy", [saved("policy"), resharded("policy")]),
    (["1MB"], ArgumentTypeError, "'1MB'", [lambda value, *_: sv.MaxShardSizePolicy(value)]),
    ([None, 3, 2.5, ["m"]], ArgumentTypeError, "Invalid path",
     [lambda value, *_: sv.load(value), lambda value, *_: sv.open_checkpoint(value),
      lambda value, *_: sv.verify(value), lambda value, *_: sv.save(value, ARRAYS)]),
    (FORMATS, ArgumentError, "[Tt]he format is|Unknown format", [saved("format"), resharded("format")]),
    (CUTS, LayoutError, "does not cut the shape", [saved("partition"), resharded("partition")]),
    (PROGRESS, ArgumentTypeError, PROGRESS_WORDS,
     [watched(verb) for verb in VERBS if "progress" in signature(verb).parameters]),
    ([5, b"b", [1], ["b", None], [["b"]]], ArgumentTypeError, "", [lambda value, model, _: sv.load(model, value)]),
    ([3, [3]], ArgumentTypeError, "", [resharded("filter")]),
    ([["a"], [("a", "b")], {1: "a"}, {"b": 2}], ArgumentTypeError, "names are strings|mapping",
     [resharded("rename"), lambda value, model, _: sv.diff(model, model, rename=value)]),
    ([3], ArgumentTypeError, "", [resharded("strip_prefix")]),
    ([5, {"b": [1]}, {3: "f4"}], ArgumentTypeError, "", [resharded("cast")]),
    ([{3: 2}], ArgumentTypeError, "", [resharded("partition")]),
    ([3, None], ArgumentTypeError, "", [lambda value, _, new: sv.reshard(value, new)]),
    (["int8", "floaty", "float8_e4m3fn"], ArgumentError, "is not a dtype of dequantized numbers",
     [lambda value, model, _: sv.load(model, dequantize=value)]),
    ([[]], ArgumentError, "no delta", [lambda value, model, new: sv.apply(model, value, new)]),
    ([True], ArgumentError, "no map", [lambda value, model, new: sv.delta(model, model, new, map_base=value)]),
]  # fmt: skip
"""Wrong values, the error that each call of them raises, and its words."""


@pytest.mark.parametrize(("values", "error", "words", "calls"), WRONG)
def test_an_argument_of_another_type_is_refused_before_anything_is_written(
    values: list[Any], error: type[Exception], words: str, calls: list[Call], model: Path
) -> None:
    """An empty text, such as that of an unset variable of a shell, is not the default."""
    for value, call in product(values, calls):
        with pytest.raises(error, match=words or None):
            call(value, model, model.parent / "new")
    assert not list(model.parent.glob("new*"))


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
        with pytest.raises(ArgumentTypeError):
            reader[0]  # type: ignore[index]


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
