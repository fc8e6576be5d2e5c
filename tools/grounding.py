"""Attention against the truth of the embedded world:  python -m tools.grounding RUN ...

The attention of a word is a distribution over frames and places. If the model has fewer steps in
time than the clip has frames, the weight of a step is spread evenly over its frames. For words that
the caption gets right we measure

    box      the share of the attention on places that the shape's box touches, in the frames that
             show the shape. A subject, verb or direction belongs to the shape that does this
             action, an object to the other shape.
    window   the share of the attention on the frames of the action

each followed, in brackets, by its value under even attention. A second table holds the paper's own
numbers, such as the weights of ST and TS. (train.py logs these after every epoch, at the words of
one reference of each of 100 validation clips.) A single run is measured in more detail.

Letters as in figures.py.
"""
import itertools

import numpy as np

from data import BadInput
from shapes import words, world
from tools import checkpoints, figures, runs, scores

ROLES = ('subject', 'verb', 'direction', 'object')
OTHERS = ('article', 'colour')          # roles that only the second table has


def inside(boxes, rows, columns):
    """boxes [x0, y0, x1, y1] in pixels, or None -> (F, Y, X) of bool: the places they touch"""
    nowhere = [np.inf, np.inf, -np.inf, -np.inf]
    corners = np.array([box or nowhere for box in boxes], float)            # (F, 4)
    x0, y0, x1, y1 = corners.T[..., None, None]                             # (F, 1, 1) each
    top = np.arange(rows)[:, None] * world.SIDE / rows
    left = np.arange(columns) * world.SIDE / columns
    vertical = (top + world.SIDE / rows > y0) & (top < y1)
    return vertical & (left + world.SIDE / columns > x0) & (left < x1)


def per_frame(weights):
    """weights (F, Y, X) of a word -> (STEPS, Y, X), those of each frame of the clip"""
    step = np.arange(world.STEPS) * len(weights) // world.STEPS     # the step that covers a frame
    frames = np.bincount(step, minlength=len(weights))
    return weights[step] / frames[step, None, None]


def on_box(weights, boxes):
    """weights (F, Y, X) of a word, the boxes of a shape -> {'box', 'box chance': share}, empty if
    no weight is in frames that show the shape"""
    weights = per_frame(weights)
    within = inside(boxes, *weights.shape[1:])
    when = weights.sum((1, 2)) * within.any((1, 2))
    if not when.any():
        return {}
    chance = (when * within.mean((1, 2))).sum()
    return {'box': (weights * within).sum() / when.sum(), 'box chance': chance / when.sum()}


def measure_word(look, t, truth, shape):
    """shape: index into truth['boxes'], or None -> {measure: number} of word t, empty if it looks
    at nothing"""
    if look.weights is None or not look.weights[t].any():
        return {}
    weights = look.weights[t]                                               # (F, Y, X)
    found = dict(zip(look.labels, look.numbers[t]))
    if shape is not None and weights[0].size > 1:
        found |= on_box(weights, truth['boxes'][shape])
    if shape is not None and len(weights) > 1:
        first, last = truth['window']
        found['window'] = per_frame(weights)[first:last + 1].sum()
        found['window chance'] = (last - first + 1) / world.STEPS
    return found


def measured_words(caption, truth):
    """-> [(index, role, index of its shape)] for words of slots that are right, and for articles"""
    roles = words.word_roles(caption, truth)
    right = words.slots_right(caption, truth)
    found = [(t, 'article', None) for t, word in enumerate(caption.split()) if word in ('a', 'the')]
    for slot, _, start, end in words.parse(caption, words.is_swapped(caption, truth)):
        shape = int(slot in ('object', 'object colour', 'second action'))
        for t in range(start, end):
            if right.get(slot) and roles[t]:
                found.append((t, roles[t].removeprefix('object '), shape))
    return found


def measure_key(focus, window):
    """VRE: probabilities (F,) of the key frame, first and last frame of the action
    -> {frame: whether it shows the action}"""
    first, last = window
    key = focus.argmax() * world.STEPS // len(focus)
    middle = world.STEPS // 2
    return {'refocused key': first <= key <= last, 'middle frame': first <= middle <= last,
            'chance': (last - first + 1) / world.STEPS}


def means(pairs):
    """[(name, number)] -> {name: mean of its numbers}"""
    table = {}
    for name, number in pairs:
        table.setdefault(name, []).append(number)
    return {name: float(np.mean(numbers)) for name, numbers in table.items()}


def ground(run, model, corpus, captions):
    """captions {id: str} -> {(role, measure): mean}; for VRE, the shares of measure_key()"""
    roles = []
    keys = []
    for video, caption in captions.items():
        truth = corpus.truth[video]
        look = figures.look_at(run, model, corpus, video, caption)
        for t, role, shape in measured_words(caption, truth):
            for measure, number in measure_word(look, t, truth, shape).items():
                roles.append(((role, measure), number))
        if look.focus is not None:
            keys += measure_key(look.focus, truth['window']).items()
    return means(roles), means(keys)


def numbers_by_role(run, model, corpus, clips=100):
    """-> {'ST verb': mean, ...}, the paper's own numbers at each role (shapes) or slot (puzzles) of
    the words of references; {} if the roles are unknown"""
    pairs = []
    known = (corpus.truth or corpus.answers) and run.paper.VIEW['bars'] and not run.recognises
    for video in corpus.ids[:clips] if known else ():
        caption = corpus.captions[video][0]
        roles = list(corpus.answers.get(video, ()))
        if corpus.truth:
            roles = words.word_roles(caption, corpus.truth[video])
        look = figures.look_at(run, model, corpus, video, caption)
        for role, numbers in zip(roles, look.numbers.tolist()):
            if role:
                pairs += [(f'{label} {role}', n) for label, n in zip(look.labels, numbers)]
    return means(pairs)


def ground_recogniser(run, model, corpus):
    """-> {'box', 'box chance': mean over clips} of the shape that acts, {} without attention"""
    pairs = []
    for video in corpus.ids:
        look = figures.look_at(run, model, corpus, video)
        if look.weights is not None:
            pairs += on_box(look.weights[0], corpus.truth[video]['boxes'][0]).items()
    return means(pairs)


def cell(table, role, measure):
    """-> the mean of this measure, and in brackets its value under even attention, if it has one"""
    if (role, measure) not in table:
        return ''
    chance = table.get((role, f'{measure} chance'))
    return f'{table[role, measure]:.2f}' + (f' ({chance:.2f})' if chance is not None else '')


def row_text(row):
    return '  '.join(f'{name} {value:.3f}' for name, value in row.items())


def report(loaded, split):
    """Compare captioners. A single one is measured in more detail."""
    measures = [(what, role) for what in ('box', 'window') for role in ROLES]
    shares = [['run', *map(', '.join, measures)]]
    numbers = [['run', 'number', *OTHERS, *ROLES]]
    for run, model in loaded:
        corpus = runs.open_split(run, split)
        _, captions, _ = scores.full_scores(run, model, corpus)
        found, keys = ground(run, model, corpus, captions)
        shares.append([run.title, *(cell(found, role, what) for what, role in measures)])
        for label in itertools.chain(*run.paper.VIEW['bars'].values()):
            row = [cell(found, role, label) for role in (*OTHERS, *ROLES)]
            numbers += [[run.title, label, *row]] if any(row) else []
    for table in (shares, numbers):
        if table[1:]:
            print(runs.markdown(table) + '\n')
    if len(loaded) > 1:
        return
    if keys:
        print(f'frames that show the action: {row_text(keys)}')
    print(f'slots that are right in {len(captions)} captions of the {corpus.split} split')
    for name, value in words.slot_table(captions, corpus.truth).items():
        print(f'  {name:24} {value:.3f}')


def main(argv):
    parser = runs.Parser(prog='python -m tools.grounding', description=__doc__)
    runs.add_flags(parser)
    args = parser.parse_args(argv)
    loaded = checkpoints.load_all(args)
    for run, _ in loaded:
        if run.dataset.name != 'shapes':
            raise BadInput(f'{run.path} was trained on {run.dataset.name}, and only the dataset '
                           'shapes comes with the truth')
        if run.recognises and len(loaded) > 1:
            raise BadInput(f'{run.path} recognises actions: measure it without other runs')
    run, model = loaded[0]
    if not run.recognises:
        report(loaded, args.split)
        return
    found = ground_recogniser(run, model, runs.open_split(run, args.split))
    print(f'attention against the truth: {row_text(found) or "this model has no attention"}')


if __name__ == '__main__':
    runs.user_main(main)
