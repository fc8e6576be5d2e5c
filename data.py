"""Captions, features and batches: what every paper reads.

    captions, read by tools/datasets.py         -> Corpus, one split of a dataset
    features/NAME, made by tools/extract.py     -> Features, numbers per frame, read on demand
    both                                        -> Batches

A batch holds N videos and a few captions of each. It is a dict:
    feats       name -> float (N, F, ...)   features of F frames, padded with zeros
    mask        name -> bool (N, F)         true on real frames
    captions    long (B, T)                 words, then <eos>, then <pad>
    rows        long (B,)                   the video that each caption belongs to
    caption_ids long (B,)                   index of each caption in its split
    ids         list of N str               names of the videos
    labels      float (N, classes)          1 for the classes of a video; if the dataset has classes
    category    long (N,)                   if the dataset has categories
    share       float                       this process's share of the captions (1.0 if alone)

Letters: N videos, B captions, F frames, L regions, D feature size, T words, V vocabulary.
"""
import contextlib
import json
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch.nn.utils.rnn import pad_sequence

PAD, EOS, UNK = 0, 1, 2


class BadInput(ValueError):
    """A mistake that the user can correct. The message names the file or value and says how."""


@contextlib.contextmanager
def reading(path, problem):
    """Whatever goes wrong with the file of a user becomes one sentence that names it. Foreign files
    fail in many ways."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [''])[0][:300]
        raise BadInput(f'{path}: {problem} ({type(error).__name__}: {reason})') from None


def choose(flag, value, choices):
    """Refuse a value that is not one of the choices."""
    if value not in choices:
        raise BadInput(f'{flag} {value}: choose one of {", ".join(map(str, choices))}')


@dataclass
class Sizes:
    """Sizes that follow from the data. A model is built from these and its paper's Config alone."""
    feats: dict             # feature name -> shape of one frame's feature: [D], [L, D] or [Y, X, D]
    frames: int = 0         # largest number of frames of any video
    vocab: int = 0          # words in the vocabulary
    captions: int = 0       # training captions
    classes: int = 0        # action classes
    categories: int = 0     # categories of the videos


# ------------------------------------------------------------------------------------------ words

def normalise(caption):
    """Lower case, no punctuation, single spaces: "A man's dog, runs." -> "a man s dog runs"."""
    return ' '.join(re.sub(r'[\W_]+', ' ', caption.lower()).split())


class Vocabulary:
    """Words <-> numbers. The list `words` defines it, and a checkpoint stores only this list."""

    def __init__(self, words):
        self.words = list(words)
        self.index = {word: i for i, word in enumerate(self.words)}

    @classmethod
    def build(cls, captions, min_count=1):
        """captions: str, of the training split only. The most frequent words come first; words
        that are equally frequent are in alphabetical order."""
        counts = Counter(word for caption in captions for word in caption.split())
        kept = [word for word in counts if counts[word] >= min_count]
        kept.sort(key=lambda word: (-counts[word], word))
        return cls(['<pad>', '<eos>', '<unk>'] + kept)

    def __len__(self):
        return len(self.words)

    def encode(self, caption, max_len):
        """str -> at most max_len word numbers, then <eos>"""
        return [self.index.get(word, UNK) for word in caption.split()[:max_len]] + [EOS]

    def decode(self, tokens):
        """word numbers -> str, up to <eos>"""
        words = []
        for token in tokens:
            if token == EOS:
                break
            if token != PAD:
                words.append(self.words[int(token)])
        return ' '.join(words)


# --------------------------------------------------------------------------------------- captions

@dataclass
class Corpus:
    """One split of one dataset. Dicts are keyed by the video's id."""
    name: str
    split: str
    captions: dict = field(default_factory=dict)        # id -> list of str, normalised
    labels: dict = field(default_factory=dict)          # id -> list of class numbers
    classes: list = field(default_factory=list)         # names of the classes
    category: dict = field(default_factory=dict)        # id -> number
    categories: list = field(default_factory=list)      # names of the categories
    truth: dict = field(default_factory=dict)           # id -> the true content (shapes only)
    answers: dict = field(default_factory=dict)         # id -> {slot: word} (puzzles only)
    features: dict = field(default_factory=dict)        # name -> Features, once the split is opened
    notes: list = field(default_factory=list)           # what the user should know about the split

    @property
    def ids(self):
        return list(self.captions or self.labels)

    def keep(self, ids):
        """Keep only these videos."""
        for name in ('captions', 'labels', 'category', 'truth', 'answers'):
            values = getattr(self, name)
            setattr(self, name, {video: values[video] for video in ids if video in values})


# --------------------------------------------------------------------------------------- features

class NoFeatures(BadInput):
    """There are no features of that name."""


def read_record(path):
    """A .json file that describes features -> dict"""
    with reading(path, 'not JSON'):
        found = json.loads(path.read_text(encoding='utf-8'))
    if not isinstance(found, dict):
        raise BadInput(f'{path}: expected an object, found a {type(found).__name__}')
    return found


def open_array(function, path, **options):
    """Open a file of features with function(path, ...); report errors with the file name."""
    with reading(path, 'cannot be read; it is cut off or in another format; extract it again'):
        return function(path, **options)


class Features:
    """One kind of features, in one of three formats:

        FOLDER/NAME.npy   one row per video; NAME.json has "ids" and, optionally, a "scale" per row
        FOLDER/NAME/      one file <id>.npy per video, and info.json if tools.extract made them
        FOLDER/NAME.h5    HDF5 keyed by id; also NAME.hdf5

    features[id] is float32 (F, D), (F, L, D) or (F, Y, X, D); a vector (D,) counts as one frame.
    `info` records how they were made, if that is known."""

    def __init__(self, folder, name):
        folder = Path(folder)
        self.scale = None
        self.info = {}
        self.checked = set()                            # videos whose numbers have been checked
        hdf5 = next(filter(os.path.isfile, (folder / f'{name}.h5', folder / f'{name}.hdf5')), None)
        if os.path.isfile(folder / f'{name}.npy') and os.path.isfile(folder / f'{name}.json'):
            self.path = folder / f'{name}.npy'
            self.array = np.atleast_1d(open_array(open_memmap, self.path, mode='r'))
            self.open_rows(folder / f'{name}.json')
        elif os.path.isdir(folder / name):
            self.path = folder / name
            self.rows = {path.stem: path for path in sorted(self.path.glob('*.npy'))
                         if path.is_file()}             # opening a named pipe would wait forever
            if (self.path / 'info.json').is_file():
                self.info = read_record(self.path / 'info.json')
        elif hdf5:
            self.path = hdf5
            try:
                import h5py
            except ImportError:
                raise BadInput(f'{self.path}: to read HDF5, pip install h5py') from None
            self.array = open_array(h5py.File, self.path, mode='r')
            self.rows = {video: video for video, value in self.array.items()
                         if isinstance(value, h5py.Dataset)}
        else:
            there = ', '.join(sorted(path.name for path in folder.glob('*'))) or 'nothing'
            raise NoFeatures(f'no features {name!r}: looked in {folder} for {name}.npy with '
                             f'{name}.json, {name}/<id>.npy and {name}.h5; found there: '
                             f'{there[:500]}. Choose others with --features')

    def open_rows(self, path):
        """Read "ids" and "scale" from NAME.json."""
        self.info = read_record(path)
        ids = self.info.pop('ids', None)
        count = len(self.array)
        if not (isinstance(ids, list) and len(ids) == count
                and len({one for one in ids if isinstance(one, str)}) == count):
            raise BadInput(f'{self.path}: {count} rows, so {path.name} needs "ids", a list of '
                           f'{count} different names')
        self.rows = {video: row for row, video in enumerate(ids)}
        self.scale = self.info.pop('scale', None)
        if self.scale is not None:
            numbers = isinstance(self.scale, list) and all(
                isinstance(x, (int, float)) and abs(x) < 1e30 for x in self.scale)
            if not numbers or len(self.scale) != count:
                raise BadInput(f'{path}: "scale" must be a list of {count} numbers, one per row')

    def raw(self, video):
        """The stored numbers; if the format allows it, they are read from disk only when used"""
        row = self.rows[video]
        return open_array(open_memmap, row, mode='r') if isinstance(row, Path) else self.array[row]

    def __getitem__(self, video):
        value = np.array(self.raw(video), dtype=np.float32)     # a copy: the file is read-only
        if self.scale is not None:
            value *= np.float32(self.scale[self.rows[video]])
        if video not in self.checked and not np.isfinite(value).all():
            raise BadInput(f'{self.path}: the feature of {video!r} contains NaN or infinite '
                           'numbers; extract it again, or remove the video from the captions')
        self.checked.add(video)
        return value[None] if value.ndim == 1 else value

    def check(self, ids):
        """Refuse features that are missing or of different sizes. Only the headers of the files are
        read; the numbers are checked when features[id] is first used.
        -> shape of one frame's feature, largest number of frames of any video"""
        missing = [video for video in ids if video not in self.rows]
        if missing:
            raise BadInput(f'{self.path}: {len(missing)} of {len(ids)} videos have no features, '
                           f'such as {", ".join(map(repr, missing[:5]))}; extract them too, or '
                           'add --partial to use only the other videos')
        shape = None
        most = 0
        for video in ids:
            value = self.raw(video)
            place = f'{self.path}: the feature of {video!r}'
            if value.dtype.kind not in 'biuf' or not 1 <= value.ndim <= 4 or 0 in value.shape:
                raise BadInput(f'{place} has shape {value.shape} and type {value.dtype}; expected '
                               'numbers of shape (D,), (F, D), (F, L, D) or (F, Y, X, D), each > 0')
            one = value.shape if value.ndim == 1 else value.shape[1:]
            if shape is not None and one != shape:
                raise BadInput(f'{place} has {one} per frame, but {ids[0]!r} has {shape}')
            shape = one
            most = max(most, 1 if value.ndim == 1 else len(value))
        return list(shape), most


# ---------------------------------------------------------------------------------------- batches

class Batches:
    """epoch(n) yields the batches of epoch n. Their order depends only on the seed and n.

    A video with more captions than `captions` is visited several times in an epoch: its captions
    are shuffled and divided among the visits, and a batch consists of `videos` visits. So every
    caption is used exactly once per epoch. Without a vocabulary there are no captions, and every
    video is visited once."""

    def __init__(self, corpus, vocabulary=None, videos=32, captions=5, max_len=30):
        self.corpus = corpus
        self.vocabulary = vocabulary
        self.videos = videos
        self.captions = captions
        self.max_len = max_len
        self.caption_ids = {}                           # id -> indices of its captions in the split
        first = 0
        for video in corpus.ids:
            count = len(corpus.captions.get(video, ()))
            self.caption_ids[video] = range(first, first + count)
            first += count

    def visits(self, epoch, seed):
        """-> [(video, indices of its captions)], shuffled"""
        visits = []
        for video, numbers in self.caption_ids.items():
            if self.vocabulary is None:
                visits.append((video, []))
                continue
            numbers = np.random.default_rng((seed, epoch, numbers[0])).permutation(numbers)
            for i in range(0, len(numbers), self.captions):
                visits.append((video, numbers[i:i + self.captions].tolist()))
        order = np.random.default_rng((seed, epoch)).permutation(len(visits))
        return [visits[i] for i in order]

    def __len__(self):
        """Batches per epoch"""
        return -(-len(self.visits(epoch=0, seed=0)) // self.videos)

    def epoch(self, epoch, seed=0, start=0, rank=0, world=1):
        """Yield the batches from number `start` on. Process number `rank` of `world` processes gets
        its part of each batch."""
        visits = self.visits(epoch, seed)
        for i in range(start * self.videos, len(visits), self.videos):
            joined = visits[i:i + self.videos]
            mine = joined[rank::world]
            share = weight(mine) / weight(joined)
            # A process that gets no visit computes the first one, but with a share of 0.
            yield {**self.collate(mine or joined[:1]), 'share': share}

    def in_order(self):
        """Yield every video once, in the order of the split, without captions."""
        ids = self.corpus.ids
        for i in range(0, len(ids), self.videos):
            yield self.collate([(video, []) for video in ids[i:i + self.videos]])

    def collate(self, visits):
        """[(video, indices of captions)] -> batch"""
        corpus = self.corpus
        ids = [video for video, _ in visits]
        batch = {'ids': ids, 'feats': {}, 'mask': {}, 'share': 1.0}
        for name, features in corpus.features.items():
            values = [torch.from_numpy(features[video]) for video in ids]
            frames = torch.tensor([len(value) for value in values])
            batch['feats'][name] = pad_sequence(values, batch_first=True)              # (N, F, ...)
            batch['mask'][name] = torch.arange(frames.max())[None] < frames[:, None]   # (N, F)
        if any(numbers for _, numbers in visits):
            batch |= self.collate_captions(visits)
        if corpus.classes:
            batch['labels'] = torch.zeros(len(ids), len(corpus.classes))
            for row, video in enumerate(ids):
                batch['labels'][row, corpus.labels[video]] = 1
        if corpus.categories:
            batch['category'] = torch.tensor([corpus.category[video] for video in ids])
        return batch

    def collate_captions(self, visits):
        """-> captions (B, T), rows (B,), caption_ids (B,)"""
        words = []
        rows = []
        caption_ids = []
        for row, (video, numbers) in enumerate(visits):
            for number in numbers:
                caption = self.corpus.captions[video][number - self.caption_ids[video][0]]
                words.append(torch.tensor(self.vocabulary.encode(caption, self.max_len)))
                rows.append(row)
                caption_ids.append(number)
        return {'captions': pad_sequence(words, batch_first=True, padding_value=PAD),
                'rows': torch.tensor(rows), 'caption_ids': torch.tensor(caption_ids)}


def weight(visits):
    """How much these visits count: a visit counts as its number of captions, or 1 if it has none"""
    return sum(len(numbers) or 1 for _, numbers in visits)


def to(batch, device):
    """The batch with its tensors on that device"""
    if isinstance(batch, dict):
        return {name: to(value, device) for name, value in batch.items()}
    return batch.to(device) if torch.is_tensor(batch) else batch
