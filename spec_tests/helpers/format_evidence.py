"""What holds each format of the table: an intact golden checkpoint, hostile files, a page.

A new format gets a row in ``EVIDENCE``. ``formats/test_format_contract.py`` reads the golden checkpoint of the row
through the protocol, ``architecture/test_formats.py`` checks that everything the row names is there.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Evidence:
    """What the tests have of one format."""

    golden: str
    """The path of an intact checkpoint that another program wrote, in ``spec_tests/golden``."""
    hostile: str
    """A pattern of ``fnmatch`` for the names of its cases in ``spec_tests/hostile``."""
    ending: str = "*"
    """A pattern for the paths of these cases, where two formats share their names."""


EVIDENCE = {
    "shardvar": Evidence("native/tiny/ck", "native_*"),
    "tensorflow": Evidence("tensorflow/sharded_var_3/sv", "tensorflow_*"),
    "safetensors": Evidence("safetensors/numpy_all_dtypes/ckpt/model.safetensors", "safetensors_*"),
    "npz": Evidence("npz/scalars_0d/ckpt/arrays.npz", "npz_*"),
    "zarr": Evidence("zarr/v3_default/ckpt", "zarr_*"),
    "orbax": Evidence("orbax/pytree_zarr3/ckpt", "orbax_*"),
    "torch": Evidence("torch_dcp/base/ckpt", "torch_*", ".metadata"),
    "pt": Evidence("torch_pt/module_state_dict/x.pt", "torch_*", "*.pt"),
    "gguf": Evidence("gguf/every_type/m", "gguf_*"),
    "keras": Evidence("keras/weights_mlp/m.weights.h5", "keras_*"),
    "flax": Evidence("flax/every_value/m", "flax_*"),
    "onnx": Evidence("onnx/one_file/m", "onnx_*"),
    "npy": Evidence("npy/c_order/x.npy", "npy_*"),
}
"""By the name of the format."""
