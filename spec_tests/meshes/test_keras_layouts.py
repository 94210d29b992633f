"""Layouts of Keras and of TensorFlow's DTensor: named shardings with one name an axis."""

import pytest

from shardvar.errors import ArgumentError, LayoutError
from shardvar.layout.meshes import (
    UNSHARDED,
    layouts_by_path,
    named_sharding,
    tensor_layout,
    tensorflow_dtensor,
)
from shardvar.layout.meshes.layout import Mesh

MESH = Mesh((2, 3), ("x", "y"))


def test_entries_are_those_of_a_named_sharding() -> None:
    for axes in ((), ("x",), (None, "y"), ("y", "x"), (None, None)):
        assert tensor_layout((6, 12), MESH, axes) == named_sharding((6, 12), MESH, axes)
        specs = [*(axis or UNSHARDED for axis in axes), *[UNSHARDED] * (2 - len(axes))]
        assert tensorflow_dtensor((6, 12), MESH, specs) == named_sharding((6, 12), MESH, axes)


def test_a_path_has_the_layout_of_the_one_key_that_matches_all_of_it() -> None:
    layout_map = {
        "dense": ("x",),
        "dense/kernel.*": ("y",),
        "dense/kernel_2": (None, "x"),
        ".*bias": ("x",),
    }
    paths = dict.fromkeys(
        ("dense", "dense/kernel", "dense/kernel_2", "a/bias", "dense/other"), (6, 12)
    )
    expected = [("x",), ("y",), (None, "x"), ("x",), ()]
    found = layouts_by_path(layout_map, MESH, paths)
    assert list(found.values()) == [named_sharding((6, 12), MESH, axes) for axes in expected]
    with pytest.raises(ArgumentError, match=r"\.\*bias"):
        layouts_by_path({**layout_map, "a.*": ()}, MESH, paths)
    with pytest.raises(ArgumentError, match="regular expression"):
        layouts_by_path({"(": ()}, MESH, paths)


def test_bad_entries_are_refused() -> None:
    for call, error in (
        (lambda: tensor_layout((6, 6), MESH, (("x", "y"),)), ArgumentError),  # type: ignore[arg-type]
        (lambda: tensor_layout((6, 6), MESH, "xy"), ArgumentError),
        (lambda: tensor_layout((6, 6), MESH, ("x", "x")), ArgumentError),
        (lambda: tensor_layout((6, 6), MESH, ("z",)), ArgumentError),
        (lambda: tensor_layout((7, 6), MESH, ("x",)), LayoutError),
        (lambda: tensorflow_dtensor((6, 6), MESH, ["x"]), ArgumentError),
        (lambda: tensorflow_dtensor((6, 6), MESH, ["x", None]), ArgumentError),  # type: ignore[list-item]
        (lambda: tensorflow_dtensor((6, 7), MESH, ["x", "y"]), LayoutError),
    ):
        with pytest.raises(error) as caught:
            call()
        assert caught.value.remedy
