"""A planted password is nowhere in what Airflow keeps: database, logs, templates, XComs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.testing.local_kafka import LocalKafka
from tests.builders import files_with
from tests.dags.project_rig import Project
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import USER, App, counted, updates_in_order

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]
SECRET = "planted-77c1d9e2-zebra"


@pytest.fixture(scope="module")
def asking() -> Iterator[LocalKafka]:
    with LocalKafka(users={USER: SECRET}) as broker:
        yield broker


def test_a_password_is_nowhere_in_what_airflow_keeps(
    asking: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(asking, "airy", tmp_path / "state").create_topics()
    app.produce(range(20))
    monkeypatch.setenv(PREFIX_VARIABLE, "airy")
    monkeypatch.setenv("BROKER_PASSWORD", SECRET)
    project = Project.copied(
        tmp_path,
        f"""[applications.airy]
pipeline = "tests.kafka.run_pipelines:counts"
bootstrap_servers = "{asking.sasl_servers}"
state_dir = "{app.state_dir}"
processing_guarantee = "exactly_once"
[applications.airy.settings]
"statestore.export.target" = "{tmp_path / "exports"}"
"security.protocol" = "SASL_PLAINTEXT"
"sasl.mechanism" = "PLAIN"
"sasl.username" = "{USER}"
"sasl.password" = "${{BROKER_PASSWORD}}"
""",
    )
    processed = project.succeed("airy__micro_batches")
    exported = project.succeed("checkpoint_export", applications=["airy"])
    assert updates_in_order(app.read()) == counted(range(20))
    for ended in (processed, exported):
        assert SECRET not in ended.log
        assert ended.xcoms
    kept = project.folder / ".scratch" / "airflow"
    assert (kept / "airflow.db").exists()
    assert list(kept.rglob("*.log"))
    assert not files_with(SECRET, project.folder)
    (kept / "planted").write_text(f"sasl.password={SECRET}")
    assert files_with(SECRET, project.folder) == [kept / "planted"], "a search finds what is there"
