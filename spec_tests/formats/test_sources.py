"""One interface of sources: declared in one place, and forwarded by every wrapper.

Law: of two sources, one of which wraps the other, every member gives the same answer, but for those
that ``OVERRIDDEN`` lists.
"""

import inspect
from itertools import takewhile
from typing import Any

import numpy as np
import pytest

import shardvar.engine.cast
import shardvar.engine.mapped
import shardvar.formats.gguf
import shardvar.verbs.callbacks
import shardvar.verbs.joined_source  # noqa: F401  # its class is found among the subclasses
from shardvar.engine.cast import CastSource
from shardvar.engine.files import RehearsedSource
from shardvar.engine.mapped import MappedSource
from shardvar.engine.quantised import EncodedSource, ScaledSource
from shardvar.formats.listing import DequantizedSource
from shardvar.formats.objects import ObjectsSource
from shardvar.formats.protocol import Source, WrappedSource
from shardvar.verbs.callbacks import OverlaidSource
from shardvar.verbs.joined_source import JoinedSource, RankSource

READ = {"read_into", "in_order", "expect", "decode", "files_read"}
"""The members that get rows of the wrapper's own entries."""
KEYED = {"is_guarded", "compare_bytes", "storage_errors", "is_part", "objects"}
"""The members that get keys of the wrapper's own index."""
OVERRIDDEN: dict[type[Source], set[str]] = {
    CastSource: READ,
    # Its keys are the targets of a map, which is made for tensors of one form, by temporary files.
    MappedSource: READ | KEYED | {"encodings", "close", "index"},
    # Entries of another source follow the files of the first.
    OverlaidSource: READ | {"read_span", "map", "index"},
    # Objects are entries that the other source does not have.
    ObjectsSource: READ - {"files_read"} | {"index", "is_guarded", "dequantized", "objects"},
    # A tensor of numbers is stored under two keys, and one of codes has the scales next to it.
    ScaledSource: READ | KEYED | {"index", "encodings"},
    EncodedSource: READ | KEYED | {"index", "encodings"},
    # In a rehearsal what it reads is only counted.
    RehearsedSource: {"decode", "read_into", "read_span", "storage_errors"},
    # Its keys have the number of a rank before them.
    RankSource: KEYED | {"index", "encodings"},
    # It lists and decodes numbers and not blocks.
    DequantizedSource: {"index", "read_into", "encodings"},
}
"""The members that a wrapper changes on purpose."""
NOT_JOINED = {
    "bare_index": "Nothing covers the index that the join makes of several.",
    "dequantized": "The sources of a join are opened in one form or the other.",
    "hold_no_files": "A join is not one of thousands of checkpoints.",
}
"""The members of ``Source`` whose default is right for a join."""


def members(kind: type[Any] = Source) -> set[str]:
    """Return the names of a class's public methods and properties."""
    return {name for name in vars(kind) if not name.startswith("_")}


def own(kind: type[Any]) -> set[str]:
    """Return the members of ``Source`` that a class defines, or a base of it below the wrapper's."""
    below = takewhile(lambda base: base not in (Source, WrappedSource), kind.__mro__)
    bases = [kind] if kind is WrappedSource else below
    return members() & {name for base in bases for name in vars(base)}


def wrappers(kind: type[Any] = WrappedSource) -> set[type[Any]]:
    """Return the wrappers of the library that no other wrapper derives from. A class with slots is
    made twice, and the first is dropped."""
    found = {
        getattr(inspect.getmodule(each), each.__name__, each) for each in kind.__subclasses__()
    }
    found = {each for each in found if each.__module__.startswith("shardvar.")}
    return set().union(*(wrappers(each) or {each} for each in found))


def test_the_base_of_wrappers_forwards_every_member() -> None:
    assert own(WrappedSource) == members()


def test_every_wrapper_says_what_it_changes() -> None:
    assert {kind: own(kind) for kind in wrappers()} == OVERRIDDEN


def test_a_join_answers_for_all_its_sources() -> None:
    assert members() - own(JoinedSource) == NOT_JOINED.keys()


def recorder(name: str, answers: dict[str, Any]) -> Any:
    """Return a member that answers with a value of its own, and keeps its arguments."""
    signature = inspect.signature(
        vars(Source)[name].fget if is_property(name) else vars(Source)[name]
    )

    def member(self: Any, *given: Any) -> Any:
        assert len(given) == len(signature.parameters) - 1
        answers[name] = given
        return f"the answer of {name}"

    return property(member) if is_property(name) else member


def is_property(name: str) -> bool:
    return isinstance(vars(Source)[name], property)


@pytest.mark.parametrize("name", sorted(members()))
def test_a_wrapper_gives_the_answer_of_its_source(name: str) -> None:
    """Also to the same arguments, each in its place."""
    asked: dict[str, Any] = {}
    named: dict[str, Any] = {each: recorder(each, asked) for each in members()}
    inner = type("Inner", (Source,), named)()
    wrapper = type("Wrapper", (WrappedSource,), {"inner": inner})()
    given: list[Any] = []
    if is_property(name):
        answer = getattr(wrapper, name)
    else:
        count = len(inspect.signature(vars(Source)[name]).parameters) - 1
        given = [object() for _ in range(count)]
        answer = getattr(wrapper, name)(*given)
    assert asked == {name: tuple(given)}
    # What is done, and not answered, has no answer.
    assert answer == f"the answer of {name}" or vars(Source)[name].__annotations__["return"] is None


class Plain(Source):
    """A source with nothing but what it must have."""

    index: Any = "the index"

    def read_into(self, entries: Any, row: int, start: int, buffer: memoryview) -> None: ...
    def read_span(self, file: int, start: int, buffer: memoryview) -> None: ...
    def map(self, file: int) -> memoryview:
        return memoryview(b"")

    def close(self) -> None: ...


def test_a_source_with_nothing_to_add_has_the_defaults() -> None:
    source = Plain()
    entries: Any = type("Entries", (), {"plain": np.array([True, False, False])})
    rows = np.array([2, 0])
    assert (source.crc, source.traits, [*source.places]) == (None, None, [])
    assert source.in_order(entries, rows).tolist() == [True, False]
    assert source.decode(entries, 1) is None
    assert (*source.findings(),) == ()
    assert source.is_guarded("x") is source.objects(["x"], "torch") is None
    assert source.compare_bytes("x") is source.is_part("x") is False
    assert source.storage_errors(["x"]) == source.encodings() == {}
    assert source.dequantized() is source
    source.expect(entries, rows)
