"""STaTS: its equations against plain loops, its shortcuts against the long way, its rewards against enumeration."""
import itertools
import math

import pytest
import torch
import torch.nn.functional as F

import stats
from data import EOS, PAD
from decode import select, teacher_force
from stats import POOLS, VARIANTS, Attention, Captioner, Config, Visual, rank_loss, reinforce, sampling_rate

GRID, REGIONS, SINGLE = (2, 3, 5), (4, 5), (5,)


def config(shape=GRID, **changes):
    sizes = dict(vocab=8, feats={'a': list(shape), 'b': list(shape)}, frames=4, features=('a',), visual=6, embed=4, attn=3, hidden=5,
                 dropout=0.0, max_len=5, rank_weight=0.5, eta=0.0)
    return Config(**{**sizes, **changes})


def build(cfg, seed=0, scale=3.0):
    """In double precision, with weights scaled up, so that attentions are far from uniform."""
    torch.manual_seed(seed)
    model = Captioner(cfg).double()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(scale)
    return model


def batch(shape=GRID, frames=(4, 2), kinds=('a',), seed=0):
    """Two videos (by default of four and two frames) with two captions each."""
    g, N = torch.Generator().manual_seed(seed), len(frames)
    mask = torch.arange(max(frames)) < torch.tensor(frames)[:, None]
    x = {k: torch.randn(N, max(frames), *shape, generator=g).double() for k in kinds}
    x = {k: v * mask.view(*mask.shape, *[1] * len(shape)) for k, v in x.items()}
    captions = torch.tensor([[3, 4, 5, EOS], [6, 3, 4, EOS], [5, 7, EOS, PAD], [4, 4, 3, EOS]])[:2 * N]
    return {'feats': x, 'mask': {k: mask for k in kinds}, 'captions': captions, 'rows': torch.arange(N).repeat_interleave(2),
            'caption_ids': torch.arange(2 * N), 'ids': [f'v{i}' for i in range(N)], 'category': torch.arange(N)}


def logps(model, b):
    memory, state = select(model.encode(b), b['rows'])
    return teacher_force(model, memory, state, b['captions'])[0]


# ------------------------------------------------------------------------------------------------------------ ranking loss

def test_rank_loss_by_hand():
    """Projections 0, 1, 3 with margin 1/2: zeta = 0 + 0.5 - 1 = -0.5 and 1 + 0.5 - 3 = -1.5."""
    w, frames = torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.0, 9.0], [1.0, -2.0], [3.0, 5.0]]])
    want = math.log(1 + math.exp(-0.5)) + math.log(1 + math.exp(-1.5))
    assert rank_loss(w, frames, 0.5).tolist() == pytest.approx([want])
    assert want == pytest.approx(0.4741 + 0.2014, abs=1e-4)


def test_rank_loss_gradient_with_respect_to_the_frames():
    """d softplus(zeta_t) = sigmoid(zeta_t) (dx_{t-1} - dx_t) . w, so frame t gets w (sigmoid(zeta_{t+1}) - sigmoid(zeta_t))."""
    torch.manual_seed(0)
    w, frames, margin = torch.randn(2, 3).double(), torch.randn(2, 4, 3).double().requires_grad_(), 0.3
    got, = torch.autograd.grad(rank_loss(w, frames, margin).sum(), frames)
    for b in range(2):
        p = (frames[b] @ w[b]).tolist()
        s = [0.0] + [1 / (1 + math.exp(-(p[t - 1] + margin - p[t]))) for t in (1, 2, 3)] + [0.0]
        for t in range(4):
            assert torch.allclose(got[b, t], w[b] * (s[t + 1] - s[t]))


def test_a_direction_that_orders_the_frames_loses_less_than_one_that_reverses_them():
    torch.manual_seed(0)
    w = torch.randn(5, 3)
    frames = torch.arange(6.0)[None, :, None] * w[:, None] + 0.1 * torch.randn(5, 6, 3)
    assert (rank_loss(w, frames, 0.1) < rank_loss(torch.zeros_like(w), frames, 0.1)).all()
    assert (rank_loss(torch.zeros_like(w), frames, 0.1) < rank_loss(-w, frames, 0.1)).all()


def test_padded_frames_add_nothing_to_the_ranking_loss():
    torch.manual_seed(0)
    w, frames = torch.randn(3, 4), torch.randn(3, 5, 4)
    mask = torch.arange(5) < torch.tensor([5, 3, 1])[:, None]
    got = rank_loss(w, frames, 0.2, mask)
    for i, n in enumerate((5, 3, 1)):
        assert torch.allclose(got[i], rank_loss(w[i:i + 1], frames[i:i + 1, :n], 0.2)[0])
    assert got[2] == 0


# ------------------------------------------------------------------------------------------------- attentions as plain loops

def score(att, q, x):
    """Eq. 2 for one query and one feature"""
    return sum(att.w.weight[0, a] * torch.tanh(att.w_h.weight[a] @ q + att.w_x.weight[a] @ x + att.w_x.bias[a]) for a in range(len(att.w_x.bias)))


def softmax(scores):
    top = [s.exp() for s in scores]
    return torch.stack([s / sum(top) for s in top])


def visual(cfg, shape, frames=(4, 2), seed=1):
    """A Visual, what it remembers of two videos, their features as it averages them (B, F, L, D), and two queries."""
    torch.manual_seed(seed)
    part = Visual(cfg, shape).double()
    with torch.no_grad():
        for p in part.parameters():
            p.mul_(3)
    b = batch(shape, frames)
    memory, _ = part.encode(b['feats']['a'], b['mask']['a'])
    x = memory['x']
    return part, memory, x if x.dim() == 4 else x[:, :, None], torch.randn(len(frames), cfg.hidden + cfg.embed).double()


def lstm_loop(lstm, xs):
    """The last output of an LSTM written out: gates in torch's order i, f, g, o."""
    h = c = torch.zeros(lstm.hidden_size).double()
    for x in xs:
        i, f, g, o = (lstm.weight_ih_l0 @ x + lstm.bias_ih_l0 + lstm.weight_hh_l0 @ h + lstm.bias_hh_l0).chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    return h


def frames_loop(part, q, x, n, grid):
    """Sec. 3.1.1 for one video: x (F, L, D), n real frames -> the attended frames, the attentions"""
    L, attended, es = x.shape[1], [], []
    for t in range(n):
        source = [sum(x[s, j] for s in range(n)) / n for j in range(L)] if grid else [x[t, j] for j in range(L)]
        e = softmax([score(part.st_space, q, s) for s in source])
        attended.append(part.after(sum(e[j] * x[t, j] for j in range(L))))
        es.append(e)
    return attended, es


def test_the_ranking_loss_trains_the_spatial_attention_through_the_frames_too():
    """Sec. 3.1.2: "minimizing the softplus loss in turn trains the spatial attention"."""
    cfg = config(variant='st', pool='ranked')
    part, memory, x, q = visual(cfg, GRID, frames=(4, 4))
    wanted = [part.st_space.w_h.weight, part.lstm.weight_ih_l0, part.after.weight]
    got = torch.autograd.grad(part.st(q, memory)[1]['rank'].sum(), wanted)
    total = 0
    for b in range(2):
        attended, _ = frames_loop(part, q[b], x[b], 4, True)
        w = lstm_loop(part.lstm, attended)
        total = total + sum(F.softplus(w @ attended[t - 1] + cfg.margin - w @ attended[t]) for t in range(1, 4))
    assert all(torch.allclose(g, e) for g, e in zip(got, torch.autograd.grad(total, wanted)))


@pytest.mark.parametrize('shape', [GRID, REGIONS])
@pytest.mark.parametrize('pool', ['mean', 'lstm', 'mean+lstm', 'ranked', 'mean+ranked'])
def test_st_is_eq_3_and_8_in_a_loop(shape, pool):
    cfg = config(shape, variant='st', pool=pool)
    part, memory, x, q = visual(cfg, shape)
    got, aux = part.st(q, memory)
    for b, n in enumerate((4, 2)):
        attended, es = frames_loop(part, q[b], x[b], n, shape == GRID)
        want = torch.zeros(cfg.visual).double()
        if 'mean' in pool:
            want = want + sum(attended) / n
        if pool != 'mean':
            w = lstm_loop(part.lstm, attended)
            want = want + w
            rank = sum(F.softplus(w @ attended[t - 1] + cfg.margin - w @ attended[t]) for t in range(1, n))
            assert aux['rank'][b].item() == pytest.approx(rank.item() if 'ranked' in pool else 0.0)
        assert torch.allclose(got[b], want)
        e = aux['st_space'][b][None].expand(n, -1) if shape == GRID else aux['st_space'][b][:n]
        assert torch.allclose(e, torch.stack(es))
        assert max(es[0]) > 2 * min(es[0])                          # far from uniform, or the test would see nothing


@pytest.mark.parametrize('shape', [GRID, REGIONS, SINGLE])
@pytest.mark.parametrize('pool', ['temporal', 'mean+temporal'])
def test_temporal_pools_attend_to_all_features_or_to_the_frames_means(shape, pool):
    part, memory, x, q = visual(config(shape, variant='st', pool=pool), shape)
    got, aux = part.st(q, memory)
    for b, n in enumerate((4, 2)):
        source = [x[b, t, j] for t in range(n) for j in range(x.shape[2])]
        if pool == 'mean+temporal':
            source = [x[b, t].mean(0) for t in range(n)]
        e = softmax([score(part.st_frames, q[b], s) for s in source])
        assert torch.allclose(got[b], part.after(sum(w * s for w, s in zip(e, source))))
        assert torch.allclose(aux['st_frames'][b].flatten()[:len(e)], e)


@pytest.mark.parametrize('shape', [GRID, REGIONS, SINGLE])
def test_ts_is_eq_9_to_11_in_a_loop(shape):
    cfg = config(shape, variant='ts')
    part, memory, x, q = visual(cfg, shape)
    got, aux = part.ts(q, memory)
    for b, n in enumerate((4, 2)):
        L = x.shape[2]
        tau = softmax([score(part.ts_frames, q[b], x[b, t].mean(0)) / cfg.temperature for t in range(n)])
        chosen = [sum(tau[t] * x[b, t, j] for t in range(n)) for j in range(L)]
        e = softmax([score(part.ts_space, q[b], c) for c in chosen]) if L > 1 else [1.0]
        assert torch.allclose(got[b], part.after(sum(e[j] * chosen[j] for j in range(L))))
        assert torch.allclose(aux['ts_frames'][b, :n], tau) and not aux['ts_frames'][b, n:].any()
        if L > 1:
            assert torch.allclose(aux['ts_space'][b], e)


def test_a_low_temperature_picks_a_single_frame():
    part, memory, x, q = visual(config(variant='ts', temperature=1e-4), GRID)
    scores = part.ts_frames(q, memory['ts_frames'])
    tau = part.ts(q, memory)[1]['ts_frames']
    assert torch.allclose(tau[0], F.one_hot(scores[0].argmax(), 4).double())


def test_combination_is_eq_12():
    part, memory, _, q = visual(config(), GRID)
    got, aux = part(q, memory)
    x_st, x_ts = part.st(q, memory)[0], part.ts(q, memory)[0]
    for b in range(2):
        beta_1 = part.u_st.weight[0] @ torch.tanh(part.w_st.weight @ x_st[b] + part.w_h.weight @ q[b])
        beta_2 = part.u_ts.weight[0] @ torch.tanh(part.w_ts.weight @ x_ts[b] + part.w_h.weight @ q[b])
        want = torch.tanh((beta_1.exp() * x_st[b] + beta_2.exp() * x_ts[b]) / (beta_1.exp() + beta_2.exp()))
        assert torch.allclose(got[b], want)
        assert torch.allclose(aux['mix'][b], torch.stack([beta_1, beta_2]).softmax(0))
    for variant, alone in (('st', x_st), ('ts', x_ts)):
        part.cfg.variant = variant
        assert torch.allclose(part(q, memory)[0], torch.tanh(alone))


# --------------------------------------------------------------------------------------------------------- exact shortcuts

def test_embedding_before_or_after_the_attention_is_the_same():
    """visual 6 > 5 embeds after; the same model that embeds first has keys W_x E^-1 there, so compose the other way round."""
    late, early = build(config(normalise=False)), build(config(normalise=False))
    a, b = late.visual['a'], early.visual['a']
    assert isinstance(a.before, torch.nn.Identity) and not isinstance(a.after, torch.nn.Identity)
    b.before, b.after = b.after, b.before
    for name in ('st_space', 'ts_frames', 'ts_space'):
        att = Attention(9, 6, 3).double()
        getattr(a, name).load_state_dict({**getattr(a, name).state_dict(), 'w_x.weight': att.w_x.weight @ a.after.weight,
                                          'w_x.bias': att.w_x.weight @ a.after.bias + att.w_x.bias})
        getattr(b, name).w_x = att.w_x
    assert torch.allclose(logps(late, batch()), logps(early, batch()))


@pytest.mark.parametrize('shape,first', [((5, 5), True), ((5, 6), False), ((5, 7), False), ((5,), True)])
def test_features_are_embedded_first_only_where_that_makes_them_smaller(shape, first):
    part = Visual(config(shape, visual=4 if shape[-1] == 5 else 7), shape)
    assert isinstance(part.after, torch.nn.Identity) == first


@pytest.mark.parametrize('pool', POOLS)
@pytest.mark.parametrize('variant', VARIANTS)
def test_one_region_three_ways(variant, pool):
    """A vector per frame (ranked LSTM once per video), one region per frame, and a 1 x 1 grid (both: once per word)."""
    small = dict(variant=variant, pool=pool, visual=4)               # smaller than 5: all three embed first
    single = build(config((5,), **small))
    b = batch((5,))
    loss, logs = single(b)
    for shape in ((1, 5), (1, 1, 5)):
        other = build(config(shape, **small), seed=5)
        missing, unexpected = other.load_state_dict(single.state_dict(), strict=False)
        assert not unexpected and all('_space' in name for name in missing)
        c = {**b, 'feats': {'a': b['feats']['a'].view(2, 4, *shape)}}
        assert torch.allclose(logps(single, b), logps(other, c))
        assert torch.allclose(loss, other(c)[0]) and logs == pytest.approx(other(c)[1])


def test_a_still_video_has_the_same_spatial_attention_on_a_grid_as_on_regions():
    grid, regions = build(config((2, 2, 5))), build(config((4, 5)))
    regions.load_state_dict(grid.state_dict())
    b = batch((2, 2, 5), frames=(4, 4))
    still = b['feats']['a'][:, :1].expand(-1, 4, -1, -1, -1)
    there = {**b, 'feats': {'a': still.flatten(2, 3)}}
    assert torch.allclose(logps(grid, {**b, 'feats': {'a': still}}), logps(regions, there))
    assert not torch.allclose(logps(grid, b), logps(regions, {**b, 'feats': {'a': b['feats']['a'].flatten(2, 3)}}))


def test_self_attention_kept_in_the_state_equals_recomputation_over_the_prefix():
    model, words = build(config()), torch.tensor([[3, 4, 5, 6], [7, 7, 3, 4]])
    queries = []
    model.visual['a'].register_forward_pre_hook(lambda _, inputs: queries.append(inputs[0]))
    memory, state = model.encode(batch())
    for t in range(5):
        before = state['h']
        _, state, _ = model.step(words[:, t - 1] if t else None, state, memory)
        assert torch.equal(queries[t][:, :5], before)                # the query is [h, s]
        assert state['keys'].shape == (2, t, 3) and state['values'].shape == (2, t, 4)
        for b in range(2):
            prefix = model.embed(words[b, :t])                        # (t, E)
            want = torch.zeros(4).double()
            if t:
                e = softmax([score(model.words, prefix[-1], p) for p in prefix])
                want = sum(w * model.value.weight @ p for w, p in zip(e, prefix))
            assert torch.allclose(queries[t][b, 5:], want)
            if t == 4:                                               # and it learns from every word of the prefix
                parameters = [model.words.w_x.weight, model.value.weight, model.embed.weight]
                got, exact = (torch.autograd.grad(y.sum(), parameters, retain_graph=True) for y in (queries[t][b, 5:], want))
                assert all(torch.allclose(g, e) for g, e in zip(got, exact))


# ------------------------------------------------------------------------------------------------------------- whole model

@pytest.mark.parametrize('shape', [GRID, REGIONS, SINGLE])
@pytest.mark.parametrize('variant,pool', [('ts', 'mean')] + list(itertools.product(('st', 'stats'), POOLS)))
def test_every_variant_and_pool_trains_every_parameter_and_padding_changes_nothing(variant, pool, shape):
    model, b = build(config(shape, variant=variant, pool=pool), scale=2.0), batch(shape)
    loss, logs = model(b)
    loss.backward()
    nothing_to_attend = variant == 'st' and shape == SINGLE and 'temporal' not in pool       # so no query, and no words in it
    for name, p in model.named_parameters():
        if nothing_to_attend and name.startswith(('words.', 'value.')):
            assert p.grad is None, name
        else:
            assert p.grad is not None and p.grad.abs().sum() > 0, name
    memory, state = select(model.encode(b), b['rows'])
    logp, aux = teacher_force(model, memory, state, b['captions'])
    want = -logp.sum(1) + (0.5 * aux['rank'].sum(1) if 'ranked' in pool and variant != 'ts' else 0)
    assert torch.allclose(loss, want.mean()) and logs['nll'] == pytest.approx(-logp.sum(1).mean().item())

    garbage = {**b, 'feats': {'a': torch.cat([b['feats']['a'], torch.zeros(2, 2, *shape)], 1)},
               'mask': {'a': F.pad(b['mask']['a'], (0, 2))}}
    garbage['feats']['a'][~garbage['mask']['a']] = 50.0
    assert torch.allclose(model(garbage)[0], loss)
    alone = [{**b, 'feats': {'a': b['feats']['a'][i:i + 1, :n]}, 'mask': {'a': b['mask']['a'][i:i + 1, :n]}, 'rows': torch.zeros(2).long(),
              'captions': b['captions'][2 * i:2 * i + 2], 'ids': [f'v{i}']} for i, n in enumerate((4, 2))]
    assert torch.allclose((model(alone[0])[0] + model(alone[1])[0]) / 2, loss)


def test_several_kinds_each_have_their_attention_and_their_ranking_losses_add_up():
    b = batch(kinds=('a', 'b'))
    model = build(config(features=('a', 'b')))
    loss, logs = model(b)
    loss.backward()
    assert all(p.grad.abs().sum() > 0 for p in model.parameters())
    memory, state = model.encode(b)
    q = torch.cat([state['h'], torch.zeros(2, 4)], 1)
    (_, first), (_, second) = (model.visual[k](q, memory[k]) for k in 'ab')
    aux = model.step(None, state, memory)[2]
    assert torch.allclose(aux['rank'], first['rank'] + second['rank']) and torch.equal(aux['st_space'], first['st_space'])


def test_kinds_that_are_not_aligned_in_time_are_named():
    b = batch(kinds=('a', 'b'))
    b['feats']['b'], b['mask']['b'] = b['feats']['b'][:, :3], torch.tensor([[True] * 3, [True, True, False]])
    with pytest.raises(ValueError, match='aligned.*v0.*a 4, b 3'):
        build(config(features=('a', 'b')))(b)


def test_category_is_read_and_must_exist():
    model, b = build(config(category=True, categories=3)), batch()
    model(b)[0].backward()
    assert model.category.weight.grad.abs().sum(1).gt(0).tolist() == [True, True, False]
    assert not torch.allclose(logps(model, b), logps(model, {**b, 'category': torch.tensor([2, 2])}))
    with pytest.raises(ValueError, match='categories'):
        Captioner(config(category=True))


def test_unknown_names_are_refused():
    for wrong in (dict(variant='tst'), dict(pool='max')):
        with pytest.raises(ValueError, match='none of'):
            Captioner(config(**wrong))


def test_normalised_features_have_no_scale():
    b = batch()
    bigger = {**b, 'feats': {'a': 7 * b['feats']['a']}}
    x = build(config()).encode(b)[0]['a']['x'][b['mask']['a']]
    assert torch.allclose((x ** 2).mean(-1), torch.ones(6, 6).double())      # 4 + 2 frames of 6 cells
    assert torch.allclose(logps(build(config()), b), logps(build(config()), bigger))
    assert not torch.allclose(logps(build(config(normalise=False)), b), logps(build(config(normalise=False)), bigger))


# --------------------------------------------------------------------------------------------------- training, Sec. 3.4

def test_scheduled_sampling_rate():
    assert sampling_rate(0, 24) == pytest.approx(1 / 25)
    assert sampling_rate(24, 24) == pytest.approx(math.e / (24 + math.e))
    assert sampling_rate(20, 24) == pytest.approx(0.0875, abs=1e-4)
    assert sampling_rate(20, 0) == 0


def test_forward_samples_at_the_rate_of_its_epoch(monkeypatch):
    seen = []
    monkeypatch.setattr(stats, 'teacher_force', lambda *args: seen.append(args[4]) or teacher_force(*args))
    model = build(config(eta=24.0)).train()
    model(batch(), epoch=24)
    model.eval()(batch(), epoch=24)
    assert seen == [pytest.approx(math.e / (24 + math.e)), 0.0]                         # in evaluation the given words alone


def all_captions(words, max_len):
    """Every caption of at most max_len tokens: it ends in <eos> or is max_len words long."""
    for n in range(max_len + 1):
        for said in itertools.product(words, repeat=n):
            if n == max_len:
                yield list(said)
            else:
                yield list(said) + [EOS] + [PAD] * (max_len - n - 1)


def test_reinforce_is_unbiased_by_enumeration():
    """Two words and <eos>, at most three tokens: 1 + 2 + 4 + 8 captions, of which the last 8 have no <eos>."""
    model = build(config(vocab=4))
    b = {**batch(frames=(3,)), 'rows': torch.zeros(15, dtype=torch.long)}
    captions = torch.tensor(list(all_captions((2, 3), 3)))
    memory, state = select(model.encode(b), b['rows'])
    logp, _ = teacher_force(model, memory, state, captions)          # (15, 3)
    p, reward = logp.sum(1).exp(), torch.linspace(-1, 2, 15).double() ** 2
    assert p.sum().item() == pytest.approx(1)
    parameters = list(model.parameters())
    exact = torch.autograd.grad(-(p * reward).sum(), parameters, retain_graph=True, allow_unused=True)
    for baseline in (0.0, 1.7):
        mean = (p.detach() * reinforce(logp, reward - baseline)).sum()     # the estimator's mean over all captions
        got = torch.autograd.grad(mean, parameters, retain_graph=True, allow_unused=True)
        assert all((a is None) == (g is None) and (a is None or torch.allclose(a, g)) for a, g in zip(exact, got))
    assert max(float(g.abs().max()) for g in exact if g is not None) > 1e-3


class Rewards:
    """A reward function that remembers its calls; gives `sampled` to every sample and `guessed[i]` to the baseline of video i."""

    def __init__(self, sampled, guessed):
        self.calls, self.sampled, self.guessed = [], sampled, torch.tensor(guessed).double()

    def __call__(self, ids, tokens):
        self.calls.append((list(ids), tokens.clone()))
        if len(self.calls) % 2:                                          # samples come first, then the greedy captions
            return torch.full((len(ids),), self.sampled).double()
        return self.guessed[[int(i[1:]) for i in ids]]


def spoken(model, b, words):
    """sum of log p over a caption's words up to and with <eos>, word for word"""
    total = []
    for row, caption in zip(b['rows'].tolist(), words.tolist()):
        memory, state = select(model.encode(b), torch.tensor([row]))
        token, logp = None, 0.0
        for word in caption:
            if word == PAD:
                break
            logits, state, _ = model.step(token, state, memory)
            logits = logits.index_fill(1, torch.tensor([PAD]), float('-inf'))
            logp, token = logp + logits.log_softmax(1)[0, word], torch.tensor([word])
        total.append(logp)
    return torch.stack(total)


def test_rewarded_log_probability_includes_eos_and_nothing_after_it():
    model, b, reward_fn = build(config(reward_weight=2.0)).eval(), batch(), Rewards(3.0, [1.0, 4.0])
    with torch.no_grad():
        model.out.bias[EOS] += 2                                     # so that some samples are short
    torch.manual_seed(0)
    b['rows'], b['captions'] = b['rows'].repeat(4), b['captions'].repeat(4, 1)
    loss, logs = model(b, epoch=10, reward_fn=reward_fn)
    (ids, words), (video_ids, guess) = reward_fn.calls
    assert ids == [f'v{i}' for i in b['rows'].tolist()] and video_ids == ['v0', 'v1'] and len(guess) == 2
    lengths = (words != PAD).sum(1)
    assert lengths.min() < lengths.max() and all((row == EOS).sum() == 1 for row in words[lengths < 5])
    baseline = torch.tensor([1.0, 4.0])[b['rows']]                   # each against its own video's
    want = -2.0 * ((3.0 - baseline) * spoken(model, b, words)).mean()
    assert torch.allclose(loss - model(b)[0], want)
    assert logs['reward'] == 3 and logs['baseline'] == pytest.approx(baseline.mean().item())


def test_the_rewarded_log_probabilities_are_those_the_words_were_drawn_from(monkeypatch):
    """With dropout a second pass would have others."""
    drawn, used = [], []
    whole, estimator = stats.sample, stats.reinforce
    monkeypatch.setattr(stats, 'sample', lambda *args: drawn.append(whole(*args)) or drawn[-1])
    monkeypatch.setattr(stats, 'reinforce', lambda logp, advantage: used.append(logp) or estimator(logp, advantage))
    build(config(dropout=0.5)).train()(batch(), epoch=10, reward_fn=Rewards(1.0, [0.0, 0.0]))
    assert used[0] is drawn[0][1]


@pytest.mark.parametrize('sampled', [1.0, 0.0])
def test_a_caption_better_than_the_baseline_becomes_more_probable_and_a_worse_one_less(sampled):
    b = {**batch(frames=(3,)), 'rows': torch.tensor([0]), 'captions': torch.tensor([[3, 4, EOS]])}
    for seed in range(3):
        model, reward_fn = build(config(), seed, scale=1.0).eval(), Rewards(sampled, [0.5])
        loss = model(b, epoch=10, reward_fn=reward_fn)[0] - model(b)[0]    # the rewarded part alone
        words = reward_fn.calls[0][1]
        before = spoken(model, b, words)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= 0.01 * p.grad
        assert (spoken(model, b, words) > before) == (sampled > 0.5)


def test_rewards_begin_after_their_epoch_and_the_baseline_is_greedy_without_dropout():
    model, b, reward_fn = build(config(dropout=0.5, reward_after=3)).train(), batch(), Rewards(0.0, [0.0, 0.0])
    model(b, epoch=2, reward_fn=reward_fn)
    assert not reward_fn.calls
    for _ in range(2):
        loss, _ = model(b, epoch=3, reward_fn=reward_fn)
    assert model.training and loss.requires_grad
    first, second = reward_fn.calls[1][1], reward_fn.calls[3][1]
    model.eval()
    memory, state = model.encode(b)
    token, want = None, []
    for _ in range(first.shape[1]):
        logits, state, _ = model.step(token, state, memory)
        token = logits.index_fill(1, torch.tensor([PAD]), float('-inf')).argmax(1)
        want.append(token)
    want = torch.stack(want, 1)
    spoken_part = (want == EOS).cumsum(1) - (want == EOS).long() == 0
    assert torch.equal(first, want * spoken_part) and torch.equal(first, second)
