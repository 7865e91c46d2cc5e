"""Where studies are stored: the contract (`store`), SQLite and PostgreSQL behind it, ownership, and the schema."""
