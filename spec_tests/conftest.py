"""Hypothesis's profiles, and the folders that need more than the developer's tools.

`default` is for the desk. `ci` draws the same examples on every run. `laws` (`make laws`) looks for rare
counterexamples. `mutants` does not shrink the counterexamples that it finds. No test has a time limit.
"""

import os
from importlib.util import find_spec

from hypothesis import HealthCheck, Phase, settings

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile("default", deadline=None, max_examples=60, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, database=None, print_blob=True)
settings.register_profile("laws", settings.get_profile("default"), max_examples=3000)
_ONE_BUG = {"phases": [Phase.explicit, Phase.generate], "report_multiple_bugs": False}
settings.register_profile("mutants", settings.get_profile("ci"), **_ONE_BUG)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# These folders are collected only where their package is installed: the parity tests beside the real frameworks (`make
# peers`), the notebook (`make tour`), the pages in a browser (`make browser`).
_NEEDS = {"peers": "tensorflow", "notebook": "nbclient", "browser": "selenium"}
collect_ignore = [folder for folder, package in _NEEDS.items() if not find_spec(package)]
