"""What is measured and drawn from attention, on attention that is known."""
import dataclasses
import functools
import importlib
import json

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from test_models import CASES
from torch import nn

import data
import decode
import evaluate
import shapes
import show
import sta
from data import BadInput, Corpus, Vocabulary


def test_cells_that_a_box_touches():
    # a grid of 7 x 7 cells of 16 pixels: x from 10 to 20 touches columns 0 and 1, y from 16 to 40 rows 1 and 2
    found = show.cells_in([10, 16.5, 20, 40], 7).reshape(7, 7)
    assert np.argwhere(found).tolist() == [[1, 0], [1, 1], [2, 0], [2, 1]]
    assert show.cells_in(None, 7).sum() == 0


class Looks(nn.Module):
    """A model that looks where it is told: weights of frames (F,) and of cells (F, L), the same at every word"""
    __module__ = 'sta'

    def __init__(self, both):
        super().__init__()
        self.cfg, self.both, self.anything = type('Config', (), {'max_len': 20}), torch.tensor(both), nn.Parameter(torch.zeros(1))

    def encode(self, batch):
        return {}, torch.zeros(1, 1)

    def step(self, token, state, memory):
        return torch.zeros(1, 30), state, {'space': self.both[None], 'gate': torch.full((1,), 0.5)}


@pytest.fixture
def clip():
    """A clip with two shapes, of which the first acts on the second"""
    video = next(v for v in map('val{:05d}'.format, range(1000)) if shapes.scene(v)['slots']['action'] == 'pushes')
    caption = shapes.captions(shapes.scene(video))[0]
    corpus = Corpus('shapes', 'val', {video: [caption]}, truth={video: shapes.truth(shapes.scene(video))})
    return video, caption, corpus, Vocabulary.build([caption])


def test_grounding_is_one_on_the_box_and_chance_under_even_attention(clip):
    video, caption, corpus, vocabulary = clip
    truth = corpus.truth[video]
    first, last = truth['window']
    inside = np.stack([show.cells_in(box, 7) for box in truth['boxes'][0]])                         # (16, 49), the subject's cells
    window = np.arange(16)[:, None] >= first
    window &= np.arange(16)[:, None] <= last
    on_box = inside * window
    found, positions = show.grounding(Looks(on_box / on_box.sum()), corpus, {}, vocabulary, {video: caption}, 'cpu')
    assert found['subject']['box'] == pytest.approx(1) and found['subject']['window'] == pytest.approx(1)
    assert found['article'] == {'gate': 0.5} and positions == {'gate': [0.5] * len(caption.split())}
    assert found['verb']['gate'] == 0.5 and found['verb']['box'] == pytest.approx(1) and found['object']['box'] < 0.7                # the object is elsewhere
    even, _ = show.grounding(Looks(np.full((16, 49), 1 / 784)), corpus, {}, vocabulary, {video: caption}, 'cpu')
    visible = inside[inside.any(1)]
    assert even['subject']['box'] == pytest.approx(even['subject']['box chance']) == pytest.approx(visible.mean())
    assert even['subject']['window'] == pytest.approx((last - first + 1) / 16) == pytest.approx(even['subject']['window chance'])


def test_a_step_that_covers_many_frames_counts_all_their_boxes(clip):
    video, caption, corpus, vocabulary = clip
    boxes, (first, last) = corpus.truth[video]['boxes'][0], corpus.truth[video]['window']
    swept = np.max([show.cells_in(box, 4) for box in boxes], 0)                                     # (16,), all places of the subject
    found, _ = show.grounding(Looks(np.full((1, 16), 1 / 16)), corpus, {}, vocabulary, {video: caption}, 'cpu')
    assert found['subject']['box'] == pytest.approx(found['subject']['box chance']) == pytest.approx(swept.mean())
    assert 'window' not in found['subject']                                                         # one step has no choice
    halves = np.array([[0.25 / 16] * 16, [0.75 / 16] * 16])
    found, _ = show.grounding(Looks(halves), corpus, {}, vocabulary, {video: caption}, 'cpu')
    acts = [np.mean([first <= frame <= last for frame in frames]) for frames in (range(8), range(8, 16))]
    assert found['verb']['window'] == pytest.approx(0.25 * acts[0] + 0.75 * acts[1])


class Blinks(Looks):
    """Like ASTAR: nothing is looked at for the first word"""
    __module__ = 'sta'

    def step(self, token, state, memory):
        logits, state, aux = super().step(token, state, memory)
        return logits, state, {name: value * (token is not None) for name, value in aux.items()}


def test_a_word_that_looked_nowhere_does_not_count_for_its_class(clip):
    video, caption, corpus, vocabulary = clip
    assert caption.split()[0] in ('a', 'the') and sum(word in ('a', 'the') for word in caption.split()) == 2
    found, positions = show.grounding(Blinks(np.full((16, 49), 1 / 784)), corpus, {}, vocabulary, {video: caption}, 'cpu')
    assert found['article']['gate'] == 0.5                                                          # of the second article alone
    assert positions['gate'] == [0.0] + [0.5] * (len(caption.split()) - 1)


class Glances(nn.Module):
    """A recogniser that looks where it is told: weights (F, L)"""

    def __init__(self, space):
        super().__init__()
        self.space = torch.tensor(space)

    def predict(self, batch):
        return torch.zeros(1, 14), {'space': self.space[None]}


def test_a_recogniser_is_measured_against_the_acting_shape(clip):
    video, _, corpus, _ = clip
    inside = np.stack([show.cells_in(box, 7) for box in corpus.truth[video]['boxes'][0]])           # (16, 49)
    seen = inside.any(1)
    on_box = np.where(seen[:, None], inside, 1.0)                                                   # elsewhere it looks everywhere
    found = show.glimpses(Glances(on_box / on_box.sum(1, keepdims=True)), corpus, {}, 'cpu')
    assert found['box'] == pytest.approx(1) and found['box chance'] == pytest.approx(inside[seen].mean())
    even = show.glimpses(Glances(np.full((16, 49), 1 / 49)), corpus, {}, 'cpu')
    assert even['box'] == pytest.approx(even['box chance'])
    assert show.glimpses(Glances(np.zeros((16, 49))), corpus, {}, 'cpu') == {}


def test_key_frames_are_counted_against_the_window(clip):
    video, _, corpus, _ = clip
    first, last = corpus.truth[video]['window']
    for key, hit in ((first, 1), (last, 1), (max(first - 1, 0), float(first == 0))):
        model = Looks(np.zeros((16, 49)))
        model.encode = lambda batch: ({'focus': torch.eye(16)[[key]]}, None)
        found = show.key_frames(model, corpus, {}, 'cpu')
        assert found == {'refocused key': hit, 'middle frame': float(first <= 8 <= last), 'chance': (last - first + 1) / 16}
    model.encode = lambda batch: ({}, None)
    assert show.key_frames(model, corpus, {}, 'cpu') == {}


def test_the_slot_table_separates_actions_that_differ_in_order_alone():
    scenes = {video: shapes.scene(video) for video in map('val{:05d}'.format, range(60))}
    truth = {video: shapes.truth(scene) for video, scene in scenes.items()}
    right = {video: shapes.captions(scene)[0] for video, scene in scenes.items()}
    assert set(show.slot_table(right, truth).values()) == {1.0}
    broken = {video: caption.replace('back', 'fro').replace('returns', 'stays').replace('then', 'or') for video, caption in right.items()}
    table = show.slot_table(broken, truth)
    assert table['order-only actions'] == 0 and table['directions'] == 1 and table['colour'] == 1


# figures --------------------------------------------------------------------------------------------------------------

@pytest.fixture
def drawn(monkeypatch):
    """Figures that were saved, as matplotlib has them"""
    figures, save = [], show.save_figure

    def keep(figure, path):
        figures.append(figure)
        save(figure, path)

    monkeypatch.setattr(show, 'save_figure', keep)
    return figures


def texts(figure):
    return [text for axis in figure.axes for text in axis.texts if text.get_text()]


def said(figure):
    return ' | '.join(text.get_text() for text in texts(figure))


def brightest(picture, side):
    """Row and column of the brightest cell of a picture"""
    height, width = picture.shape[:2]
    cells = picture.astype(float).mean(2).reshape(side, height // side, side, width // side).mean((1, 3))
    return tuple(int(i) for i in np.unravel_index(cells.argmax(), cells.shape))


GREY = np.full((16, 112, 112, 3), 200, np.uint8)


def test_a_word_shows_the_frame_it_looks_at_most_and_lights_the_place():
    time, space = np.full((3, 6), 0.1), np.full((3, 6, 16), 0.01)                           # astar: 6 steps of a clip of 16 frames, 4 x 4
    time[0], time[1, 4], time[2, 1] = 0, 0.5, 0.5
    space[1, 4, 6], space[2, 1, 15], space[2, 4, 0] = 0.85, 0.85, 0.85
    layers = np.array([[0, 0, 0, 0], [0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]])
    nothing, first, second = show.word_tiles('astar', ['a', 'cat', 'runs'], time, space, {'layers': layers}, GREY)
    assert nothing.numbers == ['nothing'] and not any(nothing.bars)
    assert first.numbers == [13] and second.numbers == [5]          # steps 4 and 1 of 6: the middles of frames 10.7-13.3 and 2.7-5.3
    assert brightest(first.pictures[0], 4) == (1, 2) and brightest(second.pictures[0], 4) == (3, 3)
    assert first.bars == (0.1, 0.2, 0.3, 0.4) and np.array_equal(second.when, time[2])


def test_a_word_of_sta_shows_the_strongest_frame_of_each_quarter_in_one_light():
    time = np.zeros((1, 16))
    best = [0, 7, 9, 14]                                                                   # one of frames 0 to 3, of 4 to 7, ...
    time[0, best] = np.arange(1, 5) / 20
    time[0, [1, 4, 11, 12]] = 0.5 / 20
    space = np.zeros((1, 16, 49))
    space[0, :, 24] = 1
    tile, = show.word_tiles('sta', ['a'], time, space, {'gate': np.array([[0.25]])}, GREY)
    assert tile.numbers == [i + 1 for i in best] and tile.label == 'a   β = 0.25' and tile.bars == ()
    light = [float(picture[56, 56, 0]) - 0.3 * 200 for picture in tile.pictures]            # of the cell in the middle, over the dark
    assert light[3] > 120 and np.allclose(light, light[3] * np.arange(1, 5) / 4, atol=2)
    bare, = show.word_tiles('sta', ['a'], time, space, {}, None)                            # without frames: the maps alone
    assert len(bare.pictures) == 4 and brightest(bare.pictures[3], 3) == (1, 1)
    strip, = show.word_tiles('sta', ['a'], time, None, {}, None)                            # nor a grid: the weights over time
    assert strip.pictures == [] and np.array_equal(strip.when, time[0])


class Speaks(Looks):
    """Says the words 3, 4, 5, ... of its vocabulary, and looks"""

    def __init__(self, both, words):
        super().__init__(both)
        self.words, self.cfg = words, type('Config', (), {'max_len': 40, 'beam': 2, 'features': ('v',), 'feats': {'v': [7, 7, 1]}})

    def encode(self, batch):
        return {}, torch.zeros(1, 1)

    def step(self, token, state, memory):
        logits = torch.nn.functional.one_hot((3 + state[:, 0]).long() if state[0, 0] < self.words else torch.ones(len(state)).long(), 60)
        layers, gate = torch.full((len(state), 4), 0.25), torch.full((len(state),), 0.5)
        return logits * 50.0, state + 1, {'space': self.both.expand(len(state), 16, 49), 'gate': gate, 'layers': layers}


@pytest.mark.parametrize('paper, words, rows, runs', [('sta', 12, 4, 1), ('sta', 9, 2, 3), ('astar', 12, 1, 1), ('astar', 24, 2, 1), ('astar', 9, 1, 3)])
def test_a_figure_fits_a_slide_and_no_text_overlaps(clip, drawn, tmp_path, monkeypatch, paper, words, rows, runs):
    video, _, corpus, _ = clip
    vocabulary = Vocabulary(['<pad>', '<eos>', '<unk>'] + [f'incomprehensible{i}' for i in range(57)])
    monkeypatch.setattr(Speaks, '__module__', paper)
    model = Speaks(np.full((16, 49), 1 / 784), words)
    features = {'v': {video: np.zeros((16, 7, 7, 1), np.float32)}}
    show.draw_video([(f'run {i}', model, vocabulary, features) for i in range(runs)], corpus, video, tmp_path / 'a.png', 'cpu')
    figure, = drawn
    width, height = (int.from_bytes((tmp_path / 'a.png').read_bytes()[i:i + 4], 'big') for i in (16, 20))      # of the PNG's head
    assert width <= 1600 and height <= 900
    labels = [text for text in texts(figure) if text.get_ha() == 'center' and text.get_text().startswith('incomp')]
    assert [text.get_text().split()[0] for text in labels] == [f'incomprehensible{i}' for i in range(words)] * runs
    assert len({round(text.get_position()[1]) for text in labels}) == rows * runs
    boxes = [t.get_window_extent() for t in texts(figure)]
    for i, box in enumerate(boxes):
        assert box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height
        assert not [texts(figure)[i].get_text() for other in boxes[:i] if box.x0 < other.x1 - 1 and other.x0 < box.x1 - 1
                    and box.y0 < other.y1 - 1 and other.y0 < box.y1 - 1], texts(figure)[i].get_text()


def small(case, frames=16):
    """A captioner of test_models' cases, random, with features and a corpus of one clip of the embedded world"""
    module, fields, kinds = CASES[case]
    paper, video = importlib.import_module(module), 'test00001'
    vocabulary = Vocabulary.build(shapes.captions(shapes.scene(video)))
    rng, steps = np.random.default_rng(0), {'audio': 1, 'c3d_fc7': 1, 'c3d_pool2': 8, 'c3d_pool3': 4, 'c3d_pool4': 2, 'c3d_pool5': 1}
    features = {name: {video: rng.random((steps.get(name, frames), *shape), dtype=np.float32)} for name, shape in kinds.items()}
    torch.manual_seed(0)
    cfg = paper.Config(**{'hidden': 6, 'dropout': 0.0, 'max_len': 6, **fields}, vocab=len(vocabulary), feats=kinds, features=tuple(kinds),
                       frames=frames, captions=4, categories=3)
    model = paper.Captioner(cfg).eval()
    corpus = Corpus('shapes', 'test', {video: shapes.captions(shapes.scene(video))}, category={video: 1}, categories=['a', 'b', 'c'])
    return (case, model, vocabulary, features), corpus, video


@pytest.mark.parametrize('name', ['shapes', 'elsewhere'])                       # with frames, and where none can be had
@pytest.mark.parametrize('case', CASES)
def test_every_model_gets_a_picture(case, name, monkeypatch):
    run, corpus, video = small(case)
    corpus.name, figures = name, []
    monkeypatch.setattr(show, 'save_figure', lambda figure, path: figures.append(figure))      # not saved: that takes the longest
    show.draw_video([run], corpus, video, 'a.png', 'cpu', beam=2)
    assert case in said(figures[0])
    plt.close(figures[0])


def test_regions_without_a_fixed_place_have_no_map():
    """Four boxes of a detector are no grid of two by two: the frame is shown as it is"""
    (_, model, vocabulary, _), corpus, video = small('stats-regions')
    model.cfg.feats['v'] = [4, 4]
    batch = data.Batches(corpus, {'v': {video: np.random.default_rng(0).random((16, 4, 4), dtype=np.float32)}}).collate([(video, [])])
    tiles = show.captioner_block('run', model, vocabulary, batch, GREY, 2).tiles
    assert tiles and all((picture == 200).all() for tile in tiles for picture in tile.pictures)


def test_several_runs_are_blocks_of_one_figure_each_with_its_caption(drawn, tmp_path):
    one, corpus, video = small('stats')
    other, _, _ = small('astar')
    third, _, _ = small('stats-st')
    show.draw_video([one, other, third], corpus, video, tmp_path / 'a.png', 'cpu', beam=2)
    batch = {name: data.Batches(corpus, features).collate([(video, [])]) for name, _, _, features in (one, other, third)}
    for name, model, vocabulary, _ in (one, other, third):
        words, _ = decode.beam(model, *model.encode(batch[name]), 6, 2)
        assert f'{name}: {vocabulary.decode(words[0].tolist())} |' in said(drawn[0])
    assert 'ST | TS' in said(drawn[0]) and 'pool2 | pool3 | pool4 | pool5' in said(drawn[0])
    with pytest.raises(BadInput, match='cannot write'):
        show.draw_video([one], corpus, video, tmp_path / 'nowhere' / 'a.png', 'cpu')


def test_vre_frames_its_two_key_frames_and_says_both_captions(drawn, tmp_path):
    (name, model, vocabulary, features), corpus, video = small('vre')
    batch = data.Batches(corpus, features).collate([(video, [])])
    with torch.no_grad():
        model.encoder.w_m.weight.mul_(20)                                       # so that the two captions differ
        memory = model.watch(batch)
        spoken = [vocabulary.decode(decode.beam(model, m, model.state(m), 6, 3)[0][0].tolist()) for m in memory]
    keys = [m['key'][0].argmax().item() + 1 for m in memory]
    assert keys[0] == 9 != keys[1] and keys[1] == memory[0]['focus'][0].argmax() + 1 and spoken[0] != spoken[1]
    block = show.captioner_block('run', model, vocabulary, batch, GREY, 3)
    assert block.strip.edges == {9: ['darkgoldenrod'], keys[1]: ['red']} and block.strip.numbers == list(range(1, 17))
    assert [line[0][0] for line in block.lines[:2]] == [f'run, step {i + 1}, key frame {keys[i]}: {spoken[i]}' for i in (0, 1)]
    assert [tile.label for tile in block.tiles] == spoken[1].split() and model.cfg.step == 2
    model.cfg.step = 1                                                          # --step 1: the words of the first watching
    assert [tile.label for tile in show.captioner_block('run', model, vocabulary, batch, GREY, 3).tiles] == spoken[0].split()
    assert model.cfg.step == 1
    model.cfg.stage = 'warm'                                                    # it has only one watching then
    block = show.captioner_block('run', model, vocabulary, batch, GREY, 3)
    assert block.strip.edges == {9: ['darkgoldenrod']} and 'step 2' not in str(block.lines)


class Sees(nn.Module):
    """Takes every clip for class 1, and looks at one place of seven by seven, moving right"""
    __module__ = 'sta'

    def __init__(self, looks=True):
        super().__init__()
        self.cfg, self.looks = type('Config', (), {'features': ()}), looks

    def predict(self, batch):
        space = torch.eye(49)[[7 * 3 + i * 7 // 16 for i in range(16)]]
        return torch.tensor([[0.2, 0.7, 0.1]]), {'space': space[None] * self.looks}


def test_a_recogniser_shows_where_it_looks_its_class_and_the_true_one(drawn, tmp_path):
    video = 'test00001'
    corpus = Corpus('shapes', 'test', labels={video: [0, 2]}, classes=['grows', 'shrinks', 'left'])
    block = show.recogniser_block('run', Sees(), corpus, video, {}, GREY)
    assert block.lines[0][1] == ('shrinks (0.70)', 'tab:red') and block.strip.numbers == list(range(1, 17))
    assert [brightest(picture, 7) for picture in block.strip.pictures] == [(3, i * 7 // 16) for i in range(16)]
    assert show.recogniser_block('run', Sees(False), corpus, video, {}, GREY).strip is None             # no attention, no maps
    corpus.labels[video] = [1]
    assert show.recogniser_block('run', Sees(), corpus, video, {}, GREY).lines[0][1][1] == 'tab:green'
    show.draw_video([(f'run {i}', Sees(), None, {}) for i in range(3)], corpus, video, tmp_path / 'a.png', 'cpu')
    assert 'true class: | shrinks' in said(drawn[0]) and said(drawn[0]).count('shrinks (0.70)') == 3
    assert len(drawn[0].axes[0].images) == 4 * 16                               # the clip, and a row for each run


# training curves ------------------------------------------------------------------------------------------------------

def write_log(folder, *lines):
    folder.mkdir(exist_ok=True)
    (folder / 'log.jsonl').write_text('\n'.join(line if isinstance(line, str) else json.dumps(line) for line in lines) + '\n')
    return str(folder)


def test_curves_hold_the_numbers_of_the_log(drawn, tmp_path, capsys):
    head, losses, scores = {'args': {}, 'config': {}}, [9.0, 5.0, 4.0, 8.0, 7.0], [0.1, 0.5, 0.6, 0.2, 0.3]
    epochs = [{'epoch': e, 'stage': stage, 'loss': losses[i], 'val_CIDEr': scores[i], 'seconds': 1.0}
              for i, (e, stage) in enumerate([(1, 'warm'), (2, 'warm'), (3, 'warm'), (1, 'joint'), (2, 'joint')])]
    staged = write_log(tmp_path / 'staged', head, *epochs[:2], head, *epochs[2:], '{"epoch": 3, "sta')       # resumed once, and cut off
    plain = write_log(tmp_path / 'plain', head, {'epoch': 1, 'loss': 3.0, 'val_accuracy': 0.5}, {'epoch': 2, 'loss': 2.0, 'val_accuracy': 0.75},
                      head, {'epoch': 1, 'loss': 6.0})                                                              # and begun anew
    (tmp_path / 'plain' / 'best.pt').write_bytes(b'not read')
    evaluate.main([staged, str(tmp_path / 'plain' / 'best.pt'), '--curves'])
    assert (tmp_path / 'staged' / 'curves.png').read_bytes()[:4] == b'\x89PNG' and 'curves.png' in capsys.readouterr().out
    panels = {axis.get_title(): axis for axis in drawn[0].axes}
    assert set(panels) == {'training loss', 'validation CIDEr', 'validation accuracy'}
    lines = [(list(line.get_xdata()), list(line.get_ydata())) for line in panels['training loss'].lines if line.get_linestyle() == '-']
    assert lines == [([1, 2, 3], [9, 5, 4]), ([4, 5], [8, 7]), ([1, 2], [3, 2]), ([3], [6])]
    marks = [line.get_xdata()[0] for line in panels['validation CIDEr'].lines if line.get_linestyle() == ':']
    assert marks == [0.5, 3.5] and [t.get_text() for t in panels['validation CIDEr'].texts] == ['warm', 'joint']
    assert [t.get_text() for t in panels['training loss'].get_legend().get_texts()] == ['staged', 'plain']


@pytest.mark.parametrize('lines, message', [
    (None, 'log.jsonl: there is no log; train.py writes one'), (['{"args": {}}'], 'no epoch was finished yet'), ([''], 'no epoch was finished'),
    (['{"args": {}}', 'broken', '{"epoch": 1, "loss": 2}'], "line 2: expected an epoch of train.py, found 'broken'"),
    (['3', '{"epoch": 1, "loss": 2}'], 'line 1: expected an epoch')])
def test_a_log_that_cannot_be_drawn_is_told(tmp_path, lines, message):
    if lines is not None:
        write_log(tmp_path, *lines)
    with pytest.raises(BadInput, match=message):
        evaluate.main([str(tmp_path), '--curves'])


# evaluate.py: --show, --glimpse, names of files ----------------------------------------------------------------------

@pytest.fixture(scope='module')
def clips(tmp_path_factory):
    """UCF-11's layout with eight test clips of two actions, and a recogniser that takes each for the first action -> root, run"""
    root = tmp_path_factory.mktemp('root')
    (root / 'ucf11' / 'features' / 'clip').mkdir(parents=True)
    for n in range(16, 20):
        for action in ('diving', 'golf'):
            (root / 'ucf11' / action / f'v_{action}_{n}').mkdir(parents=True)
            (root / 'ucf11' / action / f'v_{action}_{n}' / f'{action}{n}.avi').touch()
            np.save(root / 'ucf11' / 'features' / 'clip' / f'{action}{n}.npy', np.random.default_rng(n).random((5, 3, 3, 4), dtype=np.float32))
    torch.manual_seed(0)
    cfg = sta.Config(task='recognise', feats={'clip': [3, 3, 4]}, frames=5, classes=2, features=('clip',), hidden=8, layers=1)
    model = sta.Recogniser(cfg)
    with torch.no_grad():
        model.classify.bias[0] += 3
    (root / 'run').mkdir()
    checkpoint = dict(model='sta', dataset='ucf11', scheme='official', fold=1, limit=None, config=dataclasses.asdict(cfg), vocab=None)
    torch.save({**checkpoint, 'state_dict': model.state_dict()}, root / 'run' / 'best.pt')
    return root, root / 'run', checkpoint


def test_show_draws_clips_spread_over_the_split(clips, capsys):
    root, run, _ = clips
    evaluate.main([str(run), str(run), '--show', '3', '--root', str(root), '--device', 'cpu'])
    assert sorted(p.name for p in (run / 'figures').iterdir()) == ['diving16.png', 'diving18.png', 'golf17.png']  # 0, 2 and 5 of 8
    evaluate.main([str(run), '--show', '99', '--root', str(root), '--device', 'cpu'])
    assert len(list((run / 'figures').iterdir())) == 8


def test_another_checkpoint_of_a_run_leaves_the_run_s_own_files_alone(clips, tmp_path):
    root, run, _ = clips
    for name in ('best.pt', 'best-joint.pt'):
        (tmp_path / name).write_bytes((run / 'best.pt').read_bytes())
    evaluate.main([str(tmp_path / 'best-joint.pt'), '--root', str(root), '--device', 'cpu'])
    assert {p.name for p in tmp_path.iterdir()} == {'best.pt', 'best-joint.pt', 'captions-best-joint.json', 'attention-best-joint.png'}
    evaluate.main([str(tmp_path / 'best.pt'), '--root', str(root), '--device', 'cpu'])
    assert {'captions.json', 'attention.png'} <= {p.name for p in tmp_path.iterdir()}


def test_a_glimpse_has_three_rows_and_is_for_clips_that_are_wrong(clips, drawn, capsys, monkeypatch):
    root, run, _ = clips
    monkeypatch.setattr(sta, 'glimpse', functools.partial(sta.glimpse, steps=9))
    more = ['--root', str(root), '--device', 'cpu']
    evaluate.main([str(run), '--glimpse', 'auto', *more])
    assert (run / 'glimpse-golf16.png').exists()                                # the first that is no diving
    out = capsys.readouterr().out
    assert 'golf16: golf, taken for diving' in out and 'at step 9: diving' in out and 'probability of 0.' in out
    found = said(drawn[0])
    assert 'learned: | diving' in found and 'random: | ' in found and 'not found at step 9: | diving' in found
    assert len(drawn[0].axes[0].images) == 3 * 5                                # rows of maps alone: these clips have no frames
    with pytest.raises(BadInput, match='diving17: its class is right already; wrong are, for example, golf16 and golf17'):
        evaluate.main([str(run), '--glimpse', 'diving17', *more])
    with pytest.raises(BadInput, match='--glimpse nowhere: no video of the test split, whose first is diving16'):
        evaluate.main([str(run), '--glimpse', 'nowhere', *more])


def test_the_rows_of_a_glimpse_are_learned_random_and_found(drawn, tmp_path):
    corpus = Corpus('shapes', 'test', labels={'test00001': [2, 0]}, classes=['grows', 'shrinks', 'left'])
    found = {name: torch.eye(49)[[cell] * 16] for name, cell in (('learned', 0), ('random', 24), ('found', 48))}
    show.draw_glimpse({**found, 'predicted': (1, 0, 2), 'steps': 7, 'probability': 0.5}, corpus, 'test00001', tmp_path / 'a.png')
    rows = np.array([image.get_array() for image in drawn[0].axes[0].images], float).reshape(4, 16, 7, 16, 7, 16, 3).mean((1, 3, 5, 6))
    light = rows[1:] / rows[0]                                                  # (3, 7, 7), against the clip without maps
    assert [np.unravel_index(row.argmax(), (7, 7)) for row in light] == [(0, 0), (3, 3), (6, 6)]
    assert ' | '.join(part for part in said(drawn[0]).split(' | ') if not part.isdigit()).endswith(
        'learned: | shrinks | random: | grows | found at step 7: | left')


@pytest.mark.parametrize('flags, message', [
    (['--show', '0'], '--show 0: how many videos'), (['--show', '1', '--words'], 'do that alone: leave'), (['--curves', '--json', 'x'], 'do that alone'),
    (['--show', '1', '--step', '2'], '--step is for runs of vre'), (['other', '--show', '1'], 'learned from shapes, .* from ucf11'),
    (['pooled', '--glimpse', 'auto'], '--glimpse is for one run of sta')])
def test_flags_that_do_not_fit_are_told_before_any_work(clips, tmp_path, flags, message):
    root, run, checkpoint = clips
    saved = torch.load(run / 'best.pt', weights_only=True)
    (tmp_path / 'other').mkdir()
    torch.save({**saved, 'dataset': 'shapes'}, tmp_path / 'other' / 'best.pt')
    runs = [str(tmp_path / 'other')] if flags[0] in ('other', 'pooled') else []
    with pytest.raises(BadInput, match=message):
        evaluate.main([str(run), *runs, *[f for f in flags if f not in ('other', 'pooled')], '--root', 'nowhere'])


def test_a_glimpse_needs_a_model_that_chooses_a_place(clips, tmp_path):
    _, _, checkpoint = clips
    cfg = sta.Config(**{**checkpoint['config'], 'variant': 'avgpool'})
    torch.save({**checkpoint, 'config': dataclasses.asdict(cfg), 'state_dict': sta.Recogniser(cfg).state_dict()}, tmp_path / 'best.pt')
    with pytest.raises(BadInput, match='--glimpse is for one run of sta that recognises with --variant soft'):
        evaluate.main([str(tmp_path), '--glimpse', 'auto', '--root', 'nowhere'])


def test_parts_of_speech_are_counted(monkeypatch, tmp_path):
    import nltk
    tags = dict(a='DET', man='NOUN', dog='NOUN', runs='VERB', sings='VERB', red='ADJ')
    monkeypatch.setattr(nltk, 'pos_tag_sents', lambda sentences, tagset: [[(w, tags[w]) for w in s] for s in sentences])
    shares, words = show.word_classes(['a man runs', 'a red man sings', 'a dog runs', 'a man runs'], skip=1)
    # man 3, runs 3, dog 1, sings 1, red 1: nine in all; the most frequent, man, is left out
    assert shares == {'verb': pytest.approx(4 / 9), 'noun': pytest.approx(4 / 9), 'adjective': pytest.approx(1 / 9)}
    assert words[0] == ('runs', 'verb', 3) and {w for w, _, _ in words} == {'runs', 'dog', 'sings', 'red'}
    assert show.draw_words(shares, words, tmp_path / 'w.png').read_bytes()[:4] == b'\x89PNG'


def test_a_missing_tagger_gets_the_line_to_type(monkeypatch):
    import nltk
    monkeypatch.setattr(nltk.data, 'path', [])
    with pytest.raises(BadInput, match=r"nltk.download\('averaged_perceptron_tagger_eng'\)"):
        show.word_classes(['a man runs'])
