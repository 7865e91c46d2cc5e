"""`python -m controller`: the same as `tuner`, for an interpreter
that has the package but not the script.
"""

import sys

from controller import program

sys.exit(program())
