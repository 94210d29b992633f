"""Fuzz targets for `FUZZ_SECONDS` each and print a table of the results: `python -m
spec_tests.fuzzing [NAME...]`.

What the fuzzer learned stays in ``build/fuzz/NAME`` for the next time, what it found under
``build/fuzz/found``. The exit code is 1 where it found anything.
"""

import os
import re
import subprocess
import sys
from hashlib import sha1

from spec_tests.fuzzing.seeds import MAX_NBYTES, seeds_of
from spec_tests.fuzzing.targets import TARGETS
from spec_tests.helpers import paths

BUILD = paths.ROOT / "build" / "fuzz"
SECONDS = int(os.environ.get("FUZZ_SECONDS", "60"))
LIMITS = [
    "-rss_limit_mb=1024",
    "-timeout=10",
    f"-max_len={MAX_NBYTES}",
    "-print_final_stats=1",
    "-verbosity=1",
]


def fuzz(name: str) -> tuple[str, bool]:
    """Fuzz one target; a line of the table, and whether all went well."""
    corpus, found = BUILD / name, BUILD / "found"
    for place in (corpus, found):
        place.mkdir(parents=True, exist_ok=True)
    for seed in seeds_of(name):
        (corpus / sha1(seed).hexdigest()).write_bytes(seed)
    options = [f"-max_total_time={SECONDS}", f"-artifact_prefix={found}/{name}-", *LIMITS]
    program = [sys.executable, "-m", "spec_tests.fuzzing.engine", name, *options, str(corpus)]
    done = subprocess.run(
        program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    (BUILD / f"{name}.log").write_text(done.stdout)
    statistics = dict(re.findall(r"stat::(\w+):\s+(\d+)", done.stdout))
    covered = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", done.stdout) or [("?", "?", "?")]
    (first, _, _), (last, features, size) = covered[0], covered[-1]
    runs, pace, memory = (
        statistics.get(name, "?")
        for name in ("number_of_executed_units", "average_exec_per_sec", "peak_rss_mb")
    )
    told = "ok" if done.returncode == 0 else f"FOUND, see {name}.log"
    line = (
        f"{name:20} {runs:>9} {pace:>8} {first:>7} {last:>7} {features:>9} {size:>7} {memory:>8}  "
        f"{told}"
    )
    return line, done.returncode == 0


def main(names: list[str]) -> int:
    unknown = set(names) - {target.name for target in TARGETS}
    if unknown:
        print(
            f"There is no target {', '.join(sorted(unknown))}; there are "
            f"{', '.join(t.name for t in TARGETS)}."
        )
        return 2
    print(f"{SECONDS} s a target, in {BUILD}")
    heads = (
        f"{'runs':>9} {'runs/s':>8} {'edges':>7} {'at end':>7} {'features':>9} {'corpus':>7} "
        f"{'peak MB':>8}"
    )
    print(f"{'target':20} {heads}")
    all_well = True
    for target in TARGETS:
        if not names or target.name in names:
            line, is_well = fuzz(target.name)
            all_well &= is_well
            print(line, flush=True)
    return 0 if all_well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
