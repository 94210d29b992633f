"""The index of a set of files, in the form of Hugging Face: JSON that names the file of each
tensor.

    {"metadata": {"total_size": 13476835328}, "weight_map": {KEY: FILE, ...}}

Safetensors files have it, and files of ``torch.save``. ``metadata`` may be missing, and may hold
any JSON. Writers disagree on its numbers, so that they are compared and never needed.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardvar.errors import InvalidCheckpoint
from shardvar.limits import MAX_HEADER_NBYTES
from shardvar.wire import strict_json
from shardvar.wire.damage import SNIFF_NBYTES, check_key_nbytes, foreign_file, invalid, malformed

DELTA_ENCODING = "delta_encoding"
"""The text in the metadata of an index that makes its set a delta (``formats.published``)."""
_MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class SetIndex:
    weight_map: Mapping[str, str]
    """The file of each key; the name is not checked yet, and may lead anywhere."""
    metadata: Mapping[str, Any]


def read_set_index(read: Callable[[int, int], bytes], size: int) -> SetIndex:
    """Return the content of an index of ``size`` bytes, read by offset and count."""
    if size > MAX_HEADER_NBYTES:
        raise malformed(f"The index has {size} bytes, more than {MAX_HEADER_NBYTES}.")
    text = read(0, size)
    if not text.lstrip().startswith((b"{", *strict_json.MARKS)):
        raise foreign_file(
            "the index of a set", text[:SNIFF_NBYTES], size, "it does not begin a JSON object"
        )
    index = strict_json.parse_json(text, _MAX_DEPTH)
    weight_map = index.get("weight_map") if type(index) is dict else None
    if type(weight_map) is not dict or not set(map(type, weight_map.values())) <= {str}:
        raise invalid("The index lacks a weight_map from names of tensors to names of files.")
    metadata = index.get("metadata", {})
    if type(metadata) is not dict:
        raise invalid("The metadata of the index is not a JSON object.")
    # No library writes it, and the contents of the files next to it would be passed over. Only a
    # published delta of a step that changed nothing has no tensor.
    if not weight_map and DELTA_ENCODING not in metadata:
        remedy = (
            "Fetch it again from the source of the set. Without it, each file can be opened by its "
            "own path."
        )
        raise InvalidCheckpoint("The weight_map of the index names no tensor.", remedy)
    check_key_nbytes(max(map(len, weight_map), default=0))
    return SetIndex({key: name.removeprefix("./") for key, name in weight_map.items()}, metadata)


def build_set_index(weight_map: Mapping[str, str], metadata: Mapping[str, Any]) -> bytes:
    """Return the bytes of an index, as ``save_pretrained`` of Hugging Face writes them.

    >>> print(build_set_index({"w": "model-00001-of-00002.safetensors"}, {"total_size": 4}).decode(), end="")
    {
      "metadata": {
        "total_size": 4
      },
      "weight_map": {
        "w": "model-00001-of-00002.safetensors"
      }
    }
    """
    index = {"metadata": metadata, "weight_map": weight_map}
    return (json.dumps(index, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode("utf-8")
