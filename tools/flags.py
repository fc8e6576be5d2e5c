"""The flags of train.py, and the Run that they describe. Every value is checked here, before
anything is rendered, loaded or trained.
"""
import argparse
import dataclasses
import functools
import glob
import inspect
import os
import re
import sys
from pathlib import Path

import data
import evaluate
from data import BadInput
from shapes import dataset as shapes
from shapes import puzzles
from tools import checkpoints, datasets, machine, runs
from tools.runs import Training

TRAINING = [field.name for field in dataclasses.fields(Training)]
OWN = ('shapes', *puzzles.NAMES)                        # datasets that this project makes
CHOICES = {'optimizer': ('adam', 'adamw', 'rmsprop'), 'schedule': ('constant', 'cosine')}
METRICS = {'describe': ('CIDEr', 'Bleu_1', 'Bleu_2', 'Bleu_3', 'Bleu_4', 'ROUGE_L', 'loss'),
           'recognise': ('accuracy', 'mAP')}            # the keys are the tasks
CAPTIONS_ONLY = ('captions_per_video', 'min_count', 'max_len', 'beam', 'length_penalty', 'reward',
                 'reward_after', 'word2vec')
CHANGEABLE = ('epochs', 'patience', 'schedule', 'videos_per_batch', 'captions_per_video', 'max_len',
              'beam', 'reward', 'reward_after', 'stage')        # when a run is resumed
LEAST = {'seed': 0, 'reward_after': 0, 'reward_epochs': 0, 'even_mix': 0}   # others: check_number
POSITIVE = ('rate', 'reward_rate', 'clip', 'temperature')
MOST = {'beam': 100, 'max_len': 1000, 'seed': 2 ** 32 - 1, 'dropout': 0.999, 'sampling': 0.999}
OPTIONS = {                                             # of a field in argparse, by its type
    bool: {'action': argparse.BooleanOptionalAction}, int: {'type': int, 'metavar': 'INT'},
    float: {'type': float, 'metavar': 'FLOAT'}, tuple: {'nargs': '+', 'metavar': 'NAME'}}


# ---------------------------------------------------------------------------------- the help page

def flag(name):
    return '--' + name.replace('_', '-')


def first_flags():
    """The flags that decide which other flags there are -> parser, its group `the run`"""
    parser = runs.Parser(usage='python train.py [--model NAME] [--dataset NAME] [more flags]',
                         add_help=False, allow_abbrev=False, formatter_class=functools.partial(
                             argparse.HelpFormatter, max_help_position=28))
    group = parser.add_argument_group('the run')
    add = group.add_argument
    add('-h', '--help', action='store_true', help='show this page, for the other flags given')
    add('--model', metavar='NAME', help=f'the paper: {", ".join(runs.papers())} (default: stats)')
    add('--dataset', metavar='NAME', help=f'the data: {", ".join(datasets.NAMES)} '
        '(default: shapes, the embedded world)')
    add('--task', dest='cfg_task', metavar='NAME',
        type=lambda name: name.replace('recognize', 'recognise'),       # both spellings
        help='describe (captions) or recognise (action labels), for papers that can do both '
             '(default: what the dataset is for)')
    add('--root', default='data', metavar='DIR',
        help='folder that contains DATASET/ (default: data)')
    add('--out', metavar='DIR',
        help='folder of the run (default: a new one, runs/MODEL-DATASET)')
    add('--resume', action='store_true',
        help='continue the run in that folder (default: no; without a folder: the newest in runs/)')
    return parser, group


def make_parser(paper, dataset, task):
    """All flags. The help page shows those that this paper reads for this task."""
    parser, group = first_flags()
    parser.description = f'Train one of the papers: here {paper.name}, on {dataset}.'
    unread = unread_flags(paper, dataset, task)

    def add(name, help, group=group, **options):
        help = argparse.SUPPRESS if name in unread else help.replace('%', '%%')
        group.add_argument(flag(name), help=help, **options)

    best = 'CIDEr' if task == 'describe' else 'accuracy, or mAP if clips have several labels'
    add('seed', 'the same seed gives the same numbers on a CPU, and the same puzzle (default: 0)',
        **OPTIONS[int])
    schemes = datasets.schemes(dataset)
    add('split_scheme', f'{", ".join(schemes)}; hash divides the videos 8 : 1 : 1 by their ids '
        '(default: official)', choices=schemes, metavar='NAME')
    add('partial', 'use the videos that have features, and ignore the others (default: no)',
        action='store_true', default=None)
    folds = range(1, datasets.FOLDS.get(dataset, 1) + 1)
    add('fold', f'which split, 1 to {len(folds)} (default: 1)', choices=folds, **OPTIONS[int])
    add('limit', 'use only the first INT videos of each split (default: all)', **OPTIONS[int])
    add('metric', 'validation score that selects the best epoch: '
        f'{", ".join(metrics(dataset, task))} (default: {best})', metavar='NAME')
    add('word2vec', "start the word embedding from the vectors in this file, Google's .bin or "
        'text (default: random vectors)', metavar='FILE')
    runs.add_machine_flags(group)
    add('amp', 'train in bfloat16: faster on GPUs, and on CPUs with AVX-512 BF16 '
        '(default: no)', action='store_true')
    model = parser.add_argument_group(f'the model (class Config in {paper.name}.py)')
    training = parser.add_argument_group('the training')
    for name, help, options in field_flags(paper, dataset, task):
        place = training if name in TRAINING else model
        add(name, help, place, dest=f'cfg_{name}', **options)
    return parser


@functools.cache
def field_comments(config):
    """-> {field: the comment at the end of its line}"""
    return dict(re.findall(r'^ +(\w+): .*?# (.*)$', inspect.getsource(config), re.M))


def field_flags(paper, dataset, task):
    """Yields field, help, options of argparse. The help is the comment at the end of the field's
    line and its default: the one for this dataset and, if a preset changes it, the one in the
    paper's file."""
    comments = field_comments(Training) | field_comments(paper.Config)
    here = values_of(*settings(paper, preset(paper, dataset, task)))
    elsewhere = values_of(*settings(paper, {'task': task}))
    del elsewhere['task']                               # one of first_flags()
    for name, value in elsewhere.items():
        text = comments.get(name, '')
        choices = getattr(paper.module, f'{name.upper()}S', ())     # VARIANTS, of `variant`
        if isinstance(value, str) and not all(choice in text for choice in choices):
            text = f'{", ".join(choices)}; {text}'
        if name == 'reward':
            text += f': {", ".join(evaluate.REWARDS)}, or several, joined by +'
        default = show(here[name])
        if here[name] != value:
            default += f' for {dataset}, {show(value)} in {paper.name}.py'
        options = OPTIONS.get(type(value), {'metavar': 'NAME'})
        yield name, f'{text} (default: {default})', options


def show(value):
    """A default as text"""
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    if isinstance(value, tuple):
        return ' '.join(value)
    return f'{value:g}' if isinstance(value, float) else str(value) or 'none'


def metrics(dataset, task):
    """-> the scores that --metric may name"""
    slots = task == 'describe' and dataset in OWN
    return (*METRICS[task], 'slots') if slots else METRICS[task]


def unread_flags(paper, dataset, task):
    """-> {name of a flag: why it has no effect here}. These flags are not shown, and refused."""
    reasons = {}
    if len(datasets.schemes(dataset)) == 1:
        reasons['split_scheme'] = f'{dataset} has only its official split'
    if dataset in OWN:
        reasons['partial'] = f'all clips of {dataset} have features'
    if dataset not in datasets.FOLDS:
        reasons['fold'] = f'{dataset} has one split; {" and ".join(datasets.FOLDS)} have several'
    rewards = {'reward', 'reward_after'} - paper.fields().keys()
    reasons |= dict.fromkeys(rewards, f'{paper.name}.py does not use it')
    if task == 'recognise':
        reasons |= dict.fromkeys(CAPTIONS_ONLY, f'{paper.name} generates no captions here: it '
                                                'recognises actions')
    for other, names in paper.TASK_FIELDS.items():
        if other != task:
            reasons |= dict.fromkeys(names, f'only --task {other} uses it')
    if paper.stages and 'epochs' not in paper.fields():
        names = [f'--{name}-epochs' for name, _, _ in paper.stages(paper.Config())]
        reasons['epochs'] = f'{paper.name} trains in stages; use {", ".join(names)}'
    return reasons


# -------------------------------------------------------------------------------- flags -> Run

def parse(argv):
    """-> args: the flags as they were given; Run; the checkpoint to continue from, or None"""
    first, _ = first_flags()[0].parse_known_args(argv)
    model = first.model or 'stats'
    dataset = first.dataset or 'shapes'
    task = first.cfg_task
    checkpoint = None
    if first.resume and not first.help:
        path = Path(first.out or newest_run(first))
        checkpoint = checkpoints.read_checkpoint(path / 'last.pt')
        run = checkpoints.restore(checkpoint, path, first.root)
        model = run.paper.name
        dataset = run.dataset.name
        task = run.training.task
    data.choose('--dataset', dataset, datasets.NAMES)
    paper = runs.Paper(model)
    task = choose_task(paper, dataset, task)
    parser = make_parser(paper, dataset, task)
    if first.help:
        if os.environ.get('LOCAL_RANK', '0') == '0':    # under torchrun one process prints it
            parser.print_help()
        sys.exit()
    args = parser.parse_args(argv)
    unread = unread_flags(paper, dataset, task)
    for name, value in vars(args).items():
        name = name.removeprefix('cfg_')
        if value in ('', []) and name != 'reward':      # argparse makes [] of `--attn=--`
            raise BadInput(f'{flag(name)} is empty: give a value, or leave the flag out')
        if name in unread and value is not None:
            raise BadInput(f'{flag(name)} {value}: {unread[name]}')
    machine.set_up(args.device, args.threads)
    if checkpoint:
        change(run, args)
    else:
        run = new_run(args, paper, dataset, task)
    if run.metric:
        data.choose('--metric', run.metric, metrics(dataset, task))
    return args, run, checkpoint


def choose_task(paper, dataset, given):
    """given: value of --task, or None -> describe or recognise"""
    task = given or preset(paper, dataset, '').get('task') or paper.tasks[0]
    data.choose('--task', task, METRICS)
    teaches = {'shapes': [*METRICS]} | dict.fromkeys(datasets.LABELS_ONLY, ['recognise'])
    taught = teaches.get(dataset, ['describe'])
    if task not in paper.tasks or task not in taught:
        raise BadInput(f'--task {task}: {paper.name}.py can {" or ".join(paper.tasks)}, and '
                       f'--dataset {dataset} can teach to {" or ".join(taught)}: choose another')
    return task


def newest_run(args):
    """-> the folder in runs/ that was saved last, among those of --model and --dataset if given"""
    pattern = f'{args.model or "*"}-{args.dataset or ""}*'
    found = sorted(Path('runs').glob(f'{pattern}/last.pt'), key=lambda path: path.stat().st_mtime)
    if not found:
        raise BadInput(f'nothing to resume: there is no runs/{pattern}/last.pt; try --out RUN')
    return found[-1].parent


def given_settings(args):
    """-> {field: value} of the Config and Training fields that were given as flags"""
    return {name.removeprefix('cfg_'): tuple(value) if isinstance(value, list) else value
            for name, value in vars(args).items() if name.startswith('cfg_') and value is not None}


def preset(paper, dataset, task, features=None):
    """-> {field: value} for a dataset, its task and features, where it differs from the paper"""
    values = {}
    several = '+'.join(features or ())
    kind = dataset.split('-')[0]                        # puzzle, of puzzle-order
    for key in (kind, dataset, f'{dataset}/{task}', f'{dataset}/{several}'):
        values |= paper.PRESETS.get(key, {})
    return values | {'task': task} if task else values


def settings(paper, values):
    """{field: value} -> Config, Training, both checked"""
    own = {name: value for name, value in values.items() if name in paper.fields()}
    cfg = paper.Config(**own)
    rest = {name: value for name, value in values.items() if name not in own}
    both = {name: value for name, value in vars(cfg).items() if name in TRAINING}
    training = Training(**rest, **both)
    for name, value in values_of(cfg, training).items():
        check_number(name, value)
    for name, choices in CHOICES.items():
        data.choose(flag(name), getattr(training, name), choices)
    for reward in training.reward.split('+') if training.reward else ():
        data.choose('--reward', reward, evaluate.REWARDS)
    for name in cfg.features:
        if not re.fullmatch(r'\w[\w.+-]*', name) or cfg.features.count(name) > 1:
            raise BadInput(f'--features {" ".join(cfg.features)}: {name!r} occurs twice, or is not '
                           'a name; a name has letters, digits and _ . + - only')
    return cfg, training


def values_of(cfg, training):
    return vars(training) | vars(cfg)


def check_number(name, value):
    """Refuse numbers that no run can use, such as a count of 0, a negative weight, or NaN."""
    if type(value) in (int, float):
        least = LEAST.get(name, int(type(value) is int))
        most = MOST.get(name, 1_000_000)
        lowest = 'above 0 and at most' if name in POSITIVE else f'from {least} to'
        if not least <= value <= most or name in POSITIVE and not value:    # true for nan too
            raise BadInput(f'{flag(name)} {value}: must be {lowest} {most}')


def check_model(run):
    """Build the model once on the sizes that the world of shapes will have, before it is rendered.
    So a model that does not suit them is refused at once."""
    users = [Path(path).stem for path in glob.glob('shapes*/features/*', root_dir=run.dataset.root)]
    for name in run.cfg.features:
        data.choose('--features', name, dict.fromkeys([*shapes.FEATURES, *users]))
    if set(run.cfg.features) <= shapes.FEATURES.keys():
        feats = {name: shapes.FEATURES[name] for name in run.cfg.features}
        sizes = data.Sizes(feats, frames=16, vocab=66, captions=15000, classes=14, categories=8)
        dataclasses.replace(run, sizes=sizes).outline()


def new_run(args, paper, dataset, task):
    """Flags -> Run. A flag overrides a preset, and a preset overrides the paper's default."""
    given = given_settings(args)
    usual = preset(paper, dataset, task, given.get('features'))
    cfg, training = settings(paper, usual | given)
    for name in ('limit', 'seed'):
        check_number(name, getattr(args, name))
    if args.word2vec is not None and not os.path.isfile(args.word2vec):
        raise BadInput(f'--word2vec {args.word2vec}: there is no such file')
    out = Path(args.out or 'runs').absolute()
    there = next(path for path in (out, *out.parents) if os.path.exists(path))
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise BadInput(f'--out {out}: {there} is not a folder that can be written to')
    if args.out and os.path.exists(Path(args.out) / 'last.pt') and 'stage' not in given:
        # With --stage, several runs share a folder.
        raise BadInput(f'{args.out} contains a run: add --resume, or choose another --out')
    seed = args.seed or 0
    source = datasets.Dataset(
        dataset, args.root, args.split_scheme or 'official', args.fold or 1, args.limit,
        bool(args.partial), seed if dataset in puzzles.NAMES else 0)
    run = runs.Run(paper, cfg, training, source, given=given, seed=seed, metric=args.metric or '',
                   device=args.device)
    if dataset == 'shapes' and given:                   # presets fit, and building takes a second
        check_model(run)
    return run


def change(run, args):
    """Give the Run of last.pt the settings in the flags. They may change how it is trained, but not
    its data, its model or the score that decides which epoch is best."""
    given = given_settings(args)
    before = values_of(run.cfg, run.training)
    kept = {'model': run.paper.name, 'dataset': run.dataset.name, 'metric': run.metric,
            'split_scheme': run.dataset.scheme, 'word2vec': None, **vars(run.dataset),
            'seed': run.seed, **before}
    for name, value in kept.items():
        free = name in CHANGEABLE or name.endswith('_epochs') or isinstance(value, float)
        now = given.get(name, getattr(args, name, None))
        if now not in (None, value) and not free:
            raise BadInput(f'{flag(name)} {show(now)}: the run began with {show(value)}; start a '
                           'new run to change it')
    run.given = run.given | given
    if 'stage' in before:                               # it was that of the weights
        before['stage'] = run.given.get('stage', 'all')
    run.cfg, run.training = settings(run.paper, before | given)


def claim_folder(args, run):
    """Make the folder of a new run -> its path. Two runs never get the same folder."""
    parts = [run.paper.name, run.dataset.name]
    parts += [str(run.given[name]) for name in ('task', 'variant') if name in run.given]
    for number in ('', *(f'-{i}' for i in range(2, 10000))):
        out = Path(args.out or f'runs/{"-".join(parts)}{number}')
        try:
            out.mkdir(parents=True, exist_ok=bool(args.out))
            return out
        except OSError as error:
            if args.out or not isinstance(error, FileExistsError):
                raise BadInput(f'cannot make the folder {out}: {error}') from None
