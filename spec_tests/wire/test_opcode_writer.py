"""Pickles that are written: Python reads the value from them, the inert reader reads it too, and
bytes never vary."""

import pickle
from pathlib import PurePosixPath
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shardvar.wire.opcode_writer import Call, Instance, build_pickle
from shardvar.wire.pickle import parse_pickle
from shardvar.wire.plain import Global, Node, Reference
from spec_tests.wire.test_pickle import SCALARS, nested

VALUES = nested(SCALARS)


@given(VALUES, st.sampled_from([2, 4]))
def test_plain_values_are_what_both_readers_read(value: Any, protocol: int) -> None:
    data = build_pickle(value, protocol)
    assert pickle.loads(data) == value
    assert parse_pickle(data) == (value, len(data))


powers = st.builds(
    lambda sign, bits, step: sign * 2**bits + step,
    st.sampled_from([-1, 1]),
    st.integers(0, 70),
    st.integers(-1, 1),
)


@given(st.integers(-(2**70), 2**70) | powers)
def test_an_integer_is_written_as_python_writes_it(number: int) -> None:
    assert build_pickle(number) == pickle.dumps(number, 2)


def test_calls_instances_and_references_are_what_python_makes_of_them() -> None:
    assert pickle.loads(build_pickle(Call("pathlib.PurePosixPath", ("a", "b")))) == PurePosixPath(
        "a/b"
    )
    assert pickle.loads(build_pickle(Global("builtins.complex"))) is complex
    made = pickle.loads(build_pickle([Instance(f"{__name__}.Attributes", {"size": (2, 3)})]))
    assert type(made[0]) is Attributes and vars(made[0]) == {"size": (2, 3)}


class Attributes:
    """Stands for a class of an index."""


def test_calls_instances_and_references_are_read_as_nodes() -> None:
    made, _ = parse_pickle(
        build_pickle(
            [Call("a.b", (1, "t")), Instance("a.C", {"x": Global("a.d")}), Reference((2,))]
        )
    )
    call, instance, reference = made
    assert type(call) is type(instance) is Node and type(reference) is Reference
    assert (call.name, call.args, instance.name, instance.args) == ("a.b", (1, "t"), "a.C", ())
    assert instance.state["x"].name == "a.d" and reference.value == (2,)


def test_texts_and_names_that_come_again_are_written_once() -> None:
    """Also beyond the 256 that have short numbers; a text and a name of the same spelling are two
    things."""
    texts = [f"text {number}" for number in range(300)]
    data = build_pickle([*texts, *texts, "a.b", Global("a.b"), Global("a.b")])
    assert (
        all(data.count(text.encode() + b"q") <= 1 for text in texts) and data.count(b"ca\nb\n") == 1
    )
    value, _ = parse_pickle(data)
    assert (
        value[:600] == texts * 2
        and value[600] == "a.b"
        and value[601].name == value[602].name == "a.b"
    )


def test_protocol_4_writes_calls_and_names_once_too() -> None:
    """Python makes one object of them; the bytes of an index with many equal sizes stay few."""
    data = build_pickle(
        [Call("pathlib.PurePosixPath", ("a", "b"))] * 3 + [b"\xff", Global("builtins.int")], 4
    )
    first, second, third, octets, name = pickle.loads(data)
    assert (
        first is second is third
        and first == PurePosixPath("a/b")
        and (octets, name) == (b"\xff", int)
    )
    assert data.count(b"PurePosixPath") == 1


@given(VALUES)
def test_equal_values_have_equal_bytes(value: Any) -> None:
    """Whether parts of them are one object or several; Python's writer tells these apart."""
    assert build_pickle([value, pickle.loads(pickle.dumps(value))]) == build_pickle([value, value])
