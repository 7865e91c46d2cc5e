"""The commented file that `tuner init` writes. It runs unchanged on any machine, and people learn by changing it."""

from __future__ import annotations

STARTER = """\
# An experiment: what to search, what to run, when to stop.
#
#     tuner validate experiment.yaml     checks this file
#     tuner run experiment.yaml          runs it; run it again to resume
#     tuner best my-search               the best trial so far
#
# This one runs unchanged, in seconds. Adapt it: the parameters, then the command.
# Editors complete and check the keys once they have the schema: tuner schema > experiment.schema.json
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: my-search}

spec:
  # The metric as your program prints it: a line "step=3 score=0.97", "score: 0.97" or {"score": 0.97} is enough.
  objective: {metric: score, direction: maximize}     # add target: 0.99 to stop as soon as a trial gets there

  # What is searched. A list is a choice; when: makes a parameter exist only beside certain values of another.
  parameters:
    lr: {type: float, min: 1.0e-4, max: 1.0, scale: log}
    layers: {type: int, min: 1, max: 6}
    optimizer: [sgd, adam]
    momentum: {type: float, min: 0, max: 0.95, when: {optimizer: sgd}}

  initial: [{lr: 0.1, optimizer: sgd}]                # points to try first, whole or in part

  algorithm: {name: tpe, seed: 7}                     # or random, or grid (then floats need points: or step:)
  pruning: {name: median, warmupSteps: 3, minTrials: 4}  # stops a trial that is worse than most were at that step
  parallelism: 2                                      # trials at a time
  budget: {trials: 20, wallClock: 30m}                # whichever is reached first

  trial:
    # Any program, in any language: ${name} becomes the parameter's value. Elements that mention a parameter which is
    # not there in a trial (momentum beside adam) are left out. Yours may be: [python, train.py, "--lr=${lr}"]
    command:
      - python
      - -c
      - |
        import math, sys, time
        given = dict(word.lstrip("-").split("=") for word in sys.argv[1:])
        lr, layers = float(given["lr"]), int(given["layers"])
        momentum = float(given.get("momentum", 0.8))
        best = math.exp(-(math.log10(lr) + 1.5) ** 2 / 2 - (layers - 3) ** 2 / 20 - (momentum - 0.8) ** 2)
        for step in range(1, 11):
            time.sleep(0.03)
            print(f"step={step} score={best * (1 - math.exp(-step / 3)):.4f}", flush=True)
      - --lr=${lr}
      - --layers=${layers}
      - --optimizer=${optimizer}
      - --momentum=${momentum}
    timeout: 5m                                       # a trial that takes longer is stopped, and counts as failed
"""


def starter() -> str:
    """Return the text of the starter file."""
    return STARTER
