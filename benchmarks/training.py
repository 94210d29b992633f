"""A training step of RFC 000's model, end to end: the RFC's "continuous performance benchmark".

RFC 000: "An end-to-end model training continuous performance benchmark will be added."
"""

from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np

import shardvar as sv
from benchmarks.figures import Figure
from benchmarks.recommenders import (
    NUM_SERVERS,
    Batch,
    Plain,
    Recommender,
    Sharded,
    TensorFlow,
    Values,
    draw_batches,
    initial_values,
)
from benchmarks.setting import Setting, skipped
from benchmarks.sizes import MIB
from benchmarks.timing import Comparison, Run, compare

DIM, SIZE = 64, 4096
SMALL_USERS, SMALL_DIM, SMALL_SIZE = 2_000, 16, 64
"""What takes so little time that the overhead of a step is most of it."""
NUM_BATCHES = 8
"""Steps of one run, each on a new batch."""
TARGET = 1.5
ROUNDING = 1e-3
"""Sums in other orders, after the steps of all runs with parameters of about 0.1; Adam divides them
by their size."""


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of training on three servers; the smallest first, before a peer starts its
    threads."""
    yield _overhead(setting.sizes.seconds)
    users = setting.sizes.training_users
    first, batches = (
        initial_values(users, users // 2, DIM),
        draw_batches(users, users // 2, SIZE, NUM_BATCHES),
    )
    for optimizer in ("SGD", "Adagrad", "Adam"):
        subject = f"training: {optimizer} step"
        ours, theirs = Sharded(first, optimizer), Plain(first, optimizer)
        found = compare(_run(ours, batches), _run(theirs, batches), setting.sizes.seconds)
        yield Figure(subject, "NumPy by hand", "", found.ratio, "x", TARGET, _a_step(found))
        yield _difference(
            f"{subject}s: parameters differ",
            "NumPy by hand",
            ours.values(),
            theirs.values(),
            ROUNDING,
        )
        del theirs
        yield from _beside_unsharded(subject, first, optimizer, batches)
        yield from _beside_tensorflow(subject, first, optimizer, batches, setting.sizes.seconds)
        if optimizer == "SGD":
            with sv.track_transfers() as ledger:
                ours.step(batches[0])
            note = ", ".join(
                f"{name} {traffic.nbytes / MIB:.2f} MiB"
                for name, traffic in ledger.operations.items()
            )
            yield Figure(
                f"{subject}: between devices", "", "", ledger.nbytes / MIB, "MiB", None, note
            )


def _beside_unsharded(
    subject: str, first: Values, optimizer: str, batches: list[Batch]
) -> Iterator[Figure]:
    """The law: a sharded step is the unsharded one, bit for bit."""
    values = []
    for num_servers in (NUM_SERVERS, 0):
        model = Sharded(first, optimizer, num_servers)
        _run(model, batches).call()
        values.append(model.values())
    yield _difference(f"{subject}s: parameters differ", "no strategy", *values, 0.0)


def _beside_tensorflow(
    subject: str, first: Values, optimizer: str, batches: list[Batch], seconds: float
) -> Iterator[Figure]:
    if find_spec("tensorflow") is None:
        yield skipped(subject, "TensorFlow", "TensorFlow is not installed")
        return
    ours, theirs = Sharded(first, optimizer), TensorFlow(first, optimizer)
    found = compare(_run(ours, batches), _run(theirs, batches), seconds)
    yield Figure(subject, "TensorFlow", "", found.ratio, "x", None, _a_step(found))
    if (
        optimizer == "SGD"
    ):  # whose rule is the same one; Keras 3's others treat rows that come twice in their own way
        yield _difference(
            f"{subject}s: parameters differ", "TensorFlow", ours.values(), theirs.values(), None
        )


def _overhead(seconds: float) -> Figure:
    """Return the overhead of a step over NumPy's, for a step with almost nothing to compute."""
    first = initial_values(SMALL_USERS, SMALL_USERS // 2, SMALL_DIM)
    batches = draw_batches(SMALL_USERS, SMALL_USERS // 2, SMALL_SIZE, NUM_BATCHES)
    found = compare(
        _run(Sharded(first, "SGD"), batches), _run(Plain(first, "SGD"), batches), seconds
    )
    beyond = (found.ours - found.theirs) / NUM_BATCHES * 1e6
    return Figure(
        f"training: SGD step of {SMALL_SIZE}, overhead",
        "NumPy by hand",
        "",
        beyond,
        "us",
        None,
        _a_step(found),
    )


def _run(model: Recommender, batches: list[Batch]) -> Run:
    def train() -> None:
        for batch in batches:
            model.step(batch)

    return Run(train)


def _a_step(found: Comparison) -> str:
    ours, theirs = found.ours / NUM_BATCHES * 1e3, found.theirs / NUM_BATCHES * 1e3
    return f"{ours:.2f} ms / {theirs:.2f} ms a step, {found.pairs} pairs"


def _difference(
    subject: str, against: str, ours: Values, theirs: Values, target: float | None
) -> Figure:
    """The most by which a parameter differs; infinite where one is NaN."""
    most = max(float(np.abs(value - theirs[name]).max()) for name, value in ours.items())
    return Figure(
        subject,
        against,
        "",
        most if np.isfinite(most) else np.inf,
        "",
        target,
        "the largest difference",
    )
