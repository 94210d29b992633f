"""``shardvar vectors``: what it writes, what it refuses, and the same in Python."""

import json
from pathlib import Path

import pytest

from shardvar import vectors
from shardvar.cli.main import main
from shardvar.errors import ArgumentError
from spec_tests.helpers.system_calls import snapshot
from spec_tests.vector_generators import make


@pytest.mark.smoke
def test_it_writes_every_file_of_the_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also from the installed wheel, where nothing else of the repository is."""
    target = tmp_path / "some" / "vectors"
    assert main(["vectors", "--out", str(target)]) == 0
    printed = capsys.readouterr().out
    assert str(target / "README.md") in printed and all(
        name in printed for name in vectors.groups()
    )
    written = snapshot(target)
    assert written == {name: vectors.read(name) for name in vectors.names()}
    for name in vectors.groups():
        document = json.loads(written[f"{name}.json"])
        assert document == vectors.group(name)
        assert document["header"]["schema"] == vectors.SCHEMA
        for case in document["cases"]:
            if "path" in case["inputs"]:
                assert any(path.startswith(case["inputs"]["path"]) for path in written), case["id"]


def test_the_package_holds_what_is_generated() -> None:
    assert set(vectors.names()) == make.files().keys() | set(make.BY_HAND)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_directory_with_something_in_it_is_left_alone(
    as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "div.json").write_text("mine")
    assert main(["vectors", "--out", str(tmp_path), *["--json"][: int(as_json)]]) == 3
    assert snapshot(tmp_path) == {"div.json": b"mine"}
    told = capsys.readouterr()
    assert "is not empty" in told.err and "--force" in told.err
    if as_json:
        assert json.loads(told.out)["error"]["kind"] == "TargetExists"


def test_force_replaces_files_of_the_same_names_and_removes_none(tmp_path: Path) -> None:
    (tmp_path / "div.json").write_text("mine")
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["vectors", "--out", str(tmp_path), "--force"]) == 0
    assert snapshot(tmp_path) == {name: vectors.read(name) for name in vectors.names()} | {
        "mine.txt": b"mine"
    }


def test_what_cannot_be_a_directory_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    assert main(["vectors", "--out", str(file), "--force"]) == 2
    assert "is not a directory" in capsys.readouterr().err
    assert main(["vectors", "--out", str(file / "below")]) == 3
    assert "Cannot write" in capsys.readouterr().err
    assert main(["vectors"]) == 2
    assert "--out" in capsys.readouterr().err
    assert file.read_text() == "mine"


def test_unknown_names_are_refused() -> None:
    for name in ("absent.json", "../__init__.py", "checkpoints"):
        with pytest.raises(ArgumentError, match="Unknown file of vectors"):
            vectors.read(name)
    with pytest.raises(ArgumentError, match="Unknown group"):
        vectors.group("schema")
