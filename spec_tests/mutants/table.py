"""All mutants, layer by layer."""

from spec_tests.mutants import checkpoint, formats, layout, meshes, planning, storage, training, variables

LAYERS = [layout, meshes, variables, training, planning, formats, storage, checkpoint]
MUTANTS = [mutant for layer in LAYERS for mutant in layer.MUTANTS]
