"""``shardvar maps``, and maps of the command line: ``--map``, ``--rule``, ``--size``, ``--inverse``."""

import json
import tomllib
from pathlib import Path

import numpy as np

import shardvar as sv
from shardvar.cli.serving import answers_of
from shardvar.maps.map import find_shipped, shipped_maps, shipped_models
from shardvar.verbs.mapping import map_reader
from spec_tests.helpers.command_line import Run, run, terminal
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


def test_the_list_has_all_shipped_maps(run: Run) -> None:
    listed = run("maps", "--json").json["maps"]
    assert [each["name"] for each in listed] == shipped_maps()
    assert all(each["about"].endswith(".") for each in listed)
    printed = run("maps").out
    assert all(name in printed for name in shipped_maps())
    assert "deepseek-v3-hf-to-gguf" in run("maps", "Kimi").out  # of whose models is kimi_k2


def test_a_printed_map_is_a_map_file(run: Run, tmp_path: Path) -> None:
    for name in ("llama-hf-to-megatron", "mixtral-hf-to-transformers"):
        text = run("maps", name).out
        (tmp_path / "copy.toml").write_text(text, encoding="utf-8")
        assert sv.Map.read(tmp_path / "copy.toml") == sv.Map.read(name)
        assert tuple(run("maps", name, "--json").json["rules"]) == sv.Map.read(name).rules
        assert tomllib.loads(text)["about"] == sv.Map.read(name).about


def test_an_unknown_map_gets_the_nearest_names(run: Run) -> None:
    outcome = run("maps", "lamma-hf-to-megatron")
    assert outcome.code == 2 and "'llama-hf-to-megatron'" in outcome.err


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
    for verb in ("show", "view"):
        words = [verb, fused, "--rule", FUSE, "--inverse", "--size", "s=2"]
        more = ["--output", tmp_path / "page.html"] if verb == "view" else ["0.up.w"]
        assert run(*words[:2], *more, *words[2:]).code == 0


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


def test_a_map_that_does_not_fit_prints_its_problems_and_counts_the_others(
    run: Run, tmp_path: Path
) -> None:
    source = tmp_path / "many.safetensors"
    sv.save(source, {f"{layer}.w": np.ones(2) for layer in range(30)} | {"norm": np.ones(2)})
    words = ["reshard", source, tmp_path / "out", "--rule", "norm -> n"]
    lines = run(*words).err.splitlines()
    assert lines[0].startswith("error: '0.w' is matched by no rule")
    assert lines[0].endswith("There are 29 more problems.") and lines[1].startswith("hint: Add")
    assert len(lines) == 23 and lines[-1] == "also: ... and 9 more"
    assert all(line.startswith("also: '") for line in lines[2:-1])
    found = run(*words, "--json").json["error"]
    assert found["kind"] == "MapError" and len(found["problems"]) == 21
    assert not (tmp_path / "out").exists()


def test_a_dry_run_prints_the_table_of_rules(run: Run, tmp_path: Path) -> None:
    source = write(tmp_path)
    words = ["reshard", source, tmp_path / "out", "--rule", FUSE, "--dry-run"]
    printed = run(*words).out
    (row,) = [line.split() for line in printed.splitlines() if FUSE in line]
    assert row == ["1", *FUSE.split(), "2", "x", "2", "[4,", "6]", "[8,", "6]"]
    assert "every source is used once; every tensor made is filled once\nexact: bits" in printed
    report = run(*words, "--json").json["map"]
    assert report["rules"][0]["matches"] == 4 and report["is_exact"]
    assert report["summary"][0].startswith("every source is used once")
    # Neither a write nor a dry run without a map has one.
    assert run("reshard", source, tmp_path / "copy", "--dry-run", "--json").json["map"] is None
    assert run("reshard", source, tmp_path / "out", "--rule", FUSE, "--json").json["map"] is None


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


def test_a_shown_map_may_be_a_file_with_sizes_and_go_the_other_way(
    run: Run, tmp_path: Path
) -> None:
    sv.save(tmp_path / "a.safetensors", {"w": np.arange(12.0)})
    (tmp_path / "map.toml").write_text("rules = ['x[n two] -> w[(two n)]']", encoding="utf-8")
    words = ["--map", tmp_path / "map.toml", "--size", "two=2", "--inverse"]
    found = run("show", tmp_path / "a.safetensors", "x", "--json", *words).json
    assert found["values"] == np.arange(12.0).reshape(2, 6).T.tolist()
    page = tmp_path / "page.html"
    assert run("view", tmp_path / "a.safetensors", "-o", page, *words).code == 0
    assert keys_of(columns_of(page.read_text(encoding="utf-8"))["checkpoints"][0]) == ["x"]


def test_a_diff_lists_the_rules_and_the_tensors_of_each_that_differ(
    run: Run, tmp_path: Path
) -> None:
    source, other = write(tmp_path), tmp_path / "other.safetensors"
    keep = "{l}.norm -> {l}.norm"
    sv.save(source, {**sv.load(source), "0.norm": np.ones(2), "1.norm": np.ones(2)}, force=True)
    words = ["--rule", FUSE, "--rule", keep]
    assert run("reshard", source, other, *words).code == 0
    made = sv.load(other)
    made["1.gate_up.w"][0, 0] += 1
    del made["0.norm"], made["1.norm"]
    sv.save(other, made, force=True)
    outcome = run("diff", source, other, *words)
    assert outcome.code == 1 and "only in A: 0.norm" in outcome.out
    rows = [line.split()[-1] for line in outcome.out.splitlines() if "->" in line]
    assert rows == ["1", "2"] and "every source is used once" in outcome.out
    assert FUSE not in run("diff", source, other, *words, "--summary").out
    rules = run("diff", source, other, *words, "--json").json["map"]["rules"]
    assert [rule["num_unlike"] for rule in rules] == [1, 2]
    renamed = run("diff", source, other, *words, "--rename", "*gate_up*=*fused*", "--json").json
    assert [rule["num_unlike"] for rule in renamed["map"]["rules"]] == [2, 2]
    assert run("diff", source, source, "--json").json["map"] is None


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


def test_a_word_filters_and_a_terminal_groups_the_families(run: Run) -> None:
    names = shipped_maps()
    for word in ("llama", "to-gguf", "MoE"):
        listed = [each["name"] for each in run("maps", word, "--json").json["maps"]]
        named = [name for name in names if word.lower() in name]
        others = [name for name in listed if name not in named]
        assert named == [name for name in listed if name in named] != names
        assert all(word.lower() in " ".join(shipped_models()[name]) for name in others)
    with terminal(500):
        groups = dict(line.split(": ", 1) for line in run("maps").out.splitlines() if ": " in line)
        every = run("maps", "--all").out
    assert all(name in every for name in names)
    found = set()
    for direction, families in groups.items():
        shown, _, more = families.partition(" and ")
        there = {find_shipped(f"{family}-{direction}") for family in shown.split(", ")}
        assert there <= {*names} and (not more or int(more.split()[0]) > 0)
        found |= there
    assert len(found) > 50


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
