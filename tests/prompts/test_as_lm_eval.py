"""Prompts, shots and token ids are those of lm-evaluation-harness, by its own code. Run: pytest tests/prompts/test_as_lm_eval.py"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalharness.api.requests import CompletionRequest
from evalharness.api.scoring import ScoringRequest
from evalharness.data import cases_from
from evalharness.engine.text_ids import joined_ids
from evalharness.prompts import few_shot, template

pytestmark = [
    pytest.mark.engine,  # lm-eval imports torch
    pytest.mark.filterwarnings("ignore"),
]


def rows(name: str, count: int) -> list[dict[str, Any]]:
    return [
        {
            "question": f"{name}: how many legs have {n} crabs?\n",
            "answer": f"{n} crabs have {10 * n}.",
            "options": [f"{10 * n}", f'it\'s {n} "legs"', "none"],
            "gold": n % 3,
            "start": " So" if n % 2 else "So",
        }
        for n in range(count)
    ]


SPLITS = {"test": rows("test", 12), "train": rows("train", 9)}
OURS = {
    "doc_to_text": "text",
    "doc_to_target": "target",
    "doc_to_choice": "choices",
    "description": "description",
    "fewshot_delimiter": "delimiter",
    "target_delimiter": "target_delimiter",
    "gen_prefix": "prefill",
}
GENERATED = {"doc_to_text": "Q: {{question|trim}}\nA:", "doc_to_target": "{{answer}}", "description": "Count {{gold}}.\n\n"}
CHOSEN = {
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}A. {{options[0]}}\nAnswer:",
    "doc_to_target": "gold",
    "doc_to_choice": "{{[options[0], options[1], 'no']}}",
}
FIRST = {"fewshot_config": {"sampler": "first_n"}}
OWN_SPLIT = {"fewshot_split": "test"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    for name, split in SPLITS.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in split))
    return folder


def rendered(messages: Any, add_generation_prompt: bool = True) -> str:
    """Stands for a chat template: what it is given, to the letter."""
    return repr([[(message["role"], message["content"]) for message in messages], add_generation_prompt])


def their_prompts(config: dict[str, Any], k: int, chat: bool, turns: bool) -> list[str]:
    import datasets
    from lm_eval.api.task import ConfigurableTask

    def splits(**_: Any) -> Any:
        return datasets.DatasetDict({name: datasets.Dataset.from_list(split) for name, split in SPLITS.items()})

    kind = {"output_type": "generate_until", "test_split": "test", "fewshot_split": "train"}
    task = ConfigurableTask(config={"task": "crabs", "custom_dataset": splits, **kind, **config})
    task.set_fewshot_seed(1234)
    more = {"apply_chat_template": chat, "fewshot_as_multiturn": turns, "chat_template": rendered if chat else None}
    return [task.fewshot_context(doc, k, gen_prefix=task.doc_to_prefix(doc), **more) for doc in task.eval_docs]


def our_prompts(config: dict[str, Any], k: int, chat: bool, turns: bool, folder: Path) -> Iterator[str]:
    split, is_first = config.get("fewshot_split", "train"), "fewshot_config" in config
    sampler: Any = {"sampler": "first_n"} if is_first else {"sampler": "lm_eval", "same_split": split == "test"}
    fields = {OURS[name]: value for name, value in config.items() if name in OURS}
    made = template(**fields, shots=few_shot(f"{split}.jsonl", k, **sampler), chat=chat, turns=turns)
    for case in cases_from("test.jsonl")(folder):
        request = made(case)
        if isinstance(request, CompletionRequest):
            yield request.prompt
        else:
            start = [{"role": "assistant", "content": request.prefill}] if request.prefill else []
            yield rendered([*request.messages, *start], not start)


@pytest.mark.parametrize("form", ["text", "turns", "one turn"])
@pytest.mark.parametrize(
    ("config", "k"),
    [
        ({**GENERATED}, 0),
        ({**GENERATED}, 5),
        ({**GENERATED, **OWN_SPLIT}, 8),
        ({**GENERATED, **FIRST, "gen_prefix": "So"}, 3),
        ({**GENERATED, **FIRST, **OWN_SPLIT, "gen_prefix": "start"}, 3),
        ({**CHOSEN, "fewshot_delimiter": "\n###\n", "target_delimiter": ""}, 4),
        ({**CHOSEN, **OWN_SPLIT, "gen_prefix": "{{start}} "}, 1),
    ],
    ids=["none", "5 of train", "8 of test", "first 3", "first 3 of test", "choices", "choices of test"],
)
def test_prompts_are_equal(config: dict[str, Any], k: int, form: str, folder: Path) -> None:
    ways = (form != "text", form == "turns")
    assert list(our_prompts(config, k, *ways, folder)) == their_prompts(config, k, *ways)


def metaspace_tokenizer() -> Any:
    """A tokenizer like Llama 2's: BOS before each text, and each text begins with a space."""
    from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Replace("\u2581", " ")
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator([row["question"] + row["answer"] for row in SPLITS["test"]] * 3, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


PAIRS = [
    ("Q: crabs?\nA:", " 10 legs"),
    ("Q: crabs?\nA: ", "10 legs"),
    ("Q: crabs?\nA:\n", " 10"),
    ("crabs", "have"),
    ("", " crabs have"),
    ("", "crabs"),
    ("how many crabs ", " many"),
]


def their_ids(tokenizer: Any) -> list[tuple[list[int], list[int]]]:
    """Return the ids that lm-eval's base class makes of pairs; its models add how a tokenizer is called."""
    from lm_eval.api.model import TemplateLM

    class Pairs(TemplateLM):
        prefix_token_id = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        eot_token_id = tokenizer.eos_token_id

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
            return list(tokenizer.encode(string, **({} if add_special_tokens is None else {"add_special_tokens": add_special_tokens})))

        def _loglikelihood_tokens(self, requests: Any, **_: Any) -> Any:
            return [(head, tail) for _, head, tail in requests]

        loglikelihood_rolling = generate_until = None

    return Pairs().loglikelihood([SimpleNamespace(args=pair) for pair in PAIRS], disable_tqdm=True)


@pytest.mark.parametrize("kind", ["bytes", "metaspace with BOS"])
def test_token_ids_of_context_and_continuation_are_equal(kind: str) -> None:
    from evalharness.backends.torchvision_cpu import register_missing_operators

    register_missing_operators()
    from transformers import AutoTokenizer

    fixture = Path(__file__).parents[2] / "fixtures/checkpoints/final"
    tokenizer = AutoTokenizer.from_pretrained(fixture) if kind == "bytes" else metaspace_tokenizer()
    requests = [ScoringRequest(CompletionRequest(context), continuation, join="text") for context, continuation in PAIRS]
    ours = [joined_ids(request, context, tokenizer) for request, (context, _) in zip(requests, PAIRS, strict=True)]
    assert [(list(joined.prompt), list(joined.response)) for joined in ours] == their_ids(tokenizer)
