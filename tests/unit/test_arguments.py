"""The arguments of a run: what beats what, what is refused, spans and times."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from statestore.commands.arguments import (
    RunArguments,
    parse_run,
    parse_span,
    run_options,
)
from statestore.errors import InvalidSetting, Misuse
from statestore.model.modes import parse_time, to_ms

FILE = """
[applications.shop]
pipeline = "from.file:topology"
bootstrap_servers = "file:9092"
state_dir = "/from-file"
processing_guarantee = "exactly_once"

[applications.shop.settings]
"commit.interval.ms" = 300
"""


@click.command()
@run_options
@click.pass_obj
def command(found: list[RunArguments], /, **flags: Any) -> None:
    found.append(parse_run(flags))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("STATESTORE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_file(folder: Path, text: str = FILE, name: str = "statestore.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def parsed(*arguments: str, application_id: str | None = "shop", **variables: str) -> RunArguments:
    found: list[RunArguments] = []
    flags = () if application_id is None else ("--application-id", application_id)
    CliRunner().invoke(
        command,
        [*flags, *arguments],
        env={f"STATESTORE_{name.upper()}": value for name, value in variables.items()},
        obj=found,
        standalone_mode=False,
        catch_exceptions=False,
    )
    return found[0]


FLAGS = [
    ("bootstrap_servers", "bootstrap_servers", "file:9092"),
    ("state_dir", "state_dir", "/from-file"),
    ("processing_guarantee", "processing_guarantee", "exactly_once"),
]


@pytest.mark.parametrize(("flag", "attribute", "in_file"), FLAGS)
def test_a_flag_beats_the_variable_which_beats_the_file(
    folder: Path, flag: str, attribute: str, in_file: str
) -> None:
    write_file(folder)
    option = "--" + flag.replace("_", "-")
    from_flag, from_variable = (
        ("at_least_once", "exactly_once_v2")
        if flag == "processing_guarantee"
        else ("flag:1", "variable:1")
    )
    as_set = {"exactly_once_v2": "exactly_once"}
    assert getattr(parsed().settings(), attribute) == in_file
    with_variable = parsed(**{flag: from_variable}).settings()
    assert getattr(with_variable, attribute) == as_set.get(from_variable, from_variable)
    with_both = parsed(option, from_flag, **{flag: from_variable}).settings()
    assert getattr(with_both, attribute) == from_flag


def test_the_pipeline_comes_from_flag_variable_or_file_in_this_order(folder: Path) -> None:
    write_file(folder)
    assert parsed().pipeline == "from.file:topology"
    assert parsed(pipeline="from.variable:f").pipeline == "from.variable:f"
    assert parsed("--pipeline", "flag:f", pipeline="from.variable:f").pipeline == "flag:f"


def test_set_beats_the_file_and_the_variable_of_a_flag(folder: Path) -> None:
    write_file(folder)
    assert parsed("--set", "commit.interval.ms=7").settings().commit_interval_ms == 7
    settings = parsed("--set", "bootstrap.servers=set:1", bootstrap_servers="variable:1").settings()
    assert settings.bootstrap_servers == "set:1"


def test_set_cannot_change_which_application_it_is(folder: Path) -> None:
    write_file(folder)
    assert parsed("--set", "application.id=other").settings().application_id == "shop"


def test_without_a_file_flags_are_enough() -> None:
    arguments = parsed("--pipeline", "m:f", "--bootstrap-servers", "b:1", "--state-dir", "/s")
    settings = arguments.settings()
    assert (arguments.config, arguments.pipeline) == (None, "m:f")
    assert (settings.application_id, settings.bootstrap_servers) == ("shop", "b:1")
    assert (settings.state_dir, settings.exactly_once) == ("/s", False)


def test_a_file_found_by_default_need_not_know_the_application(folder: Path) -> None:
    write_file(folder)
    arguments = parsed("--pipeline", "m:f", application_id="other")
    assert arguments.config is None
    assert arguments.settings().bootstrap_servers == ""


def test_a_file_found_by_default_with_a_fault_is_an_error_all_the_same(folder: Path) -> None:
    write_file(folder, "[applications.shop]\nstate-dir = 'x'")
    with pytest.raises(InvalidSetting, match="state_dir"):
        parsed("--pipeline", "m:f")


def test_a_file_named_by_flag_must_know_the_application(folder: Path) -> None:
    path = write_file(folder, name="mine.toml")
    assert parsed("--config", str(path)).pipeline == "from.file:topology"
    with pytest.raises(InvalidSetting, match=r"no \[applications\.other\]"):
        parsed("--config", str(path), application_id="other")


@pytest.mark.parametrize(
    ("arguments", "application_id", "message"),
    [
        ((), None, "which application.*--application-id.*STATESTORE_APPLICATION_ID"),
        ((), "shop", "which pipeline.*--pipeline"),
        (("--pipeline", "m:f", "--set", "nothing"), "shop", "--set 'nothing': pass key=value"),
        (("--pipeline", "m:f", "--run-for", "long"), "shop", "span 'long'"),
    ],
)
def test_what_is_missing_or_malformed_is_named(
    arguments: tuple[str, ...], application_id: str | None, message: str
) -> None:
    with pytest.raises(Misuse, match=message):
        parsed(*arguments, application_id=application_id)


@pytest.mark.parametrize(
    "key", ["sasl.password", "sasl.jaas.config", "ssl.key.pem", "consumer.sasl.oauthbearer.token"]
)
def test_a_secret_on_the_command_line_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(Misuse, match="process listing") as caught:
        parsed("--pipeline", "m:f", "--set", f"{key}=hunter2")
    assert "hunter2" not in str(caught.value)
    assert key in str(caught.value)


def test_the_name_of_a_secrets_variable_is_welcome(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = parsed("--pipeline", "m:f", "--set", "sasl.password=${BROKER_PASSWORD}")
    monkeypatch.setenv("BROKER_PASSWORD", "hunter2")
    assert arguments.settings().client_config("admin")["sasl.password"] == "hunter2"
    assert "hunter2" not in repr(arguments)
    assert "hunter2" not in repr(arguments.for_workers())


def test_a_value_may_hold_an_equals_sign() -> None:
    arguments = parsed("--pipeline", "m:f", "--set", "sasl.kerberos.service.name=a=b")
    assert arguments.overrides["sasl.kerberos.service.name"] == "a=b"


def test_what_workers_get_has_absolute_paths_and_expanded_addresses(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(folder, FILE.replace("file:9092", "${BROKERS}").replace("/from-file", "state"))
    monkeypatch.setenv("BROKERS", "broker:9092")
    sent = parsed("--set", "sasl.password=${BROKER_PASSWORD}").for_workers()
    monkeypatch.delenv("BROKERS")
    monkeypatch.setenv("BROKERS", "of the worker")
    monkeypatch.chdir("/")
    settings = sent.settings()
    assert settings.bootstrap_servers == "broker:9092"
    assert settings.state_dir == str(folder / "state")
    assert sent.config == str(folder / "statestore.toml")
    assert sent.overrides["sasl.password"] == "${BROKER_PASSWORD}"


def test_every_flag_is_also_a_variable(folder: Path) -> None:
    write_file(folder, name="mine.toml")
    arguments = parsed(
        config=str(folder / "mine.toml"),
        until="5",
        run_for="5m",
        accept_new_topology="1",
        accept_empty_changelog="true",
    )
    assert arguments.until == "5"
    assert arguments.run_for_ms == 300_000
    assert arguments.accept_new_topology
    assert arguments.accept_empty_changelog


def test_switches_are_off_and_until_is_latest_unless_asked() -> None:
    arguments = parsed("--pipeline", "m:f")
    assert not arguments.accept_new_topology
    assert not arguments.accept_empty_changelog
    assert arguments.until_time() == "latest"
    assert arguments.run_for_ms is None
    assert parsed("--pipeline", "m:f", "--accept-new-topology").accept_new_topology


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("300", 300_000),
        ("300s", 300_000),
        ("5m", 300_000),
        ("1500ms", 1500),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        (" 5m ", 300_000),
        ("0", 0),
    ],
)
def test_spans_are_read(text: str, ms: int) -> None:
    assert parse_span(text) == ms


@pytest.mark.parametrize("text", ["", "m", "-5m", "1.5m", "5 m", "5w", "5mm"])
def test_other_spans_are_refused(text: str) -> None:
    with pytest.raises(Misuse, match="span"):
        parse_span(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1357002000000", 1_357_002_000_000),
        ("-5", -5),
        ("2013-01-01T00:00:00Z", 1_356_998_400_000),
        ("2013-01-01T01:00:00+01:00", 1_356_998_400_000),
        ("2013-01-01 00:00:00.250+00:00", 1_356_998_400_250),
    ],
)
def test_times_are_read(text: str, ms: int) -> None:
    assert to_ms(parse_time(text)) == ms


@pytest.mark.parametrize("text", ["yesterday", "", "2013-13-01T00:00:00Z", "2013-01-01", "1.5"])
def test_other_times_are_refused_also_those_without_a_zone(text: str) -> None:
    with pytest.raises(Misuse, match="time"):
        to_ms(parse_time(text))


def test_until_is_latest_or_a_time() -> None:
    arguments = RunArguments(application_id="shop", pipeline="m:f", until="2013-01-01T00:00:00Z")
    assert arguments.until_time() == datetime(2013, 1, 1, tzinfo=UTC)
