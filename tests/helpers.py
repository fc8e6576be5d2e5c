"""Set-up that several test files share: sizes, random batches, larger weights, damaged files."""
import os
import random

import torch

import data
from data import EOS, PAD


def sizes(feats, vocab=7, frames=4, **more):
    """Sizes with a small vocabulary. feats: name -> shape of one frame's feature"""
    return data.Sizes(feats=feats, vocab=vocab, frames=frames, **more)


def scale_up(model, factor=4.0):
    """Random weights are small, and small weights hide mistakes: multiply them all."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)


def padded(shape, frames):
    """Random features (N, F, *shape) that are 0 on padding frames, and their mask (N, F)"""
    frames = torch.tensor(frames)
    mask = torch.arange(frames.max())[None] < frames[:, None]
    values = torch.randn(*mask.shape, *shape)
    return values * mask.view(*mask.shape, *[1] * len(shape)), mask


def batch(shapes, frames=(3, 1, 4), rows=(0, 0, 1, 2), lengths=(3, 1, 4, 2), vocab=7):
    """A batch of len(frames) videos with one caption per entry of `rows`. shapes: name -> shape of
    one frame; frames: number of frames per video, or name -> such numbers; lengths: words"""
    feats = {}
    mask = {}
    for name, shape in shapes.items():
        of_this = frames[name] if isinstance(frames, dict) else frames
        feats[name], mask[name] = padded(shape, of_this)
    captions = torch.randint(2, vocab, (len(rows), max(lengths) + 1))
    for row, words in enumerate(lengths):
        captions[row, words] = EOS
        captions[row, words + 1:] = PAD
    videos = len(next(iter(mask.values())))
    return {
        'feats': feats,
        'mask': mask,
        'captions': captions,
        'rows': torch.tensor(rows),
        'caption_ids': torch.arange(len(rows)),
        'ids': [chr(ord('a') + i) for i in range(videos)],
        'category': torch.arange(videos) % 3,
    }


TRIES = int(os.environ.get('FUZZ', 60))                 # damaged files per fuzzer; FUZZ=1000: many
HOSTILE = [b'', b'\0', b'\xff\xfe', b'\r', b'\r\n', b'\n', b'\t', b'"', b'../../x', b'-1', b'0',
           b'NaN', b'1e300', b'9' * 400, b'[' * 5000, b'{}', b'null', b'[]', b'...',
           b'\xf0\x9f\x99\x82', b'\xe2\x80\xa8', b'\\ud800', b',', b'#', b'True', b'PK\x03\x04',
           b'A' * 70_000]


def damaged(content, seed):
    """The content of a file with one to three places cut, doubled, overwritten or replaced"""
    rng = random.Random(seed)
    for _ in range(rng.randint(1, 3)):
        first, last = sorted(rng.choices(range(len(content) + 1), k=2))
        if rng.random() < 0.7:
            last = min(last, first + rng.randint(0, 8))
        piece = rng.choice([b'', content[first:last] * 2, rng.randbytes(last - first),
                            rng.choice(HOSTILE), rng.choice(HOSTILE)])
        content = content[:first] + piece + content[last:]
    return content


@torch.no_grad()
def clip_features(frames):
    """uint8 (F, H, W, 3) of any size -> float32 (F, 7, 7, 64), the features `clip` of shapes"""
    from shapes import networks                         # not needed by the graders of exercises
    small = networks.shrink(frames)[None]
    return networks.load_clip_cnn()(networks.triples(small)).movedim(1, -1).contiguous()


def one_video(batch, i):
    """The batch with video i only, cut to its own length, and its captions"""
    rows = batch['rows'] == i
    one = {name: batch[name][i:i + 1] for name in ('ids', 'category', 'labels') if name in batch}
    one |= {name: batch[name][rows] for name in ('captions', 'caption_ids')}
    one |= {'rows': torch.zeros_like(one['caption_ids']), 'feats': {}, 'mask': {}}
    for name, mask in batch['mask'].items():
        one['feats'][name] = batch['feats'][name][i:i + 1, mask[i]]
        one['mask'][name] = mask[i:i + 1, mask[i]]
    return one
