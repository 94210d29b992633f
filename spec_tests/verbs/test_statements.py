"""In-toto statements of digests: what is printed is read, in envelopes too, and nothing else is."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import MalformedCheckpoint
from shardvar.verbs.compare.manifest import read_manifest, statement_of
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.paths import GOLDEN

__all__ = ["run"]

TENSORS = {"table": np.arange(6.0).reshape(2, 3), "größe": np.array(7), 'a"\n': np.zeros(0)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    sv.save(tmp_path / "model", TENSORS, partition=2)
    return tmp_path / "model"


def envelope(statement: Any) -> dict[str, Any]:
    payload = base64.b64encode(json.dumps(statement).encode()).decode()
    return {"payloadType": "application/vnd.in-toto+json", "payload": payload, "signatures": []}


def test_a_printed_statement_is_true_of_the_model_in_every_format(
    run: Run, model: Path, tmp_path: Path
) -> None:
    printed = run("digest", model, "--in-toto")
    statement = json.loads(printed.out)
    assert printed.code == 0 and statement == statement_of(sv.digest(model))
    copy = tmp_path / "copy.npz"
    sv.reshard(model, copy, exclude='a"*')
    sv.save(copy, TENSORS, force=True)
    file = tmp_path / "statement.json"
    signed = envelope(statement)
    for form in (statement, signed, {"mediaType": "bundle", "dsseEnvelope": signed}):
        file.write_text(json.dumps(form), encoding="utf-8")
        assert read_manifest(file).tensors == sv.digest(model).tensors
        for command in ("digest", "verify"):
            assert run(command, copy, "--against", file).code == 0
    sv.save(copy, {**TENSORS, "table": TENSORS["table"] + 1}, force=True)
    for command in ("digest", "verify"):
        assert run(command, copy, "--against", file).code == 1


def test_a_checkpoint_that_cannot_be_read_has_no_statement(run: Run, model: Path) -> None:
    next(model.parent.glob("*.svdata-*-00001*")).unlink()
    printed = run("digest", model, "--in-toto")
    assert printed.code == 3 and printed.out == "" and "table" in printed.err


def changed(statement: dict[str, Any], *path: Any, value: Any) -> dict[str, Any]:
    """A copy of a statement with another value at a path; None removes it."""
    found: Any = json.loads(json.dumps(statement))
    place = found
    for step in path[:-1]:
        place = place[step]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return dict(found)


DIGEST = ("predicate", "tensors", 0, "digest")
NAME = ("predicate", "tensors", 0, "name")
WRONG: list[tuple[tuple[Any, ...], Any, str]] = [
    (("_type",), "https://in-toto.io/Statement/v0.1", "of type"),
    (("predicateType",), "https://slsa.dev/provenance/v1", "slsa.dev"),
    (("predicateType",), None, "neither a manifest nor"),
    (("predicate",), None, "lacks"),
    (("predicate", "tensors"), "all", "lacks"),
    (DIGEST, {"sha256": "0" * 64}, "lacks"),
    (DIGEST, {"shardvarDigest1": "A" * 64}, "wrong name or digest"),
    (NAME, 3, "wrong name"),
    (NAME, "table", "twice"),
    (("predicate", "tensors", 0), None, "does not match"),
    (("subject",), [], "does not match"),
    (("subject",), "model", "lacks"),
]


@pytest.mark.parametrize(("path", "value", "message"), WRONG)
def test_a_statement_that_is_wrong_is_refused_by_name(
    path: tuple[Any, ...], value: Any, message: str, model: Path, tmp_path: Path
) -> None:
    wrong = changed(statement_of(sv.digest(model)), *path, value=value)
    for form in (wrong, envelope(wrong)):
        (tmp_path / "statement.json").write_text(json.dumps(form), encoding="utf-8")
        with pytest.raises(MalformedCheckpoint, match=message):
            read_manifest(tmp_path / "statement.json")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        "{" + "[" * 100_000,
        '{"_type": []}',
        '{"dsseEnvelope": []}',
        '{"payload": 3, "payloadType": 4}',
        '{"payload": "e30=", "payloadType": "application/vnd.in-toto+json"}',
    ],
)
def test_other_json_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "statement.json").write_text(text, encoding="utf-8")
    with pytest.raises(MalformedCheckpoint, match=r"statement\.json"):
        read_manifest(tmp_path / "statement.json")


def test_a_bundle_that_model_signing_wrote_is_read(run: Run, tmp_path: Path) -> None:
    """``golden/statements`` has a statement of this model, signed by model-signing 1.1.1."""
    bundle = GOLDEN / "statements" / "trained.sigstore.json"
    assert "dsseEnvelope" in json.loads(bundle.read_text(encoding="utf-8"))
    model = {"a": np.arange(300.0), "step": np.array(7)}
    for name in ("copy.npz", "copy.safetensors"):
        sv.save(tmp_path / name, model)
        assert run("verify", tmp_path / name, "--against", bundle).code == 0
    sv.save(tmp_path / "other.npz", {**model, "step": np.array(8)})
    assert run("verify", tmp_path / "other.npz", "--against", bundle).code == 1
