"""Plain values and their encoding: round trips, an oracle written from the page, hostile texts."""

import base64
import io
import json
import math
import pickle
import re
import struct
from argparse import Namespace
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import CheckpointError, InvalidCheckpoint, ShardvarError, UnsupportedError
from shardvar.formats.torch.values import pickled_of, plain_of
from shardvar.wire.opcode_writer import build_pickle
from shardvar.wire.pickle import parse_pickle
from shardvar.wire.plain import (
    MAX_DEPTH,
    NUMPY_NAMES,
    Global,
    Node,
    OrderedMap,
    Size,
    Tagged,
    build_objects,
    decode_value,
    encode_value,
    literal_of,
    parse_objects,
    set_items,
    value_of_node,
)


def as_tagged(array: Any) -> Tagged:
    """Return an array of NumPy as a plain value."""
    octets = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
    return Tagged("numpy.ndarray", (array.dtype.name, array.shape, octets))


FLOATS = {64: np.float64, 32: np.float32, 16: np.float16}
INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
numpy_scalars = st.one_of(
    *(st.integers(int(np.iinfo(kind).min), int(np.iinfo(kind).max)).map(kind) for kind in INTEGERS),
    *(st.floats(width=width).map(kind) for width, kind in FLOATS.items()),
    st.complex_numbers().map(np.complex128), st.booleans().map(np.bool), st.text("añ✓", min_size=1).map(np.str_),
    st.binary(min_size=1).filter(lambda each: each[-1]).map(np.bytes_),
)  # fmt: skip
floats = st.floats() | st.integers(0, 2**64 - 1).map(
    lambda bits: struct.unpack(">d", struct.pack(">Q", bits))[0]
)
numpy_arrays = st.tuples(
    st.sampled_from(["bool", "int8", "uint32", "float16", "float64", "complex64"]),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 255),
).map(lambda drawn: as_tagged(np.full(drawn[1], drawn[2]).astype(drawn[0])))
texts = st.text(st.characters(categories=None), max_size=5)
integers = st.integers() | st.integers(-(2**70), 2**70) | st.integers(0, 2**3000)
atoms = st.one_of(
    st.none(), st.booleans(), integers, floats, texts, st.binary(max_size=5), st.complex_numbers(),
    st.binary(max_size=4).map(bytearray), numpy_scalars,
    st.sampled_from(["float32", "bfloat16", "int4", "float8_e4m3fn"]).map(lambda name: Tagged("torch.dtype", name)),
    texts.map(lambda text: Tagged("text", text)),
    numpy_arrays,
    st.sampled_from([("cpu",), ("cuda", 3)]).map(lambda device: Tagged("torch.device", device)),
)  # fmt: skip
keys = texts | st.integers() | st.tuples(st.text(max_size=2), st.booleans()) | st.none()


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, max_size=3)
    pairs = st.dictionaries(keys, inner, max_size=3)
    return st.one_of(
        several, several.map(tuple), several.map(Size), pairs, pairs.map(OrderedMap),
        several.map(lambda each: Tagged("set", each)), several.map(lambda each: Tagged("frozenset", each)),
        st.dictionaries(texts, inner, max_size=3).map(lambda each: Tagged("argparse.Namespace", each)),
    )  # fmt: skip


values = st.recursive(atoms, containers, max_leaves=8)


def oracle(value: Any) -> Any:
    """A value as JSON, written from the table of docs/format.md and not from the code."""
    many = {tuple: "tuple", Size: "torch.Size"}
    maps = {dict: "dict", OrderedMap: "OrderedDict"}
    kind = type(value)
    if value is None or kind is bool or (kind is int and abs(value) < 2**53):
        return value
    if kind is int:
        return {"int": ("-" if value < 0 else "") + f"0x{abs(value):x}"}
    if kind is float:
        return {"float": oracle_float(value)}
    if kind is complex:
        return {"complex": [oracle_float(value.real), oracle_float(value.imag)]}
    if kind is str:
        if any(0xD800 <= ord(each) < 0xE000 for each in value):
            octets = value.encode("utf-8", "surrogatepass")
            return {"str": base64.standard_b64encode(octets).decode()}
        return value
    if kind in (bytes, bytearray):
        return {kind.__name__: base64.standard_b64encode(value).decode()}
    if kind is list:
        return [*map(oracle, value)]
    if kind in many:
        return {many[kind]: [*map(oracle, value)]}
    if kind in maps:
        return {maps[kind]: [[oracle(key), oracle(each)] for key, each in value.items()]}
    if kind is Tagged:
        held = value.value
        if value.kind == "numpy.ndarray":
            name, shape, octets = held
            return {value.kind: [name, [*shape], base64.standard_b64encode(octets).decode()]}
        if isinstance(held, dict):
            return {value.kind: [[oracle(key), oracle(each)] for key, each in held.items()]}
        return {value.kind: oracle(held) if isinstance(held, str) else [*map(oracle, held)]}
    if kind is np.str_:
        return {"numpy.str_": str(value)}
    if kind is np.bytes_:
        return {"numpy.bytes_": base64.standard_b64encode(value).decode()}
    order = {"b": "<?", "i": "<i", "u": "<u"}.get(value.dtype.kind, value.dtype.kind)
    size = value.dtype.itemsize
    octets = value.astype(f"<{order[-1]}{size}" if order != "<?" else bool).tobytes()
    return {f"numpy.{value.dtype}": octets.hex()}


def oracle_float(value: float) -> str:
    if math.isnan(value):
        octets = struct.pack(">d", value).hex()
        return "nan" if octets == "7ff8000000000000" else f"nan:{octets}"
    return repr(value)


@given(values)
def test_the_encoding_is_the_table_of_the_page_and_a_value_comes_back_with_its_types(
    value: Any,
) -> None:
    """From the text, and from a pickle. Equal texts stand for equal values, so that the texts of
    both are compared: NaN is not equal to itself."""
    text = encode_value(value)
    assert text.isascii() and text == json.dumps(oracle(value), separators=(",", ":"))
    again = decode_value(text)
    assert type(again) is type(value) and oracle(again) == oracle(value)
    assert literal_of(again) == literal_of(value)
    data = build_pickle(pickled_of(value))
    found = plain_of(parse_pickle(data, is_typed=True)[0])
    assert json.dumps(oracle(found)) == re.sub(
        r'\{"text": ("(?:[^"\\]|\\.)*"|\{"str": "(?:[^"\\]|\\.)*"\})\}',
        r"\1",
        json.dumps(oracle(value)),
    )


@given(st.dictionaries(texts, values, max_size=4))
def test_a_document_has_its_keys_sorted_and_its_values(objects: dict[str, Any]) -> None:
    text = build_objects({key: encode_value(value) for key, value in objects.items()})
    found = parse_objects(text)
    assert [*found] == sorted(objects)
    assert {key: oracle(value_of_node(node)) for key, node in found.items()} == {
        key: oracle(value) for key, value in objects.items()
    }


@given(values, st.data())
def test_a_changed_text_is_refused_or_is_the_encoding_of_another_value(
    value: Any, data: st.DataObject
) -> None:
    text = bytearray(encode_value(value), "ascii")
    text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 127))
    changed = text.decode()
    try:
        found = decode_value(changed)
    except (CheckpointError, UnsupportedError):
        return
    assert json.loads(encode_value(found)) == json.loads(changed)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_python_pickles_is_read_as_it_is(protocol: int) -> None:
    """By Python's own pickles: the class of each value is what Python saved."""
    saved = {
        "args": Namespace(lr=0.1, betas=(0.9, 0.99), tags=["a", None]),
        "lr": np.float64(0.25), "step": np.int64(-7), "flag": np.bool(True), "half": np.float16(1.5),
        "z": np.complex64(1 + 2j), "name": np.str_("é✓"), "raw": np.bytes_(b"ab"),
        "big": np.array(7, ">i4")[()], "ordered": OrderedDict([("b", 1), ("a", (2,))]),
        "set": {3}, "frozen": frozenset([4]), "array": bytearray(b"xy"), "complex": 2 - 1j, "huge": -(2**20_000),
    }  # fmt: skip
    root = parse_pickle(pickle.dumps(saved, protocol), is_typed=True)[0]
    assert {key: oracle(plain_of(each)) for key, each in root.items()} == {
        "args": {"argparse.Namespace": [
            ["lr", {"float": "0.1"}],
            ["betas", {"tuple": [{"float": "0.9"}, {"float": "0.99"}]}],
            ["tags", ["a", None]],
        ]},
        "lr": {"numpy.float64": "000000000000d03f"}, "step": {"numpy.int64": "f9ffffffffffffff"},
        "flag": {"numpy.bool": "01"}, "half": {"numpy.float16": "003e"},
        "z": {"numpy.complex64": "0000803f00000040"}, "name": {"numpy.str_": "é✓"},
        "raw": {"numpy.bytes_": "YWI="}, "big": {"numpy.int32": "07000000"},
        "ordered": {"OrderedDict": [["b", 1], ["a", {"tuple": [2]}]]},
        "set": {"set": [3]}, "frozen": {"frozenset": [4]}, "complex": {"complex": ["2.0", "-1.0"]},
        "array": {"bytearray" if protocol < 5 else "bytes": "eHk="},
        "huge": {"int": hex(-(2**20_000))},
    }  # fmt: skip


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_the_arrays_that_numpy_pickles_are_read_and_come_back(protocol: int) -> None:
    """Also ones in another order, of views, of big-endian elements, and states of generators."""
    table = np.arange(24).reshape(2, 3, 4)
    saved = {
        str(number): array
        for number, array in enumerate([
            table, table.T, np.asfortranarray(table[0]), table[:, ::2, 1], table.astype(">f4"),
            np.array(3.5), np.zeros((0, 3), np.float16), np.array([True, False]), table.astype(">c16").T,
        ])
    }  # fmt: skip
    for legacy in (
        np.random.RandomState(1).get_state(),
        np.random.default_rng(1).bit_generator.state,
    ):
        saved["state"] = legacy
        root = parse_pickle(pickle.dumps(saved, protocol), is_typed=True)[0]
        found = {key: plain_of(each) for key, each in root.items()}
        again = pickle.loads(build_pickle(pickled_of(found)))
        for key, array in saved.items():
            if key == "state":
                continue
            assert found[key] == as_tagged(array)
            assert again[key].dtype == array.dtype.newbyteorder("=")
            assert again[key].shape == array.shape and np.array_equal(again[key], array)
        assert str(again["state"]) == str(legacy)
        assert found == {key: decode_value(encode_value(each)) for key, each in found.items()}


class _Torch(pickle.Unpickler):
    """Python's reader of pickles, where torch's names stand for plain values."""

    def find_class(self, module: str, name: str) -> Any:
        stands = {"Size": lambda items: ("Size", items), "device": lambda *parts: ("device", parts)}
        return stands.get(name, name) if module == "torch" else super().find_class(module, name)


def test_what_is_written_is_read_by_python_as_what_it_was() -> None:
    value = {
        "args": Tagged("argparse.Namespace", {"lr": 0.1}), "lr": np.float64(0.25), "flag": np.bool(False),
        "half": np.float16(1.5), "name": np.str_("é✓"), "raw": np.bytes_(b"ab"), "ordered": OrderedMap({"b": 1}),
        "none": OrderedMap(), "set": Tagged("set", [3]), "frozen": Tagged("frozenset", [4]),
        "array": bytearray(b"xy"), "empty": bytearray(), "z": 2 - 1j, "huge": -(2**20_000),
        "size": Size([1, 2]), "dtype": Tagged("torch.dtype", "float32"), "device": Tagged("torch.device", ("cuda", 1)),
    }  # fmt: skip
    found = _Torch(io.BytesIO(build_pickle(pickled_of(value)))).load()
    expected = {
        "args": Namespace(lr=0.1), "lr": np.float64(0.25), "flag": np.bool(False), "half": np.float16(1.5),
        "name": np.str_("é✓"), "raw": np.bytes_(b"ab"), "ordered": OrderedDict(b=1), "none": OrderedDict(),
        "set": {3}, "frozen": frozenset([4]), "array": bytearray(b"xy"), "empty": bytearray(), "z": 2 - 1j,
        "huge": -(2**20_000), "size": ("Size", (1, 2)), "dtype": "float32", "device": ("device", ("cuda", 1)),
    }  # fmt: skip
    assert found == expected
    assert {key: type(each) for key, each in found.items()} == {
        key: type(each) for key, each in expected.items()
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"datetime": 1}', "the type 'datetime', which this release"),
        ('{"numpy.longdouble": "00"}', "the type 'numpy.longdouble'"),
        ('[1, {"a": 1, "b": 2}]', "has 2 names"),
        ("{}", "has 0 names"),
        ("1.5", "a point or an exponent"),
        ("1e3", "a point or an exponent"),
        ("9007199254740992", "another text"),
        ('{"int": "0x1"}', "another text"),
        ('{"int": 5}', "wrong"),
        ('{"int": "0X20000000000001"}', "another text"),
        ('{"float": "1"}', "another text"),
        ('{"float": "1_0.0"}', "another text"),
        ('{"float": 1}', "not text"),
        ('{"float": "nan:7ff8000000000000"}', "another text"),
        ('{"float": "nan:0000000000000000"}', "another text"),
        ('{"float": "nan:-1"}', "wrong"),
        ('{"bytes": "YQ"}', "wrong"),
        ('{"bytes": "YR=="}', "another text"),
        ('{"str": "YQ=="}', "another text"),
        ('{"dict": [["a", 1], ["a", 2]]}', "twice"),
        ('{"dict": [[[], 1]]}', "unhashable"),
        ('{"dict": {"a": 1}}', "wrong"),
        ('{"dict": [[1, 2, 3]]}', "wrong"),
        ('{"tuple": 1}', "not an array"),
        ('{"argparse.Namespace": [[1, 2]]}', "of another type"),
        ('{"torch.dtype": "Float32; x"}', "of another type"),
        ('{"torch.device": ["cuda", true]}', "of another type"),
        ('{"numpy.bool": "02"}', "not a scalar"),
        ('{"numpy.float32": "00"}', "not a scalar"),
        ('{"numpy.float32": "0000803F"}', "another text"),
        ('{"numpy.ndarray": ["float32", [1], "AAAA"]}', "not a dtype, a shape"),
        ('{"numpy.ndarray": ["float32", [-1, -1], "AAAAAA=="]}', "not a dtype, a shape"),
        ('{"numpy.ndarray": ["float32", [true], "AAAAAA=="]}', "not a dtype, a shape"),
        ('{"numpy.ndarray": ["float32", {"1": 1}, "AAAAAA=="]}', "not a dtype, a shape"),
        ('{"numpy.ndarray": ["object", [0], ""]}', "not a dtype, a shape"),
        ('{"numpy.ndarray": [["int8"], [0], ""]}', "not a dtype, a shape"),
        ('{"numpy.ndarray": ["bool", [1], "Ag=="]}', "not a dtype, a shape"),
        ('{"numpy.ndarray": ["int8", [0], "", 1]}', "wrong"),
        ('{"numpy.ndarray": ["int8", ' + str([0] * 65) + ', ""]}', "not a dtype, a shape"),
        ('{"numpy.ndarray": ["int8", [0, 9223372036854775807, 2], ""]}', "not a dtype, a shape"),
        ('{"set": "ab"}', "not an array"),
        ("NaN", "NaN"),
        ('{"tuple": [1], "tuple": [2]}', "twice"),
        ("[" * 300 + "]" * 300, "nests values deeper"),
        ("[" * 100 + "]" * 100, "nested deeper"),
    ],
)
def test_what_no_writer_makes_is_refused(text: str, words: str) -> None:
    with pytest.raises((CheckpointError, UnsupportedError), match=words):
        decode_value(text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"version":2,"objects":[]}', UnsupportedError),
        ('{"objects":[]}', InvalidCheckpoint),
        ('{"version":true,"objects":[]}', InvalidCheckpoint),
        ('{"version":1,"objects":{}}', InvalidCheckpoint),
        ('{"version":1,"objects":[["a"]]}', InvalidCheckpoint),
        ('{"version":1,"objects":[[1,2]]}', InvalidCheckpoint),
        ('{"version":1,"objects":[["a",1],["a",2]]}', InvalidCheckpoint),
        ("[]", InvalidCheckpoint),
        ("{", CheckpointError),
        ("\ud800", CheckpointError),
    ],
)
def test_a_document_of_another_kind_is_refused(text: str, error: type[ShardvarError]) -> None:
    with pytest.raises(error):
        parse_objects(text)
    assert parse_objects('{"more":[1], "version":1 , "objects":[["a",{"x":1}]]}') == {"a": {"x": 1}}


def test_sizes_are_bounded() -> None:
    nested: Any = []
    for _ in range(MAX_DEPTH):
        nested = {"a": nested} if len(encode_value(nested)) % 2 else [nested]
    assert decode_value(encode_value(nested)) == nested
    for value in ([nested], b"x" * (1 << 21)):
        with pytest.raises(UnsupportedError, match=r"characters|bytes"):
            literal_of(plain_of(value))
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    laugh: Any = "ha" * 1000
    for _ in range(40):
        laugh = [laugh] * 10
    for item in (deep, laugh, [1 << 4_000_000] * 10):
        with pytest.raises(UnsupportedError, match="Save large data|more than"):
            plain_of(item)


@pytest.mark.parametrize("name", sorted(NUMPY_NAMES))
def test_the_literal_of_an_array_or_a_scalar_makes_it_again(name: str) -> None:
    """With its dtype unless its elements tell it; of an array without elements as NumPy has it."""
    for shape in ((), (3,), (2, 2), (0,), (2, 0)):
        array = np.arange(math.prod(shape)).reshape(shape).astype(name)
        text = literal_of(as_tagged(array))
        if not array.size:
            assert text == repr(array)
            continue
        again = eval(text, {**vars(np), "array": np.array})  # noqa: S307
        assert (again.dtype, again.shape, again.tobytes()) == (array.dtype, shape, array.tobytes())
        assert ("dtype" in text) == (name not in ("bool", "int64", "float64", "complex128"))
        scalar = array.flat[-1]
        assert literal_of(scalar) == f"np.{name}({scalar})"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.str_("é"), "np.str_('é')"),
        (np.longlong(3), "np.int64(3)"),
        (np.bytes_(b"a"), "np.bytes_(b'a')"),
        ((1,), "(1,)"),
        ((1, 2), "(1, 2)"),
        ([1], "[1]"),
        (Size((3,)), "(3,)"),
        (OrderedMap({"a": (), 1: [{}]}), "{'a': (), 1: [{}]}"),
        (complex(-0.0, 2), "complex(-0.0, 2.0)"),
        (bytearray(), "bytearray()"),
        (bytearray(b"\xff"), "bytearray('ÿ', 'latin-1')"),
        (Tagged("text", "as it is"), "as it is"),
        (Tagged("torch.dtype", "int4"), "torch.int4"),
        (Tagged("torch.device", ("cuda", 3)), "torch.device('cuda:3')"),
        (Tagged("argparse.Namespace", {"a": 1, "b": "x"}), "Namespace(a=1, b='x')"),
        (Tagged("set", [1, 2]), "set([1, 2])"),
        ((1 << 4096) - 1, str((1 << 4096) - 1)),
        (1 << 4096, hex(1 << 4096)),
    ],
    ids=lambda each: str(each)[:20],
)  # fmt: skip
def test_each_kind_of_a_literal(value: Any, text: str) -> None:
    assert literal_of(value) == text


@pytest.mark.parametrize("count", [64, 65])
def test_a_key_has_64_items_with_those_of_the_tuples_in_it(count: int) -> None:
    """Each item is quick to compare; a tuple counts as one."""
    half = count // 2
    for key in ((1,) * count, ((1,) * half, *[2] * (count - half - 1)), (((1,) * (count - 2),),)):
        made: dict[Any, Any] = {}
        if count == 64:
            set_items(made, [key, 5])
            assert made == {key: 5}
        else:
            with pytest.raises(TypeError):
                set_items(made, [key, 5])
    for wrong in ([], (1, []), ((1, {}),)):
        with pytest.raises(TypeError):
            set_items({}, [wrong, 5])


def _empty_array(*state: Any) -> Node:
    return Node("numpy._core.multiarray._reconstruct", (Global("numpy.ndarray"), (0,), b"b"), state)


@pytest.mark.parametrize(
    "node",
    [
        Node("copyreg._reconstructor", (Global("argparse.Namespace"), Global("builtins.object"), None)),
        Node("argparse.Namespace", (1,)),
        Node("argparse.Namespace", (), {1: 2}),
        Node("builtins.set", ("ab",)),
        Node("builtins.complex", ("1j",)),
        Node("builtins.bytearray", (1 << 40,)),
        Node("builtins.bytearray", ("✓", "latin-1")),
        Node("torch.device", (1,)),
        Node("numpy._core.multiarray.scalar", (Node("numpy.dtype", ("O",)), b"")),
        Node("numpy._core.multiarray.scalar", (Node("numpy.dtype", ("f8",)), b"1234")),
        Node("numpy._core.multiarray.scalar", (Node("numpy.dtype", ("V2000000000",)), b"1234")),
        Node("numpy._core.multiarray.scalar", (Node("numpy.dtype", ("U1",)), b"\xff\xff\xff\xff")),
        _empty_array(1, (1,), Node("numpy.dtype", ("f4",)), False, b"123"),
        _empty_array(1, (-1, -4), Node("numpy.dtype", ("u1",)), False, b"1234"),
        _empty_array(1, (True,), Node("numpy.dtype", ("u1",)), False, b"1"),
        _empty_array(1, (1,), Node("numpy.dtype", ("O",)), False, [None]),
        _empty_array(1, (1,), Node("numpy.dtype", ("U1",)), False, b"1234"),
        _empty_array(1, (1,), Node("numpy.dtype", ("V4",)), False, b"1234"),
        _empty_array(1, (1,), Node("numpy.dtype", ("b1",)), False, b"\2"),
        _empty_array(1, [1], Node("numpy.dtype", ("u1",)), False, b"1"),
        _empty_array(1, (0, 1 << 62, 2), Node("numpy.dtype", ("u1",)), False, b""),
        _empty_array(),
        Node("numpy._core.multiarray._reconstruct", ()),
        Node("numpy._core.numeric._frombuffer", (b"1", Node("numpy.dtype", ("u1",)), (2,), "C")),
        Global("builtins.len"),
        {Node("builtins.bytearray", (b"a",)): 1},
        {(1, Node("builtins.set", ([],))): 1},
    ],
    ids=str,
)  # fmt: skip
def test_calls_that_make_something_else_are_refused(node: Any) -> None:
    with pytest.raises((CheckpointError, UnsupportedError)):
        plain_of(node)


def test_two_equal_keys_of_a_pickle_are_not_one() -> None:
    first, second = (
        Node("numpy.core.multiarray.scalar", (Node("numpy.dtype", ("i1",)), b"\1"))
        for _ in range(2)
    )
    with pytest.raises(UnsupportedError, match="two equal keys"):
        plain_of({first: 1, second: 2})
