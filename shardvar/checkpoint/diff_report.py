"""What ``diff`` found, as values."""

from dataclasses import asdict, dataclass
from typing import Any

from shardvar.checkpoint.numbers import Number, json_number
from shardvar.checkpoint.reports import SCHEMA


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """How the values of one tensor differ."""

    count: int
    """Elements that differ; bytes of the payload where the dtype is variant."""
    first: tuple[int, ...] | None
    """The index of the first one that differs, in C order; None for a variant."""
    max_absolute: Number | None
    """The largest distance; None where nothing has one (strings, opaque dtypes, NaNs)."""
    max_relative: float | None
    """The largest distance relative to the larger of the two magnitudes."""
    num_without_distance: int
    """Differing elements that have no distance, because a NaN is among them."""

    def to_json(self) -> dict[str, Any]:
        """The difference as a JSON object with stable keys."""
        numbers = {"max_absolute": json_number(self.max_absolute), "max_relative": json_number(self.max_relative)}
        return asdict(self) | {"first": None if self.first is None else list(self.first)} | numbers


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """A tensor that both checkpoints have and that is not the same in both."""

    key: str
    """Its name."""
    dtype_a: str
    """Its dtype in the first."""
    dtype_b: str
    """Its dtype in the second."""
    shape_a: tuple[int, ...]
    """Its shape in the first."""
    shape_b: tuple[int, ...]
    """Its shape in the second."""
    values: ValueDifference | None
    """How its values differ; None where they do not, or cannot be compared (other shapes, strings beside numbers)."""

    def to_json(self) -> dict[str, Any]:
        """The difference as a JSON object with stable keys."""
        shapes = {"shape_a": list(self.shape_a), "shape_b": list(self.shape_b)}
        return asdict(self) | shapes | {"values": self.values and self.values.to_json()}


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A tensor that could not be compared, since one of the checkpoints is damaged there."""

    key: str
    """Its name."""
    side: str
    """``"a"`` or ``"b"``: which of the two."""
    kind: str
    """The name of the error's class."""
    message: str
    """The error."""


@dataclass(frozen=True, slots=True)
class DiffReport:
    """What ``diff`` found."""

    path_a: str
    """The first checkpoint."""
    path_b: str
    """The second."""
    only_in_a: tuple[str, ...]
    """Keys that only the first has."""
    only_in_b: tuple[str, ...]
    """Keys that only the second has."""
    differences: tuple[TensorDifference, ...]
    """The tensors that both have and that differ, in the order of the first."""
    unreadable: tuple[Unreadable, ...]
    """The tensors that could not be compared."""
    num_equal: int
    """Tensors that are the same in both: dtype, shape and every element."""

    @property
    def equal(self) -> bool:
        """True where both hold the same tensors."""
        return not (self.only_in_a or self.only_in_b or self.differences or self.unreadable)

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object with stable keys."""
        return {
            "schema": SCHEMA,
            "equal": self.equal,
            "path_a": self.path_a,
            "path_b": self.path_b,
            "only_in_a": list(self.only_in_a),
            "only_in_b": list(self.only_in_b),
            "differences": [each.to_json() for each in self.differences],
            "unreadable": [asdict(each) for each in self.unreadable],
            "num_equal": self.num_equal,
        }

    def _repr_html_(self) -> str:
        """The report as a table, for notebooks."""
        from shardvar.checkpoint.pictures import diff_html

        return diff_html(self)
