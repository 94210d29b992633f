"""One page that shows a checkpoint, or two beside each other: ``shardvar view`` and ``shardvar diff --html``.

1. ``collect`` takes the index apart into columns of numbers and texts, which is all that the page knows: no payload.
2. ``page`` puts the columns, a style and a script into one HTML file that asks for nothing over any network.
3. The script, in ``assets``, draws. It is plain JavaScript that a browser runs as it stands; nothing is built.

What a checkpoint says is not trusted. Columns are JSON in which no tag can begin; the script writes texts as texts and
never as markup; and the page allows, by their hashes, its own script and style alone.
"""
