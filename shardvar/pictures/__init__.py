"""What values look like to a person: words for sizes, text that is safe to show, tables and drawings for notebooks.

Everything here is a pure function from plain numbers and texts to text, and knows no other layer, so that a value of
any layer may show itself. Names come from checkpoints, which nobody vouches for: each is escaped on its way into HTML.
"""
