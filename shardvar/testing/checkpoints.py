"""Strategies for checkpoints: tensors, names that break naive paths, and policies."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
from hypothesis import strategies as st

from shardvar.layout.dtypes import numpy_dtype
from shardvar.planning.policies import AllInOnePolicy, BalancedPolicy, MaxShardSizePolicy
from shardvar.testing.arrays import NUMBERS, arrays, bits, string_arrays
from shardvar.testing.geometry import layouts

Policy = AllInOnePolicy | BalancedPolicy | MaxShardSizePolicy

# ``a`` comes first, since ``sampled_from`` shrinks to its first element. ``a`` and ``A`` may be one
# file.
ODD_KEYS = (
    "a", "b", "w/b", "w/.ATTRIBUTES/VARIABLE_VALUE", "layer.0.weight", "é", "日本", "a b", "..", "../x", "/a", "a\\b",
    "A", "a.npy", ".", "-", "*", "[x]", "x" * 200, "\u0001", "🙂", "~", "key:0", "a/", "%s", "'", '"',
)  # fmt: skip
"""Legal names that break naive handling of paths, patterns, headers or escapes."""


def keys() -> st.SearchStrategy[str]:
    """Return names of tensors: plain, odd, any text without surrogates and NULs.

    Returns
    -------
    SearchStrategy of str
        The strategy. Names shrink to ``"a"``.
    """
    text = st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12
    )
    return st.one_of(st.sampled_from(ODD_KEYS), text)


def checkpoints(
    dtypes: Sequence[str] = tuple(NUMBERS),
    strings: bool = False,
    max_size: int = 4,
    names: st.SearchStrategy[str] | None = None,
) -> st.SearchStrategy[dict[str, npt.NDArray[Any]]]:
    """Return the content of a checkpoint: a few named arrays of any kind.

    Parameters
    ----------
    dtypes : sequence of str, optional
        The names of the dtypes; one of each kind by default.
    strings : bool, default False
        Also draw object arrays of bytes.
    max_size : int, default 4
        The most arrays.
    names : SearchStrategy of str, optional
        The names, by ``keys`` if not given.

    Returns
    -------
    SearchStrategy of dict of str to ndarray
        The strategy. Contents shrink to fewer, smaller, plainer tensors under plainer names.
    """
    each = st.one_of(arrays(dtypes), string_arrays()) if strings else arrays(dtypes)
    return st.dictionaries(keys() if names is None else names, each, max_size=max_size)


@st.composite
def sharded_checkpoints(
    draw: st.DrawFn, dtypes: Sequence[str] = tuple(NUMBERS), max_shards: int = 13
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, list[int]]]:
    """Draw named arrays and the rows of the shards of each, by ``layouts``: uneven, empty, more
    than ten.

    Parameters
    ----------
    dtypes : sequence of str, optional
        The names of the dtypes; one of each kind by default.
    max_shards : int, default 13
        The most shards of an array.

    Returns
    -------
    SearchStrategy of tuple
        The strategy of pairs: the arrays by name, and lists of rows by name. They shrink to one
        array without rows.
    """
    tensors, sizes = {}, {}
    for key in draw(st.lists(keys(), min_size=1, max_size=3, unique=True)):
        sizes[key] = draw(layouts(max_shards))
        shape = (sum(sizes[key]), *draw(st.sampled_from([(), (2,), (0,)])))
        tensors[key] = draw(bits(numpy_dtype(draw(st.sampled_from(list(dtypes)))), shape))
    return tensors, sizes


def policies(max_nbytes: int = 200, max_files: int = 5) -> st.SearchStrategy[Policy]:
    """Return policies, which decide the slices that share a file.

    Parameters
    ----------
    max_nbytes : int, default 200
        The largest limit of a file, in bytes.
    max_files : int, default 5
        The most files of a balanced policy.

    Returns
    -------
    SearchStrategy of policy
        The strategy. Policies shrink to one file for all.
    """
    return st.one_of(
        st.just(AllInOnePolicy()),
        st.builds(MaxShardSizePolicy, st.integers(1, max_nbytes)),
        st.builds(BalancedPolicy, st.integers(1, max_files)),
    )
