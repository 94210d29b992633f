"""One target under atheris: ``python -m spec_tests.fuzzing.engine NAME [options of libFuzzer]
CORPUS``."""

import resource
import sys

import atheris

with atheris.instrument_imports(include=["shardvar"]):
    from spec_tests.fuzzing.amnesty import amnesty
    from spec_tests.fuzzing.seeds import seeds_of
    from spec_tests.fuzzing.targets import TARGETS

    target = next(each for each in TARGETS if each.name == sys.argv[1])
    with amnesty():
        for seed in seeds_of(target.name):  # now what is imported late is imported
            target.run(seed)

MEMORY = 3 << 30
"""Bytes of address space: whoever believes a claim gets a ``MemoryError``, which is no error of
ours."""

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    atheris.enabled_hooks.add("RegEx")
    with amnesty():
        atheris.Setup([sys.argv[0], *sys.argv[2:]], target.run)
        atheris.Fuzz()
