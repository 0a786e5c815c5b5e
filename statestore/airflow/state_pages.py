"""The page of applications in Airflow's own frame, for users whom Airflow lets see it.

    /statestore/                                       all applications of the applications file
    /statestore/applications/<id>[/stores/<store>, /topics]

Airflow does not guard what a plugin serves, so every route asks the auth manager: for the custom
view `statestore`, and for `statestore_rows` where rows of a store or records of a topic are shown.
What makes the pages is imported when the first one is asked for, because every part of Airflow
loads plugins.
"""

from collections.abc import Callable
from functools import cache
from typing import Final

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import Depends, FastAPI, HTTPException, Request, Response, status

from statestore.airflow.dag_applications import applications_file
from statestore.ui.paths import Path

MOUNTED_AT: Final = "/statestore"
VIEW: Final = "statestore"
ROWS: Final = "statestore_rows"


def add_pages(app: FastAPI) -> None:
    """Add the routes, each behind the permission for its view."""
    for path in Path:
        view = ROWS if path in {Path.STORE, Path.TOPICS} else VIEW
        app.add_api_route(
            path, _endpoint(path), dependencies=[Depends(_requires(view))], response_class=Response
        )


def _endpoint(path: Path) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        found: Response = _routes()[path](request)
        return found

    return answer


def _requires(view: str) -> Callable[..., None]:
    def check(user: GetUserDep) -> None:
        allowed = get_auth_manager().is_authorized_custom_view(
            method="GET", resource_name=view, user=user
        )
        if not allowed:
            raise HTTPException(status.HTTP_403_FORBIDDEN, "Forbidden")

    return check


@cache
def _routes() -> dict[Path, Callable[[Request], Response]]:
    from statestore.ui.site import routes_of

    try:
        config = applications_file()
    except ValueError as error:
        raise HTTPException(status.HTTP_404_NOT_FOUND, str(error)) from error
    return routes_of(config, MOUNTED_AT)
