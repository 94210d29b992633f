"""A kill at any call of ``delta`` and ``apply`` loses nothing: the old checkpoint or the new one stands,
a delta that is there is whole, and the next run finds the way free."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.engine.pool import in_this_thread
from shardvar.errors import ArgumentError, ShardvarError, TargetExists
from shardvar.storage import local
from shardvar.verbs import locate
from shardvar.verbs.delta import publication
from shardvar.verbs.delta.contents import ApplyReport
from spec_tests.crash.test_crash import nothing, steps
from spec_tests.helpers.faulty_storage import Fault, Killed, failing
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket
from spec_tests.helpers.system_calls import Disk
from spec_tests.helpers.thoroughness import EXHAUSTIVE, phase, stride

A = {"w": np.arange(4000).astype(ml_dtypes.bfloat16), "v": np.ones(9, ml_dtypes.bfloat16)}
B = {"w": (np.arange(4000) % 7).astype(ml_dtypes.bfloat16), "v": np.ones(9, ml_dtypes.bfloat16)}
SOME = 60 if EXHAUSTIVE else 12
DIALECTS = {"own": None, "slime": "slime", "trl": "trl"}


@pytest.fixture(autouse=True)
def met_as_any_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delta of another program meets the fault as any target does."""

    def split_place(path: Any) -> Any:
        return locate.split_place(path)

    monkeypatch.setattr(publication, "split_place", split_place)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both checkpoints, and a delta of each kind."""
    folder = tmp_path_factory.mktemp("made")
    sv.save(folder / "a", A)
    sv.save(folder / "b", B)
    for name in DIALECTS:
        if name != "slime":
            publish(folder, folder, name)
    return folder


def publish(source: Path, directory: Path, name: str, **options: Any) -> Path:
    """Write the delta of a kind into a directory; one of slime is the directory."""
    path = {"own": directory / "own", "slime": directory, "trl": directory / "d.safetensors"}[name]
    if DIALECTS[name]:
        options |= {"dialect": DIALECTS[name], "versions": ("1", "2")}
    sv.delta(source / "a", source / "b", path, **options)
    return path


def makes(base: Path, delta: Path, target: Path) -> bool | None:
    """Return True if a delta makes the new checkpoint; None if it is refused."""
    try:
        sv.apply(base, delta, target, force=True)
    except ShardvarError:
        return None
    return is_one(target, B)


def is_one(path: Path | str, tensors: dict[str, Any]) -> bool:
    found = sv.load(path)
    return {k: v.tobytes() for k, v in found.items()} == {
        k: v.tobytes() for k, v in tensors.items()
    }


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("name", DIALECTS)
def test_a_delta_that_is_killed_is_whole_or_none(
    name: str, replaced: bool, made: Path, tmp_path: Path
) -> None:
    if name == "slime":
        pytest.importorskip("zstandard")
        pytest.importorskip("xxhash")
    run: Callable[[Path], Any] = lambda at: publish(made, at, name, force=replaced)  # noqa: E731
    prepare = (lambda at: publish(made, at, name)) if replaced else nothing
    path = {"own": "own", "slime": ".", "trl": "d.safetensors"}[name]
    seen = set()
    for directory, fault in steps(tmp_path, run, prepare, Killed, every=3):
        before = makes(made / "a", directory / path, tmp_path / "out")
        assert before is not False and (before or not replaced), fault.log
        seen.add(before)
        with failing(directory, Fault(-1)):
            publish(made, directory, name, force=True)
        assert makes(made / "a", directory / path, tmp_path / "out"), fault.log
        assert not [each for each in directory.rglob("*") if each.name.endswith(".tmp")], fault.log
    assert True in seen or not EXHAUSTIVE


FORMATS = {"shardvar": "ck", "safetensors": "ck.safetensors", "torch": "ck", "zarr": "ck"}
FORMATS |= {"orbax": "ck", "tensorflow": "ck"}
CHAINS = ("own", "chain", "slime", "trl")


@pytest.fixture(scope="module")
def chains(made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """The deltas from the one checkpoint to the other, of each kind."""
    folder = tmp_path_factory.mktemp("chains")
    sv.save(folder / "between", A | {"w": B["w"][::-1].copy()})
    sv.delta(made / "a", folder / "between", folder / "first")
    sv.delta(folder / "between", made / "b", folder / "second")
    found = {"own": [made / "own"], "trl": [made / "d.safetensors"]}
    return found | {"chain": [folder / "first", folder / "second"]}


def deltas_of(name: str, made: Path, chains: dict[str, list[Path]], tmp_path: Path) -> list[Path]:
    if name == "slime":
        pytest.importorskip("zstandard")
        pytest.importorskip("xxhash")
        return [publish(made, tmp_path / "v2", name)]
    return chains[name]


def says_already(report: ApplyReport) -> bool:
    """Return True if a report says that nothing was written, since the result was there."""
    assert report.already == ("is already the result of" in report.notes[0])
    assert not report.already or (report.nbytes, report.num_files) == (0, 0)
    return report.already


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("form", "name"),
    [*product(("shardvar", "safetensors"), CHAINS), *product([*FORMATS][2:], ["own"])],
)
def test_an_apply_in_place_that_is_killed_is_given_again(
    form: str, name: str, made: Path, chains: dict[str, list[Path]], tmp_path: Path
) -> None:
    deltas = deltas_of(name, made, chains, tmp_path)
    file = FORMATS[form]

    def run(directory: Path) -> ApplyReport:
        return sv.apply(directory / file, deltas, directory / file, force=True)

    sv.save(tmp_path / "old" / file, A, format=form)
    shutil.copytree(tmp_path / "old", tmp_path / "clean")
    run(tmp_path / "clean")
    seen, place, at = set(), tmp_path / "run", phase(7)
    while True:
        shutil.copytree(tmp_path / "old", place)
        disk = Disk(str(place), at, Killed, lambda nbytes: nbytes // 2, after=bool(at % 2))
        with suppress(Killed), disk.meeting(), in_this_thread():
            run(place)
        local._close_inherited()  # as the end of the process does
        if disk.taken <= at:
            break
        is_old = is_one(place / file, A)
        assert is_old or is_one(place / file, B), disk.log
        report = run(place)
        assert is_one(place / file, B), disk.log
        assert ("already the result of" in report.notes[0]) == (not is_old), disk.log
        assert says_already(run(place)), disk.log
        # Nothing is left of either run.
        assert len([*place.rglob("*")]) == len([*(tmp_path / "clean").rglob("*")]), disk.log
        seen.add(is_old)
        shutil.rmtree(place)
        at += stride(7)
    assert seen == {True, False} or (seen and not EXHAUSTIVE)


@pytest.mark.parametrize("form", ["shardvar", "safetensors", "torch"])
@pytest.mark.parametrize("name", CHAINS)
def test_an_apply_in_a_bucket_whose_answer_is_lost_is_given_again(
    form: str, name: str, made: Path, chains: dict[str, list[Path]], tmp_path: Path
) -> None:
    deltas, target = deltas_of(name, made, chains, tmp_path), f"s3://bucket/run/{FORMATS[form]}"
    for at in range(phase(3), 100, stride(3)):
        bucket = MemoryBucket()
        with in_bucket(bucket):
            sv.save(target, A, format=form)
            bucket.log.clear()
            bucket.fail_at, bucket.takes_effect = at, True
            with suppress(ShardvarError):
                sv.apply(target, deltas, target, force=True)
            if len(bucket.log) <= at:
                assert at
                return
            bucket.fail_at = None
            is_new = is_one(target, B)
            report = sv.apply(target, deltas, target, force=True)
            assert is_one(target, B) and says_already(report) == is_new, (at, bucket.log)


@pytest.mark.sample(5)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", CHAINS)
def test_an_apply_to_another_target_is_given_again(
    form: str, name: str, made: Path, chains: dict[str, list[Path]], tmp_path: Path
) -> None:
    """Only a target that is the result is left as it is; another one is in the way."""
    deltas = deltas_of(name, made, chains, tmp_path)
    target = tmp_path / FORMATS[form]
    assert not says_already(sv.apply(made / "a", deltas, target, format=form))
    before = {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")}
    assert says_already(sv.apply(made / "a", deltas, target, format=form))
    assert {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")} == before
    assert not says_already(sv.apply(made / "a", deltas, target, format=form, force=True))
    for other in (A, B | {"v": A["v"] * 2}, B | {"more": A["v"]}):
        sv.save(target, other, format=form, force=True)
        with pytest.raises(TargetExists):
            sv.apply(made / "a", deltas, target, format=form)
        assert is_one(target, other)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=6), st.data())
@settings(deadline=None, max_examples=SOME)
def test_a_chain_goes_on_where_its_base_is(
    tmp_path_factory: pytest.TempPathFactory, values: list[int], data: st.DataObject
) -> None:
    """Versions may come again, and a foreign base is refused."""
    path = tmp_path_factory.mktemp("p")
    versions = [{"w": np.full(90, each, np.int16), "v": np.ones(3)} for each in values]
    for number, tensors in enumerate(versions):
        sv.save(path / f"v{number}", tensors, metadata={"step": str(number)})
        if number:
            sv.delta(path / f"v{number - 1}", path / f"v{number}", path / f"d{number}")
    deltas = [path / f"d{number}" for number in range(1, len(versions))]
    at = data.draw(st.integers(0, len(versions) - 1))
    sv.reshard(path / f"v{at}", path / "ck")
    assert not sv.apply(path / "ck", deltas, path / "ck", force=True).already or at == len(deltas)
    with sv.open_checkpoint(path / "ck") as reader:
        assert reader.metadata.user["step"] == str(len(deltas))
    assert is_one(path / "ck", versions[-1])
    sv.save(path / "ck", {"w": np.full(90, 7, np.int16), "v": np.ones(3)})
    with pytest.raises(ArgumentError, match="is not the base"):
        sv.apply(path / "ck", deltas, path / "ck", force=True)
    # A base that is not the target is what the first delta was made of.
    if values[0] != values[1]:
        with pytest.raises(ArgumentError, match="is not the base"):
            sv.apply(path / "v1", deltas, path / "new")
