"""The drawn mutants are other programs, a trial catches what a test sees and nothing else, and the
page is current."""

import ast
import gc
import inspect
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shardvar.layout import region
from spec_tests.helpers.paths import SPEC_TESTS
from spec_tests.helpers.programs import ENVIRONMENT
from spec_tests.helpers.source_code import MODULES, PACKAGE, layer_of, tree_of
from spec_tests.mutation import trial
from spec_tests.mutation.forks import exchange
from spec_tests.mutation.operators import Change, changes
from spec_tests.mutation.page import PAGE, render
from spec_tests.mutation.results import read_judgements, read_results
from spec_tests.mutation.sample import LAYERS, LEFT_OUT, Mutant, all_mutants, draw
from spec_tests.mutation.trace import FILE, Trace
from spec_tests.mutation.trial import Copy

TESTS = "spec_tests/geometry/test_slice_text.py"


def changed(text: str) -> set[str]:
    """Return the programs that one change makes of a program."""
    return {each.apply(text) for each in changes(ast.parse(text))}


@pytest.mark.parametrize(
    ("text", "others"),
    [
        ("a < b", {"(a <= b)", "(a >= b)"}),
        ("a is b", {"(a is not b)"}),
        ("a == 'xy'", {"(a != 'xy')", "a == 'x'"}),
        ("a + b", {"(a - b)"}),
        ("a and b", {"(a or b)", "a", "b"}),
        ("not a", {"a"}),
        ("é + 7", {"(é - 7)", "é + 8", "é + 6"}),
        ("a if b else c", {"a", "c"}),
        ("[a for a in b if c]", {"[a for a in b if True]"}),
        ("f(a, b, c=d)", {"f(b, a, c=d)", "f(a, b)", "None"}),
        ("f(a, a)", {"None"}),
        ("max(a, b)", {"min(a, b)", "None"}),
        ("a[b:]", {"a[:]", "a[b + 1:]"}),
        ("a += b", {"a -= b", "pass"}),
        ("if a: b", {"if True: b", "if False: b"}),
        ("for a in b: continue", {"for a in b: pass", "for a in b: break"}),
        ("def f(): return a", {"def f(): return None"}),
        (
            "def f(): return a > b",
            {"def f(): return (a >= b)", "def f(): return (a <= b)", "def f(): return (not a > b)"},
        ),
        ("def f(a=True): pass", {"def f(a=False): pass"}),
        ("raise ArgumentError(f'{a + 1}', a + 1)", {"pass"}),
    ],
)
def test_the_changes_of_a_program_are_these(text: str, others: set[str]) -> None:
    assert changed(text) == others


@pytest.mark.parametrize(
    "text",
    [
        '"""A docstring."""',
        "import a",
        "__all__ = ['a', 'b']",
        "Names = dict[str, int | None]",
        "a: int | None",
        "def f(a: int | None) -> list[int | str]: pass",
        "f'{a + 1}'",
        "ArgumentError(a + 1, b)",
    ],
)
def test_what_holds_no_logic_is_left_alone(text: str) -> None:
    assert {each.kind for each in changes(ast.parse(text))} <= {"statement removed"}


@pytest.mark.sample(10)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_mutant_is_another_program(layer: str) -> None:
    for mutant in all_mutants(layer)[::200]:
        whole = (PACKAGE / mutant.path).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(mutant.text())) != ast.dump(ast.parse(whole)), mutant.place
        before, after = mutant.difference()
        assert before != after


def test_a_seed_draws_the_same_mutants_each_of_a_line_of_its_own() -> None:
    drawn = draw("reference.random", 1, 40)
    assert drawn == draw("reference.random", 1, 40) != draw("reference.random", 2, 40)
    assert len({mutant.place for mutant in drawn}) == 40


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    yield Copy(tmp_path_factory.mktemp("mutation").resolve()).open()


TRACE = Trace({f"{TESTS}::test_the_text_is_tensorflows": 0.1})
TRACE.lines["layout/region.py"] = {line: set(TRACE.seconds) for line in range(1, 400)}


def mutant_of(old: str, new: str) -> Mutant:
    """Return the mutant of layout/region.py in which a text is another."""
    lines = (PACKAGE / "layout/region.py").read_text(encoding="utf-8").splitlines()
    (number,) = [number for number, each in enumerate(lines, 1) if old in each]
    start = lines[number - 1].index(old)
    return Mutant(
        "layout/region.py",
        Change("by hand", (number, start), (number, start + len(old)), new, None),
    )


@pytest.mark.parametrize(
    ("new", "seen_by"),
    [
        ('text.split(" ")', ""),
        ('text.split(",")', "test_the_text_is_tensorflows"),
        ('(lambda: __import__("time").sleep(1000))()', "hangs"),
    ],
)
def test_a_bug_is_caught_and_what_is_none_survives(
    new: str, seen_by: str, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is a program that hangs; the file is put back."""
    monkeypatch.setattr(trial, "PATIENCE", 5.0)
    tests = copy.judge(mutant_of('text.split(" ")', new), TRACE)
    assert len(tests) == bool(seen_by) and all(seen_by in test for test in tests)
    assert (copy.place / "shardvar/layout/region.py").read_text() == (
        PACKAGE / "layout/region.py"
    ).read_text()


def test_a_constant_is_seen_by_all_tests_of_its_module() -> None:
    """Whatever test imported it first; a line of a function by the tests that execute it, where
    there are any."""
    trace = Trace({"a": 1.0, "b": 1.0}, {"wire/crc.py": {1: {"a"}, 5: {"b"}, 6: set(), 9: {"a"}}})
    change = Change("by hand", (1, 0), (1, 1), "", None)
    for line, function, tests in (
        (1, None, "ab"),
        (5, (4, 6), "b"),
        (6, (4, 6), "b"),
        (8, (7, 8), "ab"),
        (9, (9, 9), "a"),
    ):
        mutant = Mutant(
            "wire/crc.py", replace(change, start=(line, 0), stop=(line, 1), function=function)
        )
        assert trace.tests_of(mutant) == set(tests)


def test_a_function_gets_the_code_of_another_text() -> None:
    """Also where the objects of a test run are frozen, as ours are."""
    text = inspect.getsource(region)
    line = region.read_integer.__code__.co_firstlineno + 4
    assert "index(value)" in text.splitlines()[line - 1]
    gc.freeze()
    try:
        exchange(region, text.replace("return index(value)", "return 7"), line)
        assert region.read_integer(1, "number") == 7
    finally:
        exchange(region, text, line)
        gc.freeze()
    assert region.read_integer(1, "number") == 1


PROBE = """
import os, subprocess, sys
from pathlib import Path
import pytest
from shardvar.layout import region
from spec_tests.mutation import tracing
from spec_tests.helpers.programs import ENVIRONMENT

def run(line):
    line = "import os; from shardvar.layout import region; " + line
    subprocess.run([sys.executable, "-c", line], env=ENVIRONMENT, check=True)

@pytest.fixture(scope="module")
def shared():
    run("region.read_shape([1]); os._exit(0)")

def test_first(shared):
    pass

def test_second(shared):
    if not os.fork():
        region.read_integer(1, "number")
        os._exit(0)
    os.wait()

def test_third():
    run("region.read_declared_shape(())")
    Path(tracing._data.name, "data.killed").write_bytes(b"SQLite format 3\\0" + bytes(90))
"""


def test_a_fork_a_program_and_a_shared_fixture_execute_lines_for_their_tests(
    tmp_path: Path,
) -> None:
    """A process may end at once, as those of frameworks do. The record of one that is killed while it
    writes is passed over."""
    (tmp_path / "test_probe.py").write_text(PROBE, encoding="utf-8")
    record = tmp_path / "record"
    program = [sys.executable, "-m", "pytest", "-q", "-p", "spec_tests.mutation.tracing", "."]
    subprocess.run(program, cwd=tmp_path, env=ENVIRONMENT | {FILE: str(record)}, check=True)
    trace = Trace()
    trace.add(record)
    for function, tests in (
        (region.read_shape, "first second third"),
        (region.read_integer, "second"),
        (region.read_declared_shape, "third"),
    ):
        first = function.__code__.co_firstlineno + 2  # below the signature
        stop = first + len(inspect.getsource(function).splitlines()) - 2
        found = [trace.lines["layout/region.py"].get(line, set()) for line in range(first, stop)]
        assert set().union(*found) == {f"test_probe.py::test_{each}" for each in tests.split()}


def test_the_page_is_the_one_that_the_results_give() -> None:
    """`make mutation` measures and writes both; every layer has at least its fifteen mutants."""
    found = read_results()
    assert PAGE.read_text(encoding="utf-8") == render(found, read_judgements())
    assert found.keys() == LAYERS.keys()
    assert all(len(each.results) >= min(15, each.population) for each in found.values())


def test_every_layer_is_sampled_or_left_out_for_a_reason() -> None:
    """All modules of the package belong to a layer, but those that only pass names on."""
    layers = set[str]()
    for path in MODULES:
        if layer_of(path) not in layers and any(changes(tree_of(path))):
            layers.add(layer_of(path))
    known = LAYERS.keys() | {each for each in LEFT_OUT if not each.endswith(".py")}
    assert layers - {"", "__main__", "layouts", "_version"} == known
    assert all((SPEC_TESTS / own).exists() for tests in LAYERS.values() for own in tests)
