"""The tokenizer of the bare install: what it gives is what transformers gives."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import CheckpointError, MissingDependency
from evalharness.api.options import ModelLoadConfig, VlmPreprocessOptions
from evalharness.backends.bare_tokenizer import BareTokenizer
from evalharness.backends.checkpoint_reading import load_tokenizer_and_processor

FINAL = Path(__file__).parents[2] / "fixtures" / "checkpoints" / "final"
TEXTS = [
    "",
    "hi",
    "  two  spaces ",
    "BBU安装方式检查,标签/4G-BBU",
    "<|im_start|>user\nx<|im_end|>\n",
    "e\u0301 🙂 \t\n",
    'a {"b": [1.5, null]}',
]
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What <is> it? 图"}]},
    {"role": "assistant", "content": "A cab"},
]
TOOL = {"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object", "properties": {}}}}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}\n"
    "<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content | trim }}{% endgeneration %}\n"
    "{% else %}{{ m | tojson }}{% endif %}\n"
    "{% if loop.index > 9 %}{% break %}{% endif %}{% endfor %}\n"
    "{% if add_generation_prompt %}<assistant>{{ eos_token }}{% endif %}{{ tools | tojson(indent=1) if tools else '' }}"
)


@pytest.fixture(scope="module")
def both(tiny_vlm_checkpoint: Path) -> list[tuple[BareTokenizer, Any]]:
    transformers = pytest.importorskip("transformers")
    return [(BareTokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)) for folder in (FINAL, tiny_vlm_checkpoint)]


def test_ids_and_texts_are_those_of_transformers(both: list[tuple[BareTokenizer, Any]]) -> None:
    chance = random.Random(0)
    for bare, full in both:
        assert len(bare) == len(full)
        for text in TEXTS:
            for special in (True, False):
                assert bare.encode(text, add_special_tokens=special) == full.encode(text, add_special_tokens=special)
            as_text = {"add_special_tokens": False, "split_special_tokens": True}
            assert bare.encode(text, **as_text) == full.encode(text, **as_text)
        for _ in range(50):
            ids = [chance.randrange(len(full)) for _ in range(20)]
            for skip in (True, False):
                assert bare.decode(ids, skip_special_tokens=skip) == full.decode(
                    ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
                )
            assert bare.convert_ids_to_tokens(ids[0]) == full.convert_ids_to_tokens(ids[0])
        assert bare.get_added_vocab() == full.get_added_vocab()
        for name in ("eos_token", "eos_token_id", "bos_token_id", "pad_token", "chat_template"):
            assert getattr(bare, name) == getattr(full, name), name


@pytest.mark.parametrize("template", [None, TEMPLATE], ids=["its own", "with generation, break and tojson"])
@pytest.mark.parametrize(
    "options",
    [
        {"add_generation_prompt": True},
        {"add_generation_prompt": True, "tools": [TOOL]},
        {"add_generation_prompt": True, "enable_thinking": True},
        {"continue_final_message": True},
    ],
    ids=["turn", "tools", "thinking", "continued"],
)
def test_prompts_are_those_of_transformers(both: list[tuple[BareTokenizer, Any]], template: str | None, options: dict[str, Any]) -> None:
    for bare, full in both:
        if template is not None:
            bare, full = BareTokenizer(FINAL), full.__class__.from_pretrained(FINAL)
            bare.chat_template = full.chat_template = template
        for messages in (CHAT, [*CHAT[:2], {"role": "assistant", "content": "ends in a space "}]):
            asked = messages if "continue_final_message" in options else messages[:2]
            assert bare.apply_chat_template(asked, tokenize=False, **options) == full.apply_chat_template(asked, tokenize=False, **options)


def test_a_template_that_refuses_raises(both: list[tuple[BareTokenizer, Any]]) -> None:
    bare = BareTokenizer(FINAL)
    bare.chat_template = TEMPLATE
    with pytest.raises(Exception, match="no tools"):
        bare.apply_chat_template([{"role": "tool", "content": "x"}])
    bare.chat_template = None
    with pytest.raises(ValueError, match="chat_template"):
        bare.apply_chat_template(CHAT)


def test_templates_by_name_and_tokens_of_the_config_are_read(tmp_path: Path) -> None:
    folder = shutil.copytree(FINAL, tmp_path / "copy")
    (folder / "chat_template.jinja").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    config["bos_token"] = {"content": "<|begin|>", "lstrip": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = BareTokenizer(folder)
    assert (tokenizer.apply_chat_template(CHAT), tokenizer.apply_chat_template(CHAT, tools=[TOOL])) == ("plain", "with tools")
    assert tokenizer.encode("<|begin|>", add_special_tokens=False) == [tokenizer.bos_token_id]
    assert tokenizer.decode([tokenizer.bos_token_id], skip_special_tokens=True) == ""


@pytest.fixture
def bare_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else real(name))


@pytest.mark.usefixtures("bare_install")
def test_without_transformers_it_stands_for_the_processor_too() -> None:
    tokenizer, processor = load_tokenizer_and_processor(ModelLoadConfig(str(FINAL)), VlmPreprocessOptions())
    assert isinstance(tokenizer, BareTokenizer)
    assert processor is tokenizer
    assert tokenizer.image_token == "<|image_pad|>"
    assert load_tokenizer_and_processor(ModelLoadConfig(str(FINAL), variant="text"), VlmPreprocessOptions())[1] is None


@pytest.mark.usefixtures("bare_install")
@pytest.mark.parametrize(
    ("change", "error", "problem"),
    [
        (
            lambda folder: (folder / "tokenizer.json").unlink(),
            MissingDependency,
            r"has no tokenizer.json, so only transformers reads it; .*\[hf\]",
        ),
        (
            lambda folder: (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["x.Y", null]}}'),
            MissingDependency,
            r"comes with its own code, so only transformers reads it; .*\[hf\]",
        ),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), CheckpointError, "is the checkpoint complete"),
    ],
    ids=["no tokenizer.json", "own code", "broken"],
)
def test_what_only_transformers_reads_is_refused_with_the_way_out(
    tmp_path: Path, change: Any, error: type[Exception], problem: str
) -> None:
    folder = shutil.copytree(FINAL, tmp_path / "copy")
    change(folder)
    with pytest.raises(error, match=problem):
        load_tokenizer_and_processor(ModelLoadConfig(str(folder)), VlmPreprocessOptions())
