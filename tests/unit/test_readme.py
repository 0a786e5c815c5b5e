"""The first example of README.md runs as it stands."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_prints_what_the_readme_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "shop.py").write_text(example, encoding="utf-8")
    runpy.run_path(str(tmp_path / "shop.py"), run_name="__main__")
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["Ada 250", "Ada 350"]
    assert all(f"`{line}`" in readme for line in printed)
