"""Notes about what ``--dequantize`` changes, for the commands that have it."""

from collections.abc import Iterable

from shardvar.cli.output import note
from shardvar.pictures.words import message
from shardvar.verbs.reader import Reader, open_checkpoint

_WITHIN = "gguf"
"""The format whose blocks have their scales within them, so that no key changes."""


def note_numbers(reader: Reader, dequantize: bool | str) -> None:
    """Print which tensors became numbers and which scales are left out, or that nothing changed."""
    if dequantize is False:
        return
    # Imported on use: a command without the option does not pay for it.
    from shardvar.verbs.dequantization import notes_of

    notes = notes_of(reader.source)
    if not notes and reader.format != _WITHIN:
        notes = [f"nothing to dequantize: no tensor of {reader.path} is quantised"]
    for each in notes:
        note(f"note: {message(each)}")


def note_dequantized(paths: Iterable[str], dequantize: bool | str) -> None:
    """As ``note_numbers``, of the checkpoints at some paths."""
    for path in paths if dequantize is not False else ():
        with open_checkpoint(path, dequantize=dequantize) as reader:
            note_numbers(reader, dequantize)
