"""Deltas of other programs that were damaged, or made to harm: each is refused by name, in bounded
memory, and nothing is written."""

import json
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import shardvar as sv
from shardvar.cli.main import main
from shardvar.errors import CheckpointError, ShardvarError, UnsupportedError
from spec_tests.helpers.damage import flip
from spec_tests.helpers.plain_dialects import (
    checksum,
    encoded,
    raw,
    read_safetensors,
    safetensors_bytes,
    slime_delta,
    trl_delta,
)

zstandard: Any = pytest.importorskip("zstandard")

BF16 = ml_dtypes.bfloat16
A = {"w": np.arange(4000).astype(BF16), "v": np.ones(9, BF16)}
B = {"w": (np.arange(4000) * 2 + 1).astype(BF16), "v": np.ones(9, BF16)}
NUM = A["w"].nbytes


def packed(content: bytes, **options: Any) -> bytes:
    """Return a frame of zstd."""
    return bytes(zstandard.ZstdCompressor(level=1, **options).compress(content))


NAME = "model-00000-of-00001.safetensors"
Changes = Callable[[dict[str, Any], dict[str, str]], object]


def index(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Write a delta of slime whose index is changed."""
    delta = slime_delta(folder / "d", A, B)
    path = delta / "model.safetensors.index.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return delta


def with_text(folder: Path, name: str, value: str | None) -> Path:
    """Write a delta of slime that has another text in its index, or lacks one."""
    texts = {} if value is None else {name: value}
    return index(folder, lambda each: (each["metadata"].pop(name), each["metadata"].update(texts)))


def shard(folder: Path, change: Changes, **more: str) -> Path:
    """Write a delta of slime whose shard is changed."""
    delta = slime_delta(folder / "d", A, B, **more)
    tensors, sums = read_safetensors(delta / NAME)
    frames: dict[str, Any] = {
        key: np.frombuffer(each[2], np.uint8) for key, each in tensors.items()
    }
    change(frames, sums)
    (delta / NAME).write_bytes(safetensors_bytes(frames, sums))
    return delta


def slime(folder: Path, frame: bytes, encoding: str = "xor") -> Path:
    """Write a delta of slime with this frame for w."""
    array = np.frombuffer(frame, np.uint8)
    return shard(
        folder, lambda frames, _: (frames.clear(), frames.update(w=array)), encoding=encoding
    )


def trl(folder: Path, tensors: dict[str, Any], **metadata: str) -> Path:
    """Write a delta of TRL with these tensors."""
    form = "idx" if any(key.endswith(".idx") for key in tensors) else "indices"
    path = trl_delta(folder / "d.safetensors", A, B, form=form, metadata=metadata)
    _, texts = read_safetensors(path)
    names = [key.removesuffix(".indices") for key in tensors if key.endswith(".indices")]
    if "changed_params" not in metadata and form == "indices":
        texts["changed_params"] = json.dumps(names)
    path.write_bytes(safetensors_bytes(tensors, texts))
    return path


def put(count: int, places: list[int], values: bytes) -> bytes:
    """Return the content of an overwrite."""
    return struct.pack(f"<I{len(places)}I", count, *places) + values


GOOD = encoded("xor", raw(A["w"]), raw(B["w"]))
VALUES = np.ones(2, BF16)
INT32, UINT16 = np.int32, np.uint16

UNSAID: dict[str, Any] = {"write_content_size": False}
FRAMES: dict[str, tuple[bytes, str]] = {
    "no frame": (b"", "does not begin as a frame"),
    "zlib": (zlib.compress(GOOD), "does not begin as a frame"),
    "cut": (packed(GOOD)[:-1], "is cut"),
    "cut in half": (packed(GOOD)[: len(packed(GOOD)) // 2], "is cut"),
    "trailing": (packed(GOOD) + b"\0", "1 bytes follow the frame"),
    "two frames": (packed(GOOD) * 2, "bytes follow the frame"),
    "short": (packed(GOOD[:-2]), f"mask has {NUM - 2} bytes"),
    "long": (packed(GOOD + b"\0"), f"mask has {NUM + 1} bytes"),
    "short, unsaid": (packed(GOOD[:-2], **UNSAID), "2 bytes fewer than are due"),
    "long, unsaid": (packed(GOOD + b"\0", **UNSAID), "more bytes than are due"),
    "bomb": (packed(bytes(1 << 30)), f"mask has {1 << 30} bytes"),
    "bomb, unsaid": (packed(bytes(1 << 28), **UNSAID), "more bytes than are due"),
    "window": (b"\x28\xb5\x2f\xfd\x00" + bytes([31 << 3]) + b"\x01\x00\x00", "needs a window"),
    "dictionary": (b"\x28\xb5\x2f\xfd\x21\x07\x02\x01\x00\x00", "needs a dictionary"),
    "reserved block": (b"\x28\xb5\x2f\xfd\x20\x00\x07\x00\x00", "no known kind"),
    "flipped": (
        packed(GOOD[:50] + bytes([GOOD[50] ^ 1]) + GOOD[51:]),
        "does not have the checksum",
    ),
}
OVERWRITES: dict[str, tuple[bytes, str]] = {
    "outside": (put(2, [5, NUM], b"ab"), f"position {NUM} lies outside"),
    "far outside": (put(1, [2**32 - 1], b"a"), "lies outside"),
    "descending": (put(2, [6, 5], b"ab"), "position 5 follows 6"),
    "twice": (put(2, [6, 6], b"ab"), "6 follows 6"),
    "count": (put(2**32 - 1, [6], b"a"), "fewer than are due"),
    "few values": (put(2, [5, 6], b"a"), "fewer than are due"),
    "many values": (put(2, [5, 6], b"abc"), "more bytes than are due"),
    "no count": (b"ab", "fewer than are due"),
}
TEXTS: dict[str, tuple[str, str | None, str]] = {
    "encoding": ("delta_encoding", "xor2", "delta_encoding is 'xor2'"),
    "compression": ("compression_format", "lz4", "compression_format is 'lz4'"),
    "checksum kind": ("checksum_format", "crc32", "checksum_format is 'crc32'"),
    "no checksum kind": ("checksum_format", None, "checksum_format is missing"),
    "no base": ("base_version", None, "no base_version"),
}
"""By name: a text of the index, its value or None if it is missing, and the words of the error."""
Made = tuple[Callable[[Path], Path], str]

SLIME: dict[str, Made] = {
    "dotdot": (lambda at: index(at, lambda each: each["weight_map"].update(w="../x.safetensors")),
               "is not a safetensors file next to it"),
    "another file": (
        lambda at: index(at, lambda each: each["weight_map"].update(w="model-00001-of-00002.safetensors")),
        "model-00001-of-00002"),
    "unnamed tensor": (lambda at: shard(at, lambda tensors, sums: tensors.update(v=tensors["w"])),
                       "which the index does not name"),
    "no such tensor": (lambda at: index(at, lambda each: each["weight_map"].update(v=each["weight_map"]["w"])),
                       "does not hold it"),
    "no checksum": (lambda at: shard(at, lambda tensors, sums: sums.clear()), "Its checksum ''"),
    "short checksum": (lambda at: shard(at, lambda tensors, sums: sums.update(w=sums["w"][:-1])),
                       "is not one of adler32"),
    "another checksum": (lambda at: shard(at, lambda tensors, sums: sums.update(w="0" * 8)),
                         "does not have the checksum"),
    "another dtype": (lambda at: shard(at, lambda tensors, sums: tensors.update(w=np.ones(3, np.float32))),
                      "and not a frame"),
    "frame checksum": (
        lambda at: shard(at, lambda tensors, sums: sums.update(w=checksum("adler32", b"other")),
                         checksum_scope="compressed_delta"), "frame has another checksum"),
}  # fmt: skip


Patch = tuple[dict[str, Any], dict[str, str], str]
"""The tensors and the texts of a delta of TRL, and the words of its error."""


def at(places: Any, dtype: Any = INT32, values: Any = VALUES, key: str = "w") -> dict[str, Any]:
    return {f"{key}.indices": np.array(places, dtype), f"{key}.values": values}


def gaps(steps: Any) -> dict[str, Any]:
    return {"w.idx": steps, "w.val": VALUES}


TRL: dict[str, Patch] = {
    "outside": (at([1, 4000]), {}, "4000 lies outside of a tensor of 4000"),
    "negative": (at([-1, 3]), {}, "A position is -1"),
    "descending": (at([3, 1]), {}, "position 1 follows 3"),
    "twice": (at([3, 3]), {}, "position 3 follows 3"),
    "lengths": (at([3]), {}, "1 positions and 2 values"),
    "shape": (at([[1, 1]]), {}, "has the shape"),
    "position dtype": (at([1, 3], np.int64), {}, "Its positions are int64"),
    "value dtype": (at([1, 3], values=np.ones(2, np.float16)), {}, "Its values are float16"),
    "no values": ({"w.indices": np.array([1], INT32)}, {}, "no 'w.values'"),
    "no positions": ({"w.values": VALUES, "v.indices": np.array([1], INT32)}, {}, "not 'w.indices'"),
    "a stranger": (at([1, 2]) | {"b": VALUES}, {}, "There is 'b'"),
    "names": (at([1, 2]), {"changed_params": '["v"]'}, "disagree about 'v'"),
    "no list": (at([1, 2]), {"changed_params": "7"}, "not a list of names"),
    "unknown name": (at([1, 2], key="u"), {}, "it lacks 'u'"),
    "version": (at([1, 2]), {"version": "2"}, "is '2'; version 1 is read"),
    "step": (at([1, 2]), {"model_version": "x"}, "model_version is 'x'"),
    "checksum": (at([1, 2]), {"checksum_sha256": "0" * 64}, "does not have the checksum"),
    "gap outside": (gaps(np.array([3990, 9], UINT16)), {}, "4000 lies outside"),
    "wide gaps": (gaps(np.full(2, 2**32 - 1, np.uint32)), {}, "lies outside"),
    "gap dtype": (gaps(np.array([1, 3], INT32)), {}, "Its positions are int32"),
    "a vendor's library": (
        gaps(np.array([1, 3], UINT16)), {"encoding": "nvcomp_cascaded"}, "encoding 'nvcomp_cascaded'"
    ),
}  # fmt: skip
ALL: dict[str, Made] = {f"slime, {name}": each for name, each in SLIME.items()}
ALL |= {
    f"slime, {name}": (lambda at, frame=frame: slime(at, frame), words) for name, (frame, words) in FRAMES.items()
}  # fmt: skip
ALL |= {
    f"slime, {name}": (lambda at, put=put: slime(at, packed(put), "overwrite"), words)
    for name, (put, words) in OVERWRITES.items()
}
ALL |= {
    f"slime, {name}": (lambda at, text=text, value=value: with_text(at, text, value), words)
    for name, (text, value, words) in TEXTS.items()
}
ALL |= {
    f"trl, {name}": (lambda at, tensors=tensors, texts=texts: trl(at, tensors, **texts), words)
    for name, (tensors, texts, words) in TRL.items()
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, to which a delta was applied once: what is imported for that is no memory of a case."""
    path = tmp_path_factory.mktemp("base") / "a"
    sv.save(path, A)
    sv.apply(path, slime_delta(path.parent / "warm", A, B), path.parent / "warmed")
    return path


@pytest.mark.parametrize("name", ALL)
def test_a_wrong_delta_is_refused_by_name(name: str, base: Path, tmp_path: Path) -> None:
    """And verify finds what shows without the base, and claims no more."""
    make, words = ALL[name]
    path = make(tmp_path)
    tracemalloc.start()
    with pytest.raises(ShardvarError) as caught:
        sv.apply(base, path, tmp_path / "out")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert words in caught.value.cause, caught.value.cause
    assert caught.value.remedy
    assert isinstance(caught.value, CheckpointError | UnsupportedError) or "lacks" in words
    assert not [*tmp_path.glob("out*")]
    assert peak < 40_000_000
    report = sv.verify(path)
    if name in NEEDS_THE_BASE:
        assert not report.damages and report.verdict != "ok"
        return
    told = [*(each.message for each in report.damages), *report.notes]
    assert any(words in each for each in told), told
    assert report.damages or any("cannot be applied by this release" in each for each in told)


NEEDS_THE_BASE = {
    *(f"slime, {name}" for name in ("short", "long", "short, unsaid", "long, unsaid", "bomb", "bomb, unsaid")),
    *(f"slime, {name}" for name in ("flipped", "outside", "far outside", "another checksum")),
    *(f"trl, {name}" for name in ("outside", "unknown name", "checksum", "gap outside", "wide gaps")),
}  # fmt: skip


def test_every_flipped_byte_of_a_delta_is_found(base: Path, tmp_path: Path) -> None:
    """With a checksum of the result, no flipped byte makes another one."""
    delta, out = slime_delta(tmp_path / "d", A, B), tmp_path / "out.safetensors"
    random, size = np.random.default_rng(0), (delta / NAME).stat().st_size
    for at in random.choice(size, 60, replace=False).tolist():
        flip(delta / NAME, at, 16)
        try:
            sv.apply(base, delta, out, force=True)
            assert {key: each.tobytes() for key, each in sv.load(out).items()} == {
                key: each.tobytes() for key, each in B.items()
            }, at
        except ShardvarError:
            pass
        flip(delta / NAME, at, 16)


ESCAPES = "\x1b]0;PWNED\x07\x1b[2J\n\u202e\u200b" + "9" * 3000


@pytest.mark.parametrize(
    "field", ["version", "compression_format", "base_version", "delta_encoding"]
)
def test_no_command_prints_control_characters_of_a_file(
    field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SECURITY.md: "contain no control characters, text direction marks or invisible characters of a
    file"."""
    texts = {"delta_encoding": "xor", "version": "1", "base_version": "0", field: ESCAPES}
    path = tmp_path / "d.safetensors"
    path.write_bytes(safetensors_bytes({"w": np.zeros(3, np.uint8)}, texts))
    sets = {"metadata": {"total_size": 3, **texts}, "weight_map": {"w": path.name}}
    index = tmp_path / "d.safetensors.index.json"
    index.write_text(json.dumps(sets))
    for given in (path, index):
        commands = [
            ["inspect"],
            ["inspect", "--json"],
            ["verify"],
            ["digest"],
            ["show"],
            ["show", "w"],
        ]
        for words in (*commands, ["view", "-o", str(tmp_path / "page.html")]):
            main([words[0], str(given), *words[1:]])
            printed = "".join(capsys.readouterr())
            bad = [each for each in printed if each != "\n" and not each.isprintable()]
            assert (words, bad) == (words, [])
            assert max(map(len, printed.splitlines()), default=0) < 5000
    assert "PWNED\x07" not in (tmp_path / "page.html").read_text(encoding="utf-8")
