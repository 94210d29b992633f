"""The ways of a tensor stay short: a capability that a call does not use costs it no file.

The figures are the most files that a warm call may enter. If a change makes a way longer, look in
the list that the failure prints for the modules that the simple case walks through for nothing. A
figure is raised by a commit that says why the step is worth its way.
"""

import pytest

from spec_tests.helpers.way_counts import WAYS, Function, listing, warm_way

MOST_FILES = {"save": 35, "load": 29, "reshard": 43, "save as torch": 41, "verify": 34, "diff": 38}


def files(times: dict[Function, int]) -> set[str]:
    return {function.module for function in times}


@pytest.mark.parametrize("way", WAYS)
def test_a_way_enters_few_files(way: str) -> None:
    times = warm_way(way)
    assert len(files(times)) <= MOST_FILES[way], f"{way}:\n{listing(times)}"


def test_functions_are_counted_once_and_by_their_files() -> None:
    times = {
        Function("a.py", "f"): 3,
        Function("b.py", "f"): 1,
        Function("a.py", "g.<locals>.<lambda>"): 2,
    }
    assert files(times) == {"a.py", "b.py"}
    assert listing(times) == "a.py\n       3 f\n       2 g.<locals>.<lambda>\nb.py\n       1 f"
