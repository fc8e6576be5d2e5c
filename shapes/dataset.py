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
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import c3d
import data
from shapes import networks, words, world
from shapes.puzzles import Computed
from tools import machine

VERSION = 3                             # changes whenever the clips or the captions change
SIZES = {'train': 3000, 'val': 300, 'test': 500}
C3D_FILES = [f'c3d_{part}' for part in (*c3d.MAPS, 'fc7')]
FEATURES = {                            # name: shape per frame
    'clip': [7, 7, 64], 'audio': [128], 'video': [world.SIDE, world.SIDE, 3], 'key': [1],
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


def c3d_features(ids):
    """Yields {'c3d_pool2': (N, 4, 28, 28, 16), ...}, a few ids at a time."""
    net = networks.load_c3d()
    for frames in networks.load_batches(partial(world.render, steps=networks.FRAMES), ids):
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


def store(features, ids, compute, about):
    """Writes FEATURES/NAME.npy for each NAME of `about`: half precision, one row per id. NAME.json
    follows, which contains about[NAME]."""
    features.mkdir(exist_ok=True)
    need = 150_000 * len(ids)                           # bytes; no features here take more
    free = shutil.disk_usage(features).free
    if free < need:
        raise data.BadInput(f'{features} needs {need / 1e6:,.0f} MB, but only {free / 1e6:,.0f} MB '
                            'are free; free some disk space, or choose another --root')
    rows = {name: [] for name in about}
    with torch.no_grad(), tqdm(total=len(ids), desc='features', unit=' clips') as bar:
        for batch in compute(ids):
            for name, values in batch.items():
                rows[name].append(np.asarray(values, np.float16))
            bar.update(len(values))
    for name, parts in rows.items():
        with machine.replacing(features / f'{name}.npy') as temporary:
            with open(temporary, 'wb') as file:
                np.save(file, np.concatenate(parts))
        write_json(features / f'{name}.json', {'ids': ids, **about[name]})


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


def prepare(root, limit=None, kinds=(), part=None):
    """Makes ROOT/shapes, or ROOT/shapes-LIMIT with at most LIMIT clips per split, unless it is
    there -> its path. If `part` is 'test', other splits are not needed, and ROOT/shapes-test is
    enough. If an outdated dataset is there, only the files that prepare() made are replaced. The
    features of C3D are made if `kinds` names one of them."""
    if limit is not None and limit < 1:
        raise data.BadInput(f'--limit {limit}: give a number of clips, at least 1')
    sizes = {split: min(size, limit or size) for split, size in SIZES.items()}
    choices = {f'shapes-{limit}' if limit else 'shapes': sizes}
    if part == 'test' and not limit:
        choices['shapes-test'] = {'test': sizes['test']}
    about = {}                                                          # what is made on demand
    if any(kind.startswith('c3d_') for kind in kinds):
        weights = networks.fingerprint(networks.C3D_WEIGHTS)
        about = {name: {'encoder': 'shapes.C3D', 'part': name[4:], 'weights': weights}
                 for name in C3D_FILES}
    for name, sizes in choices.items():
        folder = Path(root) / name
        key = {'seed': world.SEED, 'version': VERSION,
               'weights': networks.fingerprint(networks.WEIGHTS), 'sizes': sizes}
        if is_made(folder, key, about):
            return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with machine.locked(folder, f'{folder}: another process is rendering it; waiting'):
            ids = [f'{split}{i:05d}' for split, size in sizes.items() for i in range(size)]
            if not is_made(folder, key):
                render(folder, key, ids)
            if not is_made(folder, key, about):
                store(folder / 'features', ids, c3d_features, about)
    except OSError as error:
        raise data.BadInput(f'cannot write {folder}: {error}; choose another --root') from None
    return folder


def is_made(folder, key, about=None):
    """Are the clips there, and the features of C3D too if `about` describes them? Refuses a folder
    with captions or features that are not ours."""
    notes = read_json(folder / 'annotations.json')
    there = [*folder.glob('annotations.json'), *folder.glob('features/*.npy')]
    if there and not key.keys() <= notes.keys():
        raise data.BadInput(f'{there[0]} does not belong to shapes, so its folder is left alone; '
                            'move it elsewhere, or choose another --root')
    found = read_json(folder / 'features' / 'c3d_fc7.json')
    return key.items() <= notes.items() and (
        not about or about['c3d_fc7'].items() <= found.items())


def render(folder, key, ids):
    """Everything except the features of C3D"""
    features = folder / 'features'
    # Until annotations.json is replaced, at the end, it says that the dataset is not whole.
    write_json(folder / 'annotations.json', dict.fromkeys(key))
    (features / 'c3d_fc7.json').unlink(missing_ok=True)                 # C3D saw other clips
    store(features, ids, clip_features, {
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
            for name in ('captions', 'labels', 'category', 'truth'):
                getattr(corpus, name)[id] = video[name]
    return corpus


def true_key(id):
    """-> (16, 1), 1 at the middle frame of the action"""
    return np.eye(world.STEPS)[sum(world.scene(id)['window']) // 2][:, None]


Videos = partial(Computed, 'the rendered clips', lambda id: world.render(world.scene(id)))
Keys = partial(Computed, 'the true key frames', true_key)


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
