"""Wrong implementations, in families: what the conformance kit must see (``table``)."""
