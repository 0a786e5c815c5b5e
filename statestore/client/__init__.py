"""Asks a server of state, `statestore serve`, from Python: `StateClient` and `AsyncStateClient`.

    with StateClient("http://127.0.0.1:8765") as state:
        state.get("counts", "ann")

Both have the same methods; those of the second are coroutines and asynchronous iterators. Errors
are those of `statestore.errors`, as if the store were read here. A request that the server could
not answer for now is repeated for some seconds. Needs the extra `serve`.
"""

from statestore.extras import needed
from statestore.model.served import Freshness, ServedRow

with needed("serve", "statestore.client"):
    from statestore.client.blocking import StateClient
    from statestore.client.coroutines import AsyncStateClient
    from statestore.client.requests import ServedRows

__all__ = ["AsyncStateClient", "Freshness", "ServedRow", "ServedRows", "StateClient"]
