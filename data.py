"""Captions, features and batches: what every paper reads.

    ROOT/DATASET/...            captions as published (see READERS)   -> Corpus: one split
    ROOT/DATASET/features/NAME  numbers per frame, made beforehand    -> Features: read from disk on demand, never all in memory
    both                                                              -> Batches: V videos with up to C captions of each

A batch is a dict:
    feats       name -> float (N, F, ...)   F frames of N videos, padded with zeros
    mask        name -> bool (N, F)         true on real frames
    captions    long (B, T)                 words, <eos>, <pad> ...
    rows        long (B,)                   the video of each caption
    caption_ids long (B,)                   index of each caption in its split
    ids         list of N str
    labels      float (N, classes)          where the dataset has classes
    category    long (N,)                   where it has categories
    share       float                       this process' part of the joined batch (1.0 with one process)

Letters: N videos, B captions, F frames, T words, V vocabulary, C captions per video.
"""
import csv
import io
import json
import re
import zipfile
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

PAD, EOS, UNK = 0, 1, 2


class BadInput(ValueError):
    """Something that the user can mend: the message names the file, the value and the way out."""


# ---------------------------------------------------------------------------------------------------------------- words

def normalise(caption):
    """Lower case, no punctuation, single spaces: "A man's dog, running." -> "a man s dog running"."""
    return ' '.join(re.sub(r'[\W_]+', ' ', caption.lower()).split())


class Vocabulary:
    """Words <-> numbers. `words` is the whole of it: the checkpoint keeps that list."""

    def __init__(self, words):
        self.words = list(words)
        self.index = {word: i for i, word in enumerate(self.words)}

    @classmethod
    def build(cls, captions, min_count=1):
        """captions: str, of the training split alone. Most frequent words first; ties in alphabetical order."""
        counts = Counter(word for caption in captions for word in caption.split())
        kept = sorted((word for word in counts if counts[word] >= min_count), key=lambda word: (-counts[word], word))
        return cls(['<pad>', '<eos>', '<unk>'] + kept)

    def __len__(self):
        return len(self.words)

    def encode(self, caption, max_len):
        """str -> at most max_len word numbers, then <eos>"""
        return [self.index.get(word, UNK) for word in caption.split()[:max_len]] + [EOS]

    def decode(self, tokens):
        """word numbers -> str, up to <eos>"""
        tokens = [int(token) for token in tokens]
        tokens = tokens[:tokens.index(EOS)] if EOS in tokens else tokens
        return ' '.join(self.words[token] for token in tokens if token != PAD)


def word2vec(path, vocabulary, size):
    """Google's binary format (*.bin) or text ("word 0.1 0.2 ..." a line) -> vectors (V, size), found (V,) bool."""
    vectors, found = torch.zeros(len(vocabulary), size), torch.zeros(len(vocabulary), dtype=torch.bool)

    def put(word, numbers, place):
        if len(numbers) != size:
            raise BadInput(f'{path}, {place}: a vector of {len(numbers)} numbers, but the embedding has {size}: '
                           f'use --embed {len(numbers)}')
        if word in vocabulary.index:
            vectors[vocabulary.index[word]], found[vocabulary.index[word]] = torch.tensor(numbers), True

    if not Path(path).is_file():
        raise BadInput(f'{path}: there is no such word2vec file')
    if str(path).endswith('.bin'):
        with open(path, 'rb') as file:
            count, width = map(int, file.readline().split())
            for i in range(count):
                word = bytearray()
                while (byte := file.read(1)) not in (b' ', b''):
                    word += byte
                numbers = file.read(4 * width)
                if len(numbers) < 4 * width:
                    raise BadInput(f'{path}: ends inside word {i + 1} of {count}: the file is cut off')
                put(word.decode('utf-8', 'replace').lstrip('\n'), np.frombuffer(numbers, dtype='<f4').tolist(), f'word {i + 1}')
    else:
        with open(path, encoding='utf-8') as file:
            for number, line in enumerate(file, 1):
                try:
                    word, *numbers = line.split()
                    numbers = [float(x) for x in numbers]
                except ValueError:
                    raise BadInput(f'{path}, line {number}: expected a word and numbers, found {line[:60]!r}') from None
                if number > 1 or len(numbers) > 1:          # not the optional header: count and width
                    put(word, numbers, f'line {number}')
    return vectors, found


# ------------------------------------------------------------------------------------------------------------- captions

@dataclass
class Corpus:
    """One split of one dataset."""
    name: str
    split: str
    captions: dict = field(default_factory=dict)        # id -> list of str, normalised
    labels: dict = field(default_factory=dict)          # id -> list of class numbers
    classes: list = field(default_factory=list)         # names
    category: dict = field(default_factory=dict)        # id -> number
    categories: list = field(default_factory=list)      # names
    truth: dict = field(default_factory=dict)           # id -> what a rendered world knows of the video

    @property
    def ids(self):
        return list(self.captions or self.labels)

    def limit(self, n):
        """The first n videos."""
        keep = self.ids[:n]
        for name in ('captions', 'labels', 'category', 'truth'):
            values = getattr(self, name)
            setattr(self, name, {video: values[video] for video in keep if video in values})
        return self


def read_shapes(folder, split):
    """annotations.json as shapes.prepare() writes it."""
    notes = json.loads((folder / 'annotations.json').read_text())
    videos = {video: note for video, note in notes['videos'].items() if note['split'] == split}
    corpus = Corpus('shapes', split, classes=notes['classes'], categories=notes['categories'])
    for field_name in ('captions', 'labels', 'category', 'truth'):
        setattr(corpus, field_name, {video: note[field_name] for video, note in videos.items()})
    return corpus


def text(path):
    """A file's text; where it is absent, that of the file of this name in a zip beside it (in memory: nothing is unpacked)."""
    try:
        if path.is_file():
            return path.read_bytes().decode('utf-8-sig')
        for archive in sorted(path.parent.glob('*.zip')):
            with zipfile.ZipFile(archive) as opened:
                for member in opened.namelist():
                    if Path(member).name == path.name:
                        return opened.read(member).decode('utf-8-sig')
    except UnicodeDecodeError as error:
        raise BadInput(f'{path}: byte {error.start} is no UTF-8 text; save the file as UTF-8') from None
    except (zipfile.BadZipFile, zlib.error):
        raise BadInput(f'{archive}: no zip file, or a damaged one; download it again') from None
    raise FileNotFoundError(path)


def parse(path, pattern, expected):
    """The pattern's groups in every line that is not blank."""
    for number, line in enumerate(text(path).split('\n'), 1):
        if line.strip():
            found = re.fullmatch(pattern, line.strip())
            if not found:
                raise BadInput(f'{path}, line {number}: expected `{expected}`, found {line.strip()[:60]!r}')
            yield found.groups()


def parse_csv(path, columns):
    """(place for messages, dict) of every row of a csv file whose first line names at least these columns."""
    rows = csv.DictReader(io.StringIO(text(path), newline=''), restval='')
    try:
        if not set(columns) <= set(rows.fieldnames or ()):
            raise BadInput(f'{path}, line 1: expected the columns {", ".join(columns)}, found {", ".join(rows.fieldnames or ())}')
        for row in rows:
            if None in row:                                 # DictReader's key for what is too much
                raise BadInput(f'{path}, line {rows.line_num}: more fields than columns: put captions with commas in "quotes"')
            yield f'{path}, line {rows.line_num}', row
    except csv.Error as error:
        raise BadInput(f'{path}, line {rows.reader.line_num}: {error}: is a " never closed?') from None


def caption_list(path):
    """`video<TAB>caption` a line -> {video: captions}"""
    captions = {}
    for video, caption in parse(path, r'([^\t]+)\t(.*[^\W_].*)', 'video<TAB>caption'):
        captions.setdefault(video.strip(), []).append(normalise(caption))
    return captions


def read_msvd(folder, split):
    """sents_{train,val,test}.txt, else the official corpus (any *.csv) with youtube_mapping.txt (`YOUTUBEID_START_END vidN`)."""
    tables = sorted(folder.glob('*.csv'))
    if (folder / f'sents_{split}.txt').is_file() or not tables:
        return Corpus('msvd', split, caption_list(folder / f'sents_{split}.txt'))
    numbers = {'train': range(1, 1201), 'val': range(1201, 1301), 'test': range(1301, 1971)}[split]         # the standard split
    mapping = parse(folder / 'youtube_mapping.txt', r'(\S+)\s+vid(\d+)', 'YOUTUBEID_START_END vidN')
    videos = {clip: f'vid{number}' for clip, number in mapping if int(number) in numbers}
    captions = {video: [] for video in videos.values()}
    for _, row in parse_csv(tables[0], ('VideoID', 'Start', 'End', 'Language', 'Description')):
        video, caption = videos.get(f'{row["VideoID"]}_{row["Start"]}_{row["End"]}'), normalise(row['Description'])
        if video and caption and row['Language'] == 'English':      # the corpus holds clips outside the 1,970, and empty rows
            captions[video].append(caption)
    return Corpus('msvd', split, {video: several for video, several in captions.items() if several})


SCHEMES = ('official', 'astar', 'vre')                      # MSR-VTT's splits


def read_msrvtt(folder, split, scheme):
    """train_val_videodatainfo.json, test_videodatainfo.json and category.txt, plain or in the zips they come in.

    official: 6,513 / 497 / 2,990 videos, as the files say.
    astar:    5,513 / 497 / 1,000. Test is the last 1,000 of the official training part (the paper does not say which 1,000),
              training the rest of it, validation the official one; the official test part, then unpublished, is not used.
    vre:      6,512 / 498 / 2,990. The last official training video goes to validation."""
    path = folder / f'{"test" if split == "test" and scheme != "astar" else "train_val"}_videodatainfo.json'
    try:
        names = {int(number): name for name, number in parse(folder / 'category.txt', r'(.+?)\t(\d+)', 'name<TAB>number')}
    except FileNotFoundError:
        names = {}
    corpus = Corpus('msrvtt' if scheme == 'official' else f'msrvtt-{scheme}', split)
    corpus.categories = [names.get(number, str(number)) for number in range(20)]
    notes = text(path)
    try:
        notes, captions = json.loads(notes), {}
        videos = sorted(notes['videos'], key=lambda video: int(video['video_id'].removeprefix('video')))
        train, val, test = ([video for video in videos if video['split'] == name] for name in ('train', 'validate', 'test'))
        if scheme == 'astar':
            train, test = train[:-1000], train[-1000:]
        elif scheme == 'vre':
            train, val = train[:-1], train[-1:] + val
        for sentence in notes['sentences']:
            captions.setdefault(sentence['video_id'], []).append(sentence['caption'])
        for video in {'train': train, 'val': val, 'test': test}[split]:
            corpus.captions[video['video_id']] = [normalise(caption) for caption in captions[video['video_id']]]
            corpus.category[video['video_id']] = range(20).index(video['category'])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f'{path}: not as MSR-VTT publishes it: {error!r}') from None
    return corpus


def read_mvad(folder, split):
    """{train,val,test}.txt: `clip<TAB>caption` a line."""
    return Corpus('mvad', split, caption_list(folder / f'{split}.txt'))


def read_folder(folder, split):
    """captions.csv: file, caption and, if wanted, split (train, val or test). Without a column `split`: of every ten
    videos, in the order of the file, the second is for validation, the third for test. An id is a file's name without ending."""
    captions, order, seen = {}, {}, {}
    for place, row in parse_csv(folder / 'captions.csv', ('file', 'caption')):
        file, caption = row['file'].strip(), normalise(row['caption'])
        video = Path(file).stem
        if not video or not caption:
            raise BadInput(f'{place}: the {"caption" if video else "file"} is empty')
        number = order.setdefault(video, len(order)) % 10
        part = row['split'].strip() if 'split' in row else {1: 'val', 2: 'test'}.get(number, 'train')
        if part not in ('train', 'val', 'test'):
            raise BadInput(f'{place}: the split is train, val or test, not {part!r}')
        if seen.setdefault(video, (file, part)) != (file, part):
            raise BadInput(f'{place}: {video!r} was {seen[video][0]} in {seen[video][1]}, here it is {file} in {part}')
        if part == split:
            captions.setdefault(video, []).append(caption)
    return Corpus('folder', split, captions)


# Recognition: the papers have training and test clips, none for validation. We hold back two groups of UCF-11's training clips,
# and every tenth training clip of HMDB-51 and Hollywood2, in the order of their lists.

def read_ucf11(folder, split):
    """<action>/v_<name>_<group>/*.mpg or *.avi, groups 01 to 25. The thesis' split (975 training, 625 test clips) was never
    published. Clips of a group share scene and actor, so we split by group: 1-13 train, 14-15 val, 16-25 test (about 3 : 2)."""
    groups = {'train': range(1, 14), 'val': range(14, 16), 'test': range(16, 26)}[split]
    clips = [(path.parent.parent.name, int(path.parent.name.rpartition('_')[2]), path.stem)
             for path in sorted(folder.rglob('v_*_[0-9][0-9]/*')) if path.suffix.lower() in ('.avi', '.mpg', '.mp4')]
    classes = sorted({action for action, _, _ in clips})
    labels = {clip: [classes.index(action)] for action, group, clip in clips if group in groups}
    return Corpus('ucf11', split, labels=labels, classes=classes)


def action_lists(name, folder, split, ending, marks, wanted):
    """One list per action, <action><ending>, of lines `clip mark`; the wanted mark says that the clip shows the action."""
    paths = [path for path in sorted(folder.rglob(f'*{ending}')) if not text(path).startswith('scene')]     # Hollywood2 has both
    if not paths:
        raise FileNotFoundError(f'<action>{ending}')
    labels = {}
    for number, path in enumerate(paths):
        for clip, mark in parse(path, rf'(.+?)\s+({marks})', f'clip {marks}'):
            if mark in (wanted, '-1'):                      # -1: another action's clip
                labels.setdefault(clip.removesuffix('.avi'), []).extend([number] * (mark == wanted))
    if split != 'test':
        labels = {clip: labels[clip] for i, clip in enumerate(labels) if (i % 10 == 9) == (split == 'val')}
    return Corpus(name, split, labels=labels, classes=[path.name.removesuffix(ending) for path in paths])


def read_hmdb51(folder, split, fold):
    """<action>_test_split<fold>.txt: `file.avi 1` a line for training, 2 for test, 0 for neither."""
    return action_lists('hmdb51', folder, split, f'_test_split{fold}.txt', '0|1|2', '2' if split == 'test' else '1')


def read_hollywood2(folder, split):
    """ClipSets/<Action>_{train,test}.txt: `clip 1` or `clip -1` a line. A clip may show several actions."""
    return action_lists('hollywood2', folder / 'ClipSets', split, f'_{"test" if split == "test" else "train"}.txt', '1|-1', '1')


READERS = {'shapes': read_shapes, 'msvd': read_msvd, 'msrvtt': read_msrvtt, 'mvad': read_mvad, 'folder': read_folder,
           'ucf11': read_ucf11, 'hmdb51': read_hmdb51, 'hollywood2': read_hollywood2}

# Videos for training, validation and test: the papers' counts. HMDB-51 and Hollywood2: less what we hold back for validation.
EXPECTED = {'msvd': (1200, 100, 670), 'msrvtt': (6513, 497, 2990), 'msrvtt-astar': (5513, 497, 1000),
            'msrvtt-vre': (6512, 498, 2990), 'mvad': (36920, 4950, 4717),
            'hmdb51': (3213, 357, 1530), 'hollywood2': (741, 82, 884)}


def load(dataset, root, split, scheme='official', fold=1):
    """-> Corpus. scheme: one of SCHEMES, for msrvtt; fold: 1, 2 or 3, for hmdb51. A split whose files are absent is an error
    only here, when it is asked for."""
    folder = Path(root) / dataset
    reader = READERS[dataset.split('-')[0]]                 # shapes-8 is shapes with 8 training clips
    if scheme not in (SCHEMES if dataset == 'msrvtt' else SCHEMES[:1]):
        raise BadInput(f'no split scheme {scheme!r} for {dataset}: msrvtt has {", ".join(SCHEMES)}, all others official')
    if not folder.is_dir():
        raise BadInput(f'{folder}: there is no such folder; --root names the folder that holds {dataset}/')
    try:
        corpus = reader(folder, split, **{'msrvtt': {'scheme': scheme}, 'hmdb51': {'fold': fold}}.get(dataset, {}))
    except FileNotFoundError as error:
        absent = Path(error.filename or str(error)).name
        raise BadInput(f'{dataset} has no {split} split under {folder}: {absent} is absent') from None
    if not corpus.ids:
        raise BadInput(f'{dataset}: the {split} split under {folder} is empty')
    return corpus


def count(corpus):
    """-> str: "msvd train: 1,200 videos, as in the papers" """
    videos = len(corpus.ids)
    expected = dict(zip(('train', 'val', 'test'), EXPECTED.get(corpus.name, ()))).get(corpus.split)
    said = '' if not expected else ', as in the papers' if expected == videos else f', where the papers have {expected:,}'
    return f'{corpus.name} {corpus.split}: {videos:,} videos{said}'


# ------------------------------------------------------------------------------------------------------------- features

def record(path):
    """A .json file that lies beside features -> dict"""
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise BadInput(f'{path}: not JSON ({error})') from None
    if not isinstance(found, dict):
        raise BadInput(f'{path}: expected an object, found a {type(found).__name__}')
    return found


def opened(function, path, **options):
    """function(path, ...), which opens a file of features"""
    try:
        return function(path, **options)
    except (EOFError, OSError, ValueError) as error:
        raise BadInput(f'{path}: cannot be read, cut off or not of this format ({error}): make it again') from None


class NoFeatures(BadInput):
    """There are no features of that name."""


class Features:
    """One kind of features: FOLDER/NAME.npy with NAME.json (`ids`, one per row, and optional `scale`), FOLDER/NAME/<id>.npy, or
    FOLDER/NAME.h5 keyed by id. features[id] -> float32 (F, D), (F, L, D) or (F, Y, X, D); a vector (D,) is one frame.
    `info`: what is recorded of how they were made (extract.py), {} if nothing is."""

    def __init__(self, folder, name):
        folder = Path(folder)
        self.name, self.scale, self.info = name, None, {}
        if (folder / f'{name}.npy').is_file() and (folder / f'{name}.json').is_file():
            self.path = folder / f'{name}.npy'
            info = record(folder / f'{name}.json')
            self.array = opened(np.load, self.path, mmap_mode='r')
            ids, self.scale = info.pop('ids', None), info.pop('scale', None)
            if not isinstance(ids, list) or len(set(map(str, ids))) != len(self.array):
                raise BadInput(f'{self.path}: {len(self.array)} rows, so {name}.json beside it needs "ids": so many names')
            if self.scale is not None and not (isinstance(self.scale, list) and len(self.scale) == len(ids)
                                               and all(isinstance(x, (int, float)) for x in self.scale)):
                raise BadInput(f'{folder / name}.json: "scale" is a list of {len(ids)} numbers, one per row, or absent')
            self.rows, self.info = {video: row for row, video in enumerate(ids)}, info
        elif (folder / name).is_dir():
            self.path = folder / name
            self.rows = {path.stem: path for path in sorted(self.path.glob('*.npy'))}
            self.info = record(self.path / 'info.json') if (self.path / 'info.json').is_file() else {}
        elif (folder / f'{name}.h5').is_file():
            try:
                import h5py                                 # only for those who have such files
            except ImportError:
                raise BadInput(f'{folder / name}.h5: reading it needs a package more: pip install h5py') from None
            self.path = folder / f'{name}.h5'
            self.array = opened(h5py.File, self.path, mode='r')
            self.rows = {video: video for video in self.array}
        else:
            there = sorted({path.stem for path in folder.glob('*') if path.suffix in ('.npy', '.h5') or path.is_dir()})
            raise NoFeatures(f'no features {name!r}: looked for {name}.npy with {name}.json, {name}/<id>.npy and {name}.h5 '
                             f'in {folder}; there: {", ".join(there) or "nothing"}. Choose with --features')

    def raw(self, video):
        """The numbers as they lie on disk, without reading them yet where the format allows it."""
        row = self.rows[video]
        return opened(np.load, row, mmap_mode='r') if isinstance(row, Path) else self.array[row]

    def __getitem__(self, video):
        value = np.asarray(self.raw(video), dtype=np.float32)
        if self.scale is not None:
            value = value * np.float32(self.scale[self.rows[video]])
        return value[None] if value.ndim == 1 else value


def check(features, ids):
    """Every video has features of one size, all finite -> shape of one frame's feature, most frames of any video."""
    missing = [video for video in ids if video not in features.rows]
    if missing:
        raise BadInput(f'{features.path}: {len(missing)} of {len(ids)} videos have no features, such as '
                       f'{", ".join(map(repr, missing[:5]))}: extract them too, or take them out of the captions')
    shape, most = None, 0
    for video in ids:
        value = features.raw(video)
        place = f'{features.path}: the feature of {video!r}'
        if not 1 <= value.ndim <= 4:
            raise BadInput(f'{place} has shape {value.shape}; expected (D,), (F, D), (F, L, D) or (F, Y, X, D)')
        frames, one = (1, value.shape) if value.ndim == 1 else (value.shape[0], value.shape[1:])
        if frames == 0 or 0 in one:
            raise BadInput(f'{place} is empty: shape {value.shape}')
        if shape is not None and one != shape:
            raise BadInput(f'{place} has {one} per frame, where {ids[0]!r} has {shape}')
        if value.dtype.kind == 'f' and not np.isfinite(value).all():
            raise BadInput(f'{place} holds NaN or infinite numbers: extract it again, or remove the video from the captions')
        if features.scale is not None and not np.isfinite(features.scale[features.rows[video]]):
            raise BadInput(f'{place} has the scale {features.scale[features.rows[video]]} in its .json')
        shape, most = one, max(most, frames)
    return list(shape), most


# -------------------------------------------------------------------------------------------------------------- batches

class Batches:
    """epoch(n) yields the batches of epoch n; the order depends on seed and epoch alone, so a resumed run sees the same.

    A video with more than C captions comes several times in an epoch: its captions are shuffled and cut into visits of at most
    C, and a batch holds V visits. So every caption is used exactly once per epoch, whatever their number per video."""

    def __init__(self, corpus, features, vocabulary=None, videos=32, captions=5, max_len=30, seed=0, rank=0, world=1):
        self.corpus, self.features, self.vocabulary = corpus, features, vocabulary
        self.videos, self.captions, self.max_len = videos, captions, max_len
        self.seed, self.rank, self.world = seed, rank, world
        first = np.cumsum([0] + [len(corpus.captions.get(video, ())) for video in corpus.ids])
        self.caption_ids = {video: list(range(a, b)) for video, a, b in zip(corpus.ids, first, first[1:])}

    def visits(self, epoch):
        """[(video, its captions' numbers in the split)], shuffled"""
        if self.vocabulary is None:                         # no captions: every video once
            visits = [(video, []) for video in self.corpus.ids]
        else:
            visits = []
            for video, numbers in self.caption_ids.items():
                numbers = np.random.default_rng((self.seed, epoch, numbers[0])).permutation(numbers)
                visits += [(video, numbers[i:i + self.captions].tolist()) for i in range(0, len(numbers), self.captions)]
        order = np.random.default_rng((self.seed, epoch)).permutation(len(visits))
        return [visits[i] for i in order]

    def __len__(self):
        visits = [-(-len(numbers) // self.captions) if self.vocabulary else 1 for numbers in self.caption_ids.values()]
        return -(-sum(visits) // self.videos)

    def epoch(self, epoch, start=0):
        """Batches from number `start` on."""
        visits = self.visits(epoch)
        for i in range(start * self.videos, len(visits), self.videos):
            joined = visits[i:i + self.videos]
            mine = joined[self.rank::self.world]
            share = sum(len(n) or 1 for _, n in mine) / sum(len(n) or 1 for _, n in joined)
            yield {**self.collate(mine or joined[:1]), 'share': share}      # more processes than visits: one that weighs nothing

    def in_order(self):
        """Every video once, in the order of the split, without captions: for evaluation."""
        for i in range(0, len(self.corpus.ids), self.videos):
            yield self.collate([(video, []) for video in self.corpus.ids[i:i + self.videos]])

    def collate(self, visits):
        corpus, ids = self.corpus, [video for video, _ in visits]
        batch = {'ids': ids, 'feats': {}, 'mask': {}, 'share': 1.0}
        for name, features in self.features.items():
            values = [torch.from_numpy(features[video]) for video in ids]
            batch['feats'][name] = torch.nn.utils.rnn.pad_sequence(values, batch_first=True)        # (N, F, ...)
            frames = torch.tensor([len(value) for value in values])
            batch['mask'][name] = torch.arange(frames.max())[None] < frames[:, None]                # (N, F)
        if any(numbers for _, numbers in visits):
            texts = [(row, n, corpus.captions[video][n - self.caption_ids[video][0]])
                     for row, (video, numbers) in enumerate(visits) for n in numbers]
            words = [torch.tensor(self.vocabulary.encode(text, self.max_len)) for _, _, text in texts]
            batch['captions'] = torch.nn.utils.rnn.pad_sequence(words, batch_first=True, padding_value=PAD)  # (B, T)
            batch['rows'] = torch.tensor([row for row, _, _ in texts])
            batch['caption_ids'] = torch.tensor([n for _, n, _ in texts])
        if corpus.classes:
            batch['labels'] = torch.zeros(len(ids), len(corpus.classes))
            for row, video in enumerate(ids):
                batch['labels'][row, corpus.labels[video]] = 1
        if corpus.categories:
            batch['category'] = torch.tensor([corpus.category[video] for video in ids])
        return batch


def check_device(name):
    """A --device that cannot be used here is told before any work."""
    try:
        kind = torch.device(name).type
    except RuntimeError:
        raise BadInput(f'--device {name}: not one that torch knows, such as cpu, cuda or cuda:1') from None
    if kind == 'cuda' and not torch.cuda.is_available():
        raise BadInput(f'--device {name}: torch finds no GPU here; --device cpu does without')


def to(batch, device):
    """The batch with its tensors on that device."""
    def move(value):
        return value.to(device) if torch.is_tensor(value) else value
    return {name: {k: move(x) for k, x in value.items()} if isinstance(value, dict) else move(value)
            for name, value in batch.items()}
