"""Maps: from one model's checkpoint to another's, one line a rule.

A named part of a key is an index, exactly like an axis. With that, renaming, transposing, stacking,
splitting, fusing, interleaving, padding and joining ranks have one notation, as in ``einops``:

    layers.{l}.experts.{e}.w1.weight[o i] -> layers.{l}.experts.w1[e o i]

Read it in this order:

    language      a rule, and its text
    matching      which keys a rule matches, and the extents of its indices
    proof         what a rule takes of a tensor; each element is used once, and filled once
    fitting       the targets that rules make of the tensors of a checkpoint
    plan          the result, which the engine carries out
    lifting       the map on each part of a training state
    shipped       the shipped maps, by name and by model
    map           a map, its file, its inverse and its ranks
    report        what a map does with a checkpoint, in words
"""
