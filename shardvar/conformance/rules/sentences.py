"""The sentences that the rules check, verbatim, by the beginnings of the rules' ids."""

SENTENCES = {
    "000": {
        "R-DIV-1":
            "If the ids do not evenly divide the number of shards, each of the first several shards will be "
            "assigned one more id.",
        "R-DIV-1-owner":
            "ids are assigned to shards in a contiguous manner",
        "R-DIV-1-shards":
            "Div partition strategy is used to partition the variable.",
        "R-PART-1-regions":
            "we are going to partition that variable 3 ways on the first dimension",
        "R-PART-1-fixed":
            "`num_partitions` is a list/tuple representing the number of partitions on each dimension",
        "R-PART-1-max":
            "Existing partitioners like `min_max_variable_partitioner`, `variable_axis_size_partitioner` and "
            "`fixed_size_partitioner` conform to the required signature so they can be directly used.",
        "R-PART-3-min":
            "Create a partitioner that allocates at least 64MB for each partition.",
        "R-PART-3-upper":
            "The max number of such partitions (upper bound) is the 10.",
        "R-ID-1":
            "Assuming we assign consecutive integer ids along the first axis of the variable",
        "R-CONCAT-1":
            "ShardedVariable will register a tensor conversion function that concats shards to the full value.",
        "R-CONCAT-1-few R-VAR-1 R-READ-1":
            "With above, users' model code doesn't need to change w.r.t whether the variable is sharded or not.",
        "R-SV-1 R-VAR-2":
            "that list of variables compose a larger variable",
        "R-CREATE-2":
            "We will fall back to creating normal variables when there are less than two partitions.",
        "R-PART-4":
            "Exception will raised if the partitioner returns an unsupported partitioning layout.",
        "R-PART-4-axis":
            "We are only going to support partitioning on the first / outermost axis at the moment.",
        "R-MATMUL-1":
            "For example, `tf.matmul` will concat the sharded variable and then do the multiplication.",
        "R-LOOKUP-2":
            "Python ops that have well defined partitioned behavior (e.g, `tf.nn.embedding_lookup`, "
            "`tf.nn.sampled_softmax_loss`) will treat sharded variable as a list of variables for parallel "
            "operations",
        "R-SV-3":
            "`ShardedVariable` will support read and update functions like `read_value`, `assign_add` and "
            "`scatter_add`.",
        "R-INIT-5":
            "For seeded initializers, the seed must be changed deterministically for each shard, otherwise each "
            "shard will use the same values.",
        "R-INIT-4":
            "`__call__(shape, dtype, partition)` returns the initial value of the partition.",
        "R-INIT-4-range":
            "def __init__(self, minval=-0.05, maxval=0.05, seed=None):",
        "R-INIT-6":
            "`shape` is the full combined shape",
        "R-INIT-2":
            "If not, this initializer is not partition aware and we will go ahead creating the entire value and "
            "do slicing",
        "R-INIT-2-parts":
            "being able to initialize sharded variable without needing to create the entire initial value",
        "R-OPT-5":
            "gradient computation and update are always performed at the component variable level",
        "R-SLOT-1":
            "Slot variable is partitioned in exactly the same way as the original variable.",
        "R-CKPT-1":
            "being able to save sharded variable to a checkpoint, and restore it to possibly a different number "
            "of shards",
        "R-DAMAGE-1":
            "add or reduce the number of parameter servers without losing previous training work",
        "R-SLOT-2":
            "At saving/loading time, optimizer sees sharded variable as a ShardedVariable instance for the "
            "purpose of elastic saving and loading.",
    },
    "001": {
        "R-POLICY-1 R-POLICY-1-rows":
            "Tensors must not be removed from the checkpoint.",
        "R-POLICY-1- R-DAMAGE-1-remove R-DAMAGE-1-truncate":
            "When loading a checkpoint, the general expectation is that all variables present before saving will "
            "be available for loading and restoration.",
        "R-POLICY-2":
            "Tensors must not be reshaped.",
        "R-POLICY-2-":
            "The user expects the tensor's shape to stay consistent between saving/loading.",
        "R-POLICY-3":
            "Tensor dtypes must not change.",
        "R-POLICY-3-":
            "loading a tensor with an altered dtype, when expecting the original dtype, would result in confusion "
            "and hard debugging",
        "R-POLICY-7":
            "Tensor re-slicing in the callback is totally fine, though.",
        "R-POLICY-4":
            "Every shard on the right has a maximum size of 500MB, so some tensors are split among multiple "
            "shards.",
        "R-POLICY-5":
            "The callback will only be called once for a given `checkpoint.save()` call.",
        "R-POLICY-6":
            "The `description` is saved alongside the tensor data in the checkpoint",
        "R-POLICY-13":
            "Note that not only can the sharding callback rearrange tensors, but also modify tensors.",
    },
    "002": {
        "R-SPEC-1":
            "indicating how each dimension can be splitted, allowing uneven sharding",
        "R-LOOKUP-4":
            "each embedding is clipped if its l2-norm is larger than this value",
        "R-OPT-1":
            "essentially dicts mapping from indices to vectors",
    },
    "003": {
        "R-READ-2":
            "no mutation is done to the Tensor returned by a read_variable_op after it's been read",
    },
    "docs/layouts.md": {
        "V-MESH-1":
            "A mesh axis that cuts a tensor axis gives its devices equal parts in the order of their coordinates.",
        "V-MESH-2":
            "Mesh axes that cut the same tensor axis are applied in their order, each to what the one before it "
            "left.",
        "V-MESH-3":
            "Where an extent does not divide, `torch.chunk` decides, or the layout is refused.",
        "V-STRIDED-1":
            "A strided shard has its part of each of `split_factor` ranges.",
        "V-STATED-1 V-FSDP-1-stated":
            "The offset and the shape that are stated for a device are those of what it holds.",
        "V-WHOLE-1":
            "The parts of all devices make the tensor again.",
        "V-MOVE-1":
            "A redistribution changes where an element is, and never its value.",
        "V-TERM-1":
            "The value of a pending tensor is the reduction of the terms along the pending axis.",
        "V-REFUSE-1 V-REFUSE-2":
            "A layout that cannot exist is refused.",
        "V-SPEC-1":
            "The mesh axes that an entry of a spec names cut its tensor axis together, the last name fastest.",
        "V-FSDP-1":
            "FSDP cuts what tensor parallelism left.",
    },
}  # fmt: skip
"""The number of an RFC or a page -> beginnings of ids -> the sentence. The longest beginning of an id counts."""
