"""TensorFlow's options: those that mean something are obeyed, the others are refused by name."""

from pathlib import Path
from typing import Any

import pytest

import shardvar as sv
from shardvar.errors import ArgumentError, ArgumentTypeError


def checkpoint() -> sv.Checkpoint:
    return sv.Checkpoint(w=sv.Variable([1.0, 2.0, 3.0, 4.0]))


def test_the_callback_of_the_options_is_the_policy(tmp_path: Path) -> None:
    """R-POLICY-18 (RFC 001): "an `experimental_sharding_callback` option to
    `CheckpointOptions`"."""
    policy = sv.MaxShardSizePolicy(8)
    options = sv.CheckpointOptions(experimental_sharding_callback=policy)
    by_options = checkpoint().write(tmp_path / "a", options=options)
    by_policy = checkpoint().write(tmp_path / "b", policy=policy)
    assert by_options.file_nbytes == by_policy.file_nbytes
    assert by_options.description == policy.description


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("experimental_io_device", "/job:localhost"),
        ("enable_async", True),
        ("experimental_write_callbacks", [print]),
        ("experimental_skip_slot_variables", True),
    ],
)
def test_an_option_without_a_meaning_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=name):
        sv.CheckpointOptions(**{name: value})


def test_options_with_the_defaults_of_tensorflow_are_accepted(tmp_path: Path) -> None:
    options = sv.CheckpointOptions(
        experimental_io_device=None,
        enable_async=False,
        experimental_write_callbacks=None,
        experimental_skip_slot_variables=False,
    )
    assert checkpoint().write(tmp_path / "m", options=options).num_tensors == 2


def test_a_policy_is_given_once(tmp_path: Path) -> None:
    options = sv.CheckpointOptions(experimental_sharding_callback=sv.AllInOnePolicy())
    with pytest.raises(ArgumentError, match="twice"):
        checkpoint().write(tmp_path / "m", policy=sv.AllInOnePolicy(), options=options)


@pytest.mark.parametrize("callback", [sv.AllInOnePolicy, lambda shardable_tensors: [], "one file"])
def test_what_is_no_policy_is_refused_before_anything_is_saved(callback: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="is (?:a class, )?not a policy"):
        sv.CheckpointOptions(experimental_sharding_callback=callback)


def test_options_stand_where_tensorflow_has_them_in_reading_too(tmp_path: Path) -> None:
    """``write(path, options)``, ``read(path, options)``, ``restore(path, options)``; another value
    is refused."""
    objects = checkpoint()
    objects.write(tmp_path / "m", sv.CheckpointOptions())
    objects.read(tmp_path / "m", sv.CheckpointOptions()).assert_consumed()
    objects.restore(tmp_path / "m", sv.CheckpointOptions()).assert_consumed()
    fast: Any = "fast"
    for verb in (objects.write, objects.read, objects.restore):
        with pytest.raises(ArgumentTypeError, match="are not options"):
            verb(tmp_path / "m", fast)
