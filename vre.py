"""Which frame should a video be read from?  A captioner that watches twice: the second time outwards from a key frame.

Paper:      X. Shi, J. Cai, S. Joty, J. Gu. "Watch It Twice: Video Captioning with a Refocused Video Encoder." ACM
            Multimedia, 2019. arXiv:1907.12905 ("VRE")
Covers:     Sec. 3.1-3.4, algorithms 1 and 2, Eq. 2-18, 20-22; the stages of Sec. 4.2; the variants of table 1.
Leaves out: Eq. 1 (the CNN) and 19 (which 21 replaces).

    grid --mean over regions--> V^f --KBiGRU from the middle frame--> h1 --[, v^a]--> o1 --refocus on V^f--> key frame
      |                          '----KBiGRU from the key frame-----> h2 --[h1, h2]--> o~2 --[, v^a]--> o2
      '--mean over frames--> v^s
    for o = o1, and again for o = o2:  [o, h_t-1] attends to V^f and v^s --LSTM, c_0 = o, first input o--> h_t --> word

The key frame is an arg max, so the cross-entropy has no gradient on which frame it is. The refocusing loss has: R is
what the second step gains over the first on a caption; where it grew since the epoch before, the key frame becomes more
probable, where it shrank, less. There are four stages of training, each from the best model of the one before:

    warm    step 1 alone                                                         Eq. 17
    joint   both steps and the refocusing module                                 Eq. 22
    frozen  a fresh captioner on constant key frames: those of the joint model,  Eq. 17 + Eq. 18
            whose encoder and refocusing module it carries, unchanging
    reward  the same captioner, fine-tuned on CIDEr + ROUGE-L                    self-critical REINFORCE

Paper -> code:  V^f frames | v^s space | v^a audio | i_key key, aux['key'] (one-hot, of the step that speaks) |
                alpha of Eq. 9 aux['focus'] | alpha^T aux['frames'] | alpha^S aux['space'] | o_1, o_2 o | R_e reward |
                R_e-1 previous | h_t, c_t state | W^emb embed
Letters:        N videos, B captions, F frames (the paper's K), L regions (the paper's N x M), C channels, H hidden,
                A attention, E embedding (= H), T words, V vocabulary, G size of the audio feature (0 without)
"""
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn as nn

from data import BadInput
from decode import greedy, sample, select, teacher_force

# UNSPECIFIED: whether frozen has fresh weights, its loss, when the rewards come, and whether a stage goes on from the last or the
# best model of the one before; we chose fresh ones, Eq. 17 + 18, last, and the best.
STAGES = ('warm', 'joint', 'frozen', 'reward')               # Sec. 4.2
# UNSPECIFIED: how table 1's one-step rows are trained; we chose the same stages, on Eq. 17 and rewards, one model throughout.
VARIANTS = ('vf+vs', 'kbigru', 'kbigru+vs+va', 'vre')        # table 1; only the last has a second step


@dataclass
class Config:
    vocab: int = 0                       # V, from the data, as the next five
    feats: dict = field(default_factory=dict)   # name -> shape of one frame's feature: (C,), (L, C) or (Y, X, C)
    frames: int = 0                      # not read here (K = 20 in Sec. 4.2: as many as the features have)
    classes: int = 0                     # not read here
    categories: int = 0                  # not read here
    captions: int = 0                    # training captions: each has its own reward of the epoch before
    features: tuple = ('resnet152',)     # what is seen (7 x 7 x 2048) and, if there is a second, heard (128), Sec. 4.2
    variant: str = 'vre'                 # vf+vs, kbigru, kbigru+vs+va or vre: rows of table 1
    stage: str = 'all'                   # warm, joint, frozen or reward; all: one after another
    step: int = 2                        # whose captions are the output: 1 (default key frame) or 2 (refocused)
    hidden: int = 512                    # H and E, Sec. 4.2
    attn: int = 512                      # A. UNSPECIFIED: size of the attentions; we chose H
    normalise: bool = True               # every region's feature to mean 0 and deviation 1/4: see watch()
    dropout: float = 0.5                 # at the end of the LSTM, Sec. 4.2
    sampling: float = 0.25               # scheduled sampling rate, Sec. 4.2
    beta: float = 0.03                   # weight of the refocusing loss in Eq. 22
    warm_epochs: int = 5                 # Sec. 4.2
    # UNSPECIFIED: epochs of the other stages, rate of the last, optimizer, clipping, batch and beam; we chose these.
    joint_epochs: int = 15               # epochs of stage joint
    frozen_epochs: int = 15              # epochs of stage frozen
    reward_epochs: int = 5               # epochs of stage reward
    reward_rate: float = 3e-5            # learning rate of stage reward: a tenth
    reward: str = 'cider+rouge'          # reward of the last stage, Sec. 4.2
    optimizer: str = 'adam'              # adam, adamw or rmsprop
    rate: float = 3e-4                   # learning rate, Sec. 4.2
    weight_decay: float = 0.0            # weight decay
    schedule: str = 'constant'           # constant or cosine
    clip: float = 5.0                    # gradient norm
    videos_per_batch: int = 16           # videos in a batch
    captions_per_video: int = 10         # captions of each video in a batch
    min_count: int = 3                   # words seen less often become <unk>, Sec. 4.2
    max_len: int = 15                    # words of a caption, Sec. 4.2
    beam: int = 5                        # beam width


PRESETS = {
    'msvd': dict(features=('resnet152',)),                      # its clips have no sound, Sec. 4.2
    'msrvtt': dict(features=('resnet152', 'vggish')),
    'shapes': dict(features=('clip', 'audio'), hidden=128, attn=64, normalise=False, dropout=0.2, rate=2e-3, schedule='cosine',
                   videos_per_batch=32, captions_per_video=5, min_count=1,
                   warm_epochs=5, joint_epochs=16, frozen_epochs=26, reward_epochs=1, reward_rate=2e-4),
}


def refocus_loss(reward, previous, alpha_key):
    """reward, previous (B,) of this epoch and the one before (NaN: none yet), alpha_key (B,) -> loss (B,), finite.

    The gradient reaches alpha_key alone. Give it a softmax in float64: where the logits lie 17 apart or more, 1 - alpha
    is 0 in float32; in float64 from 37 on. There, the gradient makes do with the type's smallest step in its place."""
    # UNSPECIFIED: the loss of a caption that is seen for the first time; we chose none.
    rise = torch.where(previous.isnan(), 0.0, reward - previous).detach()
    rest = 1 - alpha_key
    rest = rest + (rest.clamp(min=torch.finfo(rest.dtype).eps) - rest).detach()     # clamps the value, not the gradient
    # DEVIATION: paper has -(R_e - R_e-1) before both terms of Eq. 21, here -|R_e - R_e-1|, because where the reward
    # fell the printed sign gives +|R_e - R_e-1| log(1 - alpha), least at alpha = 1; the text wants alpha to decrease.
    return -rise.abs() * torch.where(rise > 0, alpha_key.log(), rest.log())         # Eq. 21  (B,)


class Scaled(nn.Linear):
    """A linear layer, of x / sqrt(inputs) with weights that start sqrt(inputs) times larger: at first the very same function."""
    # DEVIATION: paper has plain layers, here these wherever features are read for o or the key, and in w_c, w_a, w_m, because
    # Adam moves every weight by its rate, so a sum over many inputs by many rates at once: every o was the same vector of
    # +-1 after 50 steps.

    def __init__(self, inputs, outputs, bias=True):
        super().__init__(inputs, outputs, bias)
        self.scale = inputs ** -0.5
        self.weight.data /= self.scale

    def forward(self, x):
        return super().forward(self.scale * x)


class GRU(nn.Module):
    """torch's nn.GRUCell, but what a frame gives to the gates (w_v) is computed once, however often the video is read."""

    def __init__(self, feat, hidden):
        super().__init__()
        self.w_v = Scaled(feat, 3 * hidden)
        self.w_h = nn.Linear(hidden, 3 * hidden)

    def forward(self, inputs, h):
        """inputs (N, 3H), w_v of a frame, h (N, H) -> the next h (N, H)"""
        v_r, v_z, v_n = inputs.chunk(3, 1)
        h_r, h_z, h_n = self.w_h(h).chunk(3, 1)
        n = torch.tanh(v_n + torch.sigmoid(v_r + h_r) * h_n)
        return torch.lerp(n, h, torch.sigmoid(v_z + h_z))                   # z h + (1 - z) n


class KBiGRU(nn.Module):
    """Two GRUs, outwards from the key frame."""

    def __init__(self, feat, hidden):
        super().__init__()
        self.left, self.right = GRU(feat, hidden), GRU(feat, hidden)
        self.w_c = Scaled(2 * hidden, hidden)

    def forward(self, frames, key, mask=None):
        """frames (N, F, C), key (N,), mask (N, F), true on the real frames, which come first -> h (N, H)"""
        length = torch.full_like(key, frames.shape[1]) if mask is None else mask.sum(1)
        return self.read(self.inputs(frames), key, length)

    def inputs(self, frames):
        """frames (N, F, C) -> all that does not depend on the key: two of (N, F, 3H)"""
        return self.left.w_v(frames), self.right.w_v(frames)

    def read(self, inputs, key, length):
        """inputs of inputs(), key, length (N,) -> h (N, H)"""
        left = self.outwards(self.left, inputs[0], key, -1, key + 1)        # Eq. 5  (N, H)
        right = self.outwards(self.right, inputs[1], key, 1, length - key)  # Eq. 6  (N, H)
        return torch.tanh(self.w_c(torch.cat([left, right], 1)))            # Eq. 7  (N, H)

    def outwards(self, gru, inputs, key, direction, count):
        """State (N, H) of a GRU after count (N,) frames: key (N,), key + direction, ..."""
        rows, h = torch.arange(len(key), device=key.device), inputs.new_zeros(len(key), inputs.shape[2] // 3)
        for t in range(int(count.max())):
            frame = (key + direction * t).clamp(0, inputs.shape[1] - 1)
            h = torch.where((t < count)[:, None], gru(inputs[rows, frame], h), h)       # a video that has ended stays as it is
        return h


class Refocus(nn.Module):
    """How much each frame is the key frame."""

    def __init__(self, feat, hidden, attn):
        super().__init__()
        self.w_o = nn.Linear(hidden, attn, bias=False)
        self.w_v = Scaled(feat, attn, bias=False)
        # DEVIATION: paper has a bias b_alpha here and b_beta in Attention, here none, because a softmax cancels them.
        self.w_alpha = nn.Linear(attn, 1, bias=False)

    def forward(self, o, frames, mask):
        """o (N, H), frames (N, F, C), mask (N, F) -> alpha (N, F), float64 for refocus_loss"""
        a = self.w_alpha(torch.tanh(self.w_o(o)[:, None] * self.w_v(frames))).squeeze(-1)       # Eq. 8  (N, F)
        return a.double().masked_fill(~mask, float('-inf')).softmax(1)                          # Eq. 9  (N, F)


class Encoder(nn.Module):
    """Algorithm 1. With steps = 1 it ends at o1; without refocus it must be told alpha."""

    def __init__(self, feat, audio, hidden, attn, steps, refocus):
        super().__init__()
        self.kbigru = KBiGRU(feat, hidden)
        self.w_a = Scaled(hidden + audio, hidden)                        # shared by both steps
        self.w_m = Scaled(2 * hidden, hidden) if steps == 2 else None
        self.refocus = Refocus(feat, hidden, attn) if refocus else None

    def watch(self, inputs, audio, mask):
        """inputs of the KBiGRU -> the middle frame (N,), h1 and o1 (N, H)"""
        # UNSPECIFIED: o of table 1's rows without audio; we chose w_a all the same, of h1 alone.
        middle = mask.sum(1) // 2
        h1 = self.kbigru.read(inputs, middle, mask.sum(1))                  # Eq. 4  (N, H)
        return middle, h1, torch.tanh(self.w_a(torch.cat([h1, audio], 1)))

    def focus(self, frames, audio, mask):
        """-> alpha (N, F) alone"""
        return self.refocus(self.watch(self.kbigru.inputs(frames), audio, mask)[2], frames, mask)

    def forward(self, frames, audio, mask, alpha=None, steps=2):
        """frames (N, F, C), audio (N, G), mask (N, F), alpha (N, F) if it is known
        -> o [(N, H) per step], keys [(N,) per step], alpha (N, F) or None"""
        inputs = self.kbigru.inputs(frames)                                 # for both steps
        middle, h1, o1 = self.watch(inputs, audio, mask)
        if steps == 1:
            return [o1], [middle], None
        alpha = self.refocus(o1, frames, mask) if alpha is None else alpha  # (N, F)
        key = alpha.argmax(1)                                               # Eq. 10, 11  (N,)
        h2 = self.kbigru.read(inputs, key, mask.sum(1))                     # Eq. 4  (N, H)
        o2 = torch.tanh(self.w_m(torch.cat([h1, h2], 1)))                   # o~2
        o2 = torch.tanh(self.w_a(torch.cat([o2, audio], 1)))
        return [o1, o2], [middle, key], alpha


class Attention(nn.Module):
    """Soft attention over frames or regions, and w_x: the columns of the LSTM's input matrix that read the sum.

    W sum_i(alpha_i v_i) = sum_i(alpha_i W v_i): where W makes v no wider it is applied once per video, not per word."""

    def __init__(self, feat, query, attn, out):
        super().__init__()
        self.w_h = nn.Linear(query, attn, bias=False)
        self.w_v = nn.Linear(feat, attn, bias=False)
        self.w_beta = nn.Linear(attn, 1, bias=False)
        self.w_x = nn.Linear(feat, out, bias=False)
        self.once = out <= feat

    def prepare(self, v, mask):
        """v (N, L, C), mask (N, L) -> all that does not depend on the word"""
        return {'v': self.w_x(v) if self.once else v, 'scores': self.w_v(v), 'mask': mask}

    def forward(self, query, memory):
        """query (B, 2H), memory of prepare -> w_x of the attended v (B, 4H), alpha (B, L)"""
        a = self.w_beta(torch.tanh(self.w_h(query)[:, None] * memory['scores'])).squeeze(-1)    # Eq. 14  (B, L)
        alpha = a.masked_fill(~memory['mask'], float('-inf')).softmax(1)                        # Eq. 15  (B, L)
        v = torch.einsum('bl,blc->bc', alpha, memory['v'])                                      # Eq. 16  (B, C or 4H)
        return v if self.once else self.w_x(v), alpha


class Captioner(nn.Module):
    """Algorithm 2."""

    def __init__(self, cfg):
        super().__init__()
        if cfg.variant not in VARIANTS or cfg.stage not in ('all', *STAGES) or cfg.step not in (1, 2):
            raise BadInput(f'variant {cfg.variant!r}, stage {cfg.stage!r} or step {cfg.step}: not one that vre.py has')
        self.cfg, H = cfg, cfg.hidden
        self.steps = 2 if cfg.variant == 'vre' else 1
        self.seen, *heard = cfg.features
        self.heard = heard[0] if heard and cfg.variant in ('kbigru+vs+va', 'vre') else None
        feat, audio = cfg.feats[self.seen][-1], cfg.feats[self.heard][-1] if self.heard else 0
        constant_key = self.steps == 2 and cfg.stage in ('frozen', 'reward')
        sizes = feat, audio, H, cfg.attn, self.steps
        self.encoder = None if cfg.variant == 'vf+vs' else Encoder(*sizes, refocus=self.steps == 2 and not constant_key)
        self.frozen = Encoder(*sizes, refocus=True).requires_grad_(False).eval() if constant_key else None
        query = H if cfg.variant == 'vf+vs' else 2 * H                      # h, or [o, h]
        self.attend_frames = Attention(feat, query, cfg.attn, 4 * H)
        self.attend_space = None if cfg.variant == 'kbigru' else Attention(feat, query, cfg.attn, 4 * H)
        self.embed = nn.Embedding(cfg.vocab, H)
        self.lstm = nn.Linear(audio + H + H, 4 * H)                         # the other columns: [v^a, word, h_t-1]
        self.drop = nn.Dropout(cfg.dropout)
        self.out = nn.Linear(H, cfg.vocab)
        self.register_buffer('previous_reward', torch.full((cfg.captions,), float('nan')))
        written = torch.zeros(cfg.captions, dtype=torch.bool)               # in this epoch, by this process
        self.register_buffer('written', written, persistent=False)
        if cfg.stage == 'warm' and self.steps == 2:                         # the second step waits for stage joint
            self.encoder.w_m.requires_grad_(False)
            self.encoder.refocus.requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        if self.frozen is not None:
            self.frozen.eval()
        return self

    def start(self, previous):
        """previous: state_dict of the best model of the stage before."""
        if self.cfg.stage == 'frozen' and self.steps == 2:                  # all but the frozen part begins anew
            self.frozen.load_state_dict({name.removeprefix('encoder.'): value for name, value in previous.items()
                                         if name.startswith('encoder.')})
        else:
            self.load_state_dict(previous)

    def end_epoch(self):
        """Under torchrun: every process gets the rewards that the others have written in this epoch."""
        if dist.is_available() and dist.is_initialized():
            count = self.written.to(self.previous_reward.dtype)
            total = torch.where(self.written, self.previous_reward, 0.0)
            dist.all_reduce(count)
            dist.all_reduce(total)
            self.previous_reward.copy_(torch.where(count > 0, total / count, self.previous_reward))
        self.written.zero_()

    def watch(self, batch):
        """batch of N videos -> [memory of step 1, memory of step 2], as far as the variant and the stage have them"""
        grid, mask = batch['feats'][self.seen], batch['mask'][self.seen]
        grid = grid.reshape(*grid.shape[:2], -1, grid.shape[-1])            # (N, F, L, C), L = 1 without a grid
        if self.cfg.normalise:
            # DEVIATION: paper has the raw features, here centred ones of deviation 1/4, because what all videos have in common is
            # most of a raw one, and is learned first: after an epoch on MSVD 100 videos had 12 captions.
            grid = nn.functional.layer_norm(grid, grid.shape[3:]) / 4
        frames = grid.mean(2)                                               # Eq. 2  (N, F, C)
        space = (grid * mask[..., None, None]).sum(1) / mask.sum(1)[:, None, None]      # Eq. 3  (N, L, C)
        audio = frames.new_zeros(len(frames), 0)                            # (N, G), G = 0 where nothing is heard
        if self.heard:
            sound, heard = batch['feats'][self.heard], batch['mask'][self.heard]
            audio = (sound * heard[..., None]).sum(1) / heard.sum(1, keepdim=True)      # one vector for each video, Sec. 4.2
            # UNSPECIFIED: scale of the audio feature; we chose a mean of 0 and a variance of 1 at most, as large numbers drive
            # the tanh of o to +-1.
            audio = audio - audio.mean(1, keepdim=True)
            audio = audio / audio.square().mean(1, keepdim=True).sqrt().clamp(min=1)
        memory = {'audio': audio, 'frames': self.attend_frames.prepare(frames, mask)}
        if self.attend_space is not None:
            memory['space'] = self.attend_space.prepare(space, torch.ones_like(space[..., 0], dtype=torch.bool))
        if self.encoder is None:                                            # vf+vs: attention from h alone
            # UNSPECIFIED: what c and the first input are without o; we chose zeros.
            return [{**memory, 'o': audio[:, :0], 'first': frames.new_zeros(len(frames), self.cfg.hidden)}]
        alpha = None
        if self.frozen is not None:
            with torch.no_grad():
                alpha = self.frozen.focus(frames, audio, mask)
        steps = 1 if self.cfg.stage == 'warm' else self.steps               # in warm, step 2 is untrained
        o, keys, alpha = self.encoder(frames, audio, mask, alpha, steps)
        if alpha is not None:
            memory['focus'] = alpha
        one_hot = torch.eye(frames.shape[1], device=frames.device)
        return [{**memory, 'o': o_i, 'first': o_i, 'key': one_hot[key]} for o_i, key in zip(o, keys)]

    def encode(self, batch):
        """batch of N videos -> memory, state = (h, c), each (N, H), of the step whose captions are the output"""
        memory = self.watch(batch)[:self.cfg.step][-1]
        return memory, self.state(memory)

    def state(self, memory):
        return torch.zeros_like(memory['first']), memory['first']

    def step(self, token, state, memory):
        """token (B,) -> logits (B, V), state, aux: frames, focus, key (B, F), space (B, L), as the variant has them"""
        h, c = state
        x = memory['first'] if token is None else self.embed(token)
        query = torch.cat([memory['o'], h], 1)          # (B, 2H); Eq. 12-14 write h_t, algorithm 2 [o, h_t-1]
        gates = self.lstm(torch.cat([memory['audio'], x, h], 1))            # (B, 4H)
        aux = {name: memory[name] for name in ('focus', 'key') if name in memory}
        if self.attend_space is not None:
            attended, aux['space'] = self.attend_space(query, memory['space'])      # Eq. 12  (B, 4H)
            gates = gates + attended
        attended, aux['frames'] = self.attend_frames(query, memory['frames'])       # Eq. 13  (B, 4H)
        i, f, g, o = (gates + attended).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return self.out(self.drop(h)), (h, c), aux

    def cross_entropy(self, memories, batch):
        """memory of N videos for each step, captions (B, T) -> (steps, B), in one pass over steps * B rows"""
        rows, steps = batch['rows'], len(memories)
        memory = select(memories[0], rows.repeat(steps))
        memory |= {name: torch.cat([m[name][rows] for m in memories]) for name in ('o', 'first', 'key') if name in memory}
        # UNSPECIFIED: in which stages scheduled sampling is on, and what it reads; we chose all that have a cross-entropy, and a
        # draw from the model.
        sampling = self.cfg.sampling if self.training else 0.0
        logp, _ = teacher_force(self, memory, self.state(memory), batch['captions'].repeat(steps, 1), sampling)
        return -logp.sum(1).unflatten(0, (steps, -1))

    def forward(self, batch, *, epoch=0, reward_fn=None):
        """batch -> loss (), logs.   The objective of cfg.stage (all: of joint); variants of one step have Eq. 17."""
        if self.cfg.stage == 'reward':
            return self.reinforce(batch, reward_fn)
        memory = self.watch(batch)
        xe1, *xe2 = self.cross_entropy(memory, batch)                       # Eq. 17, 18  (B,)
        logs = {'xe1': xe1.mean().item()}
        if not xe2:
            return xe1.mean(), logs
        xe2, = xe2
        logs['xe2'] = xe2.mean().item()
        if self.cfg.stage == 'frozen':
            return (xe2 + xe1).mean(), logs
        # UNSPECIFIED: whether R is measured without dropout and sampling; we chose the training losses as they are.
        reward = -(xe2 - xe1).detach()                                      # Eq. 20  (B,)
        previous = self.remember(batch['caption_ids'], reward)              # (B,)
        # UNSPECIFIED: whether the loss of alpha trains what o1 is made of, too; we chose yes: no gradient is stopped.
        alpha_key = (memory[1]['focus'] * memory[1]['key']).sum(1)[batch['rows']]       # (B,)
        refocus = refocus_loss(reward, previous, alpha_key).to(xe1.dtype)
        loss = (xe2 + xe1 + self.cfg.beta * refocus).mean()                 # Eq. 22
        logs |= {'refocus': refocus.mean().item(), 'reward': reward.mean().item(), 'alpha': alpha_key.mean().item()}
        return loss, logs

    def remember(self, ids, reward):
        """ids, reward (B,) -> these captions' rewards (B,) of the epoch before; keeps the new ones for the next."""
        if not self.training:
            return torch.full_like(reward, float('nan'))
        previous = self.previous_reward[ids]
        self.previous_reward[ids] = reward.to(previous.dtype)
        self.written[ids] = True
        return previous

    def reinforce(self, batch, reward_fn):
        """Self-critical: a sample for each caption of the batch, against its video's greedy caption."""
        # UNSPECIFIED: the baseline, which step speaks, whether cross-entropy stays, what "for the decoder" spares, and how the
        # rewards are weighed; we chose the greedy caption's, the output's step, no, nothing but the frozen part, and a plain sum
        # (CIDEr-D 0..10, ROUGE-L 0..1).
        training, rows = self.training, batch['rows']
        self.eval()
        with torch.no_grad():
            best, _ = greedy(self, *self.encode(batch), self.cfg.max_len)
        self.train(training)
        words, logp = sample(self, *select(self.encode(batch), rows), self.cfg.max_len)
        reward = reward_fn([batch['ids'][row] for row in rows.tolist()], words)
        baseline = reward_fn(batch['ids'], best)[rows]
        loss = -((reward - baseline) * logp.sum(1)).mean()
        return loss, {'reward': reward.mean().item(), 'baseline': baseline.mean().item()}
