"""Initial values, whole or part by part: ``init(shape, dtype=None, partition=None)``."""

from shardvar.variables.initializers.base import Initializer, joined
from shardvar.variables.initializers.constants import Constant, Identity, Ones, Zeros
from shardvar.variables.initializers.draws import (
    GlorotNormal,
    GlorotUniform,
    HeNormal,
    HeUniform,
    LecunNormal,
    LecunUniform,
    RandomNormal,
    RandomUniform,
    TruncatedNormal,
    VarianceScaling,
)
from shardvar.variables.initializers.orthogonal import Orthogonal

__all__ = [
    "Constant",
    "GlorotNormal",
    "GlorotUniform",
    "HeNormal",
    "HeUniform",
    "Identity",
    "Initializer",
    "LecunNormal",
    "LecunUniform",
    "Ones",
    "Orthogonal",
    "RandomNormal",
    "RandomUniform",
    "TruncatedNormal",
    "VarianceScaling",
    "Zeros",
    "joined",
]
