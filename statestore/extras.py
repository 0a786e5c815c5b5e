"""The extras of this package: what they offer, what to say if one is missing, and its command.

OFFERS is the one place that names what stands above those who ask for it, and so cannot be an
import of theirs. All other modules that need an extra are imports that a function makes, within
`needed`; pyproject.toml lists them (banned-module-level-imports).

No text elsewhere says how the package is installed. `install_command` knows where this installation
came from (PEP 610): a checkout, the file of a wheel, a repository, or a package index.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from statestore.errors import Misuse

SPARK_CLASSES: Final = "statestore-classes.jsa"
"""The archive that `statestore spark-classes` makes in the folder of Spark."""
SPARK_REMOTE: Final = "SPARK_REMOTE"
"""PySpark's own name for the address of a server of Spark Connect, `sc://host:port/;token=…`."""
_PACKAGE = "statestore"
# Both install into the same folder, which no tool notices.
_OF_ONE_FOLDER = ("pyspark", "pyspark-client")


def load_from(home: str) -> Any:
    """Import the module of "module:name", and return what it has under that name."""
    module, _, name = home.partition(":")
    return getattr(import_module(module), name)


class Offer(NamedTuple):
    """What an extra offers: a package that only the extra brings, and "module:name"."""

    extra: str
    brings: str
    home: str

    @property
    def is_installed(self) -> bool:
        """Whether the package of the extra is there; this imports nothing."""
        return find_spec(self.brings) is not None

    def load(self) -> Any:
        """Import what is offered; ModuleNotFoundError if the extra is not installed."""
        if not self.is_installed:
            raise ModuleNotFoundError(f"No module named {self.brings!r}")
        return load_from(self.home)


OFFERS: Final = {
    "drill": Offer("testing", "psutil", "statestore.testing.drills.drill_command:drill_command"),
    "kafka": Offer("testing", "psutil", "statestore.testing.kafka_command:kafka"),
    "serve": Offer("serve", "prometheus_client", "statestore.commands.serve:serve_command"),
    "spark=": Offer("spark", "pyspark", "statestore.spark.session_run:run"),
    "ui": Offer("ui", "jinja2", "statestore.ui.command:ui_command"),
}
"""By what asks for it: a command of `statestore`, or an argument of `ss.run`."""


def offered(name: str) -> Any:
    """Return what an extra offers under that name; Misuse says how to install the extra."""
    offer = OFFERS[name]
    with needed(offer.extra, name):
        return offer.load()


@contextmanager
def needed(extra: str, what: str) -> Iterator[None]:
    """Misuse if an import in the block fails: `what` needs that extra, and how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing(extra, what, error) from error


def missing(extra: str, what: str, error: ModuleNotFoundError) -> Misuse:
    """The error of `what`, which needs an extra that is not installed."""
    return Misuse(f"{what} needs the extra `{extra}` ({error}): {install_command(extra)}")


def spark_home() -> Path | None:
    """The Spark that spark-submit uses: SPARK_HOME, else PySpark's own; None: there is none."""
    named = os.environ.get("SPARK_HOME")
    if named:
        return Path(named)
    found = find_spec("pyspark")
    return None if found is None or found.origin is None else Path(found.origin).parent


def spark_java_options() -> list[str]:
    """Options with which Spark's Java takes its classes from the archive; none if there is none.

    None either if its path has a space, which would end the option.
    """
    home = spark_home()
    archive = None if home is None else home / SPARK_CLASSES
    usable = archive is not None and archive.is_file() and len(str(archive).split()) == 1
    return [f"-XX:SharedArchiveFile={archive}"] if usable else []


def install_command(*extras: str) -> str:
    """The command that adds extras to this installation."""
    package = f"{_PACKAGE}[{','.join(extras)}]"
    origin = _origin()
    if origin is None:
        return f"pip install '{package}'"
    url = urlsplit(origin["url"])
    if url.scheme != "file":
        vcs = origin.get("vcs_info")
        source = f"{vcs['vcs']}+{origin['url']}@{vcs['commit_id']}" if vcs else origin["url"]
        return f"pip install '{package} @ {source}'"
    path = Path(unquote(url.path))
    if not path.exists():
        return f"pip install '.[{','.join(extras)}]' in a checkout of {_PACKAGE}"
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}'{path}[{','.join(extras)}]'"


def require_one_pyspark() -> None:
    """Misuse if `pyspark` and `pyspark-client` are installed in two versions."""
    found = {}
    for name in _OF_ONE_FOLDER:
        try:
            found[name] = distribution(name).version
        except PackageNotFoundError:
            return
    if len(set(found.values())) > 1:
        told = " and ".join(f"{name} {version}" for name, version in found.items())
        raise Misuse(
            f"{told} are installed into one folder, so the files of two versions are mixed: "
            f"pip uninstall --yes {' '.join(found)}, then {install_command('airflow', 'spark')}, "
            "which brings one version of both"
        )


def _origin() -> dict[str, Any] | None:
    """What the installer has recorded of where this package came from; None: from an index."""
    try:
        text = distribution(_PACKAGE).read_text("direct_url.json")
    except PackageNotFoundError:  # imported from a folder that nobody has installed
        return {"url": Path(__file__).resolve().parents[1].as_uri()}
    return None if text is None else dict(json.loads(text))
