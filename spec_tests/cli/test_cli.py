"""The command line: what each command prints and with which code it leaves, whatever it is
given."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.cli.clean import _seconds
from shardvar.cli.options import ALIASES, COMMANDS, OTHER_WORDS
from shardvar.cli.output import printable
from shardvar.cli.usage import parse_index_text, parse_size
from shardvar.cli.workers import started
from spec_tests.helpers import paths
from spec_tests.helpers.command_line import Run, run, saved, terminal
from spec_tests.helpers.damage import flip
from spec_tests.helpers.hypothesis_strategies import keys
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket

__all__ = ["run"]  # the fixture

GOLDEN = paths.GOLDEN
HOSTILE = (
    "a\nb",
    "\x1b[31mred",
    "[bold]x[/bold]",
    "a\udcffb",
    "\u202eevil",
    "back\\slash",
    "tab\t",
    " lead",
    "é",
    "a" * 300,
)


def flip_payload(path: Path, key: str) -> None:
    with sv.open_checkpoint(path) as reader:
        entries = reader.find(key)
        file, start = path.parent / reader.index.files[int(entries.file[0])], int(entries.start[0])
    flip(file, start)


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "a", "s3://bucket/m?X-Amz-Signature=SECRET"),
        ("reshard", "a", "b", "--max-file-size", "https://user:SECRET/x@host/m"),
        ("verify", "a", "--dask", "tcp://user:SECRET@host:1"),
        ("diff", "a", "b", "--dask", "tcp://user:SECRET@host:1"),
        ("inspect", "s3:/KEY:SECRET@bucket/m", "--json"),
        ("vectors", "--out", "https://user:SECRET@host/m"),
        ("digest", "--bogus", "https://SECRET@host/m"),
    ],
)
def test_no_error_repeats_the_secret_of_a_url(
    words: tuple[str, ...], run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever is wrong, and wherever the URL is given; nothing is written."""
    monkeypatch.chdir(tmp_path)
    done = run(*words)
    assert done.code == 2 and "SECRET" not in done.out + done.err and os.listdir(tmp_path) == []


@pytest.mark.smoke
def test_the_whole_way_through(tmp_path: Path, run: Run) -> None:
    """Three slices become five, in two files and in another format, and nothing else changes."""
    path = saved(tmp_path, partition=3)
    assert run("reshard", path, tmp_path / "five", "--shards", "5", "--files", "2").code == 0
    assert run("reshard", tmp_path / "five", tmp_path / "tf", "--format", "tensorflow").code == 0
    told = run("inspect", tmp_path / "tf", "--json").json
    assert {tensor["key"]: tensor["num_slices"] for tensor in told["tensors"]}["dense/kernel"] >= 5
    assert run("verify", tmp_path / "tf").code == 0
    assert run("diff", path, tmp_path / "tf").code == 0


def index_of(text: str) -> object:
    return parse_index_text(text, (8, 5))


def golden_cases() -> list[str]:
    return sorted(path.parent.name for path in (GOLDEN / "tensorflow").glob("*/expected.json"))


@pytest.mark.parametrize("case", golden_cases())
def test_golden_checkpoints_leave_with_the_code_that_they_deserve(case: str, run: Run) -> None:
    path = GOLDEN / "tensorflow" / case / ("sm" if case == "saved_model" else "")
    if case == "manager_dir":
        assert (run("inspect", path).code, run("verify", path).code) == (0, 0)
    elif case == "v1_format_legacy":
        assert (run("inspect", path).code, run("verify", path).code) == (3, 3)
    elif case.startswith("bad"):
        of_another_set = case == "bad_shard_name_count"
        assert run("verify", path).code == (3 if of_another_set else 1)
        assert run("inspect", path, "--json").code in (0, 3)
    else:
        mark = {"slices_overlap": "OVERLAPPING", "slices_with_hole": "INCOMPLETE"}.get(case)
        assert run("verify", path).code == bool(mark)
        told = run("inspect", path, "--json", "--slices", "--stats").json["tensors"]
        faults = [each["fault"] for each in told if each["fault"]]
        assert all([*each] == "kind key file message cause remedy".split() for each in faults)
        assert not mark or (faults and mark in run("inspect", path).out)


def test_show_says_what_it_could_not_verify(tmp_path: Path, run: Run) -> None:
    """TensorFlow has one checksum a slice: a part of a large one is not verified unless all of it
    is read."""
    sv.save(tmp_path / "big", {"t": np.ones((1_000_000, 2))}, format="tensorflow")
    outcome = run("show", tmp_path / "big", "t", "5")
    assert "1., 1." in outcome.out and "--verify full" in outcome.err
    assert run("show", tmp_path / "big", "t", "5", "--json").json["verified"] is False
    assert run("show", tmp_path / "big", "t", "5", "--verify", "full").err == ""
    flip_payload(tmp_path / "big", "t")
    assert run("show", tmp_path / "big", "t", "5", "--verify", "full").code == 3


@given(st.data(), st.lists(st.integers(0, 5), min_size=1, max_size=3))
def test_an_index_means_what_numpy_means(data: st.DataObject, shape: list[int]) -> None:
    numbers = st.one_of(st.none(), st.integers(-7, 7))
    item = st.one_of(
        st.integers(-7, 7).map(str),
        st.tuples(numbers, numbers, numbers.filter(lambda step: step != 0)).map(
            lambda parts: ":".join("" if part is None else str(part) for part in parts)
        ),
        st.just("..."),
    )
    text = ", ".join(data.draw(st.lists(item, min_size=1, max_size=3)))
    array = np.arange(np.prod(shape)).reshape(shape)
    try:
        expected = eval(f"array[{text}]")  # noqa: S307  # text that this test has made
    except IndexError:
        with pytest.raises(sv.errors.ArgumentError):
            parse_index_text(text, shape)
        return
    axes = [axis if isinstance(axis, range) else [axis] for axis in parse_index_text(text, shape)]
    assert (
        array[np.ix_(*(np.array(axis, int) for axis in axes))].ravel().tolist()
        == np.ravel(expected).tolist()
    )


def test_a_dry_run_says_which_disk_has_room(tmp_path: Path, run: Run) -> None:
    """A bucket has no free bytes: those are of the disk on which files wait until they are
    whole."""
    with in_bucket(MemoryBucket()):
        remote = run("reshard", saved(tmp_path), "s3://bucket/model", "--dry-run").out
    local = run("reshard", saved(tmp_path), tmp_path / "target", "--dry-run").out
    (room,) = (line for line in remote.splitlines() if "disk: " in line)
    assert room.endswith("B free for temporary files") and "temporary" not in local


def test_errors_have_paths_as_they_were_typed(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of programs are whole."""
    monkeypatch.chdir(tmp_path)
    for name in ("model.npz", "model.safetensors"):
        sv.save(tmp_path / name, {"w": np.ones(2)})
    assert run("verify", "model").err.startswith(
        "error: model may mean model.npz (npz), model.safetensors ("
    )
    assert (
        f"{tmp_path / 'model'} may mean {tmp_path / 'model.npz'} ("
        in run("verify", tmp_path / "model").err
    )
    assert str(tmp_path / "model.npz") in run("verify", "model", "--json").json["error"]["cause"]


def test_a_working_directory_that_was_removed_is_named(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    outcome = run("verify", tmp_path / "absent")
    assert (outcome.code, outcome.err.splitlines()[0]) == (
        3,
        "error: The working directory is gone.",
    )


def test_no_word_for_a_command_is_a_command_or_means_two() -> None:
    words = [*ALIASES, *(word for words in OTHER_WORDS.values() for word in words)]
    assert (
        {*OTHER_WORDS} <= {*COMMANDS} and not {*words} & {*COMMANDS} and len({*words}) == len(words)
    )


def test_an_error_of_a_file_is_not_told_as_one_of_the_output(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system refuses to say where some links lead, as those of /proc."""
    (tmp_path / "m.npz").symlink_to("nowhere")

    def refused(path: str) -> str:
        raise FileNotFoundError(2, "No such file or directory", path)

    with monkeypatch.context() as patched:
        patched.setattr(os.path, "realpath", refused)
        outcome = run("inspect", tmp_path / "m.npz")
    assert (
        outcome.code == 3
        and "m.npz is missing: it is a symbolic link to a file that" in outcome.err
    )
    monkeypatch.setattr("shardvar.cli.inspect.execute", lambda _: refused("/data/m"))
    assert run("inspect", tmp_path / "m.npz").err.startswith(
        "error: Cannot use /data/m: No such file or directory.\n"
    )


@pytest.mark.parametrize("command", ["inspect", "show", "verify", "diff", "reshard"])
def test_help_fits_a_screen_and_ends_in_examples_that_parse(command: str, run: Run) -> None:
    from shardvar.cli.options import parse_arguments

    with patch.dict(os.environ, {"COLUMNS": "100"}):
        lines = run(command, "--help").out.splitlines()
    assert len(lines) <= (66 if command == "reshard" else 46)
    examples = lines[lines.index("examples:") + 1 :]
    assert examples
    for example in examples:
        assert parse_arguments(shlex.split(example)[1:]).command == command


def test_the_first_help_has_examples_that_parse_and_fits_a_screen(run: Run) -> None:
    from shardvar.cli.options import parse_arguments

    with patch.dict(os.environ, {"COLUMNS": "80"}):
        lines = run("--help").out.splitlines()
    assert len(lines) <= 25 and max(map(len, lines)) <= 80
    assert [
        line.split()[0] for line in lines if line[:2] == "  " and line.split()[0] != "shardvar"
    ] == list(COMMANDS)
    examples = [line for line in lines if line.startswith("  shardvar ")]
    assert len({parse_arguments(shlex.split(line)[1:]).command for line in examples}) >= 2


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_is_filled_to_a_narrow_terminal(command: str | None, run: Run) -> None:
    """Only an example may be longer, since one could not paste it from two lines; and the usage
    above."""
    with patch.dict(os.environ, {"COLUMNS": "40"}):
        lines = run(*([command] if command else []), "--help").out.partition("\n\n")[2].splitlines()
    assert lines and [line for line in lines if len(line) > 40 and "shardvar" not in line] == []


def test_hostile_keys_are_escaped_and_never_lost(tmp_path: Path, run: Run) -> None:
    """Neither the terminal nor rich may be told anything by a key; each is shown whole, and found
    as it is shown."""
    sv.save(tmp_path / "model", {key: np.ones(1) for key in HOSTILE})
    outcome = run("inspect", tmp_path / "model", "--slices", "--stats")
    assert outcome.out.isascii() or "é" in outcome.out
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e\ud800-\udfff]", outcome.out)
    for key in HOSTILE:
        assert printable(key) in outcome.out
        assert run("show", tmp_path / "model", printable(key)).code == 0
    told = run("inspect", tmp_path / "model", "--json")
    assert told.out.isascii() and {each["key"] for each in told.json["tensors"]} == set(HOSTILE)


@given(keys(), keys())
def test_what_is_printed_is_printable_and_tells_names_apart(one: str, other: str) -> None:
    assert printable(one).isprintable()
    assert (printable(one) == printable(other)) == (one == other)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("64MB", 64 * 10**6),
        ("64MiB", 64 * 2**20),
        ("4096", 4096),
        ("1.5k", 1500),
        ("2 GiB", 2**31),
        ("1tb", 10**12),
    ],
)
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *(
            (parse_size, text)
            for text in ("", "MB", "-1", "1e6", "0", "1.0001kB", "64 MiBs", "9" * 99, "0x10", "\N{FULLWIDTH DIGIT ONE}")
        ),
        *(
            (index_of, text)
            for text in ("x", "1:2:3:4", "1:2:0", "0,0,0", "99", "...,...", "1.5", "1,,2", ":;", "__import__('os')")
        ),
        *((_seconds, text) for text in ("x", "-1", "1y", "", "1 d")),
    ],
)  # fmt: skip
def test_what_is_no_size_no_index_or_no_age_is_refused(
    read: Callable[[str], object], text: str
) -> None:
    with pytest.raises(sv.errors.ArgumentError):
        read(text)


def test_no_color_is_none(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a terminal too: bold and dim are not colours. A pipe has neither."""
    monkeypatch.chdir(tmp_path)
    next(saved(tmp_path, name="cut").parent.glob("cut.svdata-*")).unlink()
    found = set()
    for words in ("inspect cut --stats", "verify cut", "diff cut cut"):
        with terminal(100, "xterm-256color"):
            found.update(re.findall(r"\x1b\[([0-9;]*)m", run(*words.split()).out))
        assert "\x1b" not in run(*words.split()).out
    assert {"0", "1"} <= found <= {"0", "1", "2"}


def test_a_worker_can_be_interrupted_once_it_works() -> None:
    with started("2", None, print) as executor:
        assert executor is not None
        blocked = executor.submit(signal.pthread_sigmask, signal.SIG_BLOCK, []).result()
    assert signal.SIGINT not in blocked


def test_an_interrupt_and_a_bug_leave_no_traceback(tmp_path: Path, run: Run) -> None:
    path = saved(tmp_path)
    with patch("shardvar.cli.verify.verify_location", side_effect=KeyboardInterrupt):
        assert run("verify", path).code == 130
    with patch("shardvar.cli.verify.verify_location", side_effect=MemoryError):
        assert run("verify", path).code == 3
    with patch("shardvar.cli.verify.verify_location", side_effect=ZeroDivisionError("x")):
        outcome = run("verify", path)
        assert outcome.code == 3 and "This is a bug" in outcome.err
        with patch.dict(os.environ, {"SHARDVAR_TRACEBACK": "1"}), pytest.raises(ZeroDivisionError):
            run("verify", path)


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "shardvar", *map(str, words)]


@pytest.mark.smoke
def test_a_process_prints_results_on_standard_output_and_errors_on_the_other(
    tmp_path: Path,
) -> None:
    path = saved(tmp_path)
    environment = os.environ | {
        "PYTHONPATH": str(Path(sv.__file__).parent.parent),
        "PYTHONIOENCODING": "ascii",
    }
    done = subprocess.run(
        command("inspect", path), capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stderr) == (0, "") and "dense/kernel" in done.stdout
    done = subprocess.run(
        command("verify", tmp_path / "é"), capture_output=True, env=environment, check=False
    )
    assert done.returncode == 3 and done.stdout == b"" and done.stderr.startswith(b"error: ")


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    sv.save(tmp_path / "model", {f"t{n}": np.ones(1) for n in range(5000)})
    environment = os.environ | {"PYTHONPATH": str(Path(sv.__file__).parent.parent)}
    process = subprocess.Popen(
        command("inspect", tmp_path / "model"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), errors) == (128 + signal.SIGPIPE, b"")


def modules_after(*words: str) -> set[str]:
    """What a process has loaded once a command is done."""
    code = (
        f"import sys; from shardvar.cli import main; main({list(words)!r}); print(*sys.modules, "
        "file=sys.stderr)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(sv.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    return set(done.stderr.split())


def test_start_up_loads_nothing_that_help_does_not_need() -> None:
    assert {"numpy", "rich", "msgpack"}.isdisjoint(modules_after("--help"))


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "form", "most"),
    [
        ("m.npz", "npz", 49),
        ("m", "native", 52),
        ("m.safetensors", "safetensors", 53),
        ("m", "tensorflow", 54),
        ("dcp", "torch", 62),
        ("m.zarr", "zarr", 63),
        ("m.pt", "torch.saved", 68),
    ],
)
def test_a_listing_loads_its_format_and_neither_engine_nor_writer_nor_log(
    name: str, form: str, most: int, tmp_path: Path
) -> None:
    """Each module takes about a millisecond of every command: ``most`` is how many it loads."""
    kind = {"native": "shardvar", "torch.saved": "pt"}.get(form, form)
    sv.save(tmp_path / name, {"w": np.ones(3, np.float32)}, format=kind)
    loaded = modules_after("inspect", str(tmp_path / name))
    others = {"native", "npz", "safetensors", "tensorflow", "torch", "zarr"} - {
        form.split(".", maxsplit=1)[0]
    }
    assert f"shardvar.formats.{form}" in loaded
    assert loaded.isdisjoint(f"shardvar.formats.{other}" for other in others)
    own = {each for each in loaded if each.partition(".")[0] == "shardvar"}
    assert len(own) <= most, sorted(own)
    assert loaded.isdisjoint({"shardvar.engine", "shardvar.maps", "shardvar.cli.statistics"})
    # Nor what only a terminal needs.
    assert loaded.isdisjoint({"rich", "ml_dtypes", "crc32c", "logging", "secrets"})
    assert "concurrent.futures" not in loaded
