"""Fail unless the tests that start vLLM ran: at least one did, and none was skipped.

    python .ci/require_vllm.py JUNIT_XML

Those are the tests with the marker `vllm`; tests/conftest.py writes it into the JUnit file as the property "starts", and
refuses a test that uses a vLLM engine without it. A skip of any test whose reason speaks of vLLM fails as well.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree


def main(path: str) -> str | None:
    """Return what is wrong, None if nothing is."""
    ran = 0
    skipped = []
    for case in ElementTree.parse(path).iter("testcase"):
        starts_vllm = any(entry.get("name") == "starts" and entry.get("value") == "vllm" for entry in case.iter("property"))
        skip = case.find("skipped")
        if skip is None:
            ran += starts_vllm
        elif starts_vllm or "vllm" in f"{skip.get('message')} {skip.text}".lower():
            skipped.append(f"  {case.get('classname')}::{case.get('name')}: {skip.get('message')}")
    if skipped:
        return "\n".join([f"{len(skipped)} vLLM tests were skipped:", *skipped])
    if not ran:
        return "no test started vLLM"
    print(f"{ran} tests started vLLM, none was skipped")
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
