"""The verbs: save, load, open, reshard; verify and diff. Each is imported from its module, and
costs no other."""
