"""A dry run refuses what the run would refuse, with the same error, and changes nothing."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.engine.files import file_tasks
from shardvar.errors import (
    ArgumentError,
    LockHeld,
    ShardvarError,
    StorageError,
    TargetExists,
    UnsupportedError,
)
from shardvar.planning.policies import BalancedPolicy
from shardvar.storage.local import LocalStorage
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.memory_bucket import CountingBucket, Dead, in_bucket
from spec_tests.verbs.test_bucket_requests import AddOne

__all__ = ["run"]  # a fixture


def saved(directory: Path, tensors: Any = None) -> Path:
    sv.save(
        directory / "source", {"a": np.ones((4, 2), np.float32)} if tensors is None else tensors
    )
    return directory / "source"


def everything(directory: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


def refused(act: Callable[[], object]) -> ShardvarError | None:
    try:
        act()
    except ShardvarError as error:
        return error
    return None


def assert_refused_alike(
    source: Path, target: Path, kind: type[ShardvarError], root: Path, **options: Any
) -> None:
    """The dry run and the run raise the same; the dry run leaves everything as it is."""
    before = everything(root)
    dry = refused(lambda: sv.reshard(source, target, dry_run=True, **options))
    assert everything(root) == before
    run = refused(lambda: sv.reshard(source, target, **options))
    assert type(dry) is type(run) and isinstance(dry, kind), (dry, run)
    assert dry.cause == run.cause or kind is StorageError
    assert dry.remedy


INDEXES = {
    "shardvar": "t.svindex",
    "tensorflow": "t.index",
    "safetensors": "t/model.safetensors",
    "npz": "t.npz",
}
REFUSED: list[tuple[str, str, type[ShardvarError], dict[str, Any]]] = [
    ("/abs", "t.npz", UnsupportedError, {}),
    ("a/../b", "t.npz", UnsupportedError, {}),
    ("", "t", UnsupportedError, {"format": "tensorflow"}),
    ("_CHECKPOINTABLE\udcff", "t", UnsupportedError, {"format": "safetensors"}),
    ("__metadata__", "t", UnsupportedError, {"format": "safetensors"}),
    ("a", "t.npz", UnsupportedError, {"cast": {"a": "bfloat16"}}),
    ("a", "file/t", StorageError, {}),
    ("a", "file/deeper/t", StorageError, {}),
    ("a", "d" * 300 + "/t", StorageError, {}),
    ("a", "/".join(["d" * 200] * 30) + "/t", StorageError, {}),
    *[("a", "/proc/x/t", StorageError, {}) for _ in range(os.path.isdir("/proc/self"))],
    *[("a", f"old {form}/t", TargetExists, {"format": form}) for form in INDEXES],
    *[("a", f"no {form}/t", StorageError, {"format": form}) for form in INDEXES],
]
"""The key of the source, the target, the error of both runs, and options. A folder "old" has a
checkpoint of the format, and a folder "no" has a folder in the place of its index."""


@pytest.mark.parametrize(("key", "target", "kind", "options"), REFUSED)
def test_what_the_run_refuses_the_dry_run_refuses(
    key: str, target: str, kind: type[ShardvarError], options: dict[str, Any], tmp_path: Path
) -> None:
    source = saved(tmp_path, {key: np.ones(3)})
    (tmp_path / "file").write_bytes(b"x")
    for form, index in INDEXES.items():
        sv.save(tmp_path / f"old {form}" / "t", {"b": np.ones(3)}, format=form)
        (tmp_path / f"no {form}" / index).mkdir(parents=True)
    assert_refused_alike(source, tmp_path / target, kind, tmp_path, **options)
    if kind is TargetExists:
        assert sv.reshard(source, tmp_path / target, force=True, dry_run=True, **options).dry_run


def test_a_directory_of_the_name_without_ending_is_no_hindrance(tmp_path: Path) -> None:
    source = saved(tmp_path)
    (tmp_path / "t").mkdir()
    for name in ("t.safetensors", "t.npz"):
        assert sv.reshard(source, tmp_path / name, dry_run=True).dry_run
        assert sv.reshard(source, tmp_path / name).num_tensors == 1


@pytest.mark.parametrize("form", INDEXES)
def test_a_name_that_is_too_long_with_its_endings(form: str, tmp_path: Path) -> None:
    """Whatever the length, the dry run says what the run says."""
    source = saved(tmp_path)
    for length in (200, 215, 225, 230, 235, 240, 245, 250, 255):
        target = tmp_path / ("t" * length)
        dry = refused(lambda target=target: sv.reshard(source, target, format=form, dry_run=True))
        run = refused(lambda target=target: sv.reshard(source, target, format=form))
        assert type(dry) is type(run), (length, dry, run)
        assert dry is None or isinstance(dry, ArgumentError)


def test_a_directory_that_may_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For root, by an answer of the system in its place: root may write anywhere."""
    source = saved(tmp_path)
    (tmp_path / "sealed").mkdir()
    os.chmod(tmp_path / "sealed", 0o500)
    if os.geteuid() == 0:
        monkeypatch.setattr("shardvar.storage.local.os.access", lambda *_args, **_options: False)
        monkeypatch.setattr("shardvar.storage.local.os.supports_effective_ids", set())
    before = everything(tmp_path)
    for target in (tmp_path / "sealed" / "t", tmp_path / "sealed" / "new" / "t"):
        with pytest.raises(StorageError, match="permission"):
            sv.reshard(source, target, dry_run=True)
    assert everything(tmp_path) == before
    os.chmod(tmp_path / "sealed", 0o700)


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, tensors in ((31, None), (0, None), (0, {}), (0, {"e": np.zeros((0, 2))})):
        directory = tmp_path / f"{free}-{len(tensors or ())}-{tensors is None}"
        directory.mkdir()
        source = saved(directory, tensors)
        with monkeypatch.context() as patched:
            patched.setattr(LocalStorage, "free_nbytes", lambda _self, free=free: free)
            assert_refused_alike(source, directory / "t", StorageError, directory)


def test_a_target_that_another_writer_holds(tmp_path: Path) -> None:
    source = saved(tmp_path)
    with LocalStorage(str(tmp_path)).lock("t"):
        assert_refused_alike(source, tmp_path / "t", LockHeld, tmp_path)
    # What a killed writer left is no hindrance.
    (tmp_path / ".t.lock").write_bytes(b"")
    assert sv.reshard(source, tmp_path / "t", dry_run=True).dry_run
    assert (tmp_path / ".t.lock").exists()


def test_a_lost_file_of_the_source(tmp_path: Path) -> None:
    source = saved(tmp_path)
    next(tmp_path.glob("source.svdata*")).unlink()
    assert_refused_alike(source, tmp_path / "t", ShardvarError, tmp_path)


def test_no_task_is_made_of_what_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan of many files is made several times as fast as the tasks of its files."""
    source = saved(tmp_path)
    made = Mock(wraps=file_tasks)
    monkeypatch.setattr("shardvar.verbs.writing.file_tasks", made)
    assert (
        sv.reshard(source, tmp_path / "target", policy=BalancedPolicy(4), dry_run=True).num_files
        == 4
    )
    assert made.call_count == 0
    assert (
        sv.reshard(source, tmp_path / "new folder" / "target", policy=BalancedPolicy(4)).num_files
        == 4
    )
    assert made.call_count == 1


# --- The requests of the run are told, of each kind as many or more


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


PAIRS = [(each, "shardvar") for each in ENDINGS] + [("shardvar", each) for each in ENDINGS]
REPLACED = ("shardvar", "tensorflow", "safetensors", "set", "zarr", "orbax")


@pytest.mark.parametrize(
    ("source", "target", "how"),
    [
        *((*pair, "new") for pair in PAIRS),
        *((each, "shardvar", "on a disk") for each in ENDINGS),
        *(("shardvar", each, "replaced") for each in REPLACED),
    ],
)
def test_each_format(
    bucket: CountingBucket, source: str, target: str, how: str, tmp_path: Path
) -> None:
    """Where folders are looked at again before a write, a listing more is told."""
    a, options = f"{URL}/a{ENDINGS[source]}", options_of(target)
    b = str(tmp_path / "b") if how == "on a disk" else f"{URL}/b/m{ENDINGS[target]}"
    is_plain = source == "shardvar" and how == "new"
    sv.save(a, NUMBERS, **({} if is_plain else options_of(source)))
    if how == "replaced":
        sv.save(b, NUMBERS, **options)
    act = lambda dry: sv.reshard(a, b, force=how == "replaced", dry_run=dry, **options)  # noqa: E731
    is_exact = how != "replaced" and source in EXACT and target == "shardvar"
    dry, made = check(bucket, act, is_exact=is_exact)
    if is_plain:
        extra = sum(dry.requests.values()) - sum(made.values())
        assert extra <= (target in ("zarr", "orbax", "orbax-plain"))
    assert "decode" not in dry.requests


Act = Callable[[bool], Any]


def resharded(*sources: str, to: str = "t", **options: Any) -> Act:
    """A reshard in the bucket, or a dry run of it."""
    places = [f"{URL}/{each}" for each in sources]
    return lambda dry: sv.reshard(places, f"{URL}/{to}", dry_run=dry, **options)


NUMBERED = {"exclude": "names"}
RANKS = sv.Map(["w[(r o) i] -> {r}/w[o i]"], sizes={"r": 4})
ACTS: dict[str, Act] = {
    "cast": resharded("m", cast="float16"),
    "transpose": resharded("m", transpose="table"),
    "rows": resharded("m", partition={"table": (3, 2)}),
    "columns": resharded("m", partition={"table": (1, 8)}),
    "files": resharded("m", policy=BalancedPolicy(3)),
    "map": resharded("m", map=["layer.{n}.weight[o i] -> all[n o i]", "rest {x:**} -> {x}"]),
    "filter": resharded("m", filter="layer.*"),
    "digest": resharded("m", digest=True, **NUMBERED),
    "rescue": resharded("m", keep_going=True),
    "callback": resharded("m", policy=AddOne(), **NUMBERED),
    "quantize": resharded("m", quantize="int8", format="safetensors", **NUMBERED),
    "ranks": resharded("w", to="rank_{rank}.safetensors", map=RANKS),
    "union": resharded("m", "w"),
    "concat": resharded("m", "twice", concat={"*": 0}, exclude=["mask", "names"]),
    "model": resharded("sd/unet"),
    "pipeline": resharded("sd"),
    "carried digests": resharded("digests.safetensors"),
    "delta": lambda dry: sv.delta(f"{URL}/m", f"{URL}/changed", f"{URL}/t", dry_run=dry),
    "compact": lambda dry: sv.compact_deltas([f"{URL}/d", f"{URL}/e"], f"{URL}/t", dry_run=dry),
    "apply": lambda dry: sv.apply(f"{URL}/m", f"{URL}/d", f"{URL}/t", dry_run=dry),
}


@pytest.fixture(scope="module")
def stage() -> dict[str, bytes]:
    """What the acts are of: models, one with its digests, a folder of Hugging Face and a pipeline."""
    with in_bucket(made := CountingBucket()):
        sv.save(f"{URL}/m", MODEL)
        sv.save(f"{URL}/twice", MODEL)
        sv.save(f"{URL}/changed", CHANGED)
        sv.save(f"{URL}/w", {"w": np.arange(64.0).reshape(8, 8)})
        sv.reshard(f"{URL}/m", f"{URL}/digests.safetensors", digest=True, **NUMBERED)
        sv.delta(f"{URL}/m", f"{URL}/changed", f"{URL}/d")
        sv.delta(f"{URL}/changed", f"{URL}/m", f"{URL}/e")
        for name in ("unet", "text_encoder"):
            sv.save(f"{URL}/sd/{name}/model.safetensors", {"w": np.ones(9, np.float32)})
            made.files[f"run/sd/{name}/config.json"] = b'{"dtype": "float32"}'
        made.files["run/sd/model_index.json"] = b'{"dtype": "float32"}'
    return made.files


@pytest.mark.parametrize("name", ACTS)
def test_each_act(bucket: CountingBucket, stage: dict[str, bytes], name: str) -> None:
    """Deltas: values are compared; a base is not read before it is written."""
    bucket.files |= stage
    dry, _ = check(bucket, ACTS[name])
    if name == "carried digests":  # all is read once more
        plain = sv.reshard(f"{URL}/{name.split()[1]}.safetensors", f"{URL}/c.pt", dry_run=True)
        assert dry.requests["get"] > plain.requests["get"]


@pytest.mark.parametrize("source", ["sd", "sd/unet", "w"])
def test_acts_that_are_on_the_disk_in_part(
    bucket: CountingBucket, stage: dict[str, bytes], source: str, tmp_path: Path
) -> None:
    bucket.files |= stage
    sv.save(tmp_path / "b", {"other": np.arange(10)})
    sources = [f"{URL}/{source}", *[str(tmp_path / "b")] * (source == "w")]
    target = f"{URL}/union" if source == "w" else str(tmp_path / "out")
    check(bucket, lambda dry: sv.reshard(sources, target, dry_run=dry))


def test_a_file_in_parts(bucket: CountingBucket, tmp_path: Path) -> None:
    sv.save(tmp_path / "a", {"w": np.zeros(40 << 20, np.uint8)})
    act = lambda dry: sv.reshard(  # noqa: E731
        tmp_path / "a", f"{URL}/t", format="tensorflow", dry_run=dry
    )
    dry, _ = check(bucket, act, is_exact=True)
    assert dry.requests["part"] == 5
    assert ", 5 PART, " in str(dry)


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
