"""What `tune()` of Katib's SDK creates as PyTorchJobs: prints a JSON object of the Experiments.

It runs in the environment of the unmodified kubeflow-katib 0.19.0. The packages of Hugging Face are
replaced by the few names that the SDK takes of them, and nothing is sent to a cluster.
"""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import Any


class TrainingArguments:
    """As that of transformers: its fields are parameters or values."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


class LoraConfig:
    """As that of peft."""

    def __init__(self, r: Any = 8, lora_alpha: int = 8) -> None:
        self.r, self.lora_alpha = r, lora_alpha


TASKS = (
    "SequenceClassification",
    "TokenClassification",
    "QuestionAnswering",
    "CausalLM",
    "MaskedLM",
    "ImageClassification",
)
transformers, peft = ModuleType("transformers"), ModuleType("peft")
models = {f"AutoModelFor{task}": type(f"AutoModelFor{task}", (), {}) for task in TASKS}
vars(transformers).update(models, TrainingArguments=TrainingArguments)
vars(peft).update(LoraConfig=LoraConfig)
sys.modules.update(transformers=transformers, peft=peft)
sys.modules.update(datasets=ModuleType("datasets"), boto3=ModuleType("boto3"))

# Imported after the packages that they take.
from kubeflow.katib import KatibClient, TrainerResources, search  # noqa: E402
from kubeflow.storage_initializer.hugging_face import (  # noqa: E402
    HuggingFaceDatasetParams,
    HuggingFaceModelParams,
    HuggingFaceTrainerParams,
)
from kubernetes import client as kubernetes  # noqa: E402
from kubernetes import config  # noqa: E402


def objective(parameters: dict[str, str]) -> None:
    print(f"score={parameters['lr']}")


class Api:
    """Takes what the client sends."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def create_namespaced_persistent_volume_claim(self, namespace: str, body: Any) -> None:
        self.sent.append(kubernetes.ApiClient().sanitize_for_serialization(body))

    def create_namespaced_custom_object(self, *place: Any) -> Any:
        self.sent.append(kubernetes.ApiClient().sanitize_for_serialization(place[-1]))
        return self.sent[-1]


api = Api()
config.load_kube_config = lambda **_: None
client = KatibClient(namespace="user1")
client.core_api = client.custom_api = api
client.tune(
    name="llm",
    model_provider_parameters=HuggingFaceModelParams(
        "hf://google-bert/bert-base-cased", models["AutoModelForSequenceClassification"], None, 5
    ),
    dataset_provider_parameters=HuggingFaceDatasetParams("yelp_review_full", split="train[:8]"),
    trainer_parameters=HuggingFaceTrainerParams(
        TrainingArguments(output_dir="out", learning_rate=search.double(min=1e-5, max=5e-5)),
        LoraConfig(r=search.int(min=8, max=32)),
    ),
    objective_metric_name="train_loss",
    objective_type="minimize",
    max_trial_count=1,
    parallel_trial_count=1,
    resources_per_trial=TrainerResources(2, 1, {"cpu": "1", "memory": "1G"}),
)
client.tune(
    name="torch",
    objective=objective,
    parameters={"lr": search.double(min=0.1, max=0.2)},
    objective_metric_name="score",
    objective_goal=0.5,
    resources_per_trial=TrainerResources(2, 2, {"cpu": "1"}),
)
print(json.dumps(dict(zip(("claim", "llm", "torch"), api.sent, strict=True))))
