"""Operations on variables, plain and sharded alike: lookups, products, sampled losses, and their gradients."""

from shardvar.nn.gradients import gradient, vjp
from shardvar.nn.lookup import embedding_lookup
from shardvar.nn.losses import SampledValues, log_uniform_sampler, nce_loss, sampled_softmax_loss
from shardvar.nn.matmul import matmul
from shardvar.nn.mod import mod_to_div
from shardvar.nn.rebalance import RebalancedEmbedding, permute_rows, plan_balanced_rows, plan_shuffled_rows
from shardvar.nn.sparse import SparseTensor, embedding_lookup_sparse, safe_embedding_lookup_sparse

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
