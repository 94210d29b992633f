"""Inspect, verify, compare, convert and reshard checkpoints, without the framework that wrote them.

    import shardvar as sv

    sv.save("model", {"table": table}, partition=3)
    sv.reshard("model", "model-of-five", partition=5)
    assert sv.diff("model", "model-of-five").equal

``load``, ``save``, ``open_checkpoint``, ``reshard``, ``verify``, ``diff`` and ``digest`` work on
checkpoints, and ``delta`` and ``apply`` on what changed between two. ``SavedSteps`` and
``save_shards`` are for programs that train. ``Variable``, ``ShardedVariable``, ``Checkpoint``, ``nn``
and ``optimizers`` are the RFCs in NumPy, and ``shardvar.spec`` has each of their rules as a function.
"""

# This module is the face. It imports nothing until one of its names is used (SPEC 1), so that the
# command line starts quickly and a program that wants only ``sv.div`` pays for nothing else. The stub
# ``__init__.pyi`` next to it is the only table of public names: type checkers read it as Python, this
# module reads it line by line. To add a name, add its import to the stub.

from importlib import import_module

_PACKAGES = (__name__, f"{__name__}.reference")
"""The packages whose submodules are public names."""


def _read_stub(text: str) -> dict[str, str]:
    """Return the module of each public name of a stub, in the order of its lines.

    A name from ``shardvar`` or ``shardvar.reference`` is a submodule, and its own home.
    ``ImportError`` for a line that is not ``from MODULE import NAME as NAME``: a type checker would
    see what it declares, and Python would not.

    >>> _read_stub("from shardvar.reference import nn as nn\\nfrom shardvar.layout import div as div")
    {'nn': 'shardvar.reference.nn', 'div': 'shardvar.layout'}
    """
    # The module ``ast`` would read the stub too, but takes longer to import than all of ``import
    # shardvar``.
    homes: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        match line.split(" "):
            case ["from", module, "import", name, "as", alias] if (
                name == alias and name not in homes
            ):
                homes[name] = f"{module}.{name}" if module in _PACKAGES else module
            case _:
                raise ImportError(
                    f"Line {number} of shardvar/__init__.pyi is {line!r}. Expected one import of "
                    "a new name: from MODULE import NAME as NAME."
                )
    return homes


# The loader that found this module also finds the stub, even in a zip archive.
_HOME_OF = _read_stub(__spec__.loader.get_data(f"{__path__[0]}/__init__.pyi").decode())

__all__ = [name for name in _HOME_OF if not name.startswith("_")]


def __getattr__(name: str) -> object:
    """Import the module that holds ``name``, and keep the value."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shardvar.forks import unforked  # not above: that would load modules before a name is used

    # a child that is forked within an import by another thread could never import the same module
    with unforked:
        home = import_module(_HOME_OF[name])
    is_home = home.__name__ in {f"{package}.{name}" for package in _PACKAGES}
    value = home if is_home else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, whether imported yet or not."""
    return sorted(_HOME_OF)
