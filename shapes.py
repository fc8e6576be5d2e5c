"""The embedded world: coloured shapes that move, rendered from a seed, with captions, features and the truth.

    python shapes.py prepare     render, extract and store the dataset (train.py does it by itself)
    python shapes.py train       train the two networks that make its features -> weights/shapes_clip.pt, shapes_c3d.pt

A clip is 16 frames of 112 x 112 pixels. One or two shapes do one of 14 actions on a textured, noisy background; some
clips start or end with frames of another scene, some have a sound. Four actions differ from another one only in
long-range order (grows then shrinks / shrinks then grows, left and back / right and back): no three neighbouring frames
tell which. Half of the test clips show a (shape, colour, action) combination that no training clip shows.

    id --scene--> tracks and slots --render--> 'video' (16, 112, 112, 3) --ClipCNN on three frames each--> 'clip' (16, 7, 7, 64)
           |                                           '------a narrow C3D--> 'c3d_pool2' (4, 28, 28, 16) ... 'c3d_fc7' (512)
           |--captions--> five sentences that name every slot      --audio, a spectrum--> 'audio' (128)

Letters:  N clips, F frames (time steps), H W height and width
"""
import argparse
import functools
import hashlib
import itertools
import json
import os
import pathlib
import shutil

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from tqdm import tqdm

import c3d

SEED, VERSION = 2018, 3                                 # a cache made with other values is made anew
SIZES = {'train': 3000, 'val': 300, 'test': 500}
STEPS, SIDE, VISIBLE = 16, 112, 0.15                    # time steps, pixels, the least opacity that counts as seen
WEIGHTS = pathlib.Path(__file__).parent / 'weights' / 'shapes_clip.pt'
C3D_WEIGHTS = WEIGHTS.with_name('shapes_c3d.pt')

# ------------------------------------------------------- words: canonical name -> its phrases, the commonest first
SHAPES = {'circle': ['circle', 'disc'], 'square': ['square', 'box'], 'triangle': ['triangle', 'wedge'],
          'cross': ['cross', 'plus']}
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
RELATIONS = {'left of': ['left of'], 'right of': ['right of'], 'above': ['above', 'over'], 'below': ['below', 'under']}
SOUNDS = {'beep': ['with a beep', 'and a beep'], 'buzz': ['with a buzz', 'and a buzz']}
SIMPLE, ORDER_ONLY = list(ACTIONS)[:8], list(ACTIONS)[10:]
DIRECTIONS = {'left': (-1, 0), 'right': (1, 0), 'up': (0, -1), 'down': (0, 1)}
TEXTURES = ['clouds', 'stripes', 'checks', 'blocks']    # of the background: a clip's category, which tells no action
RGB = {'red': (205, 30, 30), 'green': (30, 165, 50), 'blue': (30, 65, 208), 'yellow': (208, 190, 30),
       'purple': (150, 40, 175), 'white': (208, 208, 208)}


# ------------------------------------------------------- scenes
# A track is what a shape does: (F, 4) with x, y, radius, opacity at each time step.
def held_out(shape, colour, action):
    """One combination in five is never shown in training."""
    return (list(SHAPES).index(shape) + 2 * list(COLOURS).index(colour) + 3 * list(ACTIONS).index(action)) % 5 == 0


def place(rng, *tracks):
    """Tracks around the origin -> the same tracks, moved together to a random place in the frame"""
    low = np.min([(t[:, :2] - t[:, 2:3]).min(0) for t in tracks], axis=0)
    high = np.max([(t[:, :2] + t[:, 2:3]).max(0) for t in tracks], axis=0)
    offset = rng.uniform(2 - low, np.maximum(SIDE - 2 - high, 2.01 - low))
    return [np.concatenate([t[:, :2] + offset, t[:, 2:]], 1) for t in tracks]


def alone(rng, action, p):
    """The track of a shape that acts for itself; p (F,) is the progress of the action from 0 to 1"""
    track = np.zeros((STEPS, 4))
    track[:, 2:] = rng.uniform(11, 16), 1
    way = np.clip(1.25 - 1.25 * np.abs(2 * p - 1), 0, 1) if action in ORDER_ONLY else p     # there, a short rest, back
    if action.split()[0] in DIRECTIONS:
        track[:, :2] = way[:, None] * rng.uniform(38, 62) * np.array(DIRECTIONS[action.split()[0]])
    elif action in ('appears', 'disappears'):
        track[:, 3] = p if action == 'appears' else 1 - p
    elif action != 'still':
        small, large = rng.uniform(8, 10), rng.uniform(18, 22)
        track[:, 2] = small + (large - small) * (way if action.startswith('grows') else 1 - way)
    return place(rng, track)[0]


def pair(rng, action, p):
    """The tracks of the chaser and the chased, or of the pusher and the pushed"""
    direction = np.array(list(DIRECTIONS.values())[rng.integers(4)])
    r = rng.uniform(9, 12.5, 2)
    if action == 'chases':                              # both move all the time; the gap closes, but never to nothing
        ahead = p * rng.uniform(26, 36)
        gap = rng.uniform(12, 15) - 6 * p
    else:                                               # the pushed one rests until touched, then both move as one
        free, way = rng.uniform(14, 20), p * rng.uniform(42, 50)
        ahead, gap = np.maximum(way - free, 0), np.maximum(free - way, 0)
    return place(rng, *[np.column_stack([at[:, None] * direction, np.full(STEPS, radius), np.ones(STEPS)])
                        for at, radius in zip((ahead - gap - r.sum(), ahead), r)])


def relation_of(a, b):
    """Two tracks -> the relation of the first to the second that holds clearly all the time; '' if there is none;
    None if they touch"""
    dx, dy = (a - b)[:, :2].T
    if (np.maximum(abs(dx), abs(dy)) < a[:, 2] + b[:, 2] + 3).any():
        return None
    if (abs(dx) > 2 * abs(dy)).all():
        return 'left of' if dx[0] < 0 else 'right of'
    if (abs(dy) > 2 * abs(dx)).all():
        return 'above' if dy[0] < 0 else 'below'
    return ''


def scene(id):
    """id: 'train00017', 'val...', 'test...', or 'fresh000042' (endless training clips that are in no split)
    -> a dict that holds everything there is to know of the clip"""
    split = id.rstrip('0123456789')
    index = int(id[len(split):])
    seed = [SEED, ['train', 'val', 'test', 'fresh'].index(split), index]
    rng = np.random.default_rng(seed)
    pick = lambda names: list(names)[rng.integers(len(names))]
    unseen = split == 'test' and index % 2 == 0 or split == 'val' and index % 3 == 0

    while True:                                         # who does what, until it suits the split
        shape, colour, action = pick(SHAPES), pick(COLOURS), pick(ACTIONS)
        second = 'pair' if action in ('chases', 'pushes') else rng.choice(['', 'rests', 'acts'], p=[.74, .13, .13])
        shape2, colour2, action2 = pick(SHAPES), pick(COLOURS), pick(SIMPLE) if second == 'acts' else 'still'
        if held_out(shape, colour, action) == unseen and colour2 != colour and action2 != action and not (
                second == 'acts' and (action not in SIMPLE or held_out(shape2, colour2, action2) > unseen)):
            break
    lead_in, lead_out = (rng.integers(1, 5, 2) * (rng.random(2) < 0.4)).tolist()
    spare = STEPS - 1 - lead_in - lead_out - 6          # steps before and after the action, which takes at least 6
    first = lead_in + int(rng.integers(min(2, spare) + 1))
    last = STEPS - 1 - lead_out - int(rng.integers(min(2, spare - first + lead_in) + 1))
    if {action, action2} & {'appears', 'disappears'}:   # faster, or no three frames would show it
        last = min(last, first + int(rng.integers(4, 7)))
    p = np.clip((np.arange(STEPS) - first) / (last - first), 0, 1)

    relation = None
    tracks = pair(rng, action, p) if second == 'pair' else [alone(rng, action, p)]
    while second in ('rests', 'acts') and not (relation or second == 'acts' and relation == ''):
        tracks = [alone(rng, action, p), alone(rng, action2, p)]
        relation = relation_of(*tracks)
    shapes = [{'shape': s, 'colour': c, 'track': t} for s, c, t in zip((shape, shape2), (colour, colour2), tracks)]
    other = [{'shape': pick(SHAPES), 'colour': pick(COLOURS), 'track': alone(rng, 'still', p)}]
    for one in shapes + other:
        one['rgb'] = np.array(RGB[one['colour']]) + rng.integers(-15, 16, 3)
    slots = {'subject': shape, 'colour': colour, 'action': action}
    slots |= {'object': shape2, 'object colour': colour2} if second else {}
    slots |= {'relation': relation} if second == 'rests' else {'second action': action2} if second == 'acts' else {}
    return {'seed': seed, 'split': split, 'shapes': shapes, 'other': other, 'lead_in': lead_in, 'lead_out': lead_out,
            'window': [first, last], 'slots': slots, 'sound': pick([*SOUNDS, '', '', '', '']), 'held_out': unseen,
            'texture': int(rng.integers(len(TEXTURES)))}


def shown(scene, t):
    """The shapes that are drawn at time step t: the scene's, or before and after it those of another scene"""
    return scene['shapes'] if scene['lead_in'] <= t < STEPS - scene['lead_out'] else scene['other']


def truth(scene):
    """What may be asked of a clip, in plain values. boxes: per shape and time step [x0, y0, x1, y1] in pixels, or None
    where it cannot be seen; window: first and last time step of the action; slots: what a right caption must name"""
    boxes = []
    for track in [one['track'] for one in scene['shapes']]:
        corners = np.concatenate([track[:, :2] - track[:, 2:3], track[:, :2] + track[:, 2:3]], 1).round(1).tolist()
        seen = [shown(scene, t) is scene['shapes'] and track[t, 3] > VISIBLE for t in range(STEPS)]
        boxes.append([corners[t] if seen[t] else None for t in range(STEPS)])
    return {'boxes': boxes, 'window': scene['window'], 'slots': scene['slots'], 'sound': scene['sound'] or None,
            'held_out': scene['held_out'], 'order_only': scene['slots']['action'] in ORDER_ONLY}


def labels(scene):
    """-> one or two indices into the list of actions"""
    return [list(ACTIONS).index(scene['slots'][k]) for k in ('action', 'second action') if k in scene['slots']]


# ------------------------------------------------------- pictures and sound
def background(kind, rng):
    """-> int16 (112, 112, 3). The other scene's is of the same kind, or a cut would be trivial to see."""
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE
    waves = lambda a, b: np.sin(2 * np.pi * (rng.uniform(a, b) * x + rng.uniform(a, b) * y + rng.random()))
    if kind == 'clouds':
        pattern = (waves(-2, 2) + waves(-3, 3) + waves(-4, 4)) / 2
    elif kind == 'stripes':
        pattern = waves(3, 7)
    elif kind == 'checks':
        pattern = np.sign(np.sin(rng.uniform(20, 40) * x + 1) * np.sin(rng.uniform(20, 40) * y + 2))
    else:
        pattern = np.kron(rng.uniform(-1, 1, (14, 14)), np.ones((8, 8)))
    colour, contrast = rng.uniform(60, 110) + rng.uniform(-12, 12, 3), rng.uniform(10, 24)
    return (colour + contrast * pattern[..., None]).astype(np.int16)


def measure(shape, u, v):
    """Below 1 inside of the shape, above 1 outside; every shape touches all four sides of the box |u|, |v| <= 1"""
    if shape == 'circle':
        return np.sqrt(u * u + v * v)
    if shape == 'square':
        return np.maximum(abs(u), abs(v))
    if shape == 'triangle':
        return np.maximum(v, 2 * abs(u) - v)
    return np.minimum(np.maximum(abs(u), abs(v) / 0.36), np.maximum(abs(v), abs(u) / 0.36))


def render(scene, steps=range(STEPS), shapes=True):
    """-> uint8 (F, 112, 112, 3), the given time steps; shapes=False: the noisy background alone"""
    rng = np.random.default_rng([*scene['seed'], 100])
    noise = np.frombuffer(rng.bytes(STEPS * SIDE * SIDE * 3), np.uint8).reshape(STEPS, SIDE, SIDE, 3)
    frames = noise[list(steps)] & 31                    # no colour is above 224, so the sum never overflows
    sceneries = 1 + (scene['lead_in'] + scene['lead_out'] > 0)
    scenery = [background(TEXTURES[scene['texture']], rng) for _ in range(sceneries)]
    for frame, t in zip(frames, steps):
        things = shown(scene, t)
        picture = scenery[things is scene['other']].copy()
        for one in things if shapes else ():
            x, y, r, opacity = one['track'][t]
            x0, x1, y0, y1 = int(x - r - 1), int(x + r + 2), int(y - r - 1), int(y + r + 2)
            u, v = (np.arange(x0, x1) + 0.5 - x) / r, (np.arange(y0, y1)[:, None] + 0.5 - y) / r
            cover = np.clip(0.5 + (1 - measure(one['shape'], u, v)) * r, 0, 1) * opacity         # edges one pixel soft
            patch = picture[y0:y1, x0:x1]
            patch += (cover[..., None] * (one['rgb'] - patch)).astype(np.int16)
        frame += picture.astype(np.uint8)
    return frames


def fresh(index):
    """Endless training clips that are in no split: index -> video uint8 (16, 112, 112, 3), labels (one or two)"""
    one = scene(f'fresh{index:06d}')
    return render(one), labels(one)


def spectrum(wave):
    """(S,), 8192 numbers a second -> (128,): its log spectrum, the stand-in for VGGish. In the noise of this world it is
    1.97 in every band; without that it would be almost one constant, which teaches a network nothing but its own bias."""
    return np.log(np.abs(np.fft.rfft(wave.reshape(-1, 256))[:, 1:]) + 1).mean(0) - 1.97


def audio(scene):
    """-> (128,): the spectrum of one second of noise with or without a sound"""
    rng = np.random.default_rng([*scene['seed'], 200])
    time = np.arange(8192) / 8192
    wave = 0.5 * rng.standard_normal(8192)
    if scene['sound'] == 'beep':
        wave += np.sin(2 * np.pi * rng.uniform(1000, 1150) * time)
    elif scene['sound'] == 'buzz':
        wave += np.sign(np.sin(2 * np.pi * rng.uniform(100, 125) * time))
    return spectrum(wave)


# ------------------------------------------------------- captions, and what they say
def captions(scene, attempt=0):
    """-> five different captions that all name every slot; three of them name the sound, if there is one"""
    rng, slots, five = np.random.default_rng([*scene['seed'], 300, attempt]), scene['slots'], []
    say = lambda phrases: phrases[0 if rng.random() < 0.5 else rng.integers(len(phrases))]
    noun = lambda shape, colour: f"{say(['a', 'the'])} {say(COLOURS[slots[colour]])} {say(SHAPES[slots[shape]])}"
    while len(five) < 5:
        words = [noun('subject', 'colour'), say(ACTIONS[slots['action']])]
        if 'relation' in slots:
            words[1:1] = [say(RELATIONS[slots['relation']]), noun('object', 'object colour')]
        elif 'second action' in slots:                  # neither is more the subject than the other: any order
            clauses = [words, [noun('object', 'object colour'), say(ACTIONS[slots['second action']])]]
            first = rng.integers(2)
            words = [*clauses[first], say(['while', 'as']), *clauses[1 - first]]
        elif 'object' in slots:
            words += [noun('object', 'object colour')]
        if scene['sound'] and len(five) < 3:
            words += [say(SOUNDS[scene['sound']])]
        if ' '.join(words) not in five:
            five.append(' '.join(words))
    return [five[i] for i in rng.permutation(5)]


PHRASES = {tuple(phrase.split()): (kind, name) for kind, table in
           {'shape': SHAPES, 'colour': COLOURS, 'action': ACTIONS, 'relation': RELATIONS, 'sound': SOUNDS}.items()
           for name, phrases in table.items() for phrase in phrases}
SLOTS = {'shape': ['subject', 'object'], 'colour': ['colour', 'object colour'], 'action': ['action', 'second action'],
         'relation': ['relation'] * 2, 'sound': ['sound'] * 2}           # by what is named first, what second


@functools.lru_cache(100_000)
def parse(caption, exchanged=False):
    """-> [(slot, canonical name, first word, end)], by the longest phrase at each word. The first shape is the subject,
    the second the object; a colour belongs to the shape that follows. exchanged: the other way round"""
    words, found, count, i = caption.lower().split(), [], dict.fromkeys(SLOTS, 0), 0
    while i < len(words):
        end = next((j for j in range(min(i + 5, len(words)), i, -1) if tuple(words[i:j]) in PHRASES), None)
        if end:
            kind, name = PHRASES[tuple(words[i:end])]
            nth = min(count['shape' if kind == 'colour' else kind], 1)
            found.append((SLOTS[kind][nth ^ exchanged], name, i, end))
            count[kind] += 1
        i = end or i + 1
    return found


def slots_right(caption, truth, exchanged=None):
    """caption, truth of its clip -> {slot: bool}: every slot of the truth. A caption need not name the sound, nor a
    second shape where there is none; if it does, 'sound' or 'object' says whether that is right."""
    if exchanged is None:
        exchanged = reads_exchanged(caption, truth)
    said, wanted = {}, truth['slots']
    for slot, name, *_ in parse(caption, exchanged):
        said[slot] = name if said.get(slot, name) == name else None        # two different names count as none
    right = {slot: said.get(slot) == name for slot, name in wanted.items()}
    right['action'] &= 'second action' in wanted or 'second action' not in said    # 'grows then shrinks then grows'
    right |= {'object': False} if 'object' in said and 'object' not in wanted else {}
    return right | ({'sound': said['sound'] == truth['sound']} if 'sound' in said else {})


def reads_exchanged(caption, truth):
    """Where both shapes act for themselves either may come first: is the caption's second the truth's first?"""
    score = lambda exchanged: sum(slots_right(caption, truth, exchanged).values())
    return 'second action' in truth['slots'] and score(True) > score(False)


def slot_accuracy(captions, truth):
    """captions {id: str, or list of str of which the first counts}, truth {id: truth} -> share of slots right"""
    right = [ok for id, said in captions.items()
             for ok in slots_right(said if isinstance(said, str) else said[0], truth[id]).values()]
    return sum(right) / len(right)


def word_roles(caption, truth):
    """-> per word 'subject', 'colour', 'verb', 'direction', 'object', 'object colour', 'relation', 'sound' or None.
    The subject is the first shape of truth['boxes'], the object the second, in whichever order the caption has them."""
    words = caption.lower().split()
    roles = [None] * len(words)
    for slot, _, i, end in parse(caption, reads_exchanged(caption, truth)):
        for k in range(i, end):
            if words[k] not in ('a', 'and', 'of', 'then', 'with'):
                directs = words[k] in ('left', 'right', 'up', 'down', 'back', 'in', 'out', 'bigger', 'smaller')
                roles[k] = slot if 'action' not in slot else 'direction' if directs else 'verb'
    return roles


def blind_baseline(train, test):
    """Two {id: video as in annotations.json} -> the constant caption that is best on the first, its slot accuracy on
    the second: what a captioner reaches that does not see the video"""
    score = lambda caption, of: slot_accuracy(dict.fromkeys(of, caption), {id: v['truth'] for id, v in of.items()})
    few = dict(itertools.islice(train.items(), 200))
    best = max(sorted({v['captions'][0] for v in few.values()}), key=lambda caption: score(caption, few))
    return best, score(best, test)


# ------------------------------------------------------- the clip CNN
MOTIONS = ['still', 'left', 'right', 'up', 'down', 'growing', 'shrinking', 'fading in', 'fading out']
OTHERS = ['none', 'left', 'right', 'above', 'below']     # where the other shape is
ROLES = ['neither', 'acts', 'is acted on']               # moves beside a resting or behind a moving one; the reverse
HEADS = {'shape': 1 + len(SHAPES), 'colour': len(COLOURS), 'motion': len(MOTIONS), 'other': len(OTHERS),
         'role': len(ROLES)}
LAYERS = [(9, 32, 5), (32, 48, 3), (48, 64, 3), (64, 64, 3), (64, 96, 3), (96, 96, 3), (96, 64, 1)]  # in, out, kernel


class ClipCNN(nn.Module):
    """The frame before, this one and the next -> a 7 x 7 grid of 64 features: the stand-in for a pretrained network.
    Its heads, for training alone, read from each cell what the dense labels say of it."""

    def __init__(self, norm=False):
        """norm: with batch norms, for training; the weight file has them folded into the convolutions"""
        super().__init__()
        layers = []
        for i, (c_in, c_out, size) in enumerate(LAYERS):
            layers += [nn.Conv2d(c_in, c_out, size, stride=2 if i == 0 else 1, padding=size // 2)]
            layers += [nn.BatchNorm2d(c_out)] * norm + [nn.ReLU()] + [nn.MaxPool2d(2)] * (i in (1, 3))
        self.body = nn.Sequential(*layers)
        self.heads = nn.Conv2d(64, sum(HEADS.values()), 1)

    def forward(self, x):
        """x (N, 9, 56, 56) -> (N, 64, 7, 7)"""
        return self.body(x)

    def folded(self):
        """-> the same function without batch norms, for evaluation"""
        plain, parts = ClipCNN(), [m for m in self.body if isinstance(m, (nn.Conv2d, nn.BatchNorm2d))]
        for to, conv, norm in zip([m for m in plain.body if isinstance(m, nn.Conv2d)], parts[::2], parts[1::2]):
            to.load_state_dict(nn.utils.fuse_conv_bn_eval(conv.eval(), norm.eval()).state_dict())
        plain.heads.load_state_dict(self.heads.state_dict())
        return plain.eval()


def load_half(model, path):
    weights = torch.load(path, weights_only=True)
    model.load_state_dict({name: value.float() for name, value in weights.items()})
    return model.eval()


def save_half(model, path):
    path.parent.mkdir(exist_ok=True)
    torch.save({name: value.half() for name, value in model.state_dict().items()}, f'{path}.part')
    os.replace(f'{path}.part', path)


def load_clip_cnn():
    return load_half(ClipCNN(), WEIGHTS).to(memory_format=torch.channels_last)


def shrink(frames):
    """uint8 (F, H, W, 3) of any size -> uint8 (F, 56, 56, 3): half of 112 does as well and is faster"""
    x = torch.from_numpy(frames).permute(0, 3, 1, 2)
    return F.interpolate(x, (56, 56), mode='bilinear', antialias=True).permute(0, 2, 3, 1)


def triples(small):
    """uint8 (N, F, 56, 56, 3) -> (N * F, 9, 56, 56): the frame before, this one and the next; the ends repeat"""
    x = small.float() / 64 - 2
    three = torch.cat([torch.cat([x[:, :1], x[:, :-1]], 1), x, torch.cat([x[:, 1:], x[:, -1:]], 1)], -1)
    return three.flatten(0, 1).permute(0, 3, 1, 2)      # channels_last in memory, which is faster on a CPU


@torch.no_grad()
def clip_features(frames):
    """uint8 (F, H, W, 3) of any size -> float32 (F, 7, 7, 64)"""
    return load_clip_cnn()(triples(shrink(frames)[None])).permute(0, 2, 3, 1).contiguous()


def side(x, y):
    """A step or a distance -> 1 left, 2 right, 3 up or above, 4 down or below, as in MOTIONS and OTHERS"""
    return 1 + (x > 0) if abs(x) > abs(y) else 3 + (y > 0)


def dense_labels(scene, t):
    """-> (5, 7, 7): for each cell, in the order of HEADS, what is to be said of the shape that covers it (-1: none)"""
    goal, nearest, centres = np.full((5, 7, 7), -1), np.full((7, 7), np.inf), np.arange(7) * 16 + 8
    goal[0] = 0
    things, motions = shown(scene, t), []
    seen = [one for one in things if one['track'][t, 3] > VISIBLE]
    neighbours = max(t - 1, 0), min(t + 1, STEPS - 1)
    before, after = [s if shown(scene, s) is things else t for s in neighbours]        # a cut is no motion
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
                if bool(motion) != bool(its_motion):
                    role = 1 if motion else 2
                elif motion == its_motion and 1 <= motion <= 4:
                    role = 1 if motion == other else 2
        distance = np.maximum(abs(centres - x), abs(centres[:, None] - y)) / max(r, 8.5)     # so all have a cell
        mine = (distance < 1) & (distance < nearest)
        nearest[mine] = distance[mine]
        names = 1 + list(SHAPES).index(one['shape']), list(COLOURS).index(one['colour'])
        goal[:, mine] = np.array([*names, motion, other, role])[:, None]
    return goal


def training_batch(ids):
    """N ids -> frames uint8 (N, 16, 56, 56, 3), labels (N * 16, 5, 7, 7)"""
    scenes = [scene(id) for id in ids]
    goal = np.stack([dense_labels(one, t) for one in scenes for t in range(STEPS)])
    return torch.stack([shrink(render(one)) for one in scenes]), torch.from_numpy(goal)


def read_heads(model, features, goal):
    """features (N, 64, 7, 7), goal (N, 5, 7, 7) -> loss, {head: its accuracy on the cells of shapes}"""
    loss, right, on_shape = 0, {}, goal[:, 1] >= 0
    for k, (name, out) in enumerate(zip(HEADS, model.heads(features).split(list(HEADS.values()), 1))):
        each = F.cross_entropy(out, goal[:, k], ignore_index=-1, reduction='none')     # (N, 7, 7)
        loss = loss + (each * torch.where(on_shape, 1.0, 0.1)).sum() / on_shape.sum()  # background counts a little
        right[name] = (out.argmax(1) == goal[:, k])[on_shape].float().mean().item()
    return loss, right


def fit(name, model, clips, collate, losses, batch=16, rate=4e-3):
    """Trains on endlessly rendered clips. collate(ids) -> a batch; losses(step, *batch) -> loss, {what: accuracy}"""
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=clips // batch, pct_start=0.15)
    ids = [f'fresh{i:06d}' for i in range(clips // batch * batch)]
    loader = DataLoader(ids, batch, collate_fn=collate, num_workers=1, prefetch_factor=4)
    bar = tqdm(loader, name, mininterval=5)
    for i, tensors in enumerate(bar):
        loss, right = losses(i, *tensors)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        bar.set_postfix(loss=f'{loss.item():.3f}', **{k: f'{v:.3f}' for k, v in right.items()}, refresh=False)


def report(what, right):
    print(f'accuracy on 300 other clips, {what}:', ', '.join(f'{k} {v:.3f}' for k, v in right.items()))


def train_clip_cnn(clips):
    """Writes the weight file, prints the accuracies on clips not seen before"""
    torch.manual_seed(SEED)
    model = ClipCNN(norm=True).to(memory_format=torch.channels_last)

    def losses(i, small, goal):
        some = slice(i % 2, None, 2)                    # neighbours look alike: every second one will do
        return read_heads(model, model(triples(small)[some]), goal[some])

    fit('clip CNN', model, clips, training_batch, losses)
    save_half(model.folded(), WEIGHTS)
    model = load_clip_cnn()
    small, goal = training_batch([f'fresh{900000 + i}' for i in range(300)])
    with torch.no_grad():
        report('on the cells of shapes', read_heads(model, model(triples(small)), goal)[1])


# ------------------------------------------------------- a narrow C3D, for ASTAR
WIDTH, FRAMES = 8, (0, 2, 4, 6, 9, 11, 13, 15)           # filters of conv1; the time steps that it sees: half of them
DENSE = {'pool3': (3, 12), 'pool4': (7,)}                # maps that learn dense labels: those of the time step amid each unit's
SLOT_NAMES = {'subject': [*SHAPES], 'colour': [*COLOURS], 'action': [*ACTIONS], 'object': [*SHAPES], 'object colour': [*COLOURS],
         'relation': [*RELATIONS], 'second action': SIMPLE}      # what pool5 and fc8 learn; each slot may also be absent
SLOT_SIZES = [len(names) + 1 for names in SLOT_NAMES.values()]


def load_c3d():
    return load_half(c3d.C3D(WIDTH, sum(SLOT_SIZES)), C3D_WEIGHTS)


@torch.no_grad()
def c3d_features(net, frames):
    """frames uint8 (N, 8, 112, 112, 3) -> {'pool2': (N, 4, 28, 28, 16), 'pool3': (N, 2, 14, 14, 32), 'pool4': (N, 1, 7, 7, 64),
    'pool5': (N, 1, 4, 4, 64), 'fc7': (N, 512)}"""
    maps = net.maps(c3d.to_input(frames))
    return {name: value.permute(0, 2, 3, 4, 1) for name, value in maps.items()} | {'fc7': net.top(maps['pool5'])}


def slot_batch(ids):
    """N ids -> frames uint8 (N, 8, 112, 112, 3), dense labels of pool3 (N * 2, 5, 14, 14) and pool4 (N, 5, 7, 7), slots (N, 7)"""
    scenes = [scene(id) for id in ids]
    fine, coarse = (np.stack([dense_labels(one, t) for one in scenes for t in steps]) for steps in DENSE.values())
    slots = [[names.index(one['slots'][slot]) if slot in one['slots'] else len(names) for slot, names in SLOT_NAMES.items()]
             for one in scenes]
    frames = np.stack([render(one, FRAMES) for one in scenes])
    return *map(torch.from_numpy, (frames, fine.repeat(2, 2).repeat(2, 3), coarse)), torch.tensor(slots)


def train_c3d(clips):
    """pool3 and pool4 learn what the clip CNN learns; pool5 and fc8 the slots of the whole clip, without and with where.
    Writes the weight file, prints the accuracies on clips not seen before"""
    torch.manual_seed(SEED)
    net = c3d.C3D(WIDTH, sum(SLOT_SIZES), dropout=0.0)
    normed = [name for name in net.layers if name.startswith('conv') or name in ('fc6', 'fc7')]
    for name in normed:                                 # batch norms, for training alone
        layer = net.layers[name]
        norm = nn.BatchNorm3d(layer.out_channels) if name.startswith('conv') else nn.BatchNorm1d(layer.out_features)
        net.layers[name] = nn.Sequential(layer, norm)
    heads = nn.ModuleDict({name: nn.Module() for name in DENSE})
    for name in DENSE:
        heads[name].heads = nn.Conv2d(c3d.CHANNELS[name] * WIDTH, sum(HEADS.values()), 1)
    heads['pool5'] = nn.Linear(c3d.CHANNELS['pool5'] * WIDTH, sum(SLOT_SIZES))

    def losses(_, frames, fine, coarse, slots):
        maps, loss, right = net.convolve(c3d.to_input(frames)), 0, {}
        for name, goal in zip(DENSE, (fine, coarse)):
            each, accuracy = read_heads(heads[name], maps[name].transpose(1, 2).flatten(0, 1), goal)
            loss, right = loss + each, right | {f'{name} {what}': value for what, value in accuracy.items()}
        everywhere = heads['pool5'](maps['pool5'].mean((2, 3, 4)))
        for name, logits in (('pool5', everywhere), ('fc8', net.layers['fc8'](net.top(maps['pool5'])))):
            for slot, out, true in zip(SLOT_NAMES, logits.split(SLOT_SIZES, 1), slots.T):
                loss = loss + F.cross_entropy(out, true)
                right[f'{name} {slot}'] = (out.argmax(1) == true).float().mean().item()
        return loss, right

    fit('C3D', nn.ModuleList([net, heads]), clips, slot_batch, losses)
    net.eval()
    with torch.no_grad():
        report('cells of shapes (pool3, pool4) and slots', losses(0, *slot_batch([f'fresh{900000 + i}' for i in range(300)]))[1])
    for name in normed:                                 # the norms go into the weights before them
        fuse = nn.utils.fuse_conv_bn_eval if name.startswith('conv') else nn.utils.fuse_linear_bn_eval
        net.layers[name] = fuse(*net.layers[name])
    save_half(net, C3D_WEIGHTS)


# ------------------------------------------------------- the dataset on the disk
def annotate(ids):
    """-> {id: split, captions, labels, category, truth}; no two clips have the same five captions in the same order"""
    videos, used = {}, set()
    for id in tqdm(ids, 'captions', unit=' clips'):
        one = scene(id)
        five = next(five for k in itertools.count() if (five := tuple(captions(one, k))) not in used)
        used.add(five)
        videos[id] = {'split': one['split'], 'captions': list(five), 'labels': labels(one),
                      'category': one['texture'], 'truth': truth(one)}
    return videos


def extraction_batch(ids):
    """N ids -> frames uint8 (N, 16, 56, 56, 3), audio (N, 128)"""
    scenes = [scene(id) for id in ids]
    return torch.stack([shrink(render(one)) for one in scenes]), np.stack([audio(one) for one in scenes])


def write_json(path, value):
    path.with_suffix('.tmp').write_text(json.dumps(value))
    os.replace(path.with_suffix('.tmp'), path)


def store(folder, name, key, ids, collate, compute, about):
    """about {kind: what made it} -> FOLDER/features/KIND.npy, half precision, one row per id, and at the end KIND.json.
    collate(ids) -> a batch, in another process; compute(*batch) -> {kind: (N, ...)}. After an interruption it goes on where it
    stopped, if the key is the same."""
    features, progress = folder / 'features', folder / 'features' / f'{name}.progress'
    features.mkdir(parents=True, exist_ok=True)
    done, arrays = 0, {}                                # rows of features that are on the disk
    if progress.exists() and (found := json.loads(progress.read_text()))['key'] == key:
        done = found['done']
    for kind in about:
        (features / f'{kind}.json').unlink(missing_ok=True)
    loader = DataLoader(ids[done:], 16, collate_fn=collate, num_workers=1)
    with tqdm(total=len(ids), initial=done, desc=f'rendering for {name}', unit=' clips') as bar, torch.no_grad():
        for batch in loader:
            rows, start = slice(done, done + len(batch[0])), 'r+' if done else 'w+'
            for kind, value in compute(*batch).items():
                if kind not in arrays:
                    shape = (len(ids), *value.shape[1:])
                    arrays[kind] = np.lib.format.open_memmap(features / f'{kind}.npy', start, np.float16, shape)
                arrays[kind][rows] = value
                arrays[kind].flush()
            done = rows.stop
            write_json(progress, {'key': key, 'done': done})
            bar.update(len(batch[0]))
    for kind, info in about.items():
        write_json(features / f'{kind}.json', {'ids': ids, **info})
    progress.unlink()


def fingerprint(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def prepare(root, limit=None, kinds=()):
    """Makes ROOT/shapes (or ROOT/shapes-LIMIT, with at most LIMIT clips per split) unless it is there -> its path.
    It grows under another name and is renamed when whole. The features of C3D, 0.5 GB, are made when kinds names one."""
    sizes = {split: min(n, limit or n) for split, n in SIZES.items()}
    ids = [f'{split}{i:05d}' for split, n in sizes.items() for i in range(n)]
    weights = fingerprint(WEIGHTS)
    key = {'seed': SEED, 'version': VERSION, 'weights': weights, 'sizes': sizes}
    folder = pathlib.Path(root) / (f'shapes-{limit}' if limit else 'shapes')
    whole, part = folder / 'annotations.json', folder.with_name(folder.name + '.part')
    if not (whole.exists() and key.items() <= json.loads(whole.read_text()).items()):
        model = load_clip_cnn()

        def compute(small, spectra):
            grid = model(triples(small)).permute(0, 2, 3, 1)                           # (N * 16, 7, 7, 64)
            return {'clip': grid.unflatten(0, (-1, STEPS)), 'audio': spectra}

        about = {'clip': {'encoder': 'shapes.ClipCNN', 'weights': weights}, 'audio': {'encoder': 'shapes.audio'}}
        store(part, 'clip', key, ids, extraction_batch, compute, about)
        about = {'classes': list(ACTIONS), 'categories': TEXTURES, 'videos': annotate(ids)}
        write_json(part / 'annotations.json', key | about)
        whole.unlink(missing_ok=True)                   # what is there has another seed, version, size or weights
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    if any(kind.startswith('c3d_') for kind in kinds):
        about = {f'c3d_{part}': {'encoder': 'shapes.C3D', 'part': part, 'weights': fingerprint(C3D_WEIGHTS)}
                 for part in (*c3d.MAPS, 'fc7')}
        last = folder / 'features' / 'c3d_fc7.json'
        if not (last.exists() and about['c3d_fc7'].items() <= json.loads(last.read_text()).items()):
            net = load_c3d()
            compute = lambda frames: {f'c3d_{part}': value for part, value in c3d_features(net, frames).items()}
            store(folder, 'c3d', key | about, ids, video_batch, compute, about)
    return folder


def video_batch(ids):
    """N ids -> [frames uint8 (N, 8, 112, 112, 3)]"""
    return [torch.from_numpy(np.stack([render(scene(id), FRAMES) for id in ids]))]


class Videos:
    """Like data.Features, but each clip is rendered when it is asked for: videos[id] -> (16, 112, 112, 3), 0 to 255"""
    shape, frames, info = [SIDE, SIDE, 3], STEPS, {}

    def __getitem__(self, id):
        return render(scene(id)).astype(np.float32)


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description='The embedded world of moving shapes: its dataset, and the networks '
                                                 'that make the features. train.py needs neither command.')
    commands = parser.add_subparsers(dest='command', required=True)
    make = commands.add_parser('prepare', help='render the clips; store captions, truth and features')
    make.add_argument('--root', default='data', help='data folder (default: data)')
    make.add_argument('--limit', type=int, help='at most so many clips per split')
    learn = commands.add_parser('train', help='train both networks on endlessly rendered clips; write their weight files')
    learn.add_argument('--network', choices=('clip', 'c3d'), help='this one alone')
    learn.add_argument('--clips', type=int, default=24000,
                       help='clips that each learns from (default: 24000, about 10 and 20 minutes)')
    args = parser.parse_args()
    if args.command == 'train':
        if args.network != 'c3d':
            train_clip_cnn(args.clips)
        if args.network != 'clip':
            train_c3d(args.clips)
    else:
        path = prepare(args.root, args.limit)
        videos = json.loads((path / 'annotations.json').read_text())['videos']
        split = lambda name: {id: v for id, v in videos.items() if v['split'] == name}
        constant, accuracy = blind_baseline(split('train'), split('test'))
        print(f'{path} holds {len(videos)} clips. The best caption that ignores the video, "{constant}", '
              f'has a slot accuracy of {accuracy:.3f} on the test clips.')
