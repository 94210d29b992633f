"""The cost of shardvar, relative to raw input and output and to the libraries that do the same job.

``python -m benchmarks`` (or ``make bench``) measures and prints; docs/performance.md says what was found.

    sizes      how much is saved, planned and read; ``--quick`` takes less of it
    places     directories on the disk and on a memory file system
    timing     medians of interleaved pairs
    figures    a figure beside its target, a table of them
    child      a function in a fresh process: its memory, its bytes read
    peers      safetensors, npz, DCP, TensorFlow, Orbax behind one face
    holes      checkpoints whose data files are holes, for sizes too large to write

and one module a subject: ``table``, ``tiny``, ``lookup``, ``partial``, ``reshard``, ``plan``, ``startup``,
``torch_checkpoints``.
"""
