"""Prompts made of rows: fields, parts and their borders, worked examples. Run: pytest tests/prompts/test_templates.py

Against lm-evaluation-harness itself: tests/prompts/test_as_lm_eval.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from evalharness.answers.bounded import BoundedFunction
from evalharness.api.cases import Case
from evalharness.api.errors import ConfigError, ContractTypeError, ContractValueError, RequestError
from evalharness.api.requests import CompletionRequest, TextGenerationRequest, VlmGenerationRequest
from evalharness.api.scoring import ScoringRequest
from evalharness.data import cases_from
from evalharness.prompts import few_shot, template
from evalharness.prompts.rendering import answer_of, choices_of, text_of

ROWS = [{"q": f"{n}+{n}?", "a": str(2 * n), "kind": "odd" if n % 2 else "even", "deck": n // 10} for n in range(40)]


@dataclass(frozen=True, kw_only=True)
class Made(Case):
    """A case whose row is in memory."""

    row: Mapping[str, Any]
    images: tuple[str, ...] = ()


def case(row: Mapping[str, Any] = ROWS[0], **more: Any) -> Made:
    return Made(**{"id": str(row.get("q")), "row": row, **more})


def text_for(made: Any) -> str:
    assert isinstance(made, CompletionRequest)
    return made.prompt


# Fields


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("Q: {{q}}\nA:\n", "Q: 1?\nA:\n"),  # the last line break stays
        ("q", "1?"),
        ("a text", "a text"),
        ("{{row['odd name']}}", "odd"),
        ("{{ n + 1 }}{% for o in options %} {{loop.index}}.{{o}}{% endfor %}", "2 1.x 2.y"),
        ("{{q|regex_replace('[?]', '!')}}", "1!"),
        (lambda row: row["q"] * 2, "1?1?"),
        ("{{q}}{{hint or ''}}{% if hint %}{{hint}}{% endif %}", "1?"),
    ],
)
def test_a_field_is_jinja_a_column_or_a_function(field: Any, text: str) -> None:
    assert text_of(field, {"q": "1?", "n": 1, "options": ["x", "y"], "odd name": "odd", "hint": None}, "text") == text


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ("{{quesion}}", r"text: 'quesion' is undefined; did you mean 'question'\? the row has: question, n, hint"),
        ("{{question.x.y}}", "text: 'str object' has no attribute 'x'"),
        ("{{1 / n}}", "text makes no text of this row: ZeroDivisionError"),
        ("{{('a' * 999)|regex_replace('', 'b' * 99999)}}", "the pattern '' is replaced by more than 16777216 characters"),
        ("{{('a' * 40)|regex_replace('(a+)+b', '')}}", "regex_replace: the pattern .* was given up on a text of 40 characters"),
        ("{{question|regex_replace('(', '')}}", "text makes no text of this row: .*'.' is not a regular expression: missing"),
        ("{% macro f() %}{{f()}}{% endmacro %}{{f()}}", "text makes no text of this row: RecursionError"),
        ("{{'x' * 10 ** 12}}", "text makes no text of this row: TemplateLimit"),
        ("{{question.__class__.__mro__}}", "text makes no text of this row: SecurityError"),
        ("n", r"text must be a text, got 0 \(int\)"),
        ("Q: {{hint}}", r"text writes a value that is null; write {{column or ''}} where that is meant; null are: hint"),
        ("quesion", r"text is .quesion., no column of the row; did you mean .question.\? it has: question, n, hint"),
    ],
)
def test_a_row_without_what_a_field_needs_is_invalid_and_says_so(monkeypatch: pytest.MonkeyPatch, field: str, problem: str) -> None:
    bounded = BoundedFunction("evalharness.answers.patterns:run_pattern", limit_s=0.2)
    monkeypatch.setattr("evalharness.answers.patterns._elsewhere", bounded)
    with pytest.raises(RequestError, match=problem):
        text_of(field, {"question": "", "n": 0, "hint": None}, "text")


@pytest.mark.parametrize(
    ("field", "choices", "answer"),
    [
        ("{{n}}", ["a", "b"], 1),
        ("{{n}}", None, "1"),
        ("text", ["a", "b"], "1"),  # a column stays what it is
        ("n", ["a", "b"], 1),
        (1, ["a", "b"], 1),
        ("{{['x', 'y']}}", None, ["x", "y"]),
        ("[not a list", None, "[not a list"),
        ("{{broken}}", None, "[1"),
        ("{{'²'}}", ["a", "b"], "²"),  # a digit to Python, and no number
        ("{{'9' * 5000}}", ["a", "b"], "9" * 5000),
    ],
)
def test_a_target_is_a_text_a_place_or_several_texts(field: Any, choices: Any, answer: Any) -> None:
    assert answer_of(field, {"n": 1, "text": "1", "broken": "[1"}, choices, "target") == answer


def test_a_place_beyond_the_choices_and_choices_that_are_none_are_refused() -> None:
    with pytest.raises(RequestError, match=r"target must be a text, .* or a list of texts, got \[\]"):
        answer_of("texts", {"texts": []}, None, "target")
    with pytest.raises(RequestError, match="target is 2, and there are the choices 0 to 1"):
        answer_of("n", {"n": 2}, ["a", "b"], "target")
    assert choices_of("{{[a, b]}}", {"a": "it's", "b": '"x"'}, "choices") == ["it's", '"x"']
    assert choices_of(["A", "B"], {}, "choices") == ["A", "B"]
    for field in ("a", "{{[1]}}", "{{[]}}", "__import__('os')"):
        with pytest.raises(RequestError, match="choices must make a list of texts"):
            choices_of(field, {"a": "x"}, "choices")


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from("abcd"), st.text(max_size=20) | st.lists(st.text(max_size=5), max_size=3)))
def test_no_row_breaks_a_template(row: dict[str, Any]) -> None:
    for make in (text_of, lambda field, row, what: answer_of(field, row, None, what), choices_of):
        with suppress(RequestError):
            make("{{a}}{{b[0]}}", row, "text")


# Parts


def test_a_bare_text_is_description_shots_question_and_the_answers_start() -> None:
    made = template(
        "Q: {{q}}\nA:", target="a", description="Add {{a}}.\n", shots=few_shot(ROWS[1:3], 2, sampler="first_n"), prefill="It is"
    )
    request = made(case())
    assert text_for(request) == "Add 0.\nQ: 1+1?\nA: It is 2\n\nQ: 2+2?\nA: It is 4\n\nQ: 0+0?\nA: It is"
    assert request.shots == ("#0", "#1")
    assert made.target_of(case()) == "0"


def test_a_chat_has_turns_or_one_turn_and_the_answers_start_apart() -> None:
    def made(**more: Any) -> TextGenerationRequest:
        shots = few_shot(ROWS[1:2], 1, sampler="first_n")
        request = template("Q: {{q}}", target="a", description="Add.", shots=shots, chat=True, **more)(case())
        assert isinstance(request, TextGenerationRequest)
        return request

    turns = made(prefill="It is")
    assert [(m["role"], m["content"]) for m in turns.messages] == [
        ("system", "Add."), ("user", "Q: 1+1?"), ("assistant", "It is 2"), ("user", "Q: 0+0?")
    ]  # fmt: skip
    assert turns.prefill == "It is"
    assert [m["content"] for m in made(turns=False).messages] == ["Add.", "Q: 1+1? 2\n\nQ: 0+0?"]


def test_images_of_shots_and_case_stand_before_their_questions_in_order() -> None:
    pool = [case(ROWS[1], images=("1.png",))]
    shots = few_shot(lambda data_dir: pool, 1)
    for turns, sizes in ((True, [2, 1, 3]), (False, [4])):
        request = template("{{q}}", target="a", shots=shots, chat=True, turns=turns)(case(images=("0.png", "00.png")))
        assert isinstance(request, VlmGenerationRequest)
        assert request.images == ("1.png", "0.png", "00.png")
        assert [len(m["content"]) if isinstance(m["content"], list) else 1 for m in request.messages] == sizes
    with pytest.raises(RequestError, match=r"there are images, which a bare text cannot show; give template\(…, chat=True\)"):
        template("{{q}}")(case(images=("0.png",)))


def test_choices_are_scored_behind_the_prompt_as_one_text() -> None:
    row = {"q": "Sky?", "options": ["blue", "red"], "gold": 1}
    made = template("{{q}}", target="gold", choices="options")
    assert made.choice_requests(case(row)) == [
        ScoringRequest(CompletionRequest("Sky?"), f" {word}", join="text") for word in ("blue", "red")
    ]
    assert made.choice_requests(case(row), without_prompt=True)[0].prompt == CompletionRequest("")
    steps = made.ask_choices(case(row))
    assert next(steps)[0] == made.choice_requests(case(row))
    with pytest.raises(StopIteration) as end:
        steps.send([])
    assert end.value.value == made.choice_requests(case(row))[0]
    assert made.target_of(case(row)) == 1
    for prefill, response in (("", "blue"), ("It is", " blue"), ("It is ", "blue")):
        chat = template("{{q}}", choices="options", chat=True, prefill=prefill)
        assert chat.choice_requests(case(row))[0].response == response


def test_a_target_is_scored_behind_the_prompt_as_one_text() -> None:
    row = {"text": "The sky is blue", "all": ["a", "b"]}
    made = template("{{text.rpartition(' ')[0]}}", target="{{text.rpartition(' ')[2]}}")
    assert made.ask_target(case(row)) == ScoringRequest(CompletionRequest("The sky is"), " blue", join="text", greedy=True)
    numbered = case({"text": "1 + 1 =", "sum": 2, "place": 0})
    assert template("{{text}}", target="sum").ask_target(numbered).response == " 2"
    assert template("{{text}}", target="place", choices="{{['two', 'one']}}").ask_target(numbered).response == " two"
    with pytest.raises(ConfigError, match=r"must be one text, got \['a', 'b'\]; take one of them"):
        template("{{text}}", target="all").ask_target(case(row))


def test_a_case_that_is_no_row_gives_its_fields() -> None:
    assert text_for(template("{{id}}: {{reference.x}}")(Case(id="c", reference={"x": 1}))) == "c: 1"


# Worked examples


def shots_of(index: int = 0, rows: Any = ROWS, **more: Any) -> tuple[str, ...]:
    return tuple(template("q", target="a", shots=few_shot(rows, **{"k": 5, **more}))(case(ROWS[index])).shots)


def test_a_draw_depends_on_seed_and_case_alone() -> None:
    assert shots_of(3) == shots_of(3)
    assert len({shots_of(index) for index in range(20)}) == 20
    assert shots_of(3, seed=1) != shots_of(3)


@pytest.mark.parametrize("more", [{"k": 39}, {"k": 39, "sampler": "first_n"}, {"k": 39, "balance": "kind"}, {"k": 9, "within": "deck"}])
def test_the_case_itself_is_never_among_its_shots(more: dict[str, Any]) -> None:
    for index in range(12):
        shots = shots_of(index, **more)
        assert f"#{index}" not in shots
        assert len(set(shots)) == more["k"]
        if "within" in more:
            assert {ROWS[int(shot[1:])]["deck"] for shot in shots} == {ROWS[index]["deck"]}
    with pytest.raises(
        ConfigError, match=rf"few_shot has k={more['k'] + 1}, and its pool {more['k']} rows.* beside the case itself; lower k"
    ):
        shots_of(0, **{**more, "k": more["k"] + 1})


def test_the_case_itself_is_known_in_its_file_whatever_map_makes_of_it(tmp_path: Path) -> None:
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:6]))
    cases = list(cases_from("all.jsonl", id="q", map=lambda row: {**row, "a": row["a"] + "!"})(tmp_path))
    made = template("q", target="a", shots=few_shot("all.jsonl", 5))
    for one in cases:
        assert f"{one.row['q']}\n" not in text_for(made(one)).rpartition("\n\n")[0]
    with pytest.raises(ConfigError, match="has k=6, and its pool 5 rows"):
        template("q", target="a", shots=few_shot("all.jsonl", 6))(cases[0])
    alone = next(cases_from("other.jsonl", id="q")(tmp_path / "all.jsonl"))  # --data names the file itself
    assert made(alone).shots == made(cases[0]).shots


def test_a_worked_example_without_what_its_template_needs_is_named() -> None:
    with pytest.raises(RequestError, match=r"^worked example r7: target of a shot writes a value that is null"):
        template("q", target="{{a}}", shots=few_shot([{"id": "r7", "q": "x", "a": None}], 1))(case())


def test_shots_for_one_saved_split_are_of_the_split_that_they_name(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for split, word in (("train", "shown"), ("test", "asked")):
        folder = tmp_path / split
        folder.mkdir()
        (folder / "rows.jsonl").write_text("".join(json.dumps({"q": f"{word} {place}", "a": "1"}) + "\n" for place in range(3)))
        (folder / "dataset_info.json").write_text("{}")
        (folder / "state.json").write_text('{"_data_files": [{"filename": "rows.jsonl"}]}')
    case = next(cases_from("test.jsonl")(tmp_path / "test"))
    text = text_for(template("q", target="a", shots=few_shot("main/train-*.parquet", 2))(case))
    assert (text.count("shown"), text.count("asked")) == (2, 1)


def test_classes_come_equally_often() -> None:
    for index in range(8):
        kinds = Counter(ROWS[int(shot[1:])]["kind"] for shot in shots_of(index, k=6, balance="kind"))
        assert kinds == {"odd": 3, "even": 3}
    rare = [*ROWS[:1], *(row for row in ROWS if row["kind"] == "odd")]
    assert Counter(rare[int(shot[1:])]["kind"] for shot in shots_of(9, rare, k=5, balance="kind"))["even"] == 1  # all that there are


@pytest.mark.parametrize(("number", "text"), [(4, "4"), (4.5, "4.5"), (-1, "-1")])
def test_a_number_in_a_column_is_a_shots_answer_where_there_are_no_choices(number: float, text: str) -> None:
    assert text_for(template("q", target="a", shots=few_shot([{"q": "x", "a": number}], 1))(case())).startswith(f"x {text}\n\n")


def test_shots_may_be_written_otherwise_than_the_question() -> None:
    shots = few_shot(ROWS[1:2], 1, text="Solve {{q}}", target="{{a}}!", delimiter="\n--\n", target_delimiter=" => ")
    assert text_for(template("{{q}}", target="a", shots=shots)(case())) == "Solve 1+1? => 2!\n--\n0+0?"


@pytest.mark.parametrize(
    ("make", "error", "problem"),
    [
        (lambda: template("{{q"), ConfigError, r"template\.text is not Jinja: TemplateSyntaxError"),
        (lambda: template(3), ContractTypeError, r"template\.text must be Jinja, a column or a function of the row, got 3"),  # type: ignore[arg-type]
        (lambda: template("q", chat=1), ContractTypeError, r"template\.chat must be"),  # type: ignore[arg-type]
        (lambda: template("q", shots=ROWS), ContractTypeError, r"template\.shots must be a FewShot"),  # type: ignore[arg-type]
        (lambda: template(doc_to_text="q"), ContractTypeError, r"template has no argument 'doc_to_text'; did you mean text\?"),  # type: ignore[call-arg]
        (lambda: cases_from("a", refrence="x"), ContractTypeError, "cases_from has no argument 'refrence'; did you mean 'reference'"),  # type: ignore[call-arg]
        (lambda: cases_from("a.csv", split="test"), ContractTypeError, r"did you mean the files of the split, as in cases_from\("),  # type: ignore[call-arg]
        (lambda: few_shot(ROWS, 1, sede=1), ContractTypeError, r"few_shot has no argument 'sede'; did you mean 'seed'\?"),  # type: ignore[call-arg]
        (lambda: few_shot(ROWS, -1), ContractValueError, r"few_shot\.k must be at least 0"),
        (lambda: few_shot(ROWS, 1, sampler="first"), ContractValueError, r"few_shot\.sampler is 'first'; did you mean 'first_n'\?"),  # type: ignore[arg-type]
        (lambda: few_shot(ROWS, 1, sampler="first_n", balance="kind"), ContractValueError, "balance draws, and sampler='first_n' does not"),
        (lambda: few_shot(ROWS, 1, sampler="lm_eval", within="deck"), ContractValueError, "has a task for each; make an eval for each"),
        (lambda: few_shot(ROWS, 1, same_split=True), ContractValueError, "same_split is for sampler='lm_eval'"),
        (lambda: shots_of(sampler="lm_eval"), ConfigError, "draws by a case's place in its file, and this case has none"),
        (lambda: shots_of(within="dek"), ConfigError, r"the case has no column 'dek'; did you mean 'deck'\?"),
        (lambda: shots_of(balance="knd"), ConfigError, r"few_shot's pool has no column 'knd'; did you mean 'kind'\?"),
        (lambda: shots_of(rows=[1, 2]), ContractTypeError, "pool must hold rows"),
        (lambda: shots_of(rows=5), ContractTypeError, "pool must be a file, rows or a function like an eval's cases, got 5"),
        (lambda: few_shot(ROWS, 1, delimiter=5), ContractTypeError, r"few_shot\.delimiter must be a str, got 5"),  # type: ignore[arg-type]
        (lambda: template("q", shots=few_shot(ROWS, 1))(case()), ConfigError, r"shots need their answers; give template\(…, target=…\)"),
        (lambda: template("q").choices_of(case()), ConfigError, "this template has no choices"),
        (lambda: template("q").target_of(case()), ConfigError, "this template has no target"),
    ],
)
def test_what_makes_no_prompt_is_refused(make: Any, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        make()
