"""What is measured and drawn from attention, on attention that is known."""
import numpy as np
import pytest
import torch
from torch import nn

import shapes
import show
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


def test_a_caption_is_drawn_with_and_without_frames(clip, tmp_path):
    video, caption, corpus, vocabulary = clip
    model = Looks(np.full((16, 49), 1 / 784))
    path = show.one_caption(model, corpus, {}, vocabulary, {video: caption}, tmp_path / 'a.png', 'cpu')
    assert path.read_bytes()[:4] == b'\x89PNG'
    corpus.name = 'elsewhere'                                   # no frames can be had: the weights alone
    smaller = show.one_caption(model, corpus, {}, vocabulary, {video: caption}, tmp_path / 'b.png', 'cpu')
    assert smaller.stat().st_size < path.stat().st_size
    with pytest.raises(BadInput, match='cannot write'):
        show.one_caption(model, corpus, {}, vocabulary, {video: caption}, tmp_path / 'nowhere' / 'c.png', 'cpu')


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
