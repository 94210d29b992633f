"""docs/performance.md has the figures of docs/performance.json, and what draws and runs them keeps
its word."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("benchmarks", reason="the benchmarks stand in the tree, not in the wheel")

from benchmarks import latency, subjects  # after the skip
from benchmarks.curves import Curve, curves_of
from benchmarks.figures import Figure
from benchmarks.latency import LateStore, Request, count_at_once, count_rounds
from benchmarks.page import page, pictures, readme, table, write_page
from benchmarks.results import Group, Groups, Machine, groups_to_json, read_groups
from benchmarks.setting import Setting
from benchmarks.sizes import QUICK
from benchmarks.subjects import SUBJECTS, run_subject
from benchmarks.tables import TABLES, unlisted
from spec_tests.helpers import paths

DOCS = paths.ROOT / "docs"
STORED = read_groups(DOCS / "performance.json")
MACHINE = Machine("2026-01-02", "3.11.0", "Linux", 2, 0.5, {"numpy": "2.0.0"})


def group(*figures: Figure) -> Group:
    return Group(MACHINE, 1.25, 3.0, False, list(figures))


def growing(program: str, exponent: float, *sizes: int) -> list[Figure]:
    return [
        Figure("tensors: save", program, "memory", size**exponent, "s", None, size=size)
        for size in sizes
    ]


def test_the_page_its_curves_and_the_readme_are_made_of_the_results() -> None:
    text = (DOCS / "performance.md").read_text("utf-8")
    assert page(text, STORED) == text, "Run python -m benchmarks.page."
    curves = (DOCS / "images").glob("growth-of-*.svg")
    assert {each.name: each.read_text("utf-8") for each in curves} == pictures(STORED)
    text = (paths.ROOT / "README.md").read_text("utf-8")
    assert readme(text, STORED) == text
    assert groups_to_json(STORED) == (DOCS / "performance.json").read_text("utf-8")
    assert not any(each.quick for each in STORED.values())


def test_a_table_that_was_not_written_yet_ends_at_its_own_end() -> None:
    """A place with nothing in it is filled, and the text behind it stays."""
    empty = "<!-- table: plans -->\n<!-- end of table -->"
    behind = "\n\nA section.\n\n<!-- table: memory -->\n\nold\n\n<!-- end of table -->\n"
    written = page(empty + behind, STORED)
    filled, rest = written.split("\n\nA section.\n\n")
    assert filled.splitlines()[2:-2] == table("plans", STORED).splitlines()
    assert rest.splitlines()[2:-2] == table("memory", STORED).splitlines()
    assert page(written, STORED) == written


def test_no_figure_of_the_page_stands_outside_of_a_table() -> None:
    """Ratios, and times with three digits, come from a measurement."""
    text = re.sub(
        r"<!-- table: .*?<!-- end of table -->",
        "",
        (DOCS / "performance.md").read_text("utf-8"),
        flags=re.S,
    )
    assert re.findall(r"\d\.\d+ x\b|\d+ x `|\|[^\n]*\d", text) == []


def test_the_page_has_a_place_for_every_table_and_a_table_for_every_subject() -> None:
    places = re.findall(r"<!-- table: (.*?) -->", (DOCS / "performance.md").read_text("utf-8"))
    assert sorted(places) == sorted(TABLES)
    assert {subject for each in TABLES.values() for subject in each.chosen} == set(SUBJECTS)


def test_a_group_that_is_measured_anew_replaces_itself_alone(tmp_path: Path) -> None:
    old = {"plan": group(Figure("plan 1 slice", "", "", 2.0, "s", None)), "policies": group()}
    write_page(DOCS, tmp_path, old)
    new = {
        **read_groups(tmp_path / "performance.json"),
        "plan": group(Figure("plan 1 slice", "", "", 9.0, "s", 5.0)),
    }
    write_page(DOCS, tmp_path, new)
    text = (tmp_path / "performance.md").read_text("utf-8")
    assert "| plan 1 slice | 9 s | <= 5 s, missed |" in text and "| 2 s |" not in text
    assert read_groups(tmp_path / "performance.json")["policies"] == old["policies"]
    assert page(text, new) == text, "What is written twice is the same."


def test_a_figure_that_no_table_has_is_refused(tmp_path: Path) -> None:
    groups: Groups = {"growth": group(Figure("something else", "", "", 1.0, "s", None))}
    assert list(unlisted(groups)) == ["growth: something else"]
    with pytest.raises(ValueError, match="growth: something else"):
        write_page(DOCS, tmp_path, groups)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_is_on_the_page() -> None:
    lost = Figure("table", "", "", None, "", None, "failed: signal 9", failed=True)
    assert "It failed: signal 9." in table("libraries", {"table": group(lost)})
    some = Figure(
        "512 MiB table", "Orbax", "", None, "", None, "failed: OSError: full", failed=True
    )
    assert "512 MiB table, Orbax: failed: OSError: full." in table(
        "libraries", {"table": group(some)}
    )


@given(st.floats(-2, 3), st.sampled_from([(1, 10, 100), (10, 1000, 20_000, 40_000), (4, 5, 6)]))
def test_the_exponent_of_a_power_is_its_exponent(exponent: float, sizes: tuple[int, ...]) -> None:
    (curve,) = curves_of(growing("shardvar", exponent, *sizes))
    assert curve.exponent == pytest.approx(exponent, abs=1e-6)
    assert curve.exponent_text().endswith("more than linear") == (curve.exponent > 1.1)
    assert Curve("files", "save", "shardvar", {1: 1.0, 4: 2.0}).exponent is None  # of two points


def test_curves_are_drawn_one_line_each_within_the_picture() -> None:
    figures = [*growing("shardvar", 1.0, 10, 100, 1000), *growing("a < b", 2.0, 10, 100)]
    (drawn,) = pictures({"growth": group(*figures)}).values()
    root = Xml.fromstring(drawn)
    lines = [each.attrib["points"] for each in root.iter() if each.tag.endswith("polyline")]
    spots = [tuple(map(float, spot.split(","))) for line in lines for spot in line.split()]
    assert sorted(len(line.split()) for line in lines) == [2, 3]
    assert all(
        0 <= x <= int(root.attrib["width"]) and 0 <= y <= int(root.attrib["height"])
        for x, y in spots
    )
    assert (
        "a &lt; b" in drawn
        and drawn == pictures({"growth": group(*figures)})["growth-of-tensors.svg"]
    )


def test_a_curve_that_ends_before_the_others_says_why() -> None:
    end = Figure(
        "tensors: save", "npz", "memory", None, "s", None, "since it takes long", size=1000
    )
    text = table(
        "growth of tensors",
        {"growth": group(*growing("shardvar", 1, 10, 100), *growing("npz", 1, 10), end)},
    )
    assert "| save | npz | 10 s | - | - |" in text
    assert "Ends there, since it takes long: save, npz." in text


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=12))
def test_rounds_are_the_longest_chain_of_requests(spans: list[tuple[int, int]]) -> None:
    """Against a search of all chains, one request after the other."""
    requests = [Request(start, start + length) for start, length in spans]

    def longest(after: float) -> int:
        return max((1 + longest(each.stop) for each in requests if each.start >= after), default=0)

    assert count_rounds(requests) == longest(0)
    moments = range(40)
    assert count_at_once(requests) == max(
        sum(r.start <= t < r.stop for r in requests) for t in moments
    )


def test_small_slices_of_a_late_store_are_read_many_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request a slice and a few to open, and a round for every 64 of them, were they all of the
    same length."""
    monkeypatch.setattr(latency, "RUNS", 1)
    stores = []
    monkeypatch.setattr(
        latency, "LateStore", lambda folder: stores.append(LateStore(folder, 0.0)) or stores[-1]
    )
    from benchmarks.places import Place

    (figure,) = latency.measure(
        Setting([Place("disk", tmp_path)], replace(QUICK, latency_slices=100))
    )
    assert figure.value is not None and figure.target == 3
    assert 100 <= len(stores[0].requests) <= 104


def test_a_subject_that_dies_keeps_what_it_measured_and_is_said_to_have_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fresh process measures a module that is named as any subject is."""
    package = tmp_path / "tree" / "benchmarks"
    package.mkdir(parents=True)
    for path in (paths.ROOT / "benchmarks").glob("*.py"):
        (package / path.name).write_text(path.read_text("utf-8"), "utf-8")
    figure = 'Figure("one", "", "", 1.0, "s", None)'
    head = f"from benchmarks.figures import Figure\ndef measure(setting):\n    yield {figure}\n"
    for name, end in (
        ("raises", "raise OSError('full')"),
        ("aborts", "os.abort()"),
        ("hangs", "time.sleep(600)"),
    ):
        (package / f"{name}.py").write_text(f"import os, time\n{head}    {end}\n", "utf-8")
    monkeypatch.setattr(subjects, "ROOT", package.parent)
    search = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (package.parent, paths.ROOT)))}
    monkeypatch.setattr(subjects, "environment", lambda: search)
    for name, why, limit in (
        ("raises", "failed: OSError: full", 60),
        ("aborts", "failed: signal 6", 60),
        ("hangs", "failed: took more than 5 s", 5),
    ):
        found = run_subject(name, tmp_path / "disk", quick=True, limit=limit)
        assert [each.subject for each in found.figures] == ["one", name]
        assert (found.figures[-1].failed, found.figures[-1].note) == (True, why)
        assert (
            json.loads(groups_to_json({name: found}))["groups"][name]["figures"][1]["failed"]
            is True
        )
    assert list((tmp_path / "disk").iterdir()) == []
