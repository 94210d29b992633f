"""``background="process"``: another process writes what a plain save writes, and nothing is left of it."""

import gc
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import ArgumentError, UnsupportedError, WorkerLost, log_warning
from shardvar.planning.policies import AllInOnePolicy
from shardvar.verbs.training.step_records import Arrays
from shardvar.verbs.writer_process import WRITER_PROCESS, SharedStaging
from spec_tests.helpers.programs import ENVIRONMENT
from spec_tests.helpers.system_calls import snapshot
from spec_tests.helpers.thoroughness import stride

DTYPES = [
    "float32",
    "int8",
    "uint16",
    "bool",
    "complex64",
    ">i4",
    ml_dtypes.bfloat16,
    ml_dtypes.int4,
]


def save(path: Path, state: Any, **options: Any) -> Any:
    return Arrays().save(str(path), state, run="1", **options)


def writer() -> int:
    """Return the process that writes; it is there after a save."""
    child = WRITER_PROCESS._child
    assert child is not None
    return child.process.pid


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    kind = draw(st.sampled_from([*DTYPES, "strings"]))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    seed = np.random.default_rng(draw(st.integers(0, 99)))
    if kind == "strings":
        made = np.array(
            [b"\0ab"[:n] for n in seed.integers(0, 4, int(np.prod(shape)))] + [b""], object
        )
        return made[:-1].reshape(shape)
    values = seed.integers(0, 2, shape).astype(kind)
    return values.T if draw(st.booleans()) else values


def files(folder: Path) -> dict[str, bytes]:
    """The bytes of the files of a checkpoint, without its generation and without indexes."""
    return {
        re.sub("-[0-9a-f]{16}-", "-", name): octets
        for name, octets in snapshot(folder).items()
        if not name.endswith(".svindex")
    }


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["shardvar", "shardvar", "safetensors", "npz", "zarr", "torch"]),
    st.dictionaries(st.sampled_from("abcdef"), arrays(), max_size=5),
)
def test_the_files_are_those_of_a_plain_save(
    tmp_path_factory: pytest.TempPathFactory, form: str, state: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("files")
    expected = {key: value.copy() for key, value in state.items()}
    pending = save(folder / "there" / "m", state, background="process", format=form)
    for value in state.values():
        value[...] = b"x" if value.dtype.hasobject else 1  # the training goes on
    try:
        plain = save(folder / "here" / "m", expected, format=form)
    except UnsupportedError:
        with pytest.raises(UnsupportedError):
            pending.result()
        return
    assert str(pending.result()).replace("there", "here") == str(plain)
    assert files(folder / "there") == files(folder / "here")
    assert sv.diff(folder / "there", folder / "here").equal


def test_errors_have_the_class_and_the_text_of_a_plain_save(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for path, state, options in (
        (tmp_path / "file" / "m", {"a": np.ones(3)}, {}),
        (tmp_path / "m", {"a": np.array([b"x"], object)}, {"format": "safetensors"}),
        (tmp_path / "m", {"a": np.ones(3)}, {"format": "x"}),
        (tmp_path / "m", {"a": np.ones(3)}, {"metadata": {"a": 1}}),
    ):
        errors = []
        for background in (False, "process"):
            with pytest.raises(Exception) as raised:
                made = save(path, state, background=background, **options)
                made.result()
            errors.append((type(raised.value), str(raised.value), vars(raised.value)))
        assert errors[0] == errors[1]
    with pytest.raises(ArgumentError, match=r"background='proces' is unknown.*'process'"):
        save(tmp_path / "m", {}, background="proces")
    with pytest.raises(ArgumentError, match="background='process' is unknown"):
        sv.Checkpoint(w=sv.Variable([1.0])).save(tmp_path / "c", background="process")  # type: ignore[arg-type]


class Own:
    """A policy that no other process can import under the name of a test."""

    description = "own"

    def __reduce__(self) -> Any:
        return eval, ("open('nothing')",)


@pytest.mark.parametrize("policy", [Own(), lambda *_: None])
def test_an_argument_that_cannot_go_there_is_an_error(policy: Any, tmp_path: Path) -> None:
    pending = save(tmp_path / "m", {"a": np.ones(3)}, policy=policy, background="process")
    with pytest.raises(ArgumentError, match="cannot go to the process that writes"):
        pending.result()
    save(tmp_path / "m", {"a": np.ones(3)}, policy=AllInOnePolicy(), background="process").result()


def total(array: Any, divisor: int = 1) -> int:
    return int(array.sum()) // divisor


def started() -> int:
    """Return the process that writes, which waits for a job."""
    assert WRITER_PROCESS.run("m", partial(total, np.ones(3)), SharedStaging()) == 3
    return writer()


def test_a_killed_writer_is_one_error_and_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """It is killed before it begins, somewhere on the way, and between two saves."""
    path, old = tmp_path / "m", 0
    save(path, {"a": np.zeros(1_000_000)}, background="process").result()
    for number in range(1, 9, stride(2)):
        process, is_early = started(), number % 4 == 1
        if is_early:
            os.kill(process, signal.SIGSTOP)
        pending = save(path, {"a": np.full(1_000_000, number)}, background="process")
        time.sleep(0.004 * number)
        os.kill(process, signal.SIGKILL)
        try:
            pending.result()
        except WorkerLost as error:
            text = f"The process that wrote {path} was ended by signal 9. Find out why, and save again."
            assert str(error) == text
            possible = [old] if is_early else [old, number]
        else:
            possible = [number]
        values = sv.load(path)["a"]
        assert (values == values[0]).all() and values[0] in possible
        assert not is_early or values[0] == old
        old = values[0]
    save(path, {"a": np.ones(3)}, background="process").result()
    left = {each.name.partition("-")[0] for each in tmp_path.iterdir()}
    assert sv.verify(path).ok and left <= {"m.svdata", "m.svindex"}


def told() -> None:
    log_warning(os.environ["SHARDVAR_TEST"] + os.getcwd())


def test_the_writer_has_the_directory_and_the_environment_and_its_log_is_the_program_s(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    started()
    monkeypatch.setenv("SHARDVAR_TEST", "seen")
    monkeypatch.chdir(tmp_path)
    WRITER_PROCESS.run("m", told, SharedStaging())
    save(Path("m"), {"a": np.ones(3)}, background="process").result()
    assert sv.load(tmp_path / "m").keys() == {"a"}
    assert [(each.name, each.getMessage()) for each in caplog.records] == [
        ("shardvar.checkpoint", f"seen{tmp_path}")
    ]


def handles(process: int) -> list[str]:
    """The number of open files of a process, and the memory that it shares."""
    gc.collect()
    place = Path(f"/proc/{process}")
    maps = (place / "maps").read_text().splitlines()
    return [
        f"{len(os.listdir(place / 'fd'))}",
        *(each for each in maps if "memfd:shardvar" in each),
    ]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="There is no /proc.")
def test_no_memory_is_left_of_jobs_of_errors_and_of_kills() -> None:
    def run(size: int) -> None:
        memory = SharedStaging()
        with pytest.raises(ArgumentError, match="staging_nbytes"):
            memory.copy([np.ones(size)], most=8)
        for _ in range(2):
            (copy,) = memory.copy([np.ones(size)])
            assert WRITER_PROCESS.run("m", partial(total, copy), memory) == size
        with pytest.raises(ZeroDivisionError, match="^integer division or modulo by zero$"):
            WRITER_PROCESS.run("m", partial(total, copy, 0), memory)

    run(5)
    mine, its = handles(os.getpid()), handles(writer())
    for size in (10, 100_000, 3):
        run(size)
        assert handles(writer()) == its
    killed = WRITER_PROCESS._child
    assert killed is not None
    killed.process.kill()
    killed.process.wait()
    del killed
    started()
    assert handles(os.getpid()) == mine and handles(writer()) == its
    assert "memfd" not in str(its)


def ended(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *map(str, arguments)]
    options: dict[str, Any] = {"timeout": 100, "env": ENVIRONMENT}
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


PROGRAM = """
import os, signal, sys
import numpy as np
import shardvar as sv

print("begins", flush=True)
steps = sv.SavedSteps(sys.argv[1])
steps.save(1, {"a": np.ones(3_000_000)}, background="process")
"""


@pytest.mark.parametrize(
    ("end", "number"),
    [
        ("", 1),
        ("steps.wait()\n"
         "import functools, threading, time\n"
         "from shardvar.verbs.writer_process import WRITER_PROCESS, SharedStaging\n"
         "job = 'm', functools.partial(time.sleep, 1000), SharedStaging()\n"
         "threading.Thread(target=WRITER_PROCESS.run, args=job).start()\n"
         "time.sleep(0.5)\n"
         "os.kill(os.getpid(), signal.SIGKILL)", 1),
        ("steps.wait(); pid = os.fork()\n"
         "if not pid:\n"
         "    steps.save(2, {'a': np.zeros(3)}, background='process').result(); os._exit(0)\n"
         "os.waitpid(pid, 0); print(steps.newest().number)", 2),
    ],
)  # fmt: skip
def test_a_program_that_ends_waits_and_a_killed_one_ends_its_writer(
    end: str, number: int, tmp_path: Path
) -> None:
    """The program is not imported by the writer: it has no guard. A pipe that a process still holds would
    keep the test."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + end)
    done = ended("-W", "error", program, tmp_path / "run")
    assert done.stdout.splitlines()[0] == "begins" and "begins" not in done.stdout[6:]
    if "SIGKILL" in end:
        assert done.returncode == -9
    else:
        assert (done.returncode, done.stderr) == (0, "")
    newest = sv.SavedSteps(tmp_path / "run").newest()
    assert newest is not None and newest.number == number and sv.verify(newest.path).ok


FORKS = """
import os, signal, sys, time
import numpy as np
import shardvar as sv
from shardvar.verbs.writer_process import WRITER_PROCESS

first, second = (sv.SavedSteps(f"{sys.argv[1]}/{name}") for name in "ab")
first.save(1, {"a": np.ones(9)}, background="process").result()
os.kill(WRITER_PROCESS._child.process.pid, signal.SIGSTOP)
pending = first.save(2, {"a": np.ones(9)}, background="process")
time.sleep(0.2)
pid = os.fork()
if not pid:
    second.save(1, {"a": np.zeros(9)}, background="process").result()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
os.kill(WRITER_PROCESS._child.process.pid, signal.SIGCONT)
pending.result()
print(*first.restore().loaded["a"], *second.restore().loaded["a"])
"""


def test_a_fork_saves_its_own_values_while_its_parent_does(tmp_path: Path) -> None:
    done = ended("-c", FORKS, tmp_path)
    assert done.stdout.split() == ["1.0"] * 9 + ["0.0"] * 9, done.stderr
