"""Operations on variables: lookups, products, sampled losses, and their gradients."""

from shardvar.reference.nn.bag_ids import SparseTensor
from shardvar.reference.nn.gradients import gradient, vjp
from shardvar.reference.nn.lookup import embedding_lookup
from shardvar.reference.nn.losses import (
    SampledValues,
    log_uniform_sampler,
    nce_loss,
    sampled_softmax_loss,
)
from shardvar.reference.nn.matmul import matmul
from shardvar.reference.nn.mod import mod_to_div
from shardvar.reference.nn.rebalance import (
    RebalancedEmbedding,
    permute_rows,
    plan_balanced_rows,
    plan_shuffled_rows,
)
from shardvar.reference.nn.sparse import embedding_lookup_sparse, safe_embedding_lookup_sparse

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
