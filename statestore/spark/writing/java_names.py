"""Settings of Kafka's Java clients, which Spark's own sink takes, by the names of ours."""

import re
from collections.abc import Mapping
from typing import Final

from statestore.errors import Misuse
from statestore.model.texts import whole_number

_SAME: Final = {"max.request.size": "message.max.bytes"}
"""Those that only have another name."""
_BUFFER: Final = "buffer.memory"
_BUFFER_KBYTES: Final = "queue.buffering.max.kbytes"
_JAAS: Final = "sasl.jaas.config"
_LOGIN: Final = re.compile(
    r"\s*\S+\.(?:PlainLoginModule|ScramLoginModule)\s+(?:required|requisite|sufficient|optional)\s"
)
_FIELD: Final = re.compile(
    r"(username|password)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([^\s;]+))"
)
_PEM: Final = (
    "Java's stores of certificates are not read: export the certificates as PEM, and pass "
    "kafka.ssl.ca.location, or the PEM itself as kafka.ssl.ca.pem"
)
_OTHERWISE: Final = {
    "ssl.truststore.location": _PEM,
    "ssl.truststore.password": _PEM,
    "ssl.truststore.type": _PEM,
    "ssl.keystore.type": "kafka.ssl.keystore.location is of PKCS#12, whatever its name is",
    "max.block.ms": "kafka.default.api.timeout.ms says how long a request may take",
    "partitioner.class": "pass kafka.partitioner, or a column `partition`",
    "interceptor.classes": "records are written by no Java client",
    "metric.reporters": "records are written by no Java client",
}
"""Those that mean nothing to our clients, and what to do instead."""


def of_clients(kafka: Mapping[str, str]) -> dict[str, str]:
    """Return settings by the names of our clients; Misuse says what to pass instead of one."""
    made: dict[str, str] = {}
    for name, text in kafka.items():
        if name in _OTHERWISE:
            raise Misuse(
                f"kafka.{name} is of Kafka's Java clients: leave it out: {_OTHERWISE[name]}"
            )
        if name == _JAAS:
            found = _login(text)
        elif name == _BUFFER:
            found = {_BUFFER_KBYTES: str(max(1, _whole(name, text) // 1024))}
        else:
            found = {_SAME.get(name, name): text}
        for own, value in found.items():
            if made.setdefault(own, value) != value or (
                own != name and kafka.get(own, value) != value
            ):
                raise Misuse(f"kafka.{name} and kafka.{own} say the same thing: pass one of them")
    return made


def _whole(name: str, text: str) -> int:
    number = whole_number(text)
    if number is None or number >= 2**63:
        raise Misuse(f"kafka.{name} = {text!r:.99}: want a whole number of bytes")
    return number


def _login(text: str) -> dict[str, str]:
    """The name and the password of a Java login; its text is a secret, so no error shows it."""
    fields = {
        name: re.sub(r"\\(.)", r"\1", quoted) or other or plain
        for name, quoted, other, plain in _FIELD.findall(text)
    }
    if not _LOGIN.match(text) or set(fields) != {"username", "password"}:
        raise Misuse(
            f"kafka.{_JAAS}: want a PlainLoginModule or a ScramLoginModule with username and "
            "password, or leave it out, and pass kafka.sasl.username and kafka.sasl.password"
        )
    return {f"sasl.{name}": value for name, value in fields.items()}
