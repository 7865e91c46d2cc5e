"""`tuner ui` in a browser: what it shows, what it updates by itself, and what clicks do."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from suggest.client import Client, Float, Outcome, StudyName, TrialState, maximize
from suggest.imports import FinishedTrial
from tests.e2e.cli import Cli, ended, eventually, experiment
from tests.service.granted import secret, tokens_file
from tests.ui.page import page_of_server, served

PRINTS = """
import pathlib, sys, time
print("begins", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.02)
print("score=%s" % sys.argv[1], flush=True)
"""

# Each trial reports a value at each of two steps, the second when the file `go-TRIAL` is there.
STEP_BY_STEP = """
import os, pathlib, sys, time
print("step=1 score=0", flush=True)
while not pathlib.Path("go-" + os.environ["TUNER_TRIAL_NUMBER"]).exists():
    time.sleep(0.02)
print("step=2 score=%s" % sys.argv[1], flush=True)
"""
# What a figure shows is in its Vega view: the newest one of each figure's place is kept.
KEEPS_VIEWS = """
window.views = new Map();
Object.defineProperty(window, "vegaEmbed", { configurable: true, get: () => window.embedded, set(embed) {
    window.embedded = async (place, ...more) => {
        const result = await embed(place, ...more);
        window.views.set(place.closest("[data-figure]").dataset.figure, result.view);
        return result;
    };
} });
"""


# Another stream gets what that of the page gets.
UNTIL_SUCCEEDED = """() => new Promise((seen) => {
    const stream = new EventSource("/api/stream");
    stream.addEventListener("list", (event) => {
        if (JSON.parse(event.data).searches[0].state !== "succeeded") return;
        stream.close();
        seen();
    });
})"""


def until_drawn(tab: Any, figure: str, points: int) -> None:
    """Wait until the figure has so many points: several times as long as the page may pause, and
    too short for more.
    """
    script = "([figure, points]) => window.views.get(figure)?.data('rows').length >= points"
    tab.wait_for_function(script, arg=[figure, points], timeout=30_000)


def opened(tab: Any, link: str, experiment: str = "tiny") -> None:
    tab.goto(link)
    tab.click(f"main a:text-is('{experiment}')")
    tab.wait_for_selector("table[aria-label=Trials]")


def agreed(tab: Any, button: str) -> None:
    """Press the button of the page, and that of the dialog which asks back."""
    tab.click(f".actions button:text-is('{button}')")
    tab.click(f"dialog button:text-is('{button}')")


def test_the_link_shows_the_experiments(cli: Cli, tab: Any) -> None:
    assert cli.tuner("run", cli.write(trials=2))[0] == 0
    with served(cli) as page:
        tab.goto(page.link)
        tab.wait_for_selector(".list li")
        assert tab.inner_text(".list .name") == "tiny"
        assert tab.inner_text(".list .state") == "succeeded"
        assert "token" not in tab.url, "a link that is copied from the address bar signs nobody in"


def test_trials_appear_while_a_search_runs(cli: Cli, tab: Any) -> None:
    cli.file.write_text(experiment(trials=3, waits=True))
    running = cli.start("run", cli.file)
    eventually(lambda: len(cli.starts()) == 1)
    with served(cli) as page:
        opened(tab, page.link)
        tab.wait_for_selector("tbody .state.running")
        cli.let_go()
        tab.wait_for_selector("#state .state.succeeded")
        tab.locator("tbody .state.succeeded").nth(2).wait_for()
    ended(running)


def test_a_link_works_though_its_list_changes_while_it_is_pressed(cli: Cli, tab: Any) -> None:
    cli.file.write_text(experiment(trials=1, waits=True))
    running = cli.start("run", cli.file)
    eventually(lambda: len(cli.starts()) == 1)
    with served(cli) as page:
        tab.goto(page.link)
        tab.hover("main a:text-is('tiny')")
        tab.mouse.down()
        cli.let_go()
        ended(running)
        tab.evaluate(UNTIL_SUCCEEDED)
        tab.mouse.up()
        tab.wait_for_selector("table[aria-label=Trials]")


def test_a_search_is_stopped_and_resumed_by_clicking(cli: Cli, tab: Any) -> None:
    cli.file.write_text(experiment(trials=2, waits=True))
    running = cli.start("run", cli.file)
    eventually(lambda: len(cli.starts()) == 1)
    with served(cli) as page:
        opened(tab, page.link)
        tab.wait_for_selector("#state .state.running")
        tab.click(".actions button:text-is('Stop')")
        tab.keyboard.press("Escape")
        assert tab.is_enabled(".actions button:text-is('Stop')"), "Escape is a no"
        agreed(tab, "Stop")
        tab.wait_for_selector("#state .state.stopped")
        ended(running)
        agreed(tab, "Resume")
        tab.wait_for_selector(".said")
        cli.let_go()
        tab.wait_for_selector("#state .state.succeeded")
        agreed(tab, "Extend")
        tab.wait_for_selector(".fact:has-text('trials'):has-text('/ 22')")
        tab.wait_for_selector("#state .state.succeeded")


def test_time_does_not_pass_for_a_search_that_does_not_run(cli: Cli, tab: Any) -> None:
    (cli.folder / "notes.csv").write_text("x,score\n0.5,1\n")
    assert cli.tuner("import", cli.write(), "--from", "notes.csv")[0] == 0
    tab.clock.set_fixed_time(datetime.now() + timedelta(days=1))
    with served(cli) as page:
        opened(tab, page.link)
        tab.wait_for_selector(".fact:has-text('started 1 d ago')")
        assert tab.inner_text(".fact:has-text('started') .value") == "0 s"


def test_figures_are_shown(cli: Cli, tab: Any) -> None:
    assert cli.tuner("run", cli.write(trials=3))[0] == 0
    with served(cli) as page:
        opened(tab, page.link)
        tab.wait_for_selector("section[data-figure=history] canvas")
        assert tab.is_hidden("section[data-figure=curves]"), "no trial has reported values by step"
        for figure in ("parallel", "contour"):
            assert tab.is_hidden(f"button[data-figure={figure}]"), "there is one parameter"
        for figure in ("timeline", "slice"):
            tab.click(f"button[data-figure={figure}]")
            tab.wait_for_selector(f"button[data-figure={figure}][aria-pressed=true]")
            tab.wait_for_selector(".wide .canvas canvas")
        assert tab.eval_on_selector(".wide canvas", "it => it.width") > 300
        tab.click("tbody a")
        tab.wait_for_selector("pre.log:has-text('score=')")


def test_figures_follow_the_search(cli: Cli, tab: Any) -> None:
    cli.file.write_text(experiment(trials=2, waits=True))
    running = cli.start("run", cli.file)
    eventually(lambda: len(cli.starts()) == 1)
    with served(cli) as page:
        opened(tab, page.link)
        assert tab.is_hidden(".figures"), "nothing to draw yet"
        cli.let_go()
        tab.wait_for_selector("section[data-figure=history] canvas")
    ended(running)


def test_figures_show_each_trial_of_a_search_soon_and_the_last_one_too(cli: Cli, tab: Any) -> None:
    trials = 5
    (cli.folder / "steps.py").write_text(STEP_BY_STEP)
    cli.file.write_text(experiment(["python", "steps.py", "${x}"], trials=trials))
    running = cli.start("run", cli.file)
    tab.add_init_script(KEEPS_VIEWS)
    with served(cli) as page:
        eventually(
            lambda: bool(list((cli.folder / "state").glob("experiments/*/trials/0/1/log.txt")))
        )
        opened(tab, page.link)
        for trial in range(trials):
            (cli.folder / f"go-{trial}").touch()
            until_drawn(tab, "history", trial + 1)
        until_drawn(tab, "curves", 2 * trials)
    assert ended(running)[0] == 0


def test_the_curve_of_a_running_trial_grows(cli: Cli, tab: Any) -> None:
    (cli.folder / "steps.py").write_text(STEP_BY_STEP)
    cli.file.write_text(experiment(["python", "steps.py", "${x}"], trials=2))
    running = cli.start("run", cli.file)
    tab.add_init_script(KEEPS_VIEWS)
    with served(cli) as page:
        eventually(
            lambda: bool(list((cli.folder / "state").glob("experiments/*/trials/0/1/log.txt")))
        )
        opened(tab, page.link)
        (cli.folder / "go-0").touch()
        until_drawn(tab, "curves", 3)
        assert tab.locator("tbody .state.running").count() == 1
        (cli.folder / "go-1").touch()
    assert ended(running)[0] == 0


def test_a_figure_that_failed_when_the_search_ended_is_drawn_again(cli: Cli, tab: Any) -> None:
    (cli.folder / "steps.py").write_text(STEP_BY_STEP)
    cli.file.write_text(experiment(["python", "steps.py", "${x}"], trials=2))
    running = cli.start("run", cli.file)
    tab.add_init_script(KEEPS_VIEWS)
    with served(cli) as page:
        (cli.folder / "go-0").touch()
        opened(tab, page.link)
        until_drawn(tab, "history", 1)
        tab.route("**/figures/*", lambda route: route.abort())
        (cli.folder / "go-1").touch()
        assert ended(running)[0] == 0
        tab.wait_for_selector("#state .state.succeeded")
        tab.wait_for_selector("section[data-figure=history] .empty:visible")
        tab.unroute("**/figures/*")
        until_drawn(tab, "history", 2)
        tab.wait_for_selector("section[data-figure=history] .empty", state="hidden")


def test_curves_of_another_metric_and_of_compared_trials_are_drawn(cli: Cli, tab: Any) -> None:
    prints = 'for s in 1 2 3; do echo "step=$s score=$1 loss=$s"; done'
    cli.file.write_text(experiment(["sh", "-c", prints, "sh", "${x}"], trials=3))
    assert cli.tuner("run", cli.file)[0] == 0
    has = (
        "wanted => window.views.get('curves')?.data('rows').map((row) => "
        "row.value).sort().join() === wanted"
    )
    tab.add_init_script(KEEPS_VIEWS)
    with served(cli) as page:
        opened(tab, page.link)
        until_drawn(tab, "curves", 9)
        tab.select_option("section[data-figure=curves] select", "loss")
        tab.wait_for_function(has, arg="1,1,1,2,2,2,3,3,3")
        tab.goto(f"{page.base}/#/search/default/tiny/compare/0,2")
        tab.wait_for_selector("section[data-figure=curves] canvas")
        tab.select_option("section[data-figure=curves] select", "loss")
        tab.wait_for_function(has, arg="1,1,2,2,3,3")


def test_a_point_is_enqueued_by_clicking(cli: Cli, tab: Any) -> None:
    cli.file.write_text(experiment(trials=2, waits=True))
    running = cli.start("run", cli.file)
    eventually(lambda: len(cli.starts()) == 1)
    with served(cli) as page:
        opened(tab, page.link)
        tab.click(".actions button:text-is('Enqueue')")
        tab.fill("dialog input[name=x]", "0.125")
        tab.click("dialog button:text-is('Enqueue')")
        tab.wait_for_selector(".said:has-text('is enqueued')")
        cli.let_go()
        tab.wait_for_selector("tbody td:text-is('0.125')")
    ended(running)


def test_the_queue_names_what_runs(cli: Cli, tab: Any) -> None:
    cli.file.write_text(experiment(trials=2, waits=True))
    running = cli.start("run", cli.file)
    eventually(lambda: len(cli.starts()) == 1)
    with served(cli) as page:
        tab.goto(page.link)
        tab.click("a:text-is('Queue and quota')")
        tab.wait_for_selector("td a:text-is('tiny')")
        tab.wait_for_selector("td .state.running")
        cli.let_go()
        tab.wait_for_selector("text=Nothing runs and nothing waits.")
    ended(running)


def test_an_experiment_is_deleted_by_clicking(cli: Cli, tab: Any) -> None:
    assert cli.tuner("run", cli.write(trials=1))[0] == 0
    with served(cli) as page:
        opened(tab, page.link)
        agreed(tab, "Delete")
        tab.wait_for_selector("text=No experiments yet")


def test_the_log_of_a_trial_grows(cli: Cli, tab: Any) -> None:
    (cli.folder / "prints.py").write_text(PRINTS)
    cli.file.write_text(experiment(["python", "prints.py", "${x}"], trials=1))
    running = cli.start("run", cli.file)
    with served(cli) as page:
        eventually(
            lambda: bool(list((cli.folder / "state").glob("experiments/*/trials/0/1/log.txt")))
        )
        opened(tab, page.link)
        tab.click("tbody a")
        tab.wait_for_selector("pre.log:has-text('begins')")
        cli.let_go()
        tab.wait_for_selector("pre.log:has-text('score=')")
        tab.wait_for_selector("#state .state.succeeded")
    ended(running)


def test_a_trial_shows_the_gap_in_its_log_and_the_doubt_of_its_value(cli: Cli, tab: Any) -> None:
    # A log with the line that a runtime writes where lines are missing.
    printed = "print('score=0.5\\n# tuner: gap: lines are missing\\nend')"
    cli.file.write_text(experiment(["python", "-c", printed], trials=1))
    assert cli.tuner("run", cli.file)[0] == 0
    with served(cli) as page:
        opened(tab, page.link)
        tab.click("tbody a")
        tab.wait_for_selector(
            "text=gap in its log: lines are missing; the lines that were not read may have had"
        )


def test_an_open_page_misses_nothing_while_the_server_restarts(cli: Cli, tab: Any) -> None:
    cli.file.write_text(experiment(trials=2, waits=True))
    running = cli.start("run", cli.file)
    eventually(lambda: len(cli.starts()) == 1)
    with served(cli) as page:
        opened(tab, page.link)
        tab.wait_for_selector("tbody .state.running")
    tab.wait_for_selector("#connection.lost")
    cli.let_go()
    assert ended(running)[0] == 0
    with served(cli):
        tab.wait_for_selector("#connection.live")
        tab.locator("tbody .state.succeeded").nth(1).wait_for()


def test_fifty_parameters_and_a_search_without_a_value_fit_on_a_phone(
    cli: Cli, chromium: Any
) -> None:
    names = [f"a_parameter_with_a_long_name_{n}" for n in range(50)]
    space = ", ".join(f"{name}: {{type: float, min: 0, max: 1}}" for name in names)
    cli.file.write_text(
        experiment(
            ["sh", "-c", "sleep 1; exit 1"],
            trials=2,
            parameters=space,
            name="a-name-as-long-as-a-name-may-be-which-is",
        )
    )
    assert cli.tuner("run", cli.file)[0] != 0
    context = chromium.new_context(viewport={"width": 400, "height": 800})
    tab = context.new_page()
    tab.set_default_timeout(60_000)
    with served(cli) as page:
        opened(tab, page.link, "a-name-as-long-as-a-name-may-be-which-is")
        tab.wait_for_selector("button[data-figure=timeline][aria-pressed=true]")
        tab.wait_for_selector(".wide .canvas canvas")
        assert tab.is_hidden("section[data-figure=history]")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 400
        assert tab.inner_text("tbody tr time").endswith(("ago", "just now"))
        assert tab.get_attribute("tbody tr time", "title")
    context.close()


def test_trials_are_compared(cli: Cli, tab: Any) -> None:
    assert cli.tuner("run", cli.write(trials=3))[0] == 0
    with served(cli) as page:
        opened(tab, page.link)
        tab.check("[aria-label='Compare trial 0']")
        tab.check("[aria-label='Compare trial 2']")
        tab.click("button:text-is('Compare 2')")
        tab.wait_for_selector("tr.differs:has-text('x')")
        assert tab.locator("thead a").all_inner_texts() == ["0", "2"]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("many", [20_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_many_trials_are_usable_while_they_are_read_and_then_filtered_sorted_and_drawn(
    cli: Cli, tab: Any, many: int
) -> None:
    (cli.folder / "many.csv").write_text(
        "x,value\n" + "".join(f"{i / many},{i % 997}\n" for i in range(many))
    )
    cli.write(trials=3)
    assert cli.tuner("import", cli.file, "--from", "many.csv")[0] == 0
    with served(cli) as page:
        opened(tab, page.link)
        tab.click("tbody tr:nth-child(3) a")
        tab.wait_for_selector("h1:has-text('tiny, trial')")
        tab.go_back()
        tab.wait_for_selector(f".count:has-text('{many:,} trials')", timeout=600_000)
        assert tab.locator("tbody tr").count() < 60, "only the rows in sight are elements"
        tab.fill("input[type=search]", "x<0.5 score>=996")
        found = sum(i % 997 == 996 for i in range(many // 2))
        tab.wait_for_selector(f".count:has-text('{found} of {many:,}')")
        tab.fill("input[type=search]", "")
        tab.click("th button:text-is('score')")
        assert tab.inner_text("tbody tr:first-child td:nth-child(4)") == "0"
        tab.click("th button:text-is('score')")
        assert tab.inner_text("tbody tr:first-child td:nth-child(4)") == "996"
        tab.eval_on_selector(".rows", "it => { it.scrollTop = it.scrollHeight }")
        tab.wait_for_selector(f"tbody tr[aria-rowindex='{many + 1}']")
        tab.wait_for_selector("section[data-figure=history] canvas", timeout=600_000)


COLUMNS = [
    {"key": "number", "title": "Trial"},
    {"key": "state", "title": "State"},
    {"key": "value", "title": "score", "number": True},
    {"key": "parameters.lr", "title": "lr", "number": True},
    {"key": "parameters.a.b", "title": "a.b", "number": True},
    {"key": "parameters.learning rate", "title": "learning rate", "number": True},
    {"key": "metrics.mAP@[IoU=0.5]", "title": "mAP@[IoU=0.5]", "number": True},
    {"key": "parameters.opt", "title": "opt"},
]
ROWS = [
    [3, "failed", None, 0.1, 1, 5, "NaN", "adam"],
    [12, "succeeded", 0.95, 0.001, 2, 7, 0.4, "sgd"],
]


def filtered(tab: Any, words: str) -> Any:
    """Return the numbers of the trials that the filter leaves,
    or what it says is wrong with the words.
    """
    script = """([words, columns, rows]) => import("/static/filter.js").then(({ conditions }) => {
        const wanted = conditions(words, columns);
        return rows.filter((row) => wanted.every((holds) => holds(row))).map((row) => row[0]);
    }).catch((error) => error.message)"""
    return tab.evaluate(script, [words, COLUMNS, ROWS])


def test_the_filter_takes_every_column_by_its_name_and_says_what_is_wrong(
    cli: Cli, tab: Any
) -> None:
    assert cli.tuner("run", cli.write(trials=1))[0] == 0
    with served(cli) as page:
        opened(tab, page.link)
        for words, numbers in (
            ("", [3, 12]),
            ("trial<10", [3]),
            ("value>0.9", [12]),
            ("score > 0.9", [12]),
            ("state=failed", [3]),
            ("state!=failed lr<0.01", [12]),
            ("LR<0.01", [12]),
            ("parameters.lr<0.01", [12]),
            ("a.b=2", [12]),
            ("learning rate<=5 failed", [3]),
            ("mAP@[IoU=0.5]<1", [12]),
            ("mAP@[IoU=0.5]=nan", [3]),
            ("opt=SGD", [12]),
            ("adam", [3]),
            ('"adam"', [3]),
            ('opt="adam"', [3]),
            ("score!=0.95", [3]),
        ):
            assert filtered(tab, words) == numbers, words
        form = "write lr with one of < <= > >= = != and a number, as in lr<0.1"
        for words, mistake in (
            ("lr<abc", f"lr<abc: abc is not a number; {form}"),
            ("adam lr<0,1", f"lr<0,1: 0,1 is not a number; {form}"),
            (
                "foo<3",
                "foo<3: no column of that name; there are Trial, State, score, lr, a.b, learning "
                "rate, "
                'mAP@[IoU=0.5], opt. Text is searched for in quotes: "foo<3"',
            ),
            ("lr<", "lr<: the value is missing, as in lr<1"),
            (
                "state=done",
                "state=done: no state done; there are queued, running, paused, succeeded, pruned, "
                "failed, "
                "infeasible, cancelled",
            ),
        ):
            assert filtered(tab, words) == mistake, words
        # The `b` of `a.b` is no name.
        assert "no column of that name" in filtered(tab, "b=2")


def test_a_filter_with_a_mistake_says_so_and_leaves_the_rows(cli: Cli, tab: Any) -> None:
    assert cli.tuner("run", cli.write(trials=3))[0] == 0
    with served(cli) as page:
        opened(tab, page.link)
        tab.fill("input[type=search]", "trial<2")
        tab.wait_for_selector(".count:has-text('2 of 3 trials')")
        tab.fill("input[type=search]", "trial<2 x<abc")
        tab.wait_for_selector(".wrong:has-text('abc is not a number')")
        assert tab.inner_text(".count") == "2 of 3 trials"
        assert tab.get_attribute("input[type=search]", "aria-invalid") == "true"
        tab.fill("input[type=search]", "")
        tab.wait_for_selector(".count:text-is('3 trials')")
        assert tab.inner_text(".wrong") == ""


def test_a_refused_point_stays_in_its_dialog(cli: Cli, tab: Any) -> None:
    cli.file.write_text(experiment(trials=2, waits=True))
    running = cli.start("run", cli.file)
    eventually(lambda: len(cli.starts()) == 1)
    with served(cli) as page:
        opened(tab, page.link)
        tab.click(".actions button:text-is('Enqueue')")
        tab.fill("dialog input[name=x]", "0,5")
        tab.keyboard.press("Enter")
        tab.wait_for_selector("dialog .trouble:has-text('x')")
        assert tab.input_value("dialog input[name=x]") == "0,5"
        tab.fill("dialog input[name=x]", "0.5")
        tab.keyboard.press("Enter")
        tab.wait_for_selector(".said:has-text('is enqueued')")
        cli.let_go()
    ended(running)


def test_a_running_search_is_changed_by_clicking(cli: Cli, tab: Any) -> None:
    cli.file.write_text(experiment(trials=2, waits=True))
    running = cli.start("run", cli.file)
    eventually(lambda: len(cli.starts()) == 1)
    with served(cli) as page:
        opened(tab, page.link)
        tab.click(".actions button:text-is('Change')")
        assert tab.input_value("dialog input[name='spec.budget.trials']") == "2"
        tab.fill("dialog input[name='spec.budget.trials']", "many")
        tab.keyboard.press("Enter")
        tab.wait_for_selector("dialog .trouble:has-text('spec.budget.trials')")
        tab.fill("dialog input[name='spec.budget.trials']", "3")
        tab.fill("dialog textarea", "spec.trial.retries.infrastructure=4")
        tab.keyboard.press("Tab")
        tab.click("dialog button.main")
        tab.wait_for_selector(".said:has-text('takes effect now')")
        cli.let_go()
        tab.wait_for_selector("#state .state.succeeded")
    assert ended(running)[0] == 0
    assert len(cli.trials()) == 3


def test_trouble_that_has_passed_is_no_longer_shown(cli: Cli, tab: Any) -> None:
    assert cli.tuner("run", cli.write(trials=1))[0] == 0
    with served(cli) as page:
        opened(tab, page.link)
        # What a page is told while the store does not answer, over a connection that is then lost.
        told = 'event: trouble\ndata: {"message": "the store does not answer"}\n\n'
        tab.route(
            "**/stream*",
            lambda route: route.fulfill(body=told, content_type="text/event-stream"),
            times=1,
        )
        hidden = (
            "hidden => { Object.defineProperty(document, 'hidden', { configurable: true, "
            "get: () => hidden });"
        )
        hidden += " document.dispatchEvent(new Event('visibilitychange')); }"
        tab.evaluate(hidden, True)
        tab.evaluate(hidden, False)
        tab.wait_for_selector(".trouble:has-text('the store does not answer')")
        tab.wait_for_selector(".trouble", state="hidden")


def test_names_that_look_like_markup_are_text(cli: Cli, tab: Any) -> None:
    evil = "<img src=x onerror=document.title=1>"
    cli.file.write_text(experiment(trials=1, parameters=f'x: {{type: choice, values: ["{evil}"]}}'))
    cli.tuner("run", cli.file)
    with served(cli) as page:
        opened(tab, page.link)
        tab.wait_for_selector(f"td[title='{evil}']")
        assert tab.locator("main img").count() == 0


def test_events_are_shown_in_words(cli: Cli, tab: Any) -> None:
    cli.tuner("run", cli.write(trials=1))
    with served(cli) as page:
        opened(tab, page.link)
        shown = """message => import("/static/dom.js").then(
            page => page.events([{ time: "", kind: "it", trial: 1, message }]).innerText)"""
        for message, words in (
            (
                'running->failed class=userError reason="exit code 1"',
                "exit code 1 (class userError)",
            ),
            ('waiting reason="QuotaExceeded: cpu 8/8"', "QuotaExceeded: cpu 8/8"),
        ):
            assert (
                tab.evaluate(shown, f"trial=tiny-1 attempt=1 {message}") == f"–trial 1 it {words}"
            )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_pages_are_accessible_and_fit(
    cli: Cli, chromium: Any, axe: str, width: int, scheme: str
) -> None:
    assert cli.tuner("run", cli.write(trials=2))[0] == 0
    context = chromium.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True
    )
    tab = context.new_page()
    with served(cli) as page:
        tab.goto(page.link)
        for address in (
            "",
            "#/search/default/tiny",
            "#/search/default/tiny/trial/1",
            "#/search/default/tiny/compare/0,1",
            "#/queue",
        ):
            tab.goto(f"{page.base}/{address}")
            tab.wait_for_selector("main .state, .list li, .empty")
            tab.evaluate(axe)
            found = tab.evaluate("axe.run()")
            bad = {
                each["id"]: [node["html"][:150] for node in each["nodes"]]
                for each in found["violations"]
            }
            assert bad == {}, f"{address}: {json.dumps(bad, indent=1)}"
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


def test_the_sign_in_of_a_server_is_accessible_and_lets_a_person_in(
    cli: Cli, chromium: Any, axe: str, tmp_path: Path
) -> None:
    tokens = tokens_file(tmp_path / "tokens.yaml", reader=(["read"], "all"))
    context = chromium.new_context(viewport={"width": 400, "height": 800}, bypass_csp=True)
    tab = context.new_page()
    with page_of_server(cli, "--tokens", str(tokens)) as page:
        with Client(page.address, token=secret("reader")) as client:
            assert client.list_studies() == []
        tab.goto(page.base)
        tab.wait_for_selector("input[type=password]")
        tab.evaluate(axe)
        assert tab.evaluate("axe.run()")["violations"] == []
        tab.fill("input[type=password]", "wrong")
        tab.keyboard.press("Enter")
        tab.wait_for_selector(".trouble:has-text('unknown or revoked token')")
        tab.fill("input[type=password]", secret("reader"))
        tab.keyboard.press("Enter")
        tab.wait_for_selector("h1:text-is('Studies')")
        tab.click("button:text-is('Sign out')")
        tab.wait_for_selector("input[type=password]")
    context.close()


def test_a_study_that_has_only_imported_trials_says_so(cli: Cli, tab: Any) -> None:
    name = StudyName("default", "imported")
    with page_of_server(cli, "--insecure") as page:
        with Client(page.address) as client:
            client.study("imported", {"x": Float(0, 1)}, maximize("score"), algorithm="random")
            done = FinishedTrial({"x": 0.5}, Outcome(TrialState.SUCCEEDED, 1.0))
            client.import_trials(name, [done], source="elsewhere", request_id="1")
        tab.goto(page.base)
        tab.click("main a:text-is('imported')")
        tab.wait_for_selector(".fact:has-text('only imported ones')")


def test_the_page_works_by_keyboard(cli: Cli, tab: Any) -> None:
    assert cli.tuner("run", cli.write(trials=2))[0] == 0
    with served(cli) as page:
        tab.goto(page.link)
        tab.wait_for_selector(".list li")
        for _ in range(10):
            tab.keyboard.press("Tab")
            if tab.evaluate("document.activeElement.className") == "name":
                break
        tab.keyboard.press("Enter")
        tab.wait_for_selector("table[aria-label=Trials]")
        tab.focus("th button:text-is('score')")
        tab.keyboard.press("Enter")
        tab.wait_for_selector("th[aria-sort=ascending]:has-text('score')")
        assert tab.evaluate("document.activeElement.textContent") == "score", "the focus stays"


def test_the_screenshots_of_the_docs_are_small() -> None:
    images = list((Path(__file__).parents[2] / "docs" / "images").glob("ui-*.png"))
    assert len(images) == 3
    assert [image.name for image in images if image.stat().st_size > 150_000] == []
