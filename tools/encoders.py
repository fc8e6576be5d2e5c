"""The settings of an encoder, which determine its features, and how to run it.

    settings --load--> network
    video --read--> frames or sound --encode--> {part: features}

Letters: F frames, S sound samples.
"""
import hashlib
from functools import cache, lru_cache
from pathlib import Path

import torch

import c3d
import data
from data import BadInput
from shapes import networks
from tools import video
from tools.backbones import ENCODERS

# Names that shapes/dataset.py records for its encoders
RECORDED = {'shapes.ClipCNN': 'clip', 'shapes.C3D': 'narrow', 'shapes.audio': 'audio'}
# Features of the papers that we cannot make, and the nearest encoder
NEAREST = {'i3d_rgb': 'i3d', 'vggish': 'logmel'}


def settings(name, weights='default', sampling=None):
    """Everything that determines the features of an encoder -> dict, which goes into info.json"""
    data.choose('--encoder', name, ENCODERS)
    encoder = ENCODERS[name]
    sampling = sampling or encoder.sampling
    if not encoder.rate:
        video.sample(sampling, 1, 25.0)                 # refuses an unknown rule
    elif sampling != 'sound':
        raise BadInput(f'--sampling {sampling}: the encoder {name} needs the rule sound')
    info = {'encoder': name, 'sampling': sampling, **choose_weights(name, weights)}
    if name == 'c3d':
        published = 'blue, green, red (turned round in conv1)'
        colours = 'red, green, blue' if weights == 'none' else published
        info['input'] = {'colours': colours, 'mean of red, green, blue': list(c3d.MEAN)}
    return info


def choose_weights(name, weights):
    """--weights -> {'weights': ...}, and 'sha256' if they are a file of the user"""
    default = ENCODERS[name].weights
    source = ENCODERS[name].source
    if ENCODERS[name].rate:
        return {'weights': 'not needed'}
    if isinstance(default, Path):                       # trained by this project
        current = networks.fingerprint(default)
        if weights not in ('default', 'none', current):
            raise BadInput(f'{default.name} ({current}) is not the file that made these features '
                           f'({weights}); train again')
        return {'weights': current}
    if weights == 'default':
        weights = default or weights
    if weights == 'none' or weights == default and not source:
        return {'weights': weights}
    path = Path(weights).resolve()
    if not path.is_file():
        raise BadInput(f'--weights {weights}: there is no such file; '
                       f'{source or "use default, none or a file"}')
    # The default is recorded without its folder, so that it is found in any current folder.
    return {'weights': weights if weights == default else str(path), 'sha256': sha256(path)}


@cache
def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@lru_cache(maxsize=2)
def load(name, weights, device='cpu'):
    """weights from settings() -> the network in eval mode; None if the encoder has no network.
    The random weights of `none` are always the same."""
    if ENCODERS[name].rate:
        return None
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        return ENCODERS[name].build(weights).eval().to(device)


def read(path, name, sampling):
    """One video -> the input of encode(): uint8 (F, h, w, 3), or float32 (S,) of sound"""
    encoder = ENCODERS[name]
    with data.reading(path, 'cannot be read'):
        if encoder.rate:
            return torch.from_numpy(video.read_sound(path, encoder.rate))
        return torch.from_numpy(video.read_frames(path, sampling, encoder.prepare))


@torch.no_grad()
def encode(name, net, x, device='cpu'):
    """x from read() -> {part: float16 (F, ...)}"""
    found = ENCODERS[name].run(net, x.to(device) if net else x)
    return {part: value.float().half().cpu().contiguous().numpy() for part, value in found.items()}


# ---------------------------------------------------------------- from features back to the encoder

def encoder_of(name, info):
    """name of the features, their info.json ({} if there is none) -> name of the encoder, part"""
    encoder = info.get('encoder', 'c3d' if name.startswith('c3d_') else name)
    part = info.get('part', name.removeprefix('c3d_') if encoder == 'c3d' else '')
    encoder = RECORDED.get(encoder, encoder)
    if encoder not in ENCODERS:
        raise BadInput(f'it is not recorded how the features {name!r} were made; write "encoder", '
                       f'"weights" and "sampling" into {name}.json or {name}/info.json')
    parts = ENCODERS[encoder].parts
    if part not in parts:
        raise BadInput(f'features {name!r}: {encoder} has only the parts {", ".join(parts)}')
    return encoder, part


def settings_of(name, info):
    """name of the features, their info.json -> part, settings(): how to make such features again"""
    encoder, part = encoder_of(name, info)
    found = settings(encoder, info.get('weights', 'default'), info.get('sampling'))
    if info.get('sha256', found.get('sha256')) != found.get('sha256'):
        raise BadInput(f'{found["weights"]}: this file has changed since it made {name!r}')
    return part, found


def how_to_make(name, dataset, root):
    """-> the command that makes features of this name, or the nearest that we can make"""
    encoder = name if name in ENCODERS else 'NAME'
    if name.startswith('c3d'):
        encoder = 'c3d --weights FILE'
    elif name in NEAREST:
        encoder = f'{NEAREST[name]} (the nearest to {name}; then use --features {NEAREST[name]})'
    return (f'python -m tools.extract --dataset {dataset} --root {root} --videos DIR '
            f'--encoder {encoder}')
