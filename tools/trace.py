"""The shapes of the tensors in a file, recorded while its model runs on a small real batch.

`shapes_of('stats')` -> {(line, name): shape}. The batch consists of a few items of a puzzle. A name
that is assigned several times keeps the last shape.
"""
import ast
import importlib
import sys
from pathlib import Path

import torch

import data
import decode
from shapes import puzzles
from tools import datasets

ALIGNMENTS = ('mlp', 'hypercolumn', 'avgpool', 'maxpool', 'layers-first', 'fc7-every', 'hard')
# Name of the file -> data, and the settings under which the model runs, the usual ones last
RUNS = {
    'c3d': ('random frames', [{}]),
    'sta': ('puzzle-place', [dict(task='recognise', block=4), dict(scores='content'), {}]),
    'stats': ('puzzle-both', [dict(pool='temporal'), dict(reward_after=0), {}]),
    'astar': ('puzzle-layer', [*(dict(variant=name) for name in ALIGNMENTS), {}]),
    'vre': ('puzzle-key', [dict(stage='reward', reward_epochs=1), dict(key='drawn'), {}]),
    'decode': ('puzzle-both', [dict(reward_after=0, eta=0.1), {}]),
}
SMALL = dict(hidden=28, embed=20, attn=12, visual=24, width=2, samples=3)   # all sizes differ
VIDEOS = 5


def make_batch(name):
    """-> batch, Sizes: a few items of a puzzle, with two captions each; for c3d, random frames"""
    if name == 'c3d':
        batch = {'ids': ['a', 'b'], 'feats': {'video': torch.randint(256, (2, 32, 112, 112, 3))},
                 'mask': {'video': torch.ones(2, 32, dtype=torch.bool)}, 'labels': torch.eye(3)[:2]}
        return batch, data.Sizes({'video': [112, 112, 3]}, classes=3)
    corpus = puzzles.read(RUNS[name][0], 'val', seed=0)
    corpus.keep(corpus.ids[:VIDEOS])
    corpus.captions = {video: 2 * texts for video, texts in corpus.captions.items()}
    corpus.labels = {video: [row % 3] for row, video in enumerate(corpus.ids)}
    corpus.classes = ['left', 'right', 'up']
    vocabulary = data.Vocabulary.build(sum(corpus.captions.values(), []))
    feats, frames = datasets.check_features([corpus])
    sizes = data.Sizes(feats, frames, len(vocabulary), captions=2 * VIDEOS, classes=3)
    return next(data.Batches(corpus, vocabulary).epoch(0)), sizes


def run_model(name, batch, sizes):
    """Run the model of a file forward, once under each of its settings."""
    paper = importlib.import_module('stats' if name == 'decode' else name)
    for settings in RUNS[name][1]:
        fields = {**paper.PRESETS.get('puzzle', paper.PRESETS.get('puzzle-key', {})), **SMALL,
                  **settings}
        cfg = paper.Config(**{key: value for key, value in fields.items()
                              if key in paper.Config.__dataclass_fields__})
        if name == 'c3d' or 'task' in settings:
            model = paper.Recogniser(cfg, sizes)
            model.predict(batch)
            model(batch)
            continue
        model = paper.Captioner(cfg, sizes)
        with torch.no_grad():
            both = decode.Ensemble([model, model.eval()])
            decode.beam(both, *both.encode(batch), 3, K=3)
        model.train()(batch, epoch=0, reward_fn=lambda ids, words: torch.zeros(len(ids)))


def describe(value):
    """A tensor -> its shape; a container of tensors -> their shapes; anything else -> ''"""
    if torch.is_tensor(value):
        return str(tuple(value.shape))
    if isinstance(value, dict):
        parts = [f'{key} {describe(one)}' for key, one in value.items() if describe(one)]
        return '{' + ', '.join(parts) + '}' if parts else ''
    if isinstance(value, (list, tuple)):
        return ', '.join(part for part in map(describe, value) if part)
    return ''


def first_line(node):
    """A node of the syntax tree -> its first line, which may be that of a decorator"""
    decorators = getattr(node, 'decorator_list', ())
    return min([getattr(node, 'lineno', 1), *(one.lineno for one in decorators)])


def assigned_names(source):
    """-> {line that runs: [(line of the name, name)]}: arguments of functions, and variables"""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.setdefault(node.lineno, []).append((node.lineno, node.id))
        if isinstance(node, ast.FunctionDef):
            names = [(one.lineno, one.arg) for one in node.args.args]
            found.setdefault(first_line(node), []).extend(names)
    return found


def trace(path, run):
    """Call run() -> {(line, name): shape after the last time that this line of the file ran}"""
    assigned = assigned_names(path.read_text())
    shapes = {}

    def enter(frame, event, _):
        line = frame.f_code.co_firstlineno              # the line of this function that runs

        def record(frame, event, _):
            nonlocal line
            for place in assigned.get(line, ()):
                shape = describe(frame.f_locals.get(place[1]))
                if shape:
                    shapes[place] = shape
            line = frame.f_lineno
            return record

        return record if frame.f_code.co_filename == str(path) else None

    sys.settrace(enter)
    try:
        run()
    finally:
        sys.settrace(None)
    return shapes


def shapes_of(name):
    """Name of a paper's file, or decode -> {(line, name): shape}, description of the batch"""
    batch, sizes = make_batch(name)
    path = Path(importlib.import_module(name).__file__)
    torch.manual_seed(0)
    shapes = trace(path, lambda: run_model(name, batch, sizes))
    captions = len(batch.get('captions', ()))
    return shapes, f'{len(batch["ids"])} videos of {RUNS[name][0]} with {captions} captions'
