"""Print how many wrong implementations of each family the conformance kit catches, for its page."""

import os
from concurrent.futures import ProcessPoolExecutor

from shardvar.conformance.rules import all_rules
from shardvar.conformance.session import BROKEN, judge
from spec_tests.wrong.table import FAMILIES, mutants

EXAMPLES = 60
"""The kit's own number of cases."""


def catching_rule(number: int) -> str:
    """Return the first rule of the kit that a wrong implementation breaks; empty if none does."""
    mutant = mutants()[number]
    # The rule that is known to see it comes first: it answers for nearly all.
    rules = sorted(all_rules(), key=lambda rule: rule.id != mutant.rule)
    for rule in rules:
        if judge(rule, mutant.make(), max_examples=EXAMPLES).outcome == BROKEN:
            return rule.id
    return ""


def main() -> None:
    """Judge all of them, and print the table."""
    every = mutants()
    with ProcessPoolExecutor(int(os.environ.get("JOBS", "2"))) as pool:
        found = list(pool.map(catching_rule, range(len(every))))
    print("| family | wrong implementations | caught |\n|---|---|---|")
    for family in FAMILIES:
        caught = [
            bool(rule) for rule, each in zip(found, every, strict=True) if each.family == family
        ]
        print(f"| {family} | {len(caught)} | {sum(caught)} |")
    print(f"| all | {len(found)} | {sum(map(bool, found))} |")
    for rule, each in zip(found, every, strict=True):
        if not rule:
            print(f"not caught: {each.family} {each.name}")


if __name__ == "__main__":
    main()
