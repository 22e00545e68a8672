"""Our readers against vLLM's parsers, on the same texts. Run: pytest tests/tool_calls/test_as_vllm_reads_them.py (20 s to import vLLM)

gpt-oss is missing: vLLM reads its token ids, with a vocabulary that has to be downloaded.
"""

from __future__ import annotations

import json

import pytest

from evalharness.api.tools import Tool
from evalharness.tool_calls import parse_tool_calls
from tests.vllm_installed import IS_INSTALLED, WHY_NOT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not IS_INSTALLED, reason=WHY_NOT), pytest.mark.filterwarnings("ignore")]

KINDS = {"text": "string", "n": "integer", "on": "boolean", "parts": "array", "from": "integer"}
SAY = Tool("say", parameters={"type": "object", "properties": {name: {"type": kind} for name, kind in KINDS.items()}})
HARD = {"text": "a \"b\" 'c' [({, </x> \\ 中\u2028\x85é", "n": -5, "on": True, "parts": [1, ["x", {}], None]}
J = json.dumps(HARD, ensure_ascii=False)
LISTED = f'[{{"name": "say", "arguments": {J}}}, {{"name": "say", "arguments": {{"n": 1}}}}]'
DEEPSEEK, DEEPSEEK_END = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
KIMI, KIMI_BETWEEN = "<|tool_calls_section_begin|><|tool_call_begin|>functions.say:0<|tool_call_argument_begin|>", "<|tool_call_end|>"
PYTHON = "[say(text='x, y=(1', n=-5, on=True), say(parts=[1, ['x', {}], None])]"
VALUES = [("text", 'a </x> {[(\n"b" 中\u2028'), ("n", "-5"), ("on", "true"), ("parts", '[1, ["x", {}]]')]
QWEN = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in VALUES)
GLM = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in VALUES)
DSML = "".join(f'<｜DSML｜parameter name="{k}" string="{str(k == "text").lower()}">{v}</｜DSML｜parameter>\n' for k, v in VALUES)
GEMMA = '{text:<|"|>a, b:}<|"|>,n:-5,on:true,parts:[<|"|>1<|"|>,[<|"|>x<|"|>,{}]]}'  # vLLM reads numbers in lists as texts

TEXTS = [
    (
        "hermes",
        f'Hi\n<tool_call>\n{{"name": "say", "arguments": {J}}}\n</tool_call>\n<tool_call>{{"name": "say", "arguments": {{}}}}</tool_call>',
    ),
    ("qwen3_coder", f"Hi\n<tool_call>\n<function=say>\n{QWEN}</function>\n</tool_call>"),
    ("qwen3_coder", "<tool_call>\n<function=say>\n</function>\n</tool_call>"),
    ("seed_oss", f"<seed:tool_call>\n<function=say>\n{QWEN}</function>\n</seed:tool_call>"),
    ("deepseek_v3", f"Hi{DEEPSEEK}function<｜tool▁sep｜>say\n```json\n{J}\n```{DEEPSEEK_END}"),
    ("deepseek_v31", f"Hi{DEEPSEEK}say<｜tool▁sep｜>{J}<｜tool▁call▁end｜><｜tool▁call▁begin｜>say<｜tool▁sep｜>{{}}{DEEPSEEK_END}"),
    ("deepseek_v32", f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="say">\n{DSML}</｜DSML｜invoke>\n</｜DSML｜function_calls>'),
    ("minimax_m2", '<minimax:tool_call>\n<invoke name="say">\n<parameter name="n">-5</parameter>\n</invoke>\n</minimax:tool_call>'),
    ("glm45", f"Hi\n<tool_call>say\n{GLM}</tool_call>\n<tool_call>say\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"),
    ("glm47", f"<tool_call>say{GLM}</tool_call>"),
    (
        "kimi_k2",
        f"Hi{KIMI}{J}{KIMI_BETWEEN}<|tool_call_begin|>functions.say:1<|tool_call_argument_begin|>{{}}{KIMI_BETWEEN}<|tool_calls_section_end|>",
    ),
    ("gemma4", f"<|tool_call>call:say{GEMMA}<tool_call|>"),
    ("functiongemma", "<start_function_call>call:say{text:<escape>a, b<escape>,n:<escape>5<escape>}<end_function_call>"),
    ("granite", f"<|tool_call|>{LISTED}"),
    ("granite4", f'Hi <tool_call>{{"name": "say", "arguments": {J}}}</tool_call>'),
    ("granite-20b-fc", f'<function_call> {{"name": "say", "arguments": {J}}}'),
    ("lfm2", f"Hi<|tool_call_start|>{PYTHON}<|tool_call_end|>Checking."),
    ("lfm2", "<|tool_call_start|>[say(from=1)]<|tool_call_end|>"),
    ("lfm2", "<|tool_call_start|>[say(text='a\nb\u2028c')]<|tool_call_end|>"),
    ("pythonic", PYTHON),
    ("llama4_pythonic", f"<|python_start|>{PYTHON}<|python_end|>"),
    ("olmo3", "<function_calls>say(text='x, y=(1', n=-5)\nsay(n=1)</function_calls>"),
    ("llama3_json", f'{{"name": "say", "parameters": {J}}}'),
    ("llama3_json", '<|python_tag|>{"name": "say", "parameters": {"n": 1}}; {"name": "say", "parameters": {"n": 2}}'),
    ("mistral", f'Hi[TOOL_CALLS]say{J}[TOOL_CALLS]say{{"n": 1}}'),
    ("phi4_mini_json", 'functools[{"name": "say", "arguments": {"text": "a"}}]'),  # vLLM's ends at the first bracket
    ("jamba", f"<tool_calls>{LISTED}</tool_calls>"),
    ("hunyuan_a13b", f"<tool_calls>{LISTED}</tool_calls>"),
    ("internlm", f'Hi<|action_start|><|plugin|>\n{{"name": "say", "parameters": {J}}}<|action_end|>'),
    ("longcat", f'<longcat_tool_call>{{"name": "say", "arguments": {J}}}</longcat_tool_call>'),
    ("xlam", LISTED),
]


class _Tokenizer:
    """Knows every mark, as the tokenizer of the parser's model does."""

    all_special_tokens: tuple[str, ...] = ()

    def get_vocab(self):
        return _Vocabulary()


class _Vocabulary(dict):
    def get(self, key, default=None):
        return len(key)

    def __contains__(self, key):
        return True

    def __getitem__(self, key):
        return len(key)


@pytest.mark.parametrize(("parser", "text"), TEXTS, ids=[f"{place}-{parser}" for place, (parser, _) in enumerate(TEXTS)])
def test_the_calls_are_those_that_vllm_reads(parser, text):
    from evalharness.backends.torchvision_cpu import register_missing_operators

    register_missing_operators()
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    asked = ChatCompletionRequest(messages=[{"role": "user", "content": "x"}], model="m", tools=[SAY.to_json()])
    theirs = ToolParserManager.get_tool_parser(parser)(_Tokenizer(), asked.tools).extract_tool_calls(text, asked)
    ours = parse_tool_calls(text, [SAY])
    assert [(call.name, dict(call.arguments)) for call in ours.executable] == [
        (call.function.name, json.loads(call.function.arguments)) for call in theirs.tool_calls
    ]
    assert ours.calls
