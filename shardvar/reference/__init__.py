"""The reference: sharded variables, and training with them, in NumPy, rule by rule after the RFCs.

It uses the tool to store checkpoints of objects. Nothing of the tool imports it.

    tracking   objects with named children, and the graph that they form
    devices    simulated devices with a memory limit and a ledger of transfers
    random     stateless streams of random numbers, and draws by global index
    variables  variables, sharded and mirrored ones, and their initializers
    nn         lookups, losses, products, gradients
    training   modules, layers, optimizers, strategies
    objects    checkpoints of objects: `sv.Checkpoint`, `sv.CheckpointManager`, `sv.export`
"""
