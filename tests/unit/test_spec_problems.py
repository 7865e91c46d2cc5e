"""The problems of a file: a valid file with one invalid fragment,
and the exact lines of the message.
"""

from __future__ import annotations

import pytest

from controller.search import study_spec
from controller.spec import SpecErrors, read
from controller.spec.native import FILE
from controller.spec.problems import ProblemCollector
from suggest.errors import InvalidArgument
from suggest.pruners import rules
from suggest.samplers.registry import algorithms
from suggest.server.admin import check
from tests.unit.changes import changes

GOOD = """\
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: digits, labels: {team: vision}}
spec:
  objective: {metric: accuracy, direction: maximize, target: 0.99}
  parameters:
    lr: {type: float, min: 0.001, max: 1.0, scale: log}
    layers: {type: int, min: 2, max: 8, step: 2}
    optimizer: [sgd, adam]
    momentum: {type: float, min: 0, max: 0.9, when: {optimizer: sgd}}
  algorithm: {name: tpe, seed: 7}
  budget: {trials: 40}
  trial:
    command: [python, train.py, "--lr=${lr}", "--layers=${layers}", "--opt=${optimizer}", "--m=${momentum}"]
"""


def problem_lines(text: str) -> list[str]:
    with pytest.raises(SpecErrors) as caught:
        read(text, source="experiment.yaml")
    head, *lines = str(caught.value).split("\n")
    count = len(caught.value.located)
    assert head == f"experiment.yaml: {count} problem{'s' if count != 1 else ''}"
    return [line.removeprefix("  ") for line in lines]


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


def test_a_valid_file_has_no_problems() -> None:
    assert read(GOOD, source="experiment.yaml").warnings == ()


def test_a_name_in_a_file_without_parameters_is_told_that_there_are_none() -> None:
    before, _, rest = GOOD.partition("  parameters:\n")
    without = f"{before}  parameters: {{}}\n  algorithm:{rest.partition('  algorithm:')[2]}"
    lines = "\n".join(problem_lines(without))
    assert "${lr} is not a parameter; there are none; write $${lr} for a literal ${lr}" in lines


SPACE = r"""
- min: 0.001, max: 1.0
+ min: 0, max: 1.0
  7:28 spec.parameters.lr.min: 0 cannot be on a log scale; use a min above 0, or scale: linear
- min: 0.001, max: 1.0
+ min: 2, max: 1.0
  7:28 spec.parameters.lr.min: 2 is above max, 1; swap the two
- max: 8, step: 2
+ max: 8, step: 4
  8:47 spec.parameters.layers.step: 4 does not lead from min 2 to max 8; use max 6 or 10, or another step
- [sgd, adam]
+ []
  9:16 spec.parameters.optimizer: no choices; give one or more
- [sgd, adam]
+ [sgd, adam, sgd]
  9:28 spec.parameters.optimizer[2]: 'sgd' occurs twice; remove one
- [sgd, adam]
+ {type: choice, values: [sgd, sgd]}
  9:45 spec.parameters.optimizer.values[1]: 'sgd' occurs twice; remove one
- optimizer: sgd}}
+ optimiser: sgd}}
  10:54 spec.parameters.momentum.when.optimiser: optimiser is not a parameter; did you mean optimizer?
- optimizer: sgd}}
+ optimizer: rmsprop}}
  10:65 spec.parameters.momentum.when.optimizer: can never be true: 'rmsprop' is not one of the choices 'sgd', 'adam'
- max: 8, step: 2
+ max: 8, when: {momentum: 0.5}
- [sgd, adam]
+ {type: choice, values: [sgd], when: {momentum: 0.5}}
  9:63 spec.parameters.optimizer.when.momentum: conditions form a cycle: optimizer -> momentum -> optimizer; remove one
- algorithm: {name: tpe, seed: 7}
+ algorithm: tpe
  11:14 spec.algorithm: expected a mapping such as {name: tpe}, got the string 'tpe'
- command: [python,
+ command: ["",
  14:15 spec.trial.command[0]: '' is not a program; write its name or path
- type: int
+ type: integer
  8:20 spec.parameters.layers.type: 'integer' is not a type of parameter; did you mean int?
- type: int
+ type: loguniform
  8:20 spec.parameters.layers.type: 'loguniform' is not a type of parameter; did you mean float?
- min: 0.001, max: 1.0
+ min: 0,001, max: 1.0
  7:30 spec.parameters.lr.001: the comma before it begins another key; write a decimal number with a point, such as 0.97
- type: int, min
+ min
  8:5 spec.parameters.layers.type: is missing; write float, int or choice
- type: int, min
+ typ: int, min
  8:14 spec.parameters.layers.typ: no such key; did you mean type?
- min: 0.001, max: 1.0
+ minimum: 0.001, max: 1.0
  7:5 spec.parameters.lr.min: is missing; write a finite number
  7:23 spec.parameters.lr.minimum: no such key; did you mean min?
- min: 2, max: 8
+ min: 2, max: 8.5
  8:38 spec.parameters.layers.max: expected a whole number, got the number 8.5
- min: 2, max: 8
+ min: 2, max: 8, points: 3
  8:41 spec.parameters.layers.points: no such key; the keys here are type, min, max, scale, step, distribution, mean, deviation, when
- max: 1.0
+ max: 1_000
  7:40 spec.parameters.lr.max: expected a finite number, got the string '1_000'; write 1000
- max: 1.0
+ max: .inf
  7:40 spec.parameters.lr.max: expected a finite number, got the number inf
- [sgd, adam]
+ sgd
  9:16 spec.parameters.optimizer: expected a list of choices, or a mapping such as {type: float, min: 0, max: 1}, got the string 'sgd'
- [sgd, adam]
+ [sgd, [.inf]]
  9:22 spec.parameters.optimizer[1]: inf is not finite, and JSON has only finite numbers
-   algorithm:
+   initial: [{lr: 5, momentumm: 1}]
+   algorithm:
  11:18 spec.initial[0].lr: 5 is outside 0.001 to 1
  11:21 spec.initial[0].momentumm: unknown parameter; did you mean momentum?
-   algorithm:
+   initial: [{optimizer: adam, momentum: 0.5}]
+   algorithm:
  11:41 spec.initial[0].momentum: has a value but is active only when optimizer is 'sgd'; omit it, or give that too
"""

KEYS = r"""
- budget: {trials: 40}
+ budget: {max_trials: 40}
  12:12 spec.budget.max_trials: no such key; did you mean trials?
- budget: {trials: 40}
+ maxTrialCount: 40
  12:3 spec.maxTrialCount: no such key here; did you mean budget.trials?
- budget: {trials: 40}
+ parallelTrialCount: 4
  12:3 spec.parallelTrialCount: no such key; did you mean parallelism?
- budget: {trials: 40}
+ trials: 40
  12:3 spec.trials: no such key here; did you mean budget.trials?
- budget: {trials: 40}
+ budgt: {trials: 40}
  12:3 spec.budgt: no such key; did you mean budget?
- direction: maximize
+ direction: maximise
  5:44 spec.objective.direction: 'maximise' is not maximize or minimize; did you mean maximize?
- direction: maximize
+ direction: up
  5:44 spec.objective.direction: 'up' is not maximize or minimize
- target: 0.99
+ goal: 0.99
  5:54 spec.objective.goal: no such key; did you mean target?
- target: 0.99
+ goal: max
  5:54 spec.objective.goal: no such key; did you mean direction: maximize?
- budget: {trials: 40}
+ objectives: [{metric: size, direction: minimize}]
  12:3 spec.objectives: beside objective; write all of them under objectives
- budget: {trials: 40}
+ constraints: [{metric: size}]
  12:17 spec.constraints[0]: no bound; write min, max or both
- budget: {trials: 40}
+ constraints: [size]
  12:17 spec.constraints[0]: expected a mapping such as {metric: latency_ms, max: 20}, got the string 'size'
- target: 0.99
+ target: .nan
  5:62 spec.objective.target: expected a finite number, got the number nan
- , direction: maximize
+
  5:3 spec.objective.direction: is missing; write maximize or minimize
- trials: 40
+ trials: 0
  12:20 spec.budget.trials: expected a whole number of at least 1, got the number 0
- trials: 40
+ trials: ten
  12:20 spec.budget.trials: expected a whole number of at least 1, or none, got the string 'ten'
- trials: 40
+ trials: yes
  12:20 spec.budget.trials: expected a whole number of at least 1, or none, got the string 'yes'
- trials: 40
+ trials: true
  12:20 spec.budget.trials: expected a whole number of at least 1, got true
- trials: 40
+ trials: 
  12:20 spec.budget.trials: expected a whole number of at least 1, or none, got nothing; write one, or remove the key
- trials: 40
+ gpuHours: -3
  12:22 spec.budget.gpuHours: -3 is not a finite number above 0; write one, or remove the key
- trials: 40
+ gpuHours: .inf
  12:22 spec.budget.gpuHours: inf is not a finite number above 0; write one, or remove the key
- trials: 40
+ gpuHours: 1e-300
  12:22 spec.budget.gpuHours: 1e-300 is too small; use at least 1e-06
- trials: 40
+ cost: 1e300
  12:18 spec.budget.cost: 1e+300 is too large; use at most 1e+15
- trials: 40
+ cost: cheap
  12:18 spec.budget.cost: 'cheap' is not a number; write one, without a unit and without quotes
- trials: 40
+ gpuHours: 100
  12:12 spec.budget.gpuHours: a trial requests no GPU, so this is never used up; set spec.trial.resources.gpu
- trials: 40
+ cost: 250
  12:12 spec.budget.cost: requires prices; write spec.prices, such as {nvidia.com/gpu: 2.5, cpu: 0.04}; only under a cluster's controller that has prices of its platform may they be missing
- trials: 40
+ overrun: stop
  12:12 spec.budget.overrun: is for budget.wallClock, budget.gpuHours and budget.cost; write one of them, or remove it
- trials: 40
+ cost: cheap, overrun: stop
  12:18 spec.budget.cost: 'cheap' is not a number; write one, without a unit and without quotes
- trials: 40
+ prices: {cpu: 1}
  12:12 spec.budget.prices: no such key here; did you mean spec.prices?
-   budget: {trials: 40}
+   budget: {cost: 250}
+   prices: {cpu: -1}
  13:17 spec.prices.cpu: expected a number of at least 0, got the number -1
-   budget: {trials: 40}
+   prices: {cpu: 1e300, nvidia.com/gpu: 1e10}
  12:17 spec.prices.cpu: 1e+300 is too large; use at most 1e+09
  12:40 spec.prices.nvidia.com/gpu: 10000000000.0 is too large; use at most 1e+09
-   budget: {trials: 40}
+   budget: {cost: 250}
+   prices: {gpu: 2.5}
  13:12 spec.prices.gpu: is not accepted here; write nvidia.com/gpu, also for GPUs of this machine
-   budget: {trials: 40}
+   budget: {cost: 250}
+   prices: {nvidia.com/gpu: 2.5}
  13:3 spec.prices: a trial requests nothing that has a price; set spec.trial.resources
- trials: 40
+ wallClock: 30
  12:23 spec.budget.wallClock: 30 has no unit; write 30s, 30m or 30h
- trials: 40
+ wallClock: soon
  12:23 spec.budget.wallClock: 'soon' is not a duration; write 90s, 30m, 6h, 1h30m or 1d
- seed: 7
+ seed: 9223372036854775808
  11:32 spec.algorithm.seed: 9223372036854775808 is too large; use at most 9223372036854775807
-   budget:
+   parallelism: 9223372036854775808
+   budget:
  12:16 spec.parallelism: 9223372036854775808 is too large; use at most 9007199254740992
- seed: 7
+ settings: {startupTrials: .inf}
  11:52 spec.algorithm.settings.startupTrials: inf is not finite, and JSON has only finite numbers; use a finite one
- seed: 7
+ seed: -1
  11:32 spec.algorithm.seed: expected a whole number of at least 0, got the number -1
- name: digits
+ name: My_Digits
  3:18 metadata.name: 'My_Digits' is not a name for an experiment; use lower-case letters, digits and -, with a letter or digit at both ends
- name: digits
+ name: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
  3:18 metadata.name: 41 characters are too many; use at most 40
- team: vision
+ team: 3
  3:41 metadata.labels.team: expected a label's value, got the number 3; put quotes around it: "3"
- tuner.dev/v1
+ tuner.dev/v2
  1:13 apiVersion: 'tuner.dev/v2' is not tuner.dev/v1; did you mean tuner.dev/v1?
- kind: Experiment
-
+
  1:1 kind: is missing; write Experiment
-   budget:
+   metrics: {pattern: '(a)(b)(c)'}
+   budget:
  12:22 spec.metrics.pattern: '(a)(b)(c)' has 3 groups where two are needed, name and value; (?:…) groups without one
-   budget:
+   metrics: {pattern: '(a'}
+   budget:
  12:22 spec.metrics.pattern: '(a' is not a regular expression: missing ): (a; write one such as '(\\w+)=(\\S+)', in the syntax of RE2
-   budget:
+   metrics: {pattern: []}
+   budget:
  12:22 spec.metrics.pattern: expected a regular expression with two groups, or a list of them, got an empty list
-   budget:
+   metrics: {file: a, dbManager: true}
+   budget:
  12:22 spec.metrics.dbManager: cannot be combined with file; keep one of them
-   budget:
+   metrics: {format: json}
+   budget:
  12:13 spec.metrics.format: is the format of a file; write file: PATH beside it
-   budget:
+   metrics: {file: a, format: jsonl}
+   budget:
  12:30 spec.metrics.format: 'jsonl' is not text, json or tensorboard; did you mean json?
-   budget:
+   metrics: {file: a, format: json, pattern: '(a)(b)'}
+   budget:
  12:36 spec.metrics.pattern: is for lines of text, and cannot be combined with format: json
-   budget:
+   metrics: {file: a, format: tensorboard, step: s}
+   budget:
  12:43 spec.metrics.step: cannot be combined with format: tensorboard, whose events have steps
-   budget:
+   metrics: {file: ../a}
+   budget:
  12:19 spec.metrics.file: '../a' leaves its folder; write a path without ..
-   budget:
+   metrics: {file: /a}
+   budget:
  12:19 spec.metrics.file: '/a' is in the root directory, which cannot be shared; write it in a directory of its own, such as /metrics/a
-   budget:
+   metrics: {file: '$TUNER_OUTPUT_DIR/a'}
+   budget:
  12:19 spec.metrics.file: '$TUNER_OUTPUT_DIR/a' is not the path of a file; use a path without $ that does not end in /
-   budget:
+   metrics: {prometheus: {port: 0}}
+   budget:
  12:32 spec.metrics.prometheus.port: expected a port from 1 to 65535, got the number 0
-   budget:
+   parallelism: 2
+   metrics: {prometheus: {port: 8080}}
+   budget:
  13:32 spec.metrics.prometheus.port: the trials on this machine would all need this port; omit port and read TUNER_METRICS_PORT in the program, or set spec.parallelism: 1
-   budget:
+   <<: {a: 1}
+   budget:
  12:3 spec.<<: merge keys are not part of YAML 1.2; write the keys out
"""

COMMAND = (
    'command: [python, train.py, "--lr=${lr}", "--layers=${layers}", "--opt=${optimizer}", '
    '"--m=${momentum}"]'
)
REST = '"--lr=${lr}", "--layers=${layers}", "--opt=${optimizer}"'
TRIAL = r"""
- command: [python, train.py, "--lr=${lr}", "--layers=${layers}", "--opt=${optimizer}", "--m=${momentum}"]
+ command: python train.py
  14:14 spec.trial.command: expected a list of words, [python, train.py], got the string 'python train.py'; write [sh, -c, ...] to have a shell read it
- command: [python, train.py, "--lr=${lr}", "--layers=${layers}", "--opt=${optimizer}", "--m=${momentum}"]
+ command: []
  14:14 spec.trial.command: expected a list of words, [python, train.py], got an empty list
- command: [python, train.py, "--lr=${lr}", "--layers=${layers}", "--opt=${optimizer}", "--m=${momentum}"]
+ args: []
  13:3 spec.trial.command: is missing; write the program as a list: [python, train.py]
- --lr=${lr}
+ --lr=${learning_rate}
  14:33 spec.trial.command[2]: ${learning_rate} is not a parameter; did you mean ${lr}?
- --lr=${lr}
+ ${HOME}
  14:33 spec.trial.command[2]: ${HOME} is not a parameter; environment variables are not substituted; read HOME in the program, or let a shell do it: [sh, -c, 'exec "$@" --flag="$HOME"', sh, PROGRAM, …]
- --lr=${lr}
+ --out=${TUNER_OUTPUT_DIR}
  14:33 spec.trial.command[2]: ${TUNER_OUTPUT_DIR} is not a parameter; environment variables are not substituted; read TUNER_OUTPUT_DIR in the program, or let a shell do it: [sh, -c, 'exec "$@" --out="$TUNER_OUTPUT_DIR"', sh, PROGRAM, …]
- --lr=${lr}
+ ${HOMES}
  14:33 spec.trial.command[2]: ${HOMES} is not a parameter; there are lr, layers, optimizer, momentum; write $${HOMES} for a literal ${HOMES}
- --lr=${lr}
+ ${}
  14:33 spec.trial.command[2]: ${} is not a parameter; there are lr, layers, optimizer, momentum
- --m=${momentum}
+ ${momentum}
  14:91 spec.trial.command[5]: ${momentum} is conditional: without it, the next word would take its place; write --momentum=${momentum} as one element
- "--m=${momentum}"
+ -m, "${momentum}"
  14:95 spec.trial.command[6]: ${momentum} is conditional: without it, -m would have no value; write -m=${momentum} as one element, or ${momentum:+-m} before it
- "--m=${momentum}"
+ "${momentum:+-m}", "${momentum}"
- "--m=${momentum}"
+ "${lr:+-m}", "${momentum}"
  14:91 spec.trial.command[5]: ${lr:+-m} is always written, because lr is never false, null or empty; write the word alone, or use a choice of true and false (without quotes)
  14:104 spec.trial.command[6]: ${momentum} is conditional: without it, the next word would take its place; write --momentum=${momentum} as one element
- "--m=${momentum}"
+ "${momentum:+}"
  14:91 spec.trial.command[5]: ${momentum:+} never writes anything; write the flag in it: ${momentum:+--momentum}
- "--m=${momentum}"
+ "${momentun:+-m}"
  14:91 spec.trial.command[5]: ${momentun:+-m} is not a parameter; did you mean ${momentum:+-m}?
- [python,
+ ["${momentum:+strace}", python,
  14:15 spec.trial.command[0]: ${momentum:+strace} may be nothing, and a trial needs its program; use a choice of programs
- [python,
+ ["p${momentum}",
  14:15 spec.trial.command[0]: p${momentum} is conditional, and a trial needs its program; use a choice without when
-     command
+     env: {A: [1], B-C: {secret: x}, C: '${lrr}'}
+     command
  14:14 spec.trial.env.A: expected a string, a number or {secret: name/key}, got a list
  14:33 spec.trial.env.B-C.secret: the string 'x' is not a secret's key; write name/key
  14:40 spec.trial.env.C: ${lrr} is not a parameter; did you mean ${lr}?
-     command
+     workingDir: 'runs/${lr}'
+     command
  14:17 spec.trial.workingDir: parameters are not substituted here; pass the parameter in command, and change the directory there
-     command
+     cwd: src
+     command
  14:5 spec.trial.cwd: no such key; did you mean workingDir?
-     command
+     parametersFile: toml
+     command
  14:21 spec.trial.parametersFile: 'toml' is not json or yaml
-     command
+     devices: [0, a100, -1]
+     command
  14:18 spec.trial.devices[1]: expected the index or UUID of a GPU, got the string 'a100'; write 0 or GPU-5d5b..., as nvidia-smi -L shows them
  14:24 spec.trial.devices[2]: expected the index or UUID of a GPU, got the number -1; write 0 or GPU-5d5b..., as nvidia-smi -L shows them
-     command
+     env: {TUNER_PARAMETERS_FILE: x}
+     command
  14:11 spec.trial.env.TUNER_PARAMETERS_FILE: is set by tuner for each attempt; use another name
-   trial:
-
+   runtime: kubernetes
+   trial:
+     image: x
+     workingDir: src
+     parametersFile: yaml
+
  16:17 spec.trial.workingDir: 'src' is relative, and a container needs an absolute path; write the path in the image, such as /app/src
  17:5 spec.trial.parametersFile: a pod does not see files of this machine; read TUNER_PARAMETERS, the same as JSON, or omit parametersFile
-     command
+     timeout: 0s
+     command
  14:14 spec.trial.timeout: '0s' is too short; write a longer one, or remove the key for no limit
-     command
+     resources: {memory: 16GB, gpus: 1, cpu: two}
+     command
  14:25 spec.trial.resources.memory: '16GB' is not an amount of memory; write 16Gi
  14:31 spec.trial.resources.gpus: no such key; did you mean gpu?
  14:45 spec.trial.resources.cpu: 'two' is not a number of CPUs; write 2, 0.5 or 500m
-     command
+     resources: {memory: 9E}
+     command
  14:25 spec.trial.resources.memory: 9E is more than a machine has; use at most 1Ei
-     command
+     resources: {memory: 512}
+     command
  14:25 spec.trial.resources.memory: 512 is 512 bytes; write 512Mi or 512Gi
-     command
+     resources: {nvidia.com/gpu: 1}
+     command
  14:17 spec.trial.resources.nvidia.com/gpu: is not accepted here; write gpu: 1
-     command
+     resources: {gpu: 1e7}
+     command
  14:22 spec.trial.resources.gpu: 10000000.0 is too large; use at most 1e+06
-     command
+     retries: {configuration: 1, oom: 2}
+     command
  14:15 spec.trial.retries.configuration: is never retried: it pauses the experiment; correct the cause, then resume
  14:33 spec.trial.retries.oom: no such key; did you mean outOfMemory?
-     command
+     volumes: {data: {mount: /data, hostPath: {path: /}}}
+     command
  14:36 spec.trial.volumes.data.hostPath: a trial must not access the disk of its node; use claim, nfs or emptyDir
-     command
+     volumes: {data: {mount: /data}}
+     command
  14:21 spec.trial.volumes.data: no source given; a volume has one of claim, nfs, emptyDir
-     command
+     labels: {team: 'no label!'}
+     command
  14:20 spec.trial.labels.team: 'no label!' is not a label's value; use at most 63 letters, digits, _ . - with a letter or digit at both ends
-     command
+     labels: {team: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx}
+     command
  14:20 spec.trial.labels.team: 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' is not a label's value; use at most 63 letters, digits, _ . - with a letter or digit at both ends
-     command
+     labels: {-team: x}
+     command
  14:14 spec.trial.labels.-team: '-team' is not a name here; use at most 63 letters, digits, _ . - with a letter or digit at both ends, and a domain/ before them if need be
-     command
+     labels: {tuner.dev/team: x}
+     command
  14:14 spec.trial.labels.tuner.dev/team: names of tuner.dev/ are set by Tuner; use another prefix
-     command
+     annotations: {tuner.dev/note: x}
+     command
  14:19 spec.trial.annotations.tuner.dev/note: names of tuner.dev/ are set by Tuner; use another prefix
-     command
+     labels: {app.kubernetes.io/managed-by: me}
+     command
  14:14 spec.trial.labels.app.kubernetes.io/managed-by: is set by Tuner, which finds its objects by it; omit it
-     command
+     labels: {kueue.x-k8s.io/queue-name: q}
+     command
  14:14 spec.trial.labels.kueue.x-k8s.io/queue-name: would queue a trial that Tuner does not know to be queued; write spec.trial.queue
-     command
+     annotations: {note: 'any text, as long as it is text'}
+     command
-     command
+     nodeSelector: {pool: 'no label!'}
+     command
  14:26 spec.trial.nodeSelector.pool: 'no label!' is not a label's value; use at most 63 letters, digits, _ . - with a letter or digit at both ends
-     command
+     affinity: {nodeAfinity: {}}
+     command
  14:16 spec.trial.affinity.nodeAfinity: no such key; did you mean nodeAffinity?
-     command
+     topologySpread: [{topologyKey: zone, whenUnsatisfiable: DoNotSchedul}]
+     command
  14:22 spec.trial.topologySpread[0].maxSkew: is missing; write a whole number of at least 1
  14:61 spec.trial.topologySpread[0].whenUnsatisfiable: 'DoNotSchedul' is not DoNotSchedule or ScheduleAnyway; did you mean DoNotSchedule?
-     command
+     topologySpreadConstraints: []
+     command
  14:5 spec.trial.topologySpreadConstraints: no such key; did you mean topologySpread?
-     command
+     runtimeClassName: gvisor
+     command
  14:5 spec.trial.runtimeClassName: no such key; did you mean runtimeClass?
-     command
+     template: {apiVersion: v1, kind: Job}
+     affinity: {}
+     labels: {a: b}
+     command
  14:5 spec.trial.template: needs runtime: kubernetes; a local trial runs a command
  15:5 spec.trial.affinity: cannot be combined with template; move it into the template
  17:5 spec.trial.command: cannot be combined with template; move it into the template
-     command
+     template: {apiVersion: v1, kind: Job}
+     command
  14:5 spec.trial.template: needs runtime: kubernetes; a local trial runs a command
  15:5 spec.trial.command: cannot be combined with template; move it into the template
-     command
+     template: {apiVersion: v1, kind: Job, spec: {a: .inf}}
+     command
  14:5 spec.trial.template: needs runtime: kubernetes; a local trial runs a command
  14:53 spec.trial.template.spec.a: inf is not finite, and JSON has only finite numbers; write it as a string
  15:5 spec.trial.command: cannot be combined with template; move it into the template
-     command
+     template: {apiVersion: v1, kind: Pod}
+     checkpoints: {claim: c}
+     command
  14:5 spec.trial.template: needs runtime: kubernetes; a local trial runs a command
  15:5 spec.trial.checkpoints: are mounted in a batch/v1 Job only; mount the claim in the template
  16:5 spec.trial.command: cannot be combined with template; move it into the template
-   trial:
-
+   runtime: kubernetes
+   trial:
+     resources: {gpu: 0.5}
+
  14:3 spec.trial.image: is missing; a trial on a cluster needs the image of a container
  15:22 spec.trial.resources.gpu: 0.5 is not a whole number, and a cluster shares no GPU; use 1, or local
"""


@pytest.mark.parametrize(("old", "new", "problems"), changes(SPACE + KEYS + TRIAL))
def test_an_invalid_file_gives_one_clear_problem(old: str, new: str, problems: str) -> None:
    if problems:
        assert problem_lines(changed(old, new)) == problems.split("\n")
    else:
        read(changed(old, new), source="experiment.yaml")


def test_labels_of_an_experiment_on_a_cluster_can_be_labels_of_its_jobs() -> None:
    """On this machine they are any text."""
    here = changed("team: vision", "team: computer vision, tuner.dev/x: y")
    read(here, source="experiment.yaml")
    there = here.replace("  trial:\n", "  runtime: kubernetes\n  trial:\n    image: x\n")
    rule = "at most 63 letters, digits, _ . - with a letter or digit at both ends"
    assert problem_lines(there) == [
        f"3:41 metadata.labels.team: 'computer vision' cannot be a label of Jobs and pods; use "
        f"{rule}",
        "3:58 metadata.labels.tuner.dev/x: names of tuner.dev/ are set by Tuner; use another "
        "prefix",
    ]


def test_all_problems_of_a_file_are_reported_at_once_in_line_order() -> None:
    text = (
        changed("min: 0.001, max: 1.0", "min: 0, max: 1.0")
        .replace("${layers}", "${layer}")
        .replace("trials: 40", "trial: 40")
    )
    assert problem_lines(text) == [
        "7:28 spec.parameters.lr.min: 0 cannot be on a log scale; use a min above 0, or scale: "
        "linear",
        "12:12 spec.budget.trial: no such key; did you mean trials?",
        "14:47 spec.trial.command[3]: ${layer} is not a parameter; did you mean ${layers}?",
    ]


def test_a_broken_parameter_is_not_blamed_on_those_that_depend_on_it() -> None:
    assert problem_lines(changed("[sgd, adam]", "sgd"))[1:] == []


def test_conditions_are_checked_among_the_parameters_that_can_be_read() -> None:
    text = changed("type: int, min", "type: integer, min").replace(
        "{optimizer: sgd}", "{optimizer: rmsprop, layers: 2}"
    )
    assert problem_lines(text) == [
        "8:20 spec.parameters.layers.type: 'integer' is not a type of parameter; did you mean int?",
        "10:65 spec.parameters.momentum.when.optimizer: can never be true: 'rmsprop' is not one "
        "of the choices 'sgd', 'adam'",
    ]


SERVICE = [
    pytest.param(
        "name: tpe, seed: 7",
        "name: grd, seed: 7",
        [
            f"spec.algorithm.name: 'grd' is not an algorithm; there are "
            f"{', '.join(known.name for known in algorithms())}; did you mean grid?"
        ],
        id="an algorithm",
    ),
    pytest.param(
        "name: tpe, seed: 7}",
        "name: tpe}\n  pruning: {name: medain}",
        [
            f"spec.pruning.name: 'medain' is not a pruning rule; there are "
            f"{', '.join(known.name for known in rules())}; did you mean median?"
        ],
        id="a pruner",
    ),
    pytest.param(
        "name: tpe, seed: 7",
        "name: grid",
        [
            f"spec.parameters.{name}: a grid needs points or step on a float; add one (points: "
            f"5), or use another algorithm"
            for name in ("lr", "momentum")
        ],
        id="a grid",
    ),
    pytest.param(
        "name: tpe, seed: 7}",
        "name: tpe}\n  learnFrom: [march, {study: march, weight: 2}]",
        [
            "spec.algorithm.name: tpe does not learn from earlier searches; use default or gp, or "
            "name no earlier ones",
            "spec.learnFrom[1].study: march is already there; name it once",
            "spec.learnFrom[1].weight: 2 is not above 0 and at most 1; use 1, or 0.5",
        ],
        id="what to learn from",
    ),
    pytest.param(
        "name: tpe, seed: 7}",
        "name: tpe}\n  learnFrom: auto",
        [
            "spec.algorithm.name: tpe does not learn from earlier searches; use default or gp, or "
            "name no earlier ones",
        ],
        id="to learn from similar ones",
    ),
    pytest.param(
        "name: tpe, seed: 7}",
        "name: gp}\n  learnFrom: march",
        [
            "spec.learnFrom: expected auto, or a list of experiments, such as [march], got the "
            "string 'march'"
        ],
        id="what to learn from, not in a list",
    ),
    pytest.param(
        "name: tpe, seed: 7}",
        "name: gp}\n  learnFrom: [{study: auto}, auto]",
        [
            "spec.learnFrom[1]: auto names no experiment; write auto instead of the list, and "
            "{study: auto} for an experiment of that name",
        ],
        id="to learn from similar ones, in a list",
    ),
    pytest.param(
        "name: tpe, seed: 7}",
        "name: gp}\n  learnFrom: [{weight: 0.5}, {name: march}]",
        [
            "spec.learnFrom[0].study: is missing; write the name of an experiment",
            "spec.learnFrom[1].name: no such key; the keys here are study, weight",
            "spec.learnFrom[1].study: is missing; write the name of an experiment",
        ],
        id="what to learn from, without a name",
    ),
    pytest.param(
        "name: tpe, seed: 7}",
        "name: tpe}\n  prices: {tpu: 1, cpus: 2, memroy: 1}",
        [
            "spec.prices.tpu: no such key; the keys here are cpu, memory, and names with a domain, "
            "such as google.com/tpu",
            "spec.prices.cpus: no such key; did you mean cpu?",
            "spec.prices.memroy: no such key; did you mean memory?",
        ],
        id="prices of resources by other names",
    ),
    pytest.param(
        "{name: tpe, seed: 7}",
        "tpe\n  learnFrom: [march]\n  prior: {lr: {around: 0.1, sure: 0.5}}",
        ["spec.algorithm: expected a mapping such as {name: tpe}, got the string 'tpe'"],
        id="what to learn from and believe, with an algorithm that cannot be read",
    ),
    pytest.param(
        "name: tpe, seed: 7}",
        "name: tpe}\n  prices: {cpu: .inf}",
        ["spec.prices.cpu: expected a finite number of at least 0, got the number inf"],
        id="an infinite price",
    ),
    pytest.param(
        "name: tpe, seed: 7}",
        "name: gp}\n  prior: {lr: {around: 3, sure: 50}, optimizer: {around: 1, sure: 0.9}, "
        "lrr: {around: 1, sure: 0.9}, layers: {around: 4, sure: 0.5}}",
        [
            "spec.prior.lr.around: 3 is outside 0.001 to 1",
            "spec.prior.lr.sure: 50 is not above 0 and below 1; use 0.5, or another share",
            "spec.prior.optimizer.around: 1 is not one of the choices 'sgd', 'adam'",
            "spec.prior.lrr: unknown parameter; did you mean lr?",
        ],
        id="what to believe",
    ),
    pytest.param(
        "name: tpe, seed: 7",
        "name: [tpe]",
        ["spec.algorithm.name: expected the name of an algorithm, got a list"],
        id="what the reader refuses itself",
    ),
    pytest.param(
        "name: tpe, seed: 7",
        "name: tpe, seed: -1",
        ["spec.algorithm.seed: expected a whole number of at least 0, got the number -1"],
        id="what both would refuse",
    ),
]
OTHERS = [
    ("trials: 40", "trials: 0", "spec.budget.trials: "),
    ("type: int, min", "type: integer, min", "spec.parameters.layers.type: "),
    ("min: 2, max: 8", "min: 9, max: 8", "spec.parameters.layers.min: "),
    ("metric: accuracy, ", "", "spec.objective.metric: "),
    ("metadata: {name: digits, labels: {team: vision}}", "metadata: 3", "metadata: "),
]


@pytest.mark.parametrize(("broken", "into", "other"), OTHERS)
@pytest.mark.parametrize(("old", "new", "told"), SERVICE)
def test_the_service_s_problems_come_with_all_others_and_each_once(
    old: str, new: str, told: list[str], broken: str, into: str, other: str
) -> None:
    text = changed(old, new).replace(broken, into)
    with pytest.raises(SpecErrors) as caught:
        read(text, source="experiment.yaml", service=check)
    lines = [str(located).partition(" ")[2] for located in caught.value.located]
    assert sorted(line for line in lines if not line.startswith(other)) == sorted(told)
    assert len(lines) == len(told) + 1


def test_the_service_does_not_validate_what_could_not_be_read() -> None:
    for text in (
        "3",
        "spec: 3",
        "spec: {parameters: 3, algorithm: 3, pruning: 3}",
        "spec: {parameters: {x: 3}}",
    ):
        with pytest.raises(SpecErrors) as caught:
            read(text, source="experiment.yaml", service=check)
        paths = [located.path for located in caught.value.located]
        assert len(paths) == len(set(paths)), paths


INITIAL = [
    pytest.param(
        "type: int, min",
        "type: integer, min",
        "{layers: 3, lr: 5}",
        ["lr: 5 is outside 0.001 to 1"],
        id="a type that cannot be read",
    ),
    pytest.param(
        "min: 2, max: 8",
        "min: 9, max: 8",
        "{layers: 3, lr: 5}",
        ["lr: 5 is outside 0.001 to 1"],
        id="a range that holds nothing",
    ),
    pytest.param(
        "[sgd, adam]",
        "sgd",
        "{optimizer: adam, momentum: 0.5}",
        [],
        id="what hangs on the unreadable",
    ),
    pytest.param(
        "[sgd, adam]",
        "[]",
        "{optimizer: adam, momentum: 5}",
        ["momentum: 5 is outside 0 to 0.9"],
        id="what hangs on the wrong",
    ),
    pytest.param(
        "{optimizer: sgd}",
        "{optimiser: sgd}",
        "{optimizer: adam, momentum: 0.5, x: 1}",
        ["x: unknown parameter"],
        id="a wrong condition",
    ),
    pytest.param(
        "[sgd, adam]",
        "{type: choice, values: [sgd], when: {momentum: 0.5}}",
        "{momentum: 0.5, lr: 5}",
        ["lr: 5 is outside 0.001 to 1"],
        id="a circle",
    ),
    pytest.param(
        "trials: 40",
        "trials: 0",
        "{optimizer: [sgd], momentum: 0.5, lr: 5}",
        [
            "optimizer: [\"sgd\"] is not one of the choices 'sgd', 'adam'",
            "lr: 5 is outside 0.001 to 1",
        ],
        id="a value that cannot be read",
    ),
]


@pytest.mark.parametrize(("old", "new", "point", "told"), INITIAL)
def test_initial_points_are_checked_against_the_parameters_that_can_be_read(
    old: str, new: str, point: str, told: list[str]
) -> None:
    lines = problem_lines(changed(old, new) + f"  initial: [{point}]\n")
    of_points = [line.partition(" spec.initial[0].")[2] for line in lines if "spec.initial" in line]
    assert of_points == told
    assert len(lines) == len(told) + 1


def test_the_file_cannot_set_variables_of_the_attempt() -> None:
    text = changed("  budget:", "  final: {env: {TUNER_CHECKPOINT_DIR: /keep}}\n  budget:")
    text = text.replace(
        "  trial:\n",
        "  trial:\n    env: {TUNER_OUTPUT_DIR: /models, KATIB_TRIAL_NAME: x, TUNER_MINE: y}\n",
    )
    begin = "is set by tuner for each attempt"
    assert [line.partition(" ")[2] for line in problem_lines(text)] == [
        f"spec.final.env.TUNER_CHECKPOINT_DIR: {begin}; spec.trial.checkpoints: {{claim: …}} "
        f"keeps it on a cluster's volume",
        f"spec.trial.env.TUNER_OUTPUT_DIR: {begin}; pass a folder of your own by a flag, or by "
        f"another variable",
        f"spec.trial.env.KATIB_TRIAL_NAME: {begin}; use another name",
    ]


def test_parameters_that_nothing_mentions_are_a_warning() -> None:
    warnings = read(changed(', "--m=${momentum}"', ""), source="experiment.yaml").warnings
    assert warnings == (
        "momentum: not mentioned in command, args or env; it arrives in TUNER_PARAMETERS",
    )


def test_a_fidelity_that_nothing_mentions_is_a_warning() -> None:
    text = changed("  budget:", "  fidelity: {parameter: epochs, min: 1, max: 9}\n  budget:")
    assert read(text, source="experiment.yaml").warnings == (
        "spec.fidelity.parameter: epochs is not mentioned in command, args or env, so each step "
        "of a trial may run "
        "equally far; it arrives in TUNER_PARAMETERS",
    )


ENDED = """apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: x}
spec:
  objective: {metric: loss, direction: minimize}
  parameters: {lr: {type: float, min: 0, max: 1}}
  budget: {trials: 1}
  runtime: kubernetes
  trial:
    template: {apiVersion: x.org/v1, kind: Widget, spec: {args: ["${lr}"]}}
    success: CONDITION
"""


@pytest.mark.parametrize(
    "condition",
    [
        "{type: Done}",
        "{type: Done, status: 'False'}",
        "{path: status.state.phase, equals: Done}",
        "{path: a.b, equals: 0}",
        "{path: a.b, equals: false}",
    ],
)
def test_an_end_is_a_condition_or_a_field(condition: str) -> None:
    read(ENDED.replace("CONDITION", condition), source="experiment.yaml")


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        (
            "{path: status.phase}",
            "11:5 spec.trial.success.equals: is missing; write a string, a number, true or false",
        ),
        ("{equals: Done}", "11:5 spec.trial.success.path: is missing; write a path"),
        (
            "{path: .status.phase, equals: Done}",
            "11:21 spec.trial.success.path: '.status.phase' is not a path; use keys joined by "
            "dots, such as status.phase",
        ),
        (
            "{path: 'status.conditions[0]', equals: x}",
            "11:21 spec.trial.success.path: 'status.conditions[0]' is not a path; use keys joined "
            "by dots, such as status.phase",
        ),
        (
            "{path: a.b, equals: [x]}",
            "11:34 spec.trial.success.equals: expected a string, a number, true or false, got a "
            "list",
        ),
        (
            "{path: a.b, equal: x}",
            "11:5 spec.trial.success.equals: is missing; write a string, a number, true or "
            "false\n11:26 spec.trial.success.equal: no such key; did you mean equals?",
        ),
        (
            "{type: Done, equals: x}",
            "11:14 spec.trial.success: a condition has {type: …}, or {path: …, equals: …}, and "
            "this mixes them; omit one",
        ),
        (
            "Done",
            "11:14 spec.trial.success: expected {type: …}, or {path: …, equals: …}, got the "
            "string 'Done'",
        ),
        ("{}", "11:5 spec.trial.success.type: is missing; write the type of a condition"),
    ],
)
def test_an_end_that_cannot_be_read_is_a_problem(condition: str, said: str) -> None:
    assert problem_lines(ENDED.replace("CONDITION", condition)) == said.split("\n")


def test_a_program_that_reads_the_file_of_parameters_need_mention_none() -> None:
    text = changed(', "--m=${momentum}"', "").replace(
        "    command", "    parametersFile: json\n    command"
    )
    assert read(text, source="experiment.yaml").warnings == ()


def test_gpus_that_are_named_and_not_asked_for_are_warned_of() -> None:
    text = changed("    command", "    devices: [0]\n    command")
    assert read(text, source="experiment.yaml").warnings == (
        "spec.trial.devices: trials request no GPU, so they get none; set spec.trial.resources.gpu",
    )
    assert read(text, source="x", overrides=["spec.trial.resources.gpu=1"]).warnings == ()


def test_a_rate_without_a_log_scale_is_warned_of() -> None:
    text = changed("max: 1.0, scale: log", "max: 1.0")
    assert read(text, source="experiment.yaml").warnings == (
        "spec.parameters.lr: nine of ten random values from 0.001 to 1 are above 0.1; if smaller "
        "ones are as likely to be good, as for a learning rate, write scale: log",
    )


@pytest.mark.parametrize(
    "domain",
    [
        "min: 0.002, max: 1.0",
        "min: 0, max: 1.0",
        "min: 0.001, max: 1.0, step: 0.001",
        "min: 0.001, max: 1.0, distribution: normal",
    ],
)
def test_other_numbers_without_a_log_scale_are_not_warned_of(domain: str) -> None:
    text = changed("min: 0.001, max: 1.0, scale: log", domain)
    assert read(text, source="experiment.yaml").warnings == ()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("'1e-4'", "write it without quotes: 1e-4"),
        ("'0.5'", "write it without quotes: 0.5"),
        ("10^-4", "write 0.0001"),
        ("10**-4", "write 0.0001"),
        ("'0,5'", "write 0.5"),
        ("'1,000,000'", "write 1000000"),
        ("small", None),
        ("'1,000'", None),
        ("10^999", None),
        ("1" * 400, "a number has at most 300 characters"),
    ],
)
def test_a_text_in_place_of_a_number_gets_the_number(text: str, meant: str | None) -> None:
    (line,) = problem_lines(changed("max: 1.0", f"max: {text}"))
    assert line.partition("; ")[2] == (meant or "")


@pytest.mark.parametrize(
    ("section", "meant"),
    [
        ("algorithm: {name: GP}", "gp"),
        ("algorithm: {name: BayesianOptimization}", "gp"),
        ("pruning: {name: MedianPruner}", "median"),
        ("pruning: {name: SuccessiveHalving}", "asha"),
    ],
)
def test_a_class_of_another_library_gets_our_name(section: str, meant: str) -> None:
    key, _, value = section.partition(": ")
    spec = read(GOOD, source="x", overrides=[f"spec.{key}={value}"]).spec
    with pytest.raises(InvalidArgument) as refused:
        check(study_spec(spec))
    assert f"; did you mean {meant}?" in str(refused.value)


PLACEHOLDERS = (
    "{lr}",
    "{{lr}}",
    "{{ lr }}",
    "$lr",
    "$(lr)",
    "$[lr]",
    "%lr%",
    "%(lr)s",
    "<lr>",
    "@lr@",
    "#{lr}",
    "{lr:.3f}",
    "{{.Values.lr}}",
    "{{workflow.parameters.lr}}",
    "$(params.lr)",
    "{{ LR }}",
)


@pytest.mark.parametrize("placeholder", PLACEHOLDERS)
def test_a_placeholder_of_another_tool_gets_ours(placeholder: str) -> None:
    warnings = read(changed("${lr}", placeholder), source="experiment.yaml").warnings
    assert len(warnings) == 1, warnings
    assert warnings[0].endswith(f": {placeholder} does not become the value of lr; write ${{lr}}")


@pytest.mark.parametrize("text", ["$${lr}", "lr", "{lrs}", "$lrate", "$$lr", "{'lr': 1}", "%lrs%"])
def test_a_text_that_only_resembles_a_placeholder_is_left_alone(text: str) -> None:
    (warning,) = read(changed("${lr}", text), source="experiment.yaml").warnings
    assert warning == "lr: not mentioned in command, args or env; it arrives in TUNER_PARAMETERS"


@pytest.mark.parametrize(
    "text",
    ["${{lr}}", "${{ lr }}", "${{ parameters.lr }}", "${params.lr}", "${trialParameters.lr}"],
)
def test_a_placeholder_with_more_around_the_name_gets_ours(text: str) -> None:
    (line,) = problem_lines(changed("${lr}", text))
    assert "${lr}" in line


@pytest.mark.parametrize(
    ("metric", "direction", "usual"),
    [
        ("val_accuracy", "minimize", "maximize"),
        ("Acc@1", "minimize", "maximize"),
        ("valLoss", "maximize", "minimize"),
        ("RMSE", "maximize", "minimize"),
        ("val_accuracy", "maximize", ""),
        ("neg_log_loss", "maximize", ""),
        ("score", "minimize", ""),
        ("accuracy_loss", "minimize", ""),
        ("glossary", "maximize", ""),
    ],
)
def test_a_metric_in_the_unusual_direction_is_warned_of(
    metric: str, direction: str, usual: str
) -> None:
    overrides = [f"spec.objective={{metric: '{metric}', direction: {direction}}}"]
    warnings = read(GOOD, source="x", overrides=overrides).warnings
    assert [warning.rpartition("direction: ")[2] for warning in warnings] == [usual] * bool(usual)


def test_several_parameters_that_nothing_mentions_are_one_warning() -> None:
    text = changed(', "--opt=${optimizer}", "--m=${momentum}"', "")
    assert read(text, source="experiment.yaml").warnings == (
        "optimizer, momentum: not mentioned in command, args or env; they arrive in "
        "TUNER_PARAMETERS",
    )


@pytest.mark.parametrize(
    ("word", "messages"),
    [
        ("--lr=${lr", ["${ is never closed; write ${lr}, or $${ for a literal"]),
        ("--lr=${lrr", ["${ is never closed; write ${lr}, or $${ for a literal"]),
        ("${lr:-${layers}", ["${ is never closed; write ${lr}, or $${ for a literal"]),
        ("${ ${lr", ["${ is never closed; write ${lr}, or $${ for a literal"] * 2),
        ("$${lr", []),
        ("$${${lr}", []),
        ("${lr}}", []),
        ("$lr {", []),
    ],
)
def test_a_placeholder_that_is_never_closed_is_a_problem(word: str, messages: list[str]) -> None:
    text = changed('"--lr=${lr}"', f'"{word}"')
    if messages:
        assert problem_lines(text) == [
            f"14:33 spec.trial.command[2]: {message}" for message in messages
        ]
    else:
        read(text, source="experiment.yaml")


@pytest.mark.parametrize(
    "raw", [None, 1, 1.5, True, "x", [], {}, [[]], {"a": {}}, [None], {"": None}]
)
def test_an_unexpected_value_at_any_key_is_a_problem_and_never_a_crash(raw: object) -> None:
    def replaced(data: object) -> list[object]:
        """Yield the valid file with each of its nodes in turn replaced by `raw`."""
        if isinstance(data, dict):
            return [raw, *({**data, key: new} for key in data for new in replaced(data[key]))]
        if isinstance(data, list):
            return [
                raw,
                *(
                    [*data[:i], new, *data[i + 1 :]]
                    for i in range(len(data))
                    for new in replaced(data[i])
                ),
            ]
        return [raw]

    from controller.spec.reading import _check

    whole = read(GOOD, source="x").spec.document
    for data in replaced(whole):
        _check(data, ProblemCollector())  # type: ignore[arg-type]  # whatever a file may hold
    assert FILE.take(raw, "", ProblemCollector()) is not None


def test_a_variable_in_a_script_is_for_the_shell_to_substitute() -> None:
    text = changed(
        "[python, train.py, ", '[sh, -c, "python train.py --out=${TUNER_OUTPUT_DIR}", sh, '
    )
    with pytest.raises(SpecErrors) as caught:
        read(text, source="experiment.yaml")
    assert (
        'to have the shell substitute it, write "$TUNER_OUTPUT_DIR" or $${TUNER_OUTPUT_DIR}'
        in str(caught.value)
    )
    shell = text.replace("${TUNER_OUTPUT_DIR}", "$TUNER_OUTPUT_DIR")
    assert read(shell, source="experiment.yaml").warnings == ()


def test_a_variable_that_no_shell_reads_is_warned_of() -> None:
    (warning,) = read(
        changed("train.py", "train.py, --out=$TUNER_OUTPUT_DIR"), source="experiment.yaml"
    ).warnings
    assert warning.startswith(
        "spec.trial.command[2]: $TUNER_OUTPUT_DIR is passed unchanged: environment variables"
    )


def test_a_merge_key_of_a_parameter_is_named() -> None:
    text = changed(
        "    layers: {type: int, min: 2, max: 8, step: 2}\n", "    layers: {<<: 1, max: 8}\n"
    )
    assert problem_lines(text) == [
        "8:14 spec.parameters.layers.<<: merge keys are not part of YAML 1.2; write the keys out"
    ]


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("  budget: {trials: 40}", "  budget: {wallClock: 40000d}", "12:23 spec.budget.wallClock"),
        ("    command", "    gracePeriod: 40000d\n    command", "14:18 spec.trial.gracePeriod"),
    ],
)
def test_a_duration_is_at_most_a_hundred_years(old: str, new: str, place: str) -> None:
    assert problem_lines(changed(old, new)) == [
        f"{place}: '40000d' is too long; use at most 36500d"
    ]


def test_a_parameter_without_a_name_is_not_offered() -> None:
    lines = problem_lines(
        changed("    lr: {type: float, min: 0.001, max: 1.0, scale: log}\n", '    "": [a]\n')
    )
    assert (
        "14:33 spec.trial.command[2]: ${lr} is not a parameter; there are layers, optimizer, "
        "momentum; write $${lr} for a literal ${lr}"
    ) in lines
