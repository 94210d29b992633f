"""TensorFlow's V2 checkpoints, called tensor bundles, read and written without TensorFlow.

names       which files a checkpoint has, and what a person may call it
protos      what the values of its index say
contents    which of them are tensors, and which are slices of one
index       the table of contents, with the laws checked
source      reading payloads
sink        writing a checkpoint
"""

from dataclasses import dataclass

from shardvar.formats.files import take_away
from shardvar.formats.tensorflow.names import find_prefixes, index_name
from shardvar.formats.tensorflow.protos import ENUMS
from shardvar.formats.tensorflow.sink import BundleSink, plan_sink, unnamed
from shardvar.formats.tensorflow.source import BundleSource, open_source
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.index import Metadata
from shardvar.planning.plan import Assignment
from shardvar.storage.protocol import Storage

__all__ = ["FORMAT", "TensorFlowFormat"]


# The tensor bundle as one of shardvar's formats.


SLICE_DTYPES = frozenset(
    "float32 float64 int8 int16 int32 int64 uint8 bool complex64 complex128 bfloat16 qint8 quint8 qint32 "
    "int4 uint4".split()
)
"""The dtypes of which TensorFlow puts slices together in reading (HANDLE_COPY in tensor_bundle.cc)."""

CAPABILITIES = Capabilities(
    dtypes=frozenset(ENUMS),
    slice_dtypes=SLICE_DTYPES,
    max_slice_rank=8,  # kTensorSliceMaxRank: TensorFlow aborts in reading more
)


@dataclass(frozen=True, slots=True)
class TensorFlowFormat:
    """TensorFlow's V2 format."""

    name: str = "tensorflow"
    """What ``format=`` takes."""
    capabilities: Capabilities = CAPABILITIES
    """What TensorFlow can read back."""

    def locate(self, storage: Storage, name: str) -> list[str]:
        """The prefixes that ``name`` may mean; those of V1 checkpoints too, so that ``open`` can say what they are."""
        return find_prefixes(storage, name)

    def open(self, storage: Storage, name: str) -> BundleSource:
        """Open the bundle of that prefix."""
        return open_source(storage, name)

    def create(
        self, storage: Storage, name: str, assignment: Assignment, metadata: Metadata, generation: str
    ) -> BundleSink:
        """Lay out a bundle. It has no place for the metadata: TensorFlow keeps a policy's description nowhere."""
        return plan_sink(storage, name, assignment, self.capabilities, generation)

    def remove(self, storage: Storage, name: str) -> None:
        """Take away the index, and then the data files of any count."""
        index = index_name(name)
        take_away(storage, [(index, f"{index}.removed.tmp")], lambda names: unnamed(name, names, ()))


FORMAT = TensorFlowFormat()
