"""Entry points of installed packages: the quick search and ``importlib.metadata`` give the same
answer."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import shardvar as sv
from shardvar.storage.posix import entry_points_of


def installed(folder: Path, name: str, group: str) -> None:
    """Write what an installer writes of a package with one entry point."""
    about = folder / name
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: added\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\nmine = added:FORMAT\n")


@pytest.mark.parametrize(
    "name", ["added-1.0.dist-info", "added.egg-info", "added-1.0.egg/EGG-INFO"]
)
@pytest.mark.parametrize("group", ["shardvar.formats", "other.formats"])
def test_both_ways_give_the_same_entry_points(
    name: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, name, group)
    place = tmp_path / name.split("/", maxsplit=1)[0] if name.endswith("EGG-INFO") else tmp_path
    monkeypatch.syspath_prepend(str(place))
    found = entry_points_of("shardvar.formats")
    assert {(each.name, each.value) for each in found} == {
        (each.name, each.value) for each in entry_points(group="shardvar.formats")
    }
    assert any(each.name == "mine" for each in found) == (group == "shardvar.formats")


def test_a_package_that_is_installed_later_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer for a folder is kept only as long as the folder stays as it is."""
    os.utime(tmp_path, (1, 1))
    monkeypatch.syspath_prepend(str(tmp_path))
    for _ in range(2):
        assert all(each.name != "mine" for each in entry_points_of("shardvar.formats"))
    installed(tmp_path, "added-1.0.dist-info", "shardvar.formats")
    assert any(each.name == "mine" for each in entry_points_of("shardvar.formats"))


def test_the_backport_of_the_library_is_not_asked_since_it_looks_into_the_same_folders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It took 30 ms of each save where a trainer had imported it."""

    def find_distributions(*_: object) -> object:
        raise AssertionError

    body = {"find_distributions": find_distributions, "__module__": "importlib_metadata"}
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, type("Finder", (), body)()])
    assert entry_points_of("shardvar.formats") == []
    body["__module__"] = "others"
    monkeypatch.setattr(sys, "meta_path", [type("Finder", (), body)(), *sys.meta_path])
    with pytest.raises(AssertionError):
        entry_points_of("shardvar.formats")


def test_opening_a_file_without_checksums_loads_neither_metadata_of_packages_nor_policies(
    tmp_path: Path,
) -> None:
    """Of the start-up of ``inspect`` they were a quarter."""
    sv.save(tmp_path / "m.safetensors", {"x": [1.0]})
    code = (
        "import sys, shardvar.cli.inspect\n"
        "from shardvar.verbs.load import open_checkpoint\n"
        f"open_checkpoint({str(tmp_path / 'm.safetensors')!r}).close()\n"
        "print(*{'importlib.metadata', 'crc32c', 'shardvar.planning.policies'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
