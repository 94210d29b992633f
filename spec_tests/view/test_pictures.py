"""What values show of themselves in a notebook: true, bounded, well formed, and no markup of a
name's."""

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.layout import Partition
from shardvar.layout.meshes import (
    Layout,
    Shard,
    StridedShard,
    dtensor,
)
from shardvar.pictures.drawings import html_table, shown
from shardvar.planning.plan import plan_copies
from spec_tests.helpers.hypothesis_strategies import ODD_KEYS
from spec_tests.helpers.view_pages import HOSTILE_KEYS

TAGS = set("div b table thead tbody tr th td svg rect text path span".split())


class Outline(HTMLParser):
    """The tags of some HTML, each closed in turn, and its text; anything but what a picture is made
    of is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS and not any(
            name.startswith("on") or name in ("src", "href") for name, _ in attributes
        )
        self.open.append(tag)
        self.seen.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS and not any(
            name.startswith("on") or name in ("src", "href") for name, _ in attributes
        )
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def said(value: object) -> str:
    """The text of what a value shows."""
    return " ".join(Outline(value._repr_html_()).text)


def hostile(directory: Path, **options: object) -> Path:
    sv.save(directory / "model", {key: np.ones((4, 2)) for key in HOSTILE_KEYS}, **options)
    return directory / "model"


@given(st.one_of(st.sampled_from(HOSTILE_KEYS + ODD_KEYS), st.text()))
def test_a_text_is_shown_as_text(text: str) -> None:
    outline = Outline(f"<div>{shown(text)}</div>")
    assert outline.seen == ["div"] and all(
        character.isprintable() for character in "".join(outline.text)
    )


@given(st.lists(st.integers(0, 5), max_size=4), st.data())
def test_every_partition_shows_itself(shape: list[int], data: st.DataObject) -> None:
    counts = [data.draw(st.integers(1, 4)) for _ in shape]
    assert said(Partition.from_counts(shape, counts)).startswith("Partition of ")


@pytest.mark.parametrize(
    "layout",
    [
        dtensor((), sv.Mesh(()), []),
        dtensor((0, 4), sv.Mesh((2,)), [Shard(0)]),
        dtensor((3, 4, 5), sv.Mesh((64, 64)), [Shard(0), StridedShard(1, 2)]),
        dtensor((5000,), sv.Mesh((5000,)), [Shard(0)]),
    ],
)
def test_every_layout_shows_itself_within_bounds(layout: Layout) -> None:
    assert said(layout).startswith("Layout of ")
    assert len(layout._repr_html_()) < 300_000


def test_a_reader_tells_its_tensors_and_what_it_cannot_read(tmp_path: Path) -> None:
    sv.save(
        tmp_path / "model",
        {"table": np.ones((13, 4), np.float32), "step": np.array(7)},
        partition=3,
    )
    with sv.open_checkpoint(tmp_path / "model") as reader:
        text = said(reader)
        assert all(word in text for word in ("table", "[13, 4]", "208 B", "2 tensors", "4 slices"))
    for each in tmp_path.glob("model.svdata-*"):
        each.unlink()
    with sv.open_checkpoint(tmp_path / "model") as reader:
        assert "2 tensors cannot be read" in said(reader) and "MissingFile" in said(reader)


def test_reports_tell_what_happened(tmp_path: Path) -> None:
    written = sv.save(tmp_path / "model", {"table": np.ones((13, 4), np.float32)})
    assert "1 tensor" in said(written) and "208 B" in said(written) and "policy" in said(written)
    assert said(sv.verify(tmp_path / "model")).startswith("ok: ")
    sv.save(tmp_path / "other", {"table": np.zeros((13, 4), np.float32), "new": np.ones(1)})
    text = said(sv.diff(tmp_path / "model", tmp_path / "other"))
    assert "52 values, by at most 1" in text and "only in B" in text
    assert said(sv.diff(tmp_path / "model", tmp_path / "model")).startswith("equal")
    data = next(tmp_path.glob("model.svdata-*"))
    data.write_bytes(bytes([data.read_bytes()[0] ^ 1]) + data.read_bytes()[1:])
    assert "damaged: " in said(sv.verify(tmp_path / "model"))
    assert "unreadable in A" in said(sv.diff(tmp_path / "model", tmp_path / "other"))


def test_no_name_becomes_markup(tmp_path: Path) -> None:
    """``Outline`` refuses every tag that no picture is made of, and every attribute that acts."""
    path = hostile(tmp_path, partition=2)
    with sv.open_checkpoint(path) as reader:
        text = said(reader)
        plan = plan_copies(reader.entries().slices, reader.entries().slices.tensors.whole())
    assert "</script><img src=x onerror=alert(1)>" in text and "\u202e" not in text
    sv.save(tmp_path / "two", {key: np.zeros((4, 2)) for key in HOSTILE_KEYS[1:]})
    for value in (plan, sv.diff(path, tmp_path / "two"), sv.verify(path)):
        said(value)
    for each in tmp_path.glob("model.svdata-*"):
        each.unlink()
    assert HOSTILE_KEYS[0] in said(sv.verify(path))


def test_a_table_is_bounded_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    sv.save(tmp_path / "many", {f"t{i:05}": np.ones(1) for i in range(5000)})
    with sv.open_checkpoint(tmp_path / "many") as reader:
        html = reader._repr_html_()
    assert len(html) < 40_000 and "and 4,976 more" in html
    assert len(Partition.from_counts((5000,), (5000,))._repr_html_()) < 200_000
    assert "and 3 more" in html_table(("a",), [("x",)], more=3)
