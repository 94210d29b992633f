"""``shardvar maps``, and maps of the command line: ``--map``, ``--rule``, ``--size``, ``--inverse``."""

import json
import tomllib
from pathlib import Path

import numpy as np

import shardvar as sv
from shardvar.cli.serving import answers_of
from shardvar.verbs.mapping import map_reader
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.damage import flip
from spec_tests.helpers.view_pages import columns_of, keys_of

__all__ = ["run"]

FUSE = "{l}.{s:gate|up}.w[o i] -> {l}.gate_up.w[(s o) i]"


def write(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "model.safetensors"
    sv.save(
        path,
        {f"{layer}.{name}.w": rng.random((4, 6)) for layer in range(2) for name in ("gate", "up")},
    )
    return path


def test_a_printed_map_is_a_map_file(run: Run, tmp_path: Path) -> None:
    for name in ("llama-hf-to-megatron", "mixtral-hf-to-transformers"):
        text = run("maps", name).out
        (tmp_path / "copy.toml").write_text(text, encoding="utf-8")
        assert sv.Map.read(tmp_path / "copy.toml") == sv.Map.read(name)
        assert tuple(run("maps", name, "--json").json["rules"]) == sv.Map.read(name).rules
        assert tomllib.loads(text)["about"] == sv.Map.read(name).about


def test_a_rule_and_its_inverse_write_the_same_checkpoint(run: Run, tmp_path: Path) -> None:
    source = write(tmp_path)
    fused, back = tmp_path / "fused", tmp_path / "back.safetensors"
    assert run("reshard", source, fused, "--rule", FUSE).code == 0
    tensors = sv.load(source)
    for layer in range(2):
        pair = [tensors[f"{layer}.{name}.w"] for name in ("gate", "up")]
        assert np.array_equal(sv.load(fused)[f"{layer}.gate_up.w"], np.concatenate(pair))
    assert run("diff", source, fused, "--rule", FUSE).code == 0
    assert run("reshard", fused, back, "--rule", FUSE, "--inverse").code == 0
    assert run("diff", back, source).code == 0
    assert run("diff", fused, source, "--rule", FUSE, "--inverse").code == 0
    assert run("diff", fused, source).code == 1
    (tmp_path / "map.toml").write_text(f"rules = [{json.dumps(FUSE)}]", encoding="utf-8")
    words = ["--map", tmp_path / "map.toml", "--inverse", "--size", "s=2"]
    shown = run("show", fused, "0.up.w", *words, "--json").json["values"]
    assert shown == tensors["0.up.w"].tolist()
    page = tmp_path / "page.html"
    assert run("view", fused, "--output", page, *words).code == 0
    keys = keys_of(columns_of(page.read_text(encoding="utf-8"))["checkpoints"][0])
    assert sorted(keys) == sorted(tensors)


def test_a_page_shows_what_a_map_makes(run: Run, tmp_path: Path) -> None:
    source, page = write(tmp_path), tmp_path / "page.html"
    words = ["view", source, "-o", page, "--rule", FUSE]
    assert run(*words, "--json").json["num_tensors"] == 2
    (columns,) = columns_of(page.read_text(encoding="utf-8"))["checkpoints"]
    assert keys_of(columns) == ["0.gate_up.w", "1.gate_up.w"]
    assert columns["shapes"] == [[8, 6]]
    assert run(*words, "--stats", "--filter", "0.*", "--json").json["num_tensors"] == 1
    (columns,) = columns_of(page.read_text(encoding="utf-8"))["checkpoints"]
    values = np.concatenate([sv.load(source)[f"0.{name}.w"] for name in ("gate", "up")])
    assert columns["stats"]["mean"] == [float(f"{values.mean():.6g}")]
    refused = run("view", source, "-o", tmp_path / "no.html", "--rule", "x -> y")
    assert refused.code == 2 and not (tmp_path / "no.html").exists()


def test_a_shown_tensor_of_a_map_reads_only_what_it_is_made_of(run: Run, tmp_path: Path) -> None:
    pair = {f"{name}.w": np.arange(24.0).reshape(4, 6) for name in ("gate", "up")}
    tensors = {f"{layer}.{key}": each for layer in range(2) for key, each in pair.items()}
    sv.save(tmp_path / "model", tensors)
    (data,) = tmp_path.glob("model.svdata-*")
    flip(data, -1)  # the last value of 1.up.w, whose checksum is wrong now
    mix = "{l}.{s:gate|up}.w[o i] -> {l}.both.w[(o s) i]"
    found = run("show", tmp_path / "model", "0.both.w", "--rule", mix, "--json", "1:3, -1").json
    assert found["values"] == [5.0, 11.0] and found["verified"]
    assert run("show", tmp_path / "model", "1.both.w", "--rule", mix).code == 3
    with sv.open_checkpoint(tmp_path / "model") as reader:
        answers = answers_of(map_reader(reader, sv.Map(FUSE)), ["0.gate_up.w"])
        assert "[11., 17.]" in str(answers["values"]({"tensor": "0", "index": "1:3, -1"})["text"])
        # Rows of only one of two sources.
        assert map_reader(reader, sv.Map(FUSE))["1.gate_up.w"][1:3, -1].tolist() == [11.0, 17.0]
    listed = run("show", tmp_path / "model", "--rule", mix, "--json").json["keys"]
    assert listed == ["0.both.w", "1.both.w"]
