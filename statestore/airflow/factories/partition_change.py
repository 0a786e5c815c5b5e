"""`partition_change`: the DAG that gives an application another number of partitions."""

from typing import Any, Unpack

from airflow.sdk import DAG, Param

from statestore.airflow.approved_change import ApprovedChange, change_dag
from statestore.airflow.dag_applications import Application
from statestore.airflow.options import DagOptions

# Written again, as a DAG file must not import what the command does.
_MOST = 100_000
_INPUTS = ("keep", "grow", "recreate")
_FOUND_OUT = "found out"
_HASHES = (_FOUND_OUT, "murmur2", "crc32")
_FLAGS = (
    "--partitions {{ params.partitions }}"
    "{% if params.inputs == 'grow' %} --grow-inputs{% endif %}"
    "{% if params.inputs == 'recreate' %} --recreate-inputs --yes{% endif %}"
    "{% if params.partitioner != '" + _FOUND_OUT + "' %}"
    " --partitioner {{ params.partitioner }}{% endif %}"
)

_DOC = """
# Change the number of partitions

Gives each input of the application **Partitions** partitions, and its state goes along: rows of
every store go where their keys lie from now on. Without **Approve** it only shows what would be
done, in the log and the XCom of `dry_run`, which reads all changelogs.

* Before: stop the producers, let a run of `micro_batches` process everything, and pause that DAG.
  `dry_run` refuses the change while there is input that is not processed.
* **Inputs**: `keep` is for inputs that have been given their partitions already, `grow` adds them,
  and `recreate` deletes the inputs **with all their records** and creates them again: Kafka takes
  no partitions away.
* A run of the application's `micro_batches` is waited out; while the state is divided, the
  application's lock keeps the next one waiting.
* Nothing to do: the rest is skipped. Repeating a run with the same number is safe, also after a
  death at any moment: a change that was begun is finished, and the application refuses to start
  until it is.
* `check` fails if anything is left; then, with **Resume**, `wait_until_on` waits until
  `micro_batches` is no longer paused: switch it on when `check` is green. `resume` starts it, and
  it restores all stores from their new changelogs. Start the producers after that.
"""


def partition_change(
    *applications: str | Application,
    partitions: int | None = None,
    processed_by: str | None = None,
    **options: Unpack[DagOptions],
) -> DAG:
    """Make the DAG that changes how many partitions one of the named applications, or of all, has.

    `partitions` is the number in the form, which otherwise insists on one.
    `processed_by` is the id of the DAG that processes the application, if it is not the one that
    `micro_batches` gives it.
    """
    default: dict[str, Any] = {} if partitions is None else {"default": partitions}
    params = {
        "partitions": Param(
            **default,
            type="integer",
            minimum=1,
            maximum=_MOST,
            title="Partitions",
            description="How many each input is to have.",
        ),
        "inputs": Param(
            "keep",
            type="string",
            enum=[*_INPUTS],
            title="Inputs",
            description="What may be done to inputs: nothing, add partitions, or delete and "
            "create them again, WITH THE LOSS OF THEIR RECORDS.",
        ),
        "partitioner": Param(
            _FOUND_OUT,
            type="string",
            enum=[*_HASHES],
            title="Partitioner",
            description="Which hash of the key chose the partitions of the inputs, where the "
            "state does not show it.",
        ),
    }
    change = ApprovedChange(
        dag_id="partition_change",
        description="Divide state among another number of partitions",
        doc_md=_DOC,
        command="repartition",
        params=params,
        flags=_FLAGS,
        flags_again=_FLAGS,
        shows="Which stores, topics and offsets change; reads all changelogs and writes nothing.",
        does="Copy the changelogs, create the topics again, fill them, commit the offsets.",
        goes_on="Go on processing, with the new partitions.",
    )
    return change_dag(change, applications, processed_by, options)
