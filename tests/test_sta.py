"""sta.py against loops over the thesis' equations and the author's code, and against values worked
by hand."""
import copy

import pytest
import torch

import helpers
import sta
from data import PAD, BadInput
from decode import select, teacher_force

GRID = (2, 3)


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
    return batch | {'labels': torch.tensor([[1., 0., 0.], [0., 1., 1.]])[:len(frames)]}


def cubes(batch, row):
    """The real frames of the clip in this row, (F, L, D)"""
    v = batch['feats']['clip'][row, batch['mask']['clip'][row]]
    return v.reshape(len(v), -1, 4)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def check_loss(model, batch, nll, penalty):
    """nll and penalty: lists with one number per caption or clip. Every parameter has a gradient,
    but no score of a single place: its softmax is always 1."""
    nll = torch.stack(nll)
    penalty = torch.stack(penalty)
    for model.cfg.penalty in (0.0, 1.0, 10.0):
        loss, logs = model(batch)
        close(loss, (nll + model.cfg.penalty * penalty).mean())
        close(torch.tensor([logs['nll'], logs['penalty']]), torch.stack([nll, penalty]).mean(1))
    loss.backward()
    one = model.cfg.task == 'recognise' and batch['feats']['clip'].dim() == 3
    for name, weight in model.named_parameters():
        assert weight.grad.any() or one and name.startswith('location')


def location_softmax(model, h, slices):
    """h (H,), slices (places, D) -> l_t (places,)"""
    scores = []
    for i, x in enumerate(slices):
        if model.cfg.scores == 'printed':
            scores.append(model.location.weight[i] @ h)                             # Eq. 2.4, 3.2
        else:
            key = model.location.w_c.weight @ x + model.location.w_c.bias
            hidden = torch.tanh(key + model.location.w_d.weight @ h)
            scores.append((model.location.u.weight @ hidden)[0])
    return torch.stack(scores).softmax(0)


def attention_penalty(model, alpha):
    """l (steps, places) -> number"""
    total = sum((1 - place.sum()) ** 2 for place in alpha.T)
    return total / alpha.shape[1] if model.cfg.penalty_over == 'mean' else total


def loop_start(stack, mean):
    """mean (D,) -> [(h, c) per LSTM], each (1, H)"""
    h = torch.tanh(stack.init_h.weight @ mean + stack.init_h.bias)                      # Eq. 2.6
    c = torch.tanh(stack.init_c.weight @ mean + stack.init_c.bias)
    layers = len(stack.lstms)
    return list(zip(h.view(layers, 1, -1), c.view(layers, 1, -1)))


def loop_lstms(stack, x, state, drop):
    """x (inputs,) -> h (H,) of the top LSTM; changes the list `state`"""
    for k, lstm in enumerate(stack.lstms):
        state[k] = lstm(drop * x[None], state[k])                                   # Eq. 2.1-2.3
        x = state[k][0][0]
    return x


def loop_recognise(model, cubes):
    """cubes (T, L, D) of one block -> scores (T, C), l (T, L), 0 without attention"""
    drop = 1.5 if model.training else 1.0
    variant = model.cfg.variant
    if variant == 'softmax':
        scores = cubes.flatten(1) @ model.regression.weight.T + model.regression.bias
        return scores, torch.zeros(cubes.shape[:2])
    state = loop_start(model.stack, sum(cube.mean(0) for cube in cubes) / len(cubes))
    steps = []
    for cube in cubes:
        alpha = torch.zeros(len(cube))
        if variant == 'soft':
            alpha = location_softmax(model, state[-1][0][0], cube)
        x = {'soft': alpha @ cube, 'avgpool': cube.mean(0), 'maxpool': cube.max(0)[0]}[variant]
        x = loop_lstms(model.stack, x, state, drop)
        top = torch.tanh(model.hidden.weight @ (drop * x) + model.hidden.bias)
        steps.append((model.classify.weight @ (drop * top) + model.classify.bias, alpha))
    return [torch.stack(column) for column in zip(*steps)]


def loop_describe(model, slices, words):
    """slices (N K^2, D), words (T,) -> their log-probabilities (T,), l (T, N K^2), beta (T,)"""
    drop = 1.5 if model.training else 1.0
    state = loop_start(model.stack, slices.mean(0))
    y = torch.zeros(model.cfg.embed)
    steps = []
    for t, word in enumerate(words):
        h = state[-1][0][0]
        alpha = torch.ones(len(slices)) / len(slices)
        if model.cfg.variant != 'avgpool':
            alpha = location_softmax(model, h, slices)                                  # Eq. 3.2
        if model.cfg.variant == 'first' and t > 0:
            alpha = 0 * alpha
        beta = torch.ones(1)
        if model.cfg.gate:
            inner, _, outer = model.f_beta
            beta = outer.weight @ torch.tanh(inner.weight @ h + inner.bias) + outer.bias
            beta = torch.sigmoid(beta)                                                  # Eq. 3.5
        x = beta * (alpha @ slices)                                                     # Eq. 3.3
        h = loop_lstms(model.stack, torch.cat([y, x]), state, drop)                     # Eq. 3.1
        deep = y + model.w_h.weight @ (drop * h) + model.w_x.weight @ (drop * x)
        p = (model.w_p.weight @ (drop * deep)).exp()                                    # Eq. 3.4
        steps.append(((p[word] / (p.sum() - p[PAD])).log(), alpha, beta[0]))
        y = model.embed.weight[word]
    return [torch.stack(column) for column in zip(*steps)]


def test_penalty_by_hand():
    alpha = torch.tensor([[[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]]])
    # totals 0.75, 0.75, 0.5: (1/4)^2 + (1/4)^2 + (1/2)^2 = 0.375
    assert sta.doubly_stochastic(alpha).tolist() == [0.375]
    assert sta.doubly_stochastic(alpha, over='mean').tolist() == [0.125]    # of three places
    # without the third place: (1/4)^2 + (1/4)^2, and its mean over two places
    places = torch.tensor([[True, True, False]])
    assert sta.doubly_stochastic(alpha, places).tolist() == [0.125]
    assert sta.doubly_stochastic(alpha, places, over='mean').tolist() == [0.0625]
    assert sta.doubly_stochastic(torch.eye(3)[None]).tolist() == [0.0]      # T = L: it can be 0


@pytest.mark.parametrize('T, L, bound', [(8, 1274, 1258.05), (30, 49, 7.37)])
def test_penalty_has_a_lower_bound_that_only_equal_totals_reach(T, L, bound):
    """For totals s_i that sum to T: sum (1 - s_i)^2 = (L - T)^2 / L + sum (s_i - T / L)^2."""
    assert abs((L - T) ** 2 / L - bound) < 0.005
    alpha = (torch.tensor([0.0, 1.0, 10.0])[:, None, None] * torch.randn(3, T, L)).softmax(2)
    excess = (alpha.sum(1) - T / L).square().sum(1)
    close(sta.doubly_stochastic(alpha), (L - T) ** 2 / L + excess)


RECOGNISERS = [dict(variant=variant) for variant in sta.TASKS['recognise']] + [
    dict(scores='content', penalty_over='mean'), dict(sigmoids=True, layers=1)]


@pytest.mark.parametrize('grid', [GRID, (6,), ()])
@pytest.mark.parametrize('fields', RECOGNISERS, ids=str)
def test_recogniser_equals_the_loop_over_its_equations(fields, grid):
    """A clip that fills a block, and a shorter one with two labels, which repeats its last frame"""
    model = make('recognise', grid, **fields).train()
    batch = clips(4, 2, grid=grid)
    probabilities, aux = model.predict(batch)
    nll = []
    penalty = []
    for row, frames in ((0, [0, 1, 2, 3]), (1, [0, 1, 1, 1])):
        scores, alpha = loop_recognise(model, cubes(batch, row)[frames])
        p = scores.exp() / (1 + scores.exp()) if model.cfg.sigmoids else scores.softmax(1)
        close(probabilities[row], p.mean(0))
        seen = [alpha[[f == frame for f in frames]] for frame in range(4)]
        close(aux['space'][row], torch.stack([a.sum(0) / max(len(a), 1) for a in seen]))
        wrong = -(1 - p).log() if model.cfg.sigmoids else 0 * p
        nll.append(torch.where(batch['labels'][row] > 0, -p.log(), wrong).sum())
        penalty.append((model.cfg.variant == 'soft') * attention_penalty(model, alpha))
    check_loss(model, batch, nll, penalty)


@pytest.mark.parametrize('fps, block, stride, blocks', [
    (30, 4, 1, [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]),
    (30, 4, 2, [[0, 1, 2, 3], [2, 3, 4, 5]]),
    (30, 4, 3, [[0, 1, 2, 3]]),                                             # two frames in no block
    (15, 3, 1, [[0, 2, 4], [1, 3, 5]]),
    (6, 3, 1, [[0, 5, 5]]),                                                 # less than a block
    (10, 3, 1, [[0, 3, 3]]),                                # the last frame that it would have read
    (30, 2, 1, [[k, k + 1] for k in range(300)]),                           # many: read in parts
])
def test_blocks_by_hand(fps, block, stride, blocks):
    """The prediction is the mean over the steps, then over the blocks. The attention in a frame is
    the mean over the steps that read it. Training draws one of the blocks."""
    model = make('recognise', fps=fps, block=block, block_stride=stride, penalty=0.0)
    batch = clips(max(6, len(blocks) + 1))
    runs = []
    for frames in blocks:
        scores, alpha = loop_recognise(model, cubes(batch, 0)[frames])
        runs.append((scores.softmax(1), alpha))
    p, aux = model.predict(batch)
    close(p[0], sum(p.mean(0) for p, _ in runs) / len(runs))
    looks = [(f, a) for b, (_, alpha) in zip(blocks, runs) for f, a in zip(b, alpha)]
    for frame, found in enumerate(aux['space'][0]):
        seen = [a for f, a in looks if f == frame]
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
    model = make('recognise', hidden=32, scale=4.0)
    clip = clips(4)
    learned = model.predict(clip)[1]['space'][0]
    model.train()                                                           # dropout must be off
    before = copy.deepcopy(model.state_dict())
    location = spy(model.location, 'weight')
    others = [spy(model.classify, 'bias'), spy(model.stack.lstms[0], 'weight_ih')]
    runs = [{'steps': 501}]
    for _ in range(2):                                                      # then one step fewer
        torch.manual_seed(0)
        with torch.no_grad():                                               # gradients must be on
            runs.append(sta.glimpse(model, clip, label=2, steps=runs[-1]['steps'] - 1))
    _, found, early = runs
    assert found['predicted'] == (1, 1, 2) and 1 < found['steps'] < 500
    assert early['predicted'] == (1, 1, 1) and early['steps'] == found['steps'] - 1
    assert early['probability'] < found['probability']
    close(found['learned'], learned.detach())
    for name in ('learned', 'random', 'found'):
        assert found[name].shape == (4, 6) and not found[name].requires_grad
    # Four steps use the learned weights, four the random ones. Adam's first step is its rate.
    close((location[8] - location[7]).abs(), torch.full((6, 32), 0.01))
    assert all(torch.equal(values[0], value) for values in others for value in values)
    assert model.training and all(weight.grad is None for weight in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_glimpse_starts_uniformly_between_the_trained_minimum_and_maximum():
    """The largest distance (Kolmogorov-Smirnov) of 6,144 uniform numbers from their distribution
    is below 0.021 in 99 of 100 draws. That of normal numbers would be 0.06."""
    model = make('recognise', hidden=1024, layers=1, block=1)
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


def test_glimpse_changes_all_weights_of_content_scores():
    model = make('recognise', scores='content')
    before = copy.deepcopy(model.state_dict())
    keys = spy(model.location.w_c, 'weight')
    outer = spy(model.location.u, 'weight')
    found = sta.glimpse(model, clips(4), label=0, steps=3)
    assert found['steps'] == 3
    for name, used in (('w_c', keys), ('u', outer)):
        trained = before[f'location.{name}.weight']
        assert torch.equal(used[0], trained)
        assert used[4].min() >= trained.min() and used[4].max() <= trained.max()
        close((used[8] - used[4]).abs(), torch.full_like(trained, 0.01))    # Adam's first step
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


CAPTIONERS = [dict(variant=variant) for variant in sta.TASKS['describe']] + [
    dict(scores='content', penalty_over='mean'), dict(scores='content', variant='first'),
    dict(gate=False, layers=1)]


@pytest.mark.parametrize('grid', [GRID, (6,), ()])
@pytest.mark.parametrize('fields', CAPTIONERS, ids=str)
def test_captioner_equals_the_loop_over_its_equations(fields, grid):
    """Videos of 4 and 3 frames, where the model has weights for 5; words, pictures and loss"""
    model = make('describe', grid, **fields).train()
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
        penalty.append((model.cfg.variant != 'avgpool') * attention_penalty(model, alpha))
        gates.extend(beta.tolist())
    check_loss(model, batch, nll, penalty)
    assert model(batch)[1]['gate'] == pytest.approx(sum(gates) / len(gates), 1e-4)


def test_the_location_softmax_runs_over_all_places_of_all_frames():
    """Videos of 4 and 3 frames, for both kinds of scores: weights and expected feature"""
    for scores in sta.SCORES:
        model = make('describe', scores=scores)
        batch = clips(4, 3)
        memory, _ = model.encode(batch)
        h = torch.randn(2, 7)
        expected, alpha = model.look(None, h, memory)
        for row in range(2):
            places = cubes(batch, row).flatten(0, 1)                        # (F * L, D)
            weights = location_softmax(model, h[row], places)
            close(alpha[row].flatten()[:len(places)], weights)
            close(alpha[row].sum(), torch.ones(()))
            close(expected[row], weights @ places)
        early = model.look(torch.tensor([2, 3]), h, memory)[1]
        close(early, alpha)                                 # only the variant first asks for words


@pytest.mark.parametrize('task', sta.TASKS)
@pytest.mark.parametrize('scores, sees', [('printed', False), ('content', True)])
def test_printed_scores_do_not_see_what_they_look_at(task, scores, sees):
    """Two clips with the same content at other places have the same mean, so the same h_0: printed
    scores look at the same places in both. Content scores follow the content."""
    model = make(task, scores=scores)
    batch = clips(4, 4)
    first, second = batch['feats']['clip']
    moved = first.flip(1, 2)                                                # every place elsewhere
    second.copy_(moved)
    if task == 'recognise':
        space = model.predict(batch)[1]['space'][:, 0]                      # at the first step
    else:
        space = model.step(None, *reversed(model.encode(batch)))[2]['space']
    space = space.view(2, -1, *GRID)
    if sees:
        close(space[1], space[0].flip(1, 2))
    assert torch.allclose(space[0], space[1], atol=1e-5) != sees


@pytest.mark.parametrize('scores, tells', [('printed', True), ('content', False)])
def test_content_scores_do_not_tell_the_order_of_frames(scores, tells):
    """Played backwards, a clip has the same mean. Content scores give each frame the weight that it
    had before, so every word has the same probability. Printed scores weigh the first and the last
    frame differently, whatever they show."""
    model = make('describe', scores=scores)
    batch = clips(5, 5)
    first, second = batch['feats']['clip']
    second.copy_(first.flip(0))
    memory, state = model.encode(batch)
    words = torch.tensor([[2, 3, 4, 1]] * 2)
    logp, aux = teacher_force(model, memory, state, words)
    if not tells:
        close(aux['space'][1], aux['space'][0].flip(1))
    assert torch.allclose(logp[0], logp[1], atol=1e-5) != tells


def test_the_printed_values():
    cfg = sta.Config()
    assert (cfg.hidden, cfg.embed, cfg.penalty, cfg.beam) == (4096, 512, 1.0, 4)        # Sec. 3.2.2
    assert (cfg.layers, cfg.scores, cfg.penalty_over, cfg.gate) == (1, 'printed', 'sum', True)
    assert (cfg.block, cfg.block_stride, cfg.fps) == (30, 1, 30)                        # Sec. 2.2.2
    assert (cfg.dropout, cfg.epochs, cfg.optimizer) == (0.5, 15, 'adam')                # both
    assert cfg.min_count == 1                                                           # Sec. 3.2.1
    best = {'task': 'recognise', 'penalty': 0.0, 'layers': 3}       # Table 2.1, Sec. 2.2.2
    for name, hidden in (('ucf11', 512), ('hollywood2', 512), ('hmdb51', 1024)):        # Sec. 2.2.2
        several = {'sigmoids': True} if name == 'hollywood2' else {}                    # the code
        assert sta.PRESETS[name] == best | {'hidden': hidden} | several
    for name, fields in sta.PRESETS.items():                # all make a Config
        dataset, _, part = name.partition('/')
        task = 'recognise' if part == 'recognise' else 'describe'
        fields = {'task': task} | sta.PRESETS.get(dataset, {}) | fields
        fields.pop('patience', None)                        # of tools.runs.Training
        assert sta.Config(**fields).variant == 'soft'
    theta = torch.tensor([3.0, -500.0], requires_grad=True)
    gradient, = torch.autograd.grad(1e-5 * theta.square().sum(), theta)                 # both
    close(gradient, cfg.weight_decay * theta.detach())      # Adam adds this to the gradient
    assert sta.VIEW['bars'] == {'gate': ('gate',)} and sta.VIEW['parts'] == 4           # Fig. 3.2


def test_wrong_configs_too_many_frames_and_a_glimpse_without_attention_are_refused():
    assert set(sta.VARIANTS) == {variant for several in sta.TASKS.values() for variant in several}
    for fields, message in (
            (dict(task='name'), '--task name: .*describe, recognise'),
            (dict(variant='maxpool'), '--variant maxpool: .*soft, avgpool, first'),
            (dict(task='recognise', variant='first'), '--variant first: .*soft, .*softmax'),
            (dict(scores='seen'), '--scores seen: .*printed, content'),
            (dict(penalty_over='max'), '--penalty-over max: .*sum, mean'),
            (dict(fps=20), '--fps 20: .*divisor'),
            (dict(fps=0), '--fps 0: .*divisor')):
        with pytest.raises(BadInput, match=message):
            sta.Config(**fields)
    with pytest.raises(BadInput, match='--features clip: a video has 6 frames.* 5'):
        make('describe').encode(clips(6))
    make('describe', scores='content').encode(clips(6))     # has no weights for single frames
    with pytest.raises(BadInput, match='--variant avgpool: .*soft'):
        sta.glimpse(make('recognise', variant='avgpool'), clips(3), label=0)
