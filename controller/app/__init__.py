"""What every shell around tuner can ask for: one module per request (validate, run, extend, stop…), typed values in,
typed values or typed errors out.

No argparse, no terminal, no exit codes, and nothing is printed: notices go to a callback or are part of the result.
"""
