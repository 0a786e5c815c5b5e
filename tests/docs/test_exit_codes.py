"""The page of exit codes says what errors.py defines, no more and no less."""

import re

import pytest

from statestore import errors
from statestore.errors import Action, StateStoreError
from tests.builders import ROOT

PAGE = (ROOT / "docs" / "guides" / "exit-codes.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| \[(\d+)\]\([^)]+\) \|[^|]+\| ([^|]+) \|$", re.MULTILINE)
SECTION = re.compile(r"^## (\d+): (\w+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
TABLE = {int(code): airflow for code, airflow in ROW.findall(PAGE)}
SECTIONS = {int(code): (title, text) for code, title, text in SECTION.findall(PAGE)}
DEFINED = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, StateStoreError) and kind is not StateStoreError
}
CODES = sorted({kind.exit_code for kind in DEFINED.values()})
AIRFLOW = {Action.FAIL: "fails", Action.RETRY: "retries", Action.RETRY_LATER: "retries later"}


def test_it_has_every_code_once_in_order() -> None:
    assert list(TABLE) == list(SECTIONS) == [0, 1, *CODES]
    assert list(range(2, 18)) == CODES


@pytest.mark.parametrize("code", CODES)
def test_a_section_names_the_errors_of_its_code_and_what_airflow_does(code: int) -> None:
    of_code = {name: kind for name, kind in DEFINED.items() if kind.exit_code == code}
    title, text = SECTIONS[code]
    assert title in of_code
    assert [name for name in of_code if not re.search(rf"\b{name}\b", title + text)] == []
    others = [name for name in DEFINED.keys() - of_code.keys() if re.search(rf"\b{name}\b", text)]
    assert others == []
    assert {AIRFLOW[kind.action] for kind in of_code.values()} == {TABLE[code]}


def test_an_unexpected_error_is_retried() -> None:
    assert StateStoreError.exit_code == 1
    assert TABLE[1] == AIRFLOW[StateStoreError.action]


@pytest.mark.parametrize("code", [1, *CODES])
def test_a_section_says_what_is_safe_and_what_to_do(code: int) -> None:
    _, text = SECTIONS[code]
    assert "- **Safe:** " in text
    assert "- **Do:** " in text
