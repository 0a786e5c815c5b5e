"""A local Airflow for this repository: `run` one DAG, or start all of it `up` and take it `down`.

Everything it writes lies in `.scratch/airflow`: database, logs, generated secrets, pid file.
Nothing here imports Airflow, which reads its settings from the environment when it is imported.
"""

import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
from base64 import urlsafe_b64encode
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click
import httpx
import psutil
from tenacity import RetryError, Retrying, retry_if_not_result, stop_after_delay, wait_fixed

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".scratch" / "airflow"
PASSWORDS = HOME / "simple_auth_manager_passwords.json.generated"
PID_FILE = HOME / "standalone.json"
LOG_FILE = HOME / "standalone.log"
READY_DEADLINE_S = 300
ANSWER_DEADLINE_S = 30
"""How long an Airflow that runs may take to say how it is: a busy machine is slow."""
STOP_GRACE_S = 20
CLOCK_STEP_S = 60.0
"""Start times move with the system's clock; two processes with one id never start this close."""
POOL = "statestore_slots"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Session(NamedTuple):
    """A process session that was started here: all that its leader started, wherever it moved."""

    leader: int
    started: float
    boot_id: str

    @classmethod
    def of(cls, process: "subprocess.Popen[bytes]") -> "Session":
        """The session led by a process that was started with `start_new_session`."""
        started = psutil.Process(process.pid).create_time()
        return cls(process.pid, started, BOOT_ID.read_text(encoding="ascii"))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Run this repository's DAGs in a local Airflow."""


@main.command()
@click.argument("dag_id", default="micro_batches")
@click.option("--until", default="latest", show_default=True, help="latest, or a time.")
@click.option("--run-for", default=None, help="Run continuously for this long, such as 5m.")
@click.option("--conf", default=None, metavar="JSON", help="The Params of another DAG.")
def run(dag_id: str, until: str, run_for: str | None, conf: str | None) -> None:
    """Run one DAG to its end in the foreground; no process stays.

    The exit code is the job's. Failures are not retried, as somebody is watching.
    """
    env = environment()
    summary_file = Path(env.setdefault("STATESTORE_SUMMARY_FILE", str(HOME / "last-run.json")))
    env.setdefault("STATESTORE_RETRIES", "0")
    prepare(env)
    summary_file.unlink(missing_ok=True)
    asked = {"until": until if until != "latest" else None, "run_for": run_for}
    conf = conf or json.dumps({name: it for name, it in asked.items() if it is not None})
    returncode = _foreground(["airflow", "dags", "test", dag_id, "--conf", conf], env)
    summary = _json(summary_file) or {}
    error = summary.get("error")
    if error:
        click.echo(f"{dag_id}: {error['class']}: {error['message']}", err=True)
        sys.exit(int(error["exit_code"]))
    if returncode:
        click.echo(f"{dag_id}: failed before the job could report; see the log above", err=True)
    sys.exit(1 if returncode else 0)


@main.command()
def up() -> None:
    """Start Airflow in the background and wait until it is healthy."""
    env = environment()
    session = _recorded()
    if session and _members(session):
        _require_healthy(env, session)
        click.echo(f"Airflow is up already, process {session.leader}.")
        _print_login(env)
        return
    _require_free_port(int(env["AIRFLOW__API__PORT"]))
    prepare(env)
    click.echo(f"Starting Airflow (log: {LOG_FILE.relative_to(ROOT)}) …")
    _touch_private(LOG_FILE)  # Airflow writes a generated password into it
    with LOG_FILE.open("wb") as log:
        process = subprocess.Popen(
            ["airflow", "standalone"],
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    session = Session.of(process)
    PID_FILE.write_text(json.dumps(session._asdict()), encoding="utf-8")
    try:
        _wait_until_ready(env, process)
    except (RetryError, ChildProcessError):
        _end(session)
        PID_FILE.unlink()
        tail = LOG_FILE.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        _fail("\n".join([*tail, f"Airflow did not become healthy; the whole log: {LOG_FILE}"]))
    _print_login(env)


@main.command()
def down() -> None:
    """Stop what `up` started: Airflow, its tasks and their Spark jobs."""
    session = _recorded()
    ended = _end(session) if session else 0
    PID_FILE.unlink(missing_ok=True)
    click.echo(f"Stopped Airflow ({ended} processes)." if ended else "Airflow is not running.")


@main.command()
def status() -> None:
    """Whether Airflow runs, and where."""
    session = _recorded()
    if not session or not _members(session):
        click.echo("Airflow is not running.")
        sys.exit(3)
    env = environment()
    for component, state in sorted((_health(env) or {}).items()):
        click.echo(f"{component:<15} {state}")
    _print_login(env)


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def airflow(arguments: tuple[str, ...]) -> None:
    """Any airflow command, with this Airflow's environment."""
    env = environment()
    os.execvpe("airflow", ["airflow", *arguments], env)  # noqa: S606 — no shell is wanted


def environment() -> dict[str, str]:
    """The variables that Airflow needs beside airflow.cfg; those that are set already are kept.

    Only its owner may read Airflow's home and the passwords in it.
    """
    HOME.mkdir(parents=True, exist_ok=True)
    HOME.chmod(0o700)
    _touch_private(PASSWORDS)
    port = os.environ.get("AIRFLOW__API__PORT", "8080")
    # `spark-submit` and `airflow` are the programs of the running interpreter.
    tools = str(Path(sys.executable).parent)
    local_hosts = [entry for entry in os.environ.get("NO_PROXY", "").split(",") if entry]
    defaults = {
        "AIRFLOW_CONFIG": str(ROOT / "airflow.cfg"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__API__PORT": port,
        "AIRFLOW__API__BASE_URL": f"http://localhost:{port}",
        "AIRFLOW__CORE__FERNET_KEY_CMD": _secret_command("fernet_key"),
        "AIRFLOW__API_AUTH__JWT_SECRET_CMD": _secret_command("jwt_secret"),
        "AIRFLOW__API__SECRET_KEY_CMD": _secret_command("api_secret_key"),
        # The size of the pool. A job takes all of it, unless STATESTORE_JOB_SLOTS says less.
        "STATESTORE_SLOTS": str(len(os.sched_getaffinity(0))),
        # The second number is spark.task.maxFailures: by default, local mode allows one attempt.
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(
            {"conn_type": "spark", "host": "local[*,4]", "extra": {"deploy-mode": "client"}}
        ),
    }
    forced = {
        "AIRFLOW_HOME": str(HOME),
        "PATH": os.pathsep.join([tools, os.environ.get("PATH", "")]),
        "NO_PROXY": ",".join(dict.fromkeys([*local_hosts, "localhost", "127.0.0.1"])),
    }
    return defaults | dict(os.environ) | forced


def prepare(env: dict[str, str]) -> None:
    """Make the database and the pool, unless that was done for this version and pool size."""
    slots = env["STATESTORE_SLOTS"]
    stamp = HOME / "prepared.json"
    wanted = {"airflow": version("apache-airflow"), "slots": slots}
    if _json(stamp) == wanted and (HOME / "airflow.db").exists():
        return
    click.echo("Preparing Airflow's database …")
    _quietly(["airflow", "db", "migrate"], env)
    _quietly(["airflow", "pools", "set", POOL, slots, "Spark slots of this machine"], env)
    stamp.write_text(json.dumps(wanted), encoding="utf-8")


def _secret_command(name: str) -> str:
    """The command that prints a secret, which is made once and only its owner may read."""
    path = HOME / "secrets" / name
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            # Fernet asks for 32 bytes in URL-safe base64; that suits the others as well.
            file.write(urlsafe_b64encode(secrets.token_bytes(32)))
    return shlex.join(["cat", str(path)])


def _touch_private(path: Path) -> None:
    """Make the file, unless it is there, and let only its owner read it."""
    path.touch(mode=0o600)
    path.chmod(0o600)


def _quietly(command: list[str], env: dict[str, str]) -> None:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        _fail(f"{done.stdout}\n{shlex.join(command)} failed with {done.returncode}")


def _foreground(command: list[str], env: dict[str, str]) -> int:
    """Run a command with this terminal; when this returns or raises, all it started is gone."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    process = subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True)
    session = Session.of(process)
    try:
        return process.wait()
    finally:
        _end(session)


def _members(session: Session) -> list[psutil.Process]:
    """The live processes of a session that was started here; none if its id was reused.

    Airflow's tasks and pyspark's daemon leave their process group, but not their session. The
    system does not reuse the id of a session while a member lives.
    """
    if session.boot_id != BOOT_ID.read_text(encoding="ascii"):
        return []
    members = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            moved = abs(process.create_time() - session.started)
            if process.pid == session.leader and moved > CLOCK_STEP_S:
                return []
            if os.getsid(process.pid) == session.leader and (
                process.status() != psutil.STATUS_ZOMBIE
            ):
                members.append(process)
    return members


def _end(session: Session) -> int:
    """Terminate every process of a session, then kill what is left; return how many there were."""
    ended = 0
    for finish in (psutil.Process.terminate, psutil.Process.kill):
        members = _members(session)
        ended = max(ended, len(members))
        for process in members:
            with suppress(psutil.NoSuchProcess):
                finish(process)
        psutil.wait_procs(members, timeout=STOP_GRACE_S)
    return ended


def _recorded() -> Session | None:
    state = _json(PID_FILE)
    return Session(**state) if state else None


def _wait_until_ready(env: dict[str, str], process: "subprocess.Popen[bytes]") -> None:
    """Wait until all components are healthy; ChildProcessError: it ended, RetryError: too late."""
    shown: dict[str, str] = {}

    def healthy() -> bool:
        if process.poll() is not None:
            raise ChildProcessError(process.returncode)
        states = _health(env) or {}
        for component, state in states.items():
            if shown.get(component) != state:
                shown[component] = state
                click.echo(f"  {component:<15} {state}")
        return bool(states) and set(states.values()) == {"healthy"}

    Retrying(
        retry=retry_if_not_result(bool),
        stop=stop_after_delay(READY_DEADLINE_S),
        wait=wait_fixed(0.5),
    )(healthy)


def _require_healthy(env: dict[str, str], session: Session) -> None:
    """Fail if a component of an Airflow that runs is not healthy, and say which."""
    try:
        states = Retrying(
            retry=retry_if_not_result(bool),
            stop=stop_after_delay(ANSWER_DEADLINE_S),
            wait=wait_fixed(0.5),
        )(_health, env)
    except RetryError:
        states = {"its server": "silent"}
    ill = [
        f"{name} is {state}" for name, state in sorted((states or {}).items()) if state != "healthy"
    ]
    if ill:
        _fail(
            f"Airflow runs, process {session.leader}, but {', '.join(ill)}: run `make down`, then "
            f"`make up`; its log: {LOG_FILE}"
        )


def _health(env: dict[str, str]) -> dict[str, str] | None:
    """The state of each component; None while the server does not answer."""
    url = f"http://127.0.0.1:{env['AIRFLOW__API__PORT']}/api/v2/monitor/health"
    try:
        answer = httpx.get(url, timeout=5, trust_env=False)
    except httpx.HTTPError:
        return None
    if answer.status_code != httpx.codes.OK:
        return None
    return {name: part["status"] or "starting" for name, part in answer.json().items() if part}


def _print_login(env: dict[str, str]) -> None:
    passwords = _json(PASSWORDS) or {}
    click.echo(f"Airflow:  {env['AIRFLOW__API__BASE_URL']}")
    for user, password in passwords.items():
        click.echo(f"Login:    {user} / {password}")


def _require_free_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            _fail(f"port {port} is in use; set AIRFLOW__API__PORT to another")


def _json(path: Path) -> Any:
    """The file's content; None if the file is missing or cut short."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _fail(message: str) -> NoReturn:
    click.echo(message, err=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
