"""Tables of results, made from the logs of runs:  python -m tools.results [run] TABLE

    python -m tools.results              list the tables, and how many of their runs there are
    python -m tools.results TABLE        print a table
    python -m tools.results run TABLE    make the runs that a table lacks; continues if interrupted
    python -m tools.results write        put every table into README.md, docs/RESULTS.md,
                                         docs/COURSE.md and docs/PAPERS.md, and draw
                                         docs/training.png
    python -m tools.results mean RUN ... the final scores of some runs (seeds, or folds of HMDB-51)
                                         and their mean

results/tables.toml says which runs a table has. Each run leaves one small file,
results/TABLE/ROW-SEED.json: its command, versions, epochs and final scores. Every number in a table
is computed from these files, and a test makes the tables in the documents again. So no number is
there without a log. The weights of the runs of `shipped`, and of one run of `msrvtt`, are
stored in shapes/runs/ and come with the project.
"""
import itertools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm

import decode
import evaluate
from data import BadInput, choose
from tools import checkpoints, course, flags, grounding, machine, papers, runs, scores

TOP = Path(__file__).resolve().parents[1]
RESULTS = TOP / 'results'
PAGES = ('README.md', 'docs/RESULTS.md', 'docs/COURSE.md', 'docs/PAPERS.md')
SPECS = tomllib.loads((RESULTS / 'tables.toml').read_text())
PANELS = SPECS.pop('training')
RUNNABLE = [table for table, spec in SPECS.items() if 'runs' in spec]
# Rows without a training of their own:
CONSTANT = 'constant '              # and flags: the best constant caption
ENSEMBLE = 'ensemble '              # and a row: all runs of this row together


# ------------------------------------------------------------------------------------------- logs

def read(table, row):
    """-> what results/TABLE/ROW-SEED.json says, for every seed"""
    found = sorted((RESULTS / table).glob(f'{row}-[0-9].json'))
    return [json.loads(path.read_text()) for path in found]


def number(log, name):
    """-> a final score or, if there is none of this name, a number of the last epoch; or None"""
    return log['scores'].get(name, log['epochs'][-1].get(name) if log['epochs'] else None)


def record(folder, command):
    """Folder of a finished run -> the content of its file in results/"""
    lines = (folder / 'log.jsonl').read_text().splitlines()
    head, *epochs = [json.loads(line) for line in lines]
    path = folder / 'captions.json'                     # test captions are not always public
    final = json.loads((path if path.exists() else folder / 'captions-val.json').read_text())
    kept = [rounded(epoch) for epoch in epochs if 'epoch' in epoch]
    seconds = {epoch.get('stage'): epoch['seconds'] for epoch in kept}      # at the end of a stage
    return {'command': f'python train.py {command} --seed {head["seed"]}', 'seed': head['seed'],
            'git': head['git'], 'python': head['python'], 'torch': head['torch'],
            'machine': f'{platform.machine()}, {os.cpu_count()} cores', 'threads': head['threads'],
            'seconds': sum(seconds.values()), 'split': final['split'], 'beam': final['beam'],
            'length_penalty': final['length_penalty'], 'videos': len(final['videos']),
            'scores': rounded(final['scores']), 'epochs': kept}


def rounded(numbers):
    """{name: value} -> the same with six digits after the point"""
    return {name: round(value, 6) if isinstance(value, float) else value
            for name, value in numbers.items()}


# --------------------------------------------------------------------- more about a finished run

def blind_scores(references, captions, each):
    """id -> references, caption and its scores -> how far CIDEr can be trusted:
    CIDEr error      its standard error: how much it would vary with other videos
    shuffled CIDEr   if every video had the caption of the next one: what English alone gets"""
    values = [scores['CIDEr'] for scores in each.values()]
    ids = list(captions)
    shuffled = {i: [captions[other]] for i, other in zip(ids, ids[1:] + ids[:1])}
    totals, _ = evaluate.score(references, shuffled, quick=True)
    return {'CIDEr error': statistics.stdev(values) / len(values) ** 0.5,
            'shuffled CIDEr': totals['CIDEr']}


def measure(folder, root):
    """Folder of a finished run -> {name: number}: blind_scores() and, on shapes, what grounding.py
    measures, such as `box subject`"""
    run, model = checkpoints.load(folder, root)
    corpus = runs.open_split(run)
    if run.recognises:
        return grounding.ground_recogniser(run, model, corpus) if corpus.truth else {}
    _, captions, each = scores.full_scores(run, model, corpus)
    found = blind_scores(corpus.captions, captions, each)
    if corpus.truth:
        roles, keys = grounding.ground(run, model, corpus, captions)
        found |= {f'{name} {role}': value for (role, name), value in roles.items()}
        found |= keys
    return found


def constant_caption(references):
    """id -> list of str -> of the 500 most frequent captions, the one with the best mean CIDEr"""
    count = Counter(itertools.chain.from_iterable(references.values()))
    frequent = [caption for caption, _ in count.most_common(500)]
    cider = evaluate.CiderD(references)
    ids = list(references)
    return max(frequent, key=lambda caption: cider.score(ids, [caption] * len(ids)).mean())


def constant_run(command, root):
    """Score the best constant caption of the training videos on the test videos -> record"""
    _, run, _ = flags.parse([*command.removeprefix(CONSTANT).split(), '--root', root])
    train, _ = runs.open_training(run)
    corpus = runs.open_split(run)
    caption = constant_caption(train.captions)
    said = dict.fromkeys(corpus.ids, caption)
    totals, each = evaluate.score(corpus.captions, {i: [caption] for i in said})
    return {'caption': caption, **summary(command, corpus, (totals, said, each))}


def ensemble_run(command, table, root):
    """Score the runs of one row together, on the test videos -> record"""
    row = command.removeprefix(ENSEMBLE)
    folders = sorted(Path('runs', table).glob(f'{row}-[0-9]'))
    if len(folders) < 2:
        raise BadInput(f'runs/{table}/{row}-*: an ensemble needs several runs, found '
                       f'{len(folders)}; to train them, move their logs out of results/{table}')
    loaded = [checkpoints.load(folder, root) for folder in folders]
    run, _ = loaded[0]
    corpus = runs.open_all(loaded)
    model = decode.Ensemble([model for _, model in loaded])
    found = evaluate.evaluate(run, model, corpus, run.training.beam, quick=False)
    return {'runs': len(loaded), 'beam': run.training.beam,
            'length_penalty': run.training.length_penalty, **summary(command, corpus, found)}


def summary(command, corpus, found):
    """found: what evaluate.evaluate() returned -> record of a row without a training"""
    totals, said, each = found
    totals = totals | blind_scores(corpus.captions, said, each)
    return {'command': command, 'seed': 0, 'split': corpus.split, 'videos': len(said),
            'scores': rounded(totals), 'epochs': []}


# ------------------------------------------------------------------------------------------- runs

def missing(table, seeds=None):
    """-> [(row, seed)] of the runs that have no file yet. A row without training has one run."""
    spec = SPECS[table]
    seeds = seeds or spec.get('seeds', 3)
    found = []
    for row, command in spec['runs'].items():
        single = row in spec.get('once', ()) or command.startswith((CONSTANT, ENSEMBLE))
        for seed in range(1 if single else seeds):
            if not (RESULTS / table / f'{row}-{seed}.json').exists():
                found.append((row, seed))
    return found


def command_of(table, row, seed):
    """-> flags of train.py. FOLD is the number of a split: seed 0 has the first one."""
    return SPECS[table]['runs'][row].replace('FOLD', str(seed + 1))


def make_run(table, row, seed, root):
    """Train and score one run in a process of its own, then write its file in results/."""
    command = command_of(table, row, seed)
    if command.startswith(CONSTANT):
        found = constant_run(command, root)
    elif command.startswith(ENSEMBLE):
        found = ensemble_run(command, table, root)
    else:
        folder = train(table, row, seed, root)
        found = record(folder, command)
        found['scores'] |= rounded(measure(folder, root))
    path = RESULTS / table / f'{row}-{seed}.json'
    path.parent.mkdir(parents=True, exist_ok=True)
    with machine.replacing(path) as temporary:
        temporary.write_text(json.dumps(found))
    if table == 'shipped' and seed == 0:
        ship(folder, row)
    elif row == SPECS[table].get('ship') and seed == 0:
        ship(folder, table)


def train(table, row, seed, root):
    """Run train.py, or continue it -> the folder of the run"""
    folder = Path('runs') / table / f'{row}-{seed}'
    command = [sys.executable, str(TOP / 'train.py'), '--out', str(folder), '--root', root]
    if (folder / 'last.pt').exists():
        command.append('--resume')
    else:
        command += [*command_of(table, row, seed).split(), '--seed', str(seed)]
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {'OMP_NUM_THREADS': '1'}     # several runs share the cores
    with open(folder / 'output.txt', 'a') as output:
        done = subprocess.run(command, stdout=output, stderr=output, env=environment)
    if done.returncode:
        raise BadInput(f'{row}, seed {seed} stopped with exit code {done.returncode}; see '
                       f'{folder}/output.txt')
    return folder


def ship(folder, name):
    """Store the best weights of a run in shapes/runs/NAME, in half precision, without the state of
    the optimizer."""
    checkpoint = checkpoints.read_checkpoint(folder)
    weights = {key: value.half() if value.is_floating_point() else value
               for key, value in checkpoint['state_dict'].items()}
    kept = {key: value for key, value in checkpoint.items() if key not in ('optimizer', 'rng')}
    target = TOP / 'shapes' / 'runs' / name
    target.mkdir(parents=True, exist_ok=True)
    torch.save({**kept, 'state_dict': weights}, target / 'best.pt')


def make_runs(table, args):
    """Make the missing runs of a table, several at a time, then its ensembles. A run that fails
    stops none of the others."""
    failed = []
    torch.set_num_threads(1)
    todo = missing(table, args.seeds)
    late = [(row, seed) for row, seed in todo if SPECS[table]['runs'][row].startswith(ENSEMBLE)]
    with ThreadPoolExecutor(args.jobs) as pool:
        started = [pool.submit(make_run, table, row, seed, args.root)
                   for row, seed in todo if (row, seed) not in late]
        try:
            for run in tqdm(started, desc=table, unit=' runs'):
                if run.exception():
                    failed.append(str(run.exception()))
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)              # those that run save and stop
            raise
    if failed:                                              # ensembles need all of their runs
        raise BadInput('; '.join(failed))
    for row, seed in late:
        make_run(table, row, seed, args.root)


# ----------------------------------------------------------------------------------------- tables

def mean_and_range(values, digits=2):
    """-> text such as "0.98 (0.97 to 0.99)" """
    if not values:
        return ''
    mean = sum(values) / len(values)
    mean, low, high = [f'{value:.{digits}f}' for value in (mean, min(values), max(values))]
    return mean if low == high else f'{mean} ({low} to {high})'


def puzzle_cells(cells):
    """[(label, run, slot)] -> text such as "ST 0.98 (0.97 to 0.99), TS 1.00" """
    texts = []
    for label, row, slot in cells:
        values = [log['scores'][slot] for log in read('puzzles', row)]
        texts.append(f'{label} {mean_and_range(values)}')
    return ', '.join(texts)


def puzzles_table():
    rows = [[f'`{row["name"]}`', row['question'], puzzle_cells(row['with']),
             puzzle_cells(row['without'])] for row in SPECS['puzzles']['rows']]
    return [['puzzle', 'the answer depends on', 'with the mechanism', 'without it'], *rows]


def runs_table(table):
    """One row per run, one column per number: mean and range over the seeds"""
    spec = SPECS[table]
    paper = spec.get('paper', {})
    labels = {row: f'`{command}`' for row, command in spec.get('runs', {}).items()}
    rows = [['run', 'seeds', *spec['columns'], *([paper['heading']] if paper else [])]]
    for row, label in (labels | spec.get('labels', {})).items():
        logs = read(spec.get('of', table), row)
        cells = []
        for name in spec['columns'].values():
            values = [number(log, name) for log in logs]
            found = [value for value in values if value is not None]
            cells.append(mean_and_range(found, spec.get('digits', 3)))
        if not logs:
            cells[0] = 'not run'
        rows.append([label, str(len(logs)), *cells, *([paper.get(row, '')] if paper else [])])
    return rows


def mean_table(folders):
    """Folders of runs that evaluate.py has scored -> their scores, and the mean of each"""
    if not folders:
        raise BadInput('mean: name the runs, such as runs/fold-1 runs/fold-2 runs/fold-3')
    found = []
    for folder in folders:
        path = Path(folder) / 'captions.json'
        try:
            found.append(json.loads(path.read_text())['scores'])
        except (OSError, ValueError, KeyError, TypeError):
            raise BadInput(f'{path}: no scores there; make them: python evaluate.py '
                           f'{folder}') from None
    names = [name for name in found[0] if all(name in scores for scores in found)]
    mean = {name: sum(scores[name] for scores in found) / len(found) for name in names}
    rows = [['run', *names]]
    for label, values in zip([*folders, 'mean'], [*found, mean]):
        rows.append([label, *(f'{values[name]:.3f}' for name in names)])
    return rows


TABLES = {table: partial(runs_table, table) for table in SPECS}
TABLES['puzzles'] = puzzles_table
for name in papers.tagged_files():
    TABLES[f'differences-{name}'] = partial(papers.rows, name)
for lab in course.RUNS:
    TABLES[f'lab-{lab}-exercises'] = partial(course.exercises, lab)
    TABLES[f'lab-{lab}-runs'] = partial(course.expected, lab, read, puzzle_cells)


def fill(page):
    """The text of a page -> the same with every table made again, and with the line numbers of
    functions. A table stands between the comments `<!-- table NAME -->` and `<!-- end of table
    -->`."""
    def made_again(found):
        start, name, end = found.groups()
        if not end:
            raise BadInput(f'table {name}: its end mark is missing')
        choose('table', name, TABLES)
        return f'{start}{runs.markdown(TABLES[name]())}\n{end}'

    page = re.sub(r'(<!-- table (\S+) -->\n).*?(<!-- end of table -->|\Z)', made_again, page,
                  flags=re.S)
    return course.renew_lines(page)


def draw_training(path):
    """Draw how attention moves from epoch to epoch: one panel per entry of PANELS, one line per
    seed -> the figure"""
    from matplotlib.figure import Figure                # takes a second to import
    figure = Figure((11, 5.6), layout='constrained')
    for panel, axes in zip(PANELS, figure.subplots(2, 2).flat):
        for index, (label, run, name) in enumerate(panel['lines']):
            for log in read(*run.split('/')):
                values = [epoch[name] for epoch in log['epochs'] if name in epoch]
                axes.plot(range(1, len(values) + 1), values, color=f'C{index}', label=label)
                label = ''                              # once in the legend
        axes.set_title(panel['title'], fontsize=10)
        axes.set_xlabel('epoch')
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_ylim(-0.03, 1.03)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=100)
    return figure


def main(argv):
    parser = runs.Parser(prog='python -m tools.results', description=__doc__)
    parser.add_argument('words', nargs='*', metavar='WORD',
                        help=f'as above; the tables are {", ".join(RUNNABLE)}')
    parser.add_argument('--seeds', type=int, metavar='N',
                        help='runs per row, with seeds from 0 on (default: as tables.toml says)')
    parser.add_argument('--jobs', type=int, default=os.cpu_count(),
                        help='runs at a time, with one thread each (default: %(default)s)')
    parser.add_argument('--root', default='data', help='folder of the datasets (default: data)')
    args = parser.parse_args(argv)
    if args.jobs < 1 or args.seeds is not None and args.seeds < 1:
        raise BadInput('--seeds and --jobs must be at least 1')
    match args.words:
        case []:
            for table in RUNNABLE:
                todo = len(missing(table, args.seeds))
                there = len(list((RESULTS / table).glob('*.json')))
                print(f'{table}: {there} of {there + todo} runs')
        case ['mean', *folders]:
            print(runs.markdown(mean_table(folders)))
        case ['write']:
            for name in PAGES:
                page = (TOP / name).read_text(encoding='utf-8')
                (TOP / name).write_text(fill(page), encoding='utf-8')
            draw_training(TOP / 'docs' / 'training.png')
        case [table]:
            choose('table', table, TABLES)
            print(runs.markdown(TABLES[table]()))
        case ['run', table]:
            choose('table', table, RUNNABLE)
            make_runs(table, args)
            print(runs.markdown(TABLES[table]()))
        case _:
            raise BadInput(f'{" ".join(args.words)}: expected `run TABLE` or `TABLE`')


if __name__ == '__main__':
    runs.user_main(main)
