"""vre.py against plain loops over the paper's equations, hand-worked values and enumeration.
(Padding, single videos and checkpoints are tested in test_models.py.)"""
import dataclasses
import itertools
import math

import pytest
import torch

import data
import helpers
import vre
from data import EOS, PAD
from decode import greedy, select, teacher_force, word_logp
from vre import STAGES, VARIANTS, Captioner, Config, Scaled, refocus_loss

torch.set_num_threads(1)
LENGTHS = (5, 4, 1)                                     # frames of the three videos of a batch
NAN = float('nan')


def make_batch(seed=0, grid=(2, 3)):
    """Three videos with five captions, in float64. Padding frames are not 0; one video is loud."""
    torch.manual_seed(seed)
    batch = helpers.batch({'clip': (*grid, 4), 'audio': (3,)}, vocab=9, rows=(0, 0, 1, 2, 2),
                          frames={'clip': LENGTHS, 'audio': (1, 2, 1)}, lengths=(5, 2, 3, 1, 4))
    for name, values in batch['feats'].items():
        values[~batch['mask'][name]] = 100.0
        batch['feats'][name] = values.double()
    batch['feats']['audio'][0] = 1000 + 20 * batch['feats']['audio'][0]
    batch['caption_ids'] = torch.tensor([7, 0, 3, 2, 5])
    return batch


def make(stage='joint', variant='vre', seed=0, factor=4.0, **fields):
    """A small model in float64 whose weights are large: its attention is far from uniform"""
    torch.manual_seed(seed)
    feats = {'clip': [*fields.pop('grid', (2, 3)), 4], 'audio': [3], 'key': [1]}
    small = {'features': ('clip', 'audio'), 'normalise': False, 'dropout': 0.0, 'sampling': 0.0,
             'hidden': 6, 'attn': 5, 'max_len': 6}
    cfg = Config(stage=stage, variant=variant, **small | fields)
    model = Captioner(cfg, helpers.sizes(feats, vocab=9, captions=8)).double()
    helpers.scale_up(model, factor)
    return model


def pair(*args, **fields):
    """-> a small model and a batch for it"""
    return make(*args, **fields), make_batch()


def matrix(layer):
    """The matrix that a layer multiplies by, whether it is Scaled or not"""
    return layer.weight * layer.scale if isinstance(layer, Scaled) else layer.weight


def tanh_layer(layer, *parts):
    return torch.tanh(matrix(layer) @ torch.cat(parts) + layer.bias)


def kbigru_loop(module, frames, key):
    """frames (K, C) of one video, all real -> h (H,), by torch's GRU cell"""
    last = []
    for gru, order in ((module.left, range(key, -1, -1)), (module.right, range(key, len(frames)))):
        h = frames.new_zeros(1, gru.w_h.in_features)
        for i in order:                                                             # Eq. 5, 6
            h = torch.gru_cell(frames[i:i + 1], h, matrix(gru.w_v), gru.w_h.weight, gru.w_v.bias,
                               gru.w_h.bias)
        last.append(h[0])
    return tanh_layer(module.w_c, *last)                                            # Eq. 7


def score_loop(w_query, w_v, w_out, query, v):
    """v (K, C) -> scores (K,): Eq. 8 and Eq. 14 for one query"""
    products = [(w_query.weight @ query) * (matrix(w_v) @ v_i) for v_i in v]
    return torch.stack([(w_out.weight @ torch.tanh(product))[0] for product in products])


def algorithm_1(encoder, frames, audio):
    """frames (K, C), audio (G,) of one video -> o1, o2, scores (K,), key"""
    h1 = kbigru_loop(encoder.kbigru, frames, len(frames) // 2)
    o1 = tanh_layer(encoder.w_a, h1, audio)
    refocus = encoder.refocus
    if refocus is None:                                 # a variant of one step
        return o1, o1, None, None
    scores = score_loop(refocus.w_o, refocus.w_v, refocus.w_alpha, o1, frames)
    key = scores.tolist().index(max(scores))
    h2 = kbigru_loop(encoder.kbigru, frames, key)
    return o1, tanh_layer(encoder.w_a, tanh_layer(encoder.w_m, h1, h2), audio), scores, key


def test_kbigru_equals_a_plain_loop_for_every_key_with_and_without_padding():
    torch.manual_seed(0)
    module = vre.KBiGRU(4, 5).double()
    frames = torch.randn(4, 6, 4).double()
    lengths = [6, 4, 1, 3]
    for keys in itertools.product(*map(range, lengths)):
        h = module(module.inputs(frames), torch.tensor(keys), torch.tensor(lengths))
        for n, key in enumerate(keys):
            assert torch.allclose(h[n], kbigru_loop(module, frames[n, :lengths[n]], key))


def test_algorithm_1_line_by_line_and_its_gradient():
    """The gradient also passes from the scores through o1 to the layers that compute it."""
    encoder = make(seed=1, factor=3.0).encoder
    moved = 0
    for seed in range(5):
        batch = make_batch(seed)
        frames = batch['feats']['clip'].mean((2, 3))
        audio = batch['feats']['audio'][:, 0]
        o1, scores, seen = encoder.first(frames, audio, batch['mask']['clip'])
        key = scores.argmax(1)
        o2 = encoder.second(seen, key)
        for n, length in enumerate(LENGTHS):
            *plain, plain_key = algorithm_1(encoder, frames[n, :length], audio[n])
            for a, b in zip((o1[n], o2[n], scores[n, :length]), plain):
                assert torch.allclose(a, b)
                noise = torch.randn(len(a)).double()
                gradients = [torch.autograd.grad(x @ noise, encoder.parameters(), retain_graph=True,
                                                 allow_unused=True, materialize_grads=True)
                             for x in (a, b)]
                assert all(torch.allclose(*pair, atol=1e-12) for pair in zip(*gradients))
            assert int(key[n]) == plain_key and scores[n, length:].isneginf().all()
            moved += plain_key != length // 2
    assert moved > 3                                    # the key is not always the default one


@pytest.mark.parametrize('name', ['kbigru.left.w_v', 'kbigru.right.w_v', 'kbigru.w_c', 'w_a',
                                  'w_m', 'refocus.w_v'])
def test_scaled_layers_start_as_linear_ones_and_move_less_in_a_step_of_adam(name):
    layer = make(factor=1.0, hidden=50).encoder.get_submodule(name)
    inputs = layer.in_features                          # nn.Linear starts in +-1 / sqrt(inputs)
    assert matrix(layer).abs().max().item() == pytest.approx(inputs ** -0.5, rel=0.05)
    x = torch.ones(1, inputs).double()
    before = layer(x).detach()
    layer(x).sum().backward()
    torch.optim.Adam([layer.weight], lr=1e-3).step()    # moves every weight by the rate
    moved = torch.full_like(before, 1e-3 * inputs ** 0.5)           # nn.Linear: 1e-3 * inputs
    assert torch.allclose(before - layer(x), moved, rtol=1e-4)


@pytest.mark.parametrize('grid', [(), (6,), (2, 3)])
def test_features_are_normalised_and_averaged_over_the_grid_and_over_the_frames(grid):
    batch = make_batch(grid=grid)
    feats = batch['feats']['clip'].reshape(3, 5, -1, 4)
    feats = feats - feats.mean(-1, keepdim=True)        # to mean 0 and deviation 1/4
    feats = feats / (feats.square().mean(-1, keepdim=True) + 1e-5).sqrt() / 4
    frames, space, _ = make(grid=grid, normalise=True).read(batch)
    for n, length in enumerate(LENGTHS):
        for i in range(length):
            assert torch.allclose(frames[n, i], sum(feats[n, i]) / feats.shape[2])      # Eq. 2
        assert torch.allclose(space[n], sum(feats[n, :length]) / length)                # Eq. 3


def test_audio_may_be_missing_and_is_one_vector():
    batch = make_batch()
    del batch['feats']['audio'], batch['mask']['audio']
    make(features=('clip',))(batch)[0].backward()
    for features in (('clip', 'clip'), ('clip', 'audio', 'audio')):
        with pytest.raises(data.BadInput, match='--features clip .*: give the feature of'):
            make(features=features)


@pytest.mark.parametrize('gap', [-1.0, 0.5, 5.0, 17.0, 20.0, 60.0, 200.0])
def test_alpha_rises_with_the_reward_and_falls_with_it_even_from_exactly_1(gap):
    """Eq. 21 in float32, for rewards that rose by 2, fell by 2, stayed, and are new. The key has
    the score `gap`, two other frames have 0, the fourth is padding. By the score of the key,
    d(-2 log alpha) = -2 (1 - alpha) and d(-2 log (1 - alpha)) = 2 alpha; by the others, -1/2 of it.
    Then the same for a video of one frame: its alpha is 1 whatever the weights are."""
    off = float('-inf')
    scores = torch.tensor([[0.0, gap, 0.0, off]] * 4 + [[off, gap, off, off]] * 4).requires_grad_()
    reward = torch.tensor([3.0, -1.0, 2.0, 5.0] * 2, requires_grad=True)
    previous = torch.tensor([1.0, 1.0, 2.0, NAN] * 2)
    loss = refocus_loss(reward, previous, scores, torch.ones(8, dtype=torch.long))
    loss.sum().backward()
    alpha = 1 / (1 + 2 * math.exp(-gap))
    rest = 2 * math.exp(-gap) * alpha                   # 1 - alpha
    values = torch.tensor([-2 * math.log(alpha), -2 * math.log(rest), 0, 0, 0, 0, 0, 0])
    slopes = torch.tensor([-2 * rest, 2 * alpha, 0, 0, 0, 0, 0, 0])[:, None]
    assert torch.allclose(loss, values, rtol=1e-5, atol=1e-6)
    expected = slopes * torch.tensor([-0.5, 1.0, -0.5, 0.0])
    assert torch.allclose(scores.grad, expected, rtol=1e-5, atol=1e-6)
    assert reward.grad is None                          # the reward must not train the captioner


def test_a_model_that_is_certain_of_its_key_frame_can_still_leave_it():
    """Through the whole model, in float32: the lead of the key frame shrinks."""
    model, batch = pair()
    weight = model.float().encoder.refocus.w_alpha.weight
    weight.data *= 1000
    batch['feats'] = {name: values.float() for name, values in batch['feats'].items()}
    model.previous_reward[7] = 50.0                     # the reward of the first caption fell
    before = model.watch(batch)[1]['scores'][0]
    gradient, = torch.autograd.grad(model(batch)[0], weight)
    weight.data -= gradient
    after = model.watch(batch)[1]['scores'][0]
    best, second = before.topk(2).indices
    assert before.softmax(0)[best] == 1
    assert after[best] - after[second] < before[best] - before[second] - 0.01


@pytest.mark.parametrize('step', [1, 2])
@pytest.mark.parametrize('variant', VARIANTS)
def test_algorithm_2_word_by_word(variant, step):
    """Every word's log-probability, aux and view, with torch's LSTM on [v_T, v_S, v_a, x]. Frames
    and regions are attended to apart: the view is the product of their weights."""
    model, batch = pair(variant=variant, step=step)
    captions = batch['captions'][[0, 2, 4]]             # one caption per video
    logp, aux = teacher_force(model, *model.encode(batch), captions)
    attends = {'frames': model.attend_frames, 'space': model.attend_space}
    if variant in ('meanpool', 'softatt', 'kbigru'):
        assert attends.pop('space') is None and 'space' not in aux
    for n, length in enumerate(LENGTHS):
        grid = batch['feats']['clip'][n, :length].reshape(length, 6, 4)
        seen = {'frames': grid.mean(1), 'space': grid.mean(0)}
        audio = batch['feats']['audio'][n, batch['mask']['audio'][n]].mean(0)
        audio = (audio - audio.mean()) / max(1.0, audio.std(unbiased=False).item())
        audio = audio[:3 if variant in ('kbigru+vs+va', 'vre') else 0]
        view = vre.VIEW['attention']({name: aux[name][n] for name in attends})          # (T, F, L)
        h = x = o = torch.zeros(6).double()
        if variant not in ('meanpool', 'softatt', 'vf+vs'):
            *os, scores, key = algorithm_1(model.encoder, seen['frames'], audio)
            x = o = os[step - 1]
        state = h[None], o[None]
        for t, word in enumerate(captions[n, :captions[n].count_nonzero()].tolist()):
            query = h if variant in ('softatt', 'vf+vs') else torch.cat([o, h])
            alphas = {}
            for name, attend in attends.items():
                a = torch.zeros(length).double()                                        # meanpool
                if variant != 'meanpool':
                    a = score_loop(attend.w_h, attend.w_v, attend.w_beta, query, seen[name])
                alphas[name] = a.exp() / a.exp().sum()                                  # Eq. 15
            product = torch.outer(alphas['frames'], alphas.get('space', torch.ones(1).double()))
            assert torch.allclose(view[t, :length], product)
            inputs = [alpha @ seen[name] for name, alpha in alphas.items()]             # Eq. 16
            state = model.lstm(torch.cat([*inputs, audio, x])[None], state)
            h = state[0][0]
            assert torch.allclose(logp[n, t], word_logp(model.out(h)[None])[0, word])
            x = model.embed.weight[word]
            if variant == 'vre':
                alphas['focus'] = scores.exp() / scores.exp().sum()                     # Eq. 9
                assert aux['key'][n, t].argmax() == (key if step == 2 else length // 2)
            for name, alpha in alphas.items():
                assert torch.allclose(aux[name][n, t, :len(alpha)], alpha)
                assert not aux[name][n, t, len(alpha):].any()


def test_stage_warm_uses_step_1_whatever_cfg_step_is():
    batch = make_batch()
    memory, state = make('warm', step=2).encode(batch)
    assert 'focus' not in memory                        # nothing is trained to refocus yet
    first, second = make('joint').watch(batch)
    assert torch.equal(state[1], first['o']) and not torch.allclose(first['o'], second['o'])


def test_dropout_is_on_the_output_of_the_lstm_alone():
    model = make(dropout=1.0)
    memory, state = model.encode(make_batch())
    kept = model.eval().step(None, state, memory)[1]
    logits, dropped, _ = model.train().step(None, state, memory)
    assert torch.equal(logits, model.out.bias.expand_as(logits))
    assert all(torch.equal(a, b) for a, b in zip(kept, dropped))


def test_the_joint_loss_and_its_gradient_by_hand():
    """Eq. 22 for captions whose reward rose by 2, is new, fell by 1, fell in a video of one frame,
    and stayed the same."""
    model, batch = pair(beta=0.5)
    memories = model.watch(batch)
    xe1, xe2 = (model.cross_entropy([memory], batch)[0] for memory in memories)
    reward = xe1 - xe2                                                                  # Eq. 20
    change = torch.tensor([-2.0, NAN, 1.0, 5.0, 0.0])
    model.previous_reward[batch['caption_ids']] = reward.detach() + change
    alpha = memories[1]['focus'].amax(1)
    refocus = -2 * alpha[0].log() - (1 - alpha[1]).log()                                # Eq. 21
    by_hand = (xe2.sum() + xe1.sum() + 0.5 * refocus) / 5                               # Eq. 22
    loss, logs = model(batch)
    assert loss.item() == pytest.approx(by_hand.item())
    wanted = {'xe1': xe1, 'xe2': xe2, 'reward': reward, 'refocus': refocus / 5,
              'alpha': alpha[batch['rows']]}
    assert logs == pytest.approx({name: x.mean().item() for name, x in wanted.items()})
    gradients = [torch.autograd.grad(x, model.parameters()) for x in (loss, by_hand)]
    assert all(torch.allclose(*pair, atol=1e-12) for pair in zip(*gradients))


@pytest.mark.parametrize('key, moves', [('argmax', False), ('drawn', True)])
def test_with_a_fixed_captioner_an_arg_max_key_moves_the_module_by_exactly_0(key, moves):
    """The same weights choose the same key, so R_e = R_e-1, and Eq. 21 is 0: no other loss reaches
    the module, and neither dropout nor scheduled sampling changes R. Drawn keys differ."""
    model, batch = pair(key=key, dropout=0.5, sampling=0.5)
    module = model.encoder.refocus
    optimizer = torch.optim.Adam(module.parameters(), 0.1)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for _ in range(5):                                  # epochs
        optimizer.zero_grad()
        model(batch)[0].backward()
        assert moves or not any(p.grad.any() for p in module.parameters())
        optimizer.step()
    for name, value in module.state_dict().items():
        assert torch.equal(before[name], value) != moves


def test_the_mean_gradient_of_drawn_keys_is_that_of_all_pairs_of_keys():
    """Two keys k, l are drawn from alpha. The one with the larger R gets -|dR| log alpha, the other
    -|dR| log(1 - alpha). The expectation over all pairs is enumerated by a plain loop."""
    model, batch = pair(key='drawn', beta=1.0, factor=3.0)
    model.out.weight.data *= 5                          # the keys make a difference
    copies = torch.zeros(200, dtype=torch.long)         # of the first video and its first caption
    many = {name: select(batch[name], copies) for name in ('feats', 'mask', 'captions')}
    many |= {'rows': torch.arange(200), 'caption_ids': copies}
    one = {name: select(values, copies[:1]) for name, values in many.items()}
    frames, _, audio = model.read(one)
    _, scores, seen = model.encoder.first(frames, audio, one['mask']['clip'])
    memory = model.watch(one)[1]
    rewards = []
    for key in range(LENGTHS[0]):
        memory['o'] = model.encoder.second(seen, torch.tensor([key]))
        rewards.append(-model.cross_entropy([memory], one).item())      # R + a constant
    alpha = scores[0].softmax(0)
    expected = torch.zeros(()).double()
    for k, l in itertools.product(range(LENGTHS[0]), repeat=2):
        rise = rewards[k] - rewards[l]
        loss = -rise * alpha[k].log() if rise > 0 else rise * (1 - alpha[k]).log()
        expected = expected + (alpha[k] * alpha[l]).detach() * loss
    weight = model.encoder.refocus.w_alpha.weight
    exact, = torch.autograd.grad(expected, weight)
    grads = torch.stack([torch.autograd.grad(model(many)[0], weight)[0] for _ in range(60)])
    allowed = 4 * grads.std(0) / 60 ** 0.5
    assert ((grads.mean(0) - exact).abs() < allowed).all() and (exact.abs() > allowed).any()
    assert model.previous_reward.isnan().all()          # no memory is needed


def test_constant_keys_need_no_module_and_are_the_same_in_every_batch():
    batch = make_batch()
    batch['feats']['key'] = torch.zeros(3, 5, 1).double()
    batch['feats']['key'][[0, 1, 2], [4, 1, 0]] = 1.0
    batch['mask']['key'] = batch['mask']['clip']
    found = {}
    for key in vre.CONSTANT_KEYS:
        features = ('clip', 'audio', 'key') if key == 'oracle' else ('clip', 'audio')
        model = make('frozen', key=key, features=features)
        stages = vre.stages(dataclasses.replace(model.cfg, stage='all'))
        assert [name for name, _, _ in stages] == ['frozen', 'reward']
        assert not any('refocus' in name for name in model.state_dict())
        found[key] = model.watch(batch)[1]['key'].argmax(1).tolist()
        alone = model.watch(helpers.one_video(batch, 1))[1]['key']
        assert alone.argmax(1).tolist() == found[key][1:2]
        assert set(model(batch)[1]) == {'xe1', 'xe2'}
    assert found['middle'] == [2, 2, 0] and found['oracle'] == [4, 1, 0]
    assert all(key < length for key, length in zip(found['random'], LENGTHS))
    model.cfg.key = 'random'
    others = batch | {'ids': [f'video{i}' for i in range(3)]}
    assert model.choose_key(None, others).tolist() != found['random']
    with pytest.raises(data.BadInput, match='--key oracle --features clip audio: the last feature'):
        make('frozen', key='oracle')
    with pytest.raises(data.BadInput, match='--stage joint: --key middle has no refocusing module'):
        make(key='middle')


def test_with_constant_keys_the_whole_objective_is_that_of_frozen():
    frozen, batch = pair('frozen', key='middle')
    everything = make('all', key='middle')
    everything.load_state_dict(frozen.state_dict())
    loss, logs = everything(batch)
    expected, _ = frozen(batch)
    assert loss.item() == expected.item() and 'refocus' not in logs


def test_the_reward_of_the_last_epoch_is_kept_per_caption_and_in_training_alone():
    model, batch = pair()
    assert model(batch)[1]['refocus'] == 0 and not model.previous_reward.requires_grad
    xe1, xe2 = (model.cross_entropy([memory], batch)[0] for memory in model.watch(batch))
    expected = torch.full((8,), NAN).double()
    expected[[7, 0, 3, 2, 5]] = (xe1 - xe2).detach()
    assert torch.allclose(model.previous_reward, expected, equal_nan=True)
    torch.nn.init.normal_(model.out.weight)             # other weights: other rewards
    copy = make()
    copy.load_state_dict(model.state_dict())            # as --resume does
    order = torch.tensor([3, 0, 4, 2, 1])
    shuffled = {name: batch[name][order] for name in ('captions', 'rows', 'caption_ids')}
    changed = model(batch)[1]['refocus']
    assert copy({**batch, **shuffled})[1]['refocus'] == pytest.approx(changed) and changed > 0
    batch['caption_ids'] += 100                         # numbers of another split
    assert model.eval()(batch)[1]['refocus'] == 0
    for name in vre.SHARED_BUFFERS:
        assert torch.allclose(model.get_buffer(name), copy.get_buffer(name), equal_nan=True)


@pytest.mark.parametrize('stage', ['warm', 'joint', 'frozen'])
def test_scheduled_sampling_reads_the_models_own_words_in_training_alone(stage):
    """A model that always says word 8, at rate 1, never reads another word: only the embedding of
    word 8 gets a gradient. In evaluation it reads the given words."""
    model, batch = pair(stage, sampling=1.0)
    model.out.bias.data[8] = 1000
    batch['captions'][batch['captions'] == 8] = 7
    given = set(batch['captions'].unique().tolist()) - {PAD, EOS}
    for training, words in ((True, {8}), (False, given)):
        model.train(training).zero_grad()
        model(batch)[0].backward()
        assert set(model.embed.weight.grad.any(1).nonzero()[:, 0].tolist()) == words


def weighted_sum(ids, tokens):
    """A reward that differs between almost all captions"""
    return (tokens * torch.arange(1, tokens.shape[1] + 1)).sum(1).double()


def differing(a, b):
    """Names of the entries in which two modules of equal structure differ"""
    a, b = a.state_dict(), b.state_dict()
    assert a.keys() == b.keys()
    return {name for name in a if not torch.allclose(a[name], b[name], equal_nan=True)}


def test_each_stage_starts_from_the_stage_before():
    warm, joint, frozen, reward = models = [make(stage, seed=i) for i, stage in enumerate(STAGES)]
    for before, after in itertools.pairwise(models):
        after.start(before.state_dict())
    assert not differing(warm, joint) and not differing(frozen, reward)
    assert not differing(joint.encoder, frozen.frozen)
    changed = differing(frozen, make('frozen', seed=2))             # all else is fresh
    assert changed and all(name.startswith('frozen.') for name in changed)
    for seed in range(4):                               # its key frames are the joint model's
        keys = [model.watch(make_batch(seed))[1]['key'] for model in (joint, frozen)]
        assert torch.equal(*keys)
    for variant in VARIANTS[:-1]:                       # one step: one model in all stages
        after = make('frozen', variant, seed=1)
        after.start(make('joint', variant).state_dict())
        assert not differing(after, make('joint', variant))


@pytest.mark.parametrize('stage', STAGES)
@pytest.mark.parametrize('variant', VARIANTS)
def test_what_each_stage_trains_and_its_loss(variant, stage):
    """Not trained: in warm the layers of step 2, from frozen on the frozen copy."""
    model = make(stage, variant, seed=1, factor=2.0)
    optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=0.1)
    for seed in range(4):                               # several batches: every word occurs
        model.previous_reward.fill_(50.0)               # every reward fell
        optimizer.zero_grad()
        loss, logs = model(make_batch(seed), reward_fn=weighted_sum)
        loss.backward()
        optimizer.step()
    changed = differing(model, make(stage, variant, seed=1, factor=2.0)) - {'previous_reward'}
    waiting = ('encoder.w_m.', 'encoder.refocus.') if stage == 'warm' else ('frozen.',)
    parameters = dict(model.named_parameters())
    idle = {name for name in parameters if variant == 'vre' and name.startswith(waiting)}
    assert set(parameters) - changed == idle
    assert {name for name, p in parameters.items() if not p.requires_grad} == idle
    assert bool(idle) == (variant == 'vre' and stage != 'joint')
    if stage != 'reward' and (variant, stage) != ('vre', 'joint'):      # cross-entropies alone
        assert loss.item() == pytest.approx(sum(logs.values()))
        assert list(logs) == (['xe1', 'xe2'] if (variant, stage) == ('vre', 'frozen') else ['xe1'])


def test_the_self_critical_loss_and_its_baseline():
    calls = []

    def reward_fn(ids, tokens):
        calls.append((ids, tokens))
        return weighted_sum(ids, tokens) + torch.tensor([ord(video) for video in ids])

    model, batch = pair('reward', dropout=0.5, factor=2.0)
    model(batch, reward_fn=reward_fn)
    assert [ids for ids, _ in calls] == [['a', 'a', 'b', 'c', 'c'], ['a', 'b', 'c']]
    assert model.training
    best = greedy(model.eval(), *model.encode(batch), 6)[0]
    assert torch.equal(calls[1][1], best)               # the baseline has no dropout
    model.drop.p = 0.0                                  # so that the samples can be replayed
    loss, logs = model.train()(batch, reward_fn=reward_fn)
    words = calls[2][1]
    logp, _ = teacher_force(model, *select(model.encode(batch), batch['rows']), words)
    gain = weighted_sum(None, words) - weighted_sum(None, best)[batch['rows']]
    assert loss.item() == pytest.approx(-(gain * logp.sum(1)).mean().item()) and gain.any()
    assert logs['reward'] - logs['baseline'] == pytest.approx(gain.mean().item())


def test_the_self_critical_gradient_is_unbiased():
    """Against the gradient of the expected reward, enumerated: captions of at most one word and
    those that are cut off after the second."""
    model, batch = pair('reward', max_len=1, factor=2.0)
    one = helpers.one_video(batch, 0)
    captions = torch.tensor([(EOS, PAD), *itertools.product(range(2, 9), range(1, 9))])
    memory, state = select(model.encode(one), torch.zeros(len(captions), dtype=torch.long))
    p = teacher_force(model, memory, state, captions)[0].sum(1).exp()
    assert p.sum().item() == pytest.approx(1)
    expected_reward = (p * weighted_sum(None, captions)).sum()
    exact, = torch.autograd.grad(-expected_reward, model.out.bias)
    one['rows'] = torch.zeros(100, dtype=torch.long)
    losses = (model(one, reward_fn=weighted_sum)[0] for _ in range(60))
    grads = torch.stack([torch.autograd.grad(loss, model.out.bias)[0] for loss in losses])
    error = (grads.mean(0) - exact).abs()
    assert (error <= 4 * grads.std(0) / 60 ** 0.5 + 1e-12).all() and exact.abs().max() > 0.1


def test_the_config_has_the_papers_printed_values():
    cfg = Config()
    assert cfg.beta == 0.03                                         # Sec. 3.4, below Eq. 22
    assert (cfg.hidden, cfg.dropout) == (512, 0.5)                  # Sec. 4.2, as all that follows
    assert (cfg.rate, cfg.sampling, cfg.warm_epochs) == (3e-4, 0.25, 5)
    assert (cfg.min_count, cfg.max_len, cfg.reward) == (3, 15, 'cider+rouge')
    assert vre.PRESETS['msvd'] == {'features': ('resnet152',)}      # it has no sound
    assert vre.PRESETS['msrvtt'] == {'features': ('resnet152', 'vggish')}
    assert [vre.VIEW[name] for name in ('key', 'focus', 'steps')] == ['key', 'focus', (1, 2)]
    for name, value in (('variant', 'vree'), ('stage', 'froze'), ('step', 0), ('key', 'max')):
        with pytest.raises(data.BadInput, match=f'--{name} {value}: choose one of'):
            Config(**{name: value})


def test_stages_have_their_own_epochs_and_rates():
    fields = dict(rate=0.1, reward_rate=0.2, warm_epochs=1, joint_epochs=2, frozen_epochs=3,
                  reward_epochs=4)
    every = [('warm', 1, 0.1), ('joint', 2, 0.1), ('frozen', 3, 0.1), ('reward', 4, 0.2)]
    assert vre.stages(Config(**fields)) == every
    for stage in every:
        assert vre.stages(Config(stage=stage[0], **fields)) == [stage]
    assert all(epochs > 0 for _, epochs, _ in vre.stages(Config(**vre.PRESETS['shapes'])))
