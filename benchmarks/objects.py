"""Checkpoints of objects: a model with the slots of its optimizer, and one of very many small
variables.

Both sides fill variables that are there. The peers get the same tensors under the same names, as a
flat list of them is all that some of them know; shardvar matches a module and an optimizer by its
graph of objects.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np

import shardvar as sv
from benchmarks.arrays import peer_load, peer_save
from benchmarks.figures import Figure
from benchmarks.places import Place, emptied
from benchmarks.setting import Setting, skipped
from benchmarks.sizes import MIB
from benchmarks.timing import Run, compare
from shardvar.reference.objects.stored_graph import GRAPH_KEY, decode_graph

PEERS = ("TensorFlow", "DCP", "Orbax")
AHEAD = 1.0
FAR_AHEAD = 0.5
"""The margins of the large table, and of the tiny tensors."""
LINEAR = 1.5
"""Five times the variables take at most so much more than five times the time: memory is farther
when there is more."""


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of both models."""
    yield from _large(setting)
    yield from _many(setting)
    yield _decoded(setting)


def large_model(count: int) -> sv.Checkpoint:
    """A model of so many float32 tensors of 2 MiB, and the slots that Adam keeps for them."""
    draws = np.random.default_rng(0)
    model, optimizer = sv.Module(), sv.optimizers.Adam()
    model.layers = [
        sv.Variable(draws.standard_normal((512, 1024), np.float32), name="w") for _ in range(count)
    ]
    for variable in model.layers:
        for slot in ("m", "v"):
            optimizer.add_slot(variable, slot).assign(
                draws.standard_normal((512, 1024), np.float32)
            )
    return sv.Checkpoint(model=model, optimizer=optimizer)


def small_model(count: int) -> sv.Checkpoint:
    """A model of so many variables of 16 floats."""
    model = sv.Module()
    model.layers = [sv.Variable(np.full(16, number, np.float32)) for number in range(count)]
    return sv.Checkpoint(model=model)


def our_save(place: Place, checkpoint: sv.Checkpoint) -> Run:
    """``Checkpoint.write`` of a checkpoint that was not there before."""
    room = place.room("ours")
    return Run(lambda: checkpoint.write(room / "model"), emptied(room))


def our_restore(place: Place, checkpoint: sv.Checkpoint) -> Run:
    """``Checkpoint.read`` of what it wrote, all of it matched."""
    room = place.room("ours")
    checkpoint.write(room / "model")
    return Run(lambda: checkpoint.read(room / "model").assert_consumed())


def _decoded(setting: Setting) -> Figure:
    """Decode the object graph of many variables, and five times that of a fifth of them."""
    count, place = setting.sizes.variable_count, setting.quiet
    many, few = (_decoding(place, number) for number in (count, count // 5))
    found = compare(many, _five_times(few), setting.sizes.seconds)
    subject = f"decode the graph of {count} variables"
    return Figure(
        subject, f"5 x {count // 5} variables", place.name, found.ratio, "x", LINEAR, str(found)
    )


def _decoding(place: Place, count: int) -> Run:
    path = place.room(f"graph of {count}") / "model"
    small_model(count).write(path, format="tensorflow")
    with sv.open_checkpoint(path) as reader:
        message, keys = reader.read(GRAPH_KEY).item(), dict.fromkeys(reader)
    return Run(partial(decode_graph, message, keys))


def _large(setting: Setting) -> Iterator[Figure]:
    checkpoint = large_model(setting.sizes.object_count)
    arrays = _arrays(setting.quiet, checkpoint)
    subject = (
        f"{len(arrays)} tensors, {sum(array.nbytes for array in arrays.values()) / MIB:.0f} MiB, "
        "model and slots"
    )
    yield from _beside_peers(setting, subject, setting.quiet, checkpoint, arrays, AHEAD)


def _many(setting: Setting) -> Iterator[Figure]:
    count, place = setting.sizes.variable_count, setting.quiet
    few, many = small_model(count // 5), small_model(count)
    for verb, run in (("save", our_save), ("restore", our_restore)):
        found = compare(
            run(place, many), _five_times(run(place.within("few"), few)), setting.sizes.seconds
        )
        subject = f"{verb} {count} variables"
        yield Figure(
            subject, f"5 x {count // 5} variables", place.name, found.ratio, "x", LINEAR, str(found)
        )
    del few, many
    count = setting.sizes.tiny_count  # of more, one pair of a peer takes minutes
    model = small_model(count)
    arrays = _arrays(place, model)
    yield from _beside_peers(
        setting, f"{count} variables of 16 floats", place, model, arrays, FAR_AHEAD
    )


def _five_times(run: Run) -> Run:
    def call() -> None:
        for _ in range(5):
            run.call()

    return Run(call, run.before)


def _beside_peers(
    setting: Setting,
    subject: str,
    place: Place,
    checkpoint: sv.Checkpoint,
    arrays: dict[str, np.ndarray],
    target: float,
) -> Iterator[Figure]:
    for name, peer in setting.peers():
        if name not in PEERS:
            continue
        if peer is None:
            yield skipped(subject, name, f"{name} is not installed")
            continue
        for verb, ours, theirs in (
            ("save", our_save, peer_save),
            ("restore", our_restore, peer_load),
        ):
            pair = ours(place, checkpoint), theirs(place, arrays, peer)
            yield setting.ratio(f"{verb} {subject}", name, place, *pair, target)


def _arrays(place: Place, checkpoint: sv.Checkpoint) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint, by names that every peer takes, once it is seen that they are
    those that went in."""
    path = place.room("ours") / "model"
    checkpoint.write(path)
    loaded = sv.load(path)
    loaded.pop("_CHECKPOINTABLE_OBJECT_GRAPH")
    before = [variable.numpy() for variable in checkpoint.model.layers]
    for variable in checkpoint.model.layers:
        variable.assign(np.zeros_like(variable.numpy()))
    checkpoint.read(path).assert_consumed()
    if any((a != b.numpy()).any() for a, b in zip(before, checkpoint.model.layers, strict=True)):
        raise ValueError(f"{path} does not hold what was saved there.")
    return {f"tensor_{number:06d}": array for number, array in enumerate(loaded.values())}
