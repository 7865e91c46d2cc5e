"""A LightGBM script: `tuner run lightgbm.yaml` tunes it,
`python lightgbm_script.py` runs it with its defaults.
"""

import lightgbm
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tuner
from tuner.integrations.lightgbm import LightGBMReport

trial = tuner.current_trial({"lr": 0.1, "leaves": 15, "rounds": 30})
X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y % 2, random_state=0)
train = lightgbm.Dataset(X_train, y_train)
lightgbm.train(
    {
        "objective": "binary",
        "learning_rate": trial["lr"],
        "num_leaves": trial["leaves"],
        "num_threads": 1,
        "verbose": -1,
    },
    train,
    num_boost_round=trial["rounds"],
    valid_sets=[lightgbm.Dataset(X_test, y_test, reference=train)],
    callbacks=[LightGBMReport()],
)
