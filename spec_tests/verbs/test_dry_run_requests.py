"""A dry run counts the requests of the run, of each kind as many or more, and makes none that changes
something."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.planning.policies import BalancedPolicy
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.memory_bucket import CountingBucket, Dead, in_bucket
from spec_tests.verbs.test_bucket_requests import AddOne

__all__ = ["run"]  # a fixture

URL = "s3://bucket/run"
ENDINGS = {
    "shardvar": "", "tensorflow": "", "safetensors": ".safetensors", "set": ".safetensors.index.json",
    "torch": "", "pt": ".pt", "npz": ".npz", "zarr": "", "orbax": "", "orbax-plain": "",
}  # fmt: skip
"""The formats that are written into a bucket, and the endings of their names."""
SETS = {"shardvar", "tensorflow", "set", "torch"}
EXACT = {"shardvar", "tensorflow"}
"""The formats whose index brings no payload along."""


def model(*, with_strings: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    tensors: dict[str, Any] = {
        f"layer.{number}.weight": rng.random((40, 30), np.float32) for number in range(6)
    }
    tensors |= {"table": rng.random((600, 500), np.float32), "mask": np.arange(9) > 4}
    return tensors | ({"names": np.array([b"a", b"bcd"], object)} if with_strings else {})


MODEL = model(with_strings=True)
CHANGED = {**MODEL, "table": MODEL["table"] + (np.arange(500) == 7), "new": np.arange(9.0)}
NUMBERS = model()


def options_of(form: str) -> dict[str, Any]:
    policy = {"policy": sv.MaxShardSizePolicy(1 << 19)} if form in SETS else {}
    return {"format": "safetensors" if form == "set" else form, **policy}


@pytest.fixture
def bucket() -> Iterator[CountingBucket]:
    with in_bucket(made := CountingBucket()):
        yield made


def check(
    bucket: CountingBucket, act: Callable[[bool], Any], *, is_exact: bool = False
) -> tuple[Any, dict[str, int]]:
    """Compare the requests of a run with those that its dry run has told; return both."""
    files, log = dict(bucket.files), [*bucket.log]
    dry = act(True)
    assert bucket.files == files and bucket.log == log
    bucket.counts.clear()
    act(False)
    made = dict(bucket.counts)
    few = {kind: (dry.requests.get(kind, 0), number) for kind, number in made.items()}
    assert all(told >= number for told, number in few.values()), few
    assert not is_exact or {k: n for k, n in dry.requests.items() if n} == made
    return dry, made


@pytest.mark.parametrize("target", ENDINGS)
def test_a_target_of_each_format(bucket: CountingBucket, target: str) -> None:
    """Where folders are looked at again before a write, a listing more is told."""
    sv.save(f"{URL}/a", NUMBERS)
    place = f"{URL}/out/m{ENDINGS[target]}"
    dry, made = check(
        bucket, lambda dry: sv.reshard(f"{URL}/a", place, dry_run=dry, **options_of(target))
    )
    extra = sum(dry.requests.values()) - sum(made.values())
    assert extra <= (target in ("zarr", "orbax", "orbax-plain"))
    assert "decode" not in dry.requests


@pytest.mark.parametrize("source", ENDINGS)
@pytest.mark.parametrize("is_local", [False, True])
def test_a_source_of_each_format(
    bucket: CountingBucket, source: str, is_local: bool, tmp_path: Path
) -> None:
    place = f"{URL}/in/m{ENDINGS[source]}"
    sv.save(place, NUMBERS, **options_of(source))
    target = str(tmp_path / "out") if is_local else f"{URL}/out"
    act = lambda dry: sv.reshard(place, target, dry_run=dry)  # noqa: E731
    dry, _ = check(bucket, act, is_exact=source in EXACT)
    assert "decode" not in dry.requests


CHANGES: dict[str, dict[str, Any]] = {
    "cast": {"cast": "float16"},
    "transpose": {"transpose": "table"},
    "rows": {"partition": {"table": (3, 2)}},
    "columns": {"partition": {"table": (1, 8)}},
    "files": {"policy": BalancedPolicy(3)},
    "map": {"map": ["layer.{n}.weight[o i] -> all[n o i]", "rest {x:**} -> {x}"]},
    "filter": {"filter": "layer.*"},
    "digest": {"digest": True, "exclude": "names"},
    "rescue": {"keep_going": True},
    "callback": {"policy": AddOne(), "exclude": "names"},
    "quantize": {"quantize": "int8", "exclude": "names", "format": "safetensors"},
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_of_the_tensors(bucket: CountingBucket, name: str) -> None:
    sv.save(f"{URL}/a", MODEL)
    check(bucket, lambda dry: sv.reshard(f"{URL}/a", f"{URL}/t", dry_run=dry, **CHANGES[name]))


@pytest.mark.parametrize("form", ["shardvar", "tensorflow", "safetensors", "set", "zarr", "orbax"])
def test_a_checkpoint_that_is_replaced(bucket: CountingBucket, form: str) -> None:
    target = f"{URL}/t/m{ENDINGS[form]}"
    sv.save(f"{URL}/a", NUMBERS)
    sv.save(target, NUMBERS, **options_of(form))
    check(
        bucket,
        lambda dry: sv.reshard(f"{URL}/a", target, force=True, dry_run=dry, **options_of(form)),
    )


def test_carried_digests_are_compared_by_a_read_of_all(bucket: CountingBucket) -> None:
    sv.save(f"{URL}/a", NUMBERS)
    sv.reshard(f"{URL}/a", f"{URL}/b.safetensors", digest=True)
    dry, _ = check(bucket, lambda dry: sv.reshard(f"{URL}/b.safetensors", f"{URL}/c", dry_run=dry))
    plain = sv.reshard(f"{URL}/b.safetensors", f"{URL}/c.pt", dry_run=True)
    assert dry.requests["get"] > plain.requests["get"]


def test_several_sources(bucket: CountingBucket, tmp_path: Path) -> None:
    """Also of which some are on the disk."""
    sv.save(f"{URL}/a", NUMBERS)
    sv.save(tmp_path / "b", {"other": np.arange(10)})
    sources = [f"{URL}/a", tmp_path / "b"]
    check(bucket, lambda dry: sv.reshard(sources, f"{URL}/union", dry_run=dry))
    sv.save(f"{URL}/b", NUMBERS)
    sources = [f"{URL}/a", f"{URL}/b"]
    check(
        bucket,
        lambda dry: sv.reshard(
            sources, f"{URL}/twice", concat={"*": 0}, exclude="mask", dry_run=dry
        ),
    )


def test_a_file_in_parts(bucket: CountingBucket, tmp_path: Path) -> None:
    sv.save(tmp_path / "a", {"w": np.zeros(40 << 20, np.uint8)})
    act = lambda dry: sv.reshard(  # noqa: E731
        tmp_path / "a", f"{URL}/t", format="tensorflow", dry_run=dry
    )
    dry, _ = check(bucket, act, is_exact=True)
    assert dry.requests["part"] == 5
    assert ", 5 PART, " in str(dry)


def test_deltas(bucket: CountingBucket) -> None:
    """Of these values are compared; a base is not read before it is written."""
    a, b, c = (f"{URL}/{name}" for name in "abc")
    sv.save(a, MODEL), sv.save(b, CHANGED), sv.save(c, MODEL)
    check(bucket, lambda dry: sv.delta(a, b, f"{URL}/d", dry_run=dry))
    sv.delta(b, c, f"{URL}/e")
    check(bucket, lambda dry: sv.compact_deltas([f"{URL}/d", f"{URL}/e"], f"{URL}/f", dry_run=dry))
    bucket.counts.clear()
    check(bucket, lambda dry: sv.apply(a, f"{URL}/d", f"{URL}/new", dry_run=dry))


def test_the_checkpoints_of_ranks(bucket: CountingBucket) -> None:
    sv.save(f"{URL}/a", {"w": np.arange(64.0).reshape(8, 8)})
    rules = ["w[(r o) i] -> {r}/w[o i]"]
    check(
        bucket,
        lambda dry: sv.reshard(
            f"{URL}/a",
            f"{URL}/rank_{{rank}}.safetensors",
            map=sv.Map(rules, sizes={"r": 4}),
            dry_run=dry,
        ),
    )


@pytest.mark.parametrize("is_local", [False, True])
def test_models_with_files_next_to_them(
    bucket: CountingBucket, is_local: bool, tmp_path: Path
) -> None:
    """A folder of Hugging Face, and a pipeline of two."""
    names = ("unet/model.safetensors", "text_encoder/model.safetensors")
    for name in names:
        sv.save(f"{URL}/sd/{name}", {"w": np.ones(9, np.float32)})
    for name in ("model_index.json", "unet/config.json", "text_encoder/config.json"):
        bucket.files[f"run/sd/{name}"] = b'{"dtype": "float32"}'
    out = str(tmp_path) if is_local else URL
    for source, target in (("sd/unet", "one"), ("sd", "all")):
        check(bucket, lambda dry: sv.reshard(f"{URL}/{source}", f"{out}/{target}", dry_run=dry))  # noqa: B023


def test_a_run_that_goes_on_where_another_was_killed(bucket: CountingBucket) -> None:
    """The finished files are read, and all are counted as if they were written once more."""
    sv.save(f"{URL}/a", NUMBERS)
    act = lambda dry: sv.reshard(  # noqa: E731
        f"{URL}/a", f"{URL}/t", policy=BalancedPolicy(4), dry_run=dry
    )
    bucket.error, bucket.fail_at = Dead, len(bucket.log) + 5
    with pytest.raises(Dead):
        act(False)
    bucket.fail_at, bucket.is_dead = None, False
    assert any(name.endswith(".done") for name in bucket.files)
    check(bucket, act)
    assert sv.verify(f"{URL}/t").ok


def test_tensors_that_are_decoded_may_take_more(bucket: CountingBucket, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "z.npz", **NUMBERS)
    bucket.files["run/z.npz"] = (tmp_path / "z.npz").read_bytes()
    dry = sv.reshard(f"{URL}/z.npz", f"{URL}/t", dry_run=True)
    assert dry.requests["decode"] and "each DECODE may take several GET" in str(dry)


def test_what_a_callback_saves_in_a_dry_run_is_saved(bucket: CountingBucket) -> None:
    class Saves(AddOne):
        def __call__(self, tensors: Any) -> Any:
            sv.save(f"{URL}/notes", {"count": np.arange(3)})
            return super().__call__(tensors)

    sv.save(f"{URL}/a", NUMBERS)
    sv.reshard(f"{URL}/a", f"{URL}/t", policy=Saves(), dry_run=True)
    assert sv.load(f"{URL}/notes")["count"].tolist() == [0, 1, 2]


def test_nothing_is_told_where_nothing_is_in_a_bucket(tmp_path: Path) -> None:
    sv.save(tmp_path / "a", NUMBERS)
    dry = sv.reshard(tmp_path / "a", tmp_path / "b", dry_run=True)
    assert dry.requests == {} and "requests" not in str(dry)
    assert sv.reshard(tmp_path / "a", tmp_path / "b").requests == {}


@given(
    shapes=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 3000)), min_size=1, max_size=8),
    source=st.sampled_from([*ENDINGS]),
    target=st.sampled_from([*ENDINGS]),
    cut=st.sampled_from([None, 2, 3]),
)
def test_any_formats_and_sizes(
    shapes: list[tuple[int, int]], source: str, target: str, cut: int | None
) -> None:
    tensors = {f"t{number}": np.ones(shape, np.float32) for number, shape in enumerate(shapes)}
    if source == "set":  # of two files at least
        tensors |= {name: np.ones(1 << 17, np.float32) for name in ("x", "y")}
    options = options_of(target) | ({"partition": cut} if cut and target == "shardvar" else {})
    a, b = f"{URL}/a/m{ENDINGS[source]}", f"{URL}/b/m{ENDINGS[target]}"
    with in_bucket(bucket := CountingBucket()):
        sv.save(a, tensors, **options_of(source))
        check(bucket, lambda dry: sv.reshard(a, b, dry_run=dry, **options))


def test_commands_tell_the_requests_with_their_own(bucket: CountingBucket, run: Run) -> None:
    (
        sv.save(f"{URL}/a", MODEL),
        sv.save(f"{URL}/b", CHANGED),
        sv.delta(f"{URL}/a", f"{URL}/b", f"{URL}/d"),
    )
    for words in (
        ("reshard", f"{URL}/a", f"{URL}/t"),
        ("apply", f"{URL}/a", f"{URL}/d", f"{URL}/c"),
        ("delta", f"{URL}/a", f"{URL}/b", f"{URL}/e"),
    ):
        text = run(*words, "--dry-run").out
        told = json.loads(run(*words, "--dry-run", "--json").out)
        assert "requests, at most: " in text and f"{told['requests']['get']:,} GET" in text
        assert text.count("not counted: requests that are made again") == 1
        bucket.counts.clear()
        assert run(*words).code == 0
        assert all(
            told["requests"].get(kind, 0) >= number for kind, number in bucket.counts.items()
        )
