"""Tables of layouts that the real frameworks made, from ``spec_tests/golden/layouts``."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from shardvar.layout.meshes import Layout, Partial, Replicate, Shard, StridedShard
from shardvar.layout.meshes.dtensor import DTensorPlacement
from spec_tests.helpers.paths import GOLDEN

Case = dict[str, Any]


@cache
def table(name: str) -> tuple[Case, ...]:
    """Return the cases of a table: ``dtensor``, ``fsdp``, ``jax`` or ``megatron``."""
    with (GOLDEN / "layouts" / f"{name}.json").open(encoding="utf-8") as file:
        return tuple(json.load(file)["cases"])


def cases(name: str, *groups: str, refused: bool = False) -> list[Case]:
    """Return the cases of some groups, or of all, that the framework accepted, or those that it
    refused."""
    return [
        case
        for case in table(name)
        if ("refused" in case) == refused and (not groups or case["group"] in groups)
    ]


def each_row(rows: Sequence[Case]) -> Callable[[Callable[[Case], None]], Callable[[], None]]:
    """Make the test of a row the test of a whole table; where it fails, the error names the row.

    A test by itself for each of thousands of rows costs more than the rows.
    """

    def of_the_table(test: Callable[[Case], None]) -> Callable[[], None]:
        def run() -> None:
            assert rows, "The table is empty."
            for row in rows:
                try:
                    test(row)
                except BaseException as error:
                    error.add_note(f"This was the row {row['id']}.")
                    raise

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return of_the_table


def held(layout: Layout) -> dict[int, list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """Return the regions that each device of a layout holds, as (offset, shape)."""
    return {
        device: [(region.offset, region.shape) for region in layout.regions(device)]
        for device in range(layout.mesh.size)
    }


def recorded(case: Case) -> dict[int, list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """Return the regions that the framework's devices were found to hold; those without elements
    are left out."""
    return {
        device["device"]: [
            (tuple(region["offset"]), tuple(region["shape"]))
            for region in device["regions"]
            if 0 not in region["shape"]
        ]
        for device in case["devices"]
    }


KINDS: dict[str, Any] = {
    "shard": Shard,
    "replicate": Replicate,
    "partial": Partial,
    "strided_shard": StridedShard,
}


def placements_of(layout: dict[str, Any]) -> list[DTensorPlacement]:
    """Return the placements that a recorded layout has."""
    return [
        KINDS[each["kind"]](**{name: value for name, value in each.items() if name != "kind"})
        for each in layout["placements"]
    ]


def local_positions(layout: Layout, device: int) -> list[int]:
    """Return the C order numbers of the elements that a device holds, by NumPy on the whole
    array."""
    whole = np.arange(int(np.prod(layout.shape))).reshape(layout.shape)
    return [
        int(number) for region in layout.regions(device) for number in whole[region.slices].ravel()
    ]
