"""Access to a server: tokens, grants, certificates, and the audit log.

Knows methods and names, no study. Unused on a server without tokens: any client that reaches the address may do all.
"""
