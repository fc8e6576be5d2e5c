"""Damaged, foreign and hostile checkpoints, and runs that are killed. FUZZ=500 tries more."""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import zipfile

import pytest
import torch

import evaluate
import helpers
import train
from data import BadInput
from test_train import ROOT, assert_same, epochs, flags, resume, train_each, weights
from test_train import root  # noqa: F401  (a fixture)
from tools import java, runs

TRIES = int(os.environ.get('FUZZ', 40))
JUNK = [None, True, -1, 0, 2, 10 ** 9, 10 ** 30, -0.5, float('nan'), float('inf'), '', 'x', '../x',
        'tests.helpers', b'x', (), [], {}, [[]], ['x'], {'x': 1}, {1: 2}, torch.zeros(0),
        torch.zeros(3, 3), torch.zeros(2, dtype=torch.long), torch.tensor(float('nan')),
        torch.zeros(1).expand(10 ** 12)]


@pytest.fixture(scope='module')
def made(root, tmp_path_factory):                       # noqa: F811
    return train_each(('sta', 'vre'), root, tmp_path_factory.mktemp('runs'))


def places(tree, path=()):
    """-> all (container, key, path) of nested dicts and lists"""
    found = []
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        found.append((tree, key, (*path, key)))
        if isinstance(value, (dict, list)):
            found += places(value, (*path, key))
    return found


def tamper(checkpoint, rng):
    """Change one thing -> what was changed"""
    part = rng.choice(list(checkpoint))                 # each part as often as the many weights
    several = [place for place in places(checkpoint) if place[2][0] == part]
    tree, key, path = rng.choice(several)
    old = tree[key]
    how = rng.choice(('remove', 'rename', 'junk', 'junk', 'near'))
    if how == 'remove' and isinstance(tree, dict):
        del tree[key]
    elif how == 'rename' and isinstance(tree, dict):
        tree['renamed'] = tree.pop(key)
    elif how == 'near' and torch.is_tensor(old):
        tree[key] = rng.choice((old.flatten(), old.double(), old[..., :0], old * float('nan'),
                                old.to_sparse(), torch.cat([old.flatten()] * 2)))
    elif how == 'near' and isinstance(old, (int, float, str, list)):
        tree[key] = rng.choice((old * 2, -old if isinstance(old, (int, float)) else old[1:],
                                old * 1000))
    else:
        how = 'junk'
        tree[key] = rng.choice(JUNK)
    return f'{how} {path}'


@pytest.fixture
def quick_report(monkeypatch):
    """The scores of a report without Java and pictures, and an end after 20 seconds of computing"""
    def report(several, model, corpus, *_):
        scores, _, _ = evaluate.evaluate(several[0], model, corpus, several[0].training.beam)
        json.dumps(scores, allow_nan=False)

    def hang(*_):
        raise TimeoutError('20 seconds')

    monkeypatch.setattr(evaluate, 'report', report)
    monkeypatch.setattr(java, 'check_java', lambda: None)
    before = signal.signal(signal.SIGVTALRM, hang)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


def test_a_damaged_checkpoint_ends_in_one_sentence(made, root, tmp_path,     # noqa: F811
                                                   quick_report):
    wrong = []
    for seed in range(TRIES):
        rng = random.Random(seed)
        model, how = rng.choice(('sta', 'vre')), rng.choice(('evaluate', 'resume'))
        out = shutil.copytree(made[model], tmp_path / f'{model}-{seed}')
        path = out / ('best.pt' if how == 'evaluate' else 'last.pt')
        what = 'bytes'
        if seed % 4:
            checkpoint = torch.load(path, weights_only=True)
            what = tamper(checkpoint, rng)
            torch.save(checkpoint, path)
        else:
            path.write_bytes(helpers.damaged(path.read_bytes(), seed))
        signal.setitimer(signal.ITIMER_VIRTUAL, 20)
        said = ''
        try:
            if how == 'evaluate':
                evaluate.main([str(out), '--root', str(root), '--device', 'cpu'])
            else:
                more = '--reward-epochs' if model == 'vre' else '--epochs'
                resume(root, out, f'--device cpu {more} 4')
        except BadInput as error:
            if len(str(error)) > 900 or str(out) not in str(error) and '--' not in str(error):
                said = f'says {error}'
        except Exception as error:
            said = repr(error)
        if said:
            wrong.append(f'seed {seed}, {model}, {how}, {what}: {said[:200]}')
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        shutil.rmtree(out)
    assert not wrong, f'{len(wrong)} of {TRIES} tries: ' + '\n'.join(wrong)


@pytest.mark.parametrize('changes, message', [
    ({'state_dict': None}, 'does not fit sta.py as it is now: found a NoneType instead of a dict'),
    ({'config': {'hidden': 10 ** 5}}, 'missing, unknown, or of another type or size'),
    ({'config': {'hidden': '8'}}, "'hidden' is missing, unknown, or of another type or size"),
    ({'vocab': ['<pad>', '<eos>', '<unk>', 'more']}, 'vocabulary of 4 words is not the one'),
    ({'dataset': {'name': '../..'}}, 'choose one of folder'),
    ({'sizes': {'feats': {}}}, "is damaged, or .*'tiny'"),
    ({'epoch': -1}, 'out of range')])
def test_a_tampered_checkpoint_is_refused_before_memory_is_taken(made, tmp_path, monkeypatch,
                                                                 changes, message):
    saved = torch.load(made['sta'] / 'best.pt', weights_only=True)
    for name, value in changes.items():
        saved[name] = saved[name] | value if isinstance(value, dict) else value
    torch.save(saved, tmp_path / 'best.pt')
    built = []
    build = runs.Run.build
    monkeypatch.setattr(runs.Run, 'build', lambda run: built.append(run.device) or build(run))
    with pytest.raises(BadInput, match=message):
        evaluate.main([str(tmp_path)])
    assert built in ([], ['meta'])


def test_files_that_train_did_not_write_are_refused(made, tmp_path):
    """And code that a checkpoint names is not run."""
    path = tmp_path / 'best.pt'
    saved = torch.load(made['sta'] / 'best.pt', weights_only=True)
    (tmp_path / 'payload.py').write_text('raise SystemExit("this code was run")')
    whole = (made['sta'] / 'best.pt').read_bytes()
    place = whole.index(saved['state_dict']['w_p.weight'].numpy().tobytes())
    changed = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1:]     # in a weight
    for content, message in (
            (b'', ''), (b'not a checkpoint', ''), (b'PK\x03\x04 cut off', ''),
            (changed, 'the zip file is damaged'),
            (saved['state_dict'], 'this version of train.py did not write it'),
            (saved | {'format': 1}, 'this version of train.py did not write it'),
            (saved | {'model': 'payload'}, 'there is no payload.py beside train.py'),
            (saved | {'model': 'tests.helpers'}, 'there is no tests.helpers.py')):
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            torch.save(content, path)
        with pytest.raises(BadInput, match=f'best.pt: not a checkpoint of .*damaged .*{message}'):
            evaluate.main([str(tmp_path)])
    torch.save(saved, path)                             # compressed, 1 GB of zeros is 1 MB
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / 'x.pt', 'w', 8) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(BadInput, match='x.pt: not a checkpoint of .*the zip file is damaged'):
        evaluate.main([str(tmp_path / 'x.pt')])
    with pytest.raises(BadInput, match='there is no such checkpoint; a run is a folder'):
        evaluate.main([str(tmp_path / 'nowhere')])


# Trains in child processes. Number n is killed at its n-th operation on a file of the run: before
# it opens, renames, truncates or removes one, and in the middle of a checkpoint or a line.
KILLER = '''
import json, os, signal, sys
from pathlib import Path
import torch
import evaluate, train
from tools import java
evaluate.report = lambda *args: None
java.check_java = lambda: None
torch.set_num_threads(1)
save, dumps = torch.save, json.dumps

def child(out, arguments, kill_at):
    done = 0

    def operation(half=None):
        nonlocal done
        done += 1
        if done == kill_at:
            if half:
                half()
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(event, args):
        if event in ("open", "os.rename", "os.truncate", "os.remove", "os.mkdir"):
            if str(args[0]).startswith(str(out)):
                operation()

    def save_half(checkpoint, path):
        operation(lambda: Path(path).write_bytes(b"PK half a checkpoint"))
        save(checkpoint, path)

    def torn_line(entry):
        operation(lambda: open(out / "log.jsonl", "a").write(dumps(entry)[:40]))
        return dumps(entry)

    sys.addaudithook(watch)
    torch.save, json.dumps = save_half, torn_line
    sys.stdout = sys.stderr = open(os.devnull, "w")
    train.main([*arguments, "--out", str(out)])

for folder, step, arguments in json.loads(sys.argv[1]):
    for number in range(1, 1000, step):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                child(Path(folder) / f"run{number}", arguments, number)
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        if status == 0:
            break
        assert os.WIFSIGNALED(status), number
'''


def test_a_run_that_is_killed_at_any_file_operation_resumes_to_the_same_numbers(
        made, root, tmp_path, quick_report):            # noqa: F811
    """Or it left nothing to resume, and the same command starts again."""
    jobs = []
    for model, every in (('sta', 7), ('vre', 17)):
        (tmp_path / model).mkdir()
        every = 1 if TRIES > 100 else every
        jobs.append((f'{tmp_path}/{model}', every, flags(model, root, 'replaced')))
    subprocess.run([sys.executable, '-c', KILLER, json.dumps(jobs)], cwd=ROOT,
                   env={**os.environ, 'PYTHONPATH': str(ROOT)}, check=True, timeout=900)
    for model, whole in made.items():
        killed = sorted((tmp_path / model).iterdir())
        assert len(killed) > 2
        for out in killed:
            if (out / 'last.pt').exists():
                resume(root, out, '--device cpu')
            else:
                train.main(flags(model, root, out))
            assert epochs(out) == epochs(whole), out
            assert_same(weights(out / 'last.pt'), weights(whole / 'last.pt'))
            assert {path.name for path in out.iterdir()} == {
                path.name for path in whole.iterdir()}, out
