"""Where exports lie: any file system fsspec knows, by URL; a plain path is a folder here.

The only module that talks to fsspec. What a file system needs besides its URL (credentials, an
endpoint) comes from its own variables (`AWS_*`) or from fsspec's (`FSSPEC_S3_ENDPOINT_URL` …), so
no secret passes through settings. Object stores take a file whole or not at all; elsewhere it is
written beside its place, made durable, and renamed.
"""

import errno
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec

from statestore.errors import HostFailure, Misuse, StateStoreError, Unavailable
from statestore.layout.files import sync_folder

_CHUNK = 4 << 20
_WHOLE = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory"})
"""Those that show a file only once it is written to its end."""
_OURS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EEXIST})
"""What only this machine's disk says, whatever the target."""


class FsspecTarget:
    """`ports.Target` on one file system of fsspec."""

    def __init__(self, url: str) -> None:
        """Misuse if nothing is known of such URLs, or the package for them is missing."""
        try:
            self._fs: Any
            self._fs, root = fsspec.core.url_to_fs(
                url, use_listings_cache=False, skip_instance_cache=True
            )
        except ImportError as error:
            raise Misuse(f"{url}: {error}; for s3:// install statestore[s3]") from error
        except ValueError as error:
            raise Misuse(f"{url} is no place for exports: {error}") from error
        protocol = self._fs.protocol
        names = {protocol} if isinstance(protocol, str) else set(protocol)
        self._local = "file" in names
        self._whole = bool(names & _WHOLE)
        self._root = root.rstrip("/")
        self.url = self._root if self._local else url.rstrip("/")

    def names(self, folder: str) -> dict[str, int]:
        """See `ports.Target`."""
        with self._asking(f"list {folder}"):
            try:
                found = self._fs.find(self._path(folder), detail=True)
            except FileNotFoundError:
                return {}
            begin = len(self._root) + 1
            return {path[begin:]: info["size"] for path, info in found.items()}

    def read(self, name: str) -> bytes | None:
        """See `ports.Target`."""
        with self._asking(f"read {name}"):
            try:
                data: bytes = self._fs.cat_file(self._path(name))
            except FileNotFoundError:
                return None
            return data

    def write(self, name: str, data: bytes) -> None:
        """See `ports.Target`."""
        with self._asking(f"write {name}"):
            if self._whole:
                self._fs.pipe_file(self._path(name), data)
                return
            # Known to nobody: what a death leaves is removed with what nobody lists.
            beside = f"{name}.{secrets.token_hex(4)}.tmp"
            with self._written(beside) as out:
                out.write(data)
            self._rename(beside, name)

    def put(self, source: Path, *, temporary: str, name_of: Callable[[str], str]) -> str:
        """See `ports.Target`."""
        digest = hashlib.sha256()
        with self._asking(f"write {temporary}"):
            with _opened(source) as file, self._written(temporary) as out:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
                    out.write(chunk)
            self._rename(temporary, name_of(digest.hexdigest()))
        return digest.hexdigest()

    def fetch(self, name: str, into: Path | None) -> str | None:
        """See `ports.Target`."""
        digest = hashlib.sha256()
        with self._asking(f"read {name}"):
            try:
                source = self._fs.open(self._path(name), "rb", cache_type="none")
            except FileNotFoundError:
                return None
            with source:
                if into is None:
                    while chunk := source.read(_CHUNK):
                        digest.update(chunk)
                    return digest.hexdigest()
                _copy(source, into, digest.update)
        return digest.hexdigest()

    def remove(self, names: Sequence[str]) -> None:
        """See `ports.Target`."""
        with self._asking("remove files"):
            for name in names:
                with suppress(FileNotFoundError):
                    self._fs.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextmanager
    def _written(self, name: str) -> Iterator[Any]:
        path = self._path(name)
        if not self._whole:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        with self._fs.open(path, "wb") as out:
            yield out
            if self._local:
                out.flush()
                os.fsync(out.fileno())

    def _rename(self, source: str, name: str) -> None:
        path = self._path(name)
        if not self._whole:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        if not self._local:
            self._fs.mv(self._path(source), path)
            return
        Path(self._path(source)).replace(path)
        sync_folder(Path(path).parent)

    @contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        """Errors of the file system as ours."""
        where = f"could not {doing} at {self.url}"
        try:
            yield
        except StateStoreError:
            raise
        except FileNotFoundError as error:
            raise Misuse(f"{where}: {error}: create the bucket or folder") from error
        except PermissionError as error:
            raise Misuse(f"{where}: {error}: allow it, or name another target") from error
        except OSError as error:
            if self._local or error.errno in _OURS:
                why = error.strerror or error
                raise HostFailure(f"{where}: {why}: free space or fix the volume") from error
            raise Unavailable(f"{where}: {error}: is it up and reachable?") from error
        except Exception as error:
            # What a file system's own client raises is of no common kind.
            kind = type(error).__name__
            if "Credential" in kind or "Param" in kind:
                raise Misuse(f"{where}: {kind}: {error}") from error
            raise Unavailable(f"{where}: {kind}: {error}: is it up and reachable?") from error


@contextmanager
def _opened(source: Path) -> Iterator[Any]:
    try:
        with source.open("rb") as file:
            yield file
    except FileNotFoundError as error:
        raise Unavailable(f"{source} is gone: its snapshot was removed; try again") from error


def _copy(source: Any, into: Path, saw: Callable[[bytes], object]) -> None:
    with into.open("xb") as out:
        while chunk := source.read(_CHUNK):
            saw(chunk)
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
