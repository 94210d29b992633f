"""The shipped maps between Hugging Face and other libraries give the published formulas' values.

The formulas are written here in NumPy, one tensor at a time, from the layouts that the libraries
document. No map is read to make an expected value. What converters were recorded to make is in
``test_recorded_maps``.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import MapError
from shardvar.maps.map import Map, fit_map
from spec_tests.helpers import model_families as families
from spec_tests.helpers.map_arrays import assert_same, carry_out
from spec_tests.helpers.model_families import CONFIG, D, E, F, G, H, L, V, h

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def mapped(given: Map, arrays: Arrays, place: Path) -> Arrays:
    about = {key: (array.dtype.name, array.shape) for key, array in arrays.items()}
    found = fit_map(given, about, (), {}, str(place))
    if found.problems:
        raise MapError("; ".join(found.problems))
    return carry_out(found.plan, arrays)


def pairs(array: Array, heads: int) -> Array:
    """Halves of each head to pairs: element 2 j + t of a head was t d / 2 + j."""
    size = len(array) // heads
    order = [size // 2 * (at % 2) + at // 2 for at in range(size)]
    return np.concatenate([array[n * size : (n + 1) * size][order] for n in range(heads)])


def rotated(arrays: Arrays) -> Arrays:
    heads = {"q": H, "k": G}
    return {
        key: pairs(array, heads[key[-13]])
        if key.endswith(("q_proj.weight", "k_proj.weight"))
        else array
        for key, array in arrays.items()
    }


def renamed(arrays: Arrays, names: dict[str, str]) -> Arrays:
    """Replace parts of the keys, in order."""
    found = {}
    for key, array in arrays.items():
        new = key
        for old, other in names.items():
            new = new.replace(old, other)
        found[new] = array
    return found


def stacked(arrays: Arrays, marker: str) -> Arrays:
    """Stack ``...marker.{e}...`` along axis 0, and drop the number."""
    found: Arrays = {}
    groups: dict[str, dict[int, Array]] = {}
    for key, array in arrays.items():
        before, mark, after = key.partition(f"{marker}.")
        number, _, rest = after.partition(".")
        if not mark:
            found[key] = array
        else:
            groups.setdefault(f"{before}{marker}.{rest}", {})[int(number)] = array
    return found | {key: np.stack([g[e] for e in range(len(g))]) for key, g in groups.items()}


TITAN = {
    "model.embed_tokens": "tok_embeddings",
    "model.": "",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.experts.gate_proj.weight": "moe.routed_experts.inner_experts.w1_EFD",
    "mlp.experts.up_proj.weight": "moe.routed_experts.inner_experts.w3_EFD",
    "mlp.experts.down_proj.weight": "moe.routed_experts.inner_experts.w2_EDF",
    "mlp.gate.weight": "moe.router.gate.weight",
    "self_attn.q_proj": "attention.qkv_linear.wq",
    "self_attn.k_proj": "attention.qkv_linear.wk",
    "self_attn.v_proj": "attention.qkv_linear.wv",
    "self_attn.o_proj": "attention.wo",
    "self_attn": "attention",
    "mlp": "feed_forward",
    "gate_proj": "w1",
    "up_proj": "w3",
    "down_proj": "w2",
}
GGUF = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.o_proj": "attn_output",
    "self_attn.": "attn_",
    "_proj": "",
}


def gguf_of_gpt2(arrays: Arrays) -> Arrays:
    names = {
        "transformer.h": "blk",
        "transformer.wte": "token_embd",
        "transformer.wpe": "position_embd",
        "transformer.ln_f": "output_norm",
        "ln_1": "attn_norm",
        "ln_2": "ffn_norm",
        "attn.c_attn": "attn_qkv",
        "attn.c_proj": "attn_output",
        "mlp.c_fc": "ffn_up",
        "mlp.c_proj": "ffn_down",
    }
    turned = {key: a.T if ".c_" in key and a.ndim == 2 else a for key, a in arrays.items()}
    return renamed(turned, names)


def fused(arrays: Arrays, root: str, attention: str) -> Arrays:
    found = {k: array for k, array in arrays.items() if f".attention.{attention}." not in k}
    for number in range(L):
        at = f"{root}.encoder.layer.{number}.attention.{attention}."
        for kind in ("weight", "bias"):
            parts = [arrays[f"{at}{name}.{kind}"] for name in ("query", "key", "value")]
            found[f"{at}qkv.{kind}"] = np.concatenate(parts)
    return found


def maxtext(arrays: Arrays, source: str = "", block: str = "") -> Arrays:
    """Scanned layers at axis 1, kernels [in, out], heads as axes, and scaled queries."""
    top = "params.params."
    at = f"{top}decoder.layers."

    def scan(name: str, change: Any = lambda x: x) -> Array:
        each = [change(arrays[f"model.layers.{number}.{name}.weight"]) for number in range(L)]
        return np.stack(each, axis=1)

    def heads(count: int) -> Any:
        return lambda x: x.T.reshape(D, count, h)

    def expert(number: int, name: str) -> Array:
        names = [f"model.layers.{at}.{source}.experts.{number}.{name}.weight" for at in range(L)]
        return np.stack([arrays[each].T for each in names])

    query = scan("self_attn.q_proj", heads(H))
    outs = [arrays[f"model.layers.{n}.self_attn.o_proj.weight"] for n in range(L)]
    found = {
        f"{top}token_embedder.embedding": arrays["model.embed_tokens.weight"],
        f"{top}decoder.decoder_norm.scale": arrays["model.norm.weight"],
        f"{top}decoder.logits_dense.kernel": arrays["lm_head.weight"].T,
        f"{at}pre_self_attention_layer_norm.scale": scan("input_layernorm"),
        f"{at}post_self_attention_layer_norm.scale": scan("post_attention_layernorm"),
        f"{at}self_attention.query.kernel": (query.astype(np.float64) * h**-0.5).astype(
            query.dtype
        ),
        f"{at}self_attention.key.kernel": scan("self_attn.k_proj", heads(G)),
        f"{at}self_attention.value.kernel": scan("self_attn.v_proj", heads(G)),
        f"{at}self_attention.out.kernel": np.stack([o.T.reshape(H, h, D) for o in outs], 1),
    }
    if not source:
        for new, old in (("wi_0", "gate_proj"), ("wi_1", "up_proj"), ("wo", "down_proj")):
            found[f"{at}mlp.{new}.kernel"] = scan(f"mlp.{old}", np.transpose)
        return found
    found[f"{at}{block}.gate.kernel"] = scan(f"{source}.gate", np.transpose)
    for new, old in (("wi_0", "w1"), ("wi_1", "w3"), ("wo", "w2")):
        found[f"{at}{block}.{new}"] = np.stack([expert(number, old) for number in range(E)])
    return found


def kerashub(arrays: Arrays, family: str) -> Arrays:
    """Kernels [in, heads, size of a head], under the paths of the layers."""
    found = {
        "layers/reversible_embedding/vars/0": arrays["model.embed_tokens.weight"],
        "layers/reversible_embedding/vars/1": arrays["lm_head.weight"].T,
        f"layers/{family}_layer_norm/vars/0": arrays["model.norm.weight"],
    }
    for number in range(L):
        name = f"layers/{family}_transformer_decoder" + (f"_{number}" if number else "")
        layer = {
            key.removeprefix(f"model.layers.{number}.").removesuffix(".weight"): array
            for key, array in arrays.items()
            if key.startswith(f"model.layers.{number}.")
        }
        attention = f"{name}/_self_attention_layer"
        for short, long, heads in (("q", "query", H), ("k", "key", G), ("v", "value", G)):
            kernel = layer[f"self_attn.{short}_proj"].T.reshape(D, heads, h)
            found[f"{attention}/_{long}_dense/vars/0"] = kernel
            if f"self_attn.{short}_norm" in layer:
                norm = layer[f"self_attn.{short}_norm"]
                found[f"{attention}/_{long}_dense_layer_norm/vars/0"] = norm
        out = layer["self_attn.o_proj"].T.reshape(H, h, D)
        found[f"{attention}/_output_dense/vars/0"] = out
        found[f"{name}/_self_attention_layernorm/vars/0"] = layer["input_layernorm"]
        found[f"{name}/_feedforward_layernorm/vars/0"] = layer["post_attention_layernorm"]
        for new, old in (("gate", "gate"), ("intermediate", "up"), ("output", "down")):
            found[f"{name}/_feedforward_{new}_dense/vars/0"] = layer[f"mlp.{old}_proj"].T
    return found


def split_of_gpt_neox(arrays: Arrays) -> Arrays:
    """For each head, its query, its key and its value."""
    found = {}
    for key, array in arrays.items():
        before, mark, kind = key.partition("query_key_value.")
        if not mark:
            found[key] = array
            continue
        heads = array.reshape(H, 3, h, *array.shape[1:])
        for part, name in enumerate(("query", "key", "value")):
            found[f"{before}{name}.{kind}"] = heads[:, part].reshape(-1, *array.shape[1:])
    return found


Formula = Callable[[Arrays], Arrays]
EXACT: dict[str, tuple[Callable[[], Arrays], Formula]] = {
    "llama-hf-to-torchtitan": (families.llama, lambda a: renamed(rotated(a), TITAN)),
    "qwen3-hf-to-torchtitan": (families.qwen3, lambda a: renamed(a, TITAN)),
    "qwen3-moe-hf-to-torchtitan": (
        families.qwen3_moe,
        lambda a: renamed(stacked(a, ".experts"), TITAN),
    ),
    "gpt2-hf-to-gguf": (families.gpt2, gguf_of_gpt2),
    "gpt-neox-hf-to-split": (families.gpt_neox, split_of_gpt_neox),
    "llama-hf-to-kerashub": (families.llama, lambda a: kerashub(a, "llama")),
    "qwen3-hf-to-kerashub": (families.qwen3, lambda a: kerashub(a, "qwen3")),
    "bert-hf-to-fused": (families.bert, lambda a: fused(a, "bert", "self")),
    "vit-hf-to-fused": (families.vit, lambda a: fused(a, "vit", "attention")),
}


@pytest.mark.parametrize("name", EXACT)
def test_an_exact_map_gives_the_formulas_values_and_its_inverse_gives_them_back(
    name: str, place: Path
) -> None:
    family, formula = EXACT[name]
    source, given = family(), Map.read(name)
    made = mapped(given, source, place)
    assert_same(made, formula(source))
    assert_same(mapped(given.inverse(), made, place), source)


def meta(arrays: Arrays, ranks: int, axis: int) -> Arrays:
    names = {
        "model.embed_tokens": "tok_embeddings",
        "lm_head": "output",
        "model.": "",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn": "attention",
        "mlp": "feed_forward",
        "gate_proj": "w1",
        "up_proj": "w3",
        "down_proj": "w2",
        "_proj": "",
        "attention.": "attention.w",
    }
    found: Arrays = {}
    for key, array in renamed(rotated(arrays), names).items():
        if array.ndim == 1:
            parts = [array] * ranks
        else:
            along = 1 if key.endswith(("wo.weight", "w2.weight")) else 0
            parts = np.split(array, ranks, axis if key.startswith("tok_") else along)
        found |= {f"{rank}/{key}": part for rank, part in enumerate(parts)}
    return found


@pytest.mark.parametrize(("family", "axis"), [("llama", 0), ("llama2", 1)])
@pytest.mark.parametrize("ranks", [1, 2])
def test_metas_ranks_are_joined(family: str, axis: int, ranks: int, place: Path) -> None:
    source = families.llama()
    # A vocabulary that two ranks divide.
    for key in ("model.embed_tokens.weight", "lm_head.weight"):
        source[key] = source[key][: V - 1]
    files = meta(source, ranks, axis)
    to_meta = Map.read(f"{family}-hf-to-meta").extended((), {"rank": ranks})
    assert_same(mapped(to_meta, source, place), files)
    # The files themselves, there and back.
    sv.save(place / "model.safetensors", source)
    sv.reshard(place / "model.safetensors", place / "consolidated.{rank:02}.pth", map=to_meta)
    paths = [place / f"consolidated.0{rank}.pth" for rank in range(ranks)]
    sv.reshard(paths, place / "back.safetensors", map=f"{family}-meta-to-hf")
    assert_same(sv.load(place / "back.safetensors"), source)
    for rank, path in enumerate(paths):
        own = {f"{rank}/{key}": array for key, array in sv.load(path).items()}
        assert_same(own, {key: array for key, array in files.items() if key.startswith(f"{rank}/")})
    files |= {f"{rank}/rope.freqs": np.ones(h // 2, np.float32) for rank in range(ranks)}
    assert_same(mapped(Map.read(f"{family}-meta-to-hf"), files, place), source)


def test_a_gguf_of_llama_goes_back_without_rope_freqs(place: Path) -> None:
    source = families.llama()
    file = renamed(rotated(source), GGUF) | {"rope_freqs.weight": np.ones(h // 2, np.float32)}
    assert_same(mapped(Map.read("llama-gguf-to-hf"), file, place), source)


def test_gemmas_norms_are_stored_around_one(place: Path) -> None:
    source = families.gemma3()
    names = {
        **GGUF,
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
    wanted = {
        key: array + np.float32(1) if array.ndim == 1 else array
        for key, array in renamed(source, names).items()
    }
    made = mapped(Map.read("gemma3-hf-to-gguf"), source, place)
    assert_same(made, wanted)
    back = mapped(Map.read("gemma3-gguf-to-hf"), made, place)
    assert back.keys() == source.keys()
    for key, array in source.items():
        assert np.allclose(back[key], array, atol=2e-7), key
        assert array.ndim == 1 or back[key].tobytes() == array.tobytes(), key


def test_norms_of_bfloat16_keep_their_bits_only_through_float32(place: Path) -> None:
    source = families.gemma3()
    norms = [key for key, array in source.items() if array.ndim == 1]
    shares = {}
    for between in (ml_dtypes.bfloat16, np.float32):
        small = {key: (source[key] * 0.02).astype(ml_dtypes.bfloat16) for key in norms}
        given = source | {key: array.astype(between) for key, array in small.items()}
        there = mapped(Map.read("gemma3-hf-to-gguf"), given, place)
        back = mapped(Map.read("gemma3-gguf-to-hf"), there, place)
        same = [back[key].astype(ml_dtypes.bfloat16) == small[key] for key in norms]
        shares[between] = np.concatenate(same).mean()
    assert shares[ml_dtypes.bfloat16] < 0.05
    assert shares[np.float32] > 0.99


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_maxtext_has_the_query_divided_by_the_root_of_a_head(family: str, place: Path) -> None:
    source = getattr(families, family)()
    if family == "llama":
        wanted = maxtext(rotated(source))
    else:
        wanted = maxtext(source, "block_sparse_moe", "MoeBlock_0")
    made = mapped(Map.read(f"{family}-hf-to-maxtext"), source, place)
    assert_same(made, wanted)
    back = mapped(Map.read(f"{family}-maxtext-to-hf"), made, place)
    assert back.keys() == source.keys()
    for key, array in source.items():
        assert np.allclose(back[key], array, rtol=1e-6, atol=0), key
        assert "q_proj" in key or back[key].tobytes() == array.tobytes(), key


def test_all_sizes_of_the_families_differ() -> None:
    """So that a wrong axis is seen by its extent."""
    sizes = [D, H, G, h, F, V, L, E]
    assert len({*sizes}) == len(sizes)
    assert H * h == D
