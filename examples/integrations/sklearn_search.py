"""Search the parameters of a scikit-learn pipeline with cross-validation."""

from scipy.stats import loguniform
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import tuner
from tuner.integrations.sklearn import TunerSearchCV

X, y = load_digits(return_X_y=True)
search = TunerSearchCV(
    make_pipeline(StandardScaler(), SVC()),
    {"svc__C": tuner.Float(0.01, 100, log=True), "svc__gamma": loguniform(1e-4, 1)},
    n_iter=15,
    cv=3,
    n_jobs=2,
    name="digits-svc",
)
search.fit(X[:600], y[:600])
print(search.best_params_, search.best_score_)
print(search.score(X[600:], y[600:]))
