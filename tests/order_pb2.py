"""What protoc makes of a file with `message Order { string customer = 1; int64 cents = 2; }`."""

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.internal import builder

_file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
_message = _file.message_type.add(name="Order")
_fields = descriptor_pb2.FieldDescriptorProto
_message.field.add(name="customer", number=1, type=_fields.TYPE_STRING, label=1)
_message.field.add(name="cents", number=2, type=_fields.TYPE_INT64, label=1)
DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(_file.SerializeToString())
builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())
builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, __name__, globals())
