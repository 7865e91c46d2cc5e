"""Who may do what at a server, and how that is made known: tokens, verbs, certificates, the record of changes.

Knows methods and names, no study. Without tokens nothing in here is used: whoever can reach the address may do all.
"""
