"""What a remedy advises is done, and the trouble is gone: a scenario for each class of remedies that
the source has, and for all commands, options and names in them a parser that knows them."""

import argparse
import ast
import gzip
import inspect
import json
import re
import shlex
import shutil
import subprocess
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import shardvar as sv
import shardvar.errors
from shardvar.cli.options import make_parser, parse_arguments
from spec_tests.helpers.command_line import Outcome, Run, run
from spec_tests.helpers.paths import GOLDEN

__all__ = ["run"]

CLASSES = {
    "another program": r"[Pp]rogram|DeepSpeed|Megatron|TensorFlow|llama\.cpp|with (onnx|PEFT)|torch\.|torch\b.*saved|"
    r"Export|h5repack|numpy|other files of its writer|was (built|converted|exported) from|"
    r"lifecycle",
    "newer release": r"[Rr]elease|Update|[Ii]nstall|version of shardvar|It is read by",
    "certify": r"--certify",
    "force": r"force=True|--force",
    "exclude": r"exclude|filter|[Ll]eave .*\bout\b|Exclude",
    "rename": r"--rename|[Rr]ename (it\.|one|the tensor)|Choose a (name without|shorter key)|"
    r"under other names",
    "cast": r"[Cc]ast|numeric dtype|wider dtype",
    "dequantize": r"[Dd]equantize|weight_block_size",
    "concat": r"--concat|sources of one run|of one model|other axes|all ranks|one checkpoint|each other|"
    r"sources|one adapter",
    "delta": r"shardvar (apply|delta)|[Dd]elta|[Pp]ublish|base|was made of",
    "manifest": r"shardvar digest|manifest|sv\.digest",
    "own name": r"own name|the ending|its bare|Name the parts|[Rr]ename it back|name that it had|"
    r"end the name|another ending|names of",
    "fetch": r"[Ff]etch|[Dd]ownload",
    "unpack": r"[Uu]npack|Join (it to|all parts)|archive again|unzip",
    "commit": r"commit_shards|same `run`|new run",
    "save again": r"[Ss]av(e|ed) |[Ww]rite .*again|Write again|write again|Restart|[Rr]estore again|"
    r"start again|run (it|the same)|Run it",
    "wait": r"[Ww]ait|finish|Join (it|that)|Let (it|one)|Open .*again|lease|[Tt]ry again|Look at",
    "copy again": r"[Cc]op(y|ied)|whole|damage|missing file|[Ff]ind the file|Add the file|Mend|Repair|"
    r"several saves|were mixed|Take it",
    "path": r"[Pp]ath|[Gg]ive (its|the|their|another)|Name (a|the|one)|another (folder|step|name|directory)|"
    r"Hugging Face Hub|folder|[Uu]se (a|the)|elsewhere|Use",
    "format": r"format|Choose another|[Dd]type|into|Write|Give|Known|Protocols|constants|Join some|"
    r"Re(duce|distribute)|Choose|Do not change|supported|bytes|axes|Reshape|Encode|Spread",
    "machine": r"[Dd]isk|permission|[Cc]heck|bucket|right|server|service|credential|lock|Create|Free|"
    r"[Mm]emory|Change|Make the directory|Start",
    "distrust": r"trust",
    "remove": r"[Rr]emove",
    "look": r"shardvar (verify|inspect)|Find out|Read |to see where|Did you mean",
}
"""The classes of remedies, by what a user does; the first that matches is the class of a text."""

NO_CLASS = (
    "ArgumentError",
    "ArgumentTypeError",
    "OutOfRange",
    "LayoutError",
    "MapError",
    "PolicyError",
)
"""Errors whose remedy is another argument, and those of the reference, which change a program."""

SOURCE = Path(sv.__file__).parent
KINDS = {name for name in dir(shardvar.errors) if name[0].isupper()} | {"FileKind"}


@cache
def remedies() -> dict[str, set[str]]:
    """Return the remedies of the source, with {} for what is filled in, and their errors."""
    trees = [
        ast.parse(path.read_text())
        for path in sorted(SOURCE.rglob("*.py"))
        if "reference" not in path.parts
    ]
    public: dict[str, list[ast.expr]] = defaultdict(list)
    found: dict[str, set[str]] = defaultdict(set)
    for tree in trees:
        for name, value in assignments(tree):
            if name.isupper() and name[0] != "_":
                public[name].append(value)
    for tree in trees:
        own = defaultdict(list, public)
        for name, value in assignments(tree):
            own[name].append(value)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and len(node.args) > 1:
                kind = getattr(node.func, "id", "")
                for text in texts(node.args[1], own) if kind in KINDS else ():
                    if re.search(r"[a-z]{2}.*[a-z ]{4}", text.replace("untruly", "")):
                        found[text].add(kind)
    return found


def assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        if isinstance(node, ast.FunctionDef) and "remed" in node.name + ast.unparse(node.args):
            yield from (
                (node.name, each.value)
                for each in ast.walk(node)
                if isinstance(each, ast.Return) and each.value
            )


def texts(node: ast.AST, own: dict[str, list[ast.expr]], depth: int = 0) -> set[str]:
    """Return the texts that an expression may give."""
    match node:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.JoinedStr(values=parts):
            return {
                "".join(
                    str(each.value) if isinstance(each, ast.Constant) else "{}" for each in parts
                )
            }
        case ast.IfExp(body=first, orelse=second):
            return texts(first, own, depth) | texts(second, own, depth)
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)) if depth < 3:
            return set().union(*(texts(value, own, depth + 1) for value in own.get(name, ())))
    return set()


def class_of(text: str) -> str:
    return next((name for name, pattern in CLASSES.items() if re.search(pattern, text)), "")


# An index of another set.
TENSORS = {f"layer{number}.w": np.full((4, 4), number, np.float32) for number in range(3)}
SETS: dict[str, tuple[str, str]] = {
    "safetensors": ("", "m*.safetensors"),
    "shardvar": ("", "m.svdata*"),
    "tensorflow": ("", "m.data*"),
    "torch": ("", "*.distcp"),
    "bin": ("torch_pt/huggingface_bin_set", "*.bin"),
    "flax": ("flax/set", "*.msgpack"),
    "keras": ("keras/sharded_weights", "*.weights.h5"),
    "onnx": ("onnx/one_file", "*.data"),
}
"""By format: the folder of a golden checkpoint, if shardvar writes no set of it, and a glob of its
data files."""
BY_ITSELF = ("safetensors", "bin", "flax", "keras")


def renamed_files(kind: str, folder: Path) -> tuple[Path, dict[Path, Path]]:
    """Make a checkpoint whose data files have other names than the index has; return its path, and
    the names that the files have, with those of the index."""
    golden, glob = SETS[kind]
    if golden:
        shutil.copytree(GOLDEN / golden, folder)
        (folder / "expected.json").unlink()
        ends = ("onnx", "weights.json", "msgpack.index.json")
        path = next((each for end in ends for each in folder.glob(f"*.{end}")), folder)
    else:
        path = folder / ("m.safetensors" if kind == "safetensors" else "m")
        folder.mkdir()
        sv.save(path, TENSORS, format=kind, policy=sv.MaxShardSizePolicy(64))
    pattern, new = {
        "shardvar": ("-of-", "-of-0"),
        "tensorflow": ("-of-", "-of-0"),
        "onnx": ("^", "w"),
    }.get(kind, (r"(\d)", r"0\1"))
    names = {
        each.with_name(re.sub(pattern, new, each.name, count=1)): each
        for each in (path if kind == "torch" else folder).glob(glob)
    }
    for other, name in names.items():
        name.rename(other)
    return path, names


@pytest.mark.parametrize("kind", SETS)
def test_an_index_that_names_none_of_the_files_is_of_another_set(kind: str, tmp_path: Path) -> None:
    """One remedy for all tensors; of files with tables of contents, each opens without it. It is not
    said if one of its files is there."""
    path, names = renamed_files(kind, tmp_path / "set")
    report = sv.verify(path)
    assert report.verdict == ("damaged" if kind == "onnx" else "not verified")
    missing = [each for each in report.damages + report.doubts if each.kind == "MissingFile"]
    (told,) = {each.remedy for each in missing}
    assert all("another set" in each.cause for each in missing) and "again" not in told
    index = re.search(r"move (\S+) away", told)
    assert (index is not None) == (kind in BY_ITSELF)
    if index:
        (tmp_path / "set" / index[1]).rename(tmp_path / "away")
        for other in names:
            assert sv.load(other)
        (tmp_path / "away").rename(tmp_path / "set" / index[1])
    for number, (other, name) in enumerate(names.items()):
        report = sv.verify(path)
        assert "another set" not in str(report.damages + report.doubts) or number == 0
        other.rename(name)
    assert sv.verify(path).ok


# What is done, by class. Each says how the trouble is made, and what the words make of it.
W = np.arange(8, dtype=np.float32).reshape(2, 4)


def write(**arrays: np.ndarray[Any, Any]) -> None:
    """Write a safetensors file by its name, with the tensor ``w``."""
    for name, array in arrays.items():
        sv.save(f"{name}.safetensors", {"w": array})


def refused(told: Outcome, pattern: str) -> re.Match[str]:
    """Return the words of a remedy, in what a command printed; it was refused."""
    match = re.search(pattern, " ".join((told.out + told.err).split()))
    assert told.code and match, told
    return match


def index_of_a_false_key(run: Run) -> str:
    """A key that the index names, and no file has."""
    sv.save("m.safetensors", TENSORS, policy=sv.MaxShardSizePolicy(64))
    index = Path("m.safetensors.index.json")
    named = json.loads(index.read_text())
    named["weight_map"]["mtp.fc.weight"] = next(iter(named["weight_map"].values()))
    index.write_text(json.dumps(named))
    return refused(run("reshard", "m", "o.npz"), r"leave the key out with (--\w+)")[1]


def exclude(run: Run) -> Outcome:
    return run("reshard", "m", "o.npz", index_of_a_false_key(run), "mtp.fc.weight")


def fetch(run: Run) -> Outcome:
    write(m=W)
    right = Path("m.safetensors").read_bytes()
    Path("m.safetensors").write_bytes(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n"
    )
    refused(run("verify", "m.safetensors"), "Fetch the content: `git lfs pull`")
    Path("m.safetensors").write_bytes(right)
    return run("verify", "m.safetensors")


def copy_again(run: Run) -> Outcome:
    sv.save("m", TENSORS, policy=sv.MaxShardSizePolicy(64))
    lost = sorted(Path().glob("m.svdata*"))[0]
    lost.rename("aside")
    option = refused(
        run("reshard", "m", "o.npz"),
        r"Copy the file again .* Or save all other tensors: (--[a-z-]+)",
    )[1]
    kept = run("reshard", "m", "kept.npz", option)
    assert kept.code == 1 and len(sv.load("kept.npz")) == 2
    Path("aside").rename(lost)
    return run("reshard", "m", "o.npz")


def force(run: Run) -> Outcome:
    write(m=W, o=W)
    option = refused(run("reshard", "m.safetensors", "o.safetensors"), r"pass (--force)")[1]
    assert run("reshard", "m.safetensors", "another.safetensors").code == 0
    return run("reshard", "m.safetensors", "o.safetensors", option)


def rename(run: Run) -> Outcome:
    sv.save("m.safetensors", {"a": W, "a/b": W})
    option = refused(run("reshard", "m.safetensors", "o.zarr"), r"Rename one of them \((--\w+)\)")[
        1
    ]
    return run("reshard", "m.safetensors", "o.zarr", option, "a/b=c")


def cast(run: Run) -> Outcome:
    write(a=W, b=W.astype(np.float64))
    words = ["reshard", "a.safetensors", "b.safetensors", "o.npz", "--concat", "w=0"]
    command = refused(run(*words), "`shardvar (reshard SRC DST --cast DTYPE)`")[1]
    for name in "ab":
        filled = command.replace("SRC", f"{name}.safetensors").replace("DST", f"{name}2.npz")
        assert run(*filled.replace("DTYPE", "float32").split()).code == 0
    return run("reshard", "a2.npz", "b2.npz", *words[3:])


def format_(run: Run) -> Outcome:
    sv.save("m.safetensors", {"w": W.astype(ml_dtypes.bfloat16)})
    told = refused(run("reshard", "m.safetensors", "o.npz"), r"cast them, or choose another format")
    assert told and run("reshard", "m.safetensors", "c.npz", "--cast", "*=float32").code == 0
    return run("reshard", "m.safetensors", "o")


def concat(run: Run) -> Outcome:
    write(r0=W, r1=W + 1)
    words = ["reshard", "r0.safetensors", "r1.safetensors", "o.npz"]
    option, value = refused(run(*words), "say along which axis: (--concat) '(GLOB=AXIS)'").groups()
    return run(*words, option, value.replace("GLOB", "w").replace("AXIS", "1"))


def path(run: Run) -> Outcome:
    write(**{"ckpt-1": W, "ckpt-2": W + 1})
    told = refused(
        run("reshard", ".", "o.npz"),
        r"Give the path of one of them, as `shardvar (inspect)` lists .* the newest: (--latest)",
    )
    with pytest.raises(sv.errors.AmbiguousPath) as caught:
        sv.load(".")
    found = re.search(r"the newest: sv\.(\w+)\(PATH\)", str(caught.value))
    assert found and Path(getattr(sv, found[1])("."))
    assert run(told[1], ".").out.count("ckpt-") >= 2
    assert run("reshard", "ckpt-1.safetensors", "a.npz").code == 0
    return run("reshard", ".", "o.npz", told[2])


def delta(run: Run) -> Outcome:
    write(a=W, b=W + 1)
    sv.delta("a.safetensors", "b.safetensors", "d")
    command = refused(run("reshard", "d", "o.npz"), "`shardvar (apply BASE DELTA OUT)`")[1]
    words = {"BASE": "a.safetensors", "DELTA": "d", "OUT": "c.npz"}
    assert run(*(words.get(word, word) for word in command.split())).code == 0
    return run("diff", "b.safetensors", "c.npz")


def manifest(run: Run) -> Outcome:
    write(m=W)
    words = ["verify", "m.safetensors", "--against", "m.safetensors.sha256"]
    command = refused(run(*words), "`shardvar (digest PATH --write)` writes one")[1]
    assert run(*command.replace("PATH", "m.safetensors").split()).code == 0
    return run(*words)


def own_name(run: Run) -> Outcome:
    sv.save("m.pt", {"w": W})
    shutil.copy("m.pt", "m.npz")
    ending = refused(run("verify", "m.npz"), r"Give it its own name \((\.\w+)\)")[1]
    Path("m.npz").rename("o" + ending)
    return run("verify", "o" + ending)


def unpack(run: Run) -> Outcome:
    write(m=W)
    octets = Path("m.safetensors").read_bytes()
    Path("z.safetensors.gz").write_bytes(gzip.compress(octets))
    with zipfile.ZipFile("z.zip", "w") as archive:
        archive.write("m.safetensors")
    command = refused(run("verify", "z.safetensors.gz"), "Unpack it: `([^`]*)`")[1]
    command = command.replace("FILE", "z.safetensors.gz").replace("NAME", "z.safetensors")
    subprocess.run(command, shell=True, check=True)
    assert run("verify", "z.safetensors").code == 0
    command = refused(run("verify", "z.zip"), r"unpack it \(`(\w+)`\)")[1]
    assert command == "unzip"
    zipfile.ZipFile("z.zip").extractall("unpacked")
    return run("verify", "unpacked/m.safetensors")


def commit(run: Run) -> Outcome:
    sv.save_shards("m", {"w": W}, process=0, num_processes=2, run="one", commit=False)
    told = refused(run("verify", "m"), "Save there again with the same `run`")
    sv.save_shards("m", {"w": W}, process=1, num_processes=2, run="one", commit=False)
    told = refused(run("verify", "m"), r"Commit it: sv\.(\w+), with the `(run)`")
    getattr(sv, told[1])("m", **{told[2]: "one"}, num_processes=2)
    return run("verify", "m")


def look(run: Run) -> Outcome:
    write(m=W)
    told = refused(
        run("reshard", "m.safetensors", "o.npz", "--filter", "none"),
        "`shardvar (inspect)` lists the keys",
    )
    (key,) = {row["key"] for row in run(told[1], "m.safetensors", "--json").json["tensors"]}
    return run("reshard", "m.safetensors", "o.npz", "--filter", key)


SCENARIOS: dict[str, Callable[[Run], Outcome]] = {
    "exclude": exclude, "fetch": fetch, "copy again": copy_again, "force": force, "rename": rename,
    "cast": cast, "format": format_, "concat": concat, "path": path, "delta": delta,
    "manifest": manifest, "own name": own_name, "unpack": unpack, "commit": commit, "look": look,
}  # fmt: skip
"""By class: make the trouble, and do what the remedy says; the outcome of the verb then."""

ELSEWHERE = {
    "another program": "peers",
    "newer release": "formats/test_native_hostile.py",
    "dequantize": "verbs/test_dequantization.py",
    "save again": "verbs/test_share_fence.py",
    "wait": "storage/test_concurrency.py",
    "machine": "storage/test_denied.py",
    "distrust": "formats/test_hostile_files.py",
    "remove": "verbs/test_removal.py",
    "certify": "verbs/test_derivation.py",
}
"""By class of remedies that are not one command: the tests that do them."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_a_remedy_says_helps(
    name: str,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    told = SCENARIOS[name](run)
    assert told.code == 0, told


# What remedies name.


def options() -> set[str]:
    """Return the options of all commands, and of ``python -m shardvar.vectors``."""
    (commands,) = (
        each for each in make_parser()._actions if isinstance(each, argparse._SubParsersAction)
    )
    return {"--without"} | {
        option for parser in commands.choices.values() for option in parser._option_string_actions
    }


def test_commands_options_and_names_in_remedies_exist() -> None:
    """Each command parses, each option is one of a command, each name is one of the package."""
    known = options()
    wrong = []
    for text in remedies():
        wrong += [
            each for each in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text) if each not in known
        ]
        for command in re.findall(r"`shardvar ([a-z]+ [^`]*)`", text):
            filled = command.replace("DTYPE", "float32").replace("GLOB=AXIS", "*=0")
            parse_arguments(shlex.split(filled.replace("{}", "x")))
        for path in re.findall(r"\b(?:sv|shardvar)\.([A-Za-z_]\w*)", text):
            if not (hasattr(sv, path) or (SOURCE / path).exists()):
                wrong.append(path)
    assert not wrong and len(remedies()) > 500


def test_keywords_in_remedies_are_those_of_functions() -> None:
    """Of ``name= (--option)``, both exist."""
    keywords = {
        name
        for verb in (
            sv.load,
            sv.save,
            sv.reshard,
            sv.verify,
            sv.diff,
            sv.digest,
            sv.apply,
            sv.delta,
        )
        for name in inspect.signature(verb).parameters
    }
    named = {
        each
        for text in remedies()
        for each in re.findall(r"(\w+)=?\S* \(--", text)
        if each + "=" in text
    }
    assert named and named <= keywords


def test_every_remedy_is_of_a_class_and_every_class_has_a_scenario() -> None:
    without = [
        text
        for text, kinds in remedies().items()
        if not class_of(text) and not kinds <= {*NO_CLASS}
    ]
    assert without == []
    assert CLASSES.keys() == SCENARIOS.keys() | ELSEWHERE.keys()
    assert all((SOURCE.parent / "spec_tests" / path).exists() for path in ELSEWHERE.values())
