"""Tests of the command that installs an extra: it is true of how shardvar was installed."""

import json
import re
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardvar.errors import MissingExtra
from shardvar.extras import install_command, missing_extra
from spec_tests.helpers.paths import ROOT

SHA = "0123456789abcdef0123456789abcdef01234567"


def installed(monkeypatch: pytest.MonkeyPatch, origin: object) -> None:
    """Let shardvar be installed from somewhere, which ``direct_url.json`` tells."""
    text = origin if isinstance(origin, str | None) else json.dumps(origin)
    files = SimpleNamespace(read_text={"direct_url.json": text}.__getitem__)
    monkeypatch.setattr(metadata, "distribution", lambda _name: files)


def test_from_an_index_the_name_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    assert install_command("cloud") == "pip install 'shardvar[cloud]'"


@pytest.mark.parametrize("editable", [True, False])
def test_from_a_folder_the_command_names_it(
    editable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ``.`` in the folder itself, and works from any other."""
    clone = tmp_path / "my clone"
    clone.mkdir()
    info = {"editable": True} if editable else {}
    installed(monkeypatch, {"url": clone.as_uri(), "dir_info": info})
    option = " -e" * editable
    assert install_command("keras") == f"pip install{option} '{clone}[keras]'"
    monkeypatch.chdir(clone)
    assert install_command("keras") == f"pip install{option} '.[keras]'"


def test_from_a_wheel_or_a_repository_the_command_has_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "shardvar-1.0-py3-none-any.whl"
    wheel.touch()
    installed(monkeypatch, {"url": wheel.as_uri(), "archive_info": {}})
    assert install_command("dask") == f"pip install 'shardvar[dask] @ {wheel.as_uri()}'"
    vcs = {"vcs": "git", "commit_id": SHA}
    installed(monkeypatch, {"url": "https://example.org/x.git", "vcs_info": vcs})
    expected = f"pip install 'shardvar[dask] @ git+https://example.org/x.git@{SHA}'"
    assert install_command("dask") == expected


@pytest.mark.parametrize(
    "origin",
    [
        {"url": "file:///gone/shardvar-1.0-py3-none-any.whl", "archive_info": {}},
        {"url": "file:///gone", "dir_info": {"editable": True}},
        "not JSON",
        "[]",
        "{}",
    ],
)
def test_what_is_gone_or_unknown_is_installed_in_a_clone(
    origin: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, origin)
    assert install_command("orbax") == "pip install '.[orbax]'"


def test_a_folder_that_was_never_installed_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", unknown)
    assert install_command("orbax") == "pip install '.[orbax]'"


@pytest.mark.parametrize(
    ("file", "tool"),
    [
        ("pipx_metadata.json", "pipx install --force"),
        ("uv-receipt.toml", "uv tool install --force"),
    ],
)
def test_a_program_of_pipx_or_uv_is_installed_by_it_again(
    file: str, tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip would install the extra into another environment."""
    (tmp_path / file).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    installed(monkeypatch, None)
    assert install_command("cloud") == f"{tool} 'shardvar[cloud]'"


def test_the_error_ends_with_the_command() -> None:
    error = missing_extra("It needs x, which is not installed.", "cloud")
    assert isinstance(error, MissingExtra) and isinstance(error, ImportError)
    assert error.remedy == f"Install it: {install_command('cloud')}"


def test_no_other_place_names_the_package_of_an_index() -> None:
    """No index has it, and another package could take its name."""
    folders = (ROOT / "shardvar", ROOT / "docs", ROOT / "README.md", ROOT / "CONTRIBUTING.md")
    files = [
        each for folder in folders for each in ([folder] if folder.is_file() else folder.rglob("*"))
    ]
    texts = [each for each in files if each.suffix in (".py", ".md", ".ipynb", ".1", ".txt")]
    assert len(texts) > 100
    found = [
        each.relative_to(ROOT).as_posix()
        for each in texts
        if re.search(r"""install (-\S+ )*\\?["']?shardvar\[""", each.read_text(encoding="utf-8"))
    ]
    assert found == []
