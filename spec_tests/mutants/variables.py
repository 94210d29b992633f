"""Mutants of variables, their indexing, updates and initial values, and of random numbers."""

from spec_tests.mutants.mutant import mutant

MUTANTS = [
    mutant(
        "unstitched-lookup",
        "Rows come in the order of the shards, not of the ids: ShardedVariable.sparse_read of "
        "TensorFlow 2.21.",
        "reference/variables/rows.py",
        "            buffers = [\n",
        (
            '            rows = rows[np.argsort(self.row_layout.owner(rows)[0], kind="stable")]\n'
            "            buffers = [\n"
        ),
        "sharded tensorflow_recordings nn_lookup",
        "3",
    ),
    mutant(
        "ids-clamped",
        "An id that is out of range reads the last row: JAX's indexing.",
        "reference/variables/rows.py",
        "    if array.size and (array.min() < 0",
        "    array = np.clip(array, 0, num_rows - 1)\n    if array.size and (array.min() < 0",
        "sharded variable",
        "3",
    ),
    mutant(
        "ids-wrap",
        "A negative id counts from the end: NumPy's indexing, where an id is no index.",
        "reference/variables/rows.py",
        "    if array.size and (array.min() < 0",
        "    array = np.where((array < 0) & (array >= -num_rows), array.astype(np.int64) + "
        "num_rows, array)\n"
        "    if array.size and (array.min() < 0",
        "sharded variable nn_lookup",
        "3",
    ),
    mutant(
        "slice-start-unclamped",
        "A start before the first row wraps around: TensorFlow's ShardedVariable, where the step "
        "is not 1.",
        "reference/variables/rows.py",
        "        rows, pick = range(shape[0])[item], slice(None)",
        "        if item.start is not None and item.start < -shape[0]:\n"
        "            item = slice(item.start % shape[0], item.stop, item.step)\n"
        "        rows, pick = range(shape[0])[item], slice(None)",
        "sharded_index sharded",
        "2",
    ),
    mutant(
        "reversed-run-off-by-one",
        "A slice with a negative step reads from one row past each shard's last.",
        "reference/variables/rows.py",
        "else (stop - 1, start - 1)",
        "else (stop, start - 1)",
        "sharded_index",
        "2",
    ),
    mutant(
        "crop-on-assign",
        "A value that is too long is cropped to the variable: TensorFlow's ShardedVariable.assign.",
        "reference/variables/interface.py",
        "        check_shape(\n",
        (
            "        if array.ndim and self.shape and array.shape[1:] == self.shape[1:]:\n"
            "            array = array[: self.shape[0]]\n"
            "        check_shape(\n"
        ),
        "sharded tensorflow_recordings",
        "3",
    ),
    mutant(
        "sequential-scatter-lost",
        "Of several updates of one row the first is applied: array[ids] += values.",
        "reference/variables/values.py",
        "        array[distinct] = _folded(new, starts[block], counts[block], values, None, update)",
        "        array[distinct] = new",
        "sharded_scatter::test_the_kernel_is_a_plain_loop_bit_for_bit "
        "sharded_scatter::test_a_row_that_comes_very_often_is_folded_in_order",
        "3",
    ),
    mutant(
        "scatter-update-first",
        "Of several replacements of one row the first stays.",
        "reference/variables/values.py",
        "values[starts + counts - 1]",
        "values[starts]",
        "sharded_scatter",
        "3",
    ),
    mutant(
        "scatter-pairwise",
        "Duplicates are added in pairs, so that sums depend on how rows are spread over shards.",
        "reference/variables/values.py",
        "        if stack[0].size == 1:\n            return np.asarray(ufunc.accumulate(stack, "
        "axis=0)[-1])\n",
        "",
        "sharded_scatter",
        "3",
    ),
    mutant(
        "integers-divided-down",
        "Integers are divided towards minus infinity, as Python does, not towards zero as "
        "TensorFlow does.",
        "reference/variables/values.py",
        (
            "    return np.asarray(\n"
            "        quotient + ((remainder != 0) & ((old < 0) != (value < 0))).astype(quotient.dtype)\n"
            "    )\n"
        ),
        "    return np.asarray(quotient)\n",
        "sharded_scatter variable",
        "3",
    ),
    mutant(
        "half-a-write",
        "A write to many shards is committed shard by shard: who reads in between sees a half of "
        "it.",
        "reference/variables/values.py",
        '    with holding(resources), np.errstate(all="ignore"), unforked:\n'
        "        for write in writes:\n"
        "            write.apply()",
        "    for write in writes:\n"
        '        with holding(write.resources), np.errstate(all="ignore"):\n'
        "            write.apply()",
        "variable::test_nobody_reads_in_between_the_writes_of_one_commit",
    ),
    mutant(
        "initial-value-shared",
        "The variable keeps the caller's array, and changes with it: torch.from_numpy and "
        "tf.Variable on some arrays.",
        "reference/variables/values.py",
        "adopt(value, device) if owns_value else",
        "adopt(value, device) if owns_value or source is None or source is device else",
        "variable variable_hazards",
        "2",
    ),
    mutant(
        "equal-seeds",
        "Every shard is drawn from the same seed, and has the same values: TensorFlow's "
        "initializers.",
        "reference/variables/initializers.py",
        "    return seed + (region.offset[0] if region.offset else 0)",
        "    return seed",
        "initializers",
        "4",
    ),
    mutant(
        "fan-of-the-shard",
        "Scaled initializers take the fans of the shard, so that more shards mean larger weights.",
        "reference/variables/initializers.py",
        "fan_in, fan_out = fans(shape)",
        "fan_in, fan_out = fans(region.shape)",
        "initializers",
        "4",
    ),
    mutant(
        "partition-ignored",
        "A partition-aware callable is called for the whole, and sliced: no device has room for "
        "that.",
        "reference/variables/initial_value.py",
        "        if given.partition_arguments and known_shape is not None",
        "        if not given.partition_arguments and known_shape is not None",
        "variable_creation sharded_devices",
        "4",
    ),
    mutant(
        "subtract-from-every-copy",
        "Every copy of a variable that is read as a sum is subtracted from: the sum changes "
        "several times.",
        "reference/variables/mirrored.py",
        "if update in (ADD, SUB) and",
        "if update in (ADD,) and",
        "sync_on_read",
    ),
    mutant(
        "rows-beyond-the-bits",
        "A row number and its place are packed into one integer that they do not fit.",
        "reference/variables/values.py",
        "1 << (63 - bits):",
        "1 << (64 - bits):",
        "sharded_scatter",
    ),
    mutant(
        "seven-rounds",
        "Philox goes through seven rounds: other numbers than TensorFlow's, though as random.",
        "reference/random/stateless.py",
        "_ROUNDS = 10",
        "_ROUNDS = 7",
        "random_streams initializers",
        "4",
    ),
    mutant(
        "fractions-from-high-bits",
        "Floats are made of the high bits of a word, as JAX makes them, not of the low ones.",
        "reference/random/stateless.py",
        "    return (words & np.uint32(0x7FFFFF) | np.uint32(127 << 23))",
        "    return (words >> np.uint32(9) | np.uint32(127 << 23))",
        "random_streams",
        "4",
    ),
    mutant(
        "global-seed-by-part",
        'With seed_mode="global" each part is drawn as if it were the whole.',
        "reference/variables/initializers.py",
        "return _INDEXED[distribution](shape, seed % 2**64, *limits, dtype, region)",
        "return _INDEXED[distribution](region.shape, seed % 2**64, *limits, dtype, "
        "Region.whole(region.shape))",
        "initializers",
        "4",
    ),
]
