"""Refuses a run whose rootdir pytest took from the value of one of our options.

Pytest settles rootdir and settings file before it knows a plugin's options, so in `--model PATH` the path counts as a
test path. Where that moves the rootdir, settings would be read from another project, reports land there, and node ids
lose their file: nothing that could be mended afterwards.
"""

from __future__ import annotations

import pytest
from _pytest.config.findpaths import determine_setup

__all__ = ["refuse_misplaced_rootdir"]


def refuse_misplaced_rootdir(config: pytest.Config) -> None:
    """Raise `pytest.UsageError` where the rootdir is not the one that the test paths alone give."""
    if not hasattr(config.option, "file_or_dir"):
        return  # --help and --version stop the parsing at once; nothing will run
    right, *_ = determine_setup(
        inifile=config.option.inifilename,
        override_ini=config.option.override_ini,
        args=config.option.file_or_dir,
        rootdir_cmd_arg=config.option.rootdir or None,
        invocation_dir=config.invocation_params.dir,
    )
    if right != config.rootpath:
        raise pytest.UsageError(
            f"pytest took the value of an option for a test path and would run in {config.rootpath} instead of {right}: "
            f"write options with '=', such as --model=PATH --data=PATH, or add --rootdir {right}"
        )
