"""docs/images/inspect.svg, the first picture of the README, has the text that `shardvar inspect` prints."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.style import Style

import shardvar as sv
from spec_tests.helpers import inspect_picture
from spec_tests.helpers.inspect_picture import (
    COLUMNS,
    LINES,
    NAME,
    PICTURE,
    lines_of,
    picture,
    printed,
    shapes,
    text_of,
    write_checkpoint,
)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the command prints today, with the codes of its colours."""
    folder = tmp_path_factory.mktemp("picture")
    write_checkpoint(folder / NAME)
    return printed(folder)


def test_the_picture_has_the_text_that_the_command_prints(output: str) -> None:
    today = text_of(picture(output))
    assert text_of(PICTURE.read_text(encoding="utf-8")) == today, (
        "docs/images/inspect.svg is old: run `make picture`."
    )
    assert today[0] == f"$ shardvar inspect {NAME}"
    assert today[1:] == ["".join(text for text, _ in runs) for runs in lines_of(output)]


def test_the_picture_fits_a_terminal_of_80_columns_and_24_lines(output: str) -> None:
    lines = text_of(picture(output))
    assert len(lines) <= LINES and max(map(len, lines)) <= COLUMNS


def test_the_model_is_the_real_one(tmp_path: Path) -> None:
    """Its published numbers: 8,030,261,248 parameters, 16,060,522,496 bytes and four files."""
    write_checkpoint(tmp_path / NAME)
    with sv.open_checkpoint(tmp_path / NAME) as reader:
        assert {key: reader[key].shape for key in reader} == shapes()
        assert sum(reader.entries().slices.nbytes.tolist()) == 16_060_522_496
        assert len(reader.index.files) == 4
    used = sum(path.stat().st_blocks * 512 for path in (tmp_path / NAME).iterdir())
    assert used < 1_000_000


def test_colours_and_weights_of_the_output_are_drawn() -> None:
    output = "\x1b[1mname\x1b[0m \x1b[2mquiet\x1b[0m \x1b[31m<bad>\x1b[0m\n"
    ((name, _), _, (quiet, dim), _, (bad, red)) = lines_of(output)[0]
    assert (name, quiet, bad) == ("name", "quiet", "<bad>") and dim.dim and red.color is not None
    svg = picture(output)
    spans = {each.text: each.attrib for each in ElementTree.fromstring(svg).iter() if each.text}
    assert spans["name"]["font-weight"] == "600"
    assert spans["quiet"]["fill"] == inspect_picture.QUIET
    assert spans["<bad>"]["fill"] == inspect_picture.looks(Style(color="red"))[7:14]
