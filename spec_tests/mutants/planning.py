"""Mutants of plans, faults, policies and cuts."""

from spec_tests.mutants.mutant import Edit, Mutant, mutant

MUTANTS = [
    Mutant(
        "zeros-for-holes",
        "What is stored nowhere is read as zeros, and nobody is told: a loader that fills what "
        "it allocated.",
        (
            Edit(
                "planning/plan.py",
                "        check_covers(self.targets, self.copies)\n",
                "        pass\n",
            ),
            Edit(
                "planning/plan.py",
                "        if holes[tensor] or sum(region.size for region in regions) < whole.size:",
                "        if False:",
            ),
            Edit("engine/read.py", "np.empty(", "np.zeros("),
        ),
        "faults plan verify",
        "6-8",
    ),
    mutant(
        "holes-not-looked-for",
        "The laws of an index say nothing of holes: verify calls a checkpoint whole of which "
        "rows are missing.",
        "planning/plan.py",
        "        if holes[tensor] or sum(region.size for region in regions) < whole.size:",
        "        if False:",
        "faults verify",
        "8",
    ),
    mutant(
        "overlaps-accepted",
        "Slices that hold the same element are accepted along one axis: whichever is read last "
        "wins.",
        "planning/plan.py",
        "        if int(slices.tensor[rows[position]]) not in seen:\n",
        "        if False:\n",
        "faults hostile_files",
    ),
    mutant(
        "dtype-cast-unasked",
        "A target of another dtype than the stored one is filled all the same.",
        "planning/plan.py",
        "    same &= (sources.codes[found] == targets.codes) &",
        "    same &=",
        "plan checkpoint_objects restore_objects",
    ),
    mutant(
        "dropped-empty-tensors",
        "Tensors without elements are in no file, and cannot be restored: TensorFlow's "
        "MaxShardSizePolicy.",
        "verbs/writing.py",
        "    slices = _slices(entries.slices, partition, target.format)\n",
        "    slices = _slices(entries.slices, partition, target.format)\n"
        "    slices = slices.take((slices.shape > 0).all(axis=1).nonzero()[0])\n",
        "format_contract verbs",
        "6",
    ),
    mutant(
        "dropping-callback-believed",
        "A callback that leaves a tensor out is believed: TensorFlow never calls its own "
        "validate_shards.",
        "planning/decision.py",
        "    losses = find_removed(given, answered) if answered is not given else []\n",
        "    losses: list[str] = []\n",
        "sharding_callbacks policies",
        "7",
    ),
    mutant(
        "tasks-mixed",
        "Tensors of two tasks may share a file, which RFC 001 refuses.",
        "planning/decision.py",
        "    if len(tasks) < 2 or not capabilities.many_files:",
        "    if len(tasks) >= 0:",
        "sharding_callbacks policies",
        "7",
    ),
    mutant(
        "limit-exceeded-by-one",
        "A file may be one byte larger than max_shard_size.",
        "planning/policies/max_shard_size.py",
        "total[position] + filled.remaining, side",
        "total[position] + filled.remaining + 1, side",
        "max_shard_size",
        "7",
    ),
    mutant(
        "one-file-too-many",
        "What does not fit begins the next file although it could be cut: more files than "
        "filling in order takes.",
        "planning/policies/max_shard_size.py",
        "        return filled if filled.num_files <= fewest else fill(work, rows, cut_to_elements)",
        "        return filled",
        "max_shard_size",
    ),
    mutant(
        "large-tensors-last",
        "In a set of safetensors, tensors that exceed the limit come last, and not where "
        "save_pretrained numbers them.",
        "planning/policies/max_shard_size.py",
        "    if work.are_whole:",
        "    if not work:",
        "huggingface",
    ),
    mutant(
        "strings-cut",
        "Strings are cut like any other tensor, and cannot be read back: TensorFlow's "
        "MaxShardSizePolicy.",
        "planning/decision.py",
        "    if is_whole(dtype) or not full_shape:",
        "    if not full_shape:",
        "cut",
        "6",
    ),
    mutant(
        "inner-policy-alone",
        "A composition forgets what the outer policy decided.",
        "verbs/callbacks/answer.py",
        "        first = self.outer.assign(slices, capabilities)",
        "        first = Assignment(slices, np.zeros(len(slices), np.int64), 1)",
        "policies",
    ),
]
