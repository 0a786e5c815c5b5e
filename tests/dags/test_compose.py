"""docker/compose.yaml, as far as it can be judged without an engine."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # the stubs are a package of their own

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ONE_SHOT = {"airflow-init", "sample"}

each_service = pytest.mark.parametrize("name", sorted(SERVICES))


def test_the_system_is_whole() -> None:
    assert set(SERVICES) == {
        *("kafka-1", "kafka-2", "kafka-3"),
        *("spark-master", "spark-worker-1", "spark-worker-2"),
        *("airflow-init", "airflow-api-server", "airflow-scheduler"),
        *("airflow-dag-processor", "airflow-triggerer", "postgres", "sample"),
    }


DIGEST = r"[\w./-]+:\d+\.[\w.-]+@sha256:[0-9a-f]{64}"


@each_service
def test_every_image_is_pinned_by_its_digest(name: str) -> None:
    service = SERVICES[name]
    if "build" in service:
        assert re.fullmatch(r"statestore:\d+\.\d+\.\d+", service["image"])
    else:
        assert re.fullmatch(DIGEST, service["image"])


def test_the_images_that_the_build_takes_from_are_pinned_by_their_digests() -> None:
    taken = re.findall(r"^(?:FROM|COPY --from=) ?(\S+)", DOCKERFILE, re.MULTILINE)
    assert len(taken) == 2
    assert all(re.fullmatch(DIGEST, image) for image in taken)


def test_the_brokers_have_the_version_of_the_local_broker() -> None:
    pom = (ROOT / "statestore" / "testing" / "kafka.pom.xml").read_text(encoding="utf-8")
    local = re.search(r"<kafka.version>(.+)</kafka.version>", pom)
    assert local
    image = SERVICES["kafka-1"]["image"]
    assert image.startswith(f"apache/kafka:{local[1]}@")
    # The image has the jars, but no Maven: a drill starts a broker of its own.
    libs = "/opt/kafka/libs"
    assert f"COPY --from={image} {libs} {libs}" in DOCKERFILE
    assert f"STATESTORE_KAFKA_LIBS={libs}" in DOCKERFILE


@each_service
def test_no_service_has_rights_or_can_get_any(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert not service.get("cap_add")
    assert not service.get("privileged")
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"] in {"statestore", "appuser", "postgres"}
    assert not {"pid", "ipc", "network_mode", "devices"} & set(service)


@each_service
def test_no_service_writes_to_its_root_folder(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    for mount in service["tmpfs"]:
        path, _, options = mount.partition(":")
        assert path.startswith("/")
        assert re.search(r"\bsize=\d+m\b", options), f"{path} may fill the memory"


@each_service
def test_every_service_has_limits(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"\d+g", service["mem_limit"])
    assert 0 < service["cpus"] <= 4
    assert 0 < service["pids_limit"] <= 4096


def test_what_jobs_put_aside_is_on_disk_where_they_run() -> None:
    """A store that is fetched from an export and Spark's shuffles do not fit a tmpfs."""
    for name in ("airflow-scheduler", "spark-worker-1", "spark-worker-2"):
        service = SERVICES[name]
        (scratch,) = [each for each in service["volumes"] if each.endswith(":/var/lib/scratch")]
        assert sum(scratch in each.get("volumes", []) for each in SERVICES.values()) == 1
        assert service["environment"]["TMPDIR"] == "/var/lib/scratch"
        assert service["environment"]["SPARK_LOCAL_DIRS"] == "/var/lib/scratch"
    worker = SERVICES["spark-worker-1"]
    memory = worker["command"][worker["command"].index("--memory") + 1]
    assert int(memory.removesuffix("g")) < int(worker["mem_limit"].removesuffix("g"))


def test_every_folder_that_a_volume_takes_its_owner_from_is_in_the_image() -> None:
    made = re.search(r"install --directory --owner statestore (.+?)\n\nUSER", DOCKERFILE, re.DOTALL)
    assert made
    targets = {
        volume.partition(":")[2]
        for service in SERVICES.values()
        if "build" in service
        for volume in service.get("volumes", [])
    }
    assert targets <= set(made[1].split())


def test_packages_are_installed_from_the_lock_with_their_hashes() -> None:
    assert "--require-hashes --requirement requirements/lock.txt" in DOCKERFILE
    installs = re.findall(r"pip install (.+)", DOCKERFILE)
    assert all("--require-hashes" in one or "--no-deps" in one for one in installs)


def test_every_file_the_image_copies_is_tracked_by_its_ignore_file() -> None:
    ignore = (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8")
    allowed = {line[1:] for line in ignore.splitlines() if line.startswith("!")}
    lines = re.findall(r"^COPY --chown=\S+ (.+) \S+$", DOCKERFILE, re.MULTILINE)
    copied = {source for line in lines for source in line.split()}
    assert copied == allowed
    assert [source for source in sorted(copied) if not (ROOT / source).exists()] == []


@each_service
def test_every_lasting_service_says_when_it_is_healthy(name: str) -> None:
    check = SERVICES[name].get("healthcheck")
    if name in ONE_SHOT:
        assert SERVICES[name]["restart"] == "no"
        return
    assert check, f"{name} has no healthcheck"
    assert {"test", "interval", "timeout", "retries"} <= set(check)


@each_service
def test_dependencies_exist_and_wait_for_what_the_other_can_reach(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        wanted = "completed_successfully" if other in ONE_SHOT else "healthy"
        assert other in SERVICES
        assert how == {"condition": f"service_{wanted}"}


def test_dependencies_have_no_cycle() -> None:
    left = {name: set(service.get("depends_on", {})) for name, service in SERVICES.items()}
    while left:
        ready = {name for name, others in left.items() if not others & set(left)}
        assert ready, f"a cycle among {sorted(left)}"
        left = {name: others for name, others in left.items() if name not in ready}


@each_service
def test_every_volume_is_declared_and_used_by_name(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source, _, target = volume.partition(":")
        assert source in COMPOSE["volumes"], f"{volume} is not a named volume"
        assert target.startswith("/var/lib/")


def test_driver_and_workers_see_one_state_folder() -> None:
    sharing = ("airflow-scheduler", "spark-worker-1", "spark-worker-2")
    for name in sharing:
        assert "state:/var/lib/statestore" in SERVICES[name]["volumes"]
        assert SERVICES[name]["environment"]["STATESTORE_STATE_DIR"] == "/var/lib/statestore"
        assert SERVICES[name]["image"] == SERVICES["spark-master"]["image"]


def test_driver_and_workers_see_one_place_for_exports() -> None:
    """Workers upload what the scheduler's driver publishes."""
    for name, service in SERVICES.items():
        if "state:/var/lib/statestore" in service.get("volumes", []):
            assert "exports:/var/lib/statestore-exports" in service["volumes"], name
            target = service["environment"]["STATESTORE_EXPORT_TARGET"]
            assert target == "/var/lib/statestore-exports", name


def test_the_pool_has_one_slot_per_core_of_the_workers() -> None:
    workers = [SERVICES[name] for name in SERVICES if name.startswith("spark-worker")]
    cores = sum(int(each["command"][each["command"].index("--cores") + 1]) for each in workers)
    init = SERVICES["airflow-init"]
    assert init["environment"]["STATESTORE_SLOTS"] == str(cores)
    assert "pools set statestore_slots $$STATESTORE_SLOTS " in init["command"]


def test_the_password_of_airflows_page_is_made_for_its_owner_only() -> None:
    command = SERVICES["airflow-init"]["command"]
    name = "$$AIRFLOW_HOME/simple_auth_manager_passwords.json.generated"
    assert f"(umask 077; touch -a {name})" in command
    assert f"chmod 600 {name}" in command


def test_every_part_of_airflow_finds_the_dags_in_the_image() -> None:
    parts = [name for name in SERVICES if name.startswith("airflow-")]
    assert len(parts) == 5
    for name in parts:
        folder = SERVICES[name]["environment"]["AIRFLOW__CORE__DAGS_FOLDER"]
        assert folder == "/opt/statestore/dags"


def test_one_broker_may_be_away_without_loss_or_a_stop() -> None:
    for name in ("kafka-1", "kafka-2", "kafka-3"):
        settings = SERVICES[name]["environment"]
        assert settings["KAFKA_DEFAULT_REPLICATION_FACTOR"] == 3
        assert settings["KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR"] == 3
        assert settings["KAFKA_MIN_INSYNC_REPLICAS"] == 2
        assert settings["KAFKA_TRANSACTION_STATE_LOG_MIN_ISR"] == 2
    assert {SERVICES[f"kafka-{n}"]["environment"]["KAFKA_NODE_ID"] for n in (1, 2, 3)} == {1, 2, 3}


@each_service
def test_ports_are_open_to_this_machine_only(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


def test_no_two_services_want_one_port() -> None:
    ports = [p.rsplit(":", 1)[0] for each in SERVICES.values() for p in each.get("ports", [])]
    assert len(ports) == len(set(ports))


def test_secrets_come_from_an_environment_file_that_is_never_committed() -> None:
    text = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
    asked = set(re.findall(r"\$\{(\w+):\?", text))
    example = (DOCKER / ".env.example").read_text(encoding="utf-8")
    offered = dict(re.findall(r"^(\w+)=(.*)$", example, re.MULTILINE))
    assert set(offered) == asked
    assert not any(offered.values())
    assert (DOCKER / ".gitignore").read_text(encoding="utf-8").split() == [".env"]
    for service in SERVICES.values():
        for key, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|SECRET|FERNET|SQL_ALCHEMY_CONN", key):
                assert "${" in str(value), key
