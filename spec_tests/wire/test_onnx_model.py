"""ONNX models: the tensors of any graph have the names and the bytes that were put in, and what is
cut off or too much is told in words."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import ShardvarError
from shardvar.limits import MAX_KEY_NBYTES, MAX_NESTING
from shardvar.wire import onnx as codec
from shardvar.wire.onnx import OnnxModel, parse_model
from shardvar.wire.plain import MAX_TEXT
from shardvar.wire.protobuf import decode_fields, walk_fields
from spec_tests.helpers.octets import reads_of
from spec_tests.hostile import onnx
from spec_tests.hostile.tensorflow import proto, varint

Message = tuple[bytes, Callable[[str], list["Expected"]]]
"""A part of a model, and what it has below a path."""


@dataclass
class Expected:
    """A tensor: `data` are the elements that its fields have."""

    name: str
    kind: int = 0
    dims: tuple[int, ...] = ()
    data: dict[int, bytes] = field(default_factory=dict)
    strings: list[bytes] = field(default_factory=list)
    external: dict[str, str] | None = None
    error: str = ""


names = st.sampled_from(["", "a", "b", "ü"])


@st.composite
def tensors(draw: st.DrawFn) -> tuple[bytes, Callable[[str, str | None], Expected]]:
    """A tensor, and what is read of it under a path, with a name of its own or another."""
    own, kind = draw(names), draw(st.integers(0, 30))
    dims = draw(st.lists(st.integers(0, 2**64 - 1), max_size=3))
    is_packed = draw(st.booleans())
    shape = [(1, b"".join(map(varint, dims)))] if is_packed else [(1, each) for each in dims]
    data = draw(
        st.dictionaries(st.sampled_from([4, 5, 7, 9, 10, 11]), st.binary(max_size=5), max_size=2)
    )
    strings = draw(st.lists(st.binary(max_size=5), max_size=2))
    facts = draw(st.dictionaries(st.text(min_size=1, max_size=3), st.text(max_size=3), max_size=2))
    location = draw(st.sampled_from([None, 0, 1, 2]))
    rows: list[tuple[int, int | bytes]] = [
        *shape, (2, kind), (8, own.encode()), *data.items(), *((6, each) for each in strings),
        *((13, proto((1, key.encode()), (2, value.encode()))) for key, value in facts.items()),
        *([] if location is None else [(14, location)]), (99, b"unknown"), (98, 7),
    ]  # fmt: skip
    if not is_packed and dims:
        rows = [*shape, *draw(st.permutations(rows[len(dims) :]))]
        strings = [each for number, each in rows if number == 6 and isinstance(each, bytes)]
    external = facts if location == 1 else None
    signed = tuple(each - (1 << 64 if each >> 63 else 0) for each in dims)

    def expected(path: str, name: str | None) -> Expected:
        return Expected(
            path + (own if name is None else name), kind, signed, data, strings, external
        )

    return proto(*rows), expected


@st.composite
def sparses(draw: st.DrawFn) -> tuple[bytes, Callable[[str, str | None], Expected]]:
    octets, expected = draw(tensors())
    has_values = draw(st.booleans())

    def named(path: str, name: str | None) -> Expected:
        found = expected(path, name) if has_values else Expected(path + (name or ""))
        found.error = "It is a sparse tensor: the model has only its indices and its values."
        return found

    return proto((2, b"indices"), *[(1, octets)] * has_values, (1, 5)), named


@st.composite
def graphs(draw: st.DrawFn, depth: int = 2) -> Message:
    parts = [
        *((5, *each, None) for each in draw(st.lists(tensors(), max_size=2))),
        *((15, *each, None) for each in draw(st.lists(sparses(), max_size=1))),
        *((1, *draw(nodes(depth)), "") for _ in range(draw(st.integers(0, 2)))),
    ]  # fmt: skip
    parts = draw(st.permutations(parts))

    def expected(path: str) -> list[Expected]:
        found: list[Expected] = []
        for number, _, make, _ in parts:
            found += make(path) if number == 1 else [make(path, None)]
        return found

    return proto(
        (2, b"graph"), (3, 1), *((number, octets) for number, octets, _, _ in parts)
    ), expected


@st.composite
def nodes(draw: st.DrawFn, depth: int) -> Message:
    """A node: its attributes are called after its first output, or its name."""
    outputs, own = draw(st.lists(names, max_size=2)), draw(names)
    operator = draw(st.sampled_from(["Constant", "If"]))
    attributes = [draw(held(depth)) for _ in range(draw(st.integers(0, 2)))]
    output = next(filter(None, outputs), own)
    rows: list[tuple[int, int | bytes]] = [(5, octets) for octets, _, _ in attributes]
    rows += [(2, each.encode()) for each in outputs] + [
        (3, own.encode()),
        (4, operator.encode()),
        (1, b"in"),
        (7, 7),
    ]

    def expected(path: str) -> list[Expected]:
        found: list[Expected] = []
        for _, name, makes in attributes:
            whole = output if operator == "Constant" else f"{output}/{name}"
            for place, (number, make) in enumerate(makes):
                own = f"{whole}/{place}" if number in (10, 11, 23) else whole
                found += make(f"{path}{own}/") if number in (6, 11) else [make(path, own)]
        return found

    return proto(*rows), expected


@st.composite
def held(draw: st.DrawFn, depth: int) -> tuple[bytes, str, list[tuple[int, Any]]]:
    """An attribute with tensors and graphs."""
    name, number = (
        draw(names),
        draw(st.sampled_from([5, 6, 10, 11, 22, 23] if depth else [5, 10, 22, 23])),
    )
    of: Any = tensors() if number in (5, 10) else sparses() if number > 11 else graphs(depth - 1)
    several = [draw(of) for _ in range(draw(st.integers(0, 2)) if number in (10, 11, 23) else 1)]
    rows: list[tuple[int, int | bytes]] = [(number, octets) for octets, _ in several]
    return proto(*rows, (1, name.encode()), (3, 5)), name, [(number, make) for _, make in several]


FIELDS = st.recursive(
    st.binary(max_size=30) | st.integers(0, (1 << 64) - 1),
    lambda below: st.lists(st.tuples(st.integers(1, 400), below), max_size=4).map(
        lambda each: proto(*each)
    ),
    max_leaves=8,
)


@given(st.lists(st.tuples(st.integers(1, 1 << 20), FIELDS), max_size=8))
def test_a_walk_yields_the_fields_that_the_decoder_yields(
    fields: list[tuple[int, int | bytes]],
) -> None:
    message = b"before" + proto(*fields) + b"after"
    bounds = 6, len(message) - 5
    found = [
        (number, begin if end < 0 else message[begin:end])
        for number, begin, end in walk_fields(reads_of(message, *bounds), *bounds)
    ]
    assert found == [(each.number, each.value) for each in decode_fields(proto(*fields))] == fields


def parse(octets: bytes) -> OnnxModel:
    return parse_model(reads_of(octets), len(octets))


def found_in(model: OnnxModel, octets: bytes) -> list[Expected]:
    return [
        Expected(
            each.name, each.kind, each.dims,
            {number: octets[slice(*span)] for number, span in each.data.items()},
            [octets[slice(*span)] for span in each.strings], each.external,
            each.error.cause if isinstance(each.error, ShardvarError) else "",
        )
        for each in model.tensors
    ]  # fmt: skip


@given(
    graphs(),
    st.lists(nodes(1), max_size=2),
    names,
    st.dictionaries(names, names, max_size=2),
    st.booleans(),
)
def test_a_model_has_the_tensors_of_its_graph_and_its_functions(
    graph: Message, inner: list[Message], function: str, texts: dict[str, str], has_training: bool
) -> None:
    pairs = [(14, proto((2, value.encode()), (1, key.encode()))) for key, value in texts.items()]
    octets = proto(
        (1, 8), (2, b"maker"), (20, proto((1, b"")) if has_training else b"") if has_training else (9, 9),
        (25, proto(*((7, each) for each, _ in inner), (1, function.encode()))), (7, graph[0]), *pairs, (3, b"2"),
    )  # fmt: skip
    model = parse(octets)
    expected = [one for _, make in inner for one in make(f"{function}/")] + graph[1]("")
    for each, one in zip(found_in(model, octets), expected, strict=True):
        assert each == one
    assert (model.producer, model.properties, model.has_training, model.fault) == (
        "maker 2",
        texts,
        has_training,
        None,
    )


@given(graphs(), st.data())
def test_what_is_in_front_of_a_cut_is_read_and_what_is_behind_it_is_not(
    graph: Message, data: st.DataObject
) -> None:
    """A tensor that is cut has an error; no tensor is read as another."""
    octets = proto((1, 8), (7, graph[0]))
    begin = len(octets) - len(graph[0])
    whole = found_in(parse(octets), octets)
    cut = data.draw(st.integers(begin, len(octets) - 1))
    model = parse(octets[:cut])
    assert model.fault is not None
    found = found_in(model, octets)
    places = iter(whole)
    for each, tensor in zip(found, model.tensors, strict=True):
        if each.error:  # cut, or sparse
            assert any(one.name == each.name for one in whole)
        else:
            assert each in places, "in the order of the file"
            assert all(stop <= cut for _, stop in [*tensor.data.values(), *tensor.strings])


def tensor(*rows: tuple[int, int | bytes]) -> bytes:
    return onnx.tensor("t", (), 1, None, 9, *rows)


SEGMENT = "It is one segment of a tensor, which ONNX has given up."
MANY = "Its numbers are in many fields, which no exporter writes."


@pytest.mark.parametrize(
    ("octets", "dims", "cause"),
    [
        (tensor(*[(1, 2)] * 64), 64, ""),
        (tensor((1, bytes(64))), 64, ""),
        (tensor(*[(1, 2)] * 65), 65, "It has 65 axes or more; NumPy has at most 64."),
        (tensor((1, varint(2**64 - 1) * 65)), 65, "It has 65 axes or more; NumPy has at most 64."),
        (tensor((1, bytes(90))), 65, "It has 65 axes or more; NumPy has at most 64."),
        (tensor((1, 2), (1, bytes(90))), 66, "It has 66 axes or more; NumPy has at most 64."),
        (tensor((3, b"")), 0, SEGMENT),
        (tensor((3, 1)), 0, SEGMENT),
        (tensor((4, 1)), 0, MANY),
        (tensor((9, b"a"), (9, b"b")), 0, MANY),
        (tensor((9, b"a"), (4, b"b"), (6, 1), (13, 1), (8, 1), (2, b"a"), (14, b"1")), 0, ""),
    ],
)  # fmt: skip
def test_each_fault_of_a_tensor_in_words(octets: bytes, dims: int, cause: str) -> None:
    whole = onnx.model(octets)
    (found,) = found_in(parse(whole), whole)
    assert (found.name, len(found.dims), found.error, found.kind, found.external) == (
        "t",
        dims,
        cause,
        1,
        None,
    )


def nested(depth: int) -> bytes:
    inner = onnx.graph(onnx.tensor())
    for _ in range(depth):
        inner = onnx.graph(nodes=[onnx.node("", proto((1, b""), (6, inner)))])
    return proto((7, inner))


LONG = b"x" * (MAX_KEY_NBYTES + 1)
PAST = f"A name has {MAX_KEY_NBYTES + 1} bytes, which is beyond the limit of {MAX_KEY_NBYTES} (MAX_KEY_NBYTES)."


@pytest.mark.parametrize(
    ("octets", "cause"),
    [
        (proto((1, 8)), "The model has no graph."),
        (proto((7, 8)), "The model has no graph."),
        (
            nested(MAX_NESTING + 1),
            f"It has {MAX_NESTING + 1} graphs in each other, which is beyond the limit of {MAX_NESTING} (MAX_NESTING).",
        ),
        (onnx.model(proto((8, LONG))), PAST),
        (onnx.model(nodes=[proto((2, LONG))]), PAST),
        (onnx.model(nodes=[proto((3, LONG))]), PAST),
        (onnx.model(nodes=[proto((4, LONG))]), PAST),
        (onnx.model(nodes=[onnx.node("n", proto((1, LONG)))]), PAST),
        (proto((25, proto((1, LONG)))), PAST),
        (
            proto((2, b"x" * (MAX_TEXT + 1)), (7, b"")),
            f"The text at offset 4 has {MAX_TEXT + 1} bytes, more than {MAX_TEXT}.",
        ),
    ],
)  # fmt: skip
def test_each_fault_of_a_model_in_words(octets: bytes, cause: str) -> None:
    with pytest.raises(ShardvarError) as caught:
        parse(octets)
    assert caught.value.cause == cause


def test_what_is_just_within_a_limit_is_read() -> None:
    assert len(parse(nested(MAX_NESTING)).tensors) == 1
    assert len(parse(onnx.model(proto((8, LONG[1:])))).tensors[0].name) == MAX_KEY_NBYTES
    assert len(parse(proto((2, b"x" * MAX_TEXT), (7, b""))).producer) == MAX_TEXT


@pytest.mark.parametrize("more", [0, 1])
def test_names_repeat_the_names_around_them_as_often_as_a_file_can_need(
    more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    octets = onnx.model(
        nodes=[onnx.node("n" * 99, proto((1, b"a"), (6, onnx.graph(*[onnx.tensor("t")] * 50))))]
    )
    monkeypatch.setattr(codec, "_FREE_LENGTH", 50 * 103 - 64 * len(octets) - more)
    if more:
        with pytest.raises(ShardvarError, match="repeat the names around them more often"):
            parse(octets)
    else:
        assert {each.name for each in parse(octets).tensors} == {"n" * 99 + "/a/t"}


def test_a_file_is_whole_where_a_field_ends_and_nowhere_else() -> None:
    pair = proto((1, b"k" * 130), (2, b"v"))
    fields = [
        proto(each) for each in ((7, onnx.graph()), (2, b"m" * 200), (5, 1 << 40), (14, pair))
    ]
    ends = [*accumulate(map(len, fields))]
    octets = b"".join(fields)
    for cut in range(ends[0], len(octets) + 1):
        assert (parse(octets[:cut]).fault is None) == (cut in ends), cut


def test_bytes_behind_the_fields_are_a_fault_of_the_file() -> None:
    octets = onnx.model(onnx.tensor())
    model = parse(octets + b"\x0b")
    assert [each.name for each in model.tensors] == ["t"] and model.fault is not None
    cut = parse(octets + proto((2, b"maker"))[:-1])
    assert cut.fault is not None and cut.fault.cause == (
        f"It has {len(octets) + 6} bytes, and ends within a field: it is cut off."
    )
    assert cut.producer == "hand" and parse(octets + proto((7, onnx.graph()))).fault is None
