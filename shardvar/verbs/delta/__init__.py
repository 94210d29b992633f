"""Deltas: the changes from one checkpoint to another, stored, applied and joined.

    report        reports, as values
    contents      the tensors of a delta and their digests, as a value; opening a delta
    draft         the loop over leaves, and the frames that it makes, until they are written
    make          compare two checkpoints and store the changes
    chain         deltas that follow each other: open them, check them
    join          a source of a base with deltas applied; several deltas as one
    apply         write that source as a checkpoint
    dialects      the deltas of other programs, read
    publication   the frames of a comparison, in the layout of another program

``wire.digests`` has the bytes of a changed tensor, and docs/delta.md the whole format.
"""
