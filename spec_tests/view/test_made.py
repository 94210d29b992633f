"""The pieces of a map in a page: together they are each element of each tensor, once."""

import json
from collections.abc import Iterator
from itertools import product
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

import shardvar as sv
from shardvar.maps.map import Map, fit_map
from shardvar.maps.plan import MapPlan, Piece, View
from shardvar.view import collect
from shardvar.view.collect import (
    AxisRuns,
    JsonColumns,
    is_reordered,
    map_columns,
    runs_of,
    runs_text,
    unpacked,
)
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.map_arrays import Example, examples
from spec_tests.helpers.view_pages import HOSTILE_KEYS, columns_of, keys_of

__all__ = ["run"]


def planned(example: Example) -> MapPlan:
    tensors = {key: (array.dtype.name, array.shape) for key, array in example.sources.items()}
    return fit_map(Map(example.rule, sizes=example.sizes), tensors, (), {}, "nowhere").plan


def expanded(first: int, run: int, *repeats: int) -> list[int]:
    """The coordinates of a run and its repeats along one axis, as the page's script counts them."""
    starts = [first]
    for count, step in zip(repeats[-2::-2], repeats[-1::-2], strict=True):
        starts = [start + place * step for start in starts for place in range(count)]
    return [start + place for start in starts for place in range(run)]


def pieces_of(columns: JsonColumns) -> Iterator[list[tuple[list[object], str]]]:
    """Yield the pieces of each row: each as its pattern and its source."""
    keys, numbers = keys_of({"keys": columns["sources"]}), iter(columns["pieces"])
    for count in unpacked(columns["num_pieces"]):
        yield [(columns["patterns"][next(numbers)], keys[next(numbers)]) for _ in range(count)]


@given(examples())
def test_the_pieces_of_a_page_are_each_element_of_a_tensor_once(example: Example) -> None:
    plan = planned(example)
    keys = [target.key for target in plan.every_target()]
    columns = map_columns(plan, [example.rule], keys)
    for key, pieces in zip(keys, pieces_of(columns), strict=True):
        count = np.zeros(example.targets[key].shape, np.int64)
        for (_, _, _, _, runs), source in pieces:
            assert source in example.sources
            for at in product(*(expanded(*each) for each in runs)):  # type: ignore[attr-defined]
                count[at] += 1
        assert (count == 1).all()


def linear(view: View, piece: Piece, shape: tuple[int, ...]) -> list[int]:
    """The places of the elements of a piece in a tensor, in the order of the piece's indices."""
    found = []
    for at in np.ndindex(*piece.shape):
        place = list(view.start)
        for (axis, step), index in zip(view.steps, at, strict=True):
            place[axis] += step * index
        found.append(int(np.ravel_multi_index(place, shape)) if shape else 0)
    return found


@given(examples())
def test_a_piece_is_reordered_if_its_elements_are(example: Example) -> None:
    for target in planned(example).every_target():
        for piece in target.pieces:
            taken = linear(piece.source, piece, example.sources[piece.source.key].shape)
            filled = linear(piece.target, piece, target.shape)
            in_order = [place for _, place in sorted(zip(filled, taken, strict=True))]
            assert is_reordered(piece) == (in_order != sorted(in_order))
            runs = runs_of(piece.source, piece.shape)
            assert prod(len(expanded(a, n, *sum(more, ()))) for a, n, more in runs) == len(taken)


def test_a_region_is_an_index_or_how_often_a_range_repeats() -> None:
    regions: list[list[AxisRuns]] = [
        [], [(0, 4, [])], [(5, 1, []), (0, 1, [])], [(1, 1, [(3, 2)])], [(0, 2, [(3, 6)])],
        [(2, 1, [(2, 3), (4, 9)])],
    ]  # fmt: skip
    assert list(map(runs_text, regions)) == [
        "[]", "[0:4]", "[5, 0]", "[1:6:2]", "[0:2 of each 6 (3 times)]",
        "[2:3 of each 3 (2 times) of each 9 (4 times)]",
    ]  # fmt: skip
    # Steps of runs and of repeats that meet the next one are joined, and others are not.
    for steps, counts, runs in (
        ([1, 4], (4, 3), (12, [])),
        ([1, 5], (4, 3), (4, [(3, 5)])),
        ([2, 6], (3, 4), (1, [(12, 2)])),
        ([2, 7], (3, 4), (1, [(3, 2), (4, 7)])),
    ):
        view = View("w", (7,), tuple((0, step) for step in steps))
        assert runs_of(view, counts) == [(7, *runs)]


def test_pieces_beyond_their_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {f"l.{layer}.w": ("float32", (2, 3)) for layer in range(9)}
    plan = fit_map(Map("l.{l}.w[o i] -> x.{l}[i o]"), tensors, (), {}, "nowhere").plan
    keys = [target.key for target in plan.every_target()]
    whole = map_columns(plan, [], keys)
    assert whole["num_left_out"] == 0 and len(whole["patterns"]) == 1
    monkeypatch.setattr(collect, "_MOST_NBYTES", 150)
    part = map_columns(plan, [], keys)
    shown = [count for count in unpacked(part["num_pieces"]) if count]
    assert 0 < len(shown) < 9 and part["num_left_out"] == 9 - len(shown)
    assert unpacked(part["num_pieces"])[: len(shown)] == shown


def test_a_tensor_of_a_hundred_thousand_takes_little_room() -> None:
    number = 2_000
    tensors = {
        f"layers.{layer}.experts.{expert}.w": ("float32", (2, 3))
        for layer in range(number // 100)
        for expert in range(100)
    }
    rule = "layers.{l}.experts.{e}.w -> l.{l}.e.{e}.w"
    plan = fit_map(Map(rule), tensors, (), {}, "nowhere").plan
    columns = map_columns(plan, [rule], [target.key for target in plan.every_target()])
    assert len(json.dumps(columns)) / number * 100_000 < 4_000_000


def test_a_page_has_the_pieces_with_any_names(run: Run, tmp_path: Path) -> None:
    tensors = {key: np.arange(6.0).reshape(2, 3) for key in HOSTILE_KEYS}
    sv.save(tmp_path / "a", tensors | {"scale": np.ones(3)})
    page = tmp_path / "page.html"
    rules = ["scale -> scale"]
    for number, key in enumerate(HOSTILE_KEYS):
        quoted = key.replace("'", "''")
        rules.append(f"'{quoted}'[o i] -> x.{number}[i o]")
    words = [word for rule in rules for word in ("--rule", rule)]
    words = ["reshard", str(tmp_path / "a"), str(tmp_path / "b"), *words, "--dry-run"]
    assert run(*words, "--html", page).code == 0
    text = page.read_text(encoding="utf-8")
    columns = columns_of(text)["plan"]["made"]
    assert set(keys_of({"keys": columns["sources"]})) == {*HOSTILE_KEYS, "scale"}
    assert columns["rules"] == rules and not (tmp_path / "b.svindex").exists()
    assert "PLAN.made" in text
    # Without a map, a plan has no pieces.
    plain = ["reshard", tmp_path / "a", tmp_path / "b", "--dry-run", "--html", page]
    assert run(*plain).code == 0
    assert "made" not in columns_of(page.read_text(encoding="utf-8"))["plan"]


def test_a_page_does_not_draw_a_map_that_other_options_change(run: Run, tmp_path: Path) -> None:
    sv.save(tmp_path / "a", {"w": np.ones((2, 2))})
    page = tmp_path / "page.html"
    words = ["reshard", tmp_path / "a", tmp_path / "b", "--rule", "w[o i] -> x[i o]", "--dry-run"]
    for option in (["--transpose", "x"], ["--add-prefix", "x."], ["--rename", "x=y"]):
        drawn = run(*words, "--html", page, *option)
        assert drawn.code == 0 and f"because {option[0]} changes" in drawn.err
        assert "made" not in columns_of(page.read_text(encoding="utf-8"))["plan"]


def test_a_page_shows_all_ranks(run: Run, tmp_path: Path) -> None:
    sv.save(tmp_path / "a.safetensors", {"w": np.ones((4, 2)), "norm": np.ones(3)})
    page, rules = tmp_path / "page.html", ["w[(r o) i] -> {r}/w[i o]", "also norm -> {r}/norm"]
    words = [word for rule in rules for word in ("--rule", rule)]
    words = ["reshard", tmp_path / "a.safetensors", tmp_path / "b", *words, "--size", "r=2"]
    assert run(*words, "--dry-run", "--html", page).code == 0
    found = columns_of(page.read_text(encoding="utf-8"))
    assert keys_of(found["checkpoints"][-1]) == ["0/w", "0/norm", "1/w", "1/norm"]
    assert found["checkpoints"][-1]["files"] == ["file 0", "file 1"]
    assert found["plan"]["made"]["rules"] == rules
