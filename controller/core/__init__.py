"""The pure core of the controller: values, the state machine of an attempt, and the decisions. No clock, no I/O, no
randomness; the loop around it supplies those.
"""
