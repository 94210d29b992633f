"""The ways of a tensor stay short: a capability that a call does not use costs it no file and
hardly a function.

The figures are what a warm call entered when they were last lowered. A way may be 5 % longer. If a
change makes one longer than that, look in the list that the failure prints for what the simple case
walks through for nothing. If the step is worth its way, raise the figure, and say why in the commit.
"""

import pytest

from spec_tests.helpers.way_counts import WAYS, Function, listing, warm_way

FILES_AND_FUNCTIONS = {
    "save": (38, 251),
    "load": (28, 191),
    "reshard": (40, 389),
    "save as torch": (38, 290),
    "verify": (33, 214),
    "diff": (37, 238),
}


def lengths(times: dict[Function, int]) -> tuple[int, int]:
    """Return the numbers of files and of functions."""
    return len({function.module for function in times}), len(times)


@pytest.mark.parametrize("way", WAYS)
def test_a_way_is_no_longer_than_it_was(way: str) -> None:
    times = warm_way(way)
    files, functions = lengths(times)
    most_files, most_functions = (int(1.05 * figure) for figure in FILES_AND_FUNCTIONS[way])
    assert files <= most_files and functions <= most_functions, (
        f"{way} enters {files} files (at most {most_files}) and {functions} functions (at most "
        f"{most_functions}):\n{listing(times)}"
    )


def test_functions_are_counted_once_and_by_their_files() -> None:
    times = {
        Function("a.py", "f"): 3,
        Function("b.py", "f"): 1,
        Function("a.py", "g.<locals>.<lambda>"): 2,
    }
    assert lengths(times) == (2, 3)
    assert listing(times) == "a.py\n       3 f\n       2 g.<locals>.<lambda>\nb.py\n       1 f"
