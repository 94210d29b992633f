"""Optimizers and gradients for tests."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.reference.training.optimizers import SGD, Adagrad, Adam, Momentum, Optimizer, RMSprop
from shardvar.reference.variables import IndexedSlices
from spec_tests.helpers.embedding_tables import Table, ids_for

MAKERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda compat: SGD(0.1, compat=compat),
    "momentum": lambda compat: Momentum(0.1, 0.9, compat=compat),
    "nesterov": lambda compat: Momentum(0.1, 0.9, nesterov=True, compat=compat),
    "adagrad": lambda compat: Adagrad(0.1, compat=compat),
    "adam": lambda compat: Adam(0.1, compat=compat),
    "rmsprop": lambda compat: RMSprop(0.1, compat=compat),
}
COMPATS = ["keras_legacy", "v1", "keras3"]
ANY = st.builds(
    lambda name, compat: MAKERS[name](compat),
    st.sampled_from(sorted(MAKERS)),
    st.sampled_from(COMPATS),
)


@st.composite
def gradients(draw: st.DrawFn, table: Table) -> Any:
    """Dense, or rows with duplicates."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if draw(st.booleans()):
        return random.normal(size=table.full.shape).astype(np.float32)
    ids = np.array(draw(ids_for(table.rows)), np.int64)
    return IndexedSlices(
        random.normal(size=(len(ids), *table.full.shape[1:])).astype(np.float32),
        ids,
        table.full.shape,
    )
