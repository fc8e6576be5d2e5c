"""Captions for the user's own videos:  python evaluate.py RUN --video FILE

A run records how the features of its training videos were made, so that a new video can get the
same kind of features.
"""
import sys
from pathlib import Path

import numpy as np

import data
import decode
import evaluate
from data import BadInput
from tools import encoders, figures, video
from tools.runs import output

SIDE = 200          # pixels; frames are reduced to less than twice this height for pictures


def features_of_video(path, infos, device='cpu'):
    """path of a video; infos: name of features -> how they were made. If that is {}, the name is
    the name of an encoder, with its default settings.
    -> {name: float32 (F, ...)}, rounded to half precision like the features on disk"""
    encoded = {}
    found = {}
    for name, info in infos.items():
        part, made = encoders.settings_of(name, info)
        key = (made['encoder'], made['weights'], made['sampling'])
        if key not in encoded:
            x = encoders.read(path, made['encoder'], made['sampling'])      # a bad file fails early
            net = encoders.load(made['encoder'], made['weights'], device)
            encoded[key] = encoders.encode(made['encoder'], net, x, device)
        found[name] = encoded[key][part].astype(np.float32)
    return found


def reduce(frame):
    """uint8 (H, W, 3) -> every n-th row and column of it"""
    step = max(len(frame) // SIDE, 1)
    return frame[::step, ::step]


def frames_seen(path, name, info):
    """-> uint8 (F, h, w, 3), for pictures: the frames that were encoded for these features, cropped
    if the encoder crops them. If only the sound was encoded, 16 frames."""
    encoder = encoders.ENCODERS[encoders.encoder_of(name, info)[0]]
    rule = info.get('sampling') or encoder.sampling
    if rule == 'sound':
        rule = 'uniform16'
    return video.read_frames(path, rule, encoder.prepare if encoder.cropped else reduce)


def find_infos(runs):
    """-> {name of features: how they were made}, for all features that these runs read"""
    infos = {}
    for run in runs:
        folder = Path(run.dataset.root) / run.dataset.name / 'features'
        for name in [name for name in run.cfg.features if name not in infos]:
            infos[name] = run.encoders.get(name, {})
            for path in (folder / name / 'info.json', folder / f'{name}.json'):
                if not infos[name] and path.is_file():
                    infos[name] = data.read_record(path)        # written after the training
            encoders.encoder_of(name, infos[name])      # refuses an unknown one
            if 'encoder' not in infos[name]:
                print(f'It is not recorded which encoder made the features {name!r}. '
                      f'Using {name}, with its default settings where none are recorded.')
    return infos


def caption_file(path, runs_and_models, infos):
    """Print a caption for one video, and draw the attention of each model."""
    run, model = runs_and_models[0]
    if len(runs_and_models) > 1:
        model = decode.Ensemble([one for _, one in runs_and_models])
    name = Path(path).stem
    found = features_of_video(path, infos, run.device)
    frames = frames_seen(path, run.cfg.features[0], infos[run.cfg.features[0]])
    corpus = data.Corpus('', '', {name: []})
    corpus.features = {kind: {name: value} for kind, value in found.items()}
    said = evaluate.describe(run, model, corpus, run.training.beam)
    print(f'{path}: {said[name]}')
    picture = output(run, name, '.png')
    print(f'picture     {figures.draw_video(runs_and_models, corpus, name, picture, frames)}')


def caption_files(runs_and_models, files):
    """Caption these video files. Several runs form an ensemble. A file that cannot be read does
    not stop the others."""
    runs = [run for run, _ in runs_and_models]
    if runs[0].recognises:
        raise BadInput(f'{runs[0].path} recognises actions; it cannot write captions')
    infos = find_infos(runs)
    for name, info in infos.items():
        encoders.settings_of(name, info)                # complain once, not for every video
    if runs[0].dataset.name == 'shapes':
        print(f'{runs[0].path} was trained on moving shapes, so it describes any video as if it '
              'showed moving shapes.')
    failed = 0
    for path in files:
        try:
            caption_file(path, runs_and_models, infos)
        except BadInput as error:
            print(f'error: {error}', file=sys.stderr)
            failed += 1
    if failed:
        raise BadInput(f'{failed} of {len(files)} videos got no caption')
