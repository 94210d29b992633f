"""The verbs: save, load, open, reshard; verify and diff. Each has its own module."""
