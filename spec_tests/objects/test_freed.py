"""Models and checkpoints are freed when they are dropped, without the garbage collector, whatever
was restored."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv

FORMATS = ["shardvar", "tensorflow", "safetensors", "npz"]


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect what others left, and nothing more until the block ends."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def build(value: float = 1.0) -> Any:
    """Return a model of two layers, a list, a dictionary, a tuple and a sharded variable."""
    model = sv.Module()
    model.layer = sv.layers.Dense(2, input_dim=3)
    model.blocks = [sv.Variable([value]), {"a": sv.Variable([value])}, (sv.Variable([value]),)]
    model.table = sv.ShardedVariable([sv.Variable([[value]]), sv.Variable([[value], [value]])])
    return model


def trained(model: Any) -> Any:
    optimizer = sv.optimizers.Adam(0.1)
    optimizer.apply_gradients(
        [(np.ones(shard.shape, np.float32), shard) for shard in model.table.variables]
    )
    return optimizer


def consumed(path: Path) -> list[Any]:
    model, optimizer = build(), sv.optimizers.Adam(0.1)
    status = sv.Checkpoint(model=model, optimizer=optimizer).read(path)
    optimizer.add_slot(model.table, "m"), optimizer.add_slot(model.table, "v")
    status.assert_consumed()
    return [model, model.table, optimizer, status]


def partial(path: Path) -> list[Any]:
    model, optimizer = build(), sv.optimizers.Adam(0.1)
    checkpoint = sv.Checkpoint(model=model, optimizer=optimizer)
    status = checkpoint.read(path).expect_partial()
    assert status.unmatched_keys
    return [model, model.layer.kernel, optimizer, checkpoint, status]


def deferred(path: Path) -> list[Any]:
    model = sv.Module()
    checkpoint = sv.Checkpoint(model=model)
    checkpoint.read(path).expect_partial()
    model.blocks = [sv.Variable([0.0])]
    assert float(model.blocks[0].numpy()[0]) == 1.0
    return [model, model.blocks[0], checkpoint]


def slots_first(path: Path) -> list[Any]:
    """Slots wait for their variable, which never comes."""
    model = build()
    optimizer = trained(model)
    checkpoint = sv.Checkpoint(optimizer=optimizer)
    checkpoint.read(path).expect_partial()
    return [model, model.table, optimizer, checkpoint]


def several(path: Path) -> list[Any]:
    model = sv.Module()
    for _ in range(3):
        sv.Checkpoint(model).read(path).expect_partial()
        sv.Checkpoint(model=model).read(path).expect_partial()
    model.layer = sv.layers.Dense(2, input_dim=3)
    return [model, model.layer]


def contained(path: Path) -> list[Any]:
    model = build()
    checkpoint = sv.Checkpoint(all={"model": [model, [model.table]]}, model=model)
    checkpoint.read(path).expect_partial()
    return [model, model.table, checkpoint]


def failed(path: Path) -> list[Any]:
    model = build()
    model.table = sv.Variable([0.0])
    checkpoint = sv.Checkpoint(model=model)
    with pytest.raises(sv.errors.InconsistentTensor):
        checkpoint.read(path)
    return [model, model.layer, checkpoint]


def copied(path: Path) -> list[Any]:
    model, _, optimizer, checkpoint, *_ = partial(path)
    twins = deepcopy((model, optimizer))
    return [model, optimizer, checkpoint, *twins]


def saved_again(path: Path) -> list[Any]:
    model = build()
    checkpoint = sv.Checkpoint(model=model, more=[model.table])
    checkpoint.write(path.parent / "again")
    checkpoint.save(path.parent / "series")
    handle: Any = checkpoint.save(path.parent / "series", background=True)
    handle.join()
    sv.export({"m": [model]}, path.parent / "exported")
    return [model, model.table, checkpoint]


CASES = [consumed, partial, deferred, slots_first, several, contained, failed, copied, saved_again]


@pytest.mark.sample(7)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_was_restored_is_freed_when_it_is_dropped(
    tmp_path: Path, form: str, case: Callable[[Path], list[Any]]
) -> None:
    model = build()
    path = tmp_path / {"npz": "model.npz", "safetensors": "model.safetensors"}.get(form, "model")
    sv.Checkpoint(model=model, optimizer=trained(model)).write(path, format=form)
    with uncollected():
        references = [weakref.ref(each) for each in case(path)]
        assert [type(reference()) for reference in references if reference() is not None] == []


def test_what_a_container_gives_up_is_freed_though_its_checkpoint_is_kept(tmp_path: Path) -> None:
    kept = {"a": sv.Variable(1.0), "b": sv.Variable(2.0)}
    checkpoint = sv.Checkpoint(kept=kept)
    with uncollected():
        checkpoint.write(tmp_path / "model")
        reference = weakref.ref(kept.pop("a"))
        assert reference() is None
