"""Around the service, in a server: what happens to each call, who may call how often, what operators see and set.

Only `suggest.server` and `suggest.admin` come here; what is known of studies is next door.
"""
