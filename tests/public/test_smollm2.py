"""With a real model: the prompts of lm-eval's own model class token for token, and its numbers and texts for each item."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.public.smollm2 import make_checkpoint
from tests.public.test_text_benchmarks import BENCHMARKS, ROOT, ROWS
from tests.pytest_plugin.project import Project

if TYPE_CHECKING:
    from tests.public.lm_eval_on_torch import Compared

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("torch_in_one_thread")]
MAX_NEW_TOKENS = 4


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = make_checkpoint(tmp_path_factory.mktemp("checkpoints") / "smollm2")
    yield folder
    shutil.rmtree(folder)  # 0.5 GB


@pytest.fixture(scope="module")
def lm_eval_model(smollm2: Path) -> Compared:
    from tests.public.lm_eval_on_torch import Compared

    return Compared(smollm2, MAX_NEW_TOKENS)


def test_every_prompt_of_the_text_benchmarks_has_the_tokens_that_lm_eval_gives_it(
    lm_eval_model: Compared, request: pytest.FixtureRequest
) -> None:
    request.node.user_properties.append(("starts", "smollm2"))  # .ci/require_ran.py: CI has it, and skips nothing
    from tests.public.lm_eval_oracle import asked_by_lm_eval, official_task

    tasks = [official_task(task.name, task.files, **task.changes) for tasks in BENCHMARKS.values() for task in tasks]
    pairs = [lm_eval_model.ids_of(asked) for task in tasks for asked in asked_by_lm_eval(task)]
    assert len(pairs) == 96
    assert [ours for _, ours in pairs] == [theirs for theirs, _ in pairs]


@pytest.mark.parametrize(
    ("folders", "as_chat"),
    [(("arc/ARC-Challenge", "hellaswag/data", "ifeval"), False), (("arc/ARC-Challenge", "ifeval"), True)],
    ids=["bare", "chat"],
)
def test_a_real_model_is_asked_and_judged_as_by_lm_eval(
    folders: tuple[str, ...], as_chat: bool, smollm2: Path, lm_eval_model: Compared, tmp_path: Path
) -> None:
    from tests.public.lm_eval_oracle import judged_by_lm_eval, official_task

    project = Project(tmp_path)
    for folder in folders:
        shutil.copy(ROOT / "evals" / "public" / f"test_{folder.partition('/')[0]}.py", project.root)
    options = ["--dtype=float32", f"--max-new-tokens={MAX_NEW_TOKENS}", "--limit-first=1", *["--as-chat"] * as_chat]
    run = project.run(f"--data={ROWS}", f"--model={smollm2}", *options, backend="hf")
    lm_eval_model.compare_with(run.rows)
    for folder in folders:
        (task,) = BENCHMARKS[folder]
        items, _ = judged_by_lm_eval(official_task(task.name, task.files, **task.changes), lm_eval_model, as_chat=as_chat, limit=1)
        rows = [row for row in run.rows if row["eval"] == folder.partition("/")[0]]
        for metric, score in task.scores.items():
            assert [row["scores"][score] for row in rows] == [pytest.approx(float(item[metric]), abs=1e-12) for item in items], metric
    assert lm_eval_model.num_prompts >= len(run.rows) == len(folders)
    assert lm_eval_model.unequal_prompts == []
    assert lm_eval_model.unequal_texts == []
    assert lm_eval_model.largest_gap < 1e-3
