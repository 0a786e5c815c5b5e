"""State a run refuses to go on from: logs of others, logs created again, logs that forget.

`topology check` refuses the same with the same words, and nothing has moved or been written.

Shows I27.
"""

import pytest

from tests.kafka.run_rig import START_MS, App, assert_refused, counted, updates_in_order

pytestmark = pytest.mark.kafka

MANY = 2000


def refused(app: App, error: str, *says: str, code: int = 2, pipeline: str | None = None) -> None:
    """A start and `topology check` say no, in the same words, and nothing has changed."""
    with app.unchanged():
        ended = app.run(pipeline=pipeline)
        assert_refused(ended, code, error, *says)
        checked = app.checked(pipeline=pipeline)
    assert (checked.code, checked.message) == (ended.code, ended.message)


def other_volume(app: App) -> App:
    """The same application on a volume that holds nothing of it."""
    return App(app.kafka, app.name, app.state_dir.parent / "new" / "state", app.pipeline)


# A changelog with records, and a group that never committed.


@pytest.fixture
def many(app: App) -> App:
    app.produce(range(20, MANY))
    app.drained()
    return app


def test_offsets_forgotten_on_a_new_volume_are_refused_and_nothing_is_counted_twice(
    many: App,
) -> None:
    many.forget_offsets()
    new = other_volume(many)
    new.state_dir.parent.mkdir()
    says = (f"{many.name}-counts-changelog-", f"group {many.name}", "--accept-forgotten-offsets")
    refused(new, "Misuse", *says)
    assert updates_in_order(many.read()) == counted(range(MANY))
    new.drained("--accept-forgotten-offsets")
    assert new.stored() == {key: 2 * count for key, count in counted(range(MANY)).items()}


def test_offsets_that_were_set_where_the_last_run_ended_are_a_way_out(many: App) -> None:
    ends = many.committed()
    repartitioned = many.committed("by-user-repartition")
    many.forget_offsets()
    for partition, offset in ends.items():
        many.commit_offset(partition, offset)
    for partition, offset in repartitioned.items():
        many.commit_offset(partition, offset, topic="by-user-repartition")
    new = other_volume(many)
    new.state_dir.parent.mkdir()
    new.produce(range(MANY, MANY + 100))
    new.drained()
    assert new.stored() == counted(range(MANY + 100))


def test_two_applications_whose_names_meet_in_one_changelog_are_kept_apart(app: App) -> None:
    """`x` with store `y-counts` and `x-y` with store `counts`: `x-y-counts-changelog` is both's."""
    app.drained(pipeline="counts_by_key_of_y")
    other = App(app.kafka, f"{app.name}-y", app.state_dir, "counts_by_key").create_topics()
    other.produce(range(20))
    says = (f"{app.name}-y-counts-changelog-", f"group {other.name}", "another application")
    refused(other, "Misuse", *says)
    assert other.read() == []


def test_two_applications_whose_names_meet_in_one_repartition_topic_are_kept_apart(
    app: App,
) -> None:
    app.drained(pipeline="repartitioned_as_y")
    other = App(app.kafka, f"{app.name}-y", app.state_dir, "repartitioned").create_topics()
    other.produce(range(20))
    app.produce_raw([("k", b"{}", START_MS)], topic="y-by-user-repartition", partition=0)
    says = (f"{app.name}-y-by-user-repartition-", f"group {other.name}", "another application")
    refused(other, "Misuse", *says)


def test_a_first_run_killed_again_and_again_before_it_committed_is_not_refused(app: App) -> None:
    """What it wrote lies in the changelog, aborted: offsets alone would tell of records."""
    for _ in range(3):
        died = app.run(
            "--set=producer.linger.ms=0",
            pipeline="counts_by_key",
            crash_at="commit.offsets-sent",
        )
        assert died.code == -9, died.err[-2000:]
        assert app.committed() == {}
    assert max(end for _, end in app.bounds(f"{app.name}-counts-changelog").values()) > 0
    app.drained(pipeline="counts_by_key")
    assert app.stored(ordinal=0) == {f"k{n}": 1 for n in range(20)}


# A changelog deleted, or created again, while the group has commits.


@pytest.mark.parametrize(
    ("pipeline", "anew"),
    [
        pytest.param("counts_in_memory", False, id="in memory, deleted"),
        pytest.param("counts", True, id="created again"),
        pytest.param("counts", False, marks=pytest.mark.thorough, id="deleted"),
        pytest.param(
            "counts_in_memory", True, marks=pytest.mark.thorough, id="in memory, created again"
        ),
    ],
)
def test_a_changelog_deleted_or_made_anew_is_refused_on_the_same_volume(
    app: App, pipeline: str, anew: bool
) -> None:
    app.drained(pipeline=pipeline)
    changelog = f"{app.name}-counts-changelog"
    app.delete_topic(changelog)
    if anew:
        app.kafka.create_topic(changelog, 2, {"cleanup.policy": "compact"})
    app.produce(range(20, 40))
    refused(app, "Misuse", changelog, "--accept-empty-changelog", pipeline=pipeline)
    assert updates_in_order(app.read()) == counted(range(20))
    accepted = app.drained("--accept-empty-changelog", pipeline=pipeline)
    assert accepted["caught_up"]
    assert changelog in app.topics()


def test_a_deleted_changelog_is_refused_on_a_new_volume(app: App) -> None:
    app.drained()
    changelog = f"{app.name}-counts-changelog"
    app.delete_topic(changelog)
    new = other_volume(app)
    new.state_dir.parent.mkdir()
    refused(new, "Misuse", changelog, "does not exist", "--accept-empty-changelog")
    new.produce(range(20, 40))
    assert new.drained("--accept-empty-changelog")["caught_up"]
    assert new.stored() == counted(range(20, 40))


def test_a_store_that_is_new_in_a_deployed_topology_may_have_no_changelog_yet(app: App) -> None:
    app.drained(pipeline="counts_by_key")
    app.produce(range(20, 40))
    died = app.run(pipeline="counts_by_key_twice", crash_at="claim.owned:2")
    assert died.code == -9, died.err[-2000:]
    assert app.drained(pipeline="counts_by_key_twice")["caught_up"]
    assert app.stored("again", ordinal=0) == {f"k{n}": 1 for n in range(20, 40)}


def test_the_relocate_command_deploys_a_store_whose_changelog_the_next_start_makes(
    app: App,
) -> None:
    app.drained(pipeline="counts_by_key")
    assert app.run(command="relocate", pipeline="counts_by_key_twice").code == 0
    assert app.drained(pipeline="counts_by_key_twice")["caught_up"]


# A changelog that forgets.


@pytest.mark.parametrize(
    "policy", ["delete", pytest.param("compact,delete", marks=pytest.mark.thorough)]
)
def test_a_changelog_that_deletes_is_refused_by_name_of_its_setting(app: App, policy: str) -> None:
    changelog = f"{app.name}-counts-changelog"
    app.kafka.create_topic(changelog, 2, {"cleanup.policy": policy})
    says = (changelog, f"cleanup.policy={policy}", "cleanup.policy=compact")
    refused(app, "InvalidSetting", *says)
    app.delete_topic(changelog)
    app.drained()
    assert app.stored() == counted(range(20))


def test_a_pipeline_that_asks_for_a_changelog_that_deletes_is_refused(app: App) -> None:
    says = (f"{app.name}-counts-changelog", "cleanup.policy=delete", "changelog_config")
    refused(app, "InvalidSetting", *says, pipeline="deleting_changelog")


def test_windows_may_have_a_changelog_that_deletes_only_if_nothing_is_old_enough(
    app: App,
) -> None:
    """The windows are kept for less than a month, of whatever year."""
    changelog = f"{app.name}-windows-changelog"
    month_ms = 30 * 86_400_000
    kept = {"cleanup.policy": "compact,delete", "retention.ms": month_ms}
    app.kafka.create_topic(changelog, 2, kept)
    refused(app, "InvalidSetting", changelog, f"retention.ms={month_ms}", pipeline="windowed")
    app.delete_topic(changelog)
    app.kafka.create_topic(changelog, 2, {**kept, "retention.ms": 86_400_000 * 36500})
    assert app.drained(pipeline="windowed")["caught_up"]


def test_a_repartition_topic_that_is_compacted_is_refused(app: App) -> None:
    topic = f"{app.name}-by-user-repartition"
    app.kafka.create_topic(topic, 2, {"cleanup.policy": "compact"})
    refused(app, "InvalidSetting", topic, "cleanup.policy=compact", "cleanup.policy=delete")
    app.delete_topic(topic)
    app.drained()
