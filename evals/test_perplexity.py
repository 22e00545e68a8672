"""Perplexity of references: how likely are the right answers, token by token? Nothing is generated.

One row per line in `<data folder>/perplexity.jsonl`:

    {"id": "photo-7", "prompt": "What is on this photo?", "images": ["7.jpg"], "response": "Two cables and a screw."}

    pytest evals/test_perplexity.py --model CHECKPOINT --data FOLDER

Rows are described in `evalharness/tasks/perplexity.py`; base models take a bare `text` in place of the chat. `fixtures/given_text`
has reference summaries of photos and reference verdicts of work orders. For all photos of a Stage-A folder write
`cases=perplexity.stage_a_cases`.

Gates: `perplexity`, over all tokens; 1 is certainty, and a good value depends on the task, so set your own. `bits_per_byte`
compares checkpoints with different tokenizers; `worst_token` is the most surprising token, in nats; `impossible` should be 0.
"""

from __future__ import annotations

import pytest

from evalharness.tasks import perplexity

pytestmark = pytest.mark.eval(
    cases=perplexity.load_cases,
    request=perplexity.request,
    aggregate=perplexity.aggregate,
    directions={
        **dict.fromkeys(("perplexity", "bits_per_byte", "nats_per_token", "worst_token", "impossible", "num_nats"), "lower"),
        **dict.fromkeys(("num_tokens", "num_bytes"), "none"),
    },
    optional=True,
)


@pytest.mark.gate("perplexity <= 1.2", "impossible <= 0", "invalid_rate <= 0.02")
def test_reference(generation, case, score):
    score(**perplexity.judge(generation).scores)
