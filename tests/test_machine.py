"""Files that are never incomplete, and locks that end with their process."""
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import data
import shapes
from data import BadInput
from tools import machine


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
