"""Keys that not all processes of a training job have: a process may lack them when it loads."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import ArgumentError, CheckpointError
from shardvar.planning.index import SOME_PROCESSES, Metadata
from shardvar.verbs.together.run import SaveOptions, find_run, keys_of_some, without_keys_of_some
from shardvar.verbs.together.shares import save_with_objects
from shardvar.verbs.training.states import unmatched_keys
from spec_tests.helpers.thoroughness import EXHAUSTIVE

KEYS = st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=3).map(".".join)
"""Keys of up to three steps; one may be a beginning of another."""


@given(keys=st.lists(st.sets(KEYS), min_size=1, max_size=4))
def test_exactly_the_keys_that_a_process_lacked_may_be_lacking(keys: list[set[str]]) -> None:
    every, common = set.union(*keys), set.intersection(*keys)
    assert {*without_keys_of_some(every, keys_of_some(keys))} == common


@settings(max_examples=200 if EXHAUSTIVE else 20)
@given(keys=st.lists(st.sets(KEYS, min_size=1), min_size=1, max_size=3), data=st.data())
@pytest.mark.parametrize("form", ["shardvar", "torch"])
def test_a_process_that_loads_may_lack_what_only_some_had(
    form: str,
    keys: list[set[str]],
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Of the keys that several processes have, the first process writes the values."""
    path = tmp_path_factory.mktemp("job") / "ck"
    owner: dict[str, int] = {}
    for process, held in enumerate(keys):
        owner |= {key: process for key in held if key not in owner}
    for process, held in enumerate(keys):
        tensors = {
            f"w.{key}": [sv.LocalShard(np.ones(2), (0,), (2,))] if owner[key] == process else []
            for key in held
        }
        is_last = process == len(keys) - 1
        options = SaveOptions(commit=is_last, timeout=5, is_state=True)
        saved = find_run(path, "1", len(keys), form, options=options)
        save_with_objects(saved, process, tensors, Metadata())
    every, common = ({f"w.{key}" for key in each(*keys)} for each in (set.union, set.intersection))
    mine = data.draw(st.sets(st.sampled_from(sorted(every))))
    with sv.open_checkpoint(path) as reader:
        assert (SOME_PROCESSES in reader.metadata.user) is (every != common)
        for count in (1, 2):
            if mine >= (every if count == 1 else common):
                report = unmatched_keys(reader, mine, True, count=count)
                assert {*report.unexpected} == every - mine and report.missing == ()
            else:
                with pytest.raises(ArgumentError, match="he state lacks"):
                    unmatched_keys(reader, mine, True, count=count)
            loose = unmatched_keys(reader, mine, False, count=count)
            assert {*loose.unexpected} == every - mine
        with pytest.raises(ArgumentError, match="ck lacks 'other'"):
            unmatched_keys(reader, {*every, "other"}, True, count=2)


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"keys": []}', '{"keys": [[]], "beginnings": []}', "[" * 9]
)
def test_a_text_that_names_no_keys_is_refused(text: str, tmp_path: Path) -> None:
    sv.save(tmp_path / "ck", {"w": np.ones(2)}, metadata={SOME_PROCESSES: text})
    with (
        sv.open_checkpoint(tmp_path / "ck") as reader,
        pytest.raises(CheckpointError, match="ck"),
    ):
        unmatched_keys(reader, (), True, count=2)
