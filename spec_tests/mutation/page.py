"""Writes docs/mutation.md from the recorded results: a table of the layers, and every survivor with
its judgement."""

from collections.abc import Iterator
from typing import NamedTuple

from spec_tests.helpers.paths import ROOT
from spec_tests.mutation.results import LayerResults, Result, read_judgements, read_results
from spec_tests.mutation.sample import LAYERS, LEFT_OUT

PAGE = ROOT / "docs" / "mutation.md"

_HEAD = """\
# Tests of the tests

A program changes the package at random places, one at a time, and runs the tests that execute the changed line. A
change that no test notices is a missing test, or no change of behaviour. `make mutation` writes this page; [the
generator](../spec_tests/mutation/__init__.py) and its operators are in `spec_tests/mutation/`.

The operators are: another comparison, another arithmetic operator, a constant one more or one less, a condition or an
operand of `and` and `or` left out, a negation dropped, a branch always or never taken, a statement or a `raise`
removed, a value not returned, two arguments swapped, a keyword argument or a bound of a slice left out, `max` for
`min`. Docstrings, annotations, type aliases and the texts of errors are not changed. A line is drawn first, then one of
its changes.

Only the tests of the layer's own folder are asked, and of these the tests that execute the line. A layer without its
own folder has the tests that the table names. *Caught* means that a test fails, hangs, or can no longer be
imported. *Equivalent* means that no test can notice, for the reason below. *Rate* is the share of the others that is
caught.

`make mutation SEED=N PER_LAYER=20 LAYER=NAME` draws and tries the mutants of one row. *First run* is what the tests
caught before anybody had seen the sample. Then the missing tests were written, and `python -m spec_tests.mutation
--again` tried the survivors once more: *now*. Those are mutants of the first commit, tried with the tests of the
second. A survivor may also be tried with the files of the new tests only, which proves as much. A layer without a
second commit was not tried again. The first run predicts the findings of another seed.
The column *now* shows only that the gaps of this sample are closed. Without `SEED`, a run draws a seed and prints it.
The mutants of `torch`, `jax` and `conformance` were tried with some of their tests, chosen for the changed lines: their
first runs are lower bounds. Mutants of these samples that were not tried are not counted. The first run of `engine`
used only the tests in the folder `engine`.

These layers and files are not sampled:
{left_out}.
"""


def render(found: dict[str, LayerResults], judgements: dict[tuple[str, str, str], str]) -> str:
    return (
        "\n".join(
            [_head(), *_table(found, judgements), "", *_survivors(found, judgements)]
        ).rstrip()
        + "\n"
    )


def _head() -> str:
    reasons = "; ".join(f"`{layer}` ({reason})" for layer, reason in LEFT_OUT.items())
    return _HEAD.replace("{left_out}", reasons)


def _table(
    found: dict[str, LayerResults], judgements: dict[tuple[str, str, str], str]
) -> Iterator[str]:
    yield (
        "| layer | its tests | seed | lines | mutants | equivalent | first run | rate | now | rate |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    total = _Counts(0, 0, 0, 0)
    for layer in (layer for layer in LAYERS if layer in found):
        each = found[layer]
        counts = _counts(each.results, judgements)
        total = _Counts(*(one + more for one, more in zip(total, counts, strict=True)))
        tests = ", ".join(f"`{own}`" for own in LAYERS[layer])
        first = f"{counts.first} at {each.commit[:7]}"
        now = f"{counts.now} at {each.again[:7]}" if each.again else f"{counts.now}"
        place = f"`{layer}` | {tests} | {each.seed} | {each.population}"
        yield (
            f"| {place} | {counts.count} | {counts.same} | {first} | {counts.rate(counts.first)} | "
            f"{now} | {counts.rate(counts.now)} |"
        )
    yield (
        f"| all | | | | {total.count} | {total.same} | {total.first} | {total.rate(total.first)} | "
        f"{total.now} | {total.rate(total.now)} |"
    )


class _Counts(NamedTuple):
    """The mutants of a layer: all, those that are equivalent, those caught in the first run, those
    caught now."""

    count: int
    same: int
    first: int
    now: int

    def rate(self, caught: int) -> str:
        """Return the share of mutants that are not equivalent, in words."""
        return f"{caught / max(1, self.count - self.same):.1%}"

    @property
    def survive(self) -> int:
        """The mutants that survive and that nobody has shown to be equivalent."""
        return self.count - self.same - self.now


def _counts(results: tuple[Result, ...], judgements: dict[tuple[str, str, str], str]) -> _Counts:
    return _Counts(
        len(results),
        sum(not each.seen_by and each.change in judgements for each in results),
        sum(bool(each.first) for each in results),
        sum(bool(each.seen_by) for each in results),
    )


def _survivors(
    found: dict[str, LayerResults], judgements: dict[tuple[str, str, str], str]
) -> Iterator[str]:
    """The mutants that no test noticed, with the reason why none can."""
    yield "## What no test notices"
    for layer in (layer for layer in LAYERS if layer in found):
        for each in (each for each in found[layer].results if not each.seen_by):
            yield f"\n`shardvar/{each.path}`, line {each.line} ({each.kind}):"
            yield f"\n```text\n- {each.before}\n+ {each.after}\n```"
            yield f"\n{judgements.get(each.change, 'No test noticed it in the run that wrote this page.')}"


def write_page() -> int:
    """Write the page; return 1 where a mutant survives that nobody has shown to be equivalent, or
    else 0."""
    found, judgements = read_results(), read_judgements()
    PAGE.write_text(render(found, judgements), encoding="utf-8")
    return int(any(_counts(each.results, judgements).survive for each in found.values()))
