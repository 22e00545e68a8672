from __future__ import annotations

import argparse
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import ConfigError
from evalharness.config import RunConfig, resolve
from evalharness.config.checks import check_combinations
from evalharness.config.kinds import PerCheckpoint
from evalharness.config.options import ARGUMENTS


def config_of(tmp_path: Path, *arguments: str, env: dict[str, str] | None = None, **files: str) -> RunConfig:
    """Return what command line arguments, variables and files (name with _ for .) at the root resolve to."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for option in ARGUMENTS:
        parser.add_argument(option.flag, **option.argument())
    for name, content in files.items():
        (tmp_path / name.replace("_", ".")).write_text(content, encoding="utf-8")
    parsed = parser.parse_args(arguments)
    return resolve({option.name: getattr(parsed, option.dest) for option in ARGUMENTS}, env or {}, tmp_path, cwd=tmp_path / "here")


def test_command_line_beats_environment_beats_own_file_beats_pyproject_beats_default(tmp_path: Path) -> None:
    sources: list[tuple[str, dict[str, Any]]] = [
        ("default", {}),
        ("pyproject.toml", {"pyproject_toml": "[tool.evalharness]\nseed = 1\nlimit = 5\n"}),
        ("evalharness.toml", {"evalharness_toml": "seed = 2\n"}),
        ("environment EVALHARNESS_SEED", {"env": {"EVALHARNESS_SEED": "3"}}),
        ("command line", {}),
    ]
    given: dict[str, Any] = {}
    for rank, (origin, more) in enumerate(sources):
        given |= more
        config = config_of(tmp_path, *(["--seed", "4"] if origin == "command line" else []), **given)
        assert (config.seed, config.origin("seed")) == (rank, origin)
        assert config.is_set("seed") is (rank > 0)
    assert config.limit == 5  # files are merged by key


def test_paths_in_files_are_relative_to_the_file_and_others_to_the_current_folder(tmp_path: Path) -> None:
    config = config_of(tmp_path, "--report-dir", "out", pyproject_toml='[tool.evalharness]\nmodel = ["a", "b/*"]\ndata = "photos"\n')
    assert config.model == (str(tmp_path / "a"), str(tmp_path / "b/*"))
    assert config.data == tmp_path / "photos"
    assert config.report_dir == tmp_path / "here" / "out"


def test_models_are_collected_from_repeated_options_and_commas(tmp_path: Path) -> None:
    config = config_of(tmp_path, "--model", "/x/a,/x/b", "--model", "/y/*")
    assert config.model == ("/x/a", "/x/b", "/y/*")


def test_a_flag_of_a_file_which_may_write_it_as_the_command_line_does_is_taken_back_there(tmp_path: Path) -> None:
    assert config_of(tmp_path, evalharness_toml="allow-pickle = true\n").allow_pickle is True
    assert config_of(tmp_path, "--no-allow-pickle").allow_pickle is False


def test_run_ids_of_two_runs_differ_by_default(tmp_path: Path) -> None:
    first, second = config_of(tmp_path), config_of(tmp_path)
    assert first.run_id != second.run_id
    assert config_of(tmp_path, "--run-id", first.run_id).run_id == first.run_id


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--backend", "vlm"], r"^--backend 'vlm' is unknown; did you mean 'vllm'\? Known: auto, fake, hf,", id="backend"),
        pytest.param(["--backend", "xyzzy"], r"^--backend 'xyzzy' is unknown\. Known: auto, fake, hf, max,", id="backend-like-no-other"),
        pytest.param(["--backend", "hf,hf"], "names 'hf' twice", id="backend-twice"),
        pytest.param(["--backend", "hf,"], "comma-separated list of auto, fake, hf, max, openai, vllm, got", id="backend-empty"),
        pytest.param(["--limit", "0"], "^--limit must be a whole number of at least 1, got '0'; leave it out to run every", id="limit-0"),
        pytest.param(["--limit", "two"], r"^--limit must be a whole number of at least 1, got 'two'$", id="limit-word"),
        pytest.param(["--limit", "1.5"], "--limit must be a whole number", id="limit-fraction"),
        pytest.param(["--seed", "9" * 400], "at most 4294967295", id="seed-no-float-can-hold"),
        pytest.param(["--temperature", "-0.1"], "a number of at least 0, got", id="temperature"),
        pytest.param(["--temperature", "nan"], "a number of at least 0, got 'nan'", id="nan"),
        pytest.param(["--top-p", "0"], "must be a number greater than 0 and at most 1", id="top-p-0"),
        pytest.param(["--top-p", "1.1"], "at most 1", id="top-p-over-1"),
        pytest.param(["--seed", "-1"], "at least 0", id="seed"),
        pytest.param(["--seed", "4294967296"], "at most 4294967295", id="seed-too-large"),
        pytest.param(["--gpu-memory-utilization", "90"], "at most 1", id="gpu-memory-in-percent"),
        pytest.param(["--dtype", "bfloat"], "one of float32, float16, bfloat16, got 'bfloat'; did you mean 'bfloat16'", id="dtype"),
        pytest.param(["--device", "gpu0"], "a device such as cpu", id="device"),
        pytest.param(["--fallback-backend", "fake"], "one of hf, openai, vllm, got 'fake'", id="fake-is-no-fallback"),
        pytest.param(["--unsupported-options", "ignore"], "one of refuse, warn", id="unsupported"),
        pytest.param(["--run-id", "../x"], "1 to 100 letters", id="run-id-with-slash"),
        pytest.param(["--run-id", ".."], "1 to 100 letters", id="run-id-dots"),
        pytest.param(["--run-id", "a\n"], "1 to 100 letters", id="run-id-newline"),
        pytest.param(["--run-id", ""], "1 to 100 letters", id="run-id-empty"),
        pytest.param(["--data", ""], "the path of a folder, got ''", id="data-empty"),
        pytest.param(["--data", "a" * 5000], r"the path of a folder, got 'a+' \(File name too long\)$", id="data-too-long"),
        pytest.param(["--model", "a" * 5000], r"glob patterns, got 'a+' \(File name too long\)$", id="model-too-long"),
        pytest.param(["--data", "~no-body/x"], "the path of a folder, got '~no-body/x'", id="home-of-nobody"),
        pytest.param(["--model", ""], "a comma-separated list of paths", id="model-empty"),
        *(pytest.param(["--shard", text], "--shard must be a part", id=f"shard-{text}") for text in ("0/3", "1/0", "1", "a/b", "1/3/5")),
    ],
)
def test_a_wrong_value_on_the_command_line_is_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(tmp_path, *arguments)


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        pytest.param({"env": {"EVALHARNESS_SEED": "x"}}, "^EVALHARNESS_SEED must be a whole number", id="env-type"),
        pytest.param({"env": {"EVALHARNESS_SED": "1"}}, "EVALHARNESS_SED is unknown; did you mean 'EVALHARNESS_SEED'", id="env-unknown"),
        pytest.param({"env": {"EVALHARNESS_ALLOW_PICKLE": "maybe"}}, "EVALHARNESS_ALLOW_PICKLE must be true or false", id="env-flag"),
        pytest.param({"env": {"EVALHARNESS_BACKEND": "vlm"}}, "^EVALHARNESS_BACKEND 'vlm' is unknown", id="env-backend"),
        pytest.param({"evalharness_toml": "sed = 1"}, "'sed' in evalharness.toml is unknown; did you mean 'seed'", id="key-unknown"),
        pytest.param({"evalharness_toml": "seed = 'one'"}, "^seed in evalharness.toml must be a whole number", id="file-type"),
        pytest.param({"evalharness_toml": "seed = '1'"}, "^seed in evalharness.toml must be a whole number .*got '1'", id="number-as-text"),
        pytest.param({"evalharness_toml": "seed = true"}, "must be a whole number .*got True", id="bool-as-number"),
        pytest.param({"evalharness_toml": "temperature = inf"}, "must be a number", id="infinity"),
        pytest.param({"evalharness_toml": "trust_remote_code = 'yes'"}, "must be true or false, got 'yes'", id="text-as-flag"),
        pytest.param({"evalharness_toml": "model = 3"}, "comma-separated list of paths or glob patterns, got 3", id="model-number"),
        pytest.param({"evalharness_toml": "top-p = 1\ntop_p = 1"}, "'top_p' is set twice", id="key-twice"),
        pytest.param({"evalharness_toml": 'data = "a\\u0000b"'}, r"the path of a folder, got 'a\\x00b' \(.*embedded", id="zero-byte"),
        pytest.param({"evalharness_toml": "seed ="}, "evalharness.toml is not valid TOML", id="broken"),
        pytest.param({"pyproject_toml": "[tool]\nevalharness = 3"}, "must be a table of settings, got 3", id="no-table"),
        pytest.param({"pyproject_toml": "[tool.evalharness]\nseeds = 1"}, r"\[tool.evalharness\] of pyproject.toml is unknown", id="tool"),
    ],
)
def test_a_wrong_setting_elsewhere_is_refused_naming_its_place(tmp_path: Path, sources: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(tmp_path, **sources)


def test_variables_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    assert not config_of(tmp_path, env={"SEED": "7", "XEVALHARNESS_SEED": "7"}).is_set("seed")


def test_a_worker_gets_exactly_the_controllers_config(tmp_path: Path) -> None:
    config = config_of(tmp_path, "--backend", "hf,vllm", "--model", "m", "--data", ".", "--seed", "4", env={"EVALHARNESS_TOP_P": "0.5"})
    sent = json.dumps(config.to_json(), allow_nan=False)
    assert RunConfig.from_json(json.loads(sent)) == config
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_config_written_by_another_version_is_read(tmp_path: Path) -> None:
    written = config_of(tmp_path, "--seed", "4").to_json()
    written["option_of_tomorrow"] = {"value": 1, "origin": "command line"}
    del written["limit"]
    assert RunConfig.from_json(written).seed == 4
    assert RunConfig.from_json(written).limit is None


@pytest.mark.parametrize(
    ("arguments", "sources", "message"),
    [
        pytest.param(["--enforce-eager"], {}, "^--enforce-eager is honoured by vllm only, but .*hf .*default.*--backend", id="vllm-only"),
        pytest.param(["--backend", "vllm", "--device", "cpu"], {}, "--device cpu is honoured by hf only", id="hf-only"),
        pytest.param(["--no-enforce-eager"], {}, "^--no-enforce-eager is honoured by vllm only", id="vllm-only-taken-back"),
        pytest.param([], {"env": {"EVALHARNESS_ENFORCE_EAGER": "1"}}, "environment EVALHARNESS_ENFORCE_EAGER.* honoured by vllm", id="env"),
        pytest.param(["--fallback-backend", "hf"], {}, "is the only backend of the run already", id="fallback-is-the-backend"),
        pytest.param(["--num-samples", "4", "--temperature", "0"], {}, "would give the same text every time", id="greedy-samples"),
        pytest.param(["--top-p", "0.9", "--temperature", "0"], {}, "has no effect with --temperature 0", id="greedy-top-p"),
        pytest.param(["--max-pixels", "10", "--min-pixels", "20"], {}, "--min-pixels 20 is more than --max-pixels 10", id="pixels"),
        pytest.param(["--max-model-len", "64", "--max-new-tokens", "64"], {}, "leaves no room for a prompt", id="no-room"),
        pytest.param(["--engine-option", "max_num_seqs=64"], {}, "^--engine-option max_num_seqs=64 is honoured by vllm only", id="engine"),
        pytest.param(["--backend=vllm", "--engine-option", "seed=1"], {}, "--engine-option seed cannot be given: every", id="engine-own"),
        pytest.param(["--devices", "cpu", "--device", "cuda"], {}, "^--devices cpu contradicts --device cuda; give one", id="devices"),
        pytest.param(["--devices", "gpu:0", "--device", "cpu"], {}, "^--devices gpu:0 contradicts --device cpu; give one", id="device"),
        pytest.param(["--shard", "3/2"], {}, "--shard 3/2 does not exist; the last of 2 parts is 2/2", id="shard"),
        pytest.param(["--data", "nowhere"], {}, "--data .*nowhere does not exist; the nearest that exists is", id="data"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    tmp_path: Path, arguments: list[str], sources: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_combinations(config_of(tmp_path, "--model", "m", *arguments, **sources))


@pytest.mark.parametrize(
    ("arguments", "sources"),
    [
        pytest.param(["--backend", "hf,vllm", "--device", "cpu", "--enforce-eager"], {}, id="each-option-has-its-backend"),
        pytest.param([], {"evalharness_toml": "enforce_eager = true"}, id="a-file-may-speak-of-a-backend-that-does-not-run"),
        pytest.param(["--backend", "vllm", "--fallback-backend", "hf", "--device", "cpu"], {}, id="option-of-the-fallback"),
        pytest.param(["--num-samples", "4", "--temperature", "0.7"], {}, id="samples"),
        pytest.param(["--top-p", "1", "--temperature", "0"], {}, id="greedy-with-all-there-is"),
        pytest.param(["--devices", "cpu", "--device", "cpu"], {}, id="devices"),
    ],
)
def test_options_that_agree_are_accepted(tmp_path: Path, arguments: list[str], sources: dict[str, Any]) -> None:
    check_combinations(config_of(tmp_path, "--model", "m", *arguments, **sources))


def test_a_run_on_real_backends_needs_a_checkpoint_and_the_fake_needs_none(tmp_path: Path) -> None:
    assert config_of(tmp_path).backend == ("hf",)
    check_combinations(config_of(tmp_path, "--backend", "fake"))
    with pytest.raises(ConfigError, match="no checkpoint to evaluate: give --model PATH"):
        check_combinations(config_of(tmp_path))


@pytest.mark.parametrize("option", ARGUMENTS, ids=lambda option: option.name)
def test_every_help_text_starts_with_a_capital_and_states_the_default_which_is_a_legal_value(option: Any, tmp_path: Path) -> None:
    assert option.help[0].isupper()
    assert "(default: " in option.help
    assert "%" not in option.help  # argparse would format it
    if option.default is None or option.default == "":  # a run's name is made when the run starts
        return
    raw = str(option.default) if isinstance(option.default, Path) else option.default
    nothing = "none" if option.name == "plugin" else "x=1"
    value = option.kind.read(raw if not isinstance(raw, tuple) else ",".join(raw) or nothing, label="default", base=tmp_path, is_text=False)
    assert option.default in (value, ()) or isinstance(option.default, Path)


@pytest.mark.parametrize(
    ("recorded", "dtypes"), [("float32", ("float32",)), (["float32", "bfloat16"], ("float32", "bfloat16")), (None, None)], ids=str
)
def test_dtypes_of_older_runs_are_understood(recorded: Any, dtypes: Any) -> None:
    assert RunConfig.from_json({"dtype": {"value": recorded, "origin": "command line"}}).dtype == dtypes


def test_a_space_of_coordinates_may_be_said_for_all_checkpoints_and_for_some(tmp_path: Path) -> None:
    config = config_of(tmp_path, "--coordinates", "base-*=processed:14,norm1000", "--coordinates", "old=pixels")
    found = {name: PerCheckpoint.of(config.coordinates, name) for name in ("base-7b", "old", "step-9")}
    assert found == {"base-7b": "processed:14", "old": "pixels", "step-9": "norm1000"}
    assert PerCheckpoint.of(config_of(tmp_path).coordinates, "old") is None
    assert RunConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("inches", "--coordinates must be norm1000, unit, pixels or processed:PATCH_SIZE, for all checkpoints or as PATTERN=… .*'inches'"),
        ("=pixels", "--coordinates must be norm1000, .*, got '=pixels'"),
        ("pixels,unit", "--coordinates has two values for all checkpoints; keep one"),
        ("a=pixels,a=unit", "--coordinates has two values for a; keep one"),
    ],
)
def test_a_wrong_space_of_coordinates_is_refused(tmp_path: Path, given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(tmp_path, "--coordinates", given)


def test_engine_options_are_json_or_text_and_a_table_in_a_file(tmp_path: Path) -> None:
    given = ["--engine-option", "max-num-seqs=64", "--engine-option", "kv_cache_dtype=fp8", "--engine-option", 'hf_overrides={"a": [1, 2]}']
    wanted = (("hf_overrides", {"a": [1, 2]}), ("kv_cache_dtype", "fp8"), ("max_num_seqs", 64))
    config = config_of(tmp_path, *given)
    assert config.engine_option == wanted
    assert RunConfig.from_json(json.loads(json.dumps(config.to_json()))).engine_option == wanted
    table = '[engine_option]\nmax_num_seqs = 64\nkv_cache_dtype = "fp8"\nhf_overrides = { a = [1, 2] }\n'
    of_file = config_of(tmp_path, evalharness_toml=table)
    assert of_file.engine_option == wanted
    assert of_file.origin("engine_option") == "evalharness.toml"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["max_num_seqs"], "must be NAME=VALUE, one each time, or a table in a settings file, got 'max_num_seqs'"),
        (["=1"], "must be NAME=VALUE"),
        (["a-b=1", "a_b=2"], "has two values for a_b; keep one"),
    ],
    ids=["no-value", "no-name", "twice"],
)
def test_a_wrong_engine_option_is_refused(tmp_path: Path, given: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(tmp_path, *(part for one in given for part in ("--engine-option", one)))
