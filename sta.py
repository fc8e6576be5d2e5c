"""Where does a network look, when it learns from labels or captions alone, to name an action or to describe a clip?

Paper:      S. Sharma. "Action Recognition and Video Description using Visual Attention." Master's thesis, University of
            Toronto, 2016. (Chapter 2 as a paper: S. Sharma, R. Kiros, R. Salakhutdinov, arXiv:1511.04119)
Covers:     Sec. 2.1-2.2, Eq. 2.1-2.7 (Recogniser) and figure 2.8 (glimpse); Sec. 3.1-3.2, Eq. 3.1-3.6 (Captioner).
Leaves out: the manually chosen glimpses of figure 2.4.

    Recogniser   block of 30 frames, one K x K cube X_t per step:
                 h_t-1 (top layer) --softmax--> l_t --l_t . X_t--> x_t --3 LSTMs--> h_t --tanh layer--> class
    Captioner    one cube X of all N x K x K locations for the whole caption:
                 h_t-1 --softmax--> l_t --beta_t l_t . X--> x_t, with the last word --LSTM--> h_t --deep output--> word

The scores of l_t depend on h alone: there is one weight vector W_i per PLACE, and what is seen there has no say. So
the model can learn to look left, or late, but finds a thing only if h tells already where it is (h_0 knows the mean).

The penalty asks that every place gets a total of 1 over the steps. Unless T = L it cannot: T steps give a total of T to L
places, so
    sum_i (1 - sum_t l_ti)^2  >=  L (1 - T/L)^2 = (L - T)^2 / L     (Cauchy-Schwarz; equal only if every place gets T/L)
which is 7.37 for 30 steps on 49 places and 1258.05 for 8 words on 1,274. What it asks for is uniformity, which is
why lambda = 10 "resembles average pooling" (figure 2.2).

Paper -> code:  X v | l_t alpha, aux['space'] | x_t x | h, c state | beta_t beta, aux['gate'] | W_i location.weight |
                f_init,h init_h | f_init,c init_c | f_beta gate | E embed | n cfg.embed | d cfg.hidden |
                lambda cfg.penalty | gamma cfg.weight_decay / 2
Letters:        N videos, M blocks or copies of clips, B captions, F frames, L places (K x K), D feature size,
                H hidden (d), E embedding (n), T steps or words, V vocabulary, C classes
"""
import copy
import math
from dataclasses import dataclass, field

import torch
import torch.nn as nn

from data import PAD, BadInput
from decode import select, teacher_force

TASKS = {'describe': ('soft', 'avgpool', 'first'), 'recognise': ('soft', 'avgpool', 'maxpool', 'softmax')}
VARIANTS = ('soft', 'avgpool', 'maxpool', 'softmax', 'first')


@dataclass
class Config:
    task: str = 'describe'               # describe (chapter 3) or recognise (chapter 2)
    vocab: int = 0                       # V, from the data, as the next five
    feats: dict = field(default_factory=dict)   # name -> shape of one frame's feature: (D,), (L, D) or (Y, X, D)
    frames: int = 0                      # most frames of any video: N in Sec. 3.1.1 (26 there)
    classes: int = 0                     # C, number of actions
    categories: int = 0                  # not read here
    captions: int = 0                    # not read here
    features: tuple = ('googlenet',)     # the feature kind that is read: 7 x 7 x 1024, Sec. 2.1.1
    variant: str = 'soft'                # soft, avgpool, maxpool, softmax (recognise); soft, avgpool, first (describe)
    hidden: int = 4096                   # d, Sec. 3.2.2 (recognition: see PRESETS)
    embed: int = 512                     # n, word embedding, Sec. 3.2.2
    layers: int = 3                      # LSTMs of the Recogniser, Sec. 2.2.2 (1 to 5 tried); the Captioner has one
    penalty: float = 1.0                 # lambda in Eq. 2.7 and 3.6: 0, 1 or 10 in Sec. 2.2.2, 1 in Sec. 3.2.2
    dropout: float = 0.5                 # on all non-recurrent connections, Sec. 2.2.2 and 3.2.2
    block: int = 30                      # frames that the Recogniser takes at a time, Sec. 2.2.2
    block_stride: int = 1                # frames between the starts of two blocks at test time, Sec. 2.2.2
    fps: int = 30                        # frames per second that a block reads of the 30 stored: 6 in figure 2.6a
    optimizer: str = 'adam'              # Sec. 2.2.2
    weight_decay: float = 2e-5           # 2 gamma, as gamma theta^2 has the gradient 2 gamma theta; Sec. 2.2.2
    # UNSPECIFIED: learning rate, its schedule, gradient clipping and batch size; we chose the next five.
    rate: float = 2e-4                   # learning rate
    schedule: str = 'constant'           # constant or cosine
    clip: float = 5.0                    # gradient norm
    videos_per_batch: int = 32           # videos in a batch
    captions_per_video: int = 5          # captions of each video in a batch
    epochs: int = 15                     # Sec. 2.2.2 and 3.2.2
    min_count: int = 1                   # words seen less often become <unk>; all are kept, Sec. 3.2.1
    max_len: int = 30                    # words of a caption; longer ones are cut. UNSPECIFIED: how many; we chose 30
    beam: int = 4                        # beam width, Sec. 3.2.2


PRESETS = {
    'ucf11': dict(task='recognise', hidden=512, penalty=0.0),           # Sec. 2.2.2; lambda: the best of table 2.1
    'hollywood2': dict(task='recognise', hidden=512, penalty=0.0),
    'hmdb51': dict(task='recognise', hidden=1024, penalty=0.0),
    'shapes': dict(features=('clip',), hidden=256, embed=128, dropout=0.0, penalty=0.0, rate=2e-3, schedule='cosine',
                   weight_decay=0.0, max_len=20),
    'shapes/recognise': dict(hidden=128, dropout=0.2),
}


def doubly_stochastic(attention, mask=None):
    """attention (B, T, L), mask (B, T) true on real steps -> (B,): the second term of Eq. 2.7 and 3.6 over lambda"""
    if mask is not None:
        attention = attention.masked_fill(~mask[..., None], 0.0)
    return (1 - attention.sum(1)).square().sum(1)


def perceptron(inputs, hidden, outputs):
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))


def places(batch, cfg):
    """-> v (N, F, L, D) with L = 1 where a frame has no grid, mask (N, F)"""
    v, mask = batch['feats'][cfg.features[0]], batch['mask'][cfg.features[0]]
    return v.reshape(*v.shape[:2], -1, v.shape[-1]), mask


class Recogniser(nn.Module):
    """Chapter 2: a class at every time step, from a glimpse of each frame."""

    def __init__(self, cfg):
        super().__init__()
        if cfg.variant not in TASKS['recognise']:
            raise BadInput(f'--variant {cfg.variant}: to recognise there are {", ".join(TASKS["recognise"])}')
        self.cfg, (*grid, D), H = cfg, cfg.feats[cfg.features[0]], cfg.hidden
        if cfg.fps < 1 or 30 % cfg.fps:
            raise BadInput(f'--fps {cfg.fps}: a block takes every k-th of 30 frames a second, so a divisor of 30')
        self.skip = 30 // cfg.fps                                        # figure 2.6: a block takes every skip-th frame
        if cfg.variant == 'softmax':                                    # regression on the full cube, Sec. 2.2.2
            self.regression = nn.Linear(math.prod(grid) * D, cfg.classes)
            return
        # UNSPECIFIED: size of f_init, and h_0 and c_0 of the upper layers; we chose one hidden tanh layer of d units,
        # and a tanh output of d per LSTM.
        self.init_h = perceptron(D, H, cfg.layers * H)
        self.init_c = perceptron(D, H, cfg.layers * H)
        self.lstms = nn.ModuleList(nn.LSTMCell(H if layer else D, H) for layer in range(cfg.layers))
        if cfg.variant == 'soft':
            self.location = nn.Linear(H, math.prod(grid), bias=False)   # W_i
        self.hidden, self.classify = nn.Linear(H, H), nn.Linear(H, cfg.classes)
        self.drop = nn.Dropout(cfg.dropout)

    def read(self, v, mask, rows, starts):
        """v (N, F, L, D), mask (N, F), blocks given by clip and first frame: rows (M,), starts (M,)
        -> scores (M, T, C), alpha (M, T, L), index (M, T) the steps' frames, real (M, T) true on steps in the clip"""
        F, L = v.shape[1:3]
        T = min(self.cfg.block, -(-F // self.skip))                     # no more steps than the longest clip fills
        index = starts[:, None] + self.skip * torch.arange(T, device=v.device)          # (M, T)
        # UNSPECIFIED: clips of less than a block; we chose to read what there is: the missing steps count for nothing.
        real = index < mask.sum(1)[rows, None]
        index = index.clamp(max=F - 1)
        flat = torch.zeros(len(rows), T, L, device=v.device)            # no location softmax: attends nowhere
        if self.cfg.variant == 'softmax':
            return self.regression(v.flatten(2))[rows[:, None], index], flat, index, real
        mean = v.mean(2)                                                # (N, F, D)
        start = (mean[rows[:, None], index] * real[..., None]).sum(1) / real.sum(1, keepdim=True)       # (M, D)
        h = list(self.init_h(start).tanh().chunk(len(self.lstms), 1))   # Eq. 2.6  (M, H) per layer
        c = list(self.init_c(start).tanh().chunk(len(self.lstms), 1))   # Eq. 2.6
        pooled = {'soft': None, 'avgpool': mean, 'maxpool': v.amax(2)}[self.cfg.variant]
        scores, alphas = [], []
        for t in range(T):
            if self.cfg.variant == 'soft':
                # UNSPECIFIED: dropout between h_t-1 and l_t; we chose none, as it comes from the step before.
                alphas.append(self.location(h[-1]).softmax(1))          # Eq. 2.4  (M, L)
                x = torch.einsum('ml,mld->md', alphas[-1], v[rows, index[:, t]])        # Eq. 2.5  (M, D)
            else:
                x = pooled[rows, index[:, t]]                           # (M, D)
            for layer, lstm in enumerate(self.lstms):
                h[layer], c[layer] = lstm(self.drop(x), (h[layer], c[layer]))           # Eq. 2.1, 2.2, 2.3  (M, H)
                x = h[layer]
            scores.append(self.classify(self.drop(self.hidden(self.drop(x)).tanh())))   # (M, C)
        return torch.stack(scores, 1), torch.stack(alphas, 1) if alphas else flat, index, real

    def forward(self, batch, *, epoch=0):
        """batch with labels (N, C) -> loss (), logs.   Cross-entropy at every step and penalty; gamma: optimizer"""
        v, mask = places(batch, self.cfg)
        # UNSPECIFIED: clips with two labels; we chose one copy of the clip per label, and the softmax as scores.
        rows, labels = batch['labels'].nonzero(as_tuple=True)           # (M,), (M,)
        # DEVIATION: paper trains on all of a clip's blocks in every epoch, here on one, drawn at random, because blocks one frame
        # apart are almost alike; so an epoch here is many times shorter, and long clips need more of them.
        starts = (torch.rand(len(rows), device=v.device) * self.starts(mask)[rows]).long()
        scores, alpha, _, real = self.read(v, mask, rows, starts)
        logp = scores.log_softmax(2)[torch.arange(len(rows), device=v.device), :, labels]       # (M, T)
        nll = -logp.masked_fill(~real, 0.0).sum(1)
        spread = doubly_stochastic(alpha, real) if self.cfg.variant == 'soft' else torch.zeros_like(nll)
        loss = (nll + self.cfg.penalty * spread).sum() / len(v)         # Eq. 2.7; per clip: shards add up
        return loss, {'nll': nll.mean().item(), 'penalty': spread.mean().item()}

    def starts(self, mask):
        """mask (N, F) -> (N,), the number of frames at which a block can start: 1 for a clip that fills no block"""
        span = (self.cfg.block - 1) * self.skip + 1
        return (mask.sum(1) - span).clamp(min=0) + 1

    def predict(self, batch):
        """batch -> probabilities (N, C), the mean over a block's steps and then over the clip's blocks;
        aux: space (N, F, L), where each frame was looked at, the mean over the blocks that hold it"""
        v, mask = places(batch, self.cfg)
        N, F, L = v.shape[:3]
        starts = [torch.arange(0, n, self.cfg.block_stride, device=v.device) for n in self.starts(mask).tolist()]
        rows = torch.cat([torch.full_like(s, row) for row, s in enumerate(starts)])             # (M,)
        starts = torch.cat(starts)                                                              # (M,)
        blocks, maps, frames = [], [], []
        for some in torch.arange(len(rows), device=v.device).split(256):        # a long clip has many blocks
            scores, alpha, index, real = self.read(v, mask, rows[some], starts[some])
            p = scores.softmax(2) * real[..., None]
            blocks.append(p.sum(1) / real.sum(1, keepdim=True))                 # (M, C)
            maps.append(alpha[real])                                            # (steps, L)
            frames.append((rows[some, None] * F + index)[real])                 # (steps,) into N * F

        def mean(values, groups, size):                                         # (M, ...) in groups (M,) -> (size, ...)
            count = torch.bincount(groups, minlength=size).clamp(min=1)
            return values.new_zeros(size, values.shape[1]).index_add(0, groups, values) / count[:, None]

        space = mean(torch.cat(maps), torch.cat(frames), N * F).view(N, F, L)
        return mean(torch.cat(blocks), rows, N), {'space': space}


@torch.enable_grad()
def glimpse(model, batch, label, steps=500, rate=0.01, progress=iter):
    """Figure 2.8: a Recogniser, a batch of one clip, the number of its right class -> dict: the attention maps (F, L)
    learned, random and found (at the first right prediction, or after `steps`), predicted (the class under each of the
    three), steps (taken), probability (of label, at the end). progress: may wrap the steps, to show a bar.

    Only the location softmax' weights move, so only where the model looks; and they move in a copy of the model."""
    if model.cfg.variant != 'soft':
        raise BadInput(f'a glimpse needs --variant soft: {model.cfg.variant} chooses no place')
    model = copy.deepcopy(model).eval().requires_grad_(False)
    probability, aux = model.predict(batch)
    found = {'learned': aux['space'][0]}
    predicted = [probability[0].argmax().item()]
    weight = model.location.weight
    weight.uniform_(weight.min().item(), weight.max().item()).requires_grad_()
    optimizer = torch.optim.Adam([weight], lr=rate)
    for step in progress(range(steps + 1)):
        probability, aux = model.predict(batch)
        if step == 0:
            found['random'] = aux['space'][0].detach()
            predicted.append(probability[0].argmax().item())
        if probability[0].argmax() == label or step == steps:
            break
        optimizer.zero_grad()
        # UNSPECIFIED: what is minimised, and how; we chose -log of the clip's mean probability, by which it is judged, and Adam.
        (-probability[0, label].log()).backward()
        optimizer.step()
    predicted.append(probability[0].argmax().item())
    return found | {'found': aux['space'][0].detach(), 'predicted': tuple(predicted), 'steps': step,
                    'probability': probability[0, label].item()}


class Captioner(nn.Module):
    """Chapter 3: a word at every time step, from a glimpse of all frames at once."""

    def __init__(self, cfg):
        super().__init__()
        if cfg.variant not in TASKS['describe']:
            raise BadInput(f'--variant {cfg.variant}: to describe there are {", ".join(TASKS["describe"])}')
        self.cfg, (*grid, D), H, E = cfg, cfg.feats[cfg.features[0]], cfg.hidden, cfg.embed
        self.embed = nn.Embedding(cfg.vocab, E)                         # E
        self.init_h, self.init_c = perceptron(D, H, H), perceptron(D, H, H)
        if cfg.variant != 'avgpool':
            self.location = nn.Linear(H, cfg.frames * math.prod(grid), bias=False)      # W_i
        # UNSPECIFIED: size of f_beta; we chose one hidden tanh layer of n units (of d it would be 17 million weights).
        self.gate = perceptron(H, E, 1)
        self.lstm = nn.LSTMCell(E + D, H)
        self.w_h, self.w_x = nn.Linear(H, E, bias=False), nn.Linear(D, E, bias=False)   # W_h, W_x
        self.w_p = nn.Linear(E, cfg.vocab, bias=False)                  # W_p
        self.drop = nn.Dropout(cfg.dropout)

    def encode(self, batch):
        """-> memory: mean (N, D), uniform and mask (N, F, L), v (N, F * L, D); state = (h, c), each (N, H)"""
        v, mask = places(batch, self.cfg)
        if v.shape[1] > self.cfg.frames:
            raise BadInput(f'{v.shape[1]} frames, but Eq. 3.2 has weights for the places of {self.cfg.frames}')
        # DEVIATION: paper pads short videos with black frames, here absent frames get no weight, because padding must change
        # nothing. Features of black frames are frames like any other, and then all is as in the paper.
        mask = mask[..., None].expand(v.shape[:3])                      # (N, F, L)
        uniform = mask / mask.sum((1, 2), keepdim=True)
        mean = torch.einsum('nfl,nfld->nd', uniform, v)
        state = self.init_h(mean).tanh(), self.init_c(mean).tanh()      # Eq. 2.6, over all N K^2 places  (N, H), (N, H)
        memory = {'mean': mean, 'uniform': uniform, 'mask': mask}
        return memory if self.cfg.variant == 'avgpool' else memory | {'v': v.flatten(1, 2)}, state

    def step(self, token, state, memory):
        """token (B,) or None -> logits (B, V), state, aux: space (B, F, L), gate (B,)"""
        (h, c), mask = state, memory['mask']
        # UNSPECIFIED: which connections dropout is on; we chose what enters the LSTM, W_h, W_x and W_p, and neither f_init nor
        # what comes from h_t-1 (l_t, f_beta).
        # UNSPECIFIED: the word before the first; we chose a zero embedding.
        y = h.new_zeros(len(h), self.cfg.embed) if token is None else self.embed(token)
        if self.cfg.variant == 'avgpool':                               # the same at every word: it was computed once
            alpha, glance = memory['uniform'], memory['mean']
        # UNSPECIFIED: gate and penalty of the two baselines; we chose: avgpool keeps the gate and has no penalty, first has both.
        elif self.cfg.variant == 'first' and token is not None:         # nothing is seen after the first word
            alpha, glance = torch.zeros_like(memory['uniform']), torch.zeros_like(memory['mean'])
        else:
            scores = self.location(h)[:, :mask[0].numel()].masked_fill(~mask.flatten(1), float('-inf'))
            # DEVIATION: paper's denominator sums over K x K, here over all N K^2, because l_t is one softmax over them.
            alpha = scores.softmax(1)                                   # Eq. 3.2  (B, F * L)
            glance = torch.bmm(alpha[:, None], memory['v'])[:, 0]       # (B, D)
            alpha = alpha.view(mask.shape)
        beta = self.gate(h).sigmoid()                                   # Eq. 3.5  (B, 1)
        x, y = self.drop(beta * glance), self.drop(y)                   # Eq. 3.3  (B, D)
        h, c = self.lstm(torch.cat([y, x], 1), (h, c))                  # Eq. 3.1  (B, H)
        logits = self.w_p(self.drop(y + self.w_h(self.drop(h)) + self.w_x(x)))          # Eq. 3.4  (B, V)
        return logits, (h, c), {'space': alpha, 'gate': beta[:, 0]}

    def forward(self, batch, *, epoch=0, reward_fn=None):
        """batch -> loss (), logs.   Negative log-likelihood and penalty; gamma is the optimizer's."""
        memory, state = select(self.encode(batch), batch['rows'])       # videos -> captions
        logp, aux = teacher_force(self, memory, state, batch['captions'])       # (B, T), 0 where no word is
        nll, gate = -logp.sum(1), aux['gate'].sum() / (batch['captions'] != PAD).sum()
        spread = torch.zeros_like(nll)
        if self.cfg.variant != 'avgpool':
            spread = doubly_stochastic(aux['space'].flatten(2)) - (~memory['mask']).sum((1, 2))  # padding adds no 1
        loss = (nll + self.cfg.penalty * spread).mean()                 # Eq. 3.6
        return loss, {'nll': nll.mean().item(), 'penalty': spread.mean().item(), 'gate': gate.item()}
