"""evals/public on drawn rows of our own: what they ask and score is what lmms-eval's tasks ask and score, item by item."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import random
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from evalharness import GenerationResult, VlmGenerationRequest
from evalharness.api.errors import MissingData
from evalharness.api.images import image_size
from evalharness.data import read_rows
from evalharness.scores import mmmu, vqa
from tests.public.lmms_eval_scorers import lmms_eval, tasks_folder
from tests.pytest_plugin.project import Project

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "fixtures" / "public"
PIECES = (
    "A", "B ", "C. ", "(C)", "B12 cafe", "The answer is D.", "because of the DNA ",
    " a square and no corner", "55", "57.5", "62%", "0.62", "plum", "PLUM ",
    "$12.50", "12.5", "4471.", "Reed", "a reed", "open", "Open 9 to 5", "twelve", "the 12", "12", "centre", "Ｂ１２ CAFE", "x^{2}+1",
    "9.30", "\n", " so ", " is ", "= 20", "1/2", "0.50", "1,000", "dont", "'s", "-", "?", "'", ";", "",
    "12, 20, 52, 60", "[12, 20, 52, 60]",
    '```json\n[{"bbox_2d": [75, 166, 325, 500], "label": "cup"}]\n```', '{"bbox": [70, 30, 100, 60]}', "(625,550),(925,950)",
)  # fmt: skip


@cache
def eval_module(name: str) -> ModuleType:
    """Return a shipped eval as a module."""
    spec = importlib.util.spec_from_file_location(f"evals_public_{name}", ROOT / "evals" / "public" / f"test_{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases_of(name: str, folder: str) -> list[Any]:
    return list(eval_module(name).pytestmark.kwargs["cases"](ROWS / folder))


def asked(name: str, case: Any) -> VlmGenerationRequest:
    request: VlmGenerationRequest = eval_module(name).pytestmark.kwargs["request"](case)
    return request


def text_of(request: VlmGenerationRequest) -> str:
    """Return the texts of a request's only turn, an image as `<image>`."""
    (turn,) = request.messages
    return "".join(part["text"] if part["type"] == "text" else "<image>" for part in turn["content"])


def judged(name: str, case: Any, answer: str) -> dict[str, float]:
    """Return the scores that an eval's own test gives an answer."""
    scores: dict[str, float] = {}
    module = eval_module(name)
    width, height = image_size(case.images[0]) if case.images else (160, 120)
    generation = GenerationResult(answer, answer, "stop", images=({"width": width, "height": height},))
    given = {"case": case, "generation": generation, "score": scores.update, "details": lambda **_: None, "coordinates": None}
    (test,) = [value for key, value in vars(module).items() if key.startswith("test_")]
    names = test.__code__.co_varnames[: test.__code__.co_argcount]
    with contextlib.suppress(AssertionError):  # a miss
        test(**{key: given[key] for key in names})
    return {key: float(value) for key, value in scores.items()}


def answers(seed: int, num: int = 60) -> list[str]:
    """Return drawn answers: right, nearly right, and otherwise odd ones."""
    draw = random.Random(seed)
    return ["".join(draw.choices(PIECES, k=draw.randint(1, 4))) for _ in range(num)] + list(PIECES)


def after_question(task: str) -> str:
    """Return what a task of lmms-eval puts behind the question."""
    files = sorted((tasks_folder() / task).glob("*yaml"))
    found = next(match for file in files for match in re.finditer(r'default:\n.*\n\s*post_prompt: (".*")', file.read_text("utf-8")))
    return str(ast.literal_eval(found[1]))


@dataclass(frozen=True)
class Oracle:
    """A task of lmms-eval: what it asks of a row, and its scores by ours."""

    prompt: Callable[[Mapping[str, Any], str], str]
    scores: Callable[[Mapping[str, Any], str], dict[str, float]]


def _chartqa(row: Mapping[str, Any], answer: str) -> dict[str, float]:
    return {"relaxed": lmms_eval("tasks.chartqa.utils").chartqa_process_results(row, [answer])["relaxed_overall"]}


def _docvqa(row: Mapping[str, Any], answer: str) -> dict[str, float]:
    return {"anls": float(lmms_eval("api.metrics").anls(row["answers"], [answer])["anls"])}


def _textvqa(row: Mapping[str, Any], answer: str) -> dict[str, float]:
    scorer = lmms_eval("tasks.textvqa.utils").textvqa_process_results
    return {"vqa_accuracy": scorer({**row, "answers": list(row["answers"])}, [answer])["exact_match"]}  # it changes the list


def _ocrbench(row: Mapping[str, Any], answer: str) -> dict[str, float]:
    return {"contains": lmms_eval("tasks.ocrbench.utils").ocrbench_process_results(row, [answer])["ocrbench_accuracy"]["score"]}


ORACLES = {
    "chartqa": Oracle(lambda row, end: f"{row['question']}{end}", _chartqa),
    "docvqa": Oracle(lambda row, end: f"{row['question']}{end}", _docvqa),
    "textvqa": Oracle(lambda row, end: f"{row['question'].capitalize()}{end}", _textvqa),
    "ocrbench": Oracle(lambda row, end: f"{row['question'].strip()}{end}", _ocrbench),
}


@pytest.mark.parametrize("name", ORACLES)
def test_questions_are_asked_and_scored_as_by_lmms_eval(name: str) -> None:
    rows = list(read_rows("**/*.parquet", data_dir=ROWS / name))
    cases = cases_of(name, name)
    assert len(cases) == len(rows)
    for case, row in zip(cases, rows, strict=True):
        assert text_of(asked(name, case)) == f"<image>{ORACLES[name].prompt(row, after_question(name))}"
        for answer in answers(len(row["question"])):
            wanted = ORACLES[name].scores(row, answer)
            assert judged(name, case, answer) == {**judged(name, case, answer), **wanted}, (row["question"], answer)


@pytest.mark.parametrize("name", ORACLES)
def test_the_authors_files_give_the_cases_of_the_hubs(name: str) -> None:
    hub, original = cases_of(name, name), cases_of(name, f"{name}_original")

    def told(case: Any) -> tuple[Any, ...]:
        (image,) = case.images
        content = image.read_bytes() if isinstance(image, Path) else image.read()
        return text_of(asked(name, case)), case.reference, case.group, case.tags, content

    assert sorted(map(told, original), key=repr) == sorted(map(told, hub), key=repr)


def test_mmmu_is_asked_and_scored_as_by_lmms_eval_but_never_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = lmms_eval("tasks.mmmu.utils")
    drawn: list[str] = []
    chance = SimpleNamespace(choice=lambda letters: drawn.append("drawn") or letters[0])
    monkeypatch.setitem(lmms_eval("tasks._task_utils.mmmu_mcq_utils").parse_mmmu_multi_choice_response.__globals__, "random", chance)
    rows = list(read_rows("*/*.parquet", data_dir=ROWS / "mmmu"))
    num_drawn = 0
    for case, row in zip(cases_of("mmmu", "mmmu"), rows, strict=True):
        asks = "Answer with the option's letter from the given choices directly.", "Answer the question using a single word or phrase."
        prompt = theirs.construct_prompt(row, *asks)
        pieces = [piece.strip() for piece in theirs.replace_images_tokens(prompt).split("<image>")]
        assert text_of(asked("mmmu", case)) == "<image>".join(pieces)
        for answer in answers(len(row["question"])):
            drawn.clear()
            result = theirs.mmmu_process_results(row, [answer])["mmmu_acc"]
            right = theirs.evaluate_mmmu([result])[1]["acc"]
            scores = judged("mmmu", case, answer)
            assert scores["acc_official"] == (1 / len(case.row["options"]) if drawn else right), (row["question"], answer)
            if drawn:
                num_drawn += 1
                assert mmmu.official_letter(answer, case.row["options"]) is None
    assert num_drawn > 50


def test_images_of_mmmu_stand_where_the_text_names_them() -> None:
    _, case, *_ = cases_of("mmmu", "mmmu")
    (turn,) = asked("mmmu", case).messages
    images = [part["image"].read() for part in turn["content"] if part["type"] == "image"]
    first, second = case.row["image_1"].read(), case.row["image_2"].read()
    assert images == [first, second, first, second]  # the options name them again


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"), ("(b)", "B"), ("The answer is C, because of the DNA", "C"), ("It is on page 3 of the VITAMIN book", None), ("A", "A"),
        ("I see a map. A map of B", "B"), ("A circle is drawn", None), ("well, the thing there is a red circle", "B"), ("", None),
    ],
)  # fmt: skip
def test_letters_of_mmmu_are_words_and_never_guessed(answer: str, letter: str | None) -> None:
    assert mmmu.letter_of(answer, ["a square", "a red circle", "a line"]) == letter


def test_one_of_several_right_answers_to_an_open_question_counts() -> None:
    assert mmmu.open_is_right("The ratio is 0.5", "['1/2', '0.5']")
    assert not mmmu.open_is_right("The ratio is 0.5", "['1/2', '0.5']", official=True)


@pytest.mark.parametrize("folder", ["refcoco", "refcoco_qwen", "refcoco_mdetr"])
def test_expressions_of_refcoco_are_asked_and_scored_as_by_lmms_eval(folder: str) -> None:
    theirs = lmms_eval("tasks.refcoco_grounding.utils")
    cases = cases_of("refcoco", folder)
    assert [(case.row["text"], case.reference) for case in cases] == [
        ("red square", [12, 20, 52, 60]), ("left box", [12, 20, 52, 60]), ("the green one", [70, 30, 100, 60]),
        ("ball at the bottom", [100, 66, 148, 114]),
    ]  # fmt: skip
    for case in cases:
        left, top, right, bottom = case.reference
        row = {"answer": case.row["text"], "bbox": [left, top, right - left, bottom - top], "image": SimpleNamespace(size=(160, 120))}
        assert text_of(asked("refcoco", case)) == f"<image>{theirs.refcoco_grounding_doc_to_text(row)}"
        for answer in answers(int(left)):
            result = theirs.refcoco_grounding_process_result(row, [answer])["refcoco_grounding_ACC@0.5"]
            assert judged("refcoco", case, answer)["acc_50_best"] == theirs.refcoco_grounding_acc05([result]), answer


@pytest.mark.parametrize("photos", ["train2014", "../train2014", "."])
def test_photos_of_refcoco_are_found_by_the_end_of_their_path(photos: str, tmp_path: Path) -> None:
    rows = tmp_path / "boxes" / "refcoco_val.jsonl"
    rows.parent.mkdir()
    shutil.copy(ROWS / "refcoco_qwen" / rows.name, rows)
    shutil.copytree(ROWS / "refcoco_qwen" / "data" / "coco" / "train2014", rows.parent / photos, dirs_exist_ok=True)
    for data in (rows, rows.parent):
        assert all(image.is_file() for case in cases_of("refcoco", str(data)) for image in case.images)


def test_contractions_and_numbers_are_those_of_the_server(request: pytest.FixtureRequest) -> None:
    request.node.user_properties.append(("starts", "lmms-eval"))  # .ci/require_ran.py: CI has it, and skips nothing
    theirs = lmms_eval("tasks._task_utils.vqa_eval_metric").EvalAIAnswerProcessor
    known = {short: full for short, full in theirs.CONTRACTIONS.items() if short == short.lower() and short != full}
    for word in (*known, *theirs.NUMBER_MAP, *known.values()):
        assert vqa.vqa_normalised(word) == theirs()(word)


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("textvqa", {"image_id": "a", "answers": [""] * 10}, "TextVQA's test split"),
        ("docvqa", {"answers": None}, "DocVQA's test split"),
        ("mmmu", {"answer": "?"}, "MMMU's test split"),
    ],
)
def test_a_split_without_answers_is_no_data(name: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(MissingData, match=f"test.parquet has no answers, as {message}; take the validation split"):
        eval_module(name).question_of({"__file__": "test.parquet", **row})


def test_charts_of_another_publisher_are_read_alike() -> None:
    row = {"image": b"chart", "query": "How many?", "label": ["5"], "human_or_machine": 1, "__file__": "data/test-0.parquet"}
    wanted = {"type": "augmented_test", "question": "How many?", "answer": "5", "image": b"chart"}
    assert eval_module("chartqa").question_of(row) == wanted


def test_all_go_through_a_real_model_from_one_folder(tmp_path: Path, tiny_vlm_checkpoint: Path) -> None:
    project = Project(tmp_path / "project")
    names = ("chartqa", "coco", "docvqa", "mmmu", "ocrbench", "refcoco", "textvqa")
    for name in names:
        shutil.copy(ROOT / "evals" / "public" / f"test_{name}.py", project.root)
    run = project.run(f"--data={ROWS}", f"--model={tiny_vlm_checkpoint}", "--max-new-tokens=4", backend="hf")
    assert run.exit_code == 0, run.output
    assert {row["eval"] for row in run.rows} == set(names)
    assert run.counts.keys() <= {"pass", "miss"}, run.output
    seen = [(image["width"], image["height"]) for row in run.rows for image in row["generation"]["images"]]
    assert len(seen) == len(run.rows) + 3  # one case of MMMU shows four
    assert set(seen) == {(160, 120)}
