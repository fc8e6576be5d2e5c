"""The log of a run, log.jsonl: a first line with all settings, then one line for each epoch."""
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from data import BadInput


def write_log(run, entry):
    path = run.path / 'log.jsonl'
    try:
        with open(path, 'a') as file:
            file.write(json.dumps(entry) + '\n')
    except OSError as error:
        raise BadInput(f'cannot write {path}: {error}') from None


def repair(run, entry):
    """Repair what a killed process left: temporary files, a log whose last line is cut off, and a
    log without the last epoch of the checkpoint. entry: what the log should say about it, or {}"""
    for path in run.path.glob('*.pt.*.tmp'):
        path.unlink()
    path = run.path / 'log.jsonl'
    text = path.read_bytes() if path.exists() else b''
    whole = text[:text.rfind(b'\n') + 1]
    if whole != text:
        os.truncate(path, len(whole))
    if entry and json.dumps(entry).encode() not in whole:
        write_log(run, entry)


def write_head(run, args, processes):
    """The first line of the log: everything that is needed to repeat the run"""
    commit = None
    with contextlib.suppress(OSError, subprocess.CalledProcessError):   # no git, or no repository
        commit = subprocess.check_output(['git', 'rev-parse', '--short', 'HEAD'], text=True,
                                         cwd=Path(__file__).parent, stderr=subprocess.DEVNULL)
    flags = {name: value for name, value in vars(args).items() if not name.startswith('cfg_')}
    flags['out'] = str(run.path)
    write_log(run, {'args': flags, 'given': run.given, 'config': dataclasses.asdict(run.cfg),
                    'training': dataclasses.asdict(run.training), 'seed': run.seed,
                    'git': commit and commit.strip(), 'processes': processes,
                    'threads': torch.get_num_threads(), 'python': sys.version.split()[0],
                    'torch': torch.__version__})


def columns(run):
    """One line that says what the lines about epochs contain"""
    unit = 'video'
    scores = 'scores on the validation videos'
    if not run.recognises:
        unit = 'caption'
        scores += ', with loss per word'
        if run.dataset.name == 'shapes':
            scores += ', slots (share of facts that are right)'
    return (f'columns: epoch; seconds so far; training loss per {unit} (its terms); {scores}; '
            f'* best {run.metric} so far')
