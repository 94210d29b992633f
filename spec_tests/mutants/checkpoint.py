"""Mutants of the verbs, of checkpoints of objects and of the command line."""

from spec_tests.mutants.mutant import mutant

MUTANTS = [
    mutant(
        "one-bad-key-hides-all",
        "A key that cannot be read keeps the others from being read.",
        "verbs/reader.py",
        "            fault = index.faults.get(key)\n",
        "            fault = next(iter(self.faults.values()), None)\n",
        "verbs::test_a_key_whose_file_is_gone_does_not_keep_the_others",
    ),
    mutant(
        "nan-differs",
        "diff compares values, not bits: a NaN differs from itself, and 0.0 is -0.0.",
        "verbs/compare/distances.py",
        "    if a.dtype != b.dtype:\n        a, b = _in_common(a, b)\n",
        "    if a.dtype.kind == 'f':\n        mask = a != b\n        return mask\n"
        "    if a.dtype != b.dtype:\n        a, b = _in_common(a, b)\n",
        "diff::test_nans_and_zeros_are_their_bits",
    ),
    mutant(
        "first-block-compared",
        "diff compares the beginning of large tensors.",
        "verbs/compare/pairs.py",
        "        start += max(len(stretch.a), len(stretch.b))\n",
        "        return\n",
        "diff",
    ),
    mutant(
        "payloads-not-verified",
        "verify looks at the index alone.",
        "verbs/verify.py",
        "        errors = check(entries)\n",
        "        errors = {}\n",
        "verify",
    ),
    mutant(
        "damage-is-success",
        "shardvar verify prints the damage and exits with 0: a script goes on.",
        "cli/verify.py",
        "    if report.damages:\n        return _NO\n",
        "",
        "cli::test_verify_finds_damage_and_says_structure_only_where_nothing_guards",
    ),
    mutant(
        "different-is-success",
        "shardvar diff exits with 0 whatever it finds.",
        "cli/diff.py",
        "    return _EQUAL if report.equal else _DIFFERENT",
        "    return _EQUAL",
        "cli::test_diff_says_what_differs_and_where",
    ),
    mutant(
        "usage-is-damage",
        "A mistake on the command line exits like a checkpoint that cannot be read.",
        "cli/main.py",
        "    return WRONG_USAGE if isinstance(error, (ArgumentError, UnknownKey)) else UNUSABLE",
        "    return UNUSABLE",
        "cli",
    ),
    mutant(
        "replaced-unasked",
        "A set of files is replaced without force, which is two steps.",
        "verbs/writing.py",
        "    if there and not work.force and not _is_unfinished(target, there):",
        "    if False:",
        "verbs::test_what_exists_is_not_replaced_unless_forced "
        "crash::test_one_file_in_the_place_of_a_set_is_two_steps_and_is_asked_for",
    ),
    mutant(
        "rotated-before-saved",
        "A manager removes old checkpoints before the new one is written: a save that fails "
        "leaves fewer.",
        "reference/objects/manager.py",
        "            report = write()\n            self._known[state] = state",
        "            remove_checkpoints(series, [*left, *gone])\n"
        "            report = write()\n            self._known[state] = state",
        "manager_faults",
    ),
    mutant(
        "named-before-written",
        "The state file names a checkpoint that is not written yet.",
        "reference/objects/series.py",
        "    report = write()\n    write_state(target.storage, SeriesState(target.name, "
        "(target.name,)))\n",
        "    write_state(target.storage, SeriesState(target.name, (target.name,)))\n    report = "
        "write()\n",
        "numbered",
    ),
    mutant(
        "saved-while-trained",
        "A save in the background writes what the variables are by then: asynchronous savers "
        "that do not copy.",
        "reference/objects/image.py",
        "    return Image(target, snapshot(kept, others), options, trackables)",
        "    return Image(target, in_place(kept, others), options, trackables)",
        "background::test_what_is_assigned_after_the_call_is_not_in_the_checkpoint",
    ),
    mutant(
        "late-children-forgotten",
        "What appears after a restore gets no value: a layer that is built at its first call.",
        "reference/objects/restoration.py",
        "        if node is not None:\n            self.restoration.restore(child, node)\n",
        "        return\n",
        "restore_objects checkpoint_objects",
    ),
    mutant(
        "half-consumed",
        "assert_consumed is content if the objects got values, though values of the checkpoint "
        "were left.",
        "reference/objects/status.py",
        "        self._check(self.unmatched_objects, self.unmatched_keys)\n        return self\n",
        "        self._check(self.unmatched_objects, [])\n        return self\n",
        "checkpoint_objects::test_existing_objects_may_match_while_values_are_left restore_objects",
    ),
    mutant(
        "shards-in-separate-keys",
        "A shard may be saved alone, and then only the same number of shards restores it.",
        "reference/objects/image.py",
        "    if isinstance(node, Variable) and node.container is not None:",
        "    if False:",
        "checkpoint_objects::test_shards_and_names_that_cannot_be_kept_apart_are_refused",
    ),
    mutant(
        "newest-removed",
        "Of the checkpoints that are one too many the second newest goes, not the oldest.",
        "reference/objects/rotation.py",
        "        name, saved = kept.pop(0)",
        "        name, saved = kept.pop(-2)",
        "manager",
    ),
    mutant(
        "preserved-too-late",
        "A checkpoint that is exactly as many hours later as it must be is removed.",
        "reference/objects/rotation.py",
        "        if keep.every_n_hours and saved - keep.every_n_hours * _HOUR >= preserved:",
        "        if keep.every_n_hours and saved - keep.every_n_hours * _HOUR > preserved:",
        "existing_series::test_a_checkpoint_of_the_very_hour_is_preserved",
    ),
    mutant(
        "empty-state-begins-anew",
        "An empty state file means that there is no checkpoint: training begins anew, and "
        "overwrites the first.",
        "verbs/state_file.py",
        "        if state is not None and not state.newest:\n",
        "        if state is not None and not state.newest:\n            return None\n",
        "existing_series::test_without_checkpoints_beside_it_the_remedy_is_another",
    ),
    mutant(
        "number-used-again",
        "After going back to an older checkpoint, a save overwrites the next one.",
        "reference/objects/series.py",
        "    taken = set(numbers_in(series.storage, series.name))",
        "    taken: set[int] = set()",
        "existing_series::test_what_was_saved_after_the_restored_checkpoint_stays",
    ),
    mutant(
        "last-attachment-wins",
        "Of two restores that wait for one object, the one whose parent it is attached to last "
        "determines its value.",
        "reference/objects/restoration.py",
        "[(key, each) for key, each in variables if _turn_of(each) < self.turn]",
        "list(variables)",
        "restore_order::test_the_restore_that_was_called_last_determines_the_value",
    ),
    mutant(
        "delta-believes-the-base",
        "Applying a delta compares only what it changes, not the rest of the base.",
        "verbs/delta/patched.py",
        "        if seen.leaves.digest(change.key, change.dtype, change.shape) != change.result:\n",
        "        result = seen.leaves.digest(change.key, change.dtype, change.shape)\n"
        "        if self.parts[number].masks and result != change.result:\n",
        "delta::test_a_tensor_that_does_not_change_is_compared_as_well",
    ),
    mutant(
        "carried-digests-are-believed",
        "Resharding keeps the digests of a source that has other values.",
        "verbs/compare/claims.py",
        "            if carried.get(key, value) != value:\n",
        "            if carried.get(key, value) == '':\n",
        "carried_digests::test_a_reshard_of_a_damaged_file_is_refused_or_loses_its_digests",
    ),
    mutant(
        "carried-digests-become-stale",
        "A reshard writes the digests of its source, also under new names.",
        "verbs/compare/claims.py",
        "        return _with(work, found), f",
        "        found = {**found, **self.stored.digests} if is_carried else found\n"
        "        return _with(work, found), f",
        "carried_digests::test_a_reshard_carries_the_digests_of_what_it_writes",
    ),
    mutant(
        "joined-deltas-lose-a-step",
        "Joining deltas leaves out the mask of a step.",
        "verbs/delta/join.py",
        "    for mask in masks[1:]:\n",
        "    for mask in masks[2:]:\n",
        "delta::test_a_chain_and_the_delta_that_joins_it_make_the_last_checkpoint",
    ),
    mutant(
        "one-buffer-for-two-readers",
        "A source reads regions into the buffer that its own caller reads regions into.",
        "engine/flat.py",
        'use="flat"',
        'use="span"',
        "delta::test_leaves_are_found_in_any_slices",
    ),
    mutant(
        "overlaid-from-the-beginning",
        "Large payloads of an overlaid source are read from the beginning of their file.",
        "verbs/callbacks/call.py",
        "int(entries.start[row]) + start, buffer)",
        "start, buffer)",
        "delta::test_frames_of_any_size_lie_next_to_whole_tensors",
    ),
]
