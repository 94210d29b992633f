"""Any sequence of writes, reads, saves and restores, on any layouts, is the same sequence on one
NumPy array."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, multiple, rule

import shardvar as sv
from shardvar.reference.variables import ShardedVariable, Variable
from shardvar.testing import ShardedVariableMachine
from spec_tests.helpers.sharded_variables import Array, counting, sharded_of


class Saved(ShardedVariableMachine):
    """A sharded variable that is also saved, and restored into variables of other layouts."""

    saves = Bundle("saves")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="shardvar-"))
        self.count = 0

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @rule(data=st.data())
    def write_one_shard(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.variable.variables) - 1))
        part = self.variable.partition.parts[number]
        self.variable.variables[number].assign(np.zeros(part.shape, self.full.dtype))
        self.full = self.full.copy()
        self.full[part.slices] = 0

    @rule(target=saves, file_format=st.sampled_from(["shardvar", "tensorflow"]))
    def save(self, file_format: str) -> tuple[Path, Array]:
        """What is saved is the value of now, whatever is written afterwards."""
        self.count += 1
        path = self.folder / f"model-{self.count}"
        if file_format == "shardvar":
            sv.Checkpoint(w=self.variable).write(path)
        else:
            sv.save(
                path, {"w/.ATTRIBUTES/VARIABLE_VALUE": self.variable.numpy()}, format="tensorflow"
            )
        return path, self.full.copy()

    @rule(target=saves, saved=saves)
    def load(self, saved: tuple[Path, Array]) -> object:
        """A save may be read back whole at any time."""
        path, array = saved
        (value,) = sv.load(path, ["w/.ATTRIBUTES/VARIABLE_VALUE"]).values()
        np.testing.assert_array_equal(value, array)
        return multiple()

    @rule(saved=saves)
    def restore_into_the_same_layout(self, saved: tuple[Path, Array]) -> None:
        path, self.full = saved
        sv.Checkpoint(w=self.variable).read(path)

    @rule(saved=saves, data=st.data())
    def restore_into_another_layout(self, saved: tuple[Path, Array], data: st.DataObject) -> None:
        """Uneven shards, shards without rows, one shard: the machine goes on with the variable that
        was restored."""
        path, array = saved
        cuts = sorted(data.draw(st.lists(st.integers(0, len(array)), max_size=5)))
        sizes = np.diff([0, *cuts, len(array)]).tolist()
        self.full, self.variable = array, sharded_of(np.zeros_like(array), sizes)
        sv.Checkpoint(w=self.variable).read(path)

    @rule(saved=saves)
    def restore_into_a_plain_variable(self, saved: tuple[Path, Array]) -> None:
        path, array = saved
        plain = Variable(np.zeros_like(array))
        sv.Checkpoint(w=plain).read(path)
        np.testing.assert_array_equal(plain.numpy(), array)

    @rule(saved=saves)
    def refuse_another_shape(self, saved: tuple[Path, Array]) -> None:
        """A refused restore changes no shard."""
        path, array = saved
        other = ShardedVariable(
            [Variable(counting((len(array) + 1, *array.shape[1:]), array.dtype))]
        )
        before = other.numpy()
        try:
            sv.Checkpoint(w=other).read(path)
        except sv.errors.ShardvarError:
            np.testing.assert_array_equal(other.numpy(), before)
        else:
            raise AssertionError("restored into another shape")


TestSaved = Saved.TestCase
TestSaved.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
