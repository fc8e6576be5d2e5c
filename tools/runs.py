"""A run: one paper with its settings, trained on one dataset.

train.py makes a Run and saves it with every checkpoint; evaluate.py and the other tools load it.
The docstring of train.py explains what a paper's file must and may offer.
"""
import argparse
import contextlib
import dataclasses
import importlib
import math
import os
import re
import shlex
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

import data
import shapes
from data import BadInput
from tools import datasets

FORMAT = 2                                              # version of the checkpoint format
TOP = Path(__file__).resolve().parents[1]
HOUSE = ('data', 'decode', 'train', 'evaluate')         # top-level files that are not papers
PARTS = {'Captioner': None, 'Recogniser': None, 'Config': None, 'stages': None, 'PRESETS': {},
         'TASK_FIELDS': {}, 'SHARED_BUFFERS': (), 'VIEW': {}}   # of a paper, and their defaults
METHODS = {'Captioner': ('encode', 'step', 'forward'), 'Recogniser': ('forward', 'predict')}
TASKS = {'describe': 'Captioner', 'recognise': 'Recogniser'}


def view_attention(aux):
    """The attention of a paper without VIEW. aux of T words may contain 'frames' (T, F) and 'space'
    (T, L) or (T, F, L) -> (T, F, L), or None if it contains neither"""
    frames = aux.get('frames')
    space = aux.get('space')
    if space is None:
        return None if frames is None else frames[:, :, None]
    if space.dim() == 2:
        space = space[:, None] if frames is None else frames[:, :, None] * space[:, None]
    return space


class Paper:
    """A paper's file and what it contains. Optional parts that it lacks get a default."""

    def __init__(self, name):
        data.choose('--model', name, papers())
        module = importlib.import_module(name)
        self.name = name
        self.module = module
        for part, default in PARTS.items():
            setattr(self, part, getattr(module, part, default))
        self.VIEW = {'attention': view_attention, 'bars': {}, 'legend': '', 'parts': 1, **self.VIEW}
        self.check()
        self.tasks = [task for task, part in TASKS.items() if getattr(self, part)]

    def check(self):
        """Refuse a file that lacks a required part, before any work is done."""
        missing = []
        if not dataclasses.is_dataclass(self.Config):
            missing.append('a dataclass Config')
        elif 'features' not in self.fields():
            missing.append('the field `features` in Config')
        if self.Captioner is None and self.Recogniser is None:
            missing.append('a class Captioner (or Recogniser)')
        for kind, methods in METHODS.items():
            for method in methods if getattr(self, kind) else ():
                found = getattr(getattr(self, kind), method, None)
                if found is getattr(torch.nn.Module, method, None):     # none of its own
                    missing.append(f'{kind}.{method}')
        if self.stages and 'stage' not in self.fields():
            missing.append('the field `stage` in Config, which stages() needs')
        if missing:
            raise BadInput(f'{self.name}.py lacks {", ".join(missing)}: see the top of train.py')

    def fields(self):
        """-> {name: dataclass field} of Config"""
        return {field.name: field for field in dataclasses.fields(self.Config)}


def papers():
    """Names of the papers: the Python files at the top level that are not in HOUSE"""
    return sorted(path.stem for path in TOP.glob('*.py') if path.stem not in HOUSE)


@dataclass
class Training:
    """How to train and decode. A field of the same name in a paper's Config takes precedence."""
    task: str = 'describe'          # describe (captions) or recognise (action labels)
    optimizer: str = 'adam'         # adam, adamw or rmsprop
    rate: float = 1e-3              # learning rate
    weight_decay: float = 0.0       # strength of the weight decay
    schedule: str = 'constant'      # learning rate over time: constant or cosine
    clip: float = 5.0               # largest norm of the gradient
    epochs: int = 10                # passes over the training captions
    videos_per_batch: int = 32      # videos in a batch
    captions_per_video: int = 5     # captions of each video in a batch
    min_count: int = 1              # words that occur less often become <unk>
    max_len: int = 30               # longest caption, in words
    patience: int = 5               # stop after so many epochs without a better validation score
    beam: int = 1                   # beam width for the final captions
    length_penalty: float = 0.0     # beams are ranked by log-probability / length ** this
    reward: str = ''                # metrics whose sum is the reward, such as cider+rouge
    reward_after: int = 0           # number of epochs before the rewards begin


@dataclass
class Progress:
    """How far a stage of the training has come. It is saved with every checkpoint."""
    stage: str = ''
    epoch: int = 0                                      # number of finished epochs
    batch: int = 0                                      # finished batches of the next epoch
    sums: dict = dataclasses.field(default_factory=dict)     # sums of what these batches logged
    best: float = -math.inf                             # best validation score so far
    best_epoch: int = 0
    seconds: float = 0.0
    entry: dict = dataclasses.field(default_factory=dict)    # the log's line about the last epoch


@dataclass
class Run:
    paper: Paper
    cfg: object                     # the paper's Config
    training: Training              # fields that Config also has are copied from there
    dataset: datasets.Dataset
    sizes: data.Sizes = None        # what the data decides
    vocabulary: data.Vocabulary = None      # None if the model recognises actions
    encoders: dict = None           # feature name -> how the features were made
    given: dict = None              # settings that the user changed: name -> value
    path: Path = None               # the run's folder, or the checkpoint that it was loaded from
    seed: int = 0
    metric: str = ''                # the validation score that decides which epoch is best
    device: str = 'cpu'

    @property
    def recognises(self):
        return self.training.task == 'recognise'

    @property
    def file(self):
        """The checkpoint that it is loaded from"""
        path = Path(self.path)
        return path if path.suffix == '.pt' else path / 'best.pt'

    @property
    def search(self):
        """How the final captions are found, such as "beam 3" """
        penalty = self.training.length_penalty
        return f'beam {self.training.beam}' + (f', length penalty {penalty:g}' if penalty else '')

    @property
    def title(self):
        """Name for pictures and tables, such as "penalty-1 (sta, penalty 1)" """
        file = self.file.resolve()
        name = f'{file.parent.name}/{file.stem}'.removesuffix('/best')
        facts = [self.paper.name]
        for field, value in self.given.items():
            if field in ('variant', 'pool', 'task', 'stage'):
                facts.append(str(value))
            elif isinstance(value, float) and field not in Training.__dataclass_fields__:
                facts.append(f'{field} {value:g}')
        return f'{name} ({", ".join(facts)})'

    def stages(self):
        """-> [(name, epochs, rate)]. Most papers have one stage, without a name."""
        if self.paper.stages is None:
            return [('', self.training.epochs, self.training.rate)]
        return self.paper.stages(self.cfg)

    def build(self):
        """-> a new model"""
        kind = self.paper.Recogniser if self.recognises else self.paper.Captioner
        with enough_memory():
            return kind(self.cfg, self.sizes).to(self.device)

    def outline(self):
        """-> a model whose weights have sizes but no numbers, and so take no memory"""
        try:
            with torch.device('meta'):
                return dataclasses.replace(self, device='meta').build()
        except RuntimeError:                            # a paper that computes when it is built
            return self.build()

    def checkpoint(self):
        """-> the part of a checkpoint that describes the run: plain values, and no paths"""
        dataset = dataclasses.asdict(self.dataset)
        del dataset['root']
        return {'format': FORMAT, 'model': self.paper.name, 'config': dataclasses.asdict(self.cfg),
                'training': dataclasses.asdict(self.training), 'dataset': dataset,
                'sizes': dataclasses.asdict(self.sizes), 'encoders': self.encoders,
                'given': self.given, 'vocab': self.vocabulary and self.vocabulary.words,
                'seed': self.seed, 'metric': self.metric}


def open_split(run, split=None):
    """-> Corpus with the features that the run reads. If no split is named, the test split, or the
    validation split if the dataset has no public test captions."""
    kinds = run.cfg.features
    try:
        corpus = run.dataset.split(split or 'test', kinds)
    except BadInput as error:
        if split:
            raise
        print(f'{error}. Using the validation split instead')
        corpus = run.dataset.split('val', kinds)
    if corpus.notes:
        print(datasets.count(corpus))
    measure(run, [corpus])
    return corpus


def measure(run, corpora):
    """-> Sizes of these splits, without words. A run that has Sizes already must have the same."""
    feats, frames = datasets.check_features(corpora)
    classes = len(corpora[0].classes)
    if run.sizes and (feats, classes) != (run.sizes.feats, run.sizes.classes):
        raise BadInput(f'{corpora[0].name} has features of {feats} per frame and {classes} classes '
                       f'now, but the run began with {run.sizes.feats} and {run.sizes.classes}')
    return data.Sizes(feats, frames, classes=classes, categories=len(corpora[0].categories))


def open_all(loaded, split=None):
    """[(run, model)] of the same dataset -> Corpus with the features of all runs"""
    corpus = open_split(loaded[0][0], split)
    for run, _ in loaded[1:]:
        corpus.features |= open_split(run, split).features
    return corpus


def open_training(run):
    """-> training and validation split. Missing or broken files are reported here, before any
    training. Fills run.sizes, run.vocabulary and run.encoders from the data."""
    train = run.dataset.split('train', run.cfg.features)
    val = run.dataset.split('val', run.cfg.features)
    sizes = measure(run, [train, val])
    if not run.recognises:
        captions = [caption for several in train.captions.values() for caption in several]
        run.vocabulary = run.vocabulary or data.Vocabulary.build(captions, run.training.min_count)
        sizes.vocab = len(run.vocabulary)
        sizes.captions = len(captions)
    run.sizes = sizes
    run.encoders = {name: features.info for name, features in train.features.items()}
    return train, val


def summary(run, train, val):
    """One line about the data and the features of a run"""
    parts = [datasets.count(train)]
    if not run.recognises:
        parts.append(f'{run.sizes.captions:,} captions, {run.sizes.vocab:,} words')
    features = []
    for name, shape in run.sizes.feats.items():
        regions = ', one region' if len(shape) == 1 and name == run.cfg.features[0] else ''
        features.append(f'{name} ({" x ".join(map(str, shape))} per frame{regions})')
    parts += [datasets.count(val), f'features {", ".join(features)}', f'run {run.path}']
    return f'{run.paper.name} on {"; ".join(parts)}'


def markdown(rows):
    """Lists of cells, the first one the head -> text"""
    head, *body = rows
    lines = [head, ['---'] * len(head), *body]
    return '\n'.join('| ' + ' | '.join(cells) + ' |' for cells in lines)


def output(run, name, ending):
    """-> path RUN/name.ending. For a checkpoint other than best.pt, the name of the checkpoint is
    added, as in captions-best-joint.json."""
    suffix = '' if run.file.stem == 'best' else f'-{run.file.stem}'
    return run.file.parent / f'{name}{suffix}{ending}'


class Parser(argparse.ArgumentParser):
    """Its help keeps the line breaks of a docstring. A mistake in the flags is one line, like every
    other mistake of the user."""

    def __init__(self, formatter_class=argparse.RawDescriptionHelpFormatter, **options):
        super().__init__(formatter_class=formatter_class, **options)

    def error(self, message):
        raise BadInput(f'{message} (--help lists the flags)')


def add_flags(parser, count='+', captions=True):
    """The flags of all commands that run trained models. count: how many runs, as in argparse"""
    add = parser.add_argument
    add('runs', nargs=count, metavar='RUN', help='a folder that train.py made, or a .pt file in it')
    add('--split', choices=('train', 'val', 'test'),
        help='which videos (default: test, or val if the dataset has no test captions)')
    parser.set_defaults(beam=None, length_penalty=None, step=None)
    if captions:
        add('--beam', type=int, metavar='K',
            help='beam width (default: the one that the run was trained with)')
        add('--length-penalty', type=float, metavar='P', help='rank the beams by log-probability / '
            'length ** P (default: the one that the run was trained with)')
        add('--step', type=int, choices=(1, 2),
            help='vre: captions after watching once (1) or twice (2) (default: 2)')
    add('--root', default='data', help='folder of the dataset (default: data)')
    add_machine_flags(parser)


def add_machine_flags(parser):
    """The flags of all commands that run networks"""
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    parser.add_argument('--device', default=device, metavar='NAME',
                        help='cpu or cuda (default: %(default)s)')
    parser.add_argument('--threads', type=int, metavar='INT', help='number of threads; 1 if '
                        'other programs are busy (default: one per core)')


@contextlib.contextmanager
def enough_memory():
    """Report a lack of memory as a mistake of the user."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or re.search('memory|overflow', str(error)):
            raise BadInput(f'not enough memory: choose smaller sizes ({error})') from None
        raise


def user_main(main):
    """Run a command. A mistake of the user, or Ctrl-C, prints one line instead of a traceback."""
    importing = signal.getsignal(signal.SIGINT) is shapes.stop
    if importing:                                       # imports are over: now Ctrl-C tidies up
        signal.signal(signal.SIGINT, shapes.tidy_up)
    for stream in (sys.stdout, sys.stderr):             # a terminal may lack letters such as é
        stream.reconfigure(errors='backslashreplace')
    # Under torchrun all processes make the same mistake, and the first on each machine reports it.
    # If the others ended with an error as well, torchrun would list each of them.
    first = os.environ.get('LOCAL_RANK', '0') == '0'
    try:
        with enough_memory():
            sys.exit(main(sys.argv[1:]))
    except BadInput as error:
        if first or torch.distributed.is_initialized():
            print('error:', *str(error).split(), file=sys.stderr)       # as one line
            sys.exit(2)
    except BrokenPipeError:                             # the reader ended, as in `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except KeyboardInterrupt:
        if first:
            again = shlex.join(sys.orig_argv[1:])
            print(f'\nstopped; to start again: python {again}', file=sys.stderr)
        sys.exit(130)
    finally:
        if importing:                                   # Python's shutdown shows tracebacks, too
            signal.signal(signal.SIGINT, shapes.stop)
