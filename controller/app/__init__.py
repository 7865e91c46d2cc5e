"""The requests that every shell around tuner can make: one module per request (validate, run, extend, stop…).

Requests take typed values, and return typed values or raise typed errors. This package uses no argparse, no terminal
and no exit codes, and prints nothing: notices go to a callback or are part of the result.
"""
