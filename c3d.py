"""What can a network see in sixteen frames if its convolutions run over space and time?

Paper:      D. Tran, L. Bourdev, R. Fergus, L. Torresani, M. Paluri. "Learning Spatiotemporal
            Features with 3D Convolutional Networks." ICCV 2015, doi:10.1109/ICCV.2015.510,
            arXiv:1412.0767
Covers:     the network (figure 3) and its classifier; the features that ASTAR (astar.py) reads;
            the receptive fields of its layers and of the maps that ASTAR aligns.
Leaves out: the linear SVM (Sec. 4), C3D's own descriptor (fc6, averaged and L2-normalised), tasks
            other than classification, pre-training on I380K, frames of 128 x 171 pixels with
            random crops and flips.

    video --conv1--pool1--conv2--pool2--conv3a,b--pool3--conv4a,b--pool4--conv5a,b--pool5
    112 x 112      56 x 56       28 x 28          14 x 14           7 x 7           4 x 4
    pool5 of 16 frames --fc6--fc7--fc8--> classes

Every convolution is 3 x 3 x 3 with padding 1. Every pooling halves its input (pool1 in space only)
and rounds UP, as Caffe does. So pool5 turns 7 rows into 4, and N frames become ceil(N/16) steps.
Many PyTorch ports get the 4 rows from padding=(0, 1, 1) at pool5. The shape is the same, but what
each unit sees moves up and to the left by 16 pixels, which is half a stride.

Receptive fields. Unit i of a layer, counted from 1, sees stride*i+first .. stride*i+last of the
pixels (y, x) and frames (t). aligned2 is ASTAR's aligned version of pool2, and so on:

                              y and x         centre           t            centre
    pool2                4i-6  ..  4i+3      4i-1.5      2i-3  ..  2i+2     2i-0.5
    pool3                8i-18 ..  8i+11     8i-3.5      4i-9  ..  4i+6     4i-1.5
    pool4               16i-42 .. 16i+27    16i-7.5      8i-21 ..  8i+14    8i-3.5
    pool5 = aligned5    32i-90 .. 32i+59    32i-15.5    16i-45 .. 16i+30   16i-7.5
    aligned2            32i-46 .. 32i+15    32i-15.5    16i-23 .. 16i+8    16i-7.5
    aligned3            32i-58 .. 32i+27    32i-15.5    16i-29 .. 16i+14   16i-7.5
    aligned4            32i-74 .. 32i+43    32i-15.5    16i-37 .. 16i+22   16i-7.5

ASTAR prints other numbers. Its table 4 (pool2 4i-7..4i+2, ..., pool5 32i-63..32i+30 in space) is
shifted by one and omits conv3b, conv4b and conv5b. Its table 5 prints 8i-14..8i+7 for aligned2 in
pool2 (correct: 8i-10..8i+3) and 4i-6..4i+4 for aligned3 in pool3 (correct: 4i-5..4i+2). The paper
concludes that all four aligned maps see exactly the same pixels, although its own rows for pool3
combine to 32i-63..32i+38. In fact they see 62, 86, 118 and 150 pixels. A better statement is true:
on every axis the four maps have the same stride and the same centre. They are aligned and nested.

Letters:    in Recogniser N videos of F frames; in C3D B videos of N frames (the papers' N);
            M windows of 16 frames; C channels or classes; n, y, x steps of time, rows and columns
            of a map
"""
from dataclasses import dataclass

import torch
import torch.nn as nn

from data import BadInput, reading

# (name, n): a convolution with n * width filters. (name, size): a pooling of that size in t, y, x.
LAYERS = (
    ('conv1', 1), ('pool1', (1, 2, 2)),
    ('conv2', 2), ('pool2', (2, 2, 2)),
    ('conv3a', 4), ('conv3b', 4), ('pool3', (2, 2, 2)),
    ('conv4a', 8), ('conv4b', 8), ('pool4', (2, 2, 2)),
    ('conv5a', 8), ('conv5b', 8), ('pool5', (2, 2, 2)),
)
CHANNELS = {'pool2': 2, 'pool3': 4, 'pool4': 8, 'pool5': 8}     # times `width`
MAPS = tuple(CHANNELS)                                          # the maps that ASTAR reads
# ASTAR's alignment: size and padding of the convolution, size of the pooling, equal on every axis
ALIGN = {'pool2': (7, 3, 8), 'pool3': (5, 2, 4), 'pool4': (3, 1, 2)}
WINDOW = 16                             # frames in a clip
HOP = 8                                 # frames from one clip to the next: clips overlap by 8
SIZE = 112                              # rows and columns of a frame, in pixels
MEAN = (102.0, 98.0, 90.0)              # mean red, green and blue of Sports-1M
SCALE = 64.0                            # pixels are divided by about their standard deviation


@dataclass
class Config:
    features: tuple = ('video',)        # frames (F, 112, 112, 3), red, green, blue from 0 to 255
    width: int = 64                     # filters of conv1; other layers have multiples, fig. 3
    # UNSPECIFIED: the rate of dropout on fc6 and fc7; we chose that of the published Caffe model.
    dropout: float = 0.5                # dropout on fc6 and fc7
    # DEVIATION: paper uses SGD with a rate of 0.003 that is halved every 150,000 steps (Sec. 3.3),
    # here Adam with a cosine schedule, because it needs less tuning.
    optimizer: str = 'adam'             # adam, adamw or rmsprop
    rate: float = 1e-4                  # learning rate
    schedule: str = 'cosine'            # learning rate over time: constant or cosine
    # UNSPECIFIED: weight decay and gradient clipping; we chose none, and a largest norm of 5.
    weight_decay: float = 0.0           # strength of the weight decay
    clip: float = 5.0                   # largest norm of the gradient
    epochs: int = 13                    # passes over the training videos, Sec. 3.3
    # DEVIATION: paper has 30 clips in a batch (Sec. 3.3), here 30 videos with all their clips,
    # because features are stored per video.
    videos_per_batch: int = 30          # videos in a batch


PRESETS = {'shapes': dict(width=8, dropout=0.0, rate=3e-4, epochs=8, videos_per_batch=8)}


def is_convolution(name):
    return name.startswith('conv')


def steps_between(inside, layer):
    """-> [(kernel, stride, padding)] from the layer `inside` up to `layer`, kernel and stride each
    in t, y and x"""
    pool = layer.replace('aligned', 'pool')
    names = ['video'] + [name for name, _ in LAYERS]
    exists = pool in MAPS if layer.startswith('aligned') else layer in names
    if not exists or inside not in names or names.index(inside) > names.index(pool):
        known = ', '.join(names)
        raise BadInput(f'no receptive field of {layer!r} in {inside!r}: choose from {known}, '
                       'aligned2 to aligned5')
    steps = []
    for name, size in LAYERS[names.index(inside):names.index(pool)]:
        if is_convolution(name):
            steps.append(((3, 3, 3), (1, 1, 1), 1))
        else:
            steps.append((size, size, 0))
    if layer.startswith('aligned') and pool in ALIGN:       # pool5 needs no alignment
        kernel, padding, size = ALIGN[pool]
        steps.append(((kernel,) * 3, (1, 1, 1), padding))
        steps.append(((size,) * 3, (size,) * 3, 0))
    return steps


def receptive_field(layer, inside='video'):
    """layer: 'pool2' .. 'pool5', or 'aligned2' .. 'aligned5' for ASTAR's aligned version of it
    -> {'t', 'y', 'x': (stride, first, last)}: unit i sees stride*i+first .. stride*i+last of the
    video, or of the layer `inside`. Units, frames and pixels are counted from 1. Near a border the
    field includes padding, so it extends beyond the video."""
    steps = steps_between(inside, layer)
    fields = {}
    for axis, name in enumerate('tyx'):
        stride = 1
        first = 0
        last = 0
        for kernel, step, padding in steps:
            # One unit sees step*i+low .. step*i+low+kernel-1 of the layer below.
            low = 1 - step[axis] - padding
            first += stride * low
            last += stride * (low + kernel[axis] - 1)
            stride *= step[axis]
        fields[name] = (stride, first, last)
    return fields


def windows(frames):
    """Number of frames -> (M, 16): the frame numbers of each window that fc7 reads"""
    # UNSPECIFIED: what to do with videos of fewer than 16 frames, which are common at 2 frames per
    # second, and with an incomplete last window; we chose to repeat the last frame of a short
    # video, and to drop the incomplete last window of a longer one.
    starts = torch.arange(0, max(frames - WINDOW, 0) + 1, HOP)
    return (starts[:, None] + torch.arange(WINDOW)).clamp(max=frames - 1)


def to_input(frames):
    """frames (B, N, 112, 112, 3), uint8 or float from 0 to 255, red, green, blue
    -> input of the network (B, 3, N, 112, 112)"""
    if frames.dim() != 5 or frames.shape[-1] != 3:
        raise BadInput(f'C3D reads frames of shape (videos, frames, {SIZE}, {SIZE}, 3), '
                       f'found {tuple(frames.shape)}')
    x = (frames.float() - torch.tensor(MEAN, device=frames.device)) / SCALE
    return x.permute(0, 4, 1, 2, 3)


class C3D(nn.Module):
    """8 convolutions, 5 poolings, fc6 and fc7 with 64 * width units each, and the classifier fc8"""

    def __init__(self, width=64, classes=487, dropout=0.5):
        """Makes self.layers, a ModuleDict of all LAYERS, fc6, fc7 and fc8, and self.drop."""
        super().__init__()
        layers = {}
        channels = 3
        for name, size in LAYERS:
            if is_convolution(name):
                layers[name] = nn.Conv3d(channels, size * width, 3, padding=1)
                channels = size * width
            else:
                layers[name] = nn.MaxPool3d(size, ceil_mode=True)
        layers['fc6'] = nn.Linear(channels * 4 * 4, 64 * width)
        layers['fc7'] = nn.Linear(64 * width, 64 * width)
        layers['fc8'] = nn.Linear(64 * width, classes)
        # UNSPECIFIED: the initial weights; we chose those of He et al., which suit ReLU.
        for layer in layers.values():
            if not isinstance(layer, nn.MaxPool3d):
                nn.init.kaiming_normal_(layer.weight)
                nn.init.zeros_(layer.bias)
        self.layers = nn.ModuleDict(layers)
        self.drop = nn.Dropout(dropout)

    def convolve(self, video):
        """video (B, 3, N, Y, X) of any size -> {'pool1' .. 'pool5': (B, C, n, y, x)}"""
        # Frames are stored with channels last. Keeping this order makes the network 1.3 to 1.8
        # times as fast on one core (widths 4 to 16).
        x = video.to(memory_format=torch.channels_last_3d)
        maps = {}
        for name, _ in LAYERS:
            x = self.layers[name](x)
            if is_convolution(name):
                x = x.relu()
            else:
                maps[name] = x
        return maps

    def maps(self, video):
        """video (B, 3, N, 112, 112) from to_input() -> {'pool2' .. 'pool5': (B, C, n, y, x)}.
        At width 64: pool2 (B, 128, ceil(N/2), 28, 28), pool3 (B, 256, ceil(N/4), 14, 14),
        pool4 (B, 512, ceil(N/8), 7, 7), pool5 (B, 512, ceil(N/16), 4, 4)"""
        if video.dim() != 5 or video.shape[1] != 3 or video.shape[3:] != (SIZE, SIZE):
            raise BadInput(f'C3D reads (videos, 3, frames, {SIZE}, {SIZE}), '
                           f'found {tuple(video.shape)}: resize the frames')
        if video.shape[2] == 0:
            raise BadInput('the video has zero frames: C3D needs at least one')
        if not torch.isfinite(video).all():
            raise BadInput('the video has NaN or infinite pixels')
        maps = self.convolve(video)
        return {name: maps[name] for name in MAPS}

    def top(self, pool5):
        """pool5 of clips of 16 frames (M, C, 1, 4, 4) -> fc7 after its ReLU (M, 64 * width)"""
        fc6 = self.layers['fc6'](pool5.flatten(1)).relu()
        # UNSPECIFIED: whether ASTAR reads fc7 before or after its ReLU; we chose after.
        return self.layers['fc7'](self.drop(fc6)).relu()

    def fc7(self, video):
        """video (B, 3, N, 112, 112) -> (B, 64 * width): fc7, averaged over windows of 16 frames
        that overlap by 8"""
        if video.shape[2] == 0:
            raise BadInput('the video has zero frames: C3D needs at least one')
        # We average fc7, as ASTAR does in 2018. Its first version (2016) averages pool5 instead.
        clips = windows(video.shape[2]).to(video.device)
        total = 0
        for frames in clips:                                # one clip at a time saves memory
            total = total + self.top(self.maps(video.index_select(2, frames))['pool5'])
        return total / len(clips)

    def forward(self, clips):
        """clips (M, 3, 16, 112, 112) -> logits (M, C)"""
        fc7 = self.top(self.maps(clips)['pool5'])
        return self.layers['fc8'](self.drop(fc7))


def parameter_names():
    """-> ['conv1.weight', 'conv1.bias', ..., 'fc8.bias']: the names in a file of weights"""
    names = []
    for layer in [name for name, _ in LAYERS if is_convolution(name)] + ['fc6', 'fc7', 'fc8']:
        names += [f'{layer}.weight', f'{layer}.bias']
    return names


def read_weights(path):
    """-> {name: tensor} with exactly the names of parameter_names()"""
    with reading(path, 'not a file of weights that torch can load safely'):
        weights = torch.load(path, map_location='cpu', weights_only=True)
    found = set()
    if isinstance(weights, dict):
        found = {name for name, value in weights.items() if torch.is_tensor(value)}
    needed = parameter_names()
    if found != set(needed):
        missing = sorted(set(needed) - found)[:4]
        unknown = sorted(found - set(needed), key=str)[:4]
        raise BadInput(f'{path}: not C3D weights: expected the {len(needed)} keys {needed[0]} ... '
                       f'{needed[-1]}; missing {missing}, unknown {unknown}')
    return weights


def load_published(path):
    """File of Sports-1M weights with the keys of common PyTorch ports -> C3D in eval mode.

    These weights were trained in Caffe, which rounds up in pooling as we do. The pixels were from 0
    to 255, in the order blue, green, red. Our input has the order red, green, blue and is divided
    by SCALE, so the weights of conv1 are changed to match. The width and the number of classes are
    read from the file. (For weights that this project trained, use load_state_dict.)"""
    # DEVIATION: paper's Caffe model subtracts a mean clip (3 x 16 x 128 x 171), here we subtract
    # one mean colour, because our frames are 112 x 112.
    weights = read_weights(path)
    net = C3D(len(weights['conv1.weight']), len(weights['fc8.weight']))
    for name, parameter in net.layers.named_parameters():
        if weights[name].shape != parameter.shape:
            raise BadInput(f'{path}: {name} has shape {tuple(weights[name].shape)}, but a C3D with '
                           f'that many filters in conv1 needs {tuple(parameter.shape)}')
    first = weights['conv1.weight'].flip(1) * SCALE
    net.layers.load_state_dict({**weights, 'conv1.weight': first})
    return net.eval()


class Recogniser(nn.Module):
    """C3D as a classifier of whole videos. Every window of 16 frames is a clip with the labels of
    its video."""

    def __init__(self, cfg, sizes):
        super().__init__()
        name = cfg.features[0]
        shape = list(sizes.feats[name])
        if shape != [SIZE, SIZE, 3]:
            raise BadInput(f'--features {name}: C3D reads frames of shape [{SIZE}, {SIZE}, 3], '
                           f'found {shape}')
        self.cfg = cfg
        self.net = C3D(cfg.width, sizes.classes, cfg.dropout)

    def clips(self, batch):
        """feats (N, F, 112, 112, 3) uint8 or float from 0 to 255, mask (N, F) -> logits (M, C) of
        all windows; rows (M,), the video of each window; share (M,), 1 / the number of windows of
        that video"""
        name = self.cfg.features[0]
        video = batch['feats'][name]
        lengths = batch['mask'][name].sum(1).tolist()
        if 0 in lengths:
            raise BadInput(f'video {batch["ids"][lengths.index(0)]!r} has zero frames')
        # DEVIATION: paper trains on five random clips of each video and averages the predictions of
        # ten (Sec. 3.3), here every window of 16 frames is a clip, because this needs no random
        # choice.
        numbers = [windows(n).to(video.device) for n in lengths]                # (M_n, 16) each
        clips = torch.cat([v[n] for v, n in zip(video, numbers)])               # (M, 16, Y, X, 3)
        counts = torch.tensor([len(n) for n in numbers], device=video.device)
        rows = torch.arange(len(video), device=video.device).repeat_interleave(counts)
        return self.net(to_input(clips)), rows, 1 / counts[rows]

    def forward(self, batch, *, epoch=0):
        """batch with labels (N, C) -> loss (), logs. The cross-entropy is summed over the labels of
        a video, averaged over its windows, then averaged over videos."""
        logits, rows, share = self.clips(batch)
        labels = batch['labels'][rows]                                          # (M, C)
        nll = -(labels * logits.log_softmax(1)).sum(1) * share                  # (M,)
        loss = nll.sum() / len(batch['labels'])
        right = labels.gather(1, logits.argmax(1, keepdim=True))[:, 0] * share  # (M,)
        accuracy = right.sum().item() / len(batch['labels'])
        return loss, {'nll': loss.item(), 'accuracy': accuracy}

    def predict(self, batch):
        """batch -> probabilities (N, C), averaged over the windows of each video; aux, empty"""
        logits, rows, share = self.clips(batch)
        mean = logits.new_zeros(len(batch['ids']), logits.shape[1])
        return mean.index_add(0, rows, logits.softmax(1) * share[:, None]), {}
