"""`tuner run FILE --dry-run`: what a cluster would be sent, shown or checked by its server. Makes nothing, anywhere."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from controller.cli.check import checked
from controller.cli.exits import ExitCode
from controller.cli.preflight import final_manifests_of, manifests_of
from controller.cli.specimen import UID, first_point
from controller.core.model import ExperimentSpec
from controller.report import figures
from controller.report.manifests import yaml_documents
from suggest.errors import InvalidArgument, Problem

if TYPE_CHECKING:
    from controller.runtime.kubernetes.rehearsal import Verdict

Raw = dict[str, Any]


def dry_run(arguments: argparse.Namespace) -> ExitCode:
    spec = checked(arguments).spec
    if spec.runtime == "local":
        raise InvalidArgument(
            [Problem("--dry-run", "shows what a cluster is sent, and trials run here; check the file with validate")]
        )
    from controller.runtime.kubernetes.rehearsal import pods_of

    objects = manifests_of(spec)
    final = final_manifests_of(spec)
    if arguments.dry_run == "client":
        sys.stdout.write(_heading(spec) + yaml_documents([*objects, *pods_of(objects)]))
        if final:
            sys.stdout.write(_FINAL_HEADING + yaml_documents([*final, *pods_of(final)]))
        return ExitCode.OK
    verdicts, never = asyncio.run(_asked(arguments, spec, {"A trial": objects, "The final stage": final}))
    for verdict in verdicts:
        print(verdict)
    for what, why in never.items():
        print(f"{what} as a whole: refused: {why}")
    return exit_code(verdicts) or (ExitCode.USAGE if never else ExitCode.OK)


_FINAL_HEADING = "# Its final stage, after the last trial; it will have the parameters of the best one.\n"


def exit_code(verdicts: Sequence[Verdict]) -> ExitCode:
    from controller.runtime.kubernetes.rehearsal import Answer

    answers = {verdict.answer for verdict in verdicts}
    if Answer.NOT_ALLOWED in answers:
        return ExitCode.NOT_ALLOWED
    return ExitCode.USAGE if Answer.REFUSED in answers else ExitCode.OK


async def _asked(
    arguments: argparse.Namespace, spec: ExperimentSpec, stages: Mapping[str, Sequence[Raw]]
) -> tuple[list[Verdict], dict[str, str]]:
    """The answers, and of each stage why it can never run although each of its objects may be made."""
    from controller.cli.runtimes import anchor
    from controller.runtime.kubernetes.checkup import listed
    from controller.runtime.kubernetes.client import NODES, Client
    from controller.runtime.kubernetes.prerequisites import no_queue, no_room
    from controller.runtime.kubernetes.rehearsal import pods_of, rehearse

    client = await Client.connect(arguments.context or None)
    try:
        everything = [each for objects in stages.values() for each in (*objects, *pods_of(objects))]
        verdicts = await rehearse(client, spec.namespace, [anchor(spec, UID), *everything])
        if exit_code(verdicts) is not ExitCode.OK:
            return verdicts, {}
        nodes = await listed(client, NODES, None) or []
        never = {
            what: await no_queue(client, spec.namespace, objects)
            or await no_room(client, spec.namespace, objects, nodes=nodes)
            for what, objects in stages.items()
            if objects
        }
        return verdicts, {what: why for what, why in never.items() if why}
    finally:
        await client.close()


def _heading(spec: ExperimentSpec) -> str:
    whence = "the first of spec.initial" if spec.initial else "in the middle of their ranges"
    return (
        f"# Trial 0 of {spec.name} as namespace {spec.namespace} would get it; the pod is what comes of it.\n"
        f"# Its parameters are {whence}, where a search need not begin: {figures.parameters(first_point(spec))}\n"
    )
