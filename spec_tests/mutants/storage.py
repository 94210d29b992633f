"""Mutants of commits: what a crash, a cut of the power or another writer leaves."""

from spec_tests.mutants.mutant import mutant

MUTANTS = [
    mutant(
        "rename-before-sync",
        "An index is renamed into place before its bytes are on the disk: TensorFlow and safetensors sync nothing.",
        "storage/posix.py",
        "                sync(descriptor.number)\n",
        "                pass\n",
        "power_cut::test_a_power_cut_in_a_save_leaves_the_old_or_the_new_and_the_next_save_is_clean",
    ),
    mutant(
        "directory-not-synced",
        "A new directory is not forced to the disk, and is gone with all that is in it.",
        "storage/local.py",
        "                _sync_directory(os.path.dirname(path) or os.curdir)\n",
        "                pass\n",
        "power_cut::test_each_sync_is_needed",
    ),
    mutant(
        "index-first",
        "The index is renamed into place before the data files that it names.",
        "formats/files.py",
        "        for old, new in renames:\n            if old != new:\n"
        "                storage.rename(old, new)\n    except",
        "        storage.rename(aside, final)\n        for old, new in renames:\n            if old != new:\n"
        "                storage.rename(old, new)\n        return\n    except",
        "crash::test_a_save_that_is_killed_leaves_the_old_or_the_new_and_the_next_save_is_clean",
    ),
    mutant(
        "old-files-first",
        "Files of the old checkpoint are removed before the new index is in place.",
        "formats/native/sink.py",
        "        put_in_place(self.storage, data, (aside, native_index_name(self.prefix)), octets)\n"
        "        remove_unnamed(self.storage, lambda names: leftovers(names, self.prefix, self.asides))\n",
        "        remove_unnamed(self.storage, lambda names: leftovers(names, self.prefix, self.asides))\n"
        "        put_in_place(self.storage, data, (aside, native_index_name(self.prefix)), octets)\n",
        "crash::test_a_save_that_is_killed_leaves_the_old_or_the_new_and_the_next_save_is_clean",
    ),
    mutant(
        "generation-again",
        "A write takes the names of the files that are there, and overwrites what the old index names.",
        "formats/native/sink.py",
        "    return generation + _OTHER if old == generation else generation",
        "    return generation",
        "native::test_the_generation_that_is_there_is_not_written_again "
        "crash::test_a_save_that_is_killed_leaves_the_old_or_the_new_and_the_next_save_is_clean",
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
        "storage/posix.py",
        "            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        "storage races",
    ),
    mutant(
        "journal-of-another",
        "A finished file is taken up although the source was written anew since: files of two checkpoints in one.",
        "checkpoint/reshard.py",
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
        "short-writes-lost",
        "A system call that writes fewer bytes than it was given is taken for all of them.",
        "storage/posix.py",
        "                done += count\n        _begin_sync",
        "                done = len(octets)\n        _begin_sync",
        "storage::test_bytes_are_read_where_they_were_written",
    ),
    mutant(
        "leads-out",
        "The name of a file in an index may lead to another directory.",
        "storage/local.py",
        '    if any(character in name for character in ("\\0", os.sep, os.altsep) if character):',
        '    if "\\0" in name:',
        "storage::test_only_bare_names_are_opened",
    ),
]
