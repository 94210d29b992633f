"""The layers that megatron-core builds on each pipeline stage, and what it refuses: for all small
numbers, and for all short layouts as text.

``python -m spec_tests.helpers.megatron_pipelines`` records them in
``spec_tests/golden/layouts/pipelines.json``. A refusal is recorded as null, and so is what Megatron
lets pass although a layer would be built twice or never.
"""

import json
import warnings
from collections.abc import Iterator
from itertools import combinations_with_replacement, pairwise, product
from typing import Any

from spec_tests.helpers.paths import GOLDEN

TABLE = GOLDEN / "layouts" / "pipelines.json"

Stages = tuple[tuple[tuple[int, int], ...], ...]

NAMES = (
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "virtual_pipeline_model_parallel_size",
)
"""The arguments of a row, in its order; null and false are left out."""

_MOST_LAYERS, _MOST_STAGES, _MOST_PLACES = 8, 4, 5
_WORDS = ("EtL", "EttL", "EtmL", "EtmmL", "EmtL", "tEL", "EtLm", "Ett", "tL")
"""Orders of letters, of which Megatron builds the first four."""


def small_numbers() -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield layers, stages, and arguments."""
    ends = [(*pair, False, False) for pair in product((None, 1, 2, 4), repeat=2)]
    counted = [(None, None, *pair) for pair in ((True, False), (False, True), (True, True))]
    for given, virtual in product(ends + counted, (None, 2, 3)):
        arguments = {
            name: value for name, value in zip(NAMES, (*given, virtual), strict=True) if value
        }
        # One stage has no virtual ones: Megatron's command line refuses them, its configuration
        # does not.
        for layers, stages in product(range(1, _MOST_LAYERS + 1), range(1, _MOST_STAGES + 1)):
            if stages > 1 or virtual is None:
                yield layers, stages, arguments


def short_texts() -> Iterator[tuple[str, int]]:
    """Yield layouts as text, each with a number of stages."""
    for word, count in product(_WORDS, range(1, _MOST_PLACES + 1)):
        for bars in combinations_with_replacement(range(1, len(word)), count - 1):
            cuts = [0, *bars, len(word)]
            text = "|".join(word[a:b] for a, b in pairwise(cuts))
            yield from ((text, stages) for stages in range(1, _MOST_STAGES + 1))


def layers_there(layers: int, stages: int, arguments: dict[str, Any]) -> Stages | None:
    """Return the ranges of layers that Megatron builds on each stage; None if it refuses, or builds
    a layer twice or never."""
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    # Both ends of one stage are the same stage, which Megatron's command line refuses.
    if stages == 1 and {*NAMES[:2]} <= arguments.keys():
        return None
    found = []
    try:
        config = config_there(layers, stages, arguments)
        virtual = config.virtual_pipeline_model_parallel_size
        at: list[Any] = [None] if virtual is None else list(range(virtual))
        for stage in range(stages):
            counts = [get_num_layers_to_build(config, place, stage) for place in at]
            starts = [get_transformer_layer_offset(config, place, stage) for place in at]
            ranges = zip(starts, counts, strict=True)
            found.append(tuple((start, start + count) for start, count in ranges))
    except Exception:  # noqa: BLE001  # Whatever it raises, it refuses.
        return None
    ranges_of_all = [each for stage in found for each in stage]
    built = sorted(layer for start, stop in ranges_of_all for layer in range(start, stop))
    is_right = built == [*range(layers)] and all(start <= stop for start, stop in ranges_of_all)
    return tuple(found) if is_right else None


def config_there(layers: int, stages: int, given: dict[str, Any]) -> Any:
    """Return Megatron's configuration of a small model with these layers."""
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Its own defaults are deprecated.
        return TransformerConfig(
            num_layers=layers, hidden_size=8, num_attention_heads=2, pipeline_dtype=torch.float32,
            pipeline_model_parallel_size=stages, **given,
        )  # fmt: skip


def text_there(text: str, layers: int, stages: int) -> Stages | None:
    """Return the ranges of layers of a layout as text; None if Megatron refuses it."""
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    try:
        layout = PipelineParallelLayerLayout(text, stages)
        layout.validate_layer_layout(layers, text.count("m") or None)
    except Exception:  # noqa: BLE001  # Whatever it raises, it refuses.
        return None
    found: list[list[tuple[int, int]]] = [[] for _ in range(stages)]
    start = 0
    for place, stage in product(range(layout.virtual_pipeline_model_parallel_size), range(stages)):
        count = layout.layout[stage][place].count(LayerType.decoder)
        found[stage].append((start, start + count))
        start += count
    return tuple(map(tuple, found))


def stages_of(row: Any) -> Stages | None:
    """Return what a row of the table says, as `pipeline_layers` returns it."""
    return row and tuple(tuple(tuple(each) for each in stage) for stage in row)


def record() -> dict[str, Any]:
    numbers: dict[str, list[Any]] = {}
    for layers, stages, arguments in small_numbers():
        rows = numbers.setdefault(json.dumps(arguments), [])
        rows.append([layers, stages, layers_there(layers, stages, arguments)])
    return {
        "schema": 1,
        "framework": "megatron.core",
        "version": "0.16.1",
        "how": "get_num_layers_to_build, get_transformer_layer_offset, PipelineParallelLayerLayout",
        "numbers": numbers,
        "texts": [
            [*each, text_there(each[0], each[0].count("t"), each[1])] for each in short_texts()
        ],
    }


def main() -> None:
    """Write the table."""
    recorded = record()
    lists = {name: recorded.pop(name) for name in ("numbers", "texts")}
    text = json.dumps(recorded, indent=1).removesuffix("\n}")
    numbers = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(rows, separators=(',', ':'))}"
        for name, rows in lists["numbers"].items()
    )
    texts = ",\n".join(f"  {json.dumps(row, separators=(',', ':'))}" for row in lists["texts"])
    TABLE.write_text(
        f'{text},\n "numbers": {{\n{numbers}\n }},\n "texts": [\n{texts}\n ]\n}}\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
