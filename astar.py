"""Which layer of a network, and which place in it, does the next word look at?

Paper:      Y. Pu, M. R. Min, Z. Gan, L. Carin. "Adaptive Feature Abstraction for Translating Video to Text." (dualAFR)
            AAAI 2018. arXiv:1611.07837, whose first version (ASTAR, 2016) has the fuller equations. Numbers: 2018's.
Covers:     the whole method and every row of its tables. Eq. 1-18; the LSTM is Eq. 2 of the first version.
Leaves out: fine-tuning of C3D (the paper leaves it out too), a preset for M-VAD, human evaluation.

    pool2 --7x7x7 convolution, ReLU, max 8--+
    pool3 --5x5x5 convolution, ReLU, max 4--+-- a: I places x L layers --alpha--> s_t --beta--> z_t --+
    pool4 --3x3x3 convolution, ReLU, max 2--+   I = 4 x 4 x ceil(N/16), L = 4              y_t-1 --+-LSTM-> h_t --> y_t
    pool5 ----------------------------------+   alpha and beta read h_t-1
    fc7 --tanh--> h_1 --> y_1                   the first word sees fc7 alone; the others know it through h_1

Variants:   soft, hard: "Soft / Hard Attention" | fc7: "C3D fc7 + LSTM" | pool2 .. pool5: "C3D fc7 + pool2" and so on |
            resnet: "ResNet + LSTM" | mlp, maxpool, avgpool, hypercolumn: "baselines of multi-level features" |
            layers-first: the swapped order at the end of the first version's Sec. 3.2, worse "partially due to the
            increase of the number of parameters"; in our reading it has fewer: w_a reads one layer, not four stacked.

Where the paper is wrong. (10) and (11) have '=' for '>=' (Jensen). (13) and (14) have grad p(Y|m_k, A) in their second
term for grad LOG p(Y|m_k, A): as printed the estimator is biased, with the log it is exactly right (test_estimators.py
enumerates every m). (17) sums a_i where it means a_j. The receptive fields of its tables 4 and 5: see c3d.py.

Paper -> code:  a_l feats | a-hat a | W_a_alpha w_a | W_h_alpha u_alpha | w_alpha v_alpha | W_s_beta w_s |
                W_h_beta u_beta | w_beta v_beta | alpha aux['space'] | beta aux['layers'] | m_t the draws i and l |
                log p(m_t|...) aux['log_q'] | C first | V out | W_e embed
Letters:        N videos, B captions, n steps of time, Y X rows and columns, C channels of a map, D of an aligned map,
                I places (n * 4 * 4), L layers, A attention, H hidden, E embedding, T words, V vocabulary, K samples
"""
import math
import warnings
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F

from c3d import ALIGN, CHANNELS, receptive_field
from data import BadInput
from decode import select, teacher_force

LAYERS = tuple(CHANNELS)                        # pool2, pool3, pool4, pool5
VARIANTS = ('soft', 'hard', 'fc7', *LAYERS, 'mlp', 'maxpool', 'avgpool', 'hypercolumn', 'layers-first', 'resnet')
ROWS = 4                                        # rows and columns of pool5, and so of every aligned map


def layers_of(variant):
    """The maps that a variant attends to."""
    if variant in ('fc7', 'resnet'):
        return ()
    return (variant,) if variant in LAYERS else LAYERS


@dataclass
class Config:
    vocab: int = 0                       # V, from the training captions (the paper's 12,594 counts those of all splits)
    feats: dict = field(default_factory=dict)   # name -> shape of one step of time: (Y, X, C) of a map, (4096,) of fc7
    frames: int = 0                      # not read here: any number of frames
    classes: int = 0                     # not read here
    categories: int = 0                  # not read here
    captions: int = 0                    # not read here
    variant: str = 'soft'                # a row of the tables: see VARIANTS
    features: tuple = ()                 # the maps from low to high, then fc7; empty: those of the variant
    frame_features: str = 'resnet152'    # of the variant resnet. UNSPECIFIED: which ResNet; we chose 152 layers
    hidden: int = 512                    # H, appendix
    embed: int = 300                     # E, M in the paper, appendix
    attn: int = 512                      # A. UNSPECIFIED: size of both attentions; we chose H
    samples: int = 10                    # K of hard attention, appendix
    bottleneck: int = 64                 # hidden units of the variant mlp
    dropout: float = 0.5                 # UNSPECIFIED: rate and place; we chose the LSTM's input and output
    init: float = 0.01                   # weights start uniform in +-init, appendix; 0: as torch has them, by each layer's inputs
    optimizer: str = 'adam'              # appendix
    rate: float = 2e-4                   # learning rate, appendix
    weight_decay: float = 0.0            # none: no regularisation "other than dropout and early stopping"
    schedule: str = 'constant'           # constant or cosine
    clip: float = 5.0                    # gradient norm, appendix (which says the parameters' norm, and means this)
    epochs: int = 30                     # UNSPECIFIED: early stopping on validation after how many; we chose at most 30
    videos_per_batch: int = 8            # UNSPECIFIED: 32 captions of how many videos; we chose 8 with 4 each
    captions_per_video: int = 4          # batches of 32 captions, appendix
    min_count: int = 1                   # words seen less often become <unk>; all are kept (datasets)
    max_len: int = 30                    # UNSPECIFIED: longest caption in words; we chose 30
    beam: int = 5                        # UNSPECIFIED: beam width; we chose 5

    def __post_init__(self):
        if self.variant not in VARIANTS:
            raise BadInput(f'--variant {self.variant}: choose one of {", ".join(VARIANTS)}')
        if not self.features:
            maps = tuple(f'c3d_{layer}' for layer in layers_of(self.variant))
            self.features = (self.frame_features,) if self.variant == 'resnet' else (*maps, 'c3d_fc7')


PRESETS = {                              # the paper tunes nothing per dataset; +-0.01 is made for its wide maps
    'msvd': {},
    'msrvtt': {},
    'shapes': dict(frame_features='clip', hidden=256, embed=128, attn=128, dropout=0.2, init=0.0, rate=2e-3,
                   schedule='cosine', epochs=6, videos_per_batch=16, captions_per_video=5, max_len=20),
}


class Convolution(nn.Module):
    """The transformation that brings layer l to pool5's size, stride, centres and meaning."""

    def __init__(self, layer, C, D):
        super().__init__()
        kernel, padding, self.pool = ALIGN[layer]
        self.wide = nn.Conv3d(C, D, kernel, padding=padding)
        # DEVIATION: paper convolves a as it is, here (and in mlp) a / sqrt(inputs), with weights that start sqrt(inputs) times
        # larger (the same function), because Adam moves every weight by its rate, so a sum over 7 x 7 x 7 x C of them by
        # that many at once, and half of these units died.
        self.scale = (C * kernel ** 3) ** -0.5
        self.wide.weight.data /= self.scale

    def forward(self, a, mask):
        """a (N, n, Y, X, C) with zeros after each video's end, mask (N, n) -> (N, ceil(n/pool), 4, 4, D)"""
        x = self.wide(self.scale * a.permute(0, 4, 1, 2, 3)).relu()     # Eq. 3  (N, D, n, Y, X), channels last in memory
        x = x.masked_fill(~mask[:, None, :, None, None], 0.0)       # what lies beyond the end must not win the max
        return F.max_pool3d(x, self.pool, ceil_mode=True).permute(0, 2, 3, 4, 1)    # Eq. 3, f's second half


class Vectorised(nn.Module):
    """Variant mlp: MLP(vec(a_l)), for each 16 frames."""

    def __init__(self, layer, shape, D, bottleneck):
        super().__init__()
        self.pool = ALIGN[layer][2]                                 # steps of this map in 16 frames
        # DEVIATION: paper a perceptron from the whole map to the whole of pool5's, here one with a bottleneck, because
        # pool2 alone would need 802,816 x 8,192 = 6.6 billion weights; and one for each 16 frames, because a whole map's
        # size changes with the video's length.
        inputs = self.pool * math.prod(shape)
        self.wide, self.out = nn.Linear(inputs, bottleneck), nn.Linear(bottleneck, ROWS * ROWS * D)
        self.scale = inputs ** -0.5                                 # as in Convolution
        self.wide.weight.data /= self.scale

    def forward(self, a, mask):
        """a (N, n, Y, X, C) with zeros after each video's end -> (N, ceil(n/pool), 4, 4, D)"""
        a = F.pad(a.flatten(2), (0, 0, 0, -a.shape[1] % self.pool))                     # whole groups of 16 frames
        a = self.wide(self.scale * a.unflatten(1, (-1, self.pool)).flatten(2))          # (N, ceil(n/pool), bottleneck)
        return self.out(a.relu()).unflatten(2, (ROWS, ROWS, -1))


def read_windows(a, mask, fields, reduce):
    """a (N, n, Y, X, C), mask (N, n), fields {'t', 'y', 'x': (stride, first, last)} -> (N, n', 4, 4, C): unit i,
    from 1, reads stride*i+first .. stride*i+last of each axis, and takes their 'max' or 'mean' (of what is on the map)
    or interpolates at their 'centre'."""
    N, n, Y, X, _ = a.shape
    rows = torch.arange(N, device=a.device)[:, None, None]
    sizes = torch.stack([mask.sum(1), torch.full_like(rows[:, 0, 0], Y), torch.full_like(rows[:, 0, 0], X)])    # (3, N)
    for axis, ((stride, first, last), size) in enumerate(zip(fields.values(), sizes[..., None, None]), 1):
        if reduce == 'centre':                                      # a centre between two units is the mean of both
            first, last = (first + last) // 2, -(-(first + last) // 2)
        units = torch.arange(1, -(-a.shape[axis] // stride) + 1, device=a.device)
        j = stride * units[:, None] + torch.arange(first, last + 1, device=a.device) - 1    # (units, window), from 0
        on_map = ((0 <= j) & (j < size)).to(a.dtype)                # (N, units, window)
        j = j.clamp(min=0).minimum(size - 1)                        # off the map: its border, which changes no max
        seen = a.transpose(1, axis)[rows, j]                        # (N, units, window, ...)
        if reduce == 'max':
            a = seen.amax(2).transpose(1, axis)                     # Eq. 17
        else:
            share = on_map if reduce == 'mean' else torch.ones_like(on_map)
            share = share / share.sum(2, keepdim=True).clamp(min=1)
            a = torch.einsum('nuw,nuw...->nu...', share, seen).transpose(1, axis)       # Eq. 17
    return a


class Pooled(nn.Module):
    """Variants maxpool and avgpool: the part of layer l that pool5's unit i stands on, then a perceptron."""

    def __init__(self, layer, C, D, reduce):
        super().__init__()
        # UNSPECIFIED: windows beyond the border; we chose to clip them, so |N_i,l| counts what is on the map.
        self.fields, self.reduce = receptive_field('pool5', inside=layer), reduce       # N_i,l
        # UNSPECIFIED: the perceptron's size; we chose one hidden layer of D units.
        self.mlp = nn.Sequential(nn.Linear(C, D), nn.ReLU(), nn.Linear(D, D))

    def forward(self, a, mask):
        """a (N, n, Y, X, C), mask (N, n) -> (N, n', 4, 4, D)"""
        return self.mlp(read_windows(a, mask, self.fields, self.reduce))                # Eq. 18


def vimco(log_py, log_pm):
    """log p(Y|m_k, A) and log p(m_k|A), each (B, K), of K draws m_k ~ p(m|A) -> bound (B,), surrogate (B,).

    bound is the multi-sample lower bound of log p(Y|A). surrogate has the same value, and its gradient is the estimator
    of the bound's gradient, to ascend. With K = 1 no other sample is there for a baseline: a plain score-function
    estimator, and a warning."""
    # Eq. 10, 11: log p(Y|A) >= E log p(Y|m, A), which is the bound for K = 1.
    B, K = log_py.shape
    bound = log_py.logsumexp(1) - math.log(K)               # Eq. 12, one draw of it  (B,)
    if K == 1:
        warnings.warn('one sample: a plain score-function estimator, without a baseline')
        learning = bound[:, None]                           # L in Eq. 13  (B, 1)
    else:
        own = torch.eye(K, dtype=torch.bool, device=log_py.device)
        others = log_py[:, None].expand(B, K, K)            # row k: all samples, with k itself on the diagonal
        f = others.masked_fill(own, 0.0).sum(2) / (K - 1)                               # Eq. 16, its log  (B, K)
        baseline = torch.where(own, f[:, :, None], others).logsumexp(2) - math.log(K)   # (B, K)
        learning = bound[:, None] - baseline                # Eq. 15  (B, K)
    # DEVIATION: paper omega_k grad p(Y|m_k, A) in Eq. 13 and 14, here omega_k grad log p(Y|m_k, A), because only that
    # is the gradient of Eq. 12. It is what autograd makes of bound: omega is the softmax of log_py.
    score = (learning.detach() * (log_pm - log_pm.detach())).sum(1)
    return bound.detach(), bound + score                    # Eq. 14  (B,)


class Captioner(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg, self.layers, self.hard, D = cfg, layers_of(cfg.variant), cfg.variant == 'hard', 0
        if self.layers:
            shapes = {layer: cfg.feats[name] for layer, name in zip(self.layers, cfg.features)}
            top = self.layers[-1]
            D = shapes[top][-1] * CHANNELS['pool5'] // CHANNELS[top]                    # channels of pool5, read or not
            if cfg.variant == 'mlp':
                align = {layer: Vectorised(layer, shapes[layer], D, cfg.bottleneck) for layer in ALIGN}
            elif cfg.variant in ('maxpool', 'avgpool'):
                reduce = 'max' if cfg.variant == 'maxpool' else 'mean'
                align = {layer: Pooled(layer, shapes[layer][-1], D, reduce) for layer in LAYERS}
            elif cfg.variant == 'hypercolumn':
                align, D = {}, sum(shape[-1] for shape in shapes.values())
            else:
                # UNSPECIFIED: whether a single layer (pool2 .. pool4) is aligned too; we chose yes.
                align = {layer: Convolution(layer, shapes[layer][-1], D) for layer in self.layers if layer in ALIGN}
            self.align = nn.ModuleDict(align)                       # pool5 is aligned as it is, but for Eq. 18
            self.L = 1 if cfg.variant == 'hypercolumn' else len(self.layers)
            self.w_a = nn.Linear(D if cfg.variant == 'layers-first' else self.L * D, cfg.attn)
            self.u_alpha = nn.Linear(cfg.hidden, cfg.attn, bias=False)
            self.v_alpha = nn.Linear(cfg.attn, 1, bias=False)
            if self.L > 1:
                self.w_s = nn.Linear(D, cfg.attn)
                self.u_beta = nn.Linear(cfg.hidden, cfg.attn, bias=False)
                self.v_beta = nn.Linear(cfg.attn, 1, bias=False)
        whole = cfg.feats[cfg.features[-1]][-1]
        if cfg.variant == 'resnet':
            self.encoder = nn.LSTM(whole, cfg.hidden, batch_first=True)
        else:
            self.first = nn.Linear(whole, cfg.hidden)               # C
        # DEVIATION: paper starts the words from word2vec (Google News), here at random like all else unless train.py is
        # given --word2vec FILE, because that file is a download of several GB.
        self.embed = nn.Embedding(cfg.vocab, cfg.embed)             # W_e
        self.lstm = nn.LSTMCell(cfg.embed + D, cfg.hidden)
        self.out = nn.Linear(cfg.hidden, cfg.vocab)                 # V
        self.drop = nn.Dropout(cfg.dropout)
        for name, parameter in self.named_parameters():
            if 'weight_hh' in name:
                for gate in parameter.data.chunk(4):                # (H, H) each
                    nn.init.orthogonal_(gate)
            elif 'bias' in name:
                nn.init.zeros_(parameter)
            elif cfg.init:
                nn.init.uniform_(parameter, -cfg.init, cfg.init)
        for module in self.modules():
            if cfg.init and isinstance(module, (Convolution, Vectorised)):      # drawn anew
                module.wide.weight.data /= module.scale

    def read(self, batch):
        """-> [(feature (N, n, ...) with zeros after each video's end, mask (N, n))] in cfg.features' order, checked"""
        found = []
        for name in self.cfg.features:
            value, mask, shape = batch['feats'][name], batch['mask'][name], list(self.cfg.feats[name])
            if list(value.shape[2:]) != shape:
                raise BadInput(f'{name}: {list(value.shape[2:])} per step of time, but the model was built for {shape}')
            if not mask.any(1).all():
                raise BadInput(f'{name}: video {batch["ids"][mask.any(1).long().argmin()]!r} has zero frames')
            value = value.masked_fill(~mask.view(*mask.shape, *[1] * len(shape)), 0.0)
            bad = ~torch.isfinite(value).flatten(1).all(1)
            if bad.any():
                raise BadInput(f'{name}: video {batch["ids"][bad.long().argmax()]!r} holds NaN or infinite numbers')
            found.append((value, mask))
        return found

    def encode(self, batch):
        """feats of each layer (N, n, Y, X, C), fc7 (N, 1, 64 * width) -> memory: a (N, I, L, D), mask (N, I), and what
        the attentions can compute before any word; state = (h, c), each (N, H)"""
        *maps, (whole, whole_mask) = self.read(batch)
        if self.cfg.variant == 'resnet':
            # UNSPECIFIED: how encoder and decoder meet (Cho et al., whom it cites, show the summary to every word); we chose
            # the encoder's last h and c for h_1 and c_1, as fc7 too is shown once.
            frames = whole.flatten(2, -2).mean(2) if whole.dim() > 3 else whole         # a grid is averaged  (N, F, D)
            lengths = whole_mask.sum(1).cpu()
            packed = nn.utils.rnn.pack_padded_sequence(frames, lengths, batch_first=True, enforce_sorted=False)
            h, c = self.encoder(packed)[1]
            return {}, (h[0], c[0])
        mean = whole.sum(1) / whole_mask.sum(1, keepdim=True)       # over windows, if they are stored one by one  (N, D)
        h = self.first(mean).tanh()                                 # h_1 = tanh(C a_L+1)  (N, H)
        state = (h, torch.zeros_like(h))                            # UNSPECIFIED: c_1; we chose 0
        if not self.layers:
            return {}, state
        if self.cfg.variant == 'hypercolumn':
            # UNSPECIFIED: at which places; we chose pool5's centres, interpolated, and no perceptron.
            fields = [receptive_field('pool5', inside=layer) for layer in self.layers]
            a = [read_windows(x, mask, field, 'centre') for (x, mask), field in zip(maps, fields)]
            a = torch.cat(a, 4)[..., None, :]                       # all layers are one  (N, n, 4, 4, 1, D)
        else:
            a = [self.align[layer](*pair) if layer in self.align else pair[0] for layer, pair in zip(self.layers, maps)]
            a = torch.stack(a, 4)                                   # (N, n, 4, 4, L, D)
        a = a.flatten(1, 3)                                         # (N, I, L, D)
        steps = receptive_field('pool5', inside=self.layers[0])['t'][0]     # of the lowest map in one of pool5
        mask = maps[0][1][:, ::steps].repeat_interleave(ROWS * ROWS, 1)     # real if its first step is  (N, I)
        if self.cfg.variant == 'layers-first':
            # UNSPECIFIED: what stands for a layer before places are weighed; we chose the mean over its places.
            mean = torch.einsum('ni,nild->nld', mask.to(a.dtype) / mask.sum(1, keepdim=True), a)
            return {'a': a, 'mask': mask, 'key': self.w_a(a), 'layer_key': self.w_s(mean)}, state
        return {'a': a, 'mask': mask, 'key': self.w_a(a.flatten(2))}, state     # W_a_alpha a_i, once a video  (N, I, A)

    def choose(self, p):
        """probabilities (B, M) -> (B,): a draw when training, else the mode"""
        # UNSPECIFIED: hard attention at test time; we chose the mode.
        return p.multinomial(1)[:, 0] if self.training else p.argmax(1)

    def over_places(self, h, key, mask):
        """h (B, H), key (B, I, A), mask (B, I) -> log alpha (B, I)"""
        e = self.v_alpha((key + self.u_alpha(h)[:, None]).tanh()).squeeze(-1)           # Eq. 4  (B, I)
        return e.masked_fill(~mask, float('-inf')).log_softmax(1)                       # Eq. 5

    def over_layers(self, h, key):
        """h (B, H), key (B, L, A) -> log beta (B, L)"""
        b = self.v_beta((key + self.u_beta(h)[:, None]).tanh()).squeeze(-1)             # Eq. 6  (B, L)
        return b.log_softmax(1)                                                         # Eq. 7

    def attend(self, h, memory):
        """h (B, H) -> z (B, D), aux as step() has it"""
        a, rows = memory['a'], torch.arange(len(h), device=h.device)
        if self.cfg.variant == 'layers-first':
            beta = self.over_layers(h, memory['layer_key']).exp()
            a, key = (torch.einsum('bl,bilx->bix', beta, x) for x in (a, memory['key']))    # beta sums to 1: W, b may come first
            alpha = self.over_places(h, key, memory['mask']).exp()
            z = torch.einsum('bi,bid->bd', alpha, a)
            return z, {'space': alpha.unflatten(1, (-1, ROWS, ROWS)), 'layers': beta}
        log_alpha = self.over_places(h, memory['key'], memory['mask'])
        alpha = log_alpha.exp()
        aux = {'space': alpha.unflatten(1, (-1, ROWS, ROWS))}
        if self.hard:                                               # for places "in the same way" as for layers
            i = self.choose(alpha.detach())                         # Eq. 9
            s = a[rows, i]                                          # Eq. 9  (B, L, D)
        else:
            s = torch.einsum('bi,bild->bld', alpha, a)              # Eq. 5, 8  (B, L, D)
        if self.L == 1:
            return s[:, 0], aux
        log_beta = self.over_layers(h, self.w_s(s))
        aux['layers'] = beta = log_beta.exp()
        if self.hard:
            l = self.choose(beta.detach())                          # Eq. 9
            aux['log_q'] = log_alpha[rows, i] + log_beta[rows, l]   # log p(m_t | y_<t, m_<t, A)  (B,)
            return s[rows, l], aux                                  # Eq. 7, 9  (B, D)
        return torch.einsum('bl,bld->bd', beta, s), aux             # Eq. 7, 8  (B, D)

    def nothing(self, h, memory):
        """aux of the first word, which attends to nothing: zeros"""
        B, aux = len(h), {}
        if self.layers:
            aux['space'] = h.new_zeros(B, memory['mask'].shape[1] // ROWS ** 2, ROWS, ROWS)
            if self.L > 1:
                aux['layers'] = h.new_zeros(B, self.L)
        if self.hard:
            aux['log_q'] = h.new_zeros(B)
        return aux

    def step(self, token, state, memory):
        """token (B,) or None -> logits (B, V), state, aux: space (B, n, 4, 4); layers (B, L) if there are several;
        log_q (B,) if attention is hard, the log-probability of its choices"""
        h, c = state
        if token is None:
            aux = self.nothing(h, memory)
        else:
            x, aux = self.embed(token), {}
            if self.layers:
                z, aux = self.attend(h, memory)
                x = torch.cat([x, z], 1)
            h, c = self.lstm(self.drop(x), (h, c))                  # Eq. 2 of the first version  (B, H)
        return self.out(self.drop(h)), (h, c), aux

    def forward(self, batch, *, epoch=0, reward_fn=None):
        """batch -> loss (), logs.   Negative log-likelihood; for hard attention the negative bound, from K sequences of
        choices per caption, all in one pass. (In eval mode hard attention takes the modes m*: 'nll' is then -log p(Y|m*, A), no
        bound, and not to be compared with training's.)"""
        words, K = batch['captions'], self.cfg.samples if self.hard and self.training else 1
        memory, state = select(self.encode(batch), batch['rows'].repeat_interleave(K))
        logp, aux = teacher_force(self, memory, state, words.repeat_interleave(K, 0))   # (B * K, T)
        log_py = logp.sum(1)                                        # Eq. 1, 2  (B * K,)
        if self.hard and self.training:
            log_pm = aux['log_q'].sum(1)                            # of all choices, from the second word on
            bound, surrogate = vimco(log_py.view(-1, K), log_pm.view(-1, K))
            return -surrogate.mean(), {'nll': -bound.mean().item(), 'choices': -log_pm.mean().item()}
        return -log_py.mean(), {'nll': -log_py.mean().item()}
