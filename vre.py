"""From which frame should a video be read?  A captioner that watches each video twice.

Paper:      X. Shi, J. Cai, S. Joty, J. Gu. "Watch It Twice: Video Captioning with a Refocused Video
            Encoder." ACM Multimedia, 2019. arXiv:1907.12905 ("VRE")
Covers:     Sec. 3.1-3.4, algorithms 1 and 2, Eq. 2-18, 20-22; the training stages of Sec. 4.2; the
            variants of table 1.
Leaves out: Eq. 1 (the CNN) and Eq. 19 (Eq. 21 replaces it).

A KBiGRU is two GRUs that start at a key frame and read outwards, one to each end of the video.

    grid --mean over regions--> V^f        grid --mean over frames--> v^s        v^a: audio

    step 1:   V^f --KBiGRU from the middle frame--> h1 --[h1, v^a]--> o1
              o1, V^f --refocusing module--> alpha --arg max, or a draw--> key frame
    step 2:   V^f --KBiGRU from the key frame--> h2 --[h1, h2]--> o~2 --[o~2, v^a]--> o2
    decoder:  [o, h_t-1] attends to V^f and v^s --LSTM, c_0 = o, first input o--> h_t --> word;
              once with o = o1, once with o = o2

The key frame is an arg max, so the cross-entropy cannot train the choice. The refocusing loss
trains it: the reward R of a caption is its gain in log-probability from step 1 to step 2. If R has
risen since the last epoch, the key frame becomes more probable; if R has fallen, it becomes less
probable. But while the arg max stays at one frame, the loss compares a key with itself: R changes
only because the captioner does, so the module does not learn which key is good (`--key argmax`, as
printed; docs/PAPERS.md explains why). With `--key drawn`, stage joint draws two keys from alpha and
compares their rewards. For comparison, a key can also be a constant of the video: the middle frame,
a random frame, or the true key frame (`oracle`), for which the last feature of --features must be
`key`.

Training has four stages, and each one uses the best model of the stage before:

    warm    step 1 alone                                                Eq. 17
    joint   both steps and the refocusing module                        Eq. 22
    frozen  a new captioner; a frozen copy of the joint model's         Eq. 17 + Eq. 18
            encoder chooses its key frames
    reward  the same captioner, fine-tuned on CIDEr + ROUGE-L           self-critical REINFORCE

Paper -> code:  V^f frames | v^s space | v^a audio | a of Eq. 8 scores | alpha aux['focus'] |
                i_key key, aux['key'] (one-hot, of the step that is decoded) | o_1, o_2 o |
                alpha^T aux['frames'] | alpha^S aux['space'] | h_t, c_t state | W^emb embed |
                R_e reward | R_e-1, or R of the other key previous
Letters:        N videos, B captions, F frames (the paper's K), L regions (the paper's N x M),
                C channels, H hidden, A attention, E embedding (= H), T words, V vocabulary,
                G size of the audio feature (0 without audio)
"""
import random
from dataclasses import dataclass

import torch
import torch.nn as nn

import data
from decode import greedy, sample, select, teacher_force

# UNSPECIFIED: whether training with saved key frames (stage frozen) starts from new weights, its
# loss, when the rewards are used, which weights the stages joint and reward start from, and by
# which score the model that predicts the keys is "the best"; we chose new weights, Eq. 17 + 18, the
# last stage, those of the best model of the stage before, and the validation score.
STAGES = ('warm', 'joint', 'frozen', 'reward')          # Sec. 4.2
# UNSPECIFIED: how the one-step rows of table 1 are trained; we chose one model that goes through
# the same four stages, with Eq. 17 in the first three.
VARIANTS = ('meanpool', 'softatt', 'vf+vs', 'kbigru', 'kbigru+vs+va', 'vre')    # rows of table 1
WITHOUT_ENCODER = VARIANTS[:3]                          # no KBiGRU, and so no o
WITHOUT_SPACE = ('meanpool', 'softatt', 'kbigru')       # no v^s
# The refocusing module chooses the key frame of step 2, or it is a constant of the video.
KEYS = ('argmax', 'drawn', 'middle', 'random', 'oracle')
CONSTANT_KEYS = KEYS[2:]
SHARED_BUFFERS = ('previous_reward',)   # each process fills in the entries of its own captions


@dataclass
class Config:
    features: tuple = ('resnet152',)    # frames (7 x 7 x 2048), then, if any, audio (128)
    variant: str = 'vre'                # row of table 1
    stage: str = 'all'                  # warm, joint, frozen or reward; all: one after another
    key: str = 'argmax'                 # source of keys: argmax, drawn, middle, random or oracle
    step: int = 2                       # decode after step 1 (middle key frame) or 2 (refocused)
    hidden: int = 512                   # H, E: units of LSTM and GRUs, size of a word, Sec. 4.2
    # UNSPECIFIED: the hidden units of the attentions; we chose H.
    attn: int = 512                     # A, hidden units of the attentions
    normalise: bool = True              # scale each region's feature to mean 0, std. deviation 1/4
    dropout: float = 0.5                # dropout on the output of the LSTM, Sec. 4.2
    sampling: float = 0.25              # scheduled sampling: rate of the model's words, Sec. 4.2
    beta: float = 0.03                  # weight of the refocusing loss in Eq. 22, Sec. 3.4
    rate: float = 3e-4                  # learning rate, Sec. 4.2
    min_count: int = 3                  # words that occur less often become <unk>, Sec. 4.2
    max_len: int = 15                   # longest caption, in words, Sec. 4.2
    reward: str = 'cider+rouge'         # metrics whose sum is the reward, last stage, Sec. 4.2
    warm_epochs: int = 5                # epochs of stage warm, Sec. 4.2
    # UNSPECIFIED: epochs of the other stages, learning rate of stage reward, optimizer, schedule,
    # gradient clipping, batch size, beam width and early stopping; we chose the defaults of the
    # eleven fields that follow in Config.
    joint_epochs: int = 15              # epochs of stage joint
    frozen_epochs: int = 15             # epochs of stage frozen
    reward_epochs: int = 5              # epochs of stage reward
    reward_rate: float = 3e-5           # learning rate of stage reward
    optimizer: str = 'adam'             # adam, adamw or rmsprop
    schedule: str = 'constant'          # learning rate over time: constant or cosine
    clip: float = 5.0                   # largest norm of the gradient
    videos_per_batch: int = 16          # videos in a batch
    captions_per_video: int = 10        # captions of each video in a batch
    beam: int = 5                       # beam width
    patience: int = 5                   # epochs without a better score before a stage stops

    def __post_init__(self):
        data.choose('--variant', self.variant, VARIANTS)
        data.choose('--stage', self.stage, ('all', *STAGES))
        data.choose('--step', self.step, (1, 2))
        data.choose('--key', self.key, KEYS)
        if not self.reward and self.reward_epochs and self.stage in ('all', 'reward'):
            raise data.BadInput('--reward is empty, but stage reward needs a metric, such as '
                                'cider; to leave this stage out, use --reward-epochs 0')
        if self.key == 'oracle' and (len(self.features) < 2 or self.features[-1] != 'key'):
            raise data.BadInput(f'--key oracle --features {" ".join(self.features)}: the last '
                                'feature must be `key`, the true key frames')
        if self.key in CONSTANT_KEYS and self.stage in ('warm', 'joint'):
            raise data.BadInput(f'--stage {self.stage}: --key {self.key} has no refocusing module '
                                'to train, so training begins with stage frozen')


PRESETS = {
    'msvd': dict(features=('resnet152',)),              # its clips have no sound, Sec. 4.2
    'msrvtt': dict(features=('resnet152', 'vggish')),
    # Features with one vector per frame. The smaller model and the shorter training were chosen on
    # the validation videos.
    'msvd/vgg16_fc': dict(hidden=256, attn=128, dropout=0.3, rate=2e-3, schedule='cosine',
                          warm_epochs=1, joint_epochs=2, frozen_epochs=5, reward_epochs=0,
                          videos_per_batch=10, captions_per_video=10),
    # The order of frames is learned long after the score first stops rising, so patience is long.
    'shapes': dict(features=('clip', 'audio'), hidden=128, attn=64, normalise=False, dropout=0.2,
                   rate=2e-3, schedule='cosine', videos_per_batch=32, captions_per_video=5,
                   min_count=1, warm_epochs=5, joint_epochs=16, frozen_epochs=26, reward_epochs=1,
                   reward_rate=2e-4, patience=26),
    # Stage warm lasts until step 1 has learned to use its key, the middle frame, which is the right
    # one in four of seven training clips.
    'puzzle-key': dict(features=('symbols', 'sound'), hidden=64, attn=64, normalise=False,
                       dropout=0.0, sampling=0.0, rate=5e-3, schedule='cosine', min_count=1,
                       videos_per_batch=64, max_len=3, warm_epochs=10, joint_epochs=20,
                       frozen_epochs=20, reward_epochs=0, patience=20, beam=1),
}


def stages(cfg):
    """-> [(name, epochs, learning rate)] of all stages, or of the one that cfg.stage names"""
    every = [
        ('warm', cfg.warm_epochs, cfg.rate),
        ('joint', cfg.joint_epochs, cfg.rate),
        ('frozen', cfg.frozen_epochs, cfg.rate),
        ('reward', cfg.reward_epochs, cfg.reward_rate),
    ]
    if cfg.variant == 'vre' and cfg.key in CONSTANT_KEYS:
        every = every[2:]               # there is no refocusing module to train
    return [stage for stage in every if cfg.stage in ('all', stage[0])]


def attention(aux):
    """aux of T words: frames (T, F) and, if the variant has it, space (T, L) -> weights (T, F, L)

    v^s is a mean over the frames, so the weights of the regions are the same in every frame."""
    frames = aux['frames'][:, :, None]
    if 'space' not in aux:
        return frames
    return frames * aux['space'][:, None, :]


VIEW = {'attention': attention, 'bars': {}, 'key': 'key', 'focus': 'focus', 'steps': (1, 2),
        'legend': 'Above each word: the frame with the highest weight, and below it the weights of '
                  'all frames. Places have weights of their own, on the mean of all frames. Sound '
                  'is not shown.'}


def refocus_loss(reward, previous, scores, key):
    """reward, previous (B,): R_e and R_e-1, NaN if there is none yet; scores (B, F): a of Eq. 8,
    -inf on padding; key (B,): index of the key frame -> loss (B,)

    log(alpha) and log(1 - alpha) are computed from the scores. In float32, 1 - alpha itself is 0 as
    soon as the key frame's score is about 20 higher than all others. Then the logarithm is -inf,
    and its gradient is not a number."""
    # UNSPECIFIED: the loss of a caption that has no reward from the last epoch; we chose 0.
    rise = torch.where(previous.isnan(), 0.0, reward - previous).detach()
    several = scores.isfinite().sum(1, keepdim=True) > 1
    others = scores.scatter(1, key[:, None], float('-inf'))
    others = torch.where(several, others, scores)       # a single frame: loss 0, not log(0)
    log_sum = scores.logsumexp(1)
    log_alpha = scores.gather(1, key[:, None])[:, 0] - log_sum      # log(alpha_key)  (B,)
    log_rest = others.logsumexp(1) - log_sum                        # log(1 - alpha_key)  (B,)
    # DEVIATION: paper multiplies both terms of Eq. 21 by -(R_e - R_e-1), here by -|R_e - R_e-1|,
    # because if the reward has fallen, the printed loss is +|R_e - R_e-1| log(1 - alpha), and
    # minimising it raises alpha. The text says that alpha must fall.
    return -rise.abs() * torch.where(rise > 0, log_alpha, log_rest)     # Eq. 21  (B,)


def mean_over_frames(x, mask):
    """x (N, F, ...), mask (N, F) -> (N, ...): the mean over the real frames of each video"""
    real = mask.to(x.dtype)
    return torch.einsum('nf,nf...->n...', real / real.sum(1, keepdim=True), x)


class Scaled(nn.Linear):
    """A linear layer that is applied to x / sqrt(inputs) and whose weights start sqrt(inputs) times
    larger. At the start it is the same function as nn.Linear, but each step of Adam changes its
    output sqrt(inputs) times less."""
    # DEVIATION: paper has plain linear layers, here those that compute o and the key frame (w_v of
    # the GRUs and of the refocusing module, w_c, w_a, w_m) divide their inputs by sqrt(inputs) and
    # start with weights that are larger by this factor, because Adam moves every weight by about
    # the learning rate, and in a sum over many inputs these moves add up. With plain layers, every
    # video had the same o after 50 steps: a vector of +-1.

    def __init__(self, inputs, outputs, bias=True):
        super().__init__(inputs, outputs, bias)
        self.scale = inputs ** -0.5
        self.weight.data /= self.scale

    def forward(self, x):
        """x (..., inputs) -> (..., outputs)"""
        return super().forward(self.scale * x)


class GRU(nn.Module):
    """The ordinary GRU cell (nn.GRUCell). The caller applies its input layer w_v: both steps read
    the same frames, so w_v is computed once per video."""

    def __init__(self, feat, hidden):
        super().__init__()
        self.w_v = Scaled(feat, 3 * hidden)
        self.w_h = nn.Linear(hidden, 3 * hidden)

    def forward(self, inputs, h):
        """inputs (N, 3H): w_v of a frame; h (N, H) -> the next h (N, H)"""
        v_r, v_z, v_n = inputs.chunk(3, 1)
        h_r, h_z, h_n = self.w_h(h).chunk(3, 1)
        r = torch.sigmoid(v_r + h_r)
        z = torch.sigmoid(v_z + h_z)
        n = torch.tanh(v_n + r * h_n)
        return torch.lerp(n, h, z)                                      # z h + (1 - z) n


class KBiGRU(nn.Module):
    """Two GRUs that start at the key frame: one reads to the first frame, the other to the last."""

    def __init__(self, feat, hidden):
        super().__init__()
        self.left = GRU(feat, hidden)
        self.right = GRU(feat, hidden)
        self.w_c = Scaled(2 * hidden, hidden)

    def inputs(self, frames):
        """frames (N, F, C) -> what does not depend on the key frame: a pair of (N, F, 3H)"""
        return self.left.w_v(frames), self.right.w_v(frames)

    def forward(self, inputs, key, length):
        """inputs from self.inputs; key (N,); length (N,): number of real frames -> h (N, H)"""
        left = self.read(self.left, inputs[0], key, -1, key + 1)        # Eq. 5  (N, H)
        right = self.read(self.right, inputs[1], key, 1, length - key)  # Eq. 6  (N, H)
        return torch.tanh(self.w_c(torch.cat([left, right], 1)))        # Eq. 7  (N, H)

    def read(self, gru, inputs, key, direction, count):
        """Reads count (N,) frames of each video: key, key + direction, ... -> last state (N, H)"""
        videos = torch.arange(len(key), device=key.device)
        h = inputs.new_zeros(len(key), gru.w_h.in_features)
        for t in range(int(count.max())):
            frame = (key + direction * t).clamp(0, inputs.shape[1] - 1)
            ended = (t >= count)[:, None]
            h = torch.where(ended, h, gru(inputs[videos, frame], h))
        return h


class Refocus(nn.Module):
    """The refocusing module: how well each frame would serve as the key frame."""

    def __init__(self, feat, hidden, attn):
        super().__init__()
        self.w_o = nn.Linear(hidden, attn, bias=False)
        self.w_v = Scaled(feat, attn, bias=False)
        # DEVIATION: paper adds a bias b_alpha in Eq. 8 and b_beta in Eq. 14, here there is none,
        # because a number that is added to all scores does not change the softmax that follows.
        self.w_alpha = nn.Linear(attn, 1, bias=False)

    def forward(self, o, frames, mask):
        """o (N, H), frames (N, F, C), mask (N, F) -> scores (N, F), -inf on padding"""
        product = self.w_o(o)[:, None] * self.w_v(frames)
        scores = self.w_alpha(torch.tanh(product)).squeeze(-1)          # Eq. 8  (N, F)
        return scores.masked_fill(~mask, float('-inf'))


class Encoder(nn.Module):
    """Algorithm 1: the KBiGRU, once or twice, and the refocusing module between the two steps."""

    def __init__(self, cfg, feat, audio, has_refocus):
        super().__init__()
        self.kbigru = KBiGRU(feat, cfg.hidden)
        self.w_a = Scaled(cfg.hidden + audio, cfg.hidden)               # shared by both steps
        self.w_m = None
        if cfg.variant == 'vre':
            self.w_m = Scaled(2 * cfg.hidden, cfg.hidden)
        self.refocus = None
        if has_refocus:
            self.refocus = Refocus(feat, cfg.hidden, cfg.attn)

    def first(self, frames, audio, mask):
        """Step 1: frames (N, F, C), audio (N, G), mask (N, F) -> o1 (N, H); scores (N, F), None
        without a refocusing module; what step 2 needs"""
        length = mask.sum(1)
        inputs = self.kbigru.inputs(frames)
        h1 = self.kbigru(inputs, length // 2, length)                   # Eq. 4  (N, H)
        # UNSPECIFIED: o without audio (row KBiGRU of table 1, and MSVD); we chose
        # tanh(W_a h1 + b_a).
        o1 = torch.tanh(self.w_a(torch.cat([h1, audio], 1)))            # (N, H)
        scores = None
        if self.refocus is not None:
            scores = self.refocus(o1, frames, mask)                     # (N, F)
        return o1, scores, (inputs, length, h1, audio)

    def second(self, seen, key):
        """Step 2: seen from self.first, key (N,) -> o2 (N, H)"""
        inputs, length, h1, audio = seen
        h2 = self.kbigru(inputs, key, length)                           # Eq. 4  (N, H)
        mixed = torch.tanh(self.w_m(torch.cat([h1, h2], 1)))            # o~2  (N, H)
        return torch.tanh(self.w_a(torch.cat([mixed, audio], 1)))       # (N, H)


class Attention(nn.Module):
    """Soft attention over frames or regions."""

    def __init__(self, feat, query, attn):
        super().__init__()
        self.w_h = nn.Linear(query, attn, bias=False)
        self.w_v = nn.Linear(feat, attn, bias=False)
        self.w_beta = nn.Linear(attn, 1, bias=False)

    def prepare(self, v, mask):
        """v (N, L, C), mask (N, L) -> memory: what does not depend on the word"""
        return {'v': v, 'keys': self.w_v(v), 'mask': mask}

    def forward(self, query, memory):
        """query (B, 2H): [o, h], or (B, H): h in variants without o; memory from prepare
        -> attended v (B, C), alpha (B, L)"""
        product = self.w_h(query)[:, None] * memory['keys']
        scores = self.w_beta(torch.tanh(product)).squeeze(-1)           # Eq. 14  (B, L)
        alpha = scores.masked_fill(~memory['mask'], float('-inf')).softmax(1)   # Eq. 15  (B, L)
        return torch.einsum('bl,blc->bc', alpha, memory['v']), alpha    # Eq. 16  (B, C)


class Mean(nn.Module):
    """In place of Attention, for the row MeanPool: every real frame has the same weight."""

    def prepare(self, v, mask):
        """v (N, F, C), mask (N, F) -> memory"""
        alpha = mask.to(v.dtype)
        return {'v': mean_over_frames(v, mask), 'alpha': alpha / alpha.sum(1, keepdim=True)}

    def forward(self, query, memory):
        """-> mean of v (B, C), alpha (B, F)"""
        return memory['v'], memory['alpha']


class Captioner(nn.Module):
    """Algorithm 2: the decoder with its two attentions, and the loss of every stage."""

    def __init__(self, cfg, sizes):
        super().__init__()
        self.cfg = cfg
        names = cfg.features[:-1] if cfg.key == 'oracle' else cfg.features
        self.seen = names[0]
        self.heard = None
        if len(names) > 1 and cfg.variant in ('kbigru+vs+va', 'vre'):
            self.heard = names[1]
        if len(names) > 2 or self.heard and len(sizes.feats[self.heard]) > 1:
            raise data.BadInput(f'--features {" ".join(cfg.features)}: give the feature of the '
                                f'frames and, if there is sound, one audio feature (a vector)')
        feat = sizes.feats[self.seen][-1]                               # C
        audio = sizes.feats[self.heard][-1] if self.heard else 0        # G
        has_two_steps = cfg.variant == 'vre'
        has_module = has_two_steps and cfg.key not in CONSTANT_KEYS
        has_saved_keys = has_module and cfg.stage in ('frozen', 'reward')
        self.encoder = None
        if cfg.variant not in WITHOUT_ENCODER:
            self.encoder = Encoder(cfg, feat, audio, has_module and not has_saved_keys)
        # DEVIATION: paper saves the key frames as constants, here a frozen copy of the encoder of
        # stage joint computes them in every batch (always the same key for a video), because then
        # validation and test videos have a key, too.
        self.frozen = None
        if has_saved_keys:                      # start() loads the joint model's encoder into it
            self.frozen = Encoder(cfg, feat, audio, has_refocus=True).requires_grad_(False)
        query = cfg.hidden if self.encoder is None else 2 * cfg.hidden  # h, or [o, h]
        self.attend_frames = Mean()
        if cfg.variant != 'meanpool':
            self.attend_frames = Attention(feat, query, cfg.attn)
        self.attend_space = None
        if cfg.variant not in WITHOUT_SPACE:
            self.attend_space = Attention(feat, query, cfg.attn)
        self.embed = nn.Embedding(sizes.vocab, cfg.hidden)
        attended = feat if self.attend_space is None else 2 * feat
        self.lstm = nn.LSTMCell(attended + audio + cfg.hidden, cfg.hidden)
        self.drop = nn.Dropout(cfg.dropout)
        self.out = nn.Linear(cfg.hidden, sizes.vocab)
        # R_e-1 of every training caption; NaN before its first epoch
        self.register_buffer('previous_reward', torch.full((sizes.captions,), float('nan')))
        self.steps = 1
        if has_module and cfg.stage == 'warm':                          # step 2 waits for joint
            self.encoder.w_m.requires_grad_(False)
            self.encoder.refocus.requires_grad_(False)
        elif has_two_steps:
            self.steps = 2
        self.draws = 0                                      # keys drawn per video in training
        if cfg.key == 'drawn' and self.steps == 2 and not has_saved_keys:
            self.draws = 2

    def start(self, previous):
        """previous: state_dict of the best model of the stage before"""
        if self.cfg.stage == 'frozen' and self.frozen is not None:      # all else is new
            names = [name for name in previous if name.startswith('encoder.')]
            self.frozen.load_state_dict({name.removeprefix('encoder.'): previous[name]
                                         for name in names})
        else:
            self.load_state_dict(previous)

    def read(self, batch):
        """batch of N videos -> frames (N, F, C), space (N, L, C), audio (N, G)"""
        grid = batch['feats'][self.seen]
        grid = grid.reshape(*grid.shape[:2], -1, grid.shape[-1])        # (N, F, L, C)
        if self.cfg.normalise:
            # DEVIATION: paper reads the raw features, here each region's feature is shifted and
            # scaled to mean 0 and standard deviation 1/4, because most of a raw feature is the same
            # in all videos, and the model learns that part first. With raw features, 100 videos of
            # MSVD had only 12 different captions.
            quarter = grid.new_full(grid.shape[3:], 0.25)
            grid = nn.functional.layer_norm(grid, grid.shape[3:], quarter)
        frames = grid.mean(2)                                           # Eq. 2  (N, F, C)
        space = mean_over_frames(grid, batch['mask'][self.seen])        # Eq. 3  (N, L, C)
        audio = frames.new_zeros(len(frames), 0)
        if self.heard:
            # UNSPECIFIED: how the vectors of VGGish, of which a video has many, become one, and its
            # scale; we chose their mean over time, shifted and scaled to mean 0 and variance at
            # most 1, because large inputs drive the tanh of o to +-1.
            audio = mean_over_frames(batch['feats'][self.heard], batch['mask'][self.heard])
            audio = audio - audio.mean(1, keepdim=True)
            audio = audio / audio.square().mean(1, keepdim=True).sqrt().clamp(min=1)
        return frames, space, audio

    def choose_key(self, scores, batch):
        """scores (N, F), None if the keys are constants -> key (N,) of step 2, if none are drawn"""
        if scores is not None:
            return scores.argmax(1)                                     # Eq. 10, 11  (N,)
        if self.cfg.key == 'oracle':
            return batch['feats']['key'][:, :, 0].argmax(1)
        length = batch['mask'][self.seen].sum(1)
        if self.cfg.key == 'middle':
            return length // 2
        # A random frame, but always the same one for a video
        keys = [random.Random(video).randrange(frames)
                for video, frames in zip(batch['ids'], length.tolist())]
        return torch.tensor(keys, device=length.device)

    def watch(self, batch, draws=0):
        """batch of N videos -> memories: one of step 1 and, if there is a step 2, one of step 2.
        With draws > 0, that many keys are drawn from alpha, and each gives one memory of step 2.

        A memory is a dict of audio and o, and of
            frames, space   as prepared for attention; space only if the variant attends to it
            key (N, F)      one-hot, only with an encoder; in step 1 it is the middle frame
            scores, focus   (N, F), only if scores choose the keys; focus is their softmax"""
        frames, space, audio = self.read(batch)
        mask = batch['mask'][self.seen]
        memory = {'audio': audio, 'frames': self.attend_frames.prepare(frames, mask)}
        if self.attend_space is not None:
            everywhere = torch.ones(space.shape[:2], dtype=torch.bool, device=space.device)
            memory['space'] = self.attend_space.prepare(space, everywhere)
        if self.encoder is None:
            # UNSPECIFIED: how the rows MeanPool and SoftAtt of table 1 (other authors' models) were
            # made, and c_0 and the first input in rows without o; we chose the paper's decoder and
            # the attention of Eq. 14, and zeros.
            return [{**memory, 'o': frames.new_zeros(len(frames), self.cfg.hidden)}]
        o1, scores, seen = self.encoder.first(frames, audio, mask)
        one_hot = torch.eye(frames.shape[1], device=frames.device)
        memories = [{**memory, 'o': o1, 'key': one_hot[mask.sum(1) // 2]}]
        if self.steps == 1:
            return memories
        if self.frozen is not None:
            with torch.no_grad():
                _, scores, _ = self.frozen.first(frames, audio, mask)
        keys = [self.choose_key(scores, batch)]
        if draws:
            keys = scores.softmax(1).multinomial(draws, replacement=True).unbind(1)
        for key in keys:
            memories.append({**memory, 'o': self.encoder.second(seen, key), 'key': one_hot[key]})
        if scores is not None:
            for memory in memories:
                memory['scores'] = scores
                memory['focus'] = scores.softmax(1)                     # Eq. 9  (N, F)
        return memories

    def encode(self, batch):
        """batch of N videos -> memory, state = (h, c), each (N, H), of step cfg.step"""
        memories = self.watch(batch)
        memory = memories[min(self.cfg.step, len(memories)) - 1]        # there may be only one step
        return memory, self.first_state(memory)

    def first_state(self, memory):
        """memory -> h = 0 and c = o, each (B, H)"""
        return torch.zeros_like(memory['o']), memory['o']

    def step(self, token, state, memory):
        """token (B,) -> logits (B, V), state, aux: frames (B, F); in the variants that have them,
        also space (B, L), key (B, F), focus (B, F)"""
        h, c = state
        query = h
        if self.encoder is not None:
            query = torch.cat([memory['o'], h], 1)      # algorithm 2; Eq. 12-14 have h_t alone
        aux = {name: memory[name] for name in ('key', 'focus') if name in memory}
        v, aux['frames'] = self.attend_frames(query, memory['frames'])  # Eq. 13  (B, C)
        inputs = [v]
        if self.attend_space is not None:
            v, aux['space'] = self.attend_space(query, memory['space'])     # Eq. 12  (B, C)
            inputs.append(v)
        x = memory['o'] if token is None else self.embed(token)         # (B, H)
        inputs += [memory['audio'], x]
        h, c = self.lstm(torch.cat(inputs, 1), (h, c))
        return self.out(self.drop(h)), (h, c), aux

    def cross_entropy(self, memories, batch):
        """memories of N videos, one for each step; captions (B, T) -> (steps, B), in one pass"""
        steps = len(memories)
        rows = batch['rows']
        memory = select(memories[0], rows.repeat(steps))
        for name in ('o', 'key'):                                       # these differ between steps
            if name in memory:
                memory[name] = torch.cat([m[name][rows] for m in memories])
        words = batch['captions'].repeat(steps, 1)
        # UNSPECIFIED: in which stages scheduled sampling is used, and how the model's words are
        # chosen; we chose all stages with a cross-entropy, and draws from the model's distribution.
        sampling = self.cfg.sampling if self.training else 0.0
        logp, _ = teacher_force(self, memory, self.first_state(memory), words, sampling)
        return -logp.sum(1).unflatten(0, (steps, -1))

    def forward(self, batch, *, epoch=0, reward_fn=None):
        """batch -> loss (), logs.   The objective of cfg.stage. If it is 'all': that of joint, or
        of frozen if the keys are constants"""
        if self.cfg.stage == 'reward':
            return self.reinforce(batch, reward_fn)
        memories = self.watch(batch, self.draws if self.training else 0)
        xe = self.cross_entropy(memories, batch)                        # (steps, B)
        xe1 = xe[0]                                                     # Eq. 17  (B,)
        logs = {'xe1': xe1.mean().item()}
        if len(memories) == 1:
            return xe1.mean(), logs
        xe2 = xe[1:].mean(0)                                            # Eq. 18  (B,)
        logs['xe2'] = xe2.mean().item()
        if self.cfg.stage == 'frozen' or 'scores' not in memories[1]:
            return (xe2 + xe1).mean(), logs
        refocus = self.refocus_losses(memories, batch, logs)            # (keys, B)
        loss = (xe2 + xe1).mean() + self.cfg.beta * refocus.mean()      # Eq. 22
        return loss, logs

    def refocus_losses(self, memories, batch, logs):
        """memories: that of step 1, and one or two of step 2 -> refocusing loss (keys, B) of each
        key and caption. Also logs it."""
        reward = self.reward(memories, batch)                           # (keys, B)
        if len(reward) == 1:
            previous = self.remember(batch['caption_ids'], reward[0])[None]
        else:
            # DEVIATION: paper takes the arg max of alpha as the key (Eq. 11) and compares its
            # reward with that of the last epoch, here --key drawn draws two keys from alpha in
            # training and compares their rewards, because between two epochs the captioner changes
            # too, so R_e - R_e-1 does not measure the effect of the key alone.
            previous = reward.flip(0)
        # UNSPECIFIED: whether the refocusing loss also trains the layers that compute o1; we chose
        # yes, so no gradient is stopped.
        scores = memories[1]['scores'][batch['rows']]                   # (B, F)
        losses = []
        for memory, now, before in zip(memories[1:], reward, previous, strict=True):
            key = memory['key'].argmax(1)[batch['rows']]
            losses.append(refocus_loss(now, before, scores, key))       # (B,)
        logs['refocus'] = torch.stack(losses).mean().item()
        logs['reward'] = reward.mean().item()
        logs['alpha'] = scores.softmax(1).amax(1).mean().item()         # of the most probable key
        return torch.stack(losses)

    @torch.no_grad()
    def reward(self, memories, batch):
        """-> R (keys, B): the gain in log-probability from step 1 to step 2, for each key"""
        # DEVIATION: paper negates the cross-entropies of the training pass (Eq. 17 and 18), here R
        # comes from a second pass without dropout and scheduled sampling, because they would only
        # add noise to R, and Eq. 20 is about the probabilities of the given words.
        training = self.training
        self.eval()
        xe = self.cross_entropy(memories, batch)
        self.train(training)
        return -(xe[1:] - xe[0])                                        # Eq. 20  (keys, B)

    def remember(self, ids, reward):
        """ids, reward (B,) -> rewards (B,) of the same captions in the last epoch. In training, the
        new rewards replace them. Validation captions have no stored rewards: NaN."""
        if not self.training:
            return torch.full_like(reward, float('nan'))
        previous = self.previous_reward[ids]
        self.previous_reward[ids] = reward.to(previous.dtype)
        return previous

    def reinforce(self, batch, reward_fn):
        """Self-critical REINFORCE: for each caption of the batch, one caption is sampled. The
        baseline is the reward of the greedy caption of the same video."""
        # UNSPECIFIED: in stage reward, the baseline, the step that is decoded, whether the
        # cross-entropy stays, which weights are trained ("for the decoder"), and how the rewards
        # are weighted; we chose the reward of the greedy caption (that of [26], to which Sec. 2
        # refers), the step that --step names, no cross-entropy, all weights but the frozen copy,
        # and the plain sum of CIDEr-D (0 to 10) and ROUGE-L (0 to 1).
        rows = batch['rows']
        memory, state = self.encode(batch)
        training = self.training
        self.eval()                                         # the baseline has no dropout
        best, _ = greedy(self, memory, state, self.cfg.max_len)
        self.train(training)
        words, logp = sample(self, *select((memory, state), rows), self.cfg.max_len)
        reward = reward_fn([batch['ids'][row] for row in rows.tolist()], words)
        baseline = reward_fn(batch['ids'], best)[rows]
        loss = -((reward - baseline) * logp.sum(1)).mean()
        return loss, {'reward': reward.mean().item(), 'baseline': baseline.mean().item()}
