"""Write docs/rules.md: ``make rules``, which runs ``python -m spec_tests.rules``.

With ``--rfc DIR``, a folder with the four RFCs as ``000-*.md`` to ``003-*.md``, say instead which
of their normative sentences the data lacks and what it has that they do not say; the exit code is 1
where there is anything.
"""

import argparse
import sys
from pathlib import Path

from spec_tests.rules.complete import faults
from spec_tests.rules.page import PAGE, page


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Write docs/rules.md, or hold its data against the RFCs."
    )
    parser.add_argument(
        "--rfc", type=Path, metavar="DIR", help="the folder of the RFCs; nothing is written then"
    )
    folder: Path | None = parser.parse_args().rfc
    if folder is None:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    found = list(faults(folder))
    print("\n".join(found) or "Every normative sentence is in the data, verbatim.")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
