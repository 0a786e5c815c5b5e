"""The addresses of brokers, as `bootstrap.servers` names them."""

from typing import NamedTuple

from statestore.errors import InvalidSetting
from statestore.model.texts import whole_number


class BrokerAddress(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def of(cls, text: str) -> "BrokerAddress":
        """Read host:port, [host]:port or a host alone.

        InvalidSetting for anything else: librdkafka would look for another host or port.
        """
        text = text.strip().rpartition("://")[2]
        host, colon, port = text.rpartition(":")
        if not colon or (":" in host and not host.endswith("]")):
            host, port = text, "9092"
        number = whole_number(port)
        if number is None or not 0 < number < 1 << 16 or not host:
            raise InvalidSetting(
                f"bootstrap.servers: {text!r:.99} is not host:port, with a port from 1 to 65535"
            )
        return cls(host.strip("[]"), number)


def addresses_of(servers: str) -> list[BrokerAddress]:
    """Read `bootstrap.servers`, addresses with commas; InvalidSetting names one that is wrong."""
    return [BrokerAddress.of(one) for one in servers.split(",") if one.strip()]
