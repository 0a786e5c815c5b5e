"""Serdes of which only a name and a schema are known, as topology.json keeps them."""

import msgspec

from statestore import serdes
from statestore.model.records import ArrowForm, Schema, Serde
from statestore.serdes.serde_names import head_of


def by_description(name: str, schema: Schema | None) -> Serde[object]:
    """Return the serde of that name, which reads values as dicts and lists; Misuse if none can.

    With the schema of JSON of a type it also knows the Arrow type of its values, and with that of
    Avro it reads what no name alone says how to read.
    """
    kind = None if schema is None else schema.kind
    match head_of(name):
        case "JSON" if schema is not None and kind == "JSON":
            text = schema.text
            # The fields of a type have its order, which a schema does not tell: whoever asks for a
            # key writes it as it is shown.
            return Serde(
                name,
                msgspec.json.encode,
                serdes.JSON.deserialize,
                schema=schema,
                arrow=lambda: _form_of(text),
            )
        case "AVRO" if schema is not None and kind == "AVRO":
            return serdes.avro(schema.text)
    return serdes.by_name(name)


def _form_of(text: str) -> ArrowForm:
    from statestore.serdes.arrow_of_schema import form_of_schema

    return form_of_schema(text)
