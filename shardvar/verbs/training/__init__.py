"""The steps of a training loop: numbered checkpoints in one directory, shared by all processes.

Decisions are the same in all processes, and process 0 removes nothing that another one still reads:

    a process looks before a save,           a save is committed when all have written their shares,
    and another commits it                   so all have looked before
    process 0 removes a step that another    it removes after a commit, in which each process took
    one restores                             part after its restore
    an old job commits while a new one       the processes tell each other which steps they find,
    resumes                                  and load the newest that all have; the next save meets
                                             a step that is not its own, and is an error
    only one process reads damaged bytes    after each load they tell each other, and else all
                                             load the step before
    process 0 is killed while it removes     the index goes first: files that stay are not a step
    several jobs restore at once             each agrees through its group, or in its own room
    two jobs save                            each step has a larger number than all others; a job
                                             that finds a later one than its last does not save
"""
