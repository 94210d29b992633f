"""Whole answers: each transcript in golden/cli is what its commands print, with their exit codes.

A line that begins with ``$`` is a command. Before it may be the size of a terminal, and ``colour``.
Without a size the output is a pipe. Lines of standard error begin with ``!``. JSON is on one line. To add a
command, write it there. ``python -m spec_tests.cli.test_transcripts`` records all answers again: read
the difference.
"""

import io
import json
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
from spec_tests.helpers.metadata_saves import save_with
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
    make_deltas()
    make_damage()
    make_places()


def make_deltas() -> None:
    """Save a chain of deltas, one of another program, one of tied tensors, and a damaged one."""
    table: Any = np.arange(3000, dtype=np.float32)
    for name in ("s1", "s2", "s3"):
        sv.save(name, {"w": table, "n": table[:9]})
        table = table + (np.arange(3000) == 7)
    for name, a, b in (("s12", "s1", "s2"), ("s23", "s2", "s3"), ("gap", "s3", "one.npz")):
        sv.delta(a, b, name)
    sv.delta("s1", "s2", "hurt")
    flip(next(Path().glob("hurt.svdata*")), 0)
    half, twin = np.arange(3000).astype(ml_dtypes.bfloat16), np.ones(999, np.float32)
    sv.save("f1", {"w": half, "same": half})
    sv.save("f2", {"w": np.where(np.arange(3000) == 7, half - half - 1, half), "same": half})
    sv.save("untied", {"old": twin * 0})
    save_with(Path("tied"), {"embed": twin, "head": twin}, {"head": "embed"})
    for part in ("whole", "fine"):
        tensors: Any = {"w": np.arange(6, dtype="f4") / (1 + 2 * (part == "fine")), "v": twin[:3]}
        sv.save(part, tensors)
        sv.save(f"{part}-half", {key: each.astype("f2") for key, each in tensors.items()})
    ones, thirds = twin[:3], np.arange(3, dtype="f4") / 3
    kinds = {"dtype": ones, "rounded": thirds, "both": thirds, "shape": ones, "text": ones}
    sv.save("k1", {"same": ones, **kinds})
    others: Any = {key: each.astype("f2") + (key == "both") for key, each in kinds.items()}
    others |= {"shape": np.ones(4, "f4"), "text": np.array([b"x"] * 3, object), "same": ones}
    sv.save("k2", others)


def make_damage() -> None:
    """Save checkpoints with one file changed, one cut and one lost, and others with odd tensors."""
    layers = {f"layer{n}.{x}": np.full((40, 20), n, "f4") for n in range(20) for x in "abcd"}
    for form, glob in {
        "shardvar": "*.svdata*",
        "tensorflow": "*.data*",
        "torch": "*.distcp",
    }.items():
        sv.save(f"hurt-{form}/m", layers, format=form, policy=sv.MaxShardSizePolicy(70_000))
        first, second, third, *_ = sorted(Path(f"hurt-{form}").rglob(glob))
        flip(first, first.read_bytes().index(20 * np.float32(1).tobytes()))
        second.write_bytes(second.read_bytes()[:30_000])
        third.unlink()
    sv.save("heap/z.npz", {"w": np.ones(200)})
    Path("heap/z.npz").write_bytes(Path("heap/z.npz").read_bytes()[:900])
    sv.save("heap/whole.npz", {"w": np.ones(3)})
    shapes: Any = {"a": (0,), "b": (2,), "c": (0, 3), "optimizer.a": (0,)}
    for name in ("void", "void.safetensors", "void.npz", "void.pt"):
        sv.save(
            name,
            {key: np.ones(each, "f4") for key, each in shapes.items()} | {"ids": np.ones(0, "i8")},
        )
    sv.save("packed", {"q.weight_packed": np.ones((8, 64), "i4"), "norm": np.ones(64, "f4")})
    sv.save("ids", {"w": np.ones((64, 64), "f4"), "ids": np.ones((1, 16), "i4")})
    names = ("\u05e9\u05db\u05d1\u05d4", "\u0637\u0628\u0642\u0629", "\u5c64")
    sv.save("scripts", {name: np.ones(1 + number) for number, name in enumerate(names)})
    cuts: Any = {"div": 5, "even": 5, "odd": sv.PartitionSpec(splits=[[1, 12]])}
    rows = {"div": 13, "even": 10, "odd": 13, "whole": 2}
    sv.save("cuts", {key: np.ones(each) for key, each in rows.items()}, partition=cuts)
    pair = [f"{n}.{name}.w" for n in range(2) for name in ("gate", "up")]
    sv.save("pair.safetensors", {key: np.arange(24.0).reshape(4, 6) + len(key) for key in pair})
    for name, rules in {
        "mine": "rules = ['a -> nothing']",
        "fuse": "rules = ['{l}.{s:gate|up}.w[o i] -> {l}.gate_up.w[(s o) i]']",
        "two": "rules = ['w[(n two) i] -> w[(two n) i]']\nsizes = {n = 3}",
    }.items():
        Path(f"{name}.toml").write_text(rules)
    sv.save("turned.npz", {"w": np.arange(12).reshape(12, 1), "norm": np.ones(2)})
    sv.save("two words.safetensors", {"w": np.ones(3)})
    Path("heap/short.npz").write_bytes(Path("heap/whole.npz").read_bytes()[:-30])
    Path("next.data-00000.0123456789abcdef.tmp").write_bytes(b"cut")


def make_places() -> None:
    """Save checkpoints behind links, and next to files that describe a model."""
    os.mkdir("linked")
    os.symlink("../runs/step-5", "linked/one")
    os.mkdir("store")
    shutil.copytree("runs/step-5", "store/.kept/v1")
    os.symlink(".kept/v1", "store/current")
    os.symlink("..", "store/above")
    for step in (1, 2):
        sv.save(f"two/step-{step}/model", {"w": np.ones(3)})
    os.symlink("step-2", "two/latest")
    lora = {"peft_type": "LORA", "base_model_name_or_path": "me/base", "r": 2, "lora_alpha": None}
    cards = (
        {"model_type": "\x1b[2J", "architectures": {}},
        ["model_type"],
        {"model_type": "x" * 201},
        lora,
    )
    for number, card in enumerate(cards):
        sv.save(f"card{number}/model.safetensors", {"w": np.ones((2, 2), "f4")})
        name = "adapter_config.json" if card is lora else "config.json"
        Path(f"card{number}/{name}").write_text(json.dumps(card))
    Path("card1/adapter_config.json").write_text("{")


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
