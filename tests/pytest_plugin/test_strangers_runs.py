"""A run folder from a stranger is data: none of its code runs, no address of it is asked, no path of it is followed outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import RecordError
from evalharness.config import resolve
from evalharness.pytest_plugin.replay.trust import check_checkpoints, eval_file
from tests.pytest_plugin.project import MARK, Project, Run

TEST = MARK + "def test_s(case, generation): pass\n"
EVIL = "open({!r}, 'w').close()\n"


def rewritten(run: Run, name: str, old: str, new: str) -> None:
    path = run.run_dir / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def with_options(run: Run, **values: Any) -> None:
    facts = json.loads((run.run_dir / "run.json").read_text())
    for name, value in values.items():
        facts["config"][name] = {"value": value, "origin": "command line"}
    (run.run_dir / "run.json").write_text(json.dumps(facts))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("made")).write(test_a=TEST)
    assert made.run_inline("--run-id", "r").exit_code == 0
    return made


@pytest.fixture
def live(project: Project, made: Project) -> Run:
    return Run(0, "", 0, project.take(made).root, "r")


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """A file that exists once the stranger's code has run."""
    return tmp_path / "ran"


@pytest.mark.parametrize("where", ["in the run", "beside the run", "absolute", "above", "a link", "from within the run"])
@pytest.mark.parametrize("tests", [False, True], ids=["its own tests", "other tests that ask for references"])
def test_code_that_comes_with_a_run_is_not_run(project: Project, live: Run, ran: Path, tmp_path: Path, where: str, tests: bool) -> None:
    (project.root / "test_a.py").unlink()
    places = {
        "in the run": live.run_dir / "test_evil.py",
        "beside the run": project.root / "reports" / "other" / "test_evil.py",
        "from within the run": live.run_dir / "test_evil.py",
    }
    place = places.get(where, tmp_path / "elsewhere" / "test_evil.py")
    place.parent.mkdir(exist_ok=True)
    place.write_text(EVIL.format(str(ran)) + TEST)
    (place.parent / "conftest.py").write_text(EVIL.format(str(ran)))
    named = {
        "in the run": "reports/r/test_evil.py",
        "beside the run": "reports/other/test_evil.py",
        "absolute": str(place),
        "above": "../elsewhere/test_evil.py",
    }.get(where, "test_evil.py")
    if where == "a link":
        (project.root / "test_evil.py").symlink_to(place)
    if where == "from within the run":
        (live.run_dir / "pytest.ini").write_text("[pytest]\n")
    rewritten(live, "journal/main.jsonl", "test_a.py", named)
    project.write(helper_check="def test_x(case, generation): assert case.reference != 1\n")
    base = Project(live.run_dir) if where == "from within the run" else project
    more = ("--tests", str(project.root / "helper_check.py")) if tests else ()
    code, output = base.evalharness("rescore", str(live.run_dir), "--report-dir", str(tmp_path / "out"), *more)
    assert not ran.exists()
    assert tests or code == 2, output
    assert tests or "Traceback" not in output


def test_the_project_of_a_run_can_be_named(project: Project, live: Run, tmp_path: Path) -> None:
    elsewhere = Project(tmp_path / "elsewhere")
    code, output = elsewhere.evalharness("rescore", str(live.run_dir))
    assert (code, "--project" in output) == (2, True)
    assert elsewhere.evalharness("rescore", str(live.run_dir), "--project", str(project.root))[0] == 0


@pytest.mark.parametrize("path", ["/etc/x.py", "../x.py", "a/../../x.py", "setup.cfg", "", "."])
def test_only_python_files_below_the_project_are_evals(tmp_path: Path, path: str) -> None:
    with pytest.raises(RecordError, match="only Python files of the current project are run"):
        eval_file(tmp_path, path, tmp_path / "reports" / "r")


OPTIONS = {
    "base_url": ("http://stranger.example:8000", "--base-url http://stranger.example:8000"),
    "trust_remote_code": (True, "--trust-remote-code"),
    "allow_pickle": (True, "--allow-pickle"),
    "unsupported_options": ("warn", "--unsupported-options warn"),
    "engine_option": ({"hf_overrides": "x"}, "--engine-option hf_overrides=x"),
    "attn_implementation": ("stranger/kernel", "--attn-implementation stranger/kernel"),
    "adapter_dir": ("/stranger", "--adapter-dir /stranger"),
    "cache_dir": ("/stranger", "--cache-dir /stranger"),
    "data": ("/stranger", "--data /stranger"),
    "base_model": ("/stranger", "--base-model /stranger"),
    "model": (["/stranger/a b"], "--model '/stranger/a b'"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_what_only_the_user_decides_is_not_taken_from_a_run(project: Project, live: Run, name: str) -> None:
    value, given = OPTIONS[name]
    with_options(live, **{name: value})
    refused = project.run_inline("--resume", "r")
    assert refused.exit_code == pytest.ExitCode.USAGE_ERROR
    assert f"give the same again: {given}" in " ".join(refused.output.split())


def test_what_is_given_again_is_taken(project: Project, live: Run) -> None:
    with_options(live, unsupported_options="warn", cache_dir="/stranger")
    told = project.run_inline("--resume", "r", "--unsupported-options=warn", "--cache-dir=cache")
    assert told.exit_code == 0, told.output
    assert told.facts["config"]["cache_dir"]["value"] == str(project.root / "cache")


def test_a_run_cannot_accept_changes_for_the_user(project: Project, live: Run) -> None:
    with_options(live, accept_changes=True)
    project.write(test_a=TEST.replace("pass", "assert 1"))
    assert "--accept-changes" in project.run_inline("--resume", "r").output


def test_a_checkpoint_that_only_a_journal_names_is_not_read(project: Project, live: Run) -> None:
    fake = '"backend":"fake","checkpoint":"echo","checkpoint_path":"'
    rewritten(live, "journal/main.jsonl", fake, fake.replace("fake", "hf") + "/stranger")
    refused = project.run_inline("--resume", "r")
    assert "names the checkpoint /stranger" in refused.output


LINKS = ["journal", "journal/main.jsonl", "journal/resumed-001-main.jsonl", "outputs", "samples.jsonl", "run.json"]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", LINKS)
def test_links_that_lead_out_of_a_run_are_not_followed(project: Project, live: Run, tmp_path: Path, name: str) -> None:
    path, elsewhere = live.run_dir / name, tmp_path / "elsewhere"
    elsewhere.mkdir()
    target = elsewhere / "target"
    if path.exists():
        path.rename(target)
    elif name == "outputs":
        target.mkdir()
    else:
        target.write_text("mine\n")
    before = contents(elsewhere)
    path.symlink_to(target)
    resumed = project.run_inline("--resume", "r")
    assert resumed.exit_code == pytest.ExitCode.USAGE_ERROR
    assert "leads out of the run" in " ".join(resumed.output.split())
    for command in (("report",), ("rescore",), ("show", "c1"), ("merge",)):
        _, output = project.evalharness(command[0], "reports/r", *command[1:])
        assert "Traceback" not in output
    assert contents(elsewhere) == before


@pytest.mark.parametrize("asked", ["base", "latest", "latest~1"])
def test_a_moved_run_keeps_its_baseline(project: Project, asked: str) -> None:
    project.write(test_a=TEST)
    for run_id in ("r0", "r1"):
        run = project.run_inline("--run-id", run_id)
    project.evalharness("bless", "reports/r0", "base")
    moved = project.run_inline("--run-id", "moved", "--baseline", asked)
    there = moved.facts["baseline"]["path"]
    rewritten(moved, "run.json", str(project.root), "/home/ci/project")
    project.run_inline("--run-id", "later")  # the latest one now
    code, output = project.evalharness("rescore", "reports/moved", "--run-id", "again")
    assert code == 0, output
    assert Run(0, "", 0, project.root, "again").facts["baseline"]["path"] == there
    assert run.exit_code == 0


def test_a_baseline_from_outside_is_given_again(project: Project, live: Run, tmp_path: Path) -> None:
    outside = str(tmp_path / "base.json")
    project.evalharness("bless", "reports/r", "base", "--to", str(tmp_path))
    held = project.run_inline("--run-id", "held", f"--baseline={outside}")
    assert held.exit_code == 0
    code, output = project.evalharness("rescore", "reports/held")
    assert (code, f"give --baseline {outside}" in output) == (2, True)
    assert project.evalharness("rescore", "reports/held", f"--baseline={outside}")[0] == 0
    assert live.exit_code == 0


def test_parts_with_data_from_outside_are_merged(project: Project, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    project.write(test_a=TEST)
    for part in (1, 2):
        project.run_inline("--run-id", f"p{part}", f"--shard={part}/2", f"--data={data}")
    code, output = project.evalharness("merge", "reports/p1", "reports/p2")
    assert (code, f"give --data {data}" in output) == (2, True)
    code, output = project.evalharness("merge", "reports/p1", "reports/p2", f"--data={data}")
    assert code == 0, output


def test_a_checkpoint_from_the_hub_is_any_revision_of_its_name_in_ones_own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))  # a run goes on with its revision, whatever the branch has become
    root = tmp_path / "project"
    run = resolve({"model": ["org/model@main"], "backend": ["hf"]}, {}, root)
    own, other, strangers = (
        str(tmp_path / hub / model / "snapshots" / ("1" * 40))
        for hub, model in (("hub", "models--org--model"), ("hub", "models--org--other"), ("evil", "models--org--model"))
    )
    check_checkpoints([own], run, root, "r")
    for path in (other, strangers, f"{own}/inner"):
        with pytest.raises(RecordError, match="which is not of its --model"):
            check_checkpoints([path], run, root, "r")
