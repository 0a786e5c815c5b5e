"""`state_relocation`: the DAG that moves state to where a new topology looks for it."""

from typing import Unpack

from airflow.sdk import DAG, Param

from statestore.airflow.approved_change import ApprovedChange, change_dag
from statestore.airflow.dag_applications import Application
from statestore.airflow.options import DagOptions

_KEEP = "{% for task in params.keep %} --keep {{ task }}{% endfor %}"

_DOC = """
# Move state after a topology change

Trigger it after deploying a pipeline whose sub-topologies changed, where the setting
`automatic.state.relocation` is false (else the next start moves the stores by itself). Without
**Approve** it only shows what would move, in the log and the XCom of `dry_run`.

* A run of the application's `micro_batches` is waited out; while stores move, the application's
  lock keeps the next one waiting.
* Nothing to move: the rest is skipped. Repeating a run is safe, also after a death at any moment: a
  relocation that was begun is finished.
* `check` fails if anything still lies elsewhere; then, with **Resume**, `wait_until_on` waits until
  `micro_batches` is no longer paused, as a run of a paused DAG would stay queued: switch it on when
  `check` is green. `resume` starts it, and it restores nothing.
"""


def state_relocation(
    *applications: str | Application,
    processed_by: str | None = None,
    **options: Unpack[DagOptions],
) -> DAG:
    """Make the DAG that relocates the state of one of the named applications or of all in the file.

    `processed_by` is the id of the DAG that processes the application, if it is not the one that
    `micro_batches` gives it.
    """
    keep = Param(
        [],
        type="array",
        items={"type": "string", "pattern": r"^\d+_\d+$"},
        title="Keep",
        description="Of stores in two places, the stream tasks whose copies are right.",
    )
    change = ApprovedChange(
        dag_id="state_relocation",
        description="Move stores whose sub-topology has another number",
        doc_md=_DOC,
        command="relocate",
        params={"keep": keep},
        flags=_KEEP,
        flags_again="",
        shows="What would move, go aside and stay; asks no broker.",
        does="Settle the old transactions, move the stores, publish the fingerprint.",
        goes_on="Go on processing, under the new topology.",
    )
    return change_dag(change, applications, processed_by, options)
