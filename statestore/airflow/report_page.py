"""The plugin: the page of applications (state_pages.py), and reports of audits and drills.

    /statestore/reports/<DAG>/<run>/<task>/<map index>

A report is an XCom of its task, so it can be read whichever machine ran the task, and Airflow's
rules for XComs decide who may see it. Airflow does not guard what a plugin serves, so the route
asks by itself. The answer tells the browser to run and load nothing, whatever the page contains.

Airflow finds the plugin by the entry point `airflow.plugins` of the distribution.
"""

from typing import Annotated, Final
from urllib.parse import urlencode

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import requires_access_dag
from airflow.models.xcom import XComModel
from airflow.plugins_manager import AirflowPlugin
from fastapi import Depends, FastAPI, HTTPException, Path, Request, Response, status
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import HTMLResponse, RedirectResponse

from statestore.airflow.reports import REPORT_KEY, outer_prefix
from statestore.airflow.state_pages import MOUNTED_AT, add_pages

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

app = FastAPI(title="statestore", docs_url=None, redoc_url=None, openapi_url=None)
add_pages(app)


@app.get(
    "/reports/{dag_id}/{run_id}/{task_id}/{map_index}",
    dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.XCOM))],
)
def report(
    dag_id: str,
    run_id: str,
    task_id: str,
    map_index: Annotated[int, Path(ge=-1)],
    session: SessionDep,
) -> HTMLResponse:
    """The page that the task left; 404 if it left none."""
    kept = session.scalars(
        XComModel.get_many(
            run_id=run_id,
            key=REPORT_KEY,
            task_ids=task_id,
            dag_ids=dag_id,
            map_indexes=map_index,
            limit=1,
        )
    ).first()
    page = None if kept is None else XComModel.deserialize_value(kept)
    if not isinstance(page, str):
        raise HTTPException(
            status.HTTP_404_NOT_FOUND, f"task {task_id} of run {run_id} of {dag_id} left no report"
        )
    return HTMLResponse(page, headers=_HEADERS)


@app.exception_handler(HTTPException)
async def refused(request: Request, error: HTTPException) -> Response:
    """Send a browser to the login if its user is not logged in."""
    reads = "text/html" in request.headers.get("accept", "")
    if error.status_code == status.HTTP_401_UNAUTHORIZED and reads:
        outside = request.scope.get("root_path", "").removesuffix(MOUNTED_AT)
        login = f"{outside}/api/v2/auth/login?{urlencode({'next': str(request.url)})}"
        return RedirectResponse(login, status.HTTP_303_SEE_OTHER)
    return await http_exception_handler(request, error)


class StateStoreReports(AirflowPlugin):
    """The plugin, as Airflow loads it."""

    name = "statestore_reports"
    fastapi_apps = [  # noqa: RUF012  # Airflow declares it so
        {"app": app, "url_prefix": MOUNTED_AT, "name": "statestore"}
    ]
    external_views = [  # noqa: RUF012  # Airflow declares it so
        {
            "name": "State stores",
            "href": f"{outer_prefix()}{MOUNTED_AT}/",
            "destination": "nav",
            "category": "browse",
            "url_route": "statestore",
        }
    ]
