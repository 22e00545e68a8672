from __future__ import annotations

import pytest

from evalharness.api.cases import folder_name, one_test_per_case


@pytest.mark.parametrize(
    ("engine_id", "wanted"),
    [
        ("final", "final"),
        ("hf:final", "hf-final"),
        ("hf:a/b", "hf-a-b-[0-9a-f]{6}"),
        ("../..", "engine-[0-9a-f]{6}"),
        ("末\ud800", "engine-[0-9a-f]{6}"),
    ],
    ids=["bare", "backend", "path", "parents", "nothing left"],  # with the names, ids would read like those of an eval's tests
)
def test_a_folder_has_the_engines_name_as_far_as_every_file_system_takes_it(engine_id: str, wanted: str) -> None:
    import re

    assert re.fullmatch(wanted, folder_name(engine_id))


def test_different_engines_have_different_folders() -> None:
    assert len({folder_name(engine_id) for engine_id in ("hf:a-b", "hf:a:b", "hf:a/b", "x" * 101, "x" * 102)}) == 5


def test_of_several_tests_of_a_case_the_first_that_judged_it_is_taken() -> None:
    form, verdict = {"test": "test_form"}, {"test": "test_verdict", "details": {"votes": {}}}
    rows: list[dict[str, object]] = [
        {"case_id": "a", **form},
        {"case_id": "b", **form},
        {"case_id": "a", **verdict},
        {"case_id": "a", **verdict},
    ]
    assert one_test_per_case(rows, "votes") == [rows[1], rows[2], rows[3]]
    assert one_test_per_case([{"case_id": "a"}, {"case_id": "a"}], "votes") == [{"case_id": "a"}, {"case_id": "a"}]
