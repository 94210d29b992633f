"""How this engine answers each op of the published vectors, and how an answer is judged."""
