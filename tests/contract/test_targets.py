"""Where exports lie: one contract for a folder, for memory, and for S3 on a server of its own."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from statestore.errors import ExportDamaged, HostFailure, Misuse, Unavailable
from statestore.layout.activity_files import NoProgress
from statestore.operations.exports.catalog import SMALL, Retention, sha256_of
from statestore.targets import FsspecTarget
from tests.builders import child
from tests.contract.export_rig import ExportRig
from tests.relocation_rig import in_memory_folder

BIG = 9 << 20
"""More than is read into memory whole, and than one part of an upload."""

SERVING = """
import logging, sys
from werkzeug.serving import make_server
from moto.server import DomainDispatcherApplication, create_backend_app
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.port, flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The endpoint of a local S3 with a bucket `exports`."""
    with child(SERVING) as server, pytest.MonkeyPatch.context() as patch:
        try:
            assert server.stdout is not None
            endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"
            patch.setenv("AWS_ENDPOINT_URL", endpoint)
            patch.setenv("AWS_ACCESS_KEY_ID", "tests")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
            patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
            patch.setenv("NO_PROXY", "127.0.0.1")
            fsspec.filesystem("s3", skip_instance_cache=True).mkdir("exports")
            yield endpoint
        finally:
            server.kill()


@pytest.fixture(params=["folder", "memory", "s3"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> FsspecTarget:
    name = re.sub(r"\W", "-", request.node.name)
    match request.param:
        case "folder":
            return FsspecTarget(str(tmp_path / "exports"))
        case "memory":
            return FsspecTarget(f"memory://{name}")
        case _:
            request.getfixturevalue("s3")
            return FsspecTarget(f"s3://exports/{name}")


def test_what_is_written_is_read_listed_replaced_and_removed(target: FsspecTarget) -> None:
    assert target.read("a/b.json") is None
    assert target.names("a") == {}
    target.write("a/b.json", b"one")
    target.write("a/b.json", b"another")
    target.write("a/c/d", b"")
    assert target.read("a/b.json") == b"another"
    assert target.names("a") == {"a/b.json": 7, "a/c/d": 0}
    target.remove(["a/b.json", "a/nothing"])
    assert target.names("a") == {"a/c/d": 0}
    assert target.names("elsewhere") == {}
    target.write("a/other", b"replaced")
    assert target.move("a/c/d", "a/other")
    assert target.names("") == {"a/other": 0}
    assert not target.move("a/c/d", "a/more")
    assert target.names("") == {"a/other": 0}


@pytest.mark.parametrize("removals", [1, 4, 5])
def test_a_file_that_a_prune_removes_before_it_has_its_name_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removals: int
) -> None:
    target = FsspecTarget(str(tmp_path / "exports"))
    renamed, seen = target._rename, []

    def removed_first(source: str, name: str) -> None:
        seen.append(source)
        if len(seen) <= removals:
            target.remove([source])
        renamed(source, name)

    monkeypatch.setattr(target, "_rename", removed_first)
    if removals == 5:
        with pytest.raises(Misuse, match=r"could not write a/lease\.json at"):
            target.write("a/lease.json", b"mine")
    else:
        target.write("a/lease.json", b"mine")
        assert target.read("a/lease.json") == b"mine"
        assert list(target.names("a")) == ["a/lease.json"]
    assert len(seen) == len(set(seen)) == min(removals + 1, 5)


def test_a_big_file_is_kept_under_what_its_checksum_gives(
    target: FsspecTarget, tmp_path: Path
) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    data = os.urandom(BIG)
    source.write_bytes(data)
    digest = target.put(source, temporary="uploads/1", name_of=lambda sha: f"files/{sha}")
    assert digest == sha256_of(data)
    assert target.names("") == {f"files/{digest}": BIG}
    assert target.fetch(f"files/{digest}", copy, bytes_max=BIG) == digest
    assert copy.read_bytes() == data
    assert target.fetch(f"files/{digest}", None, bytes_max=BIG) == digest
    assert target.fetch("files/nothing", None, bytes_max=BIG) is None
    assert target.fetch(f"files/{digest}", None, bytes_max=BIG - 2) != digest
    with pytest.raises(HostFailure, match="exist"):
        target.fetch(f"files/{digest}", copy, bytes_max=BIG)


def test_a_source_that_is_gone_says_so(target: FsspecTarget, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="its snapshot was removed"):
        target.put(tmp_path / "gone", temporary="t", name_of=str)


def test_exports_to_it_are_incremental_verified_restored_and_pruned(
    target: FsspecTarget,
) -> None:
    with in_memory_folder() as folder:
        rig = ExportRig(folder, elsewhere=target)
        rig.send(*((f"k{n}", os.urandom(20_000).hex()) for n in range(300)))
        rig.drain()
        first = rig.export()
        assert first.bytes_uploaded > SMALL, "some of it goes up in parts"
        assert rig.export().files_uploaded == 0
        rig.send(("k1", "new"))
        rig.drain()
        assert 0 < rig.export().bytes_uploaded < 100_000
        rig.exports.verify(rig.exports.read(first.export_id), NoProgress())
        rig.lose_volume()
        assert len(rig.restore().placed) == 2
        assert rig.exported()[b"k1"] == b"new"
        assert len(rig.exports.prune(Retention(1)).removed) == 2
        assert set(rig.exports.contents()) == set(rig.exports.read().files())
        assert not [name for name in target.names("") if "/uploads/" in name]


def test_what_is_damaged_there_is_set_aside_and_repaired_by_the_next_export(
    target: FsspecTarget,
) -> None:
    with in_memory_folder() as folder:
        rig = ExportRig(folder, elsewhere=target)
        rig.send(("a", "1"))
        rig.drain()
        first = rig.export().export_id
        sizes = rig.exports.contents()
        name = rig.exports.content(max(sizes, key=lambda sha256: sizes[sha256]))
        content = target.read(name)
        assert content
        target.write(name, bytes(len(content)))
        with pytest.raises(ExportDamaged, match="was set aside"):
            rig.exports.verify(rig.exports.read(), NoProgress())
        assert target.read(name) is None
        kept = [one for one in target.names("") if "/damaged/" in one]
        assert [target.read(one) for one in kept if not one.endswith(".json")] == [
            bytes(len(content))
        ]
        assert len(kept) == 2
        assert rig.export().files_uploaded == 1
        for export_id in rig.exports.ids():
            rig.exports.verify(rig.exports.read(export_id), NoProgress())
        assert rig.exports.ids()[0] == first


def test_a_bucket_that_is_not_there_and_a_server_that_is_not(s3: str) -> None:
    with pytest.raises(Misuse, match="create the bucket"):
        FsspecTarget("s3://nowhere/a").write("b", b"c")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        patch.setenv("AWS_MAX_ATTEMPTS", "1")
        with pytest.raises(Unavailable, match="is it up and reachable"):
            FsspecTarget("s3://exports/a").write("b", b"c")


@pytest.mark.parametrize("url", ["nowhere://a", "adl://x"])
def test_a_url_of_no_known_kind_is_refused(url: str) -> None:
    with pytest.raises(Misuse, match=re.escape(url)):
        FsspecTarget(url).names("")
