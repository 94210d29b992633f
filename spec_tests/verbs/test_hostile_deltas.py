"""Hostile deltas: the right error of every verb, in bounded memory and time, and nothing left behind.

They run in one process of their own, as ``formats/test_hostile_files.py`` does."""

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spec_tests.helpers.programs import ENVIRONMENT, command_of
from spec_tests.hostile.case import DELTA_CASES, HERE, Case

MODULE = "verbs.test_hostile_deltas"
NEEDS_A_BASE = [
    f"deltas/{name}"
    for name in ("base_values", "base_dtype", "base_key", "base_lost", "tie_values")
]
"""The ones that `verify` cannot tell from right ones."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every case, in a process that is killed if it hangs."""
    scratch = tmp_path_factory.mktemp("scratch")
    folders = [HERE / case.name for case in DELTA_CASES]
    program = command_of(MODULE, scratch, *folders)
    done = subprocess.run(program, capture_output=True, text=True, env=ENVIRONMENT, cwd=scratch)
    lines = done.stdout.splitlines()
    assert len(lines) == len(folders), done.stderr[-2000:]
    return {case.name: json.loads(line) for case, line in zip(DELTA_CASES, lines, strict=True)}


@pytest.mark.parametrize("case", DELTA_CASES, ids=lambda case: case.name)
def test_a_hostile_delta_is_refused_and_leaves_nothing(
    case: Case, reports: dict[str, dict[str, Any]]
) -> None:
    report = reports[case.name]
    error = report["apply"]
    assert error["raised"] == case.error, error
    assert f"{case.name}/d" in error["cause"] and error["remedy"]
    assert len(error["cause"]) + len(error["remedy"]) < 600 + 2 * len(str(HERE))
    assert report["left"] == []
    # The delta by itself.
    verified = report["verify"]
    if case.name in NEEDS_A_BASE:
        assert verified["ok"]
    elif case.error == "UnsupportedError":
        assert not verified["damages"] and not verified["ok"]
    else:
        assert case.error in {each["kind"] for each in verified["damages"]}
    # Joined: what needs no base is found before the commit, and the rest when that is applied.
    wanted = "joined" if case.name in NEEDS_A_BASE else "compact"
    assert report[wanted]["raised"] == case.error
    # The command line.
    for words, codes in (("apply", (2, 3)), ("verify", (0, 1, 3)), ("inspect", (0, 1, 3))):
        ran = report[f"shardvar {words}"]
        assert ran["code"] in codes, (words, ran)
        assert "Traceback" not in ran["out"] + ran["err"], ran
        assert "bug in shardvar" not in ran["err"], ran
    assert (report["shardvar verify"]["code"] == 0) == (case.name in NEEDS_A_BASE)


def test_every_directory_has_its_row() -> None:
    names = {f"deltas/{path.name}" for path in (HERE / "deltas").iterdir()}
    assert names == {case.name for case in DELTA_CASES}


def _run(folder: Path, scratch: Path) -> dict[str, Any]:
    """All verbs on one delta and its base."""
    import shardvar as sv
    from spec_tests.hostile.run_verbs import outcome, run_cli

    base, delta, target = str(folder / "base"), str(folder / "d"), str(scratch / "target")
    joined = str(scratch / "joined")
    found = {
        "apply": outcome(lambda: sv.apply(base, delta, target).num_tensors),
        "verify": outcome(lambda: sv.verify(delta).to_json()),
        "compact": outcome(lambda: {"nbytes": sv.compact_deltas([delta], joined).stored_nbytes}),
        "joined": outcome(lambda: sv.apply(base, joined, target).num_tensors),
        "shardvar apply": run_cli("apply", base, delta, target),
        "shardvar verify": run_cli("verify", delta),
        "shardvar inspect": run_cli("inspect", delta),
    }
    if "raised" not in found["compact"]:
        sv.remove(joined)
    return found | {"left": sorted(path.name for path in scratch.iterdir())}


if __name__ == "__main__":
    from spec_tests.hostile.run_verbs import MEMORY, SECONDS

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for name in sys.argv[2:]:
        signal.alarm(SECONDS)
        print(json.dumps(_run(Path(name), Path(sys.argv[1]))), flush=True)
