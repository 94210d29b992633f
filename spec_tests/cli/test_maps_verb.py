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


def test_a_delta_is_made_through_a_map(run: Run, tmp_path: Path) -> None:
    source = write(tmp_path)
    fused, file = tmp_path / "fused.safetensors", tmp_path / "map.toml"
    file.write_text(f"rules = [{json.dumps(FUSE)}]", encoding="utf-8")
    assert run("reshard", source, fused, "--map", file).code == 0
    through = ["--map", file, "--size", "s=2", "--any-model", "--lift", "{key}.m=value"]
    for words in (
        [fused, source, tmp_path / "d1", *through],
        [source, source, tmp_path / "d2", "--rule", FUSE, "--map-base"],
        [source, fused, tmp_path / "d3", "--rule", FUSE, "--inverse"],
    ):
        made = run("delta", *words)
        assert made.code == 0 and "no change" in made.out
    assert run("delta", "--compact", "a", "b", "c", "--map-base").code == 2


def test_a_map_file_takes_more_rules_and_other_sizes(run: Run, tmp_path: Path) -> None:
    sv.save(tmp_path / "a.safetensors", {"w": np.arange(12).reshape(12, 1), "norm": np.ones(2)})
    map_file = tmp_path / "map.toml"
    rule = "w[(n two) i] -> w[(two n) i]"
    map_file.write_text(f"rules = [{json.dumps(rule)}]\nsizes = {{n = 3}}\n", encoding="utf-8")
    words = ["reshard", tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--map", map_file]
    refused = run(*words)
    assert refused.code == 2 and "'norm' is matched by no rule" in refused.err
    assert not (tmp_path / "b.safetensors").exists()
    more = ["--rule", "norm -> scale", "--size", "n=6"]
    assert run(*words, *more).code == 0
    found = sv.load(tmp_path / "b.safetensors")
    assert found["w"].ravel().tolist() == [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]
    assert found["scale"].tolist() == [1, 1]
    assert run("diff", words[1], words[2], "--map", map_file, *more).code == 0


def test_sizes_without_a_map_and_sizes_without_a_number_are_refused(
    run: Run, tmp_path: Path
) -> None:
    source = write(tmp_path)
    twice = ["--rule", FUSE, "--size", "l=3", "--size", "l=4"]
    outcome = run("reshard", source, tmp_path / "out", *twice)
    assert outcome.code == 2 and "--size gives l as 3 and as 4" in outcome.err
    for words in (["--size", "n=3"], ["--inverse"], ["--rule", FUSE, "--size", "n"]):
        outcome = run("reshard", source, tmp_path / "out", *words)
        assert outcome.code == 2 and words[-2 if "n" in words else 0] in outcome.err
        assert not (tmp_path / "out").exists()


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


def test_a_diff_of_ranks_draws_no_page(run: Run, tmp_path: Path) -> None:
    source = write(tmp_path)
    words = ["--rule", "{l}.{s}.w[(rank o) i] -> {rank}/{l}.{s}.w[o i]", "--size", "rank=2"]
    words[1] = words[1].replace("{s}", "{s:gate|up}")
    assert run("reshard", source, tmp_path / "out", *words).code == 0
    assert run("diff", source, tmp_path / "out", *words).code == 0
    page = tmp_path / "page.html"
    outcome = run("diff", source, tmp_path / "out", *words, "--html", page)
    assert outcome.code == 2 and "3 are compared" in outcome.err and not page.exists()


def test_a_shipped_map_without_an_inverse_names_the_one_that_goes_the_other_way(
    run: Run, tmp_path: Path
) -> None:
    words = ["reshard", write(tmp_path), tmp_path / "out", "--inverse", "--map"]
    refused = run(*words, "llama-hf-to-megatron-layers", "--size", "vocab=3")
    assert refused.code == 2 and "'llama-megatron-layers-to-hf' goes the other way" in refused.err
    (tmp_path / "mine.toml").write_text("rules = ['a -> nothing']", encoding="utf-8")
    assert "Write the way back by hand." in run(*words, tmp_path / "mine.toml").err


def test_filters_say_whose_keys_they_take(run: Run, tmp_path: Path) -> None:
    """Of a resharding, the source's; of a comparison, the keys that the map makes."""
    source, fused = write(tmp_path), tmp_path / "fused.safetensors"
    words = ["--strip-prefix", "0.", "--rule", FUSE.replace("{l}.", "")]
    for option, glob, more in (
        ("--filter", "0.gate_up*", "keys of the source, and '0.gate_up.w' is one"),
        ("--exclude", "0.gate_up*", "keys of the source, and '0.gate_up.w' is one"),
        ("--filter", "zzz", "keys of the source."),
    ):
        refused = run("reshard", source, fused, "--rule", FUSE, option, glob)
        assert refused.code == 2 and more in refused.err, refused.err
    assert run("reshard", source, fused, *words, "--filter", "0.*").code == 0
    assert list(sv.load(fused)) == ["gate_up.w"]
    refused = run("diff", source, fused, "--rule", FUSE, "--filter", "0.gate.*")
    assert refused.code == 2 and "take the keys that it makes" in refused.err
