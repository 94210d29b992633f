"""What a package index shows: a README whose links work there, and the addresses of the project."""

import copy
import re
import tomllib

import pytest

from spec_tests.helpers.documents import links
from spec_tests.helpers.paths import ROOT

core = pytest.importorskip("hatchling.metadata.core", reason="hatchling builds the package")
spec = pytest.importorskip("hatchling.metadata.spec", reason="hatchling builds the package")
manager = pytest.importorskip("hatchling.plugin.manager", reason="hatchling builds the package")

CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ADDRESS = "https://example.org/owner/shardvar"


def metadata(address: str) -> "core.ProjectMetadata":
    """Return the metadata that a build makes if the repository has an address."""
    config = copy.deepcopy(CONFIG)
    config["tool"]["hatch"]["metadata"]["hooks"]["custom"]["address"] = address
    return core.ProjectMetadata(str(ROOT), manager.PluginManager(), config)


def readme(address: str) -> str:
    """Return the README of the core metadata, the text after its headers."""
    made = spec.get_core_metadata_constructors()[spec.DEFAULT_METADATA_VERSION]
    written = made(metadata(address))
    assert "Description-Content-Type: text/markdown" in written
    return written.partition("\n\n")[2]


def test_every_link_of_the_package_is_absolute_once_there_is_an_address() -> None:
    text = readme(ADDRESS)
    ours = [link for link in links(text) if link.startswith(ADDRESS)]
    assert all(link.startswith("https://") for link in links(text))
    relative = [
        link
        for link in links((ROOT / "README.md").read_text(encoding="utf-8"))
        if "://" not in link
    ]
    paths = [re.sub(rf"{ADDRESS}/(?:blob|raw)/HEAD/", "", link) for link in ours]
    assert paths == relative and len(ours) > 10
    assert "![" in text and f"]({ADDRESS}/raw/HEAD/docs/images/inspect.svg)" in text


def test_a_package_without_an_address_has_no_broken_link() -> None:
    text = readme("")
    assert "[" not in re.sub(r"```.*?```", "", text, flags=re.DOTALL).replace("[orbax", "")
    assert [link for link in links(text) if "://" not in link] == [] and "docs/images" not in text
    assert "```\nmake demo" in text


def test_blocks_of_code_are_not_changed() -> None:
    def code(text: str) -> list[str]:
        return re.findall(r"^```.*?^```", text, flags=re.MULTILINE | re.DOTALL)

    own = code((ROOT / "README.md").read_text(encoding="utf-8"))
    assert own and code(readme("")) == own == code(readme(ADDRESS))


@pytest.mark.parametrize("address", ["", ADDRESS, ADDRESS + "/"])
def test_the_project_has_addresses_as_soon_as_there_is_one(address: str) -> None:
    urls = metadata(address).core.urls
    assert set(urls) == ({"Source", "Documentation", "Changelog", "Issues"} if address else set())
    assert all(url == ADDRESS or url.startswith(ADDRESS + "/") for url in urls.values())
    assert all("//" not in url.removeprefix("https://") for url in urls.values())
