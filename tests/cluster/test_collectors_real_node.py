"""Metrics collected by the sidecar on a real kubelet: files, event files,
an endpoint, and trials that end at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import images
from tests.cluster.objects import pods
from tests.cluster.realnode import RealNode
from tests.cluster.searcher import Searcher
from tests.cluster.waiting import eventually

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "collectors"
TO_FILE = (
    "import os, sys; open(os.environ['TUNER_METRICS_FILE'], 'a').write('epoch=3 score=' + "
    "sys.argv[1] + '\\n')"
)
# Two records of an event file written by torch, for the path that the sidecar reads.
EVENTS = (
    "import os, base64; open(os.environ['TUNER_METRICS_FILE'] + '/x.tfevents', "
    "'wb').write(base64.b64decode('{}'))"
)
SERVES = """
import http.server, os, threading, time
scraped = threading.Event()
class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'score 0.5\\nepoch 3.0\\n')
        scraped.set()
server = http.server.ThreadingHTTPServer(('', int(os.environ['TUNER_METRICS_PORT'])), Metrics)
threading.Thread(target=server.serve_forever, daemon=True).start()
scraped.wait(20)
time.sleep(0.2)
"""


@pytest.fixture
def me(level_c: RealNode, namespace: str, tmp_path: Path) -> Iterator[Searcher]:
    images.digits()
    images.collector()
    level_c.load(images.DIGITS)
    level_c.load(images.COLLECTOR)
    person = Searcher(tmp_path, level_c.kubeconfig(namespace=namespace), namespace)
    person.env["TUNER_COLLECTOR_IMAGE"] = images.COLLECTOR
    yield person
    person.close()


def write(
    me: Searcher,
    program: str,
    metrics: str,
    *,
    metric: str = "score",
    trials: int = 2,
    more: str = "",
) -> Path:
    path = me.folder / "tiny.yaml"
    text = "".join(f"          {line}\n" for line in program.splitlines())
    path.write_text(
        f"""\
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {{name: tiny, namespace: {me.namespace}}}
spec:
  objective: {{metric: {metric}, direction: maximize}}
  metrics: {{{metrics}}}
  parameters: {{x: {{type: float, min: 0, max: 1}}}}
  algorithm: {{name: random, seed: 1}}
  budget: {{trials: {trials}}}
  canary: 0s
  runtime: kubernetes
  trial:
    image: {images.DIGITS}
    imagePullPolicy: Never
    command:
      - python3
      - -c
      - |
{text}      - "${{x}}"
    gracePeriod: 2s
    resources: {{cpu: 200m, memory: 64Mi}}
{more}"""
    )
    return path


def values(me: Searcher, *flags: str) -> list[tuple[str, object, object]]:
    code, _, err = me.tuner("run", me.folder / "tiny.yaml", *flags, within_s=500)
    assert code == 0, err
    return [(each["state"], each.get("step"), each.get("value")) for each in me.trials("tiny")]


def test_trials_that_end_right_after_writing_a_line_have_their_values(me: Searcher) -> None:
    write(me, TO_FILE, "file: logs/metrics.txt", trials=6)
    found = values(me, "--set", "spec.parallelism=3")
    assert [(state, step) for state, step, _ in found] == [("succeeded", 3)] * 6
    assert len({value for _, _, value in found}) == 6


def test_pods_with_a_sidecar_end_by_themselves_and_meet_the_restricted_profile(
    level_c: RealNode, me: Searcher
) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    level_c.api().patch(f"/api/v1/namespaces/{me.namespace}", {"metadata": {"labels": labels}})
    write(me, TO_FILE, "file: /katib/metrics.log")
    # A collector that gets no processor for the grace period is killed.
    found = values(me, "--set", "spec.trial.gracePeriod=60s")
    assert [state for state, _, _ in found] == ["succeeded"] * 2

    def ended() -> bool:
        """Return whether every collector has ended; the kubelet reports
        their end shortly after the trial's.
        """
        left = level_c.api().items(pods(me.namespace))
        states = [
            status["state"] for pod in left for status in pod["status"]["initContainerStatuses"]
        ]
        assert all(
            state["terminated"]["exitCode"] == 0 for state in states if "terminated" in state
        )
        return all("terminated" in state for state in states)

    eventually(ended)


def test_event_files_and_an_endpoint_are_collected(me: Searcher) -> None:
    import base64

    data = base64.b64encode((FIXTURES / "torch" / "events.out.tfevents.0").read_bytes()).decode()
    write(me, EVENTS.format(data), "file: /runs, format: tensorboard", metric="accuracy", trials=1)
    assert values(me) == [("succeeded", 5, 1)]
    text = write(me, SERVES, "prometheus: {}", trials=1).read_text()
    (me.folder / "tiny.yaml").write_text(text.replace("name: tiny,", "name: scraped,"))
    code, _, err = me.tuner("run", me.folder / "tiny.yaml", within_s=500)
    assert code == 0, err
    assert [(each["state"], each["step"], each["value"]) for each in me.trials("scraped")] == [
        ("succeeded", 3, 0.5)
    ]


def test_a_missing_collector_image_pauses_the_experiment_with_the_cure(me: Searcher) -> None:
    me.env["TUNER_COLLECTOR_IMAGE"] = "registry.invalid/collector:9"
    write(me, TO_FILE, "file: metrics.txt")
    code, _, err = me.tuner("run", me.folder / "tiny.yaml", within_s=500)
    assert code == 8, err
    assert "the collector's image registry.invalid/collector:9 cannot be pulled" in err
    assert "spec.metrics.collectorImage or TUNER_COLLECTOR_IMAGE" in err
