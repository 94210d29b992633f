"""Keys of the values of objects, as TensorFlow spells them.

    key  := path "/.ATTRIBUTES/" attribute      "layers/0/w/.ATTRIBUTES/VARIABLE_VALUE"
    path := edge ("/" edge)*                    the names from the root to the object; empty for the
                                                root itself
         |  path? "/.OPTIMIZER_SLOT/" path      a slot: the variable, and then the optimizer and the
                                                slot's name
    edge := the name, with "." written ".." and then "/" written ".S"

In an escaped edge a single dot comes only before S, so no name can look like ``.ATTRIBUTES`` or
``.OPTIMIZER_SLOT``.
"""

import re
from collections.abc import Iterable

from shardvar.reference.tracking import SLOT

VARIABLE_VALUE = "VARIABLE_VALUE"
"""The attribute under which the value of a variable is stored."""
SAVE_COUNTER = "save_counter"
"""The name of the variable that counts numbered checkpoints."""
_ATTRIBUTES = "/.ATTRIBUTES/"
_ESCAPED = re.compile(r"\.(.?)", re.DOTALL)


def key_of(path: Iterable[str], attribute: str = VARIABLE_VALUE) -> str:
    """Return the key of the value of the variable at the end of a path, or of another attribute of
    the object there.

    ``split_key`` returns the path and the attribute.

    >>> key_of(["model", "a/b.c"])
    'model/a.Sb..c/.ATTRIBUTES/VARIABLE_VALUE'
    >>> key_of(["w", SLOT, "optimizer", "m"])
    'w/.OPTIMIZER_SLOT/optimizer/m/.ATTRIBUTES/VARIABLE_VALUE'
    """
    return (
        "/".join([_edge(name) if "." in name or "/" in name else name for name in path])
        + _ATTRIBUTES
        + attribute
    )


def split_key(key: str) -> tuple[tuple[str, ...], str] | None:
    """Return the path and the attribute of a key of an object; None for any other key.

    >>> split_key("inputs/.ATTRIBUTES/position")
    (('inputs',), 'position')
    """
    head, separator, attribute = key.partition(_ATTRIBUTES)
    if not separator:
        return None
    path: list[str] = []
    # "a.Sb..c" is the edge of "a/b.c". An edge with any other character after a dot was not written
    # by ``key_of``.
    for edge in head.split("/") if head else ():
        if edge == SLOT:
            path.append(SLOT)
        elif "." not in edge:
            path.append(edge)
        elif any(found[1] not in (".", "S") for found in _ESCAPED.finditer(edge)):
            return None
        else:
            path.append(_ESCAPED.sub(lambda found: "/" if found[1] == "S" else ".", edge))
    # A slot's path has one marker, with a path after it: of ".OPTIMIZER_SLOT/optimizer/m" the
    # variable is the root.
    slots = [number for number, name in enumerate(path) if name is SLOT]
    if slots and (len(slots) > 1 or slots[0] == len(path) - 1):
        return None
    return tuple(path), attribute


def _edge(name: str) -> str:
    return name if name is SLOT else name.replace(".", "..").replace("/", ".S")
