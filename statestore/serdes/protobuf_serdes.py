"""Protobuf messages without a registry. Belongs to the extra `protobuf`."""

import base64
from functools import cache
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import Message

from statestore.errors import Misuse
from statestore.model.records import Schema, Serde


def protobuf_serde(message: Any) -> Serde[Any]:
    """Return the serde of a generated message class; Misuse if it is none."""
    check_message(message)
    return _made(message)


@cache
def _made(message: Any) -> Serde[Any]:
    name = message.DESCRIPTOR.full_name

    def write(value: Any) -> bytes:
        if not isinstance(value, message):
            raise TypeError(f"want {name}")
        data: bytes = value.SerializeToString(deterministic=True)
        return data

    made: Serde[Any] = Serde(
        f"PROTOBUF({name})", write, message.FromString, schema=schema_of_message(message)
    )
    return made.made_by(protobuf_serde, message)


def check_message(message: object) -> None:
    """Raise Misuse unless this is a generated message class."""
    if not (isinstance(message, type) and issubclass(message, Message)):
        raise Misuse(
            f"serdes.protobuf: {message!r:.99} is not a message class: pass a class that protoc "
            "made, as order_pb2.Order"
        )


def schema_of_message(message: Any) -> Schema:
    """Return the files that a message needs, in base64, and its full name."""
    files = FileDescriptorSet()
    seen: set[str] = set()

    def add(file: FileDescriptor) -> None:
        if file.name not in seen:
            seen.add(file.name)
            for needed in file.dependencies:
                add(needed)
            file.CopyToProto(files.file.add())

    add(message.DESCRIPTOR.file)
    packed = base64.b64encode(files.SerializeToString(deterministic=True)).decode()
    return Schema("PROTOBUF", f"{packed}#{message.DESCRIPTOR.full_name}")
