"""The tables of docs/COURSE.md: what to read, what to run and expect, and the exercises.

`python -m tools.results write` puts them into the page. Line numbers come from the files and scores
from the logs in results/, so neither can become wrong without a failing test.
"""
from pathlib import Path

from tools.errata import ERRATA
from tools.labs import EXERCISES, definition

TOP = Path(__file__).resolve().parents[1]

# Lab -> [(file.function or file.Class.method, where the paper says it, what to look for)]
READ = {
    1: [('decode.word_logp', '', 'why `<pad>` can never be chosen'),
        ('decode.teacher_force', '', 'the training loop: the next input is a given word'),
        ('decode.generate', '', 'the same loop, but the model chooses the next input'),
        ('decode.beam', '',
         'follow one row; what happens to the state, and why not to the memory?'),
        ('evaluate.CiderD', 'arXiv:1411.5726', 'which words count little, and why')],
    2: [('sta.Recogniser.look', 'Sec. 2.1.2, Eq. 2.4', 'the scores depend on h alone'),
        ('sta.doubly_stochastic', 'Sec. 2.1.3, Eq. 2.7', 'what is summed, and over what'),
        ('sta.Captioner.look', 'Sec. 3.1.2, Eq. 3.2', 'one softmax over frames and places'),
        ('sta.Captioner.step', 'Sec. 3.1.2, Eq. 3.1 to 3.5', 'the gate beta'),
        ('sta.ContentScores', "the author's code", 'what it reads that Eq. 2.4 does not'),
        ('sta.glimpse', 'Fig. 2.8', 'gradient descent on where to look')],
    3: [('stats.Attention', 'Eq. 2', 'additive attention, in two lines'),
        ('stats.SpaceThenTime', 'Eq. 3 and 8', 'where the order of frames comes in'),
        ('stats.rank_loss', 'Eq. 6 and 7', 'what makes it small'),
        ('stats.TimeThenSpace', 'Eq. 9 to 11', 'the temperature; a missing softmax'),
        ('stats.Visual.forward', 'Eq. 12', 'what the gradient of each branch is multiplied by'),
        ('stats.reinforce', 'Sec. 3.4', 'why its gradient matters, but not its value')],
    4: [('c3d.receptive_field', 'ASTAR, tables 4 and 5', 'size, stride and centre'),
        ('astar.Convolution', 'Eq. 3',
         'one convolution and one pooling bring each layer to the same grid'),
        ('astar.Captioner.attend', 'Eq. 4 to 9', 'place first, then layer'),
        ('astar.vimco', 'Eq. 10 to 16', 'the logarithm that the paper forgets')],
    5: [('vre.KBiGRU', 'Sec. 3.2, Eq. 4 to 7', 'two GRUs that start at the key frame'),
        ('vre.Refocus', 'Sec. 3.2, Eq. 8 and 9', 'a distribution over frames'),
        ('vre.refocus_loss', 'Eq. 21', 'the sign, and where the gradient ends'),
        ('vre.Captioner.choose_key', 'Eq. 10 and 11', 'arg max, or a draw'),
        ('vre.stages', 'Sec. 4.2', 'which part learns when')],
}

# Lab -> runs of the table `puzzles` of tools.results
RUNS = {
    1: ('order-mean', 'order-st'),
    2: ('place-printed', 'place-content', 'place-avgpool'),
    3: ('moment-st', 'moment-ts', 'both-stats', 'order-stats', 'order-even'),
    4: ('layer-soft', 'layer-pool2', 'layer-pool5', 'layer-random'),
    5: ('key-argmax', 'key-drawn', 'key-oracle', 'key-middle'),
}


def reading(lab):
    """-> rows of the table of what to read"""
    rows = [['read', 'lines', 'in the paper', 'look for']]
    for place, where, remark in READ[lab]:
        file, name = place.split('.', 1)
        node = definition((TOP / f'{file}.py').read_text(), place)
        link = f'../{file}.py#L{node.lineno}-L{node.end_lineno}'
        rows.append([f'[`{name}`]({link}) in {file}.py', f'{node.lineno} to {node.end_lineno}',
                     where, remark])
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


def expected(lab, logs, cells):
    """-> rows of the table of runs. logs and cells: read() and puzzle_cells() of tools.results"""
    rows = [['command', 'seconds of training', 'expect']]
    for name in RUNS[lab]:
        found = logs('puzzles', name)
        command = found[0]['command'].removesuffix(f' --seed {found[0]["seed"]}')
        seconds = [log['seconds'] for log in found]
        both = {'noun', 'verb'} <= found[0]['scores'].keys()    # else `slots` is the only one
        asked = ('noun', 'verb') if both else ('slots',)
        rows.append([f'`{command}`', f'{max(seconds):.0f}',
                     cells([(score, name, score) for score in asked])])
    return rows
