"""The settings of transfers are in one value, that a program or the environment gives."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.records import fields, replace
from shardvar.storage import settings
from shardvar.storage.objects import ObjectClient
from shardvar.storage.remote import RemoteStorage
from shardvar.storage.requests import Fault, Pace, pause_of_header
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket
from spec_tests.helpers.paths import DOCS

DEFAULT = sv.StorageOptions()
NAMES = [each.name for each in fields(sv.StorageOptions)]


def test_settings_hold_within_a_block_and_are_restored() -> None:
    before = settings.current()
    mine = sv.StorageOptions(requests=7, short_requests=9, in_flight_nbytes=48 << 20)
    storage = RemoteStorage(MemoryBucket(), "run")
    with sv.use_storage_options(mine):
        assert settings.current() == mine
        traits = storage.traits
        assert (traits.requests, traits.short_requests) == (7, 9)
        assert traits.in_flight_nbytes == 48 << 20
        with sv.use_storage_options(DEFAULT):
            assert storage.traits.requests == 64
        assert settings.current() == mine
    assert settings.current() == before


def test_patience_and_pauses_are_those_of_the_settings() -> None:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    def ask(kind: str) -> float:
        pace, clock[0] = Pace(clock=lambda: clock[0], sleep=sleep, spread=lambda: 1.0), 0.0
        pace._has_answered = True

        def fail(_: int) -> None:
            clock[0] += 0.01
            raise OSError

        with pytest.raises(OSError):
            pace.ask(fail, lambda _: Fault(kind))  # type: ignore[arg-type]
        return clock[0]

    with sv.use_storage_options(sv.StorageOptions(patience_seconds=24.0, broken_seconds=6.0)):
        assert 24 <= ask("refused") <= 33 and 6 <= ask("broken") <= 15
        assert pause_of_header("100") == 22
    assert ask("refused") >= 120 and 30 <= ask("broken") <= 39


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-1, 0, "8", None, True, float("nan"), 1 << 62])
def test_a_value_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ArgumentError, match=name):
        sv.StorageOptions(**{name: value})


def test_uploads_do_not_wait_for_memory_that_they_never_get() -> None:
    with pytest.raises(ArgumentError, match="in_flight_nbytes"):
        sv.StorageOptions(part_nbytes=64 << 20, parts_ahead=2)
    assert sv.StorageOptions(part_nbytes=64 << 20, parts_ahead=1).upload_nbytes == 64 << 20


def test_what_is_no_settings_is_refused_and_changes_none() -> None:
    before = settings.current()
    for wrong in (3, {"requests": 3}, False):
        with pytest.raises(ArgumentTypeError, match="is not a StorageOptions"):
            sv.use_storage_options(wrong)  # type: ignore[arg-type]
    assert settings.current() is before


@given(st.data())
def test_the_environment_sets_every_field(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    texts = {"part_nbytes": ["6MiB", "8 MB", "6000000"], "in_flight_nbytes": ["1GiB", "99MB"]}
    text = data.draw(st.sampled_from(texts.get(name, ["3", "90"])))
    numbers = {"6MiB": 6 << 20, "8 MB": 8_000_000, "1GiB": 1 << 30, "99MB": 99_000_000}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(f"SHARDVAR_{name.upper()}", text)
        if name == "parts_ahead" and text == "90":
            patch.setenv("SHARDVAR_IN_FLIGHT_NBYTES", "2GiB")
        with sv.use_storage_options():
            assert getattr(settings.current(), name) == (numbers.get(text) or float(text))


@pytest.mark.parametrize("text", ["", "x", "1KB", "-1", "5TiB", "0x9", "1e9", "8MiB "])
@pytest.mark.parametrize("name", NAMES)
def test_a_bad_variable_is_one_error_that_names_it(name: str, text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(f"SHARDVAR_{name.upper()}", text)
        with pytest.raises(ArgumentError) as caught:
            sv.use_storage_options()
        assert f"SHARDVAR_{name.upper()}={text!r}" in caught.value.cause


def test_a_bad_variable_ends_a_command_with_its_name() -> None:
    environment = os.environ | {"SHARDVAR_REQUESTS": "many"}
    code = "from shardvar.storage.remote import RemoteStorage; RemoteStorage(None, '').traits"
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert "SHARDVAR_REQUESTS='many' is not a whole number from 1 to 1,024." in ended.stderr


def test_a_worker_takes_the_settings_over_with_the_storage() -> None:
    mine = sv.StorageOptions(requests=5)
    with sv.use_storage_options(mine):
        sent = pickle.dumps(RemoteStorage(ObjectClient("s3://bucket"), "run"))
    with sv.use_storage_options(DEFAULT):
        received = pickle.loads(sent)
        assert received.client.root == "s3://bucket" and received.traits.requests == 5


def test_parts_and_requests_of_a_save_follow_the_settings() -> None:
    bucket, tensors = MemoryBucket(), {"w": np.arange(99.0)}
    with in_bucket(bucket), sv.use_storage_options(replace(DEFAULT, requests=1, short_requests=1)):
        report = sv.save("s3://b/run/m", tensors)
        more = replace(DEFAULT, in_flight_nbytes=99 << 20)
        with sv.use_storage_options(more):
            assert sv.save("s3://b/run/n", tensors).peak_nbytes - report.peak_nbytes == 35 << 20
        assert np.array_equal(sv.load("s3://b/run/m")["w"], tensors["w"])


def test_the_page_has_every_setting_and_its_default() -> None:
    page = (DOCS / "howto" / "checkpoints-in-a-bucket.md").read_text()
    for each in fields(sv.StorageOptions):
        value = getattr(DEFAULT, each.name)
        shown = f"{value >> 20} MiB" if each.name.endswith("_nbytes") else f"{value:g}"
        shown += " s" if each.name.endswith("_seconds") else ""
        assert f"| `{each.name}` | {shown} |" in page, each.name
