"""Universal Checkpoints of DeepSpeed.

The golden files are what ``ds_to_universal`` of DeepSpeed 0.19.8 made of the golden files of ZeRO
(``test_torch_zero``), whose ``expected.npz`` is what ``zero_to_fp32`` makes of the same files.
They are also the oracle of what is written with ``--format universal``: what shardvar writes of the
same folders was loaded by DeepSpeed 0.19.8 on one and two processes.
"""

import os
import re
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MissingFile,
    ShardvarError,
    StorageError,
    TargetExists,
    UnsupportedError,
)
from shardvar.formats.files import State
from shardvar.storage import exchange
from shardvar.wire.pickle import parse_pickle
from shardvar.wire.plain import Node
from spec_tests.helpers.faulty_storage import is_same
from spec_tests.helpers.format_protocol import GOLDEN
from spec_tests.helpers.memory_bucket import MemoryBucket, count_requests, in_bucket, in_memory
from spec_tests.helpers.torch_files import copied, write_saved

UNIVERSAL = GOLDEN / "torch_universal"
CASES = ("z1fp32w3", "z3bf16w2")


@pytest.mark.parametrize("case", CASES)
def test_states_of_the_optimizer_are_the_files_of_their_parameters(
    case: str, tmp_path: Path
) -> None:
    """In the shape of their parameters, also where stage 3 has written vectors."""
    folder = copied("torch_universal", case, tmp_path)
    found = sv.load(folder)
    shapes = {key: array.shape for key, array in found.items()}
    for file in (folder / "zero").glob("*/*.pt"):
        name, state = file.parent.name, file.stem
        alone = sv.load(file)
        values = alone[next(key for key in ("param", "") if key in alone)]
        key = name if state == "fp32" else f"optimizer.state.{name}.{state}"
        np.testing.assert_array_equal(found.pop(key).ravel(), values.ravel())
        if state.startswith("exp_avg"):
            assert shapes[key] == shapes[name]
    assert {"optimizer.step", "optimizer.state.emb.weight.step"} & shapes.keys()
    with sv.open_checkpoint(folder) as reader:
        assert "optimizer.param_groups.0.lr" in reader


@pytest.mark.parametrize("case", CASES)
def test_a_parameter_that_is_missing_is_incomplete_by_name(case: str, tmp_path: Path) -> None:
    folder = copied("torch_universal", case, tmp_path)
    (folder / "zero" / "emb.weight" / "fp32.pt").unlink()
    shutil.rmtree(folder / "zero" / "lin.bias")
    with pytest.raises(IncompleteCheckpoint, match=r"zero/\S+/fp32.pt is missing"):
        sv.load(folder)
    for key in ("emb.weight", "lin.bias"):
        with pytest.raises(IncompleteCheckpoint, match=f"zero/{key}/fp32.pt is missing"):
            sv.load(folder, [key])
    assert sv.load(folder, ["lin.weight", "optimizer.state.emb.weight.exp_avg"])
    for file in folder.glob("*model_states.pt"):
        file.unlink()
    with pytest.raises(MissingFile, match="mp_rank_00_model_states.pt is missing"):
        sv.load(folder)


def test_a_vector_of_another_length_is_refused_by_name(tmp_path: Path) -> None:
    folder = copied("torch_universal", "z3bf16w2", tmp_path)
    file = folder / "zero" / "lin.weight" / "exp_avg.pt"
    shutil.copy(folder / "zero" / "lin.bias" / "exp_avg.pt", file)
    with pytest.raises(ShardvarError, match=r"lin.weight.exp_avg': It has the shape"):
        sv.load(folder)
    write_saved(file, {"x": 1}, {})
    with pytest.raises(ShardvarError, match=r"exp_avg.pt.*neither a tensor nor a 'param'"):
        sv.load(folder)


def test_a_part_of_the_folder_says_where_the_whole_is(tmp_path: Path) -> None:
    folder = copied("torch_universal", "z1fp32w3", tmp_path)
    for part in (folder / "zero", folder / "zero" / "emb.weight"):
        with pytest.raises(UnsupportedError, match="folder above"):
            sv.load(part)
    assert sv.load(folder / "zero" / "emb.weight" / "fp32.pt")
    (folder.parent / "latest_universal").write_text(folder.name)
    assert sv.newest_checkpoint(folder.parent) == str(folder)


def test_a_listing_takes_two_requests_a_file(tmp_path: Path) -> None:
    """Only the file of a state has its dtype. They are read at the same time."""
    copied("torch_universal", "z1fp32w3", tmp_path)
    bucket = in_memory(tmp_path)
    with in_bucket(bucket):
        made = count_requests(bucket, lambda: shapes_of("s3://bucket/run/z1fp32w3/"))
    assert made <= 8 + 2 * len(bucket.files), (made, len(bucket.files))


def shapes_of(path: str) -> list[tuple[int, ...]]:
    with sv.open_checkpoint(path) as reader:
        return [reader[key].shape for key in reader]


@pytest.mark.parametrize("case", CASES)
def test_a_state_that_is_written_again_has_its_new_values(case: str, tmp_path: Path) -> None:
    """As a file with the tensor ``param``, also in a folder of stage 3, which has vectors. The
    output layer shares the embedding, and DeepSpeed loads only the file of the embedding."""
    folder = copied("torch_universal", case, tmp_path)
    before = sv.load(folder)
    values = np.arange(before["emb.weight"].size, dtype=np.float32).reshape(
        before["emb.weight"].shape
    )
    for state in ("fp32", "exp_avg"):
        sv.save(folder / "zero" / "emb.weight" / f"{state}.pt", {"param": values}, force=True)
    after = sv.load(folder)
    changed = {"emb.weight", "out.weight", "optimizer.state.emb.weight.exp_avg"}
    for key in before:
        expected = values if key in changed else before[key]
        if key in changed or not key.startswith("optimizer.param_groups"):
            np.testing.assert_array_equal(after[key], expected)
    assert after.keys() == before.keys()


SCALE = "deepspeed.runtime.fp16.loss_scaler.LossScaler"


def made(source: Path, target: Path, **arguments: Any) -> Path:
    sv.reshard(source, target, format="universal", **arguments)
    return target


def pickled(file: Path) -> Any:
    """Return the value of a file of torch.save, as inert nodes."""
    with zipfile.ZipFile(file) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("/data.pkl"))
        return parse_pickle(archive.read(name))[0]


def paths(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_ds_to_universal_makes_of_the_same_files(case: str, tmp_path: Path) -> None:
    """All tensors, settings and files are the same. A buffer keeps its dtype, where
    ``ds_to_universal`` makes it float32. And the step stands for stages 1 and 2, and for stage 3."""
    folder = made(copied("torch_zero", case, tmp_path / "from"), tmp_path / case)
    report = sv.diff(folder, UNIVERSAL / case)
    steps = {f"{key[:-8]}.step" for key in sv.load(folder) if key.endswith(".exp_avg")}
    assert {*report.only_in_a} == ({"optimizer.step"} if case.startswith("z1") else steps)
    assert not report.only_in_b and not report.unreadable
    differences = {each.key: each.values for each in report.differences}
    assert differences in ({}, {"bn.num_batches_tracked": None})
    # A shared parameter is written once: the file of the model says so.
    assert paths(UNIVERSAL / case) - paths(folder) <= {"zero/out.weight/fp32.pt"}
    for file in folder.glob("*_model_states.pt"):
        assert file.read_bytes() == (UNIVERSAL / case / file.name).read_bytes()
    assert sv.verify(folder).ok
    # ``load_hp_checkpoint_state`` reads ``param``, and a step as it is; of the optimizer's file
    # DeepSpeed reads the scale of losses, the groups, and in stage 3 the step of the first state.
    for file in folder.glob("zero/*/*.pt"):
        value = pickled(file)
        if file.stem == "step":
            assert type(value) is Node
        else:
            assert list(value) == ["cat_dim", "param"] and value["cat_dim"] == 0
    run, golden = (pickled(each / "zero/optimizer_state.pt") for each in (folder, UNIVERSAL / case))
    assert run["loss_scaler"].name == golden["loss_scaler"].name == SCALE
    assert run["loss_scaler"].state == golden["loss_scaler"].state
    read = {"dynamic_loss_scale", "overflow", "clip_grad", "ds_version", "param_groups"} & {*golden}
    assert {key: run[key] for key in read} == {key: golden[key] for key in read}
    assert run["ds_version"] == "0.19.8"
    inner = run["optimizer_state_dict"]
    assert [*inner["state"]] == [0] and inner["param_groups"] == golden["param_groups"]
    assert type(inner["state"][0]["step"]) is Node


def test_parameters_are_the_ones_of_zero(tmp_path: Path) -> None:
    """Also of stage 2, of which no Universal Checkpoint is golden; and the newest is named."""
    case = "z2bf16w2"
    source = copied("torch_zero", case, tmp_path / "from")
    found, expected = sv.load(made(source, tmp_path / case)), sv.load(source)
    assert is_same({key: found[key] for key in expected}, expected)
    assert sv.newest_checkpoint(tmp_path) == str(tmp_path / case)
    assert (tmp_path / "latest_universal").read_text() == case


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("through", ["shardvar", "torch", None])
def test_one_is_made_of_another_also_through_other_formats(
    case: str, through: str | None, tmp_path: Path
) -> None:
    """Through another format, the run is lost, and the files of the model are of a new one."""
    source = UNIVERSAL / case
    between = source if through is None else tmp_path / "between"
    if through is not None:
        sv.reshard(source, between, format=through)
    folder = made(between, tmp_path / "again")
    assert sv.diff(folder, source).equal
    if through is None:
        assert paths(source) - paths(folder) <= {"zero/out.weight/fp32.pt"}
        for file in folder.glob("*_model_states.pt"):
            assert file.read_bytes() == (source / file.name).read_bytes()
    else:
        model = pickled(folder / "mp_rank_00_model_states.pt")
        assert (model["global_steps"], model["dp_world_size"]) == (0, 1)
        assert model["lr_scheduler"] is None


names = st.text("abcXYZ_.0é", min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..") and not name.startswith("optimizer.")
)


@given(
    sizes=st.dictionaries(names, st.integers(0, 9), min_size=1, max_size=5),
    moments=st.integers(1, 3),
    data=st.data(),
)
def test_any_training_state_is_read_again(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: dict[str, int],
    moments: int,
    data: st.DataObject,
) -> None:
    """Parameters of any name and size, with any states, and a buffer: keys and values are equal."""
    folder = tmp_path_factory.mktemp("u")
    flat, plain = dict[str, np.ndarray](), dict[str, object]()
    for number, (name, size) in enumerate(sizes.items()):
        flat[name] = np.arange(size, dtype=np.float32) + 100 * number
        for moment in range(moments):
            flat[f"optimizer.state.{name}.m{moment}"] = flat[name] * (moment + 2)
        plain[f"optimizer.state.{name}.step"] = data.draw(st.integers(0, 1 << 40))
    groups = data.draw(st.integers(1, 3))
    plain |= {f"optimizer.param_groups.{n}.lr": n / 7 for n in range(groups)}
    write_saved(folder / "state.pt", plain, flat)
    again = made(folder / "state.pt", folder / "u")
    assert is_same(sv.load(again), sv.load(folder / "state.pt"))
    groups_again = pickled(again / "zero/optimizer_state.pt")["param_groups"]
    assert groups_again == [{"lr": n / 7} for n in range(groups)]


STATE = {
    "w": np.ones(4, np.float32),
    "optimizer.state.w.exp_avg": np.ones(4, np.float32),
    "optimizer.state.w.exp_avg_sq": np.ones(4, np.float32),
}
GROUP: dict[str, object] = {"optimizer.param_groups.0.lr": 0.5, "optimizer.state.w.step": 3}


def without(key: str) -> dict[str, np.ndarray]:
    return {each: array for each, array in STATE.items() if each != key}


@pytest.mark.parametrize(
    ("flat", "plain", "words"),
    [
        ({"w": STATE["w"]}, GROUP | {"optimizer.state.w.step": 0}, None),
        ({"w": STATE["w"]}, {"optimizer.param_groups.0.lr": 0.5}, "needs states of the optimizer"),
        (without("w"), GROUP, "'w' has states and no values"),
        (STATE, {"optimizer.state.w.step": 3}, "needs all groups of the optimizer.*none"),
        (STATE, GROUP | {"optimizer.param_groups.2.lr": 1.0}, "needs all groups.*'0', '2'"),
        (
            STATE | {"v": STATE["w"], "optimizer.state.v.exp_avg": STATE["w"]},
            GROUP,
            "'v' lacks states that others have: 'exp_avg_sq', 'step'",
        ),
        (STATE | {"optimizer.state.w.exp_avg": np.ones(3, np.float32)}, GROUP, "not the shape"),
        (STATE | {"optimizer.momentum": STATE["w"]}, GROUP, "neither a parameter nor a state"),
        (STATE | {"a\\b": STATE["w"]}, GROUP, "cannot be the name"),
        (STATE | {"..": STATE["w"]}, GROUP, "cannot be the name"),
        (STATE | {"n" * 256: STATE["w"]}, GROUP, "more than 255 bytes"),
        (STATE | {"x_model_states.pt": STATE["w"]}, GROUP, "neither a parameter nor a state"),
        (STATE | {"mp_rank_00_model_states.pt": STATE["w"]}, GROUP, "is a file, and not a tensor"),
    ],
)
def test_what_lacks_or_has_no_place_is_named_before_anything_is_written(
    flat: dict[str, np.ndarray], plain: dict[str, object], words: str | None, tmp_path: Path
) -> None:
    write_saved(tmp_path / "state.pt", plain, flat)
    if words is None:
        made(tmp_path / "state.pt", tmp_path / "u")
        return
    with pytest.raises((IncompleteCheckpoint, UnsupportedError), match=words):
        made(tmp_path / "state.pt", tmp_path / "u")
    assert os.listdir(tmp_path) == ["state.pt"]


def test_settings_of_the_program_become_its_client_state(tmp_path: Path) -> None:
    """DeepSpeed returns unknown keys of the model's file as client state. Beside the files of a run
    there is no room."""
    write_saved(tmp_path / "state.pt", GROUP | {"epoch": 7}, STATE)
    made(tmp_path / "state.pt", tmp_path / "u")
    model = pickled(tmp_path / "u/mp_rank_00_model_states.pt")
    assert model["epoch"] == 7 and model["param_shapes"] == [{"w": (4,)}]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"filter": ["lin.*"]}, "needs states"),
        ({"exclude": ["*exp_avg_sq"]}, "other states than are written: 'exp_avg_sq'"),
        ({"exclude": ["*emb.weight*", "out.weight"]}, "other parameters than are written: 'emb"),
        ({"exclude": ["*param_groups*"]}, "groups of the optimizer"),
        ({"rename": {"lin.bias": "lin.b"}}, "'lin.bias' has states and no values"),
        ({"rename": {"re:(.*)lin.bias(.*)": r"\1lin.b\2"}}, "other parameters.*'lin.b"),
        ({"add_prefix": "m."}, "neither a parameter nor a state"),
        ({"cast": {"*": "float32"}}, "is a file, and not a tensor"),
        ({"cast": "float64"}, "is float64, and its file has float32"),
    ],
)
def test_a_change_that_deepspeed_would_not_load_is_refused(
    arguments: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ShardvarError, match=words):
        made(UNIVERSAL / "z1fp32w3", tmp_path / "u", **arguments)
    assert not os.listdir(tmp_path)


def test_places_where_it_cannot_stand_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = copied("torch_zero", "z1fp32w3", tmp_path)
    with pytest.raises(TargetExists, match="has files of ZeRO: zero_pp_rank_0"):
        made(source, source)
    with in_bucket(MemoryBucket()), pytest.raises(UnsupportedError, match="written on a disk"):
        made(source, "s3://bucket/u")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="each slice is a file"):
        made(source, tmp_path / "u", policy=sv.MaxShardSizePolicy(1000))
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(exchange, "_working_directory", lambda: str(tmp_path / "here"))
    with pytest.raises(StorageError, match="a working directory is in it"):
        made(source, tmp_path / "here")
    assert not os.listdir(tmp_path / "here")


def test_ranks_of_several_saves_and_lost_states_are_named(tmp_path: Path) -> None:
    """The steps of all ranks are compared, and each state of each rank is needed."""
    first, second = (copied("torch_zero", "z1fp32w3", tmp_path / name) for name in "ab")
    name = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    data = (second / name).read_bytes()
    two, five = (np.float32(each).tobytes() for each in (2, 5))
    with zipfile.ZipFile(second / name) as archive:
        steps = [each for each in archive.namelist() if archive.read(each) == two]
        kept = {each: archive.read(each) for each in archive.namelist()}
    with zipfile.ZipFile(second / name, "w") as archive:
        for each, octets in kept.items():
            archive.writestr(each, five if each in steps else octets)
    with pytest.raises(InvalidCheckpoint, match="other numbers in others"):
        made(second, tmp_path / "u")
    (first / name).write_bytes(data.replace(b"exp_avg_sq", b"exp_avg_sx"))
    with pytest.raises(ShardvarError):
        made(first, tmp_path / "u")
    assert {*os.listdir(tmp_path)} == {"a", "b"}


def test_force_replaces_it_whole_and_keeps_other_files(tmp_path: Path) -> None:
    report = sv.reshard(UNIVERSAL / "z1fp32w3", tmp_path / "u", format="universal", dry_run=True)
    assert report.num_tensors and not os.listdir(tmp_path)
    folder = made(UNIVERSAL / "z3bf16w2", tmp_path / "u")
    (folder / "notes.txt").write_text("mine")
    (folder / "zero" / "mine").mkdir()
    with pytest.raises(TargetExists):
        made(UNIVERSAL / "z1fp32w3", folder)
    made(UNIVERSAL / "z1fp32w3", folder, force=True)
    shared = {"zero/out.weight/fp32.pt"}
    assert paths(folder) == paths(UNIVERSAL / "z1fp32w3") - shared | {"notes.txt"}
    assert (folder / "zero" / "mine").is_dir()
    assert sv.diff(folder, UNIVERSAL / "z1fp32w3").equal


@pytest.mark.parametrize("fails", ["_swap", "sync_all"])
def test_after_an_error_the_old_folder_is_what_it_was(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(UNIVERSAL / "z3bf16w2", tmp_path / "u")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}

    def fail(*_: object) -> None:
        raise OSError(5, "no")

    monkeypatch.setattr(exchange, fails, fail)
    with pytest.raises(StorageError, match=State.OLD.value):
        made(UNIVERSAL / "z1fp32w3", folder, force=True)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_a_name_that_cannot_be_written_is_an_error_after_the_commit(tmp_path: Path) -> None:
    (tmp_path / "latest_universal").mkdir()
    with pytest.raises(StorageError, match="it is in place, but latest_universal does not name it"):
        made(UNIVERSAL / "z1fp32w3", tmp_path / "u")
    assert sv.diff(tmp_path / "u", UNIVERSAL / "z1fp32w3").equal
    assert {*os.listdir(tmp_path)} == {"latest_universal", "u"}


def test_it_is_not_removed_by_parts(tmp_path: Path) -> None:
    """Nor are other files that are a checkpoint only together."""
    zero = copied("torch_zero", "z2bf16w2", tmp_path)
    for folder in (made(UNIVERSAL / "z1fp32w3", tmp_path / "u"), zero):
        before = paths(folder)
        with pytest.raises(UnsupportedError, match="several files of another program"):
            sv.remove(folder)
        assert paths(folder) == before


def test_threads_of_an_executor_write_the_same_files(tmp_path: Path) -> None:
    source = copied("torch_zero", "z2bf16w2", tmp_path / "from")
    here = made(source, tmp_path / "here")
    with ThreadPoolExecutor(2) as executor:
        there = made(source, tmp_path / "there", executor=executor)
    assert paths(here) == paths(there)
    for path in paths(here):
        assert (here / path).read_bytes() == (there / path).read_bytes()


def test_files_that_say_how_to_cut_a_tensor_are_not_copied_without_that(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(UNIVERSAL / "z1fp32w3", tmp_path / "z"))
    write_saved(
        folder / "zero/lin.weight/fp32.pt", {"cat_dim": 1}, {"param": np.ones(15, np.float32)}
    )
    with pytest.raises(UnsupportedError, match=re.escape("how to cut the tensor: 'cat_dim'")):
        made(folder, tmp_path / "u")
