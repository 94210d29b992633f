"""Several checkpoints that a map joins by their ranks, and several that it makes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    InconsistentTensor,
    MapError,
    ShardvarError,
    TargetExists,
)
from spec_tests.helpers.thoroughness import EXHAUSTIVE

FORMATS = ["shardvar", "tensorflow", "safetensors", "npz", "zarr", "torch", "pt"]
Arrays = dict[str, np.ndarray[Any, Any]]

JOIN = (
    "{rank}/layers.{l}.rows[v h] -> h.{l}.rows[(rank v) h]",
    "{rank}/layers.{l}.columns[o i] -> h.{l}.columns[o (rank i)]",
    "{rank}/layers.{l}.experts[e o] -> h.{l}.expert.{(rank e)}[o]",
    "{rank}/norm[h] @ rank=0 -> norm[h]",
    "{rank}/norm[h] @ rank=1: -> nothing",
)
SPLIT = (
    "h.{l}.rows[(rank v) h] -> {rank}/layers.{l}.rows[v h]",
    "h.{l}.columns[o (rank i)] -> {rank}/layers.{l}.columns[o i]",
    "h.{l}.expert.{(rank e)}[o] -> {rank}/layers.{l}.experts[e o]",
    "also norm[h] -> {rank}/norm[h]",
)


def ranks_of(count: int, layers: int, rows: int = 2) -> list[Arrays]:
    numbers = np.random.default_rng(count)
    norm = numbers.random(3, np.float32)
    return [
        {"norm": norm}
        | {
            f"layers.{number}.{name}": numbers.random((rows, 3), np.float32)
            for number in range(layers)
            for name in ("rows", "columns", "experts")
        }
        for _ in range(count)
    ]


def joined(ranks: list[Arrays]) -> Arrays:
    found: Arrays = {"norm": ranks[0]["norm"]}
    for key in ranks[0]:
        _, number, name = (*key.split("."), "", "")[:3]
        parts = [each[key] for each in ranks]
        if name == "experts":
            rows = np.concatenate(parts)
            found |= {f"h.{number}.expert.{row}": array for row, array in enumerate(rows)}
        elif name:
            found[f"h.{number}.{name}"] = np.concatenate(parts, axis=int(name == "columns"))
    return found


def same(found: Arrays, expected: Arrays) -> bool:
    return {key: (a.shape, a.tobytes()) for key, a in found.items()} == {
        key: (a.shape, np.ascontiguousarray(a).tobytes()) for key, a in expected.items()
    }


def saved(folder: Path, ranks: list[Arrays], form: str = "shardvar", cut: Any = None) -> list[Path]:
    paths = [folder / f"source-{number}" for number in range(len(ranks))]
    for path, arrays in zip(paths, ranks, strict=True):
        sv.save(path, arrays, format=form, partition=cut if form == "shardvar" else None)
    return paths


def told(kind: type[ShardvarError], call: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


@settings(max_examples=60 if EXHAUSTIVE else 12)
@given(
    st.integers(1, 4),
    st.integers(1, 2),
    st.sampled_from(FORMATS),
    st.sampled_from(FORMATS),
    st.integers(1, 2),
    st.booleans(),
)
@example(2, 1, "orbax", "npz", 1, False)
def test_ranks_and_one_and_ranks_are_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    layers: int,
    form: str,
    other: str,
    cut: int,
    are_sent: bool,
) -> None:
    folder, ranks = tmp_path_factory.mktemp("ranks"), ranks_of(count, layers)
    sources = saved(folder, ranks, form, cut)
    with ThreadPoolExecutor(1) as threads:
        executor = threads if are_sent else None
        sv.reshard(sources, folder / "one", format=other, map=JOIN, executor=executor)
        assert same(sv.load(folder / "one"), joined(ranks))
        split = sv.Map(SPLIT, sizes={"rank": count})
        report = sv.reshard(
            folder / "one", folder / "again-{rank:02}", format=form, map=split, executor=executor
        )
    for number, arrays in enumerate(ranks):
        assert same(sv.load(folder / f"again-0{number}"), arrays)
    assert report.num_tensors == sum(map(len, ranks)) and len(report.ranks) == count


def test_a_folder_has_the_checkpoint_of_each_rank(tmp_path: Path) -> None:
    """Under names that a later join takes for the numbers of ranks."""
    ranks = ranks_of(2, 1)
    sv.save(tmp_path / "one", joined(ranks))
    split = sv.Map(SPLIT, sizes={"rank": 2})
    options = {"map": split, "format": "safetensors"}
    planned = sv.reshard(tmp_path / "one", tmp_path / "out", dry_run=True, **options)
    assert not (tmp_path / "out").exists() and planned.dry_run and planned.map is not None
    written = sv.reshard(tmp_path / "one", tmp_path / "out", **options)
    paths = [str(tmp_path / "out" / f"rank_{number}.safetensors") for number in range(2)]
    assert sorted(map(str, (tmp_path / "out").iterdir())) == paths
    assert [each.nbytes for each in written.ranks] == [each.nbytes for each in planned.ranks]
    assert [each["nbytes"] for each in written.to_json()["ranks"]] == [
        sum(array.nbytes for array in each.values()) for each in ranks
    ]
    sv.reshard(paths, tmp_path / "back", map=JOIN)
    assert same(sv.load(tmp_path / "back"), joined(ranks))
    said = told(ArgumentError, lambda: sv.reshard([paths[1], paths[0]], tmp_path / "x", map=JOIN))
    assert "The numbers in the names are not in order: 1, 0." in said


def lacks(rank: int) -> Callable[[list[Arrays]], object]:
    return lambda ranks: ranks[rank].pop("layers.1.rows")


def copies(**others: Any) -> Callable[[list[Arrays]], object]:
    """Make the norm of the last rank another one."""
    return lambda ranks: ranks[2].update(others)


NORM = ranks_of(3, 2)[0]["norm"]
NEARLY = np.array([NORM[0], np.nextafter(NORM[1], np.float32(2)), NORM[2]])
A_COPY = "'2/norm' as a copy of '0/norm'"
UNFIT: list[tuple[Callable[[list[Arrays]], object], dict[str, Any], type[ShardvarError], list[str]]] = [
    *((lacks(rank), {}, MapError, ["'h.1.rows'", f"has rank = {rank}", "rule 1"]) for rank in range(3)),
    (copies(norm=NEARLY), {}, InconsistentTensor, ["Rule 5", A_COPY, "first at [1]"]),
    (copies(norm=np.zeros(4, np.float32)), {}, InconsistentTensor, [A_COPY, "dtype or shape"]),
    (copies(norm=np.zeros(3, np.float64)), {}, InconsistentTensor, [A_COPY, "dtype or shape"]),
    (copies(rope=np.arange(3)), {}, MapError, ["'2/rope' is matched by no rule"]),
    (copies(), {"map": sv.Map(JOIN, sizes={"rank": 4})}, MapError, ["The map has rank = 4, and there are 3 sources."]),
    (copies(), {"concat": {"*": 0}}, ArgumentError, ["Both the map, by ranks, and concat join the sources."]),
]  # fmt: skip
"""What is changed in three ranks, options, and what is said of both: also of the last rank, without
which the others would make a smaller tensor."""


@pytest.mark.parametrize(("change", "options", "kind", "words"), UNFIT)
def test_ranks_that_do_not_fit_are_refused(
    tmp_path: Path,
    change: Callable[[list[Arrays]], object],
    options: dict[str, Any],
    kind: type[ShardvarError],
    words: list[str],
) -> None:
    change(ranks := ranks_of(3, 2))
    sources, options = saved(tmp_path, ranks), {"map": JOIN} | options
    said = told(kind, lambda: sv.reshard(sources, tmp_path / "out", **options))
    assert all(each in said for each in words)
    assert not list(tmp_path.glob("out*"))


def test_two_indices_may_make_the_rank(tmp_path: Path) -> None:
    """Stages of a pipeline, each cut in two: layers are counted over the stages."""
    ranks = [{k: a for k, a in each.items() if "rows" in k} for each in ranks_of(4, 2)]
    for number, each in enumerate(ranks):
        each["norm"] = np.full(3, number // 2, np.float32)
    rules = [
        "{(stage tensor)}/layers.{l}.rows[v h] -> h.{(stage l)}[(tensor v) h]",
        "{(stage tensor)}/norm[h] @ tensor=0 -> norm.{stage}[h]",
        "{(stage tensor)}/norm[h] @ tensor=1: -> nothing",
    ]
    given_map, sources = sv.Map(rules, sizes={"tensor": 2}), saved(tmp_path, ranks)
    sv.reshard(sources, tmp_path / "out", map=given_map)
    expected = {f"norm.{stage}": ranks[2 * stage]["norm"] for stage in range(2)}
    for stage, layer in product(range(2), range(2)):
        parts = [each[f"layers.{layer}.rows"] for each in ranks[2 * stage :][:2]]
        expected[f"h.{2 * stage + layer}"] = np.concatenate(parts)
    assert same(sv.load(tmp_path / "out"), expected)
    # A copy is one of its own stage.
    sv.save(sources[3], {**ranks[3], "norm": ranks[0]["norm"]}, force=True)
    said = told(InconsistentTensor, lambda: sv.reshard(sources, tmp_path / "x", map=given_map))
    assert "'3/norm' as a copy of '2/norm'" in said


def test_copies_of_given_numbers_are_left_out_without_a_look(tmp_path: Path) -> None:
    copies(norm=NEARLY)(ranks := ranks_of(3, 1))
    rules = [*JOIN[:4], "1/norm -> nothing", "2/norm -> nothing"]
    sv.reshard(saved(tmp_path, ranks), tmp_path / "out", map=rules)
    assert np.array_equal(sv.load(tmp_path / "out")["norm"], ranks[0]["norm"])


def test_one_checkpoint_is_rank_0_unless_its_keys_have_numbers(tmp_path: Path) -> None:
    (rank,) = ranks_of(1, 2)
    sv.save(tmp_path / "rank", rank)
    assert same(sv.load(tmp_path / "rank", map=JOIN), joined([rank]))
    with sv.open_checkpoint(tmp_path / "rank") as reader:
        assert sv.Map(JOIN).check(reader).ok
    ranks = ranks_of(2, 2)
    every = {f"{number}/{key}": a for number, each in enumerate(ranks) for key, a in each.items()}
    sv.save(tmp_path / "every", every)
    assert same(sv.load(tmp_path / "every", map=JOIN), joined(ranks))
    split = sv.Map(SPLIT, sizes={"rank": 2})
    sv.save(tmp_path / "one", joined(ranks))
    assert same(sv.load(tmp_path / "one", map=split), every)
    assert sv.diff(tmp_path / "one", tmp_path / "every", map=split).num_equal == len(every)


def test_rules_may_give_the_numbers_of_all_sources(tmp_path: Path) -> None:
    """Also without an index in any key. Sources that are not all numbered are joined by their keys."""
    a, b = (np.arange(6, dtype=np.float32) + 10 * rank for rank in range(2))
    sv.save(tmp_path / "r0", {"w": a, "n": np.ones(2)})
    sv.save(tmp_path / "r1", {"w": b, "n": np.ones(2)})
    sources = [tmp_path / "r0", tmp_path / "r1"]
    rules = ["0/w[i] times 1/w[i] -> w[i]", "0/n[i] -> n[i]", "1/n[i] -> nothing"]
    sv.reshard(sources, tmp_path / "x", map=rules)
    assert np.array_equal(sv.load(tmp_path / "x")["w"], a * b)
    rules = ["1/w[i] -> v[i]", "0/w[i] -> w[i]", "0/n[i] -> n[i]", "1/n[i] -> m[i]"]
    sv.reshard(sources, tmp_path / "y", map=rules)
    found = sv.load(tmp_path / "y")
    assert np.array_equal(found["w"], a) and np.array_equal(found["v"], b)
    with pytest.raises(InconsistentTensor, match="different values of 'w'"):
        sv.reshard(sources, tmp_path / "z", map=["0/w[i] -> w[i]", "0/n[i] -> n[i]"])
    # One checkpoint of a list keeps its own keys.
    sv.save(tmp_path / "list", {"0/w": a, "1/w": b})
    sv.reshard(tmp_path / "list", tmp_path / "t", map=["0/w[i] -> p[i]", "1/w[i] -> q[i]"])
    assert sorted(sv.load(tmp_path / "t")) == ["p", "q"]


def test_globs_are_of_the_keys_of_the_sources(tmp_path: Path) -> None:
    ranks = ranks_of(2, 1)
    sources = saved(tmp_path, [{**each, "rope": np.arange(3)} for each in ranks])
    sv.reshard(sources, tmp_path / "out", map=JOIN, exclude="rope")
    assert same(sv.load(tmp_path / "out"), joined(ranks))
    sv.reshard(sources, tmp_path / "some", map=JOIN, filter=["*rows", "norm"])
    assert sorted(sv.load(tmp_path / "some")) == ["h.0.rows", "norm"]


@pytest.mark.parametrize(
    ("target", "rules", "said"),
    [
        (
            "out.safetensors",
            SPLIT,
            "is the path of one file, and the map makes one checkpoint a rank",
        ),
        ("out-{rank:x}", SPLIT, "has a {rank} that is not the place of a number"),
        ("out-{rank}", ["{x:**} -> {x:**}"], "no rule of the map makes keys '{rank}/...'"),
        ("out", [*SPLIT[:3], "norm -> norm"], "makes 'norm', which is in no checkpoint of a rank"),
        ("out", [*SPLIT[:3], "norm[h] -> {rank}/norm[h]"], "or write 'also' before the rule"),
        ("out", [*SPLIT[:3], "also norm[h] -> {n}/norm[h]"], "The size of n in"),
    ],
)
def test_a_wrong_target_is_refused(
    tmp_path: Path, target: str, rules: list[str], said: str
) -> None:
    sv.save(tmp_path / "one", joined(ranks_of(2, 1)))

    def reshard() -> object:
        given_map = sv.Map(rules, sizes={"rank": 2} if rules[0] == SPLIT[0] else None)
        return sv.reshard(tmp_path / "one", tmp_path / target, map=given_map)

    assert said in told(ShardvarError, reshard)
    assert not list(tmp_path.glob("out*"))


def test_a_rank_that_is_not_made_is_refused(tmp_path: Path) -> None:
    sv.save(tmp_path / "one", {"a": np.arange(3), "b": np.arange(2)})
    rules = ["a -> 0/a", "b[(r h)] -> {r + 2}/b[h]"]
    given_map = sv.Map(rules, sizes={"r": 2})
    said = told(MapError, lambda: sv.reshard(tmp_path / "one", tmp_path / "out", map=given_map))
    assert "makes no tensor of rank 1" in said


def test_files_of_meta_that_are_missing_are_named(tmp_path: Path) -> None:
    paths = [tmp_path / f"consolidated.0{number}.pth" for number in range(3)]
    for path, arrays in zip(paths, ranks_of(3, 1), strict=True):
        sv.save(path, arrays)
    said = told(ArgumentError, lambda: sv.reshard(paths[:2], tmp_path / "out", map=JOIN))
    assert "were not given: 2" in said
    said = told(ArgumentError, lambda: sv.reshard(paths[::2], tmp_path / "out", map=JOIN))
    assert "of 2 of 3 sources" in said
    sv.reshard(paths, tmp_path / "out.safetensors", map=JOIN)
    assert same(sv.load(tmp_path / "out.safetensors"), joined(ranks_of(3, 1)))


def test_a_diff_compares_all_ranks(tmp_path: Path) -> None:
    """Of a path with {rank} and of a folder, on both sides, also by workers."""
    ranks = ranks_of(3, 2)
    one = sv.save(tmp_path / "one", joined(ranks))
    split = sv.Map(SPLIT, sizes={"rank": 3})
    for target in ("m-{rank:02}.npz", "out"):
        sv.reshard(one, tmp_path / target, map=split)
        with ThreadPoolExecutor(1) as threads:
            for executor in (None, threads):
                report = sv.diff(one, tmp_path / target, map=split, executor=executor)
                assert report.equal and report.num_equal == sum(map(len, ranks))
                assert sv.diff(tmp_path / target, one, map=JOIN, executor=executor).equal
    assert report.path_b == str(tmp_path / "out")
    changed = sv.load(tmp_path / "out" / "rank_1")
    changed["layers.0.rows"] = changed["layers.0.rows"] + 1
    sv.save(tmp_path / "out" / "rank_1", changed, force=True)
    report = sv.diff(one, tmp_path / "out", map=split)
    assert [each.key for each in report.differences] == ["1/layers.0.rows"]
    assert report.map is not None and [rule.num_unlike for rule in report.map.rules] == [1, 0, 0, 0]
    report = sv.diff(tmp_path / "out", one, map=JOIN)
    assert [each.key for each in report.differences] == ["h.0.rows"]
    assert report.map is not None
    assert [rule.num_unlike for rule in report.map.rules] == [1, 0, 0, 0, 0]


def test_a_diff_of_ranks_that_are_not_there_is_refused(tmp_path: Path) -> None:
    ranks = ranks_of(2, 1)
    one = sv.save(tmp_path / "one", joined(ranks))
    split = sv.Map(SPLIT, sizes={"rank": 2})
    sv.reshard(one, tmp_path / "m-{rank}", map=split)
    said = told(ArgumentError, lambda: sv.diff(one, tmp_path / "m-0", map=split))
    assert "have no numbers of ranks" in said and "with {rank} in it" in said
    said = told(ShardvarError, lambda: sv.diff(one, tmp_path / "n-{rank}", map=split))
    assert f"There is no checkpoint at {tmp_path / 'n-0'}" in said
    for a, b in (("m-{rank}", "one"), ("one", "m-{rank}")):
        said = told(
            ArgumentError,
            lambda a=a, b=b: sv.diff(tmp_path / a, tmp_path / b, map=["{x:**} -> {x}"]),
        )
        assert "no rule of the map" in said and "Leave {rank} out" in said


@pytest.mark.parametrize("form", ["safetensors", "npz", "shardvar", "torch"])
def test_a_second_run_keeps_the_ranks_that_an_interrupted_one_has_finished(
    tmp_path: Path, form: str
) -> None:
    """They are compared, and written again if a byte differs; a run over all ranks keeps none."""
    arrays = joined(ranks_of(3, 1))
    sv.save(tmp_path / "one", arrays)
    split, target = sv.Map(SPLIT, sizes={"rank": 3}), tmp_path / "out"

    def reshard(**options: Any) -> Any:
        return sv.reshard(tmp_path / "one", target, map=split, format=form, **options)

    def stamps(rank: int) -> dict[str, int]:
        return {str(each): each.stat().st_mtime_ns for each in files(rank)}

    def files(rank: int) -> list[Path]:
        found = [each for each in target.rglob("*") if f"rank_{rank}" in str(each)]
        return [each for each in found if each.is_file()]

    reshard()
    written = [len(files(rank)) for rank in range(3)]
    before = stamps(0)
    assert reshard(force=True).reused_files == 0 and stamps(0) != before
    for each in files(2):
        each.unlink()
    finished = [stamps(rank) for rank in range(2)]
    said = told(TargetExists, reshard)
    assert "rank_0" in said and "keeps ranks that it has finished" in said
    report = reshard(force=True)
    assert [stamps(rank) for rank in range(2)] == finished
    assert report.reused_files == 2 and [len(files(rank)) for rank in range(3)] == written
    assert sv.diff(tmp_path / "one", target, map=split).equal
    # Another value in the source, another one in a target.
    for each in files(2):
        each.unlink()
    sv.save(tmp_path / "one", {**arrays, "norm": arrays["norm"] + 1}, force=True)
    assert reshard(force=True).reused_files == 0
    assert sv.diff(tmp_path / "one", target, map=split).equal
    for each in files(2):
        each.unlink()
    tensors = sv.load(target / "rank_0")
    tensors["layers.0.rows"][0, 0] += 1
    sv.save(target / "rank_0", tensors, format=form, force=True)
    assert reshard(force=True).reused_files == 1
    assert sv.diff(tmp_path / "one", target, map=split).equal
