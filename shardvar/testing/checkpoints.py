"""Strategies for checkpoints: names that paths and headers trip over, tensors under them, policies."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
from hypothesis import strategies as st

from shardvar.planning.policies import AllInOnePolicy, BalancedPolicy, MaxShardSizePolicy
from shardvar.testing.arrays import NUMBERS, arrays, string_arrays

Policy = AllInOnePolicy | BalancedPolicy | MaxShardSizePolicy

ODD_KEYS = (
    "a", "b", "w/b", "w/.ATTRIBUTES/VARIABLE_VALUE", "layer.0.weight", "é", "日本", "a b", "..", "../x", "/a", "a\\b",
    "A", "a.npy", ".", "-", "*", "[x]", "x" * 200, "\u0001", "🙂", "~", "key:0", "a/", "%s", "'", '"',
)  # fmt: skip
"""Names that are legal and that a path, a pattern, a header or an escape may trip over."""


def keys() -> st.SearchStrategy[str]:
    """Names of tensors: plain ones, odd ones, any text without surrogates and NULs; they shrink to ``"a"``."""
    text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
    return st.one_of(st.sampled_from(ODD_KEYS), text)


def checkpoints(
    dtypes: Sequence[str] = tuple(NUMBERS),
    strings: bool = False,
    max_size: int = 4,
    names: st.SearchStrategy[str] | None = None,
) -> st.SearchStrategy[dict[str, npt.NDArray[Any]]]:
    """What a checkpoint holds: a few named arrays of any kind; with ``strings`` object arrays of bytes among them.

    They shrink to fewer, smaller, plainer tensors under plainer names.
    """
    each = st.one_of(arrays(dtypes), string_arrays()) if strings else arrays(dtypes)
    return st.dictionaries(names or keys(), each, max_size=max_size)


def policies(max_nbytes: int = 200, max_files: int = 5) -> st.SearchStrategy[Policy]:
    """Policies that say which slices share a file; they shrink to one file for all."""
    return st.one_of(
        st.just(AllInOnePolicy()),
        st.builds(MaxShardSizePolicy, st.integers(1, max_nbytes)),
        st.builds(BalancedPolicy, st.integers(1, max_files)),
    )
