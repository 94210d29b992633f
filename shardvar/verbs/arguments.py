"""Arguments: check and convert the arguments of the verbs, so that a wrong type is an error of
shardvar.

Types are checked only here. What a value means is checked where it is used.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from shardvar.layout.dtypes import Array, code, dtype_name, numpy_dtype
from shardvar.pictures.words import similar
from shardvar.planning.index import OBJECTS

if TYPE_CHECKING:
    from shardvar.engine.arrays import LazyPayload


P = ParamSpec("P")
T = TypeVar("T")

_SPELLINGS = {
    "shards": "partition",
    "num_shards": "partition",
    "overwrite": "force",
    "dtype": "cast",
}
"""The arguments that names of the command line and of other libraries mean."""


def named_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Make an unknown keyword an error that names the argument that it may mean."""
    code = cast(FunctionType, function).__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    @wraps(function)
    def call(*given: P.args, **options: P.kwargs) -> T:
        for name in options:
            if name not in names:
                meant = [_SPELLINGS.get(name, ""), *similar(name, names)]
                near = next((f"Did you mean {each}=? " for each in meant if each in names), "")
                raise ArgumentTypeError(
                    f"{code.co_name}() has no argument {name!r}.",
                    f"{near}`help(shardvar.{code.co_name})` lists its arguments.",
                )
        return function(*given, **options)

    return call


def as_array(key: str, value: Any) -> Array:
    if type(value) is np.ndarray:
        array = value
    elif np.ma.isMaskedArray(value):
        raise UnsupportedError(
            f"{key!r} is a masked array, whose mask would be lost.",
            "Fill it, or also save the mask.",
        )
    else:
        try:
            array = np.asarray(without_torch(value))
        except UnsupportedError as error:
            raise error.at(repr(key)) from None
        except (TypeError, ValueError, RuntimeError) as error:  # the last is how PyTorch refuses
            raise ArgumentTypeError(
                f"{key!r} is a {type(value).__name__}, which NumPy cannot convert to an array: "
                f"{str(error).rstrip('.!')}.",
                "Give an array, or what NumPy makes one of.",
            ) from error
    if array.dtype.kind == "O" and array.ndim == 0 and not isinstance(value, np.ndarray):
        remedy = "Give arrays, and give each of several arrays its own key."
        if callable(value):
            remedy = "Give what it returns, or sv.lazy(shape, dtype, function) to call it later."
        raise ArgumentTypeError(f"{key!r} is a {type(value).__name__}, not an array.", remedy)
    if array.dtype.kind == "S" and not isinstance(value, np.ndarray):
        array = np.array(value, dtype=object)  # as S, bytes would lose their trailing NULs
    # Such a bool comes from a view of other bytes. It would be written as it is, and every load
    # would refuse it.
    if array.dtype == np.bool and array.size and array.view(np.uint8).max() > 1:
        raise ArgumentError(
            f"{key!r} is of dtype bool and holds bytes other than 0 and 1.",
            "Make it from numbers with astype(bool).",
        )
    return array


def without_torch(value: Any) -> Any:
    """PyTorch does not convert tensors with a gradient, or of dtypes of ``ml_dtypes``."""
    # Looked up, not imported: a program that has a tensor has imported PyTorch already.
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    # PyTorch keeps conjugation and negation as flags of a view; once resolved, the memory holds the
    # values.
    tensor = value.detach().cpu().resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    if hasattr(np, name):
        return tensor.numpy()
    code(name)  # refuses float4_e2m1fn_x2 and quantized types, which only PyTorch has
    bits = tensor.contiguous().view({1: torch.uint8, 2: torch.int16}[tensor.element_size()])
    return bits.numpy().view(numpy_dtype(name))


def stored_dtype(key: str, array: "Array | LazyPayload") -> str:
    """``UnsupportedError`` has the key."""
    try:
        name = dtype_name(array.dtype)
        code(name)
    except UnsupportedError as error:
        raise error.at(repr(key)) from None
    return name


def check_mapping(value: Any, what: str) -> None:
    if not isinstance(value, Mapping):
        raise ArgumentTypeError(
            f"A {type(value).__name__} is not a mapping from {what}.", "Give a dict."
        )


def check_globs(value: Any, what: str) -> None:
    check_mapping(value, what)
    for glob in value:
        check_string(glob, "globs")


def check_policy(policy: Any) -> None:
    if policy is None:
        return
    # A class is callable, and would pass for a policy below.
    if isinstance(policy, type):
        raise ArgumentTypeError(
            f"{policy!r} is a class, not a policy.", f"Give an instance, {policy.__name__}(...)."
        )
    decides = callable(policy) or callable(getattr(policy, "assign", None))
    if not decides or not isinstance(getattr(policy, "description", None), str):
        raise ArgumentTypeError(
            f"{policy!r} is not a policy.",
            "Give one such as MaxShardSizePolicy(64 * 10**6), or a callable with a text for its "
            "`description`.",
        )


def texts_of(metadata: Any) -> dict[str, str]:
    if metadata is None:
        return {}
    check_mapping(metadata, "text to text")
    for name, text in metadata.items():
        if not (isinstance(name, str) and isinstance(text, str)):
            raise ArgumentTypeError(
                f"The metadata have {text!r} for {name!r}.", "Give text for text."
            )
        try:
            # Lone surrogates are text in Python, but cannot be encoded as UTF-8.
            (name + text).encode()
        except UnicodeEncodeError:
            raise ArgumentError(
                f"The metadata {name!r}: {text!r} are not valid Unicode.", "Give other text."
            ) from None
    from shardvar.wire.digests import DIGESTS  # of a write

    kept = {OBJECTS: ("objects", ""), DIGESTS: ("digests", ", or save with digest=True (--digest)")}
    for name in filter(kept.__contains__, metadata):
        what, remedy = kept[name]
        cause = f"The metadata have the name {name!r}, under which formats keep {what}."
        raise ArgumentError(cause, f"Give it another name{remedy}.")
    return dict(metadata)


def strings_of(values: str | Iterable[str], what: str) -> list[str]:
    """Return one string or several as a list, each once, in order."""
    # Text is iterable: "abc" would become three strings, and b"abc" three numbers, which the error
    # would then quote.
    try:
        strings = list(dict.fromkeys([values] if isinstance(values, str | bytes) else values))
    except TypeError:
        raise ArgumentTypeError(
            f"{values!r} is neither one of the {what} nor several.", "Give strings."
        ) from None
    for each in strings:
        check_string(each, what)
    return strings


def check_progress(progress: Any) -> None:
    if not callable(progress):
        raise ArgumentTypeError(
            f"progress is {progress!r}.",
            "Give a function of a number of bytes, or leave the argument out.",
        )


def check_string(value: Any, what: str) -> None:
    if not isinstance(value, str):
        raise ArgumentTypeError(
            f"{value!r} has the type {type(value).__name__}, and the {what} are strings.",
            "Give a string.",
        )
