"""The networks that turn clips of the embedded world into features, and their training.

    python -m shapes.networks       train both on newly rendered clips, write shapes/weights/*.pt

    three frames (56, 56, 9) --ClipCNN-->       'clip' (7, 7, 64), one for each of 16 frames
    8 frames (112, 112, 3)   --a narrow C3D-->  'c3d_pool2' (4, 28, 28, 16) ... 'c3d_fc7' (512)

They replace the pretrained networks of the papers. Training gives every cell of the grid its own
labels: which shape covers it, its colour, its motion, and how it relates to the other shape. The
top of C3D then learns actions alone, as the papers' C3D did on Sports-1M.

Letters:  N clips, F frames, H W height and width
"""
import argparse
import hashlib
import math
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, default_collate
from tqdm import tqdm

import c3d
from shapes import world
from shapes.words import ACTIONS, COLOURS, RELATIONS, SHAPES, SIMPLE

WEIGHTS = Path(__file__).parent / 'weights' / 'shapes_clip.pt'
C3D_WEIGHTS = WEIGHTS.with_name('shapes_c3d.pt')
BATCH = 16                              # clips that are computed together
RATE = 4e-3                             # highest learning rate
UNSEEN = [f'fresh{900000 + i}' for i in range(300)]         # clips that training never shows


# ------------------------------------------------------- labels of cells
# Label of a cell -> number of its classes. A shape acts if it moves and the other one rests, or if
# it moves behind the other one.
HEADS = {'shape': 1 + len(SHAPES),  # 0: no shape
         'colour': len(COLOURS),
         'motion': 9,               # still, left, right, up, down, grows, shrinks, fades in, out
         'other': 5,                # where the other shape is: nowhere, left, right, above, below
         'role': 3}                 # neither, acts, is acted on


def side(x, y):
    """A step or a distance -> 1 left, 2 right, 3 up or above, 4 down or below"""
    return 1 + (x > 0) if abs(x) > abs(y) else 3 + (y > 0)


def motion_of(change):
    """change of x, y, radius and opacity -> label of the motion"""
    dx, dy, growth, fade = change
    if abs(fade) > 0.05:
        return 7 + (fade < 0)
    if abs(growth) > 0.3:
        return 5 + (growth < 0)
    if max(abs(dx), abs(dy)) > 1:
        return side(dx, dy)
    return 0


def role_of(motion, its_motion, other):
    """motions of a shape and of the other one, and where that one is -> label of the role"""
    if bool(motion) != bool(its_motion):
        return 1 if motion else 2
    if motion == its_motion and 1 <= motion <= 4:
        return 1 if motion == other else 2
    return 0


def dense_labels(scene, t):
    """-> (5, 7, 7): for each cell the labels, in the order of HEADS, of the shape that covers it. A
    cell without a shape has shape 0, and -1 for the other labels."""
    goal = np.full((5, 7, 7), -1)
    goal[0] = 0
    centres = np.arange(7) * 16 + 8
    things = world.shown(scene, t)
    seen = [one for one in things if one['track'][t, 3] > world.VISIBLE]
    neighbours = max(t - 1, 0), min(t + 1, world.STEPS - 1)
    # The difference between two scenes does not count as a motion.
    before, after = [s if world.shown(scene, s) is things else t for s in neighbours]
    motions = [motion_of(one['track'][after] - one['track'][before]) for one in seen]
    for k, one in enumerate(seen):
        x, y, r, _ = one['track'][t]
        other = role = 0
        if len(seen) == 2:
            other = side(*seen[1 - k]['track'][t, :2] - (x, y))
            role = role_of(motions[k], motions[1 - k], other)
        # A shape covers the centres of its cells. 8.5 is more than half a cell, so it has at least
        # one. Shapes never overlap, so no cell has two.
        covered = np.maximum(abs(centres - x), abs(centres[:, None] - y)) < max(r, 8.5)
        shape = 1 + list(SHAPES).index(one['shape'])
        colour = list(COLOURS).index(one['colour'])
        goal[:, covered] = np.array([shape, colour, motions[k], other, role])[:, None]
    return goal


def label_loss(logits, goal, sizes=HEADS):
    """sizes {label: number of its classes}, logits (N, sum of sizes, ...), goal (N, labels, ...)
    -> loss (), {label: accuracy}. Label 1 is a colour, and it is -1 in cells without a shape. Such
    cells count a tenth in the loss, and not at all in the accuracy."""
    loss = 0
    right = {}
    on_shape = goal[:, 1] >= 0
    weight = torch.where(on_shape, 1.0, 0.1)
    for k, (name, out) in enumerate(zip(sizes, logits.split(list(sizes.values()), 1))):
        each = F.cross_entropy(out, goal[:, k], ignore_index=-1, reduction='none')
        loss = loss + (each * weight).sum() / on_shape.sum()
        right[name] = (out.argmax(1) == goal[:, k])[on_shape].float().mean().item()
    return loss, right


# ------------------------------------------------------- weight files and training
def fingerprint(path):
    """-> str that identifies the content of a weight file"""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def load_half(model, path):
    model.load_state_dict(torch.load(path, weights_only=True))          # becomes float32 again
    return model.eval()


def save_half(model, path):
    weights = {name: value.half().contiguous() for name, value in model.state_dict().items()}
    torch.save(weights, path)


NORMS = {nn.Conv2d: nn.BatchNorm2d, nn.Conv3d: nn.BatchNorm3d, nn.Linear: nn.BatchNorm1d}


def add_norms(layers):
    """Adds batch norms, for training, to all layers with weights except the classifier fc8."""
    for name, layer in list(layers.named_children()):
        if type(layer) in NORMS and name != 'fc8':
            layers.add_module(name, nn.Sequential(layer, NORMS[type(layer)](len(layer.weight))))


def fold_norms(layers):
    """Makes the batch norms part of the weights before them. The function stays the same."""
    for name, layer in list(layers.named_children()):
        if isinstance(layer, nn.Sequential):
            linear = isinstance(layer[0], nn.Linear)
            fuse = nn.utils.fuse_linear_bn_eval if linear else nn.utils.fuse_conv_bn_eval
            layers.add_module(name, fuse(*layer.eval()))


def collate(item, ids):
    """item: function of a scene that returns arrays -> these arrays for all ids, stacked"""
    return default_collate([item(world.scene(id)) for id in ids])


def load_batches(item, ids):
    """-> an iterable of collate(item, ids) for 16 ids at a time, rendered in another process"""
    return DataLoader(ids, BATCH, collate_fn=partial(collate, item), num_workers=1,
                      prefetch_factor=4)


def fit(name, model, clips, item, losses):
    """clips: number of training clips; item: as in collate(); losses(model, batch, number of the
    batch) -> loss (), {what: accuracy}. Prints the accuracies on other clips."""
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=1e-2)
    loader = load_batches(item, [f'fresh{i:06d}' for i in range(clips)])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, len(loader), pct_start=0.15)
    bar = tqdm(loader, name, mininterval=5)
    for number, batch in enumerate(bar):
        loss, right = losses(model, batch, number)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        bar.set_postfix({'loss': loss.item()} | right, refresh=False)
    with torch.no_grad():
        _, right = losses(model.eval(), collate(item, UNSEEN))
    numbers = ', '.join(f'{what} {value:.3f}' for what, value in right.items())
    print(f'{name}: accuracy on {len(UNSEEN)} other clips: {numbers}')


# ------------------------------------------------------- the clip CNN
def convolve(channels_in, channels_out, size=3, stride=1):
    return [nn.Conv2d(channels_in, channels_out, size, stride, size // 2), nn.ReLU()]


class ClipCNN(nn.Module):
    """A frame with its two neighbours -> a 7 x 7 grid of 64 features. The heads predict the labels
    of each cell, for training."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            *convolve(9, 32, 5, stride=2), *convolve(32, 48), nn.MaxPool2d(2),
            *convolve(48, 64), *convolve(64, 64), nn.MaxPool2d(2),
            *convolve(64, 96), *convolve(96, 96), *convolve(96, 64, 1))
        self.heads = nn.Conv2d(64, sum(HEADS.values()), 1)

    def forward(self, x):
        """x (N, 9, 56, 56) -> (N, 64, 7, 7)"""
        return self.body(x)


def load_clip_cnn():
    return load_half(ClipCNN(), WEIGHTS).to(memory_format=torch.channels_last)


def shrink(frames):
    """uint8 (F, H, W, 3) -> uint8 (F, 56, 56, 3). 56 pixels are as accurate as 112, and faster."""
    x = torch.from_numpy(frames).permute(0, 3, 1, 2)
    return F.interpolate(x, (56, 56), mode='bilinear', antialias=True).permute(0, 2, 3, 1)


def triples(small):
    """uint8 (N, F, 56, 56, 3) -> (N * F, 9, 56, 56): the frame before, the frame, the one after.
    At the ends of a clip the frame itself replaces the missing neighbour."""
    x = small.float() / 64 - 2
    longer = torch.cat([x[:, :1], x, x[:, -1:]], 1)
    # The result is channels_last in memory, which is faster on a CPU.
    return torch.cat([longer[:, :-2], x, longer[:, 2:]], -1).flatten(0, 1).permute(0, 3, 1, 2)


def cell_item(scene):
    """-> frames uint8 (16, 56, 56, 3), labels of cells (16, 5, 7, 7)"""
    labels = np.stack([dense_labels(scene, t) for t in range(world.STEPS)])
    return shrink(world.render(scene)), labels


def cell_losses(model, batch, number=None):
    """batch of cell_item() -> loss (), {label: accuracy}, on the cells of shapes. In training every
    second frame suffices, because neighbours look alike: the even or the odd ones, by `number`."""
    small, labels = batch
    some = slice(None) if number is None else slice(number % 2, None, 2)
    return label_loss(model.heads(model(triples(small)[some])), labels.flatten(0, 1)[some])


def train_clip_cnn(clips):
    """Trains on this number of clips, writes the weight file."""
    torch.manual_seed(world.SEED)
    model = ClipCNN().to(memory_format=torch.channels_last)
    add_norms(model.body)
    fit('clip CNN', model, clips, cell_item, cell_losses)
    fold_norms(model.body)
    save_half(model, WEIGHTS)


# ------------------------------------------------------- the narrow C3D, for ASTAR
WIDTH = 8                                       # filters of conv1
FRAMES = (0, 2, 4, 6, 9, 11, 13, 15)            # the frames that it sees: half of them
# Maps that learn labels of cells -> for each unit of time the frame in its middle
DENSE = {'pool3': (3, 12), 'pool4': (7,)}
# At first pool5 and fc8 learn the slots of the clip. Each slot has a class more, for its absence.
SLOT_NAMES = {'subject': SHAPES, 'colour': COLOURS, 'action': ACTIONS, 'object': SHAPES,
              'object colour': COLOURS, 'relation': RELATIONS, 'second action': SIMPLE}
SLOT_SIZES = {slot: len(names) + 1 for slot, names in SLOT_NAMES.items()}
TOP = ('conv5a', 'conv5b', 'fc6', 'fc7', 'fc8')         # layers that learn actions alone


def load_c3d():
    return load_half(c3d.C3D(WIDTH, len(ACTIONS)), C3D_WEIGHTS)


@torch.no_grad()
def c3d_features(net, frames):
    """frames uint8 (N, 8, 112, 112, 3) -> {'pool2': (N, 4, 28, 28, 16), 'pool3': (N, 2, 14, 14,
    32), 'pool4': (N, 1, 7, 7, 64), 'pool5': (N, 1, 4, 4, 64), 'fc7': (N, 512)}"""
    maps = net.maps(c3d.to_input(frames))
    features = {name: value.permute(0, 2, 3, 4, 1) for name, value in maps.items()}
    return features | {'fc7': net.top(maps['pool5'])}


def slot_item(scene):
    """-> frames uint8 (8, 112, 112, 3), labels of cells of pool3 (2, 5, 14, 14) and of pool4
    (1, 5, 7, 7), slots (7)"""
    fine = np.stack([dense_labels(scene, t) for t in DENSE['pool3']])
    coarse = np.stack([dense_labels(scene, t) for t in DENSE['pool4']])
    slots = [[*names, None].index(scene['slots'].get(slot)) for slot, names in SLOT_NAMES.items()]
    return world.render(scene, FRAMES), fine.repeat(2, 2).repeat(2, 3), coarse, np.array(slots)


def c3d_losses(parts, batch, number=None):
    """parts: the network and its heads; batch of slot_item() -> loss (), {what: accuracy}, on the
    cells of shapes (pool3, pool4) and on the slots"""
    net, heads = parts
    frames, fine, coarse, slots = batch
    maps = net.convolve(c3d.to_input(frames))
    logits = {name: heads[name](maps[name]) for name in DENSE}
    logits['pool5'] = heads['pool5'](maps['pool5'].mean((2, 3, 4)))
    logits['fc8'] = net.layers['fc8'](net.top(maps['pool5']))
    goals = fine.transpose(1, 2), coarse.transpose(1, 2), slots, slots
    loss = 0
    right = {}
    for name, goal in zip(logits, goals):
        sizes = HEADS if name in DENSE else SLOT_SIZES
        each, accuracy = label_loss(logits[name], goal, sizes)
        loss = loss + each
        right |= {f'{name} {label}': value for label, value in accuracy.items()}
    return loss, right


def train_c3d(clips):
    """Trains on this number of clips, writes the weight file. pool3 and pool4 learn the labels of
    cells; fc8 and the mean of pool5 learn the slots. Then the top learns actions alone."""
    torch.manual_seed(world.SEED)
    net = c3d.C3D(WIDTH, sum(SLOT_SIZES.values()), dropout=0.0)
    add_norms(net.layers)
    heads = nn.ModuleDict()
    for name in DENSE:
        heads[name] = nn.Conv3d(c3d.CHANNELS[name] * WIDTH, sum(HEADS.values()), 1)
    heads['pool5'] = nn.Linear(c3d.CHANNELS['pool5'] * WIDTH, sum(SLOT_SIZES.values()))
    fit('C3D', nn.ModuleList([net, heads]), clips, slot_item, c3d_losses)
    fold_norms(net.layers)
    train_top(net, math.ceil(clips / 3))
    save_half(net, C3D_WEIGHTS)


def action_item(scene):
    """-> frames uint8 (8, 112, 112, 3), labels bool (14): one or two actions"""
    labels = np.isin(np.arange(len(ACTIONS)), world.labels(scene))
    return world.render(scene, FRAMES), labels


def action_losses(net, batch, number=None):
    """batch of action_item() -> loss (), {'action': share of clips whose most probable action is
    one of theirs}"""
    frames, labels = batch
    logits = net(c3d.to_input(frames))
    loss = -(labels * logits.log_softmax(1)).sum(1).mean()
    right = labels.gather(1, logits.argmax(1, keepdim=True))
    return loss, {'action': right.float().mean().item()}


def train_top(net, clips):
    """Replaces the layers TOP by new ones, which learn actions alone. The layers below stay as they
    are. So pool5 and fc7 know actions, while the maps below still know shapes and colours."""
    torch.manual_seed(world.SEED)
    net.requires_grad_(False)
    new = c3d.C3D(WIDTH, len(ACTIONS)).layers
    top = nn.ModuleDict({name: new[name] for name in TOP})
    add_norms(top)
    net.layers.update(top)
    fit('top of C3D', net, clips, action_item, action_losses)
    fold_norms(top)
    net.layers.update(top)


def main(args=None):
    parser = argparse.ArgumentParser(prog='python -m shapes.networks', description=(
        'Train the networks of shapes again. Their weights are included.'))
    parser.add_argument('--network', choices=('clip', 'c3d'), help='train only this one')
    parser.add_argument('--clips', type=int, default=24000,
                        help='training clips for each (default: 24000, about 10 and 25 minutes)')
    args = parser.parse_args(args)
    if args.network != 'c3d':
        train_clip_cnn(args.clips)
    if args.network != 'clip':
        train_c3d(args.clips)


if __name__ == '__main__':
    main()
