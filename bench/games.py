"""A game: one contestant searches for the lowest loss of one problem, with one seed.

A contestant does not know the outcomes of running trials, and the oldest running
trial always ends next. Contestants are our algorithms by name, and the keys of PEERS.
Nothing here reads or writes files.
"""

from __future__ import annotations

import functools
import json
import math
import subprocess
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from problems import Problem
from record import commit

from suggest.engine import Engine
from suggest.space import Assignment, Choice, Float, Parameter, Scale, Space, Value
from suggest.study import (
    Algorithm,
    Belief,
    Direction,
    EarlierStudy,
    Objective,
    Study,
    StudyName,
    StudySpec,
)
from suggest.trial import Trial, TrialState

OPTUNA, OPTUNAS_CMA, OPTUNAS_GP = "Optuna 5", "Optuna 5 CMA-ES", "Optuna 5 GP"
OPTUNAS = {OPTUNA: "TPESampler", OPTUNAS_CMA: "CmaEsSampler", OPTUNAS_GP: "GPSampler"}
SMAC, BOTORCH = "SMAC3", "BoTorch qLogNEI"
# Programs that an environment of their own runs.
PROGRAMS = {SMAC: "smac_peer.py", BOTORCH: "botorch_peer.py"}
PEERS = (*OPTUNAS, *PROGRAMS)

Point = tuple[int, Assignment]  # with the number by which the contestant identifies it


@dataclass(frozen=True, slots=True)
class Game:
    """interpreter: the Python of an environment that has the peer,
    for peers that are not in this one.
    """

    problem: Problem
    parallel: int
    who: str
    seed: int
    trials: int
    interpreter: str = ""

    @property
    def name(self) -> str:
        return f"{self.problem.name}/{self.parallel}/{self.who}/{self.seed}/{self.trials}"


@dataclass(slots=True)
class Contestant:
    """tell: takes a loss of NaN for an infeasible point. elsewhere: returns
    the processor time of its own process.
    """

    version: str
    ask: Callable[[], Point]
    tell: Callable[[Point, float], None]
    elsewhere: Callable[[], float] = lambda: 0.0
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Result:
    """losses: of the point that looked best, at each look.
    cpu_s: processor time of the contestant alone.
    """

    losses: list[float]
    cpu_s: float
    played_by: str  # the version of the contestant


_this_commit = functools.cache(commit)  # of the code that is loaded, when the first game is played


def contestant(game: Game) -> Contestant:
    if game.who in OPTUNAS:
        return _optunas(game)
    if game.who in PROGRAMS:
        return _of_a_program(game)
    settings: dict[str, Value] = (
        {"trials": game.trials, "parallelism": game.parallel} if game.who == "default" else {}
    )
    return ours(game, Algorithm(game.who, None, settings))


def ours(
    game: Game,
    algorithm: Algorithm,
    learn_from: tuple[EarlierStudy, ...] = (),
    prior: tuple[Belief, ...] = (),
) -> Contestant:
    objectives = (Objective("loss", Direction.MINIMIZE),)
    spec = StudySpec(game.problem.space, objectives, algorithm, learn_from=learn_from, prior=prior)
    engine = Engine(Study(StudyName("default", "quality"), "uid", spec, game.seed), (), ())

    def ask() -> Point:
        (new,) = engine.propose(1).trials
        engine.put(Trial(new.number, TrialState.RUNNING, new.parameters))
        return new.number, new.parameters

    def tell(point: Point, loss: float) -> None:
        number, parameters = point
        if math.isnan(loss):
            engine.put(Trial(number, TrialState.INFEASIBLE, parameters))
        else:
            engine.put(Trial(number, TrialState.SUCCEEDED, parameters, value=loss))

    return Contestant(f"tuner {_this_commit()}", ask, tell)


def _optunas(game: Game) -> Contestant:
    """Return a study of Optuna with default settings except for the seed."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")  # about parameters that CMA-ES leaves to random search
    study = optuna.create_study(sampler=getattr(optuna.samplers, OPTUNAS[game.who])(seed=game.seed))
    open_: dict[int, optuna.trial.Trial] = {}

    def ask() -> Point:
        trial = study.ask()
        open_[trial.number] = trial
        return trial.number, suggested(trial, game.problem.space)

    def tell(point: Point, loss: float) -> None:
        trial = open_.pop(point[0])
        if math.isnan(loss):
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, loss)

    return Contestant(f"optuna {optuna.__version__}", ask, tell)


def suggested(trial: Any, space: Space) -> Assignment:
    """Return the point of a trial of Optuna's."""
    point: dict[str, Value] = {}
    for parameter in space.ordered:
        if not parameter.active(point):
            continue
        name, domain = parameter.name, parameter.domain
        if isinstance(domain, Choice):
            point[name] = trial.suggest_categorical(name, domain.values)
            continue
        is_log = domain.scale is Scale.LOG
        if isinstance(domain, Float):
            point[name] = trial.suggest_float(name, domain.min, domain.max, log=is_log)
        else:
            point[name] = trial.suggest_int(
                name, domain.min, domain.max, step=domain.step, log=is_log
            )
    return point


def _of_a_program(game: Game) -> Contestant:
    """Return a process of the peer's program in its environment,
    which reads and writes a line of JSON at a time.
    """
    program = Path(__file__).with_name(PROGRAMS[game.who])
    process = subprocess.Popen(
        [game.interpreter, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    into: IO[str] = process.stdin
    out: IO[str] = process.stdout
    cpu_s = 0.0

    def call(request: object) -> dict[str, Any]:
        nonlocal cpu_s
        into.write(json.dumps(request) + "\n")
        into.flush()
        line = out.readline()
        if not line:
            raise RuntimeError(f"{game.who} ended with status {process.wait()}; its error is above")
        reply: dict[str, Any] = json.loads(line)
        cpu_s = reply["cpu_s"]
        return reply

    def close() -> None:
        into.close()
        process.wait()
        out.close()

    parameters = [_described(parameter) for parameter in game.problem.space.ordered]
    ready = call({"seed": game.seed, "trials": game.trials, "parameters": parameters})
    numbers = iter(range(game.trials))

    def ask() -> Point:
        number = next(numbers)
        return number, call({"ask": number})["point"]

    def tell(point: Point, loss: float) -> None:
        call({"tell": point[0], "loss": None if math.isnan(loss) else loss})

    return Contestant(ready["version"], ask, tell, lambda: cpu_s, close)


def _described(parameter: Parameter) -> dict[str, object]:
    domain = parameter.domain
    when = [[condition.parameter, list(condition.values)] for condition in parameter.when]
    if isinstance(domain, Choice):
        return {"name": parameter.name, "values": list(domain.values), "when": when}
    return {
        "name": parameter.name,
        "min": domain.min,
        "max": domain.max,
        "log": domain.scale is Scale.LOG,
        "step": None if isinstance(domain, Float) else domain.step,
        "when": when,
    }


def play(
    game: Game, looks: Sequence[int], make: Callable[[Game], Contestant] = contestant
) -> Result:
    """Return the true loss of the point that looked best after each of `looks`
    trials, up to the game's trials.
    """
    who = make(game)
    running: deque[Point] = deque()
    asked, told, best, loss, found = 0, 0, math.inf, math.inf, []
    cpu_s = 0.0
    try:
        while told < game.trials:
            while asked < game.trials and len(running) < game.parallel:
                began = time.process_time()
                running.append(who.ask())
                cpu_s += time.process_time() - began
                asked += 1
            oldest = running.popleft()
            told += 1
            value = game.problem.told(oldest[1], seed=game.seed, number=oldest[0])
            began = time.process_time()
            who.tell(oldest, value)
            cpu_s += time.process_time() - began
            if value < best:
                best, loss = value, game.problem.loss(oldest[1])
            if told in looks:
                found.append(loss)
        return Result(found, cpu_s + who.elsewhere(), who.version)
    finally:
        who.close()
