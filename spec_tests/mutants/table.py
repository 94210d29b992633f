"""All mutants, layer by layer."""

from spec_tests.mutants import (
    checkpoint,
    conversions,
    formats,
    layout,
    meshes,
    once_passed,
    planning,
    storage,
    training,
    variables,
)

LAYERS = [
    layout,
    meshes,
    variables,
    training,
    planning,
    formats,
    storage,
    checkpoint,
    conversions,
    once_passed,
]
MUTANTS = [mutant for layer in LAYERS for mutant in layer.MUTANTS]
