"""An adapter of TensorFlow: variables under a ``ParameterServerStrategy``, ``tf.train.Checkpoint``,
Keras's optimizers.

What a user of TensorFlow would write, on a cluster of two parameter servers and a worker in this
process, at ports of the loopback interface that the system chose. ``tf.Variable`` under the
strategy's scope makes the sharded variables; TensorFlow has no public name for their class, which
is asked for only where shards of given sizes are put together.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partialmethod
from typing import Any

import numpy as np

import shardvar as sv
from shardvar.conformance.adapters import (
    CountOrSizes,
    GradientSteps,
    PartArrays,
    ShapeLike,
    Sharded,
    SlotArrays,
    Tensors,
)
from shardvar.layout.dtypes import Array
from shardvar.spec.partitions import intervals

_Training = tuple[dict[str, Any], Any]
"""Variables and their optimizer."""
_Files = Sequence[Sequence[tuple[str, int, Array]]]

_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
_INITIALIZERS: dict[str, Callable[[Any, int], Any]] = {
    "zeros": lambda tf, _seed: tf.zeros_initializer(),
    "ones": lambda tf, _seed: tf.ones_initializer(),
    "random_uniform": lambda tf, seed: tf.random_uniform_initializer(seed=seed),
    "random_normal": lambda tf, seed: tf.random_normal_initializer(seed=seed),
    "truncated_normal": lambda tf, seed: tf.keras.initializers.TruncatedNormal(seed=seed),
    "glorot_uniform": lambda tf, seed: tf.keras.initializers.GlorotUniform(seed=seed),
}
_OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda tf: tf.keras.optimizers.SGD(0.1),
    "momentum": lambda tf: tf.keras.optimizers.SGD(0.1, momentum=0.9),
    "adagrad": lambda tf: tf.keras.optimizers.Adagrad(0.1),
    "adam": lambda tf: tf.keras.optimizers.Adam(0.1),
}


class Adapter(Sharded):
    @cached_property
    def _tf(self) -> Any:
        # Level 3 hides the log of the C++ runtime, which would drown the table. It is read when
        # TensorFlow is imported.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        import tensorflow

        return tensorflow

    @cached_property
    def _strategy(self) -> Any:
        tf = self._tf
        addresses: dict[str, list[str]] = {"worker": [], "ps": []}
        self._servers = []
        for job in ("worker", "ps", "ps"):
            task = len(addresses[job])
            # The port is unknown until the server has started at port 0 and names its address in
            # ``target``. So each server knows only the servers that started before it, and the
            # strategy gets the whole list.
            own = {
                name: [*some, *(["localhost:0"] if name == job else [])]
                for name, some in addresses.items()
            }
            server = tf.distribute.Server(
                {job: own[job]}, job_name=job, task_index=task, protocol="grpc"
            )
            addresses[job].append(server.target.removeprefix("grpc://"))
            self._servers.append(server)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(addresses), rpc_layer="grpc"
        )
        return tf.distribute.ParameterServerStrategy(resolver, self._partition)

    def _partition(self, shape: Any, dtype: Any) -> Any:
        """Partition as the created variable asks; a strategy has one partitioner for all."""
        return self._partitioner(shape, dtype)

    def _variable(self, initial: Any, partitioner: Callable[..., Any], **options: Any) -> Any:
        strategy = self._strategy
        self._partitioner = partitioner
        with strategy.scope():
            return self._tf.Variable(initial, **options)

    def div(self, length: int, num_shards: int) -> list[tuple[int, int]]:
        # TensorFlow's partitioner answers with fewer shards then, so the pairs would be too few.
        if length < num_shards:
            raise NotImplementedError("shards without rows")
        return super().div(length, num_shards)

    def regions(
        self, shape: ShapeLike, counts: ShapeLike
    ) -> list[tuple[list[int], tuple[int, ...]]]:
        if any(count > 1 for count in counts[1:]):
            raise NotImplementedError("only the first axis is cut")
        if shape[0] < counts[0]:
            raise NotImplementedError("shards without rows")
        parts = self.shards(self.create_partitioned(np.zeros(shape), counts))
        starts = [start for start, _ in intervals([len(part) for part in parts])]
        return [
            ([start, *[0] * (len(shape) - 1)], part.shape)
            for start, part in zip(starts, parts, strict=True)
        ]

    def _partitioner_of(self, name: str, *limits: int) -> Any:
        return getattr(self._tf.distribute.experimental.partitioners, name)(*limits)

    def _counts(self, name: str, shape: ShapeLike, dtype: Any, *limits: int) -> Any:
        tf, partitioner = self._tf, self._partitioner_of(name, *limits)
        return partitioner(tf.TensorShape(shape), tf.as_dtype(dtype))

    fixed_shards = partialmethod(_counts, "FixedShardsPartitioner")
    min_size = partialmethod(_counts, "MinSizePartitioner")
    max_size = partialmethod(_counts, "MaxSizePartitioner")

    def create(self, value: Array, num_shards: int) -> Any:
        return self._variable(value, self._partitioner_of("FixedShardsPartitioner", num_shards))

    def create_uneven(self, value: Array, sizes: ShapeLike) -> Any:
        from tensorflow.python.distribute.sharded_variable import ShardedVariable

        return ShardedVariable(
            [self._tf.Variable(part) for part in np.split(value, np.cumsum(sizes)[:-1])]
        )

    def create_partitioned(self, value: Array, counts: ShapeLike) -> Any:
        return self._variable(value, lambda shape, dtype: list(counts))

    def read(self, handle: Any) -> Array:
        value: Array = self._tf.convert_to_tensor(handle).numpy()
        return value

    def index(self, handle: Any, key: Any) -> Any:
        return handle[key].numpy()

    def matmul(self, left: Array, handle: Any) -> Any:
        return self._tf.matmul(left, handle).numpy()

    def lookup(self, handle: Any, ids: Array) -> Any:
        return self._tf.nn.embedding_lookup(handle, ids).numpy()

    def sparse_read(self, handle: Any, ids: Array) -> Any:
        return handle.sparse_read(self._tf.constant(ids)).numpy()

    def lookup_clipped(self, handle: Any, ids: Array, max_norm: float) -> Any:
        return self._tf.nn.embedding_lookup(handle, ids, max_norm=max_norm).numpy()

    def lookup_bags(self, handle: Any, bags: Any, weights: Any, combiner: str) -> Any:
        tf = self._tf
        sparse = tf.RaggedTensor.from_row_lengths(
            np.array([item for bag in bags for item in bag], np.int64), [len(bag) for bag in bags]
        ).to_sparse()
        given = None
        if weights is not None:
            flat = np.array([item for bag in weights for item in bag], np.float32)
            # The lookup wants weights with the same indices as the ids.
            given = tf.SparseTensor(sparse.indices, flat, sparse.dense_shape)
        return tf.nn.embedding_lookup_sparse(handle, sparse, given, combiner=combiner).numpy()

    def _given(self, value: Array) -> Any:
        return self._tf.constant(value)

    @property
    def _slices(self) -> Any:
        return self._tf.IndexedSlices

    def initialize(
        self, kind: str, shape: ShapeLike, dtype: Any, num_shards: int, seed: int
    ) -> PartArrays:
        made = _INITIALIZERS[kind](self._tf, seed)
        return self._initialized(
            lambda **partition: made(tuple(shape), dtype, **partition), shape, dtype, num_shards
        )

    def initialize_whole(
        self, function: Any, shape: ShapeLike, dtype: Any, num_shards: int
    ) -> PartArrays:
        return self._initialized(lambda: function(tuple(shape), dtype), shape, dtype, num_shards)

    def initialize_parts(
        self, function: Any, shape: ShapeLike, dtype: Any, num_shards: int
    ) -> PartArrays:
        def initial(partition_shape: Any = None, partition_offset: Any = None) -> Any:
            return function(tuple(shape), dtype, partition_shape, partition_offset)

        return self._initialized(initial, shape, dtype, num_shards)

    def _initialized(
        self, initial: Any, shape: ShapeLike, dtype: Any, num_shards: int
    ) -> PartArrays:
        return self.shards(
            self._variable(
                initial,
                self._partitioner_of("FixedShardsPartitioner", num_shards),
                shape=tuple(shape),
                dtype=dtype,
            )
        )

    def _begin(self, kind: str, variables: dict[str, Any]) -> _Training:
        optimizer = _OPTIMIZERS[kind](self._tf)
        # With its slots, so that the assertion of ``_load`` is about them too.
        optimizer.build(_components(variables))
        return variables, optimizer

    def _train(self, training: _Training, gradients: GradientSteps) -> None:
        tf, (handles, optimizer) = self._tf, training
        components = _components(handles)
        for step in gradients:
            with tf.GradientTape() as tape:
                losses = []
                for key, handle in handles.items():
                    gradient = step[key]
                    if isinstance(gradient, tuple):
                        rows = tf.nn.embedding_lookup(handle, gradient[0]) * gradient[1]
                    else:
                        rows = tf.convert_to_tensor(handle) * gradient
                    losses.append(tf.reduce_sum(rows))
                loss = tf.add_n(losses)
            optimizer.apply_gradients(zip(tape.gradient(loss, components), components, strict=True))

    def _slots(self, training: _Training) -> dict[str, SlotArrays]:
        handles, optimizer = training
        if len(handles) > 1:
            raise NotImplementedError("slots by variable, which Keras has in one list")
        slots: SlotArrays = {}
        for variable in optimizer.variables:
            # Keras lists its step counter and its rate among the variables; the others are slots.
            if variable.path.rpartition("/")[2] not in ("iteration", "learning_rate"):
                slots.setdefault(variable.path.rpartition("_")[2], []).append(np.asarray(variable))
        return dict.fromkeys(handles, slots)

    def _write(self, training: _Training, path: str, _layout: CountOrSizes) -> None:
        self._tf.train.Checkpoint(variables=training[0], optimizer=training[1]).write(path)

    def _load(self, training: _Training, path: str, _layout: CountOrSizes) -> None:
        checkpoint = self._tf.train.Checkpoint(variables=training[0], optimizer=training[1])
        checkpoint.read(path).assert_existing_objects_matched()

    def save(self, path: str, tensors: Tensors, num_shards: int, callback: Any = None) -> None:
        self._write_all(path, self._laid_out(tensors, num_shards), callback)

    def _write_all(self, path: str, variables: dict[str, Any], callback: Any) -> None:
        options = self._tf.train.CheckpointOptions(experimental_sharding_callback=callback)
        # ``write`` uses the path as it is; ``save`` would append a number.
        self._tf.train.Checkpoint(**variables).write(path, options)

    def restore(self, path: str, templates: Tensors, layout: CountOrSizes) -> dict[str, Array]:
        variables = self._laid_out(templates, layout)
        # Without the assertion a variable that the checkpoint lacks would silently keep its junk.
        self._tf.train.Checkpoint(**variables).read(path).assert_existing_objects_matched()
        return {key: self.read(variable) for key, variable in variables.items()}

    restore_uneven = restore

    def list_tensors(self, path: str) -> dict[str, tuple[tuple[int, ...], str]]:
        reader = self._tf.train.load_checkpoint(path)
        dtypes = reader.get_variable_to_dtype_map()
        return {
            _key(name): (tuple(shape), dtypes[name].name)
            for name, shape in reader.get_variable_to_shape_map().items()
            if name.endswith(_SUFFIX)
        }

    def read_rows(self, path: str, key: str, start: int, stop: int) -> Any:
        # Dots first, since the escape of a slash brings a dot: a.b/c becomes a..b/c and then
        # a..b.Sc.
        name = key.replace(".", "..").replace("/", ".S") + _SUFFIX
        return self._tf.train.load_variable(path, name)[start:stop]

    def save_parts(
        self, path: str, key: str, shape: ShapeLike, dtype: Any, parts: Sequence[Any]
    ) -> None:
        rest = tuple(shape[1:])
        if not shape or any(any(offset[1:]) or part.shape[1:] != rest for offset, part in parts):
            raise NotImplementedError("parts that are not whole rows")
        if any(part.dtype != dtype for _, part in parts):
            # TensorFlow aborts the process: "Check failed: full_entry->dtype() ==".
            raise NotImplementedError("parts of another dtype, which end the process")
        # The zeros only announce the shape and dtype; the values come from the callback.
        rows = [(key, offset[0], part) for offset, part in parts]
        self.save_by_callback(
            path, {key: np.zeros(shape, dtype)}, lambda _tensors: [rows], "the given parts"
        )

    def save_limited(self, path: str, tensors: Tensors, num_shards: int, max_nbytes: int) -> None:
        self.save(
            path, tensors, num_shards, self._tf.train.experimental.MaxShardSizePolicy(max_nbytes)
        )

    def file_nbytes(self, path: str) -> list[int]:
        # Only its index, read by shardvar, has the file of each tensor.
        nbytes: Counter[int] = Counter()
        with sv.open_checkpoint(path) as checkpoint:
            entries = checkpoint.entries()
            for row, file in enumerate(entries.file.tolist()):
                stored = entries.slices[row]
                # Times 0 for the object graph: its file is listed, though it holds no payload.
                nbytes[file] += stored.nbytes * stored.key.endswith(_SUFFIX)
        return list(nbytes.values())

    def save_by_callback(
        self, path: str, tensors: Tensors, callback: Any, description: str
    ) -> None:
        # On servers a callback is given symbols, not values; the kit's want values, which variables
        # of one host have.
        tf = self._tf
        variables = {key: tf.Variable(value) for key, value in tensors.items()}
        self._write_all(path, variables, _callback(tf, callback, description))


def _components(handles: Mapping[str, Any]) -> list[Any]:
    """Return the shards of variables: Keras's optimizers know no sharded variables (R-OPT-5)."""
    return [one for handle in handles.values() for one in getattr(handle, "variables", [handle])]


def _key(name: str) -> str:
    """Return the key of a tensor; ``tf.train.Checkpoint`` escapes the separators in names."""
    return re.sub(
        r"\.(.)", lambda found: "/" if found[1] == "S" else found[1], name.removesuffix(_SUFFIX)
    )


def _callback(tf: Any, callback: Callable[[dict[str, Array]], _Files], description: str) -> Any:
    """Return a callback of the kit as one of TensorFlow; the object graph gets a separate file."""

    def whole(given: Any) -> dict[str, dict[Any, Any]]:
        return {given.checkpoint_key: {given.slice_spec: given.tensor}}

    def files(tensors: Sequence[Any]) -> Iterator[dict[str, dict[Any, Any]]]:
        variables = {
            _key(one.checkpoint_key): one for one in tensors if one.checkpoint_key.endswith(_SUFFIX)
        }
        yield from (whole(one) for one in tensors if not one.checkpoint_key.endswith(_SUFFIX))
        for parts in callback({key: one.tensor.numpy() for key, one in variables.items()}):
            file: dict[str, dict[Any, Any]] = {}
            for key, row, part in parts:
                given = variables[key]
                # The slice cuts the row off again for a scalar, which has no axes.
                offsets = [row, *[0] * (part.ndim - 1)][: part.ndim]
                slice_spec = tf.Variable.SaveSliceInfo(
                    full_name=given.checkpoint_key,
                    full_shape=list(given.shape),
                    var_offset=offsets,
                    var_shape=list(part.shape),
                ).spec
                # An empty text is TensorFlow's slice spec of a whole tensor.
                is_whole = part.shape == tuple(given.shape)
                file.setdefault(given.checkpoint_key, {})["" if is_whole else slice_spec] = (
                    tf.constant(part)
                )
            yield file

    # Defined here, since its base class exists only once TensorFlow is imported.
    class Callback(tf.train.experimental.ShardingCallback):  # type: ignore[misc]
        @property
        def description(self) -> str:
            return description

        def __call__(self, shardable_tensors: Sequence[Any]) -> list[dict[str, dict[Any, Any]]]:
            return list(files(shardable_tensors))

    return Callback()
