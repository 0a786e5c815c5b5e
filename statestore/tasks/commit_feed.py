"""Passes each commit of a stream task on to those who follow it, without touching its databases.

    follow()   the stores begin to note their batches
    publish()  what was noted since the last call becomes one file for each follower

A snapshot costs a flush and a database to open. A follower takes one, and then it needs only the
batches that commits write to the stores. These are in memory here at that moment anyway. The owner
pays for one encoding of each batch, however many follow.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from statestore.layout.commit_feeds import (
    WAITING_MAX_BYTES,
    FeedWriter,
    StoreWrites,
    encoded_commit,
)
from statestore.tasks.owned import OwnedStore


class CommitFeed:
    """The followers of one stream task, and what they are to be sent."""

    def __init__(self) -> None:
        self._writers: list[FeedWriter] = []
        self._tapped: dict[str, OwnedStore] = {}
        self._noted: list[msgspec.Raw] = []
        self._noted_bytes = 0

    def follow(self, writer: FeedWriter, stores: Mapping[str, OwnedStore]) -> None:
        """Send the commits from now on. The snapshot of the follower is as of this moment."""
        if not self._tapped:
            self._tapped = dict(stores)
            for name, opened in stores.items():
                opened.tap(partial(self._note, name))
        self._writers.append(writer)

    def publish(
        self, stores: Mapping[str, OwnedStore], commit_number: int, committed_ms: int | None
    ) -> None:
        """Send what was committed since the last call; call it when the stores are as of a commit.

        All feeds end if a store was opened anew, because nobody noted what it holds.
        """
        if not self._writers:
            return
        if self._noted_bytes > WAITING_MAX_BYTES or any(
            stores.get(name) is not opened for name, opened in self._tapped.items()
        ):
            self.end()
        elif self._noted:
            data = encoded_commit(commit_number, committed_ms or 0, self._noted)
            self._noted, self._noted_bytes = [], 0
            self._writers = [writer for writer in self._writers if writer.append(data)]
            if not self._writers:
                self.end()

    def end(self, *, complete: bool = False) -> None:
        """End all feeds. Unless they are complete, a follower then takes a new snapshot."""
        for writer in self._writers:
            writer.end(complete=complete)
        for opened in self._tapped.values():
            opened.tap(None)
        self._writers, self._tapped, self._noted, self._noted_bytes = [], {}, [], 0

    def _note(
        self,
        store: str,
        writes: Mapping[str, Mapping[bytes, bytes | None]],
        ranges: Mapping[str, Sequence[tuple[bytes, bytes]]] | None,
    ) -> None:
        # A restore may write more than any commit: then the followers take a new snapshot.
        if self._noted_bytes <= WAITING_MAX_BYTES:
            batch = StoreWrites.encoded(store, writes, ranges)
            self._noted.append(batch)
            self._noted_bytes += len(memoryview(batch))
