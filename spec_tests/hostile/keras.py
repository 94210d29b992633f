"""Files of Keras: recorded ones of which some bytes are changed, and archives and sets made by
hand."""

import io

from spec_tests.hostile.case import Arrays, Evidence, Files

MEMBER = "model.weights.h5"


def _make(arrays: Arrays) -> Files:
    """Weights of layers, as Keras 3 nests them."""
    import h5py

    file = io.BytesIO()
    with h5py.File(file, "w") as group:
        for key, array in arrays.items():
            group[f"layers/{key}/vars/0"] = array
    return {"ck.weights.h5": file.getvalue()}


EVIDENCE = {
    "keras": Evidence("keras/weights_mlp/m.weights.h5", "keras_", file="ck.weights.h5", make=_make)
}
