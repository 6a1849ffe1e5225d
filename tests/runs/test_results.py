from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from flgraph.runs import results


def test_the_commit_and_whether_code_differs_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, table = tmp_path / "package" / "runs" / "results.py", tmp_path / "reproduction" / "table.md"
    for file in (code, table):
        file.parent.mkdir(parents=True)
        file.write_text("before")
    monkeypatch.setattr(results, "__file__", str(code))
    assert results._git_revision() == "unknown"
    who = ("-c", "user.name=A", "-c", "user.email=a@b.c")
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    commit = results._git_revision()
    assert len(commit) == 40
    table.write_text("what a study of this code wrote")
    assert results._git_revision() == commit
    code.write_text("after")
    assert results._git_revision() == f"{commit}-dirty"
