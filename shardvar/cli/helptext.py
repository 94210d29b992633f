"""The text of help: the commands in groups, paragraphs and lists that fill the terminal."""

import argparse
from textwrap import wrap

_GROUPS = {
    "look": {
        "inspect": "list what is inside: tensors, shapes, sizes, slices, files",
        "show": "print the values of a tensor, or of a part of it",
        "view": "write or serve a page for a browser",
    },
    "check": {
        "verify": "compare every checksum, and name what is damaged",
        "diff": "compare two checkpoints, whatever their formats are",
        "digest": "print, keep or compare a fingerprint of each tensor",
    },
    "change": {"reshard": "write it in other slices, files, formats, names or dtypes"},
    "more": {
        "formats": "list the formats, and what each can hold",
        "vectors": "write test vectors for other implementations",
        "completion": "print a script that makes a shell complete words",
    },
}
"""The commands in groups, each with a line of the program's help."""

ABOUT = {name: about for group in _GROUPS.values() for name, about in group.items()}
"""The line of each command."""

COMMANDS = tuple(ABOUT)

OTHER_WORDS = {
    "inspect": ("cat", "dump", "info", "list", "ls", "stat", "summary", "tree"),
    "show": ("get", "print", "values"),
    "view": ("browse", "plot", "serve"),
    "verify": ("check", "fsck", "test", "validate"),
    "diff": ("cmp", "compare"),
    "digest": ("checksum", "fingerprint", "hash", "sha256"),
    "reshard": (
        "cast",
        "consolidate",
        "convert",
        "cp",
        "export",
        "join",
        "merge",
        "rename",
        "split",
        "unshard",
    ),
}
"""Words that people type for a command, which its error then names."""

_UNDER = " " * 14
"""The place of the second line of what is said of a command: after the longest name."""


class HelpText(argparse.HelpFormatter):
    """Help whose paragraphs are filled to the width of the terminal; paragraphs of several lines
    are lists.

    The lines of a list are filled one by one, and examples are not, since they are pasted.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        def filled(paragraph: str) -> str:
            if paragraph.startswith("examples:"):
                return paragraph
            lines = (
                wrap(line, width, subsequent_indent=_UNDER * line.startswith(" "))
                for line in paragraph.split("\n")
            )
            return "\n".join(indent + line for each in lines for line in each)

        return "\n\n".join(map(filled, text.split("\n\n")))


def listed_commands() -> str:
    """Return the commands in their groups, a line for each."""
    lines = []
    for group, commands in _GROUPS.items():
        lines += [group, *(f"  {name:<10}  {about}" for name, about in commands.items())]
    return "\n".join(lines)
