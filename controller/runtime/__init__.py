"""Where trials run: the protocol, and what implements it.

The supervisor of local trials imports modules of this package: nothing may be imported here.
"""
