"""Import ``shardvar.torch`` without PyTorch, to read its docstrings and signatures.

The pages of the API reference list its names, and neither the developer's environment nor the site's has
PyTorch. Only the base classes of the face are needed when it is imported. The stand-in is gone from ``sys.modules``
afterwards: code that looks for PyTorch there does not find it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Anything(ModuleType):
    """A module that has every name: a class without members, or a module below it."""

    __path__: list[str]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {"__module__": self.__name__})
        setattr(self, name, value)
        return value


_MODULES = (
    "torch",
    "torch.distributed",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.metadata",
    "torch.distributed.checkpoint.planner",
    "torch.distributed.checkpoint.storage",
    "torch.distributed.tensor",
    "torch.nn",
)


@contextmanager
def _stand_in() -> Iterator[None]:
    """Let imports of PyTorch succeed inside."""
    for name in _MODULES:
        module = _Anything(name)
        module.__path__ = []
        sys.modules[name] = module
        parent, _, short = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], short, module)
    try:
        yield
    finally:
        for name in _MODULES:
            del sys.modules[name]


def import_face() -> None:
    """Import ``shardvar.torch``, with a stand-in if PyTorch is not installed."""
    if "torch" in sys.modules or find_spec("torch") is not None:
        import_module("shardvar.torch")
    elif "shardvar.torch" not in sys.modules:
        with _stand_in():
            import_module("shardvar.torch")
