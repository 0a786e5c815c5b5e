from typing_extensions import Buffer

def of_objects(
    keys: list[bytes], places: Buffer | None = ..., starts: Buffer | None = ..., /
) -> tuple[bytes, list[bytes]]: ...
def of_columns(
    data: Buffer,
    offsets: Buffer,
    first: int,
    count: int,
    places: Buffer | None = ...,
    starts: Buffer | None = ...,
    /,
) -> tuple[bytes, list[bytes]]: ...
