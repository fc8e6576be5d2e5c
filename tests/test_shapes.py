"""The embedded world keeps its word: pictures, boxes, captions, slots and features all say the same."""
import itertools
import json

import numpy as np
import pytest
import torch

import c3d
import shapes
from data import Features


IDS = [f'{split}{i:05d}' for split, n in (('train', 160), ('val', 30), ('test', 50)) for i in range(n)]


@pytest.fixture(scope='module')
def videos():
    return shapes.annotate(IDS)


def a_truth(sound=None, **slots):
    return {'slots': {k.replace('_', ' '): v for k, v in slots.items()}, 'sound': sound}


PUSH = a_truth(subject='square', colour='red', action='pushes', object='circle', object_colour='blue')
WHILE = a_truth(subject='square', colour='red', action='grows', object='circle', object_colour='blue',
                second_action='left')


def red_cross(action, sound=None, relation=None):
    extra = {'object': 'square', 'object_colour': 'white', 'relation': relation} if relation else {}
    return a_truth(sound, subject='cross', colour='red', action=action, **extra)


# ---------------------------------------------------------------- pictures
def test_a_clip_is_the_same_every_time_and_no_other():
    one, again, other = (shapes.render(shapes.scene(id)) for id in ('train00007', 'train00007', 'val00007'))
    assert one.dtype == np.uint8 and one.shape == (16, 112, 112, 3)
    assert (one == again).all() and (one != other).any()
    assert (shapes.render(shapes.scene('train00007'), [3, 9]) == one[[3, 9]]).all()
    video, labels = shapes.fresh(5)
    scene = shapes.scene('fresh000005')
    assert (video == shapes.render(scene)).all() and labels == shapes.labels(scene)


@pytest.mark.parametrize('id', IDS[::8])
def test_boxes_hold_exactly_the_pixels_that_differ_from_the_background(id):
    scene = shapes.scene(id)
    boxes = shapes.truth(scene)['boxes']
    drawn = (shapes.render(scene) != shapes.render(scene, shapes=False)).any(-1)       # (16, 112, 112)
    for t in range(16):
        if not scene['lead_in'] <= t < 16 - scene['lead_out']:
            assert all(b[t] is None for b in boxes)
            continue
        here = [b[t] for b in boxes if b[t]]
        faint = len(here) < len(boxes)                   # a shape of which less than 15 % shows has no box
        if not faint:
            y, x = np.nonzero(drawn[t])
            found = np.array([x.min(), y.min(), x.max() + 1, y.max() + 1])
            wanted = np.concatenate([np.min(here, 0)[:2], np.max(here, 0)[2:]])
            assert np.abs(found - wanted).max() <= 2
        for x0, y0, x1, y1 in here:
            assert 0 <= x0 < x1 <= 112 and 0 <= y0 < y1 <= 112
            assert drawn[t, int(y0) + 1:int(y1), int(x0) + 1:int(x1)].mean() > 0.35      # a triangle fills half of it


def test_colours_never_overflow():
    brightest = max(max(rgb) for rgb in shapes.RGB.values()) + 15 + 31
    darkest = min(min(rgb) for rgb in shapes.RGB.values()) - 15
    assert brightest <= 255 and darkest >= 0
    for seed, kind in itertools.product(range(20), range(4)):
        scenery = shapes.background(shapes.TEXTURES[kind], np.random.default_rng(seed))
        assert scenery.min() >= 0 and scenery.max() + 31 <= 255


def test_boxes_do_what_the_slots_say_inside_of_the_window_and_rest_outside(videos):
    for id, video in videos.items():
        truth = video['truth']
        first, last = truth['window']
        seen = [t for t in range(16) if truth['boxes'][0][t]]
        subject = {t: np.array(truth['boxes'][0][t]) for t in seen}
        start, middle, end = subject[seen[0]], subject.get((first + last) // 2), subject[seen[-1]]
        size, x, y = lambda b: b[2] - b[0], lambda b: (b[0] + b[2]) / 2, lambda b: (b[1] + b[3]) / 2
        action = truth['slots']['action']
        for t in seen:
            if t <= first:
                assert (subject[t] == start).all()
            if t >= last:
                assert (subject[t] == end).all()
        facts = {'left': x(end) < x(start) - 4, 'right': x(end) > x(start) + 4,
                 'up': y(end) < y(start) - 4, 'down': y(end) > y(start) + 4,
                 'grows': size(end) > size(start) + 4, 'shrinks': size(end) < size(start) - 4,
                 'appears': first not in seen and last in seen, 'disappears': first in seen and last not in seen}
        if action in facts:
            assert facts[action], (id, action)
            assert sum(facts.values()) == 1
        elif truth['order_only']:
            assert np.abs(start - end).max() < 0.2       # only the middle tells, and only in its order
            assert {'grows then shrinks': size(middle) > size(start) + 4,
                    'shrinks then grows': size(middle) < size(start) - 4,
                    'left and back': x(middle) < x(start) - 4, 'right and back': x(middle) > x(start) + 4}[action]
        else:
            other = np.array([truth['boxes'][1][t] for t in seen])
            mine = np.stack([subject[t] for t in seen])
            gaps = np.maximum(mine[:, :2] - other[:, 2:], other[:, :2] - mine[:, 2:]).max(1)     # pixels between
            moves, flees = mine[-1, :2] - mine[0, :2], other[-1, :2] - other[0, :2]
            ahead = other[0, :2] - mine[0, :2]
            axis = np.abs(moves).argmax()
            assert np.sign(moves[axis]) == np.sign(ahead[axis]) == np.sign(flees[axis])          # it comes from behind
            rested = (other[seen.index(first) + 1] == other[seen.index(first)]).all()
            if action == 'chases':
                assert gaps.min() > 4 and not rested
            else:
                assert abs(gaps[-1]) < 0.21 and gaps[0] > 10 and rested
        if 'relation' in truth['slots']:
            for t in seen:
                b = truth['boxes'][1][t]
                assert {'left of': subject[t][2] < b[0], 'right of': subject[t][0] > b[2],
                        'above': subject[t][3] < b[1], 'below': subject[t][1] > b[3]}[truth['slots']['relation']]


def test_splits_keep_the_unseen_combinations_apart(videos):
    def combos(video):
        s = video['truth']['slots']
        names = [('subject', 'colour', 'action'), ('object', 'object colour', 'second action')]
        return [tuple(s[k] for k in three) for three in names if three[-1] in s]
    training = {c for v in videos.values() if v['split'] == 'train' for c in combos(v)}
    training |= {c for i in range(200) for c in combos({'truth': shapes.scene(f'fresh{i:06d}')})}
    for split, share in (('train', 0), ('val', 1 / 3), ('test', 1 / 2)):
        of = [v for v in videos.values() if v['split'] == split]
        assert np.mean([v['truth']['held_out'] for v in of]) == share
        assert not any(combos(v)[0] in training for v in of if v['truth']['held_out'])
    everything = list(itertools.product(shapes.SHAPES, shapes.COLOURS, shapes.ACTIONS))
    assert 0.15 < np.mean([shapes.held_out(*c) for c in everything]) < 0.25
    for part in range(3):                                # yet every shape has been seen in every colour and action
        pairs = lambda combos: {c[:part] + c[part + 1:] for c in combos}
        assert pairs(everything) == pairs(c for c in everything if not shapes.held_out(*c))


def test_audio_tells_the_sounds_apart():
    scenes = [shapes.scene(f'fresh{i:06d}') for i in range(240)]
    vectors, sounds = np.stack([shapes.audio(s) for s in scenes]), np.array([s['sound'] for s in scenes])
    assert vectors.shape == (240, 128) and set(sounds) == {'', 'beep', 'buzz'}
    means = {s: vectors[:120][sounds[:120] == s].mean(0) for s in set(sounds)}
    guess = [min(means, key=lambda s: np.abs(v - means[s]).sum()) for v in vectors[120:]]
    assert np.mean(guess == sounds[120:]) > 0.95


# ---------------------------------------------------------------- captions and slots
def test_captions_are_short_plain_and_complete(videos):
    captions = [c for v in videos.values() for c in v['captions']]
    assert all(c == ' '.join(c.split()) and c.replace(' ', '').isalpha() and c.islower() for c in captions)
    assert {len(c.split()) for c in captions} <= set(range(4, 17))
    for video in videos.values():
        assert len(set(video['captions'])) == 5
        for caption in video['captions']:
            assert all(shapes.slots_right(caption, video['truth']).values()), caption
        sounds = sum('sound' in shapes.slots_right(c, video['truth']) for c in video['captions'])
        assert sounds == (3 if video['truth']['sound'] else 0)
    assert len({tuple(v['captions']) for v in videos.values()}) == len(videos)


def test_the_grammar_has_50_to_80_words():
    tables = (shapes.SHAPES, shapes.COLOURS, shapes.ACTIONS, shapes.RELATIONS, shapes.SOUNDS)
    grammar = {w for table in tables for phrases in table.values() for p in phrases for w in p.split()}
    grammar |= {'a', 'the', 'while', 'as'}
    said = {w for i in range(700) for c in shapes.captions(shapes.scene(f'fresh{i:06d}')) for w in c.split()}
    assert said == grammar and 50 <= len(grammar) <= 80


def test_no_two_clips_share_their_five_captions(monkeypatch):
    true = shapes.captions
    monkeypatch.setattr(shapes, 'captions', lambda scene, k=0: ['a'] * 5 if k == 0 else true(scene, k))
    five = [tuple(v['captions']) for v in shapes.annotate(IDS[:10]).values()]
    assert len(set(five)) == 10 and five[0] == ('a',) * 5


@pytest.mark.parametrize('caption, truth, wrong', [
    ('a red square pushes a blue circle', PUSH, []),
    ('the crimson box shoves the blue disc', PUSH, []),
    ('a blue circle pushes a red square', PUSH, ['subject', 'colour', 'object', 'object colour']),
    ('a red square chases a blue circle', PUSH, ['action']),
    ('a blue square pushes a red circle', PUSH, ['colour', 'object colour']),
    ('a red square pushes', PUSH, ['object', 'object colour']),
    ('a red blue square pushes a blue circle', PUSH, ['colour']),
    ('a blue red square pushes a blue circle', PUSH, ['colour']),
    ('pushes', PUSH, ['subject', 'colour', 'object', 'object colour']),
    ('', PUSH, ['subject', 'colour', 'action', 'object', 'object colour']),
    ('a red square grows while a blue circle moves left', WHILE, []),
    ('the blue disc goes left as a crimson box gets bigger', WHILE, []),
    ('a red square moves left while a blue circle grows', WHILE, ['action', 'second action']),
    ('a blue square grows while a red circle moves left', WHILE, ['colour', 'object colour']),
    ('a red square grows', WHILE, ['object', 'object colour', 'second action']),
    ('a red cross above a white box falls', red_cross('down', relation='above'), []),
    ('a red cross left of a white box moves left', red_cross('left', relation='right of'), ['relation']),
    ('a red cross moves left', red_cross('left', relation='right of'), ['object', 'object colour', 'relation']),
    ('a red cross moves left and back', red_cross('left and back'), []),
    ('a red cross moves right and back', red_cross('left and back'), ['action']),
    ('a red cross moves left', red_cross('left and back'), ['action']),
    ('a red cross slides left and comes back', red_cross('left'), ['action']),
    ('a red cross grows then shrinks', red_cross('shrinks then grows'), ['action']),
    ('a red cross expands and then contracts', red_cross('grows then shrinks'), []),
    ('a red cross grows then shrinks then grows', red_cross('grows then shrinks'), ['action']),
    ('a red cross grows grows', red_cross('grows'), ['action']),
    ('a red cross under a blue disc grows', red_cross('grows'), ['object']),
    ('a red cross falls with a beep', red_cross('down', 'beep'), []),
    ('a red cross falls', red_cross('down', 'beep'), []),
    ('a red cross falls and a buzz', red_cross('down', 'beep'), ['sound']),
    ('a red cross falls with a beep', red_cross('down'), ['sound'])])
def test_slots_of_captions_written_by_hand(caption, truth, wrong):
    assert [slot for slot, right in shapes.slots_right(caption, truth).items() if not right] == wrong


def test_slot_accuracy_is_the_share_over_all_slots():
    truth = {'x': PUSH, 'y': a_truth(subject='cross', colour='red', action='down')}
    captions = {'x': ['a red square chases a green circle', 'ignored'], 'y': 'a red plus falls'}
    assert shapes.slot_accuracy(captions, truth) == (3 + 3) / (5 + 3)


def test_roles_name_the_shape_that_a_noun_stands_for():
    assert shapes.word_roles('the red box pushes a blue disc with a beep', PUSH) == \
        [None, 'colour', 'subject', 'verb', None, 'object colour', 'object', None, None, 'sound']
    assert shapes.word_roles('a blue disc goes left as a red box gets bigger', WHILE) == \
        [None, 'object colour', 'object', 'verb', 'direction', None, None, 'colour', 'subject', 'verb', 'direction']
    back = red_cross('left and back', relation='left of')
    assert shapes.word_roles('a red cross left of a white box slides left and comes back', back) == [
        None, 'colour', 'subject', 'relation', None, None, 'object colour', 'object',
        'verb', 'direction', None, 'verb', 'direction']


def test_a_caption_that_ignores_the_video_is_near_chance(videos):
    split = lambda name: {id: v for id, v in videos.items() if v['split'] == name}
    caption, score = shapes.blind_baseline(split('train'), split('test'))
    by_hand = [ok for v in split('test').values() for ok in shapes.slots_right(caption, v['truth']).values()]
    assert score == sum(by_hand) / len(by_hand) and 0.08 < score < 0.25


def test_labels_are_the_actions(videos):
    for v in videos.values():
        slots = v['truth']['slots']
        assert [list(shapes.ACTIONS)[k] for k in v['labels']] == [
            slots[k] for k in ('action', 'second action') if k in slots]
    assert {len(v['labels']) for v in videos.values()} == {1, 2}
    assert {v['category'] for v in videos.values()} == set(range(len(shapes.TEXTURES)))


# ---------------------------------------------------------------- the clip CNN and its features
def test_folding_the_batch_norms_changes_nothing():
    torch.manual_seed(0)
    model = shapes.ClipCNN(norm=True)
    x = torch.randn(4, 9, 56, 56)
    model(x)                                             # moves the running statistics
    for m in model.modules():
        if isinstance(m, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(m.weight, 1, 0.3), torch.nn.init.normal_(m.bias, 0, 0.3)
    wanted = model.eval()(x)
    assert torch.allclose(model.folded()(x), wanted, atol=1e-4) and wanted.abs().max() > 0.1


def test_triples_are_neighbouring_frames():
    small = torch.randint(0, 256, (2, 5, 56, 56, 3), dtype=torch.uint8)
    x = shapes.triples(small)
    assert x.shape == (10, 9, 56, 56)
    for n, t in itertools.product(range(2), range(5)):
        wanted = np.concatenate([small[n, s].numpy() / 64 - 2 for s in (max(t - 1, 0), t, min(t + 1, 4))], -1)
        assert np.allclose(x[n * 5 + t].permute(1, 2, 0).numpy(), wanted, atol=1e-5)


def test_shrinking_keeps_places_and_colours():
    frames = np.full((1, 112, 224, 3), 50, np.uint8)
    frames[:, 56:, :112] = 10, 100, 200                  # the lower left quarter
    small = shapes.shrink(frames)[0]
    assert small.shape == (56, 56, 3) and small.dtype == torch.uint8
    assert (small[30:, :26] == torch.tensor([10, 100, 200])).all()
    assert (small[:26] == 50).all() and (small[:, 30:] == 50).all()


def test_the_shipped_cnn_sees_shape_colour_and_motion():
    assert shapes.WEIGHTS.stat().st_size < 1.5e6
    assert all(v.dtype == torch.float16 for v in torch.load(shapes.WEIGHTS, weights_only=True).values())
    model = shapes.load_clip_cnn()
    x, goal = shapes.training_batch([f'fresh{800000 + i}' for i in range(30)])
    with torch.no_grad():
        _, right = shapes.read_heads(model, model(shapes.triples(x)), goal)
    assert min(right.values()) > 0.85, right


def test_features_of_a_video_of_any_size():
    frames = np.random.default_rng(0).integers(0, 256, (5, 90, 160, 3), dtype=np.uint8)
    grid = shapes.clip_features(frames)
    assert grid.shape == (5, 7, 7, 64) and grid.dtype == torch.float32 and grid.isfinite().all()


def test_dense_labels_follow_the_boxes():
    scene = next(s for s in map(shapes.scene, IDS) if s['slots']['action'] == 'left' and len(s['shapes']) == 1)
    t = sum(scene['window']) // 2
    shape, colour, motion, other, role = shapes.dense_labels(scene, t)
    x0, y0, x1, y1 = shapes.truth(scene)['boxes'][0][t]
    y, x = int((y0 + y1) / 2 // 16), int((x0 + x1) / 2 // 16)
    assert shape[y, x] == 1 + list(shapes.SHAPES).index(scene['slots']['subject'])
    assert list(shapes.COLOURS)[colour[y, x]] == scene['slots']['colour']
    assert shapes.MOTIONS[motion[y, x]] == 'left'
    assert other[y, x] == role[y, x] == 0
    for row, column in zip(*np.nonzero(shape)):          # no cell speaks of a shape that does not reach into it
        assert column * 16 < x1 and column * 16 + 16 > x0 and row * 16 < y1 and row * 16 + 16 > y0
    assert ((colour == -1) == (shape == 0)).all()


def test_dense_labels_say_who_chases_whom():
    for scene in [s for s in map(shapes.scene, IDS) if s['slots']['action'] in ('chases', 'pushes')][:12]:
        t = scene['window'][1] - 1                       # by then both move
        goal = shapes.dense_labels(scene, t)
        for box, role in zip(shapes.truth(scene)['boxes'], (1, 2)):
            y, x = int((box[t][1] + box[t][3]) / 2 // 16), int((box[t][0] + box[t][2]) / 2 // 16)
            assert goal[4, y, x] == role


# ---------------------------------------------------------------- the narrow C3D and its features
def test_the_shipped_c3d_names_the_slots():
    assert shapes.C3D_WEIGHTS.stat().st_size < 3e6
    assert all(v.dtype == torch.float16 for v in torch.load(shapes.C3D_WEIGHTS, weights_only=True).values())
    frames, _, _, slots = shapes.slot_batch([f'fresh{800000 + i}' for i in range(40)])
    with torch.no_grad():
        logits = shapes.load_c3d()(c3d.to_input(frames)).split(shapes.SLOT_SIZES, 1)
    right = {name: (out.argmax(1) == true).float().mean().item() for name, out, true in zip(shapes.SLOT_NAMES, logits, slots.T)}
    assert right['colour'] > 0.8 and right['action'] > 0.5 and right['subject'] > 0.5, right


def test_labels_of_c3d_are_the_scene_s():
    ids = [f'fresh{i:06d}' for i in range(30)]
    frames, fine, coarse, slots = shapes.slot_batch(ids)
    assert frames.shape == (30, 8, 112, 112, 3) and fine.shape == (60, 5, 14, 14) and coarse.shape == (30, 5, 7, 7)
    for id, video, row in zip(ids, frames, slots.tolist()):
        scene = shapes.scene(id)
        assert np.array_equal(video, shapes.render(scene)[list(shapes.FRAMES)])
        named = {slot: names[k] for k, (slot, names) in zip(row, shapes.SLOT_NAMES.items()) if k < len(names)}
        assert named == scene['slots']
    # a cell of pool3 has the label of the cell of 7 x 7 that holds it, amid the frames 11 and 13 that its second unit is centred on
    assert torch.equal(fine[1, :, 5, 9], torch.from_numpy(shapes.dense_labels(shapes.scene(ids[0]), 12)[:, 2, 4]))


def test_features_of_c3d_are_made_when_they_are_asked_for(tmp_path, monkeypatch):
    root, there = tmp_path, lambda: sorted(p.name for p in (tmp_path / 'shapes-2' / 'features').glob('c3d*'))
    shapes.prepare(root, 2)
    assert there() == []
    folder = shapes.prepare(root, 2, ('c3d_pool5',))
    net, video = shapes.load_c3d(), torch.from_numpy(shapes.render(shapes.scene('val00001'), shapes.FRAMES))[None]
    with torch.no_grad():
        maps = net.maps(c3d.to_input(video))
    for name in c3d.MAPS:
        stored = Features(folder / 'features', f'c3d_{name}')['val00001']
        assert np.allclose(stored, maps[name][0].permute(1, 2, 3, 0), atol=2e-2, rtol=2e-3)
    assert Features(folder / 'features', 'c3d_fc7')['val00001'].shape == (1, 512)
    assert len(there()) == 10                            # five arrays, five .json, and nothing of the progress

    rendered = []
    monkeypatch.setattr(shapes, 'load_c3d', lambda: rendered.append(1) or net)
    shapes.prepare(root, 2, ('c3d_pool5',))
    assert not rendered                                  # they are there
    monkeypatch.setattr(shapes, 'fingerprint', lambda path: 'other' if path == shapes.C3D_WEIGHTS else shapes.hashlib.sha256(
        path.read_bytes()).hexdigest()[:16])
    shapes.prepare(root, 2, ('c3d_pool5',))
    assert rendered                                      # those of other weights are made anew


def test_videos_are_rendered_when_they_are_asked_for():
    video = shapes.Videos()['test00003']
    assert video.dtype == np.float32 and np.array_equal(video, shapes.render(shapes.scene('test00003')))
    assert video.shape == (shapes.Videos.frames, *shapes.Videos.shape)


# ---------------------------------------------------------------- the dataset on disk
@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
    root = tmp_path_factory.mktemp('data')
    return root, shapes.prepare(root, limit=8)


def test_prepare_stores_captions_truth_and_features_by_row(prepared):
    root, folder = prepared
    assert folder == root / 'shapes-8' and [p.name for p in root.iterdir()] == ['shapes-8']
    found = json.loads((folder / 'annotations.json').read_text())
    clip, audio = (np.load(folder / 'features' / f'{name}.npy', mmap_mode='r') for name in ('clip', 'audio'))
    ids = json.loads((folder / 'features' / 'clip.json').read_text())['ids']
    assert json.loads((folder / 'features' / 'audio.json').read_text())['ids'] == ids == list(found['videos'])
    assert len(ids) == 24
    assert clip.dtype == audio.dtype == np.float16 and clip.shape == (24, 16, 7, 7, 64) and audio.shape == (24, 128)
    for id in ('train00007', 'test00002'):
        scene, row = shapes.scene(id), ids.index(id)
        assert np.allclose(clip[row], shapes.clip_features(shapes.render(scene)), atol=2e-2, rtol=2e-3)
        assert np.allclose(audio[row], shapes.audio(scene), atol=2e-3)
        assert found['videos'][id]['truth'] == json.loads(json.dumps(shapes.truth(scene)))
    assert found['classes'] == list(shapes.ACTIONS) and found['categories'] == shapes.TEXTURES


def test_prepare_finds_what_it_made_and_makes_anew_what_has_changed(prepared, monkeypatch):
    root, folder = prepared
    made = (folder / 'annotations.json').stat().st_mtime_ns
    assert shapes.prepare(root, limit=8) == folder and (folder / 'annotations.json').stat().st_mtime_ns == made
    monkeypatch.setattr(shapes, 'VERSION', -1)
    shapes.prepare(root, limit=8)
    assert json.loads((folder / 'annotations.json').read_text())['version'] == -1


def test_an_interrupted_cache_is_never_taken_for_whole(tmp_path, monkeypatch):
    whole = shapes.prepare(tmp_path / 'unbroken', limit=7)
    true, rendered = shapes.load_clip_cnn, []

    def breaks_at_the_second_batch():
        model = true()
        def forward(x):
            rendered.append(len(x))
            if len(rendered) == 2:
                raise KeyboardInterrupt
            return model(x)
        return forward
    monkeypatch.setattr(shapes, 'load_clip_cnn', breaks_at_the_second_batch)
    with pytest.raises(KeyboardInterrupt):
        shapes.prepare(tmp_path, limit=7)
    assert not (tmp_path / 'shapes-7').exists()
    folder = shapes.prepare(tmp_path, limit=7)           # goes on where it stopped
    assert sum(rendered) == (21 + 5) * 16                # only the batch of five that broke was done twice
    for name in ('annotations.json', 'features/clip.json'):
        assert (folder / name).read_text() == (whole / name).read_text()
    for name in ('features/clip.npy', 'features/audio.npy'):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()
