"""The evidence of each format, by its name: the rows ``EVIDENCE`` of all modules in this folder."""

from importlib import import_module
from pathlib import Path

from spec_tests.hostile.case import Evidence

EVIDENCE: dict[str, Evidence] = {}
for _path in sorted(Path(__file__).parent.glob("*.py")):
    # A module with a row says so; others, such as programs, are not imported.
    if "\nEVIDENCE = {" in _path.read_text(encoding="utf-8"):
        EVIDENCE |= import_module(f"spec_tests.hostile.{_path.stem}").EVIDENCE
