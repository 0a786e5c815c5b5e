"""Images are pinned by what a registry says of their tags, asked by a program that is here."""

import re
import stat
from pathlib import Path

import pytest

from scripts.pin_images import FILES, digest_of, pinned
from statestore.errors import HostFailure, Unavailable

OLD, NEW = "sha256:" + "0" * 64, "sha256:" + "9" * 64


def skopeo(folder: Path, *lines: str) -> None:
    """Put a program of that name on the path that does this."""
    program = folder / "skopeo"
    program.write_text("\n".join(["#!/bin/sh", *lines, ""]), encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_tags_get_digests_and_our_own_image_gets_none() -> None:
    text = f"  image: a/b:1.2\n  image: statestore:0.1.0\nFROM c:3@{OLD}\nCOPY --from=a/b:1.2 x x\n"
    made = pinned(text, {"a/b:1.2": NEW, "c:3": NEW})
    assert made == (
        f"  image: a/b:1.2@{NEW}\n  image: statestore:0.1.0\nFROM c:3@{NEW}\n"
        f"COPY --from=a/b:1.2@{NEW} x x\n"
    )
    assert pinned(made, {"a/b:1.2": NEW, "c:3": NEW}) == made


def test_every_image_of_the_files_is_found() -> None:
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        tags = re.findall(r"([\w./-]+:[\w.-]+)@sha256:[0-9a-f]{64}", text)
        assert tags
        made = pinned(text, dict.fromkeys(tags, NEW))
        assert made.count(NEW) == len(tags)


def test_a_registry_is_asked_for_the_tag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skopeo(tmp_path, f'test "$5" = docker://a/b:1.2 && echo {NEW}')
    monkeypatch.setenv("PATH", f"{tmp_path}")
    assert digest_of("a/b:1.2") == NEW


def test_no_answer_is_no_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skopeo(tmp_path, "echo unknown manifest >&2", "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}")
    with pytest.raises(Unavailable, match=r"no digest of a/b:1\.2: unknown manifest"):
        digest_of("a/b:1.2")


def test_without_a_program_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}")
    with pytest.raises(HostFailure, match="neither docker nor skopeo"):
        digest_of("a/b:1.2")
