"""Input a run refuses: gone, created again, not decodable, not processable."""

import pytest

from tests.kafka.run_rig import (
    START_MS,
    App,
    assert_refused,
)

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize(
    "how",
    [(), pytest.param(("--run-for=20s",), marks=pytest.mark.thorough)],
    ids=["bounded", "continuous"],
)
def test_an_input_that_ends_before_the_last_commit_is_refused(app: App, how: list[str]) -> None:
    app.drained()
    app.commit_offset(0, 1000)
    before = app.stored()
    says = (f"{app.name}-in-0", "1000", "truncated or created again", "reset the group's offsets")
    assert_refused(app.run(*how), 5, "InputLost", *says)
    assert app.stored() == before


def test_an_input_made_anew_is_not_counted_into_the_old_state(app: App) -> None:
    app.drained(pipeline="counts_by_key")
    app.delete_topic(f"{app.name}-in")
    app.kafka.create_topic(f"{app.name}-in", 2, {"retention.ms": -1})
    app.produce(range(20))
    says = (f"no offset of input {app.name}-in-0", "created again", "set the group's offset")
    assert_refused(app.run(pipeline="counts_by_key"), 5, "RecordFailed", *says)
    assert app.stored(ordinal=0) == {f"k{n}": 1 for n in range(20)}


def test_offsets_that_expired_are_not_taken_for_new_inputs_where_a_store_knows_better(
    app: App,
) -> None:
    app.drained(pipeline="counts_by_key")
    app.forget_offsets()
    says = (f"no offset of input {app.name}-in-", "offsets.retention.minutes", "to go on")
    assert_refused(app.run(pipeline="counts_by_key"), 5, "RecordFailed", *says)
    assert app.stored(ordinal=0) == {f"k{n}": 1 for n in range(20)}


def test_offsets_that_expired_are_not_taken_for_new_inputs_by_a_task_without_stores(
    app: App,
) -> None:
    app.drained()
    before = app.bounds(f"{app.name}-by-user-repartition")
    app.forget_offsets()
    says = (f"no offset of input {app.name}-in-", "offsets.retention.minutes", "to go on")
    assert_refused(app.run(), 5, "RecordFailed", *says)
    assert app.bounds(f"{app.name}-by-user-repartition") == before


@pytest.mark.parametrize(
    "guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.thorough)]
)
def test_a_record_that_cannot_be_decoded_stops_the_run_before_its_batch_is_committed(
    app: App, guarantee: str
) -> None:
    app.produce_raw([("k", b"{not json", START_MS)], partition=1)
    offset = app.bounds(f"{app.name}-in")[1][1] - 1
    for _ in range(2):
        ended = app.run(f"--processing-guarantee={guarantee}")
        where = (
            f"{app.name}-in-1",
            f"offset {offset}: cannot decode",
            "DecodeError",
            "correct the record or the pipeline",
            "deserialization.exception.handler",
        )
        assert_refused(ended, 5, "RecordFailed", *where)
        assert 1 not in app.committed()
        assert app.read() == []


def test_a_processor_that_raises_stops_the_run_before_its_batch_is_committed(app: App) -> None:
    ended = app.run(pipeline="failing_processor")
    says = ("node picky", f"{app.name}-in-", "KeyError: 'seven'", "correct the record")
    assert_refused(ended, 5, "RecordFailed", *says)
    assert 7 not in [row.value["number"] for row in app.read()]


def test_a_value_that_does_not_fit_its_sink_names_node_side_serde_and_keyword(app: App) -> None:
    ended = app.run(pipeline="unfit")
    says = ("node texts", "the value is int", "serde is STRING", "pass value_serde=")
    assert_refused(ended, 2, "SerdeMismatch", *says)
    assert app.read() == []
    assert app.committed() == {}


def test_a_processor_that_cannot_be_made_is_not_worth_a_retry(app: App) -> None:
    ended = app.run(pipeline="failing_start")
    says = ("node stillborn", "factory raised ZeroDivisionError: at start", "correct the pipeline")
    assert_refused(ended, 2, "InvalidTopology", *says)


def test_an_error_nobody_foresaw_exits_1_with_the_json_line_and_its_traceback(app: App) -> None:
    ended = app.run(pipeline="unforeseen")
    assert ended.code == 1
    error = ended.summary["error"]
    assert (error["class"], error["exit_code"]) == ("ZeroDivisionError", 1)
    assert (error["foreseen"], error["action"]) == (False, "retry")
    assert "Traceback" in ended.err
    assert ended.message == "ZeroDivisionError: at start"
    assert app.drained()["records_in"] == 2 * 20, "the failed run left nothing in the way"


def test_topics_counted_together_but_placed_by_different_hashes_are_refused(app: App) -> None:
    app.kafka.create_topic(f"{app.name}-other", 2, {"retention.ms": -1})
    rows = [(f"k{n}", b"{}", START_MS + n) for n in range(20)]
    app.produce_raw(rows, topic="other", partitioner="murmur2_random")
    with app.unchanged():
        ended = app.run(pipeline="counted_together")
        says = (f"keys of {app.name}-other were placed by murmur2", f"{app.name}-in by CRC32")
        assert_refused(ended, 2, "NotCopartitioned", *says, "repartition() one side")
