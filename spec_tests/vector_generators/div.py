"""div, chunk and div_owner: how ids are dealt to shards."""

from collections.abc import Iterator, Sequence
from typing import Any

from shardvar.spec.meshes import chunk
from shardvar.spec.partitions import Interval, div, intervals, owner
from spec_tests.vector_generators.case import Acceptable, Case, Group, maker, numbered
from spec_tests.vector_generators.encoding import integer, integers

BIG = 2**53 + 1
"""The first length that JavaScript's numbers cannot hold."""

_DIV = [
    (13, 5, "The remainder goes to the last shards, or all of it to one."),
    (13, 3, "The remainder goes to the last shards, or all of it to one."),
    (14, 5, "Only one of the larger shards is made larger."),
    (12, 4, "A length that divides evenly gets an empty or a larger last shard."),
    (1, 1, "One shard is treated as none."),
    (3, 5, "More shards than ids: ids are lost, or shards are left out of a fixed number."),
    (0, 3, "No ids: a division by zero, or no shards."),
    (6, 4, "Chunk's ceil(6 / 4) = 2 is taken for div's sizes 2, 2, 1, 1."),
    (100, 7, "The remainder is lost in a rounded quotient."),
    (BIG, 2, "Lengths pass through a float64, and the last id is lost."),
    (2**63 - 1, 3, "start + size overflows 64 bits."),
    (2**31 + 3, 2, "Lengths pass through 32 bits."),
]


def _no_empty_ones(cut: Sequence[Interval], why: str) -> list[Acceptable]:
    kept = [each for each in cut if each[0] < each[1]]
    return [] if len(kept) == len(cut) or not kept else [Acceptable(why, integers(kept))]


def _cases() -> Iterator[Case]:
    of_div, of_chunk = maker("div", "R-DIV-1", "div-"), maker("chunk", "V-CHUNK-1", "chunk-")
    for length, num_shards, bug in _DIV:
        inputs = {"length": integer(length), "num_shards": num_shards}
        cut = div(length, num_shards)
        clamped = _no_empty_ones(
            cut, "TensorFlow's partitioners make no more shards than there are ids."
        )
        name = f"{length}-{num_shards}"
        yield of_div(name, inputs, bug, integers(cut), acceptable=clamped)
        if length < 2**32 and length != 2**31 + 3:
            sizes = [len(part) for part in chunk(range(length), num_shards)]
            parts = intervals(sizes)
            fewer = _no_empty_ones(parts, "torch.chunk leaves empty parts out.")
            bug = (
                "div's sizes are taken for chunk's, or the short part is not the last one with "
                "rows."
            )
            yield of_chunk(name, inputs, bug, integers(parts), acceptable=fewer)
    for length, num_shards in [(0, 0), (5, 0), (5, -1), (-1, 2)]:
        inputs = {"length": length, "num_shards": num_shards}
        bug = "A count that means nothing gives an empty layout, in which every id is lost."
        for make in (of_div, of_chunk):
            yield make(f"{length}-{num_shards}", inputs, bug, error="ArgumentError")
    yield from _owner_cases()


def _owners(length: int, num_shards: int) -> list[tuple[int, int]]:
    sizes = [stop - start for start, stop in div(length, num_shards)]
    return [owner(row, sizes) for row in range(length)]


def _found(owners: Sequence[tuple[int, int]]) -> dict[str, Any]:
    return {"shard": [shard for shard, _ in owners], "row": [row for _, row in owners]}


def _owner_cases() -> Iterator[Case]:
    def case(
        name: str, ids: list[int], length: int, num_shards: int, bug: str, **outcome: Any
    ) -> Case:
        inputs = {"ids": integers(ids), "length": integer(length), "num_shards": num_shards}
        return Case(f"owner-{name}", "R-DIV-1", "div_owner", inputs, bug, **outcome)

    bug = "id // ceil(length / shards), or id % shards, in place of the bounds of div."
    for length, num_shards in [(13, 5), (13, 13), (3, 5), (7, 1), (10, 3)]:
        found = _found(_owners(length, num_shards))
        name, ids = f"all-{length}-{num_shards}", [*range(length)]
        yield case(name, ids, length, num_shards, bug, expected=found)
    ids = [12, 0, 12, 5, 9, 8]
    found = _found([_owners(13, 5)[each] for each in ids])
    bug = "Ids are sorted, or made unique, on the way."
    yield case("unsorted", ids, 13, 5, bug, expected=found)
    yield case("none", [], 13, 5, "No ids are an error.", expected={"shard": [], "row": []})
    first, second = div(BIG, 2)
    found = {"shard": [0, 1, 1], "row": integers([first[1] - 1, 0, second[1] - second[0] - 1])}
    ends = [first[1] - 1, first[1], BIG - 1]
    bug = "Ids pass through a float64, and are rounded to a neighbour."
    yield case("big", ends, BIG, 2, bug, expected=found)
    for name, ids in {"past": [0, 13], "negative": [-1]}.items():
        bug = "An id that no shard holds is wrapped around, clamped or read as zeros."
        yield case(name, ids, 13, 5, bug, error="ArgumentError")


GROUP = Group(
    "div",
    "How ids are dealt to shards: intervals `[start, stop)`, and the shard and the row of an id.",
    "One id after the other is dealt; where there are too many, exact integers of any size.",
    numbered(_cases()),
)
