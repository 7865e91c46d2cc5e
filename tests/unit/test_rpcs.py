"""The table of RPCs: the study of a request is read once, and problems have their field."""

from __future__ import annotations

import pytest

from suggest.katib.v1beta1 import api_pb2 as katib
from suggest.katib.v1beta1.frames_pb2 import SuggestionsFrame
from suggest.server.rpcs import KATIB_RPCS, RPCS, Resource, resource_of, rpc_of
from suggest.study import StudyName
from suggest.v1 import suggest_pb2 as pb

STUDY = StudyName("team-a", "digits")


def about(method: str, request: object) -> Resource:
    return resource_of(RPCS[method], request)


@pytest.mark.parametrize(
    ("method", "request_", "expected"),
    [
        ("GetStudy", pb.GetStudyRequest(name=str(STUDY)), (STUDY, None)),
        ("UpdateStudy", pb.UpdateStudyRequest(study=pb.Study(name=str(STUDY))), (STUDY, None)),
        ("GetTrial", pb.GetTrialRequest(name=f"{STUDY}/trials/7"), (STUDY, 7)),
        ("ListMeasurements", pb.ListMeasurementsRequest(parent=f"{STUDY}/trials/-"), (STUDY, None)),
        ("ListStudies", pb.ListStudiesRequest(parent="namespaces/team-a"), (None, None)),
    ],
)
def test_a_request_names_its_study_and_trial(
    method: str, request_: object, expected: tuple[StudyName | None, int | None]
) -> None:
    resource = about(method, request_)
    assert (resource.namespace, resource.problems) == ("team-a", ())
    assert (resource.study, resource.number) == expected


def test_a_malformed_name_still_tells_its_namespace_and_what_is_wrong() -> None:
    resource = about("GetTrial", pb.GetTrialRequest(name="namespaces/team-a/studies/digits"))
    assert (resource.namespace, resource.study) == ("team-a", None)
    assert [problem.path for problem in resource.problems] == ["name"]


def test_only_listing_studies_takes_all_namespaces() -> None:
    everywhere = "namespaces/-"
    assert about("ListStudies", pb.ListStudiesRequest(parent=everywhere)).problems == ()
    assert [
        p.path for p in about("CreateStudy", pb.CreateStudyRequest(parent=everywhere)).problems
    ] == ["parent"]


def test_the_number_of_items_is_checked_beside_the_name() -> None:
    resource = about("SuggestTrials", pb.SuggestTrialsRequest(parent="nonsense", count=5000))
    assert [problem.path for problem in resource.problems] == ["parent", "count"]
    assert resource.problems[1].message == "5000 trials at once; ask for 1 to 1000"
    empty = about("RenewLeases", pb.RenewLeasesRequest(parent=str(STUDY)))
    assert [problem.message for problem in empty.problems] == ["0 at once; send 1 to 1000"]


def test_all_writes_except_renewals_are_recorded() -> None:
    writing = {method for method, rpc in RPCS.items() if rpc.writes}
    assert {method for method in writing if not rpc_of(f"/x/{method}").recorded} == {"RenewLeases"}
    assert not any(method.startswith(("Get", "List", "Validate")) for method in writing)
    assert rpc_of("/another.Service/Unknown").writes


def test_every_method_of_katib_has_a_row_without_resource_names() -> None:
    methods = {
        method
        for service in katib.DESCRIPTOR.services_by_name.values()
        for method in service.methods_by_name
    }
    assert set(KATIB_RPCS) == methods
    assert not methods & set(RPCS)


def test_katibs_requests_share_one_namespace_and_queue_per_experiment() -> None:
    frames = [
        SuggestionsFrame(experiment=b"a", trials=[b"1"]),
        SuggestionsFrame(experiment=b"a"),
        SuggestionsFrame(),
    ]
    found = [resource_of(KATIB_RPCS["GetSuggestions"], frame) for frame in frames]
    assert {resource.namespace for resource in found} == {"katib"}
    assert found[0].study == found[1].study != found[2].study
    report = resource_of(
        KATIB_RPCS["ReportObservationLog"], katib.ReportObservationLogRequest(trial_name="a")
    )
    assert (report.text, report.study) == ("namespaces/katib/trials/a", None)
