"""Models that onnx writes, read by shardvar and by onnx."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv

pytest.importorskip("onnx")

import onnx  # after the skip
from onnx import TensorProto, helper, numpy_helper

KINDS = sorted(set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED, TensorProto.STRING})
PACKED = {TensorProto.FLOAT4E2M1}


@st.composite
def tensors(draw: st.DrawFn, name: str) -> Any:
    kind = draw(st.sampled_from(KINDS))
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    values = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 2, shape).astype(dtype)
    if draw(st.booleans()):
        return numpy_helper.from_array(values, name)
    flat = values.ravel()
    return helper.make_tensor(name, kind, shape, flat.tolist() if flat.dtype.kind == "c" else flat)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), is_external=st.booleans(), is_one_file=st.booleans())
def test_tensors_are_those_that_onnx_reads(
    data: st.DataObject,
    is_external: bool,
    is_one_file: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """In raw data, in fields of numbers, and in files next to the model."""
    path: Path = tmp_path_factory.mktemp("onnx") / "m.onnx"
    held = [data.draw(tensors(f"t{number}")) for number in range(data.draw(st.integers(1, 4)))]
    graph = helper.make_graph([], "g", [], [], initializer=held)
    options = {
        "all_tensors_to_one_file": is_one_file,
        "location": "weights" if is_one_file else None,
    }
    onnx.save_model(
        helper.make_model(graph),
        path,
        save_as_external_data=is_external,
        size_threshold=0,
        **options,
    )
    found = sv.load(path)
    for tensor in onnx.load(path).graph.initializer:
        expected = numpy_helper.to_array(tensor)
        assert found[tensor.name].dtype == expected.dtype
        assert found[tensor.name].shape == expected.shape
        assert found[tensor.name].tobytes() == expected.tobytes()
