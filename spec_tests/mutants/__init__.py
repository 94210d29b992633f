"""Tests of the tests: ``make mutants`` breaks shardvar in known ways, one at a time, and each must
be seen.

A mutant (``mutant``) is a bug that somebody made or could have made, mostly in a library that
people use, and the change of shardvar's text that makes it. The tables stand by layer (``layout``,
``meshes``, ``variables``, ``training``, ``planning``, ``formats``, ``storage``, ``checkpoint``),
and ``table`` has them all. ``run`` changes a copy of the package, and runs on it the tests that are
said to see the mutant and the rules of the conformance kit; the package itself prints which saw
which.
"""
