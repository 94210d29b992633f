"""Tests of the lines that answer a command: a symbol at a terminal, words everywhere, and numbers
that are true."""

import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

import shardvar as sv
from shardvar.cli import main
from shardvar.cli.view import message_as_typed
from shardvar.errors import StorageError
from shardvar.storage.local import LocalStorage
from shardvar.verbs.locate import find_checkpoint
from spec_tests.helpers.command_line import Run, run, saved, terminal

__all__ = ["run"]


class AsciiTerminal(io.TextIOWrapper):
    """A terminal that can show ASCII alone."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def printed_in_ascii(words: str) -> str:
    """Return what a command prints at a terminal that lacks our symbols."""
    with patch("sys.stdout", AsciiTerminal(io.BytesIO(), "ascii")) as stream:
        main(words.split())
        stream.seek(0)
        return stream.read()


def test_a_terminal_whose_encoding_lacks_symbols_has_words_and_trees_of_ascii(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path, name="good")
    saved(tmp_path, "safetensors", "bare.safetensors")
    payloads = next(saved(tmp_path, name="cut").parent.glob("cut.svdata-*"))
    payloads.write_bytes(payloads.read_bytes()[:100])
    sv.save("m", {"é/a": np.ones(2), "é/bc": np.ones(2), "q\u2192": np.ones(2)})
    sv.save("layers", {f"l.{n}": np.ones(2) for n in range(3)} | {"w": np.ones(4)})
    with terminal(200):
        for words, begin in {
            "verify good": "ok: good (shardvar): 4 tensors, ",
            "verify bare.safetensors": "! complete",
            "verify cut": "damaged: 3 of 4 tensors in cut (shardvar): ",
            "diff good good": "equal: 4 tensors in both",
            "diff good m": "7 of 7 tensors differ: ",
            "reshard good out --force": "wrote out (shardvar): ",
        }.items():
            assert printed_in_ascii(words).startswith(begin)
    with terminal(80):
        lines = printed_in_ascii("inspect m").splitlines()[-4:]
    assert [line[:9] for line in lines] == ["|- q>    ", "`- \\xe9/ ", "   |- a  ", "   `- bc "]
    assert len({len(line) for line in lines}) == 1
    with terminal(120, "xterm", no_color=""):
        text = printed_in_ascii("inspect layers")
    assert "3 x [2]" in text and "\\u" not in text


@pytest.mark.parametrize(
    "words", [["model"], ["bare.safetensors"], ["model", "--against", "bare.safetensors.sha256"]]
)
def test_progress_ends_with_the_last_byte_that_is_read(
    words: list[str], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digests read all payloads once more; with sizes that need no padding between payloads."""
    monkeypatch.chdir(tmp_path)
    for name in ("model", "bare.safetensors"):
        sv.save(tmp_path / name, {"a": np.ones(704), "b": np.ones((4, 8), np.float16)})
    run("digest", "bare.safetensors", "--write")
    told: list[int] = []
    read: list[int] = []

    @contextmanager
    def counting(_what: str, total: Callable[[], int]) -> Iterator[Callable[[int], None]]:
        told.append(total())
        yield read.append

    monkeypatch.setattr("shardvar.cli.verify.progress", counting)
    assert run("verify", *words).code == 0
    assert told == [sum(read)] == [5696 * (1 if words == ["model"] else 2)]


def test_a_page_that_cannot_be_written_is_told_so(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read first, and written under another name: neither is in the error."""
    path, page = saved(tmp_path), tmp_path / "page.html"
    reason = "permission is denied."

    def refusal(verb: str) -> Callable[..., None]:
        def refuse(storage: LocalStorage, name: str) -> None:
            raise StorageError(f"{storage.path}/{name} cannot be {verb}: {reason}", "Change it.")

        return refuse

    for verb, name in (("read", "open"), ("written", "create")):
        target = page if name == "create" else tmp_path / "other" / "page.html"
        with monkeypatch.context() as patched:
            refuse, plain = refusal(verb), getattr(LocalStorage, name)
            patched.setattr(
                LocalStorage,
                name,
                lambda storage, file, refuse=refuse, plain=plain: (
                    refuse if file.endswith(".html") else plain
                )(storage, file),
            )
            told = run("view", path, "-o", target)
        assert told.code == 3 and "page.html" in told.err and reason in told.err
        assert "read" not in told.err and ".shardvar-" not in told.err


def test_the_text_of_a_report_is_what_its_command_prints(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = np.arange(12.0).reshape(4, 3)
    sv.save("a", {"table": table, "b": np.ones(2)}, partition={"table": 2})
    sv.save("b", {"table": table + 1, "c": np.ones(2)})
    here = f"{tmp_path}/"

    def prints(report: object, *words: str) -> None:
        assert str(report).replace(here, "") + "\n" == run(*words).out

    prints(sv.digest("a"), "digest", "a")
    prints(sv.verify("a"), "verify", "a")
    sv.save("odd", {"nan": np.array([np.nan]), "w": np.ones(2)})
    prints(sv.verify("odd", nan=True), "verify", "odd", "--nan")
    cut = sorted(Path().glob("odd.svdata*"))[0]
    cut.write_bytes(cut.read_bytes()[:-1])
    prints(sv.verify("odd"), "verify", "odd")
    prints(sv.verify("."), "verify", ".")
    prints(sv.diff("a", "b"), "diff", "a", "b")
    prints(sv.reshard("a", "c", force=True), "reshard", "a", "c", "--force")
    prints(sv.reshard("a", "d.npz"), "reshard", "a", "d.npz", "--force")
    delta = sv.delta("a", "b", "delta")
    told = run("delta", "a", "b", "delta", "--force").out.splitlines()
    assert told[:-2] == str(delta).replace(here, "").splitlines()
    applied = sv.apply("a", "delta", "e")
    assert str(applied).splitlines()[0].replace(here, "") + "\n" == run(
        "apply", "a", "delta", "e2"
    ).out.replace("e2", "e")


@pytest.mark.parametrize(
    ("option", "environment", "is_coloured"),
    [
        ([], {}, False),
        ([], {"FORCE_COLOR": "1"}, True),
        ([], {"CLICOLOR_FORCE": "1"}, True),
        ([], {"FORCE_COLOR": "0"}, False),
        ([], {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
        (["--color", "never"], {"FORCE_COLOR": "1"}, False),
    ],
)
def test_a_pipe_has_colours_where_they_are_asked_for(
    tmp_path: Path, run: Run, option: list[str], environment: dict[str, str], is_coloured: bool
) -> None:
    sv.save(tmp_path / "model", {"w": np.ones(3)})
    words = ("verify", tmp_path / "model", *option)
    names = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE")
    with patch.dict(os.environ, dict.fromkeys(names, "") | environment):
        coloured, wrong = run(*words), run("verify", tmp_path / "nothing", *option).err
    assert ("\x1b[" in coloured.out) == ("\x1b[" in wrong) == is_coloured
    plain = run(*words[:2], "--color", "never").out
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured.out) == plain


def test_colours_change_no_text_of_any_command(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sv.save("m", {"w": np.ones(3)})
    sv.save("n", {"w": np.zeros(3)})
    for line in (
        *(
            "inspect m",
            "show m w",
            "view m -o page.html",
            "verify m",
            "diff m n",
            "digest m",
        ),
        *("reshard m out.npz --force", "delta m n d --force", "apply m d e --force"),
        *("maps llama-hf-to-gguf", "formats", "vectors --out v --force", "clean ."),
    ):
        run(*line.split())  # so that the next two find the same files
        coloured, plain = (run(*line.split(), "--color", when) for when in ("always", "never"))
        assert re.sub(r"\x1b\[[0-9;]*m", "", coloured.out) == plain.out and plain.code < 2
        assert run(*line.split(), "--color", "sometimes").code == 2


def test_a_damaged_file_is_named_where_every_tensor_is_whole(tmp_path: Path, run: Run) -> None:
    sv.save(tmp_path / "m", {"a": np.ones(3), "b": np.ones(4)}, policy=sv.BalancedPolicy(2))
    file = min(tmp_path.glob("m.svdata-*"))
    file.write_bytes(file.read_bytes() + b"x")
    said = f"{file.name} has {file.stat().st_size} bytes, but the index says"
    assert re.search(rf"\n1 file damaged:\n.*{said}", run("inspect", tmp_path / "m").out)
    shown = run("show", tmp_path / "m", "a")
    assert shown.out.endswith("[1., 1., 1.]\n") and shown.err.startswith(f"note: {said}")


def test_show_reads_no_more_values_than_json_may_have(tmp_path: Path, run: Run) -> None:
    sv.save(tmp_path / "m", {"w": np.zeros((1001, 1000), np.int8)})
    shown = run("show", tmp_path / "m", "w", "--json")
    assert shown.code == 2 and "has 1,001,000 values; JSON output is limited" in shown.err


def test_a_short_axis_beside_a_long_one_is_printed_whole(tmp_path: Path, run: Run) -> None:
    table = np.arange(12_000).reshape(3, 4000)
    sv.save(tmp_path / "m", {"w": table})
    printed = np.array2string(table, threshold=1000, separator=", ")
    assert run("show", tmp_path / "m", "w").out.partition("\n")[2].split() == printed.split()


def test_files_that_a_diff_of_folders_passes_over_are_named(tmp_path: Path, run: Run) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        sv.save(tmp_path / name / "model.safetensors", {"w": np.ones(3)})
    found = run("diff", tmp_path / "a", tmp_path / "b")
    assert found.code == 0 and "not compared: config.json" in found.err


def test_a_message_has_files_as_seen_from_the_typed_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sv.save(tmp_path / "run" / "m", {"w": np.ones(3)})
    found = find_checkpoint(tmp_path / "run" / "m")
    for place, typed, file in ((tmp_path, "run/m", "run/f"), (tmp_path / "run", "m", "f")):
        monkeypatch.chdir(place)
        message = f"The file {tmp_path / 'run' / 'f'} is damaged."
        assert message_as_typed(message, found, typed) == f"The file {file} is damaged."
