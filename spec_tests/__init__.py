"""The tests of shardvar: a folder for each layer, and the packages that they and `make` use.

Tests and programs import each other by full names, `from spec_tests.helpers.paths import ROOT`, so
that no module here hides one of another package, or is hidden by it. pytest imports this package
from where it lies (`--import-mode=importlib`) and leaves `sys.path` alone; therefore the same tests
run on an installed shardvar, out of reach of the working copy's (`make wheel`). Programs run from
the root of the working copy: `python -m spec_tests.mutation`.
"""
