"""How a page calls a checkpoint, and where it is written: by the folder of a model, and not into it."""

import os
import re
import shutil
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

import shardvar as sv
from shardvar.cli.view import names_of, page_path
from shardvar.verbs.locate import find_checkpoint
from spec_tests.helpers.command_line import Run, run, terminal
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket
from spec_tests.helpers.paths import GOLDEN
from spec_tests.helpers.view_pages import columns_of

__all__ = ["run"]  # the fixture

Place = TypeVar("Place", Path, str)
ARRAYS = {f"layers.{n}.w": np.ones((4, 4), np.float32) for n in range(4)}


def llama(folder: Place, change: float = 0.0) -> Place:
    """A set of files of safetensors in a folder, under the names that Hugging Face gives them."""
    arrays = {key: value + change for key, value in ARRAYS.items()}
    policy = sv.MaxShardSizePolicy(100)
    path = f"{folder}/model.safetensors.index.json"
    sv.save(path, arrays, format="safetensors", policy=policy)
    return folder


def name(path: Path | str) -> str:
    (found,) = names_of((find_checkpoint(path), str(path)))
    return found


def headings(page: Path) -> tuple[str, list[str]]:
    """The title of a page, and the names of its checkpoints."""
    text = page.read_text(encoding="utf-8")
    (title,) = re.findall(r"<title>(.*?) · shardvar</title>", text)
    return title, [each["name"] for each in columns_of(text)["checkpoints"]]


@pytest.mark.parametrize("place", ["a folder", "a bucket"])
def test_a_model_has_the_name_of_its_folder(place: str, tmp_path: Path) -> None:
    root = "s3://bucket" if place == "a bucket" else str(tmp_path)
    with in_bucket(MemoryBucket()):
        llama(f"{root}/llama")
        assert name(f"{root}/llama/") == "llama"
        assert name(f"{root}/llama/model.safetensors.index.json") == "llama"
        sv.save(f"{root}/one/model.safetensors", ARRAYS)
        assert name(f"{root}/one/") == "one"
        assert name(f"{root}/one/model.safetensors") == "one/model.safetensors"
        sv.save(f"{root}/run/12", ARRAYS, format="torch")
        assert name(f"{root}/run/12/") == "run/12"
        cached = "models--org--tiny/snapshots/e2b6f9d"
        llama(f"{root}/{cached}")
        assert name(f"{root}/{cached}/") == cached
        sv.save(f"{root}/run/weights.npz", ARRAYS)
        assert name(f"{root}/run/weights.npz") == "weights.npz"
        sv.save(f"{root}/run/best", ARRAYS)
        assert name(f"{root}/run/best") == "best"


def test_a_folder_may_be_typed_without_a_slash_and_as_a_dot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = llama(tmp_path / "llama")
    assert name(folder) == "llama"
    monkeypatch.chdir(folder)
    assert name(".") == "llama"
    assert name(GOLDEN / "tensorflow" / "dense_single") == "dense_single"


def test_a_page_is_next_to_a_folder_and_never_in_it(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = llama(tmp_path / "llama")
    before = sorted(os.listdir(folder))
    page = tmp_path / "llama.html"
    for typed in (folder, f"{folder}/", folder / "model.safetensors.index.json"):
        assert run("view", typed).code == 0 and page.exists()
        page.unlink()
    monkeypatch.chdir(folder)
    for typed in (".", "model.safetensors.index.json", "../llama"):
        assert run("view", typed).code == 0 and page.exists()
        page.unlink()
    assert sorted(os.listdir(folder)) == before
    monkeypatch.chdir(tmp_path)
    assert page_path(find_checkpoint("llama"), "llama") == "llama.html"
    sv.save(tmp_path / "folder", ARRAYS, format="torch")
    assert run("view", tmp_path / "folder" / ".metadata").code == 0
    assert (tmp_path / "folder.html").exists()


def test_a_folder_whose_parent_is_not_writable_asks_for_a_file(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = llama(tmp_path / "llama")
    monkeypatch.setattr("os.access", lambda path, mode: os.fspath(path) != str(tmp_path))
    outcome = run("view", folder)
    assert outcome.code == 2 and "--output FILE.html" in outcome.err
    assert run("view", folder, "-o", tmp_path / "page.html").code == 0


def test_a_diff_names_both_models_and_tells_equal_names_apart(tmp_path: Path, run: Run) -> None:
    a, b = llama(tmp_path / "base" / "llama"), llama(tmp_path / "tuned" / "llama", 1)
    page = tmp_path / "d.html"
    assert run("diff", a, b, "--html", page).code == 1
    assert headings(page) == ("base/llama and tuned/llama", ["base/llama", "tuned/llama"])
    shutil.move(tmp_path / "tuned" / "llama", tmp_path / "chat")
    assert run("diff", a, tmp_path / "chat", "--html", page).code == 1
    assert headings(page) == ("llama and chat", ["llama", "chat"])
    assert run("diff", a, a, "--html", page).code == 0
    assert headings(page)[1] == ["llama", "llama"]


def test_a_plan_names_the_folders_before_and_after(tmp_path: Path, run: Run) -> None:
    a, page = llama(tmp_path / "base" / "llama"), tmp_path / "p.html"
    words = ["--format", "safetensors", "--max-file-size", "100", "--dry-run", "--html", page]
    assert run("reshard", a, tmp_path / "new" / "llama", *words).code == 0
    assert headings(page)[1] == ["base/llama", "new/llama"]
    target = tmp_path / "small" / "model.safetensors.index.json"
    assert run("reshard", a, target, *words).code == 0
    assert headings(page)[1] == ["llama", "small"]


def test_at_a_terminal_a_page_has_a_link(tmp_path: Path, run: Run) -> None:
    folder = llama(tmp_path / "my llama")
    assert "file://" not in run("view", folder).err
    with terminal(80):
        told = run("view", folder).err
    assert told == f"{(tmp_path / 'my llama.html').as_uri()}\n" and "%20" in told
