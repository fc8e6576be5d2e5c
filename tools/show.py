"""Look at runs:  python -m tools.show COMMAND RUN ...

    figures   what each run looks at in some videos, one PNG per video
    curves    losses and scores during training, from the logs
    page      one HTML file for exploring what the runs look at
    words     parts of speech in the captions of a run (Fig. 5 of stats)
    glimpse   whether a clip that a run misjudges can be recognised by looking elsewhere (Fig. 2.8
              of sta)

A RUN is a folder that train.py made, or a .pt file in it. `COMMAND --help` lists the flags.
"""
import functools
import json
import math
from collections import Counter
from pathlib import Path

import torch
from matplotlib.figure import Figure
from tqdm import tqdm

import evaluate
import sta
from data import BadInput
from shapes import words as shape_words
from tools import caption, checkpoints, datasets, extract, figures, java, page, runs, scores

CURVES = {'loss': 'training loss', 'val_loss': 'validation loss per word',
          'val_CIDEr': 'validation CIDEr', 'val_accuracy': 'validation accuracy',
          'val_mAP': 'validation mAP', 'val_slots': 'validation slot accuracy'}
CLASSES = {'verb': 'tab:red', 'noun': 'tab:blue', 'adjective': 'tab:green'}
ROLES = {'subject': 'noun', 'object': 'noun', 'sound': 'noun', 'colour': 'adjective',
         'object colour': 'adjective', 'verb': 'verb'}      # of words in the embedded world
TAGGER = '''python -c "import nltk; nltk.download('averaged_perceptron_tagger_eng'); \
nltk.download('universal_tagset')"'''


def find_films(folder, run):
    """--videos -> function (corpus, video) -> uint8 (F, H, W, 3), the frames that were encoded, or
    None"""
    if not folder:
        return figures.frames_of
    names = datasets.msvd_names(run.dataset.folder()) if run.dataset.name == 'msvd' else None
    paths = dict(extract.find_videos(folder, names))
    feature = run.cfg.features[0]
    info = caption.find_infos([run])[feature]

    def film(corpus, video):
        path = paths.get(video)
        return caption.frames_seen(path, feature, info) if path else None

    return film


# ------------------------------------------------------- figures and page
def show_figures(args):
    """Some videos of the split, each with every run"""
    if args.count < 1:
        raise BadInput(f'--count {args.count}: must be at least 1')
    loaded = checkpoints.load_all(args)
    first = loaded[0][0]
    frames_of = find_films(args.videos, first)
    corpus = runs.open_all(loaded, args.split)
    folder = runs.output(first, 'figures', '')
    for video in tqdm(figures.spread(corpus.ids, args.count), desc='pictures', leave=False):
        path = folder / f'{video.replace("/", "_")}.png'
        figures.draw_video(loaded, corpus, video, path, frames_of(corpus, video))
        tqdm.write(f'picture     {path}')


def show_page(args):
    if not Path(args.out).parent.is_dir():
        raise BadInput(f'--out {args.out}: there is no folder {Path(args.out).parent}')
    loaded = checkpoints.load_all(args)
    if len({run.recognises for run, _ in loaded}) > 1:
        raise BadInput('some of these runs write captions and some recognise actions: make a page '
                       'for each kind')
    if not loaded[0][0].recognises:
        java.check_java()                                   # before the clips are rendered
    frames_of = find_films(args.videos, loaded[0][0])
    corpus = runs.open_all(loaded, args.split)
    several = []
    for run, model in loaded:
        found = scores.full_scores(run, model, corpus)
        several.append(page.Scored(run, model, *found))
        how = '' if run.recognises else f', {run.search}'
        print(f'{run.title}: {corpus.name}, {corpus.split} split, {len(corpus.ids)} videos{how}')
        print(evaluate.table(found[0]) + '\n')
    path = page.write_page(args.out, several, corpus, frames_of)
    print(f'page        {path}, {path.stat().st_size / 1e6:.1f} MB: open it in a browser')


# ------------------------------------------------------- training curves
def read_log(path):
    """log.jsonl -> [epoch, epoch, ...], of all stages. A last line that was cut off is left out."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        raise BadInput(f'{path}: there is no log; train.py writes one into a run') from None
    entries = [json.loads(line) for line in lines if line.endswith('}')]
    epochs = [entry for entry in entries if 'epoch' in entry]       # the others are settings
    if not epochs:
        raise BadInput(f'{path}: no epoch was finished yet')
    return epochs


def plot_log(axis, log, name, n, label):
    """Run number n in one panel; stages follow each other"""
    values = [epoch.get(name, math.nan) for epoch in log]
    axis.plot(range(1, len(log) + 1), values, '.-', label=label, color=f'C{n}')
    stages = [epoch.get('stage') for epoch in log]
    for i, (before, stage) in enumerate(zip([None, *stages], stages)):
        if stage != before:
            axis.axvline(i + 0.5, linewidth=0.8, linestyle=':', color=f'C{n}')
            axis.text(i + 0.6, 0.99 - 0.15 * n, stage, fontsize=8, va='top', rotation=90,
                      transform=axis.get_xaxis_transform(), color=f'C{n}')


def show_curves(args):
    """A panel for each measure, a colour for each run"""
    folders = [Path(run) if Path(run).is_dir() else Path(run).parent for run in args.runs]
    logs = [read_log(folder / 'log.jsonl') for folder in folders]
    found = set().union(*sum(logs, []))
    panels = [name for name in CURVES if name in found]
    figure = Figure(figsize=(figures.WIDTH / figures.DPI, 450 / figures.DPI), layout='constrained')
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, name in zip(axes, panels):
        for n, (folder, log) in enumerate(zip(folders, logs)):
            plot_log(axis, log, name, n, folder.resolve().name)
        axis.margins(y=0.2)                                 # room for the names of the stages
        axis.set(title=CURVES[name], xlabel='epoch')
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    print(f'picture     {figures.save_figure(figure, folders[0] / "curves.png")}')


# ------------------------------------------------------- parts of speech
def tag(captions):
    """Captions of real videos -> [(word, 'verb', 'noun', 'adjective' or None)]"""
    import nltk
    kinds = {'VERB': 'verb', 'NOUN': 'noun', 'ADJ': 'adjective'}
    try:
        tagged = nltk.pos_tag_sents([caption.split() for caption in captions], tagset='universal')
    except LookupError:
        raise BadInput(f"the tagger's model is missing; type: {TAGGER}") from None
    return [(word, kinds.get(kind)) for sentence in tagged for word, kind in sentence]


def tag_shapes(captions):
    """The same for captions of the embedded world, by its own lexicon"""
    other = {'bigger': 'adjective', 'smaller': 'adjective', 'after': None}
    tagged = []
    for one in captions:
        roles = shape_words.word_roles(one, {'slots': {}})
        for word, role in zip(one.split(), roles):
            tagged.append((word, other.get(word, ROLES.get(role))))
    return tagged


def word_classes(tagged, skip=5, most=20):
    """[(word, class)] -> share of each class; the most frequent words after the first `skip`, as
    [((word, class), count)]"""
    counts = Counter(pair for pair in tagged if pair[1])
    kinds = Counter(kind for _, kind in counts.elements())
    shares = {kind: kinds[kind] / max(kinds.total(), 1) for kind in CLASSES}
    return shares, counts.most_common()[skip:skip + most]


def draw_words(shares, frequent, path):
    """The two charts of Fig. 5 -> path"""
    figure = Figure(figsize=(11, 3.6), layout='constrained')
    left, right = figure.subplots(1, 2, width_ratios=(3, 1))
    for x, ((_, kind), n) in enumerate(frequent):
        left.bar(x, n, color=CLASSES[kind])
    left.set(ylabel='occurrences')
    left.set_xticks(range(len(frequent)), [word for (word, _), _ in frequent], rotation=60,
                    ha='right')
    labels = [f'{kind}s {share:.0%}' for kind, share in shares.items()]
    right.pie(shares.values(), labels=labels, colors=CLASSES.values())
    return figures.save_figure(figure, path)


def show_words(args):
    (run, model), = checkpoints.load_all(args)
    if run.recognises:
        raise BadInput(f'{run.path} recognises actions and writes no captions')
    tagger = tag_shapes if run.dataset.name == 'shapes' else tag
    tagger(['a'])                                           # fail now, not after the work
    corpus = runs.open_split(run, args.split)
    _, captions, _ = scores.full_scores(run, model, corpus)
    shares, frequent = word_classes(tagger(captions.values()))
    print('  '.join(f'{kind}s {share:.1%}' for kind, share in shares.items()))
    print('after the five most frequent words: '
          + ', '.join(f'{word} ({kind}, {n})' for (word, kind), n in frequent))
    print(f'picture     {draw_words(shares, frequent, runs.output(run, "words", ".png"))}')


# ------------------------------------------------------- glimpses
def show_glimpse(args):
    (run, model), = checkpoints.load_all(args)
    if not isinstance(model, sta.Recogniser) or run.cfg.variant != 'soft':
        raise BadInput(f'{run.path}: a glimpse needs a run of sta with --task recognise and '
                       '--variant soft')
    corpus = runs.open_split(run, args.split)
    _, found = evaluate.recognise(run, model, corpus)
    wrong = [one for one, p in found.items() if p.argmax() not in corpus.labels[one]]
    if not wrong:
        raise BadInput(f'{run.path} recognises every clip of the {corpus.split} split')
    video = args.video or wrong[0]
    if video not in wrong:
        raise BadInput(f'{video}: not a clip of the {corpus.split} split that the run misjudges; '
                       f'choose one, for example {" and ".join(wrong[:2])}')
    right = corpus.labels[video][0]                         # if there are two labels, the first
    print(f'{video}: looking for a glimpse that shows {corpus.classes[right]}', flush=True)
    torch.manual_seed(0)
    bar = functools.partial(tqdm, desc='glimpse', leave=False)
    seen = sta.glimpse(model, figures.batch_of(run, corpus, video), right, progress=bar)
    learned, random, last = (corpus.classes[number] for number in seen['predicted'])
    print(f'{video}: {corpus.classes[right]}, taken for {learned}; with random attention: '
          f'{random}; after {seen["steps"]} steps: {last} ({corpus.classes[right]} has a '
          f'probability of {seen["probability"]:.3f})')
    path = runs.output(run, f'glimpse-{video.replace("/", "_")}', '.png')
    print(f'picture     {figures.draw_glimpse(run, seen, corpus, video, path)}')


# ------------------------------------------------------- the command line
COMMANDS = {                                                # function and summary
    'figures': (show_figures, 'what each run looks at in some videos: RUN/figures/*.png'),
    'curves': (show_curves, 'losses and scores during training: RUN/curves.png'),
    'page': (show_page, 'one HTML file for exploring what the runs look at'),
    'words': (show_words, 'parts of speech in the captions of a run: RUN/words.png'),
    'glimpse': (show_glimpse, 'sta: look elsewhere until a misjudged clip is recognised')}


def main(argv):
    parser = runs.Parser(prog='python -m tools.show', description='Look at runs. `COMMAND --help` '
                         'lists the flags of a command.')
    commands = parser.add_subparsers(metavar='COMMAND', required=True)
    for name, (function, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        command.set_defaults(function=function)
        add = command.add_argument
        if name == 'curves':
            add('runs', nargs='+', metavar='RUN', help='a folder that train.py made')
            continue
        several = name in ('figures', 'page')
        runs.add_flags(command, '+' if several else 1, captions=name != 'glimpse')
        if several:
            add('--videos', metavar='DIR', help='folder of the video files, to show frames of '
                'datasets other than shapes')
        if name == 'figures':
            add('--count', type=int, default=5, metavar='N',
                help='how many videos, spread over the split (default: 5)')
        if name == 'page':
            add('--out', default='report.html', metavar='FILE',
                help='where to write the page (default: report.html)')
        if name == 'glimpse':
            add('video', nargs='?', metavar='VIDEO',
                help='id of a clip (default: the first misjudged one)')
    args = parser.parse_args(argv)
    args.function(args)


if __name__ == '__main__':
    runs.user_main(main)
