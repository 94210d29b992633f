"""This engine's answers to each op of the published vectors, and their judge."""
