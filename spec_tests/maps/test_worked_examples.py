"""Maps whose results are worked out by hand in NumPy: what the laws of random maps do not draw."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import MapError
from spec_tests.helpers.map_arrays import assert_same

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


WORKED = {
    "QKV of Phi-3: parts of unequal sizes": Worked(
        ["qkv[o i] @ o=0:a -> q[o i]", "qkv[o i] @ o=a:a+b -> k[o i]", "qkv[o i] @ o=a+b: -> v[o i]"],
        {"qkv": some(20, 3)},
        lambda t: dict(zip("qkv", np.split(t["qkv"], [12, 16]), strict=True)),
        {"a": 12, "b": 4},
    ),
    "layers in blocks of a period, and a rest": Worked(
        ["l.{(b p)}.w[o] @ b=0:3 -> blocks.{p}[b o]", "l.{(b p)}.w[o] @ b=3: -> rest.{p}[b o]"],
        layers(14, "l.{}.w", 5),
        lambda t: {f"blocks.{p}": np.stack([t[f"l.{b * 4 + p}.w"] for b in range(3)]) for p in range(4)}
        | {f"rest.{p}": t[f"l.{12 + p}.w"][None] for p in range(2)},
        {"p": 4},
    ),
    "key heads that are repeated for each query head": Worked(
        ["also k[h i] -> k.{r}[h i]"],
        {"k": some(8, 3)},
        lambda t: {f"k.{r}": t["k"] for r in range(3)},
        {"r": 3},
        has_inverse=False,
    ),
    "gate and up, cut by ranks before they were fused": Worked(
        ["{rank}/fc1[(s o) i] -> {s:gate|up}[(rank o) i]"],
        {f"{r}/fc1": some(8, 3, seed=r) for r in range(3)},
        lambda t: {n: np.concatenate([t[f"{r}/fc1"].reshape(2, 4, 3)[s] for r in range(3)])
                   for s, n in enumerate(("gate", "up"))},
        back_sizes={"rank": 3},
    ),
    "numbers that are missing are filled": Worked(
        ["e.{n}[h] -> rows[n h] @ n=0: else 0"],
        {"e.1": some(2, seed=1), "e.3": some(2, seed=3)},
        lambda t: {"rows": np.stack([np.zeros(2, "f4"), t["e.1"], np.zeros(2, "f4"), t["e.3"],
                                     np.zeros(2, "f4")])},
        {"n": 5},
        has_inverse=False,
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
}  # fmt: skip


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
