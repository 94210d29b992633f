"""Operations on variables, plain and sharded alike: lookups, products, sampled losses, and their gradients."""

from shardvar.nn.gradients import gradient
from shardvar.nn.lookup import embedding_lookup
from shardvar.nn.losses import nce_loss, sampled_softmax_loss
from shardvar.nn.matmul import matmul
from shardvar.nn.mod import mod_to_div
from shardvar.nn.rebalance import RebalancedEmbedding, permute_rows, plan_balanced_rows, plan_shuffled_rows
from shardvar.nn.samplers import SampledValues, log_uniform_sampler
from shardvar.nn.sparse import embedding_lookup_sparse, safe_embedding_lookup_sparse
from shardvar.nn.sparse_tensor import SparseTensor
from shardvar.nn.vjp import vjp

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
