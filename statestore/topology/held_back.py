"""How many records wait in the operators of a stream task until later input lets them go.

Kept by what the operators do: of a store that holds such records rows are counted only when it was
opened or restored, and never again. What was not committed is forgotten with the transaction.
"""

from collections.abc import Callable


class HeldBack:
    """One per stream task, over all its rewinds; its owner says what became of transactions."""

    def __init__(self) -> None:
        self._now: dict[str, int] = {}
        self._committed: dict[str, int] = {}

    def opened(self, store: str, count: Callable[[], int]) -> None:
        """An operator keeps records in `store`; `count` reads how many, asked if it is not known.

        Of a store with nothing pending.
        """
        if store not in self._now:
            self._now[store] = self._committed[store] = count()

    def changed(self, store: str, by: int) -> None:
        """So many more wait in it, or fewer."""
        self._now[store] += by

    def committed(self) -> None:
        """What was changed is final."""
        self._committed = dict(self._now)

    def went_back(self) -> None:
        """All stores are as they were after the last commit."""
        self._now = dict(self._committed)

    def restored(self) -> None:
        """Stores may hold something else than was known."""
        self._now, self._committed = {}, {}

    def total(self) -> int:
        """How many wait in all stores, as committed last."""
        return sum(self._committed.values())
