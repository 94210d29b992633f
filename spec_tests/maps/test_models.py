"""The models that a map is for: another model is refused, and nothing is claimed of an unknown one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import MapError
from shardvar.maps.map import Map, choose_map, shipped_maps, shipped_models
from shardvar.maps.matching import Family
from spec_tests.helpers import model_families as families
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.shipped_maps import shipped
from spec_tests.helpers.thoroughness import stride

__all__ = ["run"]

MODELS = sorted({model for models in shipped_models().values() for model in models})
GGUF = [name for name in shipped_maps() if "gguf" in name]
MADE = {"llama": "llama3", "llama4": "llama3", "phi3": "longrope"}
"""The kind of rotary embedding whose tensors a map to llama.cpp makes."""
BARE = sv.Map.read("llama-hf-to-gguf").extended(sizes={"n": families.H, "g": families.G})


def model_of(given: Map, path: Path, config: Any, **metadata: str) -> str:
    """The sentence on the model, of a checkpoint without tensors."""
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    architecture = metadata.get("general.architecture", "")
    return given.family.check(str(path / "m"), architecture, shipped_models)


def is_like(name: str, other: str) -> bool:
    """True for maps between the same libraries."""
    ends = [each.partition("-to-") for each in (name, other)]
    return ends[0][2] == ends[1][2] and ends[0][0].split("-")[-1] == ends[1][0].split("-")[-1]


def is_rotary(name: str) -> bool:
    """True for a map to llama.cpp that needs something of the rotary embedding."""
    return name.endswith("-to-gguf") and bool(shipped(name).family.requires)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", shipped_maps())
def test_a_shipped_map_takes_its_models_and_no_other(name: str, tmp_path: Path) -> None:
    given, own = shipped(name), shipped(name).family.models
    assert own and given.family.label == name and [*own] == shipped_models()[name]
    assert any(each.startswith("gguf:") for each in own) == (name in GGUF)
    kinds = "default linear dynamic yarn llama3 longrope su other".split()
    for model in (each for each in own if ":" not in each):
        for config in ({"model_type": model}, {"text_config": {"model_type": model}}):
            assert model_of(given, tmp_path, config).endswith(f"says {model}")
    start = sum(map(ord, name))  # 4 others of each map; all are some map's
    for model in [MODELS[(start + 11 * n) % len(MODELS)] for n in range(4)] + ["cohere"]:
        if model in own or ":" in model:
            continue
        with pytest.raises(MapError) as caught:
            model_of(given, tmp_path, {"model_type": model})
        fitting = {other for other, models in shipped_models().items() if model in models}
        fitting = {other for other in fitting if is_like(name, other)}
        cause, remedy = caught.value.cause, caught.value.remedy
        assert cause.startswith(f"{name} is for ") and f"says {model}" in cause
        assert own[0] in cause and "--any-model" in remedy
        assert any(f"For it: {other}. " in remedy for other in fitting) == bool(fitting)
        assert model_of(given.extended(any_model=True), tmp_path, {"model_type": model}) == ""
    if is_rotary(name):
        assert given.family.lacks
        for kind in kinds:
            is_made = MADE.get(name.removesuffix("-hf-to-gguf")) == kind
            needs_tensors = kind in kinds[-4:] and not is_made
            assert is_refused(given, tmp_path, own[0], kind) == needs_tensors, kind


def is_refused(given: Map, path: Path, model: str, kind: str) -> bool:
    """True if a kind of rotary embedding is refused, in each spelling."""
    answers = set()
    for table, key in (
        ("rope_parameters", "rope_type"),
        ("rope_scaling", "rope_type"),
        ("rope_scaling", "type"),
    ):
        config = {"model_type": model, table: {key: kind, "factor": 8.0}}
        for each in (config, {"model_type": "vision", "text_config": config}):
            try:
                model_of(given, path, each)
                answers.add(False)
            except MapError as error:
                assert kind in error.cause and given.family.lacks[0] in error.cause
                answers.add(True)
    (answer,) = answers
    return answer


def test_all_maps_to_llama_cpp_of_models_with_rotary_embeddings_say_what_they_lack() -> None:
    others = {name for name in GGUF if name.endswith("-to-gguf") and not is_rotary(name)}
    assert others == {f"{family}-hf-to-gguf" for family in ("bert", "gpt2", "t5")}


@pytest.mark.parametrize(
    "config",
    [None, {}, [], "text", {"model_type": None}, {"model_type": 5}, {"architectures": ["Cohere"]}],
)
def test_an_unknown_model_is_not_checked_and_the_report_says_so(
    tmp_path: Path, config: Any
) -> None:
    sv.save(tmp_path / "m.safetensors", families.llama())
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with sv.open_checkpoint(tmp_path / "m.safetensors") as reader:
        report = BARE.check(reader)
    assert report.ok and report.summary()[-1].startswith("model not checked: ")
    assert "config.json" in report.model


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", GGUF)
def test_the_architecture_of_a_gguf_file_is_compared(name: str, tmp_path: Path) -> None:
    """Of the map and of its inverse, also without a model type."""
    given = shipped(name)
    (own,) = [each.removeprefix("gguf:") for each in given.family.models if ":" in each]
    for config in ({}, {"model_type": given.family.models[0]}):
        metadata = {"general.architecture": own}
        assert model_of(given, tmp_path, config, **metadata).endswith(f"says {own}")
        with pytest.raises(MapError, match=f"is for {own}, and .* says command-r"):
            model_of(given, tmp_path, config, **{"general.architecture": "command-r"})


def test_each_verb_asks_for_the_model_and_any_model_answers(run: Run, tmp_path: Path) -> None:
    source, there = tmp_path / "m.safetensors", tmp_path / "there.safetensors"
    sv.save(source, families.llama())
    sizes = {"num_attention_heads": families.H, "num_key_value_heads": families.G}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "cohere"} | sizes))
    name, nevertheless = "llama-hf-to-gguf", BARE.extended(any_model=True)
    with pytest.raises(MapError, match="is for llama, mistral, and .* says cohere"):
        sv.load(source, map=name)
    for dry_run in (True, False):
        with pytest.raises(MapError, match="says cohere"):
            sv.reshard(source, there, map=name, dry_run=dry_run)
        sv.reshard(source, there, map=nevertheless, dry_run=dry_run)
    with pytest.raises(MapError, match="says cohere"):
        sv.diff(source, there, map=name)
    assert sv.diff(source, there, map=nevertheless).equal
    with pytest.raises(MapError, match="says cohere"):  # of the way back, too
        sv.load(there, map=BARE.inverse())
    for words in (
        ["reshard", source, tmp_path / "again.safetensors"],
        ["diff", source, there],
        ["view", source, "-o", tmp_path / "page.html"],
        ["show", source, "blk.0.attn_q.weight"],
    ):
        refused = run(*words, "--map", name)
        assert refused.code == 2 and "says cohere" in refused.err and "--any-model" in refused.err
        assert run(*words, "--map", name, "--any-model").code == 0, words
    assert run("reshard", source, there, "--any-model").code == 2
    assert np.array_equal(sv.load(tmp_path / "again.safetensors")["blk.1.ffn_up.weight"],
                          sv.load(there)["blk.1.ffn_up.weight"])  # fmt: skip


def test_a_direction_is_the_map_for_the_model_of_config_json(run: Run, tmp_path: Path) -> None:
    """One that is for none or for several models is refused with the list."""
    for model in MODELS[:: stride(3)]:
        key = "architectures" if model[0].isupper() else "model_type"
        config = {key: [model] if model[0].isupper() else model}
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        for goal in ("gguf", "megatron", "meta", "hf", "transformers"):
            names = {name for name in shipped_maps() if name.endswith(f"-to-{goal}")}
            names = {name for name in names if model in shipped_models()[name]}
            if len(names) == 1:
                assert choose_map(f"to-{goal}", str(tmp_path)) in names
            else:
                with pytest.raises(MapError, match=f"to-{goal} is") as caught:
                    choose_map(f"to-{goal}", str(tmp_path))
                assert all(name in str(caught.value) for name in names)
    sizes = {"num_attention_heads": families.H, "num_key_value_heads": families.G}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral"} | sizes))
    source, there = tmp_path / "m.safetensors", tmp_path / "there.safetensors"
    sv.save(source, families.llama())
    assert run("reshard", source, there, "--map", "to-gguf").code == 0
    assert run("diff", source, there, "--map", "mistral-hf-to-gguf").code == 0
    assert run("diff", there, source, "--map", "to-gguf", "--inverse").code == 0
    with pytest.raises(MapError, match=r"There is no config\.json"):
        choose_map("to-gguf", str(tmp_path / "none" / "m"))
    for name in ("to-nowhere", "cohere-hf-to-gguf", "llama-hf-to-nowhere"):
        with pytest.raises(MapError, match="There is no map"):
            sv.Map.read(name)


def test_a_map_that_names_the_class_goes_before_one_that_names_the_family(tmp_path: Path) -> None:
    config = {"model_type": "a", "architectures": ["AModel"]}
    known = {"a-hf-to-b": ["a"], "a-bare-hf-to-b": ["AModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name, models in known.items():
        own = Family(name, tuple(models))
        if name == "a-hf-to-b":
            with pytest.raises(MapError, match=r"is for a, and .* says AModel.*For it: a-bare"):
                own.check(str(tmp_path), "", lambda: known)
        else:
            assert own.check(str(tmp_path), "", lambda: known).endswith("says AModel")


def test_a_printed_map_and_an_own_map_have_models(run: Run, tmp_path: Path) -> None:
    """A class begins with a capital."""
    (tmp_path / "a.toml").write_text(run("maps", "gemma3-hf-to-gguf").out, encoding="utf-8")
    own, printed = sv.Map.read(tmp_path / "a.toml"), shipped("gemma3-hf-to-gguf")
    fields = [(f.models, f.lacks, f.requires) for f in (own.family, printed.family)]
    assert fields[0] == fields[1] and own.family.label == str(tmp_path / "a.toml")
    (tmp_path / "b.toml").write_text(
        'rules = ["a -> b"]\nmodels = ["X"]\n[requires]\n"a.b|c" = ["1", "true"]\n'
    )
    given, classes = sv.Map.read(tmp_path / "b.toml"), {"architectures": ["X"]}
    assert model_of(given, tmp_path, classes | {"c": True, "a": {"b": 1}}).endswith("says X")
    for config, word in (
        ({"architectures": ["Y"]}, "says Y"),
        (classes | {"c": 2}, "has c = 2"),
        (classes, "has a.b = none"),
        (classes | {"a": {"b": False}, "c": True}, "has a.b = false"),
    ):
        with pytest.raises(MapError, match=word):
            model_of(given, tmp_path, config)


@pytest.mark.parametrize(
    "line", ['models = "llama"', "models = [1]", "lacks = {}", "requires = []", "requires.a = 'b'",
             "requires.a = [2]"]
)  # fmt: skip
def test_models_of_another_kind_are_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(f"rules = ['a -> b']\n{line}\n", encoding="utf-8")
    word = line.partition(" ")[0].removesuffix(".a")
    with pytest.raises(MapError, match=f"as '{word}', not a "):
        sv.Map.read(tmp_path / "m.toml")
