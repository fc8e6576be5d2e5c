"""The flags of train.py, and the Run that they describe. Every value is checked here, before
anything is rendered, loaded or trained.
"""
import argparse
import dataclasses
import functools
import inspect
import os
import re
import sys
from pathlib import Path

import torch

import data
import evaluate
from data import BadInput
from shapes import dataset as shapes
from shapes import puzzles
from tools import checkpoints, datasets, machine, runs
from tools.runs import Training

OPTIMIZERS = ('adam', 'adamw', 'rmsprop')
SCHEDULES = ('constant', 'cosine')
METRICS = {'describe': ('CIDEr', 'Bleu_1', 'Bleu_2', 'Bleu_3', 'Bleu_4', 'ROUGE_L', 'loss'),
           'recognise': ('accuracy', 'mAP')}            # the keys are the tasks
CAPTIONS_ONLY = ('captions_per_video', 'min_count', 'max_len', 'beam', 'length_penalty', 'reward',
                 'reward_after', 'word2vec')
LARGEST = {'beam': 100, 'max_len': 1000, 'seed': 2 ** 32 - 1}       # others: one million


# ---------------------------------------------------------------------------------- the help page

def flag(name):
    return '--' + name.replace('_', '-')


def first_flags(task=None):
    """The flags that decide which other flags there are. task: the default, if there is a choice"""
    parser = runs.Parser(usage='python train.py [--model NAME] [--dataset NAME] [more flags]',
                         add_help=False, allow_abbrev=False, formatter_class=functools.partial(
                             argparse.HelpFormatter, max_help_position=28))
    group = parser.add_argument_group('the run')
    add = group.add_argument
    add('-h', '--help', action='store_true', help='this page, for the flags that come with it')
    add('--model', metavar='NAME', help=f'the paper: {", ".join(runs.papers())} (default: stats)')
    add('--dataset', metavar='NAME', help=f'the data: {", ".join(datasets.NAMES)} '
        '(default: shapes, the embedded world)')
    add('--task', dest='cfg_task', metavar='NAME', help=argparse.SUPPRESS if task is None else
        f'describe (captions) or recognise (action labels) (default: {task})')
    add('--root', default='data', metavar='DIR',
        help='folder that contains DATASET/ (default: data)')
    add('--out', metavar='DIR',
        help='folder of the run (default: a new one, runs/MODEL-DATASET)')
    add('--resume', action='store_true',
        help='continue the run in that folder (default: no; without a folder: the newest in runs/)')
    return parser, group


def make_parser(paper, dataset, task):
    """All flags. The help page shows those that this paper reads for this task."""
    usual = preset(paper, dataset, '').get('task', paper.tasks[0])
    parser, group = first_flags(usual if len(paper.tasks) > 1 else None)
    parser.description = f'Train one of the papers: here {paper.name}, on {dataset}.'
    unread = unread_flags(paper, dataset, task)

    def add(group, name, help, **options):
        help = argparse.SUPPRESS if name in unread else help.replace('%', '%%')
        group.add_argument(flag(name), help=help, **options)

    best = 'CIDEr' if task == 'describe' else 'accuracy, or mAP if clips have several labels'
    add(group, 'seed', 'the same seed gives the same numbers on a CPU, and the same puzzle '
        '(default: 0)', type=int, metavar='INT')
    add(group, 'split_scheme', f'{", ".join(datasets.SCHEMES)}; astar and vre are for msrvtt; hash '
        'divides the videos 8 : 1 : 1 by their ids (default: official)', metavar='NAME')
    add(group, 'partial', 'use the videos that have features, and ignore the others (default: no)',
        action='store_true', default=None)
    add(group, 'fold', 'which split: 1, 2 or 3 (default: 1)', type=int, metavar='INT')
    add(group, 'limit', 'use only the first INT videos of each split (default: all)', type=int,
        metavar='INT')
    add(group, 'metric', 'validation score that selects the best epoch: '
        f'{", ".join(metrics(dataset, task))} (default: {best})', metavar='NAME')
    add(group, 'word2vec', "start the word embedding from the vectors in this file, Google's .bin "
        'or text (default: random vectors)', metavar='FILE')
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    add(group, 'device', f'cpu or cuda (default: {device})', default=device, metavar='NAME')
    add(group, 'threads', 'threads that compute; 1 if other programs are busy (default: one per '
        'core)', type=int, metavar='INT')
    add(group, 'amp', 'compute in bfloat16, which needs a GPU (default: no)', action='store_true')
    model = parser.add_argument_group(f'the model (class Config in {paper.name}.py)')
    training = parser.add_argument_group('the training')
    names = [one.name for one in dataclasses.fields(Training) if one.name != 'task']
    add_fields(functools.partial(add, training), paper, dataset, task, names)
    names = [name for name in paper.fields() if name not in (*names, 'task')]
    add_fields(functools.partial(add, model), paper, dataset, task, names)
    return parser


@functools.cache
def field_comments(config):
    """-> {field: the comment at the end of its line}"""
    return dict(re.findall(r'^ +(\w+): .*?# (.*)$', inspect.getsource(config), re.M))


def add_fields(add, paper, dataset, task, names):
    """One flag per field. Its help is the comment at the end of the field's line and its default:
    the one for this dataset and, if a preset changes it, the one in the paper's file."""
    comments = field_comments(Training) | field_comments(paper.Config)
    here = values_of(*settings(paper, preset(paper, dataset, task)))
    elsewhere = values_of(*settings(paper, {'task': task}))
    for name in names:
        kind = type(elsewhere[name])
        options = {'type': kind, 'metavar': 'NAME' if kind is str else kind.__name__.upper()}
        if kind is bool:
            options = {'action': argparse.BooleanOptionalAction}
        elif kind is tuple:
            options = {'nargs': '+', 'metavar': 'NAME'}
        text = comments.get(name, '')
        choices = paper.choices.get(name, ())
        if not all(choice in text for choice in choices):
            text = f'{", ".join(choices)}; {text}'
        if name == 'reward':
            text += f': {", ".join(evaluate.REWARDS)}, or several, joined by +'
        default = show(here[name])
        if here[name] != elsewhere[name]:
            default += f' for {dataset}, {show(elsewhere[name])} in {paper.name}.py'
        add(name, f'{text} (default: {default})', dest=f'cfg_{name}', **options)


def show(value):
    """A default as text"""
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    if isinstance(value, tuple):
        return ' '.join(value)
    return f'{value:g}' if isinstance(value, float) else str(value) or 'none'


def metrics(dataset, task):
    """-> the scores that --metric may name"""
    slots = ()
    if task == 'describe' and dataset in ('shapes', *puzzles.NAMES):
        slots = ('slots',)
    return METRICS[task] + slots


def unread_flags(paper, dataset, task):
    """-> {name of a flag: why it has no effect here}. These flags are not shown, and refused."""
    reasons = {}
    if dataset not in datasets.CAPTIONED:
        reasons['split_scheme'] = f'{dataset} has only its official split'
    if dataset in ('shapes', *puzzles.NAMES):
        reasons['partial'] = f'all clips of {dataset} have features'
    if dataset != 'hmdb51':
        reasons['fold'] = f'only hmdb51 has several folds, {dataset} has not'
    for name in ('reward', 'reward_after'):
        if name not in paper.fields():
            reasons[name] = f'{paper.name}.py does not use it'
    if task == 'recognise':
        reasons |= dict.fromkeys(CAPTIONS_ONLY, f'{paper.name} generates no captions here, it '
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
    for name in ('model', 'dataset', 'root', 'out'):
        if getattr(first, name) == '':
            raise BadInput(f'--{name} is empty: give a name, or leave the flag out')
    checkpoint = None
    model = first.model or 'stats'
    dataset = first.dataset or 'shapes'
    if first.resume and not first.help:
        first.out = first.out or newest_run(first)
        if not os.path.exists(Path(first.out) / 'last.pt'):
            raise BadInput(f'nothing to resume: there is no {Path(first.out) / "last.pt"}')
        checkpoint = checkpoints.read_checkpoint(Path(first.out) / 'last.pt')
        model = checkpoint['model']
        if first.model not in (None, model):
            raise BadInput(f'--model {first.model}: the run in {first.out} is of {model}')
        run = checkpoints.restore(checkpoint, first.out, first.root)
        dataset = run.dataset.name
        first.cfg_task = run.task
    data.choose('--dataset', dataset, datasets.NAMES)
    paper = runs.Paper(model)
    task = choose_task(paper, dataset, first.cfg_task)
    parser = make_parser(paper, dataset, task)
    if first.help:
        if os.environ.get('LOCAL_RANK', '0') == '0':    # under torchrun one process prints it
            parser.print_help()
        sys.exit()
    args = parser.parse_args(argv)
    args.out = first.out
    for name, value in vars(args).items():
        if value == []:                                 # what argparse makes of `--attn=--`
            raise BadInput(f'{flag(name.removeprefix("cfg_"))}: expected a value')
    for name, why in unread_flags(paper, dataset, task).items():
        value = vars(args).get(f'cfg_{name}', vars(args).get(name))
        if value is not None:
            raise BadInput(f'{flag(name)} {value}: {why}')
    machine.check_device(args.device)
    machine.set_threads(args.threads)
    if args.amp and args.device.startswith('cpu'):
        raise BadInput('--amp needs a GPU: on a CPU bfloat16 is many times slower')
    run = resumed_run(args, checkpoint) if checkpoint else new_run(args, paper, dataset, task)
    if run.metric:
        data.choose('--metric', run.metric, metrics(dataset, task))
    return args, run, checkpoint


def choose_task(paper, dataset, given):
    """given: value of --task, or None -> describe or recognise"""
    task = (given or preset(paper, dataset, '').get('task') or paper.tasks[0])
    task = task.replace('recognize', 'recognise')       # both spellings
    data.choose('--task', task, METRICS)
    if task not in paper.tasks:
        part = 'Captioner' if task == 'describe' else 'Recogniser'
        raise BadInput(f'--task {task}: {paper.name}.py has no {part}; it can {paper.tasks[0]}')
    if task == 'describe' and dataset in datasets.LABELS_ONLY:
        raise BadInput(f'--dataset {dataset} has action labels but no captions: use --model sta '
                       '--task recognise, or --model c3d')
    if task == 'recognise' and dataset not in ('shapes', *datasets.LABELS_ONLY):
        raise BadInput(f'--dataset {dataset} has no action labels, so {paper.name} cannot learn to '
                       f'recognise: use shapes, {", ".join(datasets.LABELS_ONLY)}')
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
    given = {}
    for name, value in vars(args).items():
        if name.startswith('cfg_') and value is not None:
            given[name.removeprefix('cfg_')] = tuple(value) if isinstance(value, list) else value
    if 'task' in given:
        given['task'] = given['task'].replace('recognize', 'recognise')
    return given


def preset(paper, dataset, task, features=None):
    """-> {field: value} for a dataset, its task and features, where it differs from the paper"""
    values = {}
    keys = [dataset.split('-')[0], dataset, f'{dataset}/{task}']        # puzzle, then puzzle-order
    if features:
        keys.append(f'{dataset}/{"+".join(features)}')
    for key in keys:
        values |= paper.PRESETS.get(key, {})
    return values | {'task': task} if task else values


def settings(paper, values):
    """{field: value} -> Config, Training, both checked"""
    own = {name: value for name, value in values.items() if name in paper.fields()}
    cfg = paper.Config(**own)
    training = {name: value for name, value in values.items() if name not in own}
    for one in dataclasses.fields(Training):
        if one.name in paper.fields():
            training[one.name] = getattr(cfg, one.name)
    training = Training(**training)
    for name, value in values_of(cfg, training).items():
        check_number(name, value)
    data.choose('--optimizer', training.optimizer, OPTIMIZERS)
    data.choose('--schedule', training.schedule, SCHEDULES)
    for reward in training.reward.split('+') if training.reward else ():
        data.choose('--reward', reward, evaluate.REWARDS)
    check_features(cfg.features)
    return cfg, training


def values_of(cfg, training):
    return vars(training) | vars(cfg)


def check_number(name, value):
    """Refuse numbers that no run can use: counts below 1, and others that are not finite or < 0."""
    said = f'{flag(name)} {value}: must be'
    least = 0 if name in ('seed', 'reward_after', 'reward_epochs', 'even_mix') else 1
    most = LARGEST.get(name, 1_000_000)
    if isinstance(value, int) and not isinstance(value, bool) and not least <= value <= most:
        raise BadInput(f'{said} a whole number from {least} to {most}')
    if isinstance(value, float):
        if not 0 <= value <= 1e6:                       # true for nan too
            raise BadInput(f'{said} a number from 0 to 1,000,000')
        if name in ('rate', 'reward_rate', 'clip', 'temperature') and value == 0:
            raise BadInput(f'{said} greater than 0')
        if name in ('dropout', 'sampling') and value >= 1:
            raise BadInput(f'{said} less than 1')


def check_features(names):
    for name in names:
        if not re.fullmatch(r'\w[\w.+-]*', name):
            raise BadInput(f'--features {name!r}: a name has letters, digits and _ . + - alone')
    if len(set(names)) < len(names):
        raise BadInput(f'--features {" ".join(names)}: a name occurs twice')


def check_paths(args):
    """Refuse folders that cannot be made and files that are not there."""
    for name in ('root', 'out'):
        value = getattr(args, name)
        try:
            path = Path(value or '.').absolute()
            there = next(one for one in (path, *path.parents) if one.exists())
        except OSError as error:
            raise BadInput(f'--{name} {value[:60]}: {error.strerror}') from None
        if not there.is_dir():
            raise BadInput(f'--{name} {value}: {there} is a file, not a folder')
        if not os.access(there, os.W_OK) and there != path:
            raise BadInput(f'--{name} {value}: cannot make this folder, {there} is read-only')
    if args.word2vec is not None and not os.path.isfile(args.word2vec):
        raise BadInput(f'--word2vec {args.word2vec}: there is no such file')


def check_model(run):
    """Build the model once on the sizes that the world of shapes will have, before it is rendered.
    So a model that does not suit them is refused at once."""
    own = Path(run.dataset.root) / 'shapes' / 'features'
    known = [name for name in run.cfg.features if name in shapes.FEATURES]
    for name in run.cfg.features:
        if name not in known and not list(own.glob(f'{name}*')):
            raise BadInput(f'--features {name}: shapes has {", ".join(shapes.FEATURES)}')
    if len(known) == len(run.cfg.features):
        sizes = data.Sizes({name: shapes.FEATURES[name] for name in known}, frames=16, vocab=66,
                           captions=15000, classes=14, categories=8)
        with torch.device('meta'):                      # weights without numbers take no memory
            model = dataclasses.replace(run, sizes=sizes, device='meta').build()
        need = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        if need > os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES'):
            raise BadInput(f'{run.paper.name} has {need / 1e9:,.0f} GB of weights, more than '
                           'the memory here: choose smaller sizes')


def new_run(args, paper, dataset, task):
    """Flags -> Run. A flag overrides a preset, and a preset overrides the paper's default."""
    given = given_settings(args)
    usual = preset(paper, dataset, task, given.get('features'))
    cfg, training = settings(paper, {**usual, **given})
    for name in ('limit', 'seed'):
        check_number(name, getattr(args, name))
    data.choose('--split-scheme', args.split_scheme or 'official', datasets.SCHEMES)
    data.choose('--fold', args.fold or 1, (1, 2, 3))
    check_paths(args)
    if args.out and os.path.exists(Path(args.out) / 'last.pt') and 'stage' not in given:
        raise BadInput(f'{args.out} contains a run: add --resume to continue it, or choose another '
                       '--out')                         # with --stage, runs share a folder
    source = datasets.Dataset(dataset, args.root, args.split_scheme or 'official', args.fold or 1,
                              args.limit, bool(args.partial))
    if dataset in puzzles.NAMES:
        source.seed = args.seed or 0
    run = runs.Run(paper, cfg, training, source, given=given, seed=args.seed or 0,
                   metric=args.metric or '', device=args.device)
    if dataset == 'shapes' and given:                   # presets fit, and building takes a second
        check_model(run)
    return run


def resumed_run(args, checkpoint):
    """-> the Run of last.pt. Flags given now override its settings, but the data, the model and
    what decides which epoch is best cannot change."""
    run = checkpoints.restore(checkpoint, args.out, args.root, args.device)
    before = checkpoint['config'] | checkpoint['training']
    kept = {'dataset': run.dataset.name, 'split_scheme': run.dataset.scheme,
            'fold': run.dataset.fold, 'limit': run.dataset.limit,
            'partial': run.dataset.partial, 'seed': run.seed, 'metric': run.metric,
            'word2vec': None}
    given = given_settings(args)
    for name, value in before.items():
        if isinstance(value, (bool, tuple, str)) and name not in ('schedule', 'reward', 'stage'):
            kept[name] = value
    for name, value in kept.items():
        now = given.get(name, getattr(args, name, None))
        if now not in (None, value):
            raise BadInput(f'{flag(name)} {show(now)}: the run began with {show(value)}, and a '
                           'resumed run keeps its data, its model, its metric and its seed')
    run.given = run.given | given
    values = before | run.given
    if 'stage' in run.paper.fields():
        values['stage'] = run.given.get('stage', run.paper.fields()['stage'].default)
    run.cfg, run.training = settings(run.paper, values)
    changed = [f'{flag(name)} {value}' for name, value in given.items() if value != before[name]]
    if changed:
        saved = run
        if checkpoint['stage']:
            saved = dataclasses.replace(
                run, cfg=dataclasses.replace(run.cfg, stage=checkpoint['stage']))
        try:
            checkpoints.load_weights(saved.build(), checkpoint, run.path)
        except BadInput:
            raise BadInput(f'{", ".join(changed)}: the weights in {run.path} do not fit, because a '
                           'resumed run keeps its model; to change it, start a new run') from None
    return run


def claim_folder(args, run):
    """Make the folder of a new run -> its path. Two runs never get the same folder."""
    if args.out:
        candidates = [Path(args.out)]
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
