"""LoRA adapters in PEFT's layout: their rules compute what PEFT's own merge does, or are refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import InconsistentTensor, MapError, UnsupportedError
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.paths import GOLDEN

__all__ = ["run"]  # the fixture
CASES = sorted(path.name for path in (GOLDEN / "arithmetic").glob("[ld]ora_*"))


@pytest.mark.parametrize("name", [name for name in CASES if name != "lora_experts_of_files"])
def test_the_rules_of_an_adapter_give_its_golden(name: str, tmp_path: Path) -> None:
    """Bit for bit the definition, whose distance from PEFT's own values is tested with the rules."""
    folder = GOLDEN / "arithmetic" / name
    expected = np.load(folder / "expected.npz")
    rules = sv.lora_rules(folder / "0", folder / "1")
    sv.reshard([folder / "0", folder / "1"], tmp_path / "made.safetensors", map=rules)
    made, base = sv.load(tmp_path / "made.safetensors"), sv.load(folder / "0")
    assert made.keys() == base.keys()
    targets = json.loads((folder / "case.json").read_text())["targets"]
    for key in targets:
        assert made[key].dtype == base[key].dtype
        assert np.array_equal(made[key].astype(np.float64), expected[f"rounded/{key}"]), key
    for key in base.keys() - targets.keys():
        assert made[key].tobytes() == base[key].tobytes()


def adapter(
    folder: Path,
    tensors: dict[str, tuple[int, ...]],
    base: dict[str, tuple[int, ...]],
    **config: Any,
) -> tuple[str, str]:
    """A base and an adapter of some shapes."""
    rng = np.random.default_rng(0)
    named = {f"base_model.model.{key}": shape for key, shape in tensors.items()}
    for path, shapes in (("base/model", base), ("adapter/adapter_model", named)):
        arrays = {key: rng.standard_normal(shape, np.float32) for key, shape in shapes.items()}
        sv.save(folder / f"{path}.safetensors", arrays)
    about = {"peft_type": "LORA", "lora_alpha": 4, "r": 2, **config}
    (folder / "adapter/adapter_config.json").write_text(json.dumps(about))
    return str(folder / "base"), str(folder / "adapter")


LINEAR = {"l.0.q.lora_A.weight": (2, 3), "l.0.q.lora_B.weight": (5, 2)}
BASE = {"l.0.q.weight": (5, 3), "l.0.q.bias": (5,), "norm": (3,)}


def test_two_adapters_a_bias_and_names_that_need_quotes(tmp_path: Path) -> None:
    """The scale of each adapter is its own, by the first pattern that ends a module's name."""
    tensors = {key.replace("q", "q 1"): shape for key, shape in LINEAR.items()}
    tensors |= {"l.0.q 1.lora_B.bias": (5,)}
    base = {key.replace("q", "q 1"): shape for key, shape in BASE.items()}
    alphas = {"0.q": 9, "q 1": 0.5, "l.0.q 1": 7}
    paths = [
        adapter(tmp_path / n, tensors, base, alpha_pattern=alphas, lora_bias=True) for n in "ab"
    ]
    sources = [paths[0][0], paths[0][1], paths[1][1]]
    sv.reshard(sources, tmp_path / "made", map=sv.lora_rules(sources[0], sources[1:]))
    made, whole, *deltas = (sv.load(path) for path in (tmp_path / "made", *sources))
    weight, bias = (whole[f"l.0.q 1.{name}"].astype(np.float64) for name in ("weight", "bias"))
    for delta in deltas:
        a, b, c = (
            delta[f"base_model.model.l.0.q 1.lora_{name}"].astype(np.float64)
            for name in ("A.weight", "B.weight", "B.bias")
        )
        weight, bias = weight + 0.5 / 2 * b @ a, bias + 0.5 / 2 * c
    assert np.allclose(made["l.0.q 1.weight"], weight, rtol=1e-6)
    assert np.allclose(made["l.0.q 1.bias"], bias, rtol=1e-6)
    assert made["norm"].tobytes() == whole["norm"].tobytes()


SQUARE = {"m.e.lora_A.weight": (8, 4), "m.e.lora_B.weight": (4, 8)}
MISSING = {"x.lora_A.weight": (2, 3), "x.lora_B.weight": (5, 2)}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "another kind": ({}, {"peft_type": "IA3"}, "an adapter of type IA3"),
    "repeated layers": ({}, {"layer_replication": [[0, 1]]}, "layer_replication"),
    "a scale in words": ({}, {"lora_alpha": "4"}, "the scale '4'"),
    "a slow pattern": ({}, {"alpha_pattern": {"(a+)+b": 1}}, "may take long"),
    "a wrong pattern": ({}, {"alpha_pattern": {"[a": 1}}, "not a regular expression"),
    "square experts": (SQUARE, {"target_parameters": ["e.w"]}, "is square"),
    "DoRA of an embedding": ({"e.lora_magnitude_vector": (5,)}, {}, "is not a linear layer"),
    "a copy of another base": ({"l.0.q.base_layer.weight": (5, 3)}, {}, "is not the base's"),
    "a base that is missing": (MISSING, {}, "changes none of no parameter"),
    "a half that is missing": ({"norm.lora_embedding_A": (2, 3)}, {}, "is used by no rule"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_adapter_that_no_rule_merges_is_refused(kind: str, tmp_path: Path) -> None:
    tensors, config, words = REFUSED[kind]
    base, delta = adapter(tmp_path, LINEAR | tensors, BASE | {"m.e.w": (4, 4, 4)}, **config)
    with pytest.raises((UnsupportedError, MapError, InconsistentTensor), match=words):
        sv.reshard([base, delta], tmp_path / "out", map=sv.lora_rules(base, delta))
    assert not (tmp_path / "out").exists()


def test_what_is_no_adapter_or_names_what_the_files_do_not_have_is_refused(tmp_path: Path) -> None:
    folder = GOLDEN / "arithmetic" / "lora_experts_of_files"
    with pytest.raises(UnsupportedError, match="changes none of model.layers.0.mlp.experts"):
        sv.lora_rules(folder / "0", folder / "1")
    base, _ = adapter(tmp_path, LINEAR, BASE)
    with pytest.raises(MapError, match="adapter_config.json") as caught:
        sv.lora_rules(base, base)
    assert caught.value.remedy == "Name the folder of an adapter, with its adapter_config.json."


def test_the_command_prints_the_rules_and_merges(run: Run, tmp_path: Path) -> None:
    base, delta = adapter(tmp_path, LINEAR, BASE)
    out = str(tmp_path / "out")
    printed = run("reshard", base, out, "--lora", delta, "--dry-run").out
    assert (
        "l.{l}.q.lora_B" in printed and "(computed)" in printed and "Nothing was written" in printed
    )
    assert "0/l.{l}.q.weight[o i] + 4 / r1 * 1/" in run("reshard", base, out, "--lora", delta).out
    expected = tmp_path / "expected"
    sv.reshard([base, delta], expected, map=sv.lora_rules(base, delta))
    assert sv.diff(out, expected).equal
    refused = run("reshard", base, out, "--lora", delta, "--rule", "a -> b")
    assert refused.code == 2 and "--lora is given with a map" in refused.err
