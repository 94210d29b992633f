"""What transformers' own tables do to the keys and tensors of a model, as rules of a map.

`save_pretrained` reverts these tables. This module walks through them in the same way, with the
axes of each tensor instead of its values.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from spec_tests.map_generators.moves import Part, Unsupported, moved, start
from spec_tests.map_generators.rules import Link
from spec_tests.map_generators.tiny_models import conversions


def links_of(model: Any) -> list[Link]:
    """Return which file's tensor each tensor in memory becomes: all parts of all tensors."""
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        apply_converters,
        apply_renamings,
    )

    tables = [each.reverse_transform() for each in conversions(model)[::-1]]
    renamings = [each for each in tables if isinstance(each, WeightRenaming)]
    converters = [each for each in tables if isinstance(each, WeightConverter)]
    of_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    from transformers.core_model_loading import dot_natural_key

    links, groups = list[Link](), dict[str, tuple[Any, dict[str, str]]]()
    state = model.state_dict()
    for key in sorted(state, key=dot_natural_key):
        first, pattern = apply_converters(key, converters)
        if pattern is None:
            links.append(Link(apply_renamings(key, renamings), key))
            continue
        _, members = groups.setdefault(first, (deepcopy(of_pattern[pattern]), {}))
        if pattern in members:
            raise Unsupported("a converter that takes a list of tensors in memory")
        members[pattern] = key
    for first, (converter, members) in groups.items():
        for pattern, key in members.items():
            converter.add_tensor(first, key, pattern, state[key])
        files = converter.convert(first, model=model, config=model.config)
        parts = _moved(converter, members, state, model.config)
        if len(parts) != len(files):
            raise Unsupported("a converter whose targets have no order")
        for (file, tensor), made in zip(files.items(), parts, strict=True):
            tensor = tensor[0] if isinstance(tensor, list) else tensor
            for part in made:
                links.append(Link(apply_renamings(file, renamings), part.memory, part))
    return links


def _moved(converter: Any, members: Mapping[str, str], state: Any, config: Any) -> list[list[Part]]:
    patterns = [pattern for pattern in converter.source_patterns if pattern in members]
    tensors = [start(members[each], state[members[each]].shape) for each in patterns]
    for operation in converter.operations:
        tensors = moved(operation, tensors, config, len(converter.target_patterns), patterns)
    return tensors
