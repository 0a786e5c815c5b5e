"""Decoders that two threads want at once, of a type that neither has described yet."""

import signal
import subprocess
import sys
from textwrap import dedent

import pytest

TWO_THREADS = """
    import threading

    import msgspec

    from statestore.model import decoders

    begun, other_tried = threading.Event(), threading.Event()


    def slowly(kind: type) -> type:
        begun.set()
        other_tried.wait(1)
        return kind


    class Inner(msgspec.Struct):
        number: "slowly(int)"


    class Outer(msgspec.Struct):
        inner: Inner
        name: str


    TEXT = b'{"inner": {"number": 1}, "name": "a"}'
    OUTER = Outer(Inner(1), "a")
    found = []


    def first() -> None:
        found.append(FIRST)


    def second() -> None:
        begun.wait()
        try:
            found.append(SECOND)
        finally:
            other_tried.set()


    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [OUTER, OUTER], found
"""
WAYS = (
    "decoders.json_decoder(Outer).decode(TEXT)",
    "decoders.users_decoder(Outer).decode(TEXT)",
    "decoders.msgpack_decoder(Outer).decode(msgspec.msgpack.encode(OUTER))",
    "decoders.converted(msgspec.to_builtins(OUTER), Outer)",
    "decoders.users_conversion(Outer, ())(msgspec.to_builtins(OUTER))",
)
PLAIN = "msgspec.json.Decoder(Outer).decode(TEXT)"


def ended(first: str, second: str) -> subprocess.CompletedProcess[str]:
    program = dedent(TWO_THREADS).replace("FIRST", first).replace("SECOND", second)
    return subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )


@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("second", [WAYS[0], WAYS[3]])
def test_two_threads_can_want_the_first_decoder_of_a_type(first: str, second: str) -> None:
    done = ended(first, second)
    assert done.returncode == 0, done.stderr


def test_msgspec_itself_has_a_second_thread_take_what_is_half_described() -> None:
    done = ended(PLAIN, PLAIN)
    assert done.returncode == -signal.SIGSEGV, done.stderr
