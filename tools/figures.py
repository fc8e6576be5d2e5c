"""Figures of what a model looks at while it generates a caption or recognises an action.

`look_at` replays a caption through decode.teacher_force and asks the paper's VIEW for the weights
that reached each word. The figures, the page (page.py) and the measurements (grounding.py) all use
the array that it returns.

VIEW, a dict at the end of a paper's file, says what its pictures show (every entry is optional):
    attention   function: aux of the T words of a caption -> weights (T, F, L) of frames and places,
                or None (default: view_attention in runs.py)
    bars        {name in aux: labels}: numbers to draw for every word, such as the weights of ST and
                TS. If they mix several maps, each map is also drawn alone
    parts       a word shows its best frame of this many parts of the clip (default: 1)
    legend      what stands above the words (default: MOST)
    key, focus  names in aux of the key frame (one-hot) and of its probabilities
    steps       values of cfg.step that are drawn, if a model describes a video several times

A figure is a list of Blocks, one below the other: the clip, then one for each run. A Block is text
and rows of Tiles, such as one Tile for each word. So runs of different papers can be compared.

Letters: T words, F steps in time, L places, Y X rows and columns of places, H W of pixels.
"""
import math
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import data
import decode
from shapes import world
from tools import machine

matplotlib.rcParams['text.parse_math'] = False      # a name may contain $, which is not a formula
WIDTH = 1600                        # pixels of a slide
HEIGHT = 900
DPI = 110                           # pixels per inch
MARGIN = 16                         # pixels around a figure
ROOM = WIDTH - 2 * MARGIN           # pixels between the margins
GAP = 8                             # pixels between tiles
LINE = 22                           # pixels of a line of text
COLOURS = ('blue', 'orange', 'green', 'red')            # of bars
KEYS = ('tab:blue', 'darkgoldenrod')    # of key frames: the default one, the refocused one
MOST = 'Above each word is the frame that it looks at most (the middle one if all are equal). ' \
       'The strip shows the weight of each frame.'
ALIKE = 'Above each word is the middle frame, bright where the word looks. One map serves the ' \
        'whole clip.'
STRIPS = 'The strip above each word shows the weight of every frame, from the first to the last.'
RECOGNISED = 'Each frame is bright where the model looks.'


# ------------------------------------------------------- what was looked at
@dataclass
class Look:
    """What the words of a caption looked at. A recogniser has a single word, the class."""
    caption: str
    words: list                                 # of the caption, and <eos>
    weights: object = None                      # (T, F, Y, X); None without attention
    parts: dict = field(default_factory=dict)   # label -> (T, F, Y, X): if weights are a mixture
    labels: tuple = ()                          # names of the paper's own numbers
    numbers: object = None                      # (T, n)
    key: int = None                             # the key frame
    focus: object = None                        # (F,), probability that a frame is the key frame


def on_grid(run, weights):
    """(T, F, L) -> (T, F, Y, X), with Y = X = 1 if the places form no grid"""
    weights = weights.float().cpu().numpy()
    shape = run.sizes.feats[run.cfg.features[0]]
    square = math.isqrt(weights.shape[2])       # ASTAR has a coarser grid than its features
    for rows, columns in (shape[:2], (square, square)) if len(shape) == 3 else ():
        if rows * columns == weights.shape[2]:
            return weights.reshape(*weights.shape[:2], rows, columns)
    return weights.sum(2)[:, :, None, None]


def attention(run, aux):
    """aux of one caption, a row per word -> the weights that reached each word (T, F, Y, X), or
    None; {label: (T, F, Y, X)}, the parts if the numbers of a bar mix several maps. If one part has
    weight 1 and the others 0, then the mixture is that part."""
    view = run.paper.VIEW
    mixed = view['attention'](aux)
    if mixed is None:
        return None, {}
    parts = {}
    for name, labels in view['bars'].items():
        if name in aux and len(labels) > 1:
            rows = torch.eye(len(labels))[:, None].expand(-1, len(mixed), -1)
            alone = [view['attention']({**aux, name: row}) for row in rows]
            if not torch.equal(alone[0], alone[1]):
                parts |= {label: on_grid(run, one) for label, one in zip(labels, alone)}
    return on_grid(run, mixed), parts


def batch_of(run, corpus, video):
    """-> a batch of one video"""
    return data.to(data.Batches(corpus).collate([(video, [])]), run.device)


@torch.no_grad()
def look_at(run, model, corpus, video, caption=None):
    """-> Look. Without a caption a captioner generates one by beam search."""
    batch = batch_of(run, corpus, video)
    if run.recognises:
        return recognise(run, model, batch, corpus.classes)
    memory, state = model.encode(batch)
    if caption is None:
        words, _ = decode.beam(model, memory, state, run.training.max_len, run.training.beam,
                               length_penalty=run.training.length_penalty)
        caption = run.vocabulary.decode(words[0].tolist())
    # A caption that the search has cut off has one word more than max_len.
    tokens = run.vocabulary.encode(caption, run.training.max_len + 1)
    _, aux = decode.teacher_force(model, memory, state, torch.tensor([tokens], device=run.device))
    aux = {name: value[0].float().cpu() for name, value in aux.items()}         # (T, ...)
    view = run.paper.VIEW
    look = Look(caption, [*caption.split()[:len(tokens) - 1], '<eos>'], *attention(run, aux))
    bars = [name for name in view['bars'] if name in aux]
    look.labels = [label for name in bars for label in view['bars'][name]]
    numbers = [aux[name].reshape(len(tokens), -1) for name in bars]
    look.numbers = torch.cat([torch.empty(len(tokens), 0), *numbers], 1).numpy()
    if view.get('key') in aux:
        look.key = int(aux[view['key']][0].argmax())        # the same at every word, like focus
    if view.get('focus') in aux:
        look.focus = aux[view['focus']][0].numpy()
    return look


def recognise(run, model, batch, classes):
    """-> Look of a Recogniser, which gives all frames the same weight. Its aux 'space' (N, F, L)
    says where it looks within each frame."""
    probabilities, aux = model.predict(batch)
    best = probabilities[0].argmax().item()
    look = Look(classes[best], [classes[best]], labels=('probability',))
    look.numbers = probabilities[:1, best, None].cpu().numpy()
    if 'space' in aux and aux['space'].any():
        look.weights = on_grid(run, aux['space'][:1] / aux['space'].shape[1])
    return look


def even_in_time(weights):
    """weights (T, F, Y, X): do all frames have the same weight?"""
    when = weights.sum((2, 3))
    return np.allclose(when, when[:, :1], rtol=0, atol=1e-6)


def about_parts(look):
    """-> which parts do not weigh frames"""
    return ' '.join(f'{label} has no weights over frames: its share is spread evenly over them.'
                    for label, part in look.parts.items() if even_in_time(part))


# ------------------------------------------------------- layout
@dataclass
class Tile:
    """One word or one clip. From top to bottom: bars, pictures side by side, small pictures, the
    weight of every frame, a label"""
    label: str = ''
    pictures: dict = field(default_factory=dict)            # tag in the corner -> uint8 (H, W, 3)
    bars: tuple = ()                                        # numbers from 0 to 1
    edges: dict = field(default_factory=dict)               # tag -> colours of lines around it
    small: dict = field(default_factory=dict)               # tag -> picture
    when: object = None                                     # weights (F,), drawn as a strip

    def width(self, side):
        """side: largest width of a picture"""
        return min(side * max(len(self.pictures), 1), ROOM)

    def heights(self, side):
        """-> heights of the five rows"""
        found = [52 if self.bars else 0]
        for row in (self.pictures, self.small):
            each = self.width(side) / max(len(row), 1)
            shapes = [picture.shape for picture in row.values()]
            found.append(max((each * y / x for y, x, _ in shapes), default=0))
        strip = 10 if self.pictures else 40
        return [*found, 0 if self.when is None else strip, LINE if self.label else 0]


@dataclass
class Block:
    lines: list                                             # of text: (words, colour)
    rows: list = field(default_factory=list)                # lists of Tiles; long ones are wrapped
    shows_clip: bool = False                                # whether the rows include the clip


def arrange(blocks, side):
    """Blocks, largest width of a picture -> [(line or Tile, x, y)], height of the figure"""
    placed = []
    y = MARGIN
    for block in blocks:
        for line in block.lines:
            placed.append((line, MARGIN, y))
            y += LINE
        for tiles in filter(None, block.rows):
            width = GAP + max(tile.width(side) for tile in tiles)
            in_a_row = max((ROOM + GAP) // width, 1)
            for first in range(0, len(tiles), in_a_row):
                row = tiles[first:first + in_a_row]
                heights = [sum(tile.heights(side)) for tile in row]
                for i, tile in enumerate(row):              # their labels are on one line
                    placed.append((tile, MARGIN + i * width, y + max(heights) - heights[i]))
                y += max(heights) + GAP
        y += MARGIN // 2
    return placed, y + MARGIN // 2


def write(axis, x, y, text, width, **how):
    """Text at x, y, smaller if it would be wider than `width`"""
    written = axis.text(x, y, text, **{'fontsize': 11, 'va': 'top', **how})
    while (found := written.get_window_extent().width) > width and written.get_fontsize() > 1:
        written.set_fontsize(written.get_fontsize() * max(0.98 * width / found, 0.5))


def draw_tile(axis, tile, place, side):
    """place = (x, y), side: largest width of a picture"""
    x, y = place
    width = tile.width(side)
    bars, *talls, strip, _ = tile.heights(side)
    if tile.bars:
        each = width / len(tile.bars)
        lefts = [x + i * each for i in range(len(tile.bars))]
        drawn = axis.bar(lefts, [-32 * value for value in tile.bars], each - 3, y + bars - 2,
                         align='edge', color=[f'tab:{colour}' for colour in COLOURS])
        axis.bar_label(drawn, [f'{value:.2f}'.removeprefix('0') for value in tile.bars], fontsize=7)
    y += bars
    for row, tall in zip((tile.pictures, tile.small), talls):
        for i, (tag, picture) in enumerate(row.items()):
            each = width / len(row)
            left = x + i * each
            axis.imshow(picture, extent=(left, left + each - 2, y + tall - 2, y), aspect='auto')
            axis.text(left + 3, y + 3, tag, fontsize=7, color='white', va='top',
                      bbox={'facecolor': 'black', 'alpha': 0.5, 'pad': 1, 'linewidth': 0})
            for inner, colour in zip((2, 7), tile.edges.get(tag, ())):      # the second is inside
                size = (each - 2 - 2 * inner, tall - 2 - 2 * inner)
                axis.add_patch(Rectangle((left + inner, y + inner), *size, fill=False,
                                         edgecolor=colour, linewidth=3.5))
        y += tall
    if tile.when is not None:
        axis.imshow(tile.when[None], extent=(x, x + width - 2, y + strip - 2, y), aspect='auto',
                    cmap='viridis', vmin=0)
    write(axis, x + width / 2, y + strip, tile.label, width - 4, ha='center')


def draw(blocks, path):
    """Write a PNG whose pictures are as large as a slide allows -> path"""
    words = [row for block in blocks for row in block.rows if len(row) > 1]     # without clips
    most = max([sum(len(tile.pictures) or 1 for tile in row) for row in words], default=1)
    in_a_row = math.ceil(most / math.ceil(most / 12))       # at most 12, in rows of equal length
    for side in range(min(ROOM // in_a_row - GAP, 200), 59, -2):
        placed, height = arrange(blocks, side)
        if height <= HEIGHT * max(len(blocks) / 4, 1):      # more than three runs need more room
            break
    figure = Figure(figsize=(WIDTH / DPI, height / DPI), dpi=DPI)
    FigureCanvasAgg(figure)                                 # measures text without a screen
    axis = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0), autoscale_on=False)
    axis.axis('off')
    for what, x, y in placed:
        if isinstance(what, Tile):
            draw_tile(axis, what, (x, y), side)
        else:
            text, colour = what
            write(axis, x, y, text, ROOM, color=colour)
    return save_figure(figure, path)


def save_figure(figure, path):
    with machine.replacing(path) as temporary:
        temporary.parent.mkdir(exist_ok=True)               # RUN/figures may be new
        figure.savefig(temporary, dpi=DPI, format='png')
    return Path(path)


def paragraph(text, colour='dimgrey'):
    """-> lines of a Block"""
    return [(line, colour) for line in textwrap.wrap(text, 150)]


# ------------------------------------------------------- pictures
def frames_of(corpus, video):
    """-> uint8 (F, H, W, 3), or None if only features are known. Shapes are rendered again."""
    return world.render(world.scene(video)) if corpus.name == 'shapes' else None


def spread(items, n):
    """At most n of the items, evenly spaced from the first to the last"""
    chosen = np.linspace(0, len(items) - 1, min(n, len(items))).round().astype(int)
    return [items[i] for i in chosen]


def frame_number(step, total, frames):
    """One of the model's `total` steps in time -> the frame in its middle, counted from 1"""
    return int((step + 0.5) * (total if frames is None else len(frames)) / total) + 1


def light_up(frames, steps, light):
    """frames (F, H, W, 3) or None; some of the model's steps in time; light (F, Y, X), 1 or less
    -> {frame number: the frame, dark where there is no light}. Without frames the light falls on
    white, and there are no pictures if there is no grid either."""
    if frames is None and light[0].size == 1:
        return {}
    if frames is None:
        frames = np.full((len(light), 96, 96, 3), 255, np.uint8)
    smooth = torch.tensor(light[steps], dtype=torch.float)[:, None]
    smooth = torch.nn.functional.interpolate(smooth, frames.shape[1:3], mode='bilinear')
    pictures = {}
    for step, bright in zip(steps, smooth[:, 0, ..., None].numpy()):
        number = frame_number(step, len(light), frames)
        pictures[str(number)] = (frames[number - 1] * (0.3 + 0.7 * bright)).astype(np.uint8)
    return pictures


def word_tile(look, t, frames, parts=1):
    """-> Tile of word t. The clip is divided into this number of parts, and of each part the tile
    shows the frame that the word looks at most. The place with the highest weight is as bright as
    in the clip."""
    weights = look.weights[t]                               # (F, Y, X)
    if not weights.any():
        return Tile(f'{look.words[t]} (no attention)')
    when = weights.sum((1, 2))
    chosen = when
    if np.ptp(chosen) < 0.01 * chosen.max():                # all alike: a maximum means nothing
        chosen = -np.abs(np.arange(len(weights)) - len(weights) // 2)
    pieces = np.array_split(np.arange(len(weights)), min(parts, len(weights)))
    steps = [int(piece[chosen[piece].argmax()]) for piece in pieces]
    pictures = light_up(frames, steps, weights / weights[steps].max())
    tile = Tile(look.words[t], pictures, when=when)
    if len(look.labels) == 1:
        tile.label += f'   {look.labels[0]} {look.numbers[t, 0]:.2f}'
    elif look.labels:
        tile.bars = tuple(look.numbers[t])
    most = int(chosen.argmax())
    for label, part in look.parts.items():
        light = part[t] / max(part[t, most].max(), 1e-9)
        tile.small |= dict(zip([label], light_up(frames, [most], light).values()))
    if len(weights) == 1:                                   # one map for all frames
        tile.pictures = dict(zip(['all frames'], tile.pictures.values()))
        tile.when = None
    return tile


def clip_row(frames, weights, also=(), when=None):
    """weights (F, Y, X), of which the highest of each frame is as bright as the frame; also: steps
    to show besides 16 evenly spaced ones; when: (F,) or None -> row of a Block, [] if empty"""
    highest = weights.max((1, 2), keepdims=True)
    seen = spread(np.flatnonzero(highest).tolist(), 16)
    light = weights / np.maximum(highest, 1e-9)
    tile = Tile(pictures=light_up(frames, sorted({*seen, *also}), light), when=when)
    return [tile] if tile.pictures or when is not None else []


def plain_clip(frames):
    return [] if frames is None else clip_row(frames, np.ones((len(frames), 1, 1)))


# ------------------------------------------------------- the figure of one video
def captioner_block(run, model, corpus, video, frames):
    """Fig. 3 of astar, 3.2 to 3.4 of sta, 6 and 10 of stats, 3 and 4 of vre"""
    view = run.paper.VIEW
    look = look_at(run, model, corpus, video)
    if look.key is None:
        block = Block(paragraph(f'{run.title}: {look.caption or "(no words)"}', 'black'))
    else:
        looks = {model.cfg.step: look}
        if look.focus is not None:                              # vre watches a video twice
            looks = looks_of_steps(run, model, corpus, video)
        block = key_block(run, looks, frames)
    if look.weights is None or look.weights[0].size == 1:
        return block                                        # there is nothing to choose
    tiles = [word_tile(look, t, frames, view['parts']) for t in range(len(look.words) - 1)]
    block.rows.append(tiles)                                # without <eos>
    if any(tile.pictures for tile in tiles):
        one_map = look.weights.shape[1] == 1
        block.lines += paragraph(ALIKE if one_map else view['legend'] or MOST)
    elif any(tile.when is not None for tile in tiles):
        block.lines += paragraph(STRIPS)
    if any(tile.small for tile in tiles):
        names = ' and '.join(look.parts)
        block.lines += paragraph(f'Small: the places of {names} alone, at full brightness. '
                                 + about_parts(look))
    if any(tile.bars for tile in tiles):
        named = [f'{label} ({colour})' for label, colour in zip(look.labels, COLOURS)]
        block.lines += paragraph(f'The bars show the weights of {", ".join(named)}.')
    return block


def looks_of_steps(run, model, corpus, video):
    """-> {step: Look} of a paper that can describe a video after each of several steps"""
    chosen = model.cfg.step
    looks = {}
    for model.cfg.step in run.paper.VIEW['steps']:
        looks[model.cfg.step] = look_at(run, model, corpus, video)
    model.cfg.step = chosen
    return looks


def key_block(run, looks, frames):
    """looks {step: Look} -> Block of the caption of each step, and the clip with lines around the
    key frames"""
    first = next(iter(looks.values()))
    total = first.weights.shape[1]
    keys = [look.key for look in looks.values()]
    row = clip_row(frames, np.ones((total, 1, 1)), keys, first.focus)
    block = Block([], [row], shows_clip=bool(row))
    for step, look in looks.items():
        colour = KEYS[step - 1]
        number = frame_number(look.key, total, frames)
        text = f'{run.title}, step {step}, key frame {number}: {look.caption or "(no words)"}'
        block.lines += paragraph(text, colour)
        for tile in row:
            tile.edges.setdefault(str(number), []).append(colour)
    if row:
        block.lines += paragraph('A coloured border marks the key frame, from which the clip is '
                                 'read in both directions.')
    if len(looks) > 1:
        block.lines += paragraph('Step 1 always starts at the middle frame. The strip under the '
                                 'clip shows how likely each frame is the key frame of step 2. '
                                 f'The words are those of step {run.cfg.step}.')
    return block


def class_line(title, name, right):
    """-> a line of a Block"""
    return f'{title}: {name}', 'tab:green' if right else 'tab:red'


def true_classes(corpus, video):
    return [corpus.classes[number] for number in corpus.labels[video]]


def recogniser_block(run, model, corpus, video, frames):
    """Fig. 2.2 and 2.3 of sta: where each frame was looked at, and the class"""
    look = look_at(run, model, corpus, video)
    said = f'{look.caption} ({look.numbers.item():.2f})'
    block = Block([class_line(run.title, said, look.caption in true_classes(corpus, video))])
    if look.weights is not None:
        block.rows.append(clip_row(frames, look.weights[0]))
        block.lines += paragraph(RECOGNISED)
    return block


def draw_video(runs_and_models, corpus, video, path, frames=None):
    """One video with what each run makes of it -> path. corpus.features holds the features that the
    runs read. frames: uint8 (F, H, W, 3), if the corpus cannot provide them"""
    if frames is None:
        frames = frames_of(corpus, video)
    kinds = {run.recognises for run, _ in runs_and_models}
    head = Block([(video, 'black')])
    if True in kinds and corpus.labels.get(video):
        names = ' and '.join(true_classes(corpus, video))
        head.lines = [class_line(f'{video}, true class', names, True)]
    if False in kinds:
        for reference in corpus.captions.get(video, [])[:2]:
            head.lines += paragraph(f'reference: {reference}')
    blocks = [head]
    said = list(head.lines)
    for run, model in runs_and_models:
        make = recogniser_block if run.recognises else captioner_block
        block = make(run, model, corpus, video, frames)
        block.lines = [line for line in block.lines if line not in said]    # a legend only once
        said += block.lines
        blocks.append(block)
    if not all(block.shows_clip for block in blocks[1:]):
        head.rows.append(plain_clip(frames))
    return draw(blocks, path)


def draw_glimpse(run, seen, corpus, video, path):
    """Fig. 2.8 of sta, from what sta.glimpse() returns -> path"""
    frames = frames_of(corpus, video)
    right = corpus.labels[video][0]
    title = class_line(f'{video}, true class', corpus.classes[right], True)
    blocks = [Block([title, *paragraph(RECOGNISED)], [plain_clip(frames)])]
    found = 'found' if seen['predicted'][2] == right else 'not found'
    titles = {'learned': 'learned', 'random': 'random',
              'found': f'{found} after {seen["steps"]} steps'}
    for (name, title), predicted in zip(titles.items(), seen['predicted']):
        line = class_line(title, corpus.classes[predicted], predicted == right)
        blocks.append(Block([line], [clip_row(frames, on_grid(run, seen[name][None])[0])]))
    return draw(blocks, path)
