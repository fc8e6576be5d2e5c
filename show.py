"""Pictures of what a model looked at while it spoke.

The chosen caption is replayed through decode.teacher_force, which returns the weights of every attention in `aux`; VIEWS says for
each paper which of them are over time, over space, or a few numbers per word.

Letters: T words, F frames, Y X rows and columns of the grid, L = Y*X.
"""
import base64
import io
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import data
import decode
import shapes
from data import BadInput

# paper -> attention over frames (T, F) and over space (T, L) (the first that the variant has), or over both at once (T, F, L);
# numbers per word (T,) or (T, n), with their names
VIEWS = {
    'stats': dict(time=('ts_frames', 'st_frames'), space=('ts_space', 'st_space'), bars={'mix': ('ST', 'TS')}),
    'sta': dict(both='space', bars={'gate': ('gate',)}),
    'vre': dict(time=('frames',), space=('space',), bars={}),
    'astar': dict(both='space', bars={'layers': ('pool2', 'pool3', 'pool4', 'pool5')}),
}


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
    if view.get('both') in aux:
        both = aux[view['both']].reshape(*aux[view['both']].shape[:2], -1)                  # (T, F, L), sums to one over both
        time = both.sum(2)
        return time, both / np.maximum(time[..., None], 1e-9), bars
    time, space = (next((aux[name] for name in view[key] if name in aux), None) for key in ('time', 'space'))
    if space is not None and space.ndim == 2:                                               # one map for all frames
        space = np.repeat(space[:, None], 1 if time is None else time.shape[1], axis=1)
    return time, space, bars


def square(cells):
    """(L,) -> (Y, X), or None where the regions form no grid"""
    side = math.isqrt(len(cells))
    return cells.reshape(side, side) if side > 1 and side * side == len(cells) else None


def spotlight(frame, lit):
    """uint8 (H, W, 3), weights (Y, X) -> the frame with its colours, dark where nothing was looked at"""
    lit = torch.from_numpy(np.ascontiguousarray(lit / lit.max())).float()[None, None]
    lit = torch.nn.functional.interpolate(lit, frame.shape[:2], mode='bilinear')[0, 0].numpy()
    return (frame * (0.25 + 0.75 * lit[..., None])).astype(np.uint8)


def frames_of(corpus, video):
    """uint8 (F, H, W, 3) where the frames can be had: shapes are rendered again"""
    return shapes.render(shapes.scene(video)) if corpus.name == 'shapes' else None


def save_figure(figure, path):
    import matplotlib.pyplot as plt
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise BadInput(f'cannot write {path}: {error}') from None
    plt.close(figure)


def one_caption(model, corpus, features, vocabulary, captions, path, device, video=None, frames=None):
    """Draws one video's caption, word by word: the frame looked at most with the map over it, the weights of all frames, and the
    paper's own numbers. captions: id -> str. -> path"""
    import matplotlib
    matplotlib.use('Agg')                                   # no screen needed
    import matplotlib.pyplot as plt
    video = video or max(captions, key=lambda i: len(captions[i].split()))
    batch = data.to(data.Batches(corpus, features).collate([(video, [])]), device)
    words, aux = replay(model, batch, vocabulary, captions[video])
    time, space, bars = over_time_and_space(type(model).__module__, aux)
    frames = frames_of(corpus, video) if frames is None else frames
    rows = (frames is not None and time is not None) + (time is not None) + len(bars)
    figure, axes = plt.subplots(rows, 1, figsize=(1.15 * len(words) + 1.2, 1.6 * rows + 0.8), layout='constrained', squeeze=False)
    axes = list(axes[:, 0])
    if frames is not None and time is not None:
        axis, side = axes.pop(0), frames.shape[1]
        for t, word in enumerate(words):
            if time[t].sum() == 0:                          # a word that looked at nothing
                continue
            best = int(time[t].argmax() * len(frames) / time.shape[1])
            extent = (t * 1.04 * side, (t * 1.04 + 1) * side, side, 0)
            lit = None if space is None else square(space[t, time[t].argmax() if space.shape[1] > 1 else 0])
            axis.imshow(frames[best] if lit is None else spotlight(frames[best], lit), extent=extent)
            axis.text(extent[0] + 3, 12, f'frame {best + 1}', color='white', fontsize=7)
        axis.set(xlim=(0, len(words) * 1.04 * side), ylim=(side, 0), yticks=[])
        axis.set_xticks([(t * 1.04 + 0.5) * side for t in range(len(words))])
        axis.set_xticklabels(words)
        axis.set_ylabel('looked at')
    if time is not None:
        axis = axes.pop(0)
        axis.imshow(time.T, aspect='auto', cmap='viridis', origin='lower')
        axis.set(xticks=range(len(words)), ylabel='frame')
        axis.set_xticklabels(words)
    for name, values in bars.items():
        axis = axes.pop(0)
        bottom, labels = np.zeros(len(words)), VIEWS[type(model).__module__]['bars'][name]
        for value, label in zip(values.T, labels):
            axis.bar(range(len(words)), value, bottom=bottom, label=label, width=0.8)
            bottom = bottom + value
        axis.set(xlim=(-0.5, len(words) - 0.5), ylim=(0, 1.02), xticks=range(len(words)), ylabel=name)
        axis.set_xticklabels(words)
        axis.legend(fontsize=7, loc='upper right', ncols=len(labels))
    reference = ''.join(f'\nreference: {caption}' for caption in corpus.captions[video][:1])
    figure.suptitle(f'{video}: {captions[video]}{reference}', fontsize=10)
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
            for label, row in numbers.items():
                mine.setdefault(label, []).append(row[t])
            if role == 'article':
                continue
            steps = shapes.STEPS if time is None else time.shape[1]
            when = np.arange(steps) * shapes.STEPS // steps                                     # the clip's frame at each step
            if space is not None and square(space[t, 0]) is not None:
                boxes, maps = truth['boxes'][role == 'object'], np.broadcast_to(space[t], (steps, space.shape[2]))
                inside = np.stack([cells_in(boxes[frame], math.isqrt(space.shape[2])) for frame in when])       # (F, L)
                weight = inside.any(1) * (np.ones(steps) if time is None else time[t])          # given that the shape is there
                weight = weight / max(weight.sum(), 1e-9)
                mine['box'].append((weight * (maps * inside).sum(1)).sum())
                mine['box chance'].append((weight * inside.mean(1)).sum())
            if time is not None:
                window = (when >= truth['window'][0]) & (when <= truth['window'][1])
                mine['window'].append(time[t][window].sum())
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
