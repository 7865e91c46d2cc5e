"""Katib's files on a real kubelet: the unchanged examples, except for the image's name and the path of the program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import images
from tests.cluster.realnode import RealNode
from tests.cluster.searcher import Searcher

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "katib"
ENDS = {  # how many trials end in each state; None where the pruning rule decides
    "random": {"succeeded": 4},
    "distributions": {"succeeded": 6},
    "resume-and-metadata": {"succeeded": 5},
    "configmap-template": {"succeeded": 4},
    "hyperband": None,
    "early-stopping": None,
}


@pytest.fixture
def me(level_c: RealNode, namespace: str, tmp_path: Path) -> Iterator[Searcher]:
    images.digits()
    level_c.load(images.DIGITS)
    person = Searcher(tmp_path, level_c.kubeconfig(namespace=namespace), namespace)
    yield person
    person.close()


def on_this_node(data: Any) -> Any:
    """Return the file with the image that the node has, and the path of the program in that image."""
    if isinstance(data, list):
        return [on_this_node(each) for each in data]
    if not isinstance(data, dict):
        return data
    found = {key: on_this_node(value) for key, value in data.items()}
    if found.get("image") == "tuner-digits":
        found |= {"image": images.DIGITS, "imagePullPolicy": "Never", "command": ["python", "train.py"]}
    return found


@pytest.mark.parametrize("name", ENDS)
def test_an_example_of_katib_runs_on_a_cluster(level_c: RealNode, me: Searcher, name: str) -> None:
    experiment, *others = yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text())
    for config_map in others:  # it is on the cluster, not in the file
        config_map["metadata"]["namespace"] = me.namespace
        templates = {
            key: yaml.safe_dump(on_this_node(yaml.safe_load(text))) for key, text in config_map["data"].items()
        }
        level_c.api().post(f"/api/v1/namespaces/{me.namespace}/configmaps", config_map | {"data": templates})
        experiment["spec"]["trialTemplate"]["configMap"]["configMapNamespace"] = me.namespace
    (me.folder / "katib.yaml").write_text(yaml.safe_dump(on_this_node(experiment)))
    code, _, err = me.tuner("run", me.folder / "katib.yaml", "--runtime", "kubernetes", within_s=170)
    assert code == 0, err
    states = Counter(each["state"] for each in me.trials(f"katib-{name}"))
    if (certain := ENDS[name]) is not None:
        assert states == certain
    else:
        assert set(states) <= {"succeeded", "pruned"}
        assert states["succeeded"]
