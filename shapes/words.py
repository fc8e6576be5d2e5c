"""Captions of the embedded world, and which facts a caption states correctly.

A slot is a fact that a caption should name. Every clip has the slots subject, colour and action.
If a second shape takes part, there are also object, object colour and perhaps a relation ("left
of") or a second action. The value of a slot is a canonical name, a key of the tables below.
`captions` turns slots into sentences. `parse` finds the slots of any sentence, such as one that a
model generates.
"""
import functools
import itertools
import re

import numpy as np

# Canonical name -> its phrases, the most frequent first
SHAPES = {'circle': ['circle', 'disc'], 'square': ['square', 'box'],
          'triangle': ['triangle', 'wedge'], 'cross': ['cross', 'plus']}
COLOURS = {'red': ['red', 'crimson'], 'green': ['green'], 'blue': ['blue'],
           'yellow': ['yellow', 'golden'], 'purple': ['purple', 'violet'], 'white': ['white']}
ACTIONS = {
    'left': ['moves left', 'goes left', 'slides left'],
    'right': ['moves right', 'goes right', 'slides right'],
    'up': ['moves up', 'goes up', 'rises'], 'down': ['moves down', 'goes down', 'falls'],
    'grows': ['grows', 'gets bigger', 'expands'],
    'shrinks': ['shrinks', 'gets smaller', 'contracts'],
    'appears': ['appears', 'fades in', 'emerges'],
    'disappears': ['disappears', 'fades out', 'vanishes'],
    'chases': ['chases', 'follows', 'runs after'], 'pushes': ['pushes', 'shoves'],
    'grows then shrinks': [
        'grows then shrinks', 'gets bigger then smaller', 'expands and then contracts'],
    'shrinks then grows': [
        'shrinks then grows', 'gets smaller then bigger', 'contracts and then expands'],
    'left and back': ['moves left and back', 'goes left and returns', 'slides left and comes back'],
    'right and back': [
        'moves right and back', 'goes right and returns', 'slides right and comes back']}
RELATIONS = {'left of': ['left of'], 'right of': ['right of'],
             'above': ['above', 'over'], 'below': ['below', 'under']}
SOUNDS = {'beep': ['with a beep', 'and a beep'], 'buzz': ['with a buzz', 'and a buzz']}

DIRECTIONS = list(ACTIONS)[:4]
SIMPLE = list(ACTIONS)[:8]              # one shape, one movement
ORDER_ONLY = list(ACTIONS)[10:]         # one shape, two movements: only their order differs


# ------------------------------------------------------- from slots to captions
def say(rng, phrases):
    """The first phrase at least half of the time"""
    if rng.random() < 0.5:
        return phrases[0]
    return phrases[rng.integers(len(phrases))]


def noun(rng, shape, colour):
    phrases = ['a', 'the'], COLOURS[colour], SHAPES[shape]
    return ' '.join(say(rng, several) for several in phrases)


def sentence(rng, slots):
    """slots -> a list of phrases that names all of them"""
    words = [noun(rng, slots['subject'], slots['colour']), say(rng, ACTIONS[slots['action']])]
    if 'relation' in slots:
        words.insert(1, say(rng, RELATIONS[slots['relation']]))
    if 'object' in slots:
        words.insert(2, noun(rng, slots['object'], slots['object colour']))
    if 'second action' in slots:        # both shapes act, so either may come first
        clauses = [words[:2], [words[2], say(rng, ACTIONS[slots['second action']])]]
        first = rng.integers(2)
        words = [*clauses[first], say(rng, ['while', 'as']), *clauses[1 - first]]
    return words


def captions(scene, attempt=0):
    """-> five different captions that name every slot. If there is a sound, three of them name it.
    Each attempt gives different captions."""
    rng = np.random.default_rng([*scene['seed'], 300, attempt])
    five = []
    while len(five) < 5:
        words = sentence(rng, scene['slots'])
        if scene['sound'] and len(five) < 3:
            words.append(say(rng, SOUNDS[scene['sound']]))
        caption = ' '.join(words)
        if caption not in five:
            five.append(caption)
    return [five[i] for i in rng.permutation(5)]


# ------------------------------------------------------- from captions to slots
# The slots of the first and of the second phrase from a table -> the table
TABLES = {('subject', 'object'): SHAPES, ('colour', 'object colour'): COLOURS,
          ('action', 'second action'): ACTIONS, ('relation', 'relation'): RELATIONS,
          ('sound', 'sound'): SOUNDS}
# Phrase -> the slots of its table, its canonical name
PHRASES = {phrase: (slots, name) for slots, table in TABLES.items()
           for name, phrases in table.items() for phrase in phrases}
# Longer phrases come first, because 'moves left' is the beginning of 'moves left and back'.
PATTERN = re.compile(rf'(?<!\S)({"|".join(sorted(PHRASES, key=len, reverse=True))})(?!\S)')


@functools.lru_cache(100_000)
def parse(caption, swapped=False):
    """-> [(slot, canonical name, index of the first word, index after the last word)]

    The first shape is the subject, and the second is the object, or the reverse if `swapped`. A
    colour belongs to the shape that follows it."""
    caption = ' '.join(caption.lower().split())
    found = []
    seen = set()
    for match in PATTERN.finditer(caption):
        slots, name = PHRASES[match[0]]
        second = (('subject', 'object') if 'colour' in slots else slots) in seen
        seen.add(slots)
        start = caption.count(' ', 0, match.start())
        found.append((slots[second != swapped], name, start, start + len(match[0].split())))
    return found


def slots_right(caption, truth, swapped=None):
    """caption, truth of its clip -> {slot: bool}, every slot of the truth. A caption may leave out
    the sound. If it names a sound, or a second shape where there is none, then 'sound' or 'object'
    tells whether that is right."""
    if swapped is None:
        swapped = is_swapped(caption, truth)
    wanted = truth['slots']
    said = {}
    for slot, name, _, _ in parse(caption, swapped):
        if said.setdefault(slot, name) != name:
            said[slot] = None           # two different names count as none
    right = {slot: said.get(slot) == name for slot, name in wanted.items()}
    if 'second action' in said and 'second action' not in wanted:
        right['action'] = False         # such as 'grows then shrinks then grows'
    if 'object' in said and 'object' not in wanted:
        right['object'] = False
    if 'sound' in said:
        right['sound'] = said['sound'] == truth['sound']
    return right


def is_swapped(caption, truth):
    """If both shapes act, either may come first: does the caption begin with the object?"""
    if 'second action' not in truth['slots']:
        return False
    as_it_is, swapped = (slots_right(caption, truth, order) for order in (False, True))
    return sum(swapped.values()) > sum(as_it_is.values())


WAYS = (*DIRECTIONS, 'back', 'in', 'out', 'bigger', 'smaller')


def word_roles(caption, truth):
    """-> for each word 'subject', 'colour', 'verb', 'direction', 'object', 'object colour',
    'relation', 'sound' or None. The subject is the first shape of truth['boxes'], and the object is
    the second, in whichever order the caption names them."""
    words = caption.lower().split()
    roles = [None] * len(words)
    for slot, _, start, end in parse(caption, is_swapped(caption, truth)):
        for k in range(start, end):
            if words[k] not in ('a', 'and', 'of', 'then', 'with'):
                roles[k] = slot
                if slot in ('action', 'second action'):
                    roles[k] = 'direction' if words[k] in WAYS else 'verb'
    return roles


# ------------------------------------------------------- scores
def slot_accuracy(captions, truth):
    """captions {id: str}, truth {id: truth of the clip} -> share of slots that are right"""
    right = []
    for id, caption in captions.items():
        right += slots_right(caption, truth[id]).values()
    return sum(right) / len(right)


def score(captions, truth):
    """captions {id: str}, truth {id: truth of the clip} -> {'slots': share of all slots that are
    right, 'order': share of the order-only actions that are right, if there are any}"""
    scores = {'slots': slot_accuracy(captions, truth)}
    actions = slot_table(captions, truth)
    if 'order-only actions' in actions:
        scores['order'] = actions['order-only actions']
    return scores


def slot_table(captions, truth):
    """captions {id: str}, truth {id: truth of the clip}
    -> {slot, or group of clips or actions: share of slots that are right}"""
    names = ('order-only actions', 'directions', 'other actions', 'subject', 'colour', 'object',
             'object colour', 'seen combinations', 'held-out combinations')
    rows = {name: [] for name in names}
    groups = dict.fromkeys(DIRECTIONS, 'directions') | dict.fromkeys(ORDER_ONLY, names[0])
    for id, caption in captions.items():
        right = slots_right(caption, truth[id])
        rows[groups.get(truth[id]['slots']['action'], 'other actions')].append(right['action'])
        for slot in right.keys() & rows.keys():
            rows[slot].append(right[slot])
        kind = 'held-out' if truth[id]['held_out'] else 'seen'
        rows[f'{kind} combinations'] += right.values()
    return {name: float(np.mean(values)) for name, values in rows.items() if values}


def blind_baseline(train, test):
    """Training and test split, each a data.Corpus -> the constant caption that is best on the first
    200 training clips, and its slot accuracy on the test clips. A captioner reaches that without
    seeing the video."""
    few = dict(itertools.islice(train.truth.items(), 200))

    def accuracy(caption, truth):
        return slot_accuracy(dict.fromkeys(truth, caption), truth)

    candidates = sorted({train.captions[id][0] for id in few})
    best = max(candidates, key=lambda caption: accuracy(caption, few))
    return best, accuracy(best, test.truth)
