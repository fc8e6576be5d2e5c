"""The embedded world as a dataset on the disk.

    python -m shapes.dataset        render the clips, store captions, truth and features
                                    (train.py does this by itself)

    ROOT/shapes/annotations.json          the cache key, names of classes and categories, all clips
    ROOT/shapes/features/clip.npy, .json  (3800, 16, 7, 7, 64) half precision, and ids of the rows
    ROOT/shapes/features/audio...         (3800, 128)
    ROOT/shapes/features/c3d_pool2...     the maps of C3D and c3d_fc7, 0.5 GB, only on demand
    ROOT/shapes-test/...                  the same for the test clips alone, to score a trained run

Letters:  N clips
"""
import argparse
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import write_array_header_1_0
from tqdm import tqdm

import c3d
import data
from shapes import networks, words, world
from tools import machine

VERSION = 3                             # changes whenever the clips or the captions change
SIZES = {'train': 3000, 'val': 300, 'test': 500}
C3D_FILES = [f'c3d_{part}' for part in (*c3d.MAPS, 'fc7')]
FEATURES = {                            # name: shape per frame
    'clip': [7, 7, 64], 'audio': [128], 'video': [world.SIDE, world.SIDE, 3],
    'c3d_pool2': [28, 28, 2 * networks.WIDTH], 'c3d_pool3': [14, 14, 4 * networks.WIDTH],
    'c3d_pool4': [7, 7, 8 * networks.WIDTH], 'c3d_pool5': [4, 4, 8 * networks.WIDTH],
    'c3d_fc7': [64 * networks.WIDTH]}


# ------------------------------------------------------- features
def clip_item(scene):
    """-> frames uint8 (16, 56, 56, 3), spectrum (128,)"""
    return networks.shrink(world.render(scene)), world.audio(scene)


def clip_features(ids):
    """Yields {'clip': (N, 16, 7, 7, 64), 'audio': (N, 128)}, a few ids at a time."""
    model = networks.load_clip_cnn()
    for small, spectra in networks.load_batches(clip_item, ids):
        grid = model(networks.triples(small)).permute(0, 2, 3, 1)           # (N * 16, 7, 7, 64)
        yield {'clip': grid.unflatten(0, (-1, world.STEPS)), 'audio': spectra}


def c3d_item(scene):
    """-> frames uint8 (8, 112, 112, 3)"""
    return world.render(scene, networks.FRAMES)


def c3d_features(ids):
    """Yields {'c3d_pool2': (N, 4, 28, 28, 16), ...}, a few ids at a time."""
    net = networks.load_c3d()
    for frames in networks.load_batches(c3d_item, ids):
        yield {f'c3d_{part}': x for part, x in networks.c3d_features(net, frames).items()}


# ------------------------------------------------------- writing
def read_json(path):
    """-> the dict in this file, {} if there is none"""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_json(path, value):
    with machine.replacing(path) as temporary:
        temporary.write_text(json.dumps(value))


def write_rows(path, values, first, count):
    """Write the rows from number `first` on of a .npy file that will have `count` rows. A memory
    map would be killed without a word if the disk became full."""
    values = np.asarray(values, np.float16)
    header = {'descr': '<f2', 'fortran_order': False, 'shape': (count, *values.shape[1:])}
    with open(path, 'r+b' if first else 'wb') as file:
        write_array_header_1_0(file, header)
        file.seek(first * values[0].nbytes, 1)
        file.write(values.tobytes())


def check_space(folder, batch, count):
    """Refuse to begin if the disk cannot hold `count` rows like the first one of this batch."""
    needed = sum(2 * count * values[0].numel() for values in batch.values())
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise data.BadInput(f'{folder}: the features need {needed / 1e6:,.0f} MB, but only '
                            f'{free / 1e6:,.0f} MB of the disk are free; choose another --root')


def store(features, key, ids, compute, about):
    """Writes FEATURES/NAME.npy for each NAME of `about`: half precision, one row per id. NAME.json,
    which contains about[NAME], follows when all rows are there. After an interruption, a call with
    the same key continues where the last one stopped."""
    features.mkdir(exist_ok=True)
    progress = features / f'{next(iter(about))}.progress'
    found = read_json(progress)
    done = found['done'] if found.get('key') == key else 0              # rows that are on the disk
    for name in about:
        (features / f'{name}.json').unlink(missing_ok=True)
        if not done:                    # a process that still reads the old file keeps its data
            progress.unlink(missing_ok=True)
            (features / f'{name}.npy').unlink(missing_ok=True)
    bar = tqdm(total=len(ids), initial=done, desc='features', unit=' clips')
    with bar, torch.no_grad():
        for batch in compute(ids[done:]):
            if not done:
                check_space(features, batch, len(ids))
            for name, values in batch.items():
                write_rows(features / f'{name}.npy', values, done, len(ids))
            done += len(values)
            write_json(progress, {'key': key, 'done': done})
            bar.update(len(values))
    for name in about:
        write_json(features / f'{name}.json', {'ids': ids, **about[name]})
    progress.unlink()


def annotate(ids):
    """-> {id: split, captions, labels, category, truth}. No two clips have the same five captions
    in the same order."""
    videos = {}
    used = set()
    for id in tqdm(ids, 'captions', unit=' clips'):
        scene = world.scene(id)
        attempts = (tuple(words.captions(scene, k)) for k in itertools.count())
        five = next(five for five in attempts if five not in used)
        used.add(five)
        videos[id] = {'split': scene['split'], 'captions': list(five),
                      'labels': world.labels(scene), 'category': scene['texture'],
                      'truth': world.truth(scene)}
    return videos


def own_notes(folder):
    """-> the content of annotations.json, or {} if the folder is absent or empty. Refuses a folder
    that prepare() did not make."""
    try:
        if not folder.exists() or all(path.suffix == '.tmp' for path in folder.iterdir()):
            return {}
        notes = json.loads((folder / 'annotations.json').read_text())
        if isinstance(notes, dict) and {'seed', 'version', 'sizes'} <= notes.keys():
            return notes
    except (OSError, ValueError):
        pass
    raise data.BadInput(f'{folder}: there is no annotations.json of shapes in it, so these files '
                        'are left alone; move the folder elsewhere, or choose another --root')


def prepare(root, limit=None, kinds=(), part=None):
    """Makes ROOT/shapes, or ROOT/shapes-LIMIT with at most LIMIT clips per split, unless it is
    there -> its path. If `part` is 'test', other splits are not needed, and ROOT/shapes-test is
    enough. If an outdated dataset is there, only the files that prepare() made are replaced. The
    features of C3D are made if `kinds` names one of them."""
    if limit is not None and limit < 1:
        raise data.BadInput(f'--limit {limit}: give a number of clips, at least 1')
    sizes = {split: min(size, limit or size) for split, size in SIZES.items()}
    ids = [f'{split}{i:05d}' for split, size in sizes.items() for i in range(size)]
    weights = networks.fingerprint(networks.WEIGHTS)
    key = {'seed': world.SEED, 'version': VERSION, 'weights': weights, 'sizes': sizes}
    folder = Path(root) / (f'shapes-{limit}' if limit else 'shapes')
    about = {}                                                          # what is made on demand
    if any(kind.startswith('c3d_') for kind in kinds):
        c3d_weights = networks.fingerprint(networks.C3D_WEIGHTS)
        about = {name: {'encoder': 'shapes.C3D', 'part': name[4:], 'weights': c3d_weights}
                 for name in C3D_FILES}
    if is_made(folder, key, about):
        return folder
    if part == 'test' and not limit:
        folder = Path(root) / 'shapes-test'
        key['sizes'] = {'test': SIZES['test']}
        ids = [id for id in ids if id.startswith('test')]
        if is_made(folder, key, about):
            return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with machine.locked(folder, f'{folder}: another process is rendering it; waiting'):
            if not is_made(folder, key):
                render(folder, key, ids)
            if not is_made(folder, key, about):
                store(folder / 'features', key | about, ids, c3d_features, about)
    except OSError as error:
        raise data.BadInput(f'cannot write {folder}: {error}; choose another --root') from None
    return folder


def is_made(folder, key, about=None):
    """Are the clips there, and the features of C3D too if `about` describes them?"""
    if not key.items() <= own_notes(folder).items():
        return False
    found = read_json(folder / 'features' / 'c3d_fc7.json')
    return not about or about['c3d_fc7'].items() <= found.items()


def render(folder, key, ids):
    """Everything except the features of C3D"""
    features = folder / 'features'
    # Until annotations.json is replaced, at the end, it says that the dataset is not whole.
    write_json(folder / 'annotations.json', dict.fromkeys(key))
    for name, ending in itertools.product(C3D_FILES, ('npy', 'json', 'progress')):
        (features / f'{name}.{ending}').unlink(missing_ok=True)
    store(features, key, ids, clip_features, {
        'clip': {'encoder': 'shapes.ClipCNN', 'weights': key['weights']},
        'audio': {'encoder': 'shapes.audio'}})
    notes = {'classes': list(words.ACTIONS), 'categories': world.TEXTURES}
    write_json(folder / 'annotations.json', key | notes | {'videos': annotate(ids)})


# ------------------------------------------------------- reading
def read(folder, split):
    """-> one split, as prepare() stored it"""
    notes = json.loads((folder / 'annotations.json').read_text())
    corpus = data.Corpus('shapes', split, classes=notes['classes'], categories=notes['categories'])
    for id, video in notes['videos'].items():
        if video['split'] == split:
            corpus.captions[id] = video['captions']
            corpus.labels[id] = video['labels']
            corpus.category[id] = video['category']
            corpus.truth[id] = video['truth']
    return corpus


class Videos:
    """Like data.Features, but it renders a clip on demand: videos[id] -> float32 (16, 112, 112, 3)
    from 0 to 255"""
    path = 'the rendered clips'
    info = {}

    def __getitem__(self, id):
        return world.render(world.scene(id)).astype(np.float32)

    def check(self, ids):
        """-> shape of one frame, number of frames"""
        return [world.SIDE, world.SIDE, 3], world.STEPS


class Keys:
    """Like data.Features: keys[id] -> float32 (16, 1), 1 at the middle frame of the action"""
    path = 'the true key frames'
    info = {}

    def __getitem__(self, id):
        first, last = world.scene(id)['window']
        return np.eye(world.STEPS, dtype=np.float32)[(first + last) // 2][:, None]

    def check(self, ids):
        """-> shape of one frame's feature, number of frames"""
        return [1], world.STEPS


def main(args=None):
    parser = argparse.ArgumentParser(prog='python -m shapes.dataset', description=(
        'Render the clips of shapes; store captions, truth and features.'))
    parser.add_argument('--root', default='data', help='data folder (default: data)')
    parser.add_argument('--limit', type=int, help='maximum number of clips per split')
    args = parser.parse_args(args)
    folder = prepare(args.root, args.limit)
    train, val, test = [read(folder, split) for split in SIZES]
    constant, accuracy = words.blind_baseline(train, test)
    clips = len(train.ids) + len(val.ids) + len(test.ids)
    print(f'{folder} holds {clips} clips. The best caption that ignores the video, "{constant}", '
          f'has a slot accuracy of {accuracy:.3f} on the test clips.')


if __name__ == '__main__':
    from tools import runs                              # which imports this file
    runs.user_main(main)
