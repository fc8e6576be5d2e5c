"""The decoder loop against plain Python: one row and one word at a time, lists for tensors."""
import itertools
import math

import pytest
import torch
from torch import nn

from data import EOS, PAD
from decode import (Ensemble, Shared, beam, first_rows, greedy, sample, select, teacher_force,
                    word_logp)
from helpers import scale_up


class Toy(nn.Module):
    """A small recurrent captioner whose state grows. Its weights are scaled up: with small random
    weights all states are nearly equal, and then beams with swapped states go unnoticed."""

    def __init__(self, seed, V=6, H=5, scale=4.0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(V, H)
        self.cell = nn.GRUCell(2 * H, H)
        self.out = nn.Linear(2 * H, V)
        scale_up(self, scale)
        self.calls = []

    def encode(self, v):
        return {'video': [v]}, (v.tanh(), torch.zeros(len(v), 0, v.shape[1]))

    def step(self, token, state, memory):
        h, past = state
        self.calls.append(len(h))
        word = torch.zeros_like(h) if token is None else self.embed(token)
        h = self.cell(torch.cat([word, memory['video'][0]], 1), h)
        past = torch.cat([past, h[:, None]], 1)         # grows along dim 1, as STaTS' keys do
        aux = {'h': h, 'length': past.new_full((len(h),), past.shape[1])}
        return self.out(torch.cat([h, past.mean(1)], 1)), (h, past), aux


def one_row(model, v, words):
    """log p of each of the words for one video v (H,), one step at a time"""
    memory, state = model.encode(v[None])
    token = None
    found = []
    for word in words:
        logits, state, _ = model.step(token, state, memory)
        found.append(word_logp(logits)[0, word].item())
        token = torch.tensor([word])
    return found


def real(row):
    return [word for word in row.tolist() if word != PAD]


CAPTIONS = torch.tensor([[3, 4, EOS, PAD, PAD], [5, EOS, PAD, PAD, PAD], [2, 3, 4, 5, PAD],
                         [EOS, PAD, PAD, PAD, PAD]])


def test_pad_is_impossible_and_the_other_words_share_its_probability():
    logits = torch.log(torch.tensor([[2.0, 3.0, 5.0], [7.0, 1.0, 1.0]]))
    assert PAD == 0
    expected = torch.tensor([[0.0, 3 / 8, 5 / 8], [0.0, 0.5, 0.5]])
    assert torch.allclose(word_logp(logits).exp(), expected)


def test_teacher_forcing_equals_a_loop_over_single_rows_and_is_zero_after_the_end():
    model, v = Toy(0), torch.randn(4, 5)
    logp, aux = teacher_force(model, *model.encode(v), CAPTIONS)
    assert model.calls == [4, 3, 2, 1]                  # only captions that have a word left
    assert logp.shape == (4, 5) and aux['h'].shape == (4, 5, 5)
    for row in range(4):
        words = real(CAPTIONS[row])
        n = len(words)
        assert logp[row, :n].tolist() == pytest.approx(one_row(model, v[row], words), abs=1e-5)
        assert (logp[row, n:] == 0).all() and (aux['h'][row, n:] == 0).all()
        assert aux['length'][row].tolist() == [*range(1, n + 1)] + [0] * (5 - n)


@pytest.mark.parametrize('rows', [[0, 1, 2], [2, 0, 2, 2, 0], [1]])
def test_shared_memory_gives_each_caption_what_a_copy_of_its_own_would(rows):
    """Values and gradients, also if some captions have ended and if a video has no caption."""
    torch.manual_seed(0)
    x = torch.randn(3, 4, 2, 5, requires_grad=True)
    rows = torch.tensor(rows)
    tree = select({'x': Shared(x)}, rows)               # as papers do: videos -> captions
    tree = select(tree, torch.arange(len(rows)).flip(0))                    # as loops do: reorder
    for shared in (tree['x'], first_rows(tree, 1)['x']):
        videos = rows.flip(0)[:len(shared.rows)]
        assert shared.rows.tolist() == videos.tolist()
        for formula, sizes in (('bf,bfld->bld', (4,)), ('bfl,bfld->bfd', (4, 2))):
            weights = torch.randn(len(videos), *sizes, requires_grad=True)
            got = shared.einsum(formula, weights)
            copied = [torch.einsum(formula, weight[None], x[video][None])[0]
                      for weight, video in zip(weights, videos)]
            want = torch.stack(copied)
            assert torch.allclose(got, want, atol=1e-6)
            upstream = torch.randn_like(want)
            for mine, loop in zip(torch.autograd.grad(got, (weights, x), upstream),
                                  torch.autograd.grad(want, (weights, x), upstream)):
                assert torch.allclose(mine, loop, atol=1e-6)


def test_the_gradient_of_a_caption_does_not_depend_on_its_neighbours():
    model, v = Toy(1), torch.randn(4, 5)
    weights = list(model.parameters())
    alone, _ = teacher_force(model, *model.encode(v[1:2]), CAPTIONS[1:2])
    among, _ = teacher_force(model, *model.encode(v), CAPTIONS)
    expected = torch.autograd.grad(alone.sum(), weights)
    found = torch.autograd.grad(among[1].sum(), weights)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(expected, found))


def test_scheduled_sampling_reads_its_own_words():
    model, n = Toy(2), 2000
    v = torch.randn(1, 5).repeat(n, 1)
    words = torch.tensor([[3, 4]]).repeat(n, 1)
    torch.manual_seed(0)
    logp, _ = teacher_force(model, *model.encode(v), words, ss_prob=0.5)
    given = one_row(model, v[0], [3, 4])
    expected = 0.5 * given[1]
    for first in range(1, 6):                           # log p of word 4 after each first word
        both = one_row(model, v[0], [first, 4])
        expected += 0.5 * math.exp(both[0]) * both[1]
    assert torch.allclose(logp[:, 0], torch.tensor(given[0]), atol=1e-5)
    assert abs(logp[:, 1].mean() - expected) < 4 * logp[:, 1].std() / n ** 0.5


def test_samples_follow_the_distribution_and_stop_at_eos():
    model, n = Toy(3, scale=1.5), 4000
    v = torch.randn(1, 5)
    encoded = select(model.encode(v), torch.zeros(n, dtype=torch.long))
    torch.manual_seed(0)
    words, logp = sample(model, *encoded, 3)
    counts = torch.bincount(words[:, 0], minlength=6) / n
    p = torch.tensor([0] + [math.exp(one_row(model, v[0], [w])[0]) for w in range(1, 6)])
    assert ((counts - p).abs() <= 4 * (p * (1 - p) / n).sqrt()).all() and counts[PAD] == 0
    after = (words == EOS).cumsum(1) - (words == EOS).long() > 0
    assert (words[after] == PAD).all() and (logp[after] == 0).all() and (words[~after] != PAD).all()
    replay, _ = teacher_force(model, *encoded, words)
    assert torch.allclose(logp, replay, atol=1e-5) and logp.requires_grad


@pytest.mark.parametrize('seed', range(5))
def test_greedy_equals_a_beam_of_one_and_its_replay(seed):
    model, v = Toy(seed), torch.randn(7, 5)
    words, logp = greedy(model, *model.encode(v), 6)
    beams, score = beam(model, *model.encode(v), 6, K=1)
    replay, _ = teacher_force(model, *model.encode(v), words)
    assert torch.equal(words, beams) and torch.allclose(logp.sum(1), score, atol=1e-5)
    assert torch.allclose(logp, replay, atol=1e-5)


def next_words(model, v, words):
    """log p of every word (V,) after these words"""
    memory, state = model.encode(v[None])
    token = None
    for word in [*words, None]:
        logits, state, _ = model.step(token, state, memory)
        token = None if word is None else torch.tensor([word])
    return word_logp(logits)[0].tolist()


def test_greedy_takes_the_most_probable_word_at_every_step():
    for seed in range(5):
        model, v = Toy(seed), torch.randn(4, 5)
        words, _ = greedy(model, *model.encode(v), max_len=5)
        for row, found in zip(v, words):
            said = []
            while len(said) < 6 and EOS not in said:        # five words and <eos>
                after = next_words(model, row, said)
                said.append(after.index(max(after)))
            assert real(found) == said


def list_beam(model, v, steps, K, length_penalty):
    """Beam search with lists: a hypothesis is (score, words)."""
    hypotheses = [(0.0, [])]
    for _ in range(steps):
        grown = []
        for score, words in hypotheses:
            if EOS in words:
                grown.append((score, words))
                continue
            logp = next_words(model, v, words)
            grown += [(score + logp[w], words + [w]) for w in range(1, len(logp))]
        hypotheses = sorted(grown, key=lambda one: -one[0])[:K]
    finished = [one for one in hypotheses if EOS in one[1]] or hypotheses
    return max(finished, key=lambda one: one[0] / len(one[1]) ** length_penalty)


@pytest.mark.parametrize('K, penalty', [(2, 0.0), (3, 0.0), (3, 1.0), (5, 0.7), (12, 0.0)])
@torch.no_grad()
def test_beam_search_equals_a_list_based_one(K, penalty):
    for seed in range(12):
        model, v = Toy(seed), torch.randn(3, 5)
        words, score = beam(model, *model.encode(v), 4, K, length_penalty=penalty)
        for row in range(3):
            expected_score, expected = list_beam(model, v[row], 5, K, penalty)
            assert real(words[row]) == expected
            assert score[row].item() == pytest.approx(expected_score, abs=1e-4)


@torch.no_grad()
def test_a_wide_beam_finds_the_best_caption_of_all():
    model, v = Toy(4, V=4, scale=2.0), torch.randn(1, 5)
    # All captions of at most three words
    every = [[*words, EOS] for n in range(4) for words in itertools.product([2, 3], repeat=n)]
    best = max(every, key=lambda words: sum(one_row(model, v[0], words)))
    assert real(beam(model, *model.encode(v), 3, K=40)[0][0]) == best


def test_an_unfinished_caption_is_returned_if_none_has_finished():
    model = Toy(5)
    with torch.no_grad():
        model.out.bias[EOS] = -1000.0
    words, _ = beam(model, *model.encode(torch.randn(2, 5)), 3, K=3)
    assert words.shape == (2, 4) and not (words == EOS).any() and not (words == PAD).any()


def test_an_ensemble_generates_from_the_average_of_probabilities():
    models, v = [Toy(6), Toy(7)], torch.randn(3, 5)
    both = Ensemble(models)
    memory, state = both.encode(v)
    logits, _, _ = both.step(None, state, memory)
    p = [word_logp(m.step(None, *reversed(m.encode(v)))[0]).exp() for m in models]
    assert torch.allclose(word_logp(logits).exp(), (p[0] + p[1]) / 2, atol=1e-6)
    twice = Ensemble([models[0]] * 2)
    alone = beam(models[0], *models[0].encode(v), 6, 3)
    same = beam(twice, *twice.encode(v), 6, 3)
    assert torch.equal(alone[0], same[0]) and torch.allclose(alone[1], same[1], atol=1e-4)
