"""The pytest plugin of `python -m tools.exercise check`: it imports the student's file in place of
ours, and prints which tests passed and the first failure.

The environment variable EXERCISE_FILE names the student's file.
"""
import importlib.util
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def shown(path):
    """The path as a student would type it"""
    path = Path(path)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


class Report:
    def __init__(self):
        self.failed = []

    def pytest_collectreport(self, report):
        if report.failed:
            self.failed.append(report)

    def pytest_runtest_logreport(self, report):
        words = report.nodeid.split('::test_')[-1].replace('_', ' ')
        if report.failed:
            print(f'  FAILED  {words}')
            self.failed.append(report)
        elif report.when == 'call':
            print(f'  {report.outcome}  {words}')

    def pytest_sessionfinish(self, session, exitstatus):
        if exitstatus == 0:
            print('all tests pass')
        if not self.failed:
            return
        first = self.failed[0]
        print(f'first failure: {first.nodeid}')
        crash = getattr(first.longrepr, 'reprcrash', None)
        if crash is None:                               # the test's file could not be imported
            print(first.longrepr)
            return
        entries = first.longrepr.reprtraceback.reprentries
        for entry in dict.fromkeys((entries[0], entries[-1])):      # the test, and what it called
            print(f'    {shown(entry.reprfileloc.path)}, line {entry.reprfileloc.lineno}')
            for line in str(entry).split('\n'):
                if line.startswith('>'):
                    print(f'        {line[1:].strip()}')
        for line in crash.message.split('\n')[:8]:
            print(f'    {line[:300]}')


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    reporter = config.pluginmanager.get_plugin('terminalreporter')
    reporter._tw._file = open(os.devnull, 'w')          # pytest's own report
    path = Path(os.environ['EXERCISE_FILE'])
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        pytest.exit(f'{shown(path)} cannot be imported: {type(error).__name__}: {error}', 1)
    config.pluginmanager.register(Report())
