"""`make conformance`: the conformance kit on real implementations, and the page that comes of it."""
