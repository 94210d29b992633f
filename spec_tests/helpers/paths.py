"""Places in the working copy that tests and programs read and write."""

import importlib.util
from pathlib import Path
from types import ModuleType

SPEC_TESTS = Path(__file__).resolve().parents[1]
"""The folder of the tests."""
ROOT = SPEC_TESTS.parent
"""The root of the working copy."""
DOCS = ROOT / "docs"
"""The folder of the pages."""
GOLDEN = SPEC_TESTS / "golden"
"""Checkpoints and recordings that real libraries wrote, one folder for each format."""


def module_of_page(name: str) -> ModuleType:
    """Return the program ``docs/NAME.py``, which is in no package, as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
