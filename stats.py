"""Where and when does each word look: first a place and its history, or first a moment and its objects?

Paper:      A. Cherian, J. Wang, C. Hori, T. K. Marks. "Spatio-Temporal Ranked-Attention Networks for Video Captioning."
            WACV 2020. arXiv:2001.06127, doi:10.1109/WACV45572.2020.9093291
Covers:     Sec. 3-4.1 and tables 1 and 2 (variant and pool), Eq. 1-3, 6-12.
Leaves out: the CNNs, and the rank-SVM (4)-(5), which (6)-(8) replace. Figure 5 is `evaluate.py --words`.

    ST:  grid --mean over time--> spatial attention e, one for all frames --> x_1..x_F --ranked LSTM, + mean--> x_ST
    TS:  frames --sharp temporal attention tau--> one grid --spatial attention e--> x_TS
    words so far --self-attention--> s;  the query of every visual attention is [h, s]
    [last word, xhat = tanh(mix of x_ST and x_TS), category] --LSTM--> h;  [h, xhat] --> next word

Paper -> code:  x_tj memory['x'] | x~_j keys 'st_space' | xbar_t 'frame' | xhat_t x | xhat_TS x_ts | tau, e aux
                xhat_ST w in Eq. 6-8, x_st in Eq. 12 (with the mean)
                h_{i-1} state['h'] before the step (s has read the last word, h has not) | zeta rank_loss |
                beta (margin) cfg.margin | beta_1, beta_2 mix | eta cfg.eta
Letters:        N videos, B captions, F frames, Y X grid, L = Y*X regions, D feature size, A attention, E words' embedding,
                H hidden, Q = H + E query, T words, V vocabulary (the paper's T, n, m, D, d are F, L, T, V, D here)

Features: a frame is a grid (Y, X, D): one spatial attention for all frames; or regions (L, D) without a fixed place: one for each
frame; or a single vector (D,): nothing to choose in space, so the ranked LSTM runs once per video and not once per word
(its loss counts per word all the same).
"""
from dataclasses import dataclass, field
from math import exp

import torch
import torch.nn.functional as F
from torch import nn

from data import BadInput
from decode import greedy, sample, select, teacher_force

VARIANTS = ('st', 'ts', 'stats')                                                              # table 1
POOLS = ('mean', 'lstm', 'mean+lstm', 'temporal', 'mean+temporal', 'ranked', 'mean+ranked')   # table 2


@dataclass
class Config:
    vocab: int = 0                     # V, words (from the data)
    feats: dict = field(default_factory=dict)  # kind -> shape of one frame's feature (from the data)
    frames: int = 0                    # most frames of any video (from the data)
    classes: int = 0                   # classes of the labels (from the data)
    categories: int = 0                # categories of the videos (from the data)
    captions: int = 0                  # training captions (from the data)

    features: tuple = ('i3d_rgb',)     # feature kinds, aligned in time, Sec. 4.1
    variant: str = 'stats'             # st, ts or stats, table 1
    pool: str = 'mean+ranked'          # how ST pools over time: table 2, with --variant st (not used by ts)
    category: bool = False             # read the category of the video, table 4 (+C)
    visual: int = 512                  # D, visual embedding, Sec. 4.1
    embed: int = 256                   # E, word embedding, Sec. 4.1
    attn: int = 128                    # A, space of every attention, Sec. 4.1
    hidden: int = 512                  # H. UNSPECIFIED: units of the language LSTM; we chose those of the visual embedding
    normalise: bool = True             # UNSPECIFIED: scale of the features; we chose every vector to a root mean square of 1
    dropout: float = 0.5               # UNSPECIFIED: dropout; we chose 0.5 on the LSTM's input and on what the word is read from
    temperature: float = 0.2           # UNSPECIFIED: "low" temperature of Eq. 9; we chose 0.2
    margin: float = 0.1                # beta of Eq. 7. UNSPECIFIED: its value; we chose 0.1
    rank_weight: float = 0.01          # UNSPECIFIED: weight of Eq. 6 against the cross-entropy; we chose 0.01
    eta: float = 24.0                  # scheduled sampling, Sec. 4.1; 0: always the given words
    reward_after: int = 10             # epochs of cross-entropy alone before the rewards, Sec. 3.4
    reward: str = 'meteor+bleu4'       # sum of metrics, Sec. 3.4. UNSPECIFIED: which BLEU; we chose BLEU-4, smoothed
    reward_weight: float = 1.0         # UNSPECIFIED: weight of the reward against the cross-entropy; we chose 1

    optimizer: str = 'rmsprop'         # adam, adamw or rmsprop, Sec. 4.1
    rate: float = 1e-4                 # learning rate, Sec. 4.1
    weight_decay: float = 0.0          # coupled (except with adamw)
    schedule: str = 'constant'         # constant or cosine
    clip: float = 5.0                  # norm of the gradient. UNSPECIFIED: whether clipped; we chose 5
    epochs: int = 20                   # Sec. 4.1
    videos_per_batch: int = 32         # Sec. 4.1
    captions_per_video: int = 1        # captions of each video. UNSPECIFIED: what "32" counts; we chose videos, x 5 in presets
    min_count: int = 1                 # rarer words become <unk>. UNSPECIFIED: how rare; we chose 3 in the presets
    max_len: int = 30                  # longest caption in words. UNSPECIFIED: its value; we chose 30
    beam: int = 5                      # UNSPECIFIED: beam size; we chose 5


PRESETS = {                            # shapes' 8 epochs end before the rewards would begin: --epochs 15 has five with them
    'shapes': dict(features=('clip',), visual=64, embed=64, attn=64, hidden=256, normalise=False, dropout=0.1, eta=0.0,
                   optimizer='adamw', rate=2e-3, schedule='cosine', epochs=8, captions_per_video=5, max_len=20, beam=3),
    'msvd': dict(features=('i3d_rgb',), min_count=3, captions_per_video=5),
    'msrvtt': dict(features=('i3d_rgb',), min_count=3, captions_per_video=5),
}


def sampling_rate(epoch, eta):
    """How often scheduled sampling reads a word of the model's own: one minus the teacher-forcing ratio of Sec. 4.1."""
    # UNSPECIFIED: whether the first epoch is 0 or 1; we chose 0.
    return 1 - eta / (eta + exp(epoch / eta)) if eta else 0.0


def rank_loss(w, frames, margin, mask=None):
    """w (B, D), frames (B, F, D), mask (B, F) -> (B,): small where <w, x_t> grows with t. Padding (at the end) adds nothing."""
    score = (frames @ w[:, :, None]).squeeze(2)                        # (B, F)
    zeta = score[:, :-1] + margin - score[:, 1:]                       # Eq. 7  (B, F - 1)
    loss = F.softplus(zeta)
    if mask is not None:
        loss = loss.masked_fill(~mask[:, 1:], 0.0)
    return loss.sum(1)                                                 # Eq. 6  (B,)


def reinforce(logp, advantage):
    """logp (B, T) of sampled words, 0 after <eos>; advantage (B,) -> loss (B,), whose gradient is, on average over
    samples, that of minus the expected reward. Any baseline that does not look at the sample leaves the expectation as it is."""
    return -advantage.detach() * logp.sum(1)


def masked_mean(x, mask):
    """x (B, F, ...), mask (B, F) -> (B, ...): the mean over real frames"""
    mask = mask.view(*mask.shape, *[1] * (x.dim() - 2)).to(x.dtype)
    return (x * mask).sum(1) / mask.sum(1)


class Attention(nn.Module):
    """The additive attention of Eq. 2. `w_x` makes the keys, apart: they mostly depend on the video alone, so once per video."""

    def __init__(self, query, size, attn):
        super().__init__()
        self.w_x = nn.Linear(size, attn)                               # W_x and b
        self.w_h = nn.Linear(query, attn, bias=False)                  # W_h
        self.w = nn.Linear(attn, 1, bias=False)                        # w

    def forward(self, q, keys):
        """q (B, Q), keys (B, ..., A) -> scores (B, ...)"""
        h = self.w_h(q).view(len(q), *[1] * (keys.dim() - 2), -1)
        return self.w(torch.tanh(h + keys)).squeeze(-1)                # Eq. 2  (B, ...)


class Visual(nn.Module):
    """One kind of features: its embedding, its ST and TS attention and their combination, Sec. 3.1-3.3."""

    def __init__(self, cfg, shape):
        super().__init__()
        self.cfg, query = cfg, cfg.hidden + cfg.embed
        self.single, self.grid = len(shape) == 1, len(shape) == 3
        # UNSPECIFIED: the embedding's form; we chose a linear one. A linear layer of an average is the average of the layer, so
        # the attentions average whatever is smaller, the embedded features or the given ones; in the second case the keys are
        # made of the given ones too, and W_x stands for W_x times the embedding.
        embed, first = nn.Linear(shape[-1], cfg.visual), self.single or shape[-1] > cfg.visual
        self.before, self.after, size = (embed, nn.Identity(), cfg.visual) if first else (nn.Identity(), embed, shape[-1])
        if cfg.variant != 'ts':
            if cfg.pool in ('temporal', 'mean+temporal'):
                self.st_frames = Attention(query, size, cfg.attn)
            elif not self.single:
                self.st_space = Attention(query, size, cfg.attn)
            if 'lstm' in cfg.pool or 'ranked' in cfg.pool:
                self.lstm = nn.LSTM(cfg.visual, cfg.visual, batch_first=True)    # as many units as x has: Eq. 7 multiplies them
        if cfg.variant != 'st':
            self.ts_frames = Attention(query, size, cfg.attn)
            if not self.single:
                self.ts_space = Attention(query, size, cfg.attn)
        if cfg.variant == 'stats':
            self.w_st = nn.Linear(cfg.visual, cfg.attn, bias=False)    # W_ST
            self.w_ts = nn.Linear(cfg.visual, cfg.attn, bias=False)    # W_TS
            self.w_h = nn.Linear(query, cfg.attn, bias=False)          # W_h, shared by the two
            self.u_st = nn.Linear(cfg.attn, 1, bias=False)             # w_ST
            self.u_ts = nn.Linear(cfg.attn, 1, bias=False)             # w_TS

    def encode(self, x, mask):
        """x (N, F, Y, X, D), (N, F, L, D) or (N, F, D), mask (N, F) -> memory, all that does not depend on the words;
        mean (N, D) over frames and regions"""
        cfg, x = self.cfg, x.flatten(2, 3) if self.grid else x         # (N, F, L, D) or (N, F, D)
        if cfg.normalise:
            x = F.normalize(x, dim=-1) * x.shape[-1] ** 0.5
        x = self.before(x)
        # UNSPECIFIED: average or maximum over a frame's regions for xbar; we chose the average.
        frame = x if self.single else x.mean(2)                        # xbar_t  (N, F, D)
        memory = {'x': x, 'mask': mask}
        if cfg.variant != 'ts':
            if cfg.pool == 'temporal':
                memory['st_frames'] = self.st_frames.w_x(x)            # (N, F, L, A) or (N, F, A)
            elif cfg.pool == 'mean+temporal':
                memory['frame'], memory['st_frames'] = frame, self.st_frames.w_x(frame)    # (N, F, A)
            elif self.single:
                memory['x_st'], memory['rank'] = self.pool(x, mask)
            else:                                                      # on a grid from the mean over time, x~  (N, 1, L, D)
                memory['st_space'] = self.st_space.w_x(masked_mean(x, mask)[:, None] if self.grid else x)
        if cfg.variant != 'st':
            memory['ts_frames'] = self.ts_frames.w_x(frame)            # (N, F, A)
        return memory, self.after(masked_mean(frame, mask))

    def pool(self, x, mask):
        """x (B, F, D), mask (B, F) -> x_ST (B, D), the ranking loss (B,): the rows of table 2 that pool attended frames"""
        parts, x_st, rank = self.cfg.pool.split('+'), 0, x.new_zeros(len(x))
        if 'mean' in parts:                                            # UNSPECIFIED: how mean and LSTM combine; we chose the sum
            x_st = masked_mean(x, mask)
        if 'mean' != parts[-1]:
            w = self.lstm(x)[0][torch.arange(len(x), device=x.device), mask.sum(1) - 1]   # Eq. 8  (B, D), at the last real frame
            # UNSPECIFIED: ranking loss of mean + ranked; we chose that of the LSTM's output alone, the w of the rank-SVM.
            rank = rank_loss(w, x, self.cfg.margin, mask) if 'ranked' in parts else rank
            x_st = x_st + w
        return x_st, rank

    def st(self, q, memory):
        """Space, then time: q (B, Q) -> x_ST (B, D), aux"""
        x, mask = memory['x'], memory['mask']
        if 'temporal' in self.cfg.pool:                                # over all F*L features, or over the frames' means
            x = memory.get('frame', x)
            e = self.st_frames(q, memory['st_frames'])                 # (B, F) or (B, F, L)
            e = e.masked_fill(~mask.view(*mask.shape, *[1] * (e.dim() - 2)), float('-inf'))
            e = e.flatten(1).softmax(1).view_as(e)                     # Eq. 1  (B, F) or (B, F, L)
            return self.after((e.flatten(1)[:, None] @ x.flatten(1, -2)).squeeze(1)), {'st_frames': e}
        if self.single:
            return memory['x_st'], {'rank': memory['rank']}
        e = self.st_space(q, memory['st_space']).softmax(2)            # Eq. 3  (B, 1, L) on a grid, (B, F, L) on regions
        x = self.after((e[:, :, None] @ x).squeeze(2))                 # (B, F, D), every frame with its attention
        x_st, rank = self.pool(x, mask)
        return x_st, {'st_space': e.squeeze(1) if self.grid else e, 'rank': rank}

    def ts(self, q, memory):
        """Time, then space: q (B, Q) -> x_TS (B, D), aux"""
        x, mask = memory['x'], memory['mask']
        # DEVIATION: paper prints an arg max, here a sharp softmax, because that is what the paper says it computes.
        tau = self.ts_frames(q, memory['ts_frames']).masked_fill(~mask, float('-inf'))
        tau = (tau / self.cfg.temperature).softmax(1)                  # Eq. 9  (B, F)
        # (B, L, D) or (B, D), the chosen frame. Of regions, box j of several frames is mixed as far as tau does not pick one.
        x = (tau[:, None] @ x.flatten(2)).view(len(x), *x.shape[2:])
        if self.single:
            return x, {'ts_frames': tau}
        # DEVIATION: paper prints no softmax, here one, because the weights are to sum to one.
        e = self.ts_space(q, self.ts_space.w_x(x)).softmax(1)          # Eq. 10  (B, L)
        return self.after((e[:, None] @ x).squeeze(1)), {'ts_frames': tau, 'ts_space': e}    # Eq. 11  (B, D)

    def forward(self, q, memory):
        """q (B, Q), memory -> xhat (B, D), aux"""
        # UNSPECIFIED: the tanh of Eq. 12 when a branch is alone; we chose to keep it.
        if self.cfg.variant != 'stats':
            x, aux = (self.st if self.cfg.variant == 'st' else self.ts)(q, memory)
            return torch.tanh(x), aux
        (x_st, st), (x_ts, ts) = self.st(q, memory), self.ts(q, memory)
        h = self.w_h(q)
        mix = torch.cat([self.u_st(torch.tanh(self.w_st(x_st) + h)),   # beta_1
                         self.u_ts(torch.tanh(self.w_ts(x_ts) + h))], 1).softmax(1)      # beta_2 -> (B, 2)
        return torch.tanh(mix[:, :1] * x_st + mix[:, 1:] * x_ts), {**st, **ts, 'mix': mix}    # Eq. 12  (B, D)


class Captioner(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        if cfg.variant not in VARIANTS or cfg.pool not in POOLS:
            raise BadInput(f'variant {cfg.variant!r} is none of {VARIANTS}, or pool {cfg.pool!r} none of {POOLS}')
        if cfg.category and not cfg.categories:
            raise BadInput('category is set, but the dataset gives no categories')
        self.cfg, visual = cfg, cfg.visual * len(cfg.features)
        self.visual = nn.ModuleDict({name: Visual(cfg, cfg.feats[name]) for name in cfg.features})
        self.embed = nn.Embedding(cfg.vocab, cfg.embed)
        self.words = Attention(cfg.embed, cfg.embed, cfg.attn)         # self-attention: query and keys ...
        self.value = nn.Linear(cfg.embed, cfg.embed, bias=False)       # ... and values
        if cfg.category:
            self.category = nn.Embedding(cfg.categories, cfg.embed)
        self.init = nn.Linear(visual, 2 * cfg.hidden)
        self.lstm = nn.LSTMCell(cfg.embed + visual + cfg.embed * cfg.category, cfg.hidden)
        self.drop = nn.Dropout(cfg.dropout)
        self.out = nn.Linear(cfg.hidden + visual, cfg.vocab)

    def encode(self, batch):
        """batch -> memory, state: h, c (N, H); keys (N, 0, A) and values (N, 0, E) of the words said so far"""
        names = self.cfg.features
        count = torch.stack([batch['mask'][name].sum(1) for name in names], 1)           # (N, kinds)
        if (count != count[:, :1]).any():
            i = (count != count[:, :1]).any(1).nonzero()[0, 0].item()
            found = ', '.join(f'{name} {n}' for name, n in zip(names, count[i].tolist()))
            raise BadInput(f'features must be aligned in time, but the frames of video {batch["ids"][i]} are: {found}')
        memory, means = {}, []
        for name, visual in self.visual.items():
            memory[name], mean = visual.encode(batch['feats'][name], batch['mask'][name])
            means.append(mean)
        if self.cfg.category:
            if 'category' not in batch:
                raise BadInput('this model reads the category of a video, and none is given')
            # UNSPECIFIED: how "+C" enters; we chose an embedding beside the word, so testing needs the category too.
            memory['category'] = self.category(batch['category'])
        # UNSPECIFIED: the first state; we chose a layer over the mean feature.
        h, c = torch.tanh(self.init(torch.cat(means, 1))).chunk(2, 1)
        return memory, {'h': h, 'c': c, 'keys': h.new_zeros(len(h), 0, self.cfg.attn),
                        'values': h.new_zeros(len(h), 0, self.cfg.embed)}

    def step(self, token, state, memory):
        """token (B,) or None -> logits (B, V), state, aux of the first feature kind, as far as the variant has them:
        st_space (B, L) on a grid or (B, F, L) on regions; st_frames (B, F) or (B, F, L), pools `temporal`; ts_frames (B, F);
        ts_space (B, L); mix (B, 2), ST and TS; rank (B,), the word's ranking loss, summed over the kinds"""
        h, keys, values = state['h'], state['keys'], state['values']
        # UNSPECIFIED: what comes before the first word; we chose zeros for the word and for what self-attention finds.
        word = s = h.new_zeros(len(h), self.cfg.embed)
        if token is not None:                                          # only the new word's key and value are computed
            word = self.embed(token)                                   # (B, E)
            keys = torch.cat([keys, self.words.w_x(word)[:, None]], 1)                   # (B, t, A)
            values = torch.cat([values, self.value(word)[:, None]], 1)                   # (B, t, E)
            # UNSPECIFIED: query and order of the self-attention; we chose the last word, and no positions: h knows the order.
            s = (self.words(word, keys).softmax(1)[:, None] @ values).squeeze(1)         # (B, E)
        # UNSPECIFIED: how words and state combine, and how xhat enters LSTM(h, y); we chose side by side. So the h of the query
        # has not read the last word yet: that one is in s.
        q = torch.cat([h, s], 1)                                       # the query of every visual attention  (B, Q)
        # UNSPECIFIED: how kinds combine; we chose an attention for each, concatenated.
        xs, auxes = zip(*(visual(q, memory[name]) for name, visual in self.visual.items()))
        inputs = [word, *xs] + ([memory['category']] if self.cfg.category else [])
        h, c = self.lstm(self.drop(torch.cat(inputs, 1)), (h, state['c']))               # (B, H)
        aux = dict(auxes[0])
        if 'rank' in aux:
            aux['rank'] = sum(a['rank'] for a in auxes)
        # UNSPECIFIED: what the word is read from; we chose h and xhat: the attentions learn much sooner than from h alone.
        logits = self.out(self.drop(torch.cat([h, *xs], 1)))           # (B, V)
        return logits, {'h': h, 'c': c, 'keys': keys, 'values': values}, aux

    def forward(self, batch, *, epoch=0, reward_fn=None):
        """batch -> loss (), logs. Sec. 3.4: cross-entropy and ranking loss; after `reward_after` epochs also REINFORCE."""
        cfg, rows = self.cfg, batch['rows']
        encoded = self.encode(batch)
        memory, state = select(encoded, rows)                          # videos -> captions
        own_words = sampling_rate(epoch, cfg.eta) if self.training else 0.0
        logp, aux = teacher_force(self, memory, state, batch['captions'], own_words)     # (B, T)
        loss = nll = -logp.sum(1)                                      # (B,)
        logs = {'nll': nll.mean().item()}
        if 'rank' in aux:
            rank = aux['rank'].sum(1)                                  # every word attends anew, so has its own ranking loss
            loss, logs['rank'] = loss + cfg.rank_weight * rank, rank.mean().item()
        if reward_fn is not None and epoch >= cfg.reward_after:
            words, logp = sample(self, memory, state, cfg.max_len)     # one per caption, with this pass's dropout
            reward = reward_fn([batch['ids'][i] for i in rows.tolist()], words)          # (B,)
            # UNSPECIFIED: the baseline; we chose the self-critical one of [44], which Sec. 2 names.
            baseline = reward_fn(batch['ids'], self.best_guess(*encoded))[rows]          # (B,)
            loss = loss + cfg.reward_weight * reinforce(logp, reward - baseline)
            logs |= {'reward': reward.mean().item(), 'baseline': baseline.mean().item()}
        return loss.mean(), logs

    def best_guess(self, memory, state):
        """-> greedy captions (N, T), one per video, without dropout: the baseline that a sample has to beat"""
        training = self.training
        self.eval()
        words, _ = greedy(self, memory, state, self.cfg.max_len)
        self.train(training)
        return words
