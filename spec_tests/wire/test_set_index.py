"""The index of a set of files: what is accepted, what is refused, and that what is written is
read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import InvalidCheckpoint, MalformedCheckpoint
from shardvar.formats.sets import build_set_index, read_set_index
from shardvar.limits import MAX_HEADER_NBYTES
from spec_tests.helpers.octets import reads_of

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_JSON = st.recursive(
    st.none() | st.integers() | _TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(_TEXT, inner),
    max_leaves=6,
)


def _read(text: bytes):
    return read_set_index(reads_of(text), len(text))


@given(
    st.dictionaries(_TEXT, _TEXT.filter(lambda name: not name.startswith("./")), min_size=1),
    st.dictionaries(_TEXT, _JSON),
)
def test_what_is_written_is_read(weight_map, metadata):
    found = _read(build_set_index(weight_map, metadata))
    assert (found.weight_map, found.metadata) == (weight_map, metadata)


@pytest.mark.parametrize(
    ("index", "error"),
    [
        ([], MalformedCheckpoint),
        ({}, InvalidCheckpoint),
        ({"weight_map": []}, InvalidCheckpoint),
        ({"weight_map": {"a": 1}}, InvalidCheckpoint),
        ({"weight_map": {"a": None}}, InvalidCheckpoint),
        ({"weight_map": {}}, InvalidCheckpoint),
        ({"weight_map": {"a": "f"}, "metadata": []}, InvalidCheckpoint),
        ({"weight_map": {"k" * 70_000: "f"}}, InvalidCheckpoint),
    ],
)
def test_an_index_of_another_form_is_refused(index, error):
    with pytest.raises(error):
        _read(json.dumps(index).encode())


def test_an_index_beyond_the_limit_is_refused_before_it_is_read():
    with pytest.raises(MalformedCheckpoint):
        read_set_index(lambda start, nbytes: pytest.fail("it was read"), MAX_HEADER_NBYTES + 1)
