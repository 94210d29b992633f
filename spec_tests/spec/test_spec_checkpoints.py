"""Chapters 10 and 11: checkpoints and policies equal their plain rules."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import PolicyError, ShardvarError
from shardvar.layout.dtypes import Array, numpy_dtype
from shardvar.reference.variables import AggregatingVariable, MirroredVariable
from shardvar.spec import checkpoints, gradients, partitions, policies, variables
from shardvar.testing import bits
from spec_tests.helpers.embedding_tables import shard
from spec_tests.helpers.max_shard_size_twin import Tensors, answer

DTYPES = "uint8 int8 int64 uint64 bool float16 bfloat16 float32 float64 complex128".split()
sizes = st.lists(st.integers(0, 3), min_size=1, max_size=5)


@given(sizes, st.sampled_from(DTYPES), st.sampled_from([(), (2,), (1, 2)]), st.data())
def test_restored_to_other_shards(
    tmp_path_factory: pytest.TempPathFactory,
    cut: list[int],
    dtype: str,
    row: tuple[int, ...],
    data: st.DataObject,
) -> None:
    """R-CKPT-1 (RFC 000): "being able to save sharded variable to a checkpoint, and restore it to
    possibly a different number of shards." R-CKPT-1 (RFC 002): "as long as the new
    `PartitionedVariable` has the same full shape"."""
    value = data.draw(bits(numpy_dtype(dtype), (sum(cut), *row)))
    ends = sorted(data.draw(st.lists(st.integers(0, sum(cut)), max_size=3)))
    other = [stop - start for start, stop in zip([0, *ends], [*ends, sum(cut)], strict=True)]
    path = tmp_path_factory.mktemp("a") / "model"
    sv.Checkpoint(w=shard(value, cut)).write(path)
    again = shard(np.zeros_like(value), other)
    sv.Checkpoint(w=again).read(path)
    slices = checkpoints.save({"w": variables.shard(value, cut)})
    plain = checkpoints.restore(slices, "w", other)
    with pytest.raises(KeyError):
        checkpoints.restore(slices, "v", other)
    assert [np.asarray(each).tobytes() for each in again.variables] == [
        each.tobytes() for each in plain
    ]


@settings(max_examples=20)
@given(sizes.filter(sum), sizes, st.integers(0, 9))
def test_slots_are_restored_to_other_shards(
    tmp_path_factory: pytest.TempPathFactory, cut: list[int], other: list[int], seed: int
) -> None:
    """R-SLOT-2 (RFC 000): "At saving/loading time, optimizer sees sharded variable as a
    ShardedVariable instance for the purpose of elastic saving and loading."."""
    value = np.random.default_rng(seed).normal(size=(sum(cut), 2))
    other = [*cut[::-1], 0] if sum(other) != sum(cut) else other
    saved, optimizer = shard(value, cut), sv.optimizers.Momentum(0.5, 0.5)
    optimizer.apply_gradients([(np.asarray(each) * 2, each) for each in saved.variables])
    path = tmp_path_factory.mktemp("a") / "model"
    sv.Checkpoint(w=saved, optimizer=optimizer).write(path)
    again, fresh = shard(np.zeros_like(value), other), sv.optimizers.Momentum(0.5, 0.5)
    fresh.add_slot(again, "momentum")
    sv.Checkpoint(w=again, optimizer=fresh).read(path)
    slot = [np.asarray(each) for each in optimizer.get_slot(saved, "momentum").variables]
    plain = checkpoints.restore(checkpoints.save({"momentum": slot}), "momentum", other)
    came = fresh.get_slot(again, "momentum").variables
    assert [each.numpy().tolist() for each in came] == [each.tolist() for each in plain]


@given(
    st.lists(st.integers(1, 4), max_size=2),
    st.sampled_from(["whole", "drop", "overlap", "move", "stranger", "cast"]),
    st.data(),
)
def test_slices_are_combined_or_refused(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], damage: str, data: st.DataObject
) -> None:
    """R-POLICY-7 (RFC 001): "`restore()` will need to combine those to form the original tensor
    (slice)". R-DAMAGE-1 (RFC 001): "all variables present before saving will be available for
    loading and restoration"."""
    value = np.arange(int(np.prod(shape))).reshape(shape).astype(np.float32)
    cut = [data.draw(st.integers(1, 3)) for _ in shape]
    parts = [
        part
        for part in partitions.grid(partitions.axis_sizes(shape, cut))
        if all(part[1]) or not part[1]
    ]
    regions = [sv.Region(*part) for part in data.draw(st.permutations(parts))]
    slices: list[checkpoints.Slice] = [
        ("w", shape, each.offset, np.array(value[each.slices])) for each in regions
    ]
    if damage == "drop":
        slices = slices[1:]
    elif damage == "overlap" and len(slices) > 1:
        slices.append(("w", shape, [0] * len(shape), value))
    elif damage == "move" and shape:
        key, full, offset, array = slices[0]
        slices[0] = (key, full, [offset[0] + 1, *offset[1:]], array)
    elif damage == "cast" and len(slices) > 1:
        slices[0] = (*slices[0][:3], slices[0][3].astype(np.float64))
    path = tmp_path_factory.mktemp("a") / "model"
    key = "v" if damage == "stranger" else "w"
    try:
        plain = checkpoints.combine(slices, key)
    except (ValueError, KeyError):
        with pytest.raises((ShardvarError, KeyError)):
            _write_and_read(path, slices, key)
        return
    assert np.array_equal(_write_and_read(path, slices, key), plain)
    assert np.array_equal(plain, value)


def _write_and_read(path: Path, slices: list[checkpoints.Slice], key: str) -> Array:
    """The slices as one process holds them, written and read."""
    shards = [sv.LocalShard(array, offset, tuple(full)) for _, full, offset, array in slices]
    sv.save_shards(path, {"w": shards}, process=0, num_processes=1, run="a")
    return np.asarray(sv.load(path)[key])


def files_of(answered: Any) -> policies.Files:
    """The answer of a callback as plain files."""
    files: policies.Files = []
    for shards in answered:
        file = []
        for key, parts in shards.items():
            for text, array in parts.items():
                offset: Any = [0] * array.ndim
                if text:
                    offset = checkpoints.parse_slice_text(text)[1][0]
                file.append((key, tuple(offset), tuple(array.shape)))
        files.append(sorted(file))
    return files


def sized(tensors: Tensors) -> list[policies.Tensor]:
    return [(key, numpy_dtype(dtype).itemsize, shape) for key, dtype, shape in tensors]


def in_order(files: policies.Files) -> policies.Files:
    return [sorted(file) for file in files]


tensor_lists = st.lists(
    st.tuples(
        st.sampled_from(["int8", "float16", "float32", "float64"]),
        st.lists(st.integers(0, 5), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=4,
).map(lambda rows: [(f"t{number}", *row) for number, row in enumerate(rows)])


@given(tensor_lists, st.integers(8, 60))
def test_max_shard_size(tensors: Tensors, limit: int) -> None:
    """R-POLICY-4 (RFC 001): "without those shards exceeding a specified size". R-POLICY-14
    (RFC 001): "so we don't create more shards than is necessary"."""
    came = files_of(answer(tensors, sv.MaxShardSizePolicy(limit)))
    plain = policies.max_shard_size(sized(tensors), limit)
    assert came == in_order(plain)
    item = {key: nbytes for key, nbytes, _ in sized(tensors)}
    for file in plain:
        assert sum(int(np.prod(shape)) * item[key] for key, _, shape in file) <= limit
    assert len(plain) >= policies.fewest_files(sized(tensors), limit)


@given(tensor_lists, st.integers(40, 80))
def test_cuts_of_tensorflow(tensors: Tensors, limit: int) -> None:
    kept = [each for each in tensors if 0 not in each[2]]
    policy = sv.MaxShardSizePolicy(limit, compat="tensorflow")
    came = [file for file in files_of(answer(kept, policy)) if file]
    assert came == in_order(policies.filled(sized(kept), limit, policies.even))


@given(tensor_lists, st.data())
def test_grouped(tensors: Tensors, data: st.DataObject) -> None:
    """R-POLICY-8 (RFC 001): "all tensors in a shard must belong to the same task". R-POLICY-10
    (RFC 001): "Callback to split tensors into shards based on their device."."""
    number = st.integers(0, 2)
    tasks = data.draw(st.lists(number, min_size=len(tensors), max_size=len(tensors)))
    units = data.draw(st.lists(number, min_size=len(tensors), max_size=len(tensors)))
    given_tensors = []
    for (key, dtype, shape), task, unit in zip(tensors, tasks, units, strict=True):
        array = np.zeros(shape, numpy_dtype(dtype))
        device = f"/job:ps/replica:0/task:{task}/device:GPU:{unit}"
        given_tensors.append(
            sv.ShardableTensor(array, array.dtype, device, key, array.shape, "", key)
        )
    by_task = policies.grouped(sized(tensors), tasks)
    assert sorted(files_of(sv.ShardByTaskPolicy()(given_tensors))) == sorted(in_order(by_task))
    both = [3 * task + unit for task, unit in zip(tasks, units, strict=True)]
    by_device = policies.grouped(sized(tensors), both)
    assert sorted(files_of(sv.ShardByDevicePolicy()(given_tensors))) == sorted(in_order(by_device))


@given(st.integers(2, 4), st.integers(1, 3), st.data())
def test_restrictions(
    tmp_path_factory: pytest.TempPathFactory, rows: int, columns: int, data: st.DataObject
) -> None:
    """R-POLICY-9 (RFC 001): "will perform validation checks after running the callback function".
    R-POLICY-1 (RFC 001): "Tensors must not be removed from the checkpoint." R-POLICY-2 (RFC 001):
    "Tensors must not be reshaped." R-POLICY-3 (RFC 001): "Tensor dtypes must not change." R-POLICY-8
    (RFC 001): "Tensors within a shard must belong to the same task.": what the plain rule finds
    broken is refused, and nothing else."""
    value = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    middle = data.draw(st.integers(1, rows - 1))
    halves = [([0, 0], value[:middle]), ([middle, 0], value[middle:])]
    change = data.draw(st.sampled_from(["none", "drop", "double", "cast", "reshape", "invent"]))
    full, key = [rows, columns], "w"
    if change == "drop":
        halves.pop(data.draw(st.integers(0, 1)))
    elif change == "double":
        halves.append(halves[0])
    elif change == "cast":
        halves = [(at, part.astype(np.float64)) for at, part in halves]
    elif change == "reshape":
        full, halves = [columns, rows], [([0, 0], value.reshape(columns, rows))]
    elif change == "invent":
        key = "v"
    plain = policies.broken_restrictions(
        {"w": ("float32", [rows, columns], 0)},
        [[(key, part.dtype.name, full, at, part.shape)] for at, part in halves],
    )

    class Answers(sv.ShardingCallback):
        description = "Answers with slices."

        def __call__(self, shardable_tensors: Any, /) -> Any:
            return [
                {key: {checkpoints.format_slice_text(full, (at, part.shape)): part}}
                for at, part in halves
            ]

    try:
        sv.save(tmp_path_factory.mktemp("a") / "model", {"w": value}, policy=Answers())
    except PolicyError:
        assert plain != []
    else:
        assert plain == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["int8", "float16", "float32", "float64"]),
            st.lists(st.integers(1, 6), max_size=2).map(tuple),
        ),
        min_size=1,
        max_size=3,
    ).map(lambda rows: [(f"t{number}", *row) for number, row in enumerate(rows)]),
    st.integers(1, 4),
)
def test_balanced(tensors: Tensors, num_files: int) -> None:
    """Payloads end to end, cut at the row that is nearest to each even mark, where none is empty."""
    plain = policies.balanced(sized(tensors), num_files)
    assume(all(plain))
    given_tensors = [
        sv.ShardableTensor(x := np.zeros(shape, dtype), x.dtype, "", key, x.shape, "", key)
        for key, dtype, shape in tensors
    ]
    assert files_of(sv.BalancedPolicy(num_files)(given_tensors)) == in_order(plain)


@given(tensor_lists, st.integers(1, 60))
def test_files_above_the_limit(
    tmp_path_factory: pytest.TempPathFactory, tensors: Tensors, limit: int
) -> None:
    """R-POLICY-15 (RFC 001): "If the partition is larger than the max shard size, then we log a
    warning.": of an element that is larger than the limit."""
    arrays = {key: np.zeros(shape, dtype) for key, dtype, shape in tensors}
    report = sv.save(
        tmp_path_factory.mktemp("a") / "model", arrays, policy=sv.MaxShardSizePolicy(limit)
    )
    files = policies.max_shard_size(sized(tensors), limit)
    assert len(report.exceeding) == len(policies.exceeding(sized(tensors), files, limit))


@given(tensor_lists, st.integers(8, 60), st.data())
def test_a_policy_in_the_files_of_another(
    tensors: Tensors, limit: int, data: st.DataObject
) -> None:
    """R-POLICY-17 (RFC 001): "we can even get some callback composition going". R-POLICY-13
    (RFC 001): "Each model gets its own shard."."""
    number = st.integers(0, 2)
    tasks = data.draw(st.lists(number, min_size=len(tensors), max_size=len(tensors)))
    given_tensors = []
    for (key, dtype, shape), task in zip(tensors, tasks, strict=True):
        array, device = np.zeros(shape, dtype), f"/job:ps/replica:0/task:{task}"
        given_tensors.append(
            sv.ShardableTensor(array, array.dtype, device, key, array.shape, "", key)
        )
    policy = sv.compose(sv.ShardByTaskPolicy(), sv.MaxShardSizePolicy(limit))
    plain = policies.composed(
        sized(tensors),
        lambda given: policies.grouped(given, tasks),
        lambda given: policies.max_shard_size(given, limit),
    )
    assert sorted(files_of(policy(given_tensors))) == sorted(in_order(plain))


@settings(max_examples=20)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.text(min_size=1), st.booleans())
def test_what_is_asked_and_kept(
    tmp_path_factory: pytest.TempPathFactory, rows: list[int], text: str, loses: bool
) -> None:
    """R-POLICY-5 (RFC 001): "only be called once for a given `checkpoint.save()` call". R-POLICY-6
    (RFC 001): "The `description` is saved alongside the tensor data in the checkpoint". R-POLICY-12
    (RFC 001): "in `tensors_by_shard`, which is a list of dictionaries"."""
    arrays = {f"t{number}": np.zeros(count, np.int8) for number, count in enumerate(rows)}
    calls: list[Any] = []

    class Each(sv.ShardingCallback):
        description = text

        def __call__(self, shardable_tensors: Any, /) -> Any:
            calls.append(self)
            return [{t.checkpoint_key: {"": t.tensor}} for t in shardable_tensors][loses:]

    def plain(given: Any) -> Any:
        calls.append(None)
        return [[(key, dtype, full, [0], full)] for key, (dtype, full, _) in given.items()][loses:]

    path = tmp_path_factory.mktemp("a") / "model"
    described = {key: ("int8", array.shape, 0) for key, array in arrays.items()}
    try:
        description, files = policies.asked(described, text, plain)
    except ValueError:
        with pytest.raises(PolicyError):
            sv.save(path, arrays, policy=Each())
    else:
        report = sv.save(path, arrays, policy=Each())
        with sv.open_checkpoint(path) as reader:
            assert reader.metadata.description == description
        assert report.num_files == len(files)
    assert len(calls) == 2


def test_a_file_of_two_tasks_is_found_among_files_of_one() -> None:
    tensors = {key: ("int8", [1], task) for task, key in enumerate("abc")}
    a, b, c = ((key, "int8", [1], [0], [1]) for key in "abc")
    assert policies.broken_restrictions(tensors, [[a, b], [c]]) == ["mixed tasks"]
    assert policies.broken_restrictions(tensors, [[a], [b], [c]]) == []


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: checkpoints.parse_slice_text("3 4 0,1"), "has 2 axes and 1 extents"),
        (lambda: partitions.indices(((0, 0), (1,))), "shorter"),
        (lambda: gradients.densified(([0, 1], np.ones(1)), [3]), "shorter"),
    ],
)
def test_what_belongs_together_is_of_one_length(call: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()


@given(sizes.filter(sum), st.integers(1, 4), st.booleans())
def test_exports(
    tmp_path_factory: pytest.TempPathFactory, cut: list[int], servers: int, as_shards: bool
) -> None:
    """R-EXPORT-1 (RFC 000): "one generally wants to save sharded variable as single variable".
    R-EXPORT-4 (RFC 000): "Users can also choose to save sharded variable as it is". R-EXPORT-2,
    R-EXPORT-3 (RFC 000): "thus the per-layer scope is lost across save/load". R-SERIAL-1 (RFC 002):
    "load a saved model to a cluster of different number of parameter servers"."""
    value = np.arange(2.0 * sum(cut)).reshape(-1, 2)
    path = tmp_path_factory.mktemp("a") / "model"
    sv.export({"w": shard(value, cut)}, path, as_shards=as_shards)
    parts = {"w": variables.shard(value, cut)}
    slices = checkpoints.export(parts, as_shards)
    assert len(checkpoints.export(parts)) == 1
    with sv.open_checkpoint(path) as reader:
        entries = reader.entries()
        found = [
            (entries.slices.region(row).offset, entries.slices.region(row).shape)
            for row in range(len(entries))
            if entries.slices.region(row).rank == 2
        ]
    assert sorted(found) == sorted((at, each.shape) for *_, at, each in slices if each.size)
    with sv.ParameterServerStrategy(servers, sv.FixedShardsPartitioner(servers)).scope():
        made = sv.load_exported(path).w
    shards = made.variables if isinstance(made, sv.ShardedVariable) else [made]
    plain = checkpoints.load_exported(slices, "w", min(servers, len(value)))
    assert [each.numpy().tolist() for each in shards] == [each.tolist() for each in plain]


@settings(max_examples=20)
@given(sizes, sizes)
def test_one_copy_of_a_mirrored_variable_is_saved(
    tmp_path_factory: pytest.TempPathFactory, cut: list[int], other: list[int]
) -> None:
    """R-CKPT-2 (RFC 002): "update `AggregatingVariable` and `MirroredVariable`'s
    `_gather_saveables_for_checkpoint` method"."""
    other = other if sum(other) == sum(cut) else cut[::-1]
    value = np.arange(float(sum(cut)))
    path = tmp_path_factory.mktemp("a") / "model"
    variable = MirroredVariable([shard(value, cut), shard(value, other)])
    sv.Checkpoint(w=AggregatingVariable(variable, "SUM")).write(path)
    slices = checkpoints.save_mirrored(
        {"w": [variables.shard(value, cut), variables.shard(value, other)]}
    )
    again = sv.Variable(np.zeros_like(value))
    sv.Checkpoint(w=again).read(path)
    assert np.array_equal(again.numpy(), checkpoints.combine(slices, "w"))
    with sv.open_checkpoint(path) as reader:
        held = [key for key in reader if value.size and np.array_equal(reader[key], value)]
    assert len(held) == bool(value.size)
