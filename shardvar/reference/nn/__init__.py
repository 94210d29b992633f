"""Operations on variables: lookups, products, sampled losses, and their gradients."""

from shardvar.reference.nn.gradients import gradient, matmul, vjp
from shardvar.reference.nn.lookup import (
    SparseTensor,
    embedding_lookup,
    embedding_lookup_sparse,
    safe_embedding_lookup_sparse,
)
from shardvar.reference.nn.losses import (
    SampledValues,
    log_uniform_sampler,
    nce_loss,
    sampled_softmax_loss,
)
from shardvar.reference.nn.rebalance import (
    RebalancedEmbedding,
    mod_to_div,
    permute_rows,
    plan_balanced_rows,
    plan_shuffled_rows,
)

__all__ = [
    "RebalancedEmbedding",
    "SampledValues",
    "SparseTensor",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "gradient",
    "log_uniform_sampler",
    "matmul",
    "mod_to_div",
    "nce_loss",
    "permute_rows",
    "plan_balanced_rows",
    "plan_shuffled_rows",
    "safe_embedding_lookup_sparse",
    "sampled_softmax_loss",
    "vjp",
]
