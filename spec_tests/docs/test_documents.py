"""Tests of the pages: programs run, commands print the shown output, links have a target."""

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import shardvar as sv
from shardvar.cli.options import ALIASES, COMMANDS
from spec_tests.helpers import api_reference
from spec_tests.helpers.api_reference import names_of
from spec_tests.helpers.documents import (
    PAGES,
    ROOT,
    TEXTS,
    anchors,
    blocks,
    command_lines,
    commands,
    links,
    name_of,
    read,
    run_page,
)

RUN = [page for page in PAGES if blocks(read(page), "python", "console")]
LANGUAGES = {
    "python",
    "console",
    "",
    "text",
    "json",
    "hexdump",
    "{toctree}",
    "{eval-rst}",
    "{glossary}",
    "{include} ../CHANGELOG.md",
}


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(sv.__file__).parent.parent))
    assert run_page(read(page)) > 0


@pytest.mark.parametrize(
    "wrong", ["$ shardvar --version\nx\n", "$ shardvar inspect x\n...\n", "$ rm x\n"]
)
def test_a_page_that_is_wrong_does_not_run(wrong: str) -> None:
    with pytest.raises(AssertionError):
        run_page(f"```console\n{wrong}```\n")


def test_a_page_may_show_what_fails_if_it_says_how() -> None:
    assert (
        run_page("```console\n$ shardvar inspect x\nerror: ...\nhint: ...\n$ echo $?\n3\n```\n")
        == 1
    )


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    """No test runs a block of another language."""
    found = {block.language for block in blocks(read(page))}
    # The site shows a chapter of shardvar.spec, whose examples run as doctests.
    assert {each for each in found if not re.fullmatch(r"\{chapter\} \w+", each)} <= LANGUAGES


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_the_commands_that_cannot_be_run_here_name_what_exists(page: Path) -> None:
    makefile = read(ROOT / "Makefile")
    extras = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
    for program, *words in command_lines(read(page)):
        match program:
            case "make":
                assert re.search(rf"^{words[0]}:", makefile, flags=re.MULTILINE), words
            case "pip":
                named = re.fullmatch(r'"?(?:\.|shardvar)(?:\[([\w,]+)\])?"?', words[-1])
                assert words[0] == "install" and named, words
                assert named[1] is None or set(named[1].split(",")) <= set(extras), words
            case "python" if words[0] == "-m":
                assert find_spec(words[1]), words
            case "python":
                assert (ROOT / words[0]).is_file(), words
            case "shardvar":
                assert words[0] in (*COMMANDS, *ALIASES, "help", "--version", "--help"), words


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in links(read(page)):
        address = urlsplit(link)
        target = (page.parent / address.path).resolve() if address.path else page
        if address.scheme:
            is_right = (
                address.scheme == "https"
                and re.fullmatch(r"[\w-]+(\.[\w-]+)+", address.netloc) is not None
            )
        else:
            is_right = target.exists() and (
                not address.fragment or address.fragment in anchors(read(target))
            )
        broken += [] if is_right else [link]
    assert broken == []


def test_every_page_is_in_the_contents() -> None:
    """Sphinx warns if no contents list a page; this test finds it without Sphinx."""
    listed = set()
    for page in PAGES:
        for block in blocks(read(page), "{toctree}"):
            lines = [line for line in block.body.splitlines() if line and not line.startswith(":")]
            names = [re.sub(r".*<(.*)>", r"\1", line) for line in lines]
            listed |= {(page.parent / name).resolve().with_suffix(".md") for name in names}
    docs = {page for page in PAGES if page.parent != ROOT}
    assert docs - listed == {ROOT / "docs" / "index.md"}


def test_every_public_name_is_in_the_reference() -> None:
    """A module is in it if some of its names are."""
    listed = [name.rpartition(".") for page in api_reference.PAGES for name in names_of(page)]
    modules = {module.removeprefix("shardvar.") for module, _, _ in listed}
    assert sorted({*sv.__all__} - modules - {name for _, _, name in listed}) == []


def test_the_walk_through_the_kernel_names_modules_that_exist() -> None:
    """A section of docs/design.md whose heading ends in a package names modules of it."""
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    sections = re.findall(r"^### [^\n]*: `([\w/]+)`\n(.*?)(?=^#)", page, re.MULTILINE | re.DOTALL)
    named = {
        f"{package}/{module}"
        for package, text in sections
        for module in re.findall(r"`(\w+\.py)`", text)
    }
    assert len(named) >= 15
    assert {name for name in named if not (ROOT / "shardvar" / name).exists()} == set()


README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_shows_every_verb_that_looks_at_a_checkpoint() -> None:
    told = [
        command.split()
        for block in blocks(README, "console")
        for command, _ in commands(block.body)
    ]
    others = {"apply", "clean", "completion", "delta", "formats", "maps", "vectors"}
    assert {words[1] for words in told if words[0] == "shardvar"} == set(COMMANDS) - others
