"""The implementations that `make peers` judges, and where their reports and expected failures lie."""

from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DATA = ROOT / "docs" / "conformance.json"
PAGE = ROOT / "docs" / "conformance.md"
BREACHES = ROOT / "examples" / "breaches"


@dataclass(frozen=True, slots=True)
class Implementation:
    """One of those that are judged."""

    name: str
    """Its name, which is that of its adapter's module and of its expected failures."""
    title: str
    """What it is, for a table's head."""
    modules: tuple[str, ...]
    """What must be importable."""
    distributions: tuple[str, ...]
    """Whose versions are reported."""

    @property
    def spec(self) -> str:
        """The adapter, as ``--adapter`` takes it."""
        return f"shardvar.conformance.adapters.{self.name}:Adapter"

    @property
    def expected(self) -> Path:
        """The file of its expected failures, if it has any."""
        return HERE / "expected" / f"{self.name}.txt"

    def missing(self) -> list[str]:
        """The modules that are not installed, the adapter's own among them."""
        adapter = ROOT / "shardvar" / "conformance" / "adapters" / f"{self.name}.py"
        absent = [module for module in self.modules if find_spec(module) is None]
        return absent if adapter.is_file() else [*absent, str(adapter.relative_to(ROOT))]

    def versions(self) -> dict[str, str]:
        """The versions that are installed, by distribution."""
        return {name: metadata.version(name) for name in self.distributions}


IMPLEMENTATIONS = (
    Implementation("numpy", "NumPy", ("numpy",), ("numpy",)),
    Implementation("shardvar", "shardvar", ("shardvar",), ()),
    Implementation("tensorflow", "TensorFlow", ("tensorflow",), ("tensorflow-cpu", "keras")),
    Implementation("torch", "PyTorch", ("torch",), ("torch",)),
    Implementation("jax", "JAX with Orbax", ("jax", "orbax.checkpoint"), ("jax", "orbax-checkpoint")),
)
