"""Layouts of Keras' distribution and of TensorFlow's DTensor on the frameworks, in processes with 6
devices."""

import json
import os
import subprocess
import sys
from itertools import product
from typing import Any

import numpy as np
import pytest

from shardvar.errors import ArgumentError
from shardvar.layout.meshes import tensor_layout, tensorflow_dtensor
from shardvar.layout.meshes.layout import Mesh
from spec_tests.helpers.layout_tables import local_positions

ENTRIES = (None, "x", "y")
SHAPES = [(6, 12), (4, 9), (7, 6), (2, 3)]
ASKED = [(shape, axes) for shape in SHAPES for axes in product(ENTRIES, repeat=2)]

ASK_KERAS = """
import json, sys
import jax, keras, numpy as np
mesh = keras.distribution.DeviceMesh((2, 3), ("x", "y"), keras.distribution.list_devices())
answers = []
for shape, axes in json.load(sys.stdin):
    try:
        layout = keras.distribution.TensorLayout(axes, mesh)
        whole = np.arange(np.prod(shape)).reshape(shape)
        array = keras.distribution.distribute_tensor(whole, layout)
        answers.append({s.device.id: np.asarray(s.data).ravel().tolist() for s in array.addressable_shards})
    except Exception as error:
        answers.append(type(error).__name__)
print(json.dumps(answers))
"""

ASK_TENSORFLOW = """
import json, sys
import numpy as np, tensorflow as tf
from tensorflow.experimental import dtensor
cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 6)
mesh = dtensor.create_mesh([("x", 2), ("y", 3)], devices=[f"CPU:{i}" for i in range(6)])
answers = []
for shape, axes in json.load(sys.stdin):
    try:
        layout = dtensor.Layout([axis or dtensor.UNSHARDED for axis in axes], mesh)
        whole = tf.constant(np.arange(np.prod(shape)).reshape(shape).astype(np.int32))
        array = dtensor.relayout(dtensor.copy_to_mesh(whole, dtensor.Layout.replicated(mesh, 2)), layout)
        answers.append({i: part.numpy().ravel().tolist() for i, part in enumerate(dtensor.unpack(array))})
    except Exception as error:
        answers.append(type(error).__name__)
print(json.dumps(answers))
"""


def answers_of(script: str) -> list[Any]:
    """Run a script with the questions as its input; each answer is the values on each device, or an
    error's name."""
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=6",
        "JAX_PLATFORMS": "cpu",
        "KERAS_BACKEND": "jax",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(ASKED), env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return list(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(("name", "script"), [("keras", ASK_KERAS), ("tensorflow", ASK_TENSORFLOW)])
def test_a_device_holds_what_the_framework_gives_it(name: str, script: str) -> None:
    """All entries for a mesh of 2 by 3, of shapes that divide and that do not; what is refused
    there is refused."""
    pytest.importorskip(name, reason=f"{name} is not installed")
    mesh = Mesh((2, 3), ("x", "y"))
    verdicts = []
    for (shape, axes), answer in zip(ASKED, answers_of(script), strict=True):

        def ours(shape: Any = shape, axes: Any = axes) -> Any:
            if name == "keras":
                return tensor_layout(shape, mesh, axes)
            return tensorflow_dtensor(shape, mesh, [axis or "unsharded" for axis in axes])

        verdicts.append(isinstance(answer, str))
        if isinstance(answer, str):
            with pytest.raises(ArgumentError):
                ours()
        else:
            assert {device: local_positions(ours(), int(device)) for device in answer} == answer, (
                shape,
                axes,
            )
    assert 0 < np.sum(verdicts) < len(ASKED)
