"""Rows held to grammars and budgets, in batches that rows leave. Run: pytest tests/backends/hf/test_structured.py"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import ConfigError, MissingDependency, UnsupportedOption
from evalharness.api.structured_output import StructuredOutput
from evalharness.api.thinking import ThinkingBudget
from evalharness.backends.base import SamplingPlan
from evalharness.backends.hf import sampling
from tests.backends.hf_models import END_ID, load, make_text_checkpoint, mixed_prompts, one_thread, plan, prompt, run

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Transformers on a tiny random Llama, whose rows may leave a batch."""
    with one_thread():
        loaded = load(make_text_checkpoint(tmp_path_factory.mktemp("checkpoints") / "text"))
        yield loaded
        loaded.close()


HELD = {"greedy": {}, "sampling": {"temperature": 1.5}, "penalty": {"repetition_penalty": 1.5}}
REGEX = StructuredOutput(regex=r"([a-z]{3},){1,12}[0-9]")


@pytest.mark.parametrize("values", HELD.values(), ids=HELD)
def test_a_held_row_of_a_mixed_batch_equals_the_row_alone(backend: Any, values: dict[str, Any]) -> None:
    prompts = mixed_prompts(10, max_new_tokens=60, structured=REGEX, **values)
    together = run(backend, prompts)
    assert len({len(output.token_ids) for output in together.values()}) > 2, "rows end, and leave, at different steps"
    for each in prompts:
        assert run(backend, [each])[each.index] == together[each.index]
    for output in together.values():
        text = backend.tokenizer.decode(output.token_ids, skip_special_tokens=True)
        assert output.stopped_by == "length" or re.fullmatch(REGEX.regex or "", text)


def test_a_row_that_a_stop_string_ends_takes_no_other_along(backend: Any) -> None:
    prompts = mixed_prompts(8, max_new_tokens=60, structured=REGEX, stop_strings=tuple(f"{letter}," for letter in "abcdefghijk"))
    together = run(backend, prompts)
    assert {output.stopped_by for output in together.values()} >= {"string", "id"}
    for each in prompts:
        assert run(backend, [each])[each.index] == together[each.index]


def test_a_thought_of_a_mixed_batch_ends_as_alone(backend: Any) -> None:
    budget = ThinkingBudget((40, 41), (50, 51), 7)
    prompts = [
        prompt(each.index, [*each.token_ids, *((40, 41) if each.index % 2 else ())], max_new_tokens=40, thinking=budget)
        for each in mixed_prompts(8)
    ]
    together = run(backend, prompts)
    for each in prompts:
        assert run(backend, [each])[each.index] == together[each.index]
        ids = together[each.index].token_ids
        if each.index % 2 and END_ID not in ids[:9]:
            assert (50, 51) in itertools.pairwise(ids[:9]), "it ends by itself, or at its budget"
    assert sum(together[each.index].token_ids[7:9] == (50, 51) for each in prompts) > 2


def test_a_schema_that_could_not_be_held_is_refused_with_its_place(backend: Any) -> None:
    structured = StructuredOutput(json_schema={"properties": {"n": {"type": "integer", "multipleOf": 3}}})
    with pytest.raises(UnsupportedOption, match=r"backend 'hf' cannot hold an answer to: multipleOf at #/properties/n; leave it out"):
        backend.check_plan(plan(structured=structured))


def test_what_is_no_grammar_is_told_without_the_line_of_the_librarys_source(backend: Any) -> None:
    with pytest.raises(ConfigError, match=r"^structured\.grammar cannot be made a grammar: EBNF parser error at line 1, column 10: Rule"):
        backend.check_plan(plan(structured=StructuredOutput(grammar="root ::= other")))


def test_a_grammar_is_compiled_once(backend: Any) -> None:
    grammars = sampling.Grammars(backend.tokenizer, backend.vocab_size)
    assert grammars.compiled(REGEX) is grammars.compiled(StructuredOutput(regex=REGEX.regex))


def test_only_the_grammars_that_were_asked_for_last_are_kept(tiny_tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_MOST_KEPT", 2)
    grammars = sampling.Grammars(tiny_tokenizer, len(tiny_tokenizer))
    first, second, third = (StructuredOutput(choice=(text,)) for text in "abc")
    made = [grammars.compiled(each) for each in (first, second)]
    assert grammars.compiled(first) is made[0]
    grammars.compiled(third)
    assert grammars.compiled(first) is made[0]
    assert grammars.compiled(second) is not made[1]


def test_without_xgrammar_the_command_that_installs_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evalharness.backends.hf.sampling import Grammars

    monkeypatch.setitem(sys.modules, "xgrammar", None)
    checked: SamplingPlan = plan(structured=REGEX)
    with pytest.raises(MissingDependency, match=r"needs xgrammar.*; .*\[structured\]"):
        Grammars(None, 10).check(checked)
