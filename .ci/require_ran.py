"""Fail unless the tests that start something heavy ran: of each named group at least one did, and none was skipped.

    python .ci/require_ran.py JUNIT_XML GROUP…

A test belongs to a group by the property "starts" in the JUnit file. `vllm`: those with that marker; tests/conftest.py writes
the property, and refuses a test that uses a vLLM engine without the marker. `browser`: those of tests/browser. `ray`: those
of a Ray cluster. `lmms-eval`: one that reads its scorers. `smollm2`: those that load this model. A new group
needs that property (`item.user_properties.append(("starts", NAME))` in a conftest.py) and its name in .ci/run. A skip of any
test whose reason names a group fails as well.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence


def main(path: str, groups: Sequence[str]) -> str | None:
    """Return what is wrong, None if nothing is."""
    cases = list(ElementTree.parse(path).iter("testcase"))
    problems = [problem for group in groups if (problem := not_ran(cases, group)) is not None]
    return "\n".join(problems) or None


def not_ran(cases: Sequence[ElementTree.Element], group: str) -> str | None:
    """Return what is wrong with a group, None if nothing is."""
    ran = 0
    skipped = []
    for case in cases:
        belongs = any(entry.get("name") == "starts" and entry.get("value") == group for entry in case.iter("property"))
        skip = case.find("skipped")
        if skip is None:
            ran += belongs
        elif belongs or group in str(skip.get("message")).lower():
            skipped.append(f"  {case.get('classname')}::{case.get('name')}: {skip.get('message')}")
    if skipped:
        return "\n".join([f"{len(skipped)} tests of {group} were skipped:", *skipped])
    if not ran:
        return f"no test of {group} ran"
    print(f"{ran} tests of {group} ran, none was skipped")
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
