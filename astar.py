"""Which layer of a network, and which place in that layer, should the next word attend to?

Paper:      Y. Pu, M. R. Min, Z. Gan, L. Carin. "Adaptive Feature Abstraction for Translating Video
            to Text." AAAI 2018. arXiv:1611.07837. This version calls the method dualAFR; the first
            version (2016), which has fuller equations, calls it ASTAR. Our equation numbers are
            those of 2018.
Covers:     the whole method, and every row of tables 1 and 2 that is the authors' own (for an
            ensemble, give evaluate.py several runs). Eq. 1-18; the LSTM is Eq. 2 of the first
            version.
Leaves out: human evaluation (table 3). C3D is not fine-tuned, as in the paper.

    pool2 --7x7x7 convolution, ReLU, max 8--+
    pool3 --5x5x5 convolution, ReLU, max 4--+-- a: I places x L layers --alpha--> s_t --beta--> z_t
    pool4 --3x3x3 convolution, ReLU, max 2--+   I = 4 x 4 x ceil(frames/16), L = 4
    pool5 ----------------------------------+   alpha and beta depend on h_t-1

    z_t, y_t-1 --LSTM--> h_t --> y_t            for t >= 2
    fc7 --tanh--> h_1 --> y_1                   the first word depends on fc7 alone

Variants:   soft, hard                          the paper's "Soft / Hard Attention"
            fc7                                 "C3D fc7 + LSTM"
            pool2, pool3, pool4, pool5          "C3D fc7 + pool2" and so on
            resnet                              "ResNet + LSTM"
            mlp, maxpool, avgpool, hypercolumn  "Baselines of multi-level features"
            layers-first                        beta before alpha, end of Sec. 3.2, first version
            fc7-every                           fc7 at every word, Sec. 3.1, first version

The paper attributes the lower scores of layers-first "partially" to "the increase of the number of
parameters". In our reading it has fewer: w of the place attention reads one layer, not four.

Errors in the paper. Eq. 10 and 11 need '>=' in place of '=' (Jensen). The second term of Eq. 13 and
14 needs the gradient of LOG p(Y|m_k, A). As printed, without the log, the estimator is biased; with
the log it is exactly unbiased (tests/test_astar.py enumerates every m). Eq. 17 sums a_i where it
means a_j. The receptive fields in tables 4 and 5 are wrong: see c3d.py.

Paper -> code:  a_l feats | a-hat memory['a'] | W_a_alpha, W_h_alpha, w_alpha place_attention.w, .u,
                .v | W_s_beta, W_h_beta, w_beta layer_attention.w, .u, .v | alpha aux['space'] |
                beta aux['layers'] | m_t pick() | log p(m_t|...) aux['log_q'] | C first | V out |
                W_e embed
Letters:        N videos, B captions, n steps of time, Y X rows and columns, C channels of a map,
                D channels of an aligned map, I places (n * 4 * 4), L layers, A attention,
                H hidden, E embedding, T words, V vocabulary, K samples
"""
import math
import warnings
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

from c3d import ALIGN, CHANNELS, MAPS, SIZE, receptive_field
from data import BadInput, choose
from decode import select, teacher_force

VARIANTS = ('soft', 'hard', 'fc7', *MAPS, 'mlp', 'maxpool', 'avgpool', 'hypercolumn',
            'layers-first', 'fc7-every', 'resnet')
# UNSPECIFIED: how the ten models of an ensemble differ, and how they are combined; we chose runs
# with different seeds, and the mean of their probabilities of the next word (decode.Ensemble).
ROWS = 4                                # rows and columns of pool5 and of every aligned map


def layers_of(variant):
    """-> names of the maps that a variant attends to, from low to high"""
    if variant in ('fc7', 'resnet'):
        return ()
    return (variant,) if variant in MAPS else MAPS


@dataclass
class Config:
    variant: str = 'soft'               # a row of the paper's tables
    features: tuple = ()                # maps from low to high, then fc7, as the variant needs
    # UNSPECIFIED: which ResNet the variant resnet reads; we chose the one with 152 layers.
    frame_features: str = 'resnet152'   # features of the variant resnet
    hidden: int = 512                   # H, units of the LSTM, appendix
    embed: int = 300                    # E (the paper's M), size of a word embedding, appendix
    # UNSPECIFIED: the size of both attentions; we chose H.
    attn: int = 512                     # A, hidden units of both attentions
    samples: int = 10                   # K, samples per caption for hard attention, appendix
    bottleneck: int = 64                # hidden units of the variant mlp
    # UNSPECIFIED: the rate and place of dropout; we chose 0.5 on the input and output of the LSTM.
    dropout: float = 0.5                # dropout on the input and output of the LSTM
    init: float = 0.01                  # initial weights uniform in +-init, appendix; 0: torch's
    align_init: str = 'random'          # start of the alignment: random (appendix) or identity
    optimizer: str = 'adam'             # adam, adamw or rmsprop, appendix
    rate: float = 2e-4                  # learning rate, appendix
    weight_decay: float = 0.0           # strength of the weight decay; none in the paper (Datasets)
    schedule: str = 'constant'          # learning rate over time: constant or cosine
    # DEVIATION: paper clips gradients if "the norm of the parameter vector" exceeds 5, here if the
    # norm of the gradient does, because only that norm measures the size of a step.
    clip: float = 5.0                   # largest norm of the gradient, appendix
    # UNSPECIFIED: after how many epochs without a better score early stopping ends the training,
    # and the number of epochs if it does not; we chose 5 (--patience) and 30.
    epochs: int = 30                    # largest number of passes over the training captions
    # UNSPECIFIED: how many videos the 32 captions of a batch describe; we chose 8.
    videos_per_batch: int = 8           # videos in a batch
    captions_per_video: int = 4         # captions of each video in a batch; 8 x 4 = 32, appendix
    # DEVIATION: paper's vocabulary of YouTube2Text (12,594 words) has the words of all videos, here
    # a vocabulary has those of the training captions alone, because test captions must not enter
    # the model.
    # UNSPECIFIED: how often a word must occur to be kept (the 8,071 words for MSR-VTT are not all);
    # we chose to keep every word.
    min_count: int = 1                  # words below this count become <unk>; 1 keeps all words
    # UNSPECIFIED: the longest caption; we chose 30 words.
    max_len: int = 30                   # longest caption, in words
    # UNSPECIFIED: the beam width; we chose 5.
    beam: int = 5                       # beam width

    def __post_init__(self):
        choose('--variant', self.variant, VARIANTS)
        choose('--align-init', self.align_init, ('random', 'identity'))
        if not self.features and self.variant == 'resnet':
            self.features = (self.frame_features,)
        elif not self.features:
            maps = [f'c3d_{layer}' for layer in layers_of(self.variant)]
            self.features = (*maps, 'c3d_fc7')


# The paper tunes nothing per dataset, so there are no presets for its datasets. In those below, the
# maps have few channels, and initial weights in +-0.01 would be too small for them.
PRESETS = {
    'shapes': dict(frame_features='clip', hidden=256, embed=128, attn=128, dropout=0.2, init=0.0,
                   align_init='identity', rate=2e-3, schedule='cosine', epochs=6,
                   videos_per_batch=16, captions_per_video=5, max_len=20),
    'puzzle': dict(hidden=64, embed=32, attn=32, dropout=0.0, init=0.0, align_init='identity',
                   rate=5e-3, schedule='cosine', epochs=6, videos_per_batch=16,
                   captions_per_video=1, max_len=4, beam=1),
}


def attention_map(aux):
    """aux of T words -> their weights (T, n, 16), or None for variants without attention"""
    if 'space' not in aux:
        return None
    return aux['space'].flatten(2)


VIEW = {'attention': attention_map, 'bars': {'layers': MAPS}}


class Scaled(nn.Module):
    """A linear or convolutional layer, applied to x / sqrt(inputs). start_weights() makes its
    weights sqrt(inputs) times larger, so it starts as the same function as the plain layer."""

    # DEVIATION: paper applies the alignment convolutions (and the variant mlp) to a, here they are
    # applied to a / sqrt(inputs), with weights that start sqrt(inputs) times larger, because Adam
    # moves each weight by about the learning rate in every step. In a sum over 7 x 7 x 7 x C inputs
    # these moves add up: without the scaling, half of the ReLU units died (gave 0 for every input).
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.scale = layer.weight[0].numel() ** -0.5

    def forward(self, x):
        """x as the layer takes it -> output of the layer"""
        return self.layer(self.scale * x)


class Convolution(nn.Module):
    """Aligns layer l with pool5: the same size, stride, centres and number of channels."""

    def __init__(self, layer, C, D):
        super().__init__()
        kernel, padding, self.pool = ALIGN[layer]
        self.wide = Scaled(nn.Conv3d(C, D, kernel, padding=padding))

    def forward(self, a, mask):
        """a (N, n, Y, X, C) with zeros after the end of each video, mask (N, n)
        -> (N, ceil(n/pool), 4, 4, D)"""
        x = self.wide(a.permute(0, 4, 1, 2, 3)).relu()              # Eq. 3  (N, D, n, Y, X)
        # The convolution also gives values on padding steps. They must not win the maximum.
        x = x.masked_fill(~mask[:, None, :, None, None], 0.0)
        x = F.max_pool3d(x, self.pool, ceil_mode=True)              # Eq. 3, second half of f
        return x.permute(0, 2, 3, 4, 1)

    # DEVIATION: paper starts U in Eq. 3 at random, here the presets start it as the identity
    # (--align-init identity), because from a random start the puzzle `layer` is not solved: its
    # noun is not learned even from pool2 alone, and beta chooses pool5, which needs no alignment.
    def start_as_identity(self):
        """Start with channel d = channel d mod C of the map, followed by ReLU and maximum."""
        weight = self.wide.layer.weight.data                        # (D, C, k, k, k)
        D, C, *kernel = weight.shape
        weight.zero_()
        for d in range(D):
            weight[(d, d % C, *[k // 2 for k in kernel])] = 1.0


class Vectorised(nn.Module):
    """Variant mlp: a perceptron reads all numbers of layer l in 16 frames at once."""

    def __init__(self, layer, shape, D, bottleneck):
        super().__init__()
        self.pool = ALIGN[layer][2]                                 # steps of this map in 16 frames
        # DEVIATION: paper maps the whole of a_l to the size of pool5 by a perceptron of unstated
        # size, here the perceptron has a bottleneck, because without one pool2 alone would need
        # 802,816 x 8,192 = 6.6 billion weights. It reads 16 frames at a time, because a_l grows
        # with the video.
        self.wide = Scaled(nn.Linear(self.pool * math.prod(shape), bottleneck))
        self.out = nn.Linear(bottleneck, ROWS * ROWS * D)

    def forward(self, a, mask):
        """a (N, n, Y, X, C) with zeros after the end of each video -> (N, ceil(n/pool), 4, 4, D)"""
        a = a.flatten(2)
        a = F.pad(a, (0, 0, 0, -a.shape[1] % self.pool))            # complete the last 16 frames
        a = a.unflatten(1, (-1, self.pool)).flatten(2)              # (N, ceil(n/pool), inputs)
        return self.out(self.wide(a).relu()).unflatten(2, (ROWS, ROWS, -1))


def window_numbers(size, lengths, field):
    """Which entries of an axis each unit of pool5 reads. size: entries of the axis; lengths (N,):
    how many of them are real in each video; field (stride, first, last): unit i reads entries
    stride*i+first .. stride*i+last, all counted from 1
    -> numbers (N, units, window) of these entries, counted from 0; an entry outside the map is
    replaced by the nearest one inside. real (N, units, window), false where this was necessary"""
    stride, first, last = field
    device = lengths.device
    lengths = lengths[:, None, None]
    units = torch.arange(1, math.ceil(size / stride) + 1, device=device)
    numbers = stride * units[:, None] + torch.arange(first, last + 1, device=device) - 1
    real = (0 <= numbers) & (numbers < lengths)
    return numbers.clamp(min=0).minimum(lengths - 1), real


def take(x, numbers):
    """x (N, n, ...), numbers (N, units, window) -> (N, units, window, ...)"""
    return x[torch.arange(len(x), device=x.device)[:, None, None], numbers]


def largest(x, numbers, real):
    """x (N, n, ...) -> (N, units, ...): the maximum of each window"""
    return take(x, numbers).amax(2)                 # Eq. 17; repeated entries change no maximum


def average(x, numbers, real):
    """x (N, n, ...) -> (N, units, ...): the mean over the part of each window that is on the map"""
    share = real.to(x.dtype)
    share = share / share.sum(2, keepdim=True).clamp(min=1)
    return torch.einsum('nuw,nuw...->nu...', share, take(x, numbers))       # Eq. 17


def middle(x, numbers, real):
    """x (N, n, ...) -> (N, units, ...): the value at the centre of each window, which is the mean
    of two entries if the centre lies between them"""
    window = numbers.shape[2]
    return take(x, numbers[:, :, (window - 1) // 2:window // 2 + 1]).mean(2)


def read_windows(a, mask, fields, reduce):
    """a (N, n, Y, X, C), mask (N, n), fields {'t', 'y', 'x': (stride, first, last)},
    reduce: largest, average or middle -> (N, n', Y', X', C). The axes are reduced one by one."""
    lengths = mask.sum(1)
    for axis, name in enumerate('tyx', 1):
        if name != 't':
            lengths = torch.full_like(lengths, a.shape[axis])
        numbers, real = window_numbers(a.shape[axis], lengths, fields[name])
        a = reduce(a.transpose(1, axis), numbers, real).transpose(1, axis)
    return a


# UNSPECIFIED: how a hypercolumn samples a layer; we chose to interpolate at the centres of pool5.
REDUCE = {'maxpool': largest, 'avgpool': average, 'hypercolumn': middle}


class Pooled(nn.Module):
    """Variants maxpool, avgpool and hypercolumn: reduces the part of layer l that unit i of pool5
    sees to one vector, then applies a perceptron to it."""

    def __init__(self, layer, reduce, perceptron):
        super().__init__()
        # UNSPECIFIED: what Eq. 17 does with windows N_i,l that extend beyond the map; we chose to
        # clip them, so |N_i,l| counts only places on the map.
        self.fields = receptive_field('pool5', inside=layer)        # N_i,l
        self.reduce = reduce
        self.perceptron = perceptron

    def forward(self, a, mask):
        """a (N, n, Y, X, C), mask (N, n) -> (N, n', 4, 4, D)"""
        return self.perceptron(read_windows(a, mask, self.fields, self.reduce))         # Eq. 18


def build_alignment(cfg, shapes):
    """shapes {layer: (Y, X, C)} -> {layer: module that turns a (N, n, Y, X, C) and its mask into
    a-hat (N, n', 4, 4, D)}; D. A layer without a module (pool5) is used as it is."""
    channels = {layer: shape[-1] for layer, shape in shapes.items()}
    top = list(shapes)[-1]
    D = channels[top] * CHANNELS['pool5'] // CHANNELS[top]      # also if pool5 itself is not read
    align = {}
    if cfg.variant == 'mlp':
        for layer in ALIGN:
            align[layer] = Vectorised(layer, shapes[layer], D, cfg.bottleneck)
    elif cfg.variant in REDUCE:
        for layer in shapes:
            # UNSPECIFIED: the size of the perceptron in Eq. 18; we chose D hidden units.
            perceptron = nn.Sequential(nn.Linear(channels[layer], D), nn.ReLU(), nn.Linear(D, D))
            align[layer] = Pooled(layer, REDUCE[cfg.variant], perceptron)
        if cfg.variant == 'hypercolumn':
            # UNSPECIFIED: whether the layers of a hypercolumn are concatenated before or after the
            # perceptron of Eq. 18 (that hypercolumns "replace the pooling operation" suggests
            # before); we chose after, with a perceptron for each layer.
            D = D * len(shapes)
    else:
        # UNSPECIFIED: whether a single layer (pool2, pool3 or pool4) is aligned; we chose yes.
        for layer in shapes:
            if layer in ALIGN:
                align[layer] = Convolution(layer, channels[layer], D)
    return align, D


class Attention(nn.Module):
    """Additive attention: weights of keys, given h. It is used twice, for places and for layers."""

    def __init__(self, inputs, hidden, attn):
        super().__init__()
        self.w = nn.Linear(inputs, attn)                            # its output is the key
        self.u = nn.Linear(hidden, attn, bias=False)
        self.v = nn.Linear(attn, 1, bias=False)

    def forward(self, h, key, mask=None):
        """h (B, H), key (B, M, A), mask (B, M) -> log of the weights (B, M)"""
        e = self.v((key + self.u(h)[:, None]).tanh()).squeeze(-1)   # Eq. 4, 6  (B, M)
        if mask is not None:
            e = e.masked_fill(~mask, float('-inf'))
        return e.log_softmax(1)                                     # Eq. 5, 7  (B, M)


def vimco(log_py, log_pm):
    """log p(Y|m_k, A) and log p(m_k|A), each (B, K), of K draws m_k ~ p(m|A)
    -> bound (B,), surrogate (B,).

    The expectation of `bound` is a lower bound of log p(Y|A). `surrogate` has the same value, and
    its gradient is an estimate of the gradient of that lower bound (to be maximised). The baseline
    of a sample is computed from the other samples. With K = 1 there are none; the result is then
    the plain score-function estimator, with a warning."""
    # Eq. 10, 11: log p(Y|A) >= E log p(Y|m, A), which is the bound for K = 1.
    B, K = log_py.shape
    bound = log_py.logsumexp(1) - math.log(K)               # Eq. 12, for these samples  (B,)
    if K == 1:
        warnings.warn('one sample: the score-function estimator has no baseline', stacklevel=2)
        learning = bound[:, None]                           # L in Eq. 13  (B, 1)
    else:
        own = torch.eye(K, dtype=torch.bool, device=log_py.device)
        samples = log_py[:, None].expand(B, K, K)           # in row k, sample k is on the diagonal
        log_f = samples.masked_fill(own, 0.0).sum(2) / (K - 1)              # Eq. 16  (B, K)
        baseline = torch.where(own, log_f[:, :, None], samples)             # f replaces sample k
        baseline = baseline.logsumexp(2) - math.log(K)
        learning = bound[:, None] - baseline                                # Eq. 15  (B, K)
    # DEVIATION: paper prints omega_k grad p(Y|m_k, A) in Eq. 13 and 14, here the term is omega_k
    # grad log p(Y|m_k, A), because only this gives the gradient of Eq. 12. Autograd derives it from
    # the bound: omega is the softmax of log_py.
    score = (learning.detach() * (log_pm - log_pm.detach())).sum(1)
    return bound.detach(), bound + score                                    # Eq. 14  (B,)


def mean_beta(beta):
    """beta (B, T, L), zeros where there is no word -> {'beta_pool2': its mean over words, ...}"""
    words = beta.any(2).sum()
    return {f'beta_{layer}': x.item() for layer, x in zip(MAPS, beta.sum((0, 1)) / words)}


def check_features(cfg, feats):
    """Refuse features that do not fit the variant. feats: name -> shape of one step of time"""
    if cfg.variant == 'resnet':
        return
    layers = layers_of(cfg.variant)
    if len(cfg.features) != len(layers) + 1:
        raise BadInput(f'--features {" ".join(cfg.features)}: the variant {cfg.variant} reads '
                       f'{", ".join([*layers, "fc7"])}, in this order')
    sides = [math.ceil(SIZE / receptive_field(layer)['y'][0]) for layer in layers]
    expected = [[side, side] for side in sides] + [[]]              # fc7 is a vector
    for name, shape in zip(cfg.features, expected):
        if list(feats[name][:-1]) != shape:
            raise BadInput(f'--features {name}: the variant {cfg.variant} needs the shape '
                           f'{[*shape, "channels"]} here, found {list(feats[name])}')


def read_feature(batch, name, shape):
    """-> the feature (N, n, *shape) with zeros after the end of each video, mask (N, n)"""
    value = batch['feats'][name]
    mask = batch['mask'][name]
    found = list(value.shape[2:])
    if found != list(shape):
        raise BadInput(f'{name}: found {found} per step, but the model was built for {list(shape)}')
    empty = ~mask.any(1)
    if empty.any():
        raise BadInput(f'{name}: video {batch["ids"][empty.long().argmax()]!r} has zero frames')
    value = value.masked_fill(~mask.view(*mask.shape, *[1] * len(shape)), 0.0)
    bad = ~torch.isfinite(value).flatten(1).all(1)
    if bad.any():
        raise BadInput(f'{name}: video {batch["ids"][bad.long().argmax()]!r} has NaN or infinite '
                       'numbers')
    return value, mask


def start_weights(model, init, align_init):
    """Initialise the weights as the appendix says. init = 0 keeps torch's own initial weights,
    except for biases and recurrent weights."""
    for name, parameter in model.named_parameters():
        if 'weight_hh' in name:
            for gate in parameter.data.chunk(4):                    # (H, H) each
                nn.init.orthogonal_(gate)
        elif 'bias' in name:
            nn.init.zeros_(parameter)
        elif init:
            nn.init.uniform_(parameter, -init, init)
    for module in model.modules():                                  # a Convolution, then its Scaled
        if isinstance(module, Convolution) and align_init == 'identity':
            module.start_as_identity()
        if isinstance(module, Scaled):
            module.layer.weight.data /= module.scale


class Captioner(nn.Module):
    """The LSTM that generates the words, with attention to places and to layers."""

    def __init__(self, cfg, sizes):
        super().__init__()
        check_features(cfg, sizes.feats)
        self.cfg = cfg
        self.sizes = sizes
        self.layers = layers_of(cfg.variant)
        self.hard = cfg.variant == 'hard'
        # A hypercolumn has no beta: "only a spatiotemporal attention", Sec. 4.3, first version.
        self.L = 1 if cfg.variant == 'hypercolumn' else len(self.layers)
        D = 0
        if self.layers:
            shapes = {layer: sizes.feats[name] for layer, name in zip(self.layers, cfg.features)}
            align, D = build_alignment(cfg, shapes)
            self.align = nn.ModuleDict(align)
            inputs = D if cfg.variant == 'layers-first' else self.L * D
            self.place_attention = Attention(inputs, cfg.hidden, cfg.attn)      # alpha
        if self.L > 1:
            self.layer_attention = Attention(D, cfg.hidden, cfg.attn)           # beta
        whole = sizes.feats[cfg.features[-1]][-1]
        if cfg.variant == 'resnet':
            self.encoder = nn.LSTM(whole, cfg.hidden, batch_first=True)
        else:
            self.first = nn.Linear(whole, cfg.hidden)               # C
        # DEVIATION: paper starts the word embedding from word2vec (Google News), here it starts at
        # random unless train.py gets --word2vec FILE, because that file is several GB large.
        self.embed = nn.Embedding(sizes.vocab, cfg.embed)           # W_e
        again = whole if cfg.variant == 'fc7-every' else 0
        self.lstm = nn.LSTMCell(cfg.embed + D + again, cfg.hidden)
        self.out = nn.Linear(cfg.hidden, sizes.vocab)               # V
        self.drop = nn.Dropout(cfg.dropout)
        start_weights(self, cfg.init, cfg.align_init)

    def encode(self, batch):
        """feats of each layer (N, n, Y, X, C), fc7 (N, windows, 64 * width)
        -> memory as encode_maps() returns it; state = (h, c), each (N, H)"""
        features = [read_feature(batch, name, self.sizes.feats[name]) for name in self.cfg.features]
        *maps, (whole, whole_mask) = features
        if self.cfg.variant == 'resnet':
            return {}, self.encode_frames(whole, whole_mask)
        mean = whole.sum(1) / whole_mask.sum(1, keepdim=True)       # over windows  (N, 64 * width)
        h = self.first(mean).tanh()                                 # h_1 = tanh(C a_L+1)  (N, H)
        # UNSPECIFIED: the first cell state c_1 of the LSTM; we chose 0.
        state = (h, torch.zeros_like(h))
        memory = self.encode_maps(maps) if self.layers else {}
        if self.cfg.variant == 'fc7-every':
            memory['fc7'] = mean
        return memory, state

    def encode_frames(self, frames, mask):
        """Variant resnet: frames (N, F, ..., D), mask (N, F) -> state = (h, c), each (N, H)"""
        if frames.dim() > 3:
            frames = frames.flatten(2, -2).mean(2)                  # average of a grid  (N, F, D)
        lengths = mask.sum(1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(frames, lengths, batch_first=True,
                                                   enforce_sorted=False)
        # UNSPECIFIED: how the variant resnet connects encoder and decoder (in Cho et al., which the
        # paper cites, the decoder reads the summary at every word); we chose to start the decoder
        # from the last h and c of the encoder, because fc7 is also used only once.
        h, c = self.encoder(packed)[1]                              # (1, N, H) each
        return h[0], c[0]

    def encode_maps(self, maps):
        """maps [(a_l (N, n_l, Y, X, C), mask (N, n_l))] from low to high -> memory: a (N, I, L, D),
        mask (N, I), and the keys, which depend only on the video: key (N, I, A), for layers-first
        key (N, I, L, A) and layer_key (N, L, A)"""
        aligned = []
        for layer, (a, mask) in zip(self.layers, maps):
            aligned.append(self.align[layer](a, mask) if layer in self.align else a)
        if self.cfg.variant == 'hypercolumn':
            a = torch.cat(aligned, 4)[..., None, :]                 # (N, n, 4, 4, 1, D)
        else:
            a = torch.stack(aligned, 4)                             # (N, n, 4, 4, L, D)
        a = a.flatten(1, 3)                                         # (N, I, L, D)
        # A step of pool5 is real if its first step in the lowest map is real.
        steps = receptive_field('pool5', inside=self.layers[0])['t'][0]
        lowest_mask = maps[0][1]
        mask = lowest_mask[:, ::steps].repeat_interleave(ROWS * ROWS, 1)        # (N, I)
        if self.cfg.variant != 'layers-first':
            return {'a': a, 'mask': mask, 'key': self.place_attention.w(a.flatten(2))}
        # UNSPECIFIED: what a layer is scored by if layers are weighted before places; we chose the
        # mean over its places.
        mean = torch.einsum('ni,nild->nld', mask.to(a.dtype) / mask.sum(1, keepdim=True), a)
        layer_key = self.layer_attention.w(mean)
        return {'a': a, 'mask': mask, 'key': self.place_attention.w(a), 'layer_key': layer_key}

    def psi(self, x, log_p):
        """The paper's psi. x (B, M, ...), log of the weights (B, M) -> (B, ...): one of the M
        entries if attention is hard, their weighted sum if it is soft; log-probability of the
        choice (B,), 0 if soft"""
        if not self.hard:
            return torch.einsum('bm,bm...->b...', log_p.exp(), x), 0.0          # Eq. 8
        m = self.pick(log_p.detach().exp())                       # Eq. 9  (B,)
        rows = torch.arange(len(m), device=m.device)
        return x[rows, m], log_p[rows, m]

    def pick(self, p):
        """probabilities (B, M) -> (B,): a draw in training, otherwise the most probable"""
        # UNSPECIFIED: hard attention at test time; we chose the most probable place and layer.
        return p.multinomial(1)[:, 0] if self.training else p.argmax(1)

    def attend(self, h, memory):
        """h (B, H) -> z (B, D), aux as step() returns it. A single layer (self.L == 1) has no beta.
        The variant layers-first has a function of its own."""
        if self.cfg.variant == 'layers-first':
            return self.attend_layers_first(h, memory)
        log_alpha = self.place_attention(h, memory['key'], memory['mask'])  # (B, I)
        s, log_place = self.psi(memory['a'], log_alpha)             # Eq. 5  (B, L, D)
        aux = {'space': log_alpha.exp().unflatten(1, (-1, ROWS, ROWS))}
        if self.L == 1:
            return s[:, 0], aux
        log_beta = self.layer_attention(h, self.layer_attention.w(s))       # (B, L)
        z, log_layer = self.psi(s, log_beta)                        # Eq. 7  (B, D)
        aux['layers'] = log_beta.exp()
        if self.hard:
            aux['log_q'] = log_place + log_layer                    # log p(m_t|y_<t, m_<t, A)  (B,)
        return z, aux

    def attend_layers_first(self, h, memory):
        """h (B, H) -> z (B, D), aux: the layers are mixed before the places are weighted"""
        beta = self.layer_attention(h, memory['layer_key']).exp()
        mixed = torch.einsum('bl,bild->bid', beta, memory['a'])
        # w is affine and beta sums to 1, so the mixed keys are the keys of the mixed map.
        key = torch.einsum('bl,bila->bia', beta, memory['key'])
        alpha = self.place_attention(h, key, memory['mask']).exp()
        z = torch.einsum('bi,bid->bd', alpha, mixed)
        return z, {'space': alpha.unflatten(1, (-1, ROWS, ROWS)), 'layers': beta}

    def attend_nowhere(self, h, memory):
        """-> aux of the first word, which attends to nothing: all zeros"""
        aux = {}
        if self.layers:
            aux['space'] = h.new_zeros(memory['mask'].shape).unflatten(1, (-1, ROWS, ROWS))
        if self.L > 1:
            aux['layers'] = h.new_zeros(len(h), self.L)
        if self.hard:
            aux['log_q'] = h.new_zeros(len(h))
        return aux

    def step(self, token, state, memory):
        """token (B,) or None -> logits (B, V), state, aux: space (B, n, 4, 4); layers (B, L) if
        there are several; log_q (B,) for hard attention, the log-probability of its choices"""
        h, c = state
        if token is None:
            aux = self.attend_nowhere(h, memory)
        else:
            x = self.embed(token)                                   # w_t-1  (B, E)
            aux = {}
            if self.layers:
                z, aux = self.attend(h, memory)
                x = torch.cat([x, z], 1)                            # (B, E + D)
            # UNSPECIFIED: how fc7 is used "at each time step" in the first version; we chose to
            # concatenate its mean with w_t-1 and z_t.
            if 'fc7' in memory:
                x = torch.cat([x, memory['fc7']], 1)                # variant fc7-every
            h, c = self.lstm(self.drop(x), (h, c))                  # Eq. 2 of the first version
        return self.out(self.drop(h)), (h, c), aux

    def forward(self, batch, *, epoch=0, reward_fn=None):
        """batch -> loss (), logs. The loss is the negative log-likelihood. For hard attention it is
        the negative bound from K sequences of choices per caption, all in one pass. In eval mode
        hard attention takes the most probable choices m*, so 'nll' is -log p(Y|m*, A). This is not
        a bound, and it cannot be compared with the value in training."""
        draws = self.hard and self.training
        K = self.cfg.samples if draws else 1
        memory, state = select(self.encode(batch), batch['rows'].repeat_interleave(K))
        words = batch['captions'].repeat_interleave(K, 0)           # (B * K, T)
        logp, aux = teacher_force(self, memory, state, words)       # (B * K, T)
        log_py = logp.sum(1)                                        # Eq. 1, 2  (B * K,)
        logs = mean_beta(aux['layers']) if self.L > 1 else {}
        if not draws:
            return -log_py.mean(), {'nll': -log_py.mean().item(), **logs}
        log_pm = aux['log_q'].sum(1)                                # the first word has no choices
        bound, surrogate = vimco(log_py.view(-1, K), log_pm.view(-1, K))
        logs |= {'nll': -bound.mean().item(), 'choices': -log_pm.mean().item()}
        return -surrogate.mean(), logs
