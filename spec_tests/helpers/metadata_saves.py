"""Saves of tensors with metadata that no argument of ``sv.save`` gives: ties, nested values, digests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardvar.planning.index import Metadata
from shardvar.verbs.locate import find_target
from shardvar.verbs.save import source_of
from shardvar.verbs.writing import carry_out, plan_checkpoint


def save_with(
    path: Path,
    tensors: Mapping[str, Any],
    ties: Mapping[str, str] | None = None,
    form: str = "shardvar",
    **metadata: Any,
) -> Path:
    """Save tensors, some of which are keys for the bytes of others."""
    ties = ties or {}
    source = source_of({key: array for key, array in tensors.items() if key not in ties})
    work = plan_checkpoint(
        find_target(path, form, otherwise="shardvar"),
        source.index.entries,
        policy=None,
        partition=None,
        metadata=Metadata(ties=ties, **metadata),
        force=False,
        source=source,
    )
    carry_out(work)
    return path
