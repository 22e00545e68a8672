"""Plugins by name: on the command line, in settings files, and of installed packages. Run: pytest tests/generation_plugins/test_named.py"""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import ConfigError
from evalharness.config import resolve
from evalharness.config.checks import check_combinations, constraints_of
from evalharness.generation_plugins import BalancedJsonStop, DuplicateObjectBan, DuplicateObjectStop, ObjectCap, named
from evalharness.generation_plugins.named import make_plugin
from tests.pytest_plugin.project import HEADER, MARK, Project

MADE: dict[str, Any] = {
    "balanced-json-stop": BalancedJsonStop(),
    "balanced-json-stop:roots=[": BalancedJsonStop("["),
    "object-cap:num_objects=60": ObjectCap(60),
    "object-cap:num-objects=3:roots={[": ObjectCap(3, "{["),
    "duplicate-object-stop:num_repeats=2": DuplicateObjectStop(2),
    "duplicate-object-ban": DuplicateObjectBan(),
}
WRONG = {
    "object-cpa": r"plugin 'object-cpa' is unknown; did you mean 'object-cap'\? Known: balanced-json-stop, duplicate",
    "ObjectCap:num_objects=3": "plugin 'ObjectCap' is unknown",
    "object-cap": "plugin 'object-cap' needs num_objects; write object-cap:num_objects=VALUE",
    "object-cap:60": "option '60' of plugin 'object-cap' has no value; write object-cap:60=VALUE once",
    "object-cap:num_object=3": r"has no option 'num_object'; did you mean 'num_objects'\? its options: num_objects, roots",
    "object-cap:num_objects=3:num_objects=4": "option 'num_objects' of plugin 'object-cap' is given twice",
    "object-cap:num_objects=many": "plugin 'object-cap': num_objects must be an int, got 'many'",
    "object-cap:num_objects=0": "plugin 'object-cap': num_objects must be at least 1, got 0",
    "balanced-json-stop:roots=x": "plugin 'balanced-json-stop': roots must be",
    "": "plugin '' is unknown",
    "none,balanced-json-stop": "names 'none', which turns all plugins off, beside 'balanced-json-stop'; give one of them",
}


def options(tmp_path: Path, **cli: Any) -> Any:
    return resolve({"model": ["x"], **cli}, {}, tmp_path)


@pytest.mark.parametrize(("text", "plugin"), MADE.items(), ids=MADE)
def test_shipped_plugins_are_made_of_name_and_options(text: str, plugin: Any) -> None:
    assert make_plugin(text).plugin == plugin


@pytest.mark.parametrize(("text", "problem"), WRONG.items(), ids=WRONG)
def test_what_is_wrong_is_refused_with_what_is_legal(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=problem):
        options(tmp_path, plugin=[text])


def test_settings_files_name_plugins_and_the_command_line_outranks_them(tmp_path: Path) -> None:
    (tmp_path / "evalharness.toml").write_text('plugin = ["balanced-json-stop", "object-cap:num_objects=2"]\n')
    run = options(tmp_path)
    assert [plugin.name for plugin in run.plugins] == ["balanced-json-stop", "object-cap"]
    assert run.to_json()["plugin"] == {"value": ["balanced-json-stop", "object-cap:num_objects=2"], "origin": "evalharness.toml"}
    assert type(run).from_json(run.to_json()).plugins == run.plugins
    assert options(tmp_path, plugin=["none"]).plugins == ()
    assert [plugin.name for plugin in options(tmp_path, plugin=["duplicate-object-stop,balanced-json-stop"]).plugins] == [
        "duplicate-object-stop",
        "balanced-json-stop",
    ]
    with pytest.raises(ConfigError, match="names 'balanced-json-stop' twice; name each once"):
        options(tmp_path, plugin=["balanced-json-stop", "balanced-json-stop:roots=["])


def test_a_plugin_is_refused_before_anything_runs_where_a_backend_cannot_run_it(tmp_path: Path) -> None:
    check_combinations(options(tmp_path, plugin=["duplicate-object-ban"], backend=["hf"]))
    with pytest.raises(ConfigError, match=r"^--plugin duplicate-object-ban does not work on fake and vllm; leave it out .*--backend hf$"):
        check_combinations(options(tmp_path, plugin=["duplicate-object-ban"], backend=["hf,vllm,fake"]))
    with pytest.raises(ConfigError, match="^--plugin balanced-json-stop does not work on openai"):
        check_combinations(options(tmp_path, plugin=["balanced-json-stop"], backend=["openai"]))
    assert constraints_of(options(tmp_path, plugin=["duplicate-object-ban"], backend=["auto"])).candidates == ("hf",)


class Shouting:
    def __init__(self, times: int = 1, table: Any = None) -> None:
        self._times, self.table = times, table

    def postprocess_text(self, text: str) -> str:
        return text.upper() * self._times


def broken() -> None:
    raise RuntimeError("no")


READY = Shouting()


def test_installed_packages_register_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"shouting": "Shouting", "broken": "broken", "gone": "Gone", "object-cap": "Shouting", "ready": "READY", "none": "len"}
    found = [EntryPoint(name, f"{__name__}:{value}", named.ENTRY_POINTS) for name, value in names.items()]
    monkeypatch.setattr(named, "entry_points", lambda group: found if group == named.ENTRY_POINTS else [])
    assert make_plugin("shouting:times=2").plugin.postprocess_text("a") == "AA"
    assert make_plugin('shouting:table={"a": "b:c"}:times=1').plugin.table == {"a": "b:c"}, "a value may have colons"
    for text, problem in {
        "broken": r"plugin 'broken' cannot be made \(RuntimeError: no\)",
        "gone": r"plugin 'gone' \(.*:Gone\) cannot be imported: AttributeError",
        "object-cap:num_objects=3": "plugin 'object-cap' is registered by evalharness and .*; uninstall one",
        "ready": "is neither a class nor a function that returns a plugin",
        "shoutng": "did you mean 'shouting'",
    }.items():
        with pytest.raises(ConfigError, match=problem):
            make_plugin(text)


SCORED = MARK.replace("import Case,", "import Case, ScoringRequest,").replace(
    "request=ask", "request=lambda case: ScoringRequest('a', 'b')"
)
ANSWER = '{"a": [{"x": 1}]} and more'


def test_the_runs_plugins_act_on_every_eval_and_run_json_says_which_were_in_force(project: Project) -> None:
    own = HEADER + "from evalharness.generation_plugins import ObjectCap\n"
    own += "pytestmark = pytest.mark.eval(cases=cases, request=ask, plugins=[ObjectCap(9)])\n"
    project.write(test_a=MARK + "def test_s(case, generation): pass\n", test_b=own + "def test_s(case, generation): pass\n")
    run = project.run_inline("--model", project.script({"text": ANSWER}), "--plugin", "balanced-json-stop", "--limit=1", "--run-id", "r")
    assert {row["generation"]["text"] for row in run.rows} == {'{"a": [{"x": 1}]}'}
    assert {row["generation"]["stop_reason"] for row in run.rows} == {"balanced-json-stop"}
    assert {entry["name"]: entry["plugins"] for entry in run.facts["evals"]} == {
        "a": ["BalancedJsonStop(roots='{')"],
        "b": ["ObjectCap(num_objects=9, roots='{')", "BalancedJsonStop(roots='{')"],
    }
    capped = project.run_inline("--plugin", "object-cap:num_objects=2", "--limit=1", "--run-id", "s")
    assert {entry["name"]: entry["plugins"] for entry in capped.facts["evals"]}["b"] == ["ObjectCap(num_objects=2, roots='{')"]
    code, said = project.evalharness(
        "generate", "--backend", "fake", "--model", "answers.jsonl", "--prompt", "x", "--plugin", "balanced-json-stop"
    )
    assert (code, "and more" in said) == (0, False)


def test_a_plugin_of_the_run_is_not_in_force_where_given_responses_are_scored(project: Project) -> None:
    model = ("--model", project.script({"logprobs": -0.5}))
    run = project.write(test_a=SCORED + "def test_s(case, generation): pass\n").run_inline(*model, "--plugin", "balanced-json-stop")
    assert run.counts == {"pass": 4}
    assert [entry["plugins"] for entry in run.facts["evals"]] == [[]]


def test_a_plugin_that_was_refused_was_not_in_force(project: Project) -> None:
    own = HEADER + "class OfImages:\n    request_types = ('vlm',)\n    def postprocess_text(self, text): return text\n"
    own += "pytestmark = pytest.mark.eval(cases=cases, request=ask, plugins=[OfImages()])\ndef test_s(case, generation): pass\n"
    run = project.write(test_a=own).run_inline()
    assert run.counts == {"error": 4}
    assert "plugin 'OfImages' does not take text requests; it takes: vlm" in run.rows[0]["problem"]
    assert [entry["plugins"] for entry in run.facts["evals"]] == [[]]


def test_plugins_that_would_never_be_called_are_refused_when_tests_are_collected(project: Project) -> None:
    for plugin in ("object()", "BalancedJsonStop", "type('P', (), {'watchs': lambda self, t: None})()"):
        own = HEADER + "from evalharness.generation_plugins import BalancedJsonStop\n"
        own += f"pytestmark = pytest.mark.eval(cases=cases, request=ask, plugins=[{plugin}])\ndef test_s(case, generation): pass\n"
        run = project.write(test_a=own).run_inline()
        assert "test_a.py: plugin" in run.output
        assert run.opened_no_run


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")
