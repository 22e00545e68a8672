from __future__ import annotations

import pytest

from evalharness.outputs import folder_name


@pytest.mark.parametrize(
    ("engine_id", "wanted"),
    [
        ("final", "final"),
        ("hf:final", "hf-final"),
        ("hf:a/b", "hf-a-b-[0-9a-f]{6}"),
        ("../..", "engine-[0-9a-f]{6}"),
        ("末\ud800", "engine-[0-9a-f]{6}"),
    ],
)
def test_a_folder_has_the_engines_name_as_far_as_every_file_system_takes_it(engine_id: str, wanted: str) -> None:
    import re

    assert re.fullmatch(wanted, folder_name(engine_id))


def test_different_engines_have_different_folders() -> None:
    assert len({folder_name(engine_id) for engine_id in ("hf:a-b", "hf:a:b", "hf:a/b", "x" * 101, "x" * 102)}) == 5
