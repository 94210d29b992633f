"""Keys of the values of objects, spelt as TensorFlow spells them.

    key  := path "/.ATTRIBUTES/" attribute      "layers/0/w/.ATTRIBUTES/VARIABLE_VALUE"
    path := edge ("/" edge)*                    the names from the root to the object; empty for the root itself
    edge := the name, with "." written ".." and then "/" written ".S"

An edge never has a single dot in front of another letter than S, so no name can look like ``.ATTRIBUTES``.
"""

import re
from collections.abc import Iterable

VARIABLE_VALUE = "VARIABLE_VALUE"
"""The attribute that is the value of a variable."""
_ATTRIBUTES = "/.ATTRIBUTES/"
_ESCAPED = re.compile(r"\.(.?)", re.DOTALL)


def key_of(path: Iterable[str]) -> str:
    """The key of the value of the variable at the end of a path.

    >>> key_of(["model", "a/b.c"])
    'model/a.Sb..c/.ATTRIBUTES/VARIABLE_VALUE'
    """
    edges = (name.replace(".", "..").replace("/", ".S") for name in path)
    return "/".join(edges) + _ATTRIBUTES + VARIABLE_VALUE


def path_of(key: str) -> tuple[str, ...] | None:
    """The path of a key of a variable; None for what is no such key.

    >>> path_of(key_of(["model", "a/b.c"])), path_of(key_of([])), path_of("weight")
    (('model', 'a/b.c'), (), None)
    """
    head, separator, attribute = key.partition(_ATTRIBUTES)
    if not separator or attribute != VARIABLE_VALUE:
        return None
    if any(found[1] not in (".", "S") for found in _ESCAPED.finditer(head)):
        return None
    unescape = {".": ".", "S": "/"}
    return tuple(_ESCAPED.sub(lambda found: unescape[found[1]], edge) for edge in head.split("/")) if head else ()
