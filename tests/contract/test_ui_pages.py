"""The page over HTTP: real stores, exports and audits, and whatever people type into it."""

import html
import json
import re
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

import statestore as ss
from statestore import serdes
from statestore.layout.activity_files import Activities, ActivityNote, Unit
from statestore.layout.audits import AuditRecord, Audits, AuditVerdict
from statestore.layout.folders import StateLayout
from statestore.layout.owners import Owner
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.records import Record
from statestore.operations.running.run import RunRequest
from statestore.operations.running.runner import serve_here, start_run
from statestore.ports import TopicSpec
from statestore.runtime import Runtime, SystemClock
from statestore.testing.memory_broker import MemoryBroker
from statestore.topology.graph import Topology
from statestore.ui import pages
from statestore.ui.polling import Poller, applications_of
from statestore.ui.site import application, routes_of
from tests.builders import DEADLINE_S, ManualClock, eventually
from tests.contract import own_serdes
from tests.ui_rig import HOSTILE, NAMES, filled, misplaced, told_of

PATH = "/applications/a"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("page")
    told_of(made / "state", "orders")
    sections = "".join(
        f'[applications.{name}]\nstate_dir = "state"\n'
        for name in ["orders", *(f"other-{i:02}" for i in range(60))]
    )
    (made / "statestore.toml").write_text(sections)
    return made


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[TestClient]:
    lookout = Poller(applications_of(folder / "statestore.toml", folder), SystemClock())
    with TestClient(application(lookout, frozenset({"testserver"}))) as client:
        yield client
    lookout.close()


def shown(page: TestClient, path: str) -> str:
    """The page at a path, once it was looked for."""
    found: list[str] = []

    def is_there() -> bool:
        answer = page.get(path)
        assert answer.status_code == 200, answer.text
        found.append(answer.text)
        return "looking …" not in answer.text

    eventually(is_there, path)
    return found[-1]


def cells(text: str) -> list[list[str]]:
    """The rows of the table of rows."""
    rows = re.findall(r"<tr>(.*?)</tr>", text.partition('class="rows')[2], re.DOTALL)
    each = [re.findall(r"<code>(.*?)</code>", row, re.DOTALL) for row in rows]
    return [[html.unescape(cell) for cell in row] for row in each if row]


def test_the_overview_has_the_three_answers_of_every_application(page: TestClient) -> None:
    text = shown(page, "/?search=orders")
    assert ">orders</a>" in text
    for question in ("Am I behind?", "Is my data right?", "How long until I am back?"):
        assert question in text
    assert 'chip bad">no<' in text, "the audit was wrong"
    assert "1,000 records in the last 15 minutes" in text


def test_many_applications_come_in_pages_and_can_be_searched(page: TestClient) -> None:
    assert "page 1 of 3, 61 in all" in shown(page, "/")
    assert ">other-59</a>" in shown(page, "/?page=3")
    assert ">other-59</a>" in shown(page, "/?page=999")
    assert ">other-00</a>" in shown(page, "/?page=x&search=OTHER")
    nothing = page.get("/", params={"search": HOSTILE}).text
    assert "No application has" in nothing
    assert "<img" not in nothing


def test_an_application_is_told_with_all_that_is_known_of_it(page: TestClient) -> None:
    text = shown(page, "/applications/orders")
    for part in ("0_0", "0_1", "names", "rates", "versioned", "commit.begin", "42"):
        assert part in text, part
    assert "Sub-topology 0 → totals" in text
    graph = json.loads(html.unescape(re.findall(r'data-graph="(.*?)"', text)[0]))
    assert [box["name"] for box in graph["boxes"]] == ["orders", "Sub-topology 0", "totals"]
    assert [store["name"] for store in graph["boxes"][1]["stores"]] == ["names", "rates"]
    charts = json.loads(html.unescape(re.findall(r'data-charts="(.*?)"', text)[0]))
    assert len(charts["times"]) == len(charts["rate"]) == len(charts["phases"]["commit"]) == 15
    assert "values, 3 rows" in text
    assert HOSTILE not in text
    assert html.escape(HOSTILE) in text.replace("&#34;", "&quot;")


def test_records_that_wait_are_told_by_store_beside_an_input_that_is_done(tmp_path: Path) -> None:
    layout = filled(tmp_path / "state", "own")
    for partition, held in enumerate(
        [{"near-buffer": 1200, "fewer-buffer": 3}, {"near-buffer": 4}]
    ):
        note = {"held_records": sum(held.values()), "held": held}
        (layout.task_dir(TaskId(0, partition)) / "progress.json").write_text(json.dumps(note))
    lookout, page = serving_of(tmp_path / "state", None)
    with page:
        text = shown(page, "/applications/own")
    lookout.close()
    told = "1,207 records wait in operators for later input: near-buffer 1,204, fewer-buffer 3"
    assert told in text


def test_what_the_last_run_and_all_runs_left_out_is_told(tmp_path: Path) -> None:
    layout = filled(tmp_path / "state", "own")
    run = {"records_in": 3600, "left_out": {f"dropped/late/{HOSTILE}": 2700}}
    every = {"records_in": 7200, "left_out": {f"dropped/late/{HOSTILE}": 2701}}
    sums = {"serving": "run-1-0_0", "since_ms": 1, "in_run": run, "in_all": every}
    (layout.task_dir(TaskId(0, 0)) / "progress.json").write_text(json.dumps({"sums": sums}))
    layout.nonce_file.write_text("run")
    lookout, page = serving_of(tmp_path / "state", None)
    with page:
        text = shown(page, "/applications/own")
    lookout.close()
    late = re.search(r'counter care"><dt[^>]*>Late</dt><dd><strong>(.*?)</strong>(.*?)<span', text)
    assert late is not None
    assert late.groups() == ("2,700", "<small>2,701 in all runs</small>")
    assert ">Dead letters</dt><dd><strong>0</strong>" in text
    assert "<strong>Dropped</strong> 2,700 of 3,600 records, 75 %: late, node &lt;img" in text
    assert "<strong>All runs</strong> 2,701 dropped of 7,200 records since 1970-01-01T" in text
    assert HOSTILE not in text


def merged() -> Topology:
    """A sub-topology with two inputs and two outputs, and one that counts."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    bids = b.stream("bids")
    both = bids.merge(b.stream("asks"))
    both.to("all")
    bids.to("copies")
    by_value = both.select_key(lambda _key, value: str(value)).repartition("by-value")
    by_value.group_by_key().count(materialized="counts")
    return b.build()


def run(runtime: Runtime, broker: MemoryBroker, **counts: int) -> None:
    """Send so many records to topics, and process them with `merged`."""
    for topic, count in counts.items():
        for number in range(count):
            broker.produce(TopicPartition(topic, 0), Record(b"k", b"%d" % number, number))
    with start_run(runtime, merged(), RunRequest()) as started:
        serve_here(started, threading.Event())


def edges_of(state_dir: Path) -> dict[str, str]:
    """The edges of the graph, and the figures that they have."""
    known = {"application.id": "a", "state.dir": str(state_dir)}
    lookout = Poller(lambda: {"a": lambda: Runtime(known)}, SystemClock())
    try:
        text = shown(TestClient(application(lookout, frozenset({"testserver"}))), "/applications/a")
    finally:
        lookout.close()
    listed = re.findall(r"<li>([^<]+ → [^<]+?)(?: <small>(.*?)</small>)?</li>", text)
    found: dict[str, str] = dict(listed)
    graph = json.loads(html.unescape(re.findall(r'data-graph="(.*?)"', text)[0]))
    names = {box["id"]: box["name"] for box in graph["boxes"]}
    assert {f"{names[a]} → {names[b]}": note for a, b, note in graph["edges"]} == found
    return found


def test_the_edges_of_topics_have_their_records_per_second(tmp_path: Path) -> None:
    broker, clock = MemoryBroker(), ManualClock()
    topics = [TopicSpec(name, 1, {}) for name in ("bids", "asks", "all", "copies")]
    broker.cluster("a").create(topics)
    settings = {
        "application.id": "a",
        "state.dir": str(tmp_path),
        "bootstrap.servers": "memory:9092",
    }
    with Runtime(settings, clock=clock, brokers=broker.clients) as runtime:
        # The clock stands still, so that the samples are of one millisecond.
        run(runtime, broker, bids=3, asks=2)
        assert edges_of(tmp_path) == {
            "bids → Sub-topology 0": "3,000/s",
            "asks → Sub-topology 0": "2,000/s",
            "Sub-topology 0 → all": "5,000/s",
            "Sub-topology 0 → copies": "3,000/s",
            "Sub-topology 0 → by-value-repartition": "5,000/s",
            "by-value-repartition → Sub-topology 1": "5,000/s",
        }
        run(runtime, broker, asks=1)
        assert edges_of(tmp_path)["asks → Sub-topology 0"] == "1,000/s", "of the last samples"
        history = StateLayout(tmp_path, "a").task_dir(TaskId(0, 0)) / "history.jsonl"
        older = [json.loads(line) for line in history.read_text().split()]
        history.write_text("\n".join(json.dumps(one | {"taken": {}, "sent": {}}) for one in older))
        of_older = edges_of(tmp_path)
        assert of_older["asks → Sub-topology 0"] == of_older["Sub-topology 0 → all"] == ""
        assert of_older["by-value-repartition → Sub-topology 1"] == "1,000/s"


def test_an_application_that_never_ran_has_a_page(page: TestClient) -> None:
    text = shown(page, "/applications/other-07")
    assert "This application has not run yet" in text
    assert "statestore run --application-id other-07" in text
    assert "None yet: nothing was checked" in text
    assert "no application" not in text
    assert "problem" not in text


def test_a_store_shows_a_key_a_prefix_and_page_after_page(page: TestClient) -> None:
    path = "/applications/orders/stores/names"
    (row,) = cells(page.get(path, params={"key": "n1-007"}).text)
    assert row == ["0_1", "n1-007", '{"is":7}']
    assert len(cells(page.get(path, params={"prefix": "n0-00"}).text)) == 10
    seen: list[list[str]] = []
    text = page.get(path).text
    while True:
        seen += cells(text)
        following = re.search(r'rel="next" href="([^"]+)"', text)
        if following is None:
            break
        text = page.get(html.unescape(following[1])).text
    assert len(seen) == len({(row[0], row[1]) for row in seen}) == 262
    assert "does not have the key nobody" in page.get(path, params={"key": "nobody"}).text


def test_keys_are_text_wherever_they_stand(page: TestClient) -> None:
    path = "/applications/orders/stores/names"
    for asked in ({"key": HOSTILE}, {"prefix": HOSTILE}, {"key": HOSTILE, "raw": "1"}):
        answer = page.get(path, params=asked)
        assert "<img" not in answer.text
        assert HOSTILE in html.unescape(answer.text)
    assert "\\x00" not in page.get(path, params={"key": "\x00"}).text.replace("&#92;", "\\")


def test_what_is_very_large_is_shown_in_part(tmp_path: Path) -> None:
    layout = filled(tmp_path, "a")
    with ss.open_store(NAMES, layout.task_dir(TaskId(0, 0)) / "rocksdb") as names:
        names.put("large" + "k" * 5000, {"x": "v" * 20_000_000})
        names.commit()
    known = {"application.id": "a", "state.dir": str(tmp_path)}
    lookout = Poller(lambda: {"a": lambda: Runtime(known)}, SystemClock())
    client = TestClient(application(lookout, frozenset({"testserver"})))
    for raw in ("", "1"):
        answer = client.get("/applications/a/stores/names", params={"prefix": "large", "raw": raw})
        ((_, key, value),) = cells(answer.text)
        assert len(answer.text) < 20_000
        assert key.startswith("largekkk")
        assert re.search(r"… \(5,005 characters\)$", key), key[-60:]
        assert re.search(r"… \(20,000,0[0-9]{2} characters\)$", value), value[-60:]
    lookout.close()


def test_a_store_with_history_is_shown_as_of_a_time_and_with_all_versions(
    page: TestClient,
) -> None:
    path = "/applications/orders/stores/rates"
    assert [row[2] for row in cells(page.get(path, params={"key": "EUR"}).text)] == ["2.5"]
    then = cells(page.get(path, params={"key": "EUR", "as_of": "1970-01-01T00:00:00.2Z"}).text)
    assert [row[2] for row in then] == ["1.5"]
    versions = cells(page.get(path, params={"key": "EUR", "history": "1"}).text)
    assert [row[2] for row in versions] == ["2.5", "1.5"]
    assert versions[1][3:] == ["1970-01-01T00:00:00.100Z", "1970-01-01T00:00:00.300Z"]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("rates?as_of=yesterday", "is not understood"),
        ("rates?as_of=99999999999999999999", "after the year 9999"),
        ("names?as_of=5&key=a", "keeps no history"),
        ("names?after=99999999", "ask for a key, or for a prefix"),
        (f"names?after={'9' * 5000}", "ask for a key, or for a prefix"),
        ("nothing", "no store"),
    ],
)
def test_a_question_that_cannot_be_answered_is_answered_so(
    page: TestClient, path: str, told: str
) -> None:
    answer = page.get(f"/applications/orders/stores/{path}")
    assert told in html.unescape(answer.text), answer.text
    assert answer.status_code in {200, 404}


def test_what_is_not_there_is_not_found(page: TestClient) -> None:
    for path in ("/applications/nobody", "/applications/nobody/stores/a", "/static/x", "/x"):
        assert page.get(path).status_code == 404
    for escape in ("/static/..%2fcommand.py", "/applications/orders/stores/..%2f..%2fetc"):
        assert page.get(escape).status_code == 404
    assert page.post("/").status_code == 405


def test_the_browser_is_told_to_load_nothing_from_elsewhere(page: TestClient) -> None:
    for path in ("/", "/applications/orders", "/applications/nobody", "/static/style.css"):
        headers = page.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    for path in ("/", "/applications/orders"):
        text = shown(page, path)
        assert "style=" not in text
        assert not re.search(r"<script>|\son\w+=\"", text)
        assert not re.search(r"(src|href)=\"https?:", text)


def test_another_name_of_this_host_is_refused(page: TestClient) -> None:
    assert page.get("/", headers={"Host": "evil.example"}).status_code == 421


def test_a_file_of_applications_that_broke_is_told_and_mended_is_used(tmp_path: Path) -> None:
    config = tmp_path / "statestore.toml"
    config.write_text("[applications.a")
    clock = ManualClock()
    lookout = Poller(applications_of(config, tmp_path), clock)
    client = TestClient(application(lookout, frozenset({"testserver"})))
    answer = client.get("/")
    assert (answer.status_code, str(config) in answer.text) == (503, True)
    config.write_text(f'[applications.a]\nstate_dir = "{tmp_path}"\nmystery = "1"\n')
    assert "mystery" in shown(client, "/applications/a")
    config.write_text(f'[applications.a]\nstate_dir = "{tmp_path}"\n')
    clock.advance(60_000)
    eventually(lambda: "mystery" not in client.get("/applications/a").text, "it is looked at again")
    lookout.close()


def test_a_look_that_fails_shows_why_and_is_tried_again(tmp_path: Path) -> None:
    tries: list[int] = []

    def opened() -> Runtime:
        tries.append(1)
        if len(tries) == 1:
            raise OSError(5, "Input/output error")
        return Runtime({"application.id": "a", "state.dir": str(tmp_path)})

    clock = ManualClock()
    lookout = Poller(lambda: {"a": opened}, clock)
    client = TestClient(application(lookout, frozenset({"testserver"})))
    eventually(lambda: "Input/output error" in client.get("/applications/a").text, "the reason")
    clock.advance(60_000)
    eventually(lambda: "Stream tasks" in client.get("/applications/a").text, "another look")
    lookout.close()


def stocked(state_dir: Path) -> str:
    """An application whose serdes are its own, with a row; the path of its store's page."""
    layout = StateLayout(state_dir, "own")
    with ss.open_store(own_serdes.STOCK, layout.task_dir(TaskId(0, 0)) / "rocksdb") as stock:
        stock.put(own_serdes.Place("<b>Rome", 7), Decimal("12.50"))
        stock.commit({TopicPartition("own-stock-changelog", 0): 1})
    layout.topology_file.write_text(json.dumps(own_serdes.topology().deployed()))
    return "/applications/own/stores/stock"


def serving_of(state_dir: Path, pipeline: str | None) -> tuple[Poller, TestClient]:
    known = {"application.id": "own", "state.dir": str(state_dir)}
    lookout = Poller(lambda: {"own": lambda: Runtime(known)}, SystemClock(), lambda _: pipeline)
    return lookout, TestClient(application(lookout, frozenset({"testserver"})))


def test_rows_are_decoded_by_the_serdes_of_the_pipeline(tmp_path: Path) -> None:
    path = stocked(tmp_path)
    lookout, client = serving_of(tmp_path, "tests.contract.own_serdes:topology")
    wanted = ["0_0", '{"city":"<b>Rome","shelf":7}', "12.50"]
    assert [cell.strip('"') for cell in cells(client.get(path).text)[0]] == wanted
    key = '{"city":"<b>Rome","shelf":7}'
    assert len(cells(client.get(path, params={"key": key}).text)) == 1
    assert "is not a valid PLACE" in html.unescape(client.get(path, params={"key": "Rome"}).text)
    assert "Rome" in cells(client.get(path, params={"raw": "1"}).text)[0][1]
    assert "<b>" not in client.get(path).text
    lookout.close()


@pytest.mark.parametrize(
    ("pipeline", "told"),
    [
        (None, "show bytes instead"),
        ("tests.contract.own_serdes:broken", "no topology today"),
        ("tests.contract.own_serdes:without_stores", "the pipeline has no store 'stock'"),
        ("nowhere_at_all:topology", "cannot import 'nowhere_at_all'"),
    ],
)
def test_a_pipeline_that_does_not_help_is_told_in_words(
    tmp_path: Path, pipeline: str | None, told: str
) -> None:
    path = stocked(tmp_path)
    lookout, client = serving_of(tmp_path, pipeline)
    answer = client.get(path)
    assert (answer.status_code, told in html.unescape(answer.text)) == (200, True), answer.text
    assert "Rome" in cells(client.get(path, params={"raw": "1"}).text)[0][1]
    lookout.close()


def test_a_broken_pipeline_hides_no_row_that_the_library_can_decode(tmp_path: Path) -> None:
    filled(tmp_path, "own")
    lookout, client = serving_of(tmp_path, "tests.contract.own_serdes:broken")
    answer = client.get("/applications/own/stores/names", params={"key": "n1-007"})
    assert cells(answer.text) == [["0_1", "n1-007", '{"is":7}']]
    assert "no topology today" in answer.text
    assert "no topology today" in shown(client, "/applications/own")
    lookout.close()


def test_a_pipeline_is_imported_only_if_the_file_says_so(tmp_path: Path) -> None:
    path, config = stocked(tmp_path / "state"), tmp_path / "statestore.toml"
    (tmp_path / "own_by_page.py").write_text(
        "from pathlib import Path\n"
        "from tests.contract.own_serdes import topology\n"
        "Path(__file__).with_name('imported').touch()\n"
    )
    section = '[applications.own]\nstate_dir = "state"\npipeline = "own_by_page:topology"\n'
    config.write_text(section)
    routes = [Route(*each) for each in routes_of(config).items()]
    client = TestClient(Starlette(routes=routes))
    assert "show bytes instead" in client.get(path).text
    shown(client, "/applications/own")
    assert not (tmp_path / "imported").exists()
    config.write_text(section + "[page]\nimport_pipelines = true\n")
    assert "12.50" in cells(client.get(path).text)[0][2]
    assert (tmp_path / "imported").exists()
    for wrong in ('import_pipelines = "yes"', "import_pipeline = true"):
        config.write_text(section + f"[page]\n{wrong}\n")
        answer = client.get(path)
        assert (answer.status_code, "[page]" in answer.text) == (503, True)


def test_odd_names_are_text_or_refused_on_every_page(tmp_path: Path) -> None:
    layout = filled(tmp_path / "state", "odd")
    deployed = json.loads(layout.topology_file.read_text())
    deployed["stores"]["names"]["value_serde"] = HOSTILE
    layout.topology_file.write_text(json.dumps(deployed))
    names = ["odd", HOSTILE, "../../etc", "a/b?c#d", "ü" * 300, " ", "%2e%2e", "'\"<b>"]
    sections = "".join(f"[applications.{json.dumps(n)}]\nstate_dir = 'state'\n" for n in names)
    config = tmp_path / "statestore.toml"
    config.write_text(sections)
    client = TestClient(Starlette(routes=[Route(*each) for each in routes_of(config).items()]))
    overview = shown(client, "/")
    pages = [overview, shown(client, "/applications/odd")]
    for address in re.findall(r'scope="row"><a href="([^"]+)"', overview):
        for path in (html.unescape(address), html.unescape(address) + "/stores/names"):
            answer = client.get(path)
            assert answer.status_code in {200, 404, 503}, path
            pages.append(answer.text)
    for topic in (HOSTILE, "../x"):
        deployed["sub_topologies"][0]["source_topics"] = [topic]
        layout.topology_file.write_text(json.dumps(deployed))
        pages.append(client.get("/applications/odd/stores/names").text)
        assert "topology.json" in pages[-1], "such a file is refused by name"
    for text in pages:
        assert "<img" not in text
        assert "<b>" not in text
    assert len(pages) > 2 * len(names)


def test_a_thousand_stores_and_tasks_come_in_part(tmp_path: Path) -> None:
    layout = StateLayout(tmp_path, "a")
    specs = [ss.persistent_key_value_store(f"store-{number:04}") for number in range(1000)]
    builder = ss.StreamsBuilder()
    builder.stream("in").process(lambda _: own_serdes.Passing(), *specs, name="all")
    for number in range(120):
        layout.create(layout.task_dir(TaskId(0, number)))
    layout.topology_file.write_text(json.dumps(builder.build().deployed()))
    known = {"application.id": "a", "state.dir": str(tmp_path)}
    lookout = Poller(lambda: {"a": lambda: Runtime(known)}, SystemClock())
    client = TestClient(application(lookout, frozenset({"testserver"})))
    eventually(lambda: "and 800 more" in client.get("/applications/a").text, "the stores")
    text = client.get("/applications/a").text
    assert "page 1 of 3, 120 in all" in text
    assert ">0_119<" in client.get("/applications/a?page=3").text
    lookout.close()


def test_a_planned_relocation_is_told_move_by_move_and_how_to_approve_it(tmp_path: Path) -> None:
    misplaced(tmp_path / "state", "moved")
    config = tmp_path / "statestore.toml"
    config.write_text('[applications.moved]\nstate_dir = "state"\n')
    for mounted_at, root in ((None, ""), ("/statestore", "/af/statestore")):
        routes = [Route(*each) for each in routes_of(config, mounted_at).items()]
        client = TestClient(Starlette(routes=routes), root_path=root)
        text = shown(client, "/applications/moved")
        assert "4 stores lie elsewhere" in text
        assert "<li>names: in 1_0, should be in 0_0</li>" in text
        assert "To approve means" in text
        assert "statestore relocate --application-id moved --dry-run" in text
        in_airflow = mounted_at is not None
        assert ('class="approve" data-api="/af/api/v2"' in text) is in_airflow
        assert ("approve.js" in text) is in_airflow
        assert ("<button>" in text) is in_airflow


def test_works_under_way_have_a_bar_and_dead_ones_have_none(tmp_path: Path) -> None:
    layout = filled(tmp_path, "a")
    activities = Activities(layout.application_dir, ManualClock(SystemClock().now_ms() - 10_000))
    lookout = Poller(
        lambda: {"a": lambda: Runtime({"application.id": "a", "state.dir": str(tmp_path)})},
        SystemClock(),
    )
    client = TestClient(application(lookout, frozenset({"testserver"})))
    gone = Owner.of_this_process(0, SystemClock().now_ms() - 5000)
    gone = msgspec.structs.replace(gone, started_ticks=-1, host=gone.host)
    with activities.underway(HOSTILE, Unit.BYTES) as told:
        told.expect(4_000_000)
        note = ActivityNote("export", Unit.BYTES, gone, gone.since_ms, 5, 10, "0_1")
        (layout.application_dir / "works" / "dead.json").write_bytes(msgspec.json.encode(note))
        text = shown(client, "/applications/a")
    assert text.count("<progress") == 1
    assert HOSTILE not in text
    assert ">export of 0_1</span>" in text
    assert 'chip bad">died<' in text
    assert 'hx-trigger="every 5s"' in text
    lookout.close()


def test_details_are_looked_for_again_however_often_the_overview_is(tmp_path: Path) -> None:
    layout = filled(tmp_path, "a")
    clock = ManualClock(SystemClock().now_ms())
    known = {"application.id": "a", "state.dir": str(tmp_path)}
    lookout = Poller(lambda: {"a": lambda: Runtime(known, clock=clock)}, clock)

    def is_seen() -> bool:
        last = lookout.seen(["a"], details=True)["a"]
        return last.look is not None and last.details is not None

    # A look that is still under way would count as new once the clock has moved.
    eventually(is_seen, "the first looks")
    Audits(layout).keep(
        AuditRecord(application_id="a", time_ms=5, verdict=AuditVerdict.NOTHING_CHECKED)
    )

    for _ in range(3):
        clock.advance(6_000)
        now_ms = clock.now_ms()

        def is_new(now_ms: int = now_ms) -> bool:
            look = lookout.seen(["a"])["a"].look
            return look is not None and look.status.at_ms >= now_ms

        eventually(is_new, "the overview")

    def shows_the_audit() -> bool:
        details = lookout.seen(["a"], details=True)["a"].details
        return details is not None and bool(details.audits)

    eventually(shows_the_audit, "the audit shows")
    lookout.close()


def test_a_page_opened_after_an_hour_shows_what_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_FIRST_WAIT_S", DEADLINE_S)  # a look may take long here
    clock = ManualClock(SystemClock().now_ms())
    known = {"application.id": "a", "state.dir": str(tmp_path)}
    lookout = Poller(lambda: {"a": lambda: Runtime(known, clock=clock)}, clock)
    client = TestClient(application(lookout, frozenset({"testserver"})))
    eventually(lambda: "has not run yet" in client.get(PATH).text, "a look")
    filled(tmp_path, "a")
    clock.advance(3_600_000)
    for path in (PATH, "/"):
        assert "1,000 records" in client.get(path).text, path
    lookout.close()


def test_an_old_look_says_how_old_it_is_while_there_is_no_new_one(tmp_path: Path) -> None:
    clock, held = ManualClock(SystemClock().now_ms()), threading.Event()
    known = {"application.id": "a", "state.dir": str(tmp_path)}
    opened: list[int] = []

    def opening() -> Runtime:
        opened.append(1)
        if len(opened) > 2:
            held.wait(DEADLINE_S)
        return Runtime(known, clock=clock)

    lookout = Poller(lambda: {"a": opening}, clock)
    client = TestClient(application(lookout, frozenset({"testserver"})))
    eventually(lambda: "Stream tasks" in client.get(PATH).text, "a look")
    assert "ago: looking again" not in client.get(PATH).text
    clock.advance(600_000)
    for path in (PATH, "/"):
        assert "10 min ago: looking again" in client.get(path).text, path
    held.set()
    eventually(lambda: "ago: looking again" not in client.get(PATH).text, "a new look")
    lookout.close()
