"""ASTAR: attentions and baselines against plain loops over their equations; batches of any lengths; bad input."""
import itertools
import math

import pytest
import torch

from astar import ALIGN, LAYERS, VARIANTS, Captioner, Config, Convolution, Vectorised, read_windows
from c3d import receptive_field
from data import EOS, PAD, BadInput
from decode import greedy, select, teacher_force

torch.set_num_threads(1)
WIDTH, WORDS = 1, 9
KINDS = {'c3d_pool2': (2, (28, 28, 2 * WIDTH)), 'c3d_pool3': (4, (14, 14, 4 * WIDTH)),          # frames per step, shape
         'c3d_pool4': (8, (7, 7, 8 * WIDTH)), 'c3d_pool5': (16, (4, 4, 8 * WIDTH)),
         'c3d_fc7': (1000, (6,)), 'resnet152': (2, (2, 3, 5))}


def make_batch(frames, seed=0):
    """Videos of so many frames, two captions each, in turn; the padding holds numbers too."""
    torch.manual_seed(seed)
    N = len(frames)
    batch = {'feats': {}, 'mask': {}, 'ids': [f'v{n}' for n in frames], 'rows': torch.arange(2 * N) % N}
    for name, (every, shape) in KINDS.items():
        steps = torch.tensor([math.ceil(n / every) for n in frames])
        batch['feats'][name] = torch.rand(N, steps.max(), *shape)
        batch['mask'][name] = torch.arange(steps.max())[None] < steps[:, None]
    batch['captions'] = torch.full((2 * N, 6), PAD)
    for b in range(2 * N):
        batch['captions'][b, :2 + b % 4] = torch.randint(3, WORDS, (2 + b % 4,))
        batch['captions'][b, 2 + b % 4] = EOS
    return batch


def only(batch, row):
    """The same batch with one video, cut to its own length"""
    frames = {name: mask[row].sum() for name, mask in batch['mask'].items()}
    mine = batch['rows'] == row
    return {'feats': {name: x[row:row + 1, :frames[name]] for name, x in batch['feats'].items()},
            'mask': {name: x[row:row + 1, :frames[name]] for name, x in batch['mask'].items()},
            'ids': [batch['ids'][row]], 'captions': batch['captions'][mine], 'rows': batch['rows'][mine] * 0}


def make_model(variant, init=0.3):
    torch.manual_seed(1)
    cfg = Config(variant=variant, vocab=WORDS, feats={name: list(shape) for name, (_, shape) in KINDS.items()},
                 hidden=7, embed=5, attn=6, bottleneck=4, samples=2, dropout=0.0, init=init)
    return Captioner(cfg)


def caption_logp(model, batch):
    return teacher_force(model, *select(model.encode(batch), batch['rows']), batch['captions'])


# -------------------------------------------------------------------------------------------------------- every variant

@pytest.mark.parametrize('variant', VARIANTS)
def test_shapes_and_gradients(variant):
    model, batch = make_model(variant), make_batch((5, 33))
    loss, logs = model(batch)
    assert loss.shape == () and all(isinstance(value, float) for value in logs.values())
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    memory, state = model.encode(batch)
    logits, state, first = model.step(None, state, memory)
    again, state, second = model.step(torch.tensor([3, 4]), state, memory)
    assert logits.shape == again.shape == (2, WORDS)
    assert first.keys() == second.keys() and all(not x.any() for x in first.values())
    assert all(first[name].shape == second[name].shape for name in first)
    keys = {'hard': {'space', 'layers', 'log_q'}, 'fc7': set(), 'resnet': set(), 'hypercolumn': {'space'}}
    keys.update({layer: {'space'} for layer in LAYERS})
    assert set(second) == keys.get(variant, {'space', 'layers'})
    if 'space' in second:
        D = (2 + 4 + 8 + 8 if variant == 'hypercolumn' else 8) * WIDTH
        assert memory['a'].shape == (2, 3 * 4 * 4, 4 if 'layers' in second else 1, D)       # 4 x 4 x ceil(N/16)
        assert second['space'].shape == (2, 3, 4, 4)
        assert torch.allclose(second['space'].sum((1, 2, 3)), torch.ones(2)) and not second['space'][0, 1:].any()


@pytest.mark.parametrize('variant', VARIANTS)
def test_a_batch_of_5_16_and_33_frames_equals_three_batches_of_one(variant):
    model, batch = make_model(variant, init=0.5).eval(), make_batch((5, 16, 33))
    with torch.no_grad():
        logp, aux = caption_logp(model, batch)
        words, _ = greedy(model, *model.encode(batch), 8)
        for row in range(3):
            alone = only(batch, row)
            expected, aux_alone = caption_logp(model, alone)
            mine = batch['rows'] == row
            assert torch.allclose(logp[mine], expected, atol=1e-5)
            if 'space' in aux:
                steps = aux_alone['space'].shape[2]
                assert torch.allclose(aux['space'][mine, :, :steps], aux_alone['space'], atol=1e-5)
                assert not aux['space'][mine, :, steps:].any()
            spoken, _ = greedy(model, *model.encode(alone), 8)
            T = spoken.shape[1]
            assert words[row, :T].tolist() == spoken[0].tolist() and not words[row, T:].any()


@pytest.mark.parametrize('variant', VARIANTS)
def test_padding_frames_and_padding_words_change_nothing(variant):
    model, batch = make_model(variant).eval(), make_batch((3, 20))
    with torch.no_grad():
        before, _ = model(batch)
        for name, mask in batch['mask'].items():
            batch['feats'][name][~mask] = 1e3 * torch.randn(())
        batch['captions'] = torch.nn.functional.pad(batch['captions'], (0, 3), value=PAD)
        after, _ = model(batch)
    assert before.item() == pytest.approx(after.item(), rel=1e-6)


def test_the_first_word_sees_fc7_alone_and_only_the_others_see_the_maps():
    model, batch = make_model('soft').eval(), make_batch((16, 16))
    with torch.no_grad():
        before, _ = caption_logp(model, batch)
        for name in ('c3d_pool2', 'c3d_pool3', 'c3d_pool4', 'c3d_pool5'):
            batch['feats'][name] = torch.rand_like(batch['feats'][name])
        maps, _ = caption_logp(model, batch)
        assert torch.equal(before[:, 0], maps[:, 0]) and (before[:, 1] != maps[:, 1]).all()
        memory, state = model.encode(batch)
        assert torch.allclose(state[0], torch.tanh(model.first(batch['feats']['c3d_fc7'][:, 0]))) and not state[1].any()
        assert torch.equal(model.step(None, state, memory)[0], model.out(state[0]))         # no LSTM step, no <bos>


def test_the_dear_part_runs_once_per_video():
    model, batch, seen = make_model('soft'), make_batch((16, 16)), []
    model.align['pool2'].register_forward_hook(lambda module, args, out: seen.append(len(args[0])))
    model(batch)
    assert len(batch['captions']) == 4 and seen == [2]


def test_features_follow_the_variant():
    assert Config().features == ('c3d_pool2', 'c3d_pool3', 'c3d_pool4', 'c3d_pool5', 'c3d_fc7')
    assert Config(variant='pool3').features == ('c3d_pool3', 'c3d_fc7')
    assert Config(variant='fc7').features == ('c3d_fc7',)
    assert Config(variant='resnet', frame_features='clip').features == ('clip',)
    assert Config(variant='fc7', features=('mine',)).features == ('mine',)
    with pytest.raises(BadInput, match='layers-first'):
        Config(variant='middle')


def test_first_weights_are_as_stated():
    for variant in ('soft', 'mlp', 'resnet'):
        model = make_model(variant, init=0.01)
        for name, parameter in model.named_parameters():
            if 'weight_hh' in name:
                for gate in parameter.detach().view(4, 7, 7):
                    assert torch.allclose(gate @ gate.T, torch.eye(7), atol=1e-5)
            elif 'bias' in name:
                assert not parameter.any()
            else:
                inputs = parameter[0].numel() if '.wide.' in name else 1                # those are divided by sqrt(inputs) where used
                assert 0.005 < parameter.abs().max() / math.sqrt(inputs) <= 0.010001
    for name, parameter in make_model('soft', init=0.0).align['pool2'].named_parameters():          # torch's own: by the inputs
        bound = 0.0 if 'bias' in name else 1.0
        assert 0.9 * bound <= parameter.abs().max() <= 1.0001 * bound


def test_bad_input_is_told():
    model, batch = make_model('soft'), make_batch((16, 16))
    batch['feats']['c3d_pool3'][1, 2, 3, 3, 0] = float('nan')
    with pytest.raises(BadInput, match="c3d_pool3: video 'v16' holds NaN"):
        model(batch)
    batch = make_batch((16, 5))
    batch['mask']['c3d_pool4'][1] = False
    with pytest.raises(BadInput, match="c3d_pool4: video 'v5' has zero frames"):
        model(batch)
    batch = make_batch((16, 16))
    batch['feats']['c3d_pool2'] = batch['feats']['c3d_pool2'][:, :, :20]
    with pytest.raises(BadInput, match=r'c3d_pool2: \[20, 28, 2\]'):
        model(batch)


# ------------------------------------------------------------------------------------------------------------ attention

def dot(w, x):
    return sum(a * b for a, b in zip(w, x))


def score(v, w, bias, x, u, h):
    """v^T tanh(W x + bias + U h), number by number"""
    return dot(v, [math.tanh(dot(row, x) + b + dot(more, h)) for row, b, more in zip(w, bias, u)])


def softmax(e):
    return [math.exp(x) / sum(map(math.exp, e)) for x in e]


def attention_by_hand(model, h, a):
    """h [H], a [I][L][D], all real -> alpha [I], beta [L], z [D] of Eq. 4 to 8, or with the layers first"""
    p = {name: x.tolist() for name, x in model.state_dict().items() if name.split('.')[0] in
         ('w_a', 'u_alpha', 'v_alpha', 'w_s', 'u_beta', 'v_beta')}
    places = lambda x: score(p['v_alpha.weight'][0], p['w_a.weight'], p['w_a.bias'], x, p['u_alpha.weight'], h)
    layers = lambda x: score(p['v_beta.weight'][0], p['w_s.weight'], p['w_s.bias'], x, p['u_beta.weight'], h)
    I, L, D = len(a), len(a[0]), len(a[0][0])
    if model.cfg.variant == 'layers-first':
        mean = [[sum(a[i][l][d] for i in range(I)) / I for d in range(D)] for l in range(L)]
        beta = softmax([layers(mean[l]) for l in range(L)])
        mixed = [[sum(beta[l] * a[i][l][d] for l in range(L)) for d in range(D)] for i in range(I)]
        alpha = softmax([places(mixed[i]) for i in range(I)])
        return alpha, beta, [sum(alpha[i] * mixed[i][d] for i in range(I)) for d in range(D)]
    alpha = softmax([places([x for layer in a[i] for x in layer]) for i in range(I)])       # stacked over the layers
    s = [[sum(alpha[i] * a[i][l][d] for i in range(I)) for d in range(D)] for l in range(L)]
    beta = softmax([layers(s[l]) for l in range(L)]) if L > 1 else [1.0]
    return alpha, beta, [sum(beta[l] * s[l][d] for l in range(L)) for d in range(D)]


@pytest.mark.parametrize('variant', ['soft', 'layers-first', 'pool5', 'hypercolumn', 'avgpool'])
def test_attention_equals_a_loop_over_its_equations(variant):
    model = make_model(variant, init=1.0).double().eval()
    batch = make_batch((16, 7))
    batch['feats'] = {name: x.double() for name, x in batch['feats'].items()}
    with torch.no_grad():
        memory, (h, c) = model.encode(batch)
        h = torch.randn_like(h)
        z, aux = model.attend(h, memory)
    for row in range(2):
        alpha, beta, by_hand = attention_by_hand(model, h[row].tolist(), memory['a'][row].tolist())
        assert aux['space'][row].flatten().tolist() == pytest.approx(alpha)
        assert z[row].tolist() == pytest.approx(by_hand)
        assert 'layers' not in aux or aux['layers'][row].tolist() == pytest.approx(beta)


def test_hard_attention_takes_the_mode_at_test_time_and_draws_when_training():
    model, batch = make_model('hard'), make_batch((16, 33))
    with torch.no_grad():
        memory, (h, _) = model.eval().encode(batch)
        h = torch.randn_like(h)
        z, aux = model.attend(h, memory)
        for row in range(2):
            i = aux['space'][row].flatten().argmax()
            s = memory['a'][row, i]                                                         # (L, D)
            l = aux['layers'][row].argmax()
            assert torch.equal(z[row], s[l])
            expected = aux['space'][row].flatten()[i].log() + aux['layers'][row, l].log()
            assert aux['log_q'][row].item() == pytest.approx(expected.item(), abs=1e-5)
        one = {name: x[:1].expand(4000, *x.shape[1:]) for name, x in memory.items()}
        torch.manual_seed(0)
        z, _ = model.train().attend(h[:1].expand(4000, -1), one)
    # Which place and layer each draw read: pool5's features are all different, so at least those can be told.
    places = (z[:, None] == memory['a'][0, :, 3]).all(2).float().mean(0)                    # (I,): place i, layer pool5
    s = memory['a'][0]                                                                      # (I, L, D)
    with torch.no_grad():
        beta = model.over_layers(h[:1].expand(len(s), -1), model.w_s(s)).exp()              # (I, L), each place's own
    expected = aux['space'][0].flatten() * beta[:, 3]
    error = (expected * (1 - expected) / 4000).sqrt()
    assert (places[:16] > 0).sum() > 4 and ((places - expected)[:16].abs() < 4 * error[:16] + 1e-9).all()
    assert not places[16:].any()                            # never beyond the video's end


# --------------------------------------------------------------------------------------------- bringing layers together

def test_alignment_equals_a_loop_over_equation_3():
    torch.manual_seed(0)
    align = Convolution('pool4', 2, 3).double()
    a, mask = torch.rand(1, 3, 7, 7, 2).double(), torch.ones(1, 3, dtype=torch.bool)
    weight, bias = (align.wide.weight / math.sqrt(2 * 3 ** 3)).tolist(), align.wide.bias.tolist()
    kernel, padding, pool = ALIGN['pool4']

    def f(t, y, x, k):                                                                      # ReLU of the convolution
        total = bias[k]
        for c, dt, dy, dx in itertools.product(range(2), *[range(kernel)] * 3):
            place = (t + dt - padding, y + dy - padding, x + dx - padding)
            if all(0 <= p < size for p, size in zip(place, (3, 7, 7))):
                total += weight[k][c][dt][dy][dx] * a[0][place][c].item()
        return max(total, 0.0)

    out = align(a, mask)
    assert out.shape == (1, 2, 4, 4, 3)
    for t, y, x, k in ((0, 0, 0, 0), (1, 3, 3, 1), (1, 2, 0, 2), (0, 3, 1, 0)):
        window = [[p for p in range(pool * i, pool * i + pool) if p < size] for i, size in ((t, 3), (y, 7), (x, 7))]
        assert out[0, t, y, x, k].item() == pytest.approx(max(f(*place, k) for place in itertools.product(*window)))


@pytest.mark.parametrize('layer, side, every', [('pool2', 28, 2), ('pool3', 14, 4), ('pool4', 7, 8)])
def test_windows_equal_loops_over_equation_17_and_interpolation(layer, side, every):
    torch.manual_seed(0)
    frames = (33, 20)
    steps = [math.ceil(n / every) for n in frames]
    a = torch.randn(2, max(steps), side, side, 1).double()
    mask = torch.arange(max(steps))[None] < torch.tensor(steps)[:, None]
    fields = receptive_field('pool5', inside=layer)
    out = {reduce: read_windows(a, mask, fields, reduce) for reduce in ('max', 'mean', 'centre')}
    stride, first, last = {'pool2': (8, -21, 14), 'pool3': (4, -9, 6), 'pool4': (2, -3, 2)}[layer]
    for row, t, y, x in ((0, 1, 1, 1), (0, 3, 4, 2), (1, 2, 3, 4), (1, 1, 4, 4), (0, 2, 2, 3)):     # units, from 1
        value = a[row, :, :, :, 0].tolist()
        sizes = (steps[row], side, side)
        seen = [[j - 1 for j in range(stride * i + first, stride * i + last + 1) if 1 <= j <= size]
                for i, size in zip((t, y, x), sizes)]
        values = [value[p][q][r] for p, q, r in itertools.product(*seen)]
        assert out['max'][row, t - 1, y - 1, x - 1].item() == pytest.approx(max(values))
        assert out['mean'][row, t - 1, y - 1, x - 1].item() == pytest.approx(sum(values) / len(values))
        centre = [min(stride * i + (first + last) / 2, size) for i, size in zip((t, y, x), sizes)]  # kept on the map
        near = [((math.floor(c), 1 - c % 1), (math.floor(c) + 1, c % 1)) for c in centre]           # trilinear
        value_there = sum(w1 * w2 * w3 * value[p - 1][q - 1][r - 1]
                          for (p, w1), (q, w2), (r, w3) in itertools.product(*near) if w1 * w2 * w3 > 0)
        assert out['centre'][row, t - 1, y - 1, x - 1].item() == pytest.approx(value_there)
    assert out['max'].shape == (2, 3, 4, 4, 1)


def test_a_window_on_pool5_itself_is_pool5():
    a, mask = torch.randn(2, 3, 4, 4, 5), torch.ones(2, 3, dtype=torch.bool)
    for reduce in ('max', 'mean', 'centre'):
        assert torch.allclose(read_windows(a, mask, receptive_field('pool5', inside='pool5'), reduce), a)


def test_the_perceptron_reads_16_frames_at_a_time():
    torch.manual_seed(0)
    model = Vectorised('pool3', (2, 3, 4), 5, 6)
    a = torch.randn(1, 9, 2, 3, 4)                          # 33 frames: four steps, four and one
    out = model(a, None)
    assert out.shape == (1, 3, 4, 4, 5)
    hidden = model.wide(torch.cat([a[0, 8].flatten(), torch.zeros(3 * 24)]) / math.sqrt(96)).relu()
    last = model.out(hidden).view(4, 4, 5)
    assert torch.allclose(out[0, 2], last, atol=1e-6) and torch.allclose(out[:, 1:2], model(a[:, 4:8], None), atol=1e-6)


def test_resnet_encodes_the_frames_one_after_another():
    model, batch = make_model('resnet').eval(), make_batch((8, 3))
    cell = torch.nn.LSTMCell(5, 7)
    cell.load_state_dict({name.replace('_l0', ''): x for name, x in model.encoder.state_dict().items()})
    with torch.no_grad():
        memory, (h, c) = model.encode(batch)
        for row, steps in enumerate((4, 2)):
            state = torch.zeros(1, 7), torch.zeros(1, 7)
            for t in range(steps):
                state = cell(batch['feats']['resnet152'][row, t].mean((0, 1))[None], state)     # a grid is averaged
            assert torch.allclose(h[row], state[0][0], atol=1e-6) and torch.allclose(c[row], state[1][0], atol=1e-6)
    assert memory == {}


def test_a_step_is_equation_2_on_the_word_and_on_what_the_h_before_it_attended_to():
    model, batch = make_model('soft', init=1.0).eval(), make_batch((16, 33))
    with torch.no_grad():
        memory, state = model.encode(batch)
        _, (h, c), _ = model.step(torch.tensor([3, 4]), state, memory)                      # from here on c is not 0
        word = torch.tensor([5, 6])
        logits, (h_next, c_next), _ = model.step(word, (h, c), memory)
        x = torch.cat([model.embed(word), model.attend(h, memory)[0]], 1)                   # z_t = phi(h_t-1, a)
        i, f, g, o = (x @ model.lstm.weight_ih.T + h @ model.lstm.weight_hh.T).chunk(4, 1)  # the first biases are 0
        cell = f.sigmoid() * c + i.sigmoid() * g.tanh()
        assert torch.allclose(c_next, cell, atol=1e-5) and torch.allclose(h_next, o.sigmoid() * cell.tanh(), atol=1e-5)
        assert torch.allclose(logits, model.out(h_next), atol=1e-5)


@pytest.mark.parametrize('variant, reduce', [('maxpool', 'max'), ('avgpool', 'mean'), ('hypercolumn', 'centre')])
def test_pooled_variants_read_their_windows_in_every_layer(variant, reduce):
    model, batch = make_model(variant).eval(), make_batch((33, 33))
    with torch.no_grad():
        a = model.encode(batch)[0]['a']                                                     # (N, I, L, D)
        read = [read_windows(batch['feats'][f'c3d_{layer}'], batch['mask'][f'c3d_{layer}'],
                             receptive_field('pool5', inside=layer), reduce).flatten(1, 3) for layer in LAYERS]
        if variant == 'hypercolumn':
            assert torch.equal(a[:, :, 0], torch.cat(read, 2))
        else:                                                                               # Eq. 18, for l = 1 .. L
            expected = torch.stack([model.align[layer].mlp(x) for layer, x in zip(LAYERS, read)], 2)
            assert torch.allclose(a, expected, atol=1e-6)
