"""Deltas: what changed from one checkpoint to another, stored, applied and joined.

    contents   the tensors of a delta and their digests, as a value; opening a delta
    make       compare two checkpoints and store what changed
    patched    a source that has the tensors of a base with deltas applied
    apply      write that source as a checkpoint
    chain      deltas that follow each other: check them, join them
    report     what was made, as a value

``wire.frames`` has the bytes of a changed tensor, and docs/delta.md the whole format.
"""
