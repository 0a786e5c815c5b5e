"""The archive of classes: made once, used by the brokers of the same jars, missed by nobody."""

import os
import subprocess
from pathlib import Path

import pytest

from statestore.testing.class_archive import make_class_archive
from statestore.testing.kafka_jars import LIBS_VARIABLE, java, kafka_libs
from statestore.testing.local_kafka import LocalKafka

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]


@pytest.fixture
def libs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The jars in a folder of the test's own."""
    folder = tmp_path / "libs"
    folder.mkdir()
    for jar in kafka_libs().glob("*.jar"):
        os.link(jar, folder / jar.name)
    monkeypatch.setenv(LIBS_VARIABLE, str(folder))
    return folder


def test_an_archive_is_made_once_and_java_takes_it(libs: Path) -> None:
    archive = make_class_archive()
    assert archive == libs.parent / "classes.jsa"
    made = archive.stat()
    assert make_class_archive().stat().st_mtime_ns == made.st_mtime_ns
    # Java fails if it cannot use the archive, as it is told that it must.
    must = ["-Xshare:on", f"-XX:SharedArchiveFile={archive}", "-XX:+UseSerialGC"]
    told = [java(), *must, "-cp", f"{libs}/*", "kafka.Kafka", "--version"]
    done = subprocess.run(told, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    with LocalKafka() as kafka:
        kafka.create_topic("with-the-archive")


def test_a_broker_starts_beside_an_archive_that_java_cannot_use(libs: Path) -> None:
    (libs.parent / "classes.jsa").write_text("of another Java")
    with LocalKafka() as kafka:
        kafka.create_topic("without-an-archive")
