"""safetensors, single files and sharded sets, read more carefully than the real library reads them.

names       which files a checkpoint has, and what a person may call it
contents    what headers and the set's index say, and what is wrong with it
source      reading payloads
sink        writing a checkpoint
checkpoint  the format itself
"""

from shardvar.formats.safetensors.checkpoint import FORMAT, SafetensorsFormat

__all__ = ["FORMAT", "SafetensorsFormat"]
