"""The rules, by level. ``shardvar.conformance.registry`` defines a rule; to add one, write a
function.

Cases are the ordinary ones unless a rule is about the odd ones: at least a row a shard, float32. An
implementation that stumbles over empty shards then breaks the rules of empty shards (``layouts``),
and not every rule.
"""
