"""Tests of the tests by a program: ``make mutation`` changes the package at random places, and the
tests must notice.

``operators`` lists the changes that a syntax tree allows. ``sample`` draws some of a layer by a
seed. ``tracing`` records once which test executes which line. ``trial`` makes each mutant in a copy
of the repository and runs the tests that execute its line, with ``selection`` in the process of the
tests. ``judgements.toml`` says of mutants that no test can notice why they are the same program,
and ``page`` writes docs/mutation.md.
"""
