"""Many processes: shares that become one checkpoint, executors of other machines, claims that a
killed writer left."""
