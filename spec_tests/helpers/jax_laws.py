"""Laws of ``shardvar.jax`` on eight devices of one process: a program, since JAX makes its devices when it starts.

`python -m spec_tests.helpers.jax_laws FOLDER` runs each function of ``LAWS`` in a folder of its own, and prints as JSON
what went wrong: a traceback, or nothing.
"""

import json
import os
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointNotFound,
    CorruptCheckpoint,
    ShardvarError,
    StillSaving,
    StorageError,
    TargetExists,
    UnsupportedError,
)
from spec_tests.helpers.framework_jobs import counting
from spec_tests.helpers.programs import ENVIRONMENT, command_of

LAWS: dict[str, Callable[[Path], None]] = {}


def law(function: Callable[[Path], None]) -> Callable[[Path], None]:
    """Add a function to the laws."""
    LAWS[function.__name__] = function
    return function


def run_laws(folder: Path) -> dict[str, str]:
    """Run all laws in a process of eight devices; return the traceback of each, empty if it holds."""
    devices = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    command = command_of("helpers.jax_laws", folder)
    done = subprocess.run(
        command, env=ENVIRONMENT | devices, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def raised(
    kind: type[ShardvarError], words: str, function: Any, *given: Any, **options: Any
) -> None:
    """Raise unless a call raises an error of a kind, with these words in it."""
    try:
        function(*given, **options)
    except kind as error:
        assert words in str(error), str(error)
    else:
        raise AssertionError(f"nothing was raised: {words}")


def is_key(value: Any) -> bool:
    """Return True for typed random keys."""
    import jax

    return hasattr(value, "dtype") and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def same(made: Any, wanted: Any) -> None:
    """Raise unless two trees have one structure, and leaves of the same type, place and bits."""
    import jax

    assert jax.tree.structure(made) == jax.tree.structure(wanted)
    for (path, one), two in zip(
        jax.tree_util.tree_leaves_with_path(made), jax.tree.leaves(wanted), strict=True
    ):
        assert type(one) is type(two), (path, type(one), type(two))
        if isinstance(two, jax.Array):
            assert (one.sharding, one.committed) == (two.sharding, two.committed), path
            assert one.dtype == two.dtype, path
            if is_key(one):
                one, two = jax.random.key_data(one), jax.random.key_data(two)
        if isinstance(two, jax.Array | np.ndarray | np.generic):
            one, two = np.asarray(one), np.asarray(two)
            assert (one.dtype, one.shape) == (two.dtype, two.shape), path
            if one.dtype.hasobject:
                assert one.tolist() == two.tolist(), path
            else:
                assert one.tobytes() == two.tobytes(), path
        else:
            assert one == two, path


def meshes() -> list[Any]:
    """Return meshes over all devices, and over some of them in another order."""
    import jax
    from jax.sharding import AxisType, Mesh

    devices = np.asarray(jax.devices())
    grids = [
        devices,
        devices.reshape(4, 2),
        devices[::-1].reshape(2, 2, 2),
        devices[[5, 2, 7]].reshape(1, 3)[:, :2],
    ]
    names = ("x", "y", "z")
    return [
        Mesh(grid, names[: grid.ndim], axis_types=(AxisType.Auto,) * grid.ndim) for grid in grids
    ]


def shardings(shape: tuple[int, ...]) -> list[Any]:
    """Return every sharding of a shape by axes of the meshes, one or two for an axis, and on single
    devices."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

    found: list[Any] = [SingleDeviceSharding(device) for device in jax.devices()[:3:2]]
    for mesh in meshes():
        names = [
            None,
            *mesh.axis_names,
            *([mesh.axis_names[:2]] if len(mesh.axis_names) > 1 else []),
        ]
        for spec in product(names, repeat=len(shape)):
            axes = [axis for name in spec if name for axis in ([name] if len(name) == 1 else name)]
            if len({*axes}) < len(axes):
                continue
            each = NamedSharding(mesh, PartitionSpec(*spec))
            try:
                each.shard_shape(shape)
            except ValueError:
                continue
            found.append(each)
    return found


def over_all(shape: tuple[int, ...]) -> Any:
    """Return the first sharding of a shape over all eight devices."""
    return next(each for each in shardings(shape) if len(each.device_set) == 8)


@law
def an_array_of_any_sharding_is_loaded_into_any_other(folder: Path) -> None:
    """Each region is written once, and read once for all devices that hold it."""
    import jax

    import shardvar.jax

    shape = 64, 64
    whole = np.arange(1 << 12, dtype=np.float32).reshape(shape)
    kinds = shardings(shape)
    assert len(kinds) == 40
    state = {str(row): jax.device_put(whole, kind) for row, kind in enumerate(kinds)}
    report = shardvar.jax.save(folder / "ck", state, run="1")
    assert report.nbytes == whole.nbytes * len(kinds)
    for shift in (0, 1, 7, 20):
        places = kinds[shift:] + kinds[:shift]
        like = {
            str(row): jax.ShapeDtypeStruct(shape, whole.dtype, sharding=place)
            for row, place in enumerate(places)
        }
        with counting() as read:
            found = shardvar.jax.load(folder / "ck", like)
        # Columns of one payload may be read by spans that overlap; eight replicas would be more.
        assert read[0] == report.nbytes or (shift and read[0] < 1.5 * report.nbytes)
        for row, place in enumerate(places):
            made = found[str(row)]
            assert made.sharding == place and made.committed
            assert np.array_equal(made, whole)
            for shard in made.addressable_shards:
                assert np.array_equal(shard.data, whole[shard.index])


@law
def arrays_that_jax_has_placed_are_placed_by_it_again(folder: Path) -> None:
    import jax

    import shardvar.jax

    state = {
        "free": jax.numpy.arange(3),
        "fixed": jax.device_put(np.ones(3), jax.devices()[4]),
        "host": jax.device_put(np.ones(3), _memory(jax.devices()[2], "pinned_host")),
        "count": jax.numpy.zeros([], int),
        "none": jax.numpy.zeros((0, 4)),
    }
    shardvar.jax.save(folder / "ck", state, run="1")
    same(shardvar.jax.load(folder / "ck", state), state)
    like = jax.eval_shape(lambda: state)
    found = shardvar.jax.load(folder / "ck", {key: like[key] for key in like})
    assert [key for key in found if found[key].committed] == []


def _memory(device: Any, kind: str) -> Any:
    from jax.sharding import SingleDeviceSharding

    return SingleDeviceSharding(device, memory_kind=kind)


@law
def every_dtype_of_jax_keeps_its_bits(folder: Path) -> None:
    import jax
    import jax.numpy as jnp

    import shardvar.jax

    names = (
        "bool int8 uint8 int16 uint16 int32 uint32 float16 bfloat16 float32 complex64 float8_e4m3fn "
        "float8_e5m2 float8_e4m3b11fnuz float8_e8m0fnu int4 uint4"
    )
    state = {
        name: jax.device_put(jnp.arange(8).astype(getattr(jnp, name)), shardings((8,))[4])
        for name in names.split()
    }
    shardvar.jax.save(folder / "ck", state, run="1")
    same(shardvar.jax.load(folder / "ck", state), state)


@law
def random_keys_keep_their_implementation(folder: Path) -> None:
    import jax
    import orbax.checkpoint as ocp

    import shardvar.jax

    state = {
        "key": jax.random.key(1),
        "rbg": jax.random.key(1, impl="rbg"),
        "raw": jax.random.PRNGKey(3),
        "many": jax.device_put(jax.random.split(jax.random.key(2), 8), over_all((8,))),
    }
    shardvar.jax.save(folder / "ck", state, run="1")
    shardvar.jax.save(folder / "orbax", state, run="1", format="orbax")
    for name in ("ck", "orbax"):
        same(shardvar.jax.load(folder / name, state), state)
        same(shardvar.jax.load(folder / name, jax.eval_shape(lambda: state) | state), state)
        other = state | {"rbg": jax.random.key(1, impl="unsafe_rbg")}
        words = f"'rbg': Its random keys are rbg in {folder / name}, and unsafe_rbg in the template"
        raised(ArgumentError, words, shardvar.jax.load, folder / name, other)
    restored = ocp.PyTreeCheckpointer().restore(
        folder / "orbax",
        item=state,
        restore_args=ocp.checkpoint_utils.construct_restore_args(state),
    )
    for key, value in state.items():
        assert restored[key].dtype == value.dtype and is_key(value) == is_key(restored[key])
        pair = [
            jax.random.key_data(each) if is_key(each) else each for each in (restored[key], value)
        ]
        assert np.array_equal(*pair)
    assert sv.verify(folder / "orbax").ok
    shardvar.jax.save(folder / "orbax", {"w": TABLE}, run="2", format="orbax", force=True)
    assert not (folder / "orbax" / "array_metadatas").exists()
    other = state | {"key": jax.random.PRNGKey(1)}
    same(shardvar.jax.load(folder / "ck", other)["key"], jax.random.key_data(state["key"]))


@law
def plain_values_and_arrays_of_numpy_keep_their_types(folder: Path) -> None:
    import ml_dtypes

    import shardvar.jax

    state = {
        "numbers": [7, -(2**63), 2**70, True, 2.5, float("inf"), 1 + 2j],
        "texts": ["adam", "", "schön", b"bytes", frozenset({"a", "b"}), {1, 2}],
        "numpy": [np.arange(6).reshape(2, 3).T, np.float32(2), ml_dtypes.bfloat16(3), np.str_("t")],
        "nothing": [None, {}, (), [[]]],
    }
    shardvar.jax.save(folder / "ck", state, run="1", metadata={"by": "a law"})
    same(shardvar.jax.load(folder / "ck", state), state)
    with sv.open_checkpoint(folder / "ck") as reader:
        assert reader.metadata.user == {"by": "a law"}
    shardvar.jax.save(folder / "torch", state, run="1", format="torch")
    same(shardvar.jax.load(folder / "torch", state), state)


@law
def states_of_flax_and_optax_are_given_back(folder: Path) -> None:
    """NNX: a module and its split state. Linen: a TrainState. Optax: nested named tuples."""
    import jax
    import optax
    from flax import linen, nnx
    from flax.training.train_state import TrainState

    import shardvar.jax

    class Block(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)])
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

    module = Block(nnx.Rngs(3))
    dense = linen.Dense(2)
    params = dense.init(jax.random.key(0), np.ones((1, 4)))["params"]
    rule = optax.chain(optax.clip(1.0), optax.adamw(0.1), optax.scale_by_schedule(lambda _: 1.0))
    train = TrainState.create(apply_fn=dense.apply, params=params, tx=rule)
    train = train.apply_gradients(grads=params)
    state = {"nnx": nnx.split(module)[1], "module": module, "train": train}
    other = {
        "nnx": nnx.split(Block(nnx.Rngs(4)))[1],
        "module": Block(nnx.Rngs(4)),
        "train": TrainState.create(apply_fn=dense.apply, params=params, tx=rule),
    }
    shardvar.jax.save(folder / "ck", state, run="1")
    found = shardvar.jax.load(folder / "ck", other)
    assert isinstance(found["module"], Block) and isinstance(found["train"], TrainState)
    for one, two in zip(*map(jax.tree.leaves, (found, state)), strict=True):
        same(
            *(
                jax.random.key_data(each) if is_key(each) else np.asarray(each)
                for each in (one, two)
            )
        )
    with sv.open_checkpoint(folder / "ck") as reader:
        assert {"nnx.layers.0.kernel.value", "train.opt_state.1.0.mu.kernel"} < {*reader}


@law
def orbax_and_shardvar_read_each_other_with_the_same_keys(folder: Path) -> None:
    import jax
    import optax
    import orbax.checkpoint as ocp

    import shardvar.jax

    places = shardings((8, 4))
    params = {
        "w": jax.device_put(np.arange(32, dtype=np.float32).reshape(8, 4), places[-1]),
        "b": [jax.device_put(jax.numpy.arange(8, dtype="bfloat16"), shardings((8,))[6])],
    }
    rule = optax.chain(optax.clip(1.0), optax.adamw(0.1))
    state = {"params": params, "opt": rule.init(params), "step": 7, "rate": 0.5, "nothing": {}}
    text = state | {"name": "adam", "flag": True, "rows": np.arange(3)}
    ocp.PyTreeCheckpointer().save(folder / "real", text)
    shardvar.jax.save(folder / "ck", text, run="1")
    shardvar.jax.save(folder / "ours", text, run="1", format="orbax")
    for name in ("real", "ours"):
        assert sv.diff(folder / "ck", folder / name).equal
        same(shardvar.jax.load(folder / name, text), text)
    raised(
        TargetExists, "force", shardvar.jax.save, folder / "ours", state, run="2", format="orbax"
    )
    shardvar.jax.save(folder / "ours", state, run="2", format="orbax", force=True)

    def described(value: Any) -> Any:
        if not isinstance(value, jax.Array):
            return value
        return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=value.sharding)

    sv.reshard(folder / "ours", folder / "copy", format="orbax")
    for name in ("ours", "copy"):
        found = ocp.StandardCheckpointer().restore(folder / name, jax.tree.map(described, state))
        assert jax.tree.structure(found) == jax.tree.structure(state)
        for one, two in zip(*map(jax.tree.leaves, (found, state)), strict=True):
            assert getattr(one, "sharding", None) == getattr(two, "sharding", None)
            assert np.array_equal(one, two)
    nested = ocp.PyTreeCheckpointer().restore(folder / "ours")
    assert nested["step"] == 7 and nested["nothing"] == {}
    assert np.array_equal(nested["params"]["b"][0], params["b"][0])


@law
def empty_containers_are_what_orbax_makes_of_them(folder: Path) -> None:
    import orbax.checkpoint as ocp

    import shardvar.jax

    state = {"tuple": (), "list": [], "dict": {}, "none": None, "in": [(), {"x": None}], "w": TABLE}
    ocp.PyTreeCheckpointer().save(folder / "real", state)
    shardvar.jax.save(folder / "ours", state, run="1", format="orbax")
    ours, real = (ocp.PyTreeCheckpointer().restore(folder / name) for name in ("ours", "real"))
    assert np.array_equal(ours.pop("w"), real.pop("w"))
    assert repr(ours) == repr(real)


@law
def the_size_of_a_portion_is_what_its_regions_take(folder: Path) -> None:
    """So that a load takes a bounded memory more."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    import shardvar.jax

    whole = np.ones((8, 4), np.float64)
    rows = NamedSharding(meshes()[1], PartitionSpec("x"))  # on each of two devices
    halves = jax.device_put(np.ones((8, 4), np.int16), rows)
    state = {"whole": whole, "halves": halves, "number": 7}
    shardvar.jax.save(folder / "ck", state, run="1")
    sizes: dict[str, int] = {}
    real = shardvar.jax.pytrees.in_portions

    def noting(items: Any, size: Any) -> Any:
        given = [*items]
        sizes.update((item[0], size(item)) for item in given)
        return real(given, size)

    with patch.object(shardvar.jax.pytrees, "in_portions", noting):
        shardvar.jax.load(folder / "ck", state)
    assert sizes == {"whole": whole.nbytes, "halves": halves.nbytes, "number": 8}


TABLE = np.arange(52, dtype=np.float32).reshape(13, 4)


@law
def keys_that_differ_are_an_error_unless_it_is_not_strict(folder: Path) -> None:
    import jax

    import shardvar.jax

    shardvar.jax.save(folder / "ck", {"w": TABLE, "old": 1}, run="1")
    like = {"w": np.zeros_like(TABLE), "new": [2]}
    words = "ck lacks 'new.0'; the state lacks 'old'."
    raised(ArgumentError, words, shardvar.jax.load, folder / "ck", like)
    raised(
        ArgumentError, "ck lacks 'w.0', 'w.1'; ", shardvar.jax.load, folder / "ck", {"w": [1, 2]}
    )
    found, report = shardvar.jax.load(folder / "ck", like, strict=False, return_report=True)
    assert report == shardvar.jax.LoadReport(("new.0",), ("old",))
    assert np.array_equal(found["w"], TABLE) and found["new"] == [2]
    like["new"] = jax.ShapeDtypeStruct((), np.float32)
    words = "lacks 'new', and the template has no values for it"
    raised(ArgumentError, words, shardvar.jax.load, folder / "ck", like, strict=False)
    raised(CheckpointNotFound, "no", shardvar.jax.load, folder / "none", like)


@law
def a_template_that_differs_is_an_error_that_names_the_key(folder: Path) -> None:
    import jax
    from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

    import shardvar.jax

    state = {"w": TABLE, "name": "adam", "n": 5, "x": 2.5}
    shardvar.jax.save(folder / "ck", state, run="1")
    mesh = meshes()[0]
    uneven = NamedSharding(mesh, PartitionSpec("x"))
    nowhere = NamedSharding(AbstractMesh((8,), ("x",)), PartitionSpec())
    struct = jax.ShapeDtypeStruct
    cases: list[tuple[dict[str, Any], str]] = [
        ({"w": np.zeros((12, 4), np.float32)}, "'w' is [13, 4] in"),
        ({"w": TABLE.astype(np.float16)}, "'w' is float32 in"),
        ({"w": 5}, "'w' is [13, 4] in"),
        ({"w": "text"}, "'w' is a tensor in"),
        ({"w": struct((13, 4), np.float32, sharding=uneven)}, "'w': Its sharding does not fit it"),
        ({"w": struct((13, 4), np.float32, sharding=nowhere)}, "over a mesh without devices"),
        ({"w": struct((13, 4), np.float64)}, "'w': JAX has no arrays of float64"),
        ({"name": np.zeros(3)}, "'name' is an array in the template"),
        ({"n": 5.0}, "'n' is int64 in"),
        ({"x": 2}, "'x' is float64 in"),
    ]
    for change, words in cases:
        raised(ArgumentError, words, shardvar.jax.load, folder / "ck", state | change)
    found = shardvar.jax.load(folder / "ck", state | {"w": TABLE.astype(np.float16)}, cast=True)
    same(found["w"], TABLE.astype(np.float16))


@law
def what_cannot_be_saved_is_refused_and_nothing_is_written(folder: Path) -> None:
    import jax

    import shardvar.jax

    save = partial(shardvar.jax.save, folder / "ck", run="1")
    gone = jax.numpy.ones(3)
    gone.delete()
    raised(ArgumentTypeError, "The state is a ndarray, not a tree", save, TABLE)
    raised(ArgumentError, "two values with the key 'a.b'", save, {"a.b": 1, "a": {"b": 2}})
    raised(UnsupportedError, "'a.0': It is an object of the class", save, {"a": [object()]})
    raised(
        ArgumentTypeError,
        "'w': It is a jax.ShapeDtypeStruct",
        save,
        jax.eval_shape(lambda: {"w": TABLE}),
    )
    raised(ArgumentTypeError, "'w': It is traced", jax.jit(lambda w: save({"w": w})), TABLE)
    raised(ArgumentError, "'w': It was deleted", save, {"w": gone})
    narrow = {"w": jax.numpy.ones(3, "int4")}
    raised(UnsupportedError, "orbax cannot hold 'w' (int4)", save, narrow, format="orbax")
    assert [*folder.iterdir()] == []


@law
def a_save_in_the_background_has_the_values_of_its_call(folder: Path) -> None:
    """Also of arrays that are donated, or changed, after it. An error comes with the handle or with
    the next save."""
    import jax

    import shardvar.jax

    place = over_all((8, 4))
    free, late = threading.Event(), [True]
    real = shardvar.jax.pytrees.save_with_objects

    def waits(*given: Any, **options: Any) -> Any:
        assert free.wait(60)
        if late.pop():
            raise ArgumentError("It was late.", "")
        return real(*given, **options)

    def state(number: int) -> dict[str, Any]:
        array = jax.device_put(np.full((8, 4), number, np.float32), place)
        text = np.array([b"one", b"two"], object)
        return {
            "w": array,
            "moved": jax.numpy.full((64, 64), number),
            "deleted": jax.numpy.full((64, 64), number),
            "key": jax.random.key(number),
            "n": np.full(3, number),
            "text": text,
        }

    step = jax.jit(lambda w: w + 1, donate_argnums=0)
    with patch.object(shardvar.jax.pytrees, "save_with_objects", waits):
        for number in (2, 1):
            late[:] = [False]
            free.clear()
            mine = state(number)
            options = {"run": str(number), "background": True, "digest": True}
            pending = shardvar.jax.save(folder / "ck", mine, **options)
            mine["w"], mine["n"][:] = step(mine["w"]), 9
            mine["moved"] = step(jax.device_put(mine["moved"], jax.devices()[1], donate=True))
            mine.pop("deleted").delete()
            mine["other"] = [jax.numpy.full((64, 64), 7) for _ in range(8)]
            words, options = "still being saved", {"run": "1", "busy": "raise"}
            raised(StillSaving, words, shardvar.jax.save, folder / "x", mine, **options)
            free.set()
            assert pending.join().num_tensors == 6
            same(shardvar.jax.load(folder / "ck", state(0)), state(number))
        assert sv.verify(folder / "ck").ok
        late[:] = [True]
        shardvar.jax.save(folder / "ck", state(3), run="3", background=True)
        raised(ArgumentError, "It was late", shardvar.jax.save, folder / "ck", state(4), run="4")
    words, options = "staging_nbytes is 10 B", {"background": True, "staging_nbytes": 10}
    raised(ArgumentError, words, shardvar.jax.save, folder / "ck", state(3), run="5", **options)
    same(shardvar.jax.load(folder / "ck", state(0)), state(1))


@law
def a_process_writes_the_values_of_the_call(folder: Path) -> None:
    """Arrays that were donated or changed since are as they were, in formats with shares and without."""
    import jax

    import shardvar.jax

    place = over_all((8, 4))
    step = jax.jit(lambda w: w + 1, donate_argnums=0)

    def state(number: int) -> dict[str, Any]:
        w = jax.device_put(np.full((8, 4), number, np.float32), place)
        return {"w": w, "half": jax.numpy.ones(3, jax.numpy.bfloat16), "n": np.full(3, number)}

    for number, form in enumerate(("shardvar", "orbax", "shardvar")):
        mine, path = state(number), folder / f"{form}-{number}"
        pending = shardvar.jax.save(path, mine, run="1", format=form, background="process")
        mine["w"], mine["n"][:] = step(mine["w"]), 9
        assert pending.result().blocked_seconds > 0
        same(shardvar.jax.load(path, state(7)), state(number))
        shardvar.jax.save(folder / f"plain-{number}", state(number), run="1", format=form)
        assert sv.diff(path, folder / f"plain-{number}").equal
    (folder / "file").write_text("in the way")
    failed = shardvar.jax.save(folder / "file" / "ck", state(1), run="1", on_error="warn")
    assert isinstance(failed.error, StorageError)


@law
def digests_are_the_same_on_every_mesh_and_in_every_format(folder: Path) -> None:
    import jax

    import shardvar.jax

    whole = np.arange(32, dtype=np.float32).reshape(8, 4)
    sv.save(folder / "whole", {"w": whole}, digest=True)
    expected = sv.digest(folder / "whole").checkpoint
    for number, place in enumerate([shardings((8, 4))[0], *shardings((8, 4))[::7]]):
        for form in ("shardvar", "safetensors"):
            path = folder / f"{number}.{form}"
            state = {"w": jax.device_put(whole, place)}
            shardvar.jax.save(path, state, run="1", format=form, digest=True)
            assert sv.digest(path).checkpoint == expected and sv.verify(path).ok


@law
def a_save_with_a_base_writes_what_has_changed(folder: Path) -> None:
    """Also in the background, and through numbered steps."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    import shardvar.jax as face

    mesh = meshes()[0]
    rows = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
    frozen = jax.device_put(jnp.arange(64.0).reshape(16, 4), rows)
    steps = sv.SavedSteps(folder, using=face, keep_last=1)
    for number in range(1, 4):
        state = {"frozen": frozen, "changing": jnp.full(5, number), "key": jax.random.key(1)}
        report = steps.save(number, state, incremental=True, background=number == 2)
        report = report.result() if number == 2 else report
        if number > 1 and (report.nbytes, report.num_referred) != (20, 2):
            raise AssertionError(report)
    found = steps.restore(jax.tree.map(lambda leaf: leaf, state))
    same(found.loaded, state)
    options = {"run": "1", "format": "orbax", "base": folder / "step-3"}
    words = "has the format orbax, which has no references"
    raised(ArgumentError, words, face.save, folder / "o", state, **options)


@law
def a_part_has_each_region_of_its_process_once(folder: Path) -> None:
    """A disk of each node has its own replicas, of which the first may be another process's."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    import shardvar.jax
    from shardvar.verbs.together.run import saving_parts

    whole = np.arange(32, dtype=np.float32).reshape(8, 4)
    specs = PartitionSpec("x"), PartitionSpec(None, "y"), PartitionSpec()
    placed = [jax.device_put(whole, NamedSharding(meshes()[1], each)) for each in specs]
    state = dict(zip("abc", placed, strict=True))
    with saving_parts():
        report = shardvar.jax.save(folder / "ck", state, run="1")
    assert report.nbytes == 3 * whole.nbytes
    same(shardvar.jax.load(folder / "ck", state), state)


@law
def a_damaged_byte_is_found(folder: Path) -> None:
    import shardvar.jax

    shardvar.jax.save(folder / "ck", {"w": TABLE}, run="1")
    (file,) = folder.glob("*.svdata*")
    content = bytearray(file.read_bytes())
    content[content.index(TABLE.tobytes()) + 5] ^= 1
    file.write_bytes(content)
    raised(CorruptCheckpoint, "'w'", shardvar.jax.load, folder / "ck", {"w": TABLE})


@law
def processes_that_hold_different_values_all_raise(folder: Path) -> None:
    """Two threads are two processes here. A format that has no shares is refused."""
    import jax

    import shardvar.jax

    def save_all(run: str, states: list[Any], **options: Any) -> list[ShardvarError | None]:
        def save(process: int) -> ShardvarError | None:
            threading.current_thread().name = f"process {process}"
            try:
                shardvar.jax.save(folder / "ck", states[process], run=run, timeout=60, **options)
            except ShardvarError as error:
                return error
            return None

        with ThreadPoolExecutor(2) as pool:
            return [*pool.map(save, range(2))]

    def index() -> int:
        return int(threading.current_thread().name[-1])

    with patch.object(jax, "process_count", lambda: 2), patch.object(jax, "process_index", index):
        for run, states in (
            ("1", [{"step": "a", "w": TABLE}, {"step": "b", "w": TABLE}]),
            ("2", [{"w": jax.numpy.ones(3)}, {"w": jax.numpy.zeros(3)}]),
        ):
            assert all("process" in str(error) for error in save_all(run, states))
            raised(CheckpointNotFound, "", sv.open_checkpoint, folder / "ck")
        for error in save_all("3", [{"w": TABLE}] * 2, format="orbax"):
            assert "orbax cannot be written by several processes" in str(error)
        odd = [{"w": TABLE}, {"w": TABLE, "odd": object()}]
        other, own = save_all("odd", odd)
        assert str(other).startswith("process 1: 'odd': It is an object")
        assert str(own).startswith("'odd': It is an object")
        keys = [{f"key{process}": jax.random.key(process), "w": TABLE} for process in range(2)]
        assert save_all("4", keys) == [None, None]
        assert save_all("5", [{"step": 1}, {"step": 2}], replicas="first") == [None, None]
    assert shardvar.jax.load(folder / "ck", {"step": 0}) == {"step": 1}


@law
def processes_gather_through_the_service_of_jax(folder: Path) -> None:
    from shardvar.jax import leaves
    from shardvar.verbs.training.resuming import gather

    held: dict[str, str] = {}

    class Service:
        def key_value_set(self, key: str, text: str, *, allow_overwrite: bool) -> None:
            assert allow_overwrite and key.startswith("shardvar/")
            held[key] = text

        def key_value_try_get(self, key: str) -> str:
            if key not in held:
                raise RuntimeError("NOT_FOUND")
            return held[key]

    def gathered(process: int) -> list[list[int]]:
        return gather(leaves._Group(), (process, 2), [process, 7], 20)

    with patch.object(leaves, "_client", Service), ThreadPoolExecutor(2) as pool:
        assert [*pool.map(gathered, range(2))] == [[[0, 7], [1, 7]]] * 2


def main(folder: Path) -> None:
    """Run all laws, and print what went wrong."""
    warnings.simplefilter("ignore")
    found = {}
    for name, function in LAWS.items():
        (folder / name).mkdir()
        try:
            function(folder / name)
            found[name] = ""
        except BaseException:  # noqa: BLE001
            found[name] = traceback.format_exc()[-3000:]
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)
