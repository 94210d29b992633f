"""Write docs/rules.md: ``python spec_tests/write_rules.py``.

With ``--rfc DIR``, a folder with the four RFCs as ``000-*.md`` to ``003-*.md``, say instead which of their normative
sentences the data lacks and what it has that they do not say; the exit code is 1 where there is anything.
"""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(path) for path in (HERE, HERE.parent) if str(path) not in sys.path]

from rules.complete import faults  # noqa: E402 - found by the line above
from rules.page import PAGE, page  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/rules.md, or hold its data against the RFCs.")
    parser.add_argument("--rfc", type=Path, metavar="DIR", help="the folder of the RFCs; nothing is written then")
    folder: Path | None = parser.parse_args().rfc
    if folder is None:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    found = list(faults(folder))
    print("\n".join(found) or "Every normative sentence is in the data, verbatim.")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
