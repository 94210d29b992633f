"""``python -m shardvar``: the command line, where no script was installed."""

import sys

from shardvar.cli import main

if __name__ == "__main__":
    sys.exit(main())
