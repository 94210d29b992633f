"""A conformance kit: which sentences of the RFCs does an implementation of sharded variables and checkpoints keep?

    pip install "shardvar[testing]"
    pytest --pyargs shardvar.conformance --adapter mypackage.adapter:Adapter

``shardvar.conformance.adapter`` says what an adapter is, ``docs/conformance-kit.md`` how to read the report. This
module imports nothing: pytest loads the plugin in every run of everybody who has shardvar installed.
"""
