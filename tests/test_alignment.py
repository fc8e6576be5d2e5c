"""C3D and the alignment of its layers: shapes, receptive fields as autograd sees them, windows, weights, classifier."""
import inspect
import math

import pytest
import torch

import astar
import c3d
from c3d import ALIGN, LAYERS, MAPS, C3D, Recogniser, load_published, receptive_field, to_input, windows
from data import BadInput

torch.set_num_threads(1)
AXES = {'t': 2, 'y': 3, 'x': 4}                     # dim of each axis in (B, C, t, y, x)


def video(frames, seed=0, videos=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (videos, frames, 112, 112, 3), generator=generator, dtype=torch.uint8)


def positive(net):
    """Weights above zero: no path from input to unit can cancel out or die in a ReLU."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.uniform_(0.1, 1.0)
    return net


# ---------------------------------------------------------------------------------------------------------- the network

@pytest.mark.parametrize('frames', [1, 5, 16, 33])
def test_maps_have_the_published_sizes_for_any_number_of_frames(frames):
    torch.manual_seed(0)
    width, net = 2, C3D(2, 5).eval()
    with torch.no_grad():
        maps = net.maps(to_input(video(frames)))
        assert list(maps) == ['pool2', 'pool3', 'pool4', 'pool5']
        sizes = {'pool2': (2, 2, 28), 'pool3': (4, 4, 14), 'pool4': (8, 8, 7), 'pool5': (8, 16, 4)}
        for name, (channels, every, side) in sizes.items():
            assert maps[name].shape == (1, channels * width, math.ceil(frames / every), side, side)
        assert net.fc7(to_input(video(frames))).shape == (1, 64 * width)


def test_the_full_width_has_the_published_parameters():
    default = {name: value.default for name, value in inspect.signature(C3D).parameters.items()}
    assert default['width'] == 64 and default['classes'] == 487
    shapes = {name: tuple(parameter.shape) for name, parameter in C3D(width=2).layers.named_parameters()}   # 64 / 32
    filters = {'conv1': (64, 3), 'conv2': (128, 64), 'conv3a': (256, 128), 'conv3b': (256, 256), 'conv4a': (512, 256),
               'conv4b': (512, 512), 'conv5a': (512, 512), 'conv5b': (512, 512)}
    for name, (out, into) in filters.items():
        assert shapes[f'{name}.weight'] == (out // 32, into // 32 if into > 3 else 3, 3, 3, 3)
    assert shapes['fc6.weight'] == (4096 // 32, 8192 // 32) and shapes['fc7.weight'] == (4096 // 32, 4096 // 32)
    assert shapes['fc8.weight'] == (487, 4096 // 32) and len(shapes) == 22


@pytest.mark.parametrize('frames, expected', [
    (1, [[0] * 16]), (9, [[*range(9), *[8] * 7]]), (16, [range(16)]), (23, [range(16)]),
    (24, [range(16), range(8, 24)]), (33, [range(16), range(8, 24), range(16, 32)])])
def test_windows_of_16_overlap_by_8_repeat_the_last_frame_and_drop_what_is_left(frames, expected):
    assert windows(frames).tolist() == [list(numbers) for numbers in expected]


def test_fc7_is_the_mean_over_windows():
    torch.manual_seed(0)
    net, x = C3D(2, 5).eval(), to_input(video(27))

    def by_hand(clip):                              # the network written out on one clip of 16 frames
        for name, _ in LAYERS:
            clip = net.layers[name](clip)
            clip = clip.clamp(min=0) if name.startswith('conv') else clip
        return net.layers['fc7'](net.layers['fc6'](clip.reshape(1, -1)).clamp(min=0)).clamp(min=0)

    with torch.no_grad():
        assert torch.allclose(net.fc7(x), (by_hand(x[:, :, :16]) + by_hand(x[:, :, 8:24])) / 2, atol=1e-5)
        short = x[:, :, :3]
        repeated = torch.cat([short] + [short[:, :, 2:]] * 13, 2)
        assert torch.allclose(net.fc7(short), by_hand(repeated), atol=1e-5)


def test_bad_videos_are_told():
    net = C3D(1, 3)
    with pytest.raises(BadInput, match='112'):
        net.maps(torch.zeros(1, 3, 16, 120, 160))
    with pytest.raises(BadInput, match='112'):
        net.maps(torch.zeros(1, 16, 112, 112, 3))
    with pytest.raises(BadInput, match='zero frames'):
        net.maps(torch.zeros(1, 3, 0, 112, 112))
    with pytest.raises(BadInput, match='zero frames'):
        net.fc7(torch.zeros(1, 3, 0, 112, 112))
    with pytest.raises(BadInput, match='NaN'):
        net.maps(torch.full((1, 3, 1, 112, 112), float('nan')))
    with pytest.raises(BadInput, match='3'):
        to_input(torch.zeros(1, 4, 112, 112))


# ----------------------------------------------------------------------------------------------------- receptive fields

def test_receptive_fields_worked_by_hand():
    # In space, pool1 reads 2i-1..2i of conv1, which adds one on both sides: 2i-2..2i+1. conv2 reads pool1 i-1..i+1:
    # 2(i-1)-2 = 2i-4 .. 2(i+1)+1 = 2i+3. pool2 reads conv2 2i-1..2i: 2(2i-1)-4 = 4i-6 .. 2*2i+3 = 4i+3. In time pool1
    # does nothing: two convolutions see i-2..i+2, pool2 reads 2i-1..2i of these: 2i-3..2i+2.
    assert receptive_field('pool2') == {'t': (2, -3, 2), 'y': (4, -6, 3), 'x': (4, -6, 3)}
    assert receptive_field('pool5') == {'t': (16, -45, 30), 'y': (32, -90, 59), 'x': (32, -90, 59)}
    assert receptive_field('aligned2') == {'t': (16, -23, 8), 'y': (32, -46, 15), 'x': (32, -46, 15)}
    for layer, window in (('pool4', (2, -3, 2)), ('pool3', (4, -9, 6)), ('pool2', (8, -21, 14)), ('pool5', (1, 0, 0))):
        assert set(receptive_field('pool5', inside=layer).values()) == {window}
    with pytest.raises(BadInput, match='aligned2'):
        receptive_field('pool6')


def test_aligned_maps_share_stride_and_centre_and_are_nested():
    fields = [receptive_field(f'aligned{i}') for i in (2, 3, 4, 5)]
    for axis in 'tyx':
        assert len({(stride, first + last) for stride, first, last in (field[axis] for field in fields)}) == 1
        firsts, lasts = [field[axis][1] for field in fields], [field[axis][2] for field in fields]
        assert firsts == sorted(firsts, reverse=True) and lasts == sorted(lasts) and len(set(firsts)) == 4
    assert [field['y'][2] - field['y'][1] + 1 for field in fields] == [62, 86, 118, 150]


def test_the_papers_tables_differ():
    printed = {'pool2': ((4, -7, 2), (2, -4, 1)), 'pool3': ((8, -15, 6), (4, -8, 3)),       # table 4: space, time
               'pool4': ((16, -31, 14), (8, -16, 7)), 'pool5': ((32, -63, 30), (16, -32, 15))}
    for layer, (space, time) in printed.items():
        assert receptive_field(layer)['y'] != space and receptive_field(layer)['t'] != time
        assert layer in c3d.__doc__
    for layer, (stride, first, last) in {'pool2': (8, -14, 7), 'pool3': (4, -6, 4)}.items():        # table 5
        assert receptive_field(layer.replace('pool', 'aligned'), inside=layer)['y'] != (stride, first, last)
        assert f'{stride}i{first}..{stride}i+{last}' in c3d.__doc__
    assert receptive_field('aligned4', inside='pool4')['y'] == (2, -2, 1)                           # this row is right


@pytest.fixture(scope='module')
def seen():
    """layer, axis -> number of the middle unit, first and last place in the video with a gradient from it.

    Real networks with max-pooling: a maximum lets one of its inputs through, so the union over many random videos is
    taken. Axes are independent: the one in question is long enough for the middle unit's field, the others are short.
    'left' is pool5 with padding=(0, 1, 1)."""
    torch.manual_seed(0)
    net = positive(C3D(1, 2))
    align = {name: positive(astar.Convolution(name, c3d.CHANNELS[name], 2)) for name in ALIGN}
    found = {}
    for axis, dim in AXES.items():
        size = [32, 3, 8, 8, 8]
        size[dim] = 96 if axis == 't' else 192
        x = torch.rand(size).requires_grad_()
        maps = net.convolve(x)
        units = {name: maps[name] for name in MAPS}
        for name in ALIGN:
            mask = torch.ones(len(x), maps[name].shape[2], dtype=torch.bool)
            aligned = align[name](maps[name].permute(0, 2, 3, 4, 1), mask).permute(0, 4, 1, 2, 3)
            units[name.replace('pool', 'aligned')] = aligned
        conv5 = net.layers['conv5b'](net.layers['conv5a'](maps['pool4']).relu()).relu()
        units['left'] = torch.nn.functional.max_pool3d(conv5, (1, 2, 2), padding=(0, 1, 1))     # only for y and x
        for name, unit in units.items():
            i = unit.shape[dim] // 2                                                            # from 0
            gradient, = torch.autograd.grad(unit.select(dim, i).sum(), x, retain_graph=True)
            places = gradient.abs().sum([d for d in range(5) if d != dim]).nonzero()[:, 0] + 1
            found[name, axis] = i + 1, places.min().item(), places.max().item()
    return found


@pytest.mark.parametrize('layer', [*MAPS, 'aligned2', 'aligned3', 'aligned4'])
@pytest.mark.parametrize('axis', AXES)
def test_receptive_field_is_what_autograd_sees(seen, layer, axis):
    i, first, last = seen[layer, axis]
    stride, low, high = receptive_field(layer)[axis]
    assert (first, last) == (stride * i + low, stride * i + high)


def test_a_left_padded_pool5_is_not_aligned(seen):
    stride, low, high = receptive_field('pool5')['y']
    for axis in 'yx':
        i, first, last = seen['left', axis]
        assert first + last != 2 * stride * i + low + high
        assert (first + last) / 2 == 32 * i - 31.5          # half a stride off: the middle between two aligned units


# ----------------------------------------------------------------------------------------------- weights and classifier

def published(net):
    return {name: parameter.detach().clone() for name, parameter in net.layers.named_parameters()}


def test_published_weights_read_blue_green_red_minus_mean(tmp_path):
    torch.manual_seed(0)
    caffe, frames = C3D(2, 5).eval(), video(16)
    torch.save(published(caffe), tmp_path / 'c3d.pt')
    net = load_published(tmp_path / 'c3d.pt')
    blue_green_red = frames.float().flip(-1) - torch.tensor([90.0, 98.0, 102.0])
    with torch.no_grad():
        ours, theirs = net(to_input(frames)), caffe(blue_green_red.permute(0, 4, 1, 2, 3))
    assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3 * theirs.abs().max().item())
    for name, parameter in net.layers.named_parameters():
        assert name == 'conv1.weight' or torch.equal(parameter, published(caffe)[name])


def test_weights_that_do_not_fit_are_told(tmp_path):
    whole, path = published(C3D(1, 3)), tmp_path / 'c3d.pt'
    for change, message in [({'fc7.bias': None}, 'missing.*fc7.bias'),
                            ({'norm.weight': torch.zeros(1)}, 'unknown.*norm.weight'),
                            ({'conv4a.weight': torch.zeros(8, 8, 3, 3, 3)}, r'conv4a.weight has shape \(8, 8, 3,')]:
        torch.save({name: x for name, x in {**whole, **change}.items() if x is not None}, path)
        with pytest.raises(BadInput, match=message):
            load_published(path)
    torch.save([1, 2], path)
    with pytest.raises(BadInput, match='conv1.weight'):
        load_published(path)
    path.write_text('hello')
    with pytest.raises(BadInput, match='not a file of weights'):
        load_published(path)
    with pytest.raises(BadInput, match='no such file'):
        load_published(tmp_path / 'nowhere.pt')


def labelled(lengths, classes=3):
    frames = torch.zeros(len(lengths), max(lengths), 112, 112, 3, dtype=torch.uint8)
    for row, n in enumerate(lengths):
        frames[row, :n] = video(n, seed=row)[0]
    labels = torch.zeros(len(lengths), classes)
    labels[range(len(lengths)), [row % classes for row in range(len(lengths))]] = 1
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    ids = [f'v{row}' for row in range(len(lengths))]
    return {'feats': {'video': frames}, 'mask': {'video': mask}, 'labels': labels, 'ids': ids}


@pytest.fixture(scope='module')
def recogniser():
    torch.manual_seed(0)
    return Recogniser(c3d.Config(width=2, classes=3, dropout=0.0))


def test_recogniser_counts_every_video_once_and_every_copy_of_a_label(recogniser):
    batch = labelled([25, 4])                               # two windows, and one of four frames
    batch['labels'][1, 2] = 1                               # the second video has two labels
    batch['feats']['video'][1, 4:] = 77                     # padding
    with torch.no_grad():
        loss, logs = recogniser(batch)
        probabilities, _ = recogniser.predict(batch)
        x = to_input(batch['feats']['video'].float())
        one = recogniser.net(torch.cat([x[:1, :, :16], x[:1, :, 8:24]]))
        two = recogniser.net(torch.cat([x[1:, :, :4], x[1:, :, 3:4].expand(-1, -1, 12, -1, -1)], 2))
    assert torch.allclose(probabilities, torch.stack([one.softmax(1).mean(0), two.softmax(1)[0]]), atol=1e-5)
    assert torch.allclose(probabilities.sum(1), torch.ones(2))
    expected = (-one.log_softmax(1)[:, 0].mean() - two.log_softmax(1)[0, 1] - two.log_softmax(1)[0, 2]) / 2
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4) and logs['nll'] == pytest.approx(loss.item())


def test_recogniser_gives_every_parameter_a_gradient(recogniser):
    loss, _ = recogniser(labelled([16, 16, 7]))
    loss.backward()
    for name, parameter in recogniser.named_parameters():
        assert parameter.grad.abs().sum() > 0, name


def test_recogniser_tells_of_zero_frames(recogniser):
    batch = labelled([16, 16])
    batch['mask']['video'][1] = False
    with pytest.raises(BadInput, match="'v1' has zero frames"):
        recogniser(batch)
