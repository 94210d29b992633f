"""The sentences that the vectors hold, by their ids: where each stands, and its words."""


def _rule(source: str, sentence: str) -> dict[str, str]:
    return {"source": source, "sentence": sentence}


_LAYOUTS = "docs/layouts.md"

RULES: dict[str, dict[str, str]] = {
    "R-DIV-1": _rule(
        "RFC 000",
        "If the ids do not evenly divide the number of shards, each of the first several shards "
        "will be assigned one "
        "more id.",
    ),
    "R-SPEC-1": _rule("RFC 002", "Either partitions or splits should be given but not both."),
    "R-PART-1": _rule(
        "RFC 000",
        "`num_partitions` is a list/tuple representing the number of partitions on each dimension",
    ),
    "R-PART-3": _rule(
        "RFC 000", "Create a partitioner that allocates at least 64MB for each partition."
    ),
    "R-SV-1": _rule("RFC 000", "that list of variables compose a larger variable"),
    "R-SV-3": _rule(
        "RFC 000",
        "`ShardedVariable` will support read and update functions like `read_value`, "
        "`assign_add` and `scatter_add`.",
    ),
    "R-VAR-1": _rule(
        "RFC 000",
        "With above, users' model code doesn't need to change w.r.t whether the variable is "
        "sharded or not.",
    ),
    "R-LOOKUP-3": _rule("RFC 002", 'We\'ll always use `"div"` partition_strategy'),
    "R-LOOKUP-4": _rule(
        "RFC 002", "each embedding is clipped if its l2-norm is larger than this value"
    ),
    "R-INIT-4": _rule(
        "RFC 000", "`__call__(shape, dtype, partition)` returns the initial value of the partition."
    ),
    "R-INIT-5": _rule(
        "RFC 000",
        "the seed must be changed deterministically for each shard, otherwise each shard will "
        "use the same values",
    ),
    "R-INIT-6": _rule("RFC 000", "`shape` is the full combined shape"),
    "R-OPT-1": _rule("RFC 002", "essentially dicts mapping from indices to vectors"),
    "R-GRAD-1": _rule(
        "RFC 000",
        "gradient computation and update are always performed at the component variable level",
    ),
    "R-CKPT-1": _rule(
        "RFC 000",
        "being able to save sharded variable to a checkpoint, and restore it to possibly a "
        "different number of shards",
    ),
    "R-POLICY-1": _rule(
        "RFC 001",
        "When loading a checkpoint, the general expectation is that all variables present before "
        "saving will be "
        "available for loading and restoration.",
    ),
    "R-POLICY-8": _rule("RFC 001", "all tensors in a shard must belong to the same task"),
    "R-POLICY-14": _rule(
        "RFC 001",
        "We want to partition along the axis that results in the most amount of remaining shard "
        "space being filled up, "
        "so we don't create more shards than is necessary.",
    ),
    "R-POLICY-10": _rule("RFC 001", "Callback to split tensors into shards based on their device."),
    "V-CHUNK-1": _rule(
        "PyTorch, torch.chunk",
        "Parts have ceil(length / parts) rows each but for the last one; where rows run out, "
        "parts are empty here and "
        "left out there.",
    ),
    "V-BALANCE-1": _rule("docs/design.md", "`--files` balances bytes over so many files"),
    "V-REGION-1": _rule(
        "docs/design.md",
        "an offset and a shape: the indices `i` with `offset[d] <= i[d] < offset[d] + shape[d]` "
        "on every axis",
    ),
    "V-MESH-1": _rule(
        _LAYOUTS,
        "A mesh axis that cuts a tensor axis gives its devices equal parts in the order of their "
        "coordinates.",
    ),
    "V-MESH-2": _rule(
        _LAYOUTS,
        "Mesh axes that cut the same tensor axis are applied in their order, each to what the "
        "one before it left.",
    ),
    "V-MESH-3": _rule(
        _LAYOUTS,
        "Where an extent does not divide, `torch.chunk` decides, or the layout is refused.",
    ),
    "V-STRIDED-1": _rule(
        _LAYOUTS, "A strided shard has its part of each of `split_factor` ranges."
    ),
    "V-SPEC-1": _rule(
        _LAYOUTS,
        "The mesh axes that an entry of a spec names cut its tensor axis together, the last name "
        "fastest.",
    ),
    "V-FSDP-1": _rule(_LAYOUTS, "FSDP cuts what tensor parallelism left."),
    "V-REFUSE-1": _rule(_LAYOUTS, "A layout that cannot exist is refused."),
    "V-PLAN-1": _rule("docs/redistribution.md", "elements that a device needs and does not hold"),
    "V-TEXT-1": _rule(
        "TensorFlow, TensorSlice",
        "The full shape's extents, each followed by a blank, then an item an axis, separated by "
        "colons: "
        "`start,length`, or `-` for the whole axis.",
    ),
    "V-RANDOM-1": _rule("docs/random.md", "and ten rounds give the four words of a block."),
    "V-RANDOM-2": _rule("docs/random.md", "A seed is two integers `s0, s1`, taken modulo 2^64."),
    "V-RANDOM-3": _rule(
        "docs/random.md",
        "the parts of any partition, drawn alone and put together, are bit for bit the tensor "
        "drawn at once.",
    ),
    "V-RANDOM-4": _rule("docs/random.md", "The bits of element `i` are `x0 ^ x1`"),
    "V-FILE-1": _rule(
        "docs/format.md",
        "what a *reader* MUST do keeps it safe from files that are damaged or hostile, no matter "
        "who wrote them.",
    ),
    "V-DELTA-1": _rule(
        "docs/delta.md",
        "A reader that has the base and the delta makes the result, bit by bit.",
    ),
    "V-DELTA-2": _rule(
        "docs/delta.md",
        "It compares the digest of each tensor of the result before the result is put in place, "
        "also of equal tensors.",
    ),
}
