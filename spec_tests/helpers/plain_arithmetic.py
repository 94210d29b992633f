"""Arithmetic of maps by its definition: whole arrays, one operation after the other, in float64.

A tree has an array for each tensor, with an axis for each letter of ``NAMES``, of extent 1 if the
tensor does not have the index. Random trees come with their text.
"""

from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st

NAMES = "abcd"
EXTENTS = (2, 3, 1, 4)
Value = tuple[Any, set[str]]
"""A fraction, or an array with an axis for each name; and the names of indices that it has."""


def plain(tree: Any, kept: set[str]) -> Value:
    """Return the value of a tree; indices that are not kept are summed over in products."""
    word, *parts = tree
    if word == "tensor":
        return parts[1].astype(np.float64), set(parts[2])
    if word == "number":
        return parts[0], set()
    if word in ("sum", "mean"):
        array, names = plain(parts[1], kept | {parts[0]})
        axis = NAMES.index(parts[0])
        total = added([np.take(array, [n], axis) for n in range(EXTENTS[axis])])
        return total / (EXTENTS[axis] if word == "mean" else 1), names - {parts[0]}
    if word in ("abs", "sqrt"):
        array, names = plain(parts[0], kept)
        return (np.abs(array) if word == "abs" else np.sqrt(np.abs(array))), names
    values = [(sign, *plain(part, kept)) for sign, part in parts[0]]
    names = set().union(*(each for *_, each in values))
    if word == "+":
        arrays = [
            (sign, np.float64(value) if isinstance(value, Fraction) else value)
            for sign, value, _ in values
        ]
        total = -arrays[0][1] if arrays[0][0] < 0 else arrays[0][1]
        for sign, array in arrays[1:]:
            total = total + array if sign > 0 else total - array
        return total, names
    number = Fraction(1)
    for sign, value, _ in values:
        if isinstance(value, Fraction):
            number = number * value if sign > 0 else number / value
    factors = [(sign, value, its) for sign, value, its in values if not isinstance(value, Fraction)]
    order = [name for *_, its in factors for name in its]
    summed = [n for n in parts[1] if n not in kept and order.count(n) > 1]
    terms = []
    for at in np.ndindex(*(EXTENTS[NAMES.index(name)] for name in summed)):
        term = None
        for sign, array, its in factors:
            for name, n in zip(summed, at, strict=True):
                array = np.take(array, [n], NAMES.index(name)) if name in its else array
            if term is None:
                term = array if sign > 0 else 1 / array
            else:
                term = term * array if sign > 0 else term / array
        terms.append(term)
    total = added(terms)
    if number != 1:
        is_part = number.numerator == 1
        total = total / float(number.denominator) if is_part else total * float(number)
    return total, names - set(summed)


def added(terms: Any) -> Any:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


@st.composite
def expressions(draw: st.DrawFn) -> tuple[str, dict[str, Any], Any, str]:
    """A rule, its tensors, its target in float64, and the dtype of the target."""
    arrays: dict[str, Any] = {}
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    dtypes = ["float32", "float16", "float64", "bfloat16"]

    def tensor() -> tuple[Any, str, list[str]]:
        names = [n for n in draw(st.permutations(NAMES)) if draw(st.booleans())]
        shape = [EXTENTS[NAMES.index(n)] for n in names]
        key, dtype = f"t{len(arrays)}.w", draw(st.sampled_from(dtypes))
        array = rng.standard_normal(shape).astype(_dtype(dtype))
        arrays[key] = array
        order = sorted(names)
        full = array.transpose([names.index(n) for n in order])
        full = full.reshape([EXTENTS[k] if n in names else 1 for k, n in enumerate(NAMES)])
        return ("tensor", key, full, names), f"{key}[{' '.join(names)}]", names

    def number() -> tuple[Any, str, list[str]]:
        text = draw(st.sampled_from(["2", "1/3", "0.1", "-3", "0.75"]))
        return ("number", Fraction(text)), text, []

    def some(depth: int) -> tuple[Any, str, list[str]]:
        kind = (
            draw(st.sampled_from(["tensor", "+", "*", "*", "abs", "sqrt"])) if depth else "tensor"
        )
        if kind == "tensor":
            return tensor()
        if kind in ("abs", "sqrt"):
            tree, text, names = some(depth - 1)
            text = f"sqrt(abs({text}))" if kind == "sqrt" else f"abs({text})"
            return (kind, tree), text, names
        parts = [some(depth - 1) for _ in range(draw(st.integers(1, 3)))]
        parts[draw(st.integers(0, 1)) : 0] = [number()] if draw(st.booleans()) else []
        signs = [1, *(draw(st.sampled_from([1, 1, -1])) for _ in parts[1:])]
        marks = {1: " + ", -1: " - "} if kind == "+" else {1: " * ", -1: " / "}
        texts = [f"({t})" if tree[0] in "+*" else t for tree, t, _ in parts]
        text = "".join(
            [texts[0], *(marks[s] + t for s, t in zip(signs[1:], texts[1:], strict=True))]
        )
        names = list(dict.fromkeys(n for *_, its in parts for n in its))
        trees = tuple((s, tree) for s, (tree, *_) in zip(signs, parts, strict=True))
        if len(trees) == 1:
            return parts[0]
        return (kind, trees, names), text, names

    tree, text, names = some(draw(st.integers(1, 3)))
    kept = {n for n in names if draw(st.booleans())}
    while left := sorted(plain(tree, kept)[1] - kept):
        word = draw(st.sampled_from(["sum", "mean"]))
        tree, text = (word, left[0], tree), f"{word}({left[0]}: {text})"
    value, _ = plain(tree, kept)
    order = [n for n in draw(st.permutations(NAMES)) if n in kept]
    whole = np.broadcast_to(value, [EXTENTS[k] if n in kept else 1 for k, n in enumerate(NAMES)])
    axes = [sorted(kept).index(n) for n in order]
    whole = whole.reshape([EXTENTS[NAMES.index(n)] for n in sorted(kept)]).transpose(axes)
    dtype = draw(st.sampled_from(dtypes))
    return f"{text} -> out[{' '.join(order)}] as {dtype}", arrays, whole, dtype


def _dtype(name: str) -> Any:
    from shardvar.layout.dtypes import numpy_dtype

    return numpy_dtype(name)
