"""Adapters of real implementations: ``shardvar.conformance.adapters.NAME:Adapter``."""
