"""The folder grammar, its files, and what appears there atomically."""

import json
import os
import stat
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import HostFailure, Locked, Misuse
from statestore.layout import owners
from statestore.layout.files import publish, read_checkpoint, remove, write_checkpoint
from statestore.layout.folders import StateLayout, check_store_name
from statestore.model.ids import TaskId, TopicPartition
from tests.builders import ManualClock, child

TASK = TaskId(0, 3)


@pytest.fixture
def layout(tmp_path: Path) -> StateLayout:
    return StateLayout(tmp_path / "state", "shop")


def make_store(layout: StateLayout, task: TaskId, store: str, content: str = "rows") -> Path:
    path = layout.store_dir(task, store)
    layout.create(path)
    (path / "CURRENT").write_text(content, encoding="utf-8")
    return path


# Paths.


def test_paths_follow_the_grammar_of_kafka_streams(layout: StateLayout) -> None:
    root = layout.state_dir
    assert layout.task_dir(TASK) == root / "shop" / "0_3"
    assert layout.store_dir(TASK, "prices") == root / "shop" / "0_3" / "rocksdb" / "prices"
    assert layout.topology_file == root / "shop" / "topology.json"
    assert not root.exists()


def test_a_folder_is_removed_while_others_write_into_it_and_take_back(tmp_path: Path) -> None:
    ending = threading.Event()
    folder = tmp_path / "0_3"

    def ask() -> None:
        request = folder / "requests" / "mine"
        while not ending.is_set():
            with suppress(OSError):
                request.touch()
                request.unlink()

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    try:
        for _ in range(200):
            (folder / "requests").mkdir(parents=True)
            remove(folder, "do it again")
            assert not folder.exists()
    finally:
        ending.set()
        for thread in asking:
            thread.join()


def test_who_wants_to_be_alone_waits_for_a_reader_that_copies(layout: StateLayout) -> None:
    folder = layout.task_dir(TASK)
    layout.create(folder)
    with ExitStack() as copying:
        copying.enter_context(owners.at_rest(folder, what="task 0_3", wait_ms=0))
        done = threading.Timer(0.3, copying.close)
        done.start()
        with layout.alone(wait_ms=0, clock=ManualClock()):
            done.join()


def test_who_wants_to_be_alone_is_told_of_an_owner_that_stays(layout: StateLayout) -> None:
    folder = layout.task_dir(TASK)
    layout.create(folder)
    held = owners.claim(folder, what="task 0_3", wait_ms=0, clock=ManualClock())
    alone = layout.alone(wait_ms=0, clock=ManualClock())
    with pytest.raises(Locked, match=r"task 0_3 .*is owned by process"), alone:
        pass
    held.release()


def test_tasks_and_stores_on_disk_are_listed_in_order(layout: StateLayout) -> None:
    assert list(layout.tasks()) == []
    assert layout.stores(TASK) == []
    for task in (TaskId(1, 0), TaskId(0, 10), TaskId(0, 9)):
        make_store(layout, task, "prices")
    make_store(layout, TaskId(0, 9), "counts")
    layout.create(layout.application_dir / "quarantine")
    (layout.application_dir / "7_7").write_text("no folder", encoding="utf-8")
    assert list(layout.tasks()) == [TaskId(0, 9), TaskId(0, 10), TaskId(1, 0)]
    assert layout.stores(TaskId(0, 9)) == ["counts", "prices"]


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 200, "a.", "-", "KSTREAM-0000000002"])
def test_store_names_are_folder_and_topic_names(name: str) -> None:
    assert check_store_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", ".a", "a/b", "a b", "x" * 201, "a\n", "é", "a\0"])
def test_other_store_names_are_refused(name: str) -> None:
    with pytest.raises(Misuse, match="1 to 200"):
        check_store_name(name)


def test_a_state_dir_that_cannot_be_made_says_which_and_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file", encoding="utf-8")
    layout = StateLayout(tmp_path / "state", "shop")
    with pytest.raises(HostFailure, match=r"cannot create.*another --state-dir"):
        layout.create(layout.task_dir(TASK))


# publish


def test_a_published_file_is_seen_whole_by_readers_at_any_time(tmp_path: Path) -> None:
    path, seen, stop = tmp_path / "owner.json", set(), threading.Event()
    contents = [bytes([letter]) * 50_000 for letter in b"ab"]
    publish(path, contents[0])

    def read() -> None:
        while not stop.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(200):
        publish(path, contents[i % 2])
    stop.set()
    reader.join()
    assert seen <= set(contents)


PUBLISHING = """
import itertools, json, sys
from pathlib import Path
from statestore.layout.files import publish
for number in itertools.count():
    publish(Path(sys.argv[1]), json.dumps({"number": number, "pad": "x" * 20_000}).encode())
    print(number, flush=True)
"""


def test_a_published_file_is_whole_after_its_writer_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "owner.json"
    for kill in range(4):
        with child(PUBLISHING, path) as writer:
            assert writer.stdout is not None
            published = [int(writer.stdout.readline()) for _ in range(3 + 5 * kill)]
            writer.kill()
        assert json.loads(path.read_bytes())["number"] >= published[-1]


@pytest.mark.parametrize("target", ["absent/owner.json", "folder"])
def test_a_file_that_cannot_be_published_is_the_machines_fault(tmp_path: Path, target: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(HostFailure, match=r"cannot write .*free space or fix the volume"):
        publish(tmp_path / target, b"data")


# .checkpoint

TOPICS = st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True)
OFFSETS = st.dictionaries(
    st.builds(TopicPartition, TOPICS, st.integers(0, 1000)), st.integers(-4, 2**63 - 1)
)


def test_checkpoints_round_trip(tmp_path: Path) -> None:
    @given(OFFSETS)
    def round_trip(offsets: dict[TopicPartition, int]) -> None:
        write_checkpoint(tmp_path, offsets)
        assert read_checkpoint(tmp_path) == offsets

    round_trip()


def test_a_checkpoint_is_kafka_streams_text_version_0(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {TopicPartition("b-changelog", 1): 5, TopicPartition("a", 0): 41})
    text = (tmp_path / ".checkpoint").read_text(encoding="utf-8")
    assert text == "0\n2\na 0 41\nb-changelog 1 5\n"


def test_no_checkpoint_means_no_offsets_and_an_empty_one_too(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path) == {}
    write_checkpoint(tmp_path, {})
    assert read_checkpoint(tmp_path) == {}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"0\n",
        b"1\n0\n",
        b"0\n1\n",
        b"0\n1\nt 0 5\nt 1 5\n",
        b"0\n2\nt 0 5\n",
        b"0\n1\nt 0\n",
        b"0\n1\nt 0 5 6\n",
        b"0\n1\nt zero 5\n",
        b"0\n1\nt 0 five\n",
        b"zero\n0\n",
        b"0\n2\nt 0 5\nt 0 6\n",
        b"0\n1\n\xff 0 5\n",
        bytes(100),
    ],
)
def test_a_malformed_checkpoint_is_refused_with_its_path_never_read_in_part(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / ".checkpoint").write_bytes(content)
    with pytest.raises(HostFailure, match=r"\.checkpoint is not a version 0 checkpoint.*remove it"):
        read_checkpoint(tmp_path)


# Quarantine (S16).


def test_quarantine_renames_a_store_under_its_name_time_and_reason(layout: StateLayout) -> None:
    path = make_store(layout, TASK, "prices", "the rows")
    target = layout.quarantine(path, "prices", "unreadable", ManualClock(1_700_000_000_123))
    assert target == layout.application_dir / "quarantine" / "prices-1700000000123-unreadable"
    assert (target / "CURRENT").read_text(encoding="utf-8") == "the rows"
    assert not path.exists()


def test_quarantine_never_overwrites_what_is_there(layout: StateLayout) -> None:
    clock = ManualClock()
    targets = [
        layout.quarantine(
            make_store(layout, TaskId(0, p), "prices", str(p)), "prices", "why", clock
        )
        for p in range(3)
    ]
    assert len(set(targets)) == 3
    contents = [(target / "CURRENT").read_text(encoding="utf-8") for target in targets]
    assert contents == ["0", "1", "2"]


def test_a_store_that_cannot_be_renamed_is_the_machines_fault(layout: StateLayout) -> None:
    with pytest.raises(HostFailure, match="prices"):
        layout.quarantine(layout.store_dir(TASK, "prices"), "prices", "why", ManualClock())


def test_the_folder_of_an_application_is_closed_to_other_users(tmp_path: Path) -> None:
    layout = StateLayout(tmp_path / "state", "shop")
    umask = os.umask(0)
    try:
        layout.create(layout.task_dir(TaskId(0, 0)))
    finally:
        os.umask(umask)
    assert stat.S_IMODE(layout.application_dir.stat().st_mode) == 0o750
    layout.application_dir.chmod(0o755)
    layout.create(layout.application_dir / "audits")
    assert stat.S_IMODE(layout.application_dir.stat().st_mode) == 0o755
