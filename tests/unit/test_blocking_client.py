"""The blocking client is the asynchronous one without coroutines."""

from scripts import blocking_client


def test_it_is_made_of_the_coroutines() -> None:
    assert blocking_client.MADE.read_text(encoding="utf-8") == blocking_client.blocking()
