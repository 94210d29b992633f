"""The display of values: words for sizes, text that is safe to print, tables and drawings for
notebooks.

Everything here is a pure function from plain numbers and texts to text, and imports no other layer,
so that a value of any layer may display itself. Names come from checkpoints, which are not trusted:
each is escaped on its way into HTML.
"""
