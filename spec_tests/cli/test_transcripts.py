"""Whole answers: each transcript in golden/cli is what its commands print, with their exit codes.

A line that begins with ``$`` is a command. Before it may be the size of a terminal, and ``colour``.
Without a size the output is a pipe. Lines of standard error begin with ``!``. JSON is on one line. To add a
command, write it there. ``python -m spec_tests.cli.test_transcripts`` records all answers again: read
the difference.
"""

import io
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest

import shardvar as sv
from shardvar._version import __version__
from shardvar.cli import main
from spec_tests.helpers.command_line import saved, tensors
from spec_tests.helpers.damage import flip
from spec_tests.helpers.paths import GOLDEN

TRANSCRIPTS = sorted((GOLDEN / "cli").glob("*.txt"))

_COMMAND = re.compile(r"(?:(\d+)x(\d+) (colour )?)?\$ ?(.*)")
CHANGING = (
    (r"\b[0-9.]+ m?s\b", "N s"),
    (r"\b[0-9.]+ [kMGTP]?B free", "N B free"),
    (r'("free_nbytes"|"callback_seconds"|"age"|"saved"): [0-9.e-]+', r"\1: N"),
    (r"(?<=-)[0-9a-f]{16}\b", "0123456789abcdef"),
    (r"\b\d{4}-\d\d-\d\d \d\d:\d\d", "2026-01-01 00:00"),
    (re.escape(__version__), "VERSION"),
)


class _Stream(io.TextIOWrapper):
    """A stream of UTF-8 that may be a terminal."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__(io.BytesIO(), "utf-8", newline="")
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        """Return True for a terminal."""
        return self._is_terminal

    def text(self) -> str:
        """Return what was written."""
        self.seek(0)
        return self.read()


def make_checkpoints() -> None:
    """Save what the transcripts look at, in the working directory."""
    ones, row = np.ones((4, 2), np.float32), np.arange(12.0)
    saved(Path(), partition=3, metadata={"run": "7", "note": "a\nb"})
    saved(Path(), "tensorflow", "tf", partition=2)
    saved(Path(), "safetensors", "bare.safetensors")
    changed = tensors() | {"new": np.ones(1), "step": np.array(1201, np.int64)}
    changed["dense/kernel"][3, 2] += 0.5
    del changed["empty"]
    sv.save("other.npz", changed)
    llm: dict[str, Any] = {
        "model.embed.weight": np.ones((64, 8), ml_dtypes.bfloat16),
        "model.norm.weight": row[:8],
    }
    for layer in range(12):
        for word in "qkvo":
            llm[f"model.layers.{layer}.attn.{word}_proj.weight"] = np.full((8, 8), layer, "f4")
        for word in ("gate", "up"):
            llm[f"model.layers.{layer}.mlp.{word}_proj.weight"] = np.full((20, 8), layer, "f4")
        llm[f"model.layers.{layer}.norm.weight"] = np.full(8, layer, "f4")
    policy = sv.MaxShardSizePolicy(4000)
    sv.save("llm/model.safetensors.index.json", llm, format="safetensors", policy=policy)
    Path("llm/config.json").write_text('{"model_type": "llama", "architectures": ["A", "B"]}')
    tuned = {key: value * 1.25 if ".3." in key else value for key, value in llm.items()}
    tuned["model.norm.weight"] = np.ones(9)
    tuned["model.layers.7.norm.weight"] = np.full(8, 7, "f8")
    tuned["extra"] = tuned.pop("model.embed.weight")
    sv.save("tuned", tuned, partition={"*proj*": 2}, policy=sv.BalancedPolicy(3))
    sv.save("renamed", {f"old.{key}": value for key, value in llm.items()})
    odd: dict[str, Any] = {
        "nan": [np.nan, 1.0, 2.0], "inf": [np.inf, -np.inf], "zeros": [0.0, 0.0], "same": [2.5] * 3,
        "none": np.zeros((0, 2)), "text": np.array([b"x", b"a\xff"], object), "true": True, "long": row,
        "complex": [1 + 2j, 3], "int4": np.array([-3, 4], ml_dtypes.int4),
        "words": np.array([b"w" * 201, b"v"], object),
    }  # fmt: skip
    sv.save("odd", {key: np.asarray(value) for key, value in odd.items()})
    sv.save(
        "names",
        {"a\nb": ones, "back\\slash": ones, "[bold]x": ones, "\u202eevil": ones, "é" * 90: ones},
    )
    sv.save("lost", {f"w{n}": np.full(8, n) for n in range(9)}, policy=sv.MaxShardSizePolicy(128))
    sorted(Path().glob("lost.svdata*"))[1].unlink()
    flip(sorted(Path().glob("lost.svdata*"))[2], 0)
    sv.save("cast", {key: value.astype("f8") for key, value in llm.items()})
    numbers = np.arange(8.0)
    many = {f"{one}{two}": numbers + 1 for one in "abc" for two in "abcdefghijklmnop"}
    sv.save("many.npz", many)
    sv.save("scaled.npz", {key: each * (1 + (key[1] in "bk")) for key, each in many.items()})
    more = {key: each + (each > at / 6) for at, (key, each) in enumerate(many.items())}
    sv.save("more.npz", more | {"only": numbers})
    sv.save(
        "heads.npz", {f"head.{key}": each for key, each in [*many.items()][3:]} | {"aa": numbers}
    )
    changes: dict[str, Any] = {
        "nan": [0.0, 1.0, 2.0], "inf": [np.inf, 1.0], "zeros": [0.0, -0.0], "int4": [3, 4],
        "text": np.array([b"x", b"y"], object), "true": False, "complex": [1, 3],
    }  # fmt: skip
    sv.save("odd2", {key: np.asarray(changes.get(key, value)) for key, value in odd.items()})
    sv.save("big", {"table": np.arange(9000.0).reshape(3000, 3), "cube": np.zeros((9, 9, 9, 9))})
    for step in range(1, 31):
        sv.save(f"runs/step-{step}/m.npz", {"w": np.full(3, step)})
    sv.save("one.npz", {"w": row})
    sv.save("both/a.npz", {"w": row})
    sv.save("both/b.safetensors", {"w": row, "b": ones})
    sv.save("mixed/a.npz", {"w": row})
    sv.save("mixed/deep/er/c.safetensors", {"w": row, "b": ones})
    Path("mixed/cut.safetensors").write_bytes(Path("both/b.safetensors").read_bytes()[:-8])
    Path("mixed/head.safetensors").write_bytes(b"\0" * 20)
    for part in range(2):
        sv.save("ab"[part], {"w": row.reshape(3, 4) + part, "b": ones})
    shutil.copy(GOLDEN / "torch_pt" / "training_checkpoint" / "x.pt", "train.pt")
    for name in ("model.safetensors", "checkpoint-5/model.safetensors"):
        sv.save(f"final/{name}", {"w": row.reshape(3, 4)})
    shutil.copy("train.pt", "final/train.pt")
    os.symlink("../both", "final/best")
    shutil.copy(GOLDEN / "gguf" / "every_type" / "m.gguf", "q.gguf")
    shutil.copy(GOLDEN / "torch_zero" / "z1fp32w3" / "mp_rank_00_model_states.pt", "zero.pt")
    shutil.copytree(GOLDEN / "huggingface" / "bad_first_shard_missing" / "ckpt", "ranks")
    for name, text in (("config", "["), ("empty", ""), ("number", "w = 1")):
        Path(f"{name}.toml").write_text(text)
    Path("names.toml").write_text('"dense/*" = "head/*"\n')
    for folder, number in (("left", 1), ("many", 103)):
        Path(folder).mkdir()
        for each in range(number):
            Path(folder, f"m{each}.data-00000.0123456789abcdef.tmp").write_bytes(b"cut")


def _answers(text: str) -> Iterator[str]:
    """Yield each command of a transcript with the answer that it gives today."""
    here = os.path.realpath(".")
    for line in text.splitlines():
        found = _COMMAND.fullmatch(line)
        if found is None:
            continue
        columns, lines, colour, words = found.groups()
        environment = {"COLUMNS": columns, "LINES": lines, "TERM": "xterm" if colour else "dumb"}
        out, err = _Stream(columns is not None), _Stream(columns is not None and not colour)
        chosen = environment if columns else {}
        with patch("sys.stdout", out), patch("sys.stderr", err), patch.dict(os.environ, chosen):
            code = main(shlex.split(words))
        answer = [line]
        for prefix, stream in (("", out), ("! ", err)):
            printed = stream.text().replace(here, "HERE")
            for pattern, new in CHANGING:
                printed = re.sub(pattern, new, printed)
            if "--json" in words:
                printed = re.sub(r"\n *(?!$)", " ", printed)
            answer += [prefix + each for each in printed.splitlines()]
        yield "\n".join([*answer, *[f"[{code}]"] * bool(code), "", ""])


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_a_transcript_is_what_its_commands_print(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_checkpoints()
    text = path.read_text(encoding="utf-8")
    for answer in _answers(text):
        known, text = text[: len(answer)], text[len(answer) :]
        assert answer == known
    assert not text


if __name__ == "__main__":
    for each in TRANSCRIPTS:
        with TemporaryDirectory() as directory, chdir(directory):
            make_checkpoints()
            answers = list(_answers(each.read_text(encoding="utf-8")))
        each.write_text("".join(answers), encoding="utf-8")
