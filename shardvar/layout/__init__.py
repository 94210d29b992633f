"""Geometry: regions, partitions, dtypes and the text of slices. No bytes, no files, no clock."""

from shardvar.layout.partition import Partition, PartitionSpec, check_tiles, chunk, div, div_owner
from shardvar.layout.region import (
    Region,
    format_slice_text,
    intersect,
    parse_slice_text,
    regions_of_range,
    subtract_all,
)

__all__ = [
    "Partition",
    "PartitionSpec",
    "Region",
    "check_tiles",
    "chunk",
    "div",
    "div_owner",
    "format_slice_text",
    "intersect",
    "parse_slice_text",
    "regions_of_range",
    "subtract_all",
]
