"""Mutants of commits: what a crash, a cut of the power or another writer leaves."""

from spec_tests.mutants.mutant import mutant

MUTANTS = [
    mutant(
        "rename-before-sync",
        "An index is renamed into place before its bytes are on the disk: TensorFlow and "
        "safetensors sync nothing.",
        "storage/posix.py",
        "                sync(descriptor.number)\n",
        "                pass\n",
        "power_cut::test_a_power_cut_in_a_save_leaves_the_old_or_the_new_and_the_next_save_is_clean",
    ),
    mutant(
        "directory-not-synced",
        "A new directory is not forced to the disk, and is gone with all that is in it.",
        "storage/local.py",
        "                sync_path(os.path.dirname(path) or os.curdir)\n",
        "                pass\n",
        "power_cut::test_each_sync_is_needed",
    ),
    mutant(
        "index-first",
        "The index is renamed into place before the data files that it names.",
        "formats/files.py",
        "        do_all(move, [",
        "        storage.rename(aside, final)\n        for old, new in renames:\n            if "
        "old != new:\n"
        "                storage.move(old, new)\n        return\n        do_all(move, [",
        "crash::test_a_save_that_is_killed_leaves_the_old_or_the_new_and_the_next_save_is_clean",
    ),
    mutant(
        "old-files-first",
        "Files of the old checkpoint are removed before the new index is in place.",
        "formats/sinks.py",
        "        put_in_place(storage,",
        "        tidy()\n        put_in_place(storage,",
        "crash::test_a_save_that_is_killed_leaves_the_old_or_the_new_and_the_next_save_is_clean",
    ),
    mutant(
        "generation-again",
        "A write takes the names of the files that are there, and overwrites what the old index "
        "names.",
        "formats/native/sink.py",
        "    while not there.isdisjoint(names) and ",
        "    while False and ",
        "native::test_the_generation_that_is_there_is_not_written_again "
        "crash::test_a_save_that_is_killed_leaves_the_old_or_the_new_and_the_next_save_is_clean",
    ),
    mutant(
        "needed-unasked",
        "A removal takes the files that other checkpoints refer to.",
        "formats/native/references.py",
        "    needs = find_needs(storage, prefix) if wanted else Needs({})\n",
        "    needs = Needs({})\n",
        "incremental::test_files_that_are_renamed_or_copied_together_keep_their_meaning "
        "incremental_buckets::test_two_at_a_time_lose_nothing",
    ),
    mutant(
        "base-not-seen-again",
        "A save does not look whether its base is still there, once its mark is made.",
        "formats/native/sink.py",
        "            check_in_place(self.new.storage, self.new.metadata.references)\n",
        "",
        "incremental::test_a_save_whose_base_is_removed_meanwhile_fails_and_leaves_nothing",
    ),
    mutant(
        "no-mark-of-needs",
        "A save makes no mark, so that a removal at the same time takes what it refers to.",
        "formats/native/sink.py",
        "            write_mark(self.new.storage, mark, self.new.metadata.references.files)\n",
        "",
        "incremental::test_a_save_that_fails_removes_what_only_its_mark_has_kept",
    ),
    mutant(
        "checksum-for-equality",
        "A process refers to a slice of the base that has only the same checksums.",
        "verbs/together/share_hashes.py",
        "                self.is_equal[row] = bool(is_same)\n",
        "                self.is_equal[row] = True\n",
        "incremental_shares::test_equal_checksums_are_not_enough",
    ),
    mutant(
        "another-base",
        "A commit does not compare the index of the base with the one that the shares have seen.",
        "verbs/together/share_hashes.py",
        "    if found.identity != expected.identity:\n",
        "    if False:\n",
        "incremental_shares::test_a_base_that_changes_between_the_shares_is_found",
    ),
    mutant(
        "lost-file-of-the-base",
        "A process refers to a file of the base that is missing or cut off.",
        "verbs/together/share_hashes.py",
        "np.flatnonzero(~older.lost()[entries.file] & (entries.slices.nbytes > 0))",
        "np.flatnonzero(entries.slices.nbytes > 0)",
        "incremental_shares::test_what_is_missing_in_the_base_is_written",
    ),
    mutant(
        "half-left-behind",
        "A write that fails leaves its files: the next save finds the disk full of them.",
        "engine/write.py",
        "            _remove_files(tasks if isinstance(error, CheckpointError) else begun)",
        "            pass",
        "crash::test_a_step_that_fails_leaves_nothing_of_the_new_checkpoint_or_all_of_it",
    ),
    mutant(
        "two-writers",
        "Nobody looks whether another writer holds the checkpoint.",
        "storage/local.py",
        "            fcntl.flock(held[0], fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "            fcntl.flock(held[0], fcntl.LOCK_SH | fcntl.LOCK_NB)",
        "storage races",
    ),
    mutant(
        "journal-of-another",
        "A finished file is taken up although the source was written anew since: files of two "
        "checkpoints in one.",
        "verbs/reshard.py",
        'digest.update(f"{name} {file.stamp}".encode(',
        "digest.update(name.encode(",
        "crash::test_a_source_that_changed_is_resharded_anew",
    ),
    mutant(
        "journal-believed",
        "A finished file is taken up without reading it: what the power took from it is missed.",
        "engine/write.py",
        "    if not (np.array_equal(payload, found.payload) and np.array_equal(runs, found.runs)):",
        "    if False:",
        "crash::test_a_finished_file_that_is_no_longer_what_its_journal_says_is_written_again",
    ),
    mutant(
        "journal-parts-forgotten",
        "What a journal says of the parts that were read is dropped: wrong bytes that a first "
        "run read are committed.",
        "engine/write.py",
        "    return FileReport(found, parts, int(task.plan.targets.nbytes.sum()))",
        "    return FileReport(found, parts.take(np.zeros(0, np.int64)), "
        "int(task.plan.targets.nbytes.sum()))",
        "resumed::test_what_the_first_run_read_is_compared_with_the_checksum_of_the_payload",
    ),
    mutant(
        "resumed-whatever-metadata",
        "A finished file is taken up although the metadata in it are no longer those of the source.",
        "verbs/reshard.py",
        "repr((work.assignment.num_files, work.metadata, made))",
        "repr(work.assignment.num_files)",
        "resumed::test_files_of_other_metadata_are_written_anew",
    ),
    mutant(
        "resumed-whatever-dtype",
        "A finished file is taken up although the source says now that the bytes it was cast "
        "from mean other numbers.",
        "verbs/reshard.py",
        "        columns += [slices.tensors.codes, slices.tensor,",
        "        columns += [slices.tensor,",
        "resumed::test_a_source_whose_bytes_mean_other_numbers_now_is_another_source",
    ),
    mutant(
        "damaged-is-unfinished",
        "A damaged checkpoint with a journal beside it is taken for an unfinished write, and "
        "replaced unasked.",
        "verbs/writing.py",
        "    except CheckpointError:\n        pass  # damaged, and there",
        "    except CheckpointError:\n        return True",
        "resumed::test_a_damaged_checkpoint_beside_a_journal_is_not_taken_for_unfinished",
    ),
    mutant(
        "unlink-after-release",
        "A lock is released before its file is removed: the next writer's file is removed under "
        "its lock.",
        "storage/local.py",
        "                    os.unlink(path)\n            for",
        "                    os.close(held.pop())\n                    os.unlink(path)\n         "
        "   for",
        "storage::test_a_lock_file_is_removed_while_the_lock_is_held",
    ),
    mutant(
        "written-and-left",
        "An error between the last data file and the commit leaves the data files under their "
        "temporary names.",
        "engine/write.py",
        "            sink.withdraw()\n",
        "            pass\n",
        "every_call::test_a_failing_call_leaves_one_whole_checkpoint_and_nothing_else",
    ),
    mutant(
        "lock-inherited",
        "A forked worker keeps the lock of the writer that it was forked from, also when the "
        "writer is dead.",
        "storage/local.py",
        "        os.close(_lock_files.pop())",
        "        _lock_files.pop()",
        "forks::test_a_child_does_not_keep_the_lock_of_a_dead_writer",
    ),
    mutant(
        "lock-released-by-child",
        "A forked child that leaves the block in which it was forked removes the lock file of "
        "its parent.",
        "storage/local.py",
        "        if os.getpid() == process:\n            # Delete",
        "        if True:\n            # Delete",
        "forks::test_a_child_leaves_the_lock_of_its_parent_alone",
    ),
    mutant(
        "forked-while-locked",
        "What another thread had locked when a process was forked is locked in the child for ever.",
        "forks.py",
        "            lock._at_fork_reinit()",
        "            pass",
        "forks::test_a_lock_that_another_thread_held_is_free_in_the_child",
    ),
    mutant(
        "forked-within-a-write",
        "A process that is forked while another thread assigns a variable has a part of the new "
        "value.",
        "reference/variables/values.py",
        'np.errstate(all="ignore"), unforked:',
        'np.errstate(all="ignore"):',
        "forks::test_a_child_sees_an_assignment_whole_or_not_at_all",
    ),
    mutant(
        "short-writes-lost",
        "A system call that writes fewer bytes than it was given is taken for all of them.",
        "storage/posix.py",
        "                done += count\n        # Start sending",
        "                done = len(octets)\n        # Start sending",
        "storage::test_bytes_are_read_where_they_were_written",
    ),
    mutant(
        "leads-out",
        "The name of a file in an index may lead to another directory.",
        "storage/local.py",
        '    if "\\0" in name or os.sep in name:',
        '    if "\\0" in name:',
        "storage::test_only_bare_names_are_opened",
    ),
]
