"""The decoder loop against plain Python: one row, one word at a time, lists in place of tensors."""
import itertools
import math

import pytest
import torch
from torch import nn

from data import EOS, PAD
from decode import Ensemble, beam, greedy, sample, select, teacher_force, word_logp


class Toy(nn.Module):
    """A small recurrent captioner with a growing state. Weights are scaled up: freshly initialised states are nearly alike,
    and then a wrong re-ordering of the beams' state goes unseen."""

    def __init__(self, seed, V=6, H=5, scale=4.0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.cell, self.out = nn.Embedding(V, H), nn.GRUCell(2 * H, H), nn.Linear(2 * H, V)
        with torch.no_grad():
            for p in self.parameters():
                p.mul_(scale)
        self.calls = []

    def encode(self, batch):
        return {'video': [batch]}, (batch.tanh(), torch.zeros(len(batch), 0, batch.shape[1]))

    def step(self, token, state, memory):
        (h, past), v = state, memory['video'][0]
        self.calls.append(len(h))
        word = torch.zeros_like(h) if token is None else self.embed(token)
        h = self.cell(torch.cat([word, v], 1), h)
        past = torch.cat([past, h[:, None]], 1)                       # grows along dim 1, as self-attention's keys do
        return self.out(torch.cat([h, past.mean(1)], 1)), (h, past), {'h': h, 'length': past.new_full((len(h),), past.shape[1])}


def one_row(model, v, words):
    """log p of each of the words, one step at a time, for one video v (H,)"""
    memory, state = model.encode(v[None])
    token, out = None, []
    for word in words:
        logits, state, _ = model.step(token, state, memory)
        out.append(word_logp(logits)[0, word].item())
        token = torch.tensor([word])
    return out


def captions():
    return torch.tensor([[3, 4, EOS, PAD, PAD], [5, EOS, PAD, PAD, PAD], [2, 3, 4, 5, PAD], [EOS, PAD, PAD, PAD, PAD]])


def test_teacher_forcing_equals_a_loop_over_single_rows_and_is_zero_where_no_word_is():
    model, v, words = Toy(0), torch.randn(4, 5), captions()
    logp, aux = teacher_force(model, *model.encode(v), words)
    assert logp.shape == words.shape and aux['h'].shape == (4, 5, 5) and aux['length'].shape == (4, 5)
    for row in range(4):
        real = [w for w in words[row].tolist() if w != PAD]
        assert logp[row, :len(real)].tolist() == pytest.approx(one_row(model, v[row], real), abs=1e-5)
        assert (logp[row, len(real):] == 0).all() and (aux['h'][row, len(real):] == 0).all()
        assert aux['length'][row].tolist() == [t + 1 if t < len(real) else 0 for t in range(5)]


def test_only_rows_that_still_speak_are_stepped():
    model = Toy(0)
    teacher_force(model, *model.encode(torch.randn(4, 5)), captions())
    assert model.calls == [4, 3, 2, 1]                                # captions of 3, 2, 4 and 1 words


def test_the_gradient_of_a_short_caption_does_not_depend_on_its_neighbours():
    model, v, words = Toy(1), torch.randn(4, 5), captions()
    alone = torch.autograd.grad(teacher_force(model, *model.encode(v[1:2]), words[1:2])[0].sum(), list(model.parameters()))
    logp, _ = teacher_force(model, *model.encode(v), words)
    among = torch.autograd.grad(logp[1].sum(), list(model.parameters()))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(alone, among))


def test_scheduled_sampling_reads_its_own_words():
    model, v = Toy(2), torch.randn(1, 5).repeat(2000, 1)
    words = torch.tensor([[3, 4]]).repeat(2000, 1)
    torch.manual_seed(0)
    logp, _ = teacher_force(model, *model.encode(v), words, ss_prob=0.5)
    given = one_row(model, v[0], [3, 4])
    own = [one_row(model, v[0], [w, 4])[1] for w in range(1, 6)]      # what the second word would be after each first word
    p = [math.exp(one_row(model, v[0], [w])[0]) for w in range(1, 6)]
    assert torch.allclose(logp[:, 0], torch.tensor(given[0]), atol=1e-5)
    expected = 0.5 * given[1] + 0.5 * sum(a * b for a, b in zip(p, own))
    assert abs(logp[:, 1].mean() - expected) < 4 * logp[:, 1].std() / 2000 ** 0.5
    assert torch.equal(teacher_force(model, *model.encode(v[:2]), words[:2])[0],
                       teacher_force(model, *model.encode(v[:2]), words[:2], ss_prob=0.0)[0])


def test_samples_follow_the_distribution_and_stop_at_eos():
    model, n = Toy(3, scale=1.5), 4000
    v = torch.randn(1, 5)
    torch.manual_seed(0)
    words, logp = sample(model, *select(model.encode(v), torch.zeros(n, dtype=torch.long)), 3)
    counts = torch.bincount(words[:, 0], minlength=6) / n
    p = torch.tensor([0] + [math.exp(one_row(model, v[0], [w])[0]) for w in range(1, 6)])
    assert ((counts - p).abs() <= 4 * (p * (1 - p) / n).sqrt()).all() and counts[PAD] == 0
    after = (words == EOS).cumsum(1) - (words == EOS).long() > 0
    assert (words[after] == PAD).all() and (logp[after] == 0).all() and (words[~after] != PAD).all()
    replay, _ = teacher_force(model, *select(model.encode(v), torch.zeros(n, dtype=torch.long)), words)
    assert torch.allclose(logp, replay, atol=1e-5) and logp.requires_grad


@pytest.mark.parametrize('seed', range(5))
def test_greedy_equals_a_beam_of_one_and_its_replay(seed):
    model, v = Toy(seed), torch.randn(7, 5)
    words, logp = greedy(model, *model.encode(v), 6)
    beams, score = beam(model, *model.encode(v), 6, K=1)
    assert torch.equal(words, beams) and torch.allclose(logp.sum(1), score, atol=1e-5)
    assert torch.allclose(logp, teacher_force(model, *model.encode(v), words)[0], atol=1e-5)


def list_beam(model, v, max_len, K, length_penalty=0.0):
    """Beam search with lists: a hypothesis is (score, words)."""
    hypotheses = [(0.0, [])]
    for _ in range(max_len):
        grown = []
        for score, words in hypotheses:
            if EOS in words:
                grown.append((score, words))
                continue
            memory, state = model.encode(v[None])
            token = None
            for word in words + [None]:
                logits, state, _ = model.step(token, state, memory)
                token = torch.tensor([word]) if word is not None else None
            logp = word_logp(logits)[0].tolist()
            grown += [(score + logp[w], words + [w]) for w in range(1, len(logp))]
        hypotheses = sorted(grown, key=lambda x: -x[0])[:K]
    finished = [x for x in hypotheses if EOS in x[1]] or hypotheses
    return max(finished, key=lambda x: x[0] / len(x[1]) ** length_penalty)


@pytest.mark.parametrize('K, length_penalty', [(2, 0.0), (3, 0.0), (3, 1.0), (5, 0.7), (12, 0.0)])
@torch.no_grad()
def test_beam_search_equals_a_list_based_one(K, length_penalty):
    for seed in range(12):
        model, v = Toy(seed), torch.randn(3, 5)
        words, score = beam(model, *model.encode(v), 5, K, length_penalty)
        for row in range(3):
            expected_score, expected = list_beam(model, v[row], 5, K, length_penalty)
            assert [w for w in words[row].tolist() if w != PAD] == expected
            assert score[row].item() == pytest.approx(expected_score, abs=1e-4)


@torch.no_grad()
def test_a_wide_beam_finds_the_best_caption_of_all():
    model, v = Toy(4, V=4, scale=2.0), torch.randn(1, 5)
    every = [list(middle) + [EOS] for n in range(4) for middle in itertools.product([2, 3], repeat=n)]
    best = max(every, key=lambda words: sum(one_row(model, v[0], words)))
    words, _ = beam(model, *model.encode(v), 4, K=40)
    assert [w for w in words[0].tolist() if w != PAD] == best


def test_the_best_unfinished_caption_is_returned_where_none_has_finished():
    model = Toy(5)
    with torch.no_grad():
        model.out.bias[EOS] = -1000.0
    words, _ = beam(model, *model.encode(torch.randn(2, 5)), 4, K=3)
    assert words.shape == (2, 4) and not (words == EOS).any() and not (words == PAD).any()


def test_an_ensemble_speaks_with_the_average_of_probabilities():
    models, v = [Toy(6), Toy(7)], torch.randn(3, 5)
    both = Ensemble(models)
    memory, state = both.encode(v)
    logits, _, _ = both.step(None, state, memory)
    p = [word_logp(m.step(None, *reversed(m.encode(v)))[0]).exp() for m in models]
    assert torch.allclose(word_logp(logits).exp(), (p[0] + p[1]) / 2, atol=1e-6)
    twice = Ensemble([models[0]] * 2)
    alone, same = beam(models[0], *models[0].encode(v), 6, 3), beam(twice, *twice.encode(v), 6, 3)
    assert torch.equal(alone[0], same[0]) and torch.allclose(alone[1], same[1], atol=1e-4)
