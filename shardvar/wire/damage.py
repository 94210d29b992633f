"""How the codecs of this layer refuse bytes: the two errors, each with its remedy.

A codec knows offsets and nothing of files; whoever called it names the file with ``errors.at``.
*Malformed* bytes cannot be decoded; *invalid* ones decode and break a law of their format.
"""

from shardvar.errors import CorruptCheckpoint, InvalidCheckpoint, MalformedCheckpoint

COPY_AGAIN = "Copy the file again from where it was written, or use another checkpoint."
WRITE_AGAIN = "Whatever wrote the file is at fault: write the checkpoint again with another program."


def malformed(cause: str) -> MalformedCheckpoint:
    """The error for bytes that cannot be decoded."""
    return MalformedCheckpoint(cause, COPY_AGAIN)


def invalid(cause: str) -> InvalidCheckpoint:
    """The error for bytes that decode and break a law of their format."""
    return InvalidCheckpoint(cause, WRITE_AGAIN)


def corrupt(cause: str) -> CorruptCheckpoint:
    """The error for bytes with which their checksum disagrees."""
    return CorruptCheckpoint(cause, COPY_AGAIN)
