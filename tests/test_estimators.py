"""Gradient estimators against the gradient by enumeration: nothing is sampled here, so there is nothing to tolerate."""
import itertools
import math

import pytest
import torch

from astar import Captioner, Config, vimco
from data import EOS
from decode import teacher_force

torch.set_num_threads(1)


# ------------------------------------------------------------------------------------------- VIMCO: astar.py, Eq. 12-16

def small_world(level=-3.0):
    """Two choices of three, the second given the first: 9 sequences m -> parameters, log p(Y|m) (9,), log p(m) (9,)."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(4, 3, generator=generator, dtype=torch.float64).requires_grad_()     # first; second after each
    phi = torch.randn(9, generator=generator, dtype=torch.float64).requires_grad_()
    first, second = theta[0].log_softmax(0), theta[1:].log_softmax(1)
    log_pm = (first[:, None] + second).flatten()
    log_py = level + 2 * phi + theta[0].repeat_interleave(3)        # words and choices share parameters
    return (theta, phi), log_py, log_pm


def draws(log_pm, K):
    """All K-tuples of sequences -> their numbers (M, K), their probabilities (M,)"""
    tuples = torch.tensor(list(itertools.product(range(len(log_pm)), repeat=K)))
    return tuples, log_pm[tuples].sum(1).exp()


def exact_bound(log_py, log_pm, K):
    """Eq. 12, summed over every tuple"""
    tuples, p = draws(log_pm, K)
    return (p * log_py[tuples].exp().mean(1).log()).sum()


def grad(value, parameters):
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, parameters, retain_graph=True)])


@pytest.mark.filterwarnings('ignore:one sample')
@pytest.mark.parametrize('K', [1, 2, 3])
def test_vimco_is_exactly_unbiased(K):
    parameters, log_py, log_pm = small_world()
    tuples, p = draws(log_pm, K)
    bound, surrogate = vimco(log_py[tuples], log_pm[tuples])
    assert torch.allclose((p * bound).sum(), exact_bound(log_py, log_pm, K), atol=1e-12)
    assert torch.equal(bound, surrogate.detach())
    expected = grad(exact_bound(log_py, log_pm, K), parameters)
    assert torch.allclose(grad((p.detach() * surrogate).sum(), parameters), expected, atol=1e-12)


def test_the_printed_equation_14_is_biased():
    parameters, log_py, log_pm = small_world(level=-1.0)
    tuples, p = draws(log_pm, 2)
    _, surrogate = vimco(log_py[tuples], log_pm[tuples])
    omega = log_py[tuples].softmax(1).detach()
    as_printed = surrogate - (omega * log_py[tuples]).sum(1) + (omega * log_py[tuples].exp()).sum(1)    # grad p, no log
    error = grad((p.detach() * as_printed).sum(), parameters) - grad(exact_bound(log_py, log_pm, 2), parameters)
    assert error.abs().max() > 0.1


def test_vimco_equals_a_loop_over_the_equations():
    torch.manual_seed(0)
    log_py = (-4 * torch.rand(2, 4, dtype=torch.float64)).requires_grad_()
    log_pm = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    bound, surrogate = vimco(log_py, log_pm)
    by_py, by_pm = torch.autograd.grad(surrogate.sum(), (log_py, log_pm))
    for b in range(2):
        p = log_py[b].exp().tolist()
        L = math.log(sum(p) / 4)
        assert bound[b].item() == pytest.approx(L)
        for k in range(4):
            others = [p[j] for j in range(4) if j != k]
            f = math.exp(sum(math.log(x) for x in others) / 3)                              # Eq. 16
            assert by_pm[b, k].item() == pytest.approx(L - math.log((sum(others) + f) / 4))     # Eq. 15
            assert by_py[b, k].item() == pytest.approx(p[k] / sum(p))                           # omega_k


@pytest.mark.parametrize('K', [2, 3])
def test_the_baseline_lowers_the_variance(K):
    parameters, log_py, log_pm = small_world()
    tuples, p = draws(log_pm, K)
    bound, surrogate = vimco(log_py[tuples], log_pm[tuples])
    plain = log_py[tuples].logsumexp(1) + bound * log_pm[tuples].sum(1)                      # Eq. 13, with the log
    mean = grad(exact_bound(log_py, log_pm, K), parameters)

    def variance(estimator):
        every = torch.autograd.grad(estimator, parameters, torch.eye(len(p), dtype=p.dtype), retain_graph=True,
                                    is_grads_batched=True)
        every = torch.cat([g.flatten(1) for g in every], 1)                                 # (M, parameters)
        assert torch.allclose(p @ every, mean, atol=1e-10)                                  # both are unbiased
        return (p @ (every - mean).square()).sum().item()

    assert variance(surrogate) < 0.5 * variance(plain)


def test_the_bound_grows_with_the_number_of_samples_up_to_the_likelihood():
    _, log_py, log_pm = small_world()
    bounds = [exact_bound(log_py, log_pm, K).item() for K in (1, 2, 3, 4)]
    assert bounds == sorted(bounds) and bounds[0] < bounds[1]
    assert bounds[0] == pytest.approx((log_pm.exp() * log_py).sum().item())                 # Eq. 10
    assert bounds[-1] < (log_pm + log_py).logsumexp(0).item()                               # Jensen


@pytest.mark.parametrize('level', [-300.0, -3000.0])
def test_vimco_is_safe_where_probabilities_underflow(level):
    torch.manual_seed(0)
    near = torch.randn(3, 5)
    gradients = []
    for shift in (0.0, level):
        log_py, log_pm = (near + shift).requires_grad_(), torch.randn(3, 5).requires_grad_()
        bound, surrogate = vimco(log_py, log_pm)
        assert torch.isfinite(bound).all()
        gradients.append(torch.cat(torch.autograd.grad(surrogate.sum(), (log_py, log_pm))))
    assert torch.allclose(*gradients, atol=2e-3)            # a factor common to all samples changes nothing (float32)


def test_one_sample_has_no_baseline_and_says_so():
    log_py, log_pm = torch.tensor([[-7.0]], requires_grad=True), torch.tensor([[-2.0]], requires_grad=True)
    with pytest.warns(UserWarning, match='without a baseline'):
        _, surrogate = vimco(log_py, log_pm)
    assert [g.item() for g in torch.autograd.grad(surrogate.sum(), (log_py, log_pm))] == [1.0, -7.0]


# --------------------------------------------------------------------------- the same, through the whole hard Captioner

def hard_captioner(words):
    """A hard Captioner in float64 on one video of 16 frames -> model, batch with one caption of `words`"""
    torch.manual_seed(0)
    shapes = {'c3d_pool2': (8, 28, 28, 2), 'c3d_pool3': (4, 14, 14, 4), 'c3d_pool4': (2, 7, 7, 8),
              'c3d_pool5': (1, 4, 4, 8), 'c3d_fc7': (1, 6)}
    cfg = Config(variant='hard', vocab=6, feats={name: list(shape[1:]) for name, shape in shapes.items()}, hidden=5,
                 embed=3, attn=4, dropout=0.0, init=0.5, samples=3)
    batch = {'feats': {name: torch.rand(1, *shape, dtype=torch.float64) for name, shape in shapes.items()},
             'mask': {name: torch.ones(1, shape[0], dtype=torch.bool) for name, shape in shapes.items()},
             'captions': torch.tensor([words]), 'rows': torch.zeros(1, dtype=torch.long), 'ids': ['v']}
    return Captioner(cfg).double().train(), batch


def say(model, batch, choices):
    """choices (M, T - 1, 2): place and layer at each word from the second on -> log p(Y|m) (M,), log p(m) (M,)"""
    M, steps, _ = choices.shape
    given = iter(choices.flatten(1).unbind(1))
    model.choose = lambda p: next(given)
    memory, state = model.encode(batch)
    rows = torch.zeros(M, dtype=torch.long)
    memory, state = {name: x[rows] for name, x in memory.items()}, tuple(x[rows] for x in state)
    logp, aux = teacher_force(model, memory, state, batch['captions'].expand(M, -1))
    del model.choose
    return logp.sum(1), aux['log_q'].sum(1)


def test_choices_of_two_words_have_probabilities_that_sum_to_one():
    model, batch = hard_captioner([3, 4, EOS])
    one = torch.tensor(list(itertools.product(range(16), range(4))))                        # (64, 2)
    both = torch.stack([one.repeat_interleave(64, 0), one.repeat(64, 1)], 1)                # (4096, 2 words, 2)
    with torch.no_grad():
        _, log_pm = say(model, batch, both)
    assert log_pm.exp().sum().item() == pytest.approx(1.0, abs=1e-10)
    assert log_pm.exp().view(64, 64).sum(1).std() > 1e-6                                    # and are not all alike


def test_the_hard_captioners_gradient_is_exactly_unbiased():
    model, batch = hard_captioner([3, EOS])
    log_py, log_pm = say(model, batch, torch.tensor(list(itertools.product(range(16), range(4))))[:, None])
    tuples, p = draws(log_pm, 2)
    _, surrogate = vimco(log_py[tuples], log_pm[tuples])
    parameters = list(model.parameters())
    expected = grad(exact_bound(log_py, log_pm, 2), parameters)
    assert torch.allclose(grad((p.detach() * surrogate).sum(), parameters), expected, atol=1e-10)
    assert expected.abs().max() > 1e-3


def test_k_sequences_in_one_pass_equal_k_passes():
    model, one = hard_captioner([3, 4, EOS, 0])
    two = {**one, 'feats': {name: torch.rand_like(x) for name, x in one['feats'].items()},
           'captions': torch.tensor([[5, 3, 4, EOS]])}
    both = {'feats': {name: torch.cat([one['feats'][name], two['feats'][name]]) for name in one['feats']},
            'mask': {name: x.expand(2, -1) for name, x in one['mask'].items()}, 'ids': ['v', 'w'],
            'captions': torch.cat([one['captions'], two['captions']]), 'rows': torch.tensor([0, 1])}
    made, choose = [], model.choose
    model.choose = lambda p: made.append(choose(p)) or made[-1]
    loss, logs = model(both)
    del model.choose
    # The longer caption runs first, and its last word alone: rows are those of caption 2 (k = 1 .. 3), then caption 1.
    assert [len(x) for x in made] == [6, 6, 6, 6, 3, 3]
    place_layer = [torch.stack(made[i:i + 2], 1) for i in (0, 2, 4)]
    bounds, surrogates = [], []
    for batch, rows, words in ((one, slice(3, 6), 2), (two, slice(0, 3), 3)):
        choices = torch.stack([x[rows] for x in place_layer[:words]], 1)                    # (3, words, 2)
        log_py, log_pm = map(torch.cat, zip(*(say(model, batch, choices[k:k + 1]) for k in range(3))))
        bounds.append(log_py.exp().mean().log())
        surrogates.append(vimco(log_py[None], log_pm[None])[1])
    assert logs['nll'] == pytest.approx(-torch.stack(bounds).mean().item())
    assert loss.item() == pytest.approx(logs['nll'])
    parameters = list(model.parameters())                   # the value says nothing of the score's term: its gradient does
    assert torch.allclose(grad(loss, parameters), grad(-torch.cat(surrogates).mean(), parameters), atol=1e-10)
