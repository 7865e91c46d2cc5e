"""The pure core of the controller: its values, the state machine of an attempt, and the decisions.

Nothing in this package reads a clock, does I/O or draws random numbers. `controller.loop` does all
of that.
"""
