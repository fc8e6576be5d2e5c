"""How fast: python tests/bench.py [NAME ...]   (not a test; minutes; nothing else should run meanwhile)

For each model at its paper's sizes, on random features: training captions per second, which share of this machine's rate of
matrix multiplication that is (both counted in useful operations: real words, no padding), beam-5 captions per second for 1 and for 32
videos at a time, and peak memory. `plain` is a temporal-attention LSTM without any paper's invention, to compare with;
`astar-pool5` is ASTAR on one layer, against which its paper counts its cost; `sharing` sets a step of ASTAR on 8 captions of a
video beside 8 steps on one caption each; `rewards` our CIDEr beside pycocoevalcap's. Each name runs in a process of its own, so that
peaks do not add up.
"""
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import decode                                                           # noqa: E402
from data import EOS, PAD                                               # noqa: E402

WORDS = 9468                                                            # MSVD's training words and three symbols


class Plain(nn.Module):
    """Temporal attention (Yao et al. 2015) and nothing else: 28 frames x 2048, 512 units."""

    def __init__(self, D=2048, H=512, A=512, E=512):
        super().__init__()
        self.embed, self.w_v, self.w_h = nn.Embedding(WORDS, E), nn.Linear(D, A), nn.Linear(H, A, bias=False)
        self.u, self.lstm, self.out = nn.Linear(A, 1, bias=False), nn.LSTMCell(E + D, H), nn.Linear(H, WORDS)
        self.init = nn.Linear(D, 2 * H)

    def encode(self, batch):
        v = batch['feats']['v']                                                     # (N, F, D)
        return {'v': v, 'keys': self.w_v(v)}, tuple(self.init(v.mean(1)).tanh().chunk(2, 1))

    def step(self, token, state, memory):
        h, c = state
        alpha = self.u(torch.tanh(memory['keys'] + self.w_h(h)[:, None])).squeeze(-1).softmax(1)
        z = torch.bmm(alpha[:, None], memory['v'])[:, 0]
        word = h.new_zeros(len(h), self.embed.embedding_dim) if token is None else self.embed(token)
        h, c = self.lstm(torch.cat([word, z], 1), (h, c))
        return self.out(h), (h, c), {}

    def forward(self, batch, **_):
        memory, state = decode.select(self.encode(batch), batch['rows'])
        return -decode.teacher_force(self, memory, state, batch['captions'])[0].sum(1).mean(), {}


def lengths(n):
    """Words of n captions as MSVD has them: mean 7, most between 4 and 12"""
    return np.random.default_rng(0).poisson(4, n) + 3


def batch_of(shapes, frames, videos, captions):
    """Random features {name: shape of a frame}, frames {name: how many} and captions of MSVD-like length"""
    torch.manual_seed(0)
    feats = {name: torch.randn(videos, frames[name], *shape).relu() for name, shape in shapes.items()}
    words = torch.full((videos * captions, 40), PAD)
    for row, n in enumerate(lengths(len(words))):
        words[row, :n], words[row, n] = torch.randint(3, WORDS, (n,)), EOS
    return dict(feats=feats, mask={name: torch.ones(videos, frames[name], dtype=torch.bool) for name in shapes},
                captions=words[:, :int((words != PAD).sum(1).max())], rows=torch.arange(videos).repeat_interleave(captions),
                caption_ids=torch.arange(len(words)), ids=[str(i) for i in range(videos)])


def rate(function, seconds=6.0):
    """Calls per second, after one call to warm up (unless that took all the time there is)"""
    began, calls = time.perf_counter(), 0
    function()
    if time.perf_counter() - began > seconds:
        return 1 / (time.perf_counter() - began)
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        function()
        calls += 1
    return calls / (time.perf_counter() - began)


def matmul_rate(n=2048):
    """Operations per second of a large matrix product on this machine, a multiplication and an addition being two"""
    a, b = torch.randn(n, n), torch.randn(n, n)
    return 2 * n ** 3 * rate(lambda: a @ b, 3.0)


def operations(model, batch):
    """Useful operations of one training step, from torch's own counter: matrix products, forward and backward, of real words"""
    with FlopCounterMode(display=False) as counter:
        model(batch)[0].backward()
    return counter.get_total_flops()


SIZES = {                                       # shapes of a frame, number of frames, videos and captions per batch
    'plain': ({'v': [2048]}, {'v': 28}, 20, 5),
    'stats': ({'i3d_rgb': [7, 7, 2048]}, {'i3d_rgb': 16}, 8, 4),
    'sta': ({'googlenet': [7, 7, 1024]}, {'googlenet': 26}, 8, 4),
    'vre': ({'resnet152': [7, 7, 2048]}, {'resnet152': 20}, 16, 10),
    'astar': ({'c3d_pool2': [28, 28, 128], 'c3d_pool3': [14, 14, 256], 'c3d_pool4': [7, 7, 512], 'c3d_pool5': [4, 4, 512],
               'c3d_fc7': [4096]}, {'c3d_pool2': 8, 'c3d_pool3': 4, 'c3d_pool4': 2, 'c3d_pool5': 1, 'c3d_fc7': 1}, 1, 8),  # 16 frames
    'astar-pool5': ({'c3d_pool5': [4, 4, 512], 'c3d_fc7': [4096]}, {'c3d_pool5': 1, 'c3d_fc7': 1}, 1, 8),
}


def build(name, shapes, frames, captions, **fields):
    if name == 'plain':
        return Plain()
    import importlib
    name, _, variant = name.partition('-')
    paper = importlib.import_module(name)
    fields |= {'variant': variant} if variant else {}
    fields = {**({'stage': 'joint'} if name == 'vre' else {}), **fields}
    return paper.Captioner(paper.Config(vocab=WORDS, feats=shapes, features=tuple(shapes), frames=max(frames.values()),
                                        captions=captions, **fields))


def bench_model(name):
    shapes, frames, videos, captions = SIZES[name]
    batch, peak = batch_of(shapes, frames, videos, captions), matmul_rate()
    model = build(name, shapes, frames, videos * captions)
    flops = operations(model, batch)

    def train():
        model.zero_grad()
        model(batch)[0].backward()

    model.train()
    steps = rate(train)
    model.eval()
    with torch.no_grad():
        if hasattr(model, 'out'):
            model.out.bias[EOS] += 5.0                                  # an untrained model would never stop
    beams = {}
    for n in (1, 32):
        some = batch_of(shapes, frames, n, 1)
        with torch.no_grad():
            beams[n] = n * rate(lambda: decode.beam(model, *model.encode(some), 12, 5))
    print(f'{name:11} training {steps * videos * captions:7.1f} captions/s, {steps * flops / 1e9:6.1f} GFLOP/s = '
          f'{steps * flops / peak:4.0%} of {peak / 1e9:.0f};  beam 5: {beams[1]:6.1f} captions/s one by one, '
          f'{beams[32]:6.1f} by 32 ({beams[32] / beams[1]:.1f} x);  peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** 20:.2f} GiB')


def bench_sharing():
    shapes, frames, _, _ = SIZES['astar']
    model = build('astar', shapes, frames, 8).train()

    def step(batch):
        model.zero_grad()
        model(batch)[0].backward()

    together, alone = (rate(lambda: step(batch_of(shapes, frames, 1, n)), 20.0) for n in (8, 1))
    print(f'sharing     a step of ASTAR on 8 captions of a video is {8 * together / alone:.1f} times cheaper than 8 steps on one each')


def bench_rewards():
    from pycocoevalcap.cider.cider import Cider
    from evaluate import CiderD
    rng, words = np.random.default_rng(0), [f'w{i}' for i in range(2000)]

    def sentence():
        return ' '.join(words[min(int(rng.exponential(60)), 1999)] for _ in range(7))

    references = {i: [sentence() for _ in range(40)] for i in range(500)}
    captions = {i: [sentence()] for i in references}
    ours = CiderD(references)
    mine = len(captions) * rate(lambda: ours.score(list(captions), [c[0] for c in captions.values()]))
    theirs = len(captions) * rate(lambda: Cider().compute_score(references, captions))
    print(f'rewards     CIDEr: {mine:.0f} captions/s, pycocoevalcap {theirs:.0f} ({mine / theirs:.0f} x)')


if __name__ == '__main__':
    others = {'sharing': bench_sharing, 'rewards': bench_rewards}
    names = sys.argv[1:] or [*SIZES, *others]
    if len(names) > 1:
        for name in names:
            subprocess.run([sys.executable, __file__, name], check=True)
    elif names[0] in others:
        others[names[0]]()
    else:
        bench_model(names[0])
