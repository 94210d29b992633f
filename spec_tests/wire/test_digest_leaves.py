"""Digests of tensors from parts of their data, and the text that lists digests."""

import json
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import MalformedCheckpoint, UnsupportedError
from shardvar.wire import digests
from shardvar.wire.digests import (
    DIGESTS,
    CarriedDigests,
    LeafHashes,
    check_digests_fit,
    decode_digests,
    digest_of_all,
    encode_digests,
    take_digests,
    with_digests,
)


def plain(key: str, dtype: str, shape: tuple[int, ...], data: bytes, leaf: int = 2**20) -> str:
    """The definition of docs/digest.md, with leaves of any size."""
    leaves = [sha256(data[at : at + leaf]).digest() for at in range(0, len(data), leaf)]
    head = f"shardvar digest 1\n{dtype}\n{','.join(map(str, shape))}\n{len(key.encode())}\n"
    return sha256(head.encode() + key.encode() + b"".join(leaves)).hexdigest()


@pytest.fixture
def small_leaves(monkeypatch: pytest.MonkeyPatch) -> int:
    """Leaves of 16 bytes, so that small tensors have many."""
    monkeypatch.setattr(digests, "LEAF_NBYTES", 16)
    return 16


@pytest.mark.parametrize("nbytes", [0, 1, 2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20 + 5])
def test_the_digest_of_all_leaves_is_the_one_of_the_definition(nbytes: int) -> None:
    data = bytes(np.arange(nbytes, dtype=np.uint32).astype(np.uint8))
    leaves = LeafHashes(nbytes)
    leaves.add("uint8", 0, memoryview(data))
    assert leaves.digest("k", "uint8", (nbytes,)) == plain("k", "uint8", (nbytes,), data)


@given(st.data())
def test_leaves_of_any_ranges_are_those_of_the_definition(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "LEAF_NBYTES", 16)
        octets = data.draw(st.binary(max_size=200))
        known, covered = LeafHashes(len(octets)), set[int]()
        whole = {
            leaf: (leaf * 16, min(leaf * 16 + 16, len(octets)))
            for leaf in range(-(-len(octets) // 16))
        }
        for _ in range(data.draw(st.integers(0, 6))):
            start = data.draw(st.integers(0, len(octets)))
            stop = data.draw(st.integers(start, len(octets)))
            known.add("uint8", start, memoryview(octets)[start:stop])
            covered |= {n for n, (a, b) in whole.items() if start <= a and b <= stop}
        assert {*known.known()} == covered
        assert {*known.missing()} == whole.keys() - covered
        assert [known.bounds(leaf) for leaf in whole] == list(whole.values())
        if known.num_missing:
            with pytest.raises(ValueError, match="missing"):
                known.digest("k", "uint8", (len(octets),))
        for start, stop in map(known.bounds, list(known.missing())):
            known.add("uint8", start, memoryview(octets)[start:stop])
        assert known.digest("k", "uint8", (len(octets),)) == plain(
            "k", "uint8", (len(octets),), octets, 16
        )


@given(st.data())
def test_a_region_has_the_leaves_that_lie_wholly_in_it(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "LEAF_NBYTES", 8)
        shape = tuple(data.draw(st.lists(st.integers(0, 5), max_size=3)))
        offset = tuple(data.draw(st.integers(0, extent)) for extent in shape)
        extent = tuple(
            data.draw(st.integers(0, full - first))
            for full, first in zip(shape, offset, strict=True)
        )
        array = np.arange(prod(shape), dtype=np.uint16).reshape(shape)
        index = tuple(slice(o, o + e) for o, e in zip(offset, extent, strict=True))
        part = np.ascontiguousarray(array[index])
        known = LeafHashes(array.nbytes)
        known.add_region("uint16", shape, offset, extent, memoryview(part.tobytes()))
        # The bytes of the region, one by one.
        is_here = np.zeros(shape, bool)
        is_here[index] = True
        here = np.repeat(is_here.reshape(-1), 2)
        octets = array.tobytes()
        wanted = {
            at // 8: sha256(octets[at : at + 8]).digest()
            for at in range(0, len(octets), 8)
            if here[at : at + 8].all()
        }
        found = known.known()
        assert found.items() <= wanted.items()
        # Nothing is left out where the region is one range of the data.
        places = np.flatnonzero(here)
        if len(places) and places[-1] - places[0] + 1 == len(places):
            assert found == wanted


def test_bits_that_an_element_does_not_use_do_not_count(small_leaves: int) -> None:
    one, other = LeafHashes(20), LeafHashes(20)
    one.add("int4", 0, memoryview(b"\xff" * 20))
    other.add("int4", 0, memoryview(b"\x0f" * 20))
    assert one.known() == other.known() and len(one.known()) == -(-20 // small_leaves)


def test_a_leaf_that_changes_is_noticed() -> None:
    known = LeafHashes(4)
    assert known.put(0, b"a" * 32) and known.put(0, b"a" * 32)
    assert not known.put(0, b"b" * 32) and known.known() == {0: b"a" * 32}


keys = st.text(st.characters(codec="utf-8") | st.sampled_from("\udc80\udcff"), max_size=12)
values = st.binary(min_size=32, max_size=32).map(bytes.hex)


@given(st.dictionaries(keys, values, max_size=5), st.data())
def test_a_text_of_digests_gives_them_back_and_a_lost_line_is_found(
    tensors: dict[str, str], data: st.DataObject
) -> None:
    text = encode_digests(tensors)
    assert text.isascii() and decode_digests(text, "it") == (tensors, {})
    assert dict(CarriedDigests(text)) == tensors
    lines = text.splitlines(keepends=True)
    number = data.draw(st.integers(0, len(lines) - 1))
    text = "".join(lines[:number] + lines[number + 1 :])
    with pytest.raises(MalformedCheckpoint):
        dict(CarriedDigests(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not begin with"),
        ("hello", "does not begin with"),
        ("# shardvar digest 2\n", "of version 2"),
        ("# shardvar digest 1", "ends within a line"),
        ("# shardvar digest 1\nhello\n", "line 2 of no kind"),
        ("# shardvar digest 1\n", "does not match"),
    ],
)
def test_a_text_of_another_kind_is_one_error_when_it_is_used(text: str, message: str) -> None:
    carried = CarriedDigests(text)
    for use in (len, dict, bool, lambda each: "k" in each):
        with pytest.raises(MalformedCheckpoint, match=message):
            use(carried)
    assert json.dumps(text)[1:-1] not in repr(carried) or not text


def test_the_digest_of_all_does_not_depend_on_the_order() -> None:
    tensors: dict[str, Any] = {"a": "0" * 64, "b": "f" * 64}
    assert digest_of_all(tensors) == digest_of_all(dict(reversed(tensors.items())))


def test_digests_in_the_metadata_are_taken_from_them_and_fit_or_do_not() -> None:
    digests = {"a": "0" * 64, "é": "1" * 64}
    texts = with_digests({"user": "x"}, digests)
    nbytes = len(texts[DIGESTS])
    carried = take_digests(texts)
    assert texts == {"user": "x"} and dict(carried) == digests and len(carried) == 2
    assert (
        "a" in carried
        and "b" not in carried
        and repr(carried) == f"CarriedDigests({nbytes} characters)"
    )
    check_digests_fit(digests, nbytes)
    with pytest.raises(UnsupportedError) as caught:
        check_digests_fit(digests, nbytes - 1)
    assert caught.value.cause == (
        f"The digests of 2 tensors have {nbytes} bytes, and the metadata have room for {nbytes - 1}."
    )


MD5, SHA = "0123456789abcdef" * 2, "AB" * 32


@pytest.mark.parametrize(
    ("text", "sums"),
    [
        (f"{MD5}  a b\n{SHA} *c\n", [("md5", MD5, "a b"), ("sha256", SHA.lower(), "c")]),
        (f"{MD5}\r\n\n# text\n{MD5[:-1]} short\n{MD5}  -", [("md5", MD5, ""), ("md5", MD5, "")]),
        (f"MD5 (a) = {MD5}\nSHA2-256(b)={SHA}\nSHA256 (c) = {SHA}",
         [("md5", MD5, "a"), ("sha256", SHA.lower(), "b"), ("sha256", SHA.lower(), "c")]),
        (f"\\{MD5}  a\\nb\\\\c\\r\n{MD5}  a\\nb\n\\MD5 (x\\\\) = {MD5}",
         [("md5", MD5, "a\nb\\c\r"), ("md5", MD5, "a\\nb"), ("md5", MD5, "x\\")]),
        (f"md5:{MD5}\nsha256-{SHA}\tq", [("md5", MD5, ""), ("sha256", SHA.lower(), "q")]),
        (f"{'0' * 34}  a\n{'1' * 40} b\n{'2' * 128} c", [("sha1", "1" * 40, "b"), ("sha512", "2" * 128, "c")]),
    ],
)  # fmt: skip
def test_lines_of_sums_are_read_in_every_way_of_writing(text: str, sums: list[Any]) -> None:
    for octets in (
        text.encode(),
        b"\xef\xbb\xbf" + text.encode(),
        b"\xff\xfe" + text.encode("utf-16-le"),
    ):
        assert digests.decode_sums(octets) == sums


def test_a_manifest_is_known_by_its_first_line() -> None:
    assert digests.is_digests(encode_digests({}).encode()) and not digests.is_digests(
        b"shardvar diges"
    )
    for head, words in (
        (f"{digests.HEAD}\r", "end in CR LF"),
        (digests.HEAD[:-1] + "7", "of version 7"),
        ("x", "begin with"),
    ):
        assert words in digests.not_digests("It", head).cause
    assert [digests.word_nbytes(size) for size in (0, 1, 2, 8, 16)] == [1, 1, 2, 8, 8]
