"""Tables of results, made from the logs of runs:  python -m tools.results [run] TABLE

    python -m tools.results              list the tables, and how many of their runs there are
    python -m tools.results TABLE        print a table
    python -m tools.results run TABLE    make the runs that a table lacks; continues if interrupted
    python -m tools.results write        put every table into README.md, docs/RESULTS.md and
                                         docs/COURSE.md
    python -m tools.results mean RUN ... the final scores of some runs (seeds, or folds of HMDB-51)
                                         and their mean

`run shipped` also stores the weights of its runs in shapes/runs/, which come with the project.
Each run leaves one small file, results/TABLE/NAME-SEED.json: its command, versions, epochs and
final scores. Every number in a table is computed from these files, and a test makes the tables in
the documents again. So no number stands there without a log.
"""
import argparse
import json
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm

from data import BadInput, choose
from tools import checkpoints, course, machine, runs

TOP = Path(__file__).resolve().parents[1]
RESULTS = TOP / 'results'
PAGES = ('README.md', 'docs/RESULTS.md', 'docs/COURSE.md')

# Table -> name of a run -> flags of train.py
RUNS = {
    'shipped': {
        'stats': '--model stats',
        'vre': '--model vre',
        'sta': '--model sta --hidden 192',
        'astar': '--model astar --variant soft --align-init identity',
        'c3d': '--model c3d --width 5',
    },
    'stats': {
        'even': '--model stats --even-mix 4',
        'printed': '--model stats --even-mix 0',
        'st': '--model stats --variant st',
        'ts': '--model stats --variant ts',
        'mean': '--model stats --variant st --pool mean',
        'mean+lstm': '--model stats --variant st --pool mean+lstm',
        'lstm': '--model stats --variant st --pool lstm',
        'ranked': '--model stats --variant st --pool ranked',
        'temporal': '--model stats --variant st --pool temporal',
        'mean+temporal': '--model stats --variant st --pool mean+temporal',
    },
    'puzzles': {
        'place-content': '--model sta --dataset puzzle-place --scores content',
        'place-printed': '--model sta --dataset puzzle-place --scores printed',
        'place-avgpool': '--model sta --dataset puzzle-place --variant avgpool',
        'place-st': '--model stats --dataset puzzle-place --variant st',
        'place-ts': '--model stats --dataset puzzle-place --variant ts',
        'order-st': '--model stats --dataset puzzle-order --variant st',
        'order-ts': '--model stats --dataset puzzle-order --variant ts',
        'order-mean': '--model stats --dataset puzzle-order --variant st --pool mean',
        'order-stats': '--model stats --dataset puzzle-order',
        'order-even': '--model stats --dataset puzzle-order --even-mix 5',
        'moment-ts': '--model stats --dataset puzzle-moment --variant ts',
        'moment-st': '--model stats --dataset puzzle-moment --variant st',
        'both-stats': '--model stats --dataset puzzle-both',
        'both-st': '--model stats --dataset puzzle-both --variant st',
        'both-ts': '--model stats --dataset puzzle-both --variant ts',
        'key-drawn': '--model vre --dataset puzzle-key --key drawn',
        'key-argmax': '--model vre --dataset puzzle-key --key argmax',
        'key-oracle': '--model vre --dataset puzzle-key --key oracle --features symbols sound key',
        'key-middle': '--model vre --dataset puzzle-key --key middle',
        'key-random': '--model vre --dataset puzzle-key --key random',
        'layer-soft': '--model astar --dataset puzzle-layer --variant soft',
        'layer-random': '--model astar --dataset puzzle-layer --align-init random',
        'layer-hard': '--model astar --dataset puzzle-layer --variant hard',
        'layer-pool2': '--model astar --dataset puzzle-layer --variant pool2',
        'layer-pool3': '--model astar --dataset puzzle-layer --variant pool3',
        'layer-pool4': '--model astar --dataset puzzle-layer --variant pool4',
        'layer-pool5': '--model astar --dataset puzzle-layer --variant pool5',
    },
}

SCORES = {'Bleu_4': 'BLEU-4', 'METEOR': 'METEOR', 'ROUGE_L': 'ROUGE-L', 'CIDEr': 'CIDEr',
          'slots': 'slots', 'accuracy': 'accuracy'}

# What the paper reports, on MSVD (table 1) and on MSR-VTT (table 2, a run of ST)
STATS_CIDER = {
    'even': '', 'printed': '0.802 (MSVD)', 'st': '0.742 (MSVD), 0.404 (MSR-VTT)',
    'ts': '0.521 (MSVD)', 'mean': '0.389 (MSR-VTT)', 'mean+lstm': '0.388 (MSR-VTT)',
    'lstm': '0.385 (MSR-VTT)', 'ranked': '0.387 (MSR-VTT)', 'temporal': '0.382 (MSR-VTT)',
    'mean+temporal': '0.385 (MSR-VTT)',
}

# Puzzle -> what the answer depends on; cells with the mechanism, and cells without it. A cell is a
# label, the name of a run and the slot of the caption that is scored.
PUZZLES = {
    'place': ('which place is marked',
              [('STA, content scores', 'place-content', 'slots'), ('ST', 'place-st', 'slots'),
               ('TS', 'place-ts', 'slots')],
              [('STA as printed', 'place-printed', 'slots'),
               ('average pooling', 'place-avgpool', 'slots')]),
    'order': ('which of two symbols comes first',
              [('ST', 'order-st', 'slots'),
               ('STaTS with `--even-mix 5`', 'order-even', 'slots')],
              [('TS', 'order-ts', 'slots'), ('mean over time', 'order-mean', 'slots'),
               ('STaTS as printed', 'order-stats', 'slots')]),
    'moment': ('the place of a spotlight in the one frame that flashes',
               [('TS', 'moment-ts', 'slots')], [('ST', 'moment-st', 'slots')]),
    'both': ('a noun as in `moment` and a verb as in `order`',
             [('STaTS, noun', 'both-stats', 'noun'), ('verb', 'both-stats', 'verb')],
             [('ST, noun', 'both-st', 'noun'), ('TS, verb', 'both-ts', 'verb')]),
    'key': ('the symbol after the one that the sound names',
            [('VRE, drawn key', 'key-drawn', 'slots'), ('true key', 'key-oracle', 'slots')],
            [('VRE as printed (arg max)', 'key-argmax', 'slots'),
             ('middle', 'key-middle', 'slots'), ('random', 'key-random', 'slots')]),
    'layer': ('a noun in the lowest map, a verb in the highest',
              [('ASTAR, soft', 'layer-soft', 'slots'), ('hard', 'layer-hard', 'slots')],
              [('pool2, verb', 'layer-pool2', 'verb'), ('pool3, noun', 'layer-pool3', 'noun'),
               ('verb', 'layer-pool3', 'verb'), ('pool4, noun', 'layer-pool4', 'noun'),
               ('verb', 'layer-pool4', 'verb'), ('pool5, noun', 'layer-pool5', 'noun'),
               ('soft with a random alignment, noun', 'layer-random', 'noun')]),
}


# ------------------------------------------------------- files
def read(table, name):
    """-> what results/TABLE/NAME-SEED.json says, for every seed"""
    found = sorted((RESULTS / table).glob(f'{name}-[0-9].json'))
    return [json.loads(path.read_text()) for path in found]


def record(folder, flags):
    """Folder of a finished run -> the content of its file in results/"""
    lines = (folder / 'log.jsonl').read_text().splitlines()
    head, *epochs = [json.loads(line) for line in lines]
    final = json.loads((folder / 'captions.json').read_text())
    kept = []
    for epoch in epochs:
        if 'epoch' in epoch:
            kept.append({name: rounded(value) for name, value in epoch.items()})
    return {'command': f'python train.py {flags} --seed {head["seed"]}', 'seed': head['seed'],
            'git': head['git'], 'python': head['python'], 'torch': head['torch'],
            'machine': f'{platform.machine()}, {os.cpu_count()} cores', 'threads': head['threads'],
            'seconds': sum(part[-1]['seconds'] for part in stages_of(kept)),
            'split': final['split'], 'beam': final['beam'], 'videos': len(final['videos']),
            'scores': {name: rounded(value) for name, value in final['scores'].items()},
            'epochs': kept}


def rounded(value):
    return round(value, 6) if isinstance(value, float) else value


def stages_of(epochs):
    """Epochs -> lists of epochs, one for each stage: the seconds start again in every stage"""
    stages = {}
    for epoch in epochs:
        stages.setdefault(epoch.get('stage', ''), []).append(epoch)
    return list(stages.values())


# ------------------------------------------------------- runs
def missing(table, seeds):
    """-> [(name, seed)] of the runs that have no file yet"""
    return [(name, seed) for name in RUNS[table] for seed in range(seeds)
            if not (RESULTS / table / f'{name}-{seed}.json').exists()]


def make_run(table, name, seed):
    """Train and score one run in a process of its own, then write its file in results/."""
    flags = RUNS[table][name]
    folder = Path('runs') / table / f'{name}-{seed}'
    command = [sys.executable, str(TOP / 'train.py'), '--out', str(folder)]
    if (folder / 'last.pt').exists():
        command.append('--resume')
    else:
        command += [*flags.split(), '--seed', str(seed)]
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {'OMP_NUM_THREADS': '1'}     # several runs share the cores
    with open(folder / 'output.txt', 'a') as output:
        done = subprocess.run(command, stdout=output, stderr=output, env=environment)
    if done.returncode:
        raise BadInput(f'{name}, seed {seed} stopped with exit code {done.returncode}; see '
                       f'{folder}/output.txt')
    path = RESULTS / table / f'{name}-{seed}.json'
    path.parent.mkdir(parents=True, exist_ok=True)
    with machine.replacing(path) as temporary:
        temporary.write_text(json.dumps(record(folder, flags)))
    if table == 'shipped':
        ship(folder, name)


def ship(folder, name):
    """Store the best weights of a run in shapes/runs/NAME, in half precision, without the state of
    the optimizer."""
    checkpoint = checkpoints.read_checkpoint(folder)
    weights = {}
    for key, value in checkpoint['state_dict'].items():
        weights[key] = value.half() if value.is_floating_point() else value
    kept = {key: value for key, value in checkpoint.items() if key not in ('optimizer', 'rng')}
    target = TOP / 'shapes' / 'runs' / name
    target.mkdir(parents=True, exist_ok=True)
    torch.save({**kept, 'state_dict': weights}, target / 'best.pt')


def make_runs(table, seeds, jobs):
    """Make the missing runs of a table, several at a time. A run that fails stops none of the
    others."""
    todo = missing(table, seeds)
    failed = []
    with ThreadPoolExecutor(jobs) as pool:
        started = [pool.submit(make_run, table, name, seed) for name, seed in todo]
        try:
            for run in tqdm(started, desc=table, unit=' runs'):
                if run.exception():
                    failed.append(str(run.exception()))
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)              # those that run save and stop
            raise
    if failed:
        raise BadInput('; '.join(failed))


# ------------------------------------------------------- tables
def mean_and_range(values, digits=2):
    """-> text such as "0.98 (0.97 to 0.99)" """
    if not values:
        return 'not run'
    mean = f'{sum(values) / len(values):.{digits}f}'
    low = f'{min(values):.{digits}f}'
    high = f'{max(values):.{digits}f}'
    if low == high:
        return mean
    return f'{mean} ({low} to {high})'


def puzzle_cells(cells):
    """[(label, run, slot)] -> text such as "ST 0.98 (0.97 to 0.99), TS 1.00" """
    texts = []
    for label, name, slot in cells:
        values = [run['scores'][slot] for run in read('puzzles', name)]
        texts.append(f'{label} {mean_and_range(values)}')
    return ', '.join(texts)


def puzzles_table():
    rows = [['puzzle', 'the answer depends on', 'with the mechanism', 'without it']]
    for name, (question, with_it, without) in PUZZLES.items():
        rows.append([f'`{name}`', question, puzzle_cells(with_it), puzzle_cells(without)])
    return rows


def stats_table():
    """Tables 1 and 2 of STaTS on shapes. ST's weights are those after the last epoch."""
    rows = [['run', 'seeds', 'CIDEr', 'slots', 'order-only actions', "ST's weight at verbs",
             'at direction words', "paper's CIDEr"]]
    for name, flags in RUNS['stats'].items():
        logs = read('stats', name)
        cells = [mean_and_range([log['scores'][score] for log in logs], 3)
                 for score in ('CIDEr', 'slots', 'order')]
        for word in ('ST verb', 'ST direction'):
            weights = [log['epochs'][-1][word] for log in logs if word in log['epochs'][-1]]
            cells.append(mean_and_range(weights) if '--even-mix' in flags else '')
        label = flags.removeprefix('--model stats ')
        rows.append([f'`{label}`', str(len(logs)), *cells, STATS_CIDER[name]])
    return rows


def shipped_table():
    rows = [['run', *SCORES.values()]]
    for name in RUNS['shipped']:
        for run in read('shipped', name):
            cells = [f'{run["scores"][score]:.3f}' if score in run['scores'] else ''
                     for score in SCORES]
            rows.append([f'`shapes/runs/{name}`', *cells])
    return rows


def mean_table(folders):
    """Folders of runs that evaluate.py has scored -> their scores, and the mean of each"""
    found = []
    for folder in folders:
        path = Path(folder) / 'captions.json'
        try:
            found.append(json.loads(path.read_text())['scores'])
        except (OSError, ValueError, KeyError, TypeError):
            raise BadInput(f'{path}: no scores there; make them: python evaluate.py '
                           f'{folder}') from None
    names = [name for name in found[0] if all(name in scores for scores in found)]
    rows = [['run', *names]]
    for folder, scores in zip(folders, found):
        rows.append([str(folder), *(f'{scores[name]:.3f}' for name in names)])
    means = [sum(scores[name] for scores in found) / len(found) for name in names]
    return [*rows, ['mean', *(f'{mean:.3f}' for mean in means)]]


TABLES = {'shipped': shipped_table, 'puzzles': puzzles_table, 'stats': stats_table}
for lab in course.READ:
    TABLES[f'lab-{lab}-reading'] = partial(course.reading, lab)
    TABLES[f'lab-{lab}-exercises'] = partial(course.exercises, lab)
    TABLES[f'lab-{lab}-runs'] = partial(course.expected, lab, read, mean_and_range)


def markdown(rows):
    """Lists of cells, the first one the head -> text"""
    head, *body = rows
    lines = [head, ['---'] * len(head), *body]
    return '\n'.join('| ' + ' | '.join(cells) + ' |' for cells in lines)


def fill(page):
    """The text of a page -> the same with every table made again. A table stands between the
    comments `<!-- table NAME -->` and `<!-- end of table -->`."""
    for name, table in TABLES.items():
        start = f'<!-- table {name} -->\n'
        if start not in page:
            continue
        before, _, rest = page.partition(start)
        _, end, after = rest.partition('<!-- end of table -->')
        if not end:
            raise BadInput(f'table {name}: its end mark is missing')
        page = before + start + markdown(table()) + '\n' + end + after
    return page


def main(argv):
    parser = argparse.ArgumentParser(prog='python -m tools.results', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('words', nargs='*', metavar='WORD',
                        help=f'as above; the tables are {", ".join(TABLES)}')
    parser.add_argument('--seeds', type=int, metavar='N',
                        help='runs per row, with seeds from 0 on (default: 3; 1 for shipped)')
    parser.add_argument('--jobs', type=int, default=os.cpu_count(),
                        help='runs at a time, with one thread each (default: %(default)s)')
    args = parser.parse_args(argv)
    if args.jobs < 1 or args.seeds is not None and args.seeds < 1:
        raise BadInput('--seeds and --jobs must be at least 1')
    seeds = {table: args.seeds or (1 if table == 'shipped' else 3) for table in RUNS}
    if not args.words:
        for table, names in RUNS.items():
            total = seeds[table] * len(names)
            print(f'{table}: {total - len(missing(table, seeds[table]))} of {total} runs')
        return
    if args.words[0] == 'mean':
        if len(args.words) == 1:
            raise BadInput('mean: name the runs, such as runs/fold-1 runs/fold-2 runs/fold-3')
        print(markdown(mean_table(args.words[1:])))
        return
    *verb, table = args.words
    if table == 'write':
        for name in PAGES:
            page = (TOP / name).read_text(encoding='utf-8')
            (TOP / name).write_text(fill(page), encoding='utf-8')
        return
    choose('table', table, TABLES)
    if verb not in ([], ['run']):
        raise BadInput(f'{" ".join(verb)}: expected `run TABLE` or `TABLE`')
    if verb:
        choose('table', table, RUNS)
        make_runs(table, seeds[table], args.jobs)
    print(markdown(TABLES[table]()))


if __name__ == '__main__':
    runs.user_main(main)
