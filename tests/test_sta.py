"""sta.py against loops over the thesis' equations, and against values worked by hand."""
import copy

import pytest
import torch

import helpers
import sta
from data import PAD, BadInput
from decode import select, teacher_force

GRID = (2, 3)
ALL = [(task, variant) for task, variants in sta.TASKS.items() for variant in variants]


@pytest.fixture(autouse=True)
def visible_dropout(monkeypatch):
    """Dropout of p multiplies by 1 + p, so that a missing or a second one changes the result."""
    def scale(x, p=0.5, training=True, inplace=False):
        return x * (1 + p) if training else x
    monkeypatch.setattr(torch.nn.functional, 'dropout', scale)


def make(task, grid=GRID, scale=2.0, **changes):
    """A small model in eval mode: D = 4, three classes, nine words, weights for five frames"""
    fields = dict(features=('clip',), hidden=7, embed=6, layers=2, dropout=0.5, block=4) | changes
    sizes = helpers.sizes({'clip': [*grid, 4]}, vocab=9, frames=5, classes=3)
    build = {'describe': sta.Captioner, 'recognise': sta.Recogniser}[task]
    torch.manual_seed(0)
    model = build(sta.Config(task=task, **fields), sizes).eval()
    helpers.scale_up(model, scale)
    return model


def clips(*frames, grid=GRID):
    """One or two clips of these lengths, with two captions each. The padding is 50, not 0."""
    torch.manual_seed(1)
    rows = (0, 0, 1, 1)[:2 * len(frames)]
    batch = helpers.batch({'clip': [*grid, 4]}, frames, rows, (3, 5, 1, 4)[:len(rows)], vocab=9)
    batch['feats']['clip'][~batch['mask']['clip']] = 50.0
    return batch | {'labels': torch.tensor([[1, 0, 0], [0, 1, 1]])[:len(frames)]}


def cubes(batch, row):
    """The real frames of the clip in this row, (F, L, D)"""
    v = batch['feats']['clip'][row, batch['mask']['clip'][row]]
    return v.reshape(len(v), -1, 4)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def check_loss(model, batch, nll, penalty, count):
    """nll and penalty: lists with one number per caption, or one per clip and label"""
    nll = torch.stack(nll)
    penalty = torch.stack(penalty)
    for model.cfg.penalty in (0.0, 1.0, 10.0):
        loss, logs = model(batch)
        close(loss, (nll + model.cfg.penalty * penalty).sum() / count)
        close(torch.tensor([logs['nll'], logs['penalty']]), torch.stack([nll, penalty]).mean(1))


def mlp(layers, x):
    return layers[2].weight @ torch.tanh(layers[0].weight @ x + layers[0].bias) + layers[2].bias


def loop_recognise(model, cubes):
    """cubes (T, L, D) of one block -> probabilities (T, C), l (T, L), 0 without attention"""
    drop = 1.5 if model.training else 1.0
    variant = model.cfg.variant
    if variant == 'softmax':
        scores = cubes.flatten(1) @ model.regression.weight.T + model.regression.bias
        return scores.softmax(1), torch.zeros(cubes.shape[:2])
    mean = sum(cube.mean(0) for cube in cubes) / len(cubes)
    h = torch.tanh(mlp(model.init_h, mean)).view(len(model.lstms), 1, -1)               # Eq. 2.6
    c = torch.tanh(mlp(model.init_c, mean)).view(len(model.lstms), 1, -1)
    state = list(zip(h, c))
    steps = []
    for cube in cubes:
        alpha = torch.zeros(len(cube))
        if variant == 'soft':
            alpha = (model.location.weight @ state[-1][0][0]).softmax(0)                # Eq. 2.4
        x = {'soft': alpha @ cube, 'avgpool': cube.mean(0), 'maxpool': cube.max(0)[0]}[variant]
        for k, lstm in enumerate(model.lstms):
            state[k] = lstm(drop * x[None], state[k])                               # Eq. 2.1-2.3
            x = state[k][0][0]
        top = torch.tanh(model.hidden.weight @ (drop * x) + model.hidden.bias)
        scores = model.classify.weight @ (drop * top) + model.classify.bias
        steps.append((scores.softmax(0), alpha))
    return [torch.stack(column) for column in zip(*steps)]


def loop_describe(model, slices, words):
    """slices (N K^2, D), words (T,) -> their log-probabilities (T,), l (T, N K^2), beta (T,)"""
    drop = 1.5 if model.training else 1.0
    h = torch.tanh(mlp(model.init_h, slices.mean(0)))
    c = torch.tanh(mlp(model.init_c, slices.mean(0)))
    y = torch.zeros(model.cfg.embed)
    steps = []
    for t, word in enumerate(words):
        alpha = torch.ones(len(slices)) / len(slices)
        if model.cfg.variant != 'avgpool':
            alpha = (model.location.weight[:len(slices)] @ h).softmax(0)                # Eq. 3.2
        if model.cfg.variant == 'first' and t > 0:
            alpha = 0 * alpha
        beta = torch.sigmoid(mlp(model.gate, h))                                        # Eq. 3.5
        x = drop * beta * (alpha @ slices)                                              # Eq. 3.3
        h, c = (z[0] for z in model.lstm(torch.cat([drop * y, x])[None], (h[None], c[None])))
        deep = y + model.w_h.weight @ (drop * h) + model.w_x.weight @ x
        p = (model.w_p.weight @ (drop * deep)).exp()                                    # Eq. 3.4
        steps.append(((p[word] / (p.sum() - p[PAD])).log(), alpha, beta[0]))
        y = model.embed.weight[word]
    return [torch.stack(column) for column in zip(*steps)]


def test_penalty_by_hand():
    alpha = torch.tensor([[[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]]])
    # totals 0.75, 0.75, 0.5: (1/4)^2 + (1/4)^2 + (1/2)^2 = 0.375
    assert sta.doubly_stochastic(alpha).tolist() == [0.375]
    # without the second step, totals 0.5, 0.5, 0: 0.25 + 0.25 + 1
    assert sta.doubly_stochastic(alpha, steps=torch.tensor([[True, False]])).tolist() == [1.5]
    # without the third place: (1/4)^2 + (1/4)^2
    places = torch.tensor([[True, True, False]])
    assert sta.doubly_stochastic(alpha, places=places).tolist() == [0.125]
    assert sta.doubly_stochastic(torch.eye(3)[None]).tolist() == [0.0]      # T = L: it can be 0


@pytest.mark.parametrize('T, L, bound', [(8, 1274, 1258.05), (30, 49, 7.37)])
def test_penalty_has_a_lower_bound_that_only_equal_totals_reach(T, L, bound):
    """For totals s_i that sum to T: sum (1 - s_i)^2 = (L - T)^2 / L + sum (s_i - T / L)^2."""
    assert abs((L - T) ** 2 / L - bound) < 0.005
    alpha = (torch.tensor([0.0, 1.0, 10.0])[:, None, None] * torch.randn(3, T, L)).softmax(2)
    excess = (alpha.sum(1) - T / L).square().sum(1)
    close(sta.doubly_stochastic(alpha), (L - T) ** 2 / L + excess)


@pytest.mark.parametrize('grid', [GRID, (6,), ()])
@pytest.mark.parametrize('variant', sta.TASKS['recognise'])
def test_recogniser_equals_the_loop_over_its_equations(variant, grid):
    """A clip that fills a block, and a shorter one with two labels, which is trained on twice"""
    model = make('recognise', grid, variant=variant).train()
    batch = clips(4, 2, grid=grid)
    probabilities, aux = model.predict(batch)
    nll = []
    penalty = []
    for row, label in ((0, 0), (1, 1), (1, 2)):
        p, alpha = loop_recognise(model, cubes(batch, row))
        close(probabilities[row], p.mean(0))
        close(aux['space'][row, :len(p)], alpha)
        assert not aux['space'][row, len(p):].any()
        nll.append(-p[:, label].log().sum())
        penalty.append((variant == 'soft') * (1 - alpha.sum(0)).square().sum())
    check_loss(model, batch, nll, penalty, 2)                               # summed over labels


@pytest.mark.parametrize('fps, block, stride, blocks', [
    (30, 4, 1, [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]),
    (30, 4, 2, [[0, 1, 2, 3], [2, 3, 4, 5]]),
    (30, 4, 3, [[0, 1, 2, 3]]),                                             # two frames in no block
    (15, 3, 1, [[0, 2, 4], [1, 3, 5]]),
    (6, 3, 1, [[0, 5]]),                                                    # less than a block
    (30, 2, 1, [[k, k + 1] for k in range(300)]),                           # many: read in parts
])
def test_blocks_by_hand(fps, block, stride, blocks):
    """The prediction is the mean over the steps, then over the blocks. The attention in a frame is
    the mean over the blocks that have it. Training draws one of the blocks."""
    model = make('recognise', fps=fps, block=block, block_stride=stride, penalty=0.0)
    batch = clips(max(6, len(blocks) + 1))
    runs = [loop_recognise(model, cubes(batch, 0)[frames]) for frames in blocks]
    p, aux = model.predict(batch)
    close(p[0], sum(p.mean(0) for p, _ in runs) / len(runs))
    for frame, found in enumerate(aux['space'][0]):
        seen = [alpha[b.index(frame)] for b, (_, alpha) in zip(blocks, runs) if frame in b]
        close(found, sum(seen, torch.zeros(6)) / max(len(seen), 1))
    if stride == 1 and len(blocks) < 9:
        possible = torch.stack([-p[:, 0].log().sum() for p, _ in runs])
        losses = torch.stack([model(batch)[0] for _ in range(40)])
        drawn = (losses[:, None] - possible).abs().argmin(1)
        close(losses, possible[drawn])
        assert drawn.unique().tolist() == list(range(len(blocks)))


def spy(module, name):
    """-> the values of a parameter at every use, also in copies of the module"""
    values = []
    module.register_forward_pre_hook(
        lambda module, _: values.append(module.get_parameter(name).detach().clone()))
    return values


def test_glimpse_stops_at_the_right_class_and_changes_only_the_location_weights_of_a_copy():
    model = make('recognise', hidden=16, scale=4.0)
    clip = clips(4)
    learned = model.predict(clip)[1]['space'][0]
    model.train()                                                           # dropout must be off
    before = copy.deepcopy(model.state_dict())
    location = spy(model.location, 'weight')
    others = [spy(model.classify, 'bias'), spy(model.lstms[0], 'weight_ih')]
    runs = [{'steps': 501}]
    for _ in range(2):                                                      # then one step fewer
        torch.manual_seed(0)
        with torch.no_grad():                                               # gradients must be on
            runs.append(sta.glimpse(model, clip, label=0, steps=runs[-1]['steps'] - 1))
    _, found, early = runs
    assert found['predicted'] == (2, 2, 0) and 1 < found['steps'] < 500
    assert early['predicted'] == (2, 2, 2) and early['steps'] == found['steps'] - 1
    assert early['probability'] < found['probability']
    close(found['learned'], learned.detach())
    for name in ('learned', 'random', 'found'):
        assert found[name].shape == (4, 6) and not found[name].requires_grad
    # Four steps use the learned weights, four the random ones. Adam's first step is its rate.
    close((location[8] - location[7]).abs(), torch.full((6, 16), 0.01))
    assert all(torch.equal(values[0], value) for values in others for value in values)
    assert model.training and all(weight.grad is None for weight in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_glimpse_starts_uniformly_between_the_trained_minimum_and_maximum():
    """The largest distance (Kolmogorov-Smirnov) of 6,144 uniform numbers from their distribution
    is below 0.021 in 99 of 100 draws. That of normal numbers would be 0.06."""
    model = make('recognise', hidden=1024, layers=1)
    weight = model.location.weight.data.normal_(0.0, 0.1)
    weight[0, 0] = -1.0
    weight[1, 1] = 3.0
    used = spy(model.location, 'weight')
    found = sta.glimpse(model, clips(1), label=0, steps=0)
    assert len(used) == 2 and torch.equal(used[0], weight)                  # learned, random
    drawn = (used[1].flatten().sort()[0] + 1.0) / 4.0
    assert 0 <= drawn[0] and drawn[-1] <= 1
    assert (drawn - torch.linspace(0, 1, len(drawn))).abs().max() < 0.021
    assert found['steps'] == 0 and torch.equal(found['random'], found['found'])


@pytest.mark.parametrize('grid', [GRID, (6,), ()])
@pytest.mark.parametrize('variant', sta.TASKS['describe'])
def test_captioner_equals_the_loop_over_its_equations(variant, grid):
    """Videos of 4 and 3 frames, where the model has weights for 5; words, pictures and loss"""
    model = make('describe', grid, variant=variant).train()
    batch = clips(4, 3, grid=grid)
    memory, state = select(model.encode(batch), batch['rows'])
    logp, aux = teacher_force(model, memory, state, batch['captions'])
    nll = []
    penalty = []
    gates = []
    for row, words in enumerate(batch['captions']):
        v = cubes(batch, batch['rows'][row])                                # (F, L, D)
        words = words[words != PAD]
        expected, alpha, beta = loop_describe(model, v.flatten(0, 1), words)
        close(logp[row, :len(words)], expected)
        said = {name: values[row, :len(words)] for name, values in aux.items()}
        shown = sta.VIEW['attention'](said)                                 # (T, F, L)
        close(shown[:, :len(v)].flatten(1), alpha)
        assert not shown[:, len(v):].any()
        close(said['gate'], beta)
        nll.append(-expected.sum())
        penalty.append((variant != 'avgpool') * (1 - alpha.sum(0)).square().sum())
        gates.extend(beta.tolist())
    check_loss(model, batch, nll, penalty, 4)
    assert model(batch)[1]['gate'] == pytest.approx(sum(gates) / len(gates), 1e-4)


@pytest.mark.parametrize('task, variant', ALL)
def test_every_parameter_learns(task, variant):
    model = make(task, variant=variant, scale=1.0)
    model(clips(5, 4))[0].backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())


def test_the_printed_values():
    cfg = sta.Config()
    assert (cfg.hidden, cfg.embed, cfg.penalty, cfg.beam) == (4096, 512, 1.0, 4)        # Sec. 3.2.2
    assert (cfg.layers, cfg.block, cfg.block_stride, cfg.fps) == (3, 30, 1, 30)         # Sec. 2.2.2
    assert (cfg.dropout, cfg.epochs, cfg.optimizer) == (0.5, 15, 'adam')                # both
    assert cfg.min_count == 1                                                           # Sec. 3.2.1
    best = {'task': 'recognise', 'penalty': 0.0}                                        # Table 2.1
    for name, hidden in (('ucf11', 512), ('hollywood2', 512), ('hmdb51', 1024)):        # Sec. 2.2.2
        assert sta.PRESETS[name] == best | {'hidden': hidden}
    theta = torch.tensor([3.0, -500.0], requires_grad=True)
    gradient, = torch.autograd.grad(1e-5 * theta.square().sum(), theta)                 # both
    close(gradient, cfg.weight_decay * theta.detach())      # Adam adds this to the gradient
    assert sta.VIEW['bars'] == {'gate': ('gate',)} and sta.VIEW['parts'] == 4           # Fig. 3.2


@pytest.mark.parametrize('name', sta.PRESETS)
def test_presets_are_configs(name):
    dataset, _, task = name.partition('/')
    fields = {'task': task or 'describe'} | sta.PRESETS[dataset] | sta.PRESETS[name]
    assert sta.Config(**fields).variant == 'soft'


@pytest.mark.parametrize('fields, message', [
    (dict(task='name'), '--task name: .*describe, recognise'),
    (dict(variant='maxpool'), '--variant maxpool: .*soft, avgpool, first'),
    (dict(task='recognise', variant='first'), '--variant first: .*soft, avgpool, maxpool, softmax'),
    (dict(fps=20), '--fps 20: .*divisor'),
    (dict(fps=0), '--fps 0: .*divisor'),
])
def test_a_wrong_config_is_refused(fields, message):
    assert set(sta.VARIANTS) == {variant for _, variant in ALL}
    with pytest.raises(BadInput, match=message):
        sta.Config(**fields)


def test_too_many_frames_and_a_glimpse_without_attention_are_refused():
    with pytest.raises(BadInput, match='--features clip: a video has 6 frames.* 5'):
        make('describe').encode(clips(6))
    with pytest.raises(BadInput, match='--variant avgpool: .*soft'):
        sta.glimpse(make('recognise', variant='avgpool'), clips(3), label=0)
