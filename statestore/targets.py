"""Export targets and the files of lookups on any file system that fsspec supports, by URL.

A plain path is a local folder or file.

This is the only module that uses fsspec. Credentials and endpoints come from the variables of the
file system (`AWS_*`) or of fsspec (`FSSPEC_S3_ENDPOINT_URL` …), so no secret passes through
settings. Object stores write a file whole or not at all; on other file systems a file is written
under a temporary name, made durable and renamed.
"""

import errno
import hashlib
import os
import re
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from statestore.errors import HostFailure, Misuse, StateStoreError, Unavailable
from statestore.extras import install_command
from statestore.layout.files import NotAFile, opener, read_whole, sync_folder
from statestore.ports import FileRead

_CHUNK = 4 << 20
"""What is read at once of a remote file, by a request each."""
_BUFFER = 1 << 20
"""What is read at once of a local file; more would not stay in the processor's cache."""
_TRIES = 5
_READ_MAX = 256 << 20
"""More than the largest manifest has."""
_WHOLE = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory"})
"""Protocols that show a file only once it is written completely."""
_CONTAINERS = frozenset({"abfs", "abfss", "wasb", "wasbs"})
"""Schemes whose URLs have a container's name before an @."""
_MOMENT = ("size", "ETag", "etag", "LastModified", "last_modified", "mtime", "ino", "created")
"""What file systems say of a file that is another after it was written."""
_OURS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EEXIST})
"""Errors that only this machine's disk raises, whatever the target."""


class Address(NamedTuple):
    """A URL in the form that may be shown, and the secrets that it contains."""

    shown: str
    secrets: tuple[str, ...] = ()

    @classmethod
    def of(cls, url: str) -> "Address":
        """Treat passwords, tokens and query strings as secrets, but not a container's name."""
        scheme, separator, rest = url.partition("://")
        if not separator:
            return cls(url)
        rest, query_mark, query = rest.partition("?")
        secrets = [query] if query else []
        if query:
            secrets += [part.partition("=")[2] for part in query.split("&")]
        authority = rest.partition("/")[0]
        user, at, _ = authority.rpartition("@")
        if not at and ":" in authority:
            user, at, _ = rest.rpartition("@")  # a password with a slash in it
        if at and (":" in user or scheme not in _CONTAINERS):
            rest = f"***{rest[len(user) :]}"
            secrets += [user, *re.split(r"[:/@]", user)[1:]]
        shown = f"{scheme}://{rest}" + ("?***" if query_mark else "")
        return cls(shown, tuple(sorted({one for one in secrets if one}, key=len, reverse=True)))

    def clean(self, text: str) -> str:
        """Return the text with its secrets replaced by `***`."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def fixed(url: str) -> str:
    """Return a URL that does not depend on the working folder: local paths become absolute."""
    scheme, separator, _ = url.partition("://")
    if separator and scheme not in {"file", "local"}:
        return url
    return FsspecTarget(url).url


class FsspecTarget:
    """`ports.Target` on one file system of fsspec."""

    def __init__(self, url: str, use: str = "an export target") -> None:
        """Open the file system of `url`, which is to be used as `use`.

        Misuse if no file system is known for it or its package is missing; Unavailable if the file
        system has to be reached and does not answer.
        """
        import fsspec

        self._address = Address.of(url)
        shown = self._address.shown
        try:
            self._fs: Any
            self._fs, root = fsspec.core.url_to_fs(
                url, use_listings_cache=False, skip_instance_cache=True
            )
        except ImportError as error:
            way_out = f": {install_command('s3')}" if url.startswith("s3") else ""
            self._fail(Misuse, f"{shown}: {error}{way_out}", error)
        except (ConnectionError, TimeoutError, socket.gaierror) as error:
            self._fail(Unavailable, f"{shown}: {error}: is it up and reachable?", error)
        except Exception as error:  # noqa: BLE001  # what a file system's own client raises
            self._fail(Misuse, f"{shown} cannot be used as {use}: {error}", error)
        protocol = self._fs.protocol
        names = {protocol} if isinstance(protocol, str) else set(protocol)
        self._local = "file" in names
        self._whole = bool(names & _WHOLE)
        self._root = root.rstrip("/")
        self.lasting = "memory" not in names
        """Whether other processes see it and it outlives this one."""
        self.url = self._root if self._local else shown.rstrip("/")
        """The URL without passwords and tokens."""
        if "\0" in self._root:
            raise Misuse(f"{self.url!r} cannot be used as {use}: it has a zero byte")

    @property
    def folder(self) -> Path | None:
        """See `ports.Target`."""
        return Path(self._root) if self._local else None

    def names(self, folder: str) -> dict[str, int]:
        """See `ports.Target`."""
        with self._asking(f"list {folder}"):
            try:
                found = self._fs.find(self._path(folder), detail=True)
            except FileNotFoundError:
                return {}
            begin = len(self._root) + 1
            # A FIFO or a device is not a file that anybody exported.
            return {
                path[begin:]: info["size"] for path, info in found.items() if info["type"] == "file"
            }

    def read(self, name: str) -> bytes | None:
        """See `ports.Target`."""
        with self._asking(f"read {name}"):
            try:
                if self._local:
                    return read_whole(self._path(name), _READ_MAX)
                data: bytes = self._fs.cat_file(self._path(name))
            except (FileNotFoundError, NotAFile):
                return None
            return data

    def write(self, name: str, data: bytes) -> None:
        """See `ports.Target`."""
        with self._asking(f"write {name}"):
            if self._whole:
                self._fs.pipe_file(self._path(name), data)
                return
            for left in reversed(range(_TRIES)):
                # If the process dies here, a prune removes this file, as no manifest lists it. One
                # that is under way may do so before that, too: then it is written again.
                beside = f"{name}.{secrets.token_hex(4)}.tmp"
                with self._written(beside) as out:
                    out.write(data)
                try:
                    self._rename(beside, name)
                except FileNotFoundError:
                    if not left:
                        raise
                else:
                    break

    def put(self, source: Path, *, temporary: str, name_of: Callable[[str], str]) -> str:
        """See `ports.Target`."""
        digest = hashlib.sha256()
        with self._asking(f"write {temporary}"):
            with _opened(source) as file, self._written(temporary) as out:
                for chunk in _chunks(file, sys.maxsize, local=True):
                    digest.update(chunk)
                    # The client of a remote file system may keep what it is given.
                    out.write(chunk if self._local else bytes(chunk))
            self._rename(temporary, name_of(digest.hexdigest()))
        return digest.hexdigest()

    def fetch(self, name: str, into: Path | None, *, bytes_max: int) -> str | None:
        """See `ports.Target`."""
        digest = hashlib.sha256()
        with self._asking(f"read {name}"):
            try:
                source = self._opened(self._path(name))
            except (FileNotFoundError, NotAFile):
                return None
            with source:
                chunks = _chunks(source, bytes_max, local=self._local)
                if into is None:
                    for chunk in chunks:
                        digest.update(chunk)
                    return digest.hexdigest()
                _copy(chunks, into, digest.update)
        return digest.hexdigest()

    def read_root(self, bytes_max: int) -> FileRead:
        """Return the file that the URL itself names; see `ports.ReadFile`."""
        with self._asking("read the file"):
            try:
                before = self._moment()
                size = before.get("size")
                if isinstance(size, int) and size > bytes_max:
                    raise Misuse(_too_large(self.url, size, bytes_max))
                data: bytes = (
                    read_whole(self._root, bytes_max)
                    if self._local
                    else self._fs.cat_file(self._root)
                )
                after = self._moment()
            except (FileNotFoundError, IsADirectoryError) as error:
                self._fail(Misuse, f"there is no file {self.url}: write it, or mend the URL", error)
        if len(data) > bytes_max:
            raise Misuse(_too_large(self.url, len(data), bytes_max))
        if before != after or size not in (None, len(data)):
            raise Unavailable(
                f"{self.url} changed while it was read: write another file beside it, and rename "
                "that one"
            )
        return FileRead(data, _tag_of(after))

    def _moment(self) -> dict[str, Any]:
        told = self._fs.info(self._root)
        if told.get("type") == "directory":
            raise IsADirectoryError(self.url)
        return {name: told[name] for name in _MOMENT if name in told}

    def move(self, source: str, name: str) -> bool:
        """See `ports.Target`."""
        with self._asking(f"move {source}"):
            try:
                self._rename(source, name)
            except FileNotFoundError:
                return False
            return True

    def remove(self, names: Sequence[str]) -> None:
        """See `ports.Target`."""
        with self._asking("remove files"):
            for name in names:
                with suppress(FileNotFoundError):
                    self._fs.rm_file(self._path(name))

    def _opened(self, path: str) -> Any:
        if self._local:
            return open(path, "rb", buffering=0, opener=opener)
        return self._fs.open(path, "rb", cache_type="none")

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
        """Translate errors of the file system into StateStoreErrors."""
        where = f"could not {doing} at {self.url}"
        try:
            yield
        except StateStoreError:
            raise
        except FileNotFoundError as error:
            self._fail(Misuse, f"{where}: {error}: create the bucket or folder", error)
        except PermissionError as error:
            self._fail(Misuse, f"{where}: {error}: allow it, or name another target", error)
        except NotImplementedError as error:
            self._fail(Misuse, f"{where}: it is read-only: name another target", error)
        except OSError as error:
            if self._local or error.errno in _OURS:
                why = error.strerror or error
                self._fail(HostFailure, f"{where}: {why}: free space or fix the volume", error)
            self._fail(Unavailable, f"{where}: {error}: is it up and reachable?", error)
        except Exception as error:  # noqa: BLE001  # what a file system's own client raises
            kind = type(error).__name__
            if "Credential" in kind or "Param" in kind:
                self._fail(Misuse, f"{where}: {kind}: {error}", error)
            self._fail(Unavailable, f"{where}: {kind}: {error}: is it up and reachable?", error)

    def _fail(self, kind: type[StateStoreError], message: str, cause: Exception) -> NoReturn:
        """Raise the error without the address's secrets, and without a cause that may show them."""
        cleaned = self._address.clean(message)
        raise kind(cleaned) from (None if self._address.secrets else cause)


def read_file(url: str, bytes_max: int) -> FileRead:
    """See `ports.ReadFile`."""
    return FsspecTarget(url, "the file of a lookup").read_root(bytes_max)


def _tag_of(moment: dict[str, Any]) -> str:
    found = (moment.get(name) for name in ("ETag", "etag", "LastModified", "last_modified"))
    tag = next((str(one).strip('"') for one in found if one), "")
    mtime = moment.get("mtime")
    if not tag and isinstance(mtime, float | int):
        tag = datetime.fromtimestamp(mtime, UTC).isoformat(timespec="milliseconds")
    return tag or str(moment.get("created", ""))


def _too_large(url: str, size: int, bytes_max: int) -> str:
    return (
        f"{url} has {size} bytes, more than the {bytes_max} that a lookup may have: write its rows "
        "into a topic, and read that with global_table()"
    )


@contextmanager
def _opened(source: Path) -> Iterator[Any]:
    try:
        with open(source, "rb", buffering=0, opener=opener) as file:
            yield file
    except FileNotFoundError as error:
        raise Unavailable(f"{source} is gone: its snapshot was removed; try again") from error


def _chunks(source: Any, bytes_max: int, *, local: bool) -> Iterator[memoryview]:
    """Yield the content; of what is larger, one byte more than it may have.

    What is yielded of a local file is valid until the next one.
    """
    left = bytes_max + 1
    if not local:
        while left and (chunk := source.read(min(_CHUNK, left))):
            left -= len(chunk)
            yield memoryview(chunk)
        return
    # A new buffer for each chunk would cost more than the copy: the kernel zeroes its pages.
    buffer = memoryview(bytearray(_BUFFER))
    while left and (length := source.readinto(buffer[: min(_BUFFER, left)])):
        left -= length
        yield buffer[:length]


def _copy(chunks: Iterator[memoryview], into: Path, saw: Callable[[memoryview], object]) -> None:
    with into.open("xb") as out:
        for chunk in chunks:
            saw(chunk)
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
