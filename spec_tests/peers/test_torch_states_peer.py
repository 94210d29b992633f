"""``shardvar.torch.save`` and ``load``: any nesting, any mesh, and each difference by its name."""

import importlib.util
import io
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointNotFound,
    CorruptCheckpoint,
    ShardvarError,
    UnsupportedError,
)
from shardvar.layout.dtypes import numpy_dtype
from shardvar.planning.index import find_ties
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket
from spec_tests.helpers.nearest import halfway, nearest
from spec_tests.helpers.torch_training import KINDS, Other, differences, emptied, run_training

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
dcp = pytest.importorskip("torch.distributed.checkpoint", reason="PyTorch is not installed")
face = pytest.importorskip("shardvar.torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")

TABLE = torch.arange(52, dtype=torch.float32).reshape(13, 4)


class Loader:
    """A data loader with a state."""

    def __init__(self, position: int) -> None:
        self.position = position

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "order": torch.arange(5)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


def nested() -> dict[str, Any]:
    return {
        "model": {"table": TABLE.clone(), "columns": TABLE.T, "half": torch.ones(3).bfloat16()},
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "groups": [{"lr": 0.1, "betas": (0.9, 0.99), "state": torch.arange(3)}, {"names": {"a"}}],
        "lists": [[1, 2], [torch.ones(2)]],
        "plain": [1, None, "text", b"bytes", 2**70, torch.float16, torch.Size([2])],
        "nothing": {},
        "flag": True,
    }


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("form", ["shardvar", "torch"])
def test_arrays_of_numpy_come_back_as_arrays(form: str, background: bool, tmp_path: Path) -> None:
    """As tensors in the native format, of any size; the states of generators are objects."""
    table = np.arange(24, dtype=np.int32).reshape(4, 6)
    fixed = np.arange(3.0)
    fixed.flags.writeable = False
    arrays = {"t": table.T, "b": table.astype(">f4"), "r": table[::-2], "f": fixed, "e": np.zeros((0, 2)),
              "s": np.array(4, np.uint16), "large": np.ones(1 << (18 if form == "shardvar" else 4))}  # fmt: skip
    generator = np.random.Generator(np.random.Philox(1)).bit_generator
    state = {
        "list": [table, 3],
        "rng": np.random.RandomState(1).get_state(),
        "gen": generator.state,
        **arrays,
    }
    saved = face.save(tmp_path / "ck", state, run="1", format=form, background=background)
    if background:
        saved.join()
    loaded = {"list": [np.zeros_like(table), 0], "rng": None, "gen": generator.state}
    loaded |= {key: np.zeros_like(array) for key, array in arrays.items()}
    face.load(tmp_path / "ck", loaded)
    for key, array in arrays.items():
        assert type(loaded[key]) is np.ndarray and np.array_equal(loaded[key], array)
    assert np.array_equal(loaded["list"][0], table) and loaded["list"][1] == 3
    assert str(loaded["rng"]) == str(state["rng"]) and str(loaded["gen"]) == str(state["gen"])
    if form == "torch":
        with pytest.raises(UnsupportedError, match="is an array of NumPy"):
            sv.reshard(tmp_path / "ck", tmp_path / "x.safetensors")
        sv.reshard(tmp_path / "ck", tmp_path / "x.pt")
        assert np.array_equal(sv.load(tmp_path / "x.pt", "t")["t"], table.T)
    if form == "shardvar":
        found = sv.load(tmp_path / "ck")
        assert {key for key, each in found.items() if each.dtype != object} == {"list.0", *arrays}


@pytest.mark.parametrize("place", ["disk", "bucket"])
@pytest.mark.parametrize("form", ["shardvar", "torch"])
def test_a_nested_state_is_saved_and_loaded_in_place(form: str, place: str, tmp_path: Path) -> None:
    path = f"{'s3://bucket/run' if place == 'bucket' else tmp_path}/ck"
    with in_bucket(MemoryBucket()):
        for run in ("1", "2"):
            face.save(path, nested(), run=run, format=form, metadata={"by": "a test"})
            state = emptied(nested())
            tensor = state["model"]["table"]
            report = face.load(path, state)
            assert differences(state, nested()) == [] and state["model"]["table"] is tensor
            assert report == face.LoadReport((), ())
            with sv.open_checkpoint(path) as reader:
                assert reader.metadata.user == {"by": "a test"} and reader.format == form


@pytest.mark.parametrize("background", [False, True])
def test_a_save_with_a_base_writes_what_has_changed(background: bool, tmp_path: Path) -> None:
    """Also through numbered steps, where a step that leaves keeps the files that others need."""
    steps = sv.SavedSteps(tmp_path, using=face, keep_last=1)
    for number in range(1, 4):
        state = {**nested(), "changing": torch.full((7,), number)}
        report = steps.save(number, state, incremental=True, background=background)
        report = report.result() if background else report
        assert number == 1 or (report.nbytes, report.num_referred) == (56, 6)
    found = {**emptied(nested()), "changing": torch.zeros(7, dtype=torch.int64)}
    assert steps.restore(found).number == 3
    assert differences(found, state) == []
    assert sv.verify(tmp_path / "step-3").ok
    with pytest.raises(ArgumentError, match="format torch, which has no references"):
        face.save(tmp_path / "ck", state, run="1", format="torch", base=tmp_path / "step-3")


def training(seed: int, kind: type) -> dict[str, Any]:
    """Return the objects of a training job, before its first step."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight = model[0].weight
    frozen = torch.nn.Parameter(torch.randn(2), requires_grad=False)
    groups = [{"params": [*model[0].parameters()], "lr": 0.01}, {"params": [frozen, model[1].bias]}]
    optimizer = kind([*groups, {"params": []}], lr=0.1)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=3),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
        ],
        [3],
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0 * (seed + 1))
    job = {"model": model, "optim": optimizer, "schedule": schedule, "scaler": scaler}
    return {**job, "best": None, "parts": [{"loader": Loader(seed)}]}


def steps(job: dict[str, Any], count: int) -> list[str]:
    """Train; return the losses."""
    losses = []
    for _ in range(count):
        loss = job["model"](torch.randn(3, 4)).square().sum()
        loss.backward()
        job["optim"].step()
        job["schedule"].step()
        job["optim"].zero_grad()
        losses.append(loss.item().hex())
    return losses


@pytest.mark.parametrize("form", ["shardvar", "torch"])
@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Adagrad", "Adafactor", "RMSprop"])
def test_a_new_job_resumes_with_the_losses_of_the_old_one(
    kind: str, form: str, tmp_path: Path
) -> None:
    """With tied weights, a frozen parameter, a group without any, schedules, a scaler and a loader;
    the optimizer has not made a step when it is loaded."""
    job = training(0, getattr(torch.optim, kind))
    steps(job, 4)
    state = {**job, "rng": torch.get_rng_state()}
    face.save(tmp_path / "ck", state, run="1", format=form, background=True, digest=form != "torch")
    expected = steps(job, 4)
    new = training(7, getattr(torch.optim, kind))
    state = {**new, "rng": torch.get_rng_state(), "best": 5}
    face.load(tmp_path / "ck", state)
    torch.set_rng_state(state["rng"])
    assert steps(new, 4) == expected and state["best"] is None
    assert new["model"][0].weight is new["model"][1].weight
    assert new["scaler"].state_dict() == job["scaler"].state_dict()
    assert new["parts"][0]["loader"].position == 0


@pytest.mark.parametrize("background", [False, True])
def test_tied_tensors_are_stored_once_and_fill_a_model_with_or_without_the_tie(
    background: bool, tmp_path: Path
) -> None:
    """Small ones, and views that only overlap, are stored for each key."""
    weight = torch.nn.Parameter(torch.randn(200, 100))
    flat = weight.detach().view(-1)
    state = {
        "tokens": weight,
        "head": weight.detach(),
        "rows": weight.detach()[:190],
        "columns": weight.detach().view(100, 200),
        "bits": weight.detach().view(torch.int32),
        "flat": flat,
        "small": flat[:10],
        "small too": flat[:10],
    }
    saved = face.save(tmp_path / "ck", state, run="1", background=background, digest=True)
    if background:
        saved.result()
    with sv.open_checkpoint(tmp_path / "ck") as reader:
        assert find_ties(reader.entries()) == {"tokens": "head"}
        assert dict(reader.digests) == sv.digest(tmp_path / "ck").tensors
    assert sv.verify(tmp_path / "ck").ok
    for is_tied in (True, False):
        found = emptied(state)
        if is_tied:
            found["head"] = found["tokens"].detach()
        assert face.load(tmp_path / "ck", found) == face.LoadReport((), ())
        assert differences(found, state) == []


def test_a_tensor_of_a_gpu_in_an_object_is_loaded_where_no_gpu_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not torch.accelerator.is_available()
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda _storage: "cuda:0")
        face.save(tmp_path / "ck", {"o": (torch.arange(3), 1)}, run="1", format="torch")
    with pytest.raises(dcp.api.CheckpointException, match="CUDA"):
        dcp.load({"o": None}, checkpoint_id=tmp_path / "ck", no_dist=True)
    state = {"o": None}
    face.load(tmp_path / "ck", state, trusted=True)
    assert torch.equal(state["o"][0], torch.arange(3)) and state["o"][0].device.type == "cpu"


def test_the_shards_of_a_sharded_tensor_are_regions_of_one(tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed._shard.sharded_tensor import Shard, init_from_local_shards

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/m", rank=0, world_size=1)
    try:

        def divided(values: Any) -> Any:
            parts = [(0, 5), (5, 13)]
            return init_from_local_shards(
                [
                    Shard.from_tensor_and_offsets(values[start:stop].clone(), [start, 0], 0)
                    for start, stop in parts
                ],
                [13, 4],
            )

        for background in (False, True):
            saved = face.save(
                tmp_path / f"{background}", {"w": divided(TABLE)}, run="1", background=background
            )
            if background:
                saved.result()
            assert np.array_equal(sv.load(tmp_path / f"{background}")["w"], TABLE)
            target = divided(torch.zeros(13, 4))
            face.load(tmp_path / f"{background}", {"w": target})
            whole = torch.cat([each.tensor for each in target.local_shards()])
            assert torch.equal(whole, TABLE)
    finally:
        dist.destroy_process_group()


def test_what_dcp_saves_is_loaded_and_dcp_loads_what_is_saved(tmp_path: Path) -> None:
    dcp.save(nested(), checkpoint_id=tmp_path / "dcp", no_dist=True)
    state = emptied(nested())
    face.load(tmp_path / "dcp", state)
    assert differences(state, nested()) == []
    face.save(tmp_path / "ours", nested(), run="1", format="torch")
    state = emptied(nested())
    dcp.load(state, checkpoint_id=tmp_path / "ours", no_dist=True)
    assert differences(state, nested()) == []


def test_keys_that_differ_are_an_error_that_lists_them_unless_it_is_not_strict(
    tmp_path: Path,
) -> None:
    face.save(tmp_path / "ck", {"w": TABLE, "old": 1}, run="1")
    state = {"w": torch.zeros(13, 4), "new": 2}
    with pytest.raises(ArgumentError, match=r"ck lacks 'new'; the state lacks 'old'\. .*strict=F"):
        face.load(tmp_path / "ck", state)
    assert not state["w"].any()
    report = face.load(tmp_path / "ck", state, strict=False)
    assert report == face.LoadReport(("new",), ("old",))
    assert torch.equal(state["w"], TABLE) and state["new"] == 2


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(12, 4), r"'w' is \[13, 4\] in .*, and \[12, 4\] in the state"),
        (torch.zeros(13, 4).double(), "'w' is float32 in .*, and float64 in the state"),
        (5, "'w' is a tensor in .*, and not in the state"),
    ],
)
def test_a_tensor_that_differs_is_an_error_and_nothing_is_changed(
    value: Any, message: str, tmp_path: Path
) -> None:
    face.save(tmp_path / "ck", {"first": TABLE, "w": TABLE}, run="1")
    state = {"first": torch.zeros(13, 4), "w": value}
    with pytest.raises(ArgumentError, match=message):
        face.load(tmp_path / "ck", state)
    assert not state["first"].any()


def test_an_object_is_not_loaded_into_a_tensor_and_a_cast_is_asked_for(tmp_path: Path) -> None:
    face.save(tmp_path / "ck", {"w": TABLE, "step": 7}, run="1")
    with pytest.raises(ArgumentError, match="'step' is a tensor in the state, and has the dtype s"):
        face.load(tmp_path / "ck", {"w": TABLE.clone(), "step": torch.tensor(0)})
    state = {"w": torch.zeros(13, 4).double(), "step": 0}
    face.load(tmp_path / "ck", state, cast=True)
    assert torch.equal(state["w"], TABLE.double()) and state["step"] == 7


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16"])
def test_a_cast_of_float64_rounds_once(name: str, tmp_path: Path) -> None:
    """torch's own conversion rounds to float32 first."""
    dtype = numpy_dtype(name)
    values = halfway(dtype)
    face.save(tmp_path / "ck", {"w": torch.from_numpy(values.copy())}, run="1")
    state = {"w": torch.zeros(len(values), dtype=getattr(torch, name))}
    face.load(tmp_path / "ck", state, cast=True)
    found = state["w"].to(torch.float64).numpy()
    assert np.array_equal(found, nearest(values, dtype).astype(np.float64))


def test_what_cannot_be_saved_is_refused_by_name_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ck"
    with pytest.raises(ArgumentTypeError, match="The state is a list"):
        face.save(path, [TABLE], run="1")
    with pytest.raises(ArgumentError, match=r"two values with the key 'a\.b'"):
        face.save(path, {"a.b": 1, "a": {"b": 2}}, run="1")
    with pytest.raises(UnsupportedError, match="'other': .*Other"):
        face.save(path, {"other": Other()}, run="1")
    with pytest.raises(ArgumentTypeError, match="'f' is a function, which cannot be saved"):
        face.save(path, {"f": lambda: 1}, run="1")
    assert [*tmp_path.iterdir()] == []
    face.save(path, {"other": Other()}, run="1", format="torch")
    with pytest.raises(UnsupportedError, match="trusted=True"):
        face.load(path, {"other": None})
    state = {"other": None}
    face.load(path, state, trusted=True)
    assert state == {"other": Other()}


class Marked(torch.Tensor):  # type: ignore[misc]
    """A tensor that is only its elements, and attributes."""


def two(first: float, second: float) -> Any:
    from torch.testing._internal.two_tensor import TwoTensor

    return TwoTensor(torch.full((3,), float(first)), torch.full((3,), float(second)))


def marked(value: float) -> Any:
    tensor = torch.full((2,), float(value)).as_subclass(Marked)
    tensor.scale = value
    return tensor


def float8(seed: int) -> Any:
    """A quantised weight of torchao, if it is installed."""
    if importlib.util.find_spec("torchao") is None:
        return two(seed, seed)
    from torchao.quantization import Float8WeightOnlyConfig, quantize_

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32, bias=False)).bfloat16()
    quantize_(model, Float8WeightOnlyConfig())
    return model.state_dict()["0.weight"]


def int4(value: int) -> Any:
    """The same of four bits, which torchao makes on a GPU."""
    if importlib.util.find_spec("torchao") is None:
        return two(value, value)
    from torchao.quantization import Int4Tensor

    scale = torch.full((1, 8), float(value)).bfloat16()
    codes = torch.full((8, 16), value, dtype=torch.int8)
    return Int4Tensor(codes, scale, scale.clone(), [1, 32], torch.Size([8, 32]))


def queue(length: int, value: float) -> list[Any]:
    return [{0: torch.full((2,), value * n), "a.b": n} for n in range(length)]


@pytest.mark.parametrize("form", ["shardvar", "torch"])
@pytest.mark.parametrize(
    "values",
    [
        lambda: (io.BytesIO(b"octets"), io.BytesIO(b"before")),
        lambda: (two(1, 2), two(0, 0)),
        lambda: (marked(2), marked(0)),
        lambda: (float8(1), float8(2)),
        lambda: (int4(3), int4(0)),
        lambda: ([torch.ones(2), torch.ones(3), None], [torch.zeros(2)]),
        lambda: ([torch.ones(2)], [torch.zeros(2), torch.zeros(1), 5]),
        lambda: ([torch.ones(2), 1], []),
        lambda: ([], [torch.ones(2)]),
        lambda: (queue(12, 1.0), queue(1, 0.0)),
        lambda: (queue(2, 1.0), queue(12, 0.0)),
        lambda: ([queue(3, 1.0), queue(2, 2.0)], [queue(1, 0.0), queue(4, 0.0)]),
        lambda: ({"w": torch.ones(3, 2)}, {"w": torch.ones(3, 2, device="meta")}),
    ],
)
def test_values_of_a_state_come_back_in_their_form(
    values: Callable[[], tuple[Any, Any]], form: str, tmp_path: Path
) -> None:
    """In a folder that was empty, as trainers make it; bytes, parts, attributes, and lengths of lists."""
    (tmp_path / "ck").mkdir()
    saved, given = values()
    state = {"x": given, "y": 1}
    face.save(tmp_path / "ck", {"x": saved, "y": 2}, run="1", format=form)
    face.load(tmp_path / "ck", state)
    assert form_of(state) == form_of({"x": saved, "y": 2})
    with pytest.raises(sv.errors.TargetExists, match="overwrite"):
        face.save(tmp_path / "ck", {"y": 3}, run="2", format=form, overwrite=False)
    writer = face.StorageWriter(tmp_path / "ck", format=form, overwrite=False)
    with pytest.raises(dcp.api.CheckpointException, match="already exists"):
        dcp.save({"y": torch.ones(1)}, storage_writer=writer, no_dist=True)


def form_of(value: Any) -> Any:
    if isinstance(value, io.BytesIO):
        return "stream", value.getvalue()
    if isinstance(value, dict):
        return {key: form_of(each) for key, each in value.items()}
    if isinstance(value, list):
        return [*map(form_of, value)]
    if hasattr(value, "__tensor_flatten__"):
        return type(value), [
            form_of(getattr(value, name)) for name in value.__tensor_flatten__()[0]
        ]
    return (type(value), str(vars(value)), str(value)) if isinstance(value, Marked) else str(value)


@pytest.mark.parametrize("form", ["shardvar", "torch"])
def test_a_model_without_memory_and_the_history_of_lbfgs_are_restored(
    form: str, tmp_path: Path
) -> None:
    """On the device meta, with tied weights; the optimizer was made before."""

    def job(device: str) -> tuple[Any, Any]:
        with torch.device(device):
            model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
            model.tied = model[0].weight
        return model, torch.optim.LBFGS(model.parameters(), history_size=3)

    def train(model: Any, optimizer: Any) -> list[float]:
        def closure() -> Any:
            optimizer.zero_grad()
            loss = (model(batch) - model.tied).square().mean()
            loss.backward()
            return loss

        batch = torch.arange(16.0).reshape(4, 4).sin()
        return [optimizer.step(closure).item() for _ in range(2)]

    model, optimizer = job("cpu")
    train(model, optimizer)
    face.save(tmp_path / "ck", {"model": model, "optim": optimizer}, run="1", format=form)
    losses = train(model, optimizer)
    again = job("meta")
    face.load(tmp_path / "ck", {"model": again[0], "optim": again[1]})
    assert again[0].tied is again[0][0].weight and train(*again) == losses


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("strided", "'x' is a nested tensor"),
        ("jagged", "'x' is a nested tensor"),
        (torch.nn.LazyLinear(3), r"'x\.bias' is of a lazy module"),
        (two(1, 2), "'x' is a TwoTensor in the checkpoint"),
    ],
    ids=["nested", "jagged", "lazy", "other class"],
)
def test_tensors_of_other_kinds_are_refused_by_name(
    value: Any, message: str, tmp_path: Path
) -> None:
    if isinstance(value, str):
        layout = getattr(torch, value)
        value = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)

    class Other(type(two(1, 2))):  # type: ignore[misc]
        pass

    with pytest.raises(ShardvarError, match=message):
        face.save(tmp_path / "ck", {"x": value}, run="1")
        face.load(tmp_path / "ck", {"x": Other(torch.ones(3), torch.ones(3))})


def test_parts_without_memory_are_refused(tmp_path: Path) -> None:
    """Memory of a part alone would not be the tensor's."""
    face.save(tmp_path / "ck", {"x": two(1, 2)}, run="1")
    with torch.device("meta"):
        given = two(0, 0)
    with pytest.raises(ArgumentError, match=r"'x\.\w+' is on the device meta"):
        face.load(tmp_path / "ck", {"x": given})


def test_a_damaged_byte_is_found(tmp_path: Path) -> None:
    face.save(tmp_path / "ck", {"w": TABLE}, run="1")
    (file,) = tmp_path.glob("*.svdata*")
    content = bytearray(file.read_bytes())
    content[content.index(TABLE.numpy().tobytes()) + 5] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match="'w'"):
        face.load(tmp_path / "ck", {"w": torch.zeros(13, 4)})


def test_processes_that_hold_different_values_all_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads are two processes here; with ``replicas="first"`` the first one's value counts."""
    import threading

    from shardvar.torch import training_states

    def processes() -> tuple[int, int]:
        name = threading.current_thread().name
        return (int(name[-1]) if name.startswith("process") else 0), 2

    monkeypatch.setattr(training_states, "processes", processes)

    runs = iter("123")

    def save_all(states: list[dict[str, Any]], **options: Any) -> list[BaseException | None]:
        run = next(runs)

        def save(process: int) -> BaseException | None:
            threading.current_thread().name = f"process {process}"
            try:
                face.save(tmp_path / "ck", states[process], run=run, timeout=60, **options)
            except ShardvarError as error:
                return error
            return None

        with ThreadPoolExecutor(2) as pool:
            return [*pool.map(save, range(2))]

    for states in (
        [{"step": 1, "w": TABLE}, {"step": 2, "w": TABLE}],
        [{"w": TABLE}, {"w": TABLE + 1}],
    ):
        raised = save_all(states)
        assert all("process" in str(error) for error in raised)
        with pytest.raises(CheckpointNotFound):
            sv.open_checkpoint(tmp_path / "ck")
    assert save_all([{"step": 1}, {"step": 2}], replicas="first") == [None, None]
    state = {"step": 0}
    face.load(tmp_path / "ck", state)
    assert state == {"step": 1}


PLACEMENTS = ["R", "S0", "S1", "SS0"]


@pytest.mark.parametrize("mesh", [(3,), (2, 2), (3, 2)], ids=str)
def test_the_regions_of_every_placement_are_what_distribute_tensor_gives(
    mesh: tuple[int, ...],
) -> None:
    """What the writing processes hold tiles the tensor; every process holds the values of its
    regions. Where torch has two rules for one tensor, it is refused."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.placement_types import _StridedShard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from shardvar.torch.leaves import held_by, local_tensors

    made = {
        "R": Replicate(),
        "S0": Shard(0),
        "S1": Shard(1),
        "SS0": _StridedShard(0, split_factor=2),
    }
    cases = [*product(product(PLACEMENTS, repeat=len(mesh)), [(8, 6), (7, 5), (1, 4)])]
    covered = {case: np.zeros(case[1], int) for case in cases}
    refused = set()
    for rank in range(int(np.prod(mesh))):
        dist.init_process_group("fake", rank=rank, world_size=int(np.prod(mesh)), store=FakeStore())
        try:
            devices = init_device_mesh("cpu", mesh)
            for case in cases:
                whole = torch.arange(case[1][0] * case[1][1]).reshape(case[1])
                given = [made[name] for name in case[0]]
                tensor = distribute_tensor(whole, devices, given, src_data_rank=None)
                try:
                    held = held_by("w", tensor)
                except UnsupportedError:
                    refused.add(case)
                    continue
                for each in held:
                    assert torch.equal(whole[each.region.slices], each.values), case
                    covered[case][each.region.slices] += len(local_tensors(tensor))
        finally:
            dist.destroy_process_group()
    assert all((covered[case] == 1).all() for case in cases if case not in refused)
    assert all("SS0" in names and "S0" in names for names, _ in refused)
    assert len(refused) < len(cases) / 10


def test_a_partial_tensor_is_refused(tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/m", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        partial = DTensor.from_local(TABLE, mesh, [Partial()])
        with pytest.raises(UnsupportedError, match="'w': It is a partial DTensor"):
            face.save(tmp_path / "ck", {"w": partial}, run="1")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder that a training of four processes has saved into, and the losses after that."""
    folder = tmp_path_factory.mktemp("kept")
    losses = {*run_training("keep", folder, 4, "fsdp-tp")}
    assert len(losses) == 1
    return folder, losses.pop()


@pytest.mark.parametrize("count", [1, 2])
def test_a_training_resumes_on_another_number_of_processes(
    kept: tuple[Path, str], count: int
) -> None:
    """The state is that of the run that goes on, bit for bit. Other meshes add in another order."""
    folder, losses = kept
    for printed in run_training("resume", folder, count, "fsdp"):
        assert np.allclose(json.loads(printed), json.loads(losses), rtol=1e-5)
    assert sv.diff(folder / "ck", folder / "folder").equal


def test_a_training_resumes_from_every_mesh_on_every_mesh(tmp_path: Path) -> None:
    """FSDP2, HSDP, TP, and FSDP2 over TP, with AdamW: state and losses are, bit for bit, the ones
    of a job on the same mesh that has the state of the uninterrupted run from torch itself; on the
    mesh of that run, its own."""
    assert len({*run_training("meshes", tmp_path, 4, "all")}) == 1
    for kind in KINDS:
        with sv.open_checkpoint(tmp_path / kind) as reader:
            assert dict(reader.digests) == sv.digest(tmp_path / kind).tensors
