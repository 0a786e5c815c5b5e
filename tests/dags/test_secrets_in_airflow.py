"""DAGs over TLS and SCRAM; planted passwords are nowhere in what Airflow keeps of them.

That is its database, logs, rendered templates and XComs.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import files_with
from tests.dags.project_rig import Project
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import App, counted, updates_in_order
from tests.kafka.secured_rig import (
    KEY_SECRET,
    VARIABLES,
    Secured,
    secured_kafka,
    with_certificate,
    write_config,
)

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_kafka(tmp_path_factory.mktemp("certificates")) as made:
        yield made


def test_a_password_is_nowhere_in_what_airflow_keeps(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(secured.kafka, "airy", tmp_path / "state").create_topics()
    app.produce(range(20))
    monkeypatch.setenv(PREFIX_VARIABLE, "airy")
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    shown = with_certificate(secured.authority.issue("client", KEY_SECRET.encode()))
    given = shown | {"statestore.export.target": str(tmp_path / "exports")}
    config = write_config(app, secured.settings() | given)
    project = Project.copied(tmp_path / "project", config.read_text(encoding="utf-8"))
    # A broker whose certificate is not trusted: nothing is tried again.
    write_config(app, secured.mistaken() | given).rename(project.folder / "statestore.toml")
    refused = project.run("airy__micro_batches")
    assert refused.code != 0
    assert "correct ssl.ca.location" in refused.log, refused.log[-6000:]
    assert "it is not retried" in refused.log
    write_config(app, secured.settings() | given).rename(project.folder / "statestore.toml")
    processed = project.succeed("airy__micro_batches")
    exported = project.succeed("checkpoint_export", applications=["airy"])
    assert updates_in_order(app.read()) == counted(range(20))
    for ended in (refused, processed, exported):
        assert ended.log
        assert not [secret for secret in VARIABLES.values() if secret in ended.log]
        assert ended.xcoms or ended is refused
    kept = project.folder / ".scratch" / "airflow"
    assert (kept / "airflow.db").exists()
    for secret in VARIABLES.values():
        assert not files_with(secret, project.folder)
        (kept / "planted").write_text(f"password={secret}")
        assert files_with(secret, project.folder) == [kept / "planted"], "a search finds it"
