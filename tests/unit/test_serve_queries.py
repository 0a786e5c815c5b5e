"""How the query of a question over HTTP is read: spellings, repeats, limits, what is refused."""

from urllib.parse import quote

import pytest

from statestore.errors import Misuse
from statestore.serving.endpoints import read_query
from statestore.serving.requests import GetQuery, HistoryQuery, RangeHistoryQuery, RangeQuery

TRUE = ("true", "TRUE", "tRuE", "t", "T", "1", "yes", "Y", "on", "ON")
FALSE = ("false", "False", "f", "F", "0", "no", "n", "off", "OFF")


def get(query: str | bytes) -> GetQuery:
    return read_query(GetQuery, query if isinstance(query, bytes) else query.encode())


def test_what_is_not_said_has_the_defaults_of_the_document() -> None:
    assert get("key=a") == GetQuery(
        key="a", as_of=None, raw=False, partition=None, min_position=[], wait_ms=5000
    )
    assert read_query(RangeQuery, b"") == RangeQuery()
    assert (RangeQuery().limit, HistoryQuery(key="a").limit) == (1000, 10_000)


def test_flags_have_many_spellings() -> None:
    assert [get(f"key=a&raw={word}").raw for word in TRUE] == [True] * len(TRUE)
    assert [get(f"key=a&raw={word}").raw for word in FALSE] == [False] * len(FALSE)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("-0", 0),
        ("+7", 7),
        (" 7\n", 7),
        ("007", 7),
        ("0" * 30, 0),
        ("1_000", 1000),
        ("7.0", 7),
        (str(10**30), 10**30),
    ],
)
def test_whole_numbers_have_several_spellings(text: str, number: int) -> None:
    assert get(f"key=a&partition={quote(text)}").partition == number


def test_of_a_repeated_parameter_the_last_counts_but_positions_are_gathered() -> None:
    found = get("key=a&raw=x&partition=x&key=b&raw=1&partition=2&wait_ms=1&wait_ms=2")
    assert (found.key, found.raw, found.partition, found.wait_ms) == ("b", True, 2, 2)
    assert get("key=a&min_position=in:0:1&min_position=&min_position=in:1:2").min_position == [
        "in:0:1",
        "",
        "in:1:2",
    ]


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ("key=", ""),
        ("key", ""),
        ("key=null", "null"),
        ("key=a+b%2Bc", "a b+c"),
        ("&key=a&&", "a"),
        ("%6Bey=a", "a"),
        ("key==a", "=a"),
        ("key=a;key=b", "a;key=b"),
        ("key=%C3%BC", "ü"),
        ("key=%FF", "\ufffd"),
        ("key=%zz", "%zz"),
        (b"key=\xfc", "ü"),
    ],
)
def test_keys_are_the_texts_of_the_url(query: str | bytes, key: str) -> None:
    assert get(query).key == key


def test_from_and_to_are_keys_of_a_range_and_times_of_versions() -> None:
    of_keys = read_query(RangeQuery, b"from=a&to=b")
    assert (of_keys.lowest, of_keys.highest) == ("a", "b")
    of_times = read_query(RangeHistoryQuery, b"from=1&to=2&from_key=a&to_key=b")
    assert (of_times.lowest, of_times.highest) == ("a", "b")
    assert (of_times.first, of_times.last) == ("1", "2")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "parameter 'key': Field required"),
        ("raw=1", "parameter 'key': Field required"),
        ("key=a&raw=", "parameter 'raw': Expected `bool`, got ''"),
        ("key=a&raw=maybe", "parameter 'raw': Expected `bool`, got 'maybe'"),
        ("key=a&raw= true", "parameter 'raw': Expected `bool`, got ' true'"),
        ("key=a&raw=2", "parameter 'raw': Expected `bool`, got '2'"),
        ("key=a&raw=1&raw=x", "parameter 'raw'"),
        ("key=a&partition=", "parameter 'partition': Expected `int`, got ''"),
        ("key=a&partition=null", "parameter 'partition': Expected `int`, got 'null'"),
        ("key=a&partition=1.5", "parameter 'partition'"),
        ("key=a&partition=1e3", "parameter 'partition'"),
        ("key=a&partition=0x1", "parameter 'partition'"),
        ("key=a&partition=%D9%A1", "parameter 'partition'"),
        ("key=a&partition=-1", "parameter 'partition': Expected `int` >= 0"),
        (f"key=a&partition={'9' * 5000}", "parameter 'partition'"),
        ("key=a&wait_ms=60001", "parameter 'wait_ms': Expected `int` <= 60000"),
        (f"key=a&wait_ms={10**30}", "parameter 'wait_ms': Expected `int` <= 60000"),
        ("key=a&as-of=1&b=2", "no parameter 'as-of' here: use as_of, key, min_position, partition"),
        ("KEY=a", "no parameter 'KEY' here"),
        ("key=a&lowest=1", "no parameter 'lowest' here"),
        ("key=a&=1", "no parameter '' here"),
        ("x=1&partition=y", "no parameter 'x' here"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(query: str, said: str) -> None:
    with pytest.raises(Misuse) as refused:
        get(query)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 200
