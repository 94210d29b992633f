"""Metadata that the package index shows: the README with absolute links, and the addresses of the project.

An index knows no files of the repository, so a relative link of the README is broken there.
``[tool.hatch.metadata.hooks.custom]`` in pyproject.toml has the one ``address`` of the repository:

- with an address, links and pictures become absolute, and ``[project.urls]`` is filled;
- without one, a link becomes its text, and a picture is left out.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_FENCED = re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^()\s]+)\)")


class CustomMetadataHook(MetadataHookInterface):
    """Fill ``readme`` and ``urls`` of the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set both from the files of the repository and the address."""
        address = self.config.get("address", "").rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": readme_of(text, address)}
        metadata["urls"] = urls_of(address)


def urls_of(address: str) -> dict[str, str]:
    """Return the addresses that an index lists, none without that of the repository."""
    if not address:
        return {}
    return {
        "Source": address,
        "Documentation": f"{address}/blob/HEAD/docs/index.md",
        "Changelog": f"{address}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }


def readme_of(text: str, address: str) -> str:
    """Return the README without relative links. Blocks of code stay as they are."""
    parts, end = [], 0
    for block in _FENCED.finditer(text):
        parts += [_without_relative_links(text[end : block.start()], address), block[0]]
        end = block.end()
    return "".join([*parts, _without_relative_links(text[end:], address)])


def _without_relative_links(text: str, address: str) -> str:
    def replace(link: re.Match[str]) -> str:
        if re.match(r"https?://|mailto:|#", link["target"]):
            return link[0]
        if not address:
            return "" if link["picture"] else link["text"]
        kind = "raw" if link["picture"] else "blob"
        return f"{link['picture']}[{link['text']}]({address}/{kind}/HEAD/{link['target']})"

    return _LINK.sub(replace, text)
