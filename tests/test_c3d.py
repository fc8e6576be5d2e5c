"""C3D: shapes, receptive fields as autograd measures them, windows, weights and classifier."""
import inspect
import math
import re

import pytest
import torch

import astar
import c3d
import helpers
from c3d import ALIGN, LAYERS, MAPS, C3D, Recogniser, load_published, receptive_field, to_input
from data import BadInput

torch.set_num_threads(1)
ALIGNED = ('aligned2', 'aligned3', 'aligned4')


def video(frames, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (1, frames, 112, 112, 3), generator=generator, dtype=torch.uint8)


@pytest.fixture(scope='module')
def net():
    torch.manual_seed(0)
    return C3D(2, 5).eval()


def plain_fc7(net, clip):
    """fc7 of one clip of 16 frames, layer by layer"""
    for name, _ in LAYERS:
        clip = net.layers[name](clip)
        clip = clip.clamp(min=0) if name.startswith('conv') else clip
    fc6 = net.layers['fc6'](clip.reshape(1, -1)).clamp(min=0)
    return net.layers['fc7'](fc6).clamp(min=0)


def test_sizes_and_config_are_as_printed():
    cfg = c3d.Config()
    assert (cfg.width, cfg.epochs, cfg.videos_per_batch) == (64, 13, 30)        # figure 3, Sec. 3.3
    assert (c3d.WINDOW, c3d.WINDOW - c3d.HOP, c3d.SIZE) == (16, 8, 112)         # Sec. 3.3
    assert inspect.signature(C3D).parameters['classes'].default == 487          # Sports-1M
    units = [64, 128, 256, 256, 512, 512, 512, 512, 4096, 4096]                 # figure 3
    weights = [p for p in C3D(width=2).parameters() if p.dim() > 1]             # 64 / 32
    assert [len(weight) for weight in weights] == [n // 32 for n in units] + [487]
    inputs = [3, *[n // 32 for n in units]]
    inputs[8] *= 4 * 4                                                          # fc6 reads 4 x 4
    assert [weight.shape[1] for weight in weights] == inputs
    assert all(weight.shape[2:] == (3, 3, 3) for weight in weights[:8])


@pytest.mark.parametrize('frames', [1, 5, 16, 33])
def test_maps_have_the_printed_sizes_for_any_number_of_frames(net, frames):
    with torch.no_grad():
        maps = net.maps(to_input(video(frames)))
    sizes = {'pool2': (4, 2, 28), 'pool3': (8, 4, 14), 'pool4': (16, 8, 7), 'pool5': (16, 16, 4)}
    assert list(maps) == list(sizes)
    for name, (channels, every, side) in sizes.items():
        assert maps[name].shape == (1, channels, math.ceil(frames / every), side, side)


@pytest.mark.parametrize('frames, expected', [
    (1, [[0] * 16]), (9, [[*range(9), *[8] * 7]]), (16, [range(16)]), (23, [range(16)]),
    (24, [range(16), range(8, 24)]), (33, [range(16), range(8, 24), range(16, 32)])])
def test_windows_overlap_by_8_repeat_the_last_frame_and_drop_an_incomplete_one(frames, expected):
    assert c3d.windows(frames).tolist() == [list(numbers) for numbers in expected]


def test_fc7_is_the_mean_over_windows(net):
    x = to_input(video(27))
    short = x[:, :, :3]
    repeated = torch.cat([short] + [short[:, :, 2:]] * 13, 2)
    with torch.no_grad():
        expected = (plain_fc7(net, x[:, :, :16]) + plain_fc7(net, x[:, :, 8:24])) / 2
        assert expected.shape == (1, 128) and torch.allclose(net.fc7(x), expected, atol=1e-5)
        assert torch.allclose(net.fc7(short), plain_fc7(net, repeated), atol=1e-5)


def test_fc6_and_fc7_are_dropped_out_in_training_alone():
    net = C3D(1, 3, dropout=1.0)                    # everything is dropped: only biases remain
    for name in ('fc7', 'fc8'):
        torch.nn.init.uniform_(net.layers[name].bias, 1.0, 2.0)
    clip = to_input(video(16))
    with torch.no_grad():
        assert torch.equal(net.fc7(clip)[0], net.layers['fc7'].bias)            # nothing of fc6
        assert torch.equal(net(clip)[0], net.layers['fc8'].bias)                # nothing of fc7
        expected = net.layers['fc8'](plain_fc7(net, clip))
        assert torch.allclose(net.eval()(clip), expected, atol=1e-5)


def test_bad_videos_are_refused(net):
    for read, shape, message in (
            (net.maps, (1, 3, 16, 120, 160), '112'), (net.maps, (1, 16, 112, 112, 3), '112'),
            (net.maps, (1, 3, 0, 112, 112), 'zero'), (net.fc7, (1, 3, 0, 112, 112), 'zero'),
            (net.maps, (1, 3, 1, 112, 112), 'NaN'), (to_input, (1, 4, 112, 112), '3')):
        with pytest.raises(BadInput, match=message):
            read(torch.full(shape, float('nan')))


def test_receptive_fields_worked_by_hand():
    # In space, conv1 and pool1 see 2i-2..2i+1. conv2 reads pool1 i-1..i+1: 2i-4..2i+3. pool2 reads
    # conv2 2i-1..2i: 4i-6..4i+3. In time, two convolutions see i-2..i+2, pool2 2i-3..2i+2.
    assert receptive_field('pool2') == {'t': (2, -3, 2), 'y': (4, -6, 3), 'x': (4, -6, 3)}
    windows = {'pool4': (2, -3, 2), 'pool3': (4, -9, 6), 'pool2': (8, -21, 14), 'pool5': (1, 0, 0)}
    for layer, window in windows.items():
        assert set(receptive_field('pool5', inside=layer).values()) == {window}
    for layer, inside in (('pool6', 'video'), ('aligned1', 'video'), ('pool2', 'pool3')):
        with pytest.raises(BadInput, match='aligned2'):
            receptive_field(layer, inside)


def test_aligned_maps_share_stride_and_centre_and_are_nested():
    fields = [receptive_field(f'aligned{i}') for i in (2, 3, 4, 5)]
    for axis in 'tyx':
        strides, firsts, lasts = zip(*(field[axis] for field in fields))
        assert len(set(strides)) == len(set(map(sum, zip(firsts, lasts)))) == 1
    assert [field['y'][2] - field['y'][1] + 1 for field in fields] == [62, 86, 118, 150]


def test_the_table_of_the_docstring_is_right_and_those_of_astar_are_wrong():
    span = r'(\d+)i(-\d+) *\.\. *\d+i\+(\d+)'
    rows = re.findall(rf'^ +(\w+).* {span} .* {span} ', c3d.__doc__, re.M)
    assert [name for name, *_ in rows] == [*MAPS, *ALIGNED]
    for name, *numbers in rows:
        field = receptive_field(name)
        assert tuple(map(int, numbers)) == field['y'] + field['t']
    table4 = {'pool2': (4, -7, 2, 2, -4, 1), 'pool3': (8, -15, 6, 4, -8, 3),
              'pool4': (16, -31, 14, 8, -16, 7), 'pool5': (32, -63, 30, 16, -32, 15)}
    for layer, printed in table4.items():
        assert receptive_field(layer)['y'] != printed[:3]
        assert receptive_field(layer)['t'] != printed[3:]
    table5 = {'2': (8, -14, 7), '3': (4, -6, 4), '4': (2, -2, 1)}               # the last is right
    right = {i: receptive_field(f'aligned{i}', inside=f'pool{i}')['y'] for i in table5}
    assert [i for i in table5 if table5[i] == right[i]] == ['4']


@pytest.fixture(scope='module')
def seen():
    """layer, axis -> number of the middle unit; first and last place of the video with a gradient.

    The networks are real, with max-pooling. A maximum passes on only one of its inputs, so we take
    the union over many random videos. All weights are positive: no path cancels or dies in a ReLU.
    The axis in question is long enough for the field of the middle unit, the others are short.
    'left' is pool5 with padding=(0, 1, 1)."""
    torch.manual_seed(0)
    net = C3D(1, 2)
    align = {name: astar.Convolution(name, c3d.CHANNELS[name], 2) for name in ALIGN}
    for parameter in torch.nn.ModuleList([net, *align.values()]).parameters():
        torch.nn.init.uniform_(parameter, 0.1, 1.0)
    found = {}
    for dim, axis in enumerate('tyx', 2):
        size = [32, 3, 8, 8, 8]
        size[dim] = 96 if axis == 't' else 192
        x = torch.rand(size).requires_grad_()
        maps = net.convolve(x)
        units = {name: maps[name] for name in MAPS}
        for name in ALIGN:
            mask = torch.ones(len(x), maps[name].shape[2], dtype=torch.bool)
            aligned = align[name](maps[name].permute(0, 2, 3, 4, 1), mask)
            units[name.replace('pool', 'aligned')] = aligned.permute(0, 4, 1, 2, 3)
        conv5 = net.layers['conv5b'](net.layers['conv5a'](maps['pool4']).relu()).relu()
        units['left'] = torch.nn.functional.max_pool3d(conv5, (1, 2, 2), padding=(0, 1, 1))
        for name, unit in units.items():
            i = unit.shape[dim] // 2                                            # counted from 0
            gradient, = torch.autograd.grad(unit.select(dim, i).sum(), x, retain_graph=True)
            places = gradient.abs().sum([d for d in range(5) if d != dim]).nonzero()[:, 0] + 1
            found[name, axis] = i + 1, places.min().item(), places.max().item()
    return found


def test_the_receptive_field_is_what_autograd_measures(seen):
    for layer in (*MAPS, *ALIGNED):
        for axis, (stride, low, high) in receptive_field(layer).items():
            i, first, last = seen[layer, axis]
            assert (first, last) == (stride * i + low, stride * i + high), (layer, axis)


def test_a_left_padded_pool5_is_half_a_stride_off(seen):
    for axis in 'yx':
        i, first, last = seen['left', axis]
        assert (first + last) / 2 == 32 * i - 15.5 - 16


def test_published_weights_read_blue_green_red_minus_the_mean(net, tmp_path):
    frames = video(16)
    torch.save(dict(net.layers.named_parameters()), tmp_path / 'c3d.pt')
    ours = load_published(tmp_path / 'c3d.pt')
    blue_green_red = frames.float().flip(-1) - torch.tensor([90.0, 98.0, 102.0])
    with torch.no_grad():
        expected = net(blue_green_red.permute(0, 4, 1, 2, 3))
        found = ours(to_input(frames))
    assert not ours.training
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())


def test_weights_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / 'c3d.pt'
    with pytest.raises(BadInput, match='No such file'):
        load_published(path)
    path.write_text('hello')
    with pytest.raises(BadInput, match='not a file of weights'):
        load_published(path)
    right = dict(C3D(1, 3).layers.named_parameters())
    short = {name: weight for name, weight in right.items() if name != 'fc7.bias'}
    for weights, message in (
            (short, 'missing.*fc7.bias'), ([1, 2], 'missing.*conv1'),
            (right | {'norm.weight': torch.zeros(1)}, 'unknown.*norm.weight'),
            (right | {'conv4a.weight': torch.zeros(8, 8, 3, 3, 3)}, r'conv4a.*shape \(8, 8, 3')):
        torch.save(weights, path)
        with pytest.raises(BadInput, match=message):
            load_published(path)


def labelled(lengths):
    """Random videos with these numbers of frames, the padding is random too; video i has label i"""
    batch = helpers.batch({'video': [112, 112, 3]}, frames=lengths)
    batch['feats']['video'] = torch.randint(0, 256, batch['feats']['video'].shape)
    return {**batch, 'labels': torch.eye(3)[:len(lengths)]}


def recogniser(shape=(112, 112, 3), **fields):
    torch.manual_seed(0)
    sizes = helpers.sizes({'video': shape}, classes=3)
    return Recogniser(c3d.Config(width=2, **fields), sizes)


def test_the_recogniser_counts_every_video_once_and_every_label_of_it():
    model = recogniser(dropout=0.0)
    batch = labelled([25, 4])                               # two windows; one window of 4 frames
    batch['labels'][1, 2] = 1                               # the second video has two labels
    x = to_input(batch['feats']['video'])
    repeated = torch.cat([x[1:, :, :4], x[1:, :, 3:4].expand(-1, -1, 12, -1, -1)], 2)
    loss, logs = model(batch)
    loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
    with torch.no_grad():
        probabilities, aux = model.predict(batch)
        one = model.net(torch.cat([x[:1, :, :16], x[:1, :, 8:24]])).log_softmax(1)
        two = model.net(repeated).log_softmax(1)
    expected = torch.stack([one.exp().mean(0), two.exp()[0]])
    assert aux == {} and torch.allclose(probabilities, expected, atol=1e-5)
    by_hand = (-one[:, 0].mean() - two[0, 1] - two[0, 2]) / 2
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-4)
    right = (one.argmax(1) == 0).float().mean() + (two[0].argmax() != 0)
    assert logs == {'nll': loss.item(), 'accuracy': pytest.approx(right.item() / 2)}


def test_the_recogniser_uses_its_dropout_and_refuses_zero_frames_and_frames_of_another_size():
    assert recogniser(dropout=0.3).net.drop.p == 0.3
    batch = labelled([16, 16])
    batch['mask']['video'][1] = False
    with pytest.raises(BadInput, match="'b' has zero frames"):
        recogniser()(batch)
    with pytest.raises(BadInput, match=r'video: C3D reads.*\[112, 112, 3\], found \[56, 56, 3\]'):
        recogniser(shape=(56, 56, 3))
