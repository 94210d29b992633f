"""Write a Llama of 32 layers in four files, as Hugging Face names them: ``python examples/make_llama.py FOLDER``.

It has the keys of the real model, and shapes small enough to write in a moment.
"""

import sys

import ml_dtypes
import numpy as np

import shardvar as sv

VOCABULARY, WIDTH, INNER, NUM_LAYERS = 2000, 64, 172, 32


def model() -> dict[str, np.ndarray]:
    """Return the tensors of the model, with random weights in bfloat16."""
    shapes = {
        "model.embed_tokens": (VOCABULARY, WIDTH),
        "lm_head": (VOCABULARY, WIDTH),
        "model.norm": (WIDTH,),
    }
    layer: dict[str, tuple[int, ...]] = {
        f"self_attn.{name}_proj": (WIDTH, WIDTH) for name in "qkvo"
    }
    layer |= {
        "mlp.gate_proj": (INNER, WIDTH),
        "mlp.up_proj": (INNER, WIDTH),
        "mlp.down_proj": (WIDTH, INNER),
    }
    layer |= {"input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,)}
    for number in range(NUM_LAYERS):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    rng = np.random.default_rng(0)
    return {
        f"{key}.weight": rng.normal(0, 0.02, shape).astype(ml_dtypes.bfloat16)
        for key, shape in shapes.items()
    }


if __name__ == "__main__":
    sv.save(f"{sys.argv[1]}/model.safetensors", model(), policy=sv.MaxShardSizePolicy(1_000_000))
