"""Preflight checks: is a namespace fit for trials, and would it accept this file's objects? Only
reads and dry runs.

A problem that makes every later check pointless ends the check, so that the same cause is reported
once. Something that may not be read is not a finding: trials need fewer rights than these checks
and start without them.

RIGHTS and QUEUE_RIGHTS are what the runtime needs; deploy/rbac.yaml grants them,
and a test compares the two.

Server-side admission covers what no table here could: quotas, limit ranges, pod security, webhooks,
kinds and their fields. It checks pods when they are created, so the pods that a Job would create
are sent to a dry run too.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import cast

from controller.kube.client import (
    CLAIMS,
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    LEASES,
    LIMIT_RANGES,
    NAMESPACES,
    NODES,
    PODS,
    QUOTAS,
    SECRETS,
    SERVICES,
    Kind,
    KubernetesClient,
    list_allowed,
)
from controller.kube.errors import (
    AccessDenied,
    ApiConflict,
    ApiError,
    ApiForbidden,
    ApiNotFound,
    Unreachable,
    line_of_role,
    rule_for,
    unavailable_webhook,
)
from controller.kube.kubeconfig import ClusterAccess, Credentials, format_utc
from controller.kube.objects import (
    AnyObject,
    Container,
    EnvVarSource,
    KeySelector,
    LimitRange,
    Node,
    Pod,
    PodSpec,
    Raw,
    ResourceQuota,
)
from controller.runtime.kubernetes.kinds import (
    NOT_INSTALLED,
    POD_FIELDS,
    kind_of,
    pod_templates,
    preset_of,
    served,
)
from controller.runtime.kubernetes.labels import KUEUE_GROUP, queue_of
from controller.runtime.kubernetes.node_fit import why_on_no_node
from controller.runtime.kubernetes.pod_status import condition
from controller.runtime.kubernetes.resource_quota import (
    demand_of,
    never_fits,
    parse_quantity,
)
from controller.runtime.provider import Finding, Level, fail, ok, warn
from controller.runtime.requested import is_gpu

# Rights


@dataclass(frozen=True, slots=True)
class Right:
    """Verbs on a kind. without: what is lost without them; "": nothing works."""

    kind: Kind
    verbs: tuple[str, ...]
    subresource: str = ""
    without: str = ""

    @property
    def group(self) -> str:
        return self.kind.api_version.rpartition("/")[0]

    @property
    def resource(self) -> str:
        return self.kind.plural + (f"/{self.subresource}" if self.subresource else "")

    def rule(self, verbs: tuple[str, ...]) -> str:
        """Return the line of a Role that grants the verbs."""
        return line_of_role(self.group, self.resource, verbs)


ALL_OF_AN_ATTEMPT = ("create", "get", "list", "watch", "delete")
# To show a trial the parameters that it asks for.
ANSWERING = Right(PODS, ("patch",), without="searches whose trials name their parameters")
RIGHTS = (
    Right(CONFIG_MAPS, ("create", "get", "delete")),
    Right(CONFIG_MAPS, ("list",), without="tuner resume --from-cluster"),
    Right(JOBS, ALL_OF_AN_ATTEMPT),
    Right(PODS, ("list", "watch", "delete")),
    ANSWERING,
    Right(PODS, ("get",), "log"),
    Right(SERVICES, ("create", "get", "delete"), without="spec.trial.distributed"),
    Right(
        LEASES,
        ("create", "get", "patch"),
        without="noticing a second controller of the same experiment",
    ),
    Right(LEASES, ("list",), without="removing what experiments that ended long ago have left"),
    Right(QUOTAS, ("list", "watch"), without="waiting for room before a Job is made"),
    Right(EVENTS, ("list", "watch"), without="why a pod is refused"),
    Right(LIMIT_RANGES, ("list",), without="what never fits a LimitRange, before anything runs"),
)
# Checked only if the file names a queue.
QUEUE_RIGHTS = (
    Right(
        Kind(f"{KUEUE_GROUP}/v1beta1", "workloads", "Workload"),
        ("list", "watch"),
        without="why Kueue keeps a trial waiting",
    ),
    Right(
        Kind(f"{KUEUE_GROUP}/v1beta1", "localqueues", "LocalQueue"),
        ("list",),
        without="whether spec.trial.queue exists, before anything runs",
    ),
)


async def missing_rights(
    client: KubernetesClient, namespace: str, rights: Sequence[Right] = RIGHTS
) -> list[tuple[Right, tuple[str, ...]]]:
    """Return the rights with verbs that the server denies us. Raises what the client raises.

    Each verb is reviewed, all at once: a list of the rules lacks what other authorizers grant.
    """

    async def denied(right: Right) -> tuple[Right, tuple[str, ...]]:
        reviews = (
            client.review(verb, right.kind, namespace, subresource=right.subresource)
            for verb in right.verbs
        )
        allowed = await asyncio.gather(*reviews)
        return right, tuple(verb for verb, may in zip(right.verbs, allowed, strict=True) if not may)

    return [(right, verbs) for right, verbs in await asyncio.gather(*map(denied, rights)) if verbs]


async def rights_to(client: KubernetesClient, objects: Sequence[Raw]) -> list[Right]:
    """Return the rights that trials need beyond RIGHTS.

    These are for their template's kind, its operator's objects, and their queue. Kinds that the
    server lacks are left out.
    """
    rights = []
    for manifest in objects:
        with contextlib.suppress(ApiError):
            kind = await kind_of(client, manifest)
            if kind in (JOBS, SERVICES):
                continue
            rights.append(Right(kind, ALL_OF_AN_ATTEMPT))
            if (preset := preset_of(manifest)) is not None and preset.between is not None:
                without = f"why the pods of a {kind.kind} are refused"
                rights.append(Right(Kind(*preset.between), ("get",), without=without))
    if any(map(queue_of, objects)) and await served(client, "Workload"):
        rights += QUEUE_RIGHTS
    return rights


# What is found

SKEW_S = 10.0
OLDEST_MINOR = 29  # earlier versions lack podReplacementPolicy
_SECURITY = "pod-security.kubernetes.io/enforce"
_PROBE: Raw = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "tuner-doctor"}}


async def check_cluster(client: KubernetesClient, namespace: str) -> AsyncIterator[Finding]:
    """Yield the findings about a cluster, up to one that makes the rest pointless."""
    for finding in _access(client.access):
        yield finding
    try:
        async for finding in _server(client):
            yield finding
        namespace_finding = await _namespace(client, namespace)
        yield namespace_finding
        if namespace_finding.level.name != "FAIL":
            async for finding in _inside(client, namespace):
                yield finding
    except Unreachable as error:
        yield fail("server", str(error))
    except AccessDenied as error:
        yield fail("credentials", str(error), rights=True)
    except ApiError as error:
        yield fail("server", f"it answers: {error}")


def _access(access: ClusterAccess) -> Iterator[Finding]:
    """Yield what is known before the first request: credentials, proxy and TLS."""
    if access.impersonation:
        acts_as = dict(access.impersonation)["Impersonate-User"]
        yield ok("impersonation", f"user {access.user} acts as {acts_as}")
    yield _login(access.credentials)
    if access.proxy is not None:
        yield ok("proxy", f"{access.proxy.address}, from {access.proxy.source}")
    if not access.verified:
        yield warn(
            "tls",
            "the server's certificate is not verified (insecure-skip-tls-verify), so anybody in "
            "between can take the credentials; set certificate-authority-data instead",
        )


def _login(credentials: Credentials) -> Finding:
    if not credentials.source:
        return ok("login", "without credentials")
    how, expires_at = f"by {credentials.source}", credentials.expires_at
    if expires_at is None:
        return ok("login", how)
    if credentials.renewable:
        return ok("login", f"{how}, which runs again at {format_utc(expires_at)}")
    if credentials.expired():
        return warn("login", f"{how}, which expired at {format_utc(expires_at)}; log in again")
    return warn(
        "login",
        f"{how}, until {format_utc(expires_at)}; a run that lasts longer ends then, unless the "
        "token is replaced: use tokenFile or an exec plugin",
    )


async def _server(client: KubernetesClient) -> AsyncIterator[Finding]:
    # The first request also loads the transport and connects, so the second one tells the time.
    version = await client.version()
    before = datetime.now(UTC)
    server_time = await client.clock()
    after = datetime.now(UTC)
    yield _version(client.server, version)
    if server_time is not None:
        yield _clock((before + (after - before) / 2 - server_time).total_seconds())
    try:
        user = await client.whoami()
    except (ApiForbidden, ApiNotFound):
        yield ok("credentials", "accepted; the server does not say who you are")
    else:
        yield ok("credentials", user)


def _version(server: str, version: AnyObject) -> Finding:
    name = f"{server}, Kubernetes {version.get('gitVersion', 'of unknown version')}"
    minor = "".join(filter(str.isdigit, str(version.get("minor", ""))))
    if str(version.get("major")) == "1" and minor and int(minor) < OLDEST_MINOR:
        return warn("server", f"{name}; tuner needs 1.{OLDEST_MINOR} or later")
    return ok("server", name)


def _clock(ahead_s: float) -> Finding:
    """Compare the clocks; the server's time is cut off to whole seconds."""
    ahead_s -= 0.5
    if abs(ahead_s) <= SKEW_S:
        return ok("clock", "as the server's")
    direction = "ahead of" if ahead_s > 0 else "behind"
    return warn(
        "clock",
        f"this machine is {abs(ahead_s):.0f}s {direction} the server: logs may be read twice or in "
        "part, timeouts may be early or late, tokens may seem expired; synchronize the clock, for "
        "example by NTP",
    )


async def _namespace(client: KubernetesClient, namespace: str) -> Finding:
    try:
        stored = await client.get(NAMESPACES, None, namespace)
    except ApiNotFound:
        cure = "create it, or name another one with -n"
        return fail("namespace", f"there is no namespace {namespace}; {cure}")
    except ApiForbidden:
        # most users may not read namespaces
        (verdict,) = await dry_run_of(client, namespace, [_PROBE])
        if verdict.answer is Answer.REFUSED:
            return fail("namespace", verdict.why)
        return ok("namespace", namespace)
    phase = stored.get("status", {}).get("phase", "Active")
    if phase != "Active":
        return fail("namespace", f"{namespace} is {phase}; name another one with -n")
    level = (stored["metadata"].get("labels") or {}).get(_SECURITY)
    return ok("namespace", namespace + (f", pod security {level}" if level else ""))


async def _inside(client: KubernetesClient, namespace: str) -> AsyncIterator[Finding]:
    missing_verbs = await missing_rights(client, namespace)
    for right, verbs in missing_verbs:
        yield lacking(right, verbs, namespace)
    if not missing_verbs:
        yield ok("rights", f"all that trials in {namespace} need")
    quotas = await list_allowed(client, QUOTAS, namespace)
    for quota in quotas or ():
        yield _quota(quota)
    if quotas == []:
        yield ok("quota", "none")
    for limits in await list_allowed(client, LIMIT_RANGES, namespace) or ():
        yield ok(f"limits {limits['metadata']['name']}", _limits(limits))
    nodes = await list_allowed(client, NODES, None)
    if nodes is not None:
        yield _gpus(nodes)


def lacking(right: Right, verbs: tuple[str, ...], namespace: str) -> Finding:
    subject = f"right {right.resource}"
    denied = f"{', '.join(verbs)} denied"
    cure = f"add to your Role in {namespace}: {right.rule(verbs)}"
    if right.without:
        return warn(subject, f"{denied} (lost: {right.without}); {cure}")
    return fail(subject, f"{denied}; {cure}", rights=True)


def _quota(quota: ResourceQuota) -> Finding:
    status = quota.get("status") or {}
    hard = status.get("hard") or quota.get("spec", {}).get("hard") or {}
    used = status.get("used") or {}
    subject = f"quota {quota['metadata']['name']}"
    usage = ", ".join(f"{name} {used.get(name, 0)}/{limit}" for name, limit in hard.items())
    in_use = {name: parse_quantity(used.get(name, 0)) for name in hard}
    full = [name for name, limit in hard.items() if in_use[name] >= parse_quantity(limit)]
    if full:
        return warn(subject, f"{usage}; full: {', '.join(full)}, so trials wait")
    return ok(subject, usage)


def _limits(limits: LimitRange) -> str:
    parts = []
    for limit in limits.get("spec", {}).get("limits") or ():
        words = []
        for word, amounts in (
            ("at least", limit.get("min")),
            ("at most", limit.get("max")),
            ("else", limit.get("default")),
        ):
            if amounts:
                listed = ", ".join(f"{name} {amount}" for name, amount in amounts.items())
                words.append(f"{word} {listed}")
        parts.append(f"{limit.get('type', '')} {'; '.join(words)}")
    return " / ".join(parts)


def _gpus(nodes: Sequence[Node]) -> Finding:
    offered: Counter[str] = Counter()
    having = 0
    for node in nodes:
        gpus = {name: int(amount) for name, amount in gpus_of(node).items()}
        having += any(gpus.values())
        offered.update(gpus)
    offer = ", ".join(f"{count} {name}" for name, count in sorted(offered.items()) if count)
    gpus_of_all = f"{having} of them with GPUs: {offer}" if offer else "none with GPUs"
    return ok("nodes", f"{len(nodes)}, {gpus_of_all}")


def gpus_of(node: Node) -> dict[str, str]:
    """Return the allocatable GPUs of a node, by resource name."""
    allocatable = node.get("status", {}).get("allocatable") or {}
    return {name: amount for name, amount in allocatable.items() if is_gpu(name)}


# What a file's pods depend on

ACCOUNTS = Kind("v1", "serviceaccounts", "ServiceAccount")
CLASSES = Kind("scheduling.k8s.io/v1", "priorityclasses", "PriorityClass", namespaced=False)
RUNTIME_CLASSES = Kind("node.k8s.io/v1", "runtimeclasses", "RuntimeClass", namespaced=False)
_OURS = ("system-node-critical", "system-cluster-critical")


@dataclass(frozen=True, slots=True)
class Dependency:
    """An object that a pod refers to. key: of a Secret or ConfigMap; "": the whole object."""

    kind: Kind
    name: str
    key: str = ""


async def check_needs(
    client: KubernetesClient, namespace: str, objects: Sequence[Raw], *, anchor: Raw
) -> AsyncIterator[Finding]:
    """Yield the findings about one attempt's objects. Raises what the client raises."""
    for right, verbs in await missing_rights(client, namespace, await rights_to(client, objects)):
        yield lacking(right, verbs, namespace)
    for queue in filter(None, map(queue_of, objects)):
        if (finding := await check_queue(client, namespace, queue)) is not None:
            yield finding
    pods = pods_of(objects)
    specs = [pod["spec"] for pod in pods]
    nodes = await list_allowed(client, NODES, None)
    for image, policy in dict.fromkeys(chain.from_iterable(map(_images, specs))):
        yield _image(image, policy, nodes)
    for dependency in dict.fromkeys(chain.from_iterable(map(_dependencies, specs))):
        if (finding := await _look(client, namespace, dependency)) is not None:
            yield finding
    never = await why_unschedulable(client, namespace, objects, nodes=nodes or [])
    if never:
        yield fail("room", never)
    elif nodes:
        yield ok("room", "a trial fits")
    else:
        yield ok("room", "a trial fits in the quotas; the nodes are not known")
    for verdict in await dry_run_of(client, namespace, [anchor, *objects, *pods]):
        yield _finding(verdict)


async def check_queue(client: KubernetesClient, namespace: str, queue: str) -> Finding | None:
    """Check that Kueue can admit from the LocalQueue of that name; None: we may not list queues.

    Raises what the client raises.
    """
    subject = f"queue {queue}"
    kind = await served(client, "LocalQueue")
    if kind is None:
        return fail(subject, NOT_INSTALLED)
    queues = await list_allowed(client, kind, namespace)
    if queues is None:
        return None
    by_name = {local_queue["metadata"]["name"]: local_queue for local_queue in queues}
    if queue not in by_name:
        names = ", ".join(sorted(by_name)) or "none"
        return fail(
            subject,
            f"LocalQueue {queue} is not in {namespace}; create it, or name another one in "
            f"spec.trial.queue: {names}",
        )
    local = by_name[queue]
    cluster_queue = (local.get("spec") or {}).get("clusterQueue", "")
    active = condition(local, "Active") or {}
    if active.get("status") == "False":
        of = "" if active.get("reason") == "Stopped" else f"ClusterQueue {cluster_queue}: "
        return warn(
            subject,
            f"{of}{active.get('message') or active.get('reason')}; trials wait until it is active",
        )
    return ok(subject, f"ClusterQueue {cluster_queue}")


async def no_queue(client: KubernetesClient, namespace: str, objects: Sequence[Raw]) -> str:
    """Return why Kueue cannot admit the objects without a change of file or cluster.

    "" if it can, or if unknown. Raises what the client raises.
    """
    queues = filter(None, map(queue_of, objects))
    findings = [await check_queue(client, namespace, queue) for queue in queues]
    return "; ".join(each.detail for each in findings if each and each.level is Level.FAIL)


async def why_unschedulable(
    client: KubernetesClient, namespace: str, objects: Sequence[Raw], *, nodes: Sequence[Node]
) -> str:
    """Return why an attempt can never run, as far as the visible objects tell; "" if it can."""
    quotas = await list_allowed(client, QUOTAS, namespace) or []
    limit_ranges = await list_allowed(client, LIMIT_RANGES, namespace) or []
    obstacles = [never_fits(demand_of(objects), quotas, limit_ranges)]
    obstacles += [why_on_no_node(cast(Pod, pod), nodes) for pod in pods_of(objects)]
    return "; ".join(dict.fromkeys(filter(None, obstacles)))


def _finding(verdict: Verdict) -> Finding:
    subject, answer = f"dry run {verdict.kind}", verdict.answer
    if answer is Answer.ACCEPTED:
        return ok(subject, answer.value)
    detail = f"{answer.value}: {verdict.why}"
    if answer in (Answer.WAITS, Answer.UNCHECKED):
        return warn(subject, detail)
    return fail(subject, detail, rights=answer is Answer.NOT_ALLOWED)


def _images(spec: PodSpec) -> Iterator[tuple[str, str]]:
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        yield container.get("image", ""), container.get("imagePullPolicy", "")


def _image(image: str, policy: str, nodes: Sequence[Node] | None) -> Finding:
    """Check whether nodes have the image.

    Registries are not asked: the nodes have their own credentials for them.
    """
    if not image:
        return fail("image", "a container has no image; set spec.trial.image")
    having = sum(image in _names_on(node) for node in nodes or ())
    if having:
        return ok("image", f"{image} is on {having} of {len(nodes or ())} nodes already")
    if policy == "Never":
        return warn(
            "image",
            f"{image} is on no known node, and imagePullPolicy: Never does not pull it; load it "
            f"onto the nodes",
        )
    return ok("image", f"the first trial pulls {image}; only then is it known whether that works")


def _names_on(node: Node) -> set[str]:
    """Return the images on a node, in full and as people write them."""
    images = node.get("status", {}).get("images") or ()
    names = set(chain.from_iterable(image.get("names") or () for image in images))
    return names | {name.removeprefix("docker.io/").removeprefix("library/") for name in names}


def _dependencies(spec: PodSpec) -> Iterator[Dependency]:
    for secret in spec.get("imagePullSecrets") or ():
        yield Dependency(SECRETS, secret.get("name", ""))
    for volume in spec.get("volumes") or ():
        match volume:
            case {"persistentVolumeClaim": {"claimName": str(name)}}:
                yield Dependency(CLAIMS, name)
            case {"secret": {"secretName": str(name)} as source} if not source.get("optional"):
                yield Dependency(SECRETS, name)
            case {"configMap": {"name": str(name)} as source} if not source.get("optional"):
                yield Dependency(CONFIG_MAPS, name)
    if account := spec.get("serviceAccountName"):
        yield Dependency(ACCOUNTS, account)
    if (chosen := spec.get("priorityClassName")) and chosen not in _OURS:
        yield Dependency(CLASSES, chosen)
    if runtime := spec.get("runtimeClassName"):
        yield Dependency(RUNTIME_CLASSES, runtime)
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        yield from _of_environment(container)


def _of_environment(container: Container) -> Iterator[Dependency]:
    for variable in container.get("env") or ():
        source = variable.get("valueFrom") or EnvVarSource()
        yield from _referenced(source.get("secretKeyRef"), source.get("configMapKeyRef"))
    for env_from in container.get("envFrom") or ():
        yield from _referenced(env_from.get("secretRef"), env_from.get("configMapRef"))


def _referenced(secret: KeySelector | None, config_map: KeySelector | None) -> Iterator[Dependency]:
    for kind, reference in ((SECRETS, secret), (CONFIG_MAPS, config_map)):
        if reference and not reference.get("optional"):
            yield Dependency(kind, reference.get("name", ""), reference.get("key", ""))


async def _look(client: KubernetesClient, namespace: str, dependency: Dependency) -> Finding | None:
    subject = f"{dependency.kind.kind} {dependency.name}"
    in_namespace = f" in {namespace}" if dependency.kind.namespaced else ""
    try:
        # `Kind.path` leaves the namespace out for other kinds.
        existing = await client.get(dependency.kind, namespace, dependency.name)
    except ApiNotFound:
        return fail(subject, f"does not exist{in_namespace}; create it, or correct the file")
    except ApiForbidden:
        return None
    data, binary = existing.get("data") or {}, existing.get("binaryData") or {}
    if dependency.key and dependency.key not in data.keys() | binary.keys():
        keys = ", ".join(sorted(data)) or "none"
        return fail(subject, f"has no key {dependency.key}; its keys are {keys}")
    phase = existing.get("status", {}).get("phase", "") if dependency.kind is CLAIMS else ""
    if phase == "Lost":
        return fail(subject, "has lost its volume; create another one")
    return ok(subject, "is there" + (f", {phase}" if phase else ""))


# Dry run

_QUOTA = re.compile(
    r"exceeded quota: (?P<quota>\S+), requested: (?P<asked>\S+), used: \S+, limited: (?P<limit>\S+)"
)
_CURES = (
    (r'namespaces "[^"]*" not found', "create it, or name another one with --namespace"),
    (r"is being terminated", "the namespace is being deleted; name another one with --namespace"),
    (r"must specify", "the namespace's quota requires these: set them under spec.trial.resources"),
    (
        r"violates PodSecurity",
        "change it in spec.trial.template, or ask for a namespace that allows it",
    ),
    (
        r"(maximum|minimum) \S+ usage per|limit to request ratio",
        "a LimitRange does not allow it: change spec.trial.resources",
    ),
    (r"no PriorityClass", "correct spec.trial.priorityClass; see kubectl get priorityclasses"),
    (
        r"RuntimeClass .* not found",
        "correct spec.trial.runtimeClass; see kubectl get runtimeclasses",
    ),
    (
        r"looking up service account",
        "correct spec.trial.serviceAccount; see kubectl get serviceaccounts",
    ),
    (
        r"admission webhook",
        "the cluster's administrators do not allow it: change the file, or ask them",
    ),
    (
        rf'unknown field "spec\.({"|".join(POD_FIELDS)})"',
        f"Trainer 2.2 and later have {POD_FIELDS[0]}, and 2.1 has {POD_FIELDS[1]}; write the one "
        f"of your cluster",
    ),
    (
        r'unknown field "spec.template.spec.affinity',
        "correct it in spec.trial.affinity, or in the template",
    ),
    (r"unknown field|strict decoding", "correct it in spec.trial.template"),
    (r"has no kind", "or correct apiVersion and kind in spec.trial.template"),
    (
        r"could not find the requested resource",
        "install its definition, or correct spec.trial.template",
    ),
)


class Answer(enum.Enum):
    ACCEPTED = "accepted"
    WAITS = "accepted, and would wait now"
    UNCHECKED = "not checked"
    REFUSED = "refused"
    NOT_ALLOWED = "not allowed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The server's response to one object.

    why: for people, with the cure; "" if it was accepted.
    """

    kind: str
    name: str
    answer: Answer
    why: str = ""

    @property
    def namespace_is_missing(self) -> bool:
        is_missing = any(re.search(pattern, self.why) for pattern, _ in _CURES[:2])
        return self.answer is Answer.REFUSED and is_missing

    def __str__(self) -> str:
        why = f": {self.why}" if self.why else ""
        return f"{self.kind} {self.name}: {self.answer.value}{why}"


def pods_of(objects: Sequence[Raw]) -> list[Raw]:
    """Return the pods that these objects would create, one of each shape."""
    pods: list[Raw] = []
    for obj in objects:
        templates = enumerate(pod_templates(obj))
        pods += [_pod(obj, template, index) for index, template in templates]
    return pods


async def dry_run_of(
    client: KubernetesClient, namespace: str, objects: Sequence[Raw]
) -> list[Verdict]:
    """Create the objects with dry run. Raises Unreachable, AccessDenied, and ApiError."""
    verdicts: list[Verdict] = []
    for manifest in objects:
        name = manifest["metadata"].get("name", "")
        try:
            await client.create(await kind_of(client, manifest), namespace, manifest, dry_run=True)
            verdicts.append(Verdict(manifest["kind"], name, Answer.ACCEPTED))
        except ApiError as error:
            verdicts.append(Verdict(manifest["kind"], name, *_judged(error, manifest["kind"])))
            if re.search(_CURES[0][0], error.message):
                break  # all others would get the same response
    return verdicts


def _pod(parent: Raw, template: Raw, index: int) -> Raw:
    owner, metadata = parent["metadata"], template.get("metadata", {})
    about = {
        "name": owner["name"] + (f"-{index}" if index else ""),
        "namespace": owner["namespace"],
        **{key: metadata[key] for key in ("labels", "annotations") if key in metadata},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": template["spec"]}


def _judged(error: ApiError, kind: str) -> tuple[Answer, str]:
    if rule := rule_for(error):
        if kind == "Pod":
            # Controllers of the cluster create the pods of trials;
            # only this check would need the right.
            later = "quota and pod security are checked when it runs"
            return Answer.UNCHECKED, f"{later}; to check them now, add: {rule}"
        return Answer.NOT_ALLOWED, f"{_sentence(error)}; the missing rule: {rule}"
    if match := _QUOTA.search(error.message):
        too_much = list(_beyond(match["asked"], match["limit"]))
        if not too_much:
            return Answer.WAITS, f"QuotaExceeded: {match[0].removeprefix('exceeded quota: ')}"
        return Answer.REFUSED, (
            f"it never fits quota {match['quota']}: {', '.join(too_much)}; "
            "request less under spec.trial.resources, or ask for a larger quota"
        )
    if isinstance(error, ApiConflict) and error.reason == "AlreadyExists":
        return Answer.ACCEPTED, ""
    if silent := unavailable_webhook(error):
        return Answer.WAITS, silent
    if error.status not in (400, 403, 404, 422) and "webhook" not in error.message:
        raise error
    cures = (cure for pattern, cure in _CURES if re.search(pattern, error.message))
    return Answer.REFUSED, f"{_sentence(error)}; {next(cures, 'correct the file')}"


def _beyond(requests: str, limit: str) -> Iterator[str]:
    """Yield the requested amounts that exceed the whole quota."""
    limits = dict(part.split("=", 1) for part in limit.split(",") if "=" in part)
    for part in requests.split(","):
        name, _, amount = part.partition("=")
        try:
            if name in limits and parse_quantity(amount) > parse_quantity(limits[name]):
                yield f"{name} {amount} of {limits[name]}"
        except ValueError:
            continue


def _sentence(error: ApiError) -> str:
    return " ".join(error.message.split()).rstrip(".")
