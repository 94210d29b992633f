"""Checksums of files that other programs wrote: each form is compared, in each format, and damage means
bytes.

The oracle is ``hashlib`` on the whole file. A list is written here as its program writes it.
"""

import base64
import hashlib
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.cli.main import main
from shardvar.errors import CorruptCheckpoint, MalformedCheckpoint
from shardvar.formats.table import format_named, format_names
from shardvar.verbs.compare.manifest import read_manifest, write_manifest
from shardvar.verbs.locate import find_checkpoint
from shardvar.verbs.problems import VerifyReport
from shardvar.wire.digests import decode_sums
from spec_tests.helpers.damage import flip
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket

WRITTEN = [name for name in format_names() if format_named(name).capabilities.dtypes]
ENDINGS = {"shardvar": "", "tensorflow": ""}
TENSORS = {"w": np.arange(300, dtype=np.float32), "b": np.ones(7, np.int32)}


def gnu(algorithm: str, digits: str, name: str, mode: str = "  ") -> str:
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"{'' if escaped == name else chr(92)}{digits}{mode}{escaped}"


FORMS: dict[str, Any] = {
    "text": gnu,
    "binary": lambda algorithm, digits, name: gnu(algorithm, digits, name, " *"),
    "upper": lambda algorithm, digits, name: gnu(algorithm, digits.upper(), name),
    "tab": lambda algorithm, digits, name: gnu(algorithm, digits, name, "\t"),
    "tagged": lambda algorithm, digits, name: f"{algorithm.upper()} ({name}) = {digits}",
    "openssl": lambda algorithm, digits, name: f"{algorithm.upper()}({name})= {digits}",
    "dot": lambda algorithm, digits, name: gnu(algorithm, digits, f"./{name}"),
    "prefix": lambda algorithm, digits, name: f"{algorithm}:{digits}  {name}",
}
ALGORITHMS = ("md5", "sha1", "sha224", "sha256", "sha384", "sha512")
NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0/"), min_size=1)


@given(
    lines=st.lists(
        st.tuples(st.sampled_from(["text", "binary", "upper"]), st.sampled_from(ALGORITHMS), NAMES),
        max_size=4,
    ),
    ending=st.sampled_from(["\n", "\r\n"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    junk=st.sampled_from(["", "# made by hand", "-----BEGIN PGP SIGNED MESSAGE-----", "abc  name"]),
)
def test_a_list_is_read_as_it_was_written(
    lines: list[tuple[str, str, str]], ending: str, encoding: str, junk: str
) -> None:
    lines = [each for each in lines if each[2].strip(" \t*\r\n") == each[2] != "-"]
    wanted = [(how, hashlib.new(how, form.encode()).hexdigest(), name) for form, how, name in lines]
    text = "".join(
        f"{junk}{ending}{FORMS[form](*line)}{ending}"
        for (form, _, _), line in zip(lines, wanted, strict=True)
    )
    assert decode_sums(text.encode(encoding)) == wanted


def saved(folder: Path, form: str) -> Path:
    """A checkpoint of some tensors."""
    path = folder / f"model{ENDINGS.get(form, f'.{form}')}"
    tensors = {"": TENSORS["w"]} if form == "npy" else TENSORS
    sv.save(path, tensors, format=form)
    return path


def files_of(path: Path) -> list[Path]:
    found = find_checkpoint(path)
    return sorted(
        each
        for each in Path(found.storage.path).rglob("*")
        if each.is_file() and not each.name.startswith(".model") and each.suffix != ".lock"
    )


def digest_of(path: Path, algorithm: str) -> str:
    return hashlib.new(algorithm, path.read_bytes()).hexdigest()


def words(report: VerifyReport) -> str:
    return " ".join([*report.notes, *(each.message for each in (*report.damages, *report.doubts))])


@pytest.mark.parametrize(
    ("form", "name"),
    [
        *((form, "SHA256SUMS") for form in WRITTEN),
        *(("safetensors", name) for name in ("checklist.chk", "sha512sum.txt", "checksums.txt")),
    ],
)
def test_a_list_next_to_the_files_of_any_format_is_compared(
    form: str, name: str, tmp_path: Path
) -> None:
    path = saved(tmp_path, form)
    algorithm = {"checklist.chk": "md5", "sha512sum.txt": "sha512"}.get(name, "sha256")
    files = files_of(path)
    folder = Path(find_checkpoint(path).storage.path)
    lines = [
        gnu(algorithm, digest_of(each, algorithm), f"{each.relative_to(folder)}") for each in files
    ]
    (folder / name).write_text("".join(f"{line}\n" for line in lines))
    report = sv.verify(path)
    assert (report.verdict, report.damages, report.doubts) == ("ok", (), ())
    assert f"in {name}" in words(report)
    largest = max(files, key=lambda each: each.stat().st_size)
    flip(largest)
    report = sv.verify(path)
    assert report.verdict == "damaged"
    if report.outcomes:
        at = str(largest.relative_to(folder))
        assert (at, True) in [(each.file, f"in {name}" in each.cause) for each in report.damages]


@pytest.mark.parametrize(
    ("form", "ending"),
    [
        *((form, ".sha256") for form in FORMS),
        *(("text", ending) for ending in (".sha256sum", ".SHA256", "-sha256.txt", ".md5")),
        ("tagged", ".md5"),
    ],
)
def test_a_list_of_one_file_is_compared_in_each_form(
    form: str, ending: str, tmp_path: Path
) -> None:
    path = saved(tmp_path, "safetensors")
    algorithm = "md5" if "md5" in ending else "sha256"
    beside = tmp_path / (path.name + ending)
    beside.write_text(FORMS[form](algorithm, digest_of(path, algorithm), path.name) + "\r\n")
    assert sv.verify(path).verdict == "ok"
    flip(path)
    (damage,) = sv.verify(path).damages
    assert damage.file == path.name and beside.name in damage.cause
    beside.write_text(digest_of(path, algorithm))  # the digits alone
    assert sv.verify(path).verdict == "ok"


UNKNOWN = {
    "empty": b"",
    "cut": b"0123456789abcdef  model.safetensors\n",
    "base64": base64.b64encode(bytes(32)),
    "binary": bytes(range(256)),
    "JSON": b'{"sha256": "00"}',
    "a manifest that is cut": b"# shardvar digest 1\n# checkpo",
    "a later manifest": b"# shardvar digest 2\n",
    "another file's": b"0" * 64 + b"  other.safetensors\n" + b"1" * 64 + b"  third.safetensors\n",
    "one other file's": b"0" * 64 + b"  other.safetensors\n",
    "another folder's": b"0" * 64 + b"  /data/old/m.safetensors\n",
}


@pytest.mark.parametrize("kind", UNKNOWN)
@pytest.mark.parametrize("is_flipped", [False, True])
def test_a_list_that_is_not_understood_is_a_doubt(
    kind: str, is_flipped: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, "safetensors")
    beside = Path(f"{path}.sha256")
    beside.write_bytes(UNKNOWN[kind])
    if is_flipped:
        flip(path)
    report = sv.verify(path)
    assert (report.verdict, report.damages) == ("not verified", ())
    (doubt,) = report.doubts
    assert beside.name in doubt.message
    assert main(["verify", str(path)]) == 3
    out = capsys.readouterr().out
    assert out.startswith("not verified: ") and "damage" not in out.splitlines()[0]
    beside.rename(tmp_path / "elsewhere")  # the remedy
    assert sv.verify(path).verdict == "complete"


@pytest.mark.parametrize("kind", [*UNKNOWN, "right", "wrong"])
@pytest.mark.parametrize("force", [False, True])
def test_a_sum_of_another_program_is_never_replaced(kind: str, force: bool, tmp_path: Path) -> None:
    path = saved(tmp_path, "safetensors")
    right = gnu("sha256", digest_of(path, "sha256"), path.name).encode()
    beside = Path(f"{path}.sha256")
    beside.write_bytes(
        {"right": right, "wrong": right[1:2] + right[:1] + right[2:], **UNKNOWN}[kind]
    )
    before = beside.read_bytes()
    report = sv.digest(path)
    if kind == "wrong" and right[:1] != right[1:2]:
        with pytest.raises(CorruptCheckpoint, match="is not the one in"):
            write_manifest(report, force)
    elif "manifest" in kind:
        if force:
            assert write_manifest(report, force) == str(beside)
        return
    else:
        written = write_manifest(report, force)
        assert written == f"{path}.shardvar.sha256"
        assert read_manifest(written).tensors == report.tensors
        assert sv.verify(path).outcomes == {"w": "ok", "b": "ok"}
        flip(path)
        assert sv.verify(path).verdict == "damaged"
    assert beside.read_bytes() == before


@pytest.mark.parametrize(
    "kind", ["link", "blob", "git blob", "notes", "git notes", "ollama", "lfs"]
)
def test_a_store_that_names_a_file_by_its_checksum_is_compared(kind: str, tmp_path: Path) -> None:
    path = saved(tmp_path, "safetensors")
    octets = path.read_bytes()
    sha256, git = (
        hashlib.sha256(octets).hexdigest(),
        hashlib.sha1(b"blob %d\0" % len(octets) + octets).hexdigest(),
    )
    is_git, cache = kind.startswith("git"), tmp_path / "models--x--y"
    blob = {
        "ollama": cache / "blobs" / f"sha256-{sha256}",
        "lfs": cache / "lfs" / "objects" / sha256[:2] / sha256[2:4] / sha256,
    }.get(kind, cache / "blobs" / (git if is_git else sha256))
    blob.parent.mkdir(parents=True)
    named = cache / "snapshots" / "0" / "sub" / path.name
    named.parent.mkdir(parents=True)
    if kind.endswith("notes"):
        path.rename(named)
        note = (
            cache / "snapshots" / "0" / ".cache/huggingface/download/sub" / f"{path.name}.metadata"
        )
        note.parent.mkdir(parents=True)
        note.write_text(f"0\n{git if is_git else sha256}\n0.0\n")
        blob = named
    else:
        path.rename(blob)
        named.symlink_to(os.path.relpath(blob, named.parent))
    tried = blob if kind == "blob" else named
    report = sv.verify(tried)
    assert report.verdict == "ok" and ("Git SHA-1" if is_git else "SHA-256") in words(report)
    flip(blob)
    (damage,) = sv.verify(tried).damages
    assert damage.kind == "CorruptCheckpoint" and damage.remedy.startswith("Remove the")


@pytest.mark.parametrize("ending", ["aria2", "incomplete", "part", "crdownload", "download"])
def test_the_file_of_a_download_is_a_doubt_until_a_checksum_settles_it(
    ending: str, tmp_path: Path
) -> None:
    path = saved(tmp_path, "safetensors")
    left = Path(f"{path}.{ending}")
    left.write_bytes(b"x")
    (doubt,) = sv.verify(path).doubts
    assert left.name in doubt.cause and sv.verify(path).verdict == "not verified"
    (tmp_path / "SHA256SUMS").write_text(gnu("sha256", digest_of(path, "sha256"), path.name))
    report = sv.verify(path)
    assert report.verdict == "ok" and left.name in words(report)
    (tmp_path / "SHA256SUMS").unlink()
    left.unlink()  # the remedy
    assert sv.verify(path).verdict == "complete"


def test_a_download_of_hugging_face_that_is_not_finished_is_a_doubt(tmp_path: Path) -> None:
    path = saved(tmp_path, "safetensors")
    folder = tmp_path / ".cache/huggingface/download"
    folder.mkdir(parents=True)
    note = f"{path.name}.metadata"
    hashed = base64.urlsafe_b64encode(hashlib.sha1(note.encode()).digest()).decode()
    for name in (f"{path.name}.ab.incomplete", f"{hashed}.ab.incomplete"):
        left = folder / name
        left.write_bytes(b"x")
        (doubt,) = sv.verify(path).doubts
        assert name in doubt.cause
        left.unlink()
    (folder / "other.ab.incomplete").write_bytes(b"x")
    (folder / note).write_text("0\nunknown\n0\n")
    assert sv.verify(path).verdict == "complete"


def test_a_folder_with_only_a_begun_download_is_called_that(tmp_path: Path) -> None:
    folder = tmp_path / ".cache/huggingface/download"
    folder.mkdir(parents=True)
    (tmp_path / "config.json").write_text("{}")
    (folder / "x.ab.incomplete").write_bytes(b"x")
    with pytest.raises(MalformedCheckpoint, match="unfinished download.*Finish the download"):
        sv.verify(tmp_path)


def test_two_checksums_that_disagree_are_a_doubt_and_no_damage(tmp_path: Path) -> None:
    """Such as the list of an older release."""
    path = saved(tmp_path, "safetensors")
    (tmp_path / "SHA256SUMS").write_text(gnu("sha256", digest_of(path, "sha256"), path.name))
    Path(f"{path}.md5").write_text(gnu("md5", "0" * 32, path.name))
    report = sv.verify(path)
    assert report.verdict == "ok" and "Its MD5 is not the one in" in words(report)


def test_a_list_of_some_files_settles_only_their_tensors(tmp_path: Path) -> None:
    tensors = {"a": np.ones(9), "b": np.zeros(9)}
    sv.save(tmp_path / "m.safetensors", tensors, policy=sv.MaxShardSizePolicy(80))
    first, second = sorted(tmp_path.glob("m-*.safetensors"))
    (tmp_path / "SHA256SUMS").write_text(gnu("sha256", digest_of(first, "sha256"), first.name))
    report = sv.verify(tmp_path)
    assert report.verdict == "complete"
    assert sorted(report.outcomes.values()) == ["not verifiable", "values match"]
    second.write_bytes(second.read_bytes()[:-1] + b"x")
    assert sv.verify(tmp_path).verdict == "complete"
    assert sv.verify(tmp_path, filter="a").verdict == "complete"


def test_a_list_that_is_given_is_compared(tmp_path: Path) -> None:
    path = saved(tmp_path / "here", "safetensors")
    given_list = tmp_path / "published.txt"
    given_list.write_text(digest_of(path, "sha256"))
    assert sv.verify(path, against=given_list).verdict == "ok"
    assert main(["verify", str(path), "--against", str(given_list)]) == 0
    given_list.write_text(gnu("sha256", "0" * 64, f"./{path.name}"))
    assert sv.verify(path, against=given_list).verdict == "damaged"
    given_list.write_text(gnu("sha256", "0" * 64, "a") + "\n" + gnu("sha256", "0" * 64, "b"))
    assert sv.verify(path, against=given_list).verdict == "not verified"
    given_list.write_text("nothing")
    with pytest.raises(MalformedCheckpoint, match="is not a manifest"):
        sv.verify(path, against=given_list)
    folder = tmp_path / "model"
    sv.save(folder, TENSORS, format="zarr")
    lines = [
        gnu("sha256", digest_of(each, "sha256"), str(each.relative_to(tmp_path)))
        for each in files_of(folder)
    ]
    Path(f"{folder}.sha256").write_text("\n".join(lines))
    assert "files agree with their SHA-256 in model.sha256" in words(sv.verify(folder))


def test_a_list_in_a_bucket_is_compared(tmp_path: Path) -> None:
    path = saved(tmp_path, "safetensors")
    sums = gnu("sha256", digest_of(path, "sha256"), path.name).encode()
    bucket = MemoryBucket({f"r/{path.name}": path.read_bytes(), "r/SHA256SUMS": sums})
    with in_bucket(bucket):
        report = sv.verify(f"s3://bucket/r/{path.name}")
    assert report.verdict == "ok"
    bucket.files["r/SHA256SUMS"] = re.sub(b"[0-9a-f]{64}", b"0" * 64, sums)
    with in_bucket(bucket):
        assert sv.verify(f"s3://bucket/r/{path.name}").verdict == "damaged"
