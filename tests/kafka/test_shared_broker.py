"""The broker that the processes of a test run share ends with the last of them."""

import subprocess
import uuid

import psutil
import pytest

from tests.builders import ROOT, child, eventually

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]

USER = """
import sys
from tests.shared_kafka import shared_kafka

with shared_kafka(sys.argv[1]) as kafka:
    print(kafka.bootstrap_servers, flush=True)
    sys.stdin.readline()
"""


def kept(run: str) -> list[psutil.Process]:
    """The keeper of that run and its broker."""
    keepers = [one for one in psutil.process_iter(["cmdline"]) if _keeps(one, run)]
    return [process for one in keepers for process in (one, *one.children(recursive=True))]


def _keeps(process: psutil.Process, run: str) -> bool:
    words = process.info["cmdline"] or [""]
    return "tests.shared_kafka" in words and words[-1].endswith(run)


def told(user: "subprocess.Popen[str]") -> str:
    assert user.stdout is not None
    return user.stdout.readline()


def test_the_users_of_a_run_share_a_broker_that_ends_when_all_of_them_were_killed() -> None:
    run = uuid.uuid4().hex[:12]
    first, second = child(USER, run), child(USER, run)
    try:
        assert told(first) == told(second) != ""
        processes = kept(run)
        assert len(processes) == 2, "a keeper and a broker"
        first.kill()
        first.communicate()
        third = child(USER, run)
        assert told(third) != ""
        assert kept(run) == processes, "one user is left"
        for user in (second, third):
            user.kill()
            user.communicate()
        eventually(lambda: not any(one.is_running() for one in processes), "they end")
    finally:
        for user in (first, second):
            user.kill()
            user.communicate()
        assert (ROOT / ".scratch" / "shared-kafka" / run).exists()
