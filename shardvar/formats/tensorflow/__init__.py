"""TensorFlow's V2 checkpoints, called tensor bundles, read and written without TensorFlow.

names       file names, and what a person may type for a checkpoint
contents    the index: its messages, and its entries, which are tensors and slices
source      the table of contents with its laws checked, and the payloads
sink        writing a checkpoint
"""

from dataclasses import dataclass

from shardvar.formats.protocol import NewCheckpoint, SharedFormat
from shardvar.formats.sinks import take_away
from shardvar.formats.tensorflow.contents import ENUMS
from shardvar.formats.tensorflow.names import bundle_index_name, find_bundles
from shardvar.formats.tensorflow.sink import BundleSink, bundle_sink, unnamed_files
from shardvar.formats.tensorflow.source import BundleSource, open_bundle
from shardvar.planning.capabilities import Capabilities
from shardvar.storage.protocol import Storage

SLICE_DTYPES = frozenset(
    "float32 float64 int8 int16 int32 int64 uint8 bool complex64 complex128 bfloat16 qint8 quint8 "
    "qint32 "
    "int4 uint4".split()
)
"""The dtypes whose slices TensorFlow joins when it reads them (HANDLE_COPY in tensor_bundle.cc)."""

CAPABILITIES = Capabilities(
    dtypes=frozenset(ENUMS),
    slice_dtypes=SLICE_DTYPES,
    max_slice_rank=8,  # kTensorSliceMaxRank: TensorFlow aborts when it reads more axes
    holds_objects=True,
    guards_metadata=True,
    holds_texts=False,
    objects_in_tensor=True,
)


@dataclass(frozen=True, slots=True)
class TensorFlowFormat(SharedFormat):
    """TensorFlow's V2 format; its methods name a checkpoint by its prefix."""

    name: str = "tensorflow"
    capabilities: Capabilities = CAPABILITIES

    def locate(self, storage: Storage, name: str) -> list[str]:
        """Return the prefixes that ``name`` may mean; the names of V1 checkpoints included, for
        which ``open`` has an error."""
        return find_bundles(storage, name)

    def open(self, storage: Storage, name: str) -> BundleSource:
        return open_bundle(storage, name)

    def lay_out(self, new: NewCheckpoint) -> BundleSink:
        return bundle_sink(new, self.capabilities)

    def adopts_objects(self) -> bool:
        """Return True: the commit writes them into another file."""
        return True

    def remove(self, storage: Storage, name: str) -> None:
        index = bundle_index_name(name)
        take_away(
            storage, [(index, f"{index}.removed.tmp")], lambda names: unnamed_files(name, names, ())
        )


FORMAT = TensorFlowFormat()
