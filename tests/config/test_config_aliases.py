"""Trainers' names for our options: `--inference-engine`, `--inference-url`, `[inference]`, and how they spell devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import ConfigError
from evalharness.api.options import ModelLoadConfig
from evalharness.backends import SERVERS, known_backends
from evalharness.config.checks import check_combinations
from evalharness.config.options import ENGINES
from evalharness.engine.build import build_engine
from tests.config.test_config import config_of

URL = "http://127.0.0.1:8001"
ENGINE, ADDRESS = "--inference-engine", "--inference-url"


@pytest.mark.parametrize(
    ("arguments", "backend", "server"),
    [
        pytest.param([ENGINE, "pytorch"], "hf", "vllm", id="pytorch"),
        pytest.param([ENGINE, "huggingface"], "hf", "vllm", id="huggingface"),
        pytest.param([ENGINE, "auto"], "auto", "vllm", id="auto"),
        pytest.param([ENGINE, "vllm"], "vllm", "vllm", id="vllm-in-process"),
        pytest.param([ENGINE, "vllm", ADDRESS, URL], "openai", "vllm", id="vllm-served"),
        pytest.param([ENGINE, "vllm", "--base-url", URL], "openai", "vllm", id="vllm-served-own-name-of-the-address"),
        pytest.param([ENGINE, "max"], "max", "vllm", id="max-in-process"),
        pytest.param([ENGINE, "max", ADDRESS, URL], "openai", "max", id="max-served"),
        pytest.param([ENGINE, "sglang"], "openai", "sglang", id="sglang-is-always-a-server"),
        pytest.param([ENGINE, "trtllm"], "openai", "trtllm", id="trtllm"),
        pytest.param([ENGINE, "mlx", ADDRESS, URL], "openai", "mlx", id="mlx"),
        pytest.param([ENGINE, "openai", ADDRESS, URL], "openai", "openai", id="openai"),
    ],
)
def test_an_engines_name_means_a_backend_or_a_kind_of_server(tmp_path: Path, arguments: list[str], backend: str, server: str) -> None:
    config = config_of(tmp_path, *arguments)
    assert (config.backend, config.server) == ((backend,), server)
    assert config.base_url == (URL if URL in arguments else None)


def test_an_unknown_engine_is_refused_with_all_names() -> None:
    with pytest.raises(ConfigError, match=rf"^backend 'x' is unknown\. Known: {', '.join(known_backends())}\.$") as caught:
        build_engine("x", ModelLoadConfig("m"))
    assert isinstance(caught.value, ValueError)


def test_every_kind_of_server_has_its_engines_name() -> None:
    assert {meant.server for meant in ENGINES.values()} == {*SERVERS, None}


def test_the_alias_is_the_origin_of_what_it_means(tmp_path: Path) -> None:
    config = config_of(tmp_path, ENGINE, "sglang", env={"EVALHARNESS_INFERENCE_URL": URL})
    assert config.origin("backend") == config.origin("server") == "command line, --inference-engine"
    assert config.origin("base_url") == "environment EVALHARNESS_INFERENCE_URL"
    config = config_of(tmp_path, evalharness_toml=f'[inference]\nengine = "sglang"\nurl = "{URL}"\n')
    assert config.origin("backend") == "evalharness.toml, [inference] engine"
    assert config.origin("base_url") == "evalharness.toml, [inference] url"


def test_command_line_beats_environment_beats_files_for_aliases_too(tmp_path: Path) -> None:
    given: dict[str, Any] = {"pyproject_toml": '[tool.evalharness.inference]\nengine = "mlx"\n'}
    assert config_of(tmp_path, **given).server == "mlx"
    given["evalharness_toml"] = '[inference]\nengine = "trtllm"\n'
    assert config_of(tmp_path, **given).server == "trtllm"
    given["env"] = {"EVALHARNESS_INFERENCE_ENGINE": "sglang"}
    assert config_of(tmp_path, **given).server == "sglang"
    assert config_of(tmp_path, ENGINE, "pytorch", **given).backend == ("hf",)


def test_the_address_of_a_file_makes_a_server_of_the_command_lines_engine(tmp_path: Path) -> None:
    config = config_of(tmp_path, ENGINE, "vllm", evalharness_toml=f'[inference]\nengine = "pytorch"\nurl = "{URL}"\n')
    assert (config.backend, config.server, config.base_url) == (("openai",), "vllm", URL)


def test_the_stronger_place_wins_whichever_name_it_uses(tmp_path: Path) -> None:
    file = {"evalharness_toml": f'[inference]\nengine = "sglang"\nurl = "{URL}"\n'}
    assert config_of(tmp_path, "--backend", "hf", **file).backend == ("hf",)
    assert config_of(tmp_path, "--base-url", "http://other", **file).base_url == "http://other"
    assert config_of(tmp_path, ENGINE, "sglang", evalharness_toml='backend = "vllm"\nserver = "mlx"\n').server == "sglang"


def test_an_alias_and_the_own_name_may_agree(tmp_path: Path) -> None:
    config = config_of(tmp_path, ENGINE, "sglang", "--backend", "openai", "--server", "sglang", ADDRESS, URL, "--base-url", URL)
    assert (config.backend, config.server, config.base_url) == (("openai",), "sglang", URL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([ENGINE, "pytorch", "--backend", "vllm"], "pytorch means --backend hf here and contradicts --backend vllm; give one of them$"),
        ([ENGINE, "sglang", "--server", "mlx"], "sglang means --server sglang here and contradicts --server mlx"),
        ([ADDRESS, "http://a", "--base-url", "http://b"], "^--inference-url http://a contradicts --base-url http://b; give one of them$"),
        ([ENGINE, "vlm"], "^--inference-engine must be one of pytorch, .*'vlm'; did you mean 'vllm'"),
        ([ADDRESS, "localhost:8000"], "^--inference-url must be an address such as http"),
    ],
    ids=["backend", "server", "address", "engine", "no-address"],
)
def test_what_contradicts_itself_or_is_unknown_is_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(tmp_path, *arguments)


def test_what_contradicts_itself_in_the_environment_is_refused(tmp_path: Path) -> None:
    message = "^EVALHARNESS_INFERENCE_ENGINE vllm means --backend vllm here and contradicts EVALHARNESS_BACKEND hf"
    with pytest.raises(ConfigError, match=message):
        config_of(tmp_path, env={"EVALHARNESS_INFERENCE_ENGINE": "vllm", "EVALHARNESS_BACKEND": "hf"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('backend = "hf"\n[inference]\nengine = "mlx"\n', "mlx means --backend openai here and contradicts backend in evalharness.toml hf"),
        ('[inference]\nengin = "max"\n', r"^'engin' in \[inference\] of evalharness.toml is unknown; did you mean 'engine'"),
        ("inference = 3\n", r"\[inference\] of evalharness.toml must be a table of settings, got 3"),
        ("[inferenc]\n", "'inferenc' in evalharness.toml is unknown; did you mean"),
        ('inference_url = "http://a"\n', "'inference_url' in evalharness.toml is unknown"),
    ],
    ids=["contradiction", "key-in-the-table", "no-table", "table", "flat"],
)
def test_a_settings_file_that_contradicts_itself_or_has_unknown_names_is_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(tmp_path, evalharness_toml=content)


def test_an_address_for_an_engine_that_asks_no_server_is_refused_by_the_name_that_was_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--base-url http://\S+ \(command line, --inference-url\) is honoured by openai only"):
        check_combinations(config_of(tmp_path, "--model", "m", ENGINE, "pytorch", ADDRESS, URL))


@pytest.mark.parametrize(
    ("given", "read"), [("cpu", "cpu"), ("gpu:0,gpu:2", "gpu:0,gpu:2"), ("cuda:1", "gpu:1"), ("gpu:0, cuda:3", "gpu:0,gpu:3")]
)
def test_devices_are_spelt_as_trainers_do(tmp_path: Path, given: str, read: str) -> None:
    assert config_of(tmp_path, "--devices", given).devices == read


@pytest.mark.parametrize("given", ["gpu", "cpu,gpu:0", "gpu:0,", "1", "gpu:-1", "mps:0"])
def test_other_devices_are_refused(tmp_path: Path, given: str) -> None:
    with pytest.raises(ConfigError, match="--devices must be cpu or GPUs such as gpu:0 or gpu:0,gpu:2, got"):
        config_of(tmp_path, "--devices", given)
