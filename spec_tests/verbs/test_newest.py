"""Folders of many checkpoints: their order, the newest of them, and the folders that are
searched."""

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.cli import listing
from shardvar.cli.main import main
from shardvar.errors import (
    AmbiguousPath,
    ArgumentError,
    CheckpointNotFound,
    IncompleteCheckpoint,
    MalformedCheckpoint,
    ShardvarError,
    UnsupportedError,
)
from shardvar.pictures.words import natural_key
from shardvar.verbs import locate
from shardvar.verbs.locate import find_below, look_at
from shardvar.verbs.reader import open_found
from shardvar.verbs.steps import in_series
from spec_tests.helpers.command_line import Run, run

__all__ = ["run"]

STEPS = (10, 9, 100)


def save_steps(folder: Path, name: str, steps: Sequence[int] = STEPS, **options: Any) -> None:
    for step in steps:
        sv.save(folder / name.format(step), {"step": np.array(step)}, **options)


def newest_step(folder: Path) -> int:
    return int(sv.load(sv.newest_checkpoint(folder))["step"])


@given(
    st.lists(st.integers(0, 10**6), min_size=2, unique=True),
    st.sampled_from(
        ["step-{}", "ckpt_{}.index", "e=1-step={}", "x7-{}epochs", "gpu4-iter{}b/c", "bf16-step-{}"]
    ),
)
def test_names_are_sorted_as_their_numbers_are(numbers: list[int], pattern: str) -> None:
    names = [pattern.format(number) for number in numbers]
    expected = [pattern.format(number) for number in sorted(numbers)]
    assert sorted(names, key=natural_key) == expected == in_series([*names, "best"])


@pytest.mark.parametrize(
    "names",
    [["best", "last"], ["step-1", "epoch-1"], ["unet", "vae"], [], ["consolidated.00.pth", "consolidated.01.pth"],
     ["rank0-step-1", "rank1-step-2"],
     ["text_encoder", "text_encoder_2", "text_encoder_3", "unet"], ["model.npz", "model-1.npz", "model-2.npz"],
     ["m.safetensors", "m.fp16.safetensors"], ["m-fp8.npz", "m-FP16.npz"], ["m.Q4_0.gguf", "m.IQ4_0.gguf"]],
)  # fmt: skip
def test_names_of_no_series_and_of_several_have_no_newest(names: list[str]) -> None:
    assert in_series(names) == []


def test_the_state_file_decides_before_the_numbers(tmp_path: Path) -> None:
    save_steps(tmp_path, "ckpt-{}")
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "ckpt-9"\n')
    assert newest_step(tmp_path) == 9
    (tmp_path / "checkpoint").write_text("nothing of the kind {")
    with pytest.raises(MalformedCheckpoint):
        sv.newest_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("pattern", "file", "text"),
    [
        ("step-{}/model.npz", "latest", "step-9"),
        ("step-{}/model.npz", "latest_checkpointed_iteration.txt", "9\n"),
        ("model_{:07}.pth", "last_checkpoint", "model_0000009.pth"),
        ("step-{}/model.npz", "latest", None),
    ],
)
def test_the_pointers_of_trainers_decide_before_the_numbers(
    pattern: str, file: str, text: str | None, tmp_path: Path, run: Run
) -> None:
    """A file or a link, which is not believed if it names nothing."""
    save_steps(tmp_path, pattern)
    pointer = tmp_path / file
    pointer.write_text(text) if text else pointer.symlink_to("step-9")
    assert newest_step(tmp_path) == 9
    assert f"since {file} names" in run("inspect", tmp_path, "--latest").err
    pointer.unlink()
    pointer.write_text("step-7")
    assert newest_step(tmp_path) == 100


def test_a_checkpoint_in_a_folder_hides_those_below_it_but_not_from_latest(
    tmp_path: Path, run: Run
) -> None:
    """The final model of a run is beside the folders of its steps: the folder means the model, its
    newest a step."""
    save_steps(tmp_path, "model.safetensors", [0])
    save_steps(tmp_path, "checkpoint-{}/model.safetensors", [9, 10])
    assert newest_step(tmp_path) == 10
    assert int(sv.load(tmp_path)["step"]) == 0 == newest_step(tmp_path / "model.safetensors")
    outcome = run("show", tmp_path, "step", "--latest")
    newest = tmp_path / "checkpoint-10" / "model.safetensors"
    assert outcome.out.splitlines()[-1] == "10"
    assert outcome.err == f"note: the newest is {newest}\n"


@pytest.mark.parametrize(("form", "lost"), [("zarr", "zarr.json"), ("orbax-plain", "_METADATA")])
def test_arrays_that_lost_the_file_of_their_group_are_named_as_that(
    form: str, lost: str, tmp_path: Path, run: Run
) -> None:
    """Their folder means several checkpoints then, and steps that are groups do not."""
    steps, alone = tmp_path / "steps", tmp_path / "m"
    for step in (1, 2):
        sv.save(steps / f"step-{step}", {"a": np.ones(2), "b": np.ones(3)}, format=form)
    sv.save(alone, {"a": np.ones(2), "b/c": np.ones(3)}, format=form)
    (alone / lost).unlink()
    (alone / "_CHECKPOINT_METADATA").unlink(missing_ok=True)
    words = "is a folder of Zarr arrays without a"
    with pytest.raises(AmbiguousPath, match=f"It {words} group") as caught:
        sv.load(alone)
    assert lost in caught.value.remedy
    assert caught.value.remedy.endswith(" Else give the path of one of them.")
    assert run("inspect", alone).out.splitlines()[1].startswith(f"! This {words}")
    with pytest.raises(AmbiguousPath) as caught:
        sv.load(steps)
    assert "group" not in str(caught.value) + run("inspect", steps).out


@pytest.mark.parametrize(
    "companion", ["data.pt", "scheduler.bin", "rng_state_0.pth", "optimizer.pt", "sampler_1.bin"]
)
def test_the_state_of_a_run_is_meant_only_where_there_is_nothing_else(
    companion: str, tmp_path: Path
) -> None:
    """It hides neither a model in the same folder nor checkpoints in folders below, as those of
    verl or Accelerate."""
    sv.save(tmp_path / "run" / "step_9" / companion, {"step": np.array(9)}, format="pt")
    assert newest_step(tmp_path / "run") == int(sv.load(tmp_path / "run" / "step_9")["step"]) == 9
    for name in ("actor/model.npz", "critic/weights/model.pt"):
        sv.save(tmp_path / "run" / "step_9" / name, {"step": np.array(3)})
    found = [
        Path(each.path).relative_to(tmp_path).as_posix()
        for each in find_below(look_at(tmp_path / "run"))
    ]
    assert found == ["run/step_9/actor/model.npz", "run/step_9/critic/weights/model.pt"]
    sv.save(tmp_path / "run" / "step_9" / "model.pt", {"step": np.array(5)})
    assert newest_step(tmp_path / "run" / "step_9") == 5


def test_hidden_folders_links_and_deep_folders_are_not_searched(tmp_path: Path) -> None:
    save_steps(tmp_path, ".trash/model.npz", (1,))
    save_steps(tmp_path, "a/b/c/d/model.npz", (1,))
    save_steps(tmp_path.parent, f"{tmp_path.name}-elsewhere/model.npz", (1,))
    (tmp_path / "link").symlink_to(f"{tmp_path}-elsewhere")
    assert find_below(look_at(tmp_path)) == []
    assert len(find_below(look_at(tmp_path / "link"))) == 1


def test_a_folder_of_too_many_folders_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locate, "_MAX_FOLDERS", 5)
    for number in range(6):
        (tmp_path / str(number)).mkdir()
    with pytest.raises(AmbiguousPath, match="more than 5 folders"):
        sv.load(tmp_path)


@pytest.mark.parametrize("path", ["run", "run/7", "run/7/default", "run/7/default/_METADATA"])
def test_a_step_of_orbax_is_one_checkpoint_whichever_path_leads_to_it(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every verb takes it, and digest writes the manifest that verify looks for."""
    (tmp_path / "run" / "7").mkdir(parents=True)
    (tmp_path / "run" / "7" / "_CHECKPOINT_METADATA").write_text("{}")
    sv.save(tmp_path / "run" / "7" / "default", {"w": np.arange(3.0)}, format="orbax-plain")
    assert sv.verify(tmp_path / path).outcomes["w"] != "ok"  # Zarr 2 has no checksums
    assert main(["inspect", str(tmp_path / path), "--latest"]) == 0
    assert main(["digest", str(tmp_path / path), "--write"]) == 0
    assert "default (orbax): 1 tensor" in capsys.readouterr().out
    assert (
        sv.verify(tmp_path / "run" / "7").outcomes["w"]
        == sv.verify(tmp_path / path).outcomes["w"]
        == "ok"
    )


def test_few_indexes_of_many_checkpoints_are_opened(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only those of the last ones, and none after a large one; the list of a pipe has all the
    others too."""
    save_steps(tmp_path, "step-{}", tuple(range(1, 31)))
    opened: list[str] = []

    def count_opened(found: locate.Location, **options: Any) -> Any:
        opened.append(Path(found.path).name)
        return open_found(found, **options)

    monkeypatch.setattr(listing, "open_found", count_opened)
    monkeypatch.setattr(listing, "_MOST_OPENED", 20)
    assert len(run("inspect", tmp_path).out.splitlines()) == 32
    assert opened == [f"step-{number}" for number in range(30, 10, -1)]
    opened.clear()
    monkeypatch.setattr(listing, "_MOST_TENSORS", 2)
    assert run("inspect", tmp_path).code == 0 and opened == ["step-30", "step-29"]


@pytest.mark.parametrize("path", ["run", "run/20"])
def test_a_step_with_several_items_asks_for_the_item(path: str, tmp_path: Path, run: Run) -> None:
    for step, items in ((10, ("state", "extra", "old")), (20, ("state", "extra"))):
        (tmp_path / "run" / str(step)).mkdir(parents=True)
        (tmp_path / "run" / str(step) / "_CHECKPOINT_METADATA").write_text("{}")
        for item in items:
            sv.save(tmp_path / "run" / str(step) / item, {item: np.array(step)}, format="orbax")
    folder = tmp_path / path
    with pytest.raises(AmbiguousPath, match="is 20, and it has several items: .*extra") as caught:
        sv.newest_checkpoint(folder)
    assert "--latest --item extra" in caught.value.remedy and "Nothing tells" not in str(
        caught.value
    )
    for item in ("state", "extra"):
        newest = str(tmp_path / "run" / "20" / item)
        assert sv.newest_checkpoint(folder, item=item) == newest
        for command in ("inspect", "verify", "digest", "view"):
            words = ["-o", str(tmp_path / f"{item}.html")] if command == "view" else []
            outcome = run(command, folder, "--latest", "--item", item, *words)
            assert outcome.code == 0 and newest in outcome.err
        assert run("show", folder, item, "--latest", "--item", item).out.splitlines()[-1] == "20"
        target = tmp_path / f"{item}-out"
        assert run("reshard", folder, target, "--latest", "--item", item).code == 0
        assert sorted(sv.load(target)) == [item]
    with pytest.raises(ArgumentError, match="has no item 'old'") as missing:
        sv.newest_checkpoint(folder, item="old")
    assert "'extra'" in missing.value.remedy
    outcome = run("inspect", folder, "--item", "state")
    assert outcome.code == 2 and "--item is given without --latest" in outcome.err


LAYOUTS: list[tuple[dict[str, Sequence[int]], str | None, int | str]] = [
    *(  # a step of a temporary name was not finished
        ({"{}/model": STEPS, f"{name}/model": [200]}, None, 100)
        for name in ("200.orbax-checkpoint-tmp-17", "tmp-checkpoint-200", "200.tmp")
    ),
    (
        {"step-{}/model.npz": STEPS, "step-{}/adapter.npz": [100]},
        None,
        r"step-100.adapter\.npz.*step-100.model\.npz",
    ),
    ({"run/checkpoints/{}/model": [5]}, None, 5),
    ({"checkpoints/{}/model": [5]}, None, 5),
    # folders of no series are not the steps of a checkpoint beside them
    ({"m.npz": [3], "text_encoder/m.npz": [4], "text_encoder_2/m.npz": [4]}, None, 3),
    # bare numbers may count from 0 if all processes write them
    ({"{}/default": range(3)}, "orbax-plain", 2),
    ({"{}": range(3)}, "torch", 2),
]


@pytest.mark.parametrize(("layout", "form", "newest"), LAYOUTS)
def test_the_newest_of_a_layout(
    layout: dict[str, Sequence[int]], form: str | None, newest: int | str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointNotFound):
        sv.newest_checkpoint(tmp_path)
    for name, steps in layout.items():
        save_steps(tmp_path, name, steps, format=form)
    if isinstance(newest, str):
        with pytest.raises(AmbiguousPath, match=newest):
            sv.newest_checkpoint(tmp_path)
        return
    assert newest_step(tmp_path) == newest
    if len(layout) == 1 and len(steps) == 1:
        assert sv.load(tmp_path)["step"] == newest
    elif form is None and "m.npz" not in layout:
        with pytest.raises(AmbiguousPath) as caught:
            sv.load(tmp_path)
        assert "It is" not in caught.value.cause


def test_arrays_in_a_group_of_zarr_are_no_steps(tmp_path: Path) -> None:
    """Whatever numbers their names have."""
    tensors = {"step": np.array(5), "w-1": np.ones(2), "w-2": np.ones(3)}
    sv.save(tmp_path / "zarr", tensors, format="zarr")
    assert newest_step(tmp_path / "zarr") == 5


def lose_all(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def lose_a_file_of_the_set(folder: Path) -> None:
    lose_all(folder)
    tensors = {"step": np.array(200), "w": np.ones(3)}
    sv.save(folder / "model.safetensors", tensors, policy=sv.BalancedPolicy(2))
    next(folder.glob("*-00002-of-*")).unlink()


def lose_the_index_of_the_set(folder: Path) -> None:
    """It was not written yet."""
    whole = folder / "model.safetensors"
    for number in (1, 2):
        shutil.copy(whole, folder / f"model-0000{number}-of-00002.safetensors")
    whole.unlink()


@pytest.mark.parametrize("lose", [lose_all, lose_a_file_of_the_set, lose_the_index_of_the_set])
@pytest.mark.parametrize("pointer", [False, True])
def test_an_incomplete_newest_step_is_neither_hidden_nor_called_newest(
    lose: Callable[[Path], None],
    pointer: bool,
    tmp_path: Path,
    run: Run,
    caplog: pytest.LogCaptureFixture,
) -> None:
    save_steps(tmp_path, "step-{}/model.safetensors", (*STEPS, 200))
    lose(tmp_path / "step-200")
    if pointer:
        (tmp_path / "latest").write_text("step-200")
    assert newest_step(tmp_path) == 100 and "step-200" in caplog.text
    outcome = run("verify", tmp_path, "--latest")
    assert outcome.code == 0 and "passed over 1 unfinished checkpoint: step-200" in outcome.err
    assert ("latest names step-200, which is not there or not whole" in outcome.err) == pointer
    lines = run("inspect", tmp_path).out.splitlines()
    steps = [line.split("step-")[1].split("/")[0].split()[0] for line in lines[2:]]
    assert steps == ["9", "10", "100", "200"]
    assert lines[4].endswith("newest")
    assert "not finished" in lines[5] or lose is not lose_the_index_of_the_set
    listed = json.loads(run("inspect", tmp_path, "--json").out)["checkpoints"]
    assert [Path(each["path"]).parts[-2] for each in listed if each["newest"]] == ["step-100"]
    assert "step-200" in listed[-1]["path"] and listed[-1]["problem"]


WRITTEN = [
    "checkpoint-{}/model.safetensors", "sample-epoch={}-step=7.npz", "epoch={}-val_loss=0.{}.npz", "checkpoint_{}",
    "val_loss=0.5-epoch={}.npz", "global_step{}/weights", "iter_{:07}/x", "ckpt-{}", "model.ckpt-{}", "cp-{:04}.npz",
    "model_step_{}.pt", "weights.{:02}-0.32.npz", "model_{:07}.pth", "{}epoch.pth", "rl_model_{}_steps.pt",
    "modelEpoch{}.npz", "run-gpu4-step-{}.npz", "tmp9pp9lpl2-step{}/m", "{}/default/m", "{}.npz", "step-{}-rank0.npz",
    "layer-3-step-{}.npz",
]  # fmt: skip
"""Names that trainers give to steps, as patterns."""
OTHERS = [
    "layer_{}.npz", "block{}/m", "expert-{}.pt", "fold{}.npz", "stage{}/m.npz", "seed_{}.npz", "text_encoder_{}/m.npz",
    "zone{}.npz", "run-{}/m", "checkpoint_fold_{}.npz", "epoch=3-layer={}.npz", "model-v{}.npz", "rank{}.npz", "tp{}/m",
    "step-3-worker{}.npz", "dp{}.npz",
]  # fmt: skip
"""Names whose numbers count something else."""


@pytest.mark.parametrize("pattern", [*WRITTEN, *OTHERS])
@pytest.mark.parametrize("numbers", [(9, 10), (4, 1)])
def test_a_step_is_a_step_by_evidence(
    pattern: str, numbers: tuple[int, int], tmp_path: Path, run: Run
) -> None:
    """The error proposes --latest where that would be taken, and only there."""
    for step in numbers:
        sv.save(tmp_path / "run" / pattern.format(step, 99 - step), {"step": np.array(step)})
    with pytest.raises(AmbiguousPath) as caught:
        sv.load(tmp_path / "run")
    assert ("--latest" in caught.value.remedy) == (pattern in WRITTEN)
    outcome = run("reshard", tmp_path / "run", tmp_path / "out.npz", "--latest")
    if pattern in WRITTEN:
        assert newest_step(tmp_path / "run") == max(numbers)
        assert int(sv.load(tmp_path / "out.npz")["step"]) == max(numbers)
    else:
        assert outcome.code == 2 and not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize("ending", [".bin", ".pt", ".npz", ".h5", "/model.npz", "/m"])
@pytest.mark.parametrize("numbers", [(1, 2), (0, 1), (2,)])
def test_the_files_of_a_set_are_never_steps(
    ending: str, numbers: Sequence[int], tmp_path: Path, run: Run
) -> None:
    """Nor is one of them the whole; a folder by itself is, whatever its name."""
    names = ["m-{:05}-of-00002", "{}of2", "{:02}_of_02", "m{}.of.2", "part {} of 2", "{}-OF-2"]
    out = tmp_path / "out.npz"
    for name in [*names, "step-3-{}-of-2"]:
        folder = tmp_path / f"run {name}"
        for number in numbers:
            path = folder / f"{name.format(number)}{ending}"
            path.parent.mkdir(parents=True, exist_ok=True)
            sv.save(tmp_path / "one.pt", {str(number): np.ones(2)}, force=True)
            if ending == ".npz" or ending[0] == "/":
                sv.save(path, {str(number): np.ones(2)})
            else:
                path.write_bytes((tmp_path / "one.pt").read_bytes())
        if len(numbers) == 1 and ending[0] == "/":
            assert sv.newest_checkpoint(folder) == sv.newest_checkpoint(path)
            sv.reshard(folder, tmp_path / "whole.npz", force=True)
            continue
        # A set of files is whole by its numbers, and never a step.
        is_whole = len(numbers) == 2 and ending[0] != "/"
        if is_whole and ending != ".h5":
            assert sorted(sv.load(folder)) == [*map(str, sorted(numbers))]
            assert sv.reshard(folder, tmp_path / "whole.npz", force=True).num_tensors == 2
            report = sv.verify(folder)
            assert report.ok and "set" in " ".join(report.notes) and not report.not_read
        verbs = (sv.newest_checkpoint, sv.load, lambda folder: sv.reshard(folder, out))
        for verb in verbs[:1] if is_whole else verbs:
            with pytest.raises(ShardvarError) as caught:
                verb(folder)
            assert "--latest" not in str(caught.value)
        with pytest.raises(UnsupportedError, match="one part of a larger save"):
            sv.reshard(path, out)
        if ending == ".bin" and not is_whole:
            assert isinstance(caught.value, IncompleteCheckpoint)
            assert re.search(r"without .*'\S*.bin.index.json'", caught.value.cause)
    outcome = run("verify", folder, "--latest")
    assert not out.exists() and (outcome.code == 0) == (len(numbers) == 1 and ending[0] == "/")


@given(
    st.sets(st.integers(0, 40), min_size=2, max_size=4),
    st.sampled_from(["{}.npz", "{}/m", "model-{}.safetensors", "{}"]),
    st.sampled_from(["same", "other keys", "other shapes", "cut off"]),
)
@settings(max_examples=30)
def test_bare_numbers_are_steps_if_all_hold_the_same_tensors(
    numbers: set[int], pattern: str, kind: str
) -> None:
    folder = Path(tempfile.mkdtemp())
    for step in numbers:
        odd = kind if step == max(numbers) else "same"
        key, shape = "w" + "x" * (odd == "other keys"), (2 + (odd == "other shapes"),)
        sv.save(folder / pattern.format(step), {key: np.full(shape, step)})
        for file in folder.rglob("*") if odd == "cut off" else []:
            if (
                file.is_file()
                and str(step) in re.findall(r"\d+", str(file.relative_to(folder)))[:1]
            ):
                file.write_bytes(file.read_bytes()[:20])
    is_counted = 0 in numbers and 2 * len(numbers) > max(numbers) + 1
    if kind == "same" and not is_counted:
        assert int(sv.load(sv.newest_checkpoint(folder))["w"][0]) == max(numbers)
    else:
        with pytest.raises(AmbiguousPath, match="Nothing tells"):
            sv.newest_checkpoint(folder)
        with pytest.raises(AmbiguousPath) as caught:
            sv.load(folder)
        assert "--latest" not in caught.value.remedy
