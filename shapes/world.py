"""The embedded world: coloured shapes that move, rendered from a seed, and the truth about them.

A clip has 16 frames of 112 x 112 pixels. One or two shapes perform one of 14 actions in front of a
textured, noisy background. Some clips begin or end with frames of another scene, and some have a
sound. Four actions form two pairs that differ only in the order of their frames (grows then shrinks
or shrinks then grows, left and back or right and back). In nine of ten such clips, three
neighbouring frames do not tell which of the two it is. Half of the test clips show a combination of
shape, colour and action that no training clip shows.

    id --scene--> a dict --render--> frames (16, 112, 112, 3)
                         --audio---> spectrum (128)
                         --truth---> boxes, window of the action, slots
                         --words.captions--> five sentences that name every slot

A track says where a shape is: (F, 4) with x, y, radius and opacity in each frame.

Letters:  F frames, S samples of a sound
"""
import numpy as np

from shapes.words import (
    ACTIONS, COLOURS, DIRECTIONS, ORDER_ONLY, RELATIONS, SHAPES, SIMPLE, SOUNDS)

SEED = 2018
STEPS = 16                              # frames of a clip
SIDE = 112                              # pixels
VISIBLE = 0.15                          # a shape with this opacity or less counts as invisible
VECTORS = dict(zip(DIRECTIONS, [(-1, 0), (1, 0), (0, -1), (0, 1)]))
# Textures of the background. They are the category of a clip, and independent of the action.
TEXTURES = ['clouds', 'stripes', 'checks', 'blocks']
RGB = {'red': (205, 30, 30), 'green': (30, 165, 50), 'blue': (30, 65, 208),
       'yellow': (208, 190, 30), 'purple': (150, 40, 175), 'white': (208, 208, 208)}


# ------------------------------------------------------- tracks
def place(rng, tracks):
    """K tracks around the origin (K, F, 4) -> the same tracks, moved together to a random place in
    the frame"""
    low = (tracks[..., :2] - tracks[..., 2:3]).min((0, 1))
    high = (tracks[..., :2] + tracks[..., 2:3]).max((0, 1))
    offset = rng.uniform(2 - low, np.maximum(SIDE - 2 - high, 2.01 - low))
    return tracks + [*offset, 0, 0]


def alone(rng, action, p):
    """The track of a shape that acts by itself. p (F,): progress of the action from 0 to 1"""
    track = np.zeros((STEPS, 4))
    track[:, 2:] = rng.uniform(11, 16), 1
    if action in ORDER_ONLY:
        p = np.clip(1.25 - 1.25 * np.abs(2 * p - 1), 0, 1)      # there, a short rest, and back
    verb = action.split()[0]
    if verb in ('shrinks', 'disappears'):
        p = 1 - p
    if verb in VECTORS:
        track[:, :2] = p[:, None] * rng.uniform(38, 62) * np.array(VECTORS[verb])
    elif verb in ('appears', 'disappears'):
        track[:, 3] = p
    elif verb in ('grows', 'shrinks'):
        small = rng.uniform(8, 10)
        track[:, 2] = small + (rng.uniform(18, 22) - small) * p
    return place(rng, track[None])[0]


def pair(rng, action, p):
    """The tracks of two shapes, of which the first chases or pushes the second"""
    direction = VECTORS[pick(rng, DIRECTIONS)]
    radii = rng.uniform(9, 12.5, 2)
    if action == 'chases':              # both always move; the gap shrinks but never closes
        ahead = p * rng.uniform(26, 36)
        gap = rng.uniform(12, 15) - 6 * p
    else:                               # the second one rests until the first one touches it
        free = rng.uniform(14, 20)
        way = p * rng.uniform(42, 50)
        ahead = np.maximum(way - free, 0)
        gap = np.maximum(free - way, 0)
    tracks = np.ones((2, STEPS, 4))
    tracks[..., :2] = np.multiply.outer([ahead - gap - radii.sum(), ahead], direction)
    tracks[..., 2] = radii[:, None]
    return place(rng, tracks)


def relation_of(a, b):
    """Two tracks -> the relation of the first to the second that clearly holds in every frame; ''
    if there is none; None if the shapes touch"""
    dx, dy = (a - b)[:, :2].T
    if (np.maximum(abs(dx), abs(dy)) < a[:, 2] + b[:, 2] + 3).any():
        return None
    if (abs(dx) > 2 * abs(dy)).all():
        return 'left of' if dx[0] < 0 else 'right of'
    if (abs(dy) > 2 * abs(dx)).all():
        return 'above' if dy[0] < 0 else 'below'
    return ''


# ------------------------------------------------------- scenes
def pick(rng, names):
    return list(names)[rng.integers(len(names))]


def held_out(shape, colour, action):
    """One combination in five never occurs in training."""
    number = list(SHAPES).index(shape) + 2 * list(COLOURS).index(colour)
    return (number + 3 * list(ACTIONS).index(action)) % 5 == 0


def choose_slots(rng, unseen):
    """-> slots (without the relation), and what the second shape does: '' (there is none), 'pair'
    (the first one acts on it), 'rests' or 'acts'"""
    while True:
        shape, colour, action = [pick(rng, names) for names in (SHAPES, COLOURS, ACTIONS)]
        second = 'pair'
        if action not in ('chases', 'pushes'):
            second = rng.choice(['', 'rests', 'acts'], p=[.74, .13, .13])
        shape2, colour2 = [pick(rng, names) for names in (SHAPES, COLOURS)]
        slots = {'subject': shape, 'colour': colour, 'action': action}
        fits = held_out(shape, colour, action) == unseen and colour2 != colour
        if second:
            slots |= {'object': shape2, 'object colour': colour2}
        if second == 'acts':
            slots['second action'] = pick(rng, SIMPLE)
            known = unseen or not held_out(shape2, colour2, slots['second action'])
            fits = fits and known and action in SIMPLE and slots['second action'] != action
        if fits:
            return slots, second


def choose_times(rng, slots):
    """-> number of frames of another scene at the start and at the end; first and last frame of
    the action"""
    lead_in, lead_out = (rng.integers(1, 5, 2) * (rng.random(2) < 0.4)).tolist()
    end = STEPS - 1 - lead_out
    first = lead_in + int(rng.integers(min(2, end - lead_in - 6) + 1))
    last = end - int(rng.integers(min(2, end - first - 6) + 1))         # at least 6 steps later
    if {'appears', 'disappears'} & set(slots.values()):  # faster, so that three frames can show it
        last = min(last, first + int(rng.integers(4, 7)))
    return lead_in, lead_out, first, last


def scene(id):
    """id: 'train00017', 'val...', 'test...', or 'fresh000042' (one of any number of training clips
    that are in no split) -> a dict with everything there is to know about the clip. `other` is the
    other scene, and `lead_in` and `lead_out` are the numbers of its frames at the start and end."""
    split = id.rstrip('0123456789')
    index = int(id[len(split):])
    seed = [SEED, ['train', 'val', 'test', 'fresh'].index(split), index]
    rng = np.random.default_rng(seed)
    unseen = (split == 'test' and index % 2 == 0) or (split == 'val' and index % 3 == 0)
    slots, second = choose_slots(rng, unseen)
    lead_in, lead_out, first, last = choose_times(rng, slots)

    p = np.clip((np.arange(STEPS) - first) / (last - first), 0, 1)
    action = slots['action']
    tracks = pair(rng, action, p) if second == 'pair' else [alone(rng, action, p)]
    allowed = {'rests': [*RELATIONS], 'acts': [*RELATIONS, '']}.get(second, [None])
    relation = None
    while relation not in allowed:
        tracks = [alone(rng, one, p) for one in (action, slots.get('second action', 'still'))]
        relation = relation_of(*tracks)
    if second == 'rests':
        slots['relation'] = relation

    looks = [(slots['subject'], slots['colour'])]
    if second:
        looks.append((slots['object'], slots['object colour']))
    looks.append((pick(rng, SHAPES), pick(rng, COLOURS)))               # of the other scene
    tracks = [*tracks, alone(rng, 'still', p)]
    shapes = [{'shape': shape, 'colour': colour, 'track': track,
               'rgb': np.array(RGB[colour]) + rng.integers(-15, 16, 3)}
              for (shape, colour), track in zip(looks, tracks)]
    return {'seed': seed, 'split': split, 'slots': slots, 'held_out': unseen,
            'sound': pick(rng, [*SOUNDS, '', '', '', '']),
            'texture': int(rng.integers(len(TEXTURES))), 'window': [first, last],
            'shapes': shapes[:-1], 'other': shapes[-1:], 'lead_in': lead_in, 'lead_out': lead_out}


def shown(scene, t):
    """The shapes that frame t shows: those of the scene, or those of the other scene"""
    inside = scene['lead_in'] <= t < STEPS - scene['lead_out']
    return scene['shapes' if inside else 'other']


def truth(scene):
    """The facts about a clip, in plain values.
    boxes: for each shape and frame [x0, y0, x1, y1] in pixels, or None if the shape is not visible
    window: first and last frame of the action
    slots: what a correct caption must name"""
    boxes = []
    for one in scene['shapes']:
        x, y, r, opacity = one['track'].T
        corners = np.stack([x - r, y - r, x + r, y + r], 1).round(1).tolist()
        for t in range(STEPS):
            if shown(scene, t) is scene['other'] or opacity[t] <= VISIBLE:
                corners[t] = None
        boxes.append(corners)
    return {'boxes': boxes, 'window': scene['window'], 'slots': scene['slots'],
            'sound': scene['sound'] or None, 'held_out': scene['held_out'],
            'order_only': scene['slots']['action'] in ORDER_ONLY}


def labels(scene):
    """-> indices of its one or two actions in ACTIONS"""
    slots = scene['slots']
    return [list(ACTIONS).index(slots[k]) for k in ('action', 'second action') if k in slots]


# ------------------------------------------------------- frames
def background(texture, rng):
    """-> int16 (112, 112, 3)"""
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE

    def waves(low, high):
        phase = rng.uniform(low, high) * x + rng.uniform(low, high) * y + rng.random()
        return np.sin(2 * np.pi * phase)

    if texture == 'clouds':
        pattern = (waves(-2, 2) + waves(-3, 3) + waves(-4, 4)) / 2
    elif texture == 'stripes':
        pattern = waves(3, 7)
    elif texture == 'checks':
        columns = np.sin(rng.uniform(20, 40) * x + 1)
        pattern = np.sign(columns * np.sin(rng.uniform(20, 40) * y + 2))
    else:
        pattern = np.kron(rng.uniform(-1, 1, (14, 14)), np.ones((8, 8)))
    colour = rng.uniform(60, 110) + rng.uniform(-12, 12, 3)
    return (colour + rng.uniform(10, 24) * pattern[..., None]).astype(np.int16)


def measure(shape, u, v):
    """Less than 1 inside the shape, more than 1 outside. Every shape touches all four sides of the
    box |u|, |v| <= 1."""
    if shape == 'circle':
        return np.sqrt(u * u + v * v)
    if shape == 'square':
        return np.maximum(abs(u), abs(v))
    if shape == 'triangle':
        return np.maximum(v, 2 * abs(u) - v)
    return np.minimum(np.maximum(abs(u), abs(v) / 0.36), np.maximum(abs(v), abs(u) / 0.36))


def draw(picture, one, t):
    """Draws a shape as it is in frame t into the picture, int16 (112, 112, 3)"""
    x, y, r, opacity = one['track'][t]
    rows = np.arange(int(y - r - 1), int(y + r + 2))
    columns = np.arange(int(x - r - 1), int(x + r + 2))
    distance = measure(one['shape'], (columns + 0.5 - x) / r, (rows[:, None] + 0.5 - y) / r)
    cover = np.clip(0.5 + (1 - distance) * r, 0, 1) * opacity           # the edge is a pixel wide
    patch = picture[rows[0]:rows[-1] + 1, columns[0]:columns[-1] + 1]
    patch += (cover[..., None] * (one['rgb'] - patch)).astype(np.int16)


def render(scene, steps=range(STEPS)):
    """-> uint8 (F, 112, 112, 3), the frames `steps`"""
    rng = np.random.default_rng([*scene['seed'], 100])
    noise = np.frombuffer(rng.bytes(STEPS * SIDE * SIDE * 3), np.uint8)
    # No colour is above 224, so that noise of at most 31 cannot overflow.
    frames = noise.reshape(STEPS, SIDE, SIDE, 3)[list(steps)] & 31
    # The other scene has the same texture, because otherwise a cut would be trivial to see.
    sceneries = [background(TEXTURES[scene['texture']], rng) for _ in range(2)]
    for frame, t in zip(frames, steps):
        shapes = shown(scene, t)
        picture = sceneries[shapes is scene['other']].copy()
        for one in shapes:
            draw(picture, one, t)
        frame += picture.astype(np.uint8)
    return frames


# ------------------------------------------------------- sound
def spectrum(wave):
    """(S,) at 8192 samples per second -> (128,), the log spectrum, our substitute for VGGish. The
    noise of this world has the mean 1.97 in every band. We subtract it, because from an almost
    constant input a network would learn little but a bias."""
    bands = np.abs(np.fft.rfft(wave.reshape(-1, 256))[:, 1:])
    return np.log(bands + 1).mean(0) - 1.97


def audio(scene):
    """-> (128,), the spectrum of one second of noise, with a sound in it if the scene has one"""
    rng = np.random.default_rng([*scene['seed'], 200])
    time = np.arange(8192) / 8192
    wave = 0.5 * rng.standard_normal(8192)
    if scene['sound'] == 'beep':
        wave += np.sin(2 * np.pi * rng.uniform(1000, 1150) * time)
    elif scene['sound'] == 'buzz':
        wave += np.sign(np.sin(2 * np.pi * rng.uniform(100, 125) * time))
    return spectrum(wave)
