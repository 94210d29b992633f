"""Dialects: the deltas of other programs, read and written.

    table         the dialects by name; opening a delta of one, checking that several follow each other
    changes       the change of a tensor as a value: what turns its old leaves into the new ones
    slime         the layout of slime, miles, SGLang, vime and ModelExpress
    trl           the layouts of TRL
    applied       deltas applied to a base: frames of ``wire.frames`` that ``patched`` reads
    publication   the dialects that are written; the location and the versions of a new delta
    written       the frames of a comparison, in the layout of a dialect

No dialect names its base by a digest, and none has new or removed tensors. So a delta is applied in
two passes. The first one makes frames of shardvar from it and its base, compares the checksums that
the dialect has, and writes nothing. The second one is ``apply`` of these frames. Writing begins with
the comparison of ``make``. Positions, masks and digests have one implementation.

To add a dialect, add its marks to ``formats.published``, and a module and a row to ``table``.
"""
