"""The conformance kit judges rightly: what shardvar and NumPy claim they keep, and nothing
unclaimed counts as kept."""

import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardvar.conformance import adapter as protocol
from shardvar.conformance.adapters.numpy import Adapter as NumpyAdapter
from shardvar.conformance.adapters.shardvar import Adapter as ShardvarAdapter
from shardvar.conformance.calls import Broken, KeptByRefusal
from shardvar.conformance.rules import LEVELS, Rule, all_rules, damage
from shardvar.conformance.rules.cases import refusable
from shardvar.conformance.rules.damage import files_of
from shardvar.conformance.session import (
    BROKEN,
    BROKEN_SOMETIMES,
    EXPECTED_FAILURE,
    KEPT,
    NOT_CLAIMED,
    UNEXPECTED_PASS,
    Counterexample,
    Expected,
    Verdict,
    _drawn,
    judge,
    program,
    verdict_of,
)
from shardvar.testing.operations import SPARSE
from spec_tests.helpers import wrong_adapters
from spec_tests.helpers.paths import ROOT
from spec_tests.helpers.right_adapter import Right

WRONG = wrong_adapters.__name__
RULES = {rule.id: rule for rule in all_rules()}
OURS = [rule for rule in RULES.values() if rule.id.startswith("V-")]
RFCS = ("RFC 000", "RFC 001", "RFC 002", "RFC 003")
EXAMPLES = 8


def test_every_rule_says_what_it_is() -> None:
    assert {rule.level for rule in RULES.values()} == LEVELS.keys()
    for rule in RULES.values():
        assert rule.sentence and rule.law and rule.source in (*RFCS, "docs/layouts.md")
        assert set(rule.needs) <= protocol.METHODS and rule.needs, rule.id


def test_sentences_of_the_documentation_stand_there() -> None:
    """Word for word; those of the RFCs are held by the table of rules."""
    pages = {
        rule.source: " ".join((ROOT / rule.source).read_text(encoding="utf-8").split())
        for rule in OURS
    }
    assert [rule.id for rule in OURS if rule.sentence not in pages[rule.source]] == []
    assert {rule.level for rule in OURS} == {9}
    assert {rule.id[0] for rule in RULES.values() if rule not in OURS} == {"R"}


@pytest.mark.parametrize("first", ["computations", "meshes", "carried"])
def test_the_order_of_rules_does_not_depend_on_who_is_imported_first(first: str) -> None:
    package = all_rules.__module__
    text = f"import {package}.{first}; print(*[rule.id for rule in {package}.all_rules()])"
    printed = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True
    )
    assert printed.stdout.split() == list(RULES)


def test_every_method_of_an_adapter_is_explained_and_asked_for() -> None:
    table = (protocol.__doc__ or "").partition("=====")[2]
    asked = {name for rule in RULES.values() for name in rule.needs}
    assert [name for name in protocol.METHODS if f"``{name}(" not in table] == []
    assert asked == protocol.METHODS


@pytest.mark.sample(2)
@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
@pytest.mark.parametrize("adapter", [ShardvarAdapter(), NumpyAdapter()], ids=["shardvar", "numpy"])
def test_what_is_claimed_is_kept(adapter: Any, rule: Rule) -> None:
    verdict = judge(rule, adapter, max_examples=EXAMPLES)
    assert verdict.outcome in (KEPT, NOT_CLAIMED), program(verdict, "a:Adapter")
    claims = set(rule.needs) <= protocol.methods_of(adapter)
    assert (verdict.outcome == NOT_CLAIMED) == (not claims or verdict.cases == 0)
    if isinstance(adapter, ShardvarAdapter):
        assert (verdict.outcome, verdict.unclaimed_cases) == (KEPT, 0), "shardvar claims everything"


def test_the_counterexample_is_the_smallest_and_runs() -> None:
    """Two rows in the wrong order are all that it takes."""
    verdict = judge(RULES["R-READ-1"], wrong_adapters.Unstitched())
    text = program(verdict, f"{WRONG}:Unstitched")
    assert "np.array([1, 0], 'int64')" in text and verdict.counterexample is not None
    names: dict[str, Any] = {}
    lines = [line[4:] for line in text.split("\n")]
    last = next(n for n, line in enumerate(lines) if line.startswith("adapter.sparse_read"))
    lines[last] = f"answer = {lines[last]}"
    exec("\n".join(lines), names)
    assert names["answer"].tolist() == [1.0, 2.0]
    assert verdict.counterexample.came == "It gave np.array([1.0, 2.0], 'float32')."
    assert verdict.counterexample.must == "It must give np.array([2.0, 1.0], 'float32')."


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "uint4"])
def test_a_program_imports_the_package_of_its_dtypes(dtype: str) -> None:
    example = Counterexample([f"adapter.create(np.zeros((1,), {dtype!r}), 1)"], "It gave 1.", "")
    text = program(Verdict("R-CONCAT-1", counterexample=example), "a:Adapter")
    assert ("import ml_dtypes" in text) is (dtype != "float32")


def test_a_counterexample_of_a_list_is_its_first() -> None:
    """The simplest of the cases come first: booleans before complex numbers."""

    class Floats(NumpyAdapter):
        def save(self, path: str, tensors: Any, num_shards: int) -> None:
            super().save(
                path, {key: value.astype(np.float32) for key, value in tensors.items()}, num_shards
            )

    verdict = judge(RULES["R-CKPT-1-numbers"], Floats())
    assert verdict.counterexample is not None
    assert verdict.counterexample.came.startswith("It raised ValueError: w is saved as float32")
    assert "{'w': np.array([True, False, False, True], 'bool')}" in (
        "".join(verdict.counterexample.calls)
    )


def test_a_write_in_place_that_ought_to_be_refused_is_said_to_have_returned_none() -> None:
    """The rule goes on with the handle; the report says what came."""

    class InPlace(NumpyAdapter):
        def assign(self, handle: Any, value: Any) -> Any:
            handle[:] = np.array_split(value, len(handle))

    verdict = judge(RULES["R-VAR-2-assign"], InPlace())
    assert verdict.outcome == BROKEN and verdict.counterexample is not None
    assert verdict.counterexample.came == "It returned None."
    assert judge(RULES["R-VAR-2-assign"], wrong_adapters.Cropped()).counterexample.came.startswith(
        "It returned [np."
    )


def test_an_adapter_of_three_methods_claims_nothing_else() -> None:
    adapter = wrong_adapters.Three()
    verdicts = {rule.id: judge(rule, adapter, max_examples=EXAMPLES) for rule in RULES.values()}
    kept = {name for name, verdict in verdicts.items() if verdict.outcome == KEPT}
    assert {name for name, verdict in verdicts.items() if verdict.outcome == BROKEN} == set()
    reads = ("1", "1-axes", "1-byte-order", "1-few", "1-many", "1-memory", "1-numbers", "1-strides")
    lookups = "2 2-axes 2-byte-order 2-few-rows 2-large 2-many 2-memory 2-numbers 2-pure 2-strides".split()
    assert kept == {
        *(f"R-CONCAT-{name}" for name in reads),
        *(f"R-LOOKUP-{name}" for name in lookups),
        *("R-ID-1", "R-ID-1-few-rows", "R-DIV-1-none"),
    }
    assert all(
        verdict.outcome == NOT_CLAIMED for name, verdict in verdicts.items() if name not in kept
    )
    assert verdicts["R-SV-1"].reason == "no shards"
    assert protocol.strangers_of(adapter) == ["lokup_bags"]


def test_a_method_that_an_adapter_lacks_has_not_refused() -> None:
    def refused(adapter: Any, case: Any) -> None:
        adapter.refuses("assign", None, case)

    rule = replace(RULES["R-CONCAT-1"], check=refused)
    assert judge(rule, wrong_adapters.Three()).outcome == NOT_CLAIMED


def test_inputs_that_are_not_claimed_are_counted_and_not_kept() -> None:
    class Partial(NumpyAdapter):
        def create(self, value: Any, num_shards: int) -> Any:
            if num_shards > 1:
                raise NotImplementedError("more shards than one")
            return super().create(value, num_shards)

    verdict = judge(RULES["R-CONCAT-1"], Partial())
    assert verdict.outcome == KEPT and verdict.unclaimed_cases > 0 < verdict.cases
    assert verdict.unclaimed == ["create: more shards than one"]

    class Nothing(NumpyAdapter):
        def create(self, value: Any, num_shards: int) -> Any:
            raise NotImplementedError

    assert judge(RULES["R-CONCAT-1"], Nothing()).outcome == NOT_CLAIMED


@pytest.mark.parametrize(
    ("name", "adapter", "sometimes", "outcome"),
    [
        ("R-READ-1", wrong_adapters.Unstitched(), False, EXPECTED_FAILURE),
        ("R-READ-1", NumpyAdapter(), False, UNEXPECTED_PASS),
        ("R-READ-1", wrong_adapters.Unstitched(), True, BROKEN_SOMETIMES),
        ("R-READ-1", NumpyAdapter(), True, BROKEN_SOMETIMES),
        ("R-LOOKUP-4", NumpyAdapter(), True, NOT_CLAIMED),
    ],
)
def test_a_declared_failure_is_expected_and_a_pass_is_one_of_the_declaration(
    name: str, adapter: Any, sometimes: bool, outcome: str
) -> None:
    """What is broken in some runs is said to be so whether this run found it or not."""
    verdict = judge(RULES[name], adapter, expected=Expected("upstream", sometimes=sometimes))
    assert verdict.outcome == outcome
    assert outcome != BROKEN_SOMETIMES or verdict.reason == "upstream"


def test_damage_hits_the_same_bytes_whatever_the_files_are_called(tmp_path: Path) -> None:
    """By size, then by content, in each directory; files without a byte are left out."""
    contents = [b"a", b"b", b"00", b""]
    for directory, names in (("one", "wxyz"), ("other", "zyxw")):
        (tmp_path / directory).mkdir()
        for name, content in zip(names, contents, strict=True):
            (tmp_path / directory / name).write_bytes(content)
    one, other = (
        [path.read_bytes() for path in files_of(str(tmp_path / name))] for name in ("one", "other")
    )
    assert one == other and sorted(one[:2]) == [b"a", b"b"] and one[2:] == [b"00"]


@pytest.mark.parametrize(
    "harm",
    [damage.flip, damage.misprint, damage.remove_file, damage.swap, damage.truncate, damage.turn, damage.zero],
)  # fmt: skip
def test_each_damage_changes_a_file(harm: Any, tmp_path: Path) -> None:
    contents = {"text": b"12 of 345", "bytes": bytes(range(1, 200))}
    for number, (place, extra) in enumerate(product((0, 4_999, 9_999), (1, 5))):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        harm(str(folder), 0, place, extra)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} != contents


def test_what_may_not_be_refused_raises_its_own_error() -> None:
    for is_refusable, error in ((True, KeptByRefusal), (False, OSError)):
        with pytest.raises(error), refusable(is_refusable):
            raise OSError
    with pytest.raises(Broken), refusable():
        raise Broken("It gave 1.", "It must give 2.")


def test_every_write_is_asked_for_with_numbers_of_every_dtype() -> None:
    asked = {f"R-SV-3-scatter-{op}-numbers" for op in SPARSE}
    assert asked | {f"R-SV-3-assign-{op}-numbers" for op in ("add", "sub")} <= RULES.keys()


def test_a_limit_is_asked_for_that_divides_a_shard() -> None:
    seen = []

    class Limited(Right):
        def save_limited(self, path: str, tensors: Any, num_shards: int, max_nbytes: int) -> Any:
            seen.append(tensors["w"].nbytes > num_shards * max_nbytes)
            return super().save_limited(path, tensors, num_shards, max_nbytes)

    assert judge(RULES["R-POLICY-4-numbers"], Limited(), max_examples=EXAMPLES).outcome == KEPT
    assert seen and all(seen)


def test_tensors_of_many_axes_have_three_to_five() -> None:
    for name in ("V-MESH-1-axes", "V-MOVE-1-axes"):
        assert {case[0].ndim for case in _drawn(RULES[name].cases, 60)} == {3, 4, 5}, name


def test_a_seed_that_is_ignored_is_a_breach() -> None:
    class OneSeed(Right):
        def initialize(self, kind: str, shape: Any, dtype: Any, num_shards: int, seed: int) -> Any:
            return super().initialize(kind, shape, dtype, num_shards, 1)

    assert judge(RULES["R-INIT-5-seeds"], OneSeed(), max_examples=EXAMPLES).outcome == BROKEN


def test_an_exception_where_an_answer_is_due_is_a_breach() -> None:
    class Raises(NumpyAdapter):
        def read(self, handle: Any) -> Any:
            raise RuntimeError("no memory")

    verdict = judge(RULES["R-CONCAT-1"], Raises())
    assert verdict.outcome == BROKEN and verdict.counterexample is not None
    assert verdict.counterexample.came == "It raised RuntimeError: no memory"


def test_what_happens_only_sometimes_is_a_breach() -> None:
    class Once(NumpyAdapter):
        asked = 0

        def read(self, handle: Any) -> Any:
            self.asked += 1
            return np.zeros(1) if self.asked == 5 else super().read(handle)

    verdict = judge(RULES["R-CONCAT-1"], Once())
    assert verdict.outcome == BROKEN and verdict.counterexample is not None
    assert verdict.counterexample.calls[-1].startswith("# The same calls did not do the same")


def test_a_verdict_survives_json() -> None:
    verdict = judge(RULES["R-READ-1"], wrong_adapters.Unstitched())
    assert verdict_of(verdict.as_json()) == verdict
