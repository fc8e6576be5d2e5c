"""The puzzles of shapes/puzzles.py: every item is solvable from its features, and only as said."""
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


def test_place_is_told_by_the_marked_place_and_not_by_the_mean():
    items = puzzles.make('puzzle-place', 'train')
    x = items.feats['symbols']                                  # (N, 4, 5, 5, 7)
    nouns = np.array(items.words['noun'])
    names = np.array(puzzles.SYMBOLS)
    assert np.abs(x - x[:, :1]).max() < 0.6                     # the frames differ by noise alone
    places = x.mean(1).reshape(len(x), 25, 7)
    assert ((places[..., 6] > 0.5).sum(1) == 1).all()           # one mark
    marked = places[..., 6].argmax(1)
    assert np.array_equal(marked, items.truth['place'])
    assert np.array_equal(names[places[np.arange(len(x)), marked, :6].argmax(1)], nouns)
    # The best guess from the mean is the most frequent symbol.
    guesses = names[places[..., :6].mean(1).argmax(1)]
    assert 0.2 < np.mean(guesses == nouns) < 0.4


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


def test_scores_count_the_words_that_are_asked_for_by_slot():
    answers = {'a': {'noun': 'it', 'verb': 'opens'}, 'b': {'noun': 'it', 'verb': 'closes'}}
    captions = {'a': 'it opens', 'b': 'it'}
    assert puzzles.score(captions, answers) == {'slots': 0.5, 'verb': 0.5}
    answers['b']['noun'] = 'sun'
    assert puzzles.score(captions, answers) == {'slots': 0.5, 'noun': 0.5, 'verb': 0.5}
