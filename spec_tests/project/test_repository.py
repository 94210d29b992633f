"""The files of the repository: no private paths, no needless extras, one place for each test."""

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import shardvar as sv
from shardvar.cli import main
from spec_tests.helpers import paths

ROOT = paths.ROOT
NOT_OURS = re.compile(r"\.git|\.venv.*|build|dist|.*cache.*|\.hypothesis|LICENSE")

# Where somebody's own directories begin. A path of the system (/etc, /dev, /usr, /tmp) may stand in
# an example.
PRIVATE_PATH = re.compile(r"(?<![\w.*~}/-])/(?:home|Users|root|work|opt|mnt|media)/\w")


def files() -> Iterator[Path]:
    """Yield the files of the repository, without those that are built or installed in it."""
    for above, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not NOT_OURS.fullmatch(name)]
        yield from (Path(above, name) for name in names if not NOT_OURS.fullmatch(name))


def test_no_file_names_a_directory_of_somebodys_machine() -> None:
    """A path that exists on one machine alone helps no reader, and breaks a clone."""
    broken = [
        f"{path}:{text.count(chr(10), 0, hit.start()) + 1}: {hit.group()}"
        for path in files()
        for text in [path.read_bytes().decode("utf-8", errors="replace")]
        for hit in PRIVATE_PATH.finditer(text)
    ]
    assert broken == []


def test_a_private_path_is_seen() -> None:
    assert PRIVATE_PATH.search("see /" + "home/ada/notes") and not PRIVATE_PATH.search(
        "docs/work/notes and /etc/passwd"
    )


def imported_by(source: str) -> set[str]:
    """The top-level names of all modules that Python source imports, also in functions."""
    return set(re.findall(r"^[ \t\"]*(?:from|import) (\w+)", source, re.MULTILINE))


def test_an_extra_installs_only_what_is_imported() -> None:
    """By the library, by the notebooks for which it is, or as ``python -m`` by the Makefile."""
    library = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "shardvar").rglob("*.py")
    )
    used = imported_by(library)
    used |= imported_by((ROOT / "docs" / "notebooks" / "classroom.py").read_text(encoding="utf-8"))
    used |= set(re.findall(r"-m (\w+)", (ROOT / "Makefile").read_text(encoding="utf-8")))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {
        f"{extra}: {requirement}"
        for extra, requirements in project["optional-dependencies"].items()
        for requirement in requirements
        if re.split(r"[^\w]", requirement)[0] not in used
    }
    assert needed == set()


def test_the_source_distribution_has_every_file_of_the_repository() -> None:
    """Its tests and `make check` read them, the hook's and the workflows' files too."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"][
        "build"
    ]
    taken = {name.strip("/") for name in build["targets"]["sdist"]["include"]}
    taken |= {
        "pyproject.toml",
        ".gitignore",
        "LICENSE",
        "PKG-INFO",
    }  # what hatchling adds, or has added
    tops = {path.relative_to(ROOT).parts[0] for path in files()}
    assert tops - taken == set()


def test_every_test_module_is_in_a_folder_and_has_a_unique_name() -> None:
    """The mutants name a test by its module alone, and a reader finds it by its layer."""
    modules = sorted(paths.SPEC_TESTS.rglob("test_*.py"))
    assert [path.name for path in modules if path.parent == paths.SPEC_TESTS] == []
    names = [path.name for path in modules]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_no_program_of_the_tests_changes_the_path_of_modules() -> None:
    """Programs are modules and are started by `python -m`; a test may change the path of a program
    that it starts."""
    sources = [path for path in paths.SPEC_TESTS.rglob("*.py") if not path.name.startswith("test_")]
    changes = re.compile(r"^\s*sys\.path", re.MULTILINE)
    assert [str(path) for path in sources if changes.search(path.read_text(encoding="utf-8"))] == []


def test_the_hook_sees_damage_in_each_file_that_a_commit_can_change(tmp_path: Path) -> None:
    """The pattern of shardvar-verify has files with values and the index of a set; its command
    finds the checkpoint."""
    hook = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    pattern, entry = (
        re.search(rf"^  {name}: (.*)$", hook, re.MULTILINE) for name in ("files", "entry")
    )
    assert pattern and entry
    array = np.arange(40, dtype=np.float32)
    for name, kind in [
        ("a", "shardvar"),
        ("b", "tensorflow"),
        ("c", "torch"),
        ("d.npz", "npz"),
        ("e.pt", "pt"),
    ]:
        sv.save(tmp_path / name, {"t": array}, format=kind)
    found = [path for path in sorted(tmp_path.rglob("*")) if path.is_file()]
    held = [path for path in found if array.tobytes() in path.read_bytes()]
    assert len(held) == 5 and all(re.search(pattern[1], path.as_posix()) for path in held)
    two = {"t": array, "u": array}
    sv.save(tmp_path / "set.safetensors", two, policy=sv.MaxShardSizePolicy(array.nbytes))
    index = tmp_path / "set.safetensors.index.json"
    assert (
        re.search(pattern[1], index.as_posix()) and main([*entry[1].split()[1:], str(index)]) == 0
    )
    index.write_text(index.read_text(encoding="utf-8").replace('"u"', '"v"'), encoding="utf-8")
    assert main([*entry[1].split()[1:], str(index)]) == 1
    for path in held:
        command = [*entry[1].split()[1:], str(path)]
        assert main(command) == 0
        data = path.read_bytes()
        path.write_bytes(data.replace(array.tobytes(), array[::-1].tobytes()))
        assert main(command) == 1


def test_the_readme_begins_with_the_two_commands_that_do_all_the_setup() -> None:
    """On a machine with Python and make: the main job, and the tests. An edit removed both once."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    printed = [line.partition("#")[0].split() for line in readme.splitlines()]
    demo, test = printed.index(["make", "demo"]), printed.index(["make", "test"])
    install = next(n for n, words in enumerate(printed) if words[1:2] == ["install"])
    assert demo < test < install and len(printed) <= 130
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{verb}: ", makefile, flags=re.MULTILINE) for verb in ("demo", "test"))


def test_ci_runs_the_tests_as_the_readme_prints_it(tmp_path: Path) -> None:
    """A stand-in for make writes down with which words it is called."""
    called = tmp_path / "called.txt"
    script = tmp_path / "make"
    script.write_text(f'#!/bin/sh\necho "$@" >> "{called}"\n')
    script.chmod(0o755)
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_bytes((ROOT / ".ci" / "run").read_bytes())
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", str(tmp_path / ".ci" / "run")], env=environment, capture_output=True, check=False
    )
    verbs = [
        [word for word in line.split() if not word.startswith("--")]
        for line in called.read_text(encoding="utf-8").splitlines()
    ]
    assert done.returncode == 0 and ["test"] in verbs
