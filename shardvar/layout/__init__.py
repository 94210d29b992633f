"""Geometry: regions, partitions, dtypes and the text of slices. No bytes, no files, no clock."""

from shardvar.layout.partition import Partition, PartitionSpec, check_tiles, chunk, div, div_owner
from shardvar.layout.region import Region, boxes_of_range, intersect, subtract_all
from shardvar.layout.slice_text import format_slice_text, parse_slice_text

__all__ = [
    "Partition",
    "PartitionSpec",
    "Region",
    "boxes_of_range",
    "check_tiles",
    "chunk",
    "div",
    "div_owner",
    "format_slice_text",
    "intersect",
    "parse_slice_text",
    "subtract_all",
]
