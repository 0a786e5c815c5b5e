"""A setting is honoured or refused, never ignored."""

import pytest

from statestore.errors import InvalidSetting
from statestore.operations.run import check_supported
from statestore.settings import Settings


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("statestore.volume.locks", False),
    ],
)
def test_a_value_this_version_would_ignore_is_refused(key: str, value: object) -> None:
    with pytest.raises(InvalidSetting, match=key):
        check_supported(Settings.from_mapping({key: value}))


def test_the_defaults_are_supported() -> None:
    check_supported(Settings())
