"""Pin the images of docker/ by digest: ask the registry for each tag, and write what it says.

    python -m scripts.pin_images            write the digests of all tags
    python -m scripts.pin_images --check    say which tags have another digest by now

`docker` (with buildx) or `skopeo` asks the registry. To take a newer version, write its tag without
a digest and run this. The digest is that of the image for all platforms.
"""

import re
import shutil
import subprocess
from pathlib import Path

import click

from statestore.errors import HostFailure, Unavailable

ROOT = Path(__file__).resolve().parents[1]
FILES = (ROOT / "docker" / "compose.yaml", ROOT / "docker" / "Dockerfile")
_IMAGE = re.compile(
    r"(?m)(^\s*image: |^FROM |^COPY --from=)"
    r"((?!statestore:)[\w./-]+:[\w.-]+)(@sha256:[0-9a-f]{64})?"
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TIMEOUT_S = 60


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--check", is_flag=True, help="Write nothing; fail if a digest is another one.")
def main(*, check: bool) -> None:
    """Pin the images of docker/ by the digests that their tags have now."""
    texts = {path: path.read_text(encoding="utf-8") for path in FILES}
    tags = sorted({found[2] for text in texts.values() for found in _IMAGE.finditer(text)})
    digests = {tag: digest_of(tag) for tag in tags}
    for path, text in texts.items():
        made = pinned(text, digests)
        if made == text:
            continue
        if check:
            raise click.ClickException(
                f"{path.name}: digests are others by now: run without --check"
            )
        path.write_text(made, encoding="utf-8")
        click.echo(f"wrote {path.relative_to(ROOT)}")
    for tag, digest in digests.items():
        click.echo(f"{tag}@{digest}")


def pinned(text: str, digests: dict[str, str]) -> str:
    """Return the text with these digests behind their tags."""
    return _IMAGE.sub(lambda found: f"{found[1]}{found[2]}@{digests[found[2]]}", text)


def digest_of(tag: str) -> str:
    """Ask the registry; HostFailure without a program that can, Unavailable without an answer."""
    asked = subprocess.run(
        _question(tag), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    found = _DIGEST.search(asked.stdout)
    if asked.returncode or found is None:
        raise Unavailable(f"no digest of {tag}: {asked.stderr.strip() or asked.stdout.strip()}")
    return found[0]


def _question(tag: str) -> list[str]:
    if shutil.which("docker"):
        shape = "{{.Manifest.Digest}}"
        return ["docker", "buildx", "imagetools", "inspect", tag, "--format", shape]
    if shutil.which("skopeo"):
        return ["skopeo", "inspect", "--no-tags", "--format", "{{.Digest}}", f"docker://{tag}"]
    raise HostFailure("neither docker nor skopeo is here to ask a registry: install one of them")


if __name__ == "__main__":
    main()
