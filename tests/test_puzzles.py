"""The puzzles of shapes/puzzles.py: every item is solvable from its features, and only as said."""
import itertools

import numpy as np
import pytest

from shapes import puzzles


def test_the_same_seed_gives_the_same_items_and_splits_differ():
    first = puzzles.make('puzzle-order', 'train', 3)
    again = puzzles.make('puzzle-order', 'train', 3)
    other = puzzles.make('puzzle-order', 'train', 4)
    assert np.array_equal(first.feats['symbols'], again.feats['symbols'])
    assert first.words == again.words
    assert first.words != other.words
    assert first.words['verb'][:300] != puzzles.make('puzzle-order', 'val', 3).words['verb']


@pytest.mark.parametrize('split', puzzles.SIZES)
def test_order_is_told_by_which_symbol_comes_first_and_by_nothing_else(split):
    items = puzzles.make('puzzle-order', split)
    x = items.feats['symbols'].max((2, 3))                      # (N, F, 10)
    for shown, verb in zip(x > 0.5, items.words['verb']):
        frame, symbol = np.nonzero(shown)                       # in the order of time
        if verb in puzzles.VERBS[:8]:
            assert split == 'train'
            assert [puzzles.VERBS[s] for s in symbol] == [verb]
        else:
            assert sorted(symbol) == [8, 9] and frame[0] < frame[1]
            assert puzzles.VERBS[symbol[0]] == verb


def symbols_of(x):
    """x (N, 1, Y, X, C), one symbol each -> (N, 3): its row, column and channel"""
    assert ((x > 0.5).sum((1, 2, 3, 4)) == 1).all()
    return np.argwhere(x > 0.5)[:, 2:]


@pytest.mark.parametrize('split', puzzles.SIZES)
def test_layer_shows_the_noun_in_the_lowest_map_and_the_verb_in_the_highest(split):
    items = puzzles.make('puzzle-layer', split)
    maps = [items.feats[f'c3d_pool{k}'] for k in (2, 3, 4, 5)]
    assert [x.shape[1:] for x in maps] == [(1, side, side, 4) for side in (28, 14, 7, 4)]
    low, third, fourth, high = map(symbols_of, maps)
    assert items.words['noun'] == [puzzles.SYMBOLS[k] for k in low[:, 2]]
    assert items.words['verb'] == [puzzles.VERBS[k] for k in high[:, 2]]
    assert abs(items.feats['c3d_fc7']).max() < 0.5
    for found, cells in ((third, 2), (fourth, 4), (high, 8)):       # the same place in every map
        assert np.array_equal(found[:, :2], low[:, :2] // cells)
    # The symbols of different maps are independent: each pair occurs in a sixteenth of the items.
    for one, other in itertools.combinations((low, third, fourth, high), 2):
        counts = np.bincount(4 * one[:, 2] + other[:, 2], minlength=16)
        assert abs(counts / len(one) - 1 / 16).max() < 4 * (15 / 256 / len(one)) ** 0.5


def test_scores_count_the_words_that_are_asked_for_by_slot():
    answers = {'a': {'noun': 'it', 'verb': 'opens'}, 'b': {'noun': 'it', 'verb': 'closes'}}
    captions = {'a': 'it opens', 'b': 'it'}
    assert puzzles.score(captions, answers) == {'slots': 0.5, 'verb': 0.5}
    answers['b']['noun'] = 'sun'
    assert puzzles.score(captions, answers) == {'slots': 0.5, 'noun': 0.5, 'verb': 0.5}
