"""The face, ``import shardvar as sv``: cheap to import, complete, and the same to a type checker as
to Python."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import shardvar

pytestmark = pytest.mark.smoke

HEAVY = {"asyncio", "concurrent", "crc32c", "hypothesis", "ml_dtypes", "msgpack", "rich"}


def modules_after(statement: str) -> set[str]:
    """Return the modules that a new interpreter has loaded after `statement`, with the same
    shardvar in reach."""
    found_in = str(Path(shardvar.__file__).parent.parent)
    code = f"import sys; sys.path.insert(0, {found_in!r})\n{statement}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_the_face_loads_no_layer_and_no_dependency() -> None:
    """What ``import shardvar`` costs, every start of the command line pays: NumPy at most."""
    loaded = modules_after("import shardvar")
    assert HEAVY.isdisjoint(name.split(".")[0] for name in loaded)
    assert {name for name in loaded if name.startswith("shardvar.")} == set()


def test_geometry_needs_neither_files_nor_the_command_line() -> None:
    loaded = modules_after("import shardvar; shardvar.div(13, 5)")
    assert {
        "shardvar.storage",
        "shardvar.wire",
        "shardvar.formats",
        "shardvar.engine",
        "rich",
    }.isdisjoint(loaded)


def test_every_public_name_resolves_and_is_listed() -> None:
    assert [name for name in shardvar.__all__ if not hasattr(shardvar, name)] == []
    assert {"__version__", *shardvar.__all__} == set(dir(shardvar))


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'shardvar' has no attribute 'nonesuch'"):
        _ = shardvar.nonesuch


STUB = Path(shardvar.__file__).with_suffix(".pyi")


def test_type_checkers_see_the_names_that_python_sees() -> None:
    """Python's grammar and the reader of ``shardvar/__init__.py`` find the same imports in the
    stub."""
    declared = {
        (
            alias.asname,
            f"{node.module}.{alias.name}" if node.module in shardvar._PACKAGES else node.module,
        )
        for node in ast.parse(STUB.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == set(shardvar._HOME_OF.items())


def test_the_stub_holds_imports_and_nothing_else() -> None:
    """A name that type checkers read in the stub and ``_read_stub`` does not would be missing at
    run time."""
    body = ast.parse(STUB.read_text(encoding="utf-8")).body
    assert [ast.unparse(node) for node in body if not isinstance(node, ast.ImportFrom)] == []


@pytest.mark.parametrize(
    "line",
    [
        "import shardvar.errors",
        "from shardvar import errors",
        "from shardvar import errors as faults",
        "from shardvar import errors as errors, nn as nn",
        "from shardvar import errors as errors  # the tree",
        "from shardvar import *",
        "from shardvar import (",
        "    from shardvar import errors as errors",
        "div: int",
        "def div(length: int, num_shards: int) -> None: ...",
        "from shardvar import nn as nn\nfrom shardvar.reference.nn import nn as nn",
    ],
)
def test_a_line_that_the_face_cannot_read_is_an_error(line: str) -> None:
    with pytest.raises(ImportError, match="Expected one import of a new name"):
        shardvar._read_stub(line)


def test_what_is_written_names_the_version_that_wrote_it() -> None:
    from shardvar.verbs.save import WRITER

    assert f"shardvar {shardvar.__version__}" == WRITER


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(shardvar.__file__).parent / "py.typed").is_file()
