"""``records.dataclass`` gives the classes that the standard library gives."""

import dataclasses
from functools import partial
from itertools import product
from typing import Any

import pytest

from shardvar import records


class Plain:
    a: int
    b: Any = dataclasses.field(default=2, repr=False)
    c: Any = dataclasses.field(default_factory=list, compare=False)


class Single:
    a: float


class Empty:
    pass


class WithOwn:
    a: int

    def __repr__(self) -> str:
        return "own"

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 7


@pytest.mark.parametrize("plain", [Plain, Single, Empty, WithOwn])
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("options", [{}, {"eq": False}, {"repr": False}])
def test_classes_are_those_of_the_standard_library(
    plain: type, frozen: bool, options: dict[str, bool]
) -> None:
    """Equality, hashes, texts, fields and guards."""
    made: list[type] = []
    every = {"frozen": frozen, "slots": True, **options}
    own = partial(records.frozen, **options)
    for decorate in (
        partial(dataclasses.dataclass, **every),
        own if frozen else partial(records.dataclass, **every),
    ):
        body = {
            name: value
            for name, value in vars(plain).items()
            if name not in ("__dict__", "__weakref__")
        }
        made.append(decorate()(type("C", (), body)))
    standard, ours = made
    nan = float("nan")
    rows = [()] if plain is Empty else [(1,), (2,), (nan,), (nan + 1,)]
    rows += [(1, 3), (1, 3, [4])] if plain is Plain else []
    for one, other in product(rows, rows):
        pairs = [(cls(*one), cls(*other)) for cls in made]
        assert len({a == b for a, b in pairs}) == 1
        if ours.__hash__ is not object.__hash__ and standard.__hash__ is not None:
            assert hash(pairs[0][0]) == hash(pairs[1][0])
    assert (standard.__hash__ is None) == (ours.__hash__ is None)
    texts = [repr(cls(*rows[0])).partition(" object at ")[0] for cls in made]
    assert texts[0].rpartition(".")[2] == texts[1].rpartition(".")[2]
    assert ours(*rows[0]) != (1,) or plain is WithOwn
    if frozen and plain is not Empty:
        with pytest.raises(dataclasses.FrozenInstanceError):
            ours(*rows[0]).a = 3
    assert [f.name for f in dataclasses.fields(ours)] == [
        f.name for f in dataclasses.fields(standard)
    ]
