"""The applications file, `statestore.toml`, which defines applications by their ids.

See INTERFACE rule 9. Values are not expanded or converted here; `Settings` does that.
"""

import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from statestore.errors import InvalidSetting, UnknownApplication

_OF_DAGS = ("schedule", "dag_prefix")
"""What only the DAGs read."""


@dataclass(frozen=True)
class ConfiguredApplication:
    """One `[applications.<id>]` section of an applications file."""

    application_id: str
    pipeline: str | None
    fields: Mapping[str, object]
    settings: Mapping[str, object] = field(repr=False)

    @staticmethod
    def ids(path: str | Path) -> list[str]:
        """Return the ids of all applications of a file; InvalidSetting if it cannot be read."""
        return sorted(_applications(path))

    @classmethod
    def load(cls, path: str | Path, application_id: str) -> "ConfiguredApplication":
        """Read one application; InvalidSetting names the file, application or field at fault."""
        applications = _applications(path)
        if application_id not in applications:
            known = ", ".join(sorted(applications)) or "none"
            raise UnknownApplication(
                f"{path}: there is no [applications.{application_id}]; it has: {known}"
            )
        where = f"[applications.{application_id}]"
        section = dict(_table(applications[application_id], path, where))
        settings = _table(section.pop("settings", {}), path, where.replace("]", ".settings]"))
        for name in ("alerts", "input"):  # only the DAGs read these tables
            _table(section.pop(name, {}), path, where.replace("]", f".{name}]"))
        allowed = ("bootstrap_servers", "state_dir", "processing_guarantee", "pipeline", *_OF_DAGS)
        for name, value in section.items():
            if name not in allowed:
                raise InvalidSetting(
                    f"{path}: unknown field {name!r} in {where}{nearest(name, allowed)}"
                )
            if not isinstance(value, str):
                raise InvalidSetting(f"{path}: {name} in {where} is not a string")
        pipeline = section.pop("pipeline", None)
        named = None if pipeline is None else str(pipeline)
        return cls(application_id, named, section, dict(_flat(settings)))

    def mapping(self) -> dict[str, object]:
        """Return the application's settings by key."""
        named = {
            name.replace("_", "."): value
            for name, value in self.fields.items()
            if name not in _OF_DAGS
        }
        return {"application.id": self.application_id} | named | dict(self.settings)


def page_imports(path: str | Path) -> bool:
    """Whether the page may import the pipelines of a file: `import_pipelines` of `[page]`."""
    page = dict(_table(_document(path).get("page", {}), path, "[page]"))
    allowed = page.pop("import_pipelines", False)
    for name in page:
        known = nearest(name, ["import_pipelines"])
        raise InvalidSetting(f"{path}: unknown field {name!r} in [page]{known}")
    if not isinstance(allowed, bool):
        raise InvalidSetting(f"{path}: import_pipelines in [page] is neither true nor false")
    return allowed


def _applications(path: str | Path) -> Mapping[str, object]:
    return _table(_document(path).get("applications", {}), path, "[applications]")


def _document(path: str | Path) -> dict[str, object]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidSetting(f"cannot read applications file {path}: {error}") from error


def nearest(name: str, known: Sequence[str]) -> str:
    """Return the end of a message about an unknown name: what it may have been."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"


def _table(value: object, path: str | Path, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise InvalidSetting(f"{path}: {where} is not a table")
    return value


def _flat(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield dotted keys and their values; TOML parses unquoted dotted keys into nested tables."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
