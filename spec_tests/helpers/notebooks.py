"""The notebooks of docs/notebooks: their cells, and how one is executed and compared with its
stored outputs.

``python -m spec_tests.helpers.notebooks`` executes all of them and stores the outputs. Pictures are
SVG whose text is text. Two runs draw the same picture if the words in it are the same: lines may
differ by a version of matplotlib.
"""

import json
import os
import re
from collections.abc import Mapping
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

from spec_tests.helpers import paths

FOLDER = paths.DOCS / "notebooks"
NAMES = ("geometry", "parallelism", "training", "checkpoints")
"""The notebooks, in the order in which they are read."""

Cell = dict[str, Any]


def path_of(name: str) -> Path:
    """Return the file of a notebook."""
    return FOLDER / f"{name}.ipynb"


@cache
def stored_cells(name: str) -> tuple[Cell, ...]:
    return tuple(json.loads(path_of(name).read_text(encoding="utf-8"))["cells"])


def source(cell: Cell) -> str:
    return "".join(cell["source"])


def tags(cell: Cell) -> list[str]:
    return list(cell["metadata"].get("tags", ()))


def pictures(cell: Cell) -> list[str]:
    """Return the pictures that a cell drew, as SVG."""
    return ["".join(data["image/svg+xml"]) for data in _data(cell) if "image/svg+xml" in data]


def printed(cell: Cell) -> str:
    """Return what a cell printed; Jupyter may store it in several parts."""
    return "".join(
        "".join(output["text"])
        for output in cell.get("outputs", ())
        if output["output_type"] == "stream"
    )


def shown(cell: Cell) -> list[str]:
    """Return what a cell shows, as texts that are the same in each run: printed lines, values,
    words of pictures.

    Of the package's source, which is folded, only the title counts: its text is a copy from the
    last ``make outputs``.
    """
    texts = [printed(cell)]
    for data in _data(cell):
        if "image/svg+xml" in data:
            words = re.findall(
                r"<text[^>]*>(.*?)</text>", "".join(data["image/svg+xml"]), re.DOTALL
            )
            texts.append(
                "a picture with the words " + " | ".join(unescape(word).strip() for word in words)
            )
        else:
            text = ["".join(data[kind]) for kind in ("text/html", "text/plain") if kind in data][:1]
            texts += [
                each.partition("<pre>")[0] if each.startswith("<details>") else each
                for each in text
            ]
    return texts


def _data(cell: Cell) -> list[dict[str, Any]]:
    return [output["data"] for output in cell.get("outputs", ()) if "data" in output]


def execute(name: str, added: Mapping[str, Mapping[str, str]] = {}) -> dict[str, Cell]:
    """Return the cells of a notebook by their ids, executed from top to bottom in a new kernel.

    ``added`` has cells to execute after some of the stored ones: for the id of a cell, sources by
    their own ids.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path_of(name), as_version=4)
    nbformat.validate(notebook)
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        cells += [
            nbformat.v4.new_code_cell(text, id=own) for own, text in added.get(cell.id, {}).items()
        ]
    notebook.cells = cells
    resources = {"metadata": {"path": os.fspath(FOLDER)}}
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources=resources, record_timing=False
    ).execute()
    return {cell.id: cell for cell in notebook.cells}


def main() -> None:
    """Execute all notebooks, and store their outputs without the numbers of cells."""
    import nbformat

    for name in NAMES:
        executed = execute(name)
        notebook = nbformat.read(path_of(name), as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = executed[cell.id].outputs
                for output in cell.outputs:
                    if output.output_type == "execute_result":
                        output.execution_count = None
        nbformat.write(notebook, path_of(name))
        print(f"wrote {path_of(name).relative_to(paths.ROOT)}")


if __name__ == "__main__":
    main()
