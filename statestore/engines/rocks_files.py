"""Copies a database from its files without opening it, because its owner may be alive.

RocksDB never changes a data file once the MANIFEST lists it, so data files become hard links, and
links into an export become links to the same place. All other files are copied. Writes that are in
memory or only in RocksDB's log are not copied.
"""

import errno
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from rocksdict import AccessType, Options, Rdict
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from statestore.engines.rocks_errors import translate
from statestore.errors import HostFailure, TaskCorrupted
from statestore.layout.files import read_whole
from statestore.layout.linked_files import COPYING, DATA

_LOG = ".log"
_NOT_COPIED = ("LOCK", "LOG", "MANIFEST-")
_ATTEMPTS = 10
_NAME_MAX = 4096
DESCRIPTION_MAX = 2 << 30
"""What no file of RocksDB but those with data exceeds: a file without end must not be read."""


def link_store(source: Path, target: Path, owner_dead: bool, /) -> None:  # noqa: FBT001  # a port
    """Copy `source` as of its last flush to `target`, consistently even if an owner is writing.

    If the owner is dead, the copy includes the writes in RocksDB's log. Files that are not a
    database are copied as they are: opening the copy reports what is wrong. HostFailure if the
    volume is at fault.
    """
    tries = Retrying(
        retry=retry_if_exception_type((FileNotFoundError, TaskCorrupted)),
        stop=stop_after_attempt(_ATTEMPTS),
        reraise=True,
    )
    try:
        tries(_link_once, source, target, with_log=owner_dead)
    except FileNotFoundError:
        # Files are missing although nobody writes. The database is damaged, and the copy must not
        # look like an empty folder.
        _copy_all(source, target)
    except TaskCorrupted:
        pass  # opening the copy raises the same error
    except OSError as error:
        raise HostFailure(f"cannot copy {source} to {target}: {error.strerror}") from error


def _link_once(source: Path, target: Path, *, with_log: bool) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    _link_data(source, target)
    current = read_whole(source / "CURRENT", _NAME_MAX)
    manifest = current.decode(errors="replace").strip()
    for path in source.iterdir():
        name = path.name
        wanted = name == manifest or not name.startswith(_NOT_COPIED)
        if path.suffix in (*DATA, COPYING) or not wanted or not path.is_file():
            continue
        if path.suffix != _LOG or with_log:
            _copy(path, target / name)
    (target / manifest).stat()
    (target / "CURRENT").write_bytes(current)
    # Link the data files that were written between the first listing and the MANIFEST.
    _link_data(source, target)
    _drop_unlisted(target)


def _link_data(source: Path, target: Path) -> None:
    for path in source.iterdir():
        if path.suffix in DATA and path.is_file() and not (target / path.name).exists():
            _link(path, target / path.name)


def _link(path: Path, target: Path) -> None:
    try:
        if path.is_symlink():  # into an export
            target.symlink_to(path.readlink())
            return
        os.link(path, target)
    except FileNotFoundError:
        raise
    except OSError:
        # The volume has no hard links. Exports recognize a data file by its time.
        shutil.copy2(path, target)


def _copy(path: Path, target: Path) -> None:
    if path.suffix not in DATA and path.stat().st_size > DESCRIPTION_MAX:
        raise OSError(errno.EFBIG, f"{path.name} is not a file of RocksDB, which are smaller")
    shutil.copyfile(path, target)


def _drop_unlisted(target: Path) -> None:
    """Remove data files that the MANIFEST does not list, such as one that is being written.

    The new owner would use the number of that file again, and both would write into one file.
    """
    names = _listed(target)
    for path in target.iterdir():
        if path.suffix == ".sst" and path.name not in names:
            path.unlink()


def _listed(folder: Path) -> Collection[str]:
    try:
        families = Rdict.list_cf(str(folder), Options(raw_mode=True))
        described = {name: Options(raw_mode=True) for name in families}
        db = Rdict(str(folder), Options(raw_mode=True), described, AccessType.read_only())
    except Exception as error:
        raise translate(error, folder) or error from error
    try:
        return {Path(file["name"]).name for file in db.live_files()}
    finally:
        db.close()


def _copy_all(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    try:
        target.mkdir()
        for path in source.iterdir():
            if path.is_file() and path.name != "LOCK":
                _copy(path, target / path.name)
    except OSError as error:
        raise HostFailure(f"cannot copy {source} to {target}: {error.strerror}") from error
