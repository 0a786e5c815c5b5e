"""Translation of RocksDB's and rocksdict's errors into StateStoreErrors.

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
    r"|.*\(os error \d+\)$"  # what rocksdict itself asks of the file system
)
# Errors of the machine, not of the files. RocksDB reports them as corruption while it opens.
_HOST_ERRORS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOLCK),
    *(errno.ENOTDIR, errno.ENOTCONN, errno.ETIMEDOUT),
)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_RULES: tuple[tuple[re.Pattern[str], type[StateStoreError], str], ...] = (
    (
        re.compile(rf"lock hold by current process|While lock file: .*{os.strerror(errno.EAGAIN)}"),
        Locked,
        "this database is open elsewhere, in this process or another: wait until it is closed",
    ),
    (
        re.compile(rf"While lock file: .*(?:{'|'.join(map(os.strerror, _NO_LOCKS))})"),
        HostFailure,
        "the volume has no POSIX locks (fcntl), which RocksDB needs: mount it with them",
    ),
    (
        re.compile("|".join(re.escape(os.strerror(number)) for number in _HOST_ERRORS)),
        HostFailure,
        "the volume or the machine fails: repair it and run again",
    ),
    (
        re.compile(rf"Corruption|{os.strerror(errno.ENOENT)}"),
        TaskCorrupted,
        "files are missing or unreadable",
    ),
    (
        re.compile(r"Column families not opened"),
        Misuse,
        "the database has tables that this kind of store does not have",
    ),
    (re.compile(r"Invalid argument|Not implemented"), Misuse, "RocksDB refuses the call"),
    (re.compile(r"Shutdown in progress"), StoreClosed, "the database is being closed"),
    (re.compile(r""), HostFailure, "RocksDB failed: run again"),
)


def translate(error: Exception, where: object) -> StateStoreError | None:
    """Translate an error of the engine; None if it is a StateStoreError or not the engine's."""
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
    kind, meaning = next((kind, meaning) for rule, kind, meaning in _RULES if rule.search(text))
    return kind(f"{where}: {meaning}: {text}")
