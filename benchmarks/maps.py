"""Maps between models: beside the same reshard without a map, and beside the programs that people
use today, which hold the model in memory; and the memory that each kind of rule takes."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np

import shardvar as sv
from benchmarks.child import call, peak_nbytes
from benchmarks.figures import Figure
from benchmarks.holes import write_holes
from benchmarks.places import Place, emptied, sync_tree
from benchmarks.reshard import COPY
from benchmarks.setting import Setting, failed, skipped
from benchmarks.sizes import GIB, MIB
from benchmarks.timing import Run
from shardvar.layout.dtypes import numpy_dtype
from shardvar.planning.slices import SliceTable, TensorTable

RENAME_TARGET, PART_TARGET, ROW_TARGET, AXIS_TARGET = 1.05, 1.2, 1.5, 2.5
PEAK_TARGET, PEER_TARGET, PEER_PEAK_TARGET = 256.0, 1.0, 0.1
SIDE = 2048
"""Rows and columns of each matrix of bfloat16: 8 MiB."""
LAYER = "layers.{l}.{s:gate|up}.weight"

FUSED, SCALES = "layers.{l}.gate_up", "scales.{l}.{s:gate|up}"

RULES: dict[str, tuple[str, str, dict[str, int | str], float | None]] = {
    "renames": ("parts", f"{LAYER} -> model.{{l}}.{{s:gate|up}}.w", {}, RENAME_TARGET),
    "concat": ("parts", f"{LAYER}[o i] -> {FUSED}[(s o) i]", {}, PART_TARGET),
    "split": ("fused", f"{FUSED}[(s o) i] -> {LAYER}[o i]", {}, PART_TARGET),
    "stack": ("parts", f"{LAYER}[o i] -> {{s:gate|up}}[l o i]", {}, PART_TARGET),
    "unstack": ("stacked", f"{{s:gate|up}}[l o i] -> {LAYER}[o i]", {}, PART_TARGET),
    "rotary halves": (
        "parts",
        f"{LAYER}[(n d two) i] -> {LAYER}[(n two d) i]",
        {"n": 16, "two": 2},
        ROW_TARGET,
    ),
    "interleaved rows": ("parts", f"{LAYER}[o i] -> {FUSED}[(o s) i]", {}, ROW_TARGET),
    "transposes": ("parts", f"{LAYER}[o i] -> {LAYER}[i o]", {}, AXIS_TARGET),
    "heads transposed": ("parts", f"{LAYER}[(n d) i] -> {LAYER}[n i d]", {"n": 16}, AXIS_TARGET),
    "experts transposed": ("stacked", "{s:gate|up}[l o i] -> {s:gate|up}[l i o]", {}, AXIS_TARGET),
    "interleaved columns": (
        "parts",
        f"{LAYER}[o (a b)] -> {LAYER}[o (b a)]",
        {"a": 2},
        AXIS_TARGET,
    ),
    "plus": ("parts", f"{LAYER} plus 1 -> {LAYER}", {}, None),
    "times scales of blocks": (
        "scaled",
        f"{LAYER}[(a p) (b q)] times {SCALES}[a b] -> {LAYER}[(a p) (b q)]",
        {"p": 128, "q": 128},
        None,
    ),
}
"""For each kind of rule its source, the rule, its sizes and the largest ratio to a reshard."""

LARGE: dict[str, tuple[list[str], dict[str, int | str]]] = {
    "a rename": (["w -> x"], {}),
    "a transpose": (["w[o i] -> w[i o]"], {}),
    "experts inside": (["w[(e o) i] -> w[o e i]"], {"e": 64}),
    "experts transposed": (["w[(e o) i] -> w[e i o]"], {"e": 64}),
    "interleaved columns": (["w[o (a b)] -> w[o (b a)]"], {"a": 2}),
    "one tensor from two": (["w[o i] -> u[o s i] @ s=0", "v[o i] -> u[o s i] @ s=1"], {}),
    "one tensor in 64": (["w[(e o) i] -> w.{e}[o i]"], {"e": 64}),
    "plus": (["w plus 1 -> w"], {}),
}
"""Rules for two tensors of half the size each; ``v`` stays as it is if no rule has it."""


@dataclass(slots=True)
class Clocked:
    """A function, and the processor time of its calls."""

    function: Callable[[], object]
    """The function."""
    seconds: list[float] = field(default_factory=list)
    """The processor time of each call."""

    def __call__(self) -> object:
        """Call it."""
        start = process_time()
        result = self.function()
        self.seconds.append(process_time() - start)
        return result


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of maps."""
    yield from _beside_reshard(setting)
    yield from _beside_transformers(setting)
    yield from _beside_tensors(setting)
    yield from _peaks(setting)


def _beside_reshard(setting: Setting) -> Iterator[Figure]:
    place, nbytes = setting.quiet, setting.sizes.reshard_nbytes // 4
    size = f"{nbytes / GIB:g} GiB"
    if not place.has_room_for(3 * nbytes):
        yield skipped(f"maps of {size}", "reshard", f"no room in {place.name}")
        return
    target = place.room("target")
    for name in dict.fromkeys(source for source, *_ in RULES.values()):
        source = place.room("source")
        call(write_source, str(source), name, nbytes)
        if name == "parts":
            yield _beside_copy(setting, size, place, source, target)
        for kind, (of, rule, sizes, goal) in RULES.items():
            if of != name:
                continue
            rules = [rule] if name != "scaled" else [rule, "scales.{x:**} -> nothing"]
            options = {"map": sv.Map(rules, sizes=sizes)}
            ours = Clocked(partial(sv.reshard, source / "a", target / "t", **options))
            theirs = Clocked(partial(sv.reshard, source / "a", target / "t"))
            runs = Run(ours, emptied(target)), Run(theirs, emptied(target))
            figure = setting.ratio(f"map of {size}: {kind}", "reshard", place, *runs, goal)
            yield _with_clock(figure, ours, theirs)
    place.room("source"), place.room("target")


def _beside_copy(setting: Setting, size: str, place: Place, source: Path, target: Path) -> Figure:
    """The same rename beside a copy of the files."""
    files = sorted(map(str, source.iterdir()))

    def copy() -> None:
        subprocess.run([*COPY, *files, str(target)], check=True)
        sync_tree(target)

    _, rule, _, _ = RULES["renames"]
    ours = Run(partial(sv.reshard, source / "a", target / "t", map=[rule]), emptied(target))
    theirs = Run(copy, emptied(target))
    return setting.ratio(f"map of {size}: renames", "cp and fsync", place, ours, theirs, 1.1)


def _with_clock(figure: Figure, ours: Clocked, theirs: Clocked) -> Figure:
    """The figure with the ratio of processor times, of all pairs but the first."""
    pairs = list(zip(ours.seconds, theirs.seconds, strict=True))
    clock = median(a / b for a, b in pairs[1:] or pairs)
    return replace(figure, note=f"{figure.note}; processor time {clock:.3g} x")


def write_source(room: str, name: str, nbytes: int) -> None:
    """A native checkpoint of matrices of bfloat16."""
    rng, dtype = np.random.default_rng(0), numpy_dtype("bfloat16")
    some = [rng.standard_normal((SIDE, SIDE), np.float32).astype(dtype) for _ in range(4)]
    count = max(1, nbytes // (2 * some[0].nbytes))
    pairs = [(layer, part) for layer in range(count) for part in ("gate", "up")]
    state: dict[str, Any] = {
        f"layers.{layer}.{part}.weight": some[(2 * layer + (part == "up")) % 4]
        for layer, part in pairs
    }
    if name == "fused":
        state = {f"layers.{n}.gate_up": np.concatenate(some[n % 2 :][:2]) for n in range(count)}
    elif name == "stacked":
        state = {part: np.stack([some[n % 4] for n in range(count)]) for part in ("gate", "up")}
    elif name == "scaled":
        blocks = rng.random((SIDE // 128, SIDE // 128), np.float32)
        state |= {f"scales.{layer}.{part}": blocks for layer, part in pairs}
    sv.save(Path(room, "a"), state)


# Beside transformers: a mixture of experts, from its files to the tensors that the model holds.


def _beside_transformers(setting: Setting) -> Iterator[Figure]:
    subject = "Qwen3-MoE, {}: to the tensors in memory"
    yield from _beside_peer(setting, subject, "transformers", write_model, "qwen3-moe")


def _beside_tensors(setting: Setting) -> Iterator[Figure]:
    subject = "rotary halves, {} of safetensors"
    yield from _beside_peer(setting, subject, "safetensors and torch", write_layers, "rotary")


def _beside_peer(
    setting: Setting,
    subject: str,
    against: str,
    write: Callable[[str, int], None],
    name: str,
) -> Iterator[Figure]:
    """The time and the peak memory of fresh processes that do the same to a file."""
    nbytes = setting.sizes.reshard_nbytes
    subject = subject.format(f"{nbytes / GIB:g} GiB")
    needed = ("torch", "safetensors", *(["transformers"] if name == "qwen3-moe" else []))
    missing = [each for each in needed if find_spec(each) is None]
    place = setting.quiet if setting.quiet.has_room_for(2 * nbytes) else setting.disk
    if missing:
        yield skipped(subject, against, f"{missing[0]} is not installed")
        return
    room = place.room("peer")
    call(write, str(room), nbytes)
    pairs = []
    for number in range(3):
        pairs.append([call(convert, name, side, str(room)) for side in ("ours", "theirs")])
        if not number and not _are_equal(room):
            yield failed(subject, against, ValueError("The results differ."))
            return
    (ours, theirs), ratio = zip(*pairs, strict=True), median(a[0] / b[0] for a, b in pairs)
    note = f"{median(a[0] for a in ours):.3g} s / {median(b[0] for b in theirs):.3g} s, 3 pairs"
    yield Figure(subject, against, place.name, ratio, "x", PEER_TARGET, note)
    peaks = [median(each[1] for each in side) / MIB for side in (ours, theirs)]
    note = f"{peaks[0]:,.0f} MiB / {peaks[1]:,.0f} MiB"
    peak = peaks[0] / peaks[1]
    subject = f"{subject}: peak memory of the process"
    yield Figure(subject, against, place.name, peak, "x", PEER_PEAK_TARGET, note)
    place.room("peer")


def convert(name: str, side: str, room: str) -> list[float]:
    """Convert a file, synced; return the seconds after the imports, and the peak memory."""
    from time import perf_counter

    work = {"qwen3-moe": _with_transformers, "rotary": _with_tensors}[name]
    target = Path(room, side)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    if side == "ours":
        source = Path(room, "model")
        given = sv.Map([ROTARY], sizes={"n": 16, "two": 2}) if name == "rotary" else MOE
        reshard = sv.reshard  # which imports what it needs
        start = perf_counter()
        reshard(source, target / "model.safetensors", map=given)
    else:
        ready = work(Path(room, "model"), target / "model.safetensors")
        start = perf_counter()
        ready()
        sync_tree(target)
    return [perf_counter() - start, peak_nbytes()]


MOE = "qwen3-moe-hf-to-transformers"
ROTARY = "layers.{l}.q.weight[(n d two) i] -> layers.{l}.q.weight[(n two d) i]"


def _with_transformers(source: Path, target: Path) -> Callable[[], object]:
    import torch
    import transformers
    from safetensors.torch import save_file

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    kind = transformers.Qwen3MoeForCausalLM

    def work() -> None:
        model = kind.from_pretrained(source, dtype=torch.bfloat16)
        save_file(model.state_dict(), target)

    return work


def _with_tensors(source: Path, target: Path) -> Callable[[], object]:
    from safetensors.torch import load_file, save_file

    def work() -> None:
        found = {}
        for key, matrix in load_file(source / "model.safetensors").items():
            rows, columns = matrix.shape
            halves = matrix.reshape(16, rows // 32, 2, columns).transpose(1, 2)
            found[key] = halves.reshape(rows, columns).contiguous()
        save_file(found, target)

    return work


def write_model(room: str, nbytes: int) -> None:
    """The files of a model of a few layers of many experts, as transformers writes them."""
    import torch
    import transformers

    transformers.logging.disable_progress_bar()
    hidden, inner = 1024, 512
    layer = 3 * hidden * inner * 2 * 64
    config = transformers.Qwen3MoeConfig(
        hidden_size=hidden,
        moe_intermediate_size=inner,
        intermediate_size=inner,
        num_experts=64,
        num_experts_per_tok=4,
        num_hidden_layers=max(1, nbytes // layer),
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=64,
        vocab_size=4096,
    )
    torch.manual_seed(0)
    model = transformers.Qwen3MoeForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(Path(room, "model"), max_shard_size="100GB")


def write_layers(room: str, nbytes: int) -> None:
    """A file of safetensors of matrices of bfloat16."""
    rng, dtype = np.random.default_rng(0), numpy_dtype("bfloat16")
    some = [rng.standard_normal((SIDE, SIDE), np.float32).astype(dtype) for _ in range(4)]
    count = max(1, nbytes // some[0].nbytes)
    state = {f"layers.{number}.q.weight": some[number % 4] for number in range(count)}
    folder = Path(room, "model")
    folder.mkdir()
    sv.save(folder / "model.safetensors", state)


def _are_equal(room: Path) -> bool:
    return sv.diff(room / "ours", room / "theirs").equal


# Memory.


def _peaks(setting: Setting) -> Iterator[Figure]:
    nbytes = 2 * setting.sizes.reshard_nbytes
    place = setting.quiet if setting.quiet.has_room_for(nbytes) else setting.disk
    for kind in LARGE:
        room = place.room("large")
        write_holes(room / "source", _two_tensors(nbytes))
        peak = call(peak_of, kind, str(room))
        subject = f"map of {nbytes / GIB:g} GiB, two tensors: {kind}: peak memory of the process"
        yield Figure(subject, "", place.name, peak / MIB, "MiB", PEAK_TARGET)
    place.room("large")


def _two_tensors(nbytes: int) -> SliceTable:
    rows = 1 << 14
    shape = rows, nbytes // 4 // rows
    table = TensorTable.of([(name, "bfloat16", shape) for name in ("w", "v")])
    return SliceTable.of(table, np.arange(2), np.zeros((2, 2), np.int64), np.array([shape, shape]))


def peak_of(kind: str, room: str) -> int:
    """The most memory of a process that maps two large tensors and does nothing else."""
    rules, sizes = LARGE[kind]
    if not any(rule.startswith("v") for rule in rules):
        rules = [*rules, "v -> v"]
    sv.reshard(Path(room, "source"), Path(room, "target"), map=sv.Map(rules, sizes=sizes))
    return peak_nbytes()
