"""Write docs/images/inspect.svg, what `shardvar inspect` prints for a Llama: ``make picture``.

1. Make a checkpoint with the names, shapes and shards of Llama 3.1 8B. Its data are holes in sparse files,
   so 16 GB take a few kilobytes of disk.
2. Run the command in a pseudo-terminal of 80 columns and 24 lines.
3. Draw the lines that it printed as SVG, each run of one style at its column.

The same output gives the same bytes. ``test_inspect_picture.py`` compares the text of the picture with the
output of the command.
"""

import json
import os
import pty
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from fcntl import ioctl
from html import escape
from math import prod
from pathlib import Path
from struct import pack
from termios import TIOCSWINSZ
from xml.etree import ElementTree

from rich.ansi import AnsiDecoder
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme

from spec_tests.helpers import paths

PICTURE = paths.DOCS / "images" / "inspect.svg"

NAME = "Llama-3.1-8B"
HIDDEN, HEADS, MIDDLE, VOCABULARY, NUM_LAYERS = 4096, 1024, 14336, 128_256, 32
"""Extents of the model; ``HEADS`` are the rows of the keys and values, which groups of queries share."""
LARGEST_FILE = 5_000_000_000
"""The bytes of a shard at the most, which is the limit that its writer had."""

COLUMNS, LINES = 80, 24
CELL, LINE_HEIGHT, FONT_SIZE, MARGIN = 8.4, 18, 14, 22
INK, QUIET, PAPER, LINE = "#1f2328", "#6a737d", "#ffffff", "#d0d7de"
THEME = TerminalTheme(
    (255, 255, 255),
    (31, 35, 40),
    [  # black, red, green, yellow, blue, magenta, cyan, white: dark enough for white paper
        (31, 35, 40), (179, 38, 30), (23, 102, 58), (130, 80, 0),
        (9, 86, 190), (130, 40, 140), (17, 99, 112), (106, 115, 125),
    ],
)  # fmt: skip


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of the model, in the order in which it is read."""
    layer = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (HEADS, HIDDEN),
        "self_attn.v_proj": (HEADS, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (MIDDLE, HIDDEN),
        "mlp.up_proj": (MIDDLE, HIDDEN),
        "mlp.down_proj": (HIDDEN, MIDDLE),
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
    }
    layers = {
        f"model.layers.{number}.{name}.weight": shape
        for number in range(NUM_LAYERS)
        for name, shape in layer.items()
    }
    ends = {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}
    return {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), **layers, **ends}


def write_checkpoint(folder: Path) -> None:
    """Write the set of safetensors files, with holes as their data."""
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    filled = 0
    for key, shape in shapes().items():
        if filled + nbytes(shape) > LARGEST_FILE:
            shards.append({})
            filled = 0
        shards[-1][key] = shape
        filled += nbytes(shape)
    folder.mkdir()
    places: dict[str, str] = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_shard(folder / name, tensors)
        places |= dict.fromkeys(tensors, name)
    total = sum(map(nbytes, shapes().values()))
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def nbytes(shape: tuple[int, ...]) -> int:
    """Return the bytes of a tensor, with two for each element."""
    return 2 * prod(shape)


def write_shard(path: Path, tensors: dict[str, tuple[int, ...]]) -> None:
    """Write one file: a header, and a hole as large as its tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for key, shape in tensors.items():
        offsets = [end, end + nbytes(shape)]
        header[key] = {"dtype": "BF16", "shape": list(shape), "data_offsets": offsets}
        end = offsets[1]
    text = json.dumps(header).encode()
    path.write_bytes(pack("<Q", len(text)) + text)
    os.truncate(path, 8 + len(text) + end)
    if path.stat().st_blocks * 512 > 1_000_000:
        raise OSError(f"{path} is not sparse: its file system has no holes.")


def printed(folder: Path) -> str:
    """Return what the command prints in a terminal, with the codes of its colours."""
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, pack("HHHH", LINES, COLUMNS, 0, 0))
    kept = {
        key: each for key, each in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")
    }
    environment = kept | {"TERM": "xterm-256color", "PYTHONPATH": str(paths.ROOT)}
    words = [sys.executable, "-m", "shardvar", "inspect", NAME]
    with subprocess.Popen(
        words, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE
    ) as run:
        os.close(theirs)
        out = b"".join(read_all(ours))
        _, err = run.communicate()
    os.close(ours)
    if run.returncode or err:
        raise RuntimeError(f"{' '.join(words)} failed: {err.decode()}")
    return out.decode().replace("\r", "")


def read_all(terminal: int) -> Iterator[bytes]:
    """Yield what is written to a terminal until its other end is closed."""
    while True:
        try:
            block = os.read(terminal, 65536)
        except OSError:  # Linux has no end of file here, but this error
            return
        if not block:
            return
        yield block


def lines_of(text: str) -> list[list[tuple[str, Style]]]:
    """Return the lines of a terminal's output as runs of one style."""
    console = Console(width=10_000, color_system="truecolor", force_terminal=True)
    lines = []
    for line in AnsiDecoder().decode(text.rstrip("\n")):
        segments = list(line.render(console))
        lines.append(
            [(each.text, each.style or Style.null()) for each in segments if each.text.strip("\n")]
        )
    return lines


def picture(text: str) -> str:
    """Return the picture of a command and its output as SVG."""
    prompt = [[("$ ", Style(dim=True)), (f"shardvar inspect {NAME}", Style(bold=True))]]
    lines = [*prompt, *lines_of(text)]
    width, height = round(2 * MARGIN + COLUMNS * CELL), 2 * MARGIN + len(lines) * LINE_HEIGHT
    told = f"A terminal: shardvar inspect {NAME} lists the tensors of a model, with equal layers on one line"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
            f' height="{height}" role="img" aria-labelledby="title">',
            f'<title id="title">{escape(told)}</title>',
            f"<style>text {{ font: {FONT_SIZE}px ui-monospace, 'SF Mono', 'Cascadia Mono', Menlo, Consolas,"
            f" 'DejaVu Sans Mono', monospace; white-space: pre; fill: {INK}; }}</style>",
            f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"'
            f' fill="{PAPER}" stroke="{LINE}"/>',
            *(drawn(runs, MARGIN + number * LINE_HEIGHT + 14) for number, runs in enumerate(lines)),
            "</svg>\n",
        ]
    )


def drawn(runs: list[tuple[str, Style]], y: int) -> str:
    """Return a line as SVG: each run has its place and its length, whatever the font is."""
    parts = []
    column = 0
    for text, style in runs:
        length = f'x="{MARGIN + column * CELL:.1f}" textLength="{len(text) * CELL:.1f}"'
        parts.append(f"<tspan {length}{looks(style)}>{escape(text)}</tspan>")
        column += len(text)
    return f'<text y="{y}" xml:space="preserve">{"".join(parts)}</text>'


def looks(style: Style) -> str:
    """Return the colour and weight of a style as attributes."""
    colour = QUIET if style.dim else hexadecimal(style.color)
    fill = f' fill="{colour}"' if colour else ""
    return fill + (' font-weight="600"' if style.bold else "")


def hexadecimal(colour: Color | None) -> str:
    return "" if colour is None or colour.is_default else colour.get_truecolor(THEME).hex


def text_of(svg: str) -> list[str]:
    """Return the lines of text of a picture."""
    root = ElementTree.fromstring(svg)  # a file of the project
    return ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]


def current() -> str:
    """Return the picture of today's output."""
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder) / NAME)
        return picture(printed(Path(folder)))


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(current(), encoding="utf-8")
