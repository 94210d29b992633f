"""NamedSharding on JAX: what moves between two random shardings.

JAX chooses the number of devices when it starts, so one process with eight of them answers the
questions of all examples, a line of JSON for each.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.layout.meshes import Layout, named_sharding, plan_redistribution
from shardvar.layout.meshes.layout import Mesh

Sharding = tuple[tuple[int, ...], list[int], list[Any]]
"""The extents of a mesh, the order of its devices, and a spec."""

Ask = Callable[..., Any]
"""Ask JAX about a shape and two shardings."""

NAMES = ("x", "y", "z")
MESHES = [
    (1,),
    (2,),
    (3,),
    (6,),
    (8,),
    (2, 2),
    (1, 4),
    (2, 3),
    (3, 2),
    (2, 4),
    (4, 2),
    (2, 2, 2),
    (2, 1, 3),
]

ANSWER_AS_JAX = """
import json, sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

def named(extents, order, spec):
    mesh = Mesh(np.array(jax.devices())[order].reshape(extents), ("x", "y", "z")[:len(extents)])
    return NamedSharding(mesh, PartitionSpec(*(tuple(e) if isinstance(e, list) else e for e in spec)))

def answer(shape, source, target):
    whole = np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
    before = jax.device_put(whole, named(*source))
    after = jax.device_put(before, named(*target))
    return [[s.device.id, np.asarray(s.data).tolist()] for s in after.addressable_shards]

for line in sys.stdin:
    print(json.dumps(answer(*json.loads(line))), flush=True)
"""


@contextmanager
def asking_jax() -> Iterator[Ask]:
    """Start JAX with eight devices; it ends when its input does."""
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    with subprocess.Popen(
        [sys.executable, "-c", ANSWER_AS_JAX],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(*question: Any) -> Any:
            print(json.dumps(question), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()


@pytest.fixture(scope="module")
def jax_says() -> Iterator[Ask]:
    pytest.importorskip("jax", reason="JAX is not installed")
    with asking_jax() as ask:
        yield ask


@st.composite
def specs(draw: st.DrawFn, extents: tuple[int, ...], rank: int) -> list[Any]:
    """Draw a spec that names mesh axes at most once, several of them on one tensor axis or none."""
    names = draw(st.permutations(NAMES[: len(extents)]))
    axes = [
        draw(st.integers(0, rank)) for _ in names
    ]  # the tensor axis that each name cuts; `rank` cuts none
    entries = [
        [name for name, axis in zip(names, axes, strict=True) if axis == at] for at in range(rank)
    ]
    # JAX reads None as an empty tuple, and a name as a tuple of one.
    return [
        draw(st.sampled_from([entry, (entry or [None])[0]])) if len(entry) < 2 else entry
        for entry in entries
    ]


@st.composite
def shardings(draw: st.DrawFn, rank: int, devices: int | None = None) -> Sharding:
    extents = draw(st.sampled_from([each for each in MESHES if devices in (None, prod(each))]))
    order = draw(st.permutations(range(prod(extents))))
    return extents, order, draw(specs(extents, rank))


def layout(shape: tuple[int, ...], sharding: Sharding) -> Layout:
    extents, order, spec = sharding
    return named_sharding(shape, Mesh(extents, NAMES[: len(extents)], order), spec)


def cuts(shape: tuple[int, ...], *asked: Sharding) -> bool:
    """Return True if the mesh axes that an entry names divide its extent, for all entries."""
    return not any(
        extent % prod(extents[NAMES.index(name)] for name in entry or ())
        for extents, _, spec in asked
        for entry, extent in zip(spec, shape, strict=True)
    )


@st.composite
def moves(draw: st.DrawFn) -> tuple[tuple[int, ...], Sharding, Sharding]:
    """Draw two shardings of an array on the same devices, whose meshes may be of other shapes and
    in other orders."""
    devices = draw(st.sampled_from([2, 4, 6, 8]))
    # Most specs divide these, so that few draws are thrown away.
    shape = tuple(
        draw(
            st.lists(st.sampled_from([8, 16] if devices != 6 else [6, 12]), min_size=1, max_size=2)
        )
    )
    source, target = (
        draw(shardings(len(shape), devices).filter(lambda each: cuts(shape, each)))
        for _ in range(2)
    )
    return shape, source, target


@settings(max_examples=25)
@example(move=((8,), ((2, 2), [0, 1, 2, 3], [["x", "y"]]), ((2, 2), [3, 1, 2, 0], [["y", "x"]])))
@given(move=moves())
def test_a_redistribution_ends_where_device_put_does(
    jax_says: Ask, move: tuple[tuple[int, ...], Sharding, Sharding]
) -> None:
    """The arrays of each device after `sv.redistribute` are the shards of `jax.device_put`, moved
    by its plan."""
    shape, *asked = move
    source, target = (layout(shape, each) for each in asked)
    whole = np.arange(prod(shape), dtype=np.int32).reshape(shape)
    parts = [
        [whole[region.slices] for region in source.regions(device)]
        for device in range(source.mesh.size)
    ]
    with sv.track_transfers() as ledger:
        result = sv.redistribute(parts, source, target)
    assert ledger.nbytes == plan_redistribution(source, target).sent(itemsize=4).sum()
    shards = dict(jax_says(shape, *asked))
    assert {device: arrays[0].tolist() for device, arrays in enumerate(result)} == shards


def test_a_partition_spec_is_taken_as_it_is() -> None:
    sharding = pytest.importorskip("jax", reason="JAX is not installed").sharding
    spec, mesh = sharding.PartitionSpec, Mesh((2, 2), ("x", "y"))
    assert named_sharding((8, 6), mesh, spec(("y", "x"), None)) == named_sharding(
        (8, 6), mesh, (("y", "x"),)
    )
    assert named_sharding((8, 6), mesh, spec(spec.UNCONSTRAINED, "x")) == named_sharding(
        (8, 6), mesh, (None, "x")
    )
    assert named_sharding((8, 6), mesh, spec("x", unreduced={"y"})).pending == ((1, "sum"),)
