"""Trials as processes of this machine, under a supervisor that outlives the controller.

The supervisor imports modules of this package: only the standard library may be imported here.
"""
