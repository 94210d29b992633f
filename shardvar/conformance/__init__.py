"""A conformance kit: which sentences of the RFCs does an implementation of sharded variables and
checkpoints keep?

    pip install ".[testing]"
    pytest --pyargs shardvar.conformance --adapter mypackage.adapter:Adapter

``shardvar.conformance.adapter`` defines an adapter, ``docs/conformance-kit.md`` explains the
report. This module imports nothing, because pytest loads the kit's plugin, and this module with it,
in every run on a machine that has shardvar installed.
"""

__all__ = [
    "PACKAGE",
]

PACKAGE = __name__
"""The argument of pytest that asks for the kit."""
