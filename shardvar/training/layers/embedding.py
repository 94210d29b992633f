"""Embedding: rows of a table by their ids."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array
from shardvar.nn import embedding_lookup, vjp
from shardvar.training.layers.layer import Layer, Pairs, Pullback, read_initializer
from shardvar.training.serialization import serializable, serialize
from shardvar.variables import Variable
from shardvar.variables.values import as_dtype


@serializable
class Embedding(Layer):
    """A table [vocab_size, embedding_size]; ids [*batch] become vectors [*batch, embedding_size].

    R-LAYER-1 (RFC 000): the table is created by ``sv.Variable``, and "the model can be used in unmodified training
    code": the scope decides whether it is sharded.  ``input_dim`` and ``output_dim`` are Keras's names of the sizes.

    >>> table = Embedding(4, 2, embeddings_initializer="ones")
    >>> table([[3, 0]]).tolist()
    [[[1.0, 1.0], [1.0, 1.0]]]
    """

    other_names: ClassVar[Mapping[str, str]] = {"embeddings": "_embeddings"}
    """Keras 3's."""

    def __init__(
        self,
        vocab_size: int | None = None,
        embedding_size: int | None = None,
        embeddings_initializer: Any = "uniform",
        *,
        max_norm: float | None = None,
        dtype: Any = "float32",
        name: str | None = None,
        input_dim: int | None = None,
        output_dim: int | None = None,
    ) -> None:
        super().__init__(name)
        self.vocab_size = _one_of(vocab_size=vocab_size, input_dim=input_dim)
        self.embedding_size = _one_of(embedding_size=embedding_size, output_dim=output_dim)
        self.max_norm = max_norm
        self._initializer = read_initializer(embeddings_initializer)
        shape = (self.vocab_size, self.embedding_size)
        with self.building():
            self.embeddings = Variable(self._initializer, name="embeddings", shape=shape, dtype=as_dtype(dtype))

    def __call__(self, inputs: Any) -> Array:
        return embedding_lookup(self.embeddings, inputs, self.max_norm)

    def vjp(self, inputs: Any) -> tuple[Array, Pullback]:
        value, pullback = vjp(embedding_lookup, self.embeddings, inputs, self.max_norm)

        def pull(upstream: Any) -> tuple[Pairs, None]:
            return list(pullback(upstream)[0]), None

        return value, pull

    def get_config(self) -> dict[str, Any]:
        return {
            "vocab_size": self.vocab_size,
            "embedding_size": self.embedding_size,
            "embeddings_initializer": serialize(self._initializer),
            "max_norm": self.max_norm,
            "dtype": np.dtype(self.embeddings.dtype).name,
            "name": self.name,
        }


def _one_of(**sizes: int | None) -> int:
    """The size that is given under one of two names."""
    given = [size for size in sizes.values() if size is not None]
    if len(given) != 1 or isinstance(given[0], bool) or not hasattr(given[0], "__index__") or given[0] < 0:
        raise ArgumentError(f"The sizes {sizes} are no size.", f"Give {' or '.join(sizes)}, an integer.")
    return int(given[0])
