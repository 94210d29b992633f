"""The implementations that `make conformance` judges, and where their reports and expected failures
lie."""

from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from spec_tests.helpers.paths import DOCS, ROOT

HERE = Path(__file__).resolve().parent
DATA = DOCS / "conformance.json"
PAGE = DOCS / "conformance.md"
BREACHES = ROOT / "examples" / "breaches"


@dataclass(frozen=True, slots=True)
class Implementation:
    """One of those that are judged."""

    name: str
    """Its name, which is that of its adapter's module and of its expected failures."""
    title: str
    """Its name in the head of a table."""
    modules: tuple[str, ...]
    """The modules that must be importable."""
    distributions: tuple[str, ...]
    """The distributions with versions to report."""
    examples: int = 30
    """Cases a rule, the same ones in every run: as many as its expected failures take, or as time
    allows."""

    @property
    def spec(self) -> str:
        """The adapter, as ``--adapter`` takes it."""
        return f"shardvar.conformance.adapters.{self.name}:Adapter"

    @property
    def expected(self) -> Path:
        """The file of its expected failures, if it has any."""
        return HERE / "expected" / f"{self.name}.txt"

    @property
    def has_adapter(self) -> bool:
        """True if it has an adapter."""
        return (ROOT / "shardvar" / "conformance" / "adapters" / f"{self.name}.py").is_file()

    @property
    def report(self) -> Path:
        """The path of its last report in this working copy."""
        return ROOT / "build" / "conformance" / f"{self.name}.json"

    def missing(self) -> list[str]:
        """Return the missing modules, and "adapter" if the adapter is missing."""
        return [module for module in self.modules if find_spec(module) is None] + ["adapter"] * (
            not self.has_adapter
        )

    def versions(self) -> dict[str, str]:
        """The versions that are installed, by distribution."""
        return {name: metadata.version(name) for name in self.distributions}


IMPLEMENTATIONS = (
    Implementation("numpy", "NumPy", ("numpy",), ("numpy",)),
    Implementation("shardvar", "shardvar", ("shardvar",), ()),
    Implementation(
        "tensorflow", "TensorFlow", ("tensorflow",), ("tensorflow-cpu", "keras"), examples=20
    ),
    Implementation("torch", "PyTorch", ("torch",), ("torch",), examples=40),
    # JAX compiles its functions for each shape that it meets.
    Implementation(
        "jax", "JAX with Orbax", ("jax", "orbax"), ("jax", "orbax-checkpoint"), examples=12
    ),
)
