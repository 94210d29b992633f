"""Mutants of what reads and writes bytes: checksums, the four formats, the engine."""

from spec_tests.mutants.mutant import Edit, Mutant, mutant

MUTANTS = [
    mutant(
        "no-checksum",
        "Payloads are returned whatever their checksums are: safetensors, torch.load and npz "
        "loaders.",
        "engine/evidence.py",
        "        for position in np.flatnonzero(compared & (promised != reads.checksum)).tolist():",
        "        for position in []:",
        "engine format_contract native",
        "8",
    ),
    mutant(
        "runs-unchecked",
        "A part of a payload is returned without comparing the checksums of its runs.",
        "engine/evidence.py",
        (
            "            promised[at] = entries.runs.values[\n"
            "                entries.runs.first[rows[at]] + reads.start[at] // step\n"
            "            ]\n"
        ),
        "            promised[at] = reads.checksum[at]\n",
        "engine native",
    ),
    mutant(
        "blocks-unchecked",
        "A block of the index is decoded whatever its checksum is.",
        "wire/block_file.py",
        "            if CRC32C.compute(data) != self.checksum[number]:",
        "            if False:",
        "native_hostile",
        "8",
    ),
    mutant(
        "pieces-in-any-order",
        "Checksums of pieces are combined as if all were as long as the first.",
        "engine/evidence.py",
        "crc.combine(combined, sums[part], sizes[part])",
        "crc.combine(combined, sums[part], sizes[first])",
        "engine codecs",
    ),
    mutant(
        "bands-in-the-wrong-run",
        "The checksum of a part of a band is added to the first run of its payload, whichever it "
        "lies in.",
        "engine/units.py",
        "            at = first_run[rows] + begin // run\n",
        "            at = first_run[rows]\n",
        "engine",
    ),
    mutant(
        "bands-at-their-beginnings",
        "Every band of a payload is written to its first bytes.",
        "engine/files.py",
        "(task.start[unit.first : unit.last] + unit.start).tolist()",
        "task.start[unit.first : unit.last].tolist()",
        "engine",
    ),
    mutant(
        "series-of-uneven-steps",
        "Regions at different distances are copied as if all were as far apart as the first two.",
        "engine/regions.py",
        (
            "        is_other[1:] |= ~is_other[:-1] & (\n"
            "            (steps[1:] != steps[:-1]) | (into_steps[1:] != into_steps[:-1])\n"
            "        )\n"
        ),
        "        is_other[1:] |= ~is_other[:-1] & (into_steps[1:] != into_steps[:-1])\n",
        "pieces",
    ),
    mutant(
        "leaves-begin-with-blocks",
        "The bytes that a block leaves over are dropped from the digest.",
        "verbs/compare/digest.py",
        "                rest = bytes(data[stop:])\n",
        '                rest = b""\n',
        "digest",
    ),
    Mutant(
        "strided-as-it-lies",
        "An array that is not contiguous is written as it lies in memory: safetensors.numpy.",
        (
            Edit(
                "engine/arrays.py",
                "    is_payload = array.flags.c_contiguous and is_little_endian(array.dtype)",
                "    is_payload = array.flags.forc and is_little_endian(array.dtype)",
            ),
            Edit(
                "engine/pool.py",
                "array.reshape(-1).view(np.uint8)",
                'array.reshape(-1, order="A").view(np.uint8)',
            ),
        ),
        "engine::test_saving_any_arrays_in_any_slices_loads_back",
        "6",
    ),
    mutant(
        "big-endian-as-it-lies",
        "A big-endian array is written in its own byte order: safetensors.numpy on some paths.",
        "engine/arrays.py",
        "    return dtype.byteorder not in _BIG_ENDIAN",
        "    return True",
        "engine::test_saving_any_arrays_in_any_slices_loads_back",
        "6",
    ),
    mutant(
        "trailing-nuls-cut",
        "Strings lose the zero bytes at their end: NumPy's dtype S.",
        "wire/strings.py",
        "        octets[stop - length : stop] for stop, length in zip(stops, lengths.tolist(), strict=True)\n",
        (
            '        octets[stop - length : stop].rstrip(b"\\0")\n'
            "        for stop, length in zip(stops, lengths.tolist(), strict=True)\n"
        ),
        "strings format_contract",
        "6",
    ),
    mutant(
        "crc-unmasked",
        "The checksums of a bundle are written as they are, not as TensorFlow masks them.",
        "formats/tensorflow/sink.py",
        "mask(crc.astype(np.uint32)))",
        "crc.astype(np.uint32))",
        "tensorflow_write format_contract",
    ),
    mutant(
        "ordered-code-not-ordered",
        "Signed numbers below zero are not complemented: keys of slices do not sort, and "
        "TensorFlow finds none.",
        "wire/ordered_code.py",
        "    return (word if value >= 0 else ~word & _all_ones(nbytes)).to_bytes",
        "    return word.to_bytes",
        "codecs tensorflow_entries",
    ),
    mutant(
        "slices-of-another-shape",
        "The entry of a slice is believed although its shape is not that which the tensor's "
        "entry lists.",
        "formats/tensorflow/contents.py",
        "    if entry.dtype != full.dtype or entry.shape != shape or entry.slices:",
        "    if entry.dtype != full.dtype or entry.slices:",
        "tensorflow_entries tensorflow_read",
    ),
    mutant(
        "last-key-wins",
        "Of a name that is twice in a safetensors header the last one counts: safetensors.",
        "wire/strict_json.py",
        "    if len(value) < len(pairs):",
        "    if False:",
        "safetensors safetensors_header hostile_files",
    ),
    mutant(
        "hidden-bytes",
        "Bytes between tensors that belong to none are accepted in a safetensors file.",
        "wire/safetensors_header.py",
        "    _check_cover(keys, begin, end,",
        "    0 and _check_cover(keys, begin, end,",
        "safetensors_header::test_a_hole_an_overlap_and_bytes_that_nobody_owns_are_invalid",
    ),
    mutant(
        "fortran-as-c",
        "An npy array in Fortran order is read as if it were in C order.",
        "formats/npz/source.py",
        'reshape(header.shape, order="F")',
        "reshape(header.shape)",
        "npz",
    ),
    mutant(
        "inflated-unchecked",
        "The CRC of a deflated member is not compared: numpy.load, which stops reading before it.",
        "formats/npz/source.py",
        "        if self._crc != self.place.member.crc:",
        "        if False:",
        "npz::test_no_flipped_bit_changes_a_value",
    ),
    mutant(
        "mapped-copy-on-write",
        "An array from a memory map may be written: it is no longer what the file holds, and no "
        "error says so.",
        "storage/posix.py",
        "prot=mmap.PROT_READ)",
        "prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_PRIVATE)",
        "verbs::test_maps_equal_what_is_loaded_and_cannot_be_written",
    ),
    mutant(
        "llama-parts-of-rank-0",
        "The parts of all ranks are put where those of rank 0 are.",
        "formats/torch/llama.py",
        "outer + rank // each.copies * each.length",
        "outer",
        "torch_llama",
    ),
    mutant(
        "llama-fused-as-one",
        "The stacked gates of Llama 4 are joined as if they were one tensor.",
        "formats/torch/llama.py",
        "        return _Cut(0, _even(rows, 2))",
        "        return _Cut(0, _even(rows, 1))",
        "torch_llama::test_files_of_all_ranks_are_joined_as_metas_loader_joins_them",
    ),
    mutant(
        "llama-last-rank-lost",
        "The last rank may be missing: what is there is taken for the whole.",
        "formats/torch/llama.py",
        "    if rest or ranks == world:",
        "    if rest or ranks >= world:",
        "torch_llama::test_each_file_that_is_missing_is_named",
    ),
    mutant(
        "universal-vectors",
        "Stage 3's parameters are vectors, without the shapes of the model's file.",
        "formats/torch/universal.py",
        "    return Stored.whole(number, _reshaped(view, shape))",
        "    return Stored.whole(number, view)",
        "torch_universal::test_parameters_are_the_ones_that_zero_to_fp32_joins",
    ),
    mutant(
        "universal-parameter-lost",
        "A parameter without values is left out, and nothing says so.",
        "formats/torch/universal.py",
        "    _add_missing(contents, [*shapes",
        "    0 and _add_missing(contents, [*shapes",
        "torch_universal::test_a_parameter_that_is_missing_is_incomplete_by_name",
    ),
    mutant(
        "rankwise-index-believed",
        "The index and the files may place a tensor differently.",
        "formats/torch/rankwise.py",
        "    if share.spread != spread:",
        "    if False:",
        "torch_rankwise::test_an_index_that_disagrees_with_the_files_is_refused",
    ),
    mutant(
        "rankwise-path-outside",
        "A file of a rank may be in any folder of the machine.",
        "formats/torch/rankwise.py",
        'type(path) is not str or not all(map(is_bare, path.split("/")))',
        "type(path) is not str",
        "torch_rankwise::test_an_index_that_disagrees_with_the_files_is_refused",
    ),
]
