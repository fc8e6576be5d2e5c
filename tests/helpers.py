"""Set-up that several test files share: sizes, random batches, larger weights."""
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
