"""Serdes whose schemas are in a Confluent Schema Registry, through the client's own serializers.

Belongs to the extra `schema-registry`, which is imported when the first serde is asked for. Each
process has one client of a registry. It asks for a schema once, so that no request is made per
record.
"""

import re
import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Final, Protocol
from urllib.parse import unquote

import msgspec
from confluent_kafka.serialization import SerializationContext

from statestore.errors import InvalidSetting, Misuse, StateStoreError, Unavailable
from statestore.extras import needed
from statestore.model.encoders import json_of
from statestore.model.records import OF_REGISTRY, Schema, Serde, SerdeContext
from statestore.serdes.objects import objects_of
from statestore.settings import expand

_SUBJECTS: Final = {
    "topic": "topic_subject_name_strategy",
    "record": "record_subject_name_strategy",
    "topic-record": "topic_record_subject_name_strategy",
}
_IDS: Final = ("prefix", "headers")
_ID_HEADERS: Final = {"key": "__key_schema_id", "value": "__value_schema_id"}
_USER: Final = re.compile(r"//([^/]*)@")
_TIMEOUT_S: Final = 10
_UNKNOWN_SCHEMA: Final = 40403
_LATER: Final = frozenset({408, 429, 500, 502, 503, 504})
_DENIED: Final = frozenset({401, 403})


class SchemaRegistry:
    """A schema registry: where it is, how to log in, and under which subjects schemas are.

    `subjects` is `topic` (`<topic>-key`, `<topic>-value`), `record` (the record's full name) or
    `topic-record`. `auto_register`: schemas that are missing are registered as records are written.
    `ids` is `prefix`, or `headers`: records have the id of their value's schema in a header. Keys,
    and rows of stores, have it before their bytes in either case, because keys are placed by their
    bytes and rows have no headers. Both forms are read.

    All other keywords are properties of Confluent's client with `_` for each dot, such as
    `basic_auth_user_info="${REGISTRY_USER}:${REGISTRY_PASSWORD}"`, `bearer_auth_token` or
    `ssl_ca_location`. In these and in the URL, `${NAME}` is the environment variable of whatever
    process asks the registry.
    """

    def __init__(
        self,
        url: str,
        *,
        auto_register: bool = False,
        subjects: str = "topic",
        ids: str = "prefix",
        **config: Any,
    ) -> None:
        for name, said, known in (("subjects", subjects, _SUBJECTS), ("ids", ids, _IDS)):
            if said not in known:
                raise Misuse(f"SchemaRegistry: {name}={said!r:.99}: pass one of {', '.join(known)}")
        given = {"timeout": _TIMEOUT_S, **config}
        self._config = tuple(
            sorted({"url": url, **{k.replace("_", "."): v for k, v in given.items()}}.items())
        )
        self._auto_register = auto_register
        self._subjects = subjects
        self._ids = ids

    def __repr__(self) -> str:
        keys = ", ".join(f"{key}=…" for key, _ in self._config if key not in ("url", "timeout"))
        return f"SchemaRegistry({_without_user(self._url)!r}{', ' if keys else ''}{keys})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SchemaRegistry) and self._all == other._all

    def __hash__(self) -> int:
        return hash(self._all)

    @property
    def _url(self) -> str:
        return str(dict(self._config)["url"])

    @property
    def _all(self) -> tuple[Any, ...]:
        return (self._config, self._auto_register, self._subjects, self._ids)

    def serde(self, form: str, schema: Any, kind: Any) -> Serde[Any]:
        """Return the serde of a format: AVRO, JSON or PROTOBUF; see `statestore.serdes`."""
        return _serde(self, form, _FORMATS[form].text_of(schema), kind)

    def settle(self, form: str, schema: Any, context: SerdeContext) -> str | None:
        """Find or register the schema of a topic's keys or values, as the first record would.

        Returns the text of what will be written; None: only a record tells. Misuse if the registry
        does not have the schema, or does not take it.
        """
        if form == "PROTOBUF":
            self.serde(form, schema, schema).write(schema(), context)
            return None
        text = _FORMATS[form].text_of(schema)
        made = _FORMATS[form](self, text, None)
        of_place: Callable[..., Any] = SerializationContext
        strategy = self.configured(writes=False, latest=False)["subject.name.strategy"]
        subject = strategy(of_place(context.topic, context.side), made.record)
        if subject is None and text is not None:
            raise Misuse(
                f"{made.name} names no record, and subjects={self._subjects!r} goes by its name: "
                "give the schema a name (the title of a JSON Schema), or pass subjects='topic'"
            )
        if subject is None:
            return None
        try:
            if text is None:
                return str(self.client().get_latest_version(subject).schema.schema_str)
            declared = _declared(text, form)
            if self._auto_register:
                self.client().register_schema(subject, declared)
            else:
                self.client().lookup_schema(subject, declared)
        except StateStoreError:
            raise
        except Exception as error:
            where = f"{made.name} of the {context.side}s of {context.topic}"
            raise self.failure(error, where, writing=True) from error
        return text

    def client(self) -> Any:
        """Return this process's client."""
        config = {key: _expanded(key, value) for key, value in self._config}
        user = _USER.search(config["url"])
        if user is not None:
            # The client would keep them in the URL, and its requests are logged with theirs.
            config["url"] = _without_user(config["url"])
            config.setdefault("basic.auth.user.info", unquote(user[1]))
        return _client(tuple(sorted(config.items())))

    def configured(self, *, writes: bool, latest: bool) -> dict[str, Any]:
        """Return the configuration of a serializer or deserializer."""
        with _extra():
            from confluent_kafka import schema_registry
        made: dict[str, Any] = {
            "subject.name.strategy": getattr(schema_registry, _SUBJECTS[self._subjects])
        }
        if writes:
            made["auto.register.schemas"] = self._auto_register and not latest
            made["use.latest.version"] = latest
            if self._ids == "headers":
                made["schema.id.serializer"] = _in_header
        return made

    def failure(self, error: Exception, where: str, *, writing: bool) -> Exception:
        """Return what to raise for an error of the client; `where` says which subject it was."""
        status = getattr(error, "http_status_code", getattr(error, "status_code", None))
        at = f"the schema registry at {_without_user(_expanded('url', self._url))}"
        of_network = isinstance(error, OSError) or (
            type(error).__module__.partition(".")[0] == "httpx2"
        )
        if of_network and _of_tls(error):
            return InvalidSetting(
                f"{at} and this process do not accept each other's certificates ({error}): give "
                "SchemaRegistry the authority's as ssl_ca_location, and one of your own as "
                "ssl_certificate_location and ssl_key_location if the registry wants one"
            )
        if of_network:
            return Unavailable(
                f"{at} does not answer ({type(error).__name__}: {error}): look whether it runs and "
                "whether its URL is right; the run may be repeated"
            )
        if status is None:
            return error
        if status in _LATER:
            return Unavailable(f"{at} cannot answer now ({error}): the run may be repeated")
        if status in _DENIED:
            return InvalidSetting(
                f"{at} denies access ({error}): look at basic_auth_user_info, bearer_auth_token or "
                "the certificates that SchemaRegistry was given, and at the environment variables "
                "that they name"
            )
        if writing and status == 404:
            return Misuse(
                f"{at} does not have the schema of {where} ({error}): register it there, or give "
                "SchemaRegistry auto_register=True"
            )
        if writing:
            return Misuse(f"{at} does not take the schema of {where}: {error}")
        if getattr(error, "error_code", None) == _UNKNOWN_SCHEMA:
            return error
        return InvalidSetting(f"{at} refuses what it is asked ({error}): look at its URL")


@cache
def _serde(registry: SchemaRegistry, form: str, text: str | None, kind: Any) -> Serde[Any]:
    format_: _Format = _FORMATS[form](registry, text, kind)
    serializers: dict[tuple[str, str], Callable[..., bytes]] = {}
    deserializer: list[Callable[..., Any]] = []
    # Other than its annotations say, it takes the side as text and headers in bytes.
    context_of: Callable[..., Any] = SerializationContext

    def write(value: Any, context: SerdeContext) -> bytes:
        topic, side, headers = context
        plain = format_.dump(value)
        if headers:
            # An id that came with the record that this one was made of names another schema.
            headers[:] = [header for header in headers if header[0] != _ID_HEADERS[side]]
        try:
            # One for each place, because a serializer keeps the id of the last subject only.
            serializer = serializers.get((topic, side))
            if serializer is None:
                serializer = serializers[topic, side] = format_.serializer()
            return serializer(plain, context_of(topic, side, headers))
        except StateStoreError:
            raise
        except Exception as error:
            where = f"{form_name} of the {side}s of {topic}"
            raise registry.failure(error, where, writing=True) from error

    def read(data: bytes, context: SerdeContext) -> Any:
        topic, side, headers = context
        if headers:
            # The client would refuse short bytes whose id is in a header.
            ids = [head for name, head in headers if name == _ID_HEADERS[side] and head]
            data, headers = b"".join([*ids[:1], data]), None if ids else headers
        try:
            if not deserializer:
                deserializer.append(format_.deserializer())
            found = deserializer[0](data, context_of(topic, side, headers))
        except StateStoreError:
            raise
        except Exception as error:
            where = f"the {side}s of {topic}"
            raise registry.failure(error, where, writing=False) from error
        return format_.load(found)

    form_name = format_.name
    schema = None if text is None else format_.schema
    made: Serde[Any] = Serde(f"{OF_REGISTRY}{form_name}", write, read, schema=schema)
    return made.made_by(_serde, registry, form, text, kind)


class _Format(Protocol):
    """What one format is called, and how Confluent's client writes and reads it."""

    @property
    def name(self) -> str: ...
    @property
    def record(self) -> str | None: ...
    @property
    def schema(self) -> Schema | None: ...
    @property
    def dump(self) -> Callable[[Any], Any]: ...
    @property
    def load(self) -> Callable[[Any], Any]: ...
    def serializer(self) -> Any: ...
    def deserializer(self) -> Any: ...


class _Avro:
    """Avro through Confluent's serializers."""

    def __init__(self, registry: SchemaRegistry, text: str | None, kind: Any) -> None:
        with _extra():
            from statestore.serdes.avro_serdes import canonical_avro, name_of_avro, parsed_avro
        self._registry = registry
        self._text = text
        parsed = None if text is None else parsed_avro(text)
        self.name = f"AVRO({'any' if parsed is None else name_of_avro(parsed)})"
        # A union has none.
        self.record = None if parsed is None or isinstance(parsed, list) else name_of_avro(parsed)
        self.schema = None if parsed is None else Schema("AVRO", canonical_avro(parsed))
        self.dump, self.load = objects_of(kind)

    def serializer(self) -> Any:
        with _extra():
            from confluent_kafka.schema_registry.avro import AvroSerializer
        config = self._registry.configured(writes=True, latest=self._text is None)
        return AvroSerializer(self._registry.client(), self._text, conf=config)

    def deserializer(self) -> Any:
        with _extra():
            from confluent_kafka.schema_registry.avro import AvroDeserializer
        config = self._registry.configured(writes=False, latest=False)
        return AvroDeserializer(self._registry.client(), self._text, conf=config)

    @staticmethod
    def text_of(schema: Any) -> str | None:
        with _extra():
            from statestore.serdes.avro_serdes import avro_text
        return None if schema is None else avro_text(schema)


class _Json:
    """JSON Schema through Confluent's serializers."""

    def __init__(self, registry: SchemaRegistry, text: str | None, kind: Any) -> None:
        with _extra():
            from statestore.serdes.json_schema_serdes import canonical, name_of_json, title_of
        self._registry = registry
        self._text = text
        self.name = f"JSON_SCHEMA({'any' if text is None else name_of_json(text)})"
        self.record = None if text is None else title_of(text)
        self.schema = None if text is None else Schema("JSON", canonical(text))
        self.dump, self.load = objects_of(kind)

    def serializer(self) -> Any:
        with _extra():
            from confluent_kafka.schema_registry.json_schema import JSONSerializer
        config = self._registry.configured(writes=True, latest=self._text is None)
        return JSONSerializer(
            self._text,
            self._registry.client(),
            conf=config,
            json_encode=lambda value: json_of(value).decode(),
        )

    def deserializer(self) -> Any:
        with _extra():
            from confluent_kafka.schema_registry.json_schema import JSONDeserializer
        config = self._registry.configured(writes=False, latest=False)
        return JSONDeserializer(
            self._text,
            schema_registry_client=self._registry.client(),
            conf=config,
            json_decode=msgspec.json.decode,
        )

    @staticmethod
    def text_of(schema: Any) -> str | None:
        with _extra():
            from statestore.serdes.json_schema_serdes import json_schema_text
        return None if schema is None else json_schema_text(schema)


class _Protobuf:
    """Protobuf messages through Confluent's serializers."""

    def __init__(self, registry: SchemaRegistry, _text: str | None, kind: Any) -> None:
        with _extra():
            from statestore.serdes.protobuf_serdes import schema_of_message
        self._registry = registry
        self._kind = kind
        self.record: str | None = kind.DESCRIPTOR.full_name
        self.name = f"PROTOBUF({self.record})"
        self.schema: Schema | None = schema_of_message(kind)
        self.load: Callable[[Any], Any] = _same

    def dump(self, value: Any) -> Any:
        if not isinstance(value, self._kind):
            raise TypeError(f"want {self._kind.DESCRIPTOR.full_name}")
        return value

    def serializer(self) -> Any:
        with _extra():
            from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
        config = self._registry.configured(writes=True, latest=False)
        return ProtobufSerializer(self._kind, self._registry.client(), conf=config)

    def deserializer(self) -> Any:
        with _extra():
            from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
        config = self._registry.configured(writes=False, latest=False)
        client = self._registry.client()
        return ProtobufDeserializer(self._kind, conf=config, schema_registry_client=client)

    @staticmethod
    def text_of(schema: Any) -> str | None:
        with _extra():
            from statestore.serdes.protobuf_serdes import check_message, schema_of_message
        check_message(schema)
        return schema_of_message(schema).text


_FORMATS: Final[dict[str, type[_Avro | _Json | _Protobuf]]] = {
    "AVRO": _Avro,
    "JSON": _Json,
    "PROTOBUF": _Protobuf,
}


@cache
def _client(config: tuple[tuple[str, Any], ...]) -> Any:
    with _extra():
        from confluent_kafka.schema_registry import SchemaRegistryClient
    try:
        return SchemaRegistryClient(dict(config))
    except (ValueError, TypeError) as error:
        # Without the client's own error, whose text may have what it was given.
        told = _without_user(str(error))
        raise InvalidSetting(f"SchemaRegistry: {told}: correct its arguments") from None
    except OSError as error:
        raise InvalidSetting(
            f"SchemaRegistry cannot use its certificates ({error}): look at the files that "
            "ssl_ca_location, ssl_certificate_location and ssl_key_location name, here and on each "
            "worker"
        ) from error


def _declared(text: str, form: str) -> Any:
    with _extra():
        from confluent_kafka.schema_registry import Schema as Declared
    return Declared(text, form)


def _of_tls(error: BaseException) -> bool:
    """Tell whether the certificates or the protocol of TLS are at fault, not the network."""
    found: BaseException | None = error
    seen: set[int] = set()
    while found is not None and id(found) not in seen:
        if isinstance(found, ssl.SSLError):
            return not isinstance(found, ssl.SSLEOFError | ssl.SSLZeroReturnError)
        seen.add(id(found))
        found = found.__cause__ or found.__context__
    return False


def _in_header(payload: bytes, context: Any, schema_id: Any) -> bytes:
    """Add a header with the id of a value's schema, as Confluent's clients read it.

    It is the schema's GUID where the registry knows it, and its id otherwise.
    """
    if context.field != "value" or context.headers is None:
        return bytes(schema_id.id_to_bytes() + payload)
    has_guid = schema_id.guid is not None
    head = schema_id.guid_to_bytes() if has_guid else schema_id.id_to_bytes()
    context.headers.append((_ID_HEADERS["value"], head))
    return payload


def _expanded(key: str, value: Any) -> Any:
    return expand(value, f"SchemaRegistry({key})") if isinstance(value, str) else value


def _without_user(url: str) -> str:
    return _USER.sub("//", url)


def _extra() -> AbstractContextManager[None]:
    return needed("schema-registry", "a schema registry")


def _same(value: Any) -> Any:
    return value
