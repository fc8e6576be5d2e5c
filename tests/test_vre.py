"""vre.py against plain loops over the paper's equations, hand-worked values and enumeration."""
import dataclasses
import io
import itertools
import threading
from types import SimpleNamespace

import pytest
import torch

import vre
from data import EOS, PAD
from decode import greedy, select, teacher_force, word_logp
from vre import Attention, Captioner, Config, Encoder, GRU, KBiGRU, PRESETS, Refocus, STAGES, Scaled, VARIANTS, refocus_loss

torch.set_num_threads(1)
LENGTHS = [5, 4, 1]                                              # frames of the three videos of every batch here


def make_batch(seed=0, grid=(2, 3)):
    g = torch.Generator().manual_seed(seed)
    mask = torch.arange(5)[None] < torch.tensor(LENGTHS)[:, None]
    feats = torch.randn(3, 5, *grid, 4, generator=g).double()
    feats[~mask] = 0
    words = torch.randint(3, 9, (5, 6), generator=g)
    for row, n in enumerate([5, 2, 3, 1, 4]):
        words[row, n], words[row, n + 1:] = EOS, PAD
    return {'feats': {'clip': feats, 'audio': torch.randn(3, 1, 3, generator=g).double()},
            'mask': {'clip': mask, 'audio': torch.ones(3, 1, dtype=torch.bool)},
            'captions': words, 'rows': torch.tensor([0, 0, 1, 2, 2]), 'caption_ids': torch.tensor([7, 0, 3, 2, 5]),
            'ids': ['a', 'b', 'c']}


def make(stage='joint', variant='vre', seed=0, grid=(2, 3), scale=4.0, **fields):
    """A small model in float64, with weights large enough for attention, keys and captions to be far from uniform."""
    torch.manual_seed(seed)
    fields = {'normalise': False, 'dropout': 0.0, 'sampling': 0.0, 'hidden': 6, 'attn': 5, 'max_len': 6, **fields}
    model = Captioner(Config(vocab=9, feats={'clip': [*grid, 4], 'audio': [3]}, captions=8, features=('clip', 'audio'),
                             stage=stage, variant=variant, **fields)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= scale
    return model


def matrix(layer):
    """The matrix that a layer multiplies by, whether it is Scaled or not"""
    return layer.weight * getattr(layer, 'scale', 1.0)


def gru_loop(gru, inputs, hidden):
    """inputs: list of (C,) -> last h (H,). The GRU's equations, one video, one frame at a time."""
    h = torch.zeros(hidden, dtype=inputs[0].dtype)
    for v in inputs:
        ir, iz, inn = (matrix(gru.w_v) @ v + gru.w_v.bias).chunk(3)
        hr, hz, hn = (gru.w_h.weight @ h + gru.w_h.bias).chunk(3)
        r, z = torch.sigmoid(ir + hr), torch.sigmoid(iz + hz)
        h = (1 - z) * torch.tanh(inn + r * hn) + z * h
    return h


def kbigru_loop(module, frames, key, hidden):
    """frames (K, C) of one video, all real"""
    left = gru_loop(module.left, [frames[i] for i in range(key, -1, -1)], hidden)                    # Eq. 5
    right = gru_loop(module.right, [frames[j] for j in range(key, len(frames))], hidden)             # Eq. 6
    return torch.tanh(matrix(module.w_c) @ torch.cat([left, right]) + module.w_c.bias)                # Eq. 7


def attend_loop(w_query, w_v, w_out, query, v):
    """v (K, C) -> weights (K,): Eq. 8-9 and 14-15 for one query"""
    scores = torch.stack([(w_out.weight @ torch.tanh((w_query.weight @ query) * (matrix(w_v) @ v_i)))[0] for v_i in v])
    return scores.exp() / scores.exp().sum()


# -------------------------------------------------------------------------------------------------------------- encoder

def test_a_scaled_layer_starts_as_a_linear_one_and_learns_less_at_a_step():
    torch.manual_seed(0)
    plain = torch.nn.Linear(400, 7)
    torch.manual_seed(0)
    scaled, x = Scaled(400, 7), torch.rand(5, 400)
    assert torch.allclose(plain(x), scaled(x), atol=1e-6)
    moved = {}
    for layer in (plain, scaled):
        before = layer(x).detach()
        layer.bias.requires_grad_(False)
        optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
        layer(x).sum().backward()
        optimizer.step()
        moved[layer] = (layer(x) - before).abs()
    assert torch.allclose(moved[plain], 1e-3 * x.sum(1, keepdim=True).expand(5, 7), rtol=1e-3)      # a rate for every input
    assert torch.allclose(moved[scaled] * 20, moved[plain], rtol=1e-3)                              # 20 = sqrt(400) times less


def test_the_gru_is_torchs():
    torch.manual_seed(0)
    ours, torchs, frames = GRU(4, 5), torch.nn.GRU(4, 5, batch_first=True), torch.randn(3, 6, 4)
    with torch.no_grad():
        torchs.weight_ih_l0.copy_(matrix(ours.w_v)), torchs.bias_ih_l0.copy_(ours.w_v.bias)
        torchs.weight_hh_l0.copy_(ours.w_h.weight), torchs.bias_hh_l0.copy_(ours.w_h.bias)
    h = torch.zeros(3, 5)
    for t in range(6):
        h = ours(ours.w_v(frames[:, t]), h)
        assert torch.allclose(h, torchs(frames)[0][:, t], atol=1e-6)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_kbigru_equals_a_plain_loop_for_every_key(dtype):
    torch.manual_seed(0)
    K, module = 6, KBiGRU(4, 5).to(dtype)
    frames = torch.randn(K, K, 4, dtype=dtype)
    for shift in range(K):                                       # every video sees every key, all different in a batch
        key = (torch.arange(K) + shift) % K
        plain = torch.stack([kbigru_loop(module, frames[n], int(key[n]), 5) for n in range(K)])
        assert (module(frames, key) - plain).abs().max() < 1e-6
        assert (module(frames, key, torch.ones(K, K, dtype=torch.bool)) - plain).abs().max() < 1e-6


def test_kbigru_with_padding_equals_a_plain_loop_over_the_real_frames():
    torch.manual_seed(0)
    module, lengths = KBiGRU(4, 5), [6, 4, 1, 3]
    frames, mask = torch.randn(4, 6, 4), torch.arange(6)[None] < torch.tensor(lengths)[:, None]
    for keys in itertools.product(range(6), range(4), range(1), range(3)):
        plain = torch.stack([kbigru_loop(module, frames[n, :lengths[n]], keys[n], 5) for n in range(4)])
        assert (module(frames, torch.tensor(keys), mask) - plain).abs().max() < 1e-6


@pytest.mark.parametrize('grid', [(), (6,), (2, 3)])
def test_temporal_and_spatial_features_are_the_means_of_the_grid(grid):
    model, batch = make(grid=grid), make_batch(grid=grid)
    memory, feats = model.watch(batch)[1], batch['feats']['clip'].reshape(3, 5, -1, 4)
    for n, length in enumerate(LENGTHS):
        for i in range(length):
            vf = sum(feats[n, i, l] for l in range(feats.shape[2])) / feats.shape[2]                 # Eq. 2
            assert torch.allclose(memory['frames']['v'][n, i], vf)
        vs = sum(feats[n, i] for i in range(length)) / length                                        # Eq. 3
        assert torch.allclose(memory['space']['v'][n], vs)
        assert memory['space']['v'].shape == (3, 6 if grid else 1, 4)


def algorithm_1(encoder, frames, audio, hidden=6):
    """frames (K, C), audio (G,) of one video, line by line -> o1, o2, alpha, key"""
    def layer(linear, *parts):
        return torch.tanh(matrix(linear) @ torch.cat(parts) + linear.bias)
    h1 = kbigru_loop(encoder.kbigru, frames, len(frames) // 2, hidden)
    o1 = layer(encoder.w_a, h1, audio)
    refocus = encoder.refocus
    alpha = attend_loop(refocus.w_o, refocus.w_v, refocus.w_alpha, o1, frames)
    key = max(range(len(frames)), key=lambda i: alpha[i])
    h2 = kbigru_loop(encoder.kbigru, frames, key, hidden)
    return o1, layer(encoder.w_a, layer(encoder.w_m, h1, h2), audio), alpha, key


def test_algorithm_1_line_by_line():
    torch.manual_seed(1)
    encoder, moved = Encoder(4, 3, 6, 5, steps=2, refocus=True).double(), 0
    for parameter in encoder.parameters():
        parameter.data *= 3
    for seed in range(5):
        batch = make_batch(seed)
        frames, mask, audio = batch['feats']['clip'].mean((2, 3)), batch['mask']['clip'], batch['feats']['audio'][:, 0]
        (o1, o2), (default, key), alpha = encoder(frames, audio, mask)
        assert default.tolist() == [2, 2, 0]                     # K // 2 of each video's own K
        for n, length in enumerate(LENGTHS):
            plain = algorithm_1(encoder, frames[n, :length], audio[n])
            for mine, other in zip((o1[n], o2[n], alpha[n, :length]), plain):
                assert torch.allclose(mine, other)
            assert int(key[n]) == plain[3] and (alpha[n, length:] == 0).all()
            moved += plain[3] != length // 2
    assert moved > 3                                             # the refocused key is not always the default one


# ------------------------------------------------------------------------------------------------------ refocusing loss

def step_on_alpha(logits, rise, dtype):
    """One step of gradient descent on the logits of the key's softmax -> log(alpha / (1 - alpha)) before and after."""
    logits = torch.tensor([logits], dtype=torch.float32, requires_grad=True)
    alpha = logits.to(dtype).softmax(1)[:, 0]
    loss = refocus_loss(torch.tensor([rise]), torch.tensor([0.0]), alpha)
    loss.sum().backward()
    assert loss.isfinite().all() and logits.grad.isfinite().all() and loss.shape == (1,)

    def log_odds(x):
        return float(x[0, 0].double() - x[0, 1:].double().logsumexp(0))
    return log_odds(logits.detach()), log_odds(logits.detach().double() - 0.1 * logits.grad.double()), logits.grad[0]


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('gap', [0.5, 6.9068, 12.0, 16.0])       # 6.9068: alpha = 0.999
def test_alpha_rises_where_the_reward_rose_and_falls_where_it_fell(dtype, gap):
    before, after, _ = step_on_alpha([gap, 0.0], 2.0, dtype)
    assert after > before
    before, after, _ = step_on_alpha([gap, 0.0], -2.0, dtype)
    assert after < before
    before, after, gradient = step_on_alpha([gap, 0.0], 0.0, dtype)
    assert after == before and (gradient == 0).all()


@pytest.mark.parametrize('gap', [5.0, 17.0, 20.0, 25.0, 30.0])
def test_the_gradient_of_a_fallen_reward_neither_vanishes_nor_blows_up_near_one(gap):
    """-|dR| log(1 - alpha) has the derivative |dR| alpha by the key's logit; the others share its negative."""
    before, after, gradient = step_on_alpha([gap, 0.0, 0.0], -2.0, torch.float64)
    alpha = 1 / (1 + 2 * torch.tensor(-gap).double().exp())
    assert torch.allclose(gradient.double(), 2 * alpha * torch.tensor([1.0, -0.5, -0.5]).double(), rtol=0.05)
    assert after < before - 0.19


@pytest.mark.parametrize('gap,dtype', [(gap, torch.float32) for gap in (20.0, 25.0, 30.0)] + [(40.0, torch.float64)])
def test_alpha_of_exactly_one_still_falls(gap, dtype):
    assert torch.tensor([gap, 0.0], dtype=dtype).softmax(0)[0] == 1
    before, after, _ = step_on_alpha([gap, 0.0], -2.0, dtype)
    assert after < before


def test_refocus_loss_by_hand():
    """Risen by 2, fallen by 2, equal, first sight; then risen by 1, fallen by 1 and first sight where alpha is 1."""
    nan, alpha = float('nan'), torch.tensor([0.25, 0.25, 0.25, 0.25, 1.0, 1.0, 1.0], requires_grad=True)
    previous = torch.tensor([1.0, 1.0, 2.0, nan, 3.0, 4.0, nan])
    loss = refocus_loss(torch.tensor([3.0, -1.0, 2.0, 5.0, 4.0, 3.0, 1.0]), previous, alpha)
    loss.sum().backward()
    # -2 log(1/4), -2 log(3/4), 0, 0, -log(1), -log(2^-23), 0
    assert torch.allclose(loss, torch.tensor([2.772589, 0.575364, 0.0, 0.0, 0.0, 15.942385, 0.0]), atol=1e-5)
    # -2 / (1/4), 2 / (3/4), 0, 0, -1 / 1, 1 / 2^-23, 0
    assert torch.allclose(alpha.grad, torch.tensor([-8.0, 8 / 3, 0.0, 0.0, -1.0, 2.0 ** 23, 0.0]))
    reward = torch.tensor([2.0], requires_grad=True)                # R is a constant: it must not train the captioner
    refocus_loss(reward, torch.tensor([1.0]), torch.tensor([0.5], requires_grad=True)).sum().backward()
    assert reward.grad is None



def test_refocus_gives_a_softmax_that_does_not_round_to_one():
    refocus, o, frames = Refocus(1, 1, 8), torch.tensor([[9.0]]), torch.tensor([[[9.0], [-9.0], [0.0]]])
    for linear, value in ((refocus.w_o, 1.0), (refocus.w_v, 1.0), (refocus.w_alpha, 1.5)):
        torch.nn.init.constant_(linear.weight, value)            # scores: 8 * 1.5 * (1, -1, 0) = 12, -12, 0
    alpha = refocus(o, frames * 3, torch.tensor([[True, True, False]]))                              # a gap of 24
    refocus_loss(torch.tensor([0.0]), torch.tensor([1.0]), alpha[:, 0]).sum().backward()
    # d/dw of -log(1 - alpha) = alpha * d(a_key - a_other)/dw = tanh(..) - tanh(-..) = 2 for each of the eight weights
    assert torch.allclose(refocus.w_alpha.weight.grad, torch.full((1, 8), 2.0), rtol=1e-3)


# -------------------------------------------------------------------------------------------------------------- decoder

@pytest.mark.parametrize('out', [3, 9])                          # narrower than v (applied once per video) and wider
def test_attention_equals_a_plain_loop(out):
    torch.manual_seed(0)
    module = Attention(4, 7, 5, out).double()
    v, query, mask = torch.randn(3, 5, 4).double(), 3 * torch.randn(3, 7).double(), make_batch()['mask']['clip']
    attended, alpha = module(query, module.prepare(v, mask))
    for n, length in enumerate(LENGTHS):
        plain = attend_loop(module.w_h, module.w_v, module.w_beta, query[n], v[n, :length])
        assert torch.allclose(alpha[n, :length], plain) and (alpha[n, length:] == 0).all()
        z = sum(plain[i] * v[n, i] for i in range(length))                                           # Eq. 16
        assert torch.allclose(attended[n], matrix(module.w_x) @ z)


@pytest.mark.parametrize('step', [1, 2])
@pytest.mark.parametrize('variant', VARIANTS)
def test_algorithm_2_with_an_ordinary_lstm(variant, step):
    """Every word's logits, for each variant and step, from nn.LSTMCell on the concatenated input of algorithm 2."""
    H, model, batch = 6, make(variant=variant, step=step), make_batch()
    feats, audio = batch['feats']['clip'].reshape(3, 5, 6, 4), batch['feats']['audio'][:, 0]
    audio = torch.stack([(a - a.mean()) / max(1.0, a.std(unbiased=False).item()) for a in audio])
    has_audio, has_space, has_o = variant in ('kbigru+vs+va', 'vre'), variant != 'kbigru', variant != 'vf+vs'
    cell = torch.nn.LSTMCell(4 + 4 * has_space + 3 * has_audio + H, H).double()
    lstm, columns = model.lstm.weight, [matrix(model.attend_frames.w_x)]
    columns += [matrix(model.attend_space.w_x)] if has_space else []
    cell.weight_ih.data, cell.weight_hh.data = torch.cat(columns + [lstm[:, :-H]], 1), lstm[:, -H:]
    cell.bias_ih.data, cell.bias_hh.data = model.lstm.bias, torch.zeros(4 * H).double()
    memory, state = model.encode(batch)
    logp, aux = teacher_force(model, memory, state, batch['captions'][[0, 2, 4]])
    for n, length in enumerate(LENGTHS):
        vf, vs, o = feats[n, :length].mean(1), feats[n, :length].mean(0), torch.zeros(0).double()
        if variant == 'vre':
            o = algorithm_1(model.encoder, vf, audio[n], H)[step - 1]
        elif has_o:
            h = kbigru_loop(model.encoder.kbigru, vf, length // 2, H)
            o = torch.tanh(model.encoder.w_a(torch.cat([h, audio[n]]) if has_audio else h))
        h, c = torch.zeros(H).double(), o if has_o else torch.zeros(H).double()
        x = c
        for t, word in enumerate(batch['captions'][[0, 2, 4]][n].tolist()):
            if word == PAD:
                break
            parts, query = [], torch.cat([o, h])
            for attend, v in ((model.attend_frames, vf), (model.attend_space, vs)):
                if attend is not None:
                    alpha = attend_loop(attend.w_h, attend.w_v, attend.w_beta, query, v)
                    parts.append(alpha @ v)
                    name = 'frames' if attend is model.attend_frames else 'space'
                    assert torch.allclose(aux[name][n, t, :len(alpha)], alpha)
            parts += [audio[n]] if has_audio else []
            h, c = (s[0] for s in cell(torch.cat(parts + [x])[None], (h[None], c[None])))
            assert torch.allclose(logp[n, t], word_logp(model.out(h)[None])[0, word])
            x = model.embed.weight[word]


def test_aux_tells_the_refocusing_distribution_and_the_key_of_the_step():
    model, batch = make(), make_batch(3)
    for step in (1, 2):
        model.cfg.step = step
        memory, state = select(model.encode(batch), batch['rows'])
        _, aux = teacher_force(model, memory, state, batch['captions'])
        focus, key = aux['focus'][:, 0], aux['key'][:, 0].argmax(1)
        assert torch.equal(key, torch.tensor([2, 2, 2, 0, 0]) if step == 1 else focus.argmax(1))
        assert torch.allclose(focus.sum(1), torch.ones(5).double())
        assert aux['key'].sum() == (batch['captions'] != PAD).sum()                 # one key at every word


def test_step_1_and_step_2_give_different_words_and_warm_speaks_with_step_1():
    model, batch = make(seed=2).eval(), make_batch(1)

    def nll(model, step):
        model.cfg.step = step
        memory, state = select(model.encode(batch), batch['rows'])
        return -teacher_force(model, memory, state, batch['captions'])[0].sum(1).mean().item()

    _, logs = model(batch)
    assert nll(model, 1) == pytest.approx(logs['xe1']) and nll(model, 2) == pytest.approx(logs['xe2'])
    assert abs(logs['xe1'] - logs['xe2']) > 1e-3
    warm = make('warm', seed=2).eval()
    assert nll(warm, 2) == pytest.approx(logs['xe1']) and warm(batch)[0].item() == pytest.approx(logs['xe1'])


# --------------------------------------------------------------------------------------------------------------- losses

def test_the_joint_loss_by_hand():
    """Eq. 22 for captions whose reward rose, fell, stayed, and two that are seen for the first time."""
    model, batch, nan = make(beta=0.5), make_batch(), float('nan')
    xe = [model.cross_entropy([memory], batch)[0] for memory in model.watch(batch)]
    reward, alpha = -(xe[1] - xe[0]), model.watch(batch)[1]['focus'].max(1).values[batch['rows']]
    model.previous_reward[batch['caption_ids']] = reward.detach() + torch.tensor([-2.0, nan, 1.0, 0.0, nan])
    loss, logs = model(batch)
    hand = sum(xe[0] + xe[1]) / 5 + 0.5 * (-2 * alpha[0].log() - (1 - alpha[2]).log()) / 5
    assert loss.item() == pytest.approx(hand.item()) and logs['reward'] == pytest.approx(reward.mean().item())


def test_frozen_and_one_step_losses_are_the_cross_entropies_alone():
    batch = make_batch()
    loss, logs = make('frozen')(batch)
    assert set(logs) == {'xe1', 'xe2'} and loss.item() == pytest.approx(logs['xe1'] + logs['xe2'])
    for variant, stage in itertools.product(VARIANTS[:3], STAGES[:3]):
        loss, logs = make(stage, variant)(batch)
        assert loss.item() == pytest.approx(logs['xe1']) and set(logs) == {'xe1'}


def test_the_reward_of_the_epoch_before_is_kept_per_caption():
    model, batch = make(), make_batch()
    order = torch.tensor([3, 0, 4, 2, 1])
    shuffled = {**batch, **{name: batch[name][order] for name in ('captions', 'rows', 'caption_ids')}}
    assert model.previous_reward.isnan().all()
    first = model(batch)[1]
    assert first['refocus'] == 0 and not model.previous_reward.requires_grad     # first sight; no graph is kept
    xe = [model.cross_entropy([memory], batch)[0].detach() for memory in model.watch(batch)]
    expected = torch.full((8,), float('nan')).double()
    for i, caption in enumerate([7, 0, 3, 2, 5]):
        expected[caption] = xe[0][i] - xe[1][i]
    assert torch.allclose(model.previous_reward, expected, equal_nan=True)
    model.end_epoch()
    second = model(shuffled)[1]                                  # the same weights: the same reward of every caption
    assert second['refocus'] == pytest.approx(0, abs=1e-12) and second['reward'] == pytest.approx(first['reward'])
    torch.nn.init.normal_(model.out.weight)                      # now the rewards change, each against its own
    copy = make()
    copy.load_state_dict(model.state_dict())                     # as --resume does
    a, b = model(batch)[1]['refocus'], copy(shuffled)[1]['refocus']
    assert a == pytest.approx(b) and a > 0
    assert torch.allclose(model.previous_reward, copy.previous_reward, equal_nan=True)


def test_scheduled_sampling_reads_the_models_own_words_in_training_alone():
    batch = make_batch()
    for stage in ('warm', 'joint', 'frozen'):
        plain, own = make(stage), make(stage, sampling=1.0)
        assert plain(batch)[0] != own(batch)[0] and plain.eval()(batch)[0] == own.eval()(batch)[0]


def test_validation_neither_reads_nor_writes_the_rewards():
    model, batch = make(), make_batch()
    model.previous_reward.fill_(3.0)
    batch['caption_ids'] += 100                                  # numbers of another split
    assert model.eval()(batch)[1]['refocus'] == 0 and (model.previous_reward == 3).all()


def test_processes_share_their_rewards_at_the_end_of_an_epoch(monkeypatch):
    """Two threads stand for two processes; all_reduce is a sum over both."""
    nan, barrier, box = float('nan'), threading.Barrier(2), [None, None]

    def all_reduce(tensor):
        me = int(threading.current_thread().name)
        box[me] = tensor.clone()
        barrier.wait(10)
        total = box[0] + box[1]
        barrier.wait(10)
        tensor.copy_(total)

    yes = lambda: True
    monkeypatch.setattr(vre, 'dist', SimpleNamespace(is_available=yes, is_initialized=yes, all_reduce=all_reduce))
    models, writes = [make(), make()], [([0, 1, 2], [1.0, 2.0, 3.0]), ([5, 2], [6.0, 5.0])]
    for model, (ids, rewards) in zip(models, writes):
        model.previous_reward[:] = torch.tensor([9.0, 9.0, 9.0, 9.0, nan, nan, 9.0, nan])
        model.remember(torch.tensor(ids), torch.tensor(rewards).double())
    threads = [threading.Thread(target=model.end_epoch, name=str(i)) for i, model in enumerate(models)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    merged = torch.tensor([1.0, 2.0, 4.0, 9.0, nan, 6.0, 9.0, nan]).double()    # caption 2 was seen by both: the mean
    for model in models:
        assert torch.allclose(model.previous_reward, merged, equal_nan=True) and not model.written.any()


# --------------------------------------------------------------------------------------------------------------- stages

def rebuild(model):
    """From what a checkpoint holds: the config's plain values and the state_dict."""
    file = io.BytesIO()
    torch.save({'config': dataclasses.asdict(model.cfg), 'state_dict': model.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    twin = Captioner(Config(**saved['config'])).double()
    twin.load_state_dict(saved['state_dict'])
    return twin


def test_the_stages_follow_one_another():
    batch, models = make_batch(), {}
    for number, stage in enumerate(STAGES):
        models[stage] = make(stage, seed=number)
        if number:
            models[stage].start(models[STAGES[number - 1]].state_dict())
    warm, joint, frozen, reward = models.values()
    for a, b in ((warm, joint), (frozen, reward)):
        a, b = a.state_dict(), b.state_dict()
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) or a[name].isnan().all() for name in a)
    for x, y in zip(joint.encoder.parameters(), frozen.frozen.parameters()):
        assert torch.equal(x, y)
    fresh = make('frozen', seed=2).state_dict()
    for name, value in frozen.state_dict().items():              # all but the frozen part is as a new model has it
        assert name.startswith('frozen.') or torch.equal(value, fresh[name]) or value.isnan().all()
    for variant in VARIANTS[:3]:                                 # of one step: one model throughout
        before, after = make('joint', variant), make('frozen', variant, seed=1)
        after.start(before.state_dict())
        assert all(torch.equal(x, y) for x, y in zip(before.parameters(), after.parameters()))
    for seed in range(4):                                        # its key frames are the joint model's, on any clip
        batch = make_batch(seed)
        assert torch.equal(frozen.watch(batch)[1]['key'], joint.watch(batch)[1]['key'])


@pytest.mark.parametrize('stage', ['frozen', 'reward'])
def test_the_frozen_part_never_changes_and_survives_a_checkpoint(stage):
    model, batch = make(stage).train(), make_batch()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.Adam(model.parameters(), 0.1, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(batch, reward_fn=lambda ids, tokens: tokens.sum(1).double())[0].backward()
        optimizer.step()
    assert not model.frozen.training and model.encoder.training
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in model.frozen.parameters())
    for name, value in model.state_dict().items():
        if not name.startswith('frozen.') and name != 'previous_reward':
            assert not torch.equal(value, before[name]), name
        elif name != 'previous_reward':
            assert torch.equal(value, before[name])
    twin = rebuild(model)
    assert torch.equal(twin.watch(batch)[1]['key'], model.watch(batch)[1]['key'])
    words, _ = greedy(model.eval(), *model.encode(batch), 6)
    assert torch.equal(greedy(twin.eval(), *twin.encode(batch), 6)[0], words)


@pytest.mark.parametrize('stage', STAGES)
@pytest.mark.parametrize('variant', VARIANTS)
def test_every_trained_parameter_gets_a_gradient(variant, stage):
    """Not trained: in warm the layers of step 2 (w_m, refocus), from frozen on the frozen part."""
    def reward_fn(ids, tokens):
        return (tokens * torch.arange(1, tokens.shape[1] + 1)).sum(1).double()

    model = make(stage, variant, seed=1, scale=2.0)
    grads = dict.fromkeys(dict(model.named_parameters()), 0.0)
    for seed in range(4):                                        # several batches: so that every word occurs
        batch = make_batch(seed)
        model.previous_reward.fill_(50.0)                        # every reward fell
        model.zero_grad()
        model(batch, reward_fn=reward_fn)[0].backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                grads[name] = grads[name] + parameter.grad.abs()
    idle = {name for name, grad in grads.items() if not torch.as_tensor(grad).any()}
    waiting = ('encoder.w_m.', 'encoder.refocus.') if stage == 'warm' else ('frozen.',)
    assert idle == {name for name in grads if variant == 'vre' and name.startswith(waiting)}
    assert idle == {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert (model.frozen is not None) == (variant == 'vre' and stage in ('frozen', 'reward'))


def test_self_critical_loss_and_its_baseline():
    model, batch, calls = make('reward', dropout=0.5, scale=2.0).train(), make_batch(), []

    def reward_fn(ids, tokens):
        calls.append((ids, tokens))
        return tokens.sum(1) + torch.tensor([{'a': 0.0, 'b': 10.0, 'c': 50.0}[video] for video in ids]).double()

    torch.manual_seed(3)
    model(batch, reward_fn=reward_fn)
    (ids, words), (videos, best) = calls
    assert ids == ['a', 'a', 'b', 'c', 'c'] and videos == ['a', 'b', 'c'] and model.training
    assert torch.equal(best, greedy(model.eval(), *model.encode(batch), 6)[0])      # the baseline: without dropout
    calls.clear()
    model.drop.p = 0.0                                           # so that the samples can be replayed
    loss, logs = model.train()(batch, reward_fn=reward_fn)
    (_, words), (_, best) = calls
    memory, state = select(model.encode(batch), batch['rows'])
    logp = teacher_force(model, memory, state, words)[0].sum(1)
    gain = words.sum(1) - best.sum(1)[batch['rows']]
    assert loss.item() == pytest.approx(-(gain * logp).mean().item()) and gain.any()


def test_self_critical_gradient_is_unbiased():
    """Against the gradient of the expected reward by enumeration of all captions of at most two words, of one video."""
    model, batch = make('reward', max_len=2, scale=2.0).train(), make_batch()
    torch.manual_seed(0)
    table = torch.rand(9, 9).double()

    def reward_fn(ids, tokens):
        tokens = torch.nn.functional.pad(tokens, (0, 2 - tokens.shape[1]))
        return table[tokens[:, 0], tokens[:, 1]]

    one = {name: {kind: value[:1] for kind, value in batch[name].items()} for name in ('feats', 'mask')}
    one['ids'] = ['a']
    captions = torch.tensor([[EOS, PAD]] + [[a, b] for a in range(2, 9) for b in range(1, 9)])
    memory, state = select(model.encode(one), torch.zeros(len(captions), dtype=torch.long))
    p = teacher_force(model, memory, state, captions)[0].sum(1).exp()
    assert p.sum().item() == pytest.approx(1)
    exact, = torch.autograd.grad(-(p * table[captions[:, 0], captions[:, 1]]).sum(), model.out.bias)
    grads = []
    for _ in range(60):
        loss, _ = model({**one, 'rows': torch.zeros(100, dtype=torch.long)}, reward_fn=reward_fn)
        grads.append(torch.autograd.grad(loss, model.out.bias)[0])
    grads = torch.stack(grads)
    assert ((grads.mean(0) - exact).abs() <= 4 * grads.std(0) / 60 ** 0.5 + 1e-12).all() and exact.abs().max() > 0.01


# ------------------------------------------------------------------------------------------------------------- padding

@pytest.mark.parametrize('stage,variant', [('joint', variant) for variant in VARIANTS] + [('frozen', 'vre')])
def test_padding_changes_neither_loss_nor_captions(stage, variant):
    model, batch = make(stage, variant).eval(), make_batch()
    loss, words = model(batch)[0], greedy(model, *model.encode(batch), 6)[0]
    feats, mask = batch['feats']['clip'].clone(), batch['mask']['clip']
    feats[~mask] = 100 * torch.randn(int((~mask).sum()), 2, 3, 4).double()
    feats = torch.cat([feats, torch.randn(3, 2, 2, 3, 4).double()], 1)
    padded = {**batch, 'feats': {**batch['feats'], 'clip': feats},
              'mask': {**batch['mask'], 'clip': torch.nn.functional.pad(mask, (0, 2))},
              'captions': torch.nn.functional.pad(batch['captions'], (0, 3), value=PAD)}
    assert torch.allclose(model(padded)[0], loss)
    assert torch.equal(greedy(model, *model.encode(padded), 6)[0], words)


@pytest.mark.parametrize('variant', VARIANTS)
def test_a_batch_equals_its_videos_one_by_one(variant):
    model, batch, total = make(variant=variant).eval(), make_batch(), 0.0
    for n, length in enumerate(LENGTHS):
        mine = batch['rows'] == n
        one = {'feats': {'clip': batch['feats']['clip'][n:n + 1, :length], 'audio': batch['feats']['audio'][n:n + 1]},
               'mask': {'clip': batch['mask']['clip'][n:n + 1, :length], 'audio': batch['mask']['audio'][n:n + 1]},
               'captions': batch['captions'][mine], 'rows': batch['rows'][mine] * 0,
               'caption_ids': batch['caption_ids'][mine], 'ids': batch['ids'][n:n + 1]}
        total += model(one)[0].item() * int(mine.sum())
    assert model(batch)[0].item() == pytest.approx(total / 5)


def test_normalised_features_have_mean_0_and_deviation_a_quarter():
    batch, model = make_batch(), make(normalise=True).eval()
    loss = model(batch)[0]
    feats = batch['feats']['clip']
    by_hand = (feats - feats.mean(-1, keepdim=True)) / (feats.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt() / 4
    plain = make().eval()({**batch, 'feats': {**batch['feats'], 'clip': by_hand}})[0]
    assert torch.allclose(loss, plain)
    assert torch.allclose(loss, model({**batch, 'feats': {**batch['feats'], 'clip': 50 * feats + 3}})[0], atol=1e-3)


def test_audio_counts_where_the_variant_hears_it_and_may_be_left_out():
    batch = make_batch()
    other = {**batch, 'feats': {**batch['feats'], 'audio': batch['feats']['audio'].flip(2)}}
    for variant in VARIANTS:
        model = make(variant=variant).eval()
        assert torch.equal(model(batch)[0], model(other)[0]) == (variant in ('vf+vs', 'kbigru'))
    longer = {**batch, 'feats': {**batch['feats'], 'audio': batch['feats']['audio'].repeat(1, 3, 1)},
              'mask': {**batch['mask'], 'audio': torch.tensor([[True, True, False]] * 3)}}
    longer['feats']['audio'][:, 2] = 7                           # padding has no say in the mean
    model = make().eval()
    assert torch.allclose(model(batch)[0], model(longer)[0])
    cfg = Config(vocab=9, feats={'clip': [2, 3, 4]}, captions=8, features=('clip',), hidden=6, attn=5)
    deaf = Captioner(cfg).double()
    del batch['feats']['audio'], batch['mask']['audio']
    deaf(batch)[0].backward()


@pytest.mark.parametrize('preset', PRESETS)
def test_presets_are_fields_of_the_config(preset):
    cfg = Config(**PRESETS[preset])
    assert all(getattr(cfg, f'{stage}_epochs') > 0 for stage in STAGES) and cfg.variant in VARIANTS


def test_dropout_is_at_the_end_of_the_lstm_alone():
    model, batch = make(dropout=1.0).train(), make_batch()
    memory, state = model.encode(batch)
    kept = model.eval().step(None, state, memory)[1]
    logits, dropped, _ = model.train().step(None, state, memory)
    assert torch.equal(logits, model.out.bias.expand_as(logits))
    assert all(torch.equal(a, b) for a, b in zip(kept, dropped))


def test_the_papers_values_and_unknown_names():
    c = Config()
    assert (c.hidden, c.dropout, c.sampling, c.beta, c.rate, c.min_count, c.max_len, c.warm_epochs) == (512, .5, .25, .03, 3e-4, 3, 15, 5)
    for fields in ({'variant': 'vree'}, {'stage': 'froze'}, {'step': 0}):
        with pytest.raises(ValueError, match='not one that vre.py has'):
            make(**fields)


def test_a_loud_audio_feature_does_not_silence_the_encoder():
    """Log spectra are some 128 numbers of the same sign: unscaled they drive the tanh of o to +-1, whatever the video shows."""
    model, batch = make(scale=1.0), make_batch()
    batch['feats']['audio'] = batch['feats']['audio'] + 1000
    o = [memory['o'] for memory in model.watch(batch)]
    assert all(x.abs().max() < 0.99 and x.std(0).mean() > 0.01 for x in o)
