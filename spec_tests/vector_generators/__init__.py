"""The published vectors: language-neutral JSON with inputs and expected outputs for every rule that
can be put so.

One module a group. A module offers ``GROUP``, whose cases are computed by oracles: definitions
spelled out in plain Python, NumPy on the full array, or files that real libraries wrote. No module
here imports shardvar, which a test holds, so that the vectors are an opinion of their own. ``make
vectors`` writes them to ``shardvar/vectors/vectors.zip``; the same bytes on every machine, since
everything that rounds is computed by IEEE 754's basic operations or in decimal arithmetic.
``spec_tests/vector_answers`` says how this engine answers each op.
"""
