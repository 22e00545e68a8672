from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from evalharness.api.errors import RecordError
from evalharness.runs.run_file import environment_facts, write_run_file
from evalharness.runs.schema import SCHEMA_VERSION


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


class TestFacts:
    def test_they_are_plain_json_and_name_what_runs(self, tmp_path: Path) -> None:
        facts = json.loads(json.dumps(environment_facts(tmp_path), allow_nan=False))
        assert facts["hardware"]["num_cpus"] >= 1
        assert {"evalharness", "pytest", "torch"} <= set(facts["versions"])
        assert facts["python"].startswith("3.")

    def test_the_commit_is_named_and_whether_files_differ_from_it(self, tmp_path: Path) -> None:
        git(tmp_path, "init", "-q")
        (tmp_path / "a").write_text("1")
        git(tmp_path, "add", "a")
        git(tmp_path, "commit", "-q", "-m", "a")
        commit = git(tmp_path, "rev-parse", "HEAD")
        assert environment_facts(tmp_path)["git"] == {"commit": commit, "dirty": False}
        (tmp_path / "a").write_text("2")
        assert environment_facts(tmp_path)["git"] == {"commit": commit, "dirty": True}

    def test_a_folder_without_commit_has_no_git_state(self, tmp_path: Path) -> None:
        git(tmp_path, "init", "-q")
        assert environment_facts(tmp_path)["git"] is None

    def test_a_machine_without_git_and_gpus_is_fine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        facts = environment_facts(tmp_path)
        assert (facts["git"], facts["hardware"]["gpus"]) == (None, [])

    @pytest.mark.parametrize("script", ["echo 'NVIDIA H100, 81559 MiB, 550.1'", "exit 9", "echo; echo x >&2"])
    def test_gpus_are_what_nvidia_smi_lists(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        assert environment_facts(tmp_path)["hardware"]["gpus"] == (["NVIDIA H100, 81559 MiB, 550.1"] if "H100" in script else [])


class TestWriting:
    def test_it_carries_the_schema_version_and_makes_the_folder(self, tmp_path: Path) -> None:
        write_run_file(tmp_path / "reports" / "r", {"run_id": "r"})
        assert json.loads((tmp_path / "reports" / "r" / "run.json").read_bytes()) == {"schema_version": SCHEMA_VERSION, "run_id": "r"}

    def test_hostile_text_comes_back_as_it_was(self, tmp_path: Path) -> None:
        text = "\ud800 \x00 \u2028 \x1b[31m <script>"
        write_run_file(tmp_path, {"command": [text]})
        assert json.loads((tmp_path / "run.json").read_bytes())["command"] == [text]

    def test_it_is_written_whole_or_not_at_all(self, tmp_path: Path) -> None:
        write_run_file(tmp_path, {"run_id": "r"})
        with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
            write_run_file(tmp_path, {"run_id": float("nan")})  # type: ignore[typeddict-item]
        assert json.loads((tmp_path / "run.json").read_bytes())["run_id"] == "r"
        assert [path.name for path in tmp_path.iterdir()] == ["run.json"]

    def test_a_folder_that_cannot_be_made_is_said_with_what_to_do(self, tmp_path: Path) -> None:
        (tmp_path / "reports").write_text("in the way")
        with pytest.raises(RecordError, match=r"run\.json cannot be written: Not a directory; choose another folder with --report-dir"):
            write_run_file(tmp_path / "reports" / "r", {})
