"""An applications file and settings with what nobody means: a value, or an InvalidSetting."""

import os
import random
from dataclasses import fields
from pathlib import Path

import pytest

from statestore.applications import ConfiguredApplication, page_imports
from statestore.errors import InvalidSetting
from statestore.settings import Settings
from tests.mangling import OTHERS, foreseen, mangled

SEED = int(os.environ.get("BAD_INPUT_SEED", "31"))
FILE = b"""
[applications.shop]
pipeline = "shop:topology"
bootstrap_servers = "broker-1:9093"
state_dir = "state"
processing_guarantee = "exactly_once"

[applications.shop.settings]
"sasl.password" = "${PASSWORD}"
"commit.interval.ms" = 100
statestore.memory.bytes = 1_000_000
consumer.fetch.max.bytes = 0x10
at = 2026-01-01T00:00:00Z

[applications.shop.alerts]
list = [1, "a", { b = 1.5 }]

[page]
import_pipelines = true
"""


@pytest.mark.parametrize("count", [100, pytest.param(5_000, marks=pytest.mark.thorough)])
def test_an_applications_file_is_read_or_refused(tmp_path: Path, count: int) -> None:
    path = tmp_path / "statestore.toml"
    for number in range(count):
        data = mangled(random.Random(f"{SEED} file {number}"), FILE)
        path.write_bytes(data)
        for ask in (
            lambda: [
                ConfiguredApplication.load(path, one) for one in ConfiguredApplication.ids(path)
            ],
            lambda: Settings.load(path, "shop"),
            lambda: page_imports(path),
        ):
            with foreseen(f"seed {SEED}, number {number}: {data!r}"):
                ask()


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 5_000, "a = " + "{a=" * 5_000, "[a" + ".a" * 9_000]
)
def test_a_file_nested_without_end_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "statestore.toml"
    path.write_text(text)
    with pytest.raises(InvalidSetting):
        ConfiguredApplication.load(path, "shop")


@pytest.mark.parametrize(
    "key", sorted(one.metadata["key"] for one in fields(Settings) if "key" in one.metadata)
)
def test_a_setting_takes_a_value_or_refuses_it(key: str) -> None:
    for value in OTHERS:
        with foreseen(f"{key} = {value!r:.99}"):
            made = Settings.from_mapping({key: value})
            assert Settings.from_mapping(made.to_mapping()) == made
            repr(made)
