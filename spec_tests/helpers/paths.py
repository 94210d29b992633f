"""Places in the working copy that tests and programs read and write."""

from pathlib import Path

SPEC_TESTS = Path(__file__).resolve().parents[1]
"""The folder of the tests."""
ROOT = SPEC_TESTS.parent
"""The root of the working copy."""
DOCS = ROOT / "docs"
"""The folder of the pages."""
GOLDEN = SPEC_TESTS / "golden"
"""Checkpoints and recordings that real libraries wrote, one folder for each format."""
