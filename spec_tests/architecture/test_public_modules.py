"""Every public module has an ``__all__``: its names exist, and they are the documented ones."""

import inspect
import types
from pkgutil import iter_modules, resolve_name

import pytest

import shardvar as sv
import shardvar.spec
from spec_tests.helpers.api_reference import PAGES, names_of

FACE = sorted(
    value.__name__
    for name in sv.__all__
    if isinstance(value := getattr(sv, name), types.ModuleType)
)
"""The modules that users reach by ``sv.NAME``."""

CHAPTERS = [f"shardvar.spec.{each.name}" for each in iter_modules(shardvar.spec.__path__)]

DOCUMENTED: dict[str, set[str]] = {}
"""The names of each module that the pages of the API reference list."""
for _page in PAGES:
    for _name in names_of(_page):
        _home, _, _short = _name.rpartition(".")
        DOCUMENTED.setdefault(resolve_name(_home).__name__, set()).add(_short)

PUBLIC = sorted(
    {
        "shardvar",
        "shardvar.spec",
        "shardvar.conformance",
        "shardvar.formats.protocol",
        *FACE,
        *CHAPTERS,
        *DOCUMENTED,
    }
)


def test_the_modules_are_those_that_users_know() -> None:
    """The tests below are worth what these lists hold."""
    assert {"shardvar.errors", "shardvar.layouts", "shardvar.testing", "shardvar.vectors"} <= {
        *PUBLIC
    }
    assert {"shardvar.reference.training.layers", "shardvar.reference.random"} <= {*FACE}
    assert len(CHAPTERS) == len(shardvar.spec.__all__) and {*FACE} <= {*DOCUMENTED}


@pytest.mark.parametrize("name", PUBLIC)
def test_the_names_of_all_exist_and_a_star_import_gives_them(name: str) -> None:
    module = resolve_name(name)
    listed = module.__all__
    assert len({*listed}) == len(listed)
    assert [each for each in listed if each.startswith("_") and each != "__version__"] == []
    found: dict[str, object] = {}
    exec(f"from {name} import *", found)
    assert found.keys() - {"__builtins__"} == {*listed}


WHOLE = [*FACE, "shardvar.conformance.adapter", *(each for each in DOCUMENTED if "vectors" in each)]
"""The modules of which the reference lists every name."""


@pytest.mark.parametrize("name", sorted({*DOCUMENTED}))
def test_the_reference_lists_public_names_and_all_of_them(name: str) -> None:
    """Where the face has a function, the reference may list it there."""
    listed = {*resolve_name(name).__all__}
    assert DOCUMENTED[name] <= listed
    if name in WHOLE:
        assert listed - DOCUMENTED[name] - DOCUMENTED["shardvar"] == set()


@pytest.mark.parametrize("name", [*CHAPTERS, "shardvar.formats.protocol"])
def test_the_names_of_all_are_the_public_definitions_of_a_module(name: str) -> None:
    """A new rule is in the list, and has a docstring."""
    module = resolve_name(name)
    defined = {
        key
        for key, value in vars(module).items()
        if not key.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == name
    }
    assert defined <= {*module.__all__}
    assert [key for key in defined if not inspect.getdoc(getattr(module, key))] == []
