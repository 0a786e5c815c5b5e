"""What functions of a user's may do to a run, on a real broker."""

import pytest

import statestore as ss
from statestore.errors import Misuse
from tests.kafka import callback_pipelines as pipelines
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import App, assert_refused

pytestmark = pytest.mark.kafka

PIPELINES = "tests.kafka.callback_pipelines"


def test_a_wall_clock_punctuation_scheduled_by_a_record_does_not_hold_up_the_end_of_a_run(
    app: App,
) -> None:
    summary = app.drained(pipeline=f"{PIPELINES}:schedules_on_its_first_record")
    assert (summary["records_in"], summary["records_out"], summary["caught_up"]) == (20, 20, True)
    assert sorted(row.value["number"] for row in app.read()) == list(range(20))


@pytest.mark.parametrize("handler", ["fail", "continue"])
@pytest.mark.parametrize("place", ["mapper", "factory", "punctuation", "extractor"])
def test_sys_exit_in_a_callback_ends_a_run_with_an_error_and_its_task_commits_nothing(
    app: App, place: str, handler: str
) -> None:
    article = "an" if place == "extractor" else "a"
    ended = app.run(
        f"--set=processing.exception.handler={handler}",
        pipeline=f"{PIPELINES}:leaves_in_{article}_{place}",
    )
    assert_refused(ended, 2, "Misuse", "sys.exit", "callback_pipelines.py")
    assert pipelines.LEAVES_AT not in {row.value["number"] for row in app.read()}
    assert len(app.committed()) <= 1, "the task that met it has committed nothing"


def test_sys_exit_in_a_callback_does_not_end_the_process_that_calls_run(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PREFIX_VARIABLE, app.name)
    with pytest.raises(Misuse, match=r"sys\.exit.*callback_pipelines\.py"):
        ss.run(pipelines.leaves_in_a_mapper(), app.run_settings())
