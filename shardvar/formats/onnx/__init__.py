"""onnx, the tensors of ONNX models, in the model and in files next to it.

contents    the tensors, where their elements are, and what is wrong with them
source      the payloads: in place, or decoded from numbers of other widths
"""

import re
from dataclasses import dataclass

from shardvar.formats.onnx.contents import read_onnx
from shardvar.formats.onnx.source import OnnxSource
from shardvar.formats.protocol import READ_ONLY, Format
from shardvar.planning.capabilities import Capabilities
from shardvar.storage.protocol import Storage

_SUFFIX = ".onnx"
_DATA = re.compile(r"(.*\.onnx)[._]data([._-]\d+)?", re.DOTALL)
"""The usual names of the files next to a model: of torch.onnx, and of onnxruntime."""


@dataclass(frozen=True, slots=True)
class OnnxFormat(Format):
    """onnx: a model, with its external data."""

    name: str = "onnx"
    """The name for ``format=``."""
    capabilities: Capabilities = READ_ONLY
    """Nothing: a tensor is useful only with the program that needs it."""

    def locate(self, storage: Storage, name: str) -> list[str]:
        """Return the models that ``name`` may mean."""
        names = storage.names()
        if not name:
            return [each for each in names if each.endswith(_SUFFIX)]
        data = _DATA.fullmatch(name)
        for each in (name, name + _SUFFIX, data[1] if data else ""):
            if each.endswith(_SUFFIX) and each in names:
                return [each]
        return []

    def open(self, storage: Storage, name: str) -> OnnxSource:
        """Open a model; elements are not read."""
        return OnnxSource(read_onnx(storage, name))


FORMAT = OnnxFormat()
