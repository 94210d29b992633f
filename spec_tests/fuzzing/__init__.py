"""Coverage-guided fuzzing of every reader: ``make fuzz``, or for some targets ``python -m
spec_tests.fuzzing NAME...``.

The law is SECURITY.md's: whatever the bytes, reading them gives values or an error of
``shardvar.errors``, in little memory and time. A target (``targets``) is a reader that takes bytes;
what it begins with are the files under ``golden`` and ``hostile`` (``seeds``). Checksums, which no
fuzzer guesses, are taken as right (``amnesty``). ``engine`` is the only module that needs atheris:
the tests hold the law without it, for the seeds and some changes of them.
"""
