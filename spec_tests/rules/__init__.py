"""The rules: which sentences of the RFCs are obeyed, by which function, held by which tests, kept
by whom.

``rfc000.toml`` to ``rfc003.toml`` are the data: every sentence that demands, promises or refuses
something, verbatim, and either its rules, or why it is out of scope, or in what shardvar is on
purpose unlike it. What obeys and holds a rule is read from the code, where its id stands
(``R-DIV-1``). ``page`` writes docs/rules.md from both.
"""
