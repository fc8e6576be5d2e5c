"""The embedded world is consistent: frames, boxes, captions, slots and features say the same."""
import bisect
import itertools
import json
import shutil
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import c3d
import data
import helpers
from shapes import dataset, networks, words, world
from tools import machine

COUNTS = {'train': 160, 'val': 30, 'test': 50}
IDS = [f'{split}{i:05d}' for split, count in COUNTS.items() for i in range(count)]
FRESH = [f'fresh{i:06d}' for i in range(700)]


@pytest.fixture(scope='module')
def videos():
    return dataset.annotate(IDS)


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    """A small dataset with all features. No test may change it."""
    return dataset.prepare(tmp_path_factory.mktemp('data'), 7, ('c3d_pool5',))


# ---------------------------------------------------------------- the world
def test_a_clip_is_the_same_every_time_and_differs_from_others():
    one, again, other = (world.render(world.scene(id)) for id in (IDS[7], IDS[7], 'val00007'))
    assert one.dtype == np.uint8 and (one == again).all() and (one != other).any()
    assert (world.render(world.scene(IDS[7]), [3, 9]) == one[[3, 9]]).all()
    videos = dataset.Videos()
    assert videos[IDS[7]].dtype == np.float32 and (videos[IDS[7]] == one).all()
    assert videos.check([IDS[7]]) == ([112, 112, 3], 16) and one.shape == (16, 112, 112, 3)


def test_the_true_key_is_the_middle_of_the_action():
    keys = dataset.Keys()
    shape, frames = keys.check(IDS)
    for id in IDS:
        first, last = world.truth(world.scene(id))['window']
        assert keys[id].shape == (frames, *shape) and keys[id].sum() == 1
        key = int(keys[id].argmax())
        assert abs((key - first) - (last - key)) <= 1   # as many frames before it as after it


@pytest.mark.parametrize('id', IDS[::8])
def test_boxes_hold_exactly_the_pixels_that_differ_from_the_background(id):
    scene = world.scene(id)
    boxes = world.truth(scene)['boxes']
    plain = world.render(scene | {'shapes': [], 'other': []}).astype(int)
    change = world.render(scene) - plain
    drawn = change.any(-1)                              # (16, 112, 112)
    for t in range(16):
        here = [box[t] for box in boxes if box[t]]
        cut = not scene['lead_in'] <= t < 16 - scene['lead_out']
        assert cut == (abs(plain[t] - plain[8]).max() > 31)         # noise changes a pixel by 31
        assert not (cut and here)
        if len(here) == len(boxes):                     # no shape is too faint to have a box
            y, x = np.nonzero(drawn[t])
            wanted = [*np.min(here, 0)[:2], *np.max(here, 0)[2:]]
            found = [x.min(), y.min(), x.max() + 1, y.max() + 1]
            assert np.abs(np.subtract(found, wanted)).max() <= 2
        for x0, y0, x1, y1 in here:
            assert 0 <= x0 < x1 <= 112 and 0 <= y0 < y1 <= 112
            inside = drawn[t, int(y0) + 1:int(y1), int(x0) + 1:int(x1)]
            assert inside.mean() > 0.35                 # a triangle fills half of its box
        for one in [] if cut else scene['shapes']:
            x, y, _, opacity = one['track'][t]
            wanted = opacity * (one['rgb'] - plain[t, int(y), int(x)] + 15)     # 15: mean noise
            assert abs(change[t, int(y), int(x)] - wanted).max() < 18


def test_colours_never_overflow():
    rgb = np.array(list(world.RGB.values()))
    assert rgb.min() - 15 >= 0 and rgb.max() + 15 + 31 <= 255
    for seed, texture in itertools.product(range(20), world.TEXTURES):
        scenery = world.background(texture, np.random.default_rng(seed))
        assert scenery.min() >= 0 and scenery.max() + 31 <= 255


def changes(a, b):
    """Two boxes of one shape -> what happened between them"""
    dx, dy = ((b[:2] + b[2:]) - (a[:2] + a[2:])) / 2
    growth = (b[2] - b[0]) - (a[2] - a[0])
    facts = {'left': dx < -4, 'right': dx > 4, 'up': dy < -4, 'down': dy > 4,
             'grows': growth > 4, 'shrinks': growth < -4}
    return [name for name, holds in facts.items() if holds]


def test_boxes_move_as_the_slots_say_within_the_window_and_rest_outside(videos):
    for truth in [video['truth'] for video in videos.values()]:
        slots = truth['slots']
        seen = [t for t in range(16) if truth['boxes'][0][t]]
        first, last = (bisect.bisect_left(seen, t) for t in truth['window'])
        subject, *other = (np.array([boxes[t] or [np.nan] * 4 for t in seen], float)
                           for boxes in truth['boxes'])
        assert (subject[:first + 1] == subject[0]).all() and (subject[last:] == subject[-1]).all()
        if truth['order_only']:                         # only the middle shows what happens
            assert np.abs(subject[0] - subject[-1]).max() < 0.2
            middle = subject[(first + last) // 2]
            assert changes(subject[0], middle) == [slots['action'].split()[0]]
        elif slots['action'] in words.SIMPLE:
            fades = {(False, True): ['appears'], (True, False): ['disappears']}
            fade = fades.get(tuple(t in seen for t in truth['window']), [])
            assert changes(subject[0], subject[-1]) + fade == [slots['action']]
        else:
            check_pair(slots['action'], subject, other[0], first)
        if 'relation' in slots:
            x0, y0, x1, y1 = other[0].T
            holds = {'left of': subject[:, 2] < x0, 'right of': subject[:, 0] > x1,
                     'above': subject[:, 3] < y0, 'below': subject[:, 1] > y1}
            assert holds[slots['relation']].all()


def check_pair(action, subject, other, first):
    """The boxes (F, 4) of the shape that chases or pushes, and of the other one"""
    moves, flees = (boxes[-1, :2] - boxes[0, :2] for boxes in (subject, other))
    axis = np.abs(moves).argmax()
    ahead = other[0, axis] - subject[0, axis]
    assert np.sign(moves[axis]) == np.sign(ahead) == np.sign(flees[axis])   # it comes from behind
    gaps = np.maximum(subject[:, :2] - other[:, 2:], other[:, :2] - subject[:, 2:]).max(1)
    rested = (other[first + 1] == other[first]).all()
    assert rested == (action == 'pushes')
    if action == 'chases':
        assert gaps.min() > 4
    else:                                               # the other one rests until it is touched
        assert abs(gaps[-1]) < 0.21 and gaps[0] > 10 and (other[gaps > 0.21] == other[0]).all()


def test_splits_keep_the_held_out_combinations_apart(videos):
    def combinations(id):
        slots = world.scene(id)['slots']
        names = [('subject', 'colour', 'action'), ('object', 'object colour', 'second action')]
        return [tuple(slots[k] for k in three) for three in names if three[-1] in slots]

    trained = set(itertools.chain(*map(combinations, IDS[:160] + FRESH[:200])))
    for split, share in (('train', 0), ('val', 1 / 3), ('test', 1 / 2)):
        unseen = [id for id in IDS if id.startswith(split) and videos[id]['truth']['held_out']]
        assert len(unseen) == COUNTS[split] * share
        assert not trained & {combinations(id)[0] for id in unseen}
    everything = list(itertools.product(words.SHAPES, words.COLOURS, words.ACTIONS))
    rest = [one for one in everything if not world.held_out(*one)]
    assert 0.75 < len(rest) / len(everything) < 0.85
    for k in range(3):                                  # yet every pair of two names is trained
        pairs, trained_pairs = ({one[:k] + one[k + 1:] for one in of} for of in (everything, rest))
        assert pairs == trained_pairs


def test_audio_tells_the_sounds_apart():
    scenes = [world.scene(id) for id in FRESH[:240]]
    vectors = np.stack([world.audio(scene) for scene in scenes])
    sounds = np.array([scene['sound'] for scene in scenes])
    assert vectors.shape == (240, 128) and set(sounds) == {'', 'beep', 'buzz'}
    means = {sound: vectors[:120][sounds[:120] == sound].mean(0) for sound in set(sounds)}
    guess = [min(means, key=lambda sound: np.abs(v - means[sound]).sum()) for v in vectors[120:]]
    assert np.mean(guess == sounds[120:]) > 0.95


# ---------------------------------------------------------------- words
def test_captions_and_labels_name_every_slot(videos):
    for video in videos.values():
        slots = video['truth']['slots']
        actions = [slots[slot] for slot in ('action', 'second action') if slot in slots]
        assert [list(words.ACTIONS)[k] for k in video['labels']] == actions
        right = [words.slots_right(caption, video['truth']) for caption in video['captions']]
        assert all(all(slots.values()) for slots in right)
        assert sum('sound' in slots for slots in right) == (3 if video['truth']['sound'] else 0)
        assert len(set(video['captions'])) == 5
    assert {len(video['labels']) for video in videos.values()} == {1, 2}
    assert {video['category'] for video in videos.values()} == set(range(len(world.TEXTURES)))


def test_captions_are_short_and_use_all_words_of_the_grammar():
    tables = (words.SHAPES, words.COLOURS, words.ACTIONS, words.RELATIONS, words.SOUNDS)
    phrases = itertools.chain(*(several for table in tables for several in table.values()))
    grammar = set(' '.join(phrases).split()) | {'a', 'the', 'while', 'as'}
    said = [caption.split(' ') for id in FRESH for caption in words.captions(world.scene(id))]
    assert set(itertools.chain(*said)) == grammar and 50 <= len(grammar) <= 80
    assert {len(caption) for caption in said} <= set(range(4, 17))
    assert all(word.isalpha() and word.islower() for word in grammar)


def test_no_two_clips_share_their_five_captions(monkeypatch):
    true = words.captions
    monkeypatch.setattr(words, 'captions', lambda scene, k: true(scene, k) if k else ['a'] * 5)
    five = [tuple(video['captions']) for video in dataset.annotate(IDS[:10]).values()]
    assert len(set(five)) == 10 and five[0] == ('a',) * 5


def a_truth(*names, sound=None, **more):
    slots = dict(zip(('subject', 'colour', 'action', 'object', 'object colour'), names))
    return {'slots': slots | more, 'sound': sound}


PUSH = a_truth('square', 'red', 'pushes', 'circle', 'blue')
WHILE = a_truth('square', 'red', 'grows', 'circle', 'blue', **{'second action': 'left'})
RIGHT_OF = a_truth('cross', 'red', 'left', 'square', 'white', relation='right of')
BEEP = a_truth('cross', 'red', 'down', sound='beep')
GROWS = a_truth('cross', 'red', 'grows')
GROWS_SHRINKS = a_truth('cross', 'red', 'grows then shrinks')


@pytest.mark.parametrize('caption, truth, wrong', [
    ('a red square pushes a blue circle', PUSH, []),
    ('a blue circle pushes a red square', PUSH, ['subject', 'colour', 'object', 'object colour']),
    ('a blue square pushes a red circle', PUSH, ['colour', 'object colour']),
    ('a red square pushes', PUSH, ['object', 'object colour']),
    ('a red blue square pushes a blue circle', PUSH, ['colour']),
    ('a blue red square pushes a blue circle', PUSH, ['colour']),
    ('', PUSH, ['subject', 'colour', 'action', 'object', 'object colour']),
    ('a red square grows while a blue circle moves left', WHILE, []),
    ('the blue disc goes left as a crimson box gets bigger', WHILE, []),
    ('a red square moves left while a blue circle grows', WHILE, ['action', 'second action']),
    ('a red square grows', WHILE, ['object', 'object colour', 'second action']),
    ('a red cross left of a white box moves left', RIGHT_OF, ['relation']),
    ('a red cross moves left', RIGHT_OF, ['object', 'object colour', 'relation']),
    ('a red cross gets bigger then smaller', GROWS, ['action']),
    ('a red cross shrinks then grows', GROWS_SHRINKS, ['action']),
    ('a red cross expands and then contracts', GROWS_SHRINKS, []),
    ('a red cross grows then shrinks then grows', GROWS_SHRINKS, ['action']),
    ('a red cross grows grows', GROWS, ['action']),
    ('a red cross under a blue disc grows', GROWS, ['object']),
    ('a red cross falls and a buzz', BEEP, ['sound']),
    ('a red cross grows with a beep', GROWS, ['sound'])])
def test_slots_of_captions_written_by_hand(caption, truth, wrong):
    right = words.slots_right(caption, truth)
    assert [slot for slot in right if not right[slot]] == wrong


def test_slot_accuracy_and_its_table_by_hand():
    truth = {'x': PUSH | {'held_out': True}, 'y': BEEP | {'held_out': False},
             'z': GROWS_SHRINKS | {'held_out': False}}
    captions = {'x': 'a red square chases a green circle',              # 3 of 5 slots
                'y': 'a red plus falls', 'z': 'a red box grows'}        # 3 of 3 and 1 of 3
    assert words.slot_table(captions, truth) == {
        'order-only actions': 0, 'directions': 1, 'other actions': 0, 'subject': 2 / 3, 'colour': 1,
        'object': 1, 'object colour': 0, 'seen combinations': 4 / 6, 'held-out combinations': 3 / 5}
    assert words.slot_accuracy(captions, truth) == (3 + 3 + 1) / (5 + 3 + 3)
    assert words.score(captions, truth) == {'slots': 7 / 11, 'order': 0}
    assert words.score({'y': captions['y']}, truth) == {'slots': 1}     # no order-only action


@pytest.mark.parametrize('caption, truth, roles', [
    ('the red box pushes a blue disc with a beep', PUSH,
     '- colour subject verb - object_colour object - - sound'),
    ('a blue disc goes left as a red box gets bigger', WHILE,
     '- object_colour object verb direction - - colour subject verb direction'),
    ('a red cross left of a white box slides left and comes back', RIGHT_OF,
     '- colour subject relation - - object_colour object verb direction - verb direction')])
def test_every_word_has_the_role_of_the_shape_it_is_about(caption, truth, roles):
    wanted = [None if role == '-' else role.replace('_', ' ') for role in roles.split()]
    assert words.word_roles(caption, truth) == wanted


@pytest.mark.parametrize('truth, orders', [
    (PUSH, {'subject verb object'}), (RIGHT_OF, {'subject relation object verb'}),
    (WHILE, {'subject verb object verb', 'object verb subject verb'})])
def test_captions_are_grammatical(truth, orders):
    for caption in words.captions({'seed': [0], **truth}):
        roles = words.word_roles(caption, truth)
        kept = [role for role in roles if role in ('subject', 'relation', 'verb', 'object')]
        assert ' '.join(kept) in orders


def test_a_caption_that_ignores_the_video_is_near_chance(videos):
    captions, truth = ({id: videos[id][key] for id in IDS} for key in ('captions', 'truth'))
    train, test = (data.Corpus('shapes', split, captions, truth={
        id: truth[id] for id in IDS if id.startswith(split)}) for split in ('train', 'test'))
    caption, score = words.blind_baseline(train, test)
    right = [words.slots_right(caption, truth) for truth in test.truth.values()]
    assert score == np.mean([named for slots in right for named in slots.values()])
    assert 0.08 < score < 0.25
    on_train = {caption: words.slot_accuracy(dict.fromkeys(train.truth, caption), train.truth)
                for caption in {captions[id][0] for id in train.truth}}
    assert on_train[caption] == max(on_train.values())


# ---------------------------------------------------------------- networks
def test_folding_the_batch_norms_changes_nothing():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv3d(3, 4, 3), nn.Flatten(1, 2), nn.Conv2d(4, 5, 3), nn.Flatten(),
                           nn.Linear(20, 6))
    layers.add_module('fc8', nn.Linear(6, 2))           # the classifier has no norm
    names = list(layers.state_dict())
    networks.add_norms(layers)
    x = torch.randn(4, 3, 3, 6, 6)
    layers(x)                                           # moves the running statistics
    for parameter in nn.ModuleList([layers[0][1], layers[2][1], layers[4][1]]).parameters():
        nn.init.normal_(parameter, 1, 0.3)
    wanted = layers.eval()(x)
    assert isinstance(layers.fc8, nn.Linear)
    networks.fold_norms(layers)
    assert torch.allclose(layers(x), wanted, atol=1e-4) and list(layers.state_dict()) == names


def test_triples_are_neighbouring_frames():
    small = torch.randint(0, 256, (2, 5, 56, 56, 3), dtype=torch.uint8)
    x = networks.triples(small)
    assert x.shape == (10, 9, 56, 56)
    for n, t in itertools.product(range(2), range(5)):
        three = [small[n, s].numpy() / 64 - 2 for s in (max(t - 1, 0), t, min(t + 1, 4))]
        assert np.allclose(x[n * 5 + t].permute(1, 2, 0), np.concatenate(three, -1), atol=1e-5)


def test_shrinking_keeps_places_and_colours():
    frames = np.full((1, 112, 224, 3), 50, np.uint8)
    frames[:, 56:, :112] = 10, 100, 200                 # the lower left quarter
    small = networks.shrink(frames)[0]
    assert small.shape == (56, 56, 3) and small.dtype == torch.uint8
    assert (small[30:, :26] == torch.tensor([10, 100, 200])).all()
    assert (small[:26] == 50).all() and (small[:, 30:] == 50).all()
    features = helpers.clip_features(frames)           # of any size
    assert features.shape == (1, 7, 7, 64) and features.dtype == torch.float32


@torch.no_grad()
def test_the_networks_see_what_they_learned():
    ids = [f'fresh{800000 + i}' for i in range(40)]
    cells = networks.collate(networks.cell_item, ids[:30])
    _, right = networks.cell_losses(networks.load_clip_cnn(), cells)
    assert min(right.values()) > 0.85, right
    frames = networks.collate(networks.action_item, ids)[0]
    guessed = networks.load_c3d()(c3d.to_input(frames)).argmax(1)
    named = [list(words.ACTIONS)[k] in world.scene(id)['slots'].values()
             for id, k in zip(ids, guessed)]
    assert np.mean(named) > 0.8


def test_a_cell_without_a_shape_counts_a_tenth_and_only_for_its_shape_label():
    goal = torch.tensor([[[1, 0], [2, -1]]])            # two labels of two cells
    logits = torch.randn(1, 5, 2)
    loss, right = networks.label_loss(logits, goal, {'shape': 2, 'colour': 3})
    shape, colour = (out[0].T for out in logits.split([2, 3], 1))           # (2 cells, classes)
    wanted = shape[0].log_softmax(0)[1] + colour[0].log_softmax(0)[2]
    assert torch.isclose(loss, -wanted - 0.1 * shape[1].log_softmax(0)[0])
    assert right == {'shape': shape[0].argmax() == 1, 'colour': colour[0].argmax() == 2}


def test_dense_labels_are_those_of_the_shape_that_covers_the_cell():
    motions = set()
    for scene in map(world.scene, IDS):
        t = scene['window'][1] - 1                      # pushed shapes move by then
        labels = networks.dense_labels(scene, t)
        action = scene['slots']['action']
        for k, one in enumerate(scene['shapes']):
            if not world.truth(scene)['boxes'][k][t]:
                continue
            x, y, r, _ = one['track'][t]
            cells = [(row, column) for row, column in itertools.product(range(7), range(7))
                     if max(abs(column * 16 + 8 - x), abs(row * 16 + 8 - y)) < max(r, 8.5)]
            assert cells
            for row, column in cells:
                shape, colour, motion, other, role = labels[:, row, column].tolist()
                assert shape - 1 == list(words.SHAPES).index(one['shape'])
                assert colour == list(words.COLOURS).index(one['colour'])
                if action in ('chases', 'pushes'):
                    assert role == (1, 2)[k] and (other == motion) == (k == 0)
                elif len(scene['shapes']) == 1:
                    assert other == role == 0
                    motions.add((action, motion))
                labels[:, row, column] = 0, -1, -1, -1, -1          # as the cells without a shape
        assert (labels[0] == 0).all() and (labels[1:] == -1).all()
    # The motions 1 to 8 are the simple actions, in the same order.
    simple = {pair for pair in motions if pair[0] in words.SIMPLE}
    assert simple == set(zip(words.SIMPLE, range(1, 9)))
    scene['shapes'] = scene['shapes'][:1]
    scene['shapes'][0]['track'][:] = 48, 48, 8, 1       # the smallest shape, between four cells
    assert (networks.dense_labels(scene, t)[0] > 0).sum() == 4


def test_labels_of_c3d_are_those_of_the_scene():
    for scene in map(world.scene, FRESH[:30]):
        frames, fine, coarse, slots = networks.slot_item(scene)
        assert np.array_equal(frames, world.render(scene)[list(networks.FRAMES)])
        for k, (slot, names) in zip(slots, networks.SLOT_NAMES.items()):
            assert [*names, None][k] == scene['slots'].get(slot)
        # Units of pool4 and pool3 are centred on these frames. Four cells of pool3 share labels.
        assert np.array_equal(coarse, [networks.dense_labels(scene, 7)])
        for i, j in itertools.product((0, 1), (0, 1)):
            wanted = [networks.dense_labels(scene, t) for t in (3, 12)]
            assert np.array_equal(fine[:, :, i::2, j::2], wanted)
        again, actions = networks.action_item(scene)
        assert np.array_equal(again, frames)
        named = {scene['slots'].get(slot) for slot in ('action', 'second action')} - {None}
        assert {list(words.ACTIONS)[k] for k in np.flatnonzero(actions)} == named


def test_the_top_of_c3d_is_replaced_and_the_layers_below_stay(monkeypatch):
    monkeypatch.setattr(networks, 'UNSEEN', FRESH[:2])
    net = c3d.C3D(networks.WIDTH, 5, dropout=0.0)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    networks.train_top(net, 32)
    changed = {name.split('.')[1] for name, value in net.state_dict().items()
               if value.shape != before[name].shape or not torch.equal(value, before[name])}
    assert changed == {'conv5a', 'conv5b', 'fc6', 'fc7', 'fc8'}
    assert net(torch.zeros(1, 3, 8, 112, 112)).shape == (1, len(words.ACTIONS))


def test_training_writes_weights_like_the_shipped_ones(tmp_path, monkeypatch, capsys):
    def layout(path):
        return {k: (v.shape, v.dtype) for k, v in torch.load(path, weights_only=True).items()}

    shipped = {'WEIGHTS': networks.WEIGHTS, 'C3D_WEIGHTS': networks.C3D_WEIGHTS}
    monkeypatch.setattr(networks, 'UNSEEN', FRESH[:2])
    for name, path in shipped.items():
        monkeypatch.setattr(networks, name, tmp_path / path.name)
    networks.main(['--clips', '32'])
    out = capsys.readouterr().out
    for name in ('clip CNN: accuracy on 2 other clips: shape ',
                 'C3D: accuracy on 2 other clips: pool3 shape ',
                 'top of C3D: accuracy on 2 other clips: action '):
        assert name in out
    for path in shipped.values():
        assert layout(path) == layout(tmp_path / path.name) and path.stat().st_size < 3e6
        assert {dtype for _, dtype in layout(path).values()} == {torch.float16}


# ---------------------------------------------------------------- the dataset on the disk
def test_prepare_stores_features_by_row(made):
    assert [path.name for path in made.parent.iterdir()] == ['shapes-7']
    net = networks.load_c3d()
    for id in ('train00006', 'test00002'):
        frames = world.render(world.scene(id))
        maps = networks.c3d_features(net, torch.from_numpy(frames[None, list(networks.FRAMES)]))
        wanted = {f'c3d_{name}': values.flatten(0, 1) for name, values in maps.items()}
        wanted['c3d_fc7'] = maps['fc7']
        wanted['clip'] = helpers.clip_features(frames)
        wanted['audio'] = world.audio(world.scene(id))[None]
        for kind, values in wanted.items():
            features = data.Features(made / 'features', kind)
            assert len(features.rows) == 21 and features.array.dtype == np.float16
            assert features[id].shape == values.shape
            assert np.allclose(features[id], values, atol=2e-2, rtol=2e-3)
    assert len(list((made / 'features').iterdir())) == 2 * len(wanted)      # .npy and .json


def test_the_command_finds_what_is_there_and_read_gives_one_split(
        made, videos, monkeypatch, capsys):
    monkeypatch.setattr(dataset, 'store', None)         # it would render
    dataset.prepare(made.parent, 7, ('c3d_pool5',))
    dataset.main(['--root', str(made.parent), '--limit', '7'])
    assert f'{made} holds 21 clips. The best caption that ignores' in capsys.readouterr().out
    corpus = dataset.read(made, 'val')
    assert corpus.name == 'shapes' and corpus.ids == [f'val0000{i}' for i in range(7)]
    assert corpus.classes == list(words.ACTIONS) and corpus.categories == world.TEXTURES
    for id in corpus.ids:
        found = {'split': corpus.split, 'captions': corpus.captions[id], 'truth': corpus.truth[id],
                 'labels': corpus.labels[id], 'category': corpus.category[id]}
        assert found == json.loads(json.dumps(videos[id]))


def test_features_of_c3d_are_made_on_demand_and_again_for_other_weights(tmp_path):
    (tmp_path / 'shapes-1').mkdir()                     # an empty folder is no obstacle
    folder = dataset.prepare(tmp_path, 1, ('clip',))
    assert not list(folder.glob('features/c3d*'))
    for _ in range(2):
        dataset.prepare(tmp_path, 1, ('clip', 'c3d_pool3'))
        found = [json.loads(path.read_text()) for path in folder.glob('features/c3d*.json')]
        weights = networks.fingerprint(networks.C3D_WEIGHTS)
        assert [about['weights'] for about in found] == [weights] * 5
        (folder / 'features' / 'c3d_fc7.json').write_text('{"weights": "older"}')


def test_the_test_split_alone_is_rendered_unless_the_whole_dataset_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, 'SIZES', {'train': 3, 'val': 1, 'test': 2})
    alone = dataset.prepare(tmp_path, part='test')
    assert alone.name == 'shapes-test'
    whole = dataset.prepare(tmp_path)
    assert dataset.prepare(tmp_path, part='test') == whole
    assert dataset.read(alone, 'test') == dataset.read(whole, 'test')
    one, other = (data.Features(folder / 'features', 'clip') for folder in (alone, whole))
    assert list(one.rows) == ['test00000', 'test00001']
    assert np.array_equal(one['test00001'], other['test00001'])


def test_test_clips_have_the_same_captions_whether_or_not_the_others_are_rendered():
    """annotate() would give a clip other captions if an earlier clip already had the same five."""
    first = [tuple(words.captions(world.scene(f'{split}{i:05d}')))
             for split, size in dataset.SIZES.items() for i in range(size)]
    assert not set(first[:-500]) & set(first[-500:])


def test_an_outdated_or_interrupted_dataset_is_never_taken_for_whole(made, tmp_path, monkeypatch):
    folder = shutil.copytree(made, tmp_path / 'shapes-7')
    (folder / 'notes.txt').write_text('of the user')
    reader = data.Features(folder / 'features', 'clip')         # as another process has it open
    before = reader['val00003'].copy()

    def interrupted(small):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(networks, 'triples', interrupted)
        patch.setattr(dataset, 'VERSION', -1)
        dataset.prepare(tmp_path, 7)
    notes = json.loads((folder / 'annotations.json').read_text())
    assert set(notes.values()) == {None} and not (folder / 'features' / 'c3d_fc7.json').exists()
    dataset.prepare(tmp_path, 7)
    assert np.array_equal(reader['val00003'], before)
    names = [f'features/{name}' for name in ('audio.json', 'audio.npy', 'clip.json', 'clip.npy')]
    for name in ('annotations.json', *names):
        assert (folder / name).read_bytes() == (made / name).read_bytes()
    assert (folder / 'notes.txt').read_text() == 'of the user'
    assert list(tmp_path.iterdir()) == [folder]


def test_a_second_start_waits_for_the_first(made, tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, 'render', None)        # it must not render again
    told = threading.Event()
    monkeypatch.setattr(machine, 'print', lambda *args, **options: told.set(), raising=False)
    folder = tmp_path / 'shapes-7'
    folder.mkdir()
    found = []
    second = threading.Thread(target=lambda: found.append(dataset.prepare(tmp_path, 7)))
    with machine.locked(folder):
        second.start()
        assert told.wait(30)
        shutil.copytree(made, folder, dirs_exist_ok=True)
        assert not found
    second.join(30)
    assert found == [folder]


def test_a_disk_that_is_too_small_is_noticed_before_rendering(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset.shutil, 'disk_usage', lambda _: SimpleNamespace(free=1e6))
    monkeypatch.setattr(dataset, 'clip_features', None)
    with pytest.raises(data.BadInput, match='needs 8 MB, but only 1 MB are free'):
        dataset.prepare(tmp_path, 18)                   # 3 x 18 clips


@pytest.mark.parametrize('name, text', [
    ('annotations.json', '{"seed": 1}'), ('annotations.json', '[]'), ('annotations.json', 'x'),
    ('features/clip.npy', 'my own features'), ('', 'a file, no folder')])
def test_a_folder_of_the_user_is_refused_and_stays(tmp_path, monkeypatch, name, text):
    path = tmp_path / 'shapes-7' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    monkeypatch.setattr(dataset, 'store', None)         # refused before anything is rendered
    with pytest.raises(data.BadInput, match='shapes-7.*choose another --root'):
        dataset.main(['--root', str(tmp_path), '--limit', '7'])
    assert path.read_text() == text
    with pytest.raises(data.BadInput, match='--limit 0'):
        dataset.prepare(tmp_path, 0)
