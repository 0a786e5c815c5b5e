"""OpenLineage: which topics, stores and exports a job or a command read and wrote.

It needs the extra `openlineage`. Airflow's provider for OpenLineage asks the operators, and they
import this module only then, so that nobody else needs that provider.

    dataset          namespace                          name
    a topic          kafka://<first broker>             the topic
    a store          statestore://<application id>      the store
    an export        file, or <scheme>://<bucket>       <path>/<application id>/<export id>
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import attrs
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import Dataset, InputDataset, OutputDataset
from openlineage.client.facet_v2 import JobFacet, RunFacet, job_type_job
from openlineage.client.generated.output_statistics_output_dataset import (
    OutputStatisticsOutputDatasetFacet,
)

from statestore import __version__

_FIGURES = (
    "records_in",
    "records_out",
    "dropped_records",
    "dead_letter_records",
    "unmatched_records",
    "commits",
    "restored_records",
    "held_records",
    "caught_up",
    "verdict",
    "export_id",
)


@attrs.define(kw_only=True)
class StateStoreRunFacet(RunFacet):
    """The figures of a run, an export or an audit."""

    application_id: str
    version: str
    figures: dict[str, Any]


def lineage_of(result: Mapping[str, Any] | None) -> OperatorLineage[Dataset, Any]:
    """Turn what a job or a command told into lineage; it is empty if that told nothing."""
    if not result or result.get("error"):
        return OperatorLineage()
    application_id = str(result.get("application_id"))
    told: dict[str, Any] = result.get("lineage") or {}
    inputs: list[Dataset] = []
    outputs: list[Dataset] = []
    if told:
        namespace = "kafka://" + str(told["brokers"]).split(",", maxsplit=1)[0]
        inputs = [InputDataset(namespace, topic) for topic in told["inputs"]]
        # The figure is of all outputs together, so it belongs to an output only if it is alone.
        facets = _rows(result.get("records_out")) if len(told["outputs"]) == 1 else {}
        outputs = [OutputDataset(namespace, t, outputFacets=facets) for t in told["outputs"]]
        outputs += [OutputDataset(_state(application_id), store) for store in told["stores"]]
    elif result.get("export_id") and result.get("target"):
        outputs = [_export(result, application_id)]
        inputs = [InputDataset(_state(application_id), "*")]
    elif result.get("verdict"):
        stores = {str(one["store"]) for one in result.get("stores") or [] if one.get("store")}
        inputs = [InputDataset(_state(application_id), store) for store in sorted(stores)]
    figures = {name: result[name] for name in _FIGURES if result.get(name) is not None}
    return OperatorLineage(
        inputs=inputs,
        outputs=outputs,
        run_facets={
            "statestore": StateStoreRunFacet(
                application_id=application_id, version=__version__, figures=figures
            )
        },
        job_facets=_job_facets(),
    )


def _job_facets() -> dict[str, JobFacet]:
    kind = job_type_job.JobTypeJobFacet(
        processingType="BATCH", integration="STATESTORE", jobType="JOB"
    )
    return {"jobType": kind}


def _rows(count: object) -> dict[str, Any]:
    if not isinstance(count, int):
        return {}
    return {"outputStatistics": OutputStatisticsOutputDatasetFacet(rowCount=count)}


def _state(application_id: str) -> str:
    return f"statestore://{application_id}"


def _export(result: Mapping[str, Any], application_id: str) -> OutputDataset:
    parts = urlsplit(str(result["target"]))
    remote = parts.scheme and parts.scheme != "file"
    namespace = f"{parts.scheme}://{parts.netloc}" if remote else "file"
    path = parts.path.strip("/")
    path = path if remote else f"/{path}"
    size = result.get("bytes")
    facets: dict[str, Any] = {}
    if size:
        facets["outputStatistics"] = OutputStatisticsOutputDatasetFacet(size=size)
    name = "/".join(part for part in (path, application_id, str(result["export_id"])) if part)
    return OutputDataset(namespace, name, outputFacets=facets)
