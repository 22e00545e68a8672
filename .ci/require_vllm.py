"""Fail unless the tests that start vLLM ran: at least one did, and none was skipped.

    python .ci/require_vllm.py JUNIT_XML

A test counts as one of them by "vllm" in its module, name or parameters. Were they all renamed or deselected, the count
would be 0, which fails too; a skip of any test whose reason speaks of vLLM fails likewise.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree


def main(path: str) -> str | None:
    """Return what is wrong, None if nothing is."""
    ran = 0
    skipped = []
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        skip = case.find("skipped")
        about_vllm = "vllm" in name.lower()
        if skip is None:
            ran += about_vllm
        elif about_vllm or "vllm" in f"{skip.get('message')} {skip.text}".lower():
            skipped.append(f"  {name}: {skip.get('message')}")
    if skipped:
        return "\n".join([f"{len(skipped)} vLLM tests were skipped:", *skipped])
    if not ran:
        return "no vLLM test ran"
    print(f"{ran} vLLM tests ran, none was skipped")
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
