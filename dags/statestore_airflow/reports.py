"""Reports of tasks: their pages go to XCom, where plugins/statestore_reports.py shows them.

An operator keeps what its links lead to in `links`, by their names; Airflow asks when it has ended.
"""

import logging
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from airflow.sdk import BaseOperator, BaseOperatorLink, Context
from airflow.sdk.configuration import conf

REPORT_KEY = "report"
PAGE_MAX_BYTES = 2_000_000
"""XComs lie in Airflow's database: a larger page stays where it is."""

_log = logging.getLogger(__name__)


class KeptLink(BaseOperatorLink):
    """A button of a task that leads to what its operator keeps under that name in `links`.

    Empty, and then not to be pressed, where it keeps nothing.
    """

    def __init__(self, name: str, xcom_key: str) -> None:
        self._name = name
        self._xcom_key = xcom_key

    @property
    def name(self) -> str:
        """What is on the button."""
        return self._name

    @property
    def xcom_key(self) -> str:
        """Where Airflow keeps the address."""
        return self._xcom_key

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:  # noqa: ARG002  # Airflow's
        """Asked when the task has ended, however it did."""
        links: dict[str, str] = getattr(operator, "links", {})
        return links.get(self._name, "")


REPORT = KeptLink("Report", "_link_report")
DATA_DOCS = KeptLink("Data Docs", "_link_data_docs")
SPARK_UI = KeptLink("Spark UI", "_link_spark_ui")


def publish_spark_ui(context: Context) -> str:
    """Where people see the Spark a job runs on, while it runs and after: STATESTORE_SPARK_UI.

    Empty if nobody said: a Spark on this machine has no page unless somebody asks for one.
    """
    address = os.environ.get("STATESTORE_SPARK_UI", "")
    if address:
        context["ti"].xcom_push(key=SPARK_UI.xcom_key, value=address)
    return address


def data_docs_address(begin: str | None) -> str:
    """Where people see Data Docs that begin at that file:// address; empty if nobody said.

    STATESTORE_DATA_DOCS is the address under which the state dir's files are served: Data Docs load
    scripts of others, so Airflow, where its users are logged in, does not serve them.
    """
    served = os.environ.get("STATESTORE_DATA_DOCS", "")
    if not served or not begin:
        return ""
    # <state dir>/<application>/audits/<time>/index.html
    names = Path(unquote(urlsplit(begin).path)).parts[-4:]
    return "/".join([served.rstrip("/"), *(quote(name, safe="") for name in names)])


def publish_report(context: Context, page: str | None) -> str | None:
    """Push the page at a path or file:// address to XCom; where Airflow shows it.

    None if it cannot: a missing page is worth a line in the log, not a failed task.
    """
    if not page:
        return None
    path = Path(unquote(urlsplit(page).path) if page.startswith("file:") else page)
    try:
        if path.stat().st_size > PAGE_MAX_BYTES:
            _log.warning("the report is too large for Airflow to show; it is at %s", path)
            return None
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        _log.warning("the report at %s cannot be read here: %s", path, error)
        return None
    ti: Any = context["ti"]
    ti.xcom_push(key=REPORT_KEY, value=text)
    # From the host on, as people may know Airflow by another name than its workers do.
    prefix = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    names = (ti.dag_id, ti.run_id, ti.task_id, str(ti.map_index))
    return "/".join([prefix, "statestore", "reports", *(quote(name, safe="") for name in names)])
