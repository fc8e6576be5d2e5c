"""The flags of train.py, and the Run that they describe. Every value is checked here, before
anything is rendered, loaded or trained.
"""
import argparse
import dataclasses
import inspect
import math
import re
import sys
from pathlib import Path

import torch

import data
import evaluate
from data import BadInput
from shapes import puzzles
from tools import datasets, runs
from tools.runs import Training


def make_parser(paper=None):
    """The flags of a run and, if a paper is given, one flag per field of its Config"""
    parser = argparse.ArgumentParser(description='Train one of the papers.', add_help=False,
                                     allow_abbrev=False)
    group = parser.add_argument_group('the run')
    add = group.add_argument
    add('-h', '--help', action='store_true',
        help='this page; with --model NAME, the flags of that paper')
    add('--model', choices=runs.papers(), help='the paper (default: stats)')
    add('--dataset', choices=datasets.NAMES,
        help='the dataset (default: shapes, the embedded world)')
    add('--root', default='data', help='folder that contains DATASET/ (default: data)')
    add('--out', help='folder of the run (default: a new one, runs/MODEL-DATASET)')
    add('--resume', action='store_true',
        help='continue the run in --out (default: the newest in runs/)')
    add('--seed', type=int,
        help='the same seed gives the same numbers on a CPU, and the same puzzle (default: 0)')
    add('--split-scheme', choices=datasets.SCHEMES,
        help='which split: astar and vre for msrvtt; hash, 8 : 1 : 1 by the ids, for any captions '
             '(default: official)')
    add('--partial', action='store_true', default=None,
        help='use the videos that have features, and ignore the others')
    add('--fold', type=int, choices=(1, 2, 3), help='hmdb51: which of its splits (default: 1)')
    add('--limit', type=int, metavar='N', help='use only the first N videos of each split')
    add('--metric',
        help='validation score that selects the best epoch (default: CIDEr, accuracy or mAP)')
    add('--word2vec', metavar='FILE', help="start the word embedding from these vectors (Google's "
                                           '.bin, or text)')
    add('--device', default='cuda' if torch.cuda.is_available() else 'cpu',
        help='cpu or cuda (default: %(default)s)')
    add('--threads', type=int, metavar='N', help='threads that compute (default: one per core); '
        'use 1 if other programs are busy')
    add('--amp', action='store_true', help='compute in bfloat16 (needs a GPU)')
    if paper:
        group = parser.add_argument_group(f'the paper: {paper.name}.py, class Config')
        add_fields(group, paper, paper.Config)
        group = parser.add_argument_group('the training')
        add_fields(group, paper, Training, skip=paper.fields())
    return parser


def add_fields(group, paper, config, skip=()):
    """One flag per field. Its help is the comment at the end of the field's line."""
    comments = dict(re.findall(r'^ +(\w+): .*?# (.*)$', inspect.getsource(config), re.M))
    for one in dataclasses.fields(config):
        if one.name in skip:
            continue
        kind = type(one.default)
        options = {'type': kind, 'metavar': kind.__name__.upper()}
        if kind is bool:
            options = {'action': argparse.BooleanOptionalAction}
        elif kind is tuple:
            options = {'nargs': '+', 'metavar': 'NAME'}
        elif one.name == 'variant':
            options = {'choices': paper.VARIANTS}
        flag = '--' + one.name.replace('_', '-')
        group.add_argument(flag, dest=f'cfg_{one.name}',
                           help=comments.get(one.name, '').replace('%', '%%'), **options)


def parse(argv):
    """-> args: the flags as they were given; Run; the checkpoint to continue from, or None"""
    args, _ = make_parser().parse_known_args(argv)
    checkpoint = None
    model = args.model or 'stats'
    if args.resume and not args.help:
        args.out = args.out or newest_run(args)
        if not (Path(args.out) / 'last.pt').exists():
            raise BadInput(f'nothing to resume: there is no {Path(args.out) / "last.pt"}')
        checkpoint = runs.read_checkpoint(Path(args.out) / 'last.pt')
        model = checkpoint['model']
        if args.model not in (None, model):
            raise BadInput(f'--model {args.model}: the run in {args.out} is of {model}')
    out = args.out
    paper = runs.Paper(model)
    if paper.stages and 'epochs' not in paper.fields() and '--epochs' in argv:
        names = [f'--{name}-epochs' for name, _, _ in paper.stages(paper.Config())]
        raise BadInput(f'--epochs: {model} trains in stages; use {", ".join(names)}')
    parser = make_parser(paper)
    if args.help:
        parser.print_help()
        sys.exit()
    args = parser.parse_args(argv)
    args.out = out
    data.check_device(args.device)
    data.set_threads(args.threads)
    if args.amp and args.device == 'cpu':
        raise BadInput('--amp needs a GPU: on a CPU bfloat16 is many times slower')
    run = resumed_run(args, checkpoint) if checkpoint else new_run(args, paper)
    check_metric(run)
    return args, run, checkpoint


def newest_run(args):
    """-> the folder in runs/ that was saved last, among those of --model and --dataset if given"""
    pattern = f'{args.model or "*"}-{args.dataset or ""}*'
    found = sorted(Path('runs').glob(f'{pattern}/last.pt'), key=lambda path: path.stat().st_mtime)
    if not found:
        raise BadInput(f'nothing to resume: there is no runs/{pattern}/last.pt; try --out RUN')
    return found[-1].parent


def given_settings(args):
    """-> {field: value} of the Config and Training fields that were given as flags"""
    given = {}
    for name, value in vars(args).items():
        if name.startswith('cfg_') and value is not None:
            given[name.removeprefix('cfg_')] = tuple(value) if isinstance(value, list) else value
    return given


def settings(paper, values):
    """{field: value} -> Config, Training, both checked"""
    own = {name: value for name, value in values.items() if name in paper.fields()}
    cfg = paper.Config(**own)
    training = {name: value for name, value in values.items() if name not in own}
    for one in dataclasses.fields(Training):
        if one.name in paper.fields():
            training[one.name] = getattr(cfg, one.name)
    training = Training(**training)
    check_numbers(vars(training) | vars(cfg))
    data.choose('--optimizer', training.optimizer, ('adam', 'adamw', 'rmsprop'))
    data.choose('--schedule', training.schedule, ('constant', 'cosine'))
    data.choose('--task', training.task, ('describe', 'recognise'))
    for reward in training.reward.split('+') if training.reward else ():
        data.choose('--reward', reward, evaluate.REWARDS)
    return cfg, training


def check_numbers(values):
    """Refuse numbers that no run can use: counts must be at least 1, others finite and >= 0."""
    may_be_zero = ('reward_after', 'reward_epochs', 'even_mix')
    for name, value in values.items():
        flag = '--' + name.replace('_', '-')
        if isinstance(value, bool):
            continue
        if isinstance(value, int) and value < 1 and not (name in may_be_zero and value == 0):
            raise BadInput(f'{flag} {value}: must be at least 1')
        if isinstance(value, float):
            if not math.isfinite(value) or value < 0:
                raise BadInput(f'{flag} {value}: must be a number from 0 on')
            if name in ('rate', 'clip', 'temperature') and value == 0:
                raise BadInput(f'{flag} 0: must be greater than 0')
            if name in ('dropout', 'sampling') and value >= 1:
                raise BadInput(f'{flag} {value}: must be less than 1')


def check_metric(run):
    """Refuse a validation score that does not exist."""
    known = ['CIDEr', 'Bleu_1', 'Bleu_2', 'Bleu_3', 'Bleu_4', 'ROUGE_L', 'loss']
    if run.dataset.name in ('shapes', *puzzles.NAMES):
        known.append('slots')
    if run.metric:
        data.choose('--metric', run.metric, ['accuracy', 'mAP'] if run.recognises else known)


def new_run(args, paper):
    """Flags -> Run. A flag overrides a preset, and a preset overrides the paper's default."""
    given = given_settings(args)
    name = args.dataset or 'shapes'
    defaults = {one: field.default for one, field in paper.fields().items()}
    task = given.get('task', defaults.get('task', ''))
    presets = {}
    for key in (name.split('-')[0], name, f'{name}/{task}'):        # puzzle, then puzzle-order
        presets |= paper.PRESETS.get(key, {})
    cfg, training = settings(paper, {**presets, **given})
    if args.limit is not None and args.limit < 1:
        raise BadInput(f'--limit {args.limit}: must be at least 1')
    dataset = datasets.Dataset(name, args.root, args.split_scheme or 'official', args.fold or 1,
                               args.limit, bool(args.partial))
    if name in puzzles.NAMES:
        dataset.seed = args.seed or 0
    return runs.Run(paper, cfg, training, dataset, given=given, seed=args.seed or 0,
                    metric=args.metric or '', device=args.device)


def resumed_run(args, checkpoint):
    """-> the Run of last.pt. Flags given now override its settings, but the data cannot change."""
    run = runs.restore(checkpoint, args.out, args.root, args.device)
    kept = {'dataset': run.dataset.name, 'split_scheme': run.dataset.scheme,
            'fold': run.dataset.fold, 'limit': run.dataset.limit,
            'partial': run.dataset.partial, 'seed': run.seed}
    for name, value in kept.items():
        given = getattr(args, name)
        if given not in (None, value):
            raise BadInput(f'--{name.replace("_", "-")} {given}: the run began with {value}, and a '
                           'resumed run keeps its data and its seed')
    run.given = run.given | given_settings(args)
    values = checkpoint['config'] | checkpoint['training'] | run.given
    if 'stage' in run.paper.fields():
        values['stage'] = run.given.get('stage', run.paper.fields()['stage'].default)
    run.cfg, run.training = settings(run.paper, values)
    run.metric = args.metric or run.metric
    return run


def claim_folder(args, run):
    """Make the folder of a new run -> its path. Two runs never get the same folder."""
    if args.out:
        out = Path(args.out)
        if (out / 'last.pt').exists() and 'stage' not in run.given:     # stages share a folder
            raise BadInput(f'{out} contains a run: add --resume to continue it, or choose another '
                           '--out')
        candidates = [out]
    else:
        parts = [run.paper.name, run.dataset.name]
        parts += [str(run.given[name]) for name in ('task', 'variant') if name in run.given]
        name = '-'.join(parts)
        candidates = [Path('runs') / name] + [Path('runs') / f'{name}-{i}' for i in range(2, 10000)]
    for out in candidates:
        try:
            out.mkdir(parents=True, exist_ok=bool(args.out))
            return out
        except FileExistsError:
            if args.out:
                raise BadInput(f'--out {out}: there is a file of this name') from None
        except OSError as error:
            raise BadInput(f'cannot make the folder {out}: {error}') from None
