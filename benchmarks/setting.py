"""The setting of all measurements: places, sizes and peers."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.figures import Figure
from benchmarks.peers import PEERS, Peer, find_peer
from benchmarks.places import Place
from benchmarks.sizes import Sizes
from benchmarks.timing import Run, compare


@dataclass(frozen=True, slots=True)
class Setting:
    """The places, the sizes and the peers of a run."""

    places: list[Place]
    """Where; the disk first."""
    sizes: Sizes
    """How much."""
    found: dict[str, Peer | None] = field(default_factory=dict)
    """The peers that were asked for so far."""

    @property
    def disk(self) -> Place:
        """The place on the disk."""
        return self.places[0]

    @property
    def quiet(self) -> Place:
        """The place where the disk's noise hides nothing, if there is one."""
        return self.places[-1]

    def peers(self) -> Iterator[tuple[str, Peer | None]]:
        """The peers by name; None for those that are not installed."""
        for name in PEERS:
            if name not in self.found:
                self.found[name] = find_peer(name)
            yield name, self.found[name]

    def ratio(
        self, subject: str, against: str, place: Place, ours: Run, theirs: Run, target: float | None
    ) -> Figure:
        """The figure of a comparison."""
        found = compare(ours, theirs, self.sizes.seconds)
        return Figure(subject, against, place.name, found.ratio, "x", target, str(found))


def skipped(subject: str, against: str, why: str) -> Figure:
    """The figure of what could not be measured."""
    return Figure(subject, against, "", None, "x", None, why)


def failed(subject: str, against: str, error: Exception) -> Figure:
    """The figure of what raised an error."""
    text = str(error).strip() or "without a message"
    note = f"failed: {type(error).__name__}: {text.splitlines()[0]}"
    return Figure(subject, against, "", None, "", None, note[:200], failed=True)
