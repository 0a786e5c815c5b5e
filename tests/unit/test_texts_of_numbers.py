"""Numbers as people read them, on terminals and on pages: one place says how."""

import pytest

from statestore.commands.printing import cell_text
from statestore.model.texts import number_text, size_text, span_text, whole_number


@pytest.mark.parametrize(
    ("name", "item", "shown"),
    [
        ("restore_seconds", 0.0026465290002306574, "3 ms"),
        ("restore_seconds", 0.0, "0 s"),
        ("restore_seconds", 2.5, "2.5 s"),
        ("restore_seconds", 93, "1 min 33 s"),
        ("records_in", 1234567, "1,234,567"),
        ("restored_records", 1000, "1,000"),
        ("size_bytes", 5_000_000, "4.8 MiB"),
        ("bytes", 17, "17 B"),
        ("made_ms", 0, "1970-01-01T00:00:00.000Z"),
        ("key", 1234567, "1234567"),
        ("value", 0.1, "0.1"),
        ("offset", 1234567, "1234567"),
        ("application_id", "1000", "1000"),
        ("problem", None, ""),
    ],
)
def test_a_field_is_written_for_people_by_its_name(name: str, item: object, shown: str) -> None:
    assert cell_text(name, item) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (None, "?"),
        (0, "0"),
        (12_345, "12,345"),
        (0.123456, "0.123"),
        (12.3456, "12.3"),
        (98_765.4321, "98,765"),
    ],
)
def test_a_number_has_no_more_digits_than_people_compare(number: float | None, shown: str) -> None:
    assert number_text(number) == shown


def test_sizes_and_spans_take_the_unit_that_fits() -> None:
    sizes = [size_text(size) for size in (None, 0, 1023, 1024, 3 << 40, 5000 << 40)]
    assert sizes == ["?", "0 B", "1023 B", "1.0 KiB", "3.0 TiB", "5,000.0 TiB"]
    spans = [span_text(span) for span in (None, 0.0004, 0.999, 0.9999, 9.99, 10)]
    assert spans == ["?", "< 1 ms", "999 ms", "1.0 s", "10.0 s", "10 s"]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("007", 7),
        ("9223372036854775807", (1 << 63) - 1),
        ("0" * 5000 + "7", 7),
        ("9" * 5000, 10**19),
        *((wrong, None) for wrong in ("", "-1", "+1", " 1", "1_0", "1.0", "²", "٣", "x")),
    ],
)
def test_a_whole_number_has_digits_alone_and_any_number_of_them(
    text: str, number: int | None
) -> None:
    assert whole_number(text) == number
