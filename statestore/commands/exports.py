"""`statestore exports create|ls|verify|restore|prune`, also short as `export` and `restore`."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import click
import msgspec

from statestore.commands.arguments import PARTITION, export_options, parse_exports, parse_span
from statestore.commands.help import CommandGroup
from statestore.commands.printing import print_rows
from statestore.commands.progress import shown_progress
from statestore.errors import Misuse, failure_fields
from statestore.layout.activity_files import Progress, Unit
from statestore.operations.activities import activities_in
from statestore.operations.clones.clone import clone_export, drop_clone
from statestore.operations.exports.catalog import LATEST, Exports, Retention
from statestore.operations.exports.create import (
    ExportReport,
    create_export,
    create_export_for_clones,
    create_export_to_move,
)
from statestore.operations.exports.restore_export import Choice, RestoreReport, restore_export
from statestore.operations.moves.move import Mirrored, move_here
from statestore.operations.pipelines import load_pipeline
from statestore.runtime import Runtime
from statestore.topology.graph import Topology

_LISTED = ("made_ms", "stream_tasks", "stores", "bytes", "fingerprint")
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON line, on failure too."
)


@click.group("exports", cls=CommandGroup)
def exports() -> None:
    """Durable copies of all stores, in a folder or an object store."""


@exports.command("create")
@click.option(
    "--for-clone", is_flag=True, help="Export a stopped application so that it can be cloned."
)
@click.option(
    "--for-move", is_flag=True, help="Export a stopped application to go on at another cluster."
)
@export_options
@json_option
def create_command(*, for_clone: bool, for_move: bool, as_json: bool, **flags: Any) -> None:
    """Export all stores, beside a run or between two; upload only what the target lacks."""
    with showing_results(flags, "state.dir", as_json=as_json) as (runtime, tell):
        with shown_progress("export") as progress:
            if for_move:
                report = create_export_to_move(runtime, _pipeline(flags), progress)
            elif for_clone:
                report = create_export_for_clones(runtime, _pipeline(flags), progress)
            else:
                report = create_export(runtime, progress)
        tell(*export_result(report))


@exports.command("ls")
@export_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
def list_exports_command(*, as_json: bool, **flags: Any) -> None:
    """List the exports, oldest first, and what is wrong with those that are damaged."""
    runtime = Runtime(parse_exports(flags).settings())
    rows = []
    for export_id, manifest, problem in Exports.of(runtime).listed():
        row: dict[str, Any] = dict.fromkeys(_LISTED)
        if manifest is not None:
            stores = sum(1 for _ in manifest.stores())
            made = (manifest.made_ms, len(manifest.tasks), stores, manifest.size_bytes)
            row = dict(zip(_LISTED, (*made, manifest.deployed.fingerprint), strict=True))
        rows.append({"export": export_id, **row, "problem": problem})
    print_rows(rows, as_json=as_json)


@exports.command("verify")
@click.argument("export", default=LATEST)
@click.option("--open", "opens", is_flag=True, help="Fetch each store into TMPDIR and open it.")
@export_options
@json_option
def verify_command(*, export: str, opens: bool, as_json: bool, **flags: Any) -> None:
    """Read every file of EXPORT (the newest) again and check it against its manifest."""
    with showing_results(flags, as_json=as_json) as (runtime, tell):
        found = Exports.of(runtime)
        with shown_progress("verify") as progress, _told(runtime, "verify", progress) as told:
            done = found.verify(
                found.read(export), told, runtime.databases.offsets_of if opens else None
            )
        tell(
            msgspec.structs.asdict(done),
            f"{done.export_id}: {done.files} files, {done.bytes} bytes, all as they were exported",
        )


def _told(runtime: Runtime, kind: str, progress: Progress) -> AbstractContextManager[Progress]:
    """Tell of a work in the state directory, too, if there is one."""
    if not runtime.settings.state_dir:
        return nullcontext(progress)
    return activities_in(runtime).underway(kind, Unit.BYTES, progress)


@exports.command("restore")
@click.argument("export", default=LATEST)
@click.option("--store", "stores", multiple=True, help="Restore only this store.")
@click.option(
    "--partition", "partitions", type=PARTITION, multiple=True, help="Restore only this partition."
)
@click.option("--replace", is_flag=True, help="Set aside stores that exist.")
@click.option("--full", is_flag=True, help="Place no file: restore from the changelogs alone.")
@click.option(
    "--mounted", is_flag=True, help="Link files to a target that is a folder; runs copy them."
)
@click.option("--dry-run", is_flag=True, help="Show what would be done.")
@click.option("--as", "clone_id", metavar="CLONE_ID", help="Clone it under this application id.")
@click.option("--moved", is_flag=True, help="Go on here, over mirrors, with another cluster's.")
@click.option("--topic-prefix", metavar="TEXT", help="--moved: how mirrors' names begin.")
@click.option("--offset-syncs", metavar="TOPIC", help="--moved: MirrorMaker's offset syncs.")
@export_options
@json_option
def restore_command(
    *,
    export: str,
    clone_id: str | None,
    moved: bool,
    topic_prefix: str | None,
    offset_syncs: str | None,
    stores: Sequence[str],
    partitions: Sequence[int],
    replace: bool,
    full: bool,
    mounted: bool,
    dry_run: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Bring back the stores of EXPORT (the newest) that are missing in the state directory.

    The application must be stopped; its next start replays what the changelogs have since. An
    export is refused if it is so old that deleted keys could come back: use --full then.

    With --mounted, the stores open at once on the files of a target that is a folder, such as a
    network volume. Runs copy these files in the background and verify them.

    With --as, an export that was made with --for-clone becomes an application of its own, with
    topics of its own; nothing of the original is touched. `exports drop-clone` removes it.

    With --moved, an export that was made with --for-move at another cluster becomes the application
    on this one, which has mirrors of its inputs. The pipeline names the mirrors as its inputs, such
    as `source.orders` with --topic-prefix source. for `orders`.
    """
    if not moved and (topic_prefix or offset_syncs):
        raise Misuse("--topic-prefix and --offset-syncs are for --moved")
    if moved:
        if stores or partitions or replace or full or mounted or clone_id is not None:
            raise Misuse("--moved takes a whole export: leave out the other options")
        mirrored = Mirrored(topic_prefix or "", offset_syncs)
        _move(flags, export, mirrored, dry_run=dry_run, as_json=as_json)
        return
    if clone_id is not None:
        if stores or partitions or replace or full or mounted or dry_run:
            raise Misuse("--as clones a whole export: leave out the other options")
        _clone(flags, export, clone_id, as_json=as_json)
        return
    with showing_results(flags, "state.dir", as_json=as_json) as (runtime, tell):
        choice = Choice(stores, partitions, replace=replace, full=full, mounted=mounted)
        with shown_progress("restore") as progress:
            report = restore_export(runtime, export, choice, progress, dry_run=dry_run)
        tell(msgspec.to_builtins(report), _restored(report))


def _move(
    flags: dict[str, Any], export: str, mirrored: Mirrored, *, dry_run: bool, as_json: bool
) -> None:
    with showing_results(flags, "state.dir", as_json=as_json) as (runtime, tell):
        topology = _pipeline(flags)
        with shown_progress("move") as progress:
            report = move_here(
                runtime, topology, mirrored, export=export, progress=progress, dry_run=dry_run
            )
        did = "moved in" if report.applied else "would move in"
        lines = [
            f"{one.topic}-{one.partition} at {one.offset_there} is {one.mirror}-{one.partition} at "
            f"{one.offset}, by {one.found_by}"
            for one in report.inputs
        ]
        lines.append(f"{did}: {report.stores} stores, {report.bytes} bytes, {report.seconds} s")
        tell(msgspec.to_builtins(report), "\n".join(lines))


def _clone(flags: dict[str, Any], export: str, clone_id: str, *, as_json: bool) -> None:
    with showing_results(flags, "state.dir", as_json=as_json) as (runtime, tell):
        topology = _pipeline(flags)
        with shown_progress("clone") as progress:
            report = clone_export(runtime, topology, clone_id, export=export, progress=progress)
        lines = [f"{name} is {own}" for name, own in report.topics.items()]
        lines.append(f"{clone_id}: {report.stores} stores, {report.bytes} bytes; run it with")
        lines.append(f"statestore run --application-id {clone_id} and the original's flags")
        tell(msgspec.structs.asdict(report), "\n".join(lines))


@exports.command("drop-clone")
@click.argument("clone_id")
@export_options
@json_option
def drop_clone_command(*, clone_id: str, as_json: bool, **flags: Any) -> None:
    """Remove the topics, the group and the folder of CLONE_ID, if it is a clone."""
    with showing_results(flags, "state.dir", as_json=as_json) as (runtime, tell):
        own = dataclasses.replace(runtime.settings, application_id=clone_id)
        topics = drop_clone(runtime.with_settings(own))
        tell({"clone": clone_id, "topics": topics}, f"{clone_id} removed, {len(topics)} topics")


@exports.command("prune")
@click.option(
    "--keep",
    type=click.IntRange(1),
    default=7,
    show_default=True,
    help="Keep this many of the newest.",
)
@click.option("--keep-for", metavar="SPAN", help="Also keep all that are younger, such as 7d.")
@export_options
@json_option
def prune_command(*, keep: int, keep_for: str | None, as_json: bool, **flags: Any) -> None:
    """Remove old exports, and files that no export needs."""
    with showing_results(flags, as_json=as_json) as (runtime, tell):
        retention = Retention(keep, parse_span(keep_for) if keep_for else 0)
        done = Exports.of(runtime).prune(retention)
        text = (
            f"{len(done.removed)} exports and {done.files_removed} files "
            f"({done.bytes_removed} bytes) removed, {len(done.kept)} exports kept"
        )
        if done.damaged:
            text += (
                f"; damaged: {', '.join(done.damaged)}: files that only they may name stay until "
                "they are old enough to be removed"
            )
        tell(msgspec.structs.asdict(done), text)


export_command = click.Command(
    "export",
    callback=create_command.callback,
    params=create_command.params,
    help=f"{create_command.help} Short for `exports create`.",
)
restore_short_command = click.Command(
    "restore",
    callback=restore_command.callback,
    params=restore_command.params,
    help=f"{inspect.cleandoc(restore_command.help or '')}\n\nShort for `exports restore`.",
)


def export_result(report: ExportReport) -> tuple[dict[str, Any], str]:
    """An export for programs and for people."""
    return msgspec.structs.asdict(report), (
        f"{report.export_id}: {report.stores} stores, {report.bytes} bytes, "
        f"{report.bytes_uploaded} of them new, in {report.seconds} s"
    )


@contextmanager
def showing_results(
    flags: dict[str, Any], *needs: str, as_json: bool
) -> Iterator[tuple[Runtime, Callable[[dict[str, Any], str], None]]]:
    """Make the runtime, and the function that shows a result as JSON or text.

    An error is shown as JSON, too.
    """
    application_id = flags["application_id"] or ""

    def tell(fields: dict[str, Any], text: str) -> None:
        named = {"application_id": application_id, **fields, "error": None}
        click.echo(msgspec.json.encode(named) if as_json else text)

    try:
        with Runtime(parse_exports(flags, *needs).settings()) as runtime:
            yield runtime, tell
    except Exception as error:
        if as_json:
            failed = {"application_id": application_id, "error": failure_fields(error)}
            click.echo(msgspec.json.encode(failed))
        raise


def _pipeline(flags: dict[str, Any]) -> Topology:
    pipeline = parse_exports(flags).pipeline
    if not pipeline:
        raise Misuse(
            "which pipeline? pass --pipeline module:function, or name it in statestore.toml"
        )
    return load_pipeline(pipeline)


def _restored(report: RestoreReport) -> str:
    did = "placed" if report.applied else "would place"
    lines = [
        f"{did} {one.stream_task}/{one.store}: {one.bytes} bytes, then {one.replay} offsets of its "
        "changelog at most"
        for one in report.placed
    ]
    lines += [f"kept {name}: it exists already; --replace sets it aside" for name in report.kept]
    lines += [f"set aside {name}" for name in report.set_aside]
    lines += [
        f"{name}: the next start restores it from its changelog" for name in report.by_changelog
    ]
    took = f" in {report.seconds} s" if report.applied else ""
    lines.append(f"{len(report.placed)} stores, {report.bytes} bytes{took}")
    return "\n".join(lines)
