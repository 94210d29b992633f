"""What a file is by its first bytes: the kinds that people mistake for checkpoints, and nothing of
any other file."""

import io
import pickle
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.wire.block_file import INDEX_HEADER
from shardvar.wire.damage import SNIFF_NBYTES, foreign_archive, is_known_archive, kind_of

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 497\n"


def tar() -> bytes:
    octets = io.BytesIO()
    with tarfile.open(fileobj=octets, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model.safetensors"))
    return octets.getvalue()


KINDS = {
    "a Git LFS pointer": POINTER,
    "a web page": b"\n  <!DOCTYPE html>\n<html>",
    "a web page ": b"<HTML><body>404",
    "a web page  ": b"\xef\xbb\xbf<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>",
    "a tar archive": tar(),
    "compressed by gzip": b"\x1f\x8b\x08" + bytes(20),
    "compressed by Zstandard": b"\x28\xb5\x2f\xfd" + bytes(20),
    "a zip archive": b"PK\x03\x04" + bytes(26),
    "an HDF5 file": b"\x89HDF\r\n\x1a\n" + bytes(20),
    "a safetensors file": b'\x58\1\0\0\0\0\0\0{"w":{"dtype":"F32"',
    "a safetensors file ": b'\x80\2\0\0\0\0\0\0{"w":{"dtype":"F32"',  # a pickle begins so, too
    "an index of shardvar": INDEX_HEADER + bytes(20),
    "an ONNX model": b"\x08\x07\x12\x07pytorch\x1a\x052.1.0\x3a\x10" + bytes(16),
    "an ONNX model ": b"\x08\x0a\x3a\xf0\x01" + bytes(16),
    "a TensorFlow graph": b"\x0a\x20\x0a\x05input\x12\x0bPlaceholder" + bytes(30),
    "the graph of a SavedModel": b"\x08\x01\x12\x80\x01" + bytes(30),
    "a TensorFlow Lite model": b"\x1c\0\0\0TFL3" + bytes(30),
    "filled with zeros": bytes(100),
    "a JSON text": b'{"model_type": "llama"}',
    "a text": b"Repository not found\n",
}


@pytest.mark.parametrize("what", KINDS)
def test_a_kind_is_told_by_its_first_bytes(what: str) -> None:
    kind = kind_of(KINDS[what][:SNIFF_NBYTES])
    assert kind is not None and kind.what.startswith(what.strip()) and kind.remedy.endswith(".")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", [{"a": [1, 2]}, [1.5], {}, {"w": np.zeros(3)}], ids=str)
def test_a_pickle_is_a_pickle_in_every_protocol(protocol: int, value: object) -> None:
    kind = kind_of(pickle.dumps(value, protocol)[:SNIFF_NBYTES])
    assert kind is not None and "pickle" in kind.what


@pytest.mark.parametrize("name", ["a Git LFS pointer", "a web page", "filled with zeros"])
def test_a_file_that_lost_its_content_is_told_from_one_of_another_program(name: str) -> None:
    assert kind_of(KINDS[name]).is_lost and not kind_of(KINDS["an ONNX model"]).is_lost  # type: ignore[union-attr]


@given(st.binary(max_size=SNIFF_NBYTES))
def test_any_bytes_are_of_a_kind_or_of_none(first: bytes) -> None:
    kind = kind_of(first)
    assert kind is None or (kind.what and kind.remedy)


def test_no_bytes_and_bytes_without_a_pattern_are_of_no_kind() -> None:
    assert kind_of(b"") is None
    assert kind_of(bytes(range(7, 256)) + bytes(range(7))) is None


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_text_stays_one_where_its_last_character_is_cut(cut: int) -> None:
    kind = kind_of(("Nicht gefunden: " + "ü😀" * 100).encode()[: 100 + cut])
    assert kind is not None and kind.what == "a text"


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], "a zip archive without members"),
        (["a", "b", "c"], "a zip archive around 'a', 'b', 'c'"),
        (["a" * 101, "b", "c", "d"], f"a zip archive around '{'a' * 100}', 'b', 'c', ..."),
        (["x", "m/data.pkl"], "an archive of torch.save"),
        (["model.weights.h5", "x"], "an archive of Keras"),
        (["mydata.pkl"], "a zip archive around 'mydata.pkl'"),
    ],
)  # fmt: skip
def test_an_archive_is_told_by_its_members(names: list[str], words: str) -> None:
    assert foreign_archive("it", names).cause == f"The file is {words}, not it."
    assert is_known_archive(names) == words.startswith("an archive")
