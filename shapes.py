"""The embedded world: coloured shapes that move, rendered from a seed, with captions, features and the truth.

    python shapes.py prepare     render, extract and store the dataset (train.py does it by itself)
    python shapes.py train       train the clip CNN whose grids are the dataset's features -> weights/shapes_clip.pt

A clip is 16 frames of 112 x 112 pixels. One or two shapes do one of 14 actions on a textured, noisy background; some clips
start or end with frames of another scene, some have a sound. Four actions differ from another only in long-range order
(grows then shrinks / shrinks then grows, left and back / right and back): no single frame tells them apart, only their order.
Half of the test clips show a (shape, colour, action) combination that no training clip shows.

    id --scene--> tracks, slots --render--> (16, 112, 112, 3) --ClipCNN on neighbouring frames--> features (16, 7, 7, 64)
                        '--captions--> five sentences that name every slot          sound --spectrum--> features (1, 128)

Letters:  N clips, F frames or time steps, Y X rows and columns, C channels
"""
import argparse, functools, hashlib, itertools, json, os, pathlib, shutil

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from tqdm import tqdm

SEED, VERSION = 2018, 1
SIZES = {'train': 3000, 'val': 300, 'test': 500}
STEPS, SIDE, VISIBLE = 16, 112, 0.15                    # time steps, pixels, the least opacity that counts as seen
WEIGHTS = pathlib.Path(__file__).parent / 'weights' / 'shapes_clip.pt'

# ---------------------------------------------------------------- words: canonical value -> its phrases, the first the commonest
SHAPES = {'circle': ['circle', 'disc'], 'square': ['square', 'box'], 'triangle': ['triangle', 'wedge'], 'cross': ['cross', 'plus']}
COLOURS = {'red': ['red', 'crimson'], 'green': ['green'], 'blue': ['blue'], 'yellow': ['yellow', 'golden'],
           'purple': ['purple', 'violet'], 'white': ['white']}
ACTIONS = {
    'left': ['moves left', 'goes left', 'slides left'], 'right': ['moves right', 'goes right', 'slides right'],
    'up': ['moves up', 'goes up', 'rises'], 'down': ['moves down', 'goes down', 'falls'],
    'grows': ['grows', 'gets bigger', 'expands'], 'shrinks': ['shrinks', 'gets smaller', 'contracts'],
    'appears': ['appears', 'fades in', 'emerges'], 'disappears': ['disappears', 'fades out', 'vanishes'],
    'chases': ['chases', 'follows', 'runs after'], 'pushes': ['pushes', 'shoves'],
    'grows then shrinks': ['grows then shrinks', 'gets bigger then smaller', 'expands and then contracts'],
    'shrinks then grows': ['shrinks then grows', 'gets smaller then bigger', 'contracts and then expands'],
    'left and back': ['moves left and back', 'goes left and returns', 'slides left and comes back'],
    'right and back': ['moves right and back', 'goes right and returns', 'slides right and comes back']}
RELATIONS = {'left of': ['left of'], 'right of': ['right of'],
             'above': ['above', 'over'], 'below': ['below', 'under']}
SOUNDS = {'beep': ['with a beep', 'and a beep'], 'buzz': ['with a buzz', 'and a buzz']}
TEXTURES = ['clouds', 'stripes', 'checks', 'blocks']    # a clip's category is its background's: it tells nothing of the action
SIMPLE, ORDER_ONLY = list(ACTIONS)[:8], list(ACTIONS)[10:]
DIRECTIONS = {'left': (-1, 0), 'right': (1, 0), 'up': (0, -1), 'down': (0, 1)}
RGB = {'red': (205, 30, 30), 'green': (30, 165, 50), 'blue': (30, 65, 208), 'yellow': (208, 190, 30), 'purple': (150, 40, 175),
       'white': (208, 208, 208)}


# ---------------------------------------------------------------- scenes
def held_out(shape, colour, action):
    """One combination in five is never shown in training."""
    return (list(SHAPES).index(shape) + 2 * list(COLOURS).index(colour) + 3 * list(ACTIONS).index(action)) % 5 == 0


def place(rng, *tracks):
    """Tracks (F, 4) around the origin: x, y, radius, opacity -> the same tracks moved together to a random place in the frame."""
    low = np.min([(t[:, :2] - t[:, 2:3]).min(0) for t in tracks], axis=0)
    high = np.max([(t[:, :2] + t[:, 2:3]).max(0) for t in tracks], axis=0)
    offset = rng.uniform(2 - low, np.maximum(SIDE - 2 - high, 2.01 - low))
    return [np.concatenate([t[:, :2] + offset, t[:, 2:]], 1) for t in tracks]


def track(rng, action, p):
    """What one shape does, from the progress p (F,) of the action -> (F, 4) around the origin."""
    there_and_back = np.clip(1.25 - 1.25 * np.abs(2 * p - 1), 0, 1)            # with a short rest between
    out = np.zeros((STEPS, 4))
    out[:, 2:] = rng.uniform(11, 16), 1
    if action.split()[0] in DIRECTIONS:
        way = there_and_back if action in ORDER_ONLY else p
        out[:, :2] = way[:, None] * rng.uniform(38, 62) * np.array(DIRECTIONS[action.split()[0]])
    elif action in ('appears', 'disappears'):
        out[:, 3] = p if action == 'appears' else 1 - p
    elif action != 'still':                                                    # one of the four ways to change size
        way = there_and_back if action in ORDER_ONLY else p
        small, large = rng.uniform(8, 10), rng.uniform(18, 22)
        out[:, 2] = small + (large - small) * (way if action.startswith('grows') else 1 - way)
    return out


def pair(rng, action, p):
    """The tracks of the chaser and the chased, or the pusher and the pushed."""
    direction = np.array(list(DIRECTIONS.values())[rng.integers(4)])
    r = rng.uniform(9, 12.5, 2)
    if action == 'chases':                               # both move all the time; the gap closes but never to nothing
        ahead = p * rng.uniform(26, 36)
        gap = rng.uniform(12, 15) - 6 * p
    else:                                                # the pushed one rests until it is touched, then both move as one
        free, way = rng.uniform(14, 20), p * rng.uniform(42, 50)
        ahead, gap = np.maximum(way - free, 0), np.maximum(free - way, 0)
    distances = ahead - gap - r.sum(), ahead
    return place(rng, *[np.stack([d * direction[0], d * direction[1], np.full(STEPS, r[i]), np.ones(STEPS)], 1)
                        for i, d in enumerate(distances)])


def apart(a, b):
    """Two tracks (F, 4) -> the relation of the first to the second where one and the same holds clearly all the time, else
    '' where they never touch, else None."""
    d, touch = a[:, :2] - b[:, :2], a[:, 2] + b[:, 2] + 3
    if (np.abs(d).max(1) < touch).any():
        return None
    along_x, along_y = np.abs(d[:, 0]) > 2 * np.abs(d[:, 1]), np.abs(d[:, 1]) > 2 * np.abs(d[:, 0])
    if along_x.all():
        return 'left of' if d[0, 0] < 0 else 'right of'
    if along_y.all():
        return 'above' if d[0, 1] < 0 else 'below'
    return ''


def scene(id):
    """id such as 'train00017' ('fresh000042': endless training clips outside the splits) -> a dict that says all of the clip."""
    split, index = id.rstrip('0123456789'), int(id[len(id.rstrip('0123456789')):])
    seed = [SEED, ['train', 'val', 'test', 'fresh'].index(split), index]
    rng = np.random.default_rng(seed)
    unseen = split == 'test' and index % 2 == 0 or split == 'val' and index % 3 == 0
    pick = lambda names: list(names)[rng.integers(len(names))]

    while True:                                          # who does what
        shape, colour, action = pick(SHAPES), pick(COLOURS), pick(ACTIONS)
        second = 'pair' if action in ('chases', 'pushes') else rng.choice(['', 'still', 'while'], p=[.74, .13, .13])
        shape2, colour2, action2 = pick(SHAPES), pick(COLOURS), pick(SIMPLE) if second == 'while' else 'still'
        if held_out(shape, colour, action) == unseen and colour2 != colour and action2 != action and not (
                second == 'while' and (action not in SIMPLE or held_out(shape2, colour2, action2) > unseen)):
            break
    lead_in, lead_out = (rng.integers(1, 5, 2) * (rng.random(2) < 0.4)).tolist()
    spare = 15 - lead_in - lead_out - 6                  # steps that need not belong to the action
    first = lead_in + int(rng.integers(min(2, spare) + 1))
    last = 15 - lead_out - int(rng.integers(min(2, spare - first + lead_in) + 1))
    if {action, action2} & {'appears', 'disappears'}:    # faster, or no three frames would show it
        last = min(last, first + int(rng.integers(4, 7)))
    p = np.clip((np.arange(STEPS) - first) / (last - first), 0, 1)

    relation = ''
    if second == 'pair':
        tracks = pair(rng, action, p)
    else:
        tracks = place(rng, track(rng, action, p))
        while second:
            tracks = place(rng, track(rng, action, p)) + place(rng, track(rng, action2, p))
            relation = apart(*tracks)
            if relation if second == 'still' else relation is not None:
                break
    shapes = [{'shape': s, 'colour': c, 'track': t} for s, c, t in zip((shape, shape2), (colour, colour2), tracks)]
    other = [{'shape': pick(SHAPES), 'colour': pick(COLOURS), 'track': place(rng, track(rng, 'still', p))[0]}]
    for one in shapes + other:
        one['rgb'] = np.array(RGB[one['colour']]) + rng.integers(-15, 16, 3)
    slots = {'subject': shape, 'colour': colour, 'action': action}
    if second:
        slots |= {'object': shape2, 'object colour': colour2}
    if second == 'still':
        slots['relation'] = relation
    if second == 'while':
        slots['second action'] = action2
    return {'id': id, 'seed': seed, 'split': split, 'shapes': shapes, 'other': other, 'lead_in': lead_in, 'lead_out': lead_out,
            'window': [first, last], 'slots': slots, 'sound': pick([*SOUNDS, '', '', '', '']), 'held_out': unseen,
            'texture': int(rng.integers(len(TEXTURES)))}


def shown(scene, t):
    """The shapes that are drawn at time step t: those of the scene, or those of the other scene before and after it."""
    return scene['shapes'] if scene['lead_in'] <= t < STEPS - scene['lead_out'] else scene['other']


def truth(scene):
    """What may be asked of a clip, in plain values. boxes: per shape and time step [x0, y0, x1, y1] in pixels, or None where it
    cannot be seen; window: the first and the last time step of the action; slots: what a right caption must name."""
    tracks = [one['track'] for one in scene['shapes']]
    seen = lambda k, t: k[t, 3] > VISIBLE and shown(scene, t) is scene['shapes']
    corners = [np.concatenate([k[:, :2] - k[:, 2:3], k[:, :2] + k[:, 2:3]], 1).round(1).tolist() for k in tracks]
    boxes = [[c[t] if seen(k, t) else None for t in range(STEPS)] for k, c in zip(tracks, corners)]
    return {'boxes': boxes, 'window': scene['window'], 'slots': scene['slots'], 'sound': scene['sound'] or None,
            'held_out': scene['held_out'], 'order_only': scene['slots']['action'] in ORDER_ONLY}


def labels(scene):
    """One or two indices into the list of actions."""
    return [list(ACTIONS).index(scene['slots'][k]) for k in ('action', 'second action') if k in scene['slots']]


# ---------------------------------------------------------------- pictures and sound
def background(kind, rng):
    """-> int16 (112, 112, 3): the same four kinds of texture everywhere, so that a cut to another scene is no change of kind."""
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE
    waves = lambda low, high: np.sin(2 * np.pi * (rng.uniform(low, high) * x + rng.uniform(low, high) * y + rng.random()))
    pattern = {'clouds': lambda: (waves(-2, 2) + waves(-3, 3) + waves(-4, 4)) / 2, 'stripes': lambda: waves(3, 7),
               'checks': lambda: np.sign(np.sin(rng.uniform(20, 40) * x + 1) * np.sin(rng.uniform(20, 40) * y + 2)),
               'blocks': lambda: np.kron(rng.uniform(-1, 1, (14, 14)), np.ones((8, 8)))}[TEXTURES[kind]]()
    return (rng.uniform(60, 110) + rng.uniform(-12, 12, 3) + rng.uniform(10, 24) * pattern[..., None]).astype(np.int16)


def inside(shape, u, v):
    """A measure that is below 1 inside of the shape; every shape just touches the four sides of the box |u|, |v| <= 1."""
    if shape == 'circle':
        return np.sqrt(u * u + v * v)
    if shape == 'square':
        return np.maximum(abs(u), abs(v))
    if shape == 'triangle':
        return np.maximum(v, 2 * abs(u) - v)
    return np.minimum(np.maximum(abs(u), abs(v) / 0.36), np.maximum(abs(v), abs(u) / 0.36))


def render(scene, steps=range(STEPS), shapes=True):
    """scene -> uint8 (F, 112, 112, 3), the given time steps; without its shapes: the noisy background alone."""
    rng = np.random.default_rng([*scene['seed'], 100])
    noise = np.frombuffer(rng.bytes(STEPS * SIDE * SIDE * 3), np.uint8).reshape(STEPS, SIDE, SIDE, 3)
    frames = noise[list(steps)] & 31
    scenery = [background(scene['texture'], rng) for _ in range(1 + (scene['lead_in'] + scene['lead_out'] > 0))]
    for frame, t in zip(frames, steps):
        things = shown(scene, t)
        picture = scenery[things is scene['other']].copy()
        for one in things if shapes else ():
            x, y, r, opacity = one['track'][t]
            x0, x1, y0, y1 = int(x - r - 1), int(x + r + 2), int(y - r - 1), int(y + r + 2)
            u, v = (np.arange(x0, x1) + 0.5 - x) / r, (np.arange(y0, y1)[:, None] + 0.5 - y) / r
            cover = np.clip(0.5 + (1 - inside(one['shape'], u, v)) * r, 0, 1) * opacity
            picture[y0:y1, x0:x1] += (cover[..., None] * (one['rgb'] - picture[y0:y1, x0:x1])).astype(np.int16)
        frame += picture.astype(np.uint8)                # colours stay below 224 and noise below 32: nothing overflows
    return frames


def fresh(index):
    """Endless training clips that are in no split: index -> video uint8 (16, 112, 112, 3), labels (one or two action indices)."""
    one = scene(f'fresh{index:06d}')
    return render(one), labels(one)


def audio(scene):
    """The log spectrum of one second of noise and perhaps a sound -> (128,), the stand-in for VGGish."""
    rng = np.random.default_rng([*scene['seed'], 200])
    time = np.arange(8192) / 8192
    wave = 0.5 * rng.standard_normal(8192)
    if scene['sound'] == 'beep':
        wave += np.sin(2 * np.pi * rng.uniform(1000, 1150) * time)
    elif scene['sound'] == 'buzz':
        wave += np.sign(np.sin(2 * np.pi * rng.uniform(100, 125) * time))
    return np.log(np.abs(np.fft.rfft(wave.reshape(32, 256))[:, 1:]) + 1).mean(0)


# ---------------------------------------------------------------- captions, and what they say
def captions(scene, attempt=0):
    """-> five different captions that all name every slot; three of them name the sound, if there is one."""
    rng, slots, five = np.random.default_rng([*scene['seed'], 300, attempt]), scene['slots'], []
    say = lambda names: names[0] if rng.random() < 0.5 else names[rng.integers(len(names))]
    noun = lambda shape, colour: f"{say(['a', 'the'])} {say(COLOURS[slots[colour]])} {say(SHAPES[slots[shape]])}"
    while len(five) < 5:
        subject, verb = noun('subject', 'colour'), say(ACTIONS[slots['action']])
        if 'second action' in slots:                     # neither is the subject more than the other, so either comes first
            clauses = [f'{subject} {verb}', f"{noun('object', 'object colour')} {say(ACTIONS[slots['second action']])}"]
            caption = say(['while', 'as']).join([clauses[k := rng.integers(2)] + ' ', ' ' + clauses[1 - k]])
        elif 'relation' in slots:
            caption = f"{subject} {say(RELATIONS[slots['relation']])} {noun('object', 'object colour')} {verb}"
        elif 'object' in slots:
            caption = f"{subject} {verb} {noun('object', 'object colour')}"
        else:
            caption = f'{subject} {verb}'
        if scene['sound'] and len(five) < 3:
            caption += ' ' + say(SOUNDS[scene['sound']])
        if caption not in five:
            five.append(caption)
    return [five[i] for i in rng.permutation(5)]


PHRASES = {tuple(phrase.split()): (kind, name) for kind, table in
           [('shape', SHAPES), ('colour', COLOURS), ('action', ACTIONS), ('relation', RELATIONS), ('sound', SOUNDS)]
           for name, phrases in table.items() for phrase in phrases}


@functools.lru_cache(100_000)
def parse(caption, exchanged=False):
    """-> [(slot, canonical name, first word, end)] by the longest phrase at each word, and by order: the first shape is the
    subject, the second the object, a colour belongs to the shape that follows. exchanged: the second clause is read first."""
    slots = {'shape': ['subject', 'object'], 'colour': ['colour', 'object colour'], 'action': ['action', 'second action']}
    words, found, count, i = caption.lower().split(), [], dict.fromkeys(slots, 0), 0
    while i < len(words):
        end = next((j for j in range(min(i + 5, len(words)), i, -1) if tuple(words[i:j]) in PHRASES), None)
        if end:
            kind, name = PHRASES[tuple(words[i:end])]
            nth = min(count['shape' if kind == 'colour' else kind], 1) if kind in slots else 0
            found.append((slots[kind][nth ^ exchanged] if kind in slots else kind, name, i, end))
            count[kind] = count.get(kind, 0) + 1
        i = end or i + 1
    return found


def slots_right(caption, truth, exchanged=None):
    """caption, the truth of its clip -> {slot: bool} for each slot of the truth; 'sound' only where the caption names one."""
    said, wanted = {}, truth['slots']
    if exchanged is None:
        exchanged = reads_exchanged(caption, truth)
    for slot, name, *_ in parse(caption, exchanged):
        said[slot] = name if said.get(slot, name) == name else None            # two different names are none
    right = {slot: said.get(slot) == name for slot, name in wanted.items()}
    right['action'] &= 'second action' in wanted or 'second action' not in said       # 'grows then shrinks then grows' is wrong
    return right | ({'sound': said['sound'] == truth['sound']} if 'sound' in said else {})


def reads_exchanged(caption, truth):
    """Where both shapes act for themselves, either clause may come first: is the second clause about the truth's first shape?"""
    score = lambda exchanged: sum(slots_right(caption, truth, exchanged).values())
    return 'second action' in truth['slots'] and score(True) > score(False)


def slot_accuracy(captions, truth):
    """captions {id: str or list of str, the first counts}, truth {id: truth} -> the share of all slots that are named rightly"""
    right = [ok for id, said in captions.items()
             for ok in slots_right(said if isinstance(said, str) else said[0], truth[id]).values()]
    return sum(right) / len(right)


def word_roles(caption, truth):
    """-> for each word 'subject', 'colour', 'verb', 'direction', 'object', 'object colour', 'relation', 'sound' or None.
    The subject is the first shape of truth['boxes'], the object the second, also where a caption exchanges its clauses."""
    words = caption.lower().split()
    roles = [None] * len(words)
    for slot, _, i, end in parse(caption, reads_exchanged(caption, truth)):
        for k in range(i, end):
            if words[k] not in ('a', 'and', 'of', 'then', 'with'):
                is_direction = words[k] in ('left', 'right', 'up', 'down', 'back', 'in', 'out', 'bigger', 'smaller')
                roles[k] = slot if 'action' not in slot else 'direction' if is_direction else 'verb'
    return roles


def blind_baseline(train, test):
    """Two {id: video of annotations.json} -> the best constant caption on the first, its slot accuracy on the second."""
    score = lambda caption, videos: slot_accuracy(dict.fromkeys(videos, caption), {id: v['truth'] for id, v in videos.items()})
    few = dict(itertools.islice(train.items(), 200))
    best = max(sorted({v['captions'][0] for v in few.values()}), key=lambda c: score(c, few))
    return best, score(best, test)


# ---------------------------------------------------------------- the clip CNN
MOTIONS = ['still', 'left', 'right', 'up', 'down', 'growing', 'shrinking', 'fading in', 'fading out']
SIDES, ROLES = ['no other', 'left', 'right', 'above', 'below'], ['neither', 'acts', 'is acted on']
HEADS = {'shape': 1 + len(SHAPES), 'colour': len(COLOURS), 'motion': len(MOTIONS), 'other': len(SIDES), 'role': len(ROLES)}


class ClipCNN(nn.Module):
    """The frame before, this frame and the next -> a 7 x 7 grid of 64 features. Each cell knows its shape, colour and motion,
    on which side another shape is, and which of the two acts; heads (for training only) read these linearly."""

    def __init__(self, norm=False):
        """norm: with batch norms, for training. The weight file has them folded into the convolutions."""
        super().__init__()
        layers = []
        for i, (c_in, c_out, size) in enumerate([(9, 32, 5), (32, 48, 3), (48, 64, 3), (64, 64, 3), (64, 96, 3), (96, 96, 3), (96, 64, 1)]):
            layers += [nn.Conv2d(c_in, c_out, size, stride=2 if i == 0 else 1, padding=size // 2)]
            layers += [nn.BatchNorm2d(c_out)] * norm + [nn.ReLU()] + [nn.MaxPool2d(2)] * (i in (1, 3))
        self.body = nn.Sequential(*layers)
        self.heads = nn.Conv2d(64, sum(HEADS.values()), 1)

    def forward(self, x):
        """x (N, 9, 56, 56) -> (N, 64, 7, 7)"""
        return self.body(x)

    def folded(self):
        """-> the same network for evaluation, without batch norms."""
        plain, parts = ClipCNN(), [m for m in self.body if isinstance(m, (nn.Conv2d, nn.BatchNorm2d))]
        for to, conv, norm in zip([m for m in plain.body if isinstance(m, nn.Conv2d)], parts[::2], parts[1::2]):
            to.load_state_dict(nn.utils.fuse_conv_bn_eval(conv.eval(), norm.eval()).state_dict())
        plain.heads.load_state_dict(self.heads.state_dict())
        return plain.eval()


def load_clip_cnn():
    weights, model = torch.load(WEIGHTS, weights_only=True), ClipCNN()         # half precision on the disk
    model.load_state_dict({name: value.float() for name, value in weights.items()})
    return model.eval().to(memory_format=torch.channels_last)


def shrink(frames):
    """uint8 (F, H, W, 3) of any size -> uint8 (F, 56, 56, 3): the CNN does as well on half of 112"""
    small = F.interpolate(torch.from_numpy(frames).permute(0, 3, 1, 2), (56, 56), mode='bilinear', antialias=True)
    return small.permute(0, 2, 3, 1)


def triples(small):
    """uint8 (N, F, 56, 56, 3) -> (N * F, 9, 56, 56): the frame before, this one and the next (the ends repeat themselves)"""
    x = small.float() / 64 - 2
    three = torch.cat([torch.cat([x[:, :1], x[:, :-1]], 1), x, torch.cat([x[:, 1:], x[:, -1:]], 1)], -1)
    return three.flatten(0, 1).permute(0, 3, 1, 2)       # in memory the channels are last, which is the faster way on a CPU


@torch.no_grad()
def clip_features(frames):
    """uint8 (F, H, W, 3) of any size -> float32 (F, 7, 7, 64)"""
    return load_clip_cnn()(triples(shrink(frames)[None])).permute(0, 2, 3, 1).contiguous()


def side(x, y):
    """A step or a distance -> 1 left, 2 right, 3 up or above, 4 down or below"""
    return 1 + (x > 0) if abs(x) > abs(y) else 3 + (y > 0)


def dense_labels(scene, t):
    """-> (5, 7, 7): for each cell, in the order of HEADS, what is to be said of the shape that covers it (-1: no shape)."""
    goal, nearest, centres = np.full((5, 7, 7), -1), np.full((7, 7), np.inf), np.arange(7) * 16 + 8
    goal[0] = 0
    things, motions = shown(scene, t), []
    before, after = [s if shown(scene, s) is things else t for s in (max(t - 1, 0), min(t + 1, STEPS - 1))]   # no motion at a cut
    seen = [one for one in things if one['track'][t, 3] > VISIBLE]
    for one in seen:
        dx, dy, dr, fade = one['track'][after] - one['track'][before]
        motions.append(7 + (fade < 0) if abs(fade) > 0.05 else 5 + (dr < 0) if abs(dr) > 0.3 else
                       side(dx, dy) if max(abs(dx), abs(dy)) > 1 else 0)
    for one, motion in zip(seen, motions):
        x, y, r, _ = one['track'][t]
        other = role = 0
        for two, its_motion in zip(seen, motions):
            if two is not one:
                other = side(*two['track'][t, :2] - (x, y))
                if bool(motion) != bool(its_motion):     # one moves, the other rests
                    role = 1 if motion else 2
                elif motion == its_motion <= 4:          # both go one way: the one behind chases or pushes
                    role = 1 if motion == other else 2 if motion else 0
        distance = np.maximum(abs(centres - x), abs(centres[:, None] - y)) / max(r, 8.5)     # every shape has at least one cell
        mine = (distance < 1) & (distance < nearest)
        nearest[mine] = distance[mine]
        goal[:, mine] = np.c_[[1 + list(SHAPES).index(one['shape']), list(COLOURS).index(one['colour']), motion, other, role]]
    return goal


def training_batch(ids):
    """N ids -> frames uint8 (N, 16, 56, 56, 3), labels (N * 16, 5, 7, 7)"""
    scenes = [scene(id) for id in ids]
    return (torch.stack([shrink(render(one)) for one in scenes]),
            torch.from_numpy(np.stack([dense_labels(one, t) for one in scenes for t in range(STEPS)])))


def head_losses(model, features, goal):
    """features (N, 64, 7, 7), goal (N, 5, 7, 7) -> loss, right {head: share of the shapes' cells}; background counts a little"""
    loss, right, on_shape = 0, {}, goal[:, 1] >= 0
    for k, (name, out) in enumerate(zip(HEADS, model.heads(features).split(list(HEADS.values()), 1))):
        wanted = goal[:, k]
        each = F.cross_entropy(out, wanted, ignore_index=-1, reduction='none')
        loss = loss + (each * torch.where(on_shape, 1.0, 0.1)).sum() / on_shape.sum()
        right[name] = (out.argmax(1) == wanted)[on_shape].float().mean().item()
    return loss, right


def train_clip_cnn(clips, batch=16, rate=4e-3):
    """Trains on endlessly rendered clips, prints the accuracies on clips that it has not seen, and writes the weight file."""
    torch.manual_seed(SEED)
    model = ClipCNN(norm=True).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=clips // batch, pct_start=0.15)
    ids = [f'fresh{i:06d}' for i in range(clips // batch * batch)]
    bar = tqdm(DataLoader(ids, batch, collate_fn=training_batch, num_workers=1, prefetch_factor=4), 'clip CNN', mininterval=5)
    for i, (x, goal) in enumerate(bar):
        some = slice(i % 2, None, 2)                # neighbours look alike: every second one will do
        loss, right = head_losses(model, model(triples(x)[some]), goal[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        bar.set_postfix(loss=f'{loss.item():.3f}', **{k: f'{v:.3f}' for k, v in right.items()}, refresh=False)
    state = {name: value.half() for name, value in model.folded().state_dict().items()}
    WEIGHTS.parent.mkdir(exist_ok=True)
    torch.save(state, WEIGHTS.with_suffix('.part'))
    os.replace(WEIGHTS.with_suffix('.part'), WEIGHTS)
    model = load_clip_cnn()
    x, goal = training_batch([f'fresh{900000 + i}' for i in range(300)])
    with torch.no_grad():
        _, right = head_losses(model, model(triples(x)), goal)
    print('accuracy on the cells of shapes in 300 unseen clips:', ', '.join(f'{k} {v:.3f}' for k, v in right.items()))


# ---------------------------------------------------------------- the dataset on disk
def extraction_batch(ids):
    """N ids -> frames uint8 (N, 16, 56, 56, 3), audio (N, 128)"""
    scenes = [scene(id) for id in ids]
    return torch.stack([shrink(render(one)) for one in scenes]), np.stack([audio(one) for one in scenes])


def prepare(root, limit=None):
    """Makes ROOT/shapes (or ROOT/shapes-LIMIT, with at most LIMIT clips per split) unless it is there -> its path.
    It grows under another name and is renamed when whole; interrupted, it goes on where it stopped."""
    sizes = {split: min(n, limit or n) for split, n in SIZES.items()}
    ids = [f'{split}{i:05d}' for split, n in sizes.items() for i in range(n)]
    key = {'seed': SEED, 'version': VERSION, 'weights': hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()[:16], 'sizes': sizes}
    folder = pathlib.Path(root) / (f'shapes-{limit}' if limit else 'shapes')
    part = folder.with_name(folder.name + '.part')
    progress, annotated = part / 'progress.json', folder / 'annotations.json'
    if annotated.exists() and key.items() <= json.loads(annotated.read_text()).items():
        return folder

    done = 0                                             # rows that are on the disk
    if progress.exists() and (found := json.loads(progress.read_text()))['key'] == key:
        done = found['done']
    else:
        shutil.rmtree(part, ignore_errors=True)
        (part / 'features').mkdir(parents=True)
    clip, sound = (np.lib.format.open_memmap(part / 'features' / name, 'r+' if done else 'w+', np.float16, (len(ids), *shape))
                   for name, shape in (('clip.npy', (STEPS, 7, 7, 64)), ('audio.npy', (128,))))
    model = load_clip_cnn()
    with tqdm(total=len(ids), initial=done, desc=f'rendering {folder.name}', unit=' clips') as bar, torch.no_grad():
        for x, vectors in DataLoader(ids[done:], 16, collate_fn=extraction_batch, num_workers=1):
            rows, done = slice(done, done + len(vectors)), done + len(vectors)
            grid = model(triples(x)).permute(0, 2, 3, 1)                       # (N * 16, 7, 7, 64)
            clip[rows], sound[rows] = grid.unflatten(0, (-1, STEPS)).numpy(), vectors
            clip.flush(), sound.flush()
            write_json(progress, {'key': key, 'done': done})
            bar.update(len(vectors))
    for name, encoder in (('clip', 'shapes.ClipCNN'), ('audio', 'shapes.audio')):
        write_json(part / 'features' / f'{name}.json', {'ids': ids, 'encoder': encoder, 'weights': key['weights']})
    write_json(part / 'annotations.json', key | {'classes': list(ACTIONS), 'categories': TEXTURES, 'videos': annotations(ids)})
    progress.unlink()
    annotated.unlink(missing_ok=True)                    # what is there is of another seed, version or weights
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    return folder


def annotations(ids):
    """-> {id: split, five captions, labels, category, truth}; no two clips have the same five captions in the same order."""
    videos, used = {}, set()
    for id in ids:
        one = scene(id)
        five = next(five for k in itertools.count() if (five := tuple(captions(one, k))) not in used)
        used.add(five)
        videos[id] = {'split': one['split'], 'captions': list(five), 'labels': labels(one), 'category': one['texture'], 'truth': truth(one)}
    return videos


def write_json(path, value):
    path.with_suffix('.tmp').write_text(json.dumps(value))
    os.replace(path.with_suffix('.tmp'), path)


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description='The embedded world of moving shapes: its dataset and the CNN behind its features.')
    commands = parser.add_subparsers(dest='command', required=True)
    make = commands.add_parser('prepare', help='render the clips and store captions, truth and features (once; train.py calls it)')
    make.add_argument('--root', default='data', help='data folder (default: data)')
    make.add_argument('--limit', type=int, help='at most so many clips per split')
    cnn = commands.add_parser('train', help='train the clip CNN on endlessly rendered clips, write weights/shapes_clip.pt')
    cnn.add_argument('--clips', type=int, default=24000, help='how many clips it sees (default: 24000, about 10 minutes on 2 cores)')
    args = parser.parse_args()
    if args.command == 'train':
        train_clip_cnn(args.clips)
    else:
        folder = prepare(args.root, args.limit)
        videos = json.loads((folder / 'annotations.json').read_text())['videos']
        split = lambda name: {id: v for id, v in videos.items() if v['split'] == name}
        caption, score = blind_baseline(split('train'), split('test'))
        print(f'{folder}: {len(videos)} clips. Without seeing the video, the best constant caption ({caption!r}) has slot accuracy {score:.3f}')
