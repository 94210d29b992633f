"""Checkpoints that many processes wrote together, in the formats of the frameworks, read by the
frameworks."""

import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from spec_tests.helpers.framework_jobs import JAX_WHOLE, run_job
from spec_tests.helpers.shared_saves import save_all

pytestmark = pytest.mark.filterwarnings("ignore")

TABLE, BIAS = np.arange(52, dtype=np.float32).reshape(13, 4), np.arange(4.0)


def shares(count: int) -> list[dict[str, Any]]:
    """Rows of a table, and the same bias in every process."""
    return [
        {"table": sv.LocalShard(TABLE[start:stop], (start, 0), TABLE.shape), "bias": BIAS}
        for start, stop in sv.div(len(TABLE), count)
    ]


def test_tensorflow_reads_what_processes_wrote_and_merges_it_with_its_own(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    path = str(tmp_path / "ck")
    for run in ("1", "2"):
        save_all(path, shares(3), run, format="tensorflow")
        reader = tf.train.load_checkpoint(path)
        assert reader.get_variable_to_shape_map() == {"table": [13, 4], "bias": [4]}
        assert np.array_equal(reader.get_tensor("table"), TABLE)
        assert np.array_equal(reader.get_tensor("bias"), BIAS)
    part = tf.raw_ops.RestoreV2(
        prefix=path, tensor_names=["table"], shape_and_slices=["13 4 5,4:0,4"], dtypes=[tf.float32]
    )
    assert np.array_equal(part[0].numpy(), TABLE[5:9])
    # TensorFlow's own merge reads such an index too, with the field that is not TensorFlow's. It
    # moves the data files.
    path, merged = str(tmp_path / "alone"), str(tmp_path / "merged")
    save_all(path, shares(3), "1", format="tensorflow")
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[path], destination_prefix=merged, delete_old_dirs=False
    )
    assert np.array_equal(tf.train.load_checkpoint(merged).get_tensor("table"), TABLE)


def test_dcp_load_reads_what_processes_wrote(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    dcp = pytest.importorskip("torch.distributed.checkpoint", reason="PyTorch is not installed")
    for run in ("1", "2"):
        save_all(tmp_path / "ck", shares(3), run, format="torch")
        read = {"table": torch.zeros(13, 4), "bias": torch.zeros(4, dtype=torch.float64)}
        dcp.load(read, checkpoint_id=str(tmp_path / "ck"))
        assert np.array_equal(read["table"].numpy(), TABLE)
        assert np.array_equal(read["bias"].numpy(), BIAS)


def test_the_processes_of_a_torch_job_save_what_fully_shard_left_them_and_each_reads_it_once(
    tmp_path: Path,
) -> None:
    """As the how-to says. Together they read the payloads, and no more than the data files: no byte is
    read twice. What lies between two regions may be read along."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    run_job("torch", tmp_path, 2)
    whole, read = sv.load(tmp_path / "whole.npz"), sv.load(tmp_path / "ck")
    assert read.keys() == whole.keys()
    assert all(np.array_equal(read[key], array) for key, array in whole.items())
    printed = run_job("torch-restore", tmp_path, 2)
    payloads = sum(array.nbytes for key, array in whole.items() if key != "steps")
    files = sum(each.stat().st_size for each in tmp_path.glob("ck.svdata-*"))
    assert payloads <= sum(map(int, printed)) <= files


def test_the_processes_of_a_torch_job_save_a_distributed_checkpoint(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    dcp = pytest.importorskip("torch.distributed.checkpoint", reason="PyTorch is not installed")
    run_job("torch-dcp", tmp_path, 2)
    whole = sv.load(tmp_path / "whole.npz")
    read = {key: torch.zeros_like(torch.from_numpy(array)) for key, array in whole.items()}
    dcp.load(read, checkpoint_id=str(tmp_path / "ck"))
    assert all(np.array_equal(read[key].numpy(), array) for key, array in whole.items())


def test_the_processes_of_a_jax_job_save_what_their_devices_hold_and_another_mesh_restores_it(
    tmp_path: Path,
) -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        (tmp_path / "coordinator").write_text(f"127.0.0.1:{free.getsockname()[1]}")
    run_job("jax", tmp_path, 2)
    read = sv.load(tmp_path / "ck")
    assert read.keys() == JAX_WHOLE.keys()
    assert all(np.array_equal(read[key], array) for key, array in JAX_WHOLE.items())
    run_job("jax-restore", tmp_path, 1)
