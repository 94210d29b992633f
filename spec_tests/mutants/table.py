"""All mutants, layer by layer."""

from spec_tests.mutants import checkpoint, formats, layout, planning, storage, training, variables

LAYERS = [layout, variables, training, planning, formats, storage, checkpoint]
MUTANTS = [mutant for layer in LAYERS for mutant in layer.MUTANTS]
