"""TunerSearchCV passes scikit-learn's checks, gives what RandomizedSearchCV gives, and stores a
search with a name.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import tuner
from tests.integrations.conftest import require_libraries

require_libraries()  # before scikit-learn is imported, which takes seconds

# ruff: noqa: E402
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import make_classification
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.model_selection import KFold, RandomizedSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from suggest.errors import AlreadyExists, FailedPrecondition
from tuner.integrations.sklearn import TunerSearchCV

X, Y = make_classification(60, 5, random_state=0)
ALPHA = {"alpha": tuner.Float(0.01, 10, log=True)}
CHECKED = {"n_iter": 2, "cv": 2, "error_score": "raise", "random_state": 0}


def search(**options: Any) -> TunerSearchCV:
    return TunerSearchCV(
        RidgeClassifier(), ALPHA, **{"n_iter": 4, "cv": 3, "random_state": 0, **options}
    )


def not_of_any_search(estimator: Any) -> dict[str, str]:
    """RandomizedSearchCV fails this one too."""
    if isinstance(estimator.estimator, Ridge):
        return {"check_supervised_y_2d": "the warning is that of the inner estimator"}
    return {}


@parametrize_with_checks(
    [TunerSearchCV(RidgeClassifier(), ALPHA, **CHECKED), TunerSearchCV(Ridge(), ALPHA, **CHECKED)],
    expected_failed_checks=not_of_any_search,
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_estimator_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_a_range_is_searched_as_whole_numbers() -> None:
    options = {"n_iter": 3, "cv": 2, "random_state": 0}
    found = TunerSearchCV(RidgeClassifier(), {"max_iter": range(30, 9, -10)}, **options).fit(X, Y)
    assert sorted(found.cv_results_["param_max_iter"]) == [10, 20, 30]


def test_results_have_the_columns_of_randomized_search() -> None:
    options = {
        "scoring": ["accuracy", "roc_auc"],
        "refit": "roc_auc",
        "return_train_score": True,
        "n_iter": 3,
    }
    ours = search(**options).fit(X, Y)
    theirs = RandomizedSearchCV(RidgeClassifier(), {"alpha": [0.1, 1, 10]}, cv=3, **options).fit(
        X, Y
    )
    assert ours.cv_results_.keys() == theirs.cv_results_.keys()
    assert vars(ours).keys() - vars(theirs).keys() == {"algorithm", "name", "state_dir"}
    shapes = {name: np.shape(column) for name, column in ours.cv_results_.items()}
    assert shapes == {name: np.shape(column) for name, column in theirs.cv_results_.items()}
    again = RandomizedSearchCV(
        RidgeClassifier(),
        {"alpha": [ours.best_params_["alpha"]]},
        cv=3,
        n_iter=1,
        scoring="roc_auc",
    ).fit(X, Y)
    assert again.best_score_ == ours.best_score_ == max(ours.cv_results_["mean_test_roc_auc"])


def test_metrics_may_have_any_name() -> None:
    name = "balanced accuracy, in %"
    found = search(scoring={name: "balanced_accuracy"}, refit=name).fit(X, Y)
    assert found.best_score_ == max(found.cv_results_[f"mean_test_{name}"])


def test_equal_random_states_choose_equal_candidates() -> None:
    assert search().fit(X, Y).cv_results_["params"] == search().fit(X, Y).cv_results_["params"]


def test_several_jobs_evaluate_several_candidates_at_once() -> None:
    found = search(n_jobs=2, cv=2, n_iter=5).fit(X, Y)
    assert len(found.cv_results_["params"]) == 5


@pytest.mark.parametrize("refit", [False, lambda results: 1])
def test_refit_may_be_omitted_or_choose_the_candidate(refit: Any) -> None:
    found = search(refit=refit).fit(X, Y)
    assert hasattr(found, "best_estimator_") is bool(refit)
    assert found.best_index_ == (1 if refit else np.argmax(found.cv_results_["mean_test_score"]))


def test_choices_may_be_objects_and_parameters_conditional() -> None:
    space = {
        "solver": ["svd", "lsqr"],
        "tol": tuner.Float(1e-5, 1e-2, log=True, when={"solver": "lsqr"}),
        "class_weight": [None, "balanced", {0: 1, 1: 2}],
    }
    found = TunerSearchCV(RidgeClassifier(), space, n_iter=8, cv=2, random_state=1).fit(X, Y)
    candidates = found.cv_results_["params"]
    assert all(("tol" in each) == (each["solver"] == "lsqr") for each in candidates)
    assert list(found.cv_results_["param_tol"].mask) == [
        each["solver"] == "svd" for each in candidates
    ]
    assert {str(each["class_weight"]) for each in candidates} <= {
        "None",
        "balanced",
        "{0: 1, 1: 2}",
    }


def test_a_small_space_is_searched_once() -> None:
    found = TunerSearchCV(
        RidgeClassifier(), {"alpha": [1, 2]}, n_iter=9, cv=2, algorithm="grid"
    ).fit(X, Y)
    assert sorted(each["alpha"] for each in found.cv_results_["params"]) == [1, 2]


def test_distributions_of_scipy_are_accepted() -> None:
    stats = pytest.importorskip("scipy.stats")
    space = {
        "alpha": stats.loguniform(0.1, 1),
        "tol": stats.uniform(1, 2),
        "max_iter": stats.randint(5, 8),
    }
    candidates = (
        TunerSearchCV(RidgeClassifier(), space, n_iter=5, cv=2).fit(X, Y).cv_results_["params"]
    )
    assert all(0.1 <= each["alpha"] <= 1 and 1 <= each["tol"] <= 3 for each in candidates)
    assert all(each["max_iter"] in (5, 6, 7) for each in candidates)
    with pytest.raises(
        TypeError, match=r"param_distributions: alpha: expected tuner.Float, .* got <scipy"
    ):
        TunerSearchCV(RidgeClassifier(), {"alpha": stats.norm()}, n_iter=1).fit(X, Y)


class FailsAbove(ClassifierMixin, BaseEstimator):
    """Learns nothing; cannot be fitted with x above 2."""

    def __init__(self, x: int = 1) -> None:
        self.x = x

    def fit(self, X: Any, y: Any) -> FailsAbove:  # noqa: N803
        with Path(self.counted, f"{self.x}").open("a") as file:
            file.write("1")
        if self.x > 2:
            raise ValueError("x is too large")
        self.classes_ = np.unique(y)
        return self

    def predict(self, X: Any) -> Any:  # noqa: N803
        return np.full(len(X), self.x % 2)


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where FailsAbove writes how often it is fitted."""
    folder = tmp_path / "fits"
    folder.mkdir()
    monkeypatch.setattr(FailsAbove, "counted", folder, raising=False)
    return folder


def fits(folder: Path) -> dict[int, int]:
    return {int(file.name): len(file.read_text()) for file in folder.iterdir()}


def test_a_candidate_that_fails_is_ranked_last_and_does_not_end_the_search(counting: Path) -> None:
    searching = TunerSearchCV(FailsAbove(), {"x": [1, 2, 3, 4]}, n_iter=4, cv=2, algorithm="grid")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that scores are not finite
        found = searching.fit(X, Y)
    scores = dict(
        zip(
            (each["x"] for each in found.cv_results_["params"]),
            found.cv_results_["mean_test_score"],
            strict=True,
        )
    )
    assert [x for x in scores if np.isnan(scores[x])] == [3, 4]
    assert found.best_params_["x"] in (1, 2)
    with pytest.raises(ValueError, match="x is too large"):
        TunerSearchCV(FailsAbove(), {"x": [3, 4]}, n_iter=2, cv=2).fit(X, Y)
    with pytest.raises(ValueError, match=r"^x is too large"):
        searching.set_params(error_score="raise").fit(X, Y)


def test_error_score_replaces_the_score_of_a_failed_candidate(counting: Path) -> None:
    found = TunerSearchCV(
        FailsAbove(), {"x": [1, 3]}, n_iter=2, cv=2, algorithm="grid", error_score=-1
    ).fit(X, Y)
    assert list(found.cv_results_["mean_test_score"]) == [0.5, -1]


def test_a_named_search_is_continued_and_evaluates_no_stored_candidate(
    counting: Path, tmp_path: Path
) -> None:
    def fitted(n_iter: int) -> dict[str, Any]:
        searching = TunerSearchCV(
            FailsAbove(),
            {"x": [3, 4, 1, 2]},
            n_iter=n_iter,
            cv=KFold(2),
            algorithm="grid",
            name="named",
            state_dir=tmp_path,
            refit=False,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that scores are not finite
            results: dict[str, Any] = searching.fit(X, Y).cv_results_
        return {
            name: list(column) for name, column in results.items() if not name.startswith("rank")
        }

    first = fitted(3)
    assert fits(counting) == {3: 2, 4: 2, 1: 2}
    second = fitted(4)
    assert fits(counting) == {3: 2, 4: 2, 1: 2, 2: 2}
    # NaN is not NaN
    assert str({name: column[:3] for name, column in second.items()}) == str(first)
    assert str(fitted(2)) == str(second)
    assert sum(fits(counting).values()) == 8 + 2, "the best one is evaluated again"


def test_a_killed_search_goes_on_with_the_candidate_that_it_was_evaluating(
    tmp_path: Path, counting: Path
) -> None:
    class Killed(FailsAbove):
        def fit(self, X: Any, y: Any) -> Any:  # noqa: N803
            if self.x == 2:
                raise KeyboardInterrupt
            return super().fit(X, y)

    options = {
        "cv": 2,
        "algorithm": "grid",
        "name": "killed",
        "state_dir": tmp_path,
        "n_iter": 2,
        "refit": False,
    }
    with pytest.raises(KeyboardInterrupt):
        TunerSearchCV(Killed(), {"x": [1, 2]}, **options).fit(X, Y)
    found = TunerSearchCV(FailsAbove(), {"x": [1, 2]}, **options).fit(X, Y)
    assert fits(counting) == {1: 2, 2: 2}
    assert [each["x"] for each in found.cv_results_["params"]] == [1, 2]


def test_a_name_belongs_to_its_data_and_its_search_space(tmp_path: Path) -> None:
    search(name="mine", state_dir=tmp_path).fit(X, Y)
    with pytest.raises(
        FailedPrecondition,
        match="the candidates of mine were scored on other data; use another name",
    ):
        search(name="mine", state_dir=tmp_path).fit(X, 1 - Y)
    with pytest.raises(AlreadyExists):
        search(name="mine", state_dir=tmp_path, algorithm="random").fit(X, Y)


def test_fit_works_within_an_event_loop_as_in_a_notebook() -> None:
    import asyncio

    async def cell() -> float:
        return float(search(n_iter=2).fit(X, Y).best_score_)

    assert asyncio.run(cell()) > 0.5


def test_failures_of_single_folds_are_warned_about(counting: Path) -> None:
    class FailsOnce(FailsAbove):
        def fit(self, X: Any, y: Any) -> Any:  # noqa: N803
            super().fit(X, y)
            if fits(counting)[1] == 2:
                raise ValueError("in the second fold")
            return self

    with (
        pytest.warns(FitFailedWarning, match="in the second fold"),
        pytest.warns(UserWarning, match="non-finite"),
    ):
        found = TunerSearchCV(FailsOnce(), {"x": [1]}, n_iter=1, cv=2, refit=False).fit(X, Y)
    assert np.isnan(found.cv_results_["split1_test_score"][0])
