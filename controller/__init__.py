"""The controller: reads experiments, runs their trials,
and tells the suggestion service how they ended.
"""
