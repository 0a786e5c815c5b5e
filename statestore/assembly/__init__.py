"""Settings in, ready things out: stores, runs, snapshots, relocations.

The only package that names concrete edges, a module per product. `open_store`, `open_snapshot` and
`run` are public. A Spark job uses `start_run` in the driver and `serve_planned` in its workers;
`run` does both in this process: same lock, same guarantees.
"""

from statestore.assembly.auditing import audit
from statestore.assembly.cloning import clone_export, drop_clone, export_for_clone
from statestore.assembly.exporting import create_export, exporting, restore_export
from statestore.assembly.looking import onlooking, status
from statestore.assembly.opening import open_store
from statestore.assembly.pipelines import load_pipeline
from statestore.assembly.reading import open_snapshot, stores_at_rest
from statestore.assembly.relocating import relocate
from statestore.assembly.running import (
    check_run,
    failure,
    run,
    run_request,
    serve_here,
    serve_planned,
    start_run,
    summary_fields,
)
from statestore.assembly.surroundings import SystemClock, exports_of
from statestore.assembly.upgrading import upgrade_to_versioned

__all__ = [
    "SystemClock",
    "audit",
    "check_run",
    "clone_export",
    "create_export",
    "drop_clone",
    "export_for_clone",
    "exporting",
    "exports_of",
    "failure",
    "load_pipeline",
    "onlooking",
    "open_snapshot",
    "open_store",
    "relocate",
    "restore_export",
    "run",
    "run_request",
    "serve_here",
    "serve_planned",
    "start_run",
    "status",
    "stores_at_rest",
    "summary_fields",
    "upgrade_to_versioned",
]
