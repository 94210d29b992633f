"""Pickles read as inert nodes: the same values as Python's reader gives, and nothing run, whatever
a pickle says."""

import collections
import copyreg
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import MalformedCheckpoint, ShardvarError
from shardvar.limits import MAX_NESTING
from shardvar.wire.opcode_writer import Call, Instance, build_pickle
from shardvar.wire.pickle import parse_pickle
from shardvar.wire.plain import Global, Node, Reference
from spec_tests.helpers.paths import GOLDEN

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


def nested(scalars: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw scalars, and lists, tuples and dicts of values."""
    keys = st.text() | st.integers() | st.tuples(st.text(), st.integers())
    return st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.lists(inner, max_size=5).map(tuple)
            | st.dictionaries(keys, inner, max_size=4)
        ),
        max_leaves=20,
    )


VALUES = nested(SCALARS | st.binary())


@given(VALUES, st.integers(2, 5))
def test_plain_values_are_what_python_reads(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert parse_pickle(data) == (value, len(data))


class Slice:
    """Stands for the classes of an index: an instance has a dict of a few attributes."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class Size(tuple[int, ...]):
    """Stands for ``torch.Size``."""

    def __reduce__(self) -> Any:
        return (Size, (tuple(self),))


class Constants:
    """Stands for the properties of a tensor: an instance has a tuple."""

    def __init__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def __reduce__(self) -> Any:
        return (copyreg.__newobj__, (Constants,), self.state)  # type: ignore[attr-defined]


NUMBERS = st.integers(0, 300) | st.integers(-5, 2**47)
FIELDS = (
    NUMBERS
    | st.text(max_size=3)
    | st.just("é\x94")
    | st.lists(NUMBERS, max_size=5).map(Size)
    | st.none()
)
INSTANCES = st.dictionaries(
    st.sampled_from(["fqn", "offset", "length", "x\x94"]), FIELDS, max_size=4
).map(Slice)


def slices(*names: str) -> Any:
    """A function from a tuple of values to an instance that has them, in order, under these
    names."""
    return lambda values: Slice(dict(zip(names, values, strict=True)))


REGIONS = st.tuples(FIELDS, FIELDS).map(slices("offset", "fqn"))
CONSTANTS = st.tuples(*[st.sampled_from([True, False, None, "fqn", Slice])] * 5).map(Constants)
TENSORS = st.tuples(CONSTANTS, FIELDS, st.lists(REGIONS, min_size=1, max_size=2)).map(
    slices("x", "length", "parts")
)


def as_torch(data: bytes) -> bytes:
    """A pickle in which the stand-in for ``torch.Size`` has its name."""
    module, name = __name__.encode(), b"Size"
    return data.replace(
        b"\x8c" + bytes([len(module)]) + module + b"\x94\x8c\x04" + name,
        b"\x8c\x05torch\x94\x8c\x04Size",
    )


SIZES = st.lists(st.integers(0, 300), max_size=3).map(tuple)


def shown(value: Any) -> Any:
    """A tree of nodes as plain values, with the names and the parts of each."""
    if isinstance(value, Node):
        return ("node", value.name, shown(value.args), shown(value.state), shown(value.items))
    if isinstance(value, Global):
        return ("global", value.name)
    if isinstance(value, Reference):
        return ("reference", shown(value.value))
    if isinstance(value, dict):
        return ("dict", [(shown(key), shown(each)) for key, each in value.items()])
    if isinstance(value, list | tuple):
        return type(value)(map(shown, value))
    return type(value), value


@given(
    st.lists(INSTANCES, max_size=8) | st.lists(TENSORS, min_size=3, max_size=6), st.integers(2, 5)
)
def test_the_fast_path_gives_what_the_opcodes_give(instances: list[Slice], protocol: int) -> None:
    """Repeated, so that classes, names and sizes are references to the memo, as in an index."""
    data = pickle.dumps([*instances, *instances[:2], [vars(each) for each in instances]], protocol)
    if protocol > 2 and data[2:3] == b"\x95":  # the frame's length changes with the name
        data = data[:2] + as_torch(data[11:])
    fast, slow = parse_pickle(data), parse_pickle(data, fast=False)
    assert shown(fast[0]) == shown(slow[0]) and fast[1] == slow[1]


@given(st.lists(st.tuples(SIZES, SIZES), max_size=8))
def test_sizes_that_are_one_value_are_read_alike_by_both_paths(
    pairs: list[tuple[Any, Any]],
) -> None:
    """As shardvar writes an index: a size that came before is a reference, also to one of the same
    instance."""
    calls = [[Call("torch.Size", (size,)) for size in pair] for pair in pairs]
    data = build_pickle(
        [Instance("m.Slice", {"offsets": one, "sizes": other}) for one, other in calls], 4
    )
    fast, slow = parse_pickle(data), parse_pickle(data, fast=False)
    assert shown(fast[0]) == shown(slow[0])
    assert [tuple(node.state.values()) for node in fast[0]] == pairs


@pytest.mark.parametrize("fast", [True, False])
def test_what_an_unusual_instance_began_is_forgotten(fast: bool) -> None:
    """Two instances refer to a third one by the same bytes; it looks usual up to a call in it."""
    new, references = b")\x81\x94", b"(h\x04h\x03\x88\x89Nt\x94b"
    names = b"\x8c\x01m\x94\x8c\x01C\x94\x93\x94\x8c\x01x\x94"  # 'm', 'C', m.C, 'x'
    call = b"h\x02K\x01\x85\x94\x85\x94R\x94"
    item = b"h\x02" + new + b"}\x94(h\x00K\x01h\x03K\x02ub"
    state = b"h\x03h\x02" + new + references + b"h\x00" + call + b"h\x01]\x94" + item + b"a"
    third = b"h\x02" + new + b"}\x94(" + state + b"ub"
    data = b"\x80\x04(" + names + third + b"h\x02" + new + references + b"t."
    *_, made, other = parse_pickle(data, fast=fast)[0]
    assert made.state["x"].state[0] is made and other.state[0] is made
    assert list(made.state) == ["x", "m", "C"]


@given(st.sampled_from(sorted(GOLDEN.glob("torch_dcp/*/ckpt/.metadata"))), st.data())
def test_an_index_by_torch_changed_or_not_is_read_alike_by_both_paths_or_refused(
    path: Path, data: st.DataObject
) -> None:
    """No error but shardvar's own, whatever byte changes."""
    octets = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    found = []
    for fast in (True, False):
        try:
            found.append(shown(parse_pickle(bytes(octets), fast=fast)[0]))
        except (ShardvarError, RecursionError) as error:
            found.append(type(error))
    assert repr(found[0]) == repr(found[1])  # as text, since NaN is not equal to itself


def test_what_would_be_called_is_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    class Runs:
        def __reduce__(self) -> Any:
            return (os.system, ("touch SHARDVAR_MARKER",))

    for protocol in range(2, 6):
        (node,), _ = parse_pickle(pickle.dumps([Runs()], protocol))
        assert (
            isinstance(node, Node)
            and str(node.name).endswith(".system")
            and node.args == ("touch SHARDVAR_MARKER",)
        )
    assert list(tmp_path.iterdir()) == []


def test_a_name_may_be_refused_before_it_is_a_node() -> None:
    seen: list[str] = []
    parse_pickle(pickle.dumps([collections.OrderedDict, os.getcwd], 4), check=seen.append)
    assert seen == ["collections.OrderedDict", f"{os.getcwd.__module__}.getcwd"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04",
        b"\x80\x04.",
        b"\x80\x00N.",
        b"\x80\x04NN.",
        b"\x80\x04(N.",
        b"\x80\x04\x95" + struct.pack("<Q", 2**60) + b"N.",
        b"\x80\x04\x8d" + struct.pack("<Q", 2**60) + b".",
        b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b".",
        b"\x80\x04\x8b" + struct.pack("<I", 2**31 - 1) + b".",
        b"\x80\x02Nr" + struct.pack("<I", 2**31 - 1) + b".",
        b"\x80\x02Nq\x05.",
        b"\x80\x04h\x00.",
        b"\x80\x04\x94N.",
        b"\x80\x04N\x85\x85\x86.",
        b"\x80\x04Nb.",
        b"\x80\x04N}\x94(b.",
        b"\x80\x04]Nu.",
        b"\x80\x04}(Nu.",
        b"\x80\x04}(]Nu.",
        b"\x80\x04}(N" + b"\x85" * 65 + b"Nu.",
        b"\x80\x04}(N" + b"\x94h\x00\x86\x94h\x01\x86\x94h\x02\x86" + b"2\x86" * 8 + b"Nu.",
        b"\x80\x04\x8c\x02\xff\xff.",
        b"\x80\x04K\x01K\x02\x93.",
        b"\x80\x04cposix\nsystem",
        b"\x80\x02(cposix\nsystem\nX\x00\x00\x00\x00o.",
        b"\x80\x02(iposix\nsystem\n.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02P0\n.",
        b"\x80\x02I1\n.",
    ],
)
def test_a_damaged_or_unusual_pickle_is_refused(data: bytes) -> None:
    for fast in (True, False):
        with pytest.raises(MalformedCheckpoint):
            parse_pickle(data, fast=fast)


@pytest.mark.parametrize("fast", [True, False])
def test_what_python_takes_as_a_key_is_one(fast: bool) -> None:
    """Names, calls and tuples of tuples too; one key that is unusual does not make a file
    unreadable."""
    (name,) = parse_pickle(b"\x80\x02}ctorch\nfloat32\nK\x01s.", fast=fast)[0]
    assert isinstance(name, Global) and name.name == "torch.float32"
    key = ((1, ("a", None)), b"b", 2.5, ())
    assert parse_pickle(pickle.dumps({key: 1}), fast=fast)[0] == {key: 1}
    ((_, node),) = parse_pickle(pickle.dumps({(1, frozenset({2})): 1}), fast=fast)[0]
    assert isinstance(node, Node)


def test_a_state_is_set_once() -> None:
    once = b"\x80\x04cm\nC\n)\x81}b"
    assert isinstance(parse_pickle(once + b".")[0], Node)
    with pytest.raises(MalformedCheckpoint):
        parse_pickle(once + b"}b.")


@pytest.mark.parametrize("opening", [b"(", b"(]", b"]\x94", b"N\x85", b"]a"])
def test_depth_is_no_danger(opening: bytes) -> None:
    """200,000 levels: read or refused, and given back without a recursion."""
    try:
        value, _ = parse_pickle(b"\x80\x04N" + opening * 200_000 + b".")
    except MalformedCheckpoint:
        return
    assert isinstance(value, list | tuple)


def test_laughs_cost_nothing() -> None:
    """Fifty lists, each of which holds the one before it ten times."""
    data = b"\x80\x02]q\x00"
    for number in range(1, 50):
        data += b"](" + (b"h" + bytes([number - 1])) * 10 + b"eq" + bytes([number])
    value, _ = parse_pickle(b"\x80\x02(" + data[2:] + b"l.")
    assert isinstance(value, list)


@pytest.mark.parametrize("depth", [99, 100, 101, 100_000])
def test_unfinished_values_are_in_each_other_as_deep_as_the_limit_says(depth: int) -> None:
    """Golden pickles have at most 9; without a limit each takes memory before anything is known."""
    data = b"\x80\x02" + b"(" * depth + b"t" * depth + b"."
    if depth <= MAX_NESTING:
        assert parse_pickle(data)[1] == len(data)
    else:
        with pytest.raises(MalformedCheckpoint, match="MAX_NESTING"):
            parse_pickle(data)
