"""TensorFlow's V2 checkpoints, called tensor bundles, read and written without TensorFlow.

names       which files a checkpoint has, and what a person may call it
protos      what the values of its index say
contents    which of them are tensors, and which are slices of one
index       the table of contents, with the laws checked
source      reading payloads
sink        writing a checkpoint
"""

from shardvar.formats.tensorflow.bundle import FORMAT, TensorFlowFormat

__all__ = ["FORMAT", "TensorFlowFormat"]
