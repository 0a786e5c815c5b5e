"""A job is told what is wrong with the server of Spark Connect that SPARK_REMOTE names."""

import sys

import pytest

from statestore.errors import Misuse, Unavailable
from statestore.spark import connected
from statestore.spark.session import spark_session

NOWHERE = "sc://127.0.0.1:1/;token=hush"


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", NOWHERE)


def test_a_server_that_does_not_answer_is_unavailable_and_its_token_untold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connected, "_REACHED_S", 0.2)
    with pytest.raises(Unavailable, match=r"answers at 127\.0\.0\.1:1 within") as raised:
        spark_session("x")
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("address", ["spark:1", "sc://", "sc://h:port", "sc://h/path;token=hush"])
def test_an_address_that_is_none_is_misuse(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", address)
    with pytest.raises(Misuse, match="is no address of a server of Spark Connect") as raised:
        spark_session("x")
    assert "hush" not in str(raised.value)


def test_secrets_of_a_connection_of_airflow_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATESTORE_CONNECTION_SASL_PASSWORD", "hush")
    with pytest.raises(Misuse, match="do not reach the workers of Spark Connect"):
        spark_session("x")


def test_without_the_client_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, connected.__name__)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(Misuse, match=r"pip install 'pyspark\[connect\]'"):
        spark_session("x")
