"""Maps: from one model's checkpoint to another's, one line a rule.

A named part of a key is an index, exactly like an axis. With that, renaming, transposing, stacking,
splitting, fusing, interleaving, padding and joining ranks are one notation, that of ``einops``:

    layers.{l}.experts.{e}.w1.weight[o i] -> layers.{l}.experts.w1[e o i]

Read it in this order:

    syntax        what a rule says                      expressions     sizes
    keys          which keys a rule matches
    extents       the extents of indices
    fitting       which source elements make which target elements
    proof         each is used once, and each is filled once
    plan          the result, which the engine carries out
    map           a map, its file and its report        config, fills   numbers from elsewhere
"""
