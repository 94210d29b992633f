"""The vectors that shardvar publishes: this engine gives what they expect, and they are what their
generator makes.

What is expected was computed by the plain rules of ``shardvar.spec``, which know nothing of the
engine, as a test holds; so a vector that passes is two opinions that agree.
"""

import ast
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

import shardvar as sv
from shardvar.vectors.run import judge_answer
from spec_tests.helpers.layout_tables import Case, each_row
from spec_tests.helpers.paths import ROOT
from spec_tests.helpers.published_vectors import unpacked
from spec_tests.rules.sentences import sentences_by_rule
from spec_tests.vector_answers import disk, geometry, memory, meshes
from spec_tests.vector_generators import make
from spec_tests.vector_generators.rules import RULES

DATA = unpacked()
GENERATORS = Path(make.__file__).parent
DOCUMENTS = {
    name: json.loads((DATA / f"{name}.json").read_text(encoding="ascii")) for name in make.GROUPS
}
CASES = {case["id"]: case for document in DOCUMENTS.values() for case in document["cases"]}
SCHEMA = json.loads((DATA / "schema.json").read_text(encoding="utf-8"))
OPS = geometry.OPS | meshes.OPS | memory.OPS


def answer(case: Mapping[str, Any]) -> Any:
    """What the engine gives: a value, or the error that it raises."""
    try:
        if case["op"] in disk.OPS:
            return disk.OPS[case["op"]](DATA, case["inputs"], case.get("expected"))
        return OPS[case["op"]](case["inputs"])
    except AssertionError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it raises is what is judged
        return error


def disagreement(case: Mapping[str, Any], answer: Any) -> str | None:
    """Return how an answer differs from all that a case allows; also an error of another class."""
    found = judge_answer(case, answer, lambda name: getattr(sv.errors, name))
    return found.why if found.outcome == "failed" else None


@pytest.mark.parametrize("group", make.GROUPS)
def test_the_engine_gives_what_is_expected(group: str) -> None:
    found = {case["id"]: disagreement(case, answer(case)) for case in DOCUMENTS[group]["cases"]}
    assert {name: why for name, why in found.items() if why is not None} == {}


@pytest.fixture(scope="module")
def validator() -> Any:
    """The schema's; the built wheel is tested without the package that checks schemas."""
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    return jsonschema.Draft202012Validator(SCHEMA)


@pytest.mark.parametrize("name", make.GROUPS)
def test_every_file_is_as_the_schema_says(name: str, validator: Any) -> None:
    assert list(validator.iter_errors(DOCUMENTS[name])) == []


@pytest.mark.parametrize(
    "spoil",
    [
        {"op": "unknown"},
        {"expected": None, "error": "LayoutError"},
        {"inputs": {"length": 13}},
        {"inputs": {"length": 2**53, "num_shards": 2}},
        {"expected": [[0.5, 1]]},
        {"ulps": -1},
        {"bug": ""},
        {"acceptable": [{"why": "nobody says what"}]},
        {"more": 1},
    ],
    ids=lambda spoil: next(iter(spoil)),
)
def test_the_schema_refuses_what_is_no_vector(spoil: dict[str, Any], validator: Any) -> None:
    """Each would be accepted by a schema that says nothing of it."""
    case = {**CASES["div-div-13-5"], **spoil}
    document = {**DOCUMENTS["div"], "cases": [case]}
    assert not validator.is_valid(document)


def test_the_generator_makes_the_published_files_again() -> None:
    """Byte for byte, and no file more. Two builds of zlib may pack them differently."""
    published, made = make.unpacked(make.ARCHIVE), make.files()
    changed = {
        name for name in published.keys() | made.keys() if published.get(name) != made.get(name)
    }
    assert changed == set(), (
        "run `make vectors`: golden and hostile checkpoints are among what it is made from"
    )


def test_an_archive_is_the_same_for_the_same_files_and_is_written_only_if_one_differs(
    tmp_path: Path,
) -> None:
    """In order of names, with neither times nor owners; what another zlib packed stays as it is."""
    archive, files = tmp_path / "a.zip", {"b": b"2" * 99, "a/c": b"1"}
    assert make.update(archive, files) == ["a/c", "b"]
    assert archive.read_bytes() == make.packed(dict(reversed(files.items())))
    with ZipFile(archive) as found:
        assert [each.filename for each in found.infolist()] == ["a/c", "b"]
        assert {each.date_time for each in found.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    with ZipFile(archive, "w") as stored:
        for name, octets in files.items():
            stored.writestr(name, octets)
    before = archive.read_bytes()
    assert make.update(archive, files) == [] and archive.read_bytes() == before
    assert make.update(archive, {"b": b"2"}) == ["a/c", "b"]
    assert make.unpacked(archive) == {"b": b"2"}


def test_the_generator_knows_nothing_of_the_engine() -> None:
    """So that what is expected never comes from the function under test. The plain rules of
    `shardvar.spec` know nothing of it either."""
    known = {*sys.stdlib_module_names, "numpy", "ml_dtypes"}
    ours = ("spec_tests.vector_generators", "spec_tests.helpers.paths", "shardvar.spec")
    for path in GENERATORS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names if not name.startswith(ours)} <= known, (
                path
            )


def test_ids_are_unique_and_begin_with_their_group() -> None:
    for group, document in DOCUMENTS.items():
        assert document["header"]["group"] == group
        assert document["header"]["count"] == len(document["cases"])
        assert all(case["id"].startswith(f"{group}-") for case in document["cases"])
    assert len(CASES) == sum(document["header"]["count"] for document in DOCUMENTS.values())


def test_every_rule_has_a_vector_and_every_op_is_told() -> None:
    """In the README, where someone who has nothing else looks."""
    readme = (DATA / "README.md").read_text(encoding="utf-8")
    assert {case["rule"] for case in CASES.values()} == RULES.keys()
    assert [op for op in {case["op"] for case in CASES.values()} if f"`{op}`" not in readme] == []
    assert [name for name in make.GROUPS if f"[{name}.json]({name}.json)" not in readme] == []


def test_sentences_of_the_documentation_stand_there() -> None:
    """Word for word; those of the RFCs are held by the table of rules."""

    def words(text: str) -> str:
        return " ".join(text.split())

    told = {rule: each for rule, each in RULES.items() if each["source"].startswith("docs/")}
    pages = {source: words((ROOT / source).read_text(encoding="utf-8")) for source in sources(told)}
    assert [
        rule for rule, each in told.items() if words(each["sentence"]) not in pages[each["source"]]
    ] == []


def test_sentences_of_the_rfcs_are_those_of_their_rules() -> None:
    """An id means the same here as in docs/rules.md."""

    def words(text: str) -> str:
        return " ".join(re.sub("[`*_]", "", text).split())

    for rule, each in RULES.items():
        if rule.startswith("R-"):
            number, sentences = each["source"].removeprefix("RFC "), sentences_by_rule()[rule]
            assert any(
                words(each["sentence"]) in words(told.text)
                for rfc, told in sentences
                if rfc == number
            ), rule


def sources(told: Mapping[str, Mapping[str, str]]) -> set[str]:
    return {each["source"] for each in told.values()}


def test_no_number_is_beyond_what_javascript_holds() -> None:
    """Integers; real numbers are float64 in JavaScript too."""

    def numbers(value: Any) -> list[int]:
        if isinstance(value, dict):
            return [each for part in value.values() for each in numbers(part)]
        if isinstance(value, list):
            return [each for part in value for each in numbers(part)]
        return [value] if isinstance(value, int) else []

    assert (
        max(abs(number) for document in DOCUMENTS.values() for number in numbers(document)) < 2**53
    )


def test_the_vectors_are_small() -> None:
    assert sum(len(octets) for octets in make.files().values()) < 2_000_000
    assert make.ARCHIVE.stat().st_size < 400_000


@each_row([case for case in CASES.values() if "error" in case][::5])
def test_an_answer_where_an_error_is_expected_is_wrong(case: Case) -> None:
    assert disagreement(case, 0) is not None
    assert disagreement(case, KeyError("another error")) is not None
