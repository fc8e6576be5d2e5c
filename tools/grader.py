"""The pytest plugin of `python -m tools.exercise check`: it imports the student's file in place of
ours. The environment variable EXERCISE_FILE names that file.
"""
import importlib.util
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def shown(path):
    """The path as a student would type it"""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


def pytest_configure():
    path = Path(os.environ['EXERCISE_FILE'])
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        pytest.exit(f'{shown(path)} cannot be imported: {type(error).__name__}: {error}', 1)
