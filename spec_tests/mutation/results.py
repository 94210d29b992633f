"""What the mutants of each layer became, in ``results.json``; why some are no other program, in
``judgements.toml``."""

import json
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

from spec_tests.mutation.sample import Mutant

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
JUDGEMENTS = HERE / "judgements.toml"


@dataclass(frozen=True)
class Result:
    """One mutant, as the page shows it."""

    path: str
    """The file, in ``shardvar/``."""
    line: int
    """The line that was changed."""
    kind: str
    """The operator."""
    before: str
    """The changed lines as they are."""
    after: str
    """The changed lines in the mutant."""
    first: str
    """The test that failed in the first run; empty where the mutant survived it."""
    seen_by: str
    """The test that failed when the mutant was last tried; empty where it still survives."""

    @classmethod
    def of(cls, mutant: Mutant, seen_by: str) -> "Result":
        """Return the result of a first trial."""
        before, after = mutant.difference()
        line, kind = mutant.change.start[0], mutant.change.kind
        return cls(mutant.path, line, kind, before, after, seen_by, seen_by)

    @property
    def change(self) -> tuple[str, str, str]:
        """The file, and the changed text before and after: what a mutant keeps when lines above it
        move."""
        return self.path, self.before, self.after


@dataclass(frozen=True)
class LayerResults:
    """The sample of one layer."""

    seed: int
    """The seed of the sample."""
    commit: str
    """The commit of the first run."""
    again: str
    """The commit at which its survivors were last tried again; empty before that."""
    population: int
    """The lines of the layer that can be changed."""
    results: tuple[Result, ...]
    """The mutants."""


def read_results() -> dict[str, LayerResults]:
    """Return what is recorded, by layer."""
    if not RESULTS.exists():
        return {}
    record = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {
        layer: LayerResults(**each | {"results": tuple(Result(**one) for one in each["results"])})
        for layer, each in record.items()
    }


def write_results(found: dict[str, LayerResults]) -> None:
    """Replace the record."""
    record = {layer: asdict(each) for layer, each in sorted(found.items())}
    RESULTS.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_judgements() -> dict[tuple[str, str, str], str]:
    """Return why a change leaves the program the same, by `Result.change`."""
    record = tomllib.loads(JUDGEMENTS.read_text(encoding="utf-8"))["equivalent"]
    return {(each["path"], each["before"], each["after"]): each["reason"] for each in record}
