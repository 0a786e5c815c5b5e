"""What RocksDB and rocksdict raise, as errors of ours: the class says what the caller does next.

rocksdict raises a bare Exception with the text of RocksDB's status, so the text decides.
"""

import errno
import os
import re

from rocksdict import DbClosedError

from statestore.errors import (
    HostFailure,
    Locked,
    Misuse,
    StateStoreError,
    StoreClosed,
    TaskCorrupted,
)

_STATUS = re.compile(
    r"(?:Corruption|IO error|Invalid argument|Not implemented|Shutdown in progress|Operation"
    r" (?:aborted|expired|failed)|Result incomplete|Resource busy|Column family dropped)\b"
)
# Of the machine, not of the files: RocksDB calls these corruption when they happen while it opens.
_HOST_ERRORS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOLCK),
    *(errno.ENOTDIR, errno.ENOTCONN, errno.ETIMEDOUT),
)
_RULES: tuple[tuple[re.Pattern[str], type[StateStoreError], str], ...] = (
    (
        re.compile(rf"lock hold by current process|While lock file: .*{os.strerror(errno.EAGAIN)}"),
        Locked,
        "this database is open elsewhere, in this process or another: wait until it is closed",
    ),
    (
        re.compile("|".join(re.escape(os.strerror(number)) for number in _HOST_ERRORS)),
        HostFailure,
        "the volume or the machine refuses: put that right and run again",
    ),
    (
        re.compile(rf"Corruption|{os.strerror(errno.ENOENT)}"),
        TaskCorrupted,
        "files are missing or unreadable",
    ),
    (
        re.compile(r"Column families not opened"),
        Misuse,
        "the database holds tables this kind of store does not have",
    ),
    (re.compile(r"Invalid argument|Not implemented"), Misuse, "RocksDB refuses the call"),
    (re.compile(r"Shutdown in progress"), StoreClosed, "the database is being closed"),
    (re.compile(r""), HostFailure, "RocksDB failed: run again"),
)


def translate(error: Exception, where: object) -> StateStoreError | None:
    """Our error for the engine's; None where it is ours already or not the engine's."""
    text = str(error)
    match error:
        case StateStoreError():
            return None
        case DbClosedError():
            return StoreClosed(f"{where}: the database is closed: open it again")
        case RuntimeError() if "borrowed" in text:
            return StoreClosed(f"{where}: the database is being closed: open it again")
        case OSError():
            return HostFailure(f"{where}: cannot use this folder: {text}")
    if type(error) is not Exception or not _STATUS.match(text):
        return None
    kind, meaning = next((kind, said) for rule, kind, said in _RULES if rule.search(text))
    return kind(f"{where}: {meaning}: {text}")
