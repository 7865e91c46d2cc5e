"""The verbs of the command line: a row for each, with its help, its function and its flags.

Imports neither these functions nor dataclasses, so that `tuner --help` is instant.
"""

from __future__ import annotations

from typing import NamedTuple

from controller.cli import flags


class Verb(NamedTuple):
    """One verb.

    function: `module:function` below controller.cli, imported when the verb is used.
    more: what its help says besides `does`.
    """

    name: str
    does: str
    function: str
    flags: tuple[flags.Flags, ...]
    example: str
    more: str = ""


class VerbGroup(NamedTuple):
    """A verb that needs a second word: `tuner get trials`."""

    name: str
    does: str
    verbs: tuple[Verb, ...]


VERBS: tuple[Verb | VerbGroup, ...] = (
    Verb(
        "run",
        "run an experiment; the same file again resumes it",
        "lifecycle:run",
        (flags.file, flags.overrides, flags.where, flags.service, flags.dry_run),
        example="tuner run experiment.yaml --set spec.parallelism=4",
        more="Prints progress on stderr and the best trial on stdout. Ctrl-C stops cleanly: "
        "interrupted trials do not count against the budget and run again on resume. A second "
        "Ctrl-C kills them. FILE may be a script of Python that calls study.optimize of Optuna; "
        "its own arguments follow --.",
    ),
    Verb(
        "apply",
        "check a file, and hand its experiment to the controller of a cluster",
        "cluster:apply",
        (flags.applied_file, flags.overrides, flags.applied_dry_run, flags.place),
        example="tuner apply -f experiment.yaml --context lab",
        more="Works like kubectl apply, but checks the file first. Waits until the controller has "
        "accepted the file. Without --context, uses the current context of the kubeconfig.",
    ),
    Verb(
        "resume",
        "continue an experiment after a stop, a pause or an allowed change",
        "lifecycle:resume",
        (
            flags.file_or_name,
            flags.overrides,
            flags.resumed_where,
            flags.service,
            flags.from_cluster,
        ),
        example="tuner resume experiment.yaml",
        more="With a file, accepts changes of spec.trial, spec.final, spec.confirm, "
        "spec.parallelism, spec.budget, spec.prices, spec.breaker, spec.pruning, spec.metrics and "
        "metadata.labels, and records them as a revision. Ends a pause, and reruns the trials "
        "whose failures caused it. If the experiment has ended, runs a final stage that failed or "
        "is new in the file.",
    ),
    Verb(
        "retry",
        "run failed trials again, then continue the search",
        "lifecycle:retry",
        (flags.name_or_changed_file, flags.which_failed, flags.overrides, flags.place),
        example="tuner retry digits --failed --reason outOfMemory",
        more="Each trial runs as a new attempt, with the same number and parameters. Its earlier "
        "failure no longer counts in budget.failedTrials. The experiment may have ended, but no "
        "controller may be running. With a FILE, accepts its changes as tuner resume does.",
    ),
    Verb(
        "extend",
        "add trials, widen ranges or add choices, then continue the search",
        "lifecycle:extend",
        (flags.name_or_changed_file, flags.trials, flags.overrides, flags.place),
        example="tuner extend digits --trials +20 --set spec.parameters.lr.max=10",
        more="The experiment may have ended, but no controller may be running. All trials are "
        "kept, and the search learns from them. Ranges can be widened, steps made finer, and "
        "choices added; any other change of the search is refused. To add choices: --set "
        "'spec.parameters.optimizer=[sgd, adam, lamb]'. Each new choice is tried once first. With "
        "a FILE, applies its changes.",
    ),
    Verb(
        "import",
        "import finished trials, so that the search learns from them",
        "lifecycle:import_trials",
        (flags.name_or_file_to_fill, flags.sources, flags.overrides, flags.where, flags.service),
        example="tuner import experiment.yaml --from results.csv",
        more="SOURCE is an experiment's name, the URL of a store (sqlite:///studies.db, "
        "postgresql+psycopg://…) or of an Optuna database, a journal file of Optuna, a JSON file "
        "of tuner export, or a CSV file. The CSV file has a column for each parameter, one for the "
        "value, and one for how the trial ended, like the exports of W&B, MLflow and Ray Tune. "
        "Each trial is imported once, even if the command is repeated. Imported trials do not "
        "count against the budget and are not run. If the experiment of a FILE does not exist "
        "yet, it is created, but not started.",
    ),
    Verb(
        "validate",
        "check a file without running it",
        "check:validate",
        (flags.file, flags.overrides, flags.where, flags.service),
        example="tuner validate experiment.yaml",
    ),
    Verb(
        "init",
        "write a commented file to start from",
        "check:init",
        (flags.new_file,),
        example="tuner init experiment.yaml",
    ),
    Verb(
        "convert",
        "convert an experiment of Katib to a native file",
        "check:convert",
        (flags.foreign_file, flags.overrides, flags.where, flags.service),
        example="tuner convert katib.yaml > experiment.yaml",
        more="Prints a native file that is equivalent to FILE, and warns about fields that have no "
        "effect. FILE is Katib's Experiment (kubeflow.org/v1beta1), which tuner run also accepts "
        "unchanged.",
    ),
    Verb(
        "schema",
        "print the file's JSON Schema, for editors",
        "check:schema",
        (),
        example="tuner schema > tuner.schema.json",
    ),
    VerbGroup(
        "get",
        "list experiments, studies or trials",
        (
            Verb(
                "experiments",
                "list experiments",
                "show:experiments",
                (flags.listing, flags.cluster, flags.all_namespaces, flags.service),
                example="tuner get experiments",
            ),
            Verb(
                "studies",
                "list the studies of a service or a store",
                "show:studies",
                (flags.listing, flags.cluster, flags.all_namespaces, flags.service),
                example="tuner get studies --server localhost:7117",
                more="Lists the studies of --server or --storage, by default those of the state "
                "directory, including the studies of experiments.",
            ),
            Verb(
                "trials",
                "list the trials of an experiment or a study",
                "show:trials",
                (flags.experiment_or_study, flags.listing, flags.trial_list, flags.place),
                example="tuner get trials digits --sort -value --state succeeded --limit 10 "
                "--columns number,value,lr,loss",
                more="NAME can also be a study that clients of the service created (see tuner get "
                "studies). Metrics other than the objective are columns called metrics.NAME.",
            ),
        ),
    ),
    Verb(
        "describe",
        "show the details of an experiment or a trial, and the reason for its state",
        "show:describe",
        (flags.name_or_trial, flags.data_output, flags.place),
        example="tuner describe digits/12",
        more="-o json and yaml print the trial with its measurements, or the experiment with its "
        "file.",
    ),
    Verb(
        "logs",
        "print the output of a trial",
        "show:logs",
        (flags.name_or_trial, flags.log_part, flags.place),
        example="tuner logs -f digits/12",
        more="NAME alone selects all running trials, and prefixes each line with its trial's "
        "number; if no trial is running, it selects the last one. On a terminal, the output is "
        "without its control sequences; a pipe gets every byte.",
    ),
    Verb(
        "report",
        "list the trials, best first, and the effect of each parameter on the value",
        "show:report",
        (flags.name, flags.reporting, flags.place),
        example="tuner report digits",
        more="The experiment may be running. The table has the first 20 trials; -o json, yaml and "
        "csv have all.",
    ),
    Verb(
        "best",
        "print the best trial",
        "show:best",
        (flags.name, flags.confirmed_best, flags.data_output, flags.place),
        example="tuner best digits -o json",
    ),
    Verb(
        "confirm",
        "run the best trials again with new seeds, and say which is better",
        "reruns:confirm",
        (flags.name, flags.confirming, flags.place),
        example="tuner confirm digits --top 3 --seeds 5",
        more="The reruns are trials of the experiment NAME-confirm: the search does not learn from "
        "them. The program must take its seed from TUNER_SEED. The same command again continues "
        "the reruns, or prints their result.",
    ),
    Verb(
        "export",
        "write all trials as CSV or JSON",
        "show:export",
        (flags.experiment_or_study, flags.export_format, flags.place),
        example="tuner export digits --format csv > digits.csv",
    ),
    Verb(
        "reproduce",
        "run a trial again as it ran, and compare the values",
        "reruns:reproduce",
        (flags.trial, flags.times, flags.place),
        example="tuner reproduce digits/12 --times 5",
        more="Uses the trial's parameters, seed, commit and image, and prints which parts of its "
        "environment are not available. The runs are trials of the experiment NAME-reproduce-N: "
        "the search does not learn from them.",
    ),
    Verb(
        "pack",
        "write a search with its logs into one file, to continue it elsewhere",
        "pack:pack",
        (flags.name, flags.pack_target, flags.place),
        example="tuner pack digits",
        more="The file has the experiment, its study, and its folder with logs, provenance, "
        "checkpoints and outputs. A local search may be running, and continues. The file may "
        "contain secrets of the experiment's file, and has mode 0600.",
    ),
    Verb(
        "unpack",
        "read a search that tuner pack wrote, to continue it here",
        "pack:unpack",
        (flags.pack_source, flags.service),
        example="tuner unpack digits.tar.gz",
        more="Its trials run in the working directory from now on. Starts nothing: tuner resume "
        "runs the commands of its file, so unpack only files from people you trust.",
    ),
    Verb(
        "set",
        "change an experiment while it runs, without stopping a trial",
        "lifecycle:set_values",
        (flags.name, flags.values, flags.place),
        example="tuner set digits spec.parallelism=8 spec.budget.trials=200",
        more="Accepts spec.parallelism, spec.budget, spec.prices, spec.breaker, spec.pruning, "
        "spec.trial.timeout and spec.trial.retries, and records them as a revision. If you lower "
        "spec.parallelism, running trials continue, and others start when there is room. A new "
        "timeout applies to attempts that start later.",
    ),
    Verb(
        "stop",
        "cancel the running trials of an experiment and stop it",
        "lifecycle:stop",
        (flags.name, flags.place),
        example="tuner stop digits",
        more="To continue with new trials, run tuner resume NAME.",
    ),
    Verb(
        "delete",
        "delete experiments, their studies and their trials' folders",
        "lifecycle:delete",
        (flags.names, flags.yes, flags.place),
        example="tuner delete digits --yes",
        more="If one of several is unknown or running, none is deleted.",
    ),
    Verb(
        "top",
        "show running trials, the resources they use, and why other trials wait",
        "show:top",
        (flags.name_or_all, flags.watch, flags.cluster, flags.all_namespaces, flags.service),
        example="tuner top digits -w",
    ),
    Verb(
        "ui",
        "watch searches in a browser, on this machine",
        "ui:ui",
        (flags.page, flags.service),
        example="tuner ui",
        more="Prints a link that is valid once. The page is served to this machine only; from "
        "another machine, use ssh -L.",
    ),
    Verb(
        "doctor",
        "check whether this machine, a cluster and a file are ready for a run",
        "check:doctor",
        (flags.optional_file, flags.overrides, flags.where, flags.service),
        example="tuner doctor experiment.yaml --context lab",
        more="Changes nothing. The exit code is 0 if no check fails, 4 if a permission is missing, "
        "else 7.",
    ),
    Verb(
        "serve",
        "run the suggestion service",
        "serve:serve",
        (flags.serving,),
        example="tuner serve --address 127.0.0.1:7117 --tokens tokens.yaml "
        "--storage sqlite:////var/lib/tuner/studies.db",
    ),
    Verb(
        "controller",
        "run the experiments of a cluster's custom resources",
        "operator:controller",
        (flags.context, flags.controlling),
        example="tuner controller --state-dir /var/lib/tuner",
        more="Runs in the cluster, installed by deploy/install.yaml. SIGTERM ends it; the Jobs "
        "keep running.",
    ),
    Verb(
        "completion",
        "print the script that completes commands, flags and names in your shell",
        "completion:script",
        (flags.shell,),
        example="source <(tuner completion bash)",
        more="Permanent installation: docs/cli.md",
    ),
    Verb(
        "version",
        "print versions, for bug reports",
        "about:print_version",
        (),
        example="tuner version",
    ),
    VerbGroup(
        "migrate",
        "take experiments over from another tuner",
        (
            Verb(
                "katib",
                "let the controller of a cluster take over the searches that Katib runs there",
                "migrate:katib",
                (
                    flags.migrated,
                    flags.migration,
                    flags.cluster,
                    flags.all_namespaces,
                    flags.service,
                ),
                example="tuner migrate katib -n vision",
                more="Without --yes, changes nothing: prints what would be taken over, and why the "
                "rest would not. Tuner learns from the finished trials. Running Trials end under "
                "Katib and count. Tuner runs the rest of the budget. --undo gives an experiment "
                "back.",
            ),
        ),
    ),
    VerbGroup(
        "db",
        "check, upgrade, back up and restore the databases",
        (
            Verb(
                "check",
                "print the schema versions of the databases, and read all rows",
                "db:check",
                (flags.storage,),
                example="tuner db check --storage postgresql+psycopg://tuner@db.example.org/tuner",
                more="Changes nothing. Without --storage, also reads controller.db. The exit code "
                "is 0 if the schemas are the newest and every row can be read, 5 if there is no "
                "store, 7 otherwise.",
            ),
            Verb(
                "upgrade",
                "upgrade the databases to the newest schemas",
                "db:upgrade",
                (flags.storage,),
                example="tuner db upgrade --storage "
                "postgresql+psycopg://tuner@db.example.org/tuner",
                more="Without --storage, upgrades studies.db and controller.db of the state "
                "directory.",
            ),
            Verb(
                "backup",
                "copy the databases while they are in use",
                "db:back_up",
                (flags.backup_target, flags.backup_keep, flags.storage),
                example="tuner db backup backups/2026-11-23",
                more="Copies studies.db and controller.db of the state directory, both as of the "
                "same moment, and verifies the copies; with --storage, only that store. Logs and "
                "outputs of trials are not included. For PostgreSQL, use pg_dump.",
            ),
            Verb(
                "restore",
                "replace the databases with a backup",
                "db:restore",
                (flags.backup_source, flags.storage),
                example="tuner db restore backups/2026-11-23 --force",
                more="First stop the servers and runs that use them: restore refuses to replace a "
                "database that a process uses.",
            ),
        ),
    ),
    VerbGroup(
        "debug",
        "help to test tuner itself",
        (
            Verb(
                "failpoints",
                "list the failpoints for TUNER_FAILPOINT",
                "about:failpoints",
                (),
                example="TUNER_FAILPOINT=runtime.start.after:3 tuner run experiment.yaml",
            ),
        ),
    ),
)
