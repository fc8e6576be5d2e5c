"""Figures show the attention that was used, and the commands of tools.show check what they get."""
import dataclasses
import functools
import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import test_models
import torch
from PIL import Image
from torch import nn

import data
import decode
import helpers
import sta
from data import BadInput, Corpus, Vocabulary
from shapes import words as shape_words
from shapes import world
from tools import checkpoints, datasets, figures, runs, show

GREY = np.full((16, 112, 112, 3), 200, np.uint8)
SEVEN = {'v': [7, 7, 1]}
CPU = ('--device', 'cpu')
# STaTS: ST looks at place (0, 5) of all frames, TS at place (6, 1) of frame 3
MIXED = {'st_space': torch.eye(49)[[5]][None], 'ts_frames': torch.eye(16)[[3]],
         'ts_space': torch.eye(49)[[43]]}


class Looks(nn.Module):
    """Generates `count` words and looks where it is told: aux {name: (T, ...)}, the last row also
    at all later words"""

    def __init__(self, aux, count=0):
        super().__init__()
        self.cfg = SimpleNamespace(features=('v',))
        self.aux = {name: torch.as_tensor(value) for name, value in aux.items()}
        self.count = count

    def encode(self, batch):
        return {}, torch.zeros(1, 1)

    def step(self, token, state, memory):
        t = int(state[0, 0])
        word = torch.full((len(state),), 3 + t if t < self.count else data.EOS)
        aux = {}
        for name, value in self.aux.items():
            aux[name] = value[[min(t, len(value) - 1)] * len(state)]
        return nn.functional.one_hot(word, 90) * 50.0, state + 1, aux


def make_run(paper='', view=None, feats=None, **training):
    """A run of one of the papers, or of none"""
    if paper:
        paper = runs.Paper(paper)
    else:
        default = {'attention': runs.view_attention, 'bars': {}, 'legend': '', 'parts': 1}
        view = default | (view or {})
        paper = SimpleNamespace(name='looks', VIEW=view, Captioner=Looks, fields=dict)
    feats = feats or SEVEN
    return runs.Run(paper, SimpleNamespace(features=tuple(feats)), runs.Training(**training),
                    datasets.Dataset(), data.Sizes(feats), encoders={}, given={}, path='run')


def save(run, model, folder):
    """Write a checkpoint -> the folder"""
    folder.mkdir(exist_ok=True)
    torch.save({**run.checkpoint(), **vars(runs.Progress()), 'state_dict': model.state_dict()},
               folder / 'best.pt')
    return str(folder)


def clip():
    """A clip in which the first shape acts on the second -> id, caption, Corpus"""
    ids = map('val{:05d}'.format, range(1000))
    video = next(v for v in ids if world.scene(v)['slots']['action'] == 'pushes')
    scene = world.scene(video)
    captions = shape_words.captions(scene)
    corpus = Corpus('shapes', 'val', {video: captions}, truth={video: world.truth(scene)},
                    features={'v': {video: np.zeros((16, 7, 7, 1), np.float32)}})
    return video, captions[0], corpus


def brightest(picture, side=7):
    """Row and column of the brightest of side x side cells"""
    each = len(picture) // side
    cells = picture.reshape(side, each, side, each, 3).mean((1, 3, 4))
    return divmod(int(cells.argmax()), side)


def lit(tile, side=7):
    """-> {tag: the brightest cell of that picture}"""
    return {tag: brightest(picture, side) for tag, picture in tile.pictures.items()}


@pytest.fixture
def drawn(monkeypatch):
    """Figures that were saved, as matplotlib has them"""
    saved = []
    save = figures.save_figure
    monkeypatch.setattr(figures, 'save_figure',
                        lambda figure, path: saved.append(figure) or save(figure, path))
    return saved


@pytest.fixture
def unsaved(monkeypatch):
    """Whatever draws returns the figure and does not save it, which would take long."""
    monkeypatch.setattr(figures, 'save_figure', lambda figure, path: figure)


def texts(figure):
    return [text for axis in figure.axes for text in axis.texts if text.get_text()]


def said(figure):
    return ' | '.join(text.get_text() for text in texts(figure))


def refused(message, *argv):
    with pytest.raises(BadInput, match=message):
        show.main([*argv])


# ------------------------------------------------------- one word
def test_a_word_shows_the_frame_it_looks_at_most_and_lights_the_place():
    weights = np.full((3, 6, 4, 4), 0.01)                   # 6 steps of a clip of 16 frames
    weights[0] = 0
    weights[1, 4, 1, 2] = weights[2, 1, 3, 3] = 0.5
    layers = np.array([[0, 0, 0, 0], [0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]])
    look = figures.Look('a cat runs', ['a', 'cat', 'runs'], weights, labels='abcd', numbers=layers)
    nothing, first, second = (figures.word_tile(look, t, GREY) for t in range(3))
    assert nothing == figures.Tile('a (no attention)')            # no box and no bars
    # steps 4 and 1 of 6 are frames 10.7 to 13.3 and 2.7 to 5.3
    assert lit(first, 4) == {'13': (1, 2)} and lit(second, 4) == {'5': (3, 3)}
    assert first.bars == (0.1, 0.2, 0.3, 0.4) and np.allclose(second.when, weights[2].sum((1, 2)))
    one_step = dataclasses.replace(look, weights=weights[:, 4:5])
    tile = figures.word_tile(one_step, 1, GREY)             # no frame is chosen
    assert lit(tile, 4) == {'all frames': (1, 2)} and tile.when is None
    even = np.full((1, 5, 4, 4), 0.01)                      # frame 1 leads by less than a hundredth
    even[0, 0, 2, 1] *= 1.05
    tile = figures.word_tile(figures.Look('a', ['a'], even), 0, GREY[:5])
    assert list(tile.pictures) == ['3']                     # so the middle one is shown


def test_a_word_shows_the_strongest_frame_of_each_part_of_the_clip_in_one_light():
    best = [0, 7, 9, 14]                                    # one of frames 0 to 3, of 4 to 7, ...
    weights = np.zeros((1, 16, 7, 7))
    weights[0, best, 3, 3] = np.arange(1, 5) / 20
    weights[0, [1, 4, 11, 12], 3, 3] = 0.5 / 20
    look = figures.Look('a', ['a'], weights, labels=['gate'], numbers=np.array([[0.25]]))
    tile = figures.word_tile(look, 0, GREY, parts=4)
    assert list(tile.pictures) == [str(i + 1) for i in best]
    assert tile.label == 'a   gate 0.25' and tile.bars == ()
    light = [float(picture[56, 56, 0]) - 0.3 * 200 for picture in tile.pictures.values()]
    assert light[3] > 120 and np.allclose(light, light[3] * np.arange(1, 5) / 4, atol=2)
    bare = figures.word_tile(look, 0, None, parts=4)        # without frames: the maps alone
    assert list(lit(bare, 3).values()) == [(1, 1)] * 4
    look.weights = weights.sum((2, 3), keepdims=True)       # without a grid: the weights over time
    strip = figures.word_tile(look, 0, None, parts=4)
    assert strip.pictures == {} and np.array_equal(strip.when, weights[0].sum((1, 2)))


@pytest.mark.parametrize('mix, where', [((0.99, 0.01), (0, 5)), ((0.25, 0.75), (6, 1))])
def test_the_map_of_stats_is_the_mixture_that_reached_the_word(mix, where):
    weights, parts = figures.attention(make_run('stats'), {**MIXED, 'mix': torch.tensor([mix])})
    expected = np.zeros((16, 7, 7))
    expected[:, 0, 5] = mix[0] / 16
    expected[3, 6, 1] += mix[1]
    assert np.allclose(weights[0], expected) and list(parts) == ['ST', 'TS']
    assert np.allclose(parts['ST'][0, :, 0, 5], 1 / 16) and parts['TS'][0, 3, 6, 1] == 1
    tile = figures.word_tile(figures.Look('a', ['a'], weights, parts), 0, GREY)
    assert lit(tile) == {'4': where}
    assert [brightest(tile.small[name]) for name in ('ST', 'TS')] == [(0, 5), (6, 1)]


def test_the_legend_says_what_is_drawn():
    video, _, corpus = clip()

    def legend(run, aux):
        run.vocabulary = Vocabulary('abcdefgh')
        block = figures.captioner_block(run, Looks(aux, 2), corpus, video, GREY)
        return [text for text, _ in block.lines[1:]], block

    lines, _ = legend(make_run('stats'), {**MIXED, 'mix': torch.full((1, 2), 0.5)})
    assert 'ST has no weights over frames: its share is spread evenly over them.' in lines[1]
    assert 'TS has no' not in lines[1]
    assert lines[2] == 'The bars show the weights of ST (blue), TS (orange).'
    layers = {'space': np.full((3, 1, 16), 1 / 16), 'layers': np.full((3, 2), 0.5)}
    layered = make_run(view={'bars': {'layers': ('low', 'high')}})
    lines, block = legend(layered, layers)                  # the layers weigh no maps
    assert lines == [figures.ALIKE, 'The bars show the weights of low (blue), high (orange).']
    assert not any(tile.small for tile in block.rows[0])
    assert legend(layered, {name: value * 0 for name, value in layers.items()})[0] == []
    assert legend(make_run(), {'frames': np.full((1, 16), 1 / 16)})[0] == [figures.MOST]
    lines, block = legend(make_run(), {'other': np.zeros((1, 3))})          # no attention
    assert lines == [] and block.rows == []


# ------------------------------------------------------- whole figures
@pytest.mark.parametrize('parts, words, rows, count', [(4, 12, 4, 1), (4, 9, 2, 3), (1, 12, 1, 1),
                                                       (1, 24, 2, 1), (1, 9, 1, 3)])
def test_a_figure_fits_a_slide_and_no_text_overlaps(unsaved, parts, words, rows, count):
    video, _, corpus = clip()
    names = [f'incomprehensible{i}' for i in range(40)]
    view = {'parts': parts, 'bars': {'gate': ('gate',)} if parts > 1 else {'x': 'abcd'}}
    aux = {'space': np.full((1, 16, 49), 1 / 784), 'gate': [0.5], 'x': [[0.1, 0.2, 0.3, 0.4]]}
    several = []
    for i in range(count):
        run = make_run(view=view, max_len=40, beam=2)
        run.path = f'run{i}'
        run.vocabulary = Vocabulary(['<pad>', '<eos>', '<unk>', *names])
        several.append((run, Looks(aux, words)))
    figure = figures.draw_video(several, corpus, video, 'a.png')
    width, height = figure.get_size_inches() * figure.dpi
    assert width <= 1600 and height <= 900
    labels = [text for text in texts(figure) if text.get_ha() == 'center'
              and text.get_text().startswith('incomp')]
    assert [text.get_text().split()[0] for text in labels] == names[:words] * count
    assert len({round(text.get_position()[1]) for text in labels}) == rows * count
    boxes = [text.get_window_extent() for text in texts(figure)]
    for i, box in enumerate(boxes):
        assert box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height
        for other in boxes[:i]:
            assert (box.x0 > other.x1 - 1 or other.x0 > box.x1 - 1
                    or box.y0 > other.y1 - 1 or other.y0 > box.y1 - 1), texts(figure)[i].get_text()


def small(case):
    """A random captioner of test_models' cases -> (run, model), Corpus, id of a clip"""
    fields, kinds = test_models.CASES[case]
    video = 'test00001'
    captions = shape_words.captions(world.scene(video))
    run = make_run(case.split('-')[0], feats=kinds, max_len=6, beam=2)
    run.vocabulary = Vocabulary.build(captions)
    run.cfg = run.paper.Config(hidden=6, dropout=0.0, max_len=6, features=tuple(kinds), **fields)
    run.sizes = data.Sizes(kinds, 16, len(run.vocabulary), 4, categories=3)
    run.path = case
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    corpus = Corpus('shapes', 'test', {video: captions}, category={video: 1}, categories=['a'] * 3)
    for name, shape in kinds.items():
        steps = 16 // test_models.C3D_STRIDE.get(name, 1)
        steps = 1 if name in ('audio', 'c3d_fc7') else steps
        corpus.features[name] = {video: rng.random((steps, *shape), dtype=np.float32)}
    return (run, run.build().eval()), corpus, video


@pytest.mark.parametrize('case', test_models.CASES)
def test_every_model_gets_a_picture(case, unsaved):
    one, corpus, video = small(case)
    look = figures.look_at(*one, corpus, video)
    if look.weights is not None:
        total = look.weights.sum((1, 2, 3))
        assert np.all(np.isclose(total, 1, atol=1e-5) | (total == 0))
    for corpus.name in ('shapes', 'elsewhere'):             # with frames, and without
        figure = figures.draw_video([one], corpus, video, 'a.png')
        assert f'{case} (' in said(figure)
        assert len(figure.axes[0].images) >= 16 or corpus.name != 'shapes'     # at least the clip


@pytest.mark.parametrize('shape, places, grid', [
    ([2, 3, 5], 6, (2, 3)), ([28, 28, 5], 16, (4, 4)), ([28, 28, 5], 15, (1, 1)),
    ([4, 5], 4, (1, 1)), ([5], 1, (1, 1))])                 # regions have no fixed place
def test_weights_lie_on_the_grid_of_the_features(shape, places, grid):
    weights = torch.arange(2 * places).view(1, 2, places)
    expected = weights if grid != (1, 1) else weights.sum(2)
    found = figures.on_grid(make_run(feats={'v': shape}), weights)
    assert np.array_equal(found, expected.reshape(1, 2, *grid))


def test_several_runs_are_blocks_of_one_figure_each_with_its_caption(drawn, tmp_path):
    several = [small(case) for case in ('stats', 'astar', 'stats-st')]
    corpus, video = several[0][1:]
    for _, other, _ in several:
        corpus.features |= other.features
    path = tmp_path / 'a.png'
    figures.draw_video([one for one, _, _ in several], corpus, video, path)
    with Image.open(path) as saved:
        assert saved.size == (1600, round(drawn[0].get_size_inches()[1] * figures.DPI))
    for (run, model), _, _ in several:
        words, _ = decode.beam(model, *model.encode(figures.batch_of(run, corpus, video)), 6, 2)
        caption = run.vocabulary.decode(words[0].tolist()) or '(no words)'
        assert f'{run.title}: {caption} |' in said(drawn[0])
    for colours in ('ST (blue), TS (orange)', 'pool2 (blue), pool3 (orange), pool4 (green), pool5'):
        assert colours in said(drawn[0])
    with pytest.raises(BadInput, match='cannot write'):
        figures.draw_video([several[0][0]], corpus, video, path / 'b.png')


def test_vre_frames_its_two_key_frames_and_has_two_captions():
    (run, model), corpus, video = small('vre')
    run.training.beam = 3
    batch = figures.batch_of(run, corpus, video)
    helpers.scale_up(model)                                 # so that the two captions differ
    captions = []
    keys = []
    for model.cfg.step in (1, 2):
        memory, state = model.encode(batch)
        words, _ = decode.beam(model, memory, state, 6, 3)
        captions.append(run.vocabulary.decode(words[0].tolist()))
        keys.append(memory['key'][0].argmax().item() + 1)
    assert keys[0] == 9 != keys[1] and captions[0] != captions[1]
    block = figures.captioner_block(run, model, corpus, video, GREY)
    (strip,), _ = block.rows
    assert strip.edges == {'9': ['tab:blue'], str(keys[1]): ['darkgoldenrod']}
    assert list(strip.pictures) == [str(i) for i in range(1, 17)]
    assert keys[1] == strip.when.argmax() + 1
    for i in (0, 1):
        said = captions[i] or '(no words)'
        expected = f'{run.title}, step {i + 1}, key frame {keys[i]}: {said}'
        assert block.lines[i][0] == expected
    for model.cfg.step in (2, 1):                           # --step 1: the words of the first step
        _, tiles = figures.captioner_block(run, model, corpus, video, GREY).rows
        assert [tile.label for tile in tiles] == captions[model.cfg.step - 1].split()
    run.cfg = dataclasses.replace(run.cfg, stage='warm')    # then there is only one step
    block = figures.captioner_block(run, run.build().eval(), corpus, video, GREY)
    assert block.rows[0][0].edges == {'9': ['tab:blue']} and 'step 2' not in str(block.lines)


# ------------------------------------------------------- recognisers
class Sees(nn.Module):
    """Takes every clip for class 1 and looks at one of 7 x 7 places, moving to the right"""

    def __init__(self, looks=True):
        super().__init__()
        self.space = torch.eye(49)[[7 * 3 + i * 7 // 16 for i in range(16)]][None] * looks

    def predict(self, batch):
        return torch.tensor([[0.2, 0.7, 0.1]]), {'space': self.space}


def test_a_recogniser_shows_where_it_looks_its_class_and_the_true_one(unsaved):
    video = 'test00001'
    corpus = Corpus('shapes', 'test', labels={video: [0, 2]}, classes=['grows', 'shrinks', 'left'])
    run = make_run(task='recognise')
    assert figures.look_at(run, Sees(), corpus, video).weights.sum() == pytest.approx(1)
    block = figures.recogniser_block(run, Sees(), corpus, video, GREY)
    assert block.lines[0] == ('run (looks): shrinks (0.70)', 'tab:red')
    assert lit(block.rows[0][0]) == {str(i + 1): (3, i * 7 // 16) for i in range(16)}
    assert block.rows[0][0].pictures['1'].max() > 170       # of 200: as bright as the frame
    figure = figures.draw_video([(run, Sees(False))], corpus, video, 'a.png')
    assert 'bright' not in said(figure)                     # such as c3d, which has no attention
    corpus.labels[video] = [1]
    block = figures.recogniser_block(run, Sees(), corpus, video, GREY)
    assert block.lines[0][1] == 'tab:green'
    figure = figures.draw_video([(run, Sees())] * 3, corpus, video, 'a.png')
    assert 'true class: shrinks' in said(figure)
    assert said(figure).count(figures.RECOGNISED) == 1
    assert len(figure.axes[0].images) == 4 * 16             # the clip, and a row for each run


def test_the_rows_of_a_glimpse_are_learned_random_and_found(unsaved):
    corpus = Corpus('shapes', 'test', labels={'test00001': [2, 0]},
                    classes=['grows', 'falls', 'left'])
    cells = {'learned': 0, 'random': 24, 'found': 48}
    seen = {name: torch.eye(49)[[cell] * 16] for name, cell in cells.items()}
    seen |= {'predicted': (1, 0, 2), 'steps': 7, 'probability': 0.5}
    figure = figures.draw_glimpse(make_run(), seen, corpus, 'test00001', 'a.png')
    images = np.array([image.get_array() for image in figure.axes[0].images], float)
    rows = images.reshape(4, 16, 7, 16, 7, 16, 3).mean((1, 3, 5, 6))
    light = rows[1:] / rows[0]                              # against the clip without maps
    assert [np.unravel_index(row.argmax(), (7, 7)) for row in light] == [(0, 0), (3, 3), (6, 6)]
    parts = [part for part in said(figure).split(' | ') if not part.isdigit()]
    assert parts[-3:] == ['learned: falls', 'random: grows', 'found after 7 steps: left']


# ------------------------------------------------------- training curves
def write_log(folder, *lines):
    folder.mkdir(exist_ok=True)
    (folder / 'log.jsonl').write_text('\n'.join(map(json.dumps, lines)))
    return folder


def test_curves_hold_the_numbers_of_the_log(drawn, tmp_path, capsys):
    head = {'args': {}, 'config': {}}
    epochs = []
    for epoch, stage, loss in ((1, 'warm', 9), (2, 'warm', 5), (3, 'warm', 4), (1, 'joint', 8),
                               (2, 'joint', 7)):
        epochs.append({'epoch': epoch, 'stage': stage, 'loss': loss, 'val_CIDEr': 1 / loss})
    staged = write_log(tmp_path / 'staged', head, *epochs[:2], head, *epochs[2:])
    with open(staged / 'log.jsonl', 'a') as file:
        file.write('\n{"epoch": 3, "s')                 # cut off
    odd = write_log(tmp_path / '$\\frac$',              # no formula
                    head, {'epoch': 1, 'loss': 3.0, 'val_accuracy': 0.5},
                    {'epoch': 2, 'loss': 2.0}, head, {'epoch': 1, 'loss': 6.0})     # started again
    show.main(['curves', str(staged), str(odd / 'best.pt')])
    assert (staged / 'curves.png').read_bytes()[:4] == b'\x89PNG'
    assert 'curves.png' in capsys.readouterr().out
    panels = {axis.get_title(): axis for axis in drawn[0].axes}
    assert set(panels) == {'training loss', 'validation CIDEr', 'validation accuracy'}
    losses = panels['training loss']
    lines = [(list(line.get_xdata()), list(line.get_ydata()))
             for line in losses.lines if line.get_linestyle() == '-']
    assert lines == [([1, 2, 3, 4, 5], [9, 5, 4, 8, 7]), ([1, 2, 3], [3, 2, 6])]
    cider = panels['validation CIDEr']
    marks = [line.get_xdata()[0] for line in cider.lines if line.get_linestyle() == ':']
    assert marks == [0.5, 3.5] and said(drawn[0]).endswith('warm | joint')
    names = [text.get_text() for text in losses.get_legend().get_texts()]
    assert names == ['staged', odd.name]


# ------------------------------------------------------- parts of speech
def test_parts_of_speech_are_counted(monkeypatch, tmp_path):
    import nltk
    tags = dict(a='DET', man='NOUN', dog='NOUN', runs='VERB', sings='VERB', red='ADJ')

    def tag(sentences, tagset):
        return [[(word, tags[word]) for word in sentence] for sentence in sentences]

    monkeypatch.setattr(nltk, 'pos_tag_sents', tag)
    tagged = show.tag(['a man runs', 'a red man sings', 'a dog runs', 'a man runs'])
    shares, frequent = show.word_classes(tagged, skip=1)
    # man 3, runs 3, dog 1, sings 1, red 1: nine in all; the most frequent, man, is left out
    assert shares == pytest.approx({'verb': 4 / 9, 'noun': 4 / 9, 'adjective': 1 / 9})
    assert frequent[0] == (('runs', 'verb'), 3)
    assert {word for (word, _), _ in frequent} == {'runs', 'dog', 'sings', 'red'}
    assert show.draw_words(shares, frequent, tmp_path / 'w.png').read_bytes()[:4] == b'\x89PNG'
    # the embedded world has a lexicon of its own
    caption = 'the golden plus left of a red box gets bigger and shrinks with a beep'
    kinds = {word: kind for word, kind in show.tag_shapes([caption]) if kind}
    assert kinds == {'golden': 'adjective', 'plus': 'noun', 'red': 'adjective', 'box': 'noun',
                     'gets': 'verb', 'bigger': 'adjective', 'shrinks': 'verb', 'beep': 'noun'}
    assert ('after', None) in show.tag_shapes(['a red box runs after a green box'])


# ------------------------------------------------------- the commands
@pytest.fixture(scope='module')
def clips(tmp_path_factory):
    """UCF-11's layout with eight test clips of two actions, and a recogniser that takes each for
    the first action -> root, function that saves a run like it"""
    root = tmp_path_factory.mktemp('root')
    features = {kind: root / 'ucf11' / 'features' / kind for kind in ('clip', 'other')}
    for folder in features.values():
        folder.mkdir(parents=True)
    for n, action in itertools.product(range(16, 20), ('diving', 'golf')):
        folder = root / 'ucf11' / action / f'v_{action}_{n}'
        folder.mkdir(parents=True)
        (folder / f'{action}{n}.avi').touch()
        for place in features.values():
            values = np.random.default_rng(n).random((5, 3, 3, 4), dtype=np.float32)
            np.save(place / f'{action}{n}.npy', values)

    def make(name, kind='clip', variant='soft', dataset='ucf11', limit=None, task='recognise'):
        run = make_run('sta', feats={kind: [3, 3, 4]}, task=task)
        run.cfg = sta.Config(task=task, features=(kind,), hidden=8, layers=1, variant=variant)
        run.sizes = data.Sizes({kind: [3, 3, 4]}, frames=5, vocab=9, classes=2)
        run.vocabulary = Vocabulary('abcdefghi')
        run.dataset = datasets.Dataset(dataset, str(root), limit=limit)
        torch.manual_seed(0)
        model = run.build()
        if task == 'recognise':
            model.classify.bias.data[0] += 3
        return save(run, model, root / name)

    make('run')
    return root, make


def test_figures_are_spread_over_the_split(clips):
    root, make = clips
    flags = ['--root', str(root), *CPU]
    show.main(['figures', str(root / 'run'), make('other', 'other'), '--count', '3', *flags])
    found = sorted(path.name for path in (root / 'run' / 'figures').iterdir())
    assert found == ['diving16.png', 'golf16.png', 'golf19.png']        # 0, 4 and 7 of 8
    show.main(['figures', str(root / 'run'), '--count', '99', *flags])
    assert len(list((root / 'run' / 'figures').iterdir())) == 8
    assert len(set(figures.spread(range(500), 40))) == 40


def test_frames_of_real_videos_come_from_a_folder(clips, monkeypatch):
    root, _ = clips
    monkeypatch.setattr(show.caption, 'frames_seen', lambda path, name, _: (path.name, name))
    run, _ = checkpoints.load(root / 'run', str(root))
    run.encoders = {'clip': {'encoder': 'googlenet', 'weights': 'none', 'sampling': 'uniform5'}}
    frames_of = show.find_films(str(root / 'ucf11'), run)
    corpus = runs.open_split(run)
    assert frames_of(corpus, 'golf17') == ('golf17.avi', 'clip')
    assert frames_of(corpus, 'elsewhere') is None


def test_a_glimpse_is_for_clips_that_are_wrong(clips, drawn, capsys, monkeypatch):
    root, _ = clips
    flags = ['--root', str(root), *CPU]
    monkeypatch.setattr(sta, 'glimpse', functools.partial(sta.glimpse, steps=9))
    show.main(['glimpse', str(root / 'run'), *flags])
    assert (root / 'run' / 'glimpse-golf16.png').exists()   # the first that is not diving
    out = capsys.readouterr().out
    assert 'golf16: golf, taken for diving' in out and 'after 9 steps: diving' in out
    assert 'learned: diving' in said(drawn[0])
    assert 'not found after 9 steps: diving' in said(drawn[0])
    assert len(drawn[0].axes[0].images) == 3 * 5            # maps alone: there are no frames
    for video in ('diving17', 'nowhere'):
        refused(f'{video}: .* golf16 and golf17', 'glimpse', str(root / 'run'), video, *flags)


def test_what_does_not_fit_is_reported_before_any_work(clips, monkeypatch):
    root, make = clips
    make('shapes', dataset='shapes')
    make('limited', limit=3)
    make('pooled', variant='avgpool')
    make('captions', task='describe')
    write_log(root / 'pooled')
    write_log(root / 'limited', {'args': {}})
    monkeypatch.setattr(runs, 'open_split', None)           # would be the first work
    monkeypatch.chdir(root)
    for command, message in {
            'figures run --count 0': '--count 0: must be at least 1',
            'figures run --beam 0': '--beam 0: the beam width must be from 1',
            'figures run --step 2': '--step 2: .*run is not a run of vre',
            'figures run --device toaster': '--device toaster',
            'figures run shapes': 'shapes was trained on shapes, .*run on ucf11',
            'figures run --videos nowhere': '--videos nowhere: there is no such folder',
            'page run limited': 'or with another split or --limit',
            'page run captions': 'some recognise actions: make a page for each kind',
            'page run --out nowhere/x.html': '--out nowhere/x.html: there is no folder nowhere',
            'words run': 'run recognises actions and writes no captions',
            'glimpse pooled': 'pooled: a glimpse needs a run of sta .* --variant soft',
            'curves run': 'log.jsonl: there is no log; train.py writes one',
            'curves pooled': 'no epoch was finished yet',
            'curves limited': 'no epoch was finished yet'}.items():
        name, *rest = command.split()
        refused(message, name, *(() if name == 'curves' else CPU), *rest)
