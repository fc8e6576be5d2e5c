"""Six puzzles. Each can be solved with one mechanism of the papers, but not without it.

    python train.py --model stats --dataset puzzle-order

A puzzle is made directly as features, without rendering and without a network, so a run takes half
a minute. A symbol is a one-hot vector. The caption consists of a few words, and the score
`slots` is the share of the words asked for that are right.

    puzzle-place    the noun is the symbol at the one marked place           STA: content scores
    puzzle-order    the verb tells which of two symbols comes first          STaTS: ST, ranked
    puzzle-moment   the noun is the spotlit symbol of the frame that flashes STaTS: TS
    puzzle-both     noun as in moment, verb as in order                      STaTS: both branches
    puzzle-key      the sound names a symbol; the noun is the one after it   VRE: a drawn key
    puzzle-layer    the lowest map shows the noun, the highest the verb      ASTAR: soft, hard

The function of a puzzle makes the items of one split: rng, N, split
    -> feats   name of the feature -> (N, F, ...)
       words   slot -> N words; a caption is one word of each, in this order

Letters:  N items, F frames, L places, D feature size
"""
import numpy as np

import data

SIZES = {'train': 2000, 'val': 300, 'test': 600}
NOISE = 0.05                            # standard deviation of the noise on every feature


def one_hot(numbers, size):
    """numbers (...) -> (..., size)"""
    return np.eye(size)[numbers]


def distinct(rng, count, size, number):
    """-> (count, number): in each row, different numbers below `size` in random order"""
    return rng.random((count, size)).argsort(1)[:, :number]


# --------------------------------------------------------------------------------- STA: place

SIDE = 5                                # a grid of 5 x 5 places
MARK = 3                                # strength of the mark; with 1 some runs never find it


def place(rng, count, split):
    """Every place shows a symbol, and one place is marked. The noun is the marked symbol. The mean
    over the places tells only how often each symbol occurs. The noun is the first word, so a model
    whose first glimpse depends on that mean alone has no second glimpse to find the mark."""
    symbol = rng.integers(len(SYMBOLS), size=(count, SIDE * SIDE))      # (N, L)
    marked = rng.integers(SIDE * SIDE, size=count)
    mark = MARK * one_hot(marked, SIDE * SIDE)[..., None]               # (N, L, 1)
    x = np.concatenate([one_hot(symbol, len(SYMBOLS)), mark], 2)        # (N, L, D)
    x = x.reshape(count, 1, SIDE, SIDE, -1).repeat(4, axis=1)           # four frames, all alike
    nouns = [SYMBOLS[s] for s in symbol[np.arange(count), marked]]
    return {'symbols': x}, {'noun': nouns, 'verb': ['glows'] * count}


# ------------------------------------------------------------------- STaTS: order, moment and both

FRAMES = 8
PLACES = 9                              # a grid of 3 x 3
SYMBOLS = ('star', 'moon', 'sun', 'cloud', 'tree', 'bird')
VERBS = ('sings', 'rings', 'blinks', 'jumps', 'spins', 'waits', 'hums', 'sinks', 'opens', 'closes')
SIMPLE_VERBS = 8                        # the last two, opens and closes, differ in order alone


def order(rng, count, split):
    """Each of eight verbs has a symbol of its own, which occurs in one frame. `opens` and `closes`
    share two more symbols, which both occur: it opens if the first of them comes before the second,
    otherwise it closes. Validation and test clips have only these two verbs."""
    verb = rng.integers(len(VERBS), size=count)
    if split != 'train':
        verb = rng.integers(SIMPLE_VERBS, len(VERBS), size=count)
    x = np.zeros((count, FRAMES, 2, 2, len(VERBS)))
    when = np.sort(distinct(rng, count, FRAMES, 2), 1)
    row, column = rng.integers(2, size=(count, 2)).T
    x[np.arange(count), when[:, 0], row, column, verb] = 1
    n = np.flatnonzero(verb >= SIMPLE_VERBS)
    second = SIMPLE_VERBS + len(VERBS) - 1 - verb[n]
    x[n, when[n, 1], row[n], column[n], second] = 1
    return {'symbols': x}, {'noun': ['it'] * count, 'verb': [VERBS[v] for v in verb]}


def moment(rng, count, split):
    """Every place of every frame shows a symbol. A spotlight visits another place in each frame,
    and one frame flashes: the noun is the symbol that is spotlit in this frame. Means over time
    show neither the place nor the frame, so an attention that is the same for all frames can only
    guess."""
    symbol = rng.integers(len(SYMBOLS), size=(count, FRAMES, PLACES))
    place = distinct(rng, count, PLACES, FRAMES)                        # (N, F), of the spotlight
    flash = rng.integers(FRAMES, size=count)                            # (N,), the frame
    spotlight = one_hot(place, PLACES)[..., None]                       # (N, F, L, 1)
    flashes = np.broadcast_to(one_hot(flash, FRAMES)[:, :, None, None], spotlight.shape)
    x = np.concatenate([one_hot(symbol, len(SYMBOLS)), spotlight, flashes], 3)
    n = np.arange(count)
    nouns = [SYMBOLS[s] for s in symbol[n, flash, place[n, flash]]]
    feats = {'symbols': x.reshape(count, FRAMES, 3, 3, -1)}
    return feats, {'noun': nouns, 'verb': ['shines'] * count}


def both(rng, count, split):
    """The noun as in moment, and a verb as in order: it opens if the first of two more signs comes
    before the second. A model that cannot tell one order of the frames from another, such as TS,
    can only guess the verb."""
    feats, words = moment(rng, count, split)
    sign = np.zeros((count, FRAMES, 3, 3, 2))
    when = np.sort(distinct(rng, count, FRAMES, 2), 1)
    closes = rng.integers(2, size=count)
    row, column = rng.integers(3, size=(count, 2)).T
    sign[np.arange(count), when[:, 0], row, column, closes] = 1
    sign[np.arange(count), when[:, 1], row, column, 1 - closes] = 1
    verbs = [VERBS[SIMPLE_VERBS + c] for c in closes]
    return {'symbols': np.concatenate([feats['symbols'], sign], 4)}, words | {'verb': verbs}


# --------------------------------------------------------------------------------------- VRE: key

THINGS = ('star', 'moon', 'sun', 'cloud', 'tree', 'bird', 'fish', 'boat')
BRIGHT = 4.0                            # value that marks a symbol; with 1, learning was slower


def key(rng, count, split):
    """Eight symbols, one in each frame, in random order. The sound names one of them, and the noun
    is the symbol in the next frame. In half of the training clips, the middle frame is made to show
    the named symbol (by chance, so do some others: four in seven altogether). There, the first pass
    of VRE has the right key, so it can learn what a right key is good for. The feature `key` is the
    truth: 1 at the named symbol."""
    size = len(THINGS)
    symbols = distinct(rng, count, size, size)
    frame = rng.integers(size - 1, size=count)          # of the named symbol; never the last one
    if split == 'train':
        frame[::2] = size // 2
    rows = np.arange(count)
    feats = {'symbols': BRIGHT * one_hot(symbols, size),
             'sound': BRIGHT * one_hot(symbols[rows, frame], size)[:, None],
             'key': one_hot(frame, size)[:, :, None]}
    nouns = [THINGS[s] for s in symbols[rows, frame + 1]]
    return feats, {'noun': nouns, 'verb': ['follows'] * count}


# ------------------------------------------------------------------------------ ASTAR: layer

# Map of C3D -> side of a cell, in cells of pool2. The last cells of pool5 lie half outside pool2.
CELLS = {'c3d_pool2': 1, 'c3d_pool3': 2, 'c3d_pool4': 4, 'c3d_pool5': 8}
POOL2 = 28                              # rows and columns of pool2


def layer(rng, count, split):
    """At one place, every map of C3D shows one of four symbols. The symbol of pool2 is the noun,
    that of pool5 is the verb, and those of pool3 and pool4 mean nothing. The maps have the same
    channels, so a mean over layers does not tell which symbol comes from which layer. fc7, which
    gives the first word, is noise."""
    symbols = {name: rng.integers(4, size=count) for name in CELLS}
    row, column = rng.integers(POOL2, size=(2, count))
    feats = {}
    for name, cell in CELLS.items():
        side = -(-POOL2 // cell)
        x = np.zeros((count, 1, side, side, 4))
        x[np.arange(count), 0, row // cell, column // cell, symbols[name]] = 1
        feats[name] = x
    feats['c3d_fc7'] = np.zeros((count, 1, 4))
    nouns = [SYMBOLS[s] for s in symbols['c3d_pool2']]
    verbs = [VERBS[s] for s in symbols['c3d_pool5']]
    return feats, {'article': ['a'] * count, 'noun': nouns, 'verb': verbs}


PUZZLES = {'place': place, 'order': order, 'moment': moment, 'both': both, 'key': key,
           'layer': layer}
NAMES = [f'puzzle-{name}' for name in PUZZLES]


# ------------------------------------------------------------------------------ as a dataset

def make(name, split, seed=0):
    """-> feats and words of one split. The same seed gives the same items."""
    number = list(SIZES).index(split)
    rng = np.random.default_rng([seed, number, *map(ord, name)])
    feats, words = PUZZLES[name.removeprefix('puzzle-')](rng, SIZES[split], split)
    for kind, x in feats.items():
        noisy = x + NOISE * rng.standard_normal(x.shape)
        feats[kind] = noisy.astype(np.float32)
    return feats, words


class Computed:
    """Like data.Features, but features[id], float32 (F, ...), comes from a function of the id"""
    info = {}

    def __init__(self, path, compute):
        self.path = path
        self.compute = compute

    def __getitem__(self, id):
        return self.compute(id).astype(np.float32, copy=False)

    def check(self, ids):
        """-> shape of one frame's feature, number of frames"""
        frames, *shape = self[ids[0]].shape
        return shape, frames


def read(name, split, seed):
    """-> one split of a puzzle, with all its features"""
    feats, words = make(name, split, seed)
    corpus = data.Corpus(name, split)
    for i, said in enumerate(zip(*words.values(), strict=True)):
        corpus.captions[f'{split}{i:05d}'] = [' '.join(said)]
        corpus.answers[f'{split}{i:05d}'] = dict(zip(words, said))
    for kind, values in feats.items():
        rows = dict(zip(corpus.ids, values, strict=True))
        corpus.features[kind] = Computed('the puzzle', rows.__getitem__)
    return corpus


def score(captions, answers):
    """captions {id: str}, answers {id: {slot: word}} -> {'slots': share of the words that are
    right, slot: the same for each slot}. A slot that has the same word in all items is not asked
    for, and does not count."""
    asked = {}
    for i, slot in enumerate(next(iter(answers.values()))):
        right = [captions[id].split()[i:i + 1] == [words[slot]] for id, words in answers.items()]
        if len({words[slot] for words in answers.values()}) > 1:
            asked[slot] = sum(right) / len(right)
    return {'slots': sum(asked.values()) / len(asked), **asked}
