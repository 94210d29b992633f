"""``shardvar.torch.save`` in the background: the checkpoint has the values of the call, one save at a
time, and no error is lost."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    StillSaving,
    StorageError,
    UnsupportedError,
)
from spec_tests.helpers.programs import ENVIRONMENT
from spec_tests.helpers.torch_training import differences, emptied

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
face = pytest.importorskip("shardvar.torch", reason="PyTorch is not installed")
training_states = pytest.importorskip("shardvar.torch.training_states")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event that the threads of saves wait for before they write."""
    goes_on = threading.Event()
    real = training_states.save_with_objects

    def waits(*arguments: Any, **options: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            assert goes_on.wait(60)
        return real(*arguments, **options)

    monkeypatch.setattr(training_states, "save_with_objects", waits)
    yield goes_on
    goes_on.set()
    training_states._TURN.take()
    training_states._TURN.keep(None)
    training_states._TURN.give_back()


def trained(seed: int) -> dict[str, Any]:
    """Return a state with values of every kind."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(70, 40), torch.nn.BatchNorm1d(40)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(4, 70).bfloat16()).sum().backward()
    optimizer.step()
    large = torch.randn(700, 600)
    return {
        "model": model.state_dict(),
        "optim": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "views": {
            "large": large, "columns": large.T, "rows": large[5:9], "odd": torch.randn(3).conj(),
            "conjugated": torch.randn(3, dtype=torch.complex64).conj(), "empty": torch.zeros(0, 3),
            "scalar": torch.tensor(2.5), "flags": torch.tensor([True, False]),
            "e8": torch.ones(3).to(torch.float8_e4m3fn),
        },
        "plain": {"step": seed, "list": [1, [seed]], "none": None, "text": "x",
                  "raw": bytearray(b"ab"), "zeros": (0.0, -0.0)},
        "zero": 0.0, "negative": -0.0, "flag": True, "one": 1,
        "groups": [{"lr": 0.1, "params": [0, 1]}, {"params": []}],
    }  # fmt: skip


def mutate(value: Any) -> None:
    """Change everything in a state in place."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, each in [*items]:
        if isinstance(each, dict | list):
            mutate(each)
        elif isinstance(each, bytearray):
            each[:] = b"zz"
        elif isinstance(each, torch.Tensor):
            each.zero_() if each.dtype != torch.float8_e4m3fn else each.view(torch.uint8).zero_()
        if isinstance(value, dict):
            value[name] = "changed"
    value.clear()


@pytest.mark.parametrize("form", ["shardvar", "torch"])
def test_what_changes_after_the_call_is_not_in_the_checkpoint(
    form: str, gate: threading.Event, tmp_path: Path
) -> None:
    """Three saves use the same memory, for states of other shapes."""
    for seed in range(3):
        gate.clear()
        state = trained(seed)
        if seed:
            state["more"] = torch.randn(seed, 5)
        pending = face.save(tmp_path / "ck", state, run=str(seed), format=form, background=True)
        assert not pending.done()
        mutate(state)
        gate.set()
        assert pending.result().num_tensors > 10
        expected = trained(seed)
        if seed:
            expected["more"] = torch.randn(seed, 5)
        found = emptied(expected)
        face.load(tmp_path / "ck", found)
        assert differences(found, expected) == []
        assert (found["zero"].hex(), found["negative"].hex()) == ("0x0.0p+0", "-0x0.0p+0")
        assert type(found["flag"]) is bool and type(found["one"]) is int
        assert sv.verify(tmp_path / "ck").ok


@pytest.mark.parametrize("form", ["shardvar", "torch"])
def test_a_process_writes_the_bytes_of_the_call(form: str, tmp_path: Path) -> None:
    def payloads(folder: Path) -> list[bytes]:
        return [each.read_bytes() for each in sorted(folder.iterdir()) if each.suffix != ".svindex"]

    for seed in range(3):
        state, expected = trained(seed), trained(seed)
        for each in (state, expected):
            each["more"] = torch.arange(float(seed))
        pending = face.save(
            tmp_path / "a" / "ck", state, run="1", format=form, background="process"
        )
        mutate(state)
        report = pending.result()
        plain = face.save(tmp_path / "b" / "ck", expected, run="1", format=form)
        assert str(report) == str(plain).replace("/b/", "/a/")
        if form == "shardvar":
            assert payloads(tmp_path / "a") == payloads(tmp_path / "b")
        assert sv.diff(tmp_path / "a" / "ck", tmp_path / "b" / "ck").equal
        found = emptied(expected)
        face.load(tmp_path / "a" / "ck", found)
        assert differences(found, expected) == []


def test_the_copies_lie_in_the_same_memory(gate: threading.Event, tmp_path: Path) -> None:
    gate.set()
    seen = set()
    for run in "12":
        face.save(tmp_path / "ck", {"w": torch.randn(9, 9)}, run=run, background=True).result()
        seen.add(training_states._COPIES._places[0].tensor.data_ptr())
    assert len(seen) == 1


def test_a_copy_is_there_when_its_devices_have_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies from a device go on behind the call, on its stream if it has streams, until they are waited for."""
    from shardvar.torch.leaves import Copies

    devices = [*map(torch.device, ("cpu", "cuda:1", "meta", "cuda:1", "mps:0"))]
    waited: list[str] = []

    class WithStreams:
        """The functions of a device, its stream and its event."""

        def current_stream(self, device: Any) -> Any:
            self.device = device
            return self

        def record_event(self) -> Any:
            return self

        def synchronize(self) -> None:
            waited.append(str(self.device))

    modules = {
        "cuda": WithStreams(),
        "mps": SimpleNamespace(synchronize=lambda device: waited.append(str(device))),
    }
    monkeypatch.setattr(torch, "get_device_module", lambda device: modules[device.type])
    copies = Copies()
    copies._kinds = [(torch.Tensor, torch.int8, torch.strided, each, (1,)) for each in devices]
    assert copies._copy([]) == []
    assert waited == ["mps:0"]
    for _ in range(2):
        copies.wait()
        assert waited == ["mps:0", "cuda:1"]


def test_one_save_is_under_way_and_the_next_waits_or_is_an_error(
    gate: threading.Event, tmp_path: Path
) -> None:
    first = face.save(tmp_path / "a", {"w": torch.ones(3)}, run="1", background=True)
    for background in (True, False):
        with pytest.raises(StillSaving, match=r"a is still being saved.*busy='wait'"):
            face.save(
                tmp_path / "b", {"w": torch.ones(3)}, run="1", background=background, busy="raise"
            )
    threading.Timer(0.1, gate.set).start()
    second = face.save(tmp_path / "b", {"w": torch.ones(3)}, run="1", background=True)
    assert first.done() and second.path == str(tmp_path / "b")
    face.save(tmp_path / "c", {"w": torch.ones(3)}, run="1")
    assert second.done() and sv.load(tmp_path / "b").keys() == {"w"}


def test_an_error_comes_at_the_handle_or_at_the_next_save(
    gate: threading.Event, tmp_path: Path
) -> None:
    gate.set()
    (tmp_path / "file").write_text("in the way")
    state = {"w": torch.ones(3)}
    pending = face.save(tmp_path / "file" / "ck", state, run="1", background=True)
    with pytest.raises(StorageError, match="file"):
        pending.join()
    face.save(tmp_path / "file" / "ck", state, run="1", background=True)
    for background in (True, False):
        with pytest.raises(StorageError, match="file"):
            face.save(tmp_path / "ck", state, run="1", background=background)
        assert not [*tmp_path.glob("ck*")]
        face.save(tmp_path / "file" / "ck", state, run="1", background=True)
    with pytest.raises(StorageError, match="file"):
        face.save(tmp_path / "ck", state, run="1")
    face.save(tmp_path / "ck", state, run="1")


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_garbage_collector_is_as_it_was(is_enabled: bool, tmp_path: Path) -> None:
    import gc

    try:
        (gc.enable if is_enabled else gc.disable)()
        face.save(tmp_path / "ck", {"w": torch.ones(3)}, run="1", background=True).result()
        assert gc.isenabled() == is_enabled
        with pytest.raises(ArgumentTypeError, match="'f' is a function"):
            face.save(tmp_path / "ck", {"f": lambda: 1}, run="1", background=True)
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable()


def test_what_cannot_be_copied_is_an_error_at_the_call(
    gate: threading.Event, tmp_path: Path
) -> None:
    gate.set()
    with pytest.raises(ArgumentError, match=r"take 1.00 MB in memory.*staging_nbytes is 64 B"):
        face.save(
            tmp_path / "ck", {"w": torch.ones(250_000)}, run="1", background=True, staging_nbytes=64
        )
    with pytest.raises(ArgumentTypeError, match="'f' is a function"):
        face.save(tmp_path / "ck", {"f": lambda: 1}, run="1", background=True)
    odd = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with pytest.raises(UnsupportedError, match="qint8"):
        face.save(tmp_path / "ck", {"odd": odd}, run="1", background=True).result()
    face.save(tmp_path / "ck", {"w": torch.ones(3)}, run="1", background=True).result()


def test_an_interpreter_that_ends_waits_for_the_save_and_a_killed_one_keeps_the_old(
    tmp_path: Path,
) -> None:
    program = """
import os, sys, time, torch, shardvar.torch
from shardvar.torch import training_states
real = training_states.save_with_objects
def slow(*arguments, **options):
    time.sleep(0.3)
    if sys.argv[2] == "kill":
        os._exit(9)
    return real(*arguments, **options)
shardvar.torch.save(sys.argv[1], {"step": 1, "w": torch.ones(5)}, run="1")
training_states.save_with_objects = slow
shardvar.torch.save(sys.argv[1], {"step": 2, "w": torch.ones(5)}, run="2", background=True)
"""
    for how, code, step in (("kill", 9, 1), ("end", 0, 2)):
        path = tmp_path / how
        command = [sys.executable, "-W", "ignore", "-c", program, str(path), how]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, timeout=120)
        assert done.returncode == code, done.stderr.decode()
        state = {"step": 0, "w": torch.zeros(5)}
        face.load(path, state)
        assert state["step"] == step, json.dumps(step)


@pytest.mark.parametrize(
    "changed", ["nothing", "key", "dtype", "shape", "placement", "local", "format"]
)
def test_what_is_kept_between_saves_is_of_the_same_state(changed: str, tmp_path: Path) -> None:
    """Regions of tensors on a mesh are kept by all that they follow from: after one change the bytes are those
    of a program that has kept nothing."""
    from torch.distributed.tensor import Replicate, Shard

    from shardvar.torch import leaves

    class Mesh:
        """A mesh of four devices, seen from one of them."""

        shape = (4,)

        def get_coordinate(self) -> list[int]:
            return [1]

    def regions(shape: tuple[int, ...], place: Any, local: tuple[int, ...]) -> Any:
        class Divided:
            device_mesh, placements = Mesh(), (place,)

        tensor: Any = Divided()
        tensor.shape = torch.Size(shape)
        try:
            held = leaves._of_dtensor(tensor, [torch.zeros(local)])
        except UnsupportedError as error:
            return str(error)
        return [(str(each.region), each.values.shape) for each in held]

    shape, place, local = (8, 6), Shard(0), (2, 6)
    kept = regions(shape, place, local)
    shape = (7, 6) if changed == "shape" else shape
    place = Replicate() if changed == "placement" else place
    local = (3, 6) if changed == "local" else local
    found = regions(shape, place, local)
    leaves._regions_of.cache_clear()
    assert found == regions(shape, place, local)
    assert (found == kept) is (changed in ("nothing", "key", "dtype", "format", "shape"))

    state = {"a": torch.arange(6.0), "b": torch.ones(2, 2)}
    face.save(tmp_path / "first", state, run="1", background=True).result()
    state = {"c" if changed == "key" and key == "a" else key: each for key, each in state.items()}
    if changed in ("dtype", "shape"):
        state["b"] = torch.ones(2, 2).int() if changed == "dtype" else torch.ones(3, 1)
    form = "torch" if changed == "format" else "shardvar"
    face.save(tmp_path / "now", state, run="1", background=True, format=form).result()
    training_states._COPIES.__init__()  # type: ignore[misc]
    face.save(tmp_path / "fresh", state, run="1", background=True, format=form).result()
    assert sv.diff(tmp_path / "now", tmp_path / "fresh").equal
    assert [*sv.load(tmp_path / "now")] == [*sv.load(tmp_path / "fresh")] == sorted(state)
