"""Maps: from one model's checkpoint to another's, one line a rule.

A named part of a key is an index, exactly like an axis. With that, renaming, transposing, stacking,
splitting, fusing, interleaving, padding and joining ranks have one notation, as in ``einops``:

    layers.{l}.experts.{e}.w1.weight[o i] -> layers.{l}.experts.w1[e o i]

Read it in this order:

    syntax        what a rule says                      parsing, expressions
    keys          which keys a rule matches             matching
    extents       the extents of indices                config
    fitting       what each rule takes, and makes       placing, contributions, targets, fills
    proof         each element is used once, and each is filled once
    plan          the result, which the engine carries out
    map           a map, its file and its inverse       report
"""
