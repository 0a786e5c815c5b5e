"""A session of Spark Connect for the jobs, of a server that is there already.

The server's JVM, executors and classes outlive the runs, so that a job starts no JVM at all. What
the session has in place of spark-submit's settings is the server's.
"""

import os
from typing import Final

import grpc
from pyspark.sql import SparkSession
from pyspark.sql.connect.client import DefaultChannelBuilder

from statestore.errors import Misuse, Unavailable
from statestore.settings import CONNECTION_VARIABLE

_REACHED_S: Final = 30.0


def connected_session(name: str, remote: str) -> SparkSession:
    """Return a session of a server, `sc://host:port/;token=…`.

    Raises Unavailable if it does not answer, Misuse if its address is none, or if settings cannot
    reach its workers.
    """
    if any(variable.startswith(CONNECTION_VARIABLE) for variable in os.environ):
        raise Misuse(
            "settings come from a connection of Airflow, whose secrets do not reach the workers of "
            "Spark Connect: name variables in the applications file ('${VARIABLE}'), and set them "
            "here and for the server's executors"
        )
    _require_server(remote)
    return SparkSession.builder.remote(remote).appName(name).getOrCreate()


def _require_server(remote: str) -> None:
    """Find out in time what the client of Spark Connect would say after ten minutes."""
    try:
        builder = DefaultChannelBuilder(remote)
    except ValueError as error:
        raise Misuse(f"this is no address of a server of Spark Connect: {error}") from error
    channel = builder.toChannel()
    try:
        grpc.channel_ready_future(channel).result(_REACHED_S)
    except grpc.FutureTimeoutError as error:
        raise Unavailable(
            f"no server of Spark Connect answers at {builder.endpoint} within {_REACHED_S:.0f} s: "
            "start it, or name another one"
        ) from error
    finally:
        channel.close()
