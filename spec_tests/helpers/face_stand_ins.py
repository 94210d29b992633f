"""Import ``shardvar.torch``, ``shardvar.jax`` and the adapters in them without their frameworks, to read their
docstrings and signatures.

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


_TORCH = (
    "torch",
    "torch.distributed",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.metadata",
    "torch.distributed.checkpoint.planner",
    "torch.distributed.checkpoint.storage",
    "torch.distributed.tensor",
    "torch.nn",
)
_MODULES = {
    "torch": _TORCH,
    "torch.lightning": (
        *_TORCH,
        "lightning",
        "lightning.fabric",
        "lightning.fabric.plugins",
        "lightning.fabric.plugins.io",
        "lightning.fabric.plugins.io.torch_io",
    ),
    "torch.transformers": (*_TORCH, "transformers"),
    "torch.accelerate": (*_TORCH, "accelerate"),
    "torch.ray": (*_TORCH, "ray", "ray.train"),
    "jax": ("jax",),
    "jax.manager": ("jax",),
}
"""What each face imports of frameworks, and each adapter in it."""


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
    """Import the faces and the adapters, with stand-ins where frameworks are not installed."""
    for name, modules in _MODULES.items():
        if f"shardvar.{name}" not in sys.modules:
            roots = {each for each in modules if "." not in each}
            absent = {each for each in roots if each not in sys.modules and find_spec(each) is None}
            with _stand_in(tuple(each for each in modules if each.partition(".")[0] in absent)):
                import_module(f"shardvar.{name}")
