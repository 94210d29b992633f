"""The cost of shardvar, relative to raw input and output and to the libraries that do the same job.

``make bench`` measures everything, and writes docs/performance.md's tables and curves from what it
found; ``python -m benchmarks`` measures and prints.

    sizes      how much is saved, planned and read; ``--quick`` takes less of it
    places     directories on the disk and on a memory file system
    timing     medians of interleaved pairs
    figures    a figure beside its target
    child      a function in a fresh process: its memory, its bytes read
    peers      safetensors, npz, DCP, TensorFlow, Orbax, TensorStore, Zarr behind one face
    holes      checkpoints whose data files are holes, for sizes too large to write
    subjects   all subjects, each in a fresh process that may fail
    results    what is stored of each: figures, machine, day, load
    page       tables and curves from the results: ``tables``, ``curves``, ``drawing``

and one module a subject: ``subjects.SUBJECTS``. A new one is named there, and its figures in
``tables.TABLES``.
"""
