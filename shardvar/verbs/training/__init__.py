"""The steps of a training loop: numbered checkpoints in one directory, shared by all processes."""
