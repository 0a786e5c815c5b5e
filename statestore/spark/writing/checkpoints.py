"""The checkpoint of a stream that writes: its id, and a note of the output that it writes to.

Spark replays the batch that was open when a query ended, and the markers of the output tell what of
it is there. Under another name there are none. For later batches that shows, as an output with an
earlier batch behind it knows one; for batch 0 it does not. Therefore a checkpoint in a local folder
has a file beside Spark's own, written before anything else is, that says which output it is of.
"""

from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from statestore.errors import UNREADABLE, Misuse
from statestore.layout.files import publish
from statestore.model.decoders import json_decoder

_METADATA: Final = "metadata"
_OFFSETS: Final = "offsets"
_NOTE: Final = "_transactional_kafka.json"
NO_BATCHES: Final = (
    "a stream is written in batches, and the trigger of this one is `continuous`, with which Spark "
    'would write nothing: use trigger(processingTime="1 second")'
)


class _Note(msgspec.Struct, frozen=True):
    """Which output the checkpoint is of, and the batch with which it began there."""

    query: str
    marker_topic: str
    first_batch: int = 0


class Checkpoint(NamedTuple):
    """A local checkpoint; `given`: the option `firstBatch` was passed, whatever it says."""

    folder: str
    given: bool

    @classmethod
    def of(cls, where: str | None, *, given: bool) -> "Checkpoint | None":
        """Return the checkpoint of a stream; None if it is not known to be in a local folder."""
        folder = local_folder(where) if where else None
        return None if folder is None else cls(folder, given)

    def require_batch(self) -> None:
        """Misuse if Spark has planned a write, and no batch to be written.

        It notes the offsets of a batch before it plans that, but not those of continuous
        processing, of which it calls a Data Source in Python for the first commit only.
        """
        offsets = Path(self.folder) / _OFFSETS
        if offsets.is_dir() and not any(offsets.iterdir()):
            raise Misuse(NO_BATCHES)

    def require_output(self, query: str, marker_topic: str, first_batch: int) -> None:
        """Note which output this is; Misuse if another one was noted.

        Whoever passes a `firstBatch` that was not noted says that nothing of it was written.
        """
        path, own = Path(self.folder) / _NOTE, _Note(query, marker_topic, first_batch)
        if not (Path(self.folder) / _METADATA).is_file():
            return  # Spark's file system is another one
        noted = _noted(path)
        if noted == own:
            return
        is_other = noted and (noted.query, noted.marker_topic) != (query, marker_topic)
        if noted and is_other and not (self.given and first_batch != noted.first_batch):
            raise Misuse(
                f"output {query!r}: the checkpoint {self.folder} is of output {noted.query!r} with "
                f"the marker topic {noted.marker_topic}: a batch that Spark repeats would be "
                "written a second time under another name: go back to that `query` and "
                f"markerTopic; or, if all that was begun is done ({self.folder}/commits has the "
                f"last batch of {self.folder}/offsets), pass firstBatch = the number of the next "
                f"batch once, or delete {path}"
            )
        publish(path, msgspec.json.encode(own))


def _noted(path: Path) -> _Note | None:
    try:
        return json_decoder(_Note).decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        raise Misuse(
            f"{path} cannot be read ({error}): it says which output the checkpoint is of: delete "
            "it if `query` and markerTopic are those that the checkpoint had"
        ) from error


def local_folder(where: str) -> str | None:
    """Return the path of a checkpoint; None if it is not of this machine's file system."""
    url = urlsplit(where)
    return unquote(url.path) if url.scheme in {"", "file"} else None


def id_of(folder: str) -> str:
    """Return Spark's id of the stream; Misuse if it cannot be read."""
    try:
        with open(f"{folder}/{_METADATA}", "rb") as file:  # noqa: PTH123 - Spark's path, as it is
            return json_decoder(dict[str, str]).decode(file.read())["id"]
    except (OSError, KeyError, *UNREADABLE) as error:
        raise Misuse(f"the id of the checkpoint cannot be read: {error}") from error
