"""Write the maps between the files of transformers 5 and what its models hold in memory.

`python -m spec_tests.map_generators.transformers_maps` needs the environment of `make peers`.
It makes the rules from transformers' own tables, carries each map out on random tensors of a tiny
model, in both directions, and writes it only if the result equals transformers' own, bit for bit.
`families.json` lists them with the parameters of their tiny models, and the families that it cannot
make a map for, each with its reason.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

import shardvar
from shardvar.errors import MapError
from shardvar.maps.map import Map
from spec_tests.helpers.map_arrays import map_arrays
from spec_tests.map_generators.moves import Unsupported
from spec_tests.map_generators.tiny_models import (
    MOST_ELEMENTS,
    VARIANTS,
    conversions,
    model_of,
    num_elements,
)
from spec_tests.map_generators.transformers_tables import map_of

MAPS = Path(shardvar.__file__).parent / "maps"
FAMILIES = Path(__file__).with_name("families.json")
_ENDING = "-hf-to-transformers"


def name_of(family: str) -> str:
    """Return the name of a family's map."""
    return family.lower().replace("_", "-").replace(".", "-") + _ENDING


def random_state(model: Any) -> dict[str, Any]:
    """Return a model's state with random values everywhere, so that each change of order shows."""
    import torch

    random = torch.Generator().manual_seed(5)
    found = {}
    for key, value in model.state_dict().items():
        drawn = torch.randint(1, 1 << 20, value.shape, generator=random)
        found[key] = drawn.to(value.dtype) if value.dtype.is_floating_point else value
    return found


def with_numbers(given: Map, config: Any) -> Map:
    """Return a map with the numbers of a configuration instead of their names."""
    sizes: dict[str, int | str] = {}
    for name, size in given.sizes.items():
        value: Any = size
        if isinstance(size, str) and size.startswith("config:"):
            value = config
            for each in size.removeprefix("config:").split("."):
                value = getattr(value, each)
        sizes[name] = value
    return given.extended(sizes=sizes)


def check_map(given: Map, model: Any) -> None:
    """Raise ``Unsupported`` unless a map and its inverse do what transformers does."""
    from transformers.core_model_loading import revert_weight_conversion

    memory = random_state(model)
    files = {k: v.numpy() for k, v in revert_weight_conversion(model, dict(memory)).items()}
    memory = {key: value.numpy() for key, value in memory.items()}
    given = with_numbers(given, model.config)
    for name, each, source, right in (
        ("the map", given, files, memory),
        ("its inverse", given.inverse(), memory, files),
    ):
        try:
            made = map_arrays(each, source)
        except MapError as error:
            raise Unsupported(f"{name} does not fit: {str(error)[:160]}") from None
        if made.keys() != right.keys():
            raise Unsupported(f"{name} gives other keys")
        for key, value in right.items():
            if made[key].shape != value.shape or not np.array_equal(made[key], value):
                raise Unsupported(f"{name} gives other values of {key}")


def proven_map(family: str) -> Map | None:
    """Return the map of a family, checked on each variant of it; None if nothing differs."""
    found = map_of(family)
    if found is None:
        return None
    given = Map(found[0], sizes=found[1])
    for variant in VARIANTS:
        try:
            if num_elements(model_of(family, variant, "meta")) > MOST_ELEMENTS:
                raise Unsupported("its smallest model is too large to try the map on it")
            model = model_of(family, variant, "cpu")
        except Unsupported:
            raise
        except Exception:
            if not variant:
                raise
            continue
        check_map(given, model)
    return given


def text_of(family: str, given: Map, version: str) -> str:
    """Return the file of a map."""
    lines = [
        f"# Generated from the tables of transformers {version}"
        " (conversion_mapping.py); do not edit.",
        "# Proven on tiny random models, in both directions, against transformers' own functions.",
        "#",
        "# From: the files that save_pretrained writes. Those on the Hub have the same names.",
        "# To:   the state_dict() of the model, and the checkpoints of trainers that save it.",
        "# An output layer that is tied to the embedding is in the state_dict() only. Nothing",
        "# makes it here: the model ties it again when it loads the checkpoint.",
        f'about = "{family}: from Hugging Face files to the names and shapes that transformers 5'
        ' holds in memory."',
        f"models = {json.dumps([family])}",
        "rules = [",
        *(f'    "{rule}",' for rule in given.rules),
        "]",
    ]
    if given.sizes:
        lines += ["", "[sizes]"]
        lines += [f"{name} = {json.dumps(size)}" for name, size in given.sizes.items()]
    return "\n".join(lines) + "\n"


def families_with_tables() -> list[str]:
    """Return the families whose files differ from memory, as far as their models can be built.

    Families that cannot be built are there if transformers' tables have their name.
    """
    from transformers import CONFIG_MAPPING
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    found = []
    for family in sorted(CONFIG_MAPPING):
        try:
            has_table = bool(conversions(model_of(family, {}, "meta")))
        except Exception:  # noqa: BLE001 - models raise anything.
            has_table = bool(get_checkpoint_conversion_mapping(family))
        if has_table:
            found.append(family)
    return found


def table_names() -> list[str]:
    """Return the names of transformers' tables: families, and classes of models."""
    from transformers import conversion_mapping

    conversion_mapping.get_checkpoint_conversion_mapping("")  # It makes the tables.
    return sorted(conversion_mapping._checkpoint_conversion_mapping_cache)


def main() -> None:
    """Write the maps, and the list of families."""
    import transformers

    reasons, made, same = dict[str, str](), dict[str, int](), []
    for family in families_with_tables():
        try:
            given = proven_map(family)
        except Exception as error:  # noqa: BLE001 - models raise anything.
            reasons[family] = str(error).strip().split("\n")[0][:200] or type(error).__name__
            continue
        if given is None:
            same.append(family)
            continue
        made[family] = num_elements(model_of(family, {}, "meta"))
        path = MAPS / f"{name_of(family)}.toml"
        path.write_text(text_of(family, given, transformers.__version__), encoding="utf-8")
    for path in MAPS.glob(f"*{_ENDING}.toml"):
        if path.stem not in {name_of(family) for family in made}:
            os.remove(path)
    listed = {
        "transformers": transformers.__version__,
        "maps": made,
        "same": same,
        "not covered": reasons,
        "tables": table_names(),
    }
    FAMILIES.write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    print(f"{len(made)} maps, {len(same)} with equal names, {len(reasons)} not covered")
    for family, reason in reasons.items():
        print(f"  {family}: {reason}")


if __name__ == "__main__":
    main()
