"""What is measured from attention, on attention that is known."""
import dataclasses

import numpy as np
import pytest
import torch
from test_show import Looks, Sees, clip, make_run

from data import BadInput, Vocabulary
from tools import checkpoints, grounding, runs

EVEN = np.full((16, 49), 1 / 784)
GATE = {'bars': {'gate': ('gate',)}}
VIDEO, CAPTION, CORPUS = clip()
CORPUS.classes = ['a', 'b', 'c']
CORPUS.labels = {VIDEO: [0]}
FIRST, LAST = CORPUS.truth[VIDEO]['window']
WINDOW = (np.arange(16) >= FIRST) & (np.arange(16) <= LAST)
WITHIN = grounding.inside(CORPUS.truth[VIDEO]['boxes'][0], 7, 7).reshape(16, 49)   # the subject
SEEN = WITHIN.any(1)


def test_places_that_a_box_touches():
    # 7 x 7 places of 16 pixels: x from 10 to 20 touches columns 0 and 1, y from 16.5 to 40 rows 1
    # and 2; as 4 x 7 places of 28 x 16 pixels: rows 0 and 1
    box = [10, 16.5, 20, 40]
    nothing, found = grounding.inside([None, box], 7, 7)
    assert np.argwhere(found).tolist() == [[1, 0], [1, 1], [2, 0], [2, 1]] and not nothing.any()
    found, = grounding.inside([box], 4, 7)
    assert np.argwhere(found).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]


def ground(model, paper='', view=None):
    """-> {role: {measure: mean}} of a clip with its first reference, and shares of key frames"""
    run = make_run(paper, view)
    run.vocabulary = Vocabulary.build([CAPTION])
    means, keys = grounding.ground(run, model, CORPUS, {VIDEO: CAPTION})
    found = {}
    for (role, what), mean in means.items():
        found.setdefault(role, {})[what] = mean
    return found, keys


def measure(*space):
    """space: (F, L) of each word, the last one also of all later words -> as ground()"""
    space = np.stack(space)
    return ground(Looks({'space': space, 'gate': 0.5 * space.any((1, 2))}), view=GATE)[0]


def test_the_share_is_one_on_the_box_and_chance_under_even_attention():
    on_box = WITHIN * WINDOW[:, None]
    found = measure(on_box / on_box.sum())
    assert found['subject']['box'] == pytest.approx(1) == found['subject']['window']
    assert found['verb']['box'] == pytest.approx(1) and found['object']['box'] < 0.7
    assert found['article'] == {'gate': 0.5} and found['verb']['gate'] == 0.5
    found = measure(EVEN)
    expected = {'box': WITHIN[SEEN].mean(), 'window': WINDOW.mean(), 'gate': 0.5}
    expected |= {f'{name} chance': expected[name] for name in ('box', 'window')}
    assert found['subject'] == pytest.approx(expected)
    found = measure(EVEN * 0, EVEN)                         # a word that looks at nothing
    assert [word in ('a', 'the') for word in CAPTION.split()].count(True) == 2
    assert found['article']['gate'] == 0.5                  # of the second article alone


def test_a_step_is_spread_evenly_over_the_frames_that_it_covers():
    place = WITHIN.argmax() % 49                            # a place that the subject touches
    found = measure(np.eye(49)[[place]])
    assert found['subject']['box'] == pytest.approx(WITHIN[SEEN, place].mean())
    assert 'window' not in found['subject']                 # one step: no choice in time
    found = measure(np.array([[0.25 / 49] * 49, [0.75 / 49] * 49]))
    expected = 0.25 * WINDOW[:8].mean() + 0.75 * WINDOW[8:].mean()
    assert found['verb']['window'] == pytest.approx(expected)


def test_words_that_are_wrong_do_not_count_and_directions_are_no_verbs():
    truth = {'slots': {'subject': 'circle', 'colour': 'red', 'action': 'left', 'object': 'square',
                       'object colour': 'blue', 'second action': 'grows'}, 'sound': None}

    def roles(caption):
        said = caption.split()
        found = grounding.measured_words(caption, truth)
        return {(said[t], role, shape) for t, role, shape in found if role != 'article'}

    assert roles('a red circle moves left while a blue square grows') == {
        ('red', 'colour', 0), ('circle', 'subject', 0), ('moves', 'verb', 0),
        ('left', 'direction', 0), ('blue', 'colour', 1), ('square', 'object', 1),
        ('grows', 'verb', 1)}
    swapped = roles('a blue square gets bigger as a white triangle moves left')
    assert swapped == {('blue', 'colour', 1), ('square', 'object', 1), ('gets', 'verb', 1),
                       ('bigger', 'direction', 1), ('moves', 'verb', 0), ('left', 'direction', 0)}


@pytest.mark.parametrize('st', [0.0, 0.75, 1.0])
def test_the_measured_map_of_stats_is_the_mixture(st):
    """TS looks at the subject in its window, ST at one other place; only the mix decides."""
    frame = int(np.argmax(WINDOW & SEEN))
    never = int(np.argmin(WITHIN.any(0)))                   # a place that the subject never touches
    found, _ = ground(Looks({
        'st_space': torch.eye(49)[[never]][None], 'ts_frames': torch.eye(16)[[frame]],
        'ts_space': torch.eye(49)[[WITHIN[frame].argmax()]], 'mix': [[st, 1 - st]]}), 'stats')
    shown = st * SEEN.mean()                                # ST's share on frames with the subject
    expected = {'ST': st, 'TS': 1 - st, 'box': (1 - st) / (1 - st + shown),
                'window': 1 - st + st * WINDOW.mean()}
    assert {name: found['subject'][name] for name in expected} == pytest.approx(expected)


def test_the_log_holds_the_paper_s_numbers_by_role_or_slot():
    """The reference is 'the green circle pushes a blue circle', and word t has a gate of t / 8."""
    run = make_run(view=GATE)
    run.vocabulary = Vocabulary.build([CAPTION])
    model = Looks({'gate': np.arange(8) / 8})
    assert grounding.numbers_by_role(run, model, CORPUS) == {
        'gate colour': 1 / 8, 'gate subject': 2 / 8, 'gate verb': 3 / 8,
        'gate object colour': 5 / 8, 'gate object': 6 / 8}
    answers = {VIDEO: {'noun': 'the', 'verb': 'green'}}
    puzzle = dataclasses.replace(CORPUS, truth={}, answers=answers)
    assert grounding.numbers_by_role(run, model, puzzle) == {'gate noun': 0, 'gate verb': 1 / 8}
    unknown = dataclasses.replace(CORPUS, truth={})
    assert grounding.numbers_by_role(run, model, unknown) == {}
    assert grounding.numbers_by_role(make_run(task='recognise'), Sees(), CORPUS) == {}


def test_a_recogniser_is_measured_against_the_shape_that_acts():
    model = Sees()
    run = make_run(task='recognise')
    on_box = np.where(SEEN[:, None], WITHIN, 1.0)           # elsewhere it looks everywhere
    for space, box in ((on_box, 1), (np.ones((16, 49)), WITHIN[SEEN].mean())):
        model.space = torch.tensor(space / space.sum(1, keepdims=True))[None]
        found = grounding.ground_recogniser(run, model, CORPUS)
        assert found == pytest.approx({'box': box, 'box chance': WITHIN[SEEN].mean()})
    assert grounding.ground_recogniser(run, Sees(False), CORPUS) == {}


def test_key_frames_are_counted_against_the_window():
    for key, hit in ((3, True), (7, True), (2, False), (8, False)):
        found = grounding.measure_key(np.eye(16)[key], (3, 7))
        assert found == {'refocused key': hit, 'middle frame': False, 'chance': 5 / 16}
    _, keys = ground(Looks({'focus': np.eye(16)[[FIRST]]}), view={'focus': 'focus'})
    assert keys['refocused key'] == 1
    assert keys['middle frame'] == (FIRST <= 8 <= LAST)


def test_one_run_is_measured_in_detail_several_are_compared_and_others_refused(monkeypatch, capsys):
    """Runs by name, without files; captions are the first reference"""
    known = {}
    for name in ('one', 'two', 'rec', 'real'):
        run = make_run(view=GATE, task='recognise' if name == 'rec' else 'describe')
        run.vocabulary = Vocabulary.build([CAPTION])
        run.path = name
        run.dataset.name = 'msvd' if name == 'real' else 'shapes'
        model = Sees(False) if name == 'rec' else Looks({'space': EVEN[None], 'gate': [0.5]})
        known[name] = run, model
    monkeypatch.setattr(checkpoints, 'load', lambda path, root, device: known[path])
    monkeypatch.setattr(runs, 'open_split', lambda run, split: CORPUS)
    monkeypatch.setattr(grounding.scores, 'full_scores', lambda *some: ({}, {VIDEO: CAPTION}, {}))
    grounding.main(['one', '--device', 'cpu'])
    out = capsys.readouterr().out
    assert 'subject                  1.000' in out          # of the table of slots
    grounding.main(['one', 'two', '--device', 'cpu'])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == '| run | ' + ' | '.join(
        f'{what}, {role}' for what in ('box', 'window') for role in grounding.ROLES) + ' |'
    assert lines[2].split(' | ')[0] == '| one (looks)' and lines[3].startswith('| two (looks)')
    assert '| one (looks) | gate | 0.50 | 0.50 | 0.50 | 0.50 |  | 0.50 |' in lines
    assert 'slots' not in ' '.join(lines)
    grounding.main(['rec', '--device', 'cpu'])
    assert 'this model has no attention' in capsys.readouterr().out
    monkeypatch.setattr(runs, 'open_split', None)           # what follows needs no data
    for names, message in (
            ('real', 'real was trained on msvd, and only the dataset shapes comes with the truth'),
            ('one rec', 'rec recognises actions: measure it without other runs')):
        with pytest.raises(BadInput, match=message):
            grounding.main([*names.split(), '--device', 'cpu'])
