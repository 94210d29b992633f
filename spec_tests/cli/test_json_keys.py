"""Tests of ``shardvar help json``: it describes what the commands print, no more and no less."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from shardvar.cli.json_keys import KEYS, lines_of_keys
from shardvar.cli.options import COMMANDS
from spec_tests.helpers.command_line import Run, run, saved

__all__ = ["run"]

BY_NAME = {".metadata", ".parameters_by_dtype", ".outcomes"}
"""Objects whose keys are names of the checkpoint."""


def paths(value: object, above: str = "") -> Iterator[str]:
    """Yield the keys of a JSON value, as jq spells them."""
    if isinstance(value, dict):
        for key, each in value.items():
            path = f"{above}.{key}"
            yield path
            if path not in BY_NAME and not (path == ".tensors" and isinstance(each, dict)):
                yield from paths(each, path)
    elif isinstance(value, list):
        for each in value:
            if isinstance(each, dict):
                yield from paths(each, f"{above}[]")


def test_paths_are_those_of_jq() -> None:
    value = {"a": [{"b": 1}, {"c": [2]}], "metadata": {"x": 1}, "tensors": {"w": "0f"}}
    assert list(paths(value)) == [".a", ".a[].b", ".a[].c", ".metadata", ".tensors"]


def leftover(place: Path) -> Path:
    place.mkdir()
    (place / "m.svindex.0123456789abcdef.tmp").touch()
    return place


@pytest.fixture
def commands(tmp_path: Path) -> dict[str, list[list[object]]]:
    """Return commands whose outputs together have every key, by the title that describes them."""
    tensors = {"w": np.arange(6.0, dtype=np.float32).reshape(3, 2), "v": np.ones(4)}
    whole = tmp_path / "whole"
    sv.save(whole, tensors, partition={"w": 2}, metadata={"step": "3"})
    changed = tmp_path / "changed" / "model"
    sv.save(changed, {"w": tensors["w"] + 1, "v": np.ones(4, np.float32)})
    damaged = tmp_path / "damaged" / "model"
    sv.save(damaged, tensors)
    data = next(damaged.parent.glob("*.svdata-*"))
    data.write_bytes(b"\xff" + data.read_bytes()[1:])
    for name in ("one", "two"):
        saved(tmp_path / "several", name=name)
    plain = saved(tmp_path, "safetensors")
    out, copy = tmp_path / "out", tmp_path / "copy.npz"
    sv.reshard(whole, copy)
    sv.certify(copy, whole, tmp_path / "copy.json")
    return {
        "an error (exit codes 2 and 3)": [
            ["inspect", tmp_path / "nothing"],
            ["reshard", whole, out, "--rule", "v -> x"],
        ],
        "inspect": [
            ["inspect", whole, "--slices", "--stats"],
            ["inspect", damaged, "--stats"],
        ],
        "inspect, if PATH matches several checkpoints": [["inspect", tmp_path / "several"]],
        "show": [["show", whole, "w"]],
        "show, without KEY": [["show", whole]],
        "view": [["view", whole, "-o", tmp_path / "page.html"]],
        "verify": [["verify", damaged], ["verify", plain]],
        "verify, with --derived-from": [
            ["verify", copy, "--derived-from", whole, "--statement", tmp_path / "copy.json"]
        ],
        "diff": [
            ["diff", whole, changed],
            ["diff", whole, damaged],
            ["diff", whole, changed, "--rule", "{x:*} -> {x}"],
        ],
        "digest": [
            ["digest", whole, "--write"],
            ["digest", changed, "--against", f"{whole}.sha256"],
            ["digest", damaged],
        ],
        "reshard": [
            ["reshard", whole, out, "--max-file-size", "4", "--dry-run"],
            ["reshard", whole, out, "--rule", "{x:*} -> a.{x}", "--dry-run"],
            ["reshard", damaged, out, "--keep-going", "--force"],
        ],
        "delta": [["delta", whole, changed, tmp_path / "delta"]],
        "apply": [["apply", whole, tmp_path / "delta", tmp_path / "applied"]],
        "maps": [["maps"], ["maps", "llama-hf-to-megatron"]],
        "clean": [["clean", leftover(tmp_path / "left")]],
        "formats": [["formats"]],
        "vectors": [["vectors", "--out", tmp_path / "vectors"]],
    }


def test_every_key_is_described_and_every_description_is_of_a_key(
    commands: dict[str, list[list[object]]], run: Run
) -> None:
    for title, some in commands.items():
        found = {key for words in some for key in paths(run(*words, "--json").json)}
        described = set(KEYS[title])
        assert found - described == {".schema"}, title
        assert described - found <= SELDOM.get(title, set()), title
    others = {"view --serve", "verify of several PATHs: a list of such objects, or"}
    assert KEYS.keys() - commands.keys() == others


SELDOM = {
    "inspect": {".tensors[].layout.rule", ".tensors[].layout.mesh"},
}
"""Keys that need more than these checkpoints."""


def test_help_json_fits_80_columns_and_names_every_command(run: Run) -> None:
    out = run("help", "json").out.splitlines()
    assert max(map(len, out)) <= 80 and out == list(lines_of_keys(80))
    assert {name for name in COMMANDS if name in out} == set(COMMANDS) - {"completion"}


def test_the_key_above_each_key_is_described() -> None:
    """Its line stands above in the text, where only the end of a key is printed."""
    for keys in KEYS.values():
        for key in keys:
            above = key.rpartition(".")[0].removesuffix("[]")
            assert not above or above in keys
