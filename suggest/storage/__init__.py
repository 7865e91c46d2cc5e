"""Storage of studies: the contract of a store (`store`), SQLite and PostgreSQL behind it,
ownership, and the schema.
"""
