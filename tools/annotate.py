"""A paper's file as a page to read: prose on the left, code on the right.

    python -m tools.annotate stats              writes stats.html; `all`: one page per file

The prose consists of the docstrings and of the comments that have lines of their own. Each stands
beside the code it speaks of, together with the equations which that code computes. Hovering over a
name shows the shape that its tensor had in a real training step. One HTML file that needs no
network and no scripts.
"""
import ast
import html
import importlib
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from latex2mathml import converter
from pygments.lexers import PythonLexer
from pygments.token import STANDARD_TYPES, Name

import data
import decode
from data import BadInput
from shapes import puzzles
from tools import machine, papers, runs
from tools.equations import EQUATIONS

NUMBER = r'\d+(?:\.\d+)?'
MENTION = re.compile(rf'Eq\. {NUMBER}(?:(?:, | and | \+ |-){NUMBER})*(?: of the first version)?')
# A comment that begins with `Eq. 7`, `L in Eq. 7` and the like tells what its line computes.
COMPUTES = re.compile(rf'[\w ]{{0,12}}({MENTION.pattern})(?=$|  |[,;:])')
FUNCTIONS = (ast.FunctionDef, ast.ClassDef)
ALIGNMENTS = ('mlp', 'hypercolumn', 'avgpool', 'maxpool', 'layers-first', 'fc7-every', 'hard')
# Name -> puzzle, and settings under which the model runs. A name keeps the shape of the last run.
RUNS = {
    'sta': ('place', [dict(task='recognise', block=4), dict(scores='content'), {}]),
    'stats': ('both', [dict(pool='temporal'), dict(reward_after=0), {}]),
    'astar': ('layer', [*(dict(variant=name) for name in ALIGNMENTS), {}]),
    'vre': ('key', [dict(stage='reward', reward='cider', reward_epochs=1), dict(key='drawn'), {}]),
    'decode': ('both', [dict(reward_after=0, eta=0.1), {}]),
}
SMALL = dict(hidden=28, embed=20, attn=12, visual=24, width=2, samples=3)   # all sizes differ
VIDEOS = 5


# ------------------------------------------------------------------ shapes, from a real batch
def numbers_in(mention):
    """'Eq. 4, 6' -> ['4', '6'];  'Eq. 12-14' -> ['12', '13', '14']"""
    if mention.endswith('version'):
        return [mention.removeprefix('Eq. ')]
    found = []
    for first, last in re.findall(rf'({NUMBER})(?:-({NUMBER}))?', mention):
        chapter, dot, low = first.rpartition('.')
        high = (last or first).rpartition('.')[2]
        found += [f'{chapter}{dot}{n}' for n in range(int(low), int(high) + 1)]
    return found


def make_batch(name):
    """-> batch, Sizes: a few items of a puzzle, with two captions each; for c3d, random frames"""
    if name == 'c3d':
        corpus = data.Corpus('random frames', 'val')
        corpus.labels = {'a': [0], 'b': [1]}
        frames = torch.randint(256, (2, 24, 112, 112, 3), dtype=torch.uint8).numpy()
        corpus.features = {'video': puzzles.Table(corpus.labels, frames)}
    else:
        corpus = puzzles.read(f'puzzle-{RUNS[name][0]}', 'val', seed=0)
        corpus.keep(corpus.ids[:VIDEOS])
        corpus.captions = {video: 2 * texts for video, texts in corpus.captions.items()}
        corpus.labels = {video: [row % 3] for row, video in enumerate(corpus.ids)}
    corpus.classes = ['left', 'right', 'up']
    vocabulary = data.Vocabulary.build(sum(corpus.captions.values(), []))
    tables = {kind: table.check(corpus.ids) for kind, table in corpus.features.items()}
    sizes = data.Sizes({kind: shape for kind, (shape, _) in tables.items()}, vocab=len(vocabulary),
                       frames=max(frames for _, frames in tables.values()),
                       captions=2 * VIDEOS, classes=len(corpus.classes))
    batches = data.Batches(corpus, vocabulary if corpus.captions else None)
    return next(batches.epoch(0)), sizes


def train_step(name, batch, sizes):
    """Run the model of a file forward, once under each of its settings."""
    paper = importlib.import_module('stats' if name == 'decode' else name)
    for settings in RUNS.get(name, ('', [{}]))[1]:
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


def assigned_names(source):
    """-> {line that runs: [(line of the name, name)]}: arguments of functions, and variables"""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.setdefault(node.lineno, []).append((node.lineno, node.id))
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            names = [(one.lineno, one.arg) for one in node.args.args]
            found.setdefault(first, []).extend(names)
    return found


def trace(path, run):
    """Call run() -> {(line, name): shape after the last time that this line of the file ran}"""
    assigned = assigned_names(path.read_text())
    shapes = {}
    last = {}                                           # frame -> the line that it runs

    def record(frame, event, _):
        for place in assigned.get(last.get(frame), ()):
            shape = describe(frame.f_locals.get(place[1]))
            if shape:
                shapes[place] = shape
        last[frame] = frame.f_lineno
        if event == 'return':
            del last[frame]
        return record

    def enter(frame, event, _):
        if frame.f_code.co_filename == str(path):
            last[frame] = frame.f_code.co_firstlineno
            return record

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        run()
    finally:
        sys.settrace(before)
    return shapes


# ------------------------------------------------------------------ prose and code, as HTML
def link(text, known):
    """Plain text -> HTML, in which every equation that we know is a link"""
    def one(found):
        mention = found[0]
        if mention.endswith('version'):
            return f'<a href="#eq-{numbers_in(mention)[0].replace(" ", "-")}">{mention}</a>'
        return re.sub(rf'(Eq\. )?({NUMBER})', lambda part: part[0] if part[2] not in known else
                      f'<a href="#eq-{part[2]}">{part[0]}</a>', mention)
    return MENTION.sub(one, html.escape(text))


def docstring_html(text, known):
    """A docstring -> HTML: paragraphs, and everything with columns or drawings as it is"""
    parts = []
    for block in re.split(r'\n\s*\n', text.strip('\n')):
        plain = link(block, known)
        if re.search(r'[^.\s] {2,}\S|^ +\S', block, re.M):
            parts.append(f'<pre>{plain}</pre>')
        else:
            parts.append(f'<p>{re.sub("`([^`]+)`", r"<code>\1</code>", plain)}</p>')
    return ''.join(parts)


def comment_html(text, known):
    """The text of a comment -> HTML: what differs from the paper, and what is open, is marked"""
    first, *tagged = re.split(r'\b(DEVIATION|UNSPECIFIED): ', text)
    parts = [f'<p>{link(first, known)}</p>'] if first.strip() else []
    for kind, words in zip(tagged[::2], tagged[1::2]):
        parts.append(f'<p class="{kind.lower()}"><b>{kind}</b> {link(words, known)}</p>')
    return ''.join(parts)


def code_lines(source, shapes, known):
    """-> the lines of the source as HTML: highlighted, with shapes and links"""
    lines = ['']
    named = set()                                       # an assigned name gets one title per line
    for kind, text in PythonLexer(stripnl=False, ensurenl=False).get_tokens(source):
        for nth, piece in enumerate(text.split('\n')):
            if nth:
                lines.append('')
            place = (len(lines), piece)
            title = ''
            if kind in Name and place in shapes and place not in named:
                named.add(place)
                title = html.escape(f' title="{piece}: {shapes[place]}"', quote=False)
            style = STANDARD_TYPES.get(kind, '')
            shown = link(piece, known)
            if piece.strip() and (style or title):
                shown = f'<span class="{style}"{title}>{shown}</span>'
            lines[-1] += shown
    return lines
