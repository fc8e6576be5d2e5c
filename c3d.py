"""What happens in sixteen frames, to a network whose convolutions run over space and time?

Paper:      D. Tran, L. Bourdev, R. Fergus, L. Torresani, M. Paluri. "Learning Spatiotemporal Features with 3D
            Convolutional Networks." ICCV 2015, doi:10.1109/ICCV.2015.510, arXiv:1412.0767. How ASTAR reads it: astar.py
Covers:     the network (figure 3) and its classifier; fc7, which ASTAR reads; receptive fields, and the table of ASTAR's
            alignment.
Leaves out: the linear SVM on top (Sec. 4), C3D's own descriptor (fc6, averaged, L2-normalised), other tasks than
            classification, pre-training on I380K, frames of 128 x 171 with random crops and flips.

    video --conv1--pool1--conv2--pool2--conv3a,b--pool3--conv4a,b--pool4--conv5a,b--pool5--> of 16 frames: fc6--fc7--fc8
    112 x 112      56 x 56       28 x 28          14 x 14           7 x 7           4 x 4                       classes

All convolutions are 3 x 3 x 3 with padding 1; all poolings halve (pool1 in space alone) and round UP, as Caffe's do:
7 -> 4 at pool5, and ceil(N/16) steps of time for any number N of frames. Many PyTorch ports write padding=(0, 1, 1) at
pool5 to get 4: the same shape, but every unit then looks 16 pixels, half a stride, further up and left.

Receptive fields. Unit i of a layer, counted from 1, sees stride*i+first .. stride*i+last of the video:

                              y and x         centre           t            centre
    pool2                4i-6  ..  4i+3      4i-1.5      2i-3  ..  2i+2     2i-0.5
    pool3                8i-18 ..  8i+11     8i-3.5      4i-9  ..  4i+6     4i-1.5
    pool4               16i-42 .. 16i+27    16i-7.5      8i-21 ..  8i+14    8i-3.5
    pool5 = aligned5    32i-90 .. 32i+59    32i-15.5    16i-45 .. 16i+30   16i-7.5
    aligned2            32i-46 .. 32i+15    32i-15.5    16i-23 .. 16i+8    16i-7.5
    aligned3            32i-58 .. 32i+27    32i-15.5    16i-29 .. 16i+14   16i-7.5
    aligned4            32i-74 .. 32i+43    32i-15.5    16i-37 .. 16i+22   16i-7.5

ASTAR prints other numbers. Its table 4 (pool2 4i-7..4i+2, ..., pool5 32i-63..32i+30 in space) is shifted by one and
forgets conv3b, conv4b and conv5b; its table 5 has aligned2 in pool2 as 8i-14..8i+7 (it is 8i-10..8i+3) and aligned3 in
pool3 as 4i-6..4i+4 (it is 4i-5..4i+2). From these it concludes (though its own pool3 rows multiply to 32i-63..32i+38)
that all four aligned maps see the very same pixels. They do not: they see 62, 86, 118 and 150 of them. What holds is
better: the four share one stride and one centre on every axis. They are aligned, and nested.

Letters:    N videos of a batch with F frames each; B videos of one length, N frames (as papers say); M windows of
            16 frames, C channels or classes, n y x steps of time, rows and columns of a map
"""
from dataclasses import dataclass, field

import torch
import torch.nn as nn

from data import BadInput

LAYERS = (('conv1', 1), ('pool1', (1, 2, 2)),                       # convolution: this number times `width` filters;
          ('conv2', 2), ('pool2', (2, 2, 2)),                       # pooling: this size over time, rows and columns
          ('conv3a', 4), ('conv3b', 4), ('pool3', (2, 2, 2)),
          ('conv4a', 8), ('conv4b', 8), ('pool4', (2, 2, 2)),
          ('conv5a', 8), ('conv5b', 8), ('pool5', (2, 2, 2)))
MAPS = ('pool2', 'pool3', 'pool4', 'pool5')                         # what ASTAR reads, and their channels, times width:
CHANNELS = {name: LAYERS[i - 1][1] for i, (name, _) in enumerate(LAYERS) if name in MAPS}
ALIGN = {'pool2': (7, 3, 8), 'pool3': (5, 2, 4), 'pool4': (3, 1, 2)}    # ASTAR: kernel, padding, pool size, on all axes
WINDOW, HOP = 16, 8                                                 # frames per clip, and from clip to clip (overlap 8)
SIZE = 112                                                          # pixels: rows and columns of a frame
MEAN, SCALE = (102.0, 98.0, 90.0), 64.0                             # red, green, blue of Sports-1M; about a deviation


@dataclass
class Config:
    vocab: int = 0                       # not read here
    feats: dict = field(default_factory=dict)   # not read here: frames are 112 x 112 x 3
    frames: int = 0                      # not read here: any number of frames
    classes: int = 487                   # from the data; 487 in Sports-1M
    categories: int = 0                  # not read here
    captions: int = 0                    # not read here
    features: tuple = ('video',)         # frames: (F, 112, 112, 3) red, green, blue from 0 to 255
    width: int = 64                      # filters of conv1; all other layers grow with it, figure 3
    dropout: float = 0.5                 # UNSPECIFIED: rate, on fc6 and fc7; we chose the Caffe network's
    # DEVIATION: paper SGD at 0.003, halved every 150,000 steps (Sec. 3.3), here Adam, because it needs less tuning.
    optimizer: str = 'adam'              # adam, adamw or rmsprop
    rate: float = 1e-4                   # learning rate
    weight_decay: float = 0.0            # coupled, as torch's Adam
    schedule: str = 'cosine'             # constant or cosine
    clip: float = 5.0                    # gradient norm
    epochs: int = 13                     # Sec. 3.3
    videos_per_batch: int = 30           # 30 clips, Sec. 3.3; here videos, with all their windows
    captions_per_video: int = 5          # not read here, as the next two
    min_count: int = 1                   # words seen less often become <unk>
    max_len: int = 30                    # words of a caption


PRESETS = {'shapes': dict(width=8, dropout=0.0, rate=3e-4, epochs=8, videos_per_batch=8)}


def receptive_field(layer, inside='video'):
    """layer: 'pool2' .. 'pool5', or 'aligned2' .. 'aligned5', which is ASTAR's alignment of that map
    -> {'t', 'y', 'x': (stride, first, last)}: unit i sees stride*i+first .. stride*i+last of the video (or of the layer
    `inside`), all counted from 1. The field goes on over padding, so near a border it leaves the video."""
    pool = layer.replace('aligned', 'pool')
    names = ['video'] + [name for name, _ in LAYERS]
    if (pool not in names or inside not in names or names.index(inside) > names.index(pool)
            or layer.startswith('aligned') and pool not in MAPS):
        raise BadInput(f'no receptive field of {layer!r} in {inside!r}: there are {", ".join(names)}, aligned2 to 5')
    path = [((3, 3, 3), (1, 1, 1), 1) if name.startswith('conv') else (size, size, 0)       # kernel, stride, padding
            for name, size in LAYERS[names.index(inside):names.index(pool)]]
    if layer.startswith('aligned') and pool in ALIGN:                                       # pool5 is aligned as it is
        kernel, padding, size = ALIGN[pool]
        path += [((kernel,) * 3, (1, 1, 1), padding), ((size,) * 3, (size,) * 3, 0)]
    fields = {}
    for axis, name in enumerate('tyx'):
        stride, first, last = 1, 0, 0
        for kernel, step, padding in path:
            low = 1 - step[axis] - padding              # unit i sees step*i+low .. step*i+low+kernel-1 of the one below
            first, last = first + stride * low, last + stride * (low + kernel[axis] - 1)
            stride *= step[axis]
        fields[name] = (stride, first, last)
    return fields


def windows(frames):
    """Number of frames -> (M, 16) frame numbers of the windows that fc7 reads. A shorter video repeats its last frame,
    and an incomplete last window is dropped."""
    # UNSPECIFIED: both of these; we chose so, for a video of 2 frames per second often has less than 16.
    starts = torch.arange(0, max(frames - WINDOW, 0) + 1, HOP)
    return (starts[:, None] + torch.arange(WINDOW)).clamp(max=frames - 1)


def to_input(frames):
    """frames (B, N, 112, 112, 3), uint8 or float from 0 to 255, red green blue -> network input (B, 3, N, 112, 112)"""
    if frames.dim() != 5 or frames.shape[-1] != 3:
        raise BadInput(f'expected frames of shape (videos, frames, {SIZE}, {SIZE}, 3), found {tuple(frames.shape)}')
    x = (frames.float() - torch.tensor(MEAN, device=frames.device)) / SCALE
    return x.permute(0, 4, 1, 2, 3)


class C3D(nn.Module):
    """8 convolutions, 5 poolings, fc6 and fc7 of 64 * width units, and fc8, the classifier."""

    def __init__(self, width=64, classes=487, dropout=0.5):
        super().__init__()
        layers, channels = {}, 3
        for name, size in LAYERS:
            if name.startswith('conv'):
                layers[name] = nn.Conv3d(channels, size * width, 3, padding=1)
                channels = size * width
            else:
                layers[name] = nn.MaxPool3d(size, ceil_mode=True)
        layers['fc6'] = nn.Linear(channels * 4 * 4, 64 * width)
        layers['fc7'] = nn.Linear(64 * width, 64 * width)
        layers['fc8'] = nn.Linear(64 * width, classes)
        for layer in layers.values():                  # UNSPECIFIED: first weights; we chose He et al.'s, made for ReLU
            if not isinstance(layer, nn.MaxPool3d):
                nn.init.kaiming_normal_(layer.weight)
                nn.init.zeros_(layer.bias)
        self.layers, self.drop = nn.ModuleDict(layers), nn.Dropout(dropout)

    def convolve(self, video):
        """video (B, 3, N, Y, X) of any size -> {'pool1' .. 'pool5': (B, C, n, y, x)}"""
        # Channels last is how frames lie in memory anyway, and 1.3 to 1.8 times faster on one core at widths 4 to 16.
        x, maps = video.to(memory_format=torch.channels_last_3d), {}
        for name, _ in LAYERS:
            x = self.layers[name](x)
            if name.startswith('conv'):
                x = x.relu()
            else:
                maps[name] = x
        return maps

    def maps(self, video):
        """video (B, 3, N, 112, 112) as to_input() makes it -> {'pool2' .. 'pool5': (B, C, n, y, x)}, at width 64:
        pool2 (B, 128, ceil(N/2), 28, 28), pool3 (B, 256, ceil(N/4), 14, 14), pool4 (B, 512, ceil(N/8), 7, 7),
        pool5 (B, 512, ceil(N/16), 4, 4)"""
        if video.dim() != 5 or video.shape[1] != 3 or video.shape[3:] != (SIZE, SIZE):
            raise BadInput(f'C3D reads (videos, 3, frames, {SIZE}, {SIZE}), found {tuple(video.shape)}: resize it')
        if video.shape[2] == 0:
            raise BadInput('a video of zero frames: C3D needs at least one')
        if not torch.isfinite(video).all():
            raise BadInput('the video holds NaN or infinite pixels')
        maps = self.convolve(video)
        return {name: maps[name] for name in MAPS}

    def top(self, pool5):
        """pool5 of clips of 16 frames (M, C, 1, 4, 4) -> activations of fc7, after its ReLU (M, 64 * width)"""
        # UNSPECIFIED: in ASTAR, fc7 before or after its ReLU; we chose after.
        return self.layers['fc7'](self.drop(self.layers['fc6'](pool5.flatten(1)).relu())).relu()

    def fc7(self, video):
        """video (B, 3, N, 112, 112) -> (B, 64 * width): the mean over windows of 16 frames that overlap by 8"""
        if video.shape[2] == 0:
            raise BadInput('a video of zero frames: C3D needs at least one')
        # As ASTAR of 2018 says: fc7 of each clip, then the mean. Its first version averages pool5 and applies fc6, fc7 once.
        clips = windows(video.shape[2]).to(video.device)
        each = (self.maps(video.index_select(2, frames))['pool5'] for frames in clips)      # one by one: memory
        return sum(map(self.top, each)) / len(clips)

    def forward(self, clips):
        """clips (M, 3, 16, 112, 112) -> logits (M, classes)"""
        return self.layers['fc8'](self.drop(self.top(self.maps(clips)['pool5'])))


def load_published(path):
    """File of Sports-1M weights as common PyTorch ports have it, keys conv1.weight ... fc8.bias -> C3D in eval mode.

    These weights were trained in Caffe, which rounds pooling up as here, and on blue, green, red pixels from 0 to 255.
    Our input is red, green, blue and divided by SCALE; both changes are folded into conv1. Width and
    number of classes are read from the file. (Weights that this project trained come back by load_state_dict.)"""
    # DEVIATION: Caffe subtracts a mean clip (3 x 16 x 128 x 171), here one colour, because our frames are 112 x 112.
    try:
        weights = torch.load(path, map_location='cpu', weights_only=True)
    except FileNotFoundError:
        raise BadInput(f'{path}: there is no such file of C3D weights') from None
    except Exception as error:                              # whatever a file that is no checkpoint makes of the reader
        raise BadInput(f'{path}: not a file of weights that torch can read safely ({type(error).__name__})') from None
    needed = [f'{name}.{part}' for name in [n for n, _ in LAYERS if n.startswith('conv')] + ['fc6', 'fc7', 'fc8']
              for part in ('weight', 'bias')]
    found = {name for name, x in weights.items() if torch.is_tensor(x)} if isinstance(weights, dict) else set()
    if found != set(needed):
        raise BadInput(f'{path}: not C3D weights: expected the {len(needed)} keys {needed[0]} ... {needed[-1]}; '
                       f'missing {sorted(set(needed) - found)[:4]}, unknown {sorted(found - set(needed), key=str)[:4]}')
    net = C3D(len(weights['conv1.weight']), len(weights['fc8.weight']))
    for name, parameter in net.layers.named_parameters():
        if weights[name].shape != parameter.shape:
            raise BadInput(f'{path}: {name} has shape {tuple(weights[name].shape)}, but by the filters of its conv1 it '
                           f'should have {tuple(parameter.shape)}')
    net.layers.load_state_dict(weights | {'conv1.weight': weights['conv1.weight'].flip(1) * SCALE})
    return net.eval()


class Recogniser(nn.Module):
    """C3D as a classifier of whole videos: every window of 16 frames is a clip with the video's label."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg, self.net = cfg, C3D(cfg.width, cfg.classes, cfg.dropout)

    def clips(self, batch):
        """feats (N, F, 112, 112, 3) uint8 or float from 0 to 255, mask (N, F) -> logits (M, C) of all windows;
        rows (M,), the video of each; share (M,), 1 / the number of its video's windows"""
        name = self.cfg.features[0]
        video, lengths = batch['feats'][name], batch['mask'][name].sum(1).tolist()
        if 0 in lengths:
            raise BadInput(f'video {batch["ids"][lengths.index(0)]!r} has zero frames')
        # DEVIATION: paper takes random clips of a video (Sec. 3.3), here every window, because then nothing is random.
        parts = [windows(n).to(video.device) for n in lengths]                          # (M_n, 16) per video
        clips = torch.cat([v[frames] for v, frames in zip(video, parts)])               # (M, 16, 112, 112, 3)
        counts = torch.tensor([len(frames) for frames in parts], device=video.device)
        rows = torch.arange(len(parts), device=video.device).repeat_interleave(counts)
        return self.net(to_input(clips)), rows, 1 / counts[rows]

    def forward(self, batch, *, epoch=0):
        """batch with labels (N, C) -> loss (), logs.   Cross-entropy, a copy of a video per label; window mean."""
        logits, rows, share = self.clips(batch)
        nll = -(batch['labels'][rows] * logits.log_softmax(1)).sum(1) * share           # (M,)
        loss = nll.sum() / len(batch['labels'])                     # by videos, so that shards add up to the batch
        right = batch['labels'][rows].gather(1, logits.argmax(1, keepdim=True))[:, 0] * share
        return loss, {'nll': loss.item(), 'accuracy': right.sum().item() / len(batch['labels'])}

    def predict(self, batch):
        """batch -> probabilities (N, C), the mean over the video's windows; aux: empty"""
        logits, rows, share = self.clips(batch)
        mean = logits.new_zeros(len(batch['ids']), logits.shape[1])
        return mean.index_add(0, rows, logits.softmax(1) * share[:, None]), {}
