"""What RFC 001 says of sharding callbacks, sentence by sentence: callbacks that keep to it, and
some that do not.

Each is called by ``sv.Checkpoint``, as a user's would be.
"""

import logging
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import IncompleteCheckpoint, InconsistentTensor, PolicyError, UnknownKey
from shardvar.reference.devices import Device, device_scope

KEY = "x/.ATTRIBUTES/VARIABLE_VALUE"
X = np.arange(12, dtype=np.float32).reshape(6, 2)


class Callback(sv.ShardingCallback):
    """A callback that answers with what a function makes of the tensors, and keeps what it was
    given."""

    description = "does as it is told"

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.answer = answer
        self.given: list[Any] = []

    def __call__(self, shardable_tensors: Any, /) -> Any:
        self.given.append(shardable_tensors)
        return self.answer(shardable_tensors)


def one_file(tensors: Any) -> dict[str, dict[str, Any]]:
    shard: dict[str, dict[str, Any]] = {}
    for each in tensors:
        shard.setdefault(each.checkpoint_key, {})[each.slice_spec] = each.tensor
    return shard


def with_x(*parts: tuple[str, Any]) -> Callable[[Any], Any]:
    """Everything in one file, and of x these slices in its place."""
    return lambda tensors: [one_file(tensors) | {KEY: dict(parts)}]


def write(tmp_path: Path, policy: Any, **objects: Any) -> Any:
    checkpoint = sv.Checkpoint(**objects or {"x": sv.Variable(X)})
    return checkpoint.write(tmp_path / "model", policy=policy)


def refuse(tmp_path: Path, answer: Any, words: str, **objects: Any) -> None:
    """Fail unless the answer of a callback is refused before a byte is written."""
    with pytest.raises(PolicyError, match=words):
        write(tmp_path, Callback(answer), **objects)
    assert list(tmp_path.iterdir()) == []


def without_x(tensors: Any) -> Any:
    return [{key: value for key, value in one_file(tensors).items() if key != KEY}]


@pytest.mark.parametrize(
    ("answer", "loss"), [(without_x, "lost"), (with_x(("6 2 0,5:0,2", X[:5])), "lacks")]
)
def test_tensors_must_not_be_removed_nor_any_element(
    answer: Any, loss: str, tmp_path: Path
) -> None:
    """R-POLICY-1 (RFC 001): "Tensors must not be removed from the checkpoint." """
    refuse(tmp_path, answer, loss)


def test_a_slice_without_elements_is_stored_as_often_as_it_was_given(tmp_path: Path) -> None:
    """R-POLICY-1 (RFC 001): it overlaps with nothing, so that nothing else would notice that there
    are two."""
    empty, again = sv.Variable(X[:0]), {KEY: {"0 2 0,0:0,2": X[:0]}}
    words = r"stored .* of 'x/.*' once more"
    refuse(tmp_path, lambda tensors: [one_file(tensors), again], words, x=empty)
    assert write(tmp_path, Callback(lambda tensors: [one_file(tensors)]), x=empty).num_tensors == 2


@pytest.mark.parametrize("value", [X.T, X.reshape(-1), X[:, :1]])
def test_tensors_must_not_be_reshaped(value: Any, tmp_path: Path) -> None:
    """R-POLICY-2 (RFC 001): "Tensors must not be reshaped." """
    refuse(tmp_path, with_x(("", value)), "reshaped")
    part = ("6 2 0,4:0,2", X[:4].T), ("6 2 4,2:0,2", X[4:])
    words = r"reshaped .*: gave a value of shape \(2, 4\) for the slice \[0:4, 0:2\]"
    refuse(tmp_path, with_x(*part), words)


@pytest.mark.parametrize("dtype", ["float64", "int32", "float16", "bool"])
def test_dtypes_must_not_change(dtype: str, tmp_path: Path) -> None:
    """R-POLICY-3 (RFC 001): "Tensor dtypes must not change." """
    refuse(tmp_path, with_x(("", X.astype(dtype))), f"from float32 to {dtype}")


def test_tensors_may_be_sliced_anew_and_are_restored_as_they_were(tmp_path: Path) -> None:
    """R-POLICY-7 (RFC 001): "Tensor re-slicing in the callback is totally fine, though." Loading is
    none the wiser."""
    first = {KEY: {"6 2 4,2:0,2": X[4:]}}
    second = {KEY: {"6 2 0,4:1,1": X[:4, 1:], "6 2 0,4:0,1": X[:4, :1]}}
    report = write(tmp_path, Callback(lambda tensors: [first, one_file(tensors) | second]))
    assert (report.num_files, report.num_slices) == (2, 4)
    later = sv.Checkpoint()
    status = later.read(tmp_path / "model")
    later.x = sv.Variable(np.zeros_like(X))  # is restored when it appears
    status.assert_consumed()
    np.testing.assert_array_equal(later.x.numpy(), X)


def test_values_may_change(tmp_path: Path) -> None:
    """R-POLICY-13 (RFC 001): "normalized according to specified minimum/maximum values"."""
    write(tmp_path, Callback(with_x(("", (X - 1) / 9))))
    np.testing.assert_array_equal(sv.load(tmp_path / "model")[KEY], (X - 1) / 9)


def on(device: str, value: Any = X) -> sv.Variable:
    with device_scope(Device(f"/job:ps/task:{device}")):
        return sv.Variable(value)


def by_task(tensors: Any) -> list[Any]:
    tasks = dict.fromkeys(each.task for each in tensors)
    return [one_file([each for each in tensors if each.task == task]) for task in tasks]


def test_tensors_of_two_tasks_share_no_file(tmp_path: Path) -> None:
    """R-POLICY-8 (RFC 001): "Tensors within a shard must belong to the same task"; two devices of
    one may share."""
    objects = {"a": on("0/device:CPU:0"), "b": on("0/device:CPU:1"), "c": on("1")}
    words = r"several tasks in file 0: 'a.* of /job:ps.*'c.* of "
    refuse(tmp_path, lambda tensors: [one_file(tensors)], words, **objects)
    with pytest.raises(PolicyError, match=words):
        write(tmp_path, sv.AllInOnePolicy(), **objects)
    assert list(tmp_path.iterdir()) == []
    # The third is the coordinator's, for the graph of objects.
    assert write(tmp_path, Callback(by_task), **objects).num_files == 3


def test_a_file_a_task_is_the_default_and_a_file_a_device_is_to_be_had(tmp_path: Path) -> None:
    """R-POLICY-10 (RFC 001): "sharding by task and sharding according to a maximum file size will
    be provided"."""
    both = {"a": on("0/device:CPU:0"), "b": on("0/device:CPU:1")}
    assert write(tmp_path / "task", None, **both).num_files == 2  # and the graph's
    assert write(tmp_path / "device", sv.ShardByDevicePolicy(), **both).num_files == 3
    assert max(write(tmp_path / "size", sv.MaxShardSizePolicy(16), **both).file_nbytes[:6]) <= 16


def test_a_callback_is_told_all_of_a_tensor(tmp_path: Path) -> None:
    """R-POLICY-11 (RFC 001): "including `TensorSpec`, checkpoint key, and `Trackable`"."""
    variable, callback = sv.ShardedVariable([on("2", X[:4]), on("2", X[4:])]), Callback(by_task)
    write(tmp_path, callback, x=variable)
    first, second = (each for each in callback.given[0] if each.checkpoint_key == KEY)
    assert (first.shape, second.shape) == ((4, 2), (2, 2))
    assert first.dtype == second.dtype == np.float32
    assert (first.slice_spec, second.slice_spec) == ("6 2 0,4:0,2", "6 2 4,2:0,2")
    assert first.trackable is variable and "task:2" in first.device == first.tensor.device
    assert first.name == variable.name == first.tensor.name
    assert callback.given[0][-1].trackable is None and len({*callback.given[0]}) == 3
    with pytest.raises(AttributeError):
        first.dtype = None
    np.testing.assert_array_equal(np.asarray(second.tensor), X[4:])


@pytest.mark.parametrize(
    "answer", [None, 3, "files", [[X]], [{KEY: X}], [{3: {"": X}}], {KEY: {"": X}}]
)
def test_an_answer_is_a_list_of_dictionaries(answer: Any, tmp_path: Path) -> None:
    """R-POLICY-12 (RFC 001): "which is a list of dictionaries"; anything else is refused before a
    byte is written."""
    refuse(tmp_path, lambda tensors: answer, ".")


def test_a_callback_is_called_once_a_save_which_tells_what_came_of_it(tmp_path: Path) -> None:
    """R-POLICY-5: "only be called once for a given `checkpoint.save()` call".

    R-POLICY-16: "number of shards, callback description", and latency.
    """
    callback = Callback(lambda tensors: [one_file(tensors)])
    report = write(tmp_path, callback)
    assert len(callback.given) == 1 and report.callback_seconds > 0
    assert (report.description, report.num_files) == ("does as it is told", 1)


@pytest.mark.parametrize("form", ["shardvar", "safetensors"])
def test_the_description_is_saved_and_told_where_restoring_fails(form: str, tmp_path: Path) -> None:
    """R-POLICY-6: "saved alongside the tensor data in the checkpoint, and can be used to assist
    with debugging"."""
    callback = Callback(lambda tensors: [one_file(tensors)])
    sv.Checkpoint(x=sv.Variable(X)).write(tmp_path / "model", policy=callback, format=form)
    told = "The checkpoint was written with the policy 'does as it is told'."
    with sv.open_checkpoint(tmp_path / "model") as reader:
        assert reader.metadata.description == "does as it is told"
        with pytest.raises(UnknownKey) as unknown:
            reader.read("c")
    with pytest.raises(InconsistentTensor) as inconsistent:
        sv.Checkpoint(x=sv.Variable(X[:2])).read(tmp_path / "model")
    errors = [unknown, inconsistent]
    if form == "shardvar":
        next(tmp_path.glob("*data*")).unlink()
        with pytest.raises(IncompleteCheckpoint) as missing:
            sv.load(tmp_path / "model")
        errors.append(missing)
    for caught in errors:
        assert str(caught.value).endswith(told) and str(caught.value).count("was written with") == 1


def test_what_exceeds_the_limit_is_a_warning_that_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """R-POLICY-15 (RFC 001): "If the partition is larger than the max shard size, then we log a
    warning." """
    tensors = {"s": np.array([b"a long string"], object)}
    with caplog.at_level(logging.WARNING):
        report = sv.save(tmp_path / "m", tensors, policy=sv.MaxShardSizePolicy(4))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "'s'" in caplog.text and len(report.exceeding) == 1


def test_a_callback_moves_no_values(tmp_path: Path) -> None:
    """R-POLICY-19 (RFC 001): it "doesn't actually move around GBs of data when sharding", and
    cutting reads nothing."""
    large, peaks = np.zeros((1 << 20, 8), np.float32), list[int]()

    def measured(tensors: Any) -> Any:
        tracemalloc.start()
        [each] = tensors
        parts = [
            {"x": {"1048576 8 0,9:0,8": each.tensor[:9]}},
            {"x": {"1048576 8 9,1048567:0,8": each.tensor[9:]}},
        ]
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        return parts

    sv.save(tmp_path / "m", {"x": large}, policy=Callback(measured))
    assert len(peaks) == 1 and peaks[0] < large.nbytes // 100
