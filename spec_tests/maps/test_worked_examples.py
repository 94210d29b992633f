"""Maps whose results are worked out by hand in NumPy: what converters of models do, in all dtypes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import MapError

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


@dataclass(frozen=True)
class Worked:
    """A map, what it takes, and what it makes of that."""

    rules: list[str]
    tensors: Arrays
    made: Callable[[Arrays], Arrays]
    sizes: Mapping[str, int | str] = field(default_factory=dict)
    has_inverse: bool = True
    back_sizes: Mapping[str, int | str] | None = None
    """The sizes of the inverse, where it needs others."""


def some(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    bits = np.random.default_rng([seed, *shape]).integers(
        0, 200, (*shape, np.dtype(dtype).itemsize)
    )
    return bits.astype(np.uint8).view(dtype).reshape(shape)


def layers(count: int, name: str, *shape: int, dtype: Any = np.float32) -> Arrays:
    return {name.format(n): some(*shape, dtype=dtype, seed=n) for n in range(count)}


def stacked(tensors: Arrays, name: str, count: int) -> Array:
    return np.stack([tensors[name.format(n)] for n in range(count)])


def grouped(q: Array, k: Array, v: Array, groups: int, size: int) -> Array:
    """Query, key and value as Megatron stores them: per group its queries, its key, its value."""
    rest = q.shape[1:]
    parts = [each.reshape(groups, -1, size, *rest) for each in (q, k, v)]
    return np.concatenate(parts, axis=1).reshape(-1, *rest)


GQA = [
    "q.{k:weight|bias}[(g s d) ...] -> qkv.{k:weight|bias}[(g s d) ...] @ s=0:r",
    "k.{k:weight|bias}[(g d) ...] -> qkv.{k:weight|bias}[(g s d) ...] @ s=r",
    "v.{k:weight|bias}[(g d) ...] -> qkv.{k:weight|bias}[(g s d) ...] @ s=r+1",
]
WORKED = {
    "grouped QKV with weights and biases in the same rules": Worked(
        [rule.replace("{k:weight|bias}", "{x:*}") for rule in GQA],
        {f"{n}.{x}": some(rows, *rest, seed=ord(n)) for n, rows in (("q", 48), ("k", 16), ("v", 16))
         for x, rest in (("weight", (10,)), ("bias", ()))},
        lambda t: {f"qkv.{x}": grouped(t[f"q.{x}"], t[f"k.{x}"], t[f"v.{x}"], 2, 8)
                   for x in ("weight", "bias")},
        {"g": 2, "r": 3, "s": "r + 2"},
    ),
    "QKV of BLOOM: each head has its query, key and value": Worked(
        ["qkv.{l}[(h s d) i] -> {s:q|k|v}.{l}[(h d) i]"],
        layers(12, "qkv.{}", 24, 5),
        lambda t: {f"{n}.{layer}": t[f"qkv.{layer}"].reshape(4, 3, 2, 5)[:, s].reshape(8, 5)
                   for layer in range(12) for s, n in enumerate("qkv")},
        {"h": 4},
    ),
    "QKV of Phi-3: parts of unequal sizes": Worked(
        ["qkv[o i] @ o=0:a -> q[o i]", "qkv[o i] @ o=a:a+b -> k[o i]", "qkv[o i] @ o=a+b: -> v[o i]"],
        {"qkv": some(20, 3)},
        lambda t: dict(zip("qkv", np.split(t["qkv"], [12, 16]), strict=True)),
        {"a": 12, "b": 4},
    ),
    "an output gate between the queries of each head": Worked(
        ["q_proj[(g r two d) i] -> qg[(g two r d) i]"],
        {"q_proj": some(2 * 3 * 2 * 4, 5)},
        lambda t: {"qg": t["q_proj"].reshape(2, 3, 2, 4, 5).swapaxes(1, 2).reshape(48, 5)},
        {"g": 2, "two": 2, "d": 4},
    ),
    "gate and up by turns, as GPT-OSS has them": Worked(
        ["l.{l}.{s:gate|up}.{w:weight|bias}[o ...] -> l.{l}.both.{w:weight|bias}[(o s) ...]"],
        {f"l.{n}.{s}.{w}": some(6, *rest, seed=n) for n in range(2) for s in ("gate", "up")
         for w, rest in (("weight", (4,)), ("bias", ()))},
        lambda t: {f"l.{n}.both.{w}": np.stack([t[f"l.{n}.gate.{w}"], t[f"l.{n}.up.{w}"]], 1)
                   .reshape(12, *t[f"l.{n}.up.{w}"].shape[1:])
                   for n in range(2) for w in ("weight", "bias")},
    ),
    "experts that are stacked, fused and transposed": Worked(
        ["e.{e}.{s:w1|w3}.weight[f d] -> moe.gate_up[e d (s f)]", "e.{e}.w2.weight[d f] -> moe.down[e f d]"],
        {f"e.{e}.{w}.weight": some(*((4, 6) if w == "w2" else (6, 4)), seed=e) for e in range(11)
         for w in ("w1", "w2", "w3")},
        lambda t: {
            "moe.gate_up": np.stack([np.concatenate([t[f"e.{e}.w1.weight"], t[f"e.{e}.w3.weight"]]).T
                                     for e in range(11)]),
            "moe.down": np.stack([t[f"e.{e}.w2.weight"].T for e in range(11)]),
        },
    ),
    "experts of all layers in one tensor of five axes": Worked(
        ["l.{l}.e.{e}.{s:g|u}[f d] -> all[l e s d f]"],
        {f"l.{n}.e.{e}.{s}": some(3, 2, seed=n * 4 + e) for n in range(3) for e in range(4)
         for s in "gu"},
        lambda t: {"all": np.array([[[t[f"l.{n}.e.{e}.{s}"].T for s in "gu"] for e in range(4)]
                                    for n in range(3)])},
    ),
    "five axes turned around": Worked(
        ["w[a b c d e] -> w[e (d a) 1 (b c)]"],
        {"w": some(2, 3, 4, 5, 6, dtype=np.int16)},
        lambda t: {"w": t["w"].transpose(4, 3, 0, 1, 2).reshape(6, 10, 1, 12)},
        back_sizes={"a": 2, "b": 3},
    ),
    "a vocabulary that is padded": Worked(
        ["embed[v h] -> table[v h] @ v=0:n else 0"],
        {"embed": some(50, 6, dtype=ml_dtypes.bfloat16)},
        lambda t: {"table": np.pad(t["embed"], [(0, 14), (0, 0)])},
        {"v": 64, "n": 50},
        has_inverse=False,
    ),
    "padding that is cut off, and stored elsewhere": Worked(
        ["table[v h] @ v=0:n -> embed[v h]", "table[v h] @ v=n: -> rest[v h]"],
        {"table": some(64, 6)},
        lambda t: {"embed": t["table"][:50], "rest": t["table"][50:]},
        {"n": 50},
    ),
    "padding at both ends of two axes": Worked(
        ["w[a b] -> w[a b] @ a=1:1+m, b=2:2+n else -1"],
        {"w": some(3, 4, dtype=np.int8)},
        lambda t: {"w": np.pad(t["w"], [(1, 1), (2, 3)], constant_values=-1)},
        {"a": 5, "b": 9, "m": 3, "n": 4},
        has_inverse=False,
    ),
    "rotary pairs to halves, of a weight and of a bias": Worked(
        ["q.{x:*}[(n d two) ...] -> q.{x}[(n two d) ...]"],
        {"q.weight": some(32, 5), "q.bias": some(32)},
        lambda t: {key: a.reshape(4, 4, 2, *a.shape[1:]).swapaxes(1, 2).reshape(a.shape)
                   for key, a in t.items()},
        {"n": 4, "two": 2},
    ),
    "rotary parts behind a part that is not turned": Worked(
        ["q[n c i] @ c=0:a -> q[n c i] @ c=0:a",
         "q[n c i] @ c=a: -> rope[n c i]"],
        {"q": some(4, 12, 3)},
        lambda t: {"q": t["q"][:, :8], "rope": t["q"][:, 8:]},
        {"a": 8},
    ),
    "scanned layers whose numbers begin elsewhere": Worked(
        ["scan[h l i] -> model.layers.{l+2}.w[i h]", "first -> model.layers.0.w",
         "second -> model.layers.1.w"],
        {"scan": some(4, 12, 3), "first": some(3, 4, seed=1), "second": some(3, 4, seed=2)},
        lambda t: {"model.layers.0.w": t["first"], "model.layers.1.w": t["second"]}
        | {f"model.layers.{n + 2}.w": t["scan"][:, n].T for n in range(12)},
    ),
    "layers in blocks of a period, and a rest": Worked(
        ["l.{(b p)}.w[o] @ b=0:3 -> blocks.{p}[b o]", "l.{(b p)}.w[o] @ b=3: -> rest.{p}[b o]"],
        layers(14, "l.{}.w", 5),
        lambda t: {f"blocks.{p}": np.stack([t[f"l.{b * 4 + p}.w"] for b in range(3)]) for p in range(4)}
        | {f"rest.{p}": t[f"l.{12 + p}.w"][None] for p in range(2)},
        {"p": 4},
    ),
    "layers of pipeline stages, dealt in turns": Worked(
        ["stage.{s}.chunk.{c}.{l}.w -> layers.{(c s l)}.w"],
        {f"stage.{s}.chunk.{c}.{n}.w": some(3, seed=s * 100 + c * 10 + n)
         for s in range(2) for c in range(3) for n in range(2)},
        lambda t: {f"layers.{(c * 2 + s) * 2 + n}.w": t[f"stage.{s}.chunk.{c}.{n}.w"]
                   for s in range(2) for c in range(3) for n in range(2)},
        {"s": 2, "l": 2},
    ),
    "tied embeddings, one of them transposed": Worked(
        ["embed[v h] -> tok[v h]", "also embed[v h] -> head[h v]"],
        {"embed": some(9, 4, dtype=np.float16)},
        lambda t: {"tok": t["embed"], "head": t["embed"].T},
        has_inverse=False,
    ),
    "key heads that are repeated for each query head": Worked(
        ["also k[h i] -> k.{r}[h i]"],
        {"k": some(8, 3)},
        lambda t: {f"k.{r}": t["k"] for r in range(3)},
        {"r": 3},
        has_inverse=False,
    ),
    "the first layers are dense, and the others have experts": Worked(
        ["l.{l}.mlp.w @ l=0:k -> dense.{l}.w", "l.{l}.mlp.e.{e}.w[o i] @ l=k: -> moe.{l}.w[e o i]"],
        layers(2, "l.{}.mlp.w", 3, 4)
        | {f"l.{n}.mlp.e.{e}.w": some(2, 4, seed=n + 9 * e) for n in (2, 3) for e in range(3)},
        lambda t: {f"dense.{n}.w": t[f"l.{n}.mlp.w"] for n in range(2)}
        | {f"moe.{n - 2}.w": stacked(t, f"l.{n}.mlp.e.{{}}.w", 3) for n in (2, 3)},
        {"k": 2},
    ),
    "buffers are left out, and norms get one": Worked(
        ["{x:**}.inv_freq -> nothing", "{x:**}.norm.weight[h] plus 1 -> {x}.norm.scale[h]"],
        {"a.b.inv_freq": some(3), "inv.inv_freq": some(2), "a.norm.weight": np.float32([0, -1, 3.5]),
         "b/c.norm.weight": np.float32([1e-8, 7, -0.0])},
        lambda t: {key.replace("weight", "scale"): a + np.float32(1) for key, a in t.items()
                   if "norm" in key},
        has_inverse=False,
    ),
    "one is added in float64, and rounded once to bfloat16": Worked(
        ["n plus 1 -> n"],
        {"n": np.array([0.00390625, 0.005, 1.0, 250.5], ml_dtypes.bfloat16)},
        lambda t: {"n": (t["n"].astype(np.float32) + 1).astype(ml_dtypes.bfloat16)},
        has_inverse=False,
    ),
    "queries are scaled by a power of the size of a head": Worked(
        ["q[n d i] times d ** -0.5 -> q[(n d) i]"],
        {"q": np.linspace(-3, 9, 2 * 16 * 3, dtype=np.float32).reshape(2, 16, 3)},
        lambda t: {"q": (t["q"] * np.float32(0.25)).reshape(32, 3)},
        {"d": 16},
        has_inverse=False,
    ),
    "FP8 of a whole model: blocks of any key, with its scale": Worked(
        ["{x:**}.weight[(a p) (b q)] times {x}.scale_inv[a b] -> {x}.weight[(a p) (b q)]", "norm -> norm"],
        {"a.weight": np.arange(35, dtype=np.float32).reshape(5, 7),
         "a.scale_inv": np.float32([[1, 2, 3], [4, 5, 6], [7, 8, 9]]),
         "l.0.w.weight": np.ones((4, 3), np.float32), "l.0.w.scale_inv": np.float32([[2], [3]]),
         "norm": some(3)},
        lambda t: {
            "a.weight": t["a.weight"] * t["a.scale_inv"].repeat(2, 0)[:5].repeat(3, 1)[:, :7],
            "l.0.w.weight": np.float32([[2] * 3, [2] * 3, [3] * 3, [3] * 3]),
            "norm": t["norm"],
        },
        {"p": 2, "q": 3},
        has_inverse=False,
    ),
    "a scale for each expert, in a tensor of its own": Worked(
        ["experts[e o i] times scale.{e}[o] -> experts[e i o]"],
        {"experts": np.arange(24, dtype=np.float32).reshape(3, 2, 4),
         **{f"scale.{e}": np.float32([e + 1, 10 * e]) for e in range(3)}},
        lambda t: {
            "experts": np.stack(
                [(t["experts"][e] * t[f"scale.{e}"][:, None]).T for e in range(3)]
            )
        },
        has_inverse=False,
    ),
    "a scale whose number is made of the layer's and the expert's": Worked(
        ["l.{l}.e.{e}[o] times s.{(l e)}[] times 2 -> l.{l}.e[e o]"],
        {**{f"l.{n}.e.{e}": np.float32([1, 2]) for n in range(2) for e in range(3)},
         **{f"s.{n}": np.array(n, np.float32) for n in range(6)}},
        lambda t: {f"l.{n}.e": np.stack([np.float32([2, 4]) * (n * 3 + e) for e in range(3)])
                   for n in range(2)},
        has_inverse=False,
        sizes={"e": 3},
    ),
    "only the rope's part of a cut axis is scaled into a tensor of its own": Worked(
        ["kv[(a p) i] @ a=0:4 times s[a] -> latent[(a p) i]", "kv[(a p) i] @ a=4: times s[a] -> rope[(a p) i]"],
        {"kv": np.ones((9, 2), np.float32), "s": np.float32([1, 2, 3, 4, 5])},
        lambda t: {"latent": np.float32([1, 1, 2, 2, 3, 3, 4, 4]).repeat(2).reshape(8, 2),
                   "rope": np.float32([[5, 5]])},
        {"p": 2},
        has_inverse=False,
    ),
    "halves of two ranks, joined along three axes": Worked(
        ["{rank}/v[v h] -> v[(rank v) h]", "{rank}/o[o i] -> o[o (rank i)]",
         "{rank}/e[e o] -> e.{(rank e)}[o]"],
        {f"{r}/{k}": some(2, 3, seed=r * 3 + n) for r in range(2) for n, k in enumerate("voe")},
        lambda t: {"v": np.concatenate([t["0/v"], t["1/v"]]), "o": np.concatenate([t["0/o"], t["1/o"]], 1)}
        | {f"e.{n}": np.concatenate([t["0/e"], t["1/e"]])[n] for n in range(4)},
        back_sizes={"rank": 2},
    ),
    "gate and up, cut by ranks before they were fused": Worked(
        ["{rank}/fc1[(s o) i] -> {s:gate|up}[(rank o) i]"],
        {f"{r}/fc1": some(8, 3, seed=r) for r in range(3)},
        lambda t: {n: np.concatenate([t[f"{r}/fc1"].reshape(2, 4, 3)[s] for r in range(3)])
                   for s, n in enumerate(("gate", "up"))},
        back_sizes={"rank": 3},
    ),
    "a convolution to a matrix, and its kernel to the last axes first": Worked(
        ["conv[o i t y x] -> proj[o (i t y x)]", "patch[o i y x] -> kernel[y x i o]"],
        {"conv": some(4, 3, 2, 2, 2), "patch": some(4, 3, 2, 5)},
        lambda t: {"proj": t["conv"].reshape(4, 24), "kernel": t["patch"].transpose(2, 3, 1, 0)},
        back_sizes={"i": 3, "t": 2, "y": 2},
    ),
    "axes of one element come and go": Worked(
        ["pos[1 p h] -> pos[p h]", "bias[h] -> bias[1 1 h 1]", "scalar[] -> vector[1]"],
        {"pos": some(1, 7, 4), "bias": some(4), "scalar": some()},
        lambda t: {"pos": t["pos"][0], "bias": t["bias"].reshape(1, 1, 4, 1),
                   "vector": t["scalar"].reshape(1)},
    ),
    "scalars become a vector": Worked(
        ["step.{n}[] -> steps[n]"],
        {f"step.{n}": np.array(n * 7, np.int64) for n in range(12)},
        lambda t: {"steps": np.arange(12) * 7},
    ),
    "a vector becomes scalars": Worked(
        ["scales[n] -> {n:a|b|c}.scale[]"],
        {"scales": some(3, dtype=np.float64)},
        lambda t: {f"{n}.scale": t["scales"][k] for k, n in enumerate("abc")},
    ),
    "axes without elements": Worked(
        ["w[a b c] -> w[c (b a)]", "{s:x|y}[i] -> xy[(s i)]", "z -> kept"],
        {"w": some(3, 0, 2), "x": some(0), "y": some(0), "z": some(0, 5)},
        lambda t: {"w": some(2, 0), "xy": some(0), "kept": some(0, 5)},
        back_sizes={"a": 3},
    ),
    "booleans": Worked(
        ["mask[q k] -> mask[k q]", "a[n] -> ab[(n s)] @ s=0", "b[n] -> ab[(n s)] @ s=1"],
        {"mask": np.arange(6).reshape(2, 3) % 4 > 1, "a": np.ones(4, bool), "b": np.zeros(4, bool)},
        lambda t: {"mask": t["mask"].T, "ab": np.tile([True, False], 4)},
    ),
    "bytes and numbers of 64 bits": Worked(
        ["a[i j] -> a[(j i)]", "b[(i three)] -> b.{three}[i]"],
        {"a": some(3, 5, dtype=np.uint8), "b": some(12, dtype=np.uint64)},
        lambda t: {"a": t["a"].T.reshape(-1)} | {f"b.{n}": t["b"][n::3] for n in range(3)},
        {"three": 3},
        back_sizes={"three": 3, "j": 5},
    ),
    "FP8 elements, whose bits may be NaN": Worked(
        ["e.{e}[o i] -> e[e i o]"],
        layers(3, "e.{}", 4, 5, dtype=ml_dtypes.float8_e4m3fn),
        lambda t: {"e": stacked(t, "e.{}", 3).swapaxes(1, 2)},
    ),
    "complex numbers": Worked(
        ["freqs[p d] -> freqs[d p]"],
        {"freqs": some(5, 3, dtype=np.complex64)},
        lambda t: {"freqs": t["freqs"].T},
    ),
    "elements of four bits": Worked(
        ["w[(a b) c] -> w[c b a]"],
        {"w": (np.arange(24) % 15 - 7).astype(np.int8).reshape(6, 4).astype(ml_dtypes.int4)},
        lambda t: {"w": t["w"].reshape(3, 2, 4).transpose(2, 1, 0)},
        {"a": 3},
    ),
    "tensors of several dtypes by one rule": Worked(
        ["{x:**}[a ... b] -> {x}[b ... a]"],
        {"i": some(2, 3, dtype=np.int32), "deep.f": some(2, 3, 4, 5), "a/b": np.arange(8).reshape(4, 1, 2) % 2 > 0},
        lambda t: {key: a.swapaxes(0, -1) for key, a in t.items()},
    ),
    "an encoder and a decoder of other depths": Worked(
        ["{x:*}.{l}.w[o i] -> {x}.all[l i o]"],
        layers(3, "enc.{}.w", 2, 4) | layers(11, "dec.{}.w", 5, 3),
        lambda t: {"enc.all": stacked(t, "enc.{}.w", 3).swapaxes(1, 2),
                   "dec.all": stacked(t, "dec.{}.w", 11).swapaxes(1, 2)},
    ),
    "numbers that are missing are filled": Worked(
        ["e.{n}[h] -> rows[n h] @ n=0: else 0"],
        {"e.1": some(2, seed=1), "e.3": some(2, seed=3)},
        lambda t: {"rows": np.stack([np.zeros(2, "f4"), t["e.1"], np.zeros(2, "f4"), t["e.3"],
                                     np.zeros(2, "f4")])},
        {"n": 5},
        has_inverse=False,
    ),
    "some heads go to one target, and the others to another": Worked(
        ["w[(h d) i] @ h=0:2, d=0:3 -> a[h d i]", "w[(h d) i] @ h=0:2, d=3: -> b[(h d) i]",
         "w[(h d) i] @ h=2: -> c[i d h]"],
        {"w": some(20, 2)},
        lambda t: {"a": t["w"].reshape(5, 4, 2)[:2, :3], "b": t["w"].reshape(5, 4, 2)[:2, 3:].reshape(2, 2),
                   "c": t["w"].reshape(5, 4, 2)[2:].transpose(2, 1, 0)},
        {"h": 5},
    ),
    "Falcon's fused rows, by the map that is shipped": Worked(
        [*sv.Map.read("falcon-hf-to-split").rules],
        layers(11, "transformer.h.{}.self_attention.query_key_value.weight", 40, 3)
        | {"lm_head.weight": some(5, 3), "transformer.h.0.ln_attn.bias": some(3)},
        lambda t: {
            key.replace("query_key_value", name): rows.reshape(-1, 3)
            for key, array in t.items()
            if "query" in key
            for name, rows in zip(
                ("query", "key", "value"),
                np.split(array.reshape(2, 5, 4, 3), [3, 4], axis=1),
                strict=True,
            )
        }
        | {key: array for key, array in t.items() if "query" not in key},
        {"g": 2, "r": 3, "s": "r + 2"},
    ),
    "T5, by the map that is shipped": Worked(
        [*sv.Map.read("t5-hf-to-gguf").rules],
        layers(11, "encoder.block.{}.layer.1.DenseReluDense.wi_1.weight", 2, 3)
        | layers(2, "decoder.block.{}.layer.1.EncDecAttention.o.weight", 3, 3)
        | {"decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": some(8, 2)},
        lambda t: dict(
            zip(
                [
                    *(f"enc.blk.{n}.ffn_up.weight" for n in range(11)),
                    *(f"dec.blk.{n}.cross_attn_o.weight" for n in range(2)),
                    "dec.blk.0.attn_rel_b.weight",
                ],
                t.values(),
                strict=True,
            )
        ),
    ),
    "keys that are odd": Worked(
        ["'it''s [a] {b}'[x y] -> \"say \"\"x\"\" -> y\"[y x]", "'a b'.{l} -> 'c@d'.{l+1}"],
        {"it's [a] {b}": some(2, 3), "a b.0": some(2), "a b.1": some(2)},
        lambda t: {'say "x" -> y': t["it's [a] {b}"].T, "c@d.1": t["a b.0"], "c@d.2": t["a b.1"]},
    ),
}  # fmt: skip


def assert_same(found: Arrays, wanted: Arrays) -> None:
    assert found.keys() == wanted.keys()
    for key, array in wanted.items():
        assert (found[key].dtype, found[key].shape) == (array.dtype, array.shape), key
        assert found[key].tobytes() == np.asarray(array, order="C").tobytes(), key


@pytest.mark.parametrize("name", WORKED)
def test_a_map_makes_what_was_worked_out(name: str, tmp_path: Path) -> None:
    each = WORKED[name]
    tensors = {key: np.asarray(array) for key, array in each.tensors.items()}
    path = sv.save(
        tmp_path / "a", tensors, partition=lambda shape, _: [min(2, shape[0] or 1)] if shape else []
    )
    given = sv.Map(each.rules, sizes=each.sizes)
    wanted = {key: np.asarray(array) for key, array in each.made(tensors).items()}
    assert_same(sv.load(path, map=given), wanted)
    sv.reshard(path, tmp_path / "b", map=given)
    assert_same(sv.load(tmp_path / "b"), wanted)
    if not each.has_inverse:
        with pytest.raises(MapError, match="has no inverse"):
            given.inverse()
        return
    back = given.inverse()
    if each.back_sizes is not None:
        with pytest.raises(MapError, match="--size"):
            sv.load(tmp_path / "b", map=back)
        back = back.extended(sizes=each.back_sizes)
    assert_same(sv.load(tmp_path / "b", map=back), tensors)
