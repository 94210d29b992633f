"""How partitions and plans show themselves in a notebook, told in plain numbers and texts."""

from collections.abc import Sequence

from shardvar.pictures.boxes import Box, boxes_svg
from shardvar.pictures.flow import flow_svg
from shardvar.pictures.table import Markup, html_block, html_table
from shardvar.pictures.words import count, human_shape

MOST_MOVES = 60
"""Copies up to which a plan is drawn: more bands are no picture of anything."""

_MOST_ROWS = 16

Named = tuple[int, str, int]


def partition_html(shape: Sequence[int], boxes: Sequence[Box]) -> str:
    """The parts of a partition, as (offset, shape), in the order of the shards."""
    parts = count(len(boxes), "part")
    drawing = boxes_svg(shape, boxes, f"{human_shape(shape)} in {parts}")
    rows = [(number, region_text(*box), human_shape(box[1])) for number, box in enumerate(boxes[:_MOST_ROWS])]
    table = html_table(("part", "region", "shape"), rows, more=len(boxes) - len(rows))
    return html_block(f"Partition of {human_shape(shape)}", (parts,), drawing, table)


def plan_html(
    num_sources: int, num_targets: int, moves: Sequence[tuple[Named, Named, str, int]], num_moves: int
) -> str:
    """A plan, of whose copies ``moves`` are the first: (source, target, region, elements).

    Sources and targets come as (row, name, elements), so that slices that nothing moves from need not be told.
    """
    about = (
        count(num_sources, "source slice"),
        count(num_targets, "target slice"),
        count(num_moves, "region") + " moved",
    )
    rows = [(source[1], target[1], region, f"{size:,}") for source, target, region, size in moves[:_MOST_ROWS]]
    table = html_table(("from", "to", "region", "elements"), rows, (3,), num_moves - len(rows))
    drawing = _drawing(moves) if 0 < num_moves <= MOST_MOVES else Markup("")
    return html_block("Plan", about, drawing, table)


def region_text(offset: Sequence[int], shape: Sequence[int]) -> str:
    """A region as NumPy writes an index.

    >>> region_text((5, 0), (4, 4))
    '[5:9, 0:4]'
    """
    return f"[{', '.join(f'{start}:{start + extent}' for start, extent in zip(offset, shape, strict=True))}]"


def _drawing(moves: Sequence[tuple[Named, Named, str, int]]) -> Markup:
    sources = dict(sorted((source[0], source[1:]) for source, _, _, _ in moves))
    targets = dict(sorted((target[0], target[1:]) for _, target, _, _ in moves))
    place_s = {row: place for place, row in enumerate(sources)}
    place_t = {row: place for place, row in enumerate(targets)}
    bands = [(place_s[source[0]], place_t[target[0]], size) for source, target, _, size in moves]
    return flow_svg(list(sources.values()), list(targets.values()), bands)
