"""A page for exploring what the models look at: one HTML file that needs no network.

page.html is the page, and `write_page` puts the data in it: for some videos the frames, the
references, and what each run looked at. Letters as in figures.py.
"""
import base64
import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image                                       # matplotlib needs it, too
from tqdm import tqdm

from shapes import words
from tools import figures, machine

VIDEOS = 40                 # at most: the page has to open at once, on a phone too


@dataclass
class Scored:
    """A run on one split, with what evaluate.evaluate() returned"""
    run: object
    model: object
    scores: dict            # of the whole split
    found: dict             # id -> caption, or class probabilities
    each: dict              # id -> scores of its caption

    def score(self, corpus, video):
        """-> {metric: number} of one video"""
        if self.run.recognises:
            best = max(self.found[video][label] for label in corpus.labels[video])
            return {'probability of the true class': float(best)}
        scores = dict(self.each[video])
        if corpus.truth:
            right = words.slots_right(self.found[video], corpus.truth[video])
            scores['slots'] = np.mean(list(right.values()))
        return scores


def attended(weights):
    """weights (T, F, Y, X) or None -> time: (T, F), or None if all frames have the same weight;
    maps: one byte per weight, 255 for the highest of each word, or None without a grid"""
    found = {'time': None, 'maps': None, 'steps': 0}
    if weights is None:
        return found
    found['steps'], rows, columns = weights.shape[1:]
    if not figures.even_in_time(weights):
        found['time'] = weights.sum((2, 3)).round(4).tolist()
    if rows * columns > 1:
        highest = np.maximum(weights.max((1, 2, 3), keepdims=True), 1e-9)
        light = (255 * weights / highest).round().astype(np.uint8)
        found['maps'] = {'rows': rows, 'columns': columns,
                         'bytes': base64.b64encode(light.tobytes()).decode()}
    return found


def what_it_saw(scored, corpus, video):
    """-> the scores of one run on one video and its Look, in plain values"""
    caption = None if scored.run.recognises else scored.found[video]
    look = figures.look_at(scored.run, scored.model, corpus, video, caption)
    numbers = {'labels': look.labels, 'values': look.numbers.round(4).tolist()}
    return {'scores': scored.score(corpus, video), 'words': look.words, **attended(look.weights),
            'parts': [{'label': label, **attended(part)} for label, part in look.parts.items()],
            'about_parts': figures.about_parts(look),
            'numbers': [numbers] if look.labels else [],
            'key': look.key, 'focus': None if look.focus is None else look.focus.round(4).tolist()}


def one_video(several, corpus, video, frames):
    """frames: uint8 (F, H, W, 3) or None -> what the page says about one video"""
    looks = [what_it_saw(scored, corpus, video) for scored in several]
    content = {'id': video, 'runs': looks, 'frames': None, 'truth': None,
               'references': corpus.captions.get(video),
               'count': max(1, *(look['steps'] for look in looks))}
    if several[0].run.recognises:
        content['references'] = figures.true_classes(corpus, video)
    if frames is not None:
        every = max(frames.shape[1] // 112, 1)              # 16 small frames are enough
        frames = np.stack(figures.spread(frames[:, ::every, ::every], 16))
        content['count'], height, width, _ = frames.shape
        file = io.BytesIO()
        Image.fromarray(np.concatenate(frames, axis=1)).save(file, 'JPEG', quality=80)
        picture = 'data:image/jpeg;base64,' + base64.b64encode(file.getvalue()).decode()
        content['frames'] = {'picture': picture, 'height': height, 'width': width}
    if corpus.truth:
        content['truth'] = {name: corpus.truth[video][name] for name in ('boxes', 'window')}
    return content


def write_page(path, several, corpus, frames_of=figures.frames_of):
    """several: list of Scored, on the same split; frames_of: function (corpus, video) -> uint8
    (F, H, W, 3) or None -> path"""
    metrics = several[0].score(corpus, corpus.ids[0])
    main = 'CIDEr' if 'CIDEr' in metrics else next(iter(metrics))
    means = {}
    for video in corpus.ids:
        means[video] = np.mean([scored.score(corpus, video)[main] for scored in several])
    videos = []
    best_to_worst = sorted(means, key=means.get, reverse=True)
    for video in tqdm(figures.spread(best_to_worst, VIDEOS), desc='page', leave=False):
        videos.append(one_video(several, corpus, video, frames_of(corpus, video)))
    different = len({scored.run.title for scored in several}) == len(several)
    runs = []
    for scored in several:
        run = scored.run
        beam = '' if run.recognises else f', {run.search}'
        runs.append({'name': run.title if different else str(run.path),
                     'about': f'{run.paper.name}.py{beam}', 'scores': scored.scores})
    content = {'dataset': corpus.name, 'split': corpus.split, 'total': len(corpus.ids),
               'metric': main, 'runs': runs, 'videos': videos}
    text = json.dumps(content).replace('<', '\\u003c')      # no caption can end the script element
    page = Path(__file__).with_name('page.html').read_text('utf-8')
    with machine.replacing(path) as temporary:
        temporary.write_text(page.replace('>DATA<', f'>{text}<'), 'utf-8')
    return Path(path)
