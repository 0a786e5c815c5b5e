"""The Great Expectations suites of an audit, and its Data Docs. No other module imports GX.

Four frames are judged, each of all stores at once:

    compared    a row for each key and beginning on either side, without the superseded ones
    stored      the store's rows, with the partition each key belongs to, the version after it, and
                what wrote it
    places      a row for each store and stream task: its offsets and counts
    beside      a row for each row of the store's files that contradicts others of them

Each expectation names the check of statestore.operations.audits that it makes. What it finds comes
back with store, stream task and key, and failures.py puts it into words.
"""

import os

# This comes before the import, which asks a server of its makers whether to report usage.
os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")

import logging
from pathlib import Path
from typing import Any, Final, NamedTuple

import great_expectations as gx
from great_expectations.core.run_identifier import RunIdentifier
from great_expectations.expectations.core.expect_column_pair_values_a_to_be_greater_than_b import (
    ExpectColumnPairValuesAToBeGreaterThanB,
)
from great_expectations.expectations.core.expect_column_pair_values_to_be_equal import (
    ExpectColumnPairValuesToBeEqual,
)
from great_expectations.expectations.core.expect_column_values_to_be_between import (
    ExpectColumnValuesToBeBetween,
)
from great_expectations.expectations.core.expect_column_values_to_not_be_in_set import (
    ExpectColumnValuesToNotBeInSet,
)
from great_expectations.expectations.core.expect_column_values_to_not_be_null import (
    ExpectColumnValuesToNotBeNull,
)
from great_expectations.expectations.core.expect_compound_columns_to_be_unique import (
    ExpectCompoundColumnsToBeUnique,
)
from pyspark.sql import DataFrame

from statestore.operations.audits.audit import EXAMPLES, RowFinding
from statestore.operations.audits.checks import FAULTS, AuditCheck

logging.getLogger("great_expectations").setLevel(logging.WARNING)
SITE = "audit"
NAMED_MAX = 1000
"""If more rows are wrong, Data Docs and failures name only some of them."""
_EITHER: Final = "either_value_is_missing"


class Frames(NamedTuple):
    """The frames to judge; the module's docstring describes them."""

    compared: DataFrame
    stored: DataFrame
    places: DataFrame
    beside: DataFrame


class Unexpected(NamedTuple):
    """What an expectation found in a store of a stream task: how many rows, and some of their keys.

    If the place is not known, `store` is empty and `stream_task` is None.
    """

    check: AuditCheck
    store: str
    stream_task: str | None
    rows: int
    keys: list[str]


class Judged(NamedTuple):
    """What was unexpected, and the address of the first page of Data Docs."""

    unexpected: list[Unexpected]
    link: str


def validate(frames: Frames, docs: Path, *, run_name: str, wrong_rows: int) -> Judged:
    """Run every suite and write Data Docs into the folder `docs`.

    `wrong_rows` says about how many will be found; Data Docs name them all only if they are few.
    """
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}  # type: ignore[assignment]  # its config
    context.delete_data_docs_site("local_site")
    context.add_data_docs_site(SITE, _site(docs))  # type: ignore[arg-type]  # what its documentation shows
    source = context.data_sources.add_spark("stores")
    unexpected: list[Unexpected] = []
    for name, frame in frames._asdict().items():
        asset = source.add_dataframe_asset(name)
        suite = context.suites.add(gx.ExpectationSuite(name=name, expectations=SUITES[name]()))
        definition = context.validation_definitions.add(
            gx.ValidationDefinition(
                name=name, data=asset.add_batch_definition_whole_dataframe("all"), suite=suite
            )
        )
        index = ["store", "stream_task"] + ([] if name == "places" else ["key"])
        result = definition.run(
            batch_parameters={"dataframe": frame},
            run_id=RunIdentifier(run_name=run_name),
            result_format={
                "result_format": "COMPLETE" if wrong_rows <= NAMED_MAX else "SUMMARY",
                "unexpected_index_column_names": index,
                "partial_unexpected_count": EXAMPLES,
                "return_unexpected_index_query": False,
            },
        )
        for one in result.results:
            unexpected += _unexpected(one)
    context.build_data_docs(site_names=[SITE])
    return Judged(unexpected, (docs / "index.html").resolve().as_uri())


def compared_suite() -> list[Any]:
    """What must hold between the two sides of a row."""
    return [
        ExpectColumnValuesToNotBeNull(column="stored", **_of(AuditCheck.NONE_MISSING)),
        ExpectColumnValuesToNotBeNull(column="logged", **_of(AuditCheck.NONE_EXTRA)),
        ExpectColumnPairValuesToBeEqual(
            column_A="stored",
            column_B="logged",
            ignore_row_if=_EITHER,
            **_of(AuditCheck.EQUAL_VALUES),
        ),
        ExpectColumnValuesToNotBeInSet(
            column="finding",
            value_set=[RowFinding.PENDING.value],
            **_of(AuditCheck.NOTHING_PENDING),
        ),
    ]


def stored_suite() -> list[Any]:
    """What must hold of a store's rows among themselves."""
    return [
        ExpectCompoundColumnsToBeUnique(
            column_list=["store", "stream_task", "row_key", "begins"], **_of(AuditCheck.UNIQUE_KEYS)
        ),
        ExpectColumnPairValuesToBeEqual(
            column_A="partition",
            column_B="home",
            ignore_row_if=_EITHER,
            **_of(AuditCheck.RIGHT_PARTITION),
        ),
        ExpectColumnPairValuesAToBeGreaterThanB(
            column_A="next_begins",
            column_B="ends_at_last",
            or_equal=True,
            ignore_row_if=_EITHER,
            **_of(AuditCheck.VERSIONS_APART),
        ),
        ExpectColumnValuesToBeBetween(
            column="latest_of_key", max_value=1, **_of(AuditCheck.ONE_LATEST)
        ),
        ExpectColumnValuesToNotBeNull(column="written_by", **_of(AuditCheck.KNOWN_WRITERS)),
    ]


def places_suite() -> list[Any]:
    """What must hold of a store's offsets and counts."""
    return [
        ExpectColumnPairValuesToBeEqual(
            column_A="rows", column_B="rows_of_log", **_of(AuditCheck.ROW_COUNTS)
        ),
        ExpectColumnPairValuesAToBeGreaterThanB(
            column_A="log_end",
            column_B="offset_next",
            or_equal=True,
            **_of(AuditCheck.STABLE_OFFSETS),
        ),
        ExpectColumnPairValuesAToBeGreaterThanB(
            column_A="offset_next",
            column_B="last_offset",
            or_equal=True,
            ignore_row_if=_EITHER,
            **_of(AuditCheck.FORWARD_OFFSETS),
        ),
    ]


def beside_suite() -> list[Any]:
    """What must hold of the rows of a store's files that no log has."""
    return [
        ExpectColumnValuesToNotBeInSet(column="fault", value_set=[check.value], **_of(check))
        for check in FAULTS
    ]


SUITES = {
    "compared": compared_suite,
    "stored": stored_suite,
    "places": places_suite,
    "beside": beside_suite,
}


def _of(check: AuditCheck) -> dict[str, Any]:
    return {"meta": {"check": check.value}, "description": check.value}


def _unexpected(result: Any) -> list[Unexpected]:
    """What an expectation found, by store and stream task."""
    raised = result.exception_info or {}
    if raised.get("raised_exception"):
        raise RuntimeError(f"an expectation could not be judged: {raised['exception_message']}")
    if result.success:
        return []
    check = AuditCheck(result.expectation_config.meta["check"])
    told = result.result
    rows = told.get("unexpected_index_list") or told.get("partial_unexpected_index_list") or []
    by_place: dict[tuple[str, str], list[str | None]] = {}
    for row in rows:
        by_place.setdefault((row["store"], row["stream_task"]), []).append(row.get("key"))
    return [
        Unexpected(
            check, *place, len(keys), [key for key in dict.fromkeys(keys) if key is not None]
        )
        for place, keys in by_place.items()
    ] or [Unexpected(check, "", None, told.get("unexpected_count", 0), [])]


def _site(docs: Path) -> dict[str, Any]:
    return {
        "class_name": "SiteBuilder",
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "store_backend": {
            "class_name": "TupleFilesystemStoreBackend",
            "base_directory": str(docs.resolve()),
        },
    }
