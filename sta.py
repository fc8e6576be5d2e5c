"""Where does a network look when it learns from labels or captions alone?

Paper:      S. Sharma. "Action Recognition and Video Description using Visual Attention."
            Master's thesis, University of Toronto, 2016.
            Chapter 2 as a paper: S. Sharma, R. Kiros, R. Salakhutdinov, arXiv:1511.04119.
            The author's code for chapter 2 (there is none for chapter 3), with his answers in its
            issues: github.com/kracwarlock/action-recognition-visual-attention
Covers:     Sec. 2.1-2.2, Eq. 2.1-2.7 (Recogniser) and Fig. 2.8 (glimpse);
            Sec. 3.1-3.2, Eq. 3.1-3.6 (Captioner).
Leaves out: the manually chosen glimpses of Fig. 2.4. (A glimpse is where the attention looks.)

    Recogniser   reads a block of 30 frames, one cube X_t of K x K places per step:
                 h_t-1 (top layer) --softmax--> l_t --l_t . X_t--> x_t --3 LSTMs--> h_t --> class
    Captioner    reads one cube X of all N x K x K places at every word:
                 h_t-1 --softmax--> l_t --beta_t l_t . X--> x_t --LSTM (y_t-1)--> h_t --> word y_t

Here l_t are the attention weights, and l_t . X_t is the mean of the features, weighted by l_t.
As printed, the scores of l_t depend on h_t-1 alone: there is one weight vector W_i per place, and
the score does not depend on the content of that place. So the model can learn to look left, or at
late frames, but it finds an object only if h_t-1 already tells where the object is. (h_0 can hardly
tell: it is computed from the mean of all features.) In the author's code, the score also depends on
the content x_i of the place,
    score_i = U tanh(W_c x_i + b + W_d h_t-1),
and in issue 7 the author calls the printed equation an error. We offer these scores as `--scores
content`. The default is `--scores printed`, because issue 12 says that the printed results are
based on the printed equation, and because the experiment of Fig. 2.8 changes the weights of that
equation. docs/PAPERS.md weighs the evidence. Only content scores solve the puzzle `place`, but only
printed scores know where a place is and, in the Captioner, in which frame: there they alone can
tell the order of frames. (The Recogniser reads the frames in order, whatever its scores.)

The penalty in the loss asks that the weights of each place sum to 1 over the steps. This is
possible only with as many steps as places. T steps give a total weight of T to L places, so by
Cauchy-Schwarz
    sum_i (1 - sum_t l_ti)^2 >= L (1 - T/L)^2 = (L - T)^2 / L,
with equality only if every place has the total T/L. The bound is 7.37 for 30 steps and 49 places,
and 1258.05 for 8 words and 1,274 places. So the penalty asks for equal totals. A model reaches them
by scanning all places in turn, or by looking everywhere at every step. The latter explains why
lambda = 10 "resembles average pooling" (Fig. 2.2). The author's code takes the mean over the 49
places instead of the sum, so the same lambda acts 49 times more weakly (`--penalty-over mean`).

Paper -> code:  X v | l_t alpha, aux['space'] | x_t x | h_t, c_t state | y_t token | E embed
                beta_t beta, aux['gate'] | W_i rows of location.weight | f_beta f_beta
                f_init,h init_h | f_init,c init_c | n cfg.embed | d cfg.hidden
                lambda cfg.penalty | gamma cfg.weight_decay / 2
Letters:        N videos, M blocks, B captions, F frames (the thesis' N), L places of a frame (its
                K x K), D feature size, H hidden (its d), E embedding (its n), T steps or words,
                V vocabulary, C classes
"""
import copy
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

from data import PAD, BadInput, choose
from decode import Shared, select, teacher_force

TASKS = {
    'describe': ('soft', 'avgpool', 'first'),                   # Table 3.1
    'recognise': ('soft', 'avgpool', 'maxpool', 'softmax'),     # Table 2.1
}
VARIANTS = ('soft', 'avgpool', 'maxpool', 'softmax', 'first')
SCORES = ('printed', 'content')
TASK_FIELDS = {'describe': ('embed', 'gate'),       # fields of Config that only this task reads
               'recognise': ('sigmoids', 'block', 'block_stride', 'fps')}
# Sec. 2.2.1: UCF-11 has 29.97, HMDB-51 has 30; the rate of Hollywood2 is not given.
STORED_FPS = 30             # frames per second of the features that the Recogniser reads


@dataclass
class Config:
    task: str = 'describe'            # describe (chapter 3) or recognise (chapter 2)
    features: tuple = ('googlenet',)  # name of the features; 7 x 7 x 1024 per frame in Sec. 2.1.1
    variant: str = 'soft'             # row of Table 3.1 (describe) or of Table 2.1 (recognise)
    hidden: int = 4096                # d, units of an LSTM, Sec. 3.2.2; see PRESETS for Sec. 2.2.2
    embed: int = 512                  # n, size of a word embedding, Sec. 3.2.2
    layers: int = 1                   # number of LSTMs, Sec. 3.2.2; see PRESETS for Sec. 2.2.2
    scores: str = 'printed'           # scores: printed (Eq. 2.4, 3.2) or content (author's code)
    gate: bool = True                 # describe: the gate beta_t, Eq. 3.5; without it beta_t is 1
    penalty: float = 1.0              # lambda, weight of the attention penalty, Sec. 3.2.2
    penalty_over: str = 'sum'         # sum (Eq. 2.7, 3.6) or mean (author's code) over the places
    sigmoids: bool = False            # recognise: a sigmoid per class, if clips have several labels
    dropout: float = 0.5              # dropout on non-recurrent connections, Sec. 2.2.2 and 3.2.2
    block: int = 30                   # frames that the Recogniser reads at a time, Sec. 2.2.2
    block_stride: int = 1             # frames from one block to the next at test time, Sec. 2.2.2
    fps: int = 30                     # frames per second that a block reads; 6 in Fig. 2.6a
    optimizer: str = 'adam'           # adam, adamw or rmsprop, Sec. 2.2.2 and 3.2.2
    # The gradient of gamma theta^2 is 2 gamma theta, so the weight decay is 2 gamma.
    weight_decay: float = 2e-5        # strength of the weight decay, 2 gamma, Sec. 2.2.2, 3.2.2
    # UNSPECIFIED: the learning rate, gradient clipping and the batch size; we chose the rate of the
    # author's code for chapter 2 (src/actrec.py: Adam at lr0 = 2e-4, constant), clipping at a norm
    # of 5, and batches of 32 videos, with 5 captions each in chapter 3. The author's code has
    # batches of 128 blocks and does not clip. Our batches for chapter 2 hold whole videos, of which
    # an epoch reads only one block each.
    rate: float = 2e-4                # learning rate
    schedule: str = 'constant'        # learning rate over time: constant or cosine
    clip: float = 5.0                 # largest norm of the gradient
    videos_per_batch: int = 32        # videos in a batch
    captions_per_video: int = 5       # captions of each video in a batch
    epochs: int = 15                  # passes over the training data, Sec. 2.2.2 and 3.2.2
    # UNSPECIFIED: how often a word must occur to be kept (Sec. 3.2.1 counts roughly 15,000 words in
    # all descriptions, those of the test videos included); we chose to keep every word.
    min_count: int = 1                # words that occur less often become <unk>
    # UNSPECIFIED: the longest caption; we chose to cut captions after 30 words.
    max_len: int = 30                 # longest caption, in words
    beam: int = 4                     # beam width, Sec. 3.2.2

    def __post_init__(self):
        choose('--task', self.task, TASKS)
        choose('--variant', self.variant, TASKS[self.task])
        choose('--scores', self.scores, SCORES)
        choose('--penalty-over', self.penalty_over, ('sum', 'mean'))
        if self.fps < 1 or STORED_FPS % self.fps:
            raise BadInput(f'--fps {self.fps}: clips have {STORED_FPS} frames per second, and a '
                           f'block takes every k-th of them; choose a divisor of {STORED_FPS}')


PRESETS = {
    # hidden and layers are from Sec. 2.2.2. penalty is that of the best row of Table 2.1; the
    # thesis also tries 1 and 10.
    # DEVIATION: paper has a softmax over the classes and one-hot labels (Sec. 2.1.2, Eq. 2.7), here
    # Hollywood2 has 12 sigmoids with binary cross-entropy, as in the author's code
    # (src/actrec_mAP.py), because its clips can have several classes.
    'ucf11': dict(task='recognise', hidden=512, layers=3, penalty=0.0),
    'hollywood2': dict(task='recognise', hidden=512, layers=3, penalty=0.0, sigmoids=True),
    'hmdb51': dict(task='recognise', hidden=1024, layers=3, penalty=0.0),
    # Not in the thesis. A step reads the features of 16 frames, and clips have 2 to 8 such steps.
    'weizmann': dict(task='recognise', features=('i3d',), hidden=128, layers=1, penalty=0.0,
                     block=3, rate=3e-4, epochs=30, videos_per_batch=8, patience=30),
    'shapes': dict(features=('clip',), hidden=256, embed=128, dropout=0.0, penalty=0.0, rate=2e-3,
                   schedule='cosine', weight_decay=0.0, max_len=20),
    # Features with one vector per frame. The smaller model and the shorter training were chosen on
    # the validation videos.
    'msvd/vgg16_fc': dict(hidden=256, embed=256, min_count=3, rate=1e-3, schedule='cosine',
                          epochs=2, videos_per_batch=20),
    'shapes/recognise': dict(hidden=128, layers=3, dropout=0.2, block=16),
    'puzzle': dict(features=('symbols',), hidden=64, embed=32, dropout=0.0, penalty=0.0, rate=3e-3,
                   schedule='cosine', weight_decay=0.0, epochs=20, captions_per_video=1, max_len=4,
                   beam=1, patience=20),
}


def doubly_stochastic(alpha, places=None, over='sum'):
    """alpha (B, T, L) -> (B,), the second term of Eq. 2.7 and 3.6 without the factor lambda.
    places (B, L) is true on real places; None means that all are real. over='mean' divides by their
    number, as the author's code does (src/actrec.py, alpha_reg)."""
    if places is None:
        places = torch.ones_like(alpha[:, 0], dtype=torch.bool)
    gap = (1 - alpha.sum(1)).masked_fill(~places, 0.0)      # (B, L)
    total = gap.square().sum(1)
    return total / places.sum(1) if over == 'mean' else total


def read_features(batch, cfg):
    """batch -> v (N, F, L, D), mask (N, F). L is 1 if a frame has a single feature vector."""
    name = cfg.features[0]
    v = batch['feats'][name]
    return v.reshape(*v.shape[:2], -1, v.shape[-1]), batch['mask'][name]


def group_mean(values, groups, count):
    """values (M, C), groups (M,) -> (count, C), the mean of each group; 0 for an empty group"""
    total = values.new_zeros(count, values.shape[1]).index_add(0, groups, values)
    members = torch.bincount(groups, minlength=count).clamp(min=1)
    return total / members[:, None]


class ContentScores(nn.Module):
    """Scores that read the content of a place, as in the author's code (src/actrec.py,
    lstm_cond_layer). The code adds a bias to all scores; we do not: the softmax would cancel it."""

    def __init__(self, H, D):
        super().__init__()
        self.w_c = nn.Linear(D, D)                          # W_c, b
        self.w_d = nn.Linear(H, D, bias=False)              # W_d
        self.u = nn.Linear(D, 1, bias=False)                # U

    def forward(self, h, keys):
        """h (B, H), keys (B, L, D) = W_c x + b of each place -> (B, L)"""
        return self.u(torch.tanh(keys + self.w_d(h)[:, None])).squeeze(2)


class Stack(nn.Module):
    """LSTMs on top of each other, and f_init, which gives them their first state"""

    def __init__(self, cfg, inputs, D):
        super().__init__()
        H = cfg.hidden
        # DEVIATION: paper calls f_init a multilayer perceptron, here it is one tanh layer per LSTM,
        # because this is what the author uses (src/actrec.py; issue 3 for several LSTMs).
        self.init_h = nn.Linear(D, cfg.layers * H)
        self.init_c = nn.Linear(D, cfg.layers * H)
        sizes = [inputs] + [H] * (cfg.layers - 1)
        self.lstms = nn.ModuleList(nn.LSTMCell(size, H) for size in sizes)
        self.drop = nn.Dropout(cfg.dropout)

    def start(self, mean):
        """mean (B, D), the mean feature -> [(h, c) per LSTM]"""
        h = self.init_h(mean).tanh().chunk(len(self.lstms), dim=1)      # Eq. 2.6  (B, H) per LSTM
        c = self.init_c(mean).tanh().chunk(len(self.lstms), dim=1)      # Eq. 2.6  (B, H) per LSTM
        return list(zip(h, c))

    def forward(self, x, state):
        """x (B, inputs), state [(h, c) per LSTM] -> h (B, H) of the top LSTM, state"""
        new_state = []
        for lstm, (h, c) in zip(self.lstms, state):
            h, c = lstm(self.drop(x), (h, c))               # Eq. 2.1, 2.2, 2.3, 3.1  (B, H)
            new_state.append((h, c))
            x = h                                           # input of the next LSTM
        return x, new_state


class Recogniser(nn.Module):
    """Chapter 2: looks at one frame per step and predicts the class at every step."""

    def __init__(self, cfg, sizes):
        super().__init__()
        self.cfg = cfg
        self.skip = STORED_FPS // cfg.fps                   # a block takes every skip-th frame
        *grid, D = sizes.feats[cfg.features[0]]
        L = math.prod(grid)
        H = cfg.hidden
        if cfg.variant == 'softmax':                        # reads the full cube, Sec. 2.2.2
            self.regression = nn.Linear(L * D, sizes.classes)
            return
        self.stack = Stack(cfg, D, D)
        if cfg.variant == 'soft' and cfg.scores == 'printed':
            self.location = nn.Linear(H, L, bias=False)     # W_i
        elif cfg.variant == 'soft':
            self.location = ContentScores(H, D)
        self.hidden = nn.Linear(H, H)
        self.classify = nn.Linear(H, sizes.classes)
        # UNSPECIFIED: which connections of the Recogniser count as "non-recurrent" and so have
        # dropout; we chose the inputs of the LSTMs, of the hidden layer and of the class layer. In
        # the author's code only the last two have it: its LSTM reads x_t without dropout.
        self.drop = nn.Dropout(cfg.dropout)

    def count_starts(self, mask):
        """mask (N, F) -> (N,), the number of frames at which a block can start; at least 1"""
        span = (self.cfg.block - 1) * self.skip + 1         # from the first frame to the last
        return (mask.sum(1) - span).clamp(min=0) + 1

    def all_blocks(self, mask):
        """mask (N, F) -> rows (M,) and starts (M,): the clip and the first frame of each block"""
        rows = []
        starts = []
        for row, count in enumerate(self.count_starts(mask).tolist()):
            starts.append(torch.arange(0, count, self.cfg.block_stride, device=mask.device))
            rows.append(torch.full_like(starts[-1], row))
        return torch.cat(rows), torch.cat(starts)

    def block_frames(self, mask, rows, starts):
        """mask (N, F), rows (M,), starts (M,) -> index (M, T), the frame that each step reads"""
        # UNSPECIFIED: what to do with a clip shorter than a block; we chose to repeat its last
        # frame, as in the author's code (util/data_handler.py).
        last = (mask.sum(1)[rows] - 1 - starts) // self.skip                            # (M,)
        step = torch.arange(self.cfg.block, device=mask.device).minimum(last[:, None])  # (M, T)
        return starts[:, None] + self.skip * step

    def look(self, h, cube):
        """h (M, H) of the top LSTM, cube (M, L, D) -> x (M, D), alpha (M, L)"""
        # No dropout between h_t-1 and l_t, as in the author's code: this connection is recurrent.
        if self.cfg.scores == 'printed':
            scores = self.location(h)
        else:
            scores = self.location(h, self.location.w_c(cube))
        alpha = scores.softmax(1)                           # Eq. 2.4  (M, L)
        x = torch.einsum('ml,mld->md', alpha, cube)         # Eq. 2.5  (M, D)
        return x, alpha

    def read(self, v, rows, index):
        """v (N, F, L, D), rows (M,), index (M, T)
        -> scores (M, T, C), alpha (M, T, L), which is 0 if the variant has no attention"""
        nowhere = v.new_zeros(*index.shape, v.shape[2])     # (M, T, L)
        if self.cfg.variant == 'softmax':
            return self.regression(v.flatten(2))[rows[:, None], index], nowhere
        pooled = v.mean(2)                                  # (N, F, D)
        state = self.stack.start(pooled[rows[:, None], index].mean(1))
        if self.cfg.variant == 'maxpool':
            pooled = v.amax(2)                              # (N, F, D)
        scores = []
        alphas = []
        for t, frame in enumerate(index.unbind(1)):
            if self.cfg.variant == 'soft':
                top_h, _ = state[-1]
                x, alpha = self.look(top_h, v[rows, frame])
            else:
                x = pooled[rows, frame]
                alpha = nowhere[:, t]
            h, state = self.stack(x, state)
            hidden = self.hidden(self.drop(h)).tanh()
            scores.append(self.classify(self.drop(hidden)))
            alphas.append(alpha)
        return torch.stack(scores, 1), torch.stack(alphas, 1)

    def forward(self, batch, *, epoch=0):
        """batch with labels (N, C) -> loss (), logs.   Cross-entropy at every step, plus penalty"""
        v, mask = read_features(batch, self.cfg)
        # DEVIATION: paper trains on all blocks of a clip in every epoch, here on one random block
        # per clip, because blocks that start one frame apart are almost equal. So an epoch is many
        # times shorter here, and long clips need more epochs.
        rows = torch.arange(len(v), device=v.device)
        starts = (torch.rand(len(v), device=v.device) * self.count_starts(mask)).long()
        scores, alpha = self.read(v, rows, self.block_frames(mask, rows, starts))
        y = batch['labels'][:, None].expand_as(scores)                                  # (N, T, C)
        if self.cfg.sigmoids:
            nll = F.binary_cross_entropy_with_logits(scores, y, reduction='none').sum((1, 2))
        else:                                   # the sum over classes also allows several labels
            nll = -(y * scores.log_softmax(2)).sum((1, 2))  # (N,)
        penalty = torch.zeros_like(nll)
        if self.cfg.variant == 'soft':
            penalty = doubly_stochastic(alpha, over=self.cfg.penalty_over)
        loss = (nll + self.cfg.penalty * penalty).mean()                                # Eq. 2.7
        return loss, {'nll': nll.mean().item(), 'penalty': penalty.mean().item()}

    def predict(self, batch):
        """batch -> probabilities (N, C), the mean over the steps of a block, then over the blocks;
        aux: space (N, F, L), the attention in each frame, averaged over the steps that read it"""
        v, mask = read_features(batch, self.cfg)
        N, frames, L = v.shape[:3]
        rows, starts = self.all_blocks(mask)
        index = self.block_frames(mask, rows, starts)
        probabilities = []
        maps = []
        for some in torch.arange(len(rows), device=v.device).split(256):    # to save memory
            scores, alpha = self.read(v, rows[some], index[some])
            steps = scores.sigmoid() if self.cfg.sigmoids else scores.softmax(2)
            probabilities.append(steps.mean(1))             # (M, C)
            maps.append(alpha.flatten(0, 1))                # one row of L per step
        frame = rows[:, None] * frames + index              # which frame of the batch a step read
        space = group_mean(torch.cat(maps), frame.flatten(), N * frames).view(N, frames, L)
        return group_mean(torch.cat(probabilities), rows, N), {'space': space}


@torch.enable_grad()
def glimpse(model, batch, label, steps=500, progress=iter):
    """Fig. 2.8: change where a trained Recogniser looks until it gets the class of a clip right.

    batch: one clip; label: the number of its class; progress: a function that wraps the steps, for
    example to show a progress bar. Only the weights of the location scores change, in a copy of the
    model; with --scores content these are W_c, b, W_d and U. Returns a dict:
        learned, random, found    attention (F, L) of the model as it was trained, with random
                                  weights, and at the first right prediction or after `steps`
        predicted                 the class that is predicted with each of these three
        steps, probability        the number of steps taken, and the final probability of label"""
    if model.cfg.variant != 'soft':
        raise BadInput(f'--variant {model.cfg.variant}: this model has no attention to change; '
                       f'choose a run with --variant soft')
    model = copy.deepcopy(model).eval().requires_grad_(False)
    probability, aux = model.predict(batch)
    seen = {'learned': aux['space'][0]}
    predicted = [probability.argmax().item()]
    for weight in model.location.parameters():
        weight.uniform_(weight.min().item(), weight.max().item())
        weight.requires_grad_()
    probability, aux = model.predict(batch)
    seen['random'] = aux['space'][0].detach()
    predicted.append(probability.argmax().item())
    # UNSPECIFIED: which loss the experiment of Fig. 2.8 minimises, and how; we chose -log of the
    # predicted probability of the class, and Adam with a rate of 0.01.
    optimizer = torch.optim.Adam(model.location.parameters(), lr=0.01)
    taken = 0
    for _ in progress(range(steps)):
        if probability.argmax() == label:
            break
        optimizer.zero_grad()
        (-probability[0, label].log()).backward()
        optimizer.step()
        taken += 1
        probability, aux = model.predict(batch)
    seen['found'] = aux['space'][0].detach()
    seen['predicted'] = (*predicted, probability.argmax().item())
    seen['steps'] = taken
    seen['probability'] = probability[0, label].item()
    return seen


class Captioner(nn.Module):
    """Chapter 3: looks at all frames at once and predicts a word at every step."""

    def __init__(self, cfg, sizes):
        super().__init__()
        self.cfg = cfg
        self.frames = sizes.frames                          # N in Sec. 3.1.1
        *grid, D = sizes.feats[cfg.features[0]]
        H = cfg.hidden
        E = cfg.embed
        self.embed = nn.Embedding(sizes.vocab, E)           # E
        if cfg.variant != 'avgpool' and cfg.scores == 'printed':
            self.location = nn.Linear(H, self.frames * math.prod(grid), bias=False)     # W_i
        elif cfg.variant != 'avgpool':
            self.location = ContentScores(H, D)
        if cfg.gate:
            # UNSPECIFIED: the layers of f_beta, a "multilayer perceptron" (Sec. 3.1.3); we chose
            # one hidden tanh layer of n units. With d units ("the hidden layer d" of Sec. 3.2.2 may
            # be this one) it would have 17 million weights. The author's code for chapter 2 has
            # such a gate, switched off (src/actrec.py, selector): a single linear layer.
            self.f_beta = nn.Sequential(nn.Linear(H, E), nn.Tanh(), nn.Linear(E, 1))
        self.stack = Stack(cfg, E + D, D)
        self.w_h = nn.Linear(H, E, bias=False)              # W_h
        self.w_x = nn.Linear(D, E, bias=False)              # W_x
        self.w_p = nn.Linear(E, sizes.vocab, bias=False)    # W_p
        self.drop = nn.Dropout(cfg.dropout)

    def encode(self, batch):
        """-> memory: mean (N, D), uniform (N, F, L): equal weights of all real places, mask
        (N, F, L), v (N, F * L, D) unless avgpool, and keys (N, F * L, D) for content scores;
        state [(h, c) per LSTM], each (N, H)"""
        v, mask = read_features(batch, self.cfg)
        if v.shape[1] > self.frames and self.cfg.scores == 'printed':
            raise BadInput(f'--features {self.cfg.features[0]}: a video has {v.shape[1]} frames, '
                           f'but the model has weights for {self.frames}; extract fewer frames')
        # DEVIATION: paper pads short videos with black frames, here the missing frames get no
        # weight, because padding must not change the result. If black frames are stored with the
        # features, they are read like any other frame, as in the paper.
        mask = mask[..., None].expand(v.shape[:3])                      # (N, F, L)
        uniform = mask / mask.sum((1, 2), keepdim=True)
        mean = torch.einsum('nfl,nfld->nd', uniform, v)                 # over all N K^2 places
        memory = {'mean': mean, 'uniform': uniform, 'mask': mask}
        if self.cfg.variant != 'avgpool':
            v = v.flatten(1, 2)                                         # (N, F * L, D)
            memory['v'] = Shared(v)
            if self.cfg.scores == 'content':
                memory['keys'] = self.location.w_c(v)                   # once per video
        return memory, self.stack.start(mean)

    def look(self, token, h, memory):
        """token (B,) or None, h (B, H) -> expected feature (B, D), alpha (B, F, L), 0 on padding.
        The variant avgpool weights all places equally; first has no attention after word 1."""
        uniform = memory['uniform']
        if self.cfg.variant == 'avgpool':
            return memory['mean'], uniform
        if self.cfg.variant == 'first' and token is not None:
            return torch.zeros_like(memory['mean']), torch.zeros_like(uniform)
        mask = memory['mask'].flatten(1)                                # (B, F * L)
        if self.cfg.scores == 'printed':
            scores = self.location(h)[:, :mask.shape[1]]    # this batch may have fewer frames
        else:
            scores = self.location(h, memory['keys'])                   # (B, F * L)
        scores = scores.masked_fill(~mask, float('-inf'))
        # DEVIATION: paper's denominator of l_t sums over K x K places, here it sums over all N K^2,
        # because l_t is a softmax over all of them.
        alpha = scores.softmax(1)                                       # Eq. 3.2  (B, F * L)
        expected = memory['v'].einsum('bi,bid->bd', alpha)              # (B, D)
        return expected, alpha.view(uniform.shape)

    def step(self, token, state, memory):
        """token (B,) or None -> logits (B, V), state, aux: space (B, F, L), gate (B,), which is 1
        if cfg.gate is false"""
        h, _ = state[-1]                                                # of the top LSTM
        # UNSPECIFIED: whether the baselines first and avgpool have the gate and the penalty; we
        # chose the gate for both, and the penalty only for first, on its attention at word 1.
        expected, alpha = self.look(token, h, memory)
        beta = h.new_ones(len(h), 1)
        if self.cfg.gate:
            beta = self.f_beta(h).sigmoid()                             # Eq. 3.5  (B, 1)
        x = beta * expected                                             # Eq. 3.3  (B, D)
        # UNSPECIFIED: the LSTM's word input at the first word; we chose a zero embedding.
        y = h.new_zeros(len(h), self.cfg.embed)                         # (B, E)
        if token is not None:
            y = self.embed(token)
        # UNSPECIFIED: which connections of the Captioner count as "non-recurrent" and so have
        # dropout; we chose the inputs of the LSTM and of W_h, W_x and W_p. The inputs of f_init,
        # f_beta and the location softmax have none.
        h, state = self.stack(torch.cat([y, x], 1), state)              # Eq. 3.1  (B, H)
        # y reaches the sum without a layer of its own, so only the dropout of the sum acts on it.
        deep = y + self.w_h(self.drop(h)) + self.w_x(self.drop(x))      # (B, E)
        logits = self.w_p(self.drop(deep))                              # Eq. 3.4  (B, V)
        return logits, state, {'space': alpha, 'gate': beta[:, 0]}

    def forward(self, batch, *, epoch=0, reward_fn=None):
        """batch -> loss (), logs.   Negative log-likelihood plus penalty"""
        words = batch['captions']
        memory, state = select(self.encode(batch), batch['rows'])       # videos -> captions
        logp, aux = teacher_force(self, memory, state, words)           # (B, T), 0 on padding
        nll = -logp.sum(1)                                              # (B,)
        gate = aux['gate'].sum() / (words != PAD).sum()
        penalty = torch.zeros_like(nll)
        if self.cfg.variant != 'avgpool':
            penalty = doubly_stochastic(aux['space'].flatten(2), memory['mask'].flatten(1),
                                        self.cfg.penalty_over)
        loss = (nll + self.cfg.penalty * penalty).mean()                # Eq. 3.6
        logs = {'nll': nll.mean().item(), 'penalty': penalty.mean().item(), 'gate': gate.item()}
        return loss, logs


def attention(aux):
    """aux of the T words of a caption -> (T, F, L), the weights l_t"""
    return aux['space']


VIEW = {
    'attention': attention,
    'bars': {'gate': ('gate',)},
    'parts': 4,                         # the clip is drawn in quarters
    'legend': 'Above each word: the most attended frame of each quarter of the clip. Each word has '
              'its own scale of brightness. The strip shows the weight of every frame. The gate is '
              'the factor that scales the attended feature before the LSTM reads it.',
}
