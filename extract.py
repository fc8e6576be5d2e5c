"""Videos -> features:  python extract.py --dataset msvd --videos DIR --encoder resnet152

    video --read_frames--> frames that a rule takes --picture--> resized --encode--> ROOT/DATASET/features/NAME/<id>.npy

The id of a video is its file's name without the ending. Beside the features lies info.json: encoder, weights and sampling.
features_of_video() reads it, so that a caption for a new clip comes from features like those of training.

Sampling rules, N being any number:
    Nfps      N frames per second (ASTAR: 2fps; STA's recognition: 30fps, the default for ucf11, hmdb51 and hollywood2)
    staN      N evenly spaced ones of the first 240, black where the video has ended (STA: sta26)
    uniformN  N evenly spaced ones of the whole video, first and last among them (VRE: uniform20)
    chunkN    all frames of whole chunks of N (STaTS: chunk16);  strideN: the first frame of each such chunk

Several processes or machines: torchrun --nproc-per-node 2 extract.py ...
Letters: F frames, Y X rows and columns of a grid, S sound samples.
"""
import argparse
import functools
import hashlib
import itertools
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from tqdm import tqdm

import c3d
import data
import shapes
from data import BadInput

ENCODERS = {            # name: (sampling that its paper has, torchvision's network, its weights, the layer that is read)
    # First versions of the weights, which were trained as the papers' networks were.
    'googlenet': ('sta26', 'googlenet', 'GoogLeNet_Weights.IMAGENET1K_V1', 'inception5b'),          # 7 x 7 x 1024
    'resnet152': ('uniform20', 'resnet152', 'ResNet152_Weights.IMAGENET1K_V1', 'layer4'),           # 7 x 7 x 2048
    'resnet101': ('uniform20', 'resnet101', 'ResNet101_Weights.IMAGENET1K_V1', 'layer4'),           # 7 x 7 x 2048
    'vgg16': ('uniform26', 'vgg16', 'VGG16_Weights.IMAGENET1K_V1', 'classifier.4'),                 # 4096: fc7 after its ReLU
    # DEVIATION: STaTS has I3D's Mixed_5c, 7 x 7 x (2 * 1024), here S3D, the mean of its last two steps of time, 7 x 7 x 1024,
    # because that is I3D with separable convolutions, and torchvision has its Kinetics weights.
    's3d': ('chunk16', 's3d', 'S3D_Weights.KINETICS400_V1', 'features'),
    # DEVIATION: STaTS has Faster R-CNN on a ResNet-101 with 2048 numbers a box, here on a ResNet-50 with feature pyramid and
    # 1024 numbers a box, because torchvision has published weights of that.
    'frcnn': ('stride16', 'fasterrcnn_resnet50_fpn', 'FasterRCNN_ResNet50_FPN_Weights.COCO_V1', None),      # 10 x 1024
    'c3d': ('2fps', None, None, None),              # pool2, pool3, pool4, pool5 and fc7: five features, c3d_pool2 ...
    'clip': ('uniform16', None, None, None),        # the clip CNN of shapes.py: 7 x 7 x 64
    'narrow': ('uniform8', None, None, None),       # the C3D of shapes.py: as c3d, with few filters
    'audio': ('sound', None, None, None),           # the sound of shapes.py: 128
    # DEVIATION: VRE has VGGish, 128 numbers, here 128 log-mel bands, their mean over time, as torchvision has no VGGish.
    'logmel': ('sound', None, None, None),
}
OWN = {'clip': shapes.WEIGHTS, 'narrow': shapes.C3D_WEIGHTS}        # networks that this project trained
RECORDED = {'shapes.ClipCNN': 'clip', 'shapes.C3D': 'narrow', 'shapes.audio': 'audio'}      # what shapes.prepare() calls them
UNPUBLISHED = {'googlenet': dict(init_weights=False, transform_input=True), 'frcnn': dict(weights_backbone=None)}
INSTEAD = {'i3d_rgb': 's3d', 'i3d': 's3d', 'vggish': 'logmel'}      # what a paper has, and which encoder here comes nearest
RECOGNITION = {'ucf11', 'hmdb51', 'hollywood2'}    # datasets of STA's chapter 2
VIDEOS = '.3gp .avi .flv .gif .m4v .mkv .mov .mp4 .mpeg .mpg .mts .ogv .ts .vob .webm .wmv'.split()
BOXES, MOST = 10, 4096                              # boxes per frame; frames that fit into memory


# ------------------------------------------------------------------------------------------------------- reading a video

def decoded(path, kind='video'):
    """Yields what can be decoded of the first stream of that kind, damaged parts left out; nothing if there is none."""
    import av                                       # not needed by those who only train
    path = Path(path).resolve()                     # absolute: `12:30.avi` alone would be taken for a protocol named 12
    if not path.is_file():
        raise BadInput(f'{path}: there is no such file')
    try:
        container = av.open(str(path), metadata_errors='ignore')
    except (av.FFmpegError, OSError) as error:
        raise BadInput(f'{path}: not a video that can be read ({getattr(error, "strerror", None) or error})') from None
    with container:
        streams = [stream for stream in container.streams if stream.type == kind and stream.codec_context]
        packets = container.demux(streams[0]) if streams else iter(())
        while True:
            try:
                yield from next(packets).decode()
            except StopIteration:
                return
            except av.FFmpegError:                  # a damaged packet; after a damaged container `packets` is at its end
                continue


def sample(rule, frames, rate):
    """Frames of a video, and how many per second -> numbers (F,) of those that the rule takes; -1 is a black one."""
    parts = re.fullmatch(r'(uniform|sta|chunk|stride|)([1-9]\d{0,3})(fps|)', rule)
    if not parts or bool(parts[1]) == bool(parts[3]):
        raise BadInput(f'--sampling {rule}: expected uniformN, staN, chunkN, strideN or Nfps, such as uniform20')
    kind, n = parts[1], int(parts[2])
    if kind == 'uniform':
        return np.linspace(0, frames - 1, n).round().astype(int)    # UNSPECIFIED: which; we chose first and last and between
    if kind == 'sta':
        places = np.linspace(0, 239, n).round().astype(int)         # UNSPECIFIED: as above
        return np.where(places < frames, places, -1)
    if kind in ('chunk', 'stride'):                 # UNSPECIFIED: an incomplete chunk; we drop it, or fill it up if it is alone
        numbers = np.arange(max(frames // n, 1) * n).clip(max=frames - 1)
        return numbers if kind == 'chunk' else numbers[::n]
    return np.arange(0, frames, max(rate / n, 1e-3)).astype(int)


def read_frames(path, rule='uniform16', picture=lambda frame: frame):
    """One video -> uint8 (F, H, W, 3), red green blue: the frames that the rule takes, each through picture().
    It is decoded twice, first to count: containers often say a wrong number, and all frames at once may not fit into memory."""
    first = last = None
    for count, frame in enumerate(decoded(path), 1):
        first, last = first or frame, frame
    if not first:
        raise BadInput(f'{path}: not one frame of it can be decoded')
    seconds = (last.time or 0) - (first.time or 0)
    numbers = sample(rule, count, (count - 1) / seconds if seconds > 0 else 25.0)   # one frame, or no times: any rate will do
    if len(numbers) > MOST:
        raise BadInput(f'{path}: {len(numbers)} frames by the rule {rule}, more than {MOST}: cut the video into scenes')
    kept, wanted = {}, set(numbers.tolist())
    for number, frame in enumerate(itertools.islice(decoded(path), max(wanted) + 1)):
        if number in wanted:
            upright = np.rot90(frame.to_ndarray(format='rgb24', width=first.width, height=first.height), frame.rotation // 90)
            kept[number] = picture(np.ascontiguousarray(upright))   # telephones film sideways and say so
    return np.stack([kept[n] if n >= 0 else np.zeros_like(kept[0]) for n in numbers.tolist()])


def read_sound(path, rate):
    """One video -> float32 (S,), one channel, about -1 to 1; a video without sound is silent for a second."""
    import av
    resampler, pieces = av.AudioResampler('flt', 'mono', rate), []
    for frame in itertools.chain(decoded(path, 'audio'), [None]):
        pieces += [piece.to_ndarray()[0] for piece in resampler.resample(frame)]
    sound = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
    return np.pad(sound, (0, max(rate - len(sound), 0)))


def picture(encoder, frame):
    """frame uint8 (H, W, 3) -> the network's input, still uint8 (h, w, 3): small, to be sent from process to process"""
    x = torch.from_numpy(frame).permute(2, 0, 1)[None]
    if encoder in ('clip', 'c3d', 'narrow'):        # ASTAR resizes, whatever the shape was
        side = 56 if encoder == 'clip' else c3d.SIZE
        x = F.interpolate(x, (side, side), mode='bilinear', antialias=True)
    elif encoder != 'frcnn':                        # that one takes any size
        from torchvision.transforms import functional
        ready = transforms(encoder)
        x = functional.resize(x, ready.resize_size, ready.interpolation, antialias=getattr(ready, 'antialias', False))
        x = functional.center_crop(x, ready.crop_size)
    return x[0].permute(1, 2, 0).contiguous().numpy()


def read(path, encoder, sampling):
    """-> what encode() takes. BadInput, whatever is wrong with the file."""
    try:
        if sampling == 'sound':
            return read_sound(path, 16000 if encoder == 'logmel' else 8192)
        return read_frames(path, sampling, functools.partial(picture, encoder))
    except BadInput:
        raise
    except Exception as error:                      # decoders meet files that nobody thought of
        raise BadInput(f'{path}: cannot be read ({type(error).__name__}: {error})') from None


# ------------------------------------------------------------------------------------------------------------- networks

@functools.cache
def transforms(encoder):
    """torchvision's own preprocessing for these weights."""
    from torchvision import models
    return models.get_weight(ENCODERS[encoder][2]).transforms()


def settings(encoder, weights='default', sampling=None):
    """What makes one kind of features, in full: a dict for info.json."""
    if encoder not in ENCODERS:
        raise BadInput(f'no encoder {encoder!r}: there are {", ".join(ENCODERS)}')
    info = {'encoder': encoder, 'weights': weights, 'sampling': sampling or ENCODERS[encoder][0]}
    if (info['sampling'] == 'sound') != (ENCODERS[encoder][0] == 'sound'):
        raise BadInput(f'--sampling {sampling} does not fit the encoder {encoder}')
    if info['sampling'] != 'sound':
        sample(info['sampling'], 1, 25.0)           # an unknown rule is told now
    if encoder in ('audio', 'logmel'):
        info['weights'] = 'not needed'
    elif encoder in OWN:
        info['weights'] = shapes.fingerprint(OWN[encoder])      # as shapes.prepare() writes it
        if weights not in ('default', 'none', info['weights']):
            raise BadInput(f'these features of clips were made with other weights ({weights}) than {OWN[encoder].name} '
                           f'({info["weights"]}): train again')
    elif weights == 'default':
        info['weights'] = ENCODERS[encoder][2]
        if encoder == 'c3d':
            raise BadInput('C3D has no weights in torchvision: give its Sports-1M weights with --weights FILE, or --weights none')
    elif weights not in ('none', ENCODERS[encoder][2]):
        if not Path(weights).is_file():
            raise BadInput(f'--weights {weights}: there is no such file; expected default, none or a file')
        info |= {'weights': str(Path(weights).resolve()), 'sha256': hashlib.sha256(Path(weights).read_bytes()).hexdigest()}
    if encoder == 'c3d':
        order = 'red, green, blue' if weights == 'none' else 'blue, green, red (turned round in conv1)'
        info['input'] = {'colours': order, 'mean of red, green, blue': list(c3d.MEAN)}
    return info


@functools.lru_cache(maxsize=2)
def network(encoder, weights, device='cpu'):
    """weights as settings() gives them -> the network in eval mode, or None. `none` is random, and always the same."""
    if encoder in ('audio', 'logmel'):
        return None
    if encoder == 'clip':
        return shapes.load_clip_cnn().to(device)
    if encoder == 'narrow':
        return shapes.load_c3d().to(device)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        if encoder == 'c3d':
            return (c3d.C3D() if weights == 'none' else c3d.load_published(weights)).eval().to(device)
        from torchvision import models
        _, name, published, _ = ENCODERS[encoder]
        if weights == published:
            try:
                return models.get_model(name, weights=models.get_weight(published)).eval().to(device)
            except OSError as error:                # no network, no space
                raise BadInput(f'cannot download {models.get_weight(published).url} ({error}): fetch that file elsewhere and use '
                               f'--weights FILE, or --weights none to try things out') from None
        net = models.get_model(name, weights=None, **UNPUBLISHED.get(encoder, {})).eval()
        norms = [module for module in net.modules() if hasattr(module, 'running_var')]
        if weights == 'none':                       # as initialised, numbers would explode or vanish: let noise set the norms
            for norm in norms:
                norm.train().momentum = None
            size = (16, 112, 112) if encoder == 's3d' else (224, 224)
            noise = F.interpolate(torch.randn(1, 3, *[side // 8 for side in size]), size)       # coarse, as pictures are
            body = {'s3d': 'features', 'frcnn': 'backbone'}.get(encoder, '')
            net.get_submodule(body)(noise)
            return net.eval().to(device)
        try:
            net.load_state_dict(torch.load(weights, map_location='cpu', weights_only=True))
        except Exception as error:
            raise BadInput(f'{weights}: not the weights of {name} ({str(error).splitlines()[0][:200]})') from None
        for norm in norms if encoder == 'frcnn' else ():
            norm.eps = 0.0                          # as torchvision does for its published weights of this one
        return net.to(device)


def regions(net, frame):
    """frame float (3, H, W) from 0 to 1 -> (10, 1024): the last hidden layer for the 10 boxes most surely some object"""
    from torchvision.ops import nms
    images, _ = net.transform([frame])
    maps, (height, width) = net.backbone(images.tensors), images.image_sizes[0]
    boxes = net.rpn(images, maps)[0][0]
    boxes = torch.cat([boxes, boxes.new_tensor([[0, 0, width, height]])])       # so that there is always one: the whole frame
    x = net.roi_heads.box_head(net.roi_heads.box_roi_pool(maps, [boxes], images.image_sizes))       # (boxes, 1024)
    sure = net.roi_heads.box_predictor(x)[0].softmax(1)[:, 1:].amax(1)          # class 0 is background
    best = nms(boxes, sure, net.roi_heads.nms_thresh)                           # in falling order
    return x[best[torch.arange(BOXES, device=best.device) % len(best)]]         # fewer than 10: again from the first


def logmel(sound):
    """sound (S,) at 16,000 per second -> (128,): its bands' log energy, 125 to 7,500 hertz as in VGGish, mean over time"""
    mel = torch.linspace(*(1127 * np.log1p(np.array([125.0, 7500.0]) / 700)), 130)              # edges and centres of the bands
    hertz = 700 * torch.expm1(mel / 1127)
    low, centre, high = hertz[:-2, None], hertz[1:-1, None], hertz[2:, None]
    f = torch.linspace(0, 8000, 513)
    bands = torch.minimum((f - low) / (centre - low), (high - f) / (high - centre)).clamp(min=0)    # (128, 513): triangles
    spectrum = torch.stft(torch.as_tensor(sound), 1024, 512, window=torch.hann_window(1024), return_complex=True).abs()
    return torch.log(bands @ spectrum + 0.01).mean(1)


@torch.no_grad()
def encode(encoder, net, x, device='cpu'):
    """x as read() gives it: uint8 (F, H, W, 3), or a sound (S,) -> {part: float32 (F, ...)}; all but c3d have one part, ''"""
    if encoder == 'logmel':
        return {'': logmel(x)[None].numpy()}
    if encoder == 'audio':                          # as shapes.audio(), whose world is never without a noise
        wave = x[:len(x) // 256 * 256] + 0.5 * np.random.default_rng(0).standard_normal(len(x) // 256 * 256)
        return {'': shapes.spectrum(wave)[None].astype(np.float32)}
    x = torch.from_numpy(x).to(device)
    if encoder == 'clip':
        found = {'': net(shapes.triples(x[None])).permute(0, 2, 3, 1)}
    elif encoder == 'narrow':
        found = {name: value[0] if name != 'fc7' else value for name, value in shapes.c3d_features(net, x[None]).items()}
    elif encoder == 'c3d':
        video = c3d.to_input(x[None])
        found = {name: one[0].permute(1, 2, 3, 0) for name, one in net.maps(video).items()} | {'fc7': net.fc7(video)}
    elif encoder == 'frcnn':
        found = {'': torch.stack([regions(net, one.permute(2, 0, 1) / 255) for one in x])}
    else:
        kept, ready = [], transforms(encoder)
        hook = net.get_submodule(ENCODERS[encoder][3]).register_forward_hook(lambda module, inputs, output: kept.append(output))
        for some in x.split(16):                    # memory; and s3d reads 16 at a time
            some = (some.float() / 255 - torch.tensor(ready.mean, device=device)) / torch.tensor(ready.std, device=device)
            if encoder == 's3d':
                some = torch.cat([some, some[-1:].expand(16 - len(some), -1, -1, -1)])
                net(some.permute(3, 0, 1, 2)[None])
                kept[-1] = kept[-1].mean(2)         # (1, 1024, 7, 7): two steps of time
            else:
                net(some.permute(0, 3, 1, 2))
        hook.remove()
        kept = torch.cat(kept)
        found = {'': kept.permute(0, 2, 3, 1) if kept.dim() == 4 else kept}
    return {part: value.float().cpu().contiguous().numpy() for part, value in found.items()}


# ---------------------------------------------------------------------------------------------------- one clip of a user

def recorded(folder, name):
    """features folder of a dataset, kind of features -> what is recorded of it, without the list of ids ({} if nothing is)"""
    for path in (Path(folder) / f'{name}.json', Path(folder) / name / 'info.json'):
        if path.is_file():
            return {key: value for key, value in data.record(path).items() if key not in ('ids', 'scale')}
    return {}


def encoder_of(name, info):
    """A name as --features has it -> encoder, part: the encoder that is recorded, else the one of that name"""
    encoder = info.get('encoder', 'c3d' if name.startswith('c3d_') else name)
    return RECORDED.get(encoder, encoder), info.get('part', name[4:] if encoder == 'c3d' else '')


def how_to_make(name, dataset, root):
    """-> str: the command that makes features of that name, or the like"""
    encoder, _ = encoder_of(name, {})
    encoder = INSTEAD.get(name, encoder if encoder in ENCODERS else 'NAME')
    like = f' (the nearest to {name} that there is; then --features {encoder})' if name in INSTEAD else ''
    weights = ' --weights FILE' if encoder == 'c3d' else ''
    return f'python extract.py --dataset {dataset} --root {root} --videos DIR --encoder {encoder}{weights}{like}'


def current(name, info):
    """A kind of features, and what is recorded of it -> encoder, part, its settings, if it can still be used as it was"""
    encoder, part = encoder_of(name, info)
    if encoder not in ENCODERS:
        raise BadInput(f'features {name!r} do not tell what made them, so a clip cannot get the like: put "encoder" (one of '
                       f'{", ".join(ENCODERS)}), "weights" and "sampling" into {name}.json or {name}/info.json')
    now = settings(encoder, info.get('weights', 'default'), info.get('sampling'))
    if info.get('sha256', now.get('sha256')) != now.get('sha256'):
        raise BadInput(f'{now["weights"]}: not the file any more that made the features {name!r}')
    return encoder, part, now


def frames_seen(path, name, info):
    """-> uint8 (F, h, w, 3), for pictures: the frames that the encoder takes, cropped where it crops them"""
    encoder, _, now = current(name, info)
    cropped = ENCODERS[encoder][1] and encoder != 'frcnn'
    small = lambda frame: frame[::max(len(frame) // 200, 1), ::max(len(frame) // 200, 1)]
    return read_frames(path, now['sampling'], functools.partial(picture, encoder) if cropped else small)


def features_of_video(path, names, infos=None, device='cpu'):
    """names: kinds of features; infos: name -> what is recorded of it; without that, a name is an encoder with its defaults
    -> {name: float32 (F, ...)}, rounded to half precision as the features on disk are"""
    done, found = {}, {}
    for name in names:
        encoder, part, now = current(name, (infos or {}).get(name, {}))
        key = tuple(now[field] for field in ('encoder', 'weights', 'sampling'))
        if key not in done:
            x = read(path, encoder, now['sampling'])            # before the network, which takes longer to make
            done[key] = encode(encoder, network(encoder, now['weights'], device), x, device)
        if part not in done[key]:
            raise BadInput(f'features {name!r}: {encoder} has no part {part!r}, only {", ".join(done[key])}')
        found[name] = done[key][part].astype(np.float16).astype(np.float32)
    return found


# ------------------------------------------------------------------------------------------------------- a whole dataset

def find_videos(folder, mapping=None):
    """folder, youtube_mapping.txt of msvd (`YOUTUBEID_START_END vidN` a line) -> [(id, path)] in order of ids"""
    if not Path(folder).is_dir():
        raise BadInput(f'--videos {folder}: there is no such folder')
    names = dict(line.split() for line in mapping.read_text().splitlines() if len(line.split()) == 2) if mapping else {}
    videos = {}
    for path in sorted(path for path in Path(folder).rglob('*') if path.suffix.lower() in VIDEOS and path.is_file()):
        video = names.get(path.stem, path.stem)
        if video in videos:
            raise BadInput(f'{path} and {videos[video]} have the same id, {video!r}: keep one of them')
        videos[video] = path
    if not videos:
        raise BadInput(f'--videos {folder}: no video in it (looked for {" ".join(VIDEOS)})')
    return sorted(videos.items())


def claim(folder, info):
    """Records in the folder how its features are made. Refuses one whose features were made in another way."""
    path = folder / 'info.json'
    if path.is_file():
        there = data.record(path)
        if there != info:
            different = ', '.join(f'{key} {there.get(key)!r} there, {info.get(key)!r} now'
                                  for key in sorted(there.keys() | info.keys()) if there.get(key) != info.get(key))
            raise BadInput(f'{folder} holds features made in another way ({different}): choose another --name, or remove it')
    elif any(folder.glob('*.npy')):
        raise BadInput(f'{folder} holds features, but no info.json that tells how they were made: choose another --name')
    else:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write(path, lambda file: file.write(json.dumps(info, indent=1).encode()))
        except OSError as error:
            raise BadInput(f'cannot write {path}: {error}; choose another --root') from None


def write(path, put):
    """put(file) under another name, then a rename: the file is there whole or not at all"""
    part = path.with_name(f'{path.name}.part{os.environ.get("RANK", 0)}')
    with open(part, 'wb') as file:
        put(file)
    os.replace(part, path)


def load(info, item):
    """In another process: (id, path) -> id, path, what encode() takes or the message of what is wrong."""
    video, path = item
    try:
        return video, path, torch.from_numpy(read(path, info['encoder'], info['sampling']))
    except BadInput as error:
        return video, path, str(error)


def extract(videos, folder, info, name, workers=0, device='cpu', rank=0, world=1):
    """[(id, path)] -> FOLDER/NAME/<id>.npy (of c3d FOLDER/NAME_pool2/<id>.npy ...), float16; what is there stays
    -> {id: what was wrong with it}. Of `world` processes each does its own part of the videos."""
    parts = (*c3d.MAPS, 'fc7') if info['encoder'] in ('c3d', 'narrow') else ('',)
    folders = {part: Path(folder) / (f'{name}_{part}' if part else name) for part in parts}
    for part, one in folders.items():
        claim(one, info | ({'part': part} if part else {}))
    mine = videos[rank::world]
    todo = [(video, path) for video, path in mine if not all((one / f'{video}.npy').is_file() for one in folders.values())]
    failed, net = {}, network(info['encoder'], info['weights'], device) if todo else None
    loader = DataLoader(todo, batch_size=None, collate_fn=functools.partial(load, info), num_workers=workers)
    for video, path, x in tqdm(loader, name, total=len(mine), initial=len(mine) - len(todo), unit=' clips', disable=rank > 0):
        if isinstance(x, str):
            failed[video] = x
            continue
        found = encode(info['encoder'], net, x.numpy(), device)
        with np.errstate(over='ignore'):
            found = {part: value.astype(np.float16) for part, value in found.items()}
        if not all(np.isfinite(value).all() for value in found.values()):
            failed[video] = f'{path}: features that are not finite, or too large for half precision'
            continue
        for part, value in found.items():
            write(folders[part] / f'{video}.npy', lambda file: np.save(file, value))
    return failed


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--dataset', required=True, choices=sorted(data.READERS), help='features go to ROOT/DATASET/features')
    add('--videos', required=True, metavar='DIR', help='folder of clips, with folders in it or not')
    add('--encoder', required=True, choices=ENCODERS, help=', '.join(ENCODERS), metavar='NAME')
    add('--root', default='data', help='(default: data)')
    add('--weights', default='default', help="default: torchvision's, downloaded; none: random; or a file (c3d needs one)")
    add('--sampling', metavar='RULE', help="(default: that of the encoder's paper)")
    add('--name', help='name of the features (default: that of the encoder)')
    add('--workers', type=int, default=2, metavar='N', help='processes that decode (default: 2)')
    add('--device', default='cuda' if torch.cuda.is_available() else 'cpu', help='(default: %(default)s)')
    args = parser.parse_args(argv)
    data.check_device(args.device)
    if args.workers < 0:
        raise BadInput(f'--workers {args.workers}: 0 decodes in this process, 2 in two others')
    rank, world = int(os.environ.get('RANK', 0)), int(os.environ.get('WORLD_SIZE', 1))
    device = f'cuda:{os.environ["LOCAL_RANK"]}' if args.device == 'cuda' and world > 1 else args.device
    folder, mapping = Path(args.root) / args.dataset, Path(args.root) / args.dataset / 'youtube_mapping.txt'
    videos = find_videos(args.videos, mapping if args.dataset == 'msvd' and mapping.is_file() else None)
    sampling = args.sampling or ('30fps' if args.dataset in RECOGNITION and args.encoder == 'googlenet' else None)
    info = settings(args.encoder, args.weights, sampling)
    failed = extract(videos, folder / 'features', info, args.name or args.encoder, args.workers, device, rank, world)
    for video, message in failed.items():
        print(f'left out: {message}', file=sys.stderr)
    done = len(videos[rank::world]) - len(failed)
    print(f'{done} of {len(videos[rank::world])} clips have features {args.name or args.encoder} in {folder / "features"}')
    return 0 if done or world > 1 else 1


if __name__ == '__main__':
    try:
        sys.exit(main(sys.argv[1:]))
    except BadInput as error:
        sys.exit(f'extract.py: {error}')
    except KeyboardInterrupt:
        sys.exit('extract.py: stopped; the same command goes on from here')
