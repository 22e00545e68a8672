"""The pytest plugin: options, markers, fixtures, work units, gates. The only package that knows pytest.

Loaded by the entry point of an installed evalharness, or by a conftest.py with
`pytest_plugins = ["evalharness.pytest_plugin"]`. Its hooks are in `hooks.py`; those around each test, in
`hooks.RunningTests`, are registered only where evals were collected. Pytest finds hooks and fixtures here by their names.
"""

# ruff: noqa: F401 -- for pytest

from evalharness.pytest_plugin.distributed.gpus import pytest_xdist_auto_num_workers
from evalharness.pytest_plugin.fixtures import case, coordinates, details, engine, generation, generations, score, steps
from evalharness.pytest_plugin.hooks import (
    pytest_cmdline_main,
    pytest_collection_finish,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_generate_tests,
    pytest_pycollect_makeitem,
    pytest_report_collectionfinish,
    pytest_sessionfinish,
    pytest_unconfigure,
)
from evalharness.pytest_plugin.options import pytest_addoption, pytest_load_initial_conftests
