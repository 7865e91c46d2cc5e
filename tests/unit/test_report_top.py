"""`tuner top`: running and waiting trials, with the columns of a cluster only for a cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from controller.core.model import Attempt, AttemptState, Budget, Experiment, Resources
from controller.core.quota_use import QuotaReport, QuotaUse
from controller.report.record import ExperimentRecord, TrialRecord
from controller.report.top import overview, top
from suggest.trial import Trial, TrialState
from tests.unit.builders import START, a_spec, a_template, an_experiment

NOW = START + timedelta(seconds=12)
GPUS = QuotaUse("nvidia.com/gpu", "6", "8", "gpus", is_gpu=True)


def of(runtime: str, *, gpu: float = 0.0) -> Experiment:
    template = replace(a_template(), resources=Resources(gpu=gpu))
    return an_experiment(replace(a_spec(parallelism=4, trials=9, trial=template), runtime=runtime))


def running(number: int, *, node: str = "") -> TrialRecord:
    attempt = Attempt(number, 1, AttemptState.RUNNING, start_time=START, node=node)
    return TrialRecord(Trial(number, TrialState.RUNNING, {}, value=0.5, step=3), (attempt,))


def waiting(number: int, reason: str = "QuotaExceeded: 8/8") -> TrialRecord:
    return TrialRecord(Trial(number, TrialState.RUNNING, {}), (Attempt(number, 1, reason=reason),))


def shown(
    experiment: Experiment,
    *trials: TrialRecord,
    quotas: list[QuotaUse] | None = None,
    trouble: str = "",
) -> list[str]:
    record = ExperimentRecord(experiment, trials=trials, controlled_by="process 1")
    report = QuotaReport(quotas, trouble) if experiment.spec.runtime == "kubernetes" else None
    return top(record, report=report, now=NOW).splitlines()


def test_on_a_cluster_nodes_gpus_and_the_queue_are_shown() -> None:
    assert shown(of("kubernetes", gpu=2), running(0, node="node1"), waiting(1), quotas=[GPUS]) == [
        "digits  running  1 queued, 1 running of 9",
        "GPUs in default: 6 of 8 nvidia.com/gpu used (quota gpus); this experiment holds 2",
        "",
        "TRIAL  STATE    AGE  STEP  VALUE  GPUS  NODE",
        "0      running  12s  3     0.5    2     node1",
        "",
        "QUEUED  REASON",
        "1       QuotaExceeded: 8/8",
    ]


def test_what_is_used_of_the_own_budget_has_its_own_line() -> None:
    experiment = of("local", gpu=1)
    spec = replace(experiment.spec, budget=Budget(trials=9, gpu_hours=8))
    metered = replace(experiment, spec=spec, gpu_hours=0.5)
    assert shown(metered, running(0))[1] == "Used: 0.5 of 8 GPU-hours"


def test_quotas_of_cpu_and_memory_have_their_own_line() -> None:
    cpu = QuotaUse("cpu", "12500m", "16", "team", is_gpu=False)
    memory = QuotaUse("limits.memory", "40Gi", "64Gi", "team", is_gpu=False)
    assert shown(of("kubernetes", gpu=1), quotas=[cpu, GPUS, memory])[1:3] == [
        "GPUs in default: 6 of 8 nvidia.com/gpu used (quota gpus); this experiment holds 0",
        "CPU and memory in default: 12500m of 16 cpu used (quota team), 40Gi of 64Gi "
        "limits.memory used (quota team)",
    ]


def test_local_experiments_have_no_cluster_columns() -> None:
    assert shown(of("local"), running(0)) == [
        "digits  running  1 running of 9",
        "",
        "TRIAL  STATE    AGE  STEP  VALUE",
        "0      running  12s  3     0.5",
    ]


def test_missing_information_about_the_namespace_is_reported() -> None:
    line = "GPUs in default: unknown, it is away; this experiment asks for none"
    assert shown(of("kubernetes"), trouble="it is away")[1:] == [line, "", "nothing runs"]
    assert "GPUs in default: no quota limits them; this experiment holds 0" in shown(
        of("kubernetes", gpu=1), quotas=[]
    )


def test_without_a_controller_the_last_known_resources_are_shown() -> None:
    left = ExperimentRecord(of("kubernetes", gpu=2), trials=(running(0),), controlled_by="")
    line = "GPUs in default: no quota limits them; this experiment when last seen held 2"
    assert top(left, report=QuotaReport([]), now=NOW).splitlines()[1] == line


def test_trials_that_wait_for_the_same_share_a_line() -> None:
    lines = shown(of("local"), waiting(0), waiting(1), waiting(2, "Unschedulable"), waiting(3))
    assert lines[-2:] == ["0-1, 3  QuotaExceeded: 8/8", "2       Unschedulable"]


def test_many_reasons_are_cut() -> None:
    lines = shown(of("local"), *(waiting(number, f"of {number}") for number in range(25)))
    assert (lines[-2].split()[0], lines[-1]) == ("19", "and 5 further reasons")


def test_the_gpus_of_a_template_are_read_from_its_pods() -> None:
    def replicas(count: object, gpus: object) -> dict[str, object]:
        container = {"name": "pytorch", "resources": {"limits": {"nvidia.com/gpu": gpus, "cpu": 4}}}
        return {"replicas": count, "template": {"spec": {"containers": [container]}}}

    def held(worker_gpus: object) -> str:
        specs = {"Master": replicas(1, 1), "Worker": replicas(3, worker_gpus)}
        manifest = {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "spec": {"pytorchReplicaSpecs": specs},
        }
        template = replace(a_template(), cluster={"template": manifest})
        experiment = an_experiment(replace(a_spec(trial=template), runtime="kubernetes"))
        return shown(experiment, running(0), quotas=[GPUS])[1].rpartition("; ")[2]

    assert held(2) == "this experiment holds 7"
    assert held("${gpus}") == "this experiment asks for none"


USED = "312 of 500 GPU-hours of 2026-11 are used"


def test_what_is_used_of_the_budget_of_a_namespace_is_shown() -> None:
    record = ExperimentRecord(of("kubernetes"), controlled_by="process 1", tenant_budget=USED)
    said = f"TenantBudget of default: {USED}"
    assert top(record, report=None, now=NOW).splitlines()[1] == said
    assert overview([record, record]).splitlines()[-2:] == [
        "default    digits  running  0        0",
        said,
    ]
