"""sta.py against plain loops over the thesis' equations, and against values worked by hand."""
import math

import pytest
import torch

import sta
from data import EOS, PAD
from decode import beam, greedy, select, teacher_force


def config(task='describe', grid=(2, 3), **changes):
    """Small sizes: K x K = 2 x 3 places of D = 4."""
    fields = dict(task=task, vocab=9, feats={'clip': [*grid, 4]}, frames=5, classes=3, features=('clip',), hidden=7,
                  embed=6, layers=2, dropout=0.0, penalty=0.0, block=4)
    return sta.Config(**(fields | changes))


def build(cls, cfg, seed=0, scale=4.0):
    """A model whose weights are large enough for its states to differ."""
    torch.manual_seed(seed)
    model = cls(cfg).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(scale)
    return model


def clips(*lengths, grid=(2, 3), seed=1, extra=0):
    """Clips of these lengths with two captions each; `extra` more padding frames. Padding is garbage, not zeros."""
    g = torch.Generator().manual_seed(seed)
    frames = torch.tensor(lengths)
    v = [torch.randn(n, *grid, 4, generator=g) for n in lengths]
    F = max(lengths) + extra
    feats = torch.stack([torch.cat([x, torch.full((F - len(x), *grid, 4), 50.0)]) for x in v])
    words = [[3, 4, 5, EOS, PAD, PAD], [6, 3, 7, 8, 4, EOS], [5, EOS, PAD, PAD, PAD, PAD], [4, 4, 8, EOS, PAD, PAD]]
    B = 2 * len(lengths)
    return {'feats': {'clip': feats}, 'mask': {'clip': torch.arange(F)[None] < frames[:, None]},
            'ids': [str(i) for i in range(len(v))],
            'captions': torch.tensor((words * B)[:B]), 'rows': torch.arange(len(v)).repeat_interleave(2),
            'labels': torch.eye(3)[torch.arange(len(v)) % 3]}


# plain loops ----------------------------------------------------------------------------------------------------------

def sigma(x):
    return 1 / (1 + math.exp(-x))


def affine(weight, x, bias=None):
    return [sum(w * a for w, a in zip(row, x)) + (bias[i] if bias else 0.0) for i, row in enumerate(weight)]


def mlp(weights, name, x):
    hidden = [math.tanh(a) for a in affine(weights[f'{name}.0.weight'], x, weights[f'{name}.0.bias'])]
    return affine(weights[f'{name}.2.weight'], hidden, weights[f'{name}.2.bias'])


def lstm(weights, name, x, h, c):
    """Eq. 2.1-2.3; torch keeps the four parts of M in the order i, f, g, o."""
    z = [a + b for a, b in zip(affine(weights[f'{name}.weight_ih'], x, weights[f'{name}.bias_ih']),
                               affine(weights[f'{name}.weight_hh'], h, weights[f'{name}.bias_hh']))]
    H = len(h)
    i, f, g, o = ([act(a) for a in z[k * H:(k + 1) * H]] for k, act in enumerate((sigma, sigma, math.tanh, sigma)))
    c = [f[k] * c[k] + i[k] * g[k] for k in range(H)]
    return [o[k] * math.tanh(c[k]) for k in range(H)], c


def softmax(scores):
    e = [math.exp(s) for s in scores]
    return [x / sum(e) for x in e]


def weighted(alpha, slices):
    return [sum(a * s[d] for a, s in zip(alpha, slices)) for d in range(len(slices[0]))]


def mean(vectors):
    return weighted([1 / len(vectors)] * len(vectors), vectors)


def plain(model):
    return {name: value.tolist() for name, value in model.state_dict().items()}


def loop_recognise(model, cubes, variant='soft', blind=False):
    """cubes: one list of K^2 slices per step -> class scores and l_t per step. blind: layers read 0 from below."""
    w, H, layers = plain(model), model.cfg.hidden, model.cfg.layers
    start = mean([mean(cube) for cube in cubes])
    h0, c0 = ([math.tanh(a) for a in mlp(w, name, start)] for name in ('init_h', 'init_c'))
    h, c = [h0[k * H:(k + 1) * H] for k in range(layers)], [c0[k * H:(k + 1) * H] for k in range(layers)]
    scores, alphas = [], []
    for cube in cubes:
        if variant == 'soft':
            alphas.append(softmax(affine(w['location.weight'], h[-1])))
            x = weighted(alphas[-1], cube)
        else:
            x = mean(cube) if variant == 'avgpool' else [max(s[d] for s in cube) for d in range(len(cube[0]))]
        for layer in range(layers):
            h[layer], c[layer] = lstm(w, f'lstms.{layer}', [0.0] * len(x) if blind else x, h[layer], c[layer])
            x = h[layer]
        top = [math.tanh(a) for a in affine(w['hidden.weight'], x, w['hidden.bias'])]
        scores.append(affine(w['classify.weight'], top, w['classify.bias']))
    return scores, alphas


def loop_describe(model, slices, words, variant='soft'):
    """slices: all N K^2 of a video -> log-probability, l_t and beta_t of every word. <pad> is never said."""
    w, H = plain(model), model.cfg.hidden
    h, c = ([math.tanh(a) for a in mlp(w, name, mean(slices))] for name in ('init_h', 'init_c'))
    logps, alphas, betas, y = [], [], [], [0.0] * model.cfg.embed
    for t, word in enumerate(words):
        if variant == 'avgpool':
            alpha = [1 / len(slices)] * len(slices)
        elif variant == 'first' and t > 0:
            alpha = [0.0] * len(slices)
        else:
            alpha = softmax(affine(w['location.weight'][:len(slices)], h))
        beta = sigma(mlp(w, 'gate', h)[0])
        x = [beta * a for a in weighted(alpha, slices)]
        h, c = lstm(w, 'lstm', y + x, h, c)
        deep = [a + b + d for a, b, d in zip(y, affine(w['w_h.weight'], h), affine(w['w_x.weight'], x))]
        e = [math.exp(s) for s in affine(w['w_p.weight'], deep)]
        logps.append(math.log(e[word] / sum(e[PAD + 1:])))
        alphas.append(alpha)
        betas.append(beta)
        y = w['embed.weight'][word]
    return logps, alphas, betas


def cubes_of(batch, row, frames):
    return [batch['feats']['clip'][row, f].reshape(-1, 4).tolist() for f in frames]


def close(found, expected):
    torch.testing.assert_close(found.detach().float(), torch.tensor(expected), rtol=1e-3, atol=1e-4)


# the penalty ----------------------------------------------------------------------------------------------------------

def test_penalty_by_hand():
    alpha = torch.tensor([[[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]]])
    # totals 0.75, 0.75, 0.5: (1/4)^2 + (1/4)^2 + (1/2)^2 = 0.375
    assert sta.doubly_stochastic(alpha).tolist() == [0.375]
    # the second step is padding: totals 0.5, 0.5, 0: 0.25 + 0.25 + 1
    assert sta.doubly_stochastic(alpha, torch.tensor([[True, False]])).tolist() == [1.5]
    assert sta.doubly_stochastic(torch.eye(3)[None]).tolist() == [0.0]  # its aim: with as many steps as places


@pytest.mark.parametrize('T, L, bound', [(8, 1274, 1258.05), (30, 49, 7.37)])
def test_penalty_never_goes_below_its_bound(T, L, bound):
    """sum_i s_i = T, so sum_i (1 - s_i)^2 >= (L - T)^2 / L, reached where all s_i = T / L."""
    exact = (L - T) ** 2 / L
    assert abs(exact - bound) < 0.005
    torch.manual_seed(0)
    for sharpness in (0.0, 0.1, 1.0, 10.0):
        random = (sharpness * torch.randn(20, T, L, dtype=torch.double)).softmax(2)
        assert (sta.doubly_stochastic(random) >= exact - 1e-9).all()
    logits = torch.randn(1, T, L, dtype=torch.double, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(200):
        loss = sta.doubly_stochastic(logits.softmax(2)).sum()
        assert loss >= exact - 1e-9
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    totals = logits.softmax(2).sum(1)
    assert loss < exact + 0.01 and (totals - T / L).abs().max() < 0.05          # what it asks for is uniformity


# the Recogniser -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('variant', ['soft', 'avgpool', 'maxpool'])
def test_recogniser_equals_the_loop_over_its_equations(variant):
    model, batch = build(sta.Recogniser, config('recognise', variant=variant), scale=2.0), clips(4, 2)
    v, mask = sta.places(batch, model.cfg)
    scores, alpha, _, real = model.read(v, mask, torch.tensor([0, 1]), torch.tensor([0, 0]))
    assert real.tolist() == [[True] * 4, [True, True, False, False]]
    for row, n in ((0, 4), (1, 2)):
        expected, attention = loop_recognise(model, cubes_of(batch, row, range(n)), variant)
        close(scores[row, :n], expected)
        if variant == 'soft':
            close(alpha[row, :n], attention)
        else:
            assert not alpha.any() and not hasattr(model, 'location')


def test_softmax_regression_reads_the_whole_cube_of_each_step():
    model, batch = build(sta.Recogniser, config('recognise', variant='softmax')), clips(3)
    w = plain(model)
    p = [softmax(affine(w['regression.weight'], sum(cube, []), w['regression.bias']))
         for cube in cubes_of(batch, 0, range(3))]
    close(model.predict(batch)[0][0], mean(p))


def test_recognition_loss_by_hand_from_the_loop():
    """Sums over steps, plus lambda times the penalty, averaged over clips; missing steps count for nothing."""
    batch = clips(4, 2)
    model = build(sta.Recogniser, config('recognise', penalty=10.0), scale=2.0)
    expected = 0.0
    for row, n in ((0, 4), (1, 2)):
        scores, alphas = loop_recognise(model, cubes_of(batch, row, range(n)))
        expected -= sum(math.log(softmax(s)[row]) for s in scores) / 2          # clip 0 has class 0, clip 1 has class 1
        expected += 10 * sum((1 - sum(a[i] for a in alphas)) ** 2 for i in range(6)) / 2
    close(model(batch)[0], expected)


@pytest.mark.parametrize('cls', [sta.Recogniser, sta.Captioner])
def test_lambda_zero_is_no_penalty(cls):
    batch, losses = clips(4, 3), {}
    for penalty in (0.0, 1.0, 10.0):
        losses[penalty], logs = build(cls, config(penalty=penalty))(batch)
        close(losses[penalty], logs['nll'] + penalty * logs['penalty'])
        assert logs['penalty'] > 0
    close(losses[0.0], logs['nll'])
    close(losses[10.0] - losses[0.0], 10 * (losses[1.0] - losses[0.0]).item())


def test_blocks_by_hand():
    """Six frames, blocks of 4: starts 0, 1, 2. Probabilities: mean over steps, then over blocks. Frame 0 is in one
    block, frame 2 in three."""
    model, batch = build(sta.Recogniser, config('recognise'), scale=2.0), clips(6)
    runs = {s: loop_recognise(model, cubes_of(batch, 0, range(s, s + 4))) for s in (0, 1, 2)}

    def expect(starts):
        return mean([mean([softmax(s) for s in runs[start][0]]) for start in starts])

    p, aux = model.predict(batch)
    close(p[0], expect((0, 1, 2)))
    close(aux['space'][0, 0], runs[0][1][0])
    close(aux['space'][0, 2], mean([runs[0][1][2], runs[1][1][1], runs[2][1][0]]))
    close(aux['space'].sum(2), [[1.0] * 6])

    model.cfg.block_stride = 2
    close(model.predict(batch)[0][0], expect((0, 2)))
    model.cfg.block_stride = 5
    p, aux = model.predict(batch)
    close(p[0], expect((0,)))
    assert not aux['space'][0, 4:].any()                                        # frames that no block holds


def test_fewer_frames_per_second_skip_frames_within_a_block():
    model, batch = build(sta.Recogniser, config('recognise', fps=15, block=3), scale=2.0), clips(6)
    blocks = [loop_recognise(model, cubes_of(batch, 0, frames))[0] for frames in ((0, 2, 4), (1, 3, 5))]
    close(model.predict(batch)[0][0], mean([mean([softmax(s) for s in block]) for block in blocks]))


def test_training_draws_every_block_of_a_long_clip():
    model, batch = build(sta.Recogniser, config('recognise'), scale=2.0), clips(6)
    runs = [loop_recognise(model, cubes_of(batch, 0, range(a, a + 4)))[0] for a in range(3)]
    possible = [-sum(math.log(softmax(s)[0]) for s in run) for run in runs]
    torch.manual_seed(0)
    losses = [model(batch)[0].item() for _ in range(40)]
    drawn = [min(range(3), key=lambda a: abs(possible[a] - loss)) for loss in losses]
    assert set(drawn) == {0, 1, 2}
    assert all(abs(loss - possible[a]) < 1e-3 for loss, a in zip(losses, drawn))


def test_blocks_are_the_same_in_any_company():
    """A long, a short and a whole clip together, in one piece and in pieces of 256 blocks, equal each alone."""
    for variant in ('soft', 'avgpool', 'maxpool', 'softmax'):
        model = build(sta.Recogniser, config('recognise', variant=variant, block=3))
        batch = clips(7, 2, 262, extra=2)
        p, aux = model.predict(batch)
        close(p.sum(1), [1.0, 1.0, 1.0])
        for row, n in enumerate((7, 2, 262)):
            alone = {'feats': {'clip': batch['feats']['clip'][row:row + 1, :n]},
                     'mask': {'clip': torch.ones(1, n, dtype=torch.bool)}}
            p_alone, aux_alone = model.predict(alone)
            torch.testing.assert_close(p[row], p_alone[0], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(aux['space'][row, :n], aux_alone['space'][0], rtol=1e-4, atol=1e-5)
            assert not aux['space'][row, n:].any()


def test_a_clip_with_two_labels_trains_once_per_label():
    model = build(sta.Recogniser, config('recognise', penalty=1.0))
    one, two, both = clips(4), clips(4), clips(4)
    two['labels'], both['labels'] = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[1.0, 0.0, 1.0]])
    close(model(both)[0], (model(one)[0] + model(two)[0]).item())
    shards = [clips(4, 3), clips(4, 3)]                                         # and shards weighed by clips add up
    joined = clips(4, 3)
    joined['labels'] = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    for row, shard in enumerate(shards):
        for part in (shard['feats'], shard['mask']):
            part['clip'] = part['clip'][row:row + 1]
        shard['labels'] = joined['labels'][row:row + 1]
    close(model(joined)[0], (model(shards[0])[0] / 2 + model(shards[1])[0] / 2).item())


def test_recogniser_dropout_spares_what_comes_from_the_step_before():
    """With dropout 1 every layer reads 0 from below, yet h_t-1 -> h_t and h_t-1 -> l_t go on undisturbed."""
    model, batch = build(sta.Recogniser, config('recognise', dropout=1.0), scale=2.0).train(), clips(4)
    v, mask = sta.places(batch, model.cfg)
    scores, alpha, _, _ = model.read(v, mask, torch.tensor([0]), torch.tensor([0]))
    close(alpha[0], loop_recognise(model, cubes_of(batch, 0, range(4)), blind=True)[1])
    close(scores[0], [model.classify.bias.tolist()] * 4)  # the class, though, is fed by dropped units


# the glimpse of figure 2.8 --------------------------------------------------------------------------------------------

def test_glimpse_makes_the_class_right_and_leaves_the_model_as_it_was():
    """A model by hand: h_t = tanh(tanh(x_t)), class 0 if its first number is positive, else class 1. Five places of six
    are positive and the trained weights look at these: the clip is class 0 unless one learns to look at place 0."""
    model = sta.Recogniser(config('recognise', hidden=4, layers=1, dropout=0.5))
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.init_h[2].bias.fill_(1.0)
        model.lstms[0].bias_ih.copy_(torch.tensor([20.0, -20.0, 0.0, 20.0]).repeat_interleave(4))  # i = 1, f = 0, o = 1
        model.lstms[0].weight_ih[8:12] = torch.eye(4)                           # g = tanh(x)
        model.hidden.weight.copy_(torch.eye(4))
        model.classify.weight[:2, 0] = torch.tensor([3.0, -3.0])
        model.classify.bias[2] = -9.0
        model.location.weight.fill_(1.0)
        model.location.weight[0] = -1.0
    cube = torch.ones(1, 3, 6, 4)
    cube[:, :, 0, 0] = -2.0
    clip = {'feats': {'clip': cube}, 'mask': {'clip': torch.ones(1, 3, dtype=torch.bool)}}
    learned = model.eval().predict(clip)[1]['space'][0].detach()
    model.train()                                                               # left so, and yet nothing is dropped
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(0)
    with torch.no_grad():                                                       # as evaluate.py may call it
        found = sta.glimpse(model, clip, label=1, steps=500, rate=0.05)
    assert model.training and all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert found['predicted'] == (0, 0, 1) and 0 < found['steps'] < 500 and found['probability'] > 0.5
    for name in ('learned', 'random', 'found'):
        assert found[name].shape == (3, 6) and not found[name].requires_grad
        close(found[name].sum(1), [1.0] * 3)
    torch.testing.assert_close(found['learned'], learned)
    assert found['learned'][:, 0].max() < 0.01 and found['found'][:, 0].mean() > 0.3        # chance: 1/6
    stopped = sta.glimpse(model, clip, label=1, steps=0)
    assert stopped['steps'] == 0 and torch.equal(stopped['random'], stopped['found'])


def test_glimpse_starts_between_the_trained_minimum_and_maximum():
    """All trained weights equal: the random weights are these, so the maps stay the same."""
    model = build(sta.Recogniser, config('recognise'))
    model.location.weight.data.fill_(0.3)
    found = sta.glimpse(model, clips(4), label=0, steps=0)
    torch.testing.assert_close(found['random'], found['learned'])
    close(found['random'], [[1 / 6] * 6] * 4)


# the Captioner --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('grid', [(2, 3), (6,), ()])
@pytest.mark.parametrize('variant', ['soft', 'avgpool', 'first'])
def test_captioner_equals_the_loop_over_its_equations(variant, grid):
    """Grids, regions, and one region per frame; videos of 5 and of 3 frames, where N is 5."""
    model, batch = build(sta.Captioner, config(variant=variant, grid=grid), scale=2.0), clips(5, 3, grid=grid)
    logp, aux = teacher_force(model, *select(model.encode(batch), batch['rows']), batch['captions'])
    assert aux['space'].shape == (4, 6, 5, math.prod(grid))
    for b, words in enumerate(batch['captions'].tolist()):
        words, frames = [w for w in words if w != PAD], (5, 3)[b // 2]
        slices = sum(cubes_of(batch, b // 2, range(frames)), [])
        expected, alphas, betas = loop_describe(model, slices, words, variant)
        close(logp[b, :len(words)], expected)
        close(aux['gate'][b, :len(words)], betas)
        close(aux['space'][b, :len(words), :frames].flatten(1), alphas)
        assert not aux['space'][b, :, frames:].any() and not aux['space'][b, len(words):].any()


def test_gate_by_hand():
    """sigma(0) = 1/2 halves what is seen; a gate far below 0 shuts it: then the video matters through h_0 alone."""
    model, batch = build(sta.Captioner, config(variant='avgpool')), clips(5)
    model.gate[2].weight.data.zero_()
    model.gate[2].bias.data.zero_()
    seen = []
    model.lstm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    memory, state = model.encode(batch)
    _, _, aux = model.step(None, state, memory)
    assert aux['gate'].tolist() == [0.5]
    half = [x / 2 for x in mean(sum(cubes_of(batch, 0, range(5)), []))]
    close(seen[0][0], [0.0] * 6 + half)                                         # no word yet, then half the mean
    model.gate[2].bias.data.fill_(-200.0)
    blind = memory | {'mean': memory['mean'] + 1}
    torch.testing.assert_close(model.step(None, state, memory)[0], model.step(None, state, blind)[0])


@pytest.mark.parametrize('variant, steps', [('soft', 6), ('first', 1), ('avgpool', 0)])
def test_description_loss_by_hand_from_the_loop(variant, steps):
    """Sum over words plus lambda times the penalty over all N K^2 places: `first` looks once, `avgpool` never."""
    model, batch = build(sta.Captioner, config(variant=variant, penalty=2.0), scale=2.0), clips(5)
    expected = 0.0
    for words in batch['captions'].tolist():
        slices, words = sum(cubes_of(batch, 0, range(5)), []), [w for w in words if w != PAD]
        logps, alphas, _ = loop_describe(model, slices, words, variant)
        expected -= sum(logps) / 2
        if steps:
            expected += 2 * sum((1 - sum(a[i] for a in alphas[:steps])) ** 2 for i in range(30)) / 2
    close(model(batch)[0], expected)


@pytest.mark.parametrize('variant', ['soft', 'avgpool', 'first'])
def test_padding_changes_neither_loss_nor_captions(variant):
    """Other numbers in the padding, less padding, other company: all the same, the penalty included."""
    model, batch = build(sta.Captioner, config(variant=variant, penalty=1.0)), clips(4, 2, extra=1)
    other = clips(4, 2)
    other['feats']['clip'][1, 2:] = -7.0
    close(model(other)[0], model(batch)[0].item())
    alone = []
    for row, n in ((0, 4), (1, 2)):
        mine = batch['rows'] == row
        alone.append({'feats': {'clip': batch['feats']['clip'][row:row + 1, :n]},
                      'mask': {'clip': torch.ones(1, n, dtype=torch.bool)},
                      'captions': batch['captions'][mine], 'rows': torch.zeros(2, dtype=torch.long)})
    close(model(batch)[0], sum(model(one)[0].item() for one in alone) / 2)
    words, score = beam(model, *model.encode(batch), 6, 4)
    for row, one in enumerate(alone):
        words_alone, score_alone = beam(model, *model.encode(one), 6, 4)
        close(score[row], score_alone[0].item())
        assert [w for w in words[row].tolist() if w != PAD] == [w for w in words_alone[0].tolist() if w != PAD]
        said, logp = greedy(model, *model.encode(one), 6)                       # what is said is what training scores
        replayed, _ = teacher_force(model, *model.encode(one), said)
        torch.testing.assert_close(replayed, logp, rtol=1e-4, atol=1e-5)


def test_more_frames_than_weights_is_told():
    with pytest.raises(ValueError, match='6 frames.*5'):
        build(sta.Captioner, config()).encode(clips(6))


def test_captioner_dropout_spares_the_recurrent_connections():
    """With dropout 1 word and glimpse are 0 to the LSTM and all words are equally likely, yet h_t-1 still gives l_t,
    beta_t and h_t."""
    model, batch = build(sta.Captioner, config(dropout=1.0), scale=2.0).train(), clips(5)
    memory, (h, c) = model.encode(batch)
    w, H, token = plain(model), h[0].tolist(), None
    state, C, fed = (h, c), c[0].tolist(), []
    for part in (model.w_h, model.w_x, model.w_p):
        part.register_forward_pre_hook(lambda _, inputs: fed.append(inputs[0]))
    for _ in range(3):
        logits, state, aux = model.step(token, state, memory)
        close(aux['space'][0].flatten(), softmax(affine(w['location.weight'], H)))
        close(aux['gate'][0], sigma(mlp(w, 'gate', H)[0]))
        assert not logits.any()
        H, C = lstm(w, 'lstm', [0.0] * 10, H, C)
        close(state[0][0], H)
        token = torch.tensor([5])
    assert len(fed) == 9 and not any(x.any() for x in fed)


# both -----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('cls, variant', [(sta.Recogniser, v) for v in ('soft', 'avgpool', 'maxpool', 'softmax')]
                         + [(sta.Captioner, v) for v in ('soft', 'avgpool', 'first')])
def test_every_parameter_learns(cls, variant):
    assert variant in sta.VARIANTS
    torch.manual_seed(0)
    model = cls(config(variant=variant, penalty=1.0, vocab=9))
    model(clips(5, 4, 4))[0].backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())


def test_weight_decay_is_gamma_theta_squared():
    """The optimizer's weight decay steps as gamma * sum(theta^2) in the loss does, gamma = 1e-5 (Sec. 2.2.2)."""
    steps = []
    for in_loss in (True, False):
        theta = torch.tensor([3.0, -500.0], dtype=torch.double, requires_grad=True)
        optimizer = torch.optim.SGD([theta], lr=1.0, weight_decay=0.0 if in_loss else sta.Config().weight_decay)
        (1e-5 * theta.square().sum() if in_loss else 0 * theta.sum()).backward()
        optimizer.step()
        steps.append(theta.detach())
    torch.testing.assert_close(*steps)
    assert sta.Config().optimizer == 'adam'                         # coupled; AdamW's decay is not gamma theta^2


def test_the_papers_values():
    c = sta.Config()
    assert (c.hidden, c.embed, c.layers, c.penalty, c.dropout, c.block, c.epochs, c.beam) == (4096, 512, 3, 1, 0.5, 30, 15, 4)
    assert [sta.PRESETS[name]['hidden'] for name in ('ucf11', 'hollywood2', 'hmdb51')] == [512, 512, 1024]


def test_a_variant_of_the_other_task_and_an_odd_frame_rate_are_refused():
    sizes = dict(vocab=9, feats={'googlenet': [2, 2, 3]}, frames=4, classes=3, hidden=4, embed=4)
    for build, fields in ((sta.Captioner, {'variant': 'maxpool'}), (sta.Captioner, {'variant': 'softmax'}),
                          (sta.Recogniser, {'variant': 'first'}), (sta.Recogniser, {'fps': 20})):
        with pytest.raises(ValueError, match='--variant|--fps'):
            build(sta.Config(**sizes, **fields))


def test_dropout_is_on_every_input_of_the_recognisers_layers():
    sizes = dict(feats={'googlenet': [2, 2, 3]}, frames=4, classes=3, hidden=4, layers=2, dropout=1.0)
    model, fed = sta.Recogniser(sta.Config(**sizes)).train(), []
    for part in (*model.lstms, model.hidden, model.classify):
        part.register_forward_pre_hook(lambda _, inputs: fed.append(inputs[0]))
    model.read(torch.randn(2, 4, 4, 3), torch.ones(2, 4, dtype=torch.bool), torch.tensor([0, 1]), torch.tensor([0, 0]))
    assert len(fed) == 4 * 4 and not any(x.any() for x in fed)      # 4 steps; 2 LSTMs, the tanh layer, the classifier


@pytest.mark.parametrize('name', list(sta.PRESETS))
def test_presets_are_configs(name):
    dataset, _, task = name.partition('/')
    cfg = sta.Config(**(sta.PRESETS[dataset] | ({'task': task} if task else {}) | sta.PRESETS[name]))
    assert cfg.task in ('describe', 'recognise') and cfg.variant in sta.VARIANTS
