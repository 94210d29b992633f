"""Mutants of conversions, of joined checkpoints, and of what is said about a difference."""

from spec_tests.mutants.mutant import mutant

MUTANTS = [
    mutant(
        "vector-refused-as-matrix",
        "A glob of transpose takes the first match alone: half of the kernels stay as they are.",
        "verbs/reshard.py",
        "        is_matrix[matrices] = True\n",
        "        is_matrix[matrices[:1]] = True\n",
        "transpose",
    ),
    mutant(
        "integers-cast",
        "A dtype alone casts the integers too: steps and token ids lose their last digits.",
        "verbs/reshard.py",
        "    floats = [key for row, key in enumerate(tensors.keys) if "
        "is_floating(tensors.dtype(row))]\n",
        "    floats = [*tensors.keys]\n",
        "renaming::test_a_dtype_alone_casts_the_floating_point_tensors_only",
    ),
    mutant(
        "blocks-transposed",
        "Quantised blocks are transposed as if they were numbers.",
        "verbs/reshard.py",
        "    if key in encodings:\n",
        "    if False:\n",
        "gguf::test_blocks_are_resharded_with_their_encoding_or_as_numbers",
    ),
    mutant(
        "two-tensors-of-one-name",
        "Two rules of a map give two tensors one name: one of them is lost.",
        "maps/fitting.py",
        "    for number in _disputed(found):\n",
        "    for number in ():\n",
        "renames::test_names_of_all_keys_are_the_names_of_each",
    ),
    mutant(
        "first-factor-for-all",
        "A factor whose key has an index of the source's axes is the one of number 0 for all.",
        "maps/proof.py",
        "    in_factors = [name for side in fitted.rule.factors for name in side.key.indices()]\n",
        "    in_factors = list[str]()\n",
        "worked_examples",
    ),
    mutant(
        "factor-of-added-numbers",
        "The number of a factor that two indices of a key make is their sum.",
        "maps/proof.py",
        "            full = contribution.full_of_source(name) if place_in_axis else 1\n",
        "            full = 1\n",
        "worked_examples",
    ),
    mutant(
        "cut-block-everywhere",
        "A range of blocks always has the block that is cut.",
        "maps/proof.py",
        "        if rest > 0 and begin <= last < begin + selected.get(block, 1):\n",
        "        if rest > 0:\n",
        "worked_examples",
    ),
    mutant(
        "end-of-a-source-for-a-target",
        "An inverse takes the end of its source's ranges for the extent of its target.",
        "maps/matching.py",
        "            return None if is_target else self.ends.get(name)\n",
        "            return self.ends.get(name)\n",
        "worked_examples",
    ),
    mutant(
        "target-past-its-end",
        "A rule may fill what is past the end that another rule gives the target.",
        "maps/fitting.py",
        "        if begin + number > target.full[name]:\n",
        "        if False:\n",
        "bad_maps",
    ),
    mutant(
        "finished-rank-not-compared",
        "A second run keeps a rank of an interrupted one, whatever its bytes are.",
        "verbs/mapping.py",
        "            if walk.differences or walk.unreadable:\n",
        "            if walk.unreadable:\n",
        "ranks::test_a_second_run_keeps_the_ranks_that_an_interrupted_one_has_finished",
    ),
    mutant(
        "last-star-first",
        "A * takes as much as it can, so that of layers.0.sub.w another part becomes the number "
        "of the layer.",
        "verbs/renaming.py",
        "        place = key.find(part, start, stop)\n",
        "        place = key.rfind(part, start, stop)\n",
        "renaming::test_stars_take_what_a_lazy_regular_expression_takes",
    ),
    mutant(
        "one-name-for-two",
        "Two tensors that get one name: the last one is written, and the other is lost without a "
        "word.",
        "verbs/renaming.py",
        "    if len(set(names)) == len(names):\n        return\n",
        "    return\n",
        "renaming::test_a_name_that_means_nothing_or_is_claimed_twice_is_named",
    ),
    mutant(
        "parts-in-one-place",
        "The parts of all ranks are put at the beginning of the joined tensor.",
        "verbs/joining.py",
        "[0, *accumulate(axis[part] for part in range(len(axis)))] for axis in extents",
        "[0] * (len(axis) + 1) for axis in extents",
        "joining",
    ),
    mutant(
        "copies-not-compared",
        "Converters of tensor-parallel files that take whatever the first rank holds: ranks of "
        "two runs are mixed.",
        "verbs/joining.py",
        "        if report.differences:\n",
        "        if False:\n",
        "joining::test_sources_that_do_not_agree_are_refused_before_anything_is_written",
    ),
    mutant(
        "half-a-set",
        "Two of three ranks are joined: the model is too small, or the last rows are gone.",
        "verbs/joining.py",
        "    missing = sorted(there.difference(int(found[-1][1]) for found in matches))\n",
        "    missing = []\n",
        "joining::test_half_a_set_of_ranks_is_refused",
    ),
    mutant(
        "first-object-wins",
        "Objects that are not read are taken from the first rank, though the ranks hold "
        "different ones.",
        "verbs/joining.py",
        '    if unlike:\n        cause = f"The sources hold different objects',
        '    if False:\n        cause = f"The sources hold different objects',
        "joining::test_objects_that_differ_are_refused",
    ),
    mutant(
        "first-encoding-wins",
        "Blocks of another encoding, which have the same size, are joined as blocks of the first "
        "one.",
        "verbs/joining.py",
        "        if len(kinds) > 1:\n",
        "        if False:\n",
        "joining::test_blocks_of_other_encodings_are_not_joined",
    ),
    mutant(
        "nan-is-no-change",
        "A tensor that became NaN has the change 0: sorted by change, it is the last one.",
        "verbs/compare/comparison.py",
        "        return values.relative_norm if is_finite and values.relative_norm is not None "
        "else inf\n",
        "        return values.relative_norm or 0.0\n",
        "tolerance::test_the_largest_change_comes_first",
    ),
    mutant(
        "sign-of-zero-hidden",
        "A difference in the sign of zero alone is called one of values.",
        "verbs/compare/comparison.py",
        "        if self.count > self.num_zeros + self.num_nans:\n            return None\n",
        "        return None\n",
        "tolerance::test_differences_without_another_value_are_called_by_their_bits",
    ),
    mutant(
        "squares-overflow",
        "Norms are sums of squares as they are: of numbers near 1e200 the cosine is NaN.",
        "verbs/compare/distances.py",
        " and max(squares[:2]) < _SAFE[1]",
        "",
        "diff tolerance",
    ),
    mutant(
        "norm-of-the-second",
        "The norm of a difference is relative to that of the second tensor: a tensor that became "
        "zero divides by zero.",
        "verbs/compare/distances.py",
        (
            "        (d, exponent_d), larger = (\n"
            "            self.squares_of_difference,\n"
            "            max(self.squares_a, self.squares_b, key=_order),\n"
            "        )\n"
        ),
        "        (d, exponent_d), larger = self.squares_of_difference, self.squares_b\n",
        "diff tolerance",
    ),
    mutant(
        "choice-counts-all",
        "verify of chosen tensors finds nothing wrong with the others, and counts them as right.",
        "verbs/verify.py",
        "    return [take_tensors(entries, chosen) for entries in tables], kept, note\n",
        "    return tables, kept, note\n",
        "verify_chosen",
    ),
]
