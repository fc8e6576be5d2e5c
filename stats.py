"""Should a word first choose a place and follow it through time, or first choose a moment?

Paper:      A. Cherian, J. Wang, C. Hori, T. K. Marks. "Spatio-Temporal Ranked-Attention Networks
            for Video Captioning." WACV 2020. arXiv:2001.06127, doi:10.1109/WACV45572.2020.9093291
Covers:     Sec. 3-4.1, tables 1, 2 and 4 (variant, pool, category), Eq. 1-3, 6-12.
Leaves out: the CNNs; the rank-SVM of equations (4)-(5), which (6)-(8) replace.
            Figure 5 is drawn by `python -m tools.show words RUN`.

    ST:  grid --mean over time--> spatial attention e, the same for all frames --> x_1..x_F
         x_1..x_F --mean, plus ranked LSTM--> x_ST
    TS:  frames --sharp temporal attention tau--> one grid --spatial attention e--> x_TS
    words so far --self-attention--> s;  the query of every visual attention is q = [h, s]
    xhat = tanh(weighted mean of x_ST and x_TS)
    [last word, xhat] --LSTM--> h;  [h, xhat] --> next word

The ranked LSTM reads x_1..x_F in order, and a ranking loss asks of its last output w that <w, x_t>
grows with t. So w tells how the frames change over time.

Paper -> code:  x_tj memory['x'] | x~_j x_tilde | xbar_t x_bar | tau, e aux | eta cfg.eta
                xhat_ST w in Eq. 6-8, x_st (with the mean) in Eq. 12 | xhat_TS x_ts
                h_{i-1} q = [h, s], with h = state['h'] before the step | beta of Eq. 7 cfg.margin
                beta_1, beta_2 beta_1, beta_2, and mix after the softmax of Eq. 12
Letters:        N videos, B captions, F frames, Y X grid, L = Y*X regions, D feature size,
                A attention, E word embedding, H hidden, Q = H + E query, T words, V vocabulary
                (the paper writes T, n, m, D, d for our F, L, T, V, D)

The feature of a frame has one of three shapes:
    grid (Y, X, D)      one spatial attention for all frames
    regions (L, D)      detected boxes, which have no fixed place: each frame has its own attention
    single vector (D,)  no spatial attention (L = 1); the input of the ranked LSTM does not depend
                        on the word, so it runs once per video, not once per word
"""
from dataclasses import dataclass
from math import exp

import torch
import torch.nn.functional as F
from torch import nn

from data import BadInput, choose
from decode import Shared, greedy, sample, select, teacher_force

VARIANTS = ('st', 'ts', 'stats')                                        # table 1
POOLS = ('mean', 'lstm', 'mean+lstm', 'temporal', 'mean+temporal',
         'ranked', 'mean+ranked')                                       # table 2


@dataclass
class Config:
    features: tuple = ('i3d',)      # kinds of features, Sec. 4.1; their frame rates may differ
    variant: str = 'stats'          # the attention, a row of table 1: st, ts, or both (stats)
    pool: str = 'mean+ranked'       # how ST pools over time: a row of table 2 (not used by ts)
    category: bool = False          # also learn to predict the video's category, table 4 (+C)
    visual: int = 512               # D, size of the visual embedding, Sec. 4.1
    embed: int = 256                # E, size of a word embedding, Sec. 4.1
    attn: int = 128                 # A, hidden units of every attention, Sec. 4.1
    # UNSPECIFIED: units of the language LSTM; we chose 512.
    hidden: int = 512               # H, units of the language LSTM
    # UNSPECIFIED: the scale of the features; we chose a root mean square of 1 for each vector.
    normalise: bool = True          # scale each feature vector to a root mean square of 1
    # UNSPECIFIED: rate and place of dropout; we chose 0.5 on the inputs of LSTM and output layer.
    dropout: float = 0.5            # dropout on the inputs of the LSTM and of the output layer
    # UNSPECIFIED: the "low" temperature of Eq. 9; we chose 0.2.
    temperature: float = 0.2        # temperature of the attention over frames in TS, Eq. 9
    # UNSPECIFIED: the margin beta of Eq. 7; we chose 0.1.
    margin: float = 0.1             # beta, margin of the ranking loss, Eq. 7
    # UNSPECIFIED: the weight of the ranking loss, Eq. 6; we chose 0.01.
    rank_weight: float = 0.01       # weight of the ranking loss, Eq. 6
    # Not in the paper: Eq. 12 scales the gradient of a branch, ST or TS, by its weight. So a branch
    # that learns slowly (ST: the order of frames) can lose its weight before it has learned.
    even_mix: int = 0               # ST and TS have equal weights in this many epochs at the start
    eta: float = 24.0               # scheduled sampling, Sec. 4.1: a lower eta samples more; 0: off
    reward_after: int = 10          # epochs of cross-entropy before the rewards, Sec. 3.4
    # UNSPECIFIED: which BLEU is part of the reward; we chose BLEU-4, smoothed for single captions.
    reward: str = 'meteor+bleu4'    # metrics whose sum is the reward, Sec. 3.4
    # UNSPECIFIED: how cross-entropy and rewards are combined (in [42], which Sec. 3.4 follows, the
    # first words of a caption have the cross-entropy, the others the reward); we chose the sum of
    # both losses, each over the whole caption, and a weight of 1 for REINFORCE.
    reward_weight: float = 1.0      # weight of the REINFORCE loss

    optimizer: str = 'rmsprop'      # adam, adamw or rmsprop, Sec. 4.1
    rate: float = 1e-4              # learning rate, Sec. 4.1
    schedule: str = 'constant'      # learning rate over time: constant or cosine
    # UNSPECIFIED: gradient clipping; we chose a largest norm of 5.
    clip: float = 5.0               # largest norm of the gradient
    epochs: int = 20                # passes over the training captions, Sec. 4.1
    videos_per_batch: int = 32      # videos in a batch, Sec. 4.1
    # UNSPECIFIED: whether the batch size of 32 counts videos or captions; we chose videos, with
    # one caption each by default and five in the presets for MSVD and MSR-VTT.
    captions_per_video: int = 1     # captions of each video in a batch
    # UNSPECIFIED: how often a word must occur to be kept (Sec. 4 counts 13,010 distinct words in
    # MSVD, but does not say how many the model knows); we chose 3 times for MSVD and MSR-VTT.
    min_count: int = 1              # words that occur less often become <unk>
    # UNSPECIFIED: the longest caption; we chose 30 words.
    max_len: int = 30               # longest caption, in words
    # UNSPECIFIED: the beam width; we chose 5.
    beam: int = 5                   # beam width

    def __post_init__(self):
        choose('--variant', self.variant, VARIANTS)
        choose('--pool', self.pool, POOLS)


PRESETS = {
    # On shapes, 12 epochs end before the rewards begin; --epochs 15 adds three epochs with rewards.
    'shapes': dict(features=('clip',), visual=64, embed=64, attn=64, hidden=256, normalise=False,
                   dropout=0.1, eta=0.0, optimizer='adamw', rate=2e-3, schedule='cosine',
                   epochs=12, even_mix=6, reward_after=12, captions_per_video=5, max_len=20,
                   beam=3),
    'puzzle': dict(features=('symbols',), visual=32, embed=32, attn=32, hidden=64, normalise=False,
                   dropout=0.0, eta=0.0, optimizer='adamw', rate=3e-3, schedule='cosine', epochs=20,
                   max_len=4, beam=1, reward='', patience=20),
    'msvd': dict(features=('i3d',), min_count=3, captions_per_video=5),
    'msrvtt': dict(features=('i3d',), min_count=3, captions_per_video=5),
    # Features with one vector per frame. The shorter training was chosen on validation videos and
    # on 200 training videos that were held back. No rewards, because they gained less than beam
    # search did (docs/RESULTS.md).
    'msvd/vgg16_fc': dict(optimizer='adam', rate=5e-4, schedule='cosine', epochs=4, eta=6.0,
                          videos_per_batch=20, reward='', beam=15, length_penalty=0.7),
}


def sampling_rate(epoch, eta):
    """The probability that the next input is the model's own word instead of the reference's:
    one minus the teacher-forcing ratio of Sec. 4.1."""
    if eta == 0:
        return 0.0
    # UNSPECIFIED: whether the epoch p of scheduled sampling is counted from 0 or 1; we chose 0.
    return 1 - eta / (eta + exp(min(epoch / eta, 700)))     # exp(710) is too large for a float


def rank_loss(w, x, margin, mask):
    """w (B, D), x (B, F, D), mask (B, F) -> (B,): small if <w, x_t> grows with t. Padding frames
    (at the end) add nothing."""
    score = (x @ w[:, :, None]).squeeze(2)                              # (B, F)
    zeta = score[:, :-1] + margin - score[:, 1:]                        # Eq. 7  (B, F - 1)
    loss = F.softplus(zeta).masked_fill(~mask[:, 1:], 0.0)
    return loss.sum(1)                                                  # Eq. 6  (B,)


def reinforce(logp, advantage):
    """logp (B, T) of sampled words, 0 after <eos>; advantage (B,) -> loss (B,). The expectation of
    its gradient is the gradient of minus the expected reward. A baseline that does not depend on
    the sample leaves this expectation unchanged."""
    return -advantage.detach() * logp.sum(1)


def masked_mean(x, mask):
    """x (B, F, ...), mask (B, F) -> (B, ...): the mean over real frames"""
    mask = mask.view(*mask.shape, *[1] * (x.dim() - 2)).to(x.dtype)
    return (x * mask).sum(1) / mask.sum(1)


class Attention(nn.Module):
    """The scores of additive attention, Eq. 2. The caller computes the keys w_x(x): most of them
    depend only on the video, so they are computed once per video, not once per word."""

    def __init__(self, query, size, attn):
        super().__init__()
        self.w_x = nn.Linear(size, attn)                                # W_x and b
        self.w_h = nn.Linear(query, attn, bias=False)                   # W_h
        self.w = nn.Linear(attn, 1, bias=False)                         # w

    def forward(self, q, keys):
        """q (B, Q), keys (B, ..., A) -> scores (B, ...)"""
        h = self.w_h(q).view(len(q), *[1] * (keys.dim() - 2), -1)
        return self.w(torch.tanh(h + keys)).squeeze(-1)                 # Eq. 2  (B, ...)


class SpaceThenTime(nn.Module):
    """ST, Sec. 3.1: spatial attention gives one vector per frame, pooling one vector per video."""

    def __init__(self, cfg, shape):
        super().__init__()
        self.cfg = cfg
        self.grid = len(shape) == 3
        self.single = len(shape) == 1
        if not self.single:
            self.space = Attention(cfg.hidden + cfg.embed, cfg.visual, cfg.attn)
        if cfg.pool != 'mean':          # Eq. 7 multiplies w and x, so they have the same size
            self.lstm = nn.LSTM(cfg.visual, cfg.visual, batch_first=True)

    def encode(self, x, mask):
        """x (N, F, L, D), mask (N, F) -> entries of memory"""
        if self.single:
            x_st, rank = self.pool(x.squeeze(2), mask)
            return {'x_st': x_st, 'rank': rank}
        if self.grid:
            x_tilde = masked_mean(x, mask)                              # x~, Sec. 3.1.1  (N, L, D)
            return {'st_keys': self.space.w_x(x_tilde)[:, None]}        # (N, 1, L, A)
        return {'st_keys': self.space.w_x(x)}                           # (N, F, L, A)

    def forward(self, q, memory):
        """q (B, Q), memory -> x_ST (B, D), aux"""
        if self.single:
            rank = memory['rank']
            return memory['x_st'], {'st_space': torch.ones_like(rank)[:, None, None], 'rank': rank}
        e = self.space(q, memory['st_keys']).softmax(2)                 # Eq. 3  (B, 1 or F, L)
        e_t = e.expand(-1, memory['mask'].shape[1], -1)                 # of every frame  (B, F, L)
        x = memory['x'].einsum('bfl,bfld->bfd', e_t)                    # xhat_t  (B, F, D)
        x_st, rank = self.pool(x, memory['mask'])
        return x_st, {'st_space': e, 'rank': rank}

    def pool(self, x, mask):
        """x (B, F, D), mask (B, F) -> x_ST (B, D), ranking loss (B,). Sec. 3.1.2 and table 2."""
        rank = x.new_zeros(len(x))
        if self.cfg.pool == 'mean':
            return masked_mean(x, mask), rank
        last = mask.sum(1) - 1                                          # the last real frame
        w = self.lstm(x)[0][torch.arange(len(x), device=x.device), last]    # Eq. 8  (B, D)
        if 'ranked' in self.cfg.pool:
            # The ranking loss trains the LSTM's output without the mean, as in Eq. 7 and 8.
            rank = rank_loss(w, x, self.cfg.margin, mask)
        if 'mean' in self.cfg.pool:
            # UNSPECIFIED: how the mean and the LSTM's output are combined; we chose their sum.
            return masked_mean(x, mask) + w, rank
        return w, rank


class TemporalAttention(nn.Module):
    """Replaces ST in two rows of table 2. A single attention weighs all F*L features (temporal), or
    the means of the F frames (mean+temporal)."""

    def __init__(self, cfg):
        super().__init__()
        self.mean = cfg.pool == 'mean+temporal'
        self.frames = Attention(cfg.hidden + cfg.embed, cfg.visual, cfg.attn)

    def encode(self, x, mask):
        """x (N, F, L, D), mask (N, F) -> entries of memory"""
        if not self.mean:
            return {'st_keys': self.frames.w_x(x)}                      # (N, F, L, A)
        x = x.mean(2, keepdim=True)                                     # (N, F, 1, D)
        return {'st_x': Shared(x), 'st_keys': self.frames.w_x(x)}

    def forward(self, q, memory):
        """q (B, Q), memory -> x_ST (B, D), aux"""
        x = memory['st_x'] if self.mean else memory['x']                # (B, F, L or 1, D)
        padding = ~memory['mask'][:, :, None]
        e = self.frames(q, memory['st_keys']).masked_fill(padding, float('-inf'))
        e = e.flatten(1).softmax(1).view_as(e)                          # Eq. 1  (B, F, L or 1)
        x_st = x.einsum('bfl,bfld->bd', e)                              # (B, D)
        return x_st, {'st_frames': e}


class TimeThenSpace(nn.Module):
    """TS, Sec. 3.2: temporal attention chooses one frame, then spatial attention a place in it."""

    def __init__(self, cfg, shape):
        super().__init__()
        self.temperature = cfg.temperature
        self.single = len(shape) == 1
        self.frames = Attention(cfg.hidden + cfg.embed, cfg.visual, cfg.attn)
        if not self.single:
            self.space = Attention(cfg.hidden + cfg.embed, cfg.visual, cfg.attn)

    def forward(self, q, memory):
        """q (B, Q), memory -> x_TS (B, D), aux: ts_frames (B, F), ts_space (B, L). If a frame is a
        single vector (self.single), L is 1 and there is nothing to choose"""
        score = self.frames(q, memory['ts_keys']).masked_fill(~memory['mask'], float('-inf'))
        # DEVIATION: paper prints an arg max in Eq. 9, here a softmax with a low temperature,
        # because an arg max has no gradient, and the paper's text says that it uses this softmax.
        tau = (score / self.temperature).softmax(1)                     # Eq. 9  (B, F)
        # If tau is not one-hot, this blends frames. With regions it then blends unrelated things,
        # because box j of one frame has nothing to do with box j of another.
        x = memory['x'].einsum('bf,bfld->bld', tau)                     # x_tau  (B, L, D)
        if self.single:
            e = torch.ones_like(tau[:, :1])
        else:
            # DEVIATION: paper prints Eq. 10 without a softmax, here with one, because the paper
            # asks for weights that sum to 1.
            e = self.space(q, self.space.w_x(x)).softmax(1)             # Eq. 10  (B, L)
        x_ts = (e[:, None] @ x).squeeze(1)                              # Eq. 11  (B, D)
        return x_ts, {'ts_frames': tau, 'ts_space': e}


class Visual(nn.Module):
    """One kind of features: its embedding, ST and TS, and the mixture of both, Sec. 3.1-3.3."""

    def __init__(self, cfg, shape):
        super().__init__()
        self.cfg = cfg
        self.st = None
        self.ts = None
        self.even = False               # equal weights of ST and TS; set by Captioner.forward
        # UNSPECIFIED: the form of the visual embedding; we chose a linear layer.
        self.embed = nn.Linear(shape[-1], cfg.visual)
        if cfg.variant != 'ts':
            temporal = 'temporal' in cfg.pool
            self.st = TemporalAttention(cfg) if temporal else SpaceThenTime(cfg, shape)
        if cfg.variant != 'st':
            self.ts = TimeThenSpace(cfg, shape)
        # UNSPECIFIED: whether the attentions of Eq. 1, 3, 9 and 10 share the weights of Eq. 2, and
        # whether beta_1 and beta_2 of Sec. 3.3 read s; we chose separate weights for each
        # attention, one more W_h that beta_1 and beta_2 share, and the query [h, s] for both.
        if cfg.variant == 'stats':
            self.w_st = nn.Linear(cfg.visual, cfg.attn, bias=False)     # W_ST
            self.w_ts = nn.Linear(cfg.visual, cfg.attn, bias=False)     # W_TS
            self.w_h = nn.Linear(cfg.hidden + cfg.embed, cfg.attn, bias=False)   # W_h, shared
            self.u_st = nn.Linear(cfg.attn, 1, bias=False)              # w_ST
            self.u_ts = nn.Linear(cfg.attn, 1, bias=False)              # w_TS
            if cfg.even_mix:            # not in the paper: beta_1 and beta_2 start from 0
                nn.init.zeros_(self.u_st.weight)
                nn.init.zeros_(self.u_ts.weight)

    def encode(self, x, mask):
        """x (N, F, Y, X, D), (N, F, L, D) or (N, F, D), mask (N, F) -> memory: everything that does
        not depend on the words; mean (N, D) over frames and regions"""
        x = x.reshape(*x.shape[:2], -1, x.shape[-1])                    # (N, F, L, D)
        if self.cfg.normalise:
            x = F.normalize(x, dim=-1) * x.shape[-1] ** 0.5
        x = self.embed(x)
        # UNSPECIFIED: average or maximum over the regions in xbar, Eq. 9; we chose the average.
        x_bar = x.mean(2)                                               # xbar, Sec. 3.2  (N, F, D)
        memory = {'x': Shared(x), 'mask': mask}
        if self.st is not None:
            memory.update(self.st.encode(x, mask))
        if self.ts is not None:
            memory['ts_keys'] = self.ts.frames.w_x(x_bar)               # (N, F, A)
        return memory, masked_mean(x_bar, mask)

    def forward(self, q, memory):
        """q (B, Q), memory -> xhat (B, D), aux: those of ST and TS and, if there are both, their
        weights mix (B, 2), which are equal in training while self.even is true"""
        if self.ts is None:
            x, aux = self.st(q, memory)
        elif self.st is None:
            x, aux = self.ts(q, memory)
        else:
            x_st, aux = self.st(q, memory)
            x_ts, aux_ts = self.ts(q, memory)
            h = self.w_h(q)
            beta_1 = self.u_st(torch.tanh(self.w_st(x_st) + h))         # Sec. 3.3  (B, 1)
            beta_2 = self.u_ts(torch.tanh(self.w_ts(x_ts) + h))         # Sec. 3.3  (B, 1)
            mix = torch.cat([beta_1, beta_2], 1).softmax(1)             # Eq. 12  (B, 2)
            if self.training and self.even:
                mix = torch.full_like(mix, 0.5)
            x = mix[:, :1] * x_st + mix[:, 1:] * x_ts                   # Eq. 12  (B, D)
            aux = {**aux, **aux_ts, 'mix': mix}
        # UNSPECIFIED: whether the tanh of Eq. 12 stays if ST or TS is alone; we chose to keep it.
        return torch.tanh(x), aux                                       # Eq. 12  (B, D)


class Captioner(nn.Module):
    """The language LSTM, Sec. 3, with one Visual for each kind of features."""

    def __init__(self, cfg, sizes):
        super().__init__()
        if cfg.category and not sizes.categories:
            raise BadInput('--category: this dataset has no categories; leave the flag out')
        self.cfg = cfg
        visual = cfg.visual * len(cfg.features)
        kinds = {name: Visual(cfg, sizes.feats[name]) for name in cfg.features}
        self.visual = nn.ModuleDict(kinds)
        self.embed = nn.Embedding(sizes.vocab, cfg.embed)
        self.words = Attention(cfg.embed, cfg.embed, cfg.attn)          # self-attention
        self.value = nn.Linear(cfg.embed, cfg.embed, bias=False)        # its values
        if cfg.category:
            self.category = nn.Linear(cfg.hidden, sizes.categories)
        self.init = nn.Linear(visual, 2 * cfg.hidden)
        self.lstm = nn.LSTMCell(cfg.embed + visual, cfg.hidden)
        self.drop = nn.Dropout(cfg.dropout)
        self.out = nn.Linear(cfg.hidden + visual, sizes.vocab)

    def encode(self, batch):
        """batch -> memory; state: h, c (N, H), and the keys (N, 0, A) and values (N, 0, E) of the
        words so far, of which there are none yet"""
        memory = {}
        means = []
        for name, visual in self.visual.items():
            memory[name], mean = visual.encode(batch['feats'][name], batch['mask'][name])
            means.append(mean)
        # UNSPECIFIED: the first state of the LSTM; we chose a tanh layer on the mean feature.
        h, c = torch.tanh(self.init(torch.cat(means, 1))).chunk(2, 1)
        keys = h.new_zeros(len(h), 0, self.cfg.attn)
        values = h.new_zeros(len(h), 0, self.cfg.embed)
        return memory, {'h': h, 'c': c, 'keys': keys, 'values': values}

    def read(self, token, state):
        """token (B,) or None -> word (B, E); s (B, E), the result of the self-attention; keys
        (B, t, A) and values (B, t, E), which now include those of the new word"""
        keys = state['keys']
        values = state['values']
        if token is None:
            # UNSPECIFIED: the input before the first word; we chose zeros for the word and for the
            # result of the self-attention.
            zeros = keys.new_zeros(len(keys), self.cfg.embed)
            return zeros, zeros, keys, values
        word = self.embed(token)                                        # (B, E)
        keys = torch.cat([keys, self.words.w_x(word)[:, None]], 1)
        values = torch.cat([values, self.value(word)[:, None]], 1)
        # UNSPECIFIED: query of the self-attention, and whether it sees positions; we chose the last
        # word as the query, and no positions, because h depends on the order of the words.
        alpha = self.words(word, keys).softmax(1)                       # (B, t)
        s = (alpha[:, None] @ values).squeeze(1)                        # (B, E)
        return word, s, keys, values

    def step(self, token, state, memory):
        """token (B,) or None -> logits (B, V), state, aux of the first kind of features:
        ST    st_space (B, 1, L) on a grid, (B, F, L) on regions; rank (B,), the ranking loss of
              this word, summed over all kinds. With temporal attention instead: st_frames
              (B, F, L), or (B, F, 1) over the means of the frames
        TS    ts_frames (B, F) and ts_space (B, L)
        both  mix (B, 2), the weights of ST and TS"""
        word, s, keys, values = self.read(token, state)
        # UNSPECIFIED: how the self-attention s, the LSTM's state h, the last word and xhat are
        # combined; we chose to concatenate: [h, s] is the query of the visual attentions, [word,
        # xhat] the input of the LSTM.
        # DEVIATION: paper's query for word i is a state h_{i-1} that has read all words before it
        # (Sec. 3: h_i = LSTM(h_{i-1}, y_i)), here h has not yet read the last of them, because the
        # LSTM reads this word together with xhat, which depends on h. But s has read it.
        q = torch.cat([state['h'], s], 1)                               # (B, Q)
        # UNSPECIFIED: how several kinds of features are combined; we chose separate attentions,
        # whose results are concatenated.
        looks = [visual(q, memory[name]) for name, visual in self.visual.items()]
        xhat = torch.cat([x for x, _ in looks], 1)                      # (B, kinds * D)
        aux = looks[0][1]
        if 'rank' in aux:
            aux['rank'] = sum(of_kind['rank'] for _, of_kind in looks)
        h, c = self.lstm(self.drop(torch.cat([word, xhat], 1)), (state['h'], state['c']))
        # UNSPECIFIED: the input of the output layer; we chose [h, xhat], because the attentions
        # then learn much faster than with h alone.
        logits = self.out(self.drop(torch.cat([h, xhat], 1)))           # (B, V)
        return logits, {'h': h, 'c': c, 'keys': keys, 'values': values}, aux

    def forward(self, batch, *, epoch=0, reward_fn=None):
        """batch -> loss (), logs. Sec. 3.4: cross-entropy and ranking loss, and after
        `reward_after` epochs also the rewards."""
        cfg = self.cfg
        videos = self.encode(batch)                                     # memory, state per video
        captions = select(videos, batch['rows'])                        # memory, state per caption
        for visual in self.visual.values():
            visual.even = epoch < cfg.even_mix
        # UNSPECIFIED: how scheduled sampling chooses the model's own word; we chose a draw from the
        # model's distribution.
        own_words = 0.0
        if self.training:
            own_words = sampling_rate(epoch, cfg.eta)
        logp, aux = teacher_force(self, *captions, batch['captions'], own_words)    # (B, T)
        nll = -logp.sum(1)                                              # (B,)
        loss = nll
        logs = {'nll': nll.mean().item()}
        if 'rank' in aux:
            # UNSPECIFIED: whether the ranking loss counts once per video or once per word; we chose
            # once per word, because each word has its own spatial attention, so its own x_1..x_F.
            # (If a frame is a single vector, the same loss counts once for each word.)
            rank = aux['rank'].sum(1)                                   # (B,)
            loss = loss + cfg.rank_weight * rank
            logs['rank'] = rank.mean().item()
        if cfg.category:
            # UNSPECIFIED: how training uses the category ("+C" in table 4); we chose a second task
            # with a weight of 1: a linear layer predicts the category from the first state of the
            # LSTM. So generating captions needs no category; table 4 says "during training".
            guess = self.category(videos[1]['h'])                       # (N, categories)
            wrong = F.cross_entropy(guess, batch['category'], reduction='none')[batch['rows']]
            loss = loss + wrong
            logs['category'] = wrong.mean().item()
        if reward_fn is not None and epoch >= cfg.reward_after:
            words, logp = sample(self, *captions, cfg.max_len)          # (B, T)
            ids = [batch['ids'][i] for i in batch['rows'].tolist()]
            reward = reward_fn(ids, words)                              # (B,)
            # UNSPECIFIED: the baseline of REINFORCE (Sec. 3.4 follows [42, 36], Sec. 2 names [44]);
            # we chose the self-critical one of [44]: the reward of the greedy caption.
            baseline = reward_fn(batch['ids'], self.best_guess(*videos))[batch['rows']]     # (B,)
            loss = loss + cfg.reward_weight * reinforce(logp, reward - baseline)
            logs['reward'] = reward.mean().item()
            logs['baseline'] = baseline.mean().item()
        return loss.mean(), logs

    def best_guess(self, memory, state):
        """-> greedy captions (N, T), one per video, without dropout"""
        training = self.training
        self.eval()
        words, _ = greedy(self, memory, state, self.cfg.max_len)
        self.train(training)
        return words


def attention(aux):
    """aux of the T words of one video, without padding frames -> (T, F, L): the weights of all
    regions of all frames, which sum to 1 for every word. F = 1 if all frames share one map. ST
    does not weigh its frames, so its share is spread evenly over them."""
    st = aux.get('st_frames')                                           # (T, F, L or 1)
    if 'st_space' in aux:
        st = aux['st_space'] / aux['st_space'].shape[1]                 # (T, 1 or F, L)
    if 'ts_frames' not in aux:
        return st
    ts = aux['ts_frames'][:, :, None] * aux['ts_space'][:, None]        # (T, F, L)
    if st is None:
        return ts
    # If st has one number for several frames or places, they share it equally.
    st = st.expand_as(ts) * st.shape[1:].numel() / ts.shape[1:].numel()
    mix = aux['mix'][:, :, None, None]                                  # (T, 2, 1, 1)
    return mix[:, 0] * st + mix[:, 1] * ts


VIEW = {
    'attention': attention,
    'bars': {'mix': ('ST', 'TS')},
}
