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


@pytest.mark.parametrize('split', puzzles.SIZES)
def test_key_asks_for_the_symbol_after_the_one_that_the_sound_names(split):
    items = puzzles.make('puzzle-key', split)
    symbols = items.feats['symbols'].argmax(2)                  # (N, F)
    named = items.feats['sound'][:, 0].argmax(1)
    frames = []
    for order, name, noun in zip(symbols.tolist(), named, items.words['noun']):
        assert sorted(order) == list(range(8))
        frames.append(order.index(name))
        assert puzzles.THINGS[order[frames[-1] + 1]] == noun
    assert frames == items.truth['frame'].tolist()
    assert frames == items.feats['key'][:, :, 0].argmax(1).tolist()
    shares = np.bincount(frames, minlength=8) / len(frames)
    assert shares[7] == 0 and shares[:7].min() > 0.05
    assert shares[4] == pytest.approx(4 / 7 if split == 'train' else 1 / 7, abs=0.06)


def test_scores_count_the_words_that_are_asked_for_by_slot():
    answers = {'a': {'noun': 'it', 'verb': 'opens'}, 'b': {'noun': 'it', 'verb': 'closes'}}
    captions = {'a': 'it opens', 'b': 'it'}
    assert puzzles.score(captions, answers) == {'slots': 0.5, 'verb': 0.5}
    answers['b']['noun'] = 'sun'
    assert puzzles.score(captions, answers) == {'slots': 0.5, 'noun': 0.5, 'verb': 0.5}
