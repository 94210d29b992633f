"""Derivations: a result is derived by its own statement, and any changed byte, rule, option or version is
found."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import CorruptCheckpoint, MalformedCheckpoint, TargetExists
from shardvar.verbs.compare import blocks, walk
from shardvar.verbs.derivation import DerivationReport
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.damage import flip
from spec_tests.helpers.thoroughness import stride

__all__ = ["run"]

RULES = ["w[o i] -> x[i o]", "2 * v[i j] -> v[i j]"]

OPTIONS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "a map that computes": {"map": RULES, "exclude": "s"},
    "a size": {
        "map": sv.Map(["w[(a o) i] -> {a}.w[o i]", "v -> v"], sizes={"a": 2}),
        "exclude": "s",
    },
    "names": {"rename": {"w": "a/w"}, "strip_prefix": "st", "add_prefix": "m."},
    "a cast": {"cast": {"v": "float16"}},
    "all cast": {"cast": "float16", "filter": ["w", "v"]},
    "a transpose": {"transpose": ["w", "v"]},
    "a scheme": {"quantize": "mxfp4", "filter": "*w", "rename": {"w": "a.weight"}},
}


def model(seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    w = random.normal(size=(600, 704)).astype(np.float32)  # of two leaves
    return {"w": w, "v": random.normal(size=(2, 3)), "steps": np.array(7), "s": np.arange(3)}


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path, Path]:
    source, result, file = tmp_path / "a", tmp_path / "b.npz", tmp_path / "b.json"
    sv.save(source, model(), partition=3)
    options = {"map": [*RULES, "steps -> steps"], "exclude": "s"}
    sv.reshard(source, result, **options)
    sv.certify(result, source, file, **options)
    return source, result, file


@pytest.mark.parametrize("name", OPTIONS)
@settings(max_examples=16 // stride(2))
@given(data=st.data())
def test_a_result_is_derived_until_a_byte_of_it_or_of_a_source_changes(
    name: str, data: st.DataObject
) -> None:
    options, tensors = OPTIONS[name], model()
    if "map" in options:
        del tensors["steps"]
    # Tensors that do not fit a block are hashed as they are compared, in whole leaves or not.
    nbytes = data.draw(st.sampled_from([1 << 22, 1 << 20, 1000000]))
    with (
        tempfile.TemporaryDirectory() as name_of_folder,
        patch.object(blocks, "BLOCK_NBYTES", nbytes),
        patch.object(walk, "BLOCK_NBYTES", nbytes),
    ):
        folder = Path(name_of_folder)
        source, copy, file = folder / "a", folder / "c", folder / "b.json"
        sv.save(source, tensors, partition=data.draw(st.integers(1, 3)))
        form = data.draw(st.sampled_from([".npz", ".safetensors", ""]))
        result = folder / f"b{form}"
        sv.reshard(source, result, format=None if form else "shardvar", **options)
        assert sv.certify(result, source, file, **options).ok
        sv.reshard(result, copy, format="shardvar", partition=2)
        assert sv.verify_derivation(copy, source, file).ok
        changed = data.draw(st.sampled_from([source, copy]))
        values = {key: np.array(value) for key, value in sv.load(changed).items()}
        octets = values[data.draw(st.sampled_from(sorted(values)))].reshape(-1).view(np.uint8)
        octets[data.draw(st.integers(0, len(octets) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        sv.save(changed, values, force=True)
        found = sv.verify_derivation(copy, source, file)
        assert found.verdict == "not derived"
        for word, path in (("source", source), ("result", copy)):
            is_told = any(f"{word} differs" in each for each in found.problems)
            assert is_told == (changed == path)


EDITS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "a rule": (lambda _, p: p["options"]["map"]["rules"].__setitem__(1, "3 * v[i j] -> v[i j]"), "by rule 2"),
    "a lost rule": (lambda _, p: p["options"]["map"]["rules"].pop(), "do not fit"),
    "a lost option": (lambda _, p: p["options"].pop("exclude"), "do not fit"),
    "another option": (lambda _, p: p["options"].update(cast="float16"), "'x' differs in dtype"),
    "another subject": (lambda s, _: s["subject"][0]["digest"].update(shardvarDigest1="0" * 64), "result differs"),
    "another source": (lambda _, p: p["sources"][0]["digest"].update(shardvarDigest1="0" * 64), "source differs"),
    "other classes": (lambda _, p: p["classes"].update(moved=9), "other numbers"),
    "a newer definition": (lambda _, p: p.update(definition=2), "definition 2"),
    "an unknown option": (lambda _, p: p["options"].update(prune=1), "option 'prune'"),
}  # fmt: skip


def edited(file: Path, edit: Callable[[Any, Any], Any]) -> None:
    statement = json.loads(file.read_text(encoding="utf-8"))
    edit(statement, statement["predicate"])
    file.write_text(json.dumps(statement), encoding="utf-8")


@pytest.mark.parametrize("name", EDITS)
def test_every_edit_of_a_statement_is_found(made: tuple[Path, Path, Path], name: str) -> None:
    (source, result, file), (edit, words) = made, EDITS[name]
    edited(file, edit)
    found = sv.verify_derivation(result, source, file)
    is_known = name not in ("a newer definition", "an unknown option")
    assert found.verdict == ("not derived" if is_known else "cannot be decided")
    assert words in " ".join(found.problems)


NONE: list[Callable[[Any, Any], Any]] = [
    lambda statement, _: statement.update(subject=[]),
    lambda statement, _: statement.update(predicateType="https://slsa.dev/provenance/v1"),
    lambda _, predicate: predicate.update(options=[3]),
    lambda _, predicate: predicate["options"].update(exclude=[3]),
    lambda _, predicate: predicate["options"].update(rename=[["re:(a+)+$", "b"]]),
    lambda _, predicate: predicate["options"].update(map={"rules": ["w ->"], "sizes": {}}),
    lambda _, predicate: predicate.update(sources=3),
    lambda _, predicate: predicate.update(files=[3]),
]


@pytest.mark.parametrize("edit", NONE)
def test_a_statement_that_is_none_is_refused(
    made: tuple[Path, Path, Path], edit: Callable[[Any, Any], Any]
) -> None:
    source, result, file = made
    edited(file, edit)
    with pytest.raises(MalformedCheckpoint, match=r"b\.json"):
        sv.verify_derivation(result, source, file)


def test_nothing_false_is_certified(made: tuple[Path, Path, Path]) -> None:
    source, result, file = made
    with pytest.raises(TargetExists):
        sv.certify(result, source, file)
    file.unlink()
    with pytest.raises(CorruptCheckpoint, match="is not what these options make"):
        sv.certify(result, source, file, transpose="w")
    assert not file.exists()


@pytest.mark.parametrize("form", ["shardvar", "torch"])
def test_settings_count(tmp_path: Path, form: str) -> None:
    source, result, file = tmp_path / "a", tmp_path / "b", tmp_path / "b.json"
    sv.save(source, {"w": np.ones(2), "rate": 0.1}, format=form)
    sv.reshard(source, result, format=form)
    assert sv.certify(result, source, file).ok
    sv.save(result, {"w": np.ones(2), "rate": 0.2}, format=form, force=True)
    assert "'rate'" in sv.verify_derivation(result, source, file).problems[0]


def test_a_lineage_is_walked_and_a_missing_link_is_named(
    run: Run, made: tuple[Path, Path, Path]
) -> None:
    source, middle, first = made
    folder = source.parent
    changed, delta, result = folder / "changed", folder / "delta", folder / "d.npz"
    values = dict(sv.load(middle))
    sv.save(changed, values | {"v": values["v"] + 1})
    sv.delta(middle, changed, delta)
    second, last = folder / "d.json", folder / "e.json"
    assert run("apply", middle, delta, result, "--certify", second).code == 0
    end = folder / "e.safetensors"
    assert run("reshard", result, end, "--rename", "x=y", "--certify", last).code == 0
    statements = [first, last, second]
    assert sv.verify_derivation(end, [source, delta, result, middle], statements).ok
    for lost, word in (
        (middle, "without b.npz"),
        (delta, "missing link: delta"),
        (source, "link: a"),
    ):
        given = [each for each in (source, middle, delta, result) if each != lost]
        found = sv.verify_derivation(end, given, statements)
        assert found.verdict == "cannot be decided" and word in str(found)
    found = sv.verify_derivation(end, [source, middle, delta, result], [first, last])
    assert found.verdict == "cannot be decided" and "leads to nothing" in str(found)
    found = sv.verify_derivation(end, [result], [last])
    assert found.ok and found.sources == (str(result),)


def test_one_lineage_has_a_delta_a_merge_a_conversion_and_a_quantisation(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng, layer = np.random.default_rng(0), "model.layers.0.self_attn.q_proj"
    weight = rng.normal(size=(64, 32)).astype(np.float32)
    base = {f"{layer}.weight": weight, "model.norm.weight": np.ones(32)}
    sv.save("base", base)
    sv.save("trained", base | {f"{layer}.weight": weight * (rng.random((64, 32)) > 0.1)})
    sv.delta("base", "trained", "delta")
    shapes = {"A": (2, 32), "B": (64, 2)}
    factors = {
        f"base_model.model.{layer}.lora_{each}.weight": rng.normal(size=shape).astype(np.float32)
        for each, shape in shapes.items()
    }
    sv.save("adapter/adapter_model.safetensors", factors)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    Path("adapter/adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    rule = f"{layer}.weight[(n two d) i] -> q.weight[(n d two) i]"
    for number, words in enumerate(
        [
            ("apply", "base", "delta", "applied.safetensors"),
            ("reshard", "applied.safetensors", "merged.safetensors", "--lora", "adapter"),
            ("reshard", "merged.safetensors", "converted", "--rule", rule, "--size", "n=4", "--size", "two=2",
             "--rule", "rest {x:**} -> {x}", "--format", "shardvar"),
            ("reshard", "converted", "small.gguf", "--quantize", "q8_0", "--cast", "*norm*=float32"),
        ]
    ):  # fmt: skip
        done = run(*words, "--certify", f"{number}.json")
        assert done.code == 0, done.err
    given = ["base", "delta", "applied.safetensors", "merged.safetensors", "adapter", "converted"]
    claims = [f"{number}.json" for number in range(4)]
    assert sv.verify_derivation("small.gguf", given, claims).ok
    for lost in given:
        found = sv.verify_derivation("small.gguf", [each for each in given if each != lost], claims)
        assert found.verdict == "cannot be decided" and lost in str(found)
    for lost in claims[:2]:  # without one, the walk ends there
        found = sv.verify_derivation("small.gguf", given, [each for each in claims if each > lost])
        assert found.ok and len(found.sources) < len(given)
    assert sv.verify_derivation("small.gguf", given, claims[:3]).verdict != "derived"


def test_the_commands_write_and_decide(run: Run, tmp_path: Path) -> None:
    source, result, file = tmp_path / "a", tmp_path / "b.npz", tmp_path / "b.json"
    sv.save(source, model(), partition=2)
    words = ("reshard", source, result, "--cast", "float16", "--certify", file)
    assert run(*words, "--dry-run").code == 2 and not result.exists()
    assert (run(*words).code, run(*words, "--force").code) == (0, 0)
    check = ("verify", result, "--derived-from", source, "--statement", file)
    done = run(*check)
    report = sv.verify_derivation(result, source, file)
    assert isinstance(report, DerivationReport) and str(report).startswith("derived:")
    assert done.code == 0 and done.out.startswith("derived:") and "2 rounded" in done.out
    assert run(*check, "--json").json["ok"] is True
    assert run(*check[:4]).code == 2
    flip(*tmp_path.glob("a.svdata-*"), 0)
    damaged = run(*check)
    assert damaged.code == 3 and "cannot be read in the sources" in damaged.out
    sv.save(source, model(1), force=True)
    assert run(*check).code == 1
    edited(file, lambda _, predicate: predicate.update(definition=2))
    assert run(*check).code == 3
