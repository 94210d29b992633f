"""``shardvar.torch`` on a GPU: the same checkpoint as of the same state in memory, filled in place, with the
values of the call although the copy goes on after it. Skipped where there is no GPU."""

from pathlib import Path
from typing import Any

import pytest

import shardvar as sv
from spec_tests.helpers.torch_training import emptied

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
face = pytest.importorskip("shardvar.torch", reason="PyTorch is not installed")
leaves = pytest.importorskip("shardvar.torch.leaves")
WithGenerators = pytest.importorskip("shardvar.torch.generators").WithGenerators
set_generators = pytest.importorskip("shardvar.torch.generators").set_generators

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

WAYS = False, True, "process"
"""The values of `background`."""


def on(device: str, state: Any) -> Any:
    """Return a state with its tensors on a device, in the same strides."""
    if isinstance(state, torch.Tensor):
        whole = state.untyped_storage().to(device=torch.device(device))
        bare = torch.empty(0, dtype=state.dtype, device=device)
        return bare.set_(whole, state.storage_offset(), state.shape, state.stride())
    if isinstance(state, dict):
        return {key: on(device, value) for key, value in state.items()}
    return state


def of_all_dtypes() -> dict[str, Any]:
    """Return tensors of every dtype that can be saved, small and large, in several orders of memory."""
    torch.manual_seed(7)
    state: dict[str, Any] = {"step": 3}
    for dtype in sorted(leaves.DTYPES_READ, key=str):
        size = torch.empty(0, dtype=dtype).element_size()
        name = str(dtype).removeprefix("torch.")
        raw = torch.randint(0, 2, (40, 24 * size), dtype=torch.uint8)
        both = raw if dtype is torch.bool else torch.randint(0, 256, raw.shape, dtype=torch.uint8)
        whole = both.view(dtype)
        state[name] = {
            "plain": whole,
            "turned": whole.T,
            "part": whole[3:9, 5:],
            "steps": whole[::2, 1::3],
            "scalar": whole[0, 0],
            "empty": whole[:0],
        }
    state["large"] = torch.randn(1200, 900)
    return state


def bits(state: Any) -> Any:
    """Return a state with the dtypes, the shapes and the bytes of its tensors, in memory."""
    if isinstance(state, dict):
        return {key: bits(value) for key, value in state.items()}
    if not isinstance(state, torch.Tensor):
        return state
    flat = state.cpu().reshape(-1).contiguous()
    return str(state.dtype), tuple(state.shape), flat.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("form", ["shardvar", "torch"])
@pytest.mark.parametrize("background", WAYS)
def test_a_state_on_a_gpu_is_saved_as_one_in_memory(
    background: Any, form: str, tmp_path: Path
) -> None:
    state = of_all_dtypes()
    face.save(tmp_path / "memory", state, run="1", format=form)
    on_gpu = on("cuda", state)
    saved = face.save(tmp_path / "gpu", on_gpu, run="1", format=form, background=background)
    if background:
        saved.join()
    assert sv.diff(tmp_path / "memory", tmp_path / "gpu").equal

    for source in ("memory", "gpu"):
        found = emptied(on_gpu)
        face.load(tmp_path / source, found)
        assert found["large"].is_cuda
        assert bits(found) == bits(state)
    found = emptied(state)
    face.load(tmp_path / "gpu", found)
    assert not found["large"].is_cuda and bits(found) == bits(state)


@pytest.mark.parametrize("is_side", [False, True])
@pytest.mark.parametrize("background", [True, "process"])
def test_a_save_has_the_values_of_its_call(background: Any, is_side: bool, tmp_path: Path) -> None:
    """Work that was given to the stream before is part of the values, and work given to it after is not. No save
    waits for either."""
    stream = torch.cuda.Stream() if is_side else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        state = {str(number): torch.zeros(3000, 1000, device="cuda") for number in range(8)}
        face.save(tmp_path / "ck", state, run="0", background=background).join()
        for turn in range(1, 5):
            torch.cuda._sleep(200_000_000)
            for each in state.values():
                each.fill_(turn)
            pending = face.save(tmp_path / "ck", state, run=str(turn), background=background)
            if background is True:
                assert not stream.query()
            for each in state.values():
                each.fill_(-1)
            pending.join()
            found = sv.load(tmp_path / "ck")
            assert all((each == turn).all() for each in found.values())


def test_memory_that_is_freed_after_the_call_is_saved(tmp_path: Path) -> None:
    for turn in range(5):
        state = {str(n): torch.full((1000, 1000), float(turn + n), device="cuda") for n in range(9)}
        torch.cuda._sleep(100_000_000)
        pending = face.save(tmp_path / "ck", state, run=str(turn), background=True)
        del state
        _others = [torch.full((1000, 1000), -1.0, device="cuda") for _ in range(20)]
        pending.join()
        found = sv.load(tmp_path / "ck")
        assert all((found[str(n)] == turn + n).all() for n in range(9))


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"capturable": True}])
def test_a_training_goes_on_as_if_it_had_not_ended(
    options: dict[str, bool], tmp_path: Path
) -> None:
    def begin(seed: int) -> tuple[Any, Any]:
        torch.manual_seed(seed)
        layers = (
            torch.nn.Linear(7, 9),
            torch.nn.BatchNorm1d(9),
            torch.nn.Dropout(),
            torch.nn.Linear(9, 3),
        )
        model = torch.nn.Sequential(*layers).cuda()
        return model, torch.optim.AdamW(model.parameters(), lr=0.01, **options)

    def train(model: Any, optimizer: Any) -> list[float]:
        losses = []
        for _ in range(3):
            loss = model(torch.randn(6, 7, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def steps() -> tuple[Any, Any]:
        with_generators = WithGenerators()
        return sv.SavedSteps(tmp_path / "steps", using=with_generators), with_generators

    model, optimizer = begin(1)
    train(model, optimizer)
    saved, _ = steps()
    saved.save(3, {"model": model, "optim": optimizer}, background=True)
    expected = train(model, optimizer)
    saved.wait()
    model, optimizer = begin(2)
    again, found = steps()
    again.restore({"model": model, "optim": optimizer})
    set_generators(found.found)
    assert train(model, optimizer) == expected


def test_a_divided_model_is_saved_and_filled(tmp_path: Path) -> None:
    """One process of one GPU, with NCCL: the tensors are divided, into one part."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    where = f"file://{tmp_path}/meeting"
    distributed.init_process_group("nccl", init_method=where, rank=0, world_size=1)
    try:
        model = torch.nn.Sequential(torch.nn.Linear(70, 90), torch.nn.Linear(90, 5)).cuda()
        fully_shard(model, mesh=init_device_mesh("cuda", (1,)))
        whole = {key: each.full_tensor() for key, each in model.state_dict().items()}
        for background in WAYS:
            saved = face.save(tmp_path / "ck", {"model": model}, run="1", background=background)
            with torch.no_grad():
                for each in model.parameters():
                    each.zero_()
            if background:
                saved.join()
            face.load(tmp_path / "ck", {"model": model})
            found = {key: each.full_tensor() for key, each in model.state_dict().items()}
            assert bits(found) == bits(whole)
    finally:
        distributed.destroy_process_group()
