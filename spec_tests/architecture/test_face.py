"""The face, ``import shardvar as sv``: cheap to import, complete, and the same to a type checker as to Python."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import shardvar

pytestmark = pytest.mark.smoke

HEAVY = {"asyncio", "concurrent", "crc32c", "hypothesis", "ml_dtypes", "msgpack", "rich"}


def modules_after(statement: str) -> set[str]:
    """What a new interpreter has loaded after ``statement``, with the same shardvar in reach as this one."""
    found_in = str(Path(shardvar.__file__).parent.parent)
    code = f"import sys; sys.path.insert(0, {found_in!r})\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_the_face_loads_no_layer_and_no_dependency() -> None:
    """What ``import shardvar`` costs, every start of the command line pays: NumPy at most."""
    loaded = modules_after("import shardvar")
    assert HEAVY.isdisjoint(name.split(".")[0] for name in loaded)
    assert {name for name in loaded if name.startswith("shardvar.")} == set()


def test_geometry_needs_neither_files_nor_the_command_line() -> None:
    loaded = modules_after("import shardvar; shardvar.div(13, 5)")
    assert {"shardvar.storage", "shardvar.wire", "shardvar.formats", "shardvar.engine", "rich"}.isdisjoint(loaded)


def test_every_public_name_resolves_and_is_listed() -> None:
    assert [name for name in shardvar.__all__ if not hasattr(shardvar, name)] == []
    assert {"__version__", *shardvar.__all__} == set(dir(shardvar))


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'shardvar' has no attribute 'nonesuch'"):
        _ = shardvar.nonesuch


def test_type_checkers_see_the_names_that_python_sees() -> None:
    """The imports under ``TYPE_CHECKING`` and the table of homes say the same."""
    tree = ast.parse(Path(shardvar.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    declared = {
        (alias.name, node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    homes = shardvar._HOME_OF.items()
    expected = {(name, "shardvar" if home == f"shardvar.{name}" else home) for name, home in homes}
    assert declared == expected


def test_what_is_written_names_the_version_that_wrote_it() -> None:
    """The version stands in two layers that may not see each other; here they meet."""
    from shardvar.checkpoint.save import WRITER

    assert f"shardvar {shardvar.__version__}" == WRITER


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(shardvar.__file__).parent / "py.typed").is_file()
