"""This engine's answers to each op of the published vectors."""
