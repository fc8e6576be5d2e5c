"""Files that are never incomplete, and locks that end with their process."""
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import data
import evaluate
import shapes
from data import BadInput
from tools import encoders, extract, machine


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / 'a.json'
    for content in ('first', 'second'):
        with machine.replacing(path) as temporary:
            temporary.write_text(content)
    with pytest.raises(KeyboardInterrupt), machine.replacing(path) as temporary:
        temporary.write_text('half')
        raise KeyboardInterrupt
    assert path.read_text() == 'second' and list(tmp_path.iterdir()) == [path]
    for wrong in (tmp_path, path / 'below', tmp_path / 'nowhere' / 'a.json'):
        with pytest.raises(BadInput, match='cannot write'), machine.replacing(wrong) as temporary:
            temporary.write_text('x')
    with machine.replacing('/dev/null') as temporary:      # a device is written to, not replaced
        temporary.write_text('x')
    assert not Path('/dev/null').is_file()


def test_a_lock_ends_with_a_process_that_is_killed(tmp_path):
    code = ('import sys, time; from tools import machine\n'
            'with machine.locked(sys.argv[1]):\n    print(flush=True); time.sleep(60)')
    other = subprocess.Popen([sys.executable, '-c', code, tmp_path], stdout=subprocess.PIPE,
                             cwd=Path(data.__file__).parent)
    other.stdout.readline()
    with pytest.raises(BadInput, match='in use by another process'), machine.locked(tmp_path):
        pass
    other.kill()
    other.communicate()
    with machine.locked(tmp_path):
        pass


def heed_ctrl_c():
    """In a new process: a shell that starts pytest in the background makes it ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupted(command, library, folder):
    """Run a command in which `library` sends Ctrl-C while it is imported, and swallows it, as some
    libraries do -> exit code, output, errors"""
    (folder / f'{library}.py').write_text(
        'import os, signal, time\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n'
        '    time.sleep(0.2)\nexcept BaseException:\n    pass\n'
        'def __getattr__(name):\n    if name[0] == "_":\n        raise AttributeError\n'
        '    for _ in range(600):\n        time.sleep(0.1)\n')
    done = subprocess.run([sys.executable, *command], cwd=Path(data.__file__).parent,
                          capture_output=True, text=True, timeout=60, preexec_fn=heed_ctrl_c,
                          env=os.environ | {'PYTHONPATH': str(folder)})
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize('command', [
    ['train.py', '--help'], ['evaluate.py', '--help'], ['-m', 'tools.show', '--help'],
    ['-m', 'shapes.dataset', '--help']])
def test_ctrl_c_while_importing_is_one_line(command, tmp_path):
    # numpy is imported at the top of every command.
    assert interrupted(command, 'numpy', tmp_path) == (130, '', '\nstopped\n')


@pytest.mark.parametrize('command, library', [
    (['train.py', '--limit', '8'], 'pycocoevalcap'),
    (['evaluate.py', 'shapes/runs/sta'], 'pycocoevalcap'),
    (['-m', 'tools.show', 'page', 'shapes/runs/sta', '--out', 'page.html'], 'pycocoevalcap'),
    (['-m', 'tools.extract', '--dataset', 'folder', '--videos', '.', '--encoder', 'resnet152'],
     'torchvision')])
def test_ctrl_c_in_an_import_of_a_command_at_work_is_one_line(command, library, tmp_path):
    (tmp_path / 'a.mp4').touch()
    argv = [str(tmp_path) if word == '.' else word for word in command]
    argv += ['--root', str(tmp_path / 'root')]
    assert interrupted(argv, library, tmp_path) == (
        130, '', f'\nstopped; to start again: python {shlex.join(argv)}\n')
    assert not (tmp_path / 'root').exists()


def test_ctrl_c_is_unchanged_for_those_who_only_import():
    assert signal.getsignal(signal.SIGINT) is not shapes.stop       # pytest imports everything


def test_a_terminal_that_lacks_a_letter_gets_its_number(tmp_path):
    folder = tmp_path / '\u03bb'
    folder.mkdir()
    (folder / 'log.jsonl').write_text('{"epoch": 1, "loss": 2.0}')
    done = subprocess.run([sys.executable, '-m', 'tools.show', 'curves', str(folder)],
                          cwd=Path(data.__file__).parent, capture_output=True, text=True,
                          env=os.environ | {'PYTHONIOENCODING': 'ascii'})
    assert done.returncode == 0 and r'\u03bb' in done.stdout, done.stderr


NOT_EVERYWHERE = """
import multiprocessing, os, signal, sys
sys.modules.update(dict.fromkeys(('fcntl', 'pwd', 'resource', 'termios')))  # import fails
for name in ('SIGALRM', 'SIGHUP', 'SIGKILL', 'SIGPIPE', 'SIGUSR1', 'alarm', 'pthread_kill',
             'setitimer'):
    delattr(signal, name)
for name in ('fork', 'getuid', 'killpg', 'mkfifo', 'posix_fallocate', 'sched_getaffinity',
             'setsid', 'sync'):
    delattr(os, name)
multiprocessing.set_start_method('spawn')
"""


def test_commands_need_nothing_that_only_linux_has(tmp_path):
    """Windows and macOS lack these modules, signals and functions, start processes without fork,
    and may have another encoding of files than UTF-8."""
    (tmp_path / 'sitecustomize.py').write_text(NOT_EVERYWHERE)
    env = os.environ | {'PYTHONPATH': str(tmp_path), 'PYTHONUTF8': '0', 'LC_ALL': 'C',
                        'PYTHONCOERCECLOCALE': '0', 'PATH': ''}             # no git, either
    for command in (
            ['train.py', '--model', 'sta', '--limit', '8', '--epochs', '1',
             '--out', str(tmp_path / 'run'), '--root', str(tmp_path / 'root')],
            ['-m', 'tools.annotate', 'sta', '--out', str(tmp_path / 'sta.html')],
            ['-m', 'tools.exercise', 'handout', str(tmp_path / 'handout')]):
        done = subprocess.run([sys.executable, *command], cwd=Path(data.__file__).parent, env=env,
                              capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    done = subprocess.run([sys.executable, '-m', 'tools.exercise', 'check', 'greedy'], env=env,
                          cwd=tmp_path / 'handout', capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and 'exercise greedy is not done yet' in done.stdout
    top = Path(data.__file__).parent
    sources = [path.read_text() for path in top.rglob('*.py') if path.parent.name != 'tests']
    assert set(re.findall(r'signal\.(SIG\w+)', ''.join(sources))) == {'SIGINT', 'SIGTERM'}


LENGTHS = [1, 2] * 10 + [50, 60] * 20                   # frames of videos, or of batches of them


def work_for(monkeypatch, seconds):
    """Made-up clocks. seconds: of each step -> function that is to be called once in each step"""
    now = [0.0]
    left = iter(seconds)

    def work(*_):
        now[0] += next(left)

    for module in (evaluate, extract):
        monkeypatch.setattr(module, 'time', SimpleNamespace(time=lambda: now[0]))
    monkeypatch.setattr(torch, 'get_num_threads', lambda: 2)
    return work


def describe(monkeypatch, seconds, _):
    work = work_for(monkeypatch, seconds)
    steps = [{'ids': [str(i)], 'mask': {'clip': torch.ones(1, length)}}
             for i, length in enumerate(LENGTHS)]
    monkeypatch.setattr(evaluate, 'batches', lambda *_: SimpleNamespace(in_order=lambda: steps))
    monkeypatch.setattr(evaluate.decode, 'greedy', lambda *_: (torch.zeros(1, 0), work()))
    run = SimpleNamespace(device='cpu', training=SimpleNamespace(max_len=1),
                          vocabulary=SimpleNamespace(decode=str))
    model = SimpleNamespace(encode=lambda batch: (None, None))
    evaluate.describe(run, model, SimpleNamespace(ids=range(len(steps))), progress=True)


def extract_clips(monkeypatch, seconds, folder):
    work = work_for(monkeypatch, seconds)
    monkeypatch.setattr(encoders, 'load', lambda *_: None)
    monkeypatch.setattr(encoders, 'read', lambda path, *_: torch.zeros(path))
    monkeypatch.setattr(encoders, 'encode', lambda *_: work() or {'': np.zeros(1)})
    videos = [(f'{i:03d}', length) for i, length in enumerate(LENGTHS)]
    info = {'encoder': 'resnet152', 'weights': 'none', 'sampling': ''}
    assert extract.extract(videos, {'': folder / 'features'}, info) == []


@pytest.mark.parametrize('command', [describe, extract_clips])
def test_a_busy_neighbour_is_reported_once_but_long_videos_are_not(command, tmp_path, monkeypatch,
                                                                   capsys):
    even = [0.1 * length for length in LENGTHS]
    command(monkeypatch, even, tmp_path / 'quiet')
    assert 'three times' not in capsys.readouterr().out
    disturbed = even[:40] + [4 * seconds for seconds in even[40:]]
    command(monkeypatch, disturbed, tmp_path / 'busy')
    said = capsys.readouterr().out
    assert said.count('three times as long') == 1 and '--threads 1' in said
