"""Reports of tasks: their pages go to XCom, and report_page.py shows them.

An operator keeps the addresses of its links in `links`, by name; Airflow asks for them when the
task has ended.
"""

import logging
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseOperator, BaseOperatorLink, Context

REPORT_KEY = "report"
PAGE_MAX_BYTES = 2_000_000
"""XComs lie in Airflow's database, so a larger page stays where it is."""

_log = logging.getLogger(__name__)


class _KeptLink(BaseOperatorLink):
    """A button of a task that leads to the address its operator keeps under that name in `links`.

    The button cannot be pressed if there is no address.
    """

    @property
    def xcom_key(self) -> str:
        """Where Airflow keeps the address."""
        return "_link_" + self.name.lower().replace(" ", "_")

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:  # noqa: ARG002  # Airflow's
        """The address; Airflow asks for it when the task has ended, in whatever way."""
        links: dict[str, str] = getattr(operator, "links", {})
        return links.get(self.name, "")


class ReportLink(_KeptLink):
    """Leads to the page of an audit or a drill, in Airflow itself."""

    name = "Report"


class DataDocsLink(_KeptLink):
    """Leads to Great Expectations' pages of an audit, where somebody serves them."""

    name = "Data Docs"


class SparkUILink(_KeptLink):
    """Leads to the page of the Spark that a job ran on."""

    name = "Spark UI"


REPORT = ReportLink()
DATA_DOCS = DataDocsLink()
SPARK_UI = SparkUILink()


def publish_spark_ui(context: Context) -> str:
    """Publish where people see the Spark that a job runs on: the variable STATESTORE_SPARK_UI.

    It is empty if the variable is not set: a Spark on this machine has no page by default.
    """
    address = os.environ.get("STATESTORE_SPARK_UI", "")
    if address:
        context["ti"].xcom_push(key=SPARK_UI.xcom_key, value=address)
    return address


def data_docs_address(begin: str | None) -> str:
    """Where people see the Data Docs whose first page is at the file:// address `begin`.

    STATESTORE_DATA_DOCS is the address under which somebody serves the files of the state dir; the
    result is empty if it is not set. Data Docs load scripts from other sites, so Airflow does not
    serve them where its users are logged in.
    """
    served = os.environ.get("STATESTORE_DATA_DOCS", "")
    if not served or not begin:
        return ""
    # <state dir>/<application>/audits/<time>/index.html
    names = Path(unquote(urlsplit(begin).path)).parts[-4:]
    return "/".join([served.rstrip("/"), *(quote(name, safe="") for name in names)])


def outer_prefix() -> str:
    """Return what addresses of Airflow begin with after the host; empty if it is at the root.

    The host is left out: people may know Airflow by another name than workers do.
    """
    base: str = conf.get("api", "base_url", fallback="")
    return urlsplit(base).path.rstrip("/")


def publish_report(context: Context, page: str | None) -> str | None:
    """Push the page at a path or file:// address to XCom, and return where Airflow shows it.

    The result is None if that fails: a missing page is worth a line in the log, not a failed task.
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
    names = (ti.dag_id, ti.run_id, ti.task_id, str(ti.map_index))
    return "/".join(
        [outer_prefix(), "statestore", "reports", *(quote(name, safe="") for name in names)]
    )
