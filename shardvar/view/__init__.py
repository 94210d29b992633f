"""One page that shows a checkpoint, or two side by side: ``shardvar view`` and ``shardvar diff
--html``.

1. ``collect`` turns the index into columns of numbers and texts. They are all that the page has. Of
   the payload, it has only the values of scalars and the statistics that were asked for.
2. ``page`` puts the columns, a style and a script into one HTML file that requests nothing over a
   network.
3. The script, in ``assets``, draws. It is plain JavaScript that a browser runs as it is; there is
   no build step.

A checkpoint is not trusted. Its columns are JSON in which no tag can begin; the script inserts
texts as texts and never as markup; and the page allows only its own script and style, by their
hashes.
"""
