"""How fast: python tests/bench.py [--record] [NAME ...]    (not a test; it needs a quiet machine)

For each model, at its paper's sizes and on random features: training captions per second; which
share of this machine's matrix-multiplication rate that is, counting only real words and places;
captions per second with beam 5 for 1 and for 32 videos at a time; and peak memory. Batches have as
many captions as in each paper's file, but for `astar`, where 8 videos would take half a minute.

`plain` is the captioner of the README, for comparison. `astar-pool5` is ASTAR on one layer, with
which its paper compares the cost. `sharing` compares a step of ASTAR on 8 captions of one video
with 8 steps on one caption each. `rewards` compares our CIDEr with pycocoevalcap's. `extract` reads
videos with I3D. Each name runs in a process of its own, so that peaks of memory do not add up.
--record writes the numbers of the models to results/speed/, from which docs/RESULTS.md is made.
"""
import importlib
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import decode                                                                       # noqa: E402
from data import EOS, PAD, Sizes                                                    # noqa: E402

WORDS = 9468                            # MSVD's training words and three symbols

SIZES = {               # name -> shape of a frame, number of frames, videos, captions per video
    'plain': ({'v': [2048]}, {'v': 28}, 20, 5),
    'stats': ({'i3d': [7, 7, 2048]}, {'i3d': 16}, 8, 4),
    'sta': ({'googlenet': [7, 7, 1024]}, {'googlenet': 26}, 32, 5),
    'vre': ({'resnet152': [7, 7, 2048]}, {'resnet152': 20}, 16, 10),
    'astar': ({'c3d_pool2': [28, 28, 128], 'c3d_pool3': [14, 14, 256], 'c3d_pool4': [7, 7, 512],
               'c3d_pool5': [4, 4, 512], 'c3d_fc7': [4096]},
              {'c3d_pool2': 8, 'c3d_pool3': 4, 'c3d_pool4': 2, 'c3d_pool5': 1, 'c3d_fc7': 1}, 1, 8),
    'astar-pool5': ({'c3d_pool5': [4, 4, 512], 'c3d_fc7': [4096]},
                    {'c3d_pool5': 1, 'c3d_fc7': 1}, 8, 4),
}


def readme_captioner():
    """The complete captioner in README.md, as a module"""
    blocks = re.findall(r'```python\n(.*?)```', (ROOT / 'README.md').read_text(), re.S)
    with tempfile.TemporaryDirectory() as folder:
        code = next(block for block in blocks if 'class Captioner' in block)
        Path(folder, 'plain.py').write_text(code)
        sys.path.insert(0, folder)
        return importlib.import_module('plain')


def random_batch(shapes, frames, videos, captions):
    """Random features, and captions as long as MSVD's: 7 words on average, mostly 4 to 12"""
    torch.manual_seed(0)
    words = torch.full((videos * captions, 40), PAD)
    lengths = np.random.default_rng(0).poisson(4, len(words)) + 3
    for row, n in enumerate(lengths):
        words[row, :n] = torch.randint(3, WORDS, (n,))
        words[row, n] = EOS
    return {
        'feats': {kind: torch.randn(videos, frames[kind], *shape).relu()
                  for kind, shape in shapes.items()},
        'mask': {kind: torch.ones(videos, frames[kind], dtype=torch.bool) for kind in shapes},
        'captions': words[:, :lengths.max() + 1],
        'rows': torch.arange(videos).repeat_interleave(captions),
        'caption_ids': torch.arange(len(words)),
        'ids': [str(i) for i in range(videos)],
    }


def rate(function, seconds=6.0):
    """Calls per second, after one call to warm up (unless that took all the time there is)"""
    began = time.perf_counter()
    function()
    first = time.perf_counter() - began
    if first > seconds:
        return 1 / first
    began = time.perf_counter()
    calls = 0
    while time.perf_counter() - began < seconds:
        function()
        calls += 1
    return calls / (time.perf_counter() - began)


def matmul_rate(n=2048):
    """Operations per second of a large matrix product; a multiplication and an addition are two"""
    a = torch.randn(n, n)
    b = torch.randn(n, n)
    return 2 * n ** 3 * rate(lambda: a @ b, 3.0)


def share_of_real_inputs(conv, size):
    """The share of a convolution's products whose input lies on the map, and not on its padding.
    size: steps, rows and columns of the map; the stride is 1"""
    share = 1.0
    for n, kernel, padding in zip(size, conv.kernel_size, conv.padding):
        outputs = range(n + 2 * padding - kernel + 1)
        real = sum(0 <= i + k - padding < n for i in outputs for k in range(kernel))
        share *= real / (len(outputs) * kernel)
    return share


def operations(model, batch):
    """Useful operations of one training step: its matrix products, forward and backward. We correct
    torch's counter in two points. It passes over nn.LSTM on a CPU, so we add its products: every
    weight is used once per row forward, and twice backward. And it counts products with the padding
    of a convolution, which need not be computed, so we subtract them."""
    more = []

    def count_lstm(lstm, inputs, _):
        rows = inputs[0].shape[:2].numel()
        weights = [w for name, w in lstm.named_parameters() if name.startswith('weight')]
        more.append(3 * 2 * rows * sum(w.numel() for w in weights))

    def count_padding(conv, inputs, output):
        products = output.numel() * conv.weight[0].numel()
        passes = 2 + inputs[0].requires_grad            # forward; backward to the weights, inputs
        more.append(-2 * passes * products * (1 - share_of_real_inputs(conv, inputs[0].shape[2:])))

    hooks = []
    for module in model.modules():
        if isinstance(module, torch.nn.LSTM):
            hooks.append(module.register_forward_hook(count_lstm))
        elif isinstance(module, torch.nn.Conv3d):
            hooks.append(module.register_forward_hook(count_padding))
    with FlopCounterMode(display=False) as counter:
        model(batch)[0].backward()
    for hook in hooks:
        hook.remove()
    return counter.get_total_flops() + sum(more)


def build(name):
    """-> model at its paper's sizes"""
    shapes, frames, videos, captions = SIZES[name]
    name, _, variant = name.partition('-')
    paper = readme_captioner() if name == 'plain' else importlib.import_module(name)
    fields = {'features': tuple(shapes)}
    if variant:
        fields['variant'] = variant
    if name == 'vre':
        fields['stage'] = 'joint'
    if name == 'plain':
        fields['hidden'] = 512
    sizes = Sizes(shapes, max(frames.values()), WORDS, captions=videos * captions)
    return paper.Captioner(paper.Config(**fields), sizes)


def train_step(model, batch):
    model.zero_grad()
    model(batch)[0].backward()


def beam_rate(model, batch):
    """Captions per second with beam 5"""
    with torch.no_grad():
        videos = len(batch['ids'])
        return videos * rate(lambda: decode.beam(model, *model.encode(batch), 12, 5))


def bench_model(name, record=False):
    shapes, frames, videos, captions = SIZES[name]
    batch = random_batch(shapes, frames, videos, captions)
    peak = matmul_rate()
    model = build(name).train()
    flops = operations(model, batch)
    steps = rate(lambda: train_step(model, batch))
    model.eval()
    if name != 'sta':                               # an untrained model would never stop
        model.out.bias.data[EOS] += 5.0
    one = beam_rate(model, random_batch(shapes, frames, 1, 1))
    many = beam_rate(model, random_batch(shapes, frames, 32, 1))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** 20
    found = {'training': steps * videos * captions, 'percent': 100 * steps * flops / peak,
             'one': one, 'many': many, 'memory': memory}
    print(f'{name:11} training {found["training"]:7.1f} captions/s, '
          f'{steps * flops / 1e9:6.1f} GFLOP/s = {found["percent"]:3.0f} % of '
          f'{peak / 1e9:.0f};  beam 5: {one:6.1f} captions/s one by one, {many:6.1f} by 32 '
          f'({many / one:.1f} x);  peak {memory:.2f} GiB', flush=True)
    if record:
        log = {'command': f'python tests/bench.py {name}', 'torch': torch.__version__,
               'machine': f'{platform.machine()}, {os.cpu_count()} cores',
               'threads': torch.get_num_threads(), 'matmul GFLOP/s': round(peak / 1e9, 1),
               'scores': {key: round(value, 2) for key, value in found.items()}, 'epochs': []}
        path = ROOT / 'results' / 'speed' / f'{name}-0.json'
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(log))


def bench_sharing():
    shapes, frames, _, _ = SIZES['astar']
    model = build('astar').train()
    together = rate(lambda: train_step(model, random_batch(shapes, frames, 1, 8)), 20.0)
    alone = rate(lambda: train_step(model, random_batch(shapes, frames, 1, 1)), 20.0)
    print(f'sharing     a step of ASTAR on 8 captions of one video is {8 * together / alone:.1f} '
          'times as cheap as 8 steps on one caption each')


def bench_rewards():
    from pycocoevalcap.cider.cider import Cider

    from evaluate import CiderD
    rng = np.random.default_rng(0)

    def sentence():
        return ' '.join(f'w{min(int(rng.exponential(60)), 1999)}' for _ in range(7))

    references = {i: [sentence() for _ in range(40)] for i in range(500)}
    captions = {i: [sentence()] for i in references}
    said = [caption for caption, in captions.values()]
    ours = CiderD(references)
    mine = len(said) * rate(lambda: ours.score(list(references), said))
    theirs = len(said) * rate(lambda: Cider().compute_score(references, captions))
    print(f'rewards     CIDEr: {mine:.0f} captions/s, pycocoevalcap {theirs:.0f} '
          f'({mine / theirs:.0f} x)')


def write_clip(path, seconds):
    """A film of coarse coloured noise, 320 x 240, 25 frames per second"""
    import av
    rng = np.random.default_rng(0)
    with av.open(str(path), 'w') as container:
        stream = container.add_stream('mpeg4', rate=25, width=320, height=240)
        for _ in range(25 * seconds):
            picture = rng.integers(0, 256, (15, 20, 3), dtype=np.uint8).repeat(16, 0).repeat(16, 1)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, 'rgb24')))
        container.mux(stream.encode())


def bench_extract(clips=6, seconds=10):
    """From the files to the features on disk. 10 seconds are the average of MSVD."""
    from tools import encoders, extract
    info = encoders.settings('i3d', 'none')
    encoders.load('i3d', 'none')                    # it is cached: its time does not count
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'clip.mp4')
        write_clip(path, seconds)
        videos = [(str(n), path) for n in range(clips)]
        began = time.perf_counter()
        extract.extract(videos, {'': Path(folder, 'i3d')}, info, workers=1)
        took = time.perf_counter() - began
    print(f'extract     I3D, {info["sampling"]}: {clips} clips of {seconds} seconds in {took:.1f} '
          f'seconds, {clips * seconds / took:.1f} times real time')


if __name__ == '__main__':
    others = {'sharing': bench_sharing, 'rewards': bench_rewards, 'extract': bench_extract}
    flags = [word for word in sys.argv[1:] if word == '--record']
    names = [word for word in sys.argv[1:] if word not in flags] or [*SIZES, *others]
    if len(names) > 1:
        for name in names:
            subprocess.run([sys.executable, __file__, name, *flags], check=True)
    elif names[0] in others:
        others[names[0]]()
    else:
        bench_model(names[0], record=bool(flags))
