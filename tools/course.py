"""The tables of docs/COURSE.md: what to read, what to run and expect, and the exercises.

`python -m tools.results write` puts them into the page. Line numbers come from the files and scores
from the logs in results/, so neither can become wrong without a failing test.
"""
import ast
from pathlib import Path

from tools.errata import ERRATA
from tools.labs import EXERCISES

TOP = Path(__file__).resolve().parents[1]

# Lab -> [(file, name of a function or class, where the paper says it, what to look for)]
READ = {
    1: [('decode.py', 'word_logp', '', 'why `<pad>` can never be chosen'),
        ('decode.py', 'teacher_force', '', 'the training loop: the next input is a given word'),
        ('decode.py', 'generate', '', 'the same loop, but the model chooses the next input'),
        ('decode.py', 'beam', '', 'follow one row; what happens to the state, and why not to '
                                  'the memory?'),
        ('evaluate.py', 'CiderD', 'arXiv:1411.5726', 'which words count little, and why')],
    2: [('sta.py', 'Recogniser.look', 'Sec. 2.1.2, Eq. 2.4', 'the scores depend on h alone'),
        ('sta.py', 'doubly_stochastic', 'Sec. 2.1.3, Eq. 2.7', 'what is summed, and over what'),
        ('sta.py', 'Captioner.look', 'Sec. 3.1.2, Eq. 3.2', 'one softmax over frames and places'),
        ('sta.py', 'Captioner.step', 'Sec. 3.1.2, Eq. 3.1 to 3.5', 'the gate beta'),
        ('sta.py', 'ContentScores', "the author's code", 'what it reads that Eq. 2.4 does not'),
        ('sta.py', 'glimpse', 'Fig. 2.8', 'gradient descent on where to look')],
    3: [('stats.py', 'Attention', 'Eq. 2', 'additive attention, in two lines'),
        ('stats.py', 'SpaceThenTime', 'Eq. 3 and 8', 'where the order of frames comes in'),
        ('stats.py', 'rank_loss', 'Eq. 6 and 7', 'what makes it small'),
        ('stats.py', 'TimeThenSpace', 'Eq. 9 to 11', 'the temperature; a missing softmax'),
        ('stats.py', 'Visual.forward', 'Eq. 12', 'what the gradient of each branch is multiplied '
                                                 'by'),
        ('stats.py', 'reinforce', 'Sec. 3.4', 'why its gradient matters, but not its value')],
    4: [('c3d.py', 'receptive_field', 'ASTAR, tables 4 and 5', 'size, stride and centre'),
        ('astar.py', 'Convolution', 'Eq. 3', 'one convolution and one pooling bring each layer '
                                             'to the same grid'),
        ('astar.py', 'Captioner.attend', 'Eq. 4 to 9', 'place first, then layer'),
        ('astar.py', 'vimco', 'Eq. 10 to 16', 'the logarithm that the paper forgets')],
    5: [('vre.py', 'KBiGRU', 'Sec. 3.2, Eq. 4 to 7', 'two GRUs that start at the key frame'),
        ('vre.py', 'Refocus', 'Sec. 3.2, Eq. 8 and 9', 'a distribution over frames'),
        ('vre.py', 'refocus_loss', 'Eq. 21', 'the sign, and where the gradient ends'),
        ('vre.py', 'Captioner.choose_key', 'Eq. 10 and 11', 'arg max, or a draw'),
        ('vre.py', 'stages', 'Sec. 4.2', 'which part learns when')],
}

# Lab -> [(table of tools.results, name of a run, [(what is measured, score)])]
RUNS = {
    1: [('puzzles', 'order-mean', [('slots', 'slots')]),
        ('puzzles', 'order-st', [('slots', 'slots')])],
    2: [('puzzles', 'place-printed', [('slots', 'slots')]),
        ('puzzles', 'place-content', [('slots', 'slots')]),
        ('puzzles', 'place-avgpool', [('slots', 'slots')])],
    3: [('puzzles', 'moment-st', [('slots', 'slots')]),
        ('puzzles', 'moment-ts', [('slots', 'slots')]),
        ('puzzles', 'both-stats', [('noun', 'noun'), ('verb', 'verb')]),
        ('puzzles', 'order-stats', [('slots', 'slots')]),
        ('puzzles', 'order-even', [('slots', 'slots')])],
    4: [('puzzles', 'layer-soft', [('noun', 'noun'), ('verb', 'verb')]),
        ('puzzles', 'layer-pool2', [('noun', 'noun'), ('verb', 'verb')]),
        ('puzzles', 'layer-pool5', [('noun', 'noun'), ('verb', 'verb')]),
        ('puzzles', 'layer-random', [('noun', 'noun'), ('verb', 'verb')])],
    5: [('puzzles', 'key-argmax', [('slots', 'slots')]),
        ('puzzles', 'key-drawn', [('slots', 'slots')]),
        ('puzzles', 'key-oracle', [('slots', 'slots')]),
        ('puzzles', 'key-middle', [('slots', 'slots')])],
}


def line_numbers(file, name):
    """A function, class or Class.method of a file -> its first and last line"""
    body = ast.parse((TOP / file).read_text()).body
    for part in name.split('.'):
        node, = (node for node in body if getattr(node, 'name', '') == part)
        body = node.body
    return node.lineno, node.end_lineno


def reading(lab):
    """-> rows of the table of what to read"""
    rows = [['read', 'lines', 'in the paper', 'look for']]
    for file, name, place, remark in READ[lab]:
        first, last = line_numbers(file, name)
        rows.append([f'[`{name}`](../{file}#L{first}-L{last}) in {file}', f'{first} to {last}',
                     place, remark])
    return rows


def exercises(lab):
    """-> rows of the table of exercises"""
    rows = [['exercise', 'function', 'equation', 'difficulty', 'minutes', 'errata lab']]
    for name, one in EXERCISES.items():
        if one.lab == lab:
            printed = '`--as-printed`' if name in ERRATA else ''
            rows.append([f'`{name}`', f'`{one.place}`', one.equation, one.level, str(one.minutes),
                         printed])
    return rows


def expected(lab, logs, cell):
    """-> rows of the table of runs. logs(table, name) -> the logs of all seeds; cell(values) ->
    text"""
    rows = [['command', 'seconds of one core', 'expect']]
    for table, name, asked in RUNS[lab]:
        found = logs(table, name)
        command = found[0]['command'].removesuffix(f' --seed {found[0]["seed"]}')
        seconds = [log['seconds'] for log in found]
        texts = [f'{label} {cell([log["scores"][score] for log in found])}'
                 for label, score in asked]
        rows.append([f'`{command}`', f'{min(seconds):.0f} to {max(seconds):.0f}',
                     ', '.join(texts)])
    return rows
