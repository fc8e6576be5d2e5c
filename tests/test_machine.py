"""Files that are never incomplete, and locks that end with their process."""
import os
import re
import shlex
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import evaluate
import shapes
from data import BadInput
from tools import encoders, extract, machine, runs


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / 'a.json'
    for content in ('first', 'second'):
        with machine.replacing(path) as temporary:
            temporary.write_text(content)
    with pytest.raises(KeyboardInterrupt), machine.replacing(path) as temporary:
        temporary.write_text('half')
        raise KeyboardInterrupt
    for full in (OSError(28, 'No space left on device'), RuntimeError('file write failed')):
        with pytest.raises(BadInput, match='cannot write .*free some disk space .*is intact'):
            with machine.replacing(path) as temporary:
                temporary.write_text('half')
                raise full
    assert path.read_text() == 'second' and list(tmp_path.iterdir()) == [path]
    for wrong in (tmp_path, path / 'below', tmp_path / 'nowhere' / 'a.json'):
        with pytest.raises(BadInput, match='cannot write'), machine.replacing(wrong) as temporary:
            temporary.write_text('x')
    os.mkfifo(tmp_path / 'pipe')
    with machine.replacing(tmp_path / 'pipe') as temporary:   # only files are replaced
        assert temporary == tmp_path / 'pipe'
    assert (tmp_path / 'pipe').is_fifo()


def test_a_lock_ends_with_a_process_that_is_killed(tmp_path):
    code = ('import sys, time; from tools import machine\n'
            'with machine.locked(sys.argv[1]):\n    print(flush=True); time.sleep(60)')
    with subprocess.Popen([sys.executable, '-c', code, tmp_path], stdout=subprocess.PIPE,
                          cwd=runs.TOP) as other:
        other.stdout.readline()
        refusal = pytest.raises(BadInput, match='in use by another process')
        try:
            with refusal, machine.locked(tmp_path):
                pass
        finally:
            other.kill()
    with machine.locked(tmp_path):
        pass


# ------------------------------------------------------- commands
def heed_ctrl_c():
    """In a new process: a shell that starts pytest in the background makes it ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def result(argv, cwd=runs.TOP, **env):
    """Run Python -> exit code, output, errors"""
    done = subprocess.run([sys.executable, *argv], cwd=cwd, env=os.environ | env, text=True,
                          capture_output=True, timeout=300, preexec_fn=heed_ctrl_c)
    return done.returncode, done.stdout, done.stderr


# A library that sends Ctrl-C while it is imported, and swallows it, as some libraries do
LIBRARY = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
except BaseException:
    pass
def __getattr__(name):
    if name[0] == '_':
        raise AttributeError
    for _ in range(600):
        time.sleep(0.1)
"""


@pytest.mark.parametrize('command, library', [
    ('train.py --help', 'numpy'), ('evaluate.py --help', 'numpy'),      # imported at the top
    ('-m tools.show --help', 'numpy'), ('-m shapes.dataset --help', 'numpy'),
    ('train.py --limit 8', 'pycocoevalcap'), ('evaluate.py shapes/runs/sta', 'pycocoevalcap'),
    ('-m tools.show page shapes/runs/sta --out page.html', 'pycocoevalcap'),
    ('-m tools.extract --dataset folder --videos {} --encoder resnet152', 'torchvision')])
def test_ctrl_c_in_an_import_is_one_line(command, library, tmp_path):
    (tmp_path / f'{library}.py').write_text(LIBRARY)
    (tmp_path / 'a.mp4').touch()
    argv = command.format(tmp_path).split()
    message = '\nstopped\n'
    if library != 'numpy':                              # the command is at work
        argv += ['--root', str(tmp_path / 'root')]
        message = f'\nstopped; to start again: python {shlex.join(argv)}\n'
    assert result(argv, PYTHONPATH=str(tmp_path)) == (130, '', message)
    assert not (tmp_path / 'root').exists()


def test_ctrl_c_is_unchanged_for_those_who_only_import():
    assert signal.getsignal(signal.SIGINT) is not shapes.stop       # pytest imports everything


def test_a_terminal_that_lacks_a_letter_gets_its_number():
    code = 'from tools import runs; runs.user_main(lambda argv: print(chr(0x3bb)))'
    assert result(['-c', code], PYTHONIOENCODING='ascii') == (0, '\\u03bb\n', '')


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
# Two commands in one process, because importing torch takes longer than both
ANNOTATE_AND_HANDOUT = """
import sys
from tools import annotate, exercise
annotate.main(['sta', '--out', sys.argv[1] + '/sta.html'])
exercise.main(['handout', sys.argv[1] + '/handout'])
"""


def test_commands_need_nothing_that_only_linux_has(tmp_path):
    """Windows and macOS lack these modules, signals and functions, start processes without fork,
    and may have another encoding of files than UTF-8."""
    (tmp_path / 'sitecustomize.py').write_text(NOT_EVERYWHERE)
    env = {'PYTHONPATH': str(tmp_path), 'PYTHONUTF8': '0', 'LC_ALL': 'C',
           'PYTHONCOERCECLOCALE': '0', 'PATH': ''}      # no git, either
    train = 'train.py --model sta --limit 8 --epochs 1 --out {0}/run --root {0}/root'
    for argv in (train.format(tmp_path).split(), ['-c', ANNOTATE_AND_HANDOUT, tmp_path]):
        code, _, errors = result(argv, **env)
        assert code == 0, errors
    check = ['-m', 'tools.exercise', 'check', 'greedy']
    code, said, _ = result(check, tmp_path / 'handout', **env)
    assert code == 1 and 'exercise greedy is not done yet' in said
    sources = [path.read_text() for path in runs.TOP.rglob('*.py') if path.parent.name != 'tests']
    assert set(re.findall(r'signal\.(SIG\w+)', ''.join(sources))) == {'SIGINT', 'SIGTERM'}


# ------------------------------------------------------- a busy neighbour
LENGTHS = [1, 2] * 10 + [50, 60] * 20                   # frames of videos, or of batches of them


def describe(work, monkeypatch, _):
    steps = [{'ids': [str(i)], 'mask': {'clip': torch.ones(1, length)}}
             for i, length in enumerate(LENGTHS)]
    monkeypatch.setattr(evaluate, 'batches', lambda *_: SimpleNamespace(in_order=lambda: steps))
    monkeypatch.setattr(evaluate.decode, 'greedy', lambda *_: (torch.zeros(1, 0), work()))
    run = SimpleNamespace(device='cpu', training=SimpleNamespace(max_len=1),
                          vocabulary=SimpleNamespace(decode=str))
    model = SimpleNamespace(encode=lambda batch: (None, None))
    evaluate.describe(run, model, SimpleNamespace(ids=range(len(steps))), progress=True)


def extract_clips(work, monkeypatch, folder):
    monkeypatch.setattr(encoders, 'load', lambda *_: None)
    monkeypatch.setattr(encoders, 'read', lambda path, *_: torch.zeros(path))
    monkeypatch.setattr(encoders, 'encode', lambda *_: work() or {'': np.zeros(1)})
    videos = [(f'{i:03d}', length) for i, length in enumerate(LENGTHS)]
    info = {'encoder': 'resnet152', 'weights': 'none', 'sampling': ''}
    assert extract.extract(videos, {'': folder}, info) == []


@pytest.mark.parametrize('command', [describe, extract_clips])
def test_a_busy_neighbour_is_reported_once_but_long_videos_are_not(command, tmp_path, monkeypatch,
                                                                   capsys):
    clock = SimpleNamespace(now=0.0)
    for module in (evaluate, extract):
        monkeypatch.setattr(module, 'time', SimpleNamespace(time=lambda: clock.now))
    monkeypatch.setattr(torch, 'get_num_threads', lambda: 2)

    def work():                                         # called once in each step
        clock.now += next(left)

    even = [0.1 * length for length in LENGTHS]
    left = iter(even)
    command(work, monkeypatch, tmp_path / 'quiet')
    assert 'three times' not in capsys.readouterr().out
    left = iter(even[:40] + [4 * seconds for seconds in even[40:]])
    command(work, monkeypatch, tmp_path / 'busy')
    said = capsys.readouterr().out
    assert said.count('three times as long') == 1 and '--threads 1' in said
