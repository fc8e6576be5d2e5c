"""stats.py against a plain loop over the paper, one word of one caption at a time; the values that
the paper prints; REINFORCE against enumeration."""
import itertools
import math
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import decode
import helpers
import stats
from data import EOS, PAD, BadInput
from stats import POOLS, PRESETS, VIEW, Captioner, Config, rank_loss, reinforce, sampling_rate

SHAPES = {'grid': (2, 3, 5), 'regions': (4, 5), 'single': (5,)}
SMALL = dict(visual=4, embed=3, attn=8, hidden=5, dropout=0.0, max_len=5, rank_weight=0.5, eta=0.0)
MODELS = [('ts', 'mean'), *itertools.product(('st', 'stats'), POOLS)]
CASES = [dict(variant=v, pool=p, shape=s) for (v, p), s in itertools.product(MODELS, SHAPES)]
CASES += [dict(shape='grid', normalise=False), dict(features=('a', 'b'))]


def make(shape='grid', features=('a',), vocab=7, **fields):
    """-> model in float64 with large weights, batch of three videos with 3, 1 and 4 frames of kind
    a, and 2, 5 and 1 of kind b"""
    torch.manual_seed(0)
    feats = {name: SHAPES[shape] for name in features}
    cfg = Config(**{**SMALL, **fields}, features=features)
    model = Captioner(cfg, helpers.sizes(feats, vocab=vocab, categories=3)).double()
    helpers.scale_up(model, 3.0)
    batch = helpers.batch(feats, {'a': (3, 1, 4), 'b': (2, 5, 1)}, vocab=vocab)
    for name in features:
        batch['feats'][name] = batch['feats'][name].double()
        batch['feats'][name][~batch['mask'][name]] = 50.0       # padding must change nothing
    return model, batch


def attend(att, q, xs):
    """Eq. 1 and 2: the query q, features xs (M, D) -> weights (M,)"""
    scores = [att.w.weight[0] @ torch.tanh(att.w_h.weight @ q + att.w_x(x)) for x in xs]
    return torch.stack(scores).softmax(0)


def lstm_step(lstm, x, h, c):
    """An LSTM written out, with torch's order of weights and gates"""
    w_x, w_h, b_x, b_h = lstm.parameters()
    i, f, g, o = (w_x @ x + b_x + w_h @ h + b_h).chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def plain_st(st, cfg, shape, x, q):
    """x (n, L, D) of one video -> x_ST, ranking loss, weights (n, L) that sum to 1"""
    n, L, D = x.shape
    if 'temporal' in cfg.pool:
        x = x if cfg.pool == 'temporal' else x.mean(1, keepdim=True)
        e = attend(st.frames, q, x.flatten(0, 1))
        return e @ x.flatten(0, 1), 0.0, e.view(n, -1).expand(n, L) * x.shape[1] / L
    e = torch.ones(n, L).double()
    if shape != 'single':
        e = torch.stack([attend(st.space, q, x.mean(0) if shape == 'grid' else y) for y in x])
    frames = [e[t] @ x[t] for t in range(n)]
    x_st = sum(frames) / n if 'mean' in cfg.pool else 0.0
    w = c = torch.zeros(D).double()
    if cfg.pool != 'mean':
        for frame in frames:
            w, c = lstm_step(st.lstm, frame, w, c)
    rank = 0.0
    if 'ranked' in cfg.pool:
        rank = sum(F.softplus(w @ a + cfg.margin - w @ b) for a, b in itertools.pairwise(frames))
    return x_st + w, rank, e / n


def plain_ts(ts, cfg, shape, x, q):
    """x (n, L, D) of one video -> x_TS, weights (n, L) that sum to 1"""
    tau = attend(ts.frames, q, x.mean(1)) ** (1 / cfg.temperature)
    tau = tau / tau.sum()
    chosen = sum(tau[t] * x[t] for t in range(len(x)))
    e = attend(ts.space, q, chosen) if shape != 'single' else torch.ones(1).double()
    return e @ chosen, tau[:, None] * e


def plain_visual(part, cfg, shape, x, q):
    """x (n, L, D) of one video -> xhat, ranking loss, weights (n, L) that sum to 1"""
    rank = 0.0
    if cfg.variant == 'st':
        xhat, rank, weights = plain_st(part.st, cfg, shape, x, q)
    elif cfg.variant == 'ts':
        xhat, weights = plain_ts(part.ts, cfg, shape, x, q)
    else:
        x_st, rank, st_weights = plain_st(part.st, cfg, shape, x, q)
        x_ts, ts_weights = plain_ts(part.ts, cfg, shape, x, q)
        h = part.w_h.weight @ q
        beta_1 = part.u_st.weight[0] @ torch.tanh(part.w_st.weight @ x_st + h)
        beta_2 = part.u_ts.weight[0] @ torch.tanh(part.w_ts.weight @ x_ts + h)
        share = beta_1.exp() / (beta_1.exp() + beta_2.exp())
        xhat = share * x_st + (1 - share) * x_ts
        weights = share * st_weights + (1 - share) * ts_weights
    if cfg.variant == 'ts' or cfg.pool in ('mean', 'temporal', 'mean+temporal'):    # no LSTM
        assert torch.allclose(torch.einsum('fl,fld->d', weights, x), xhat)
    return torch.tanh(xhat), rank, weights


def plain_caption(model, batch, shape, row, words):
    """-> sum of log p, sum of ranking losses, weights (T, n, L) of the first kind of features"""
    cfg = model.cfg
    video = batch['rows'][row]
    xs = []
    for name, part in model.visual.items():
        x = batch['feats'][name][video][batch['mask'][name][video]]             # (n, ..., D)
        if cfg.normalise:
            x = x / x.square().mean(-1, keepdim=True).sqrt()
        xs.append(part.embed(x).view(len(x), -1, cfg.visual))
    h, c = torch.tanh(model.init(torch.cat([x.mean((0, 1)) for x in xs]))).chunk(2)
    word = s = torch.zeros(cfg.embed).double()
    said = []
    results = []
    for token in words[words != PAD].tolist():
        if said:
            word = said[-1]
            s = attend(model.words, word, said) @ model.value(torch.stack(said))
        q = torch.cat([h, s])
        looks = [plain_visual(part, cfg, shape, x, q) for part, x in zip(model.visual.values(), xs)]
        xhat = torch.cat([look[0] for look in looks])
        h, c = lstm_step(model.lstm, torch.cat([word, xhat]), h, c)
        logits = model.out(torch.cat([h, xhat]))
        logp = logits[token] - logits[PAD + 1:].logsumexp(0)
        results.append((logp, sum(look[1] for look in looks), looks[0][2]))
        said.append(model.embed.weight[token])
    logp, rank, weights = zip(*results)
    return sum(logp), sum(rank), torch.stack(weights)


@pytest.fixture(scope='module', params=CASES, ids=lambda case: '-'.join(map(str, case.values())))
def case(request):
    """-> shape, model, batch, the results of plain_caption for each caption"""
    model, batch = make(**request.param)
    shape = request.param.get('shape', 'grid')
    plain = [plain_caption(model, batch, shape, *one) for one in enumerate(batch['captions'])]
    return shape, model, batch, plain


def test_loss_and_gradients_are_those_of_the_plain_loop(case):
    shape, model, batch, plain = case
    loss, logs = model(batch)
    logp, rank, _ = zip(*plain)
    want = (-sum(logp) + SMALL['rank_weight'] * sum(rank)) / 4
    assert logs['nll'] == pytest.approx(-sum(logp).item() / 4)
    assert logs.get('rank', 0.0) == pytest.approx(torch.as_tensor(sum(rank)).item() / 4)
    assert loss.item() == pytest.approx(want.item())
    got = torch.autograd.grad(loss, model.parameters(), allow_unused=True)
    exact = torch.autograd.grad(want, model.parameters(), allow_unused=True)
    looks = shape != 'single' or model.cfg.variant != 'st' or 'temporal' in model.cfg.pool
    for (name, _), g, e in zip(model.named_parameters(), got, exact):
        if looks or not name.startswith(('words.', 'value.')):  # these two only make the query
            assert torch.allclose(g, e) and g.abs().max() > 0, name
        else:
            assert g is None and e is None, name


def test_the_view_shows_the_weights_of_the_plain_loop(case):
    """Of the last caption, whose video has no padding. If ST is alone, F = 1 where all frames share
    one map, and L = 1 where the attention sees only the means of the frames."""
    shape, model, batch, plain = case
    cfg = model.cfg
    memory, state = decode.select(model.encode(batch), batch['rows'][-1:])
    _, aux = decode.teacher_force(model, memory, state, batch['captions'][-1:])
    want = plain[-1][2]                                                         # (T, n, L)
    got = VIEW['attention']({name: value[0, :len(want)] for name, value in aux.items()})
    assert torch.allclose(got.sum((1, 2)), torch.ones(len(want)).double())
    if cfg.variant == 'st' and cfg.pool == 'mean+temporal':
        want = want.sum(2, keepdim=True)
    elif cfg.variant == 'st' and cfg.pool != 'temporal' and shape != 'regions':
        want = want.sum(1, keepdim=True)
    assert got.shape == want.shape and torch.allclose(got, want)
    assert got[0].numel() == 1 or got.max() > 1.5 * got.mean()                  # far from uniform
    assert ('mix' in aux) == (cfg.variant == 'stats') and list(VIEW['bars']) == ['mix']


def test_the_papers_values_and_the_presets():
    printed = dict(visual=512, embed=256, attn=128, optimizer='rmsprop', rate=1e-4, epochs=20,
                   videos_per_batch=32, eta=24,                                 # Sec. 4.1
                   reward='meteor+bleu4', reward_after=10,                      # Sec. 3.4
                   variant='stats', pool='mean+ranked')                         # Sec. 4.2
    assert printed.items() <= vars(Config()).items()
    for name, preset in PRESETS.items():
        chosen = name in ('shapes', 'puzzle', 'msvd/vgg16_fc')      # by us, not by the paper
        assert chosen or printed.items() <= vars(Config(**preset)).items()
    part = Captioner(Config(), helpers.sizes({'i3d': (7, 7, 2048)})).visual['i3d']
    assert part.embed.weight.shape == (512, 2048)
    for attention in (part.st.space, part.ts.frames, part.ts.space):
        assert attention.w_x.weight.shape == (128, 512)
        assert attention.w_h.weight.shape == (128, 512 + 256)


def test_wrong_names_and_missing_categories_are_refused():
    with pytest.raises(BadInput, match='--variant tst: .*st, ts, stats'):
        Config(variant='tst')
    with pytest.raises(BadInput, match='--pool max: .*mean, lstm'):
        Config(pool='max')
    with pytest.raises(BadInput, match='no categories'):
        Captioner(Config(category=True), helpers.sizes({'i3d': (5,)}))


def test_the_category_is_a_second_task_of_training_and_captions_do_not_need_it():
    model, batch = make(category=True)
    loss, logs = model(batch)
    _, state = model.encode(batch)
    want = 0.0
    for row in batch['rows']:
        scores = model.category.weight @ state['h'][row] + model.category.bias
        want -= scores.softmax(0)[batch['category'][row]].log() / 4
    model.cfg.category = False
    assert logs['category'] == pytest.approx(want.item())
    assert loss.item() == pytest.approx(model(batch)[0].item() + want.item())
    del batch['category']
    decode.greedy(model, *model.encode(batch), 5)


def test_the_mix_is_even_in_the_first_epochs_of_training_and_starts_from_one_half():
    """If w_ST and w_TS of Eq. 12 are 0, then both branches have a weight of 1/2."""
    model, batch = make(features=('a', 'b'), even_mix=2)
    gates = [p for name, p in model.named_parameters() if '.u_st' in name or '.u_ts' in name]
    assert len(gates) == 4 and not any(gate.any() for gate in gates)
    even = model(batch, epoch=2)[0]
    for gate in gates:
        gate.data.normal_(std=3.0)
    free = model(batch, epoch=2)[0]
    held = model.train()(batch, epoch=1)[0]
    assert torch.autograd.grad(held, gates, allow_unused=True) == (None,) * 4
    assert torch.equal(model(batch, epoch=2)[0], free)
    assert torch.equal(model.eval()(batch, epoch=1)[0], free)
    assert held.item() == pytest.approx(even.item()) and held.item() != pytest.approx(free.item())


def test_attention_scores_equal_equation_2():
    """Keys of one and of two dimensions; the softmax of the scores is that of the plain loop."""
    torch.manual_seed(0)
    attention = stats.Attention(3, 4, 5).double()
    q = torch.randn(2, 3).double()
    x = torch.randn(2, 6, 7, 4).double()
    scores = attention(q, attention.w_x(x))
    assert scores.shape == (2, 6, 7)
    assert torch.allclose(attention(q, attention.w_x(x[:, 0])), scores[:, 0])
    for row in range(2):
        want = attend(attention, q[row], x[row].flatten(0, 1))
        assert torch.allclose(scores[row].flatten().softmax(0), want)


@pytest.mark.parametrize('shape', SHAPES)
def test_ts_equals_the_plain_loop(shape):
    model, batch = make(shape, variant='ts')
    visual = model.visual['a']
    memory, _ = visual.encode(batch['feats']['a'], batch['mask']['a'])
    q = torch.randn(3, SMALL['hidden'] + SMALL['embed']).double()
    x_ts, aux = visual.ts(q, memory)
    for row, frames in enumerate((3, 1, 4)):
        x = memory['x'].x[row, :frames]
        want, weights = plain_ts(visual.ts, model.cfg, shape, x, q[row])
        tau = aux['ts_frames'][row]
        assert not tau[frames:].any()
        assert torch.allclose(tau[:frames, None] * aux['ts_space'][row], weights)
        assert torch.allclose(x_ts[row], want)


def test_rank_loss_by_hand():
    """Projections 0, 1, 3, margin 1/2: zeta is 0 + 0.5 - 1 = -0.5 and 1 + 0.5 - 3 = -1.5, so the
    loss is log(1 + e^-0.5) + log(1 + e^-1.5) = 0.4741 + 0.2014. In reverse order zeta is 2.5 and
    1.5, and the loss 2.5789 + 1.7014. A pair with a padding frame adds nothing."""
    w = torch.tensor([[1.0, 0.0]]).expand(4, 2)
    x = torch.tensor([[[0.0, 9.0], [1.0, -2.0], [3.0, 5.0]]]).repeat(4, 1, 1)
    x[1] = x[1].flip(0)
    mask = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0]]).bool()
    want = [0.4741 + 0.2014, 2.5789 + 1.7014, 0.4741, 0.0]
    assert rank_loss(w, x, 0.5, mask).tolist() == pytest.approx(want, abs=1e-4)


@pytest.mark.parametrize('shape, calls', [('single', 1), ('grid', 5)])
def test_the_ranked_lstm_runs_once_per_video_if_frames_do_not_depend_on_the_word(shape, calls):
    model, batch = make(shape)
    lstm = model.visual['a'].st.lstm
    with mock.patch.object(lstm, 'forward', wraps=lstm.forward) as spy:
        model(batch)
    assert spy.call_count == calls                              # the longest caption has 5 words


def test_dropout_is_on_the_inputs_of_the_lstm_and_of_the_output_layer_and_nowhere_else():
    """If everything is dropped, the LSTM reads zeros and the logits are the bias."""
    model, batch = make(dropout=1.0)
    memory, state = model.encode(batch)
    token = torch.tensor([2, 3, 4])
    state = model.eval().step(token, state, memory)[1]
    _, _, aux = model.step(token, state, memory)
    logits, after, train_aux = model.train().step(token, state, memory)
    assert torch.equal(logits, model.out.bias.expand_as(logits))
    zeros = torch.zeros(3, model.lstm.input_size).double()
    want = model.lstm(zeros, (state['h'], state['c']))
    assert torch.equal(torch.stack(want), torch.stack([after['h'], after['c']]))
    assert all(torch.equal(aux[name], train_aux[name]) for name in aux)
    assert make(dropout=0.3)[0].drop.p == 0.3


def test_scheduled_sampling_follows_the_epoch_in_training_alone():
    assert sampling_rate(0, 24) == pytest.approx(1 / 25)
    assert sampling_rate(24, 24) == pytest.approx(math.e / (24 + math.e))
    assert sampling_rate(20, 0) == 0
    model, batch = make(eta=24.0)
    with mock.patch.object(stats, 'teacher_force', wraps=decode.teacher_force) as spy:
        model.train()(batch, epoch=24)
        model.eval()(batch, epoch=24)
    assert [call.args[4] for call in spy.mock_calls] == [sampling_rate(24, 24), 0.0]


def test_reinforce_is_unbiased_by_enumeration_and_a_baseline_lowers_its_variance():
    """Words 2, 3 and <eos>, at most three tokens: 1 + 2 + 4 + 8 captions, the last 8 cut off."""
    captions = set()
    for words in itertools.product((EOS, 2, 3), repeat=3):
        end = (*words, EOS).index(EOS) + 1
        captions.add((*words[:end], PAD, PAD)[:3])
    model, batch = make(vocab=4)
    memory, state = decode.select(model.encode(batch), torch.zeros(15, dtype=torch.long))
    logp, _ = decode.teacher_force(model, memory, state, torch.tensor(sorted(captions)))
    p = logp.sum(1).exp()                                                       # (15,)
    assert p.sum().item() == pytest.approx(1)
    reward = 3 + torch.rand(15).double()
    weights = (model.out.weight, model.visual['a'].embed.weight)
    grad = torch.autograd.grad(-(p * reward).sum(), weights, retain_graph=True)
    exact = torch.cat([g.flatten() for g in grad])
    assert exact.abs().max() > 1e-3
    variance = []
    for baseline in (0.0, 3.5):
        grad = torch.autograd.grad(reinforce(logp, reward - baseline), weights,
                                   torch.eye(15).double(), retain_graph=True, is_grads_batched=True)
        each = torch.cat([g.flatten(1) for g in grad], 1)                       # of each caption
        assert torch.allclose(p @ each, exact)
        variance.append((p @ (each - exact).square()).sum())
    assert variance[1] < 0.5 * variance[0]


BASELINE = torch.tensor([1.0, 4.0, 2.0]).double()               # rewards of the greedy captions


def rewards():
    """A reward function: 3 for each sample, then BASELINE for the three greedy captions"""
    return mock.Mock(side_effect=[torch.full((4,), 3.0).double(), BASELINE])


def test_a_sample_is_rewarded_up_to_its_eos_against_the_greedy_caption_of_its_video():
    model, batch = make(reward_weight=2.0)
    with torch.no_grad():
        model.out.bias[EOS] += 2                                # so that some samples are short
    reward_fn = rewards()
    loss, logs = model(batch, epoch=10, reward_fn=reward_fn)
    (ids, words), (video_ids, _) = [call.args for call in reward_fn.mock_calls]
    assert ids == ['a', 'a', 'b', 'c'] and video_ids == ['a', 'b', 'c']
    assert len(set((words != PAD).sum(1).tolist())) > 1         # samples of different lengths
    baseline = BASELINE[batch['rows']]
    logp = [plain_caption(model, batch, 'grid', *one)[0] for one in enumerate(words)]
    want = -2.0 * ((3.0 - baseline) * torch.stack(logp)).mean()
    got = loss - model(batch)[0]                                # the rewarded part alone
    assert got.item() == pytest.approx(want.item())
    assert logs['reward'] == 3 and logs['baseline'] == baseline.mean().item()
    weights = (model.out.weight, model.embed.weight, model.visual['a'].embed.weight)
    for g, e in zip(torch.autograd.grad(got, weights), torch.autograd.grad(want, weights)):
        assert torch.allclose(g, e)


def test_rewards_begin_after_their_epoch_and_dropout_is_in_the_samples_alone():
    model, batch = make(dropout=0.9, reward_after=3)
    drawn = decode.sample(model.train(), *decode.select(model.encode(batch), batch['rows']), 5)
    reward_fn = rewards()
    with mock.patch.object(stats, 'sample', return_value=drawn), \
         mock.patch.object(stats, 'reinforce', wraps=reinforce) as spy:
        model(batch, epoch=2, reward_fn=reward_fn)
        assert not reward_fn.called
        model(batch, epoch=3, reward_fn=reward_fn)
    assert spy.call_args.args[0] is drawn[1]        # a second pass would have another dropout
    assert model.training
    want, _ = decode.greedy(model.eval(), *model.encode(batch), 5)
    assert torch.equal(reward_fn.call_args.args[1], want)
