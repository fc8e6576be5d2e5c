"""Pictures of what a model looked at while it spoke.

The chosen caption is replayed through decode.teacher_force, which returns the weights of every attention in `aux`; VIEWS says for
each paper which of them are over time, over space, or a few numbers per word. Every figure is a list of Blocks, one for each run,
and a Block is text and Tiles, one for each word; so runs of different papers can be compared on one video.

Letters: T words, F frames, Y X rows and columns of the grid, L = Y*X.
"""
import base64
import io
import json
import math
import textwrap
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import data
import decode
import shapes
from data import BadInput

# paper -> attention over frames (T, F) and over space (T, L) (the first that the variant has), or over both at once (T, F, L);
# numbers per word (T,) or (T, n), with their names; parts of the clip of which a figure shows the strongest frame; its legend
LOOKED = '  bright: where each frame is looked at most'
MOST = 'above each word: the frame that it looks at most, bright where it looks; strip: the weight of every frame'
VIEWS = {
    'stats': dict(time=('ts_frames', 'st_frames'), space=('ts_space', 'st_space'), bars={'mix': ('ST', 'TS')}, legend=MOST),
    'sta': dict(both='space', bars={'gate': ('gate',)}, parts=4, legend='above each word: of each quarter of the clip the frame '
                'that it looks at most, as bright as its weight; strip: the weight of every frame'),
    'vre': dict(time=('frames',), space=('space',), bars={}, legend=MOST),
    'astar': dict(both='space', bars={'layers': ('pool2', 'pool3', 'pool4', 'pool5')}, legend=MOST),
}
WIDTH, HEIGHT, DPI = 1600, 900, 110                         # pixels of a slide, pixels per inch of text
MARGIN, GAP, LINE = 16, 8, 22                               # pixels around a figure, between tiles, of a line of text
COLOURS = ('tab:blue', 'tab:orange', 'tab:green', 'tab:red')
CURVES = {'loss': 'training loss', 'val_loss': 'validation loss per word', 'val_CIDEr': 'validation CIDEr',
          'val_accuracy': 'validation accuracy', 'val_mAP': 'validation mAP', 'val_slots': 'validation slot accuracy'}
KEYS = ('darkgoldenrod', 'red')                                 # vre: the default key frame, the refocused one


@torch.no_grad()
def replay(model, batch, vocabulary, caption):
    """A batch of one video and its caption (str) -> words and <eos>, aux as numpy arrays (T, ...)"""
    words = torch.tensor([vocabulary.encode(caption, model.cfg.max_len)], device=next(model.parameters()).device)
    _, aux = decode.teacher_force(model, *model.encode(batch), words)
    return caption.split()[:model.cfg.max_len] + ['<eos>'], {name: value[0].float().cpu().numpy() for name, value in aux.items()}


def over_time_and_space(name, aux):
    """-> weights of the frames (T, F) or None, of the regions (T, F, L) within each frame or None, {name: numbers (T, n)}"""
    view = VIEWS[name]
    bars = {name: aux[name].reshape(len(aux[name]), -1) for name in view['bars'] if name in aux}
    time, space = (next((aux[name] for name in view.get(key, ()) if name in aux), None) for key in ('time', 'space'))
    both = aux.get(view.get('both'), time)
    if both is not None and both.ndim > 2:                                                  # stats has such weights in one pool
        both = both.reshape(*both.shape[:2], -1)                                            # (T, F, L), sums to one over both
        time = both.sum(2)
        return time, both / np.maximum(time[..., None], 1e-9), bars
    if space is not None and space.ndim == 2:                                               # one map for all frames
        space = np.repeat(space[:, None], 1 if time is None else time.shape[1], axis=1)
    return time, space, bars


def square(cells):
    """(L,) -> (Y, X), or None where the regions form no grid"""
    side = math.isqrt(len(cells))
    return cells.reshape(side, side) if side > 1 and side * side == len(cells) else None


def spotlight(frame, lit, most):
    """uint8 (H, W, 3), weights (Y, X), the weight of full light -> the frame, dark where nothing was looked at"""
    lit = torch.from_numpy(np.ascontiguousarray(lit / most)).float()[None, None]
    lit = torch.nn.functional.interpolate(lit, frame.shape[:2], mode='bilinear')[0, 0].numpy()
    return (frame * (0.3 + 0.7 * lit[..., None])).astype(np.uint8)


def frames_of(corpus, video):
    """uint8 (F, H, W, 3) where the frames can be had: shapes are rendered again"""
    return shapes.render(shapes.scene(video)) if corpus.name == 'shapes' else None


def save_figure(figure, path):
    import matplotlib.pyplot as plt
    try:
        figure.savefig(path, dpi=DPI)
    except OSError as error:
        raise BadInput(f'cannot write {path}: {error}') from None
    plt.close(figure)


# ---------------------------------------------------------------- figures: blocks under one another, tiles side by side

@dataclass
class Tile:
    """What belongs to one word or one clip, from top to bottom: bars, pictures side by side, weights of all frames, a label"""
    label: str = ''
    bars: tuple = ()                                        # numbers from 0 to 1
    pictures: list = field(default_factory=list)            # uint8 (H, W, 3)
    numbers: list = field(default_factory=list)             # the frame that each picture shows, from 1
    edges: dict = field(default_factory=dict)               # frame -> colours of the lines around it, from outside
    when: object = None                                     # weights (F,), drawn as a strip

    def sizes(self, side):
        """side: width of a picture -> width of the tile, heights of its bars, pictures, strip and label, all in pixels"""
        tall = round(side * self.pictures[0].shape[0] / self.pictures[0].shape[1]) if self.pictures else 0
        strip = 0 if self.when is None else 10 if tall else 40
        return (len(self.pictures) or 1) * side, (52 if self.bars else 0, tall, strip, LINE if self.label else 0)


@dataclass
class Block:
    lines: list                                             # of text: each a list of (words, colour)
    strip: Tile = None                                      # in a row of its own
    tiles: list = field(default_factory=list)


def arrange(blocks, side):
    """Blocks, width of a picture -> [(line or Tile, x, y, width of its pictures)], width, height of the figure, all in pixels"""
    placed, right, y, room = [], 900, MARGIN, WIDTH - 2 * MARGIN
    for block in blocks:
        for line in block.lines:
            placed.append((line, MARGIN, y, 0))
            y += LINE
        for tiles in ([block.strip] if block.strip else [], block.tiles):
            x, deep = MARGIN, 0
            for tile in tiles:
                one = min(side, room // max(len(tile.pictures), 1)) if tile.pictures or tile is not block.strip else room
                wide, heights = tile.sizes(one)
                if x + wide > WIDTH - MARGIN:               # the next row
                    x, y, deep = MARGIN, y + deep, 0
                placed.append((tile, x, y, one))
                x, deep, right = x + wide + GAP, max(deep, sum(heights) + GAP), max(right, x + wide)
            y += deep
        y += MARGIN // 2
    return placed, right + MARGIN, y + MARGIN // 2


def write(axis, x, y, text, width, size=11, **how):
    """Text in pixels of the figure, smaller where it would be wider than `width` -> x of its end"""
    written = axis.text(x, y, text, fontsize=size, parse_math=False, **how)
    while (extent := written.get_window_extent()).width > width and size > 1:
        size *= max(0.98 * width / extent.width, 0.5)
        written.set_fontsize(size)
    return extent.x1


def draw_tile(axis, tile, x, y, side):
    from matplotlib.patches import Rectangle
    wide, (bars, tall, strip, _) = tile.sizes(side)
    each = (wide - GAP) / max(len(tile.bars), 1)
    for i, value in enumerate(tile.bars if any(tile.bars) else ()):
        left, top = x + GAP / 2 + i * each, y + bars - 2 - value * 32
        axis.add_patch(Rectangle((left, top), each - 3, value * 32, color=COLOURS[i]))
        write(axis, left + each / 2 - 1.5, top - 1, f'{value:.2f}'.removeprefix('0'), each - 1, 7, ha='center', va='bottom')
    y += bars
    for i, picture in enumerate(tile.pictures):
        left = x + i * side
        axis.imshow(picture, extent=(left, left + side - 2, y + tall - 2, y), aspect='auto')
        if i < len(tile.numbers):
            axis.text(left + 3, y + 3, tile.numbers[i], fontsize=7, color='white', va='top',
                      bbox=dict(facecolor='black', alpha=0.5, pad=1, linewidth=0))
            for n, colour in enumerate(tile.edges.get(tile.numbers[i], ())):
                inner = 2 + 5 * n
                axis.add_patch(Rectangle((left + inner, y + inner), side - 2 - 2 * inner, tall - 2 - 2 * inner, fill=False,
                                         edgecolor=colour, linewidth=3.5))
    y += tall
    if tile.when is not None:
        axis.imshow(tile.when[None], extent=(x, x + wide - 2, y + strip - 2, y), aspect='auto', cmap='viridis', vmin=0)
    write(axis, x + wide / 2, y + strip, tile.label, wide - 4, ha='center', va='top')


def draw(blocks, path):
    """list of Block -> path of a PNG with pictures as large as a slide allows"""
    import matplotlib
    matplotlib.use('Agg')                                   # no screen needed
    import matplotlib.pyplot as plt
    most = max(sum(len(tile.pictures) or 1 for tile in block.tiles) for block in blocks)
    rows = max(math.ceil(most / 12), 1)
    in_a_row = max(math.ceil(most / rows), 1)               # rows of at most 12, all about as long
    for side in range(min((WIDTH - 2 * MARGIN) // in_a_row - GAP, 200), 59, -2):
        placed, width, height = arrange(blocks, side)
        if height <= HEIGHT * max(len(blocks) / 4, 1):      # three runs and the clip fit a slide, more make it higher
            break
    figure = plt.figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    axis = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0), autoscale_on=False)      # in pixels
    axis.axis('off')
    for what, x, y, one in placed:
        if isinstance(what, Tile):
            draw_tile(axis, what, x, y, one)
            continue
        for words, colour in what:
            x = write(axis, x, y, words, width - MARGIN - x, color=colour, va='top') + GAP
    save_figure(figure, path)
    return Path(path)


def paragraph(text, colour):
    """-> lines of a Block"""
    return [[(line, colour)] for line in textwrap.wrap(text, 150)]


def spread(items, n):
    """At most n of the items, evenly spaced"""
    n = min(n, len(items))
    return [items[i * len(items) // n] for i in range(n)]


def moment(step, steps, frames):
    """One of the model's steps in time -> the frame, of so many, at its middle"""
    return int((step + 0.5) * frames / steps)


def pictures(frames, chosen, steps, maps):
    """frames (F, H, W, 3) or None; some of the model's steps, and a map (Y, X) for each -> fields of a Tile. The brightest place
    of them all is as bright as its frame. Without frames the maps are laid over white; maps of one place are then left out."""
    if frames is None and max(lit.size for lit in maps) == 1:
        return {}
    frames = np.full((steps, 96, 96, 3), 255, np.uint8) if frames is None else frames
    shown, most = [moment(step, steps, len(frames)) for step in chosen], max(lit.max() for lit in maps)
    return dict(pictures=[spotlight(frames[n], lit, most) for n, lit in zip(shown, maps)], numbers=[n + 1 for n in shown])


def on_grid(cells):
    """(L,) -> (Y, X), or (1, 1) where the regions form no grid"""
    found = square(cells)
    return cells.sum().reshape(1, 1) if found is None else found


def word_tiles(paper, words, time, space, bars, frames):
    """What over_time_and_space() found -> a Tile for each word, with the frame that it looked at most; for sta the one of each
    quarter of the clip. A word that looked at nothing has an empty picture."""
    tiles = []
    for t, word in enumerate(words):
        weights = np.ones(1) if time is None else time[t]   # one map for all frames is laid over the middle one
        numbers = [value for values in bars.values() for value in values[t]]
        parts = np.array_split(np.arange(len(weights)), min(VIEWS[paper].get('parts', 1), len(weights)))
        tile = Tile(word, tuple(numbers) if len(numbers) > 1 else ())
        if weights.any():
            chosen = [int(part[weights[part].argmax()]) for part in parts]
            maps = [weights[i] * (np.ones((1, 1)) if space is None else on_grid(space[t, i])) for i in chosen]
            tile = replace(tile, **pictures(frames, chosen, len(weights), maps))
            tile.label += f'   β = {numbers[0]:.2f}' if len(numbers) == 1 else ''           # the gate of sta
        elif frames is not None or space is not None:
            shape = (96, 96, 3) if frames is None else frames[0].shape
            tile.pictures, tile.numbers = [np.full(shape, 235, np.uint8)], ['nothing']
        tile.when = weights if len(weights) > 1 else None
        tiles.append(tile)
    return tiles


def clip_strip(frames, steps, maps=None, also=(), **fields):
    """At most 16 frames of the clip, and these also, with maps (steps, L) over them if there are some -> Tile or None"""
    read = [i for i in range(steps) if maps is None or maps[i].any()]
    chosen = sorted({*spread(read, 16), *also})
    lit = [np.ones((1, 1)) if maps is None else on_grid(maps[i] / maps[i].max()) for i in chosen]
    tile = Tile(**pictures(frames, chosen, steps, lit), **fields)
    return tile if tile.pictures or tile.when is not None else None


@torch.no_grad()
def say(model, batch, vocabulary, beam):
    """A batch of one video -> its caption, the words and <eos>, their aux"""
    words, _ = decode.beam(model, *model.encode(batch), model.cfg.max_len, beam)
    caption = vocabulary.decode(words[0].tolist())
    return caption, *replay(model, batch, vocabulary, caption)


def say_twice(model, batch, vocabulary, beam):
    """vre -> what it says after the first and after the second watching"""
    asked, spoken = model.cfg.step, []
    for step in (1, 2):
        model.cfg.step = step
        spoken.append(say(model, batch, vocabulary, beam))
    model.cfg.step = asked
    return spoken


def recogniser_block(title, model, corpus, video, batch, frames):
    """Figures 2.2 and 2.3 of sta: where each frame was looked at, and the class"""
    with torch.no_grad():
        probability, aux = model.predict(batch)
    best = probability[0].argmax().item()
    colour = 'tab:green' if best in corpus.labels[video] else 'tab:red'
    block = Block([[(f'{title}:', 'black'), (f'{corpus.classes[best]} ({probability[0, best]:.2f})', colour)]])
    if 'space' in aux and aux['space'].any():
        maps = aux['space'][0].cpu().numpy()
        block.strip = clip_strip(frames, len(maps), maps)
    return block


def captioner_block(title, model, vocabulary, batch, frames, beam):
    """Figures 3 of astar, 3.2 to 3.4 of sta, 6 and 10 of stats, 3 and 4 of vre"""
    paper = type(model).__module__
    caption, words, aux = say(model, batch, vocabulary, beam)
    time, space, bars = over_time_and_space(paper, aux)
    if len(model.cfg.feats[model.cfg.features[0]]) < 3:     # a single region, or regions without a fixed place
        space = None
    block, legend = Block(paragraph(f'{title}: {caption}', 'black')), []
    if time is not None or space is not None:
        block.tiles = word_tiles(paper, words[:-1], time, space, bars, frames)
        drawn = any(tile.pictures for tile in block.tiles)
        legend.append('above each word: the weight of every frame, from the first to the last' if not drawn else
                      'above each word: its map, the same for all frames' if time is None else VIEWS[paper]['legend'])
    if 'key' in aux:
        twice = 'focus' in aux and model.cfg.stage != 'warm'
        spoken = say_twice(model, batch, vocabulary, beam) if twice else [(caption, words, aux)]
        keys, steps = [seen['key'][0].argmax() for _, _, seen in spoken], aux['key'].shape[1]
        shown = [moment(key, steps, steps if frames is None else len(frames)) + 1 for key in keys]
        block.lines = [line for step, (number, (said, _, _), colour) in enumerate(zip(shown, spoken, KEYS), 1)
                       for line in paragraph(f'{title}, step {step}, key frame {number}: {said}', colour)]
        edges = {number: [colour for other, colour in zip(shown, KEYS) if other == number] for number in shown}
        block.strip = clip_strip(frames, steps, also=keys, edges=edges, when=aux['focus'][0] if twice else None)
        legend.append('framed: the frame that the clip is read from' + twice *
                      f', by default and refocused; strip: how much each frame is the key; words: step {model.cfg.step}')
    block.lines += [[(text, 'dimgrey')] for text in legend]
    for name, values in bars.items():
        if values.shape[1] > 1:
            block.lines.append([('bars: the weights of', 'dimgrey'), *zip(VIEWS[paper]['bars'][name], COLOURS)])
    return block


def draw_video(runs, corpus, video, path, device, beam=None, frames=None):
    """One video under one or several runs, each in the manner of its paper -> path. runs: [(title, model, vocabulary or None,
    features)]; beam: its width, else each run's own; frames: uint8 (F, H, W, 3), where the corpus does not tell them"""
    frames, blocks = frames_of(corpus, video) if frames is None else frames, []
    if frames is not None:
        every = max(frames.shape[1] // 200, 1)              # a picture has no more pixels
        frames = frames[:, ::every, ::every]
    for title, model, vocabulary, features in runs:
        mine = {name: features[name] for name in model.cfg.features}
        batch = data.to(data.Batches(corpus, mine).collate([(video, [])]), device)
        if vocabulary is None:
            blocks.append(recogniser_block(title, model, corpus, video, batch, frames))
        else:
            blocks.append(captioner_block(title, model, vocabulary, batch, frames, beam or model.cfg.beam))
        earlier = [line for block in blocks[:-1] for line in block.lines]
        blocks[-1].lines = [line for line in blocks[-1].lines if line not in earlier]       # a legend is told once
    head = Block([[(video, 'black')]])
    kinds = {vocabulary is None for _, _, vocabulary, _ in runs}
    if True in kinds:
        true = ' and '.join(corpus.classes[c] for c in corpus.labels[video])
        head.lines = [[(f'{video}, true class:', 'black'), (true, 'tab:green'), (LOOKED, 'dimgrey')]]
    if False in kinds:
        head.lines += [line for said in corpus.captions.get(video, [])[:2] for line in paragraph(f'reference: {said}', 'dimgrey')]
    if frames is not None and not all(block.strip and block.strip.edges for block in blocks):
        head.strip = clip_strip(frames, len(frames))
    return draw([head, *blocks], path)


def draw_glimpse(found, corpus, video, path):
    """Figure 2.8 of sta, from what sta.glimpse() found: where the model looks as it learned, at random, and at the end -> path"""
    frames, right = frames_of(corpus, video), corpus.labels[video][0]
    head = [(f'{video}, true:', 'black'), (corpus.classes[right], 'tab:green'), (LOOKED, 'dimgrey')]
    blocks = [Block([head])]
    if frames is not None:
        blocks[0].strip = clip_strip(frames, len(frames))
    for name, best in zip(('learned', 'random', 'found'), found['predicted']):
        maps = found[name].cpu().numpy()
        after = f'{"" if best == right else "not "}found at step {found["steps"]}' if name == 'found' else name
        line = [(f'{after}:', 'black'), (corpus.classes[best], 'tab:green' if best == right else 'tab:red')]
        blocks.append(Block([line], clip_strip(frames, len(maps), maps)))
    return draw(blocks, path)


def read_log(path):
    """log.jsonl -> [[epoch, epoch, ...], ...]: a list for each stage or new start. A last line that was cut off is left out."""
    try:
        lines = Path(path).read_text(errors='replace').splitlines()
    except OSError:
        raise BadInput(f'{path}: there is no log; train.py writes one into the folder of a run') from None
    parts = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            if 'args' in entry:                             # the head of a start; a run that was resumed has several
                continue
            follows = parts and entry.get('stage') == parts[-1][-1].get('stage') and entry['epoch'] > parts[-1][-1]['epoch']
        except (ValueError, KeyError, TypeError, AttributeError):
            if number == len(lines):
                break
            raise BadInput(f'{path}, line {number}: expected an epoch of train.py, found {line[:60]!r}') from None
        parts[-1].append(entry) if follows else parts.append([entry])
    if not parts:
        raise BadInput(f'{path}: no epoch was finished yet')
    return parts


def draw_curves(runs, path):
    """The training of some runs (folders, or files in them): a panel for each measure, a colour for each run -> path"""
    import matplotlib
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    folders = [Path(run) if Path(run).is_dir() else Path(run).parent for run in runs]
    logs = [read_log(folder / 'log.jsonl') for folder in folders]
    found = {name for log in logs for part in log for epoch in part for name in epoch}
    panels, staged = [name for name in CURVES if name in found], [n for n, log in enumerate(logs) if 'stage' in log[0][0]]
    figure, axes = plt.subplots(1, len(panels), figsize=(WIDTH / DPI, 450 / DPI), layout='constrained', squeeze=False)
    for axis, name in zip(axes[0], panels):
        for n, (folder, log) in enumerate(zip(folders, logs)):
            before = 0                                      # epochs of earlier stages
            for part in log:
                axis.plot([before + epoch['epoch'] for epoch in part], [epoch.get(name, math.nan) for epoch in part], '.-',
                          color=f'C{n}', label=None if before else folder.resolve().name)
                if n in staged:
                    axis.axvline(before + 0.5, color=f'C{n}', linewidth=0.8, linestyle=':')
                    axis.text(before + 0.6, 0.99 - 0.15 * staged.index(n), part[0]['stage'], color=f'C{n}', fontsize=8, va='top',
                              rotation=90, transform=axis.get_xaxis_transform())
                before += part[-1]['epoch']
        low, high = axis.get_ylim()
        axis.set(title=CURVES[name], xlabel='epoch', ylim=(low, high + 0.2 * len(staged) * (high - low)))     # names over curves
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    save_figure(figure, path)
    return Path(path)


def cells_in(box, side):
    """Box [x0, y0, x1, y1] in pixels or None -> (side * side,) of 0 and 1: the cells of the grid that it touches"""
    if box is None:
        return np.zeros(side * side)
    edge = np.arange(side) * shapes.SIDE / side
    touched = lambda low, high: (edge + shapes.SIDE / side > low) & (edge < high)
    return np.outer(touched(box[1], box[3]), touched(box[0], box[2])).ravel().astype(float)


def grounding(model, corpus, features, vocabulary, captions, device):
    """Attention against the truth of the embedded world -> {word class: {measure: mean over its words}}:
    box, the share of the spatial attention on cells that the shape's box touches, and its chance, the share under even attention;
    window, the share of the temporal attention in the frames of the action, and its chance; and the paper's own numbers (weights
    of ST and TS, of the layers, the gate), which articles have too. The subject's and the verb's box is the first shape's, the
    object's the second's; only words that the caption gets right count.
    And the paper's own numbers by position -> {name: [mean at the first word, ...]}, as far as a tenth of the captions goes."""
    found, positions = {}, {}
    for video, caption in captions.items():
        truth = corpus.truth[video]
        right = shapes.slots_right(caption, truth)
        batch = data.to(data.Batches(corpus, features).collate([(video, [])]), device)
        words, aux = replay(model, batch, vocabulary, caption)
        time, space, bars = over_time_and_space(type(model).__module__, aux)
        numbers = {label: row for name, values in bars.items()
                   for label, row in zip(VIEWS[type(model).__module__]['bars'][name], values.T)}                # (T,) each
        for t, (word, role) in enumerate(zip(words, shapes.word_roles(caption, truth))):
            for label, row in numbers.items():
                positions.setdefault((label, t), []).append(row[t])
            role = 'verb' if role == 'direction' else 'article' if word in ('a', 'the') else role
            if role not in ('subject', 'verb', 'object', 'article'):
                continue
            if role != 'article' and not right['action' if role == 'verb' else role]:
                continue
            mine = found.setdefault(role, {'box': [], 'box chance': [], 'window': [], 'window chance': []})
            for label, row in numbers.items() if any(row[t] for row in numbers.values()) else ():       # not if it looked nowhere
                mine.setdefault(label, []).append(row[t])
            if role == 'article':
                continue
            steps = shapes.STEPS if time is None else time.shape[1]
            covered = np.array_split(np.arange(shapes.STEPS), steps)                            # the clip's frames at each step
            if space is not None and square(space[t, 0]) is not None:
                boxes, maps = truth['boxes'][role == 'object'], np.broadcast_to(space[t], (steps, space.shape[2]))
                inside = [cells_in(box, math.isqrt(space.shape[2])) for box in boxes]
                inside = np.stack([np.max([inside[frame] for frame in frames], 0) for frames in covered])       # (F, L)
                weight = inside.any(1) * (np.ones(steps) if time is None else time[t])          # given that the shape is there
                weight = weight / max(weight.sum(), 1e-9)
                mine['box'].append((weight * (maps * inside).sum(1)).sum())
                mine['box chance'].append((weight * inside.mean(1)).sum())
            if time is not None and steps > 1:
                first, last = truth['window']
                window = np.array([np.mean((first <= frames) & (frames <= last)) for frames in covered])
                mine['window'].append((time[t] * window).sum())
                mine['window chance'].append(window.mean())
    means = {role: {name: float(np.mean(values)) for name, values in row.items() if values} for role, row in found.items()}
    by_position = {}
    for (label, t), values in sorted(positions.items()):
        if 10 * len(values) >= len(captions):
            by_position.setdefault(label, []).append(float(np.mean(values)))
    return means, by_position


@torch.no_grad()
def glimpses(model, corpus, features, device):
    """A recogniser on shapes: the share of its attention on the cells that the acting shape's box touches, over the frames that
    show it, and the share under even attention -> {name: mean over clips}, empty for a model that does not attend"""
    shares = {'box': [], 'box chance': []}
    for batch in data.Batches(corpus, features, videos=32).in_order():
        space = model.predict(data.to(batch, device))[1].get('space')
        if space is None or square(space[0, 0]) is None or not space.any():
            return {}
        for video, maps in zip(batch['ids'], space.cpu().numpy()):                              # (F, L)
            boxes, when = corpus.truth[video]['boxes'][0], np.arange(len(maps)) * shapes.STEPS // len(maps)
            inside = np.stack([cells_in(boxes[frame], math.isqrt(maps.shape[1])) for frame in when])
            seen = inside.any(1)
            shares['box'].append((maps * inside).sum(1)[seen].mean())
            shares['box chance'].append(inside.mean(1)[seen].mean())
    return {name: float(np.mean(values)) for name, values in shares.items()}


@torch.no_grad()
def key_frames(model, corpus, features, device):
    """VRE on shapes: how often the refocused key frame lies in the window of the action, how often the middle frame (the default
    key) does, and the chance of any frame -> {name: share}, empty for a model that does not refocus"""
    hits = {'refocused key': [], 'middle frame': [], 'chance': []}
    for batch in data.Batches(corpus, features, videos=32).in_order():
        memory, _ = model.encode(data.to(batch, device))
        if 'focus' not in memory:
            return {}
        for video, key in zip(batch['ids'], memory['focus'].argmax(1).tolist()):
            first, last = corpus.truth[video]['window']
            hits['refocused key'].append(first <= key <= last)
            hits['middle frame'].append(first <= shapes.STEPS // 2 <= last)
            hits['chance'].append((last - first + 1) / shapes.STEPS)
    return {name: float(np.mean(values)) for name, values in hits.items()}


def slot_table(captions, truth):
    """-> {group of clips or slot: share of slots named rightly}"""
    right = {video: shapes.slots_right(caption, truth[video]) for video, caption in captions.items()}
    simple = lambda video: truth[video]['slots']['action']
    actions = {'order-only actions': lambda v: truth[v]['order_only'], 'directions': lambda v: simple(v) in shapes.DIRECTIONS,
               'other actions': lambda v: not truth[v]['order_only'] and simple(v) not in shapes.DIRECTIONS}
    rows = {name: [right[v]['action'] for v in captions if belongs(v)] for name, belongs in actions.items()}
    for slot in ('subject', 'colour', 'object', 'object colour'):
        rows[slot] = [slots[slot] for slots in right.values() if slot in slots]
    rows |= {'seen combinations': [ok for v in captions if not truth[v]['held_out'] for ok in right[v].values()],
             'held-out combinations': [ok for v in captions if truth[v]['held_out'] for ok in right[v].values()]}
    return {name: float(np.mean(values)) for name, values in rows.items() if values}


def word_classes(captions, skip=5, most=20):
    """Captions (str) -> share of verbs, nouns and adjectives among the three; the most frequent of these words after the first
    `skip`, as [(word, class, count)] (STaTS, figure 5)"""
    import nltk
    try:
        tagged = nltk.pos_tag_sents([caption.split() for caption in captions], tagset='universal')
    except LookupError:
        raise BadInput("the tagger's model is missing; type: python -c \"import nltk; "
                       "nltk.download('averaged_perceptron_tagger_eng'); nltk.download('universal_tagset')\"") from None
    kinds = {'VERB': 'verb', 'NOUN': 'noun', 'ADJ': 'adjective'}
    counts = Counter((word, kinds[tag]) for sentence in tagged for word, tag in sentence if tag in kinds)
    total = sum(counts.values())
    shares = {kind: sum(n for (_, k), n in counts.items() if k == kind) / max(total, 1) for kind in kinds.values()}
    return shares, [(word, kind, n) for (word, kind), n in counts.most_common()[skip:skip + most]]


def draw_words(shares, words, path):
    """The two charts of figure 5 -> path"""
    import matplotlib
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    colours = {'verb': 'tab:red', 'noun': 'tab:blue', 'adjective': 'tab:green'}
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), layout='constrained', width_ratios=(3, 1))
    left.bar(range(len(words)), [n for _, _, n in words], color=[colours[kind] for _, kind, _ in words])
    left.set(ylabel='times said', xticks=range(len(words)))
    left.set_xticklabels([word for word, _, _ in words], rotation=60, ha='right')
    labels = [f'{kind}s {share:.0%}' for kind, share in shares.items()]
    right.pie(shares.values(), labels=labels, colors=[colours[kind] for kind in shares])
    save_figure(figure, path)
    return Path(path)


# ---------------------------------------------------------------- the page of `evaluate.py --html`: show.html and the data in it

PAGE_VIDEOS = 40                                            # at most: the page has to open at once, on a phone too


def best_to_worst(score, most):
    """id -> number -> at most so many ids, evenly spaced in rank from the best to the worst"""
    ranked = sorted(score, key=score.get, reverse=True)
    return [ranked[i] for i in np.linspace(0, len(ranked) - 1, min(most, len(ranked))).round().astype(int)]


def picture_row(frames):
    """uint8 (F, H, W, 3) -> the frames side by side, as an address that holds the picture itself"""
    from PIL import Image                                   # comes with matplotlib
    file = io.BytesIO()
    Image.fromarray(np.concatenate(frames, axis=1)).save(file, 'JPEG', quality=80)
    return 'data:image/jpeg;base64,' + base64.b64encode(file.getvalue()).decode()


def byte_maps(space):
    """(T, F, L) or None -> bytes of (T, F, L), or (T, 1, L) if all frames share a map, 255 its highest; None without grid"""
    if space is None or square(space[0, 0]) is None:
        return None
    space = space[:, :1] if (space == space[:, :1]).all() else space
    lit = (255 * space / np.maximum(space.max(2, keepdims=True), 1e-9)).round().astype(np.uint8)
    return {'steps': lit.shape[1], 'side': math.isqrt(lit.shape[2]), 'bytes': base64.b64encode(lit.tobytes()).decode()}


def looked_at(model, batch, vocabulary, caption):
    """What the caption's words looked at, in plain values: time (T, F), or None; maps within each frame, and those of
    ST where STaTS has both branches; the paper's own numbers (T, n); VRE's key frame and how it was chosen"""
    words, aux = replay(model, batch, vocabulary, caption)
    paper = type(model).__module__
    time, space, bars = over_time_and_space(paper, aux)
    st = aux['st_space'].reshape(len(words), -1, space.shape[2]) if 'mix' in aux and 'st_space' in aux else None
    return {'words': words, 'time': None if time is None else time.round(4).tolist(),
            'maps': byte_maps(space), 'st_maps': byte_maps(st),
            'numbers': [{'name': name, 'labels': VIEWS[paper]['bars'][name], 'values': values.round(4).tolist()}
                        for name, values in bars.items()],
            'key': int(aux['key'][0].argmax()) if 'key' in aux else None,           # this and the next are the same at every word
            'focus': aux['focus'][0].round(4).tolist() if 'focus' in aux else None}


def page(path, runs, corpus, device):
    """Writes the page -> path. runs: list of {'name', 'model', 'features', 'vocabulary', 'beam', 'scores', 'captions', 'each'},
    the last three as evaluate.evaluate gives them"""
    mean = {video: np.mean([run['each'][video]['CIDEr'] for run in runs]) for video in runs[0]['captions']}
    videos = []
    for video in tqdm(best_to_worst(mean, PAGE_VIDEOS), desc='page', leave=False):
        frames, looks = frames_of(corpus, video), []
        for run in runs:
            batch = data.to(data.Batches(corpus, run['features']).collate([(video, [])]), device)
            caption, scores = run['captions'][video], dict(run['each'][video])
            if corpus.truth:
                scores['slots'] = np.mean(list(shapes.slots_right(caption, corpus.truth[video]).values()))
            looks.append({'scores': scores, **looked_at(run['model'], batch, run['vocabulary'], caption)})
        count, pictures = max((len(look['time'][0]) for look in looks if look['time']), default=1), None
        if frames is not None:
            count, pictures = len(frames), {'picture': picture_row(frames), 'height': frames.shape[1], 'width': frames.shape[2]}
        videos.append({
            'id': video, 'references': corpus.captions[video], 'runs': looks, 'count': count, 'frames': pictures,
            'truth': {name: corpus.truth[video][name] for name in ('boxes', 'window')} if corpus.truth else None})
    about = [{'name': run['name'], 'paper': type(run['model']).__module__, 'variant': getattr(run['model'].cfg, 'variant', ''),
              'beam': run['beam'], 'scores': run['scores']} for run in runs]
    content = {'dataset': corpus.name, 'split': corpus.split, 'total': len(corpus.ids), 'runs': about, 'videos': videos}
    text = json.dumps(content).replace('<', '\\u003c')      # no caption can end the script that holds it
    try:
        Path(path).write_text(Path(__file__).with_name('show.html').read_text('utf-8').replace('>DATA<', f'>{text}<'), 'utf-8')
    except OSError as error:
        raise BadInput(f'cannot write {path}: {error}') from None
    return Path(path)
