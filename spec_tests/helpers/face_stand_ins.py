"""Import ``shardvar.torch`` and ``shardvar.jax`` without their frameworks, to read their docstrings and signatures.

The pages of the API reference list their names, and neither the developer's environment nor the site's has
PyTorch or JAX. Only the base classes of a face are needed when it is imported. The stand-in is gone from
``sys.modules`` afterwards: code that looks for the framework there does not find it.
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


_MODULES = {
    "torch": (
        "torch",
        "torch.distributed",
        "torch.distributed.checkpoint",
        "torch.distributed.checkpoint.metadata",
        "torch.distributed.checkpoint.planner",
        "torch.distributed.checkpoint.storage",
        "torch.distributed.tensor",
        "torch.nn",
    ),
    "jax": ("jax",),
}
"""What the face of each framework imports."""


@contextmanager
def _stand_in(names: tuple[str, ...]) -> Iterator[None]:
    """Let imports of a framework succeed inside."""
    for name in names:
        module = _Anything(name)
        module.__path__ = []
        sys.modules[name] = module
        parent, _, short = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], short, module)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


def import_faces() -> None:
    """Import the faces, with a stand-in where a framework is not installed."""
    for framework, names in _MODULES.items():
        face = f"shardvar.{framework}"
        if framework in sys.modules or find_spec(framework) is not None:
            import_module(face)
        elif face not in sys.modules:
            with _stand_in(names):
                import_module(face)
