"""The puzzles of shapes/puzzles.py: every item is solvable from its features, and only as said."""
import itertools

import numpy as np
import pytest
import torch

import helpers
import stats
from shapes import puzzles

SMALL = dict(features=('symbols',), visual=8, embed=4, attn=8, hidden=8, dropout=0.0)


def test_the_same_seed_gives_the_same_items_and_splits_differ():
    (x, words), (same, again), (_, other), (_, val) = (
        puzzles.make('puzzle-order', *which)
        for which in (('train', 3), ('train', 3), ('train', 4), ('val', 3)))
    assert np.array_equal(x['symbols'], same['symbols']) and words == again
    assert words != other and words['verb'][:300] != val['verb']


def test_place_is_told_by_the_marked_place_and_not_by_the_mean():
    feats, words = puzzles.make('puzzle-place', 'train')
    x = feats['symbols']                                        # (N, 4, 5, 5, 7)
    nouns = np.array(words['noun'])
    names = np.array(puzzles.SYMBOLS)
    assert np.abs(x - x[:, :1]).max() < 0.6                     # the frames differ by noise alone
    places = x.mean(1).reshape(len(x), 25, 7)
    assert ((places[..., 6] > 0.5).sum(1) == 1).all()           # one mark
    marked = places[..., 6].argmax(1)
    assert np.array_equal(names[places[np.arange(len(x)), marked, :6].argmax(1)], nouns)
    # The best guess from the mean is the most frequent symbol.
    guesses = names[places[..., :6].mean(1).argmax(1)]
    assert 0.2 < np.mean(guesses == nouns) < 0.4


@pytest.mark.parametrize('split', puzzles.SIZES)
def test_order_is_told_by_which_symbol_comes_first_and_by_nothing_else(split):
    feats, words = puzzles.make('puzzle-order', split)
    x = feats['symbols'].max((2, 3))                            # (N, F, 10)
    for shown, verb in zip(x > 0.5, words['verb']):
        frame, symbol = np.nonzero(shown)                       # in the order of time
        if verb in puzzles.VERBS[:8]:
            assert split == 'train'
            assert [puzzles.VERBS[s] for s in symbol] == [verb]
        else:
            assert sorted(symbol) == [8, 9] and frame[0] < frame[1]
            assert puzzles.VERBS[symbol[0]] == verb


@pytest.mark.parametrize('split', puzzles.SIZES)
@pytest.mark.parametrize('name', ['puzzle-moment', 'puzzle-both'])
def test_the_noun_is_the_spotlit_symbol_of_the_flash_and_a_mean_over_time_hides_it(name, split):
    feats, words = puzzles.make(name, split)
    x = feats['symbols'].reshape(puzzles.SIZES[split], 8, 9, -1)
    spotlight = x[..., 6].argmax(2)                             # (N, F), a place
    for i, noun in enumerate(words['noun']):
        frame = x[i, :, :, 7].min(1).argmax()                   # the flash is on all its places
        assert puzzles.SYMBOLS[x[i, frame, spotlight[i, frame], :6].argmax()] == noun
    assert np.all((x[..., :6] > 0.5).sum(3) == 1)               # one symbol at every place
    assert np.all((x[..., 7] > 0.5).sum((1, 2)) == 9)
    # The keys of ST: in the mean over time all places flash alike, and the eight places of the
    # spotlight are lit alike. So ST cannot find the place better than by chance.
    mean = x.mean(1)                                            # (N, 9, D)
    assert np.allclose(mean[..., 7], 1 / 8, atol=0.1)
    assert np.allclose(np.sort(mean[..., 6]), [0] + [1 / 8] * 8, atol=0.1)


@pytest.mark.parametrize('name', ['puzzle-order', 'puzzle-both'])
def test_opens_and_closes_have_the_same_frames_in_another_order_which_ts_and_means_ignore(name):
    """If the frames of the two signs change places, the other verb is right."""
    feats, words = puzzles.make(name, 'test')
    x = feats['symbols']
    shown = x[..., -2:].max((2, 3)) > 0.5                       # (N, F, 2)
    assert np.all(shown.sum(1) == 1)                            # each sign in one frame
    frame = shown.argmax(1)                                     # (N, 2), of each sign
    verbs = {True: 'opens', False: 'closes'}
    assert words['verb'] == [verbs[a < b] for a, b in frame]
    assert np.all(frame[:, 0] != frame[:, 1])
    swapped = x.copy()
    n = np.arange(len(x))[:, None]
    swapped[n, frame] = x[n, frame[:, ::-1]]
    for variant, pool, differ in (('ts', 'mean', False), ('st', 'mean', False),
                                  ('st', 'mean+ranked', True), ('stats', 'mean+ranked', True)):
        torch.manual_seed(0)
        cfg = stats.Config(**SMALL, variant=variant, pool=pool)
        model = stats.Captioner(cfg, helpers.sizes({'symbols': x.shape[2:]})).double()
        helpers.scale_up(model)
        logits = [second_word(model, one) for one in (x, swapped)]
        assert (logits[0] - logits[1]).abs().max().gt(1e-6) == differ


def second_word(model, x):
    """x (N, F, ...) -> logits (N, V) of the second word after a first one"""
    mask = torch.ones(x.shape[:2], dtype=torch.bool)
    batch = {'feats': {'symbols': torch.tensor(x).double()}, 'mask': {'symbols': mask}}
    memory, state = model.encode(batch)
    state = model.step(None, state, memory)[1]
    return model.step(torch.full((len(x),), 2), state, memory)[0].detach()


def symbols_of(x):
    """x (N, 1, Y, X, C), one symbol each -> (N, 3): its row, column and channel"""
    assert ((x > 0.5).sum((1, 2, 3, 4)) == 1).all()
    return np.argwhere(x > 0.5)[:, 2:]


@pytest.mark.parametrize('split', puzzles.SIZES)
def test_layer_shows_the_noun_in_the_lowest_map_and_the_verb_in_the_highest(split):
    feats, words = puzzles.make('puzzle-layer', split)
    maps = [feats[f'c3d_pool{k}'] for k in (2, 3, 4, 5)]
    assert [x.shape[1:] for x in maps] == [(1, side, side, 4) for side in (28, 14, 7, 4)]
    low, third, fourth, high = map(symbols_of, maps)
    assert words['noun'] == [puzzles.SYMBOLS[k] for k in low[:, 2]]
    assert words['verb'] == [puzzles.VERBS[k] for k in high[:, 2]]
    assert abs(feats['c3d_fc7']).max() < 0.5
    for found, cells in ((third, 2), (fourth, 4), (high, 8)):       # the same place in every map
        assert np.array_equal(found[:, :2], low[:, :2] // cells)
    # The symbols of different maps are independent: each pair occurs in a sixteenth of the items.
    for one, other in itertools.combinations((low, third, fourth, high), 2):
        counts = np.bincount(4 * one[:, 2] + other[:, 2], minlength=16)
        assert abs(counts / len(one) - 1 / 16).max() < 4 * (15 / 256 / len(one)) ** 0.5


@pytest.mark.parametrize('split', puzzles.SIZES)
def test_key_asks_for_the_symbol_after_the_one_that_the_sound_names(split):
    feats, words = puzzles.make('puzzle-key', split)
    symbols = feats['symbols'].argmax(2)                        # (N, F)
    named = feats['sound'][:, 0].argmax(1)
    frames = []
    for order, name, noun in zip(symbols.tolist(), named, words['noun']):
        assert sorted(order) == list(range(8))
        frames.append(order.index(name))
        assert puzzles.THINGS[order[frames[-1] + 1]] == noun
    assert frames == feats['key'][:, :, 0].argmax(1).tolist()
    shares = np.bincount(frames, minlength=8) / len(frames)
    assert shares[7] == 0 and shares[:7].min() > 0.05
    assert shares[4] == pytest.approx(4 / 7 if split == 'train' else 1 / 7, abs=0.06)


def test_scores_count_the_words_that_are_asked_for_by_slot():
    answers = {'a': {'noun': 'it', 'verb': 'opens'}, 'b': {'noun': 'it', 'verb': 'closes'}}
    captions = {'a': 'it opens', 'b': 'closes it'}      # the right word in the wrong place
    assert puzzles.score(captions, answers) == {'slots': 0.5, 'verb': 0.5}
    answers['b']['noun'] = 'sun'
    captions['b'] = 'it'
    assert puzzles.score(captions, answers) == {'slots': 0.5, 'noun': 0.5, 'verb': 0.5}
