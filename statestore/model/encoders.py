"""Encoders of msgspec that give equal values equal bytes, so that these may be keys or hashed."""

from typing import Final

import msgspec

_JSON: Final = msgspec.json.Encoder(order="deterministic")

json_of: Final = _JSON.encode
"""Returns a value's JSON; the fields of an object stand as its type declares them."""
json_lines: Final = _JSON.encode_lines
"""Returns the JSON of each of several values in a line of its own."""
sorted_json: Final = msgspec.json.Encoder(order="sorted").encode
"""Returns a value's JSON, in which the fields of objects are sorted as well."""
msgpack_of: Final = msgspec.msgpack.Encoder(order="deterministic").encode
"""Returns a value's MessagePack."""
