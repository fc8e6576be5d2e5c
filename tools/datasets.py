"""Datasets by name: the files that their authors publish, read as they are.

    shapes                        the embedded world, rendered on first use
    puzzle-...                    a small task for one mechanism, made in memory (shapes/puzzles.py)
    msvd, msrvtt, mvad            captions
    folder                        your own videos and captions
    ucf11, hmdb51, hollywood2, weizmann     action labels

Missing files of a split are an error only if that split is used, because test captions are not
always public.
"""
import contextlib
import csv
import glob
import hashlib
import io
import json
import os
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

import data
from data import BadInput, Corpus, normalise
from shapes import dataset as shapes
from shapes import puzzles
from tools import encoders

LARGEST = 1 << 27       # bytes of a packed file; the largest of MSR-VTT has 24 million
PARTS = ('train', 'val', 'test')


def unpack(path):
    """-> the bytes of the file of this name in one of the zip archives beside it"""
    for source in sorted(filter(Path.is_file, path.parent.glob('*.zip'))):
        with data.reading(source, 'cannot be unpacked; unpack it yourself'):
            with zipfile.ZipFile(source) as archive:
                for name in archive.namelist():
                    if Path(name).name == path.name:
                        content = archive.open(name).read(LARGEST + 1)
                        if len(content) > LARGEST:
                            raise ValueError(f'{name} has more than {LARGEST:,} bytes')
                        return content
    raise FileNotFoundError(path)


def text(path):
    """-> the text of a file. If there is no such file, the zip archives beside it are searched."""
    try:
        content = path.read_bytes() if path.is_file() else unpack(path)
        return content.decode('utf-8-sig').replace('\r\n', '\n').replace('\r', '\n')
    except UnicodeDecodeError as error:
        raise BadInput(f'{path}: byte {error.start} is not UTF-8 text; save it as UTF-8') from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadInput(f'{path}: cannot be read ({error.strerror})') from None


def parse_lines(path, pattern, expected):
    """Yield the groups of the regular expression `pattern` for every line that is not blank."""
    for number, line in enumerate(text(path).split('\n'), 1):
        line = line.strip()
        if not line:
            continue
        found = re.fullmatch(pattern, line)
        if not found:
            raise BadInput(f'{path}, line {number}: expected `{expected}`, found {line[:60]!r}')
        yield found.groups()


def parse_csv(path, columns):
    """Yield (place for error messages, row as a dict) for every row of a CSV file whose first line
    names at least these columns."""
    rows = csv.DictReader(io.StringIO(text(path), newline=''), restval='')
    try:
        names = rows.fieldnames or ()
        if not set(columns) <= set(names):
            raise BadInput(f'{path}, line 1: expected the columns {", ".join(columns)}, '
                           f'found {", ".join(names)}')
        for row in rows:
            if None in row:                             # DictReader puts surplus fields here
                raise BadInput(f'{path}, line {rows.line_num}: more fields than columns; '
                               'put captions that contain commas in "quotes"')
            yield f'{path}, line {rows.line_num}', row
    except csv.Error as error:
        raise BadInput(f'{path}, line {rows.reader.line_num}: {error}; '
                       'is a " missing at the end of a caption?') from None


def grouped(pairs):
    """(video, caption) ... -> {video: its captions}"""
    captions = {}
    for video, caption in pairs:
        captions.setdefault(video, []).append(normalise(caption))
    return captions


def caption_list(path):
    """Lines `video<TAB>caption` -> {video: captions}"""
    return grouped(parse_lines(path, r'([^\t]+?)\s*\t(.*)', 'video<TAB>caption'))


def official_msvd(folder):
    """-> path, {YOUTUBEID_START_END: English captions}: AllVideoDescriptions.txt, or the corpus as
    a table, any *.csv; None, {} if neither is there"""
    path = folder / 'AllVideoDescriptions.txt'
    try:
        rows = parse_lines(path, r'#.*|(\S+_\d+_\d+)\s*(.*)', 'YOUTUBEID_START_END caption')
        return path, grouped(row for row in rows if row[0])     # without the header
    except FileNotFoundError:
        path = min(folder.glob('*.csv'), default=None)
    columns = ('VideoID', 'Start', 'End', 'Language', 'Description')
    return path, grouped((f'{row["VideoID"]}_{row["Start"]}_{row["End"]}', row['Description'])
                         for _, row in (parse_csv(path, columns) if path else ())
                         if row['Language'] == 'English')


def msvd_names(folder):
    """-> {YOUTUBEID_START_END: vidN}, as youtube_mapping.txt lists them. The numbers follow the
    order of the names, so captions of all 1,970 clips can replace that file. {} if neither is
    there."""
    mapping = folder / 'youtube_mapping.txt'
    try:
        return dict(parse_lines(mapping, r'(\S+)\s+(vid\d{1,4})', 'YOUTUBEID_START_END vidN'))
    except FileNotFoundError:
        clips = sorted(official_msvd(folder)[1])
    return {clip: f'vid{i}' for i, clip in enumerate(clips, 1)} if len(clips) == 1970 else {}


def read_msvd(folder, split):
    """sents_{train,val,test}.txt, with lines `vidN<TAB>caption`; or the captions as their authors
    publish them, see official_msvd() and msvd_names()"""
    sentences = folder / f'sents_{split}.txt'
    try:
        return Corpus('msvd', split, caption_list(sentences), notes=[f'from {sentences.name}'])
    except FileNotFoundError:
        path, captions = official_msvd(folder)
        if not path:
            others = '(or AllVideoDescriptions.txt, or the corpus as a .csv file)'
            raise FileNotFoundError(folder / f'{sentences.name} {others}') from None
    names = msvd_names(folder)
    if not names:
        raise FileNotFoundError(folder / 'youtube_mapping.txt')
    standard = {'train': range(1, 1201), 'val': range(1201, 1301), 'test': range(1301, 1971)}
    chosen = {name: captions[clip] for clip, name in names.items()
              if clip in captions and int(name[3:]) in standard[split]}
    return Corpus('msvd', split, chosen, notes=[f'from {path.name}'])


def read_msrvtt(folder, split, scheme='official'):
    """train_val_videodatainfo.json, test_videodatainfo.json and category.txt, plain or zipped.

    official: 6,513 / 497 / 2,990 videos, as the files say.
    astar:    5,513 / 497 / 1,000. The test videos are the last 1,000 of the official training
              split (the paper does not say which 1,000); the official test split was not published
              at the time and is not used.
    vre:      6,512 / 498 / 2,990. The last official training video is used for validation."""
    part = 'test' if split == 'test' and scheme != 'astar' else 'train_val'
    path = folder / f'{part}_videodatainfo.json'
    corpus = Corpus(f'msrvtt-{scheme}'.removesuffix('-official'), split)
    corpus.categories = [str(number) for number in range(20)]
    with contextlib.suppress(FileNotFoundError):        # without names, the numbers serve as names
        rows = parse_lines(folder / 'category.txt', r'(.+?)\t(1?\d)', 'name<TAB>number')
        for name, number in rows:
            corpus.categories[int(number)] = name
    content = text(path)
    with data.reading(path, 'not in the format that MSR-VTT publishes'):
        notes = json.loads(content)
        captions = grouped((one['video_id'], one['caption']) for one in notes['sentences'])
        for video in split_msrvtt(notes['videos'], scheme)[split]:
            corpus.captions[video['video_id']] = captions[video['video_id']]
            corpus.category[video['video_id']] = range(20).index(video['category'])
    return corpus


def split_msrvtt(videos, scheme):
    """Entries of the JSON file -> {'train', 'val', 'test': entries}, in order of their numbers"""
    parts = {'train': [], 'validate': [], 'test': []}
    for video in sorted(videos, key=lambda video: int(video['video_id'].removeprefix('video'))):
        parts[video['split']].append(video)
    train = parts['train']
    if scheme == 'astar':
        return {'train': train[:-1000], 'val': parts['validate'], 'test': train[-1000:]}
    if scheme == 'vre':
        return {'train': train[:-1], 'val': train[-1:] + parts['validate'], 'test': parts['test']}
    return {'train': train, 'val': parts['validate'], 'test': parts['test']}


def read_folder(folder, split):
    """captions.csv with the columns file, caption and, optionally, split (train, val or test).
    Without a split column, the second of every ten videos is used for validation and the third for
    testing, in the order of the file. A video's id is its file name without the extension."""
    captions = {}
    parts = {}                                          # id -> (file, split)
    for place, row in parse_csv(folder / 'captions.csv', ('file', 'caption')):
        file = row['file'].strip()
        video = Path(file).stem
        if not video or not row['caption'].strip():
            raise BadInput(f'{place}: the {"caption" if video else "file"} is empty')
        part = {1: 'val', 2: 'test'}.get(len(parts) % 10, 'train')
        if 'split' in row:
            part = row['split'].strip()
        elif video in parts:
            part = parts[video][1]
        if part not in PARTS:
            raise BadInput(f'{place}: the split must be train, val or test, not {part!r}')
        if parts.setdefault(video, (file, part)) != (file, part):
            raise BadInput(f'{place}: {video!r} was {parts[video][0]} in {parts[video][1]} before, '
                           f'but here it is {file} in {part}')
        if part == split:
            captions.setdefault(video, []).append(normalise(row['caption']))
    return Corpus('folder', split, captions)


def read_mvad(folder, split):
    """{train,val,test}.txt with lines `clip<TAB>caption`."""
    return Corpus('mvad', split, caption_list(folder / f'{split}.txt'))


# The action datasets have training and test clips, but none for validation. We hold back two of
# UCF-11's groups, and every tenth training clip of HMDB-51 and Hollywood2, in their lists' order.

def read_ucf11(folder, split):
    """<action>/v_<name>_<group>/*.mpg or *.avi, groups 01 to 25. The thesis' split (975 training
    and 625 test clips) was never published. Clips of one group share scene and actor, so we split
    by group, about 3 : 2: groups 1-13 train, 14-15 val, 16-25 test."""
    groups = {'train': range(1, 14), 'val': range(14, 16), 'test': range(16, 26)}[split]
    clips = [path for path in sorted(folder.rglob('v_*_[0-9][0-9]/*'))
             if path.suffix.lower() in ('.avi', '.mpg', '.mp4')]
    classes = sorted({path.parent.parent.name for path in clips})
    labels = {}
    for path in clips:
        if int(path.parent.name.rpartition('_')[2]) in groups:
            labels[path.stem] = [classes.index(path.parent.parent.name)]
    return Corpus('ucf11', split, labels=labels, classes=classes)


def action_lists(folder, split, ending, marks, shown):
    """Read one list per action, <action><ending>. A line is `clip mark`; marks: the possible marks,
    as 'a|b|...'. The mark `shown` means that the clip shows the action. The mark -1 means that it
    belongs to the split but does not show the action. Lists for training are divided into train
    and val. -> {clip: class numbers} of this split, class names"""
    paths = [path for path in sorted(folder.rglob(f'*{ending}'))
             if not text(path).startswith('scene')]     # Hollywood2 also has lists of scenes
    if not paths:
        raise FileNotFoundError(f'<action>{ending}')
    labels = {}
    for number, path in enumerate(paths):
        for clip, mark in parse_lines(path, rf'(.+?)\s+({marks})', f'clip {marks}'):
            if mark in (shown, '-1'):
                several = labels.setdefault(clip.removesuffix('.avi'), [])
                if mark == shown:
                    several.append(number)
    chosen = {clip: numbers for i, (clip, numbers) in enumerate(labels.items())
              if split == 'test' or (i % 10 == 9) == (split == 'val')}
    return chosen, [path.name.removesuffix(ending) for path in paths]


def read_hmdb51(folder, split, fold=1):
    """<action>_test_split<fold>.txt with lines `file.avi 1` for training, 2 for test, 0 for
    neither."""
    shown = '2' if split == 'test' else '1'
    labels, classes = action_lists(folder, split, f'_test_split{fold}.txt', '0|1|2', shown)
    return Corpus('hmdb51', split, labels=labels, classes=classes)


def read_weizmann(folder, split, fold=1):
    """<action>/<person>_<action>.avi, 10 actions by 9 persons. Fold k tests on the k-th person and
    validates on the next one, so that nobody is seen in two splits."""
    clips = sorted(folder.glob('*/*_*.avi'))
    people = sorted({path.stem.split('_')[0] for path in clips})
    classes = sorted({path.parent.name for path in clips})
    labels = {}
    for path in clips:
        distance = (people.index(path.stem.split('_')[0]) - fold + 1) % len(people)
        if split == {0: 'test', 1: 'val'}.get(distance, 'train'):
            labels[path.stem] = [classes.index(path.parent.name)]
    return Corpus('weizmann', split, labels=labels, classes=classes)


def read_hollywood2(folder, split):
    """ClipSets/<Action>_{train,test}.txt with lines `clip 1` or `clip -1`. A clip may show several
    actions."""
    part = 'test' if split == 'test' else 'train'
    labels, classes = action_lists(folder / 'ClipSets', split, f'_{part}.txt', '1|-1', '1')
    return Corpus('hollywood2', split, labels=labels, classes=classes)


# ----------------------------------------------------------------------------- a dataset by name

READERS = {'msvd': read_msvd, 'msrvtt': read_msrvtt, 'mvad': read_mvad, 'folder': read_folder,
           'ucf11': read_ucf11, 'hmdb51': read_hmdb51, 'hollywood2': read_hollywood2,
           'weizmann': read_weizmann, 'shapes': shapes.read}
NAMES = [*sorted(READERS), *puzzles.NAMES]
LABELS_ONLY = ('ucf11', 'hmdb51', 'hollywood2', 'weizmann')     # no captions
FOLDS = {'hmdb51': 3, 'weizmann': 9}                    # datasets with several splits

# Numbers of training, validation and test videos in the papers. Of the action datasets, we count
# the training clips that we hold back as validation videos.
EXPECTED = {'msvd': (1200, 100, 670), 'msrvtt': (6513, 497, 2990),
            'msrvtt-astar': (5513, 497, 1000), 'msrvtt-vre': (6512, 498, 2990),
            'mvad': (36920, 4950, 4717), 'hmdb51': (3213, 357, 1530),
            'hollywood2': (741, 82, 884)}

# How the captions of videos that users bring can be split
SCHEMES = {'msrvtt': ('official', 'astar', 'vre', 'hash'),
           **dict.fromkeys(('msvd', 'mvad', 'folder'), ('official', 'hash'))}
ON_DEMAND = {'video': shapes.Videos, 'key': shapes.Keys}        # features of shapes without a file
PICKLED = """a pickle can run any program when it is opened, so it is not read. If you trust its \
source and it holds {{id: array}}, convert it: mkdir {to}; python -c "import pickle, numpy; \
[numpy.save('{to}/' + id, x) for id, x in pickle.load(open('{to}.pkl', 'rb')).items()]" """
FEWEST = 20                                             # videos of a split with --partial


def schemes(name):
    """-> the ways to split this dataset"""
    return SCHEMES.get(name, ('official',))


def drop_wordless(corpus):
    """Leave out captions without a word, such as "..." or an emoji, and videos with no others."""
    wordless = 0
    for several in corpus.captions.values():
        wordless += several.count('')
        several[:] = filter(None, several)
    if wordless:
        corpus.keep([video for video, several in corpus.captions.items() if several])
        corpus.notes.append(f'{wordless:,} captions without a word left out')


def read_by_hash(name, folder, split):
    """-> of all videos that have captions, those that a hash of their ids puts into this split,
    8 : 1 : 1. So a video is in the same split everywhere, whichever other videos are there."""
    found = []
    for part in PARTS:
        with contextlib.suppress(FileNotFoundError):    # test captions are not always public
            found.append(READERS[name](folder, part))
    if not found:
        READERS[name](folder, split)                    # says which file is missing
    whole = Corpus(f'{name}-hash', split, categories=found[0].categories)
    for corpus in found:
        whole.captions |= corpus.captions
        whole.category |= corpus.category
        whole.notes += [note for note in corpus.notes if note not in whole.notes]
    for video in whole.ids:
        number = int(hashlib.sha256(video.encode()).hexdigest(), 16) % 10
        if split != {8: 'val', 9: 'test'}.get(number, 'train'):
            del whole.captions[video]
    return whole


@dataclass
class Dataset:
    """Where the data of a run comes from"""
    name: str = 'shapes'
    root: str = 'data'              # folder that contains NAME/
    scheme: str = 'official'        # one of schemes(name)
    fold: int = 1                   # from 1 to FOLDS[name]
    limit: int = None               # use only this many videos of each split
    partial: bool = False           # use only the videos that have features
    seed: int = 0                   # puzzles: seed of the items

    def folder(self, kinds=(), split=None):
        """The folder of the dataset. kinds: names of features that are about to be read, of this
        split (None: of all splits)"""
        if self.name == 'shapes':                       # it is rendered on first use
            return shapes.prepare(self.root, self.limit, kinds, split)
        folder = Path(self.root) / self.name
        if not os.path.isdir(folder) and self.name not in puzzles.NAMES:
            raise BadInput(f'{folder}: there is no such folder; --root must contain {self.name}/')
        return folder

    def split(self, split, kinds=()):
        """-> Corpus with its captions or labels, and these kinds of features"""
        folder = self.folder(kinds, split)
        try:
            corpus = self.read(folder, split)
        except FileNotFoundError as error:
            missing = Path(error.filename or str(error)).name
            advice = self.advice() if split != 'train' else ''      # hash needs some captions
            raise BadInput(f'{self.name} has no {split} split in {folder}: {missing} is '
                           f'missing{advice}') from None
        drop_wordless(corpus)
        if not corpus.ids:
            raise BadInput(f'{self.name}: the {split} split in {folder} is empty{self.advice()}')
        corpus.features = {kind: self.open_features(corpus, folder, kind) for kind in kinds}
        if self.partial:
            self.keep_partial(corpus)
        corpus.keep(corpus.ids[:self.limit])
        return corpus

    def advice(self):
        """What to do if a split is missing or too small"""
        if self.scheme == 'hash' or 'hash' not in schemes(self.name):
            return ''
        return '; --split-scheme hash divides the videos that you have into train, val and test'

    def read(self, folder, split):
        """-> Corpus without features, except for a puzzle"""
        if self.name in puzzles.NAMES:
            return puzzles.read(self.name, split, self.seed)
        if self.scheme == 'hash':
            return read_by_hash(self.name, folder, split)
        options = {'msrvtt': {'scheme': self.scheme},
                   **dict.fromkeys(FOLDS, {'fold': self.fold})}
        return READERS[self.name](folder, split, **options.get(self.name, {}))

    def keep_partial(self, corpus):
        """Keep the videos that have features of every kind."""
        ids = corpus.ids
        for features in corpus.features.values():
            corpus.keep([video for video in corpus.ids if video in features.rows])
        found = f'{len(corpus.ids):,} of {len(ids):,} videos have features'
        if len(corpus.ids) < FEWEST:
            raise BadInput(f'--partial: in the {corpus.split} split of {corpus.name} only {found}, '
                           f'fewer than {FEWEST}; extract more{self.advice()}')
        corpus.notes.append(found)

    def open_features(self, corpus, folder, kind):
        """-> Features of that name. If there are none, the error says how to make them."""
        if corpus.features:                             # a puzzle comes with its features
            data.choose('--features', kind, corpus.features)
            return corpus.features[kind]
        if self.name == 'shapes' and kind in ON_DEMAND:
            return ON_DEMAND[kind]()
        place = folder / 'features'
        base, _, part = kind.rpartition('_')
        # v-iashin/video_features names its files BASE/<id>_PART.npy.
        theirs = base and not os.path.isdir(place / kind) and any(
            (place / base).glob(f'*_{glob.escape(part)}.npy'))
        try:
            features = data.Features(place, base if theirs else kind)
        except data.NoFeatures as error:
            if self.name == 'shapes':
                raise
            command = encoders.how_to_make(kind, self.name, self.root)
            pickled = os.path.isfile(place / f'{kind}.pkl')
            reason = f'{place / kind}.pkl: {PICKLED.format(to=place / kind)}' if pickled else error
            raise BadInput(f'{reason}, or make them: {command}') from None
        names = {}
        if self.name == 'msvd' and not all(file.startswith('vid') for file in features.rows):
            names = msvd_names(folder)
        ending = '' if features.info else f'_{part}'    # ours have no endings
        for file, row in list(features.rows.items()):
            video = file.removesuffix(ending)
            features.rows.setdefault(names.get(video, video), row)
        return features


def count(corpus):
    """-> text such as "msvd train: 1,200 videos, as in the papers" """
    videos = len(corpus.ids)
    expected = dict(zip(PARTS, EXPECTED.get(corpus.name, ()))).get(corpus.split)
    comparison = f' (the papers have {expected:,})' if expected else ''
    if expected == videos:
        comparison = ', as in the papers'
    notes = ''.join(f', {note}' for note in corpus.notes)
    return f'{corpus.name} {corpus.split}: {videos:,} videos{comparison}{notes}'


def check_features(corpora):
    """Check the features of all videos in these splits.
    -> {kind: shape of one frame's feature}, most frames of any video"""
    ids = [video for corpus in corpora for video in corpus.ids]
    found = {kind: features.check(ids) for kind, features in corpora[0].features.items()}
    most = max(frames for _, frames in found.values())
    return {kind: shape for kind, (shape, _) in found.items()}, most
