"""Pictures of what a model looked at while it spoke.

The chosen caption is replayed through decode.teacher_force, which returns the weights of every attention in `aux`; VIEWS says for
each paper which of them are over time, over space, or a few numbers per word.

Letters: T words, F frames, Y X rows and columns of the grid, L = Y*X.
"""
import math
from pathlib import Path

import numpy as np
import torch

import data
import decode
import shapes
from data import BadInput

# paper -> attention over frames (T, F), over space (T, L) or both (T, F, L); numbers per word (T,) or (T, n) with their names
VIEWS = {
    'stats': dict(time='ts_frames', space='ts_space', bars={'mix': ('ST', 'TS')}),
    'sta': dict(both='space', bars={'gate': ('gate',)}),
    'vre': dict(time='frames', space='space', bars={}),
    'astar': dict(both='space', bars={'layers': ('pool2', 'pool3', 'pool4', 'pool5')}),
}


@torch.no_grad()
def replay(model, batch, vocabulary, caption):
    """A batch of one video and its caption (str) -> words and <eos>, aux as numpy arrays (T, ...)"""
    words = torch.tensor([vocabulary.encode(caption, model.cfg.max_len)], device=next(model.parameters()).device)
    _, aux = decode.teacher_force(model, *model.encode(batch), words)
    return caption.split()[:model.cfg.max_len] + ['<eos>'], {name: value[0].float().cpu().numpy() for name, value in aux.items()}


def over_time_and_space(name, aux):
    """-> weights of the frames (T, F) or None, maps (T, Y, X) of the strongest frame or None, {name: numbers (T, n)}"""
    view = VIEWS[name]
    if 'both' in view and view['both'] in aux:
        both = aux[view['both']].reshape(*aux[view['both']].shape[:2], -1)                  # (T, F, L)
        time = both.sum(2)
        space = both[np.arange(len(both)), time.argmax(1)]                                  # (T, L)
    else:
        time, space = aux.get(view.get('time')), aux.get(view.get('space'))
    if space is not None:
        side = math.isqrt(space.shape[1])
        space = space.reshape(len(space), side, -1) if side * side == space.shape[1] and side > 1 else None
    return time, space, {name: aux[name].reshape(len(aux[name]), -1) for name in view['bars'] if name in aux}


def frames_of(corpus, video):
    """uint8 (F, H, W, 3) where the frames can be had: shapes are rendered again"""
    return shapes.render(shapes.scene(video)) if corpus.name == 'shapes' else None


def one_caption(model, corpus, features, vocabulary, captions, path, device, video=None):
    """Draws one video's caption, word by word: the frame looked at most with the map over it, the weights of all frames, and the
    paper's own numbers. captions: id -> str. -> path"""
    import matplotlib
    matplotlib.use('Agg')                                   # no screen needed
    import matplotlib.pyplot as plt
    video = video or max(captions, key=lambda i: len(captions[i].split()))
    batch = data.to(data.Batches(corpus, features).collate([(video, [])]), device)
    words, aux = replay(model, batch, vocabulary, captions[video])
    time, space, bars = over_time_and_space(type(model).__module__, aux)
    frames = frames_of(corpus, video)
    rows = (frames is not None and time is not None) + (time is not None) + len(bars)
    figure, axes = plt.subplots(rows, 1, figsize=(1.15 * len(words) + 1.2, 1.6 * rows + 0.8), layout='constrained', squeeze=False)
    axes = list(axes[:, 0])
    if frames is not None and time is not None:
        axis, side = axes.pop(0), frames.shape[1]
        for t, word in enumerate(words):
            if time[t].sum() == 0:                          # a word that looked at nothing
                continue
            best = int(time[t].argmax() * len(frames) / time.shape[1])
            extent = (t * 1.04 * side, (t * 1.04 + 1) * side, side, 0)
            axis.imshow(frames[best], extent=extent)
            if space is not None:
                axis.imshow(space[t], extent=extent, cmap='inferno', alpha=0.55, interpolation='bilinear')
            axis.text(extent[0] + 3, 12, f'frame {best + 1}', color='white', fontsize=7)
        axis.set(xlim=(0, len(words) * 1.04 * side), ylim=(side, 0), yticks=[])
        axis.set_xticks([(t * 1.04 + 0.5) * side for t in range(len(words))])
        axis.set_xticklabels(words)
        axis.set_ylabel('looked at')
    if time is not None:
        axis = axes.pop(0)
        axis.imshow(time.T, aspect='auto', cmap='viridis', origin='lower')
        axis.set(xticks=range(len(words)), ylabel='frame')
        axis.set_xticklabels(words)
    for name, values in bars.items():
        axis = axes.pop(0)
        bottom, labels = np.zeros(len(words)), VIEWS[type(model).__module__]['bars'][name]
        for value, label in zip(values.T, labels):
            axis.bar(range(len(words)), value, bottom=bottom, label=label, width=0.8)
            bottom = bottom + value
        axis.set(xlim=(-0.5, len(words) - 0.5), ylim=(0, 1.02), xticks=range(len(words)), ylabel=name)
        axis.set_xticklabels(words)
        axis.legend(fontsize=7, loc='upper right', ncols=len(labels))
    figure.suptitle(f'{video}: {captions[video]}\nreference: {corpus.captions[video][0]}', fontsize=10)
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise BadInput(f'cannot write {path}: {error}') from None
    plt.close(figure)
    return Path(path)
