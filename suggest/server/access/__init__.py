"""Access control of a server: tokens, grants, certificates, and the audit log.

It depends on methods and names only, not on studies. A server without tokens does not use it: any
client that reaches the address may do everything.
"""
