"""The tables of docs/COURSE.md: what to run and expect, and the exercises.

`python -m tools.results write` puts them into the page, and renews the line numbers of what to
read. Scores come from the logs in results/, so nothing can become wrong without a failing test.
"""
import re
from pathlib import Path

from tools.errata import ERRATA
from tools.labs import EXERCISES, definition

TOP = Path(__file__).resolve().parents[1]

# Lab -> runs of the table `puzzles` of tools.results
RUNS = {
    1: ('order-mean', 'order-st'),
    2: ('place-printed', 'place-content', 'place-avgpool'),
    3: ('moment-st', 'moment-ts', 'both-stats', 'order-stats', 'order-even'),
    4: ('layer-soft', 'layer-pool2', 'layer-pool5', 'layer-random'),
    5: ('key-argmax', 'key-drawn', 'key-oracle', 'key-middle'),
}


def renew_lines(page):
    """The text of a page -> the same with the line numbers of functions as they are now. A function
    is named by a link, its file and the lines: [`NAME`](...) in FILE.py | FIRST to LAST"""
    def renewed(found):
        name, file = found.groups()
        node = definition((TOP / f'{file}.py').read_text(), f'{file}.{name}')
        first, last = node.lineno, node.end_lineno
        return f'[`{name}`](../{file}.py#L{first}-L{last}) in {file}.py | {first} to {last}'

    pattern = r'\[`([\w.]+)`\]\(\S+\) in (\w+)\.py \| \d+ to \d+'
    return re.sub(pattern, renewed, page)


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
