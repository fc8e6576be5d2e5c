"""ASTAR: attentions, alignments and VIMCO against loops and enumeration; bad input.
(Gradients, padding and single videos are tested in test_models.py.)"""
import contextlib
import itertools
import math

import pytest
import torch

import astar
import helpers
from astar import VARIANTS, Captioner, Config, read_windows, vimco
from c3d import ALIGN, MAPS, receptive_field
from data import EOS, BadInput
from decode import select, teacher_force

torch.set_num_threads(1)
SHAPES = {'c3d_pool2': [28, 28, 2], 'c3d_pool3': [14, 14, 4], 'c3d_pool4': [7, 7, 8],
          'c3d_pool5': [4, 4, 8], 'c3d_fc7': [6], 'resnet152': [2, 3, 5]}
EVERY = dict(zip(SHAPES, (2, 4, 8, 16, 16, 2)))     # frames per step; fc7 is stored by windows


def make_batch(frames):
    """Videos with these numbers of frames, two captions each; the padding is not zero"""
    torch.manual_seed(0)
    steps = {name: [math.ceil(n / every) for n in frames] for name, every in EVERY.items()}
    rows = [*range(len(frames))] * 2
    batch = helpers.batch(SHAPES, steps, rows, lengths=[2 + b % 4 for b in range(len(rows))])
    for name, mask in batch['mask'].items():
        batch['feats'][name][~mask] = 1e3
    return batch


def make_model(variant, **fields):
    torch.manual_seed(1)
    small = dict(hidden=7, embed=5, attn=6, bottleneck=4, samples=2, dropout=0.0, init=0.3)
    return Captioner(Config(variant=variant, **{**small, **fields}), helpers.sizes(SHAPES))


def doubles(model, batch):
    return model.double(), {**batch, 'feats': {n: x.double() for n, x in batch['feats'].items()}}


def grad(value, parameters):
    gradients = torch.autograd.grad(value, parameters, retain_graph=True)
    return torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.parametrize('variant', VARIANTS)
def test_shapes_aux_and_view(variant):
    model, batch = make_model(variant), make_batch((5, 33))
    memory, state = model.encode(batch)
    _, aux = teacher_force(model, memory, state, torch.tensor([[3, EOS], [4, EOS]]))
    keys = {'hard': {'space', 'layers', 'log_q'}, 'hypercolumn': {'space'}, 'fc7': set(),
            'resnet': set(), **{layer: {'space'} for layer in MAPS}}
    assert set(aux) == keys.get(variant, {'space', 'layers'})
    assert not any(x[:, 0].any() for x in aux.values())             # the first word looks nowhere
    view = astar.VIEW['attention']({name: x[1] for name, x in aux.items()})
    if not aux:
        assert view is None and memory == {}
        return
    D = 4 * 8 if variant == 'hypercolumn' else 8
    assert memory['a'].shape == (2, 3 * 4 * 4, 4 if 'layers' in aux else 1, D)
    space = aux['space'][:, 1]                                      # the second word
    assert space.shape == (2, 3, 4, 4) and not space[0, 1:].any()   # 5 frames: 1 step of 3
    assert torch.allclose(space.sum((1, 2, 3)), torch.ones(2))
    assert view.shape == (2, 3, 16) and view[1, 2, 4 * 1 + 3] == space[1, 2, 1, 3]
    assert astar.VIEW['bars'] == {'layers': ('pool2', 'pool3', 'pool4', 'pool5')}


def test_the_config_has_the_printed_values():
    cfg = Config()
    assert (cfg.hidden, cfg.embed, cfg.samples, cfg.clip) == (512, 300, 10, 5.0)        # appendix
    assert (cfg.optimizer, cfg.rate, cfg.init) == ('adam', 2e-4, 0.01)                  # appendix
    assert cfg.videos_per_batch * cfg.captions_per_video == 32                          # appendix
    assert (cfg.weight_decay, cfg.min_count) == (0.0, 1)                                # Datasets
    assert ALIGN == {'pool2': (7, 3, 8), 'pool3': (5, 2, 4), 'pool4': (3, 1, 2)}        # appendix


def test_features_follow_the_variant_and_others_are_refused():
    assert Config().features == (*(f'c3d_{layer}' for layer in MAPS), 'c3d_fc7')
    assert Config(variant='pool3').features == ('c3d_pool3', 'c3d_fc7')
    assert Config(variant='fc7').features == ('c3d_fc7',)
    assert Config(variant='resnet', frame_features='clip').features == ('clip',)
    assert Config(variant='fc7', features=('mine',)).features == ('mine',)
    for variant, features, message in (
            ('middle', (), '--variant middle: choose one of soft, .*layers-first'),
            ('soft', ('c3d_fc7',), 'reads pool2, pool3, pool4, pool5, fc7'),
            ('pool3', ('c3d_pool4', 'c3d_fc7'), r'c3d_pool4: .*\[14, 14, .*found \[7, 7, 8\]'),
            ('fc7', ('c3d_pool5',), r'c3d_pool5: .*found \[4, 4, 8\]')):
        with pytest.raises(BadInput, match=message):
            make_model(variant, features=features)


def test_bad_batches_are_refused():
    broken, empty, narrow = (make_batch((16, 5)) for _ in range(3))
    broken['feats']['c3d_pool3'][1, 0, 3, 3, 0] = float('nan')
    empty['mask']['c3d_pool4'][1] = False
    narrow['feats']['c3d_pool2'] = narrow['feats']['c3d_pool2'][:, :, :20]
    for batch, message in ((broken, "c3d_pool3: video 'b' has NaN"), (narrow, r'\[20, 28, 2\]'),
                           (empty, "c3d_pool4: video 'b' has zero frames")):
        with pytest.raises(BadInput, match=message):
            make_model('soft')(batch)


@pytest.mark.parametrize('variant', ['soft', 'mlp', 'resnet'])
def test_first_weights_are_as_printed(variant):
    for name, parameter in make_model(variant, init=0.01).named_parameters():
        if 'weight_hh' in name:
            for gate in parameter.detach().view(4, 7, 7):
                assert torch.allclose(gate @ gate.T, torch.eye(7), atol=1e-5)
        elif 'bias' in name:
            assert not parameter.any()
        else:                                       # scaled layers divide by sqrt(inputs)
            inputs = parameter[0].numel() if '.wide.' in name else 1
            assert 0.005 < parameter.abs().max() / math.sqrt(inputs) <= 0.010001
    for module in make_model(variant, init=0.0).modules():          # torch: +-1 / sqrt(inputs)
        if isinstance(module, astar.Scaled):
            assert 0.9 <= module.layer.weight.abs().max() <= 1.0001


def mean_of_fc7(batch):
    """Of videos of 16 and 33 frames: of 1 and of 3 windows"""
    one, several = batch['feats']['c3d_fc7']
    return torch.stack([one[0], (several[0] + several[1] + several[2]) / 3])


@torch.no_grad()
def test_the_first_word_depends_on_the_mean_of_fc7_alone():
    model, batch = make_model('soft').eval(), make_batch((16, 33))
    memory, state = model.encode(batch)
    expected = model.first(mean_of_fc7(batch)).tanh()
    assert torch.allclose(state[0], expected, atol=1e-6) and not state[1].any()
    logits, (h, c), _ = model.step(None, state, memory)
    assert torch.equal(h, state[0]) and torch.equal(c, state[1])        # no LSTM step, no <bos>
    assert torch.equal(logits, model.out(h))


@torch.no_grad()
@pytest.mark.parametrize('variant', ['soft', 'fc7-every'])
def test_a_step_is_equation_2_on_the_word_and_on_what_the_previous_h_attended_to(variant):
    """The variant fc7-every adds fc7 to the input."""
    model, batch = make_model(variant, init=1.0).eval(), make_batch((16, 33))
    memory, (h, _) = model.encode(batch)
    c = torch.randn_like(h)
    word = torch.tensor([5, 6])
    logits, (h_next, c_next), _ = model.step(word, (h, c), memory)
    inputs = [model.embed(word), model.attend(h, memory)[0]]            # z_t = phi(h_t-1, a)
    if variant == 'fc7-every':
        inputs.append(mean_of_fc7(batch))
    gates = torch.cat(inputs, 1) @ model.lstm.weight_ih.T + h @ model.lstm.weight_hh.T
    i, f, g, o = gates.chunk(4, 1)                                      # all biases start at 0
    cell = f.sigmoid() * c + i.sigmoid() * g.tanh()
    assert torch.allclose(c_next, cell, atol=1e-5)
    assert torch.allclose(h_next, o.sigmoid() * cell.tanh(), atol=1e-5)
    assert torch.allclose(logits, model.out(h_next), atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize('variant', ['soft', 'fc7'])
def test_input_and_output_of_the_lstm_are_dropped_out_in_training(variant):
    model = make_model(variant, dropout=1.0)                            # everything is dropped
    torch.nn.init.uniform_(model.out.bias)
    memory, state = model.encode(make_batch((16, 33)))
    logits, (h, c), _ = model.step(torch.tensor([3, 4]), state, memory)
    expected = model.lstm(torch.zeros(2, model.lstm.input_size), state)
    assert torch.equal(h, expected[0]) and torch.equal(c, expected[1])
    assert torch.equal(logits, model.out.bias.expand(2, -1))


def weights(attention, xs, h):
    scores = [attention.v((attention.w(x) + attention.u(h)).tanh()) for x in xs]        # Eq. 4, 6
    return torch.cat(scores).softmax(0)                                                 # Eq. 5, 7


def mix(p, xs):
    return sum(weight * x for weight, x in zip(p, xs))                                  # Eq. 8


@torch.no_grad()
@pytest.mark.parametrize('variant', ['soft', 'layers-first', 'pool5', 'hypercolumn', 'avgpool'])
def test_attention_equals_a_loop_over_its_equations(variant):
    model, batch = doubles(make_model(variant, init=1.0).eval(), make_batch((16, 7)))
    memory, (h, _) = model.encode(batch)
    h = torch.randn_like(h)
    z, aux = model.attend(h, memory)
    for row, a in enumerate(memory['a']):                               # (I, L, D)
        layers = a.unbind(1)
        if variant == 'layers-first':
            beta = weights(model.layer_attention, [layer.mean(0) for layer in layers], h[row])
            mixed = mix(beta, layers)                                   # (I, D)
            alpha = weights(model.place_attention, mixed, h[row])
            expected = mix(alpha, mixed)
        else:
            alpha = weights(model.place_attention, [place.flatten() for place in a], h[row])
            s = [mix(alpha, layer) for layer in layers]
            beta = weights(model.layer_attention, s, h[row]) if len(s) > 1 else torch.ones(1)
            expected = mix(beta, s)
        assert torch.allclose(aux['space'][row].flatten(), alpha)
        assert torch.allclose(aux.get('layers', torch.ones(2, 1))[row], beta)
        assert torch.allclose(z[row], expected)


@torch.no_grad()
def test_hard_attention_takes_the_mode_at_test_time_and_draws_in_training():
    model, n = make_model('hard').eval(), 4000
    memory, (h, _) = model.encode(make_batch((16, 33)))
    h = torch.randn_like(h)
    z, aux = model.attend(h, memory)
    alpha = aux['space'].flatten(1)
    for row in range(2):
        i, l = alpha[row].argmax(), aux['layers'][row].argmax()
        assert torch.equal(z[row], memory['a'][row, i, l])
        expected = alpha[row, i].log() + aux['layers'][row, l].log()
        assert aux['log_q'][row].item() == pytest.approx(expected.item(), abs=1e-5)
    torch.manual_seed(0)
    h, memory = select((h, memory), torch.zeros(n, dtype=torch.long))
    z, _ = model.train().attend(h, memory)
    s = memory['a'][0]                                      # (I, L, D): each place has its own beta
    beta = model.layer_attention(h[:len(s)], model.layer_attention.w(s)).exp()
    drawn = (z[:, None] == s[:, 3]).all(2).float().mean(0)  # (I,): how often place i of pool5
    p = alpha[0] * beta[:, 3]
    assert (drawn[:16] > 0).sum() > 4 and not drawn[16:].any()      # never after the video's end
    assert ((drawn - p).abs() <= 4 * (p * (1 - p) / n).sqrt()).all()


def test_the_convolution_equals_a_loop_over_equation_3():
    torch.manual_seed(0)
    align = astar.Convolution('pool4', 2, 3).double()
    a = torch.rand(1, 3, 7, 7, 2).double()
    weight = align.wide.layer.weight / math.sqrt(2 * 3 ** 3)            # (D, C, 3, 3, 3)

    def f(t, y, x, k):                                      # ReLU of the convolution, padding 1
        total = align.wide.layer.bias[k]
        for offset in itertools.product(range(3), repeat=3):
            place = tuple(p + o - 1 for p, o in zip((t, y, x), offset))
            if all(0 <= p < size for p, size in zip(place, (3, 7, 7))):
                total = total + weight[(k, slice(None), *offset)] @ a[0][place]
        return max(total.item(), 0.0)

    out = align(a, torch.ones(1, 3, dtype=torch.bool))
    assert out.shape == (1, 2, 4, 4, 3)
    for t, y, x, k in ((0, 0, 0, 0), (1, 3, 3, 1), (1, 2, 0, 2), (0, 3, 1, 0)):
        window = [range(2 * i, min(2 * i + 2, size)) for i, size in ((t, 3), (y, 7), (x, 7))]
        expected = max(f(*place, k) for place in itertools.product(*window))
        assert out[0, t, y, x, k].item() == pytest.approx(expected)


@torch.no_grad()
@pytest.mark.parametrize('layer', ALIGN)
def test_an_alignment_that_starts_as_the_identity_takes_the_maximum_of_each_channel(layer):
    torch.manual_seed(0)
    model = make_model('soft', align_init='identity', init=0.01).eval()
    batch = make_batch((16, 33))
    a, mask = (batch[part][f'c3d_{layer}'] for part in ('feats', 'mask'))
    aligned = model.align[layer](a.masked_fill(~mask[:, :, None, None, None], 0.0), mask)
    size = ALIGN[layer][2]
    C = a.shape[-1]
    assert aligned.shape == (2, 3, 4, 4, 8)
    for n, t, y, x, d in itertools.product(range(2), range(3), range(4), range(4), range(8)):
        steps, rows, columns = (slice(size * i, size * (i + 1)) for i in (t, y, x))
        window = a[n, :int(mask[n].sum())][steps, rows, columns, d % C]
        expected = max([0.0, *window.flatten().tolist()])
        assert aligned[n, t, y, x, d].item() == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_beta_is_logged_as_its_mean_over_the_words_that_attend():
    model, batch = make_model('soft', init=1.0).eval(), make_batch((16, 33))
    _, logs = model(batch)
    memory, state = select(model.encode(batch), batch['rows'])
    _, aux = teacher_force(model, memory, state, batch['captions'])
    words = []
    for caption, beta in zip(batch['captions'], aux['layers']):
        words += beta[1:int((caption != 0).sum())]          # the first word attends to nothing
    expected = torch.stack(words).mean(0)
    found = torch.tensor([logs[f'beta_{layer}'] for layer in MAPS])
    assert torch.allclose(found, expected, atol=1e-6)
    assert found.std() > 1e-3 and found.sum().item() == pytest.approx(1)


@pytest.mark.parametrize('layer, side, every, window', [
    ('pool2', 28, 2, (8, -21, 14)), ('pool3', 14, 4, (4, -9, 6)), ('pool4', 7, 8, (2, -3, 2))])
def test_windows_equal_loops_over_equation_17_and_interpolation(layer, side, every, window):
    torch.manual_seed(0)
    stride, first, last = window
    steps = [math.ceil(n / every) for n in (33, 20)]
    a, mask = helpers.padded([side, side, 1], steps)
    fields = receptive_field('pool5', inside=layer)
    out = [read_windows(a, mask, fields, reduce) for reduce in astar.REDUCE.values()]
    assert out[0].shape == (2, 3, 4, 4, 1)
    for row, *units in ((0, 1, 1, 1), (0, 3, 4, 2), (1, 2, 3, 4), (1, 1, 4, 4), (0, 2, 2, 3)):
        seen = []                                           # per axis: places, all counted from 1
        near = []                                           # per axis: the two nearest places
        for i, size in zip(units, (steps[row], side, side)):
            seen.append(range(max(stride * i + first, 1), min(stride * i + last, size) + 1))
            centre = min(stride * i + (first + last) / 2, size)         # never beyond the map
            near.append((math.floor(centre), math.ceil(centre)))        # halfway between them
        values = [a[row, t - 1, y - 1, x - 1].item() for t, y, x in itertools.product(*seen)]
        between = [a[row, t - 1, y - 1, x - 1].item() for t, y, x in itertools.product(*near)]
        expected = max(values), sum(values) / len(values), sum(between) / len(between)
        t, y, x = units
        found = [reduced[row, t - 1, y - 1, x - 1].item() for reduced in out]
        assert found == pytest.approx(expected, rel=1e-4)


@torch.no_grad()
@pytest.mark.parametrize('variant', astar.REDUCE)
def test_pooled_variants_read_their_windows_in_every_layer(variant):
    model, batch = make_model(variant).eval(), make_batch((33, 33))
    read = []
    for layer in MAPS:
        values, mask = batch['feats'][f'c3d_{layer}'], batch['mask'][f'c3d_{layer}']
        fields = receptive_field('pool5', inside=layer)
        read.append(read_windows(values, mask, fields, astar.REDUCE[variant]).flatten(1, 3))
    assert torch.allclose(read[3], values.flatten(1, 3), atol=1e-6)     # pool5 sees itself
    a = model.encode(batch)[0]['a']                                     # (N, I, L, D)
    expected = [model.align[layer].perceptron(x) for layer, x in zip(MAPS, read)]       # Eq. 18
    if variant == 'hypercolumn':
        assert torch.allclose(a[:, :, 0], torch.cat(expected, 2), atol=1e-6)
    else:
        assert torch.allclose(a, torch.stack(expected, 2), atol=1e-6)


def test_the_perceptron_reads_16_frames_at_a_time():
    torch.manual_seed(0)
    model = astar.Vectorised('pool3', (2, 3, 4), 5, 6)
    a = torch.randn(1, 9, 2, 3, 4)                          # 33 frames: four steps, four and one
    out = model(a, None)
    last = torch.cat([a[0, 8].flatten(), torch.zeros(3 * 24)]) / math.sqrt(96)
    expected = model.out(model.wide.layer(last).relu()).view(4, 4, 5)
    assert out.shape == (1, 3, 4, 4, 5) and torch.allclose(out[0, 2], expected, atol=1e-6)
    assert torch.allclose(out[:, 1:2], model(a[:, 4:8], None), atol=1e-6)


@torch.no_grad()
def test_resnet_encodes_the_mean_of_each_frame_one_after_another():
    model, batch = make_model('resnet').eval(), make_batch((8, 3))
    cell = torch.nn.LSTMCell(5, 7)
    cell.load_state_dict({name[:-3]: x for name, x in model.encoder.state_dict().items()})
    _, state = model.encode(batch)
    for row, steps in enumerate((4, 2)):
        hc = torch.zeros(1, 7), torch.zeros(1, 7)
        for t in range(steps):
            hc = cell(batch['feats']['resnet152'][row, t].mean((0, 1))[None], hc)
        assert all(torch.allclose(found[row], x[0], atol=1e-6) for found, x in zip(state, hc))


def small_world(level=-3.0):
    """Two choices of three, the second given the first: 9 sequences m
    -> parameters, log p(Y|m) (9,), log p(m) (9,)"""
    torch.manual_seed(0)
    theta = torch.randn(4, 3, dtype=torch.float64).requires_grad_()
    phi = torch.randn(9, dtype=torch.float64).requires_grad_()
    log_pm = (theta[0].log_softmax(0)[:, None] + theta[1:].log_softmax(1)).flatten()
    log_py = level + 2 * phi + theta[0].repeat_interleave(3)    # words and choices share parameters
    return (theta, phi), log_py, log_pm


def draws(log_pm, K):
    """All K-tuples of sequences -> their numbers (M, K), their probabilities (M,)"""
    tuples = torch.tensor(list(itertools.product(range(len(log_pm)), repeat=K)))
    return tuples, log_pm[tuples].sum(1).exp()


def exact_bound(log_py, log_pm, K):
    """Eq. 12, summed over every tuple"""
    tuples, p = draws(log_pm, K)
    return (p * log_py[tuples].exp().mean(1).log()).sum()


@pytest.mark.parametrize('K', [1, 2, 3])
def test_vimco_is_exactly_unbiased_and_its_baseline_lowers_the_variance(K):
    """Every draw is enumerated, so there is no tolerance for chance."""
    parameters, log_py, log_pm = small_world()
    tuples, p = draws(log_pm, K)
    with pytest.warns(UserWarning, match='no baseline') if K == 1 else contextlib.nullcontext():
        bound, surrogate = vimco(log_py[tuples], log_pm[tuples])
    exact = exact_bound(log_py, log_pm, K)
    assert torch.equal(bound, surrogate.detach()) and torch.allclose((p * bound).sum(), exact)
    mean = grad(exact, parameters)

    def variance(estimator):                                # of the gradient, over all tuples
        every = torch.autograd.grad(estimator, parameters, torch.eye(len(p), dtype=p.dtype),
                                    retain_graph=True, is_grads_batched=True)
        every = torch.cat([g.flatten(1) for g in every], 1)             # (M, parameters)
        assert torch.allclose(p @ every, mean, rtol=0, atol=1e-11)      # unbiased
        return (p @ (every - mean).square()).sum().item()

    plain = log_py[tuples].logsumexp(1) + bound * log_pm[tuples].sum(1)     # Eq. 13, with the log
    if K == 1:
        assert variance(surrogate) == pytest.approx(variance(plain))
    else:
        assert variance(surrogate) < 0.5 * variance(plain)


def test_the_bound_grows_with_the_number_of_samples_up_to_the_likelihood():
    _, log_py, log_pm = small_world()
    bounds = [exact_bound(log_py, log_pm, K).item() for K in (1, 2, 3, 4)]
    assert bounds[0] == pytest.approx((log_pm.exp() * log_py).sum().item())             # Eq. 10
    assert bounds == sorted(set(bounds)) and bounds[-1] < (log_pm + log_py).logsumexp(0)


def test_the_printed_equation_14_is_biased():
    parameters, log_py, log_pm = small_world(level=-1.0)
    tuples, p = draws(log_pm, 2)
    _, surrogate = vimco(log_py[tuples], log_pm[tuples])
    omega = log_py[tuples].softmax(1).detach()
    printed = surrogate + (omega * (log_py[tuples].exp() - log_py[tuples])).sum(1)      # no log
    expected = grad(exact_bound(log_py, log_pm, 2), parameters)
    found = grad((p.detach() * printed).sum(), parameters)
    assert (found - expected).abs().max() > expected.abs().max()        # not a small bias


@pytest.mark.parametrize('level', [0.0, -3000.0])           # exp(-3000) is 0
def test_vimco_equals_a_loop_over_the_equations(level):
    torch.manual_seed(0)
    near = -4 * torch.rand(2, 4, dtype=torch.float64)
    log_py = (near + level).requires_grad_()
    log_pm = torch.zeros_like(near).requires_grad_()
    bound, surrogate = vimco(log_py, log_pm)
    by_py, by_pm = torch.autograd.grad(surrogate.sum(), (log_py, log_pm))
    for b in range(2):
        p = near[b].exp().tolist()                          # a common factor changes no gradient
        L = math.log(sum(p) / 4)
        assert bound[b].item() == pytest.approx(L + level)
        for k in range(4):
            others = p[:k] + p[k + 1:]
            f = math.prod(others) ** (1 / 3)                                            # Eq. 16
            learning = L - math.log((sum(others) + f) / 4)                              # Eq. 15
            assert by_pm[b, k].item() == pytest.approx(learning, rel=1e-5)
            assert by_py[b, k].item() == pytest.approx(p[k] / sum(p))                   # omega_k


ALL = torch.tensor(list(itertools.product(range(16), range(4))))        # every place and layer


def hard_captioner(captions):
    """-> a hard Captioner with K = 3, a batch of videos of 16 frames with one caption each"""
    batch = make_batch([16] * len(captions))
    rows = torch.arange(len(captions))
    batch |= {'captions': torch.tensor(captions), 'rows': rows, 'caption_ids': rows}
    return doubles(make_model('hard', init=0.5, samples=3), batch)


def say(model, batch, choices):
    """choices (M, T - 1, 2): place and layer at each word from the second on
    -> log p(Y|m) (M,), log p(m) (M,)"""
    given = iter(choices.flatten(1).unbind(1))
    model.pick = lambda p: next(given)
    memory, state = select(model.encode(batch), torch.zeros(len(choices), dtype=torch.long))
    logp, aux = teacher_force(model, memory, state, batch['captions'].expand(len(choices), -1))
    del model.pick
    return logp.sum(1), aux['log_q'].sum(1)


@torch.no_grad()
def test_choices_of_two_words_have_probabilities_that_sum_to_one():
    both = torch.stack([ALL.repeat_interleave(64, 0), ALL.repeat(64, 1)], 1)    # (4096, 2, 2)
    p = say(*hard_captioner([[3, 4, EOS]]), both)[1].exp()
    assert p.sum().item() == pytest.approx(1.0, abs=1e-10)
    assert p.view(64, 64).sum(1).std() > 1e-6                                   # not uniform


def test_the_gradient_of_the_hard_captioner_is_exactly_unbiased():
    model, batch = hard_captioner([[3, EOS]])
    log_py, log_pm = say(model, batch, ALL[:, None])
    tuples, p = draws(log_pm, 2)
    _, surrogate = vimco(log_py[tuples], log_pm[tuples])
    parameters = list(model.parameters())
    expected = grad(exact_bound(log_py, log_pm, 2), parameters)
    found = grad((p.detach() * surrogate).sum(), parameters)
    assert torch.allclose(found, expected, rtol=0, atol=1e-10)
    assert expected.abs().max() > 1e-3


def test_k_sequences_in_one_pass_equal_k_passes_and_the_alignment_runs_once_per_video():
    model, both = hard_captioner([[3, 4, EOS, 0], [5, 3, 4, EOS]])
    aligned, made, pick = [], [], model.pick
    align = model.align['pool2']
    hook = align.register_forward_hook(lambda module, args, out: aligned.append(len(args[0])))
    model.pick = lambda p: made.append(pick(p)) or made[-1]
    loss, logs = model(both)
    del model.pick
    hook.remove()
    assert aligned == [2]
    # The longer caption runs first and its last word alone: rows 0-2 are caption 2, k = 1 .. 3.
    assert [len(x) for x in made] == [6, 6, 6, 6, 3, 3]
    words = [torch.stack(made[i:i + 2], 1) for i in (0, 2, 4)]          # place and layer
    bounds, surrogates = [], []
    for video, rows, count in ((0, slice(3, 6), 2), (1, slice(0, 3), 3)):
        choices = torch.stack([word[rows] for word in words[:count]], 1)        # (3, count, 2)
        passes = [say(model, helpers.one_video(both, video), choices[k:k + 1]) for k in range(3)]
        log_py, log_pm = (torch.cat(values) for values in zip(*passes))
        bounds.append(log_py.exp().mean().log())
        surrogates.append(vimco(log_py[None], log_pm[None])[1])
    assert loss.item() == pytest.approx(logs['nll'])
    assert logs['nll'] == pytest.approx(-torch.stack(bounds).mean().item())
    parameters = list(model.parameters())           # the score's term shows in the gradient alone
    expected = grad(-torch.cat(surrogates).mean(), parameters)
    assert torch.allclose(grad(loss, parameters), expected, atol=1e-10)
