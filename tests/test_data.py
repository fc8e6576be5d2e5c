"""Vocabulary, features on disk and batches, on files that the tests write."""
import json
import os
import re
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import helpers
from data import EOS, PAD, UNK, BadInput, Batches, Corpus, Features, Vocabulary, normalise


def test_a_vocabulary_counts_training_words_and_round_trips():
    assert normalise("  A man's DOG, running -- fast.\n") == 'a man s dog running fast'
    words = Vocabulary.build(['a cat runs', 'a dog runs', 'a cat sleeps'], min_count=2)
    assert words.words == ['<pad>', '<eos>', '<unk>', 'a', 'cat', 'runs']       # 3, 2 and 2 times
    assert words.encode('a dog runs', max_len=9) == [3, UNK, 5, EOS]
    assert words.encode('a cat runs', max_len=2) == [3, 4, EOS]
    assert words.decode([3, 4, EOS, 5, PAD]) == 'a cat'
    assert words.decode(torch.tensor([3, 4, 5])) == 'a cat runs'
    assert Vocabulary(words.words).index == words.index


# ---------------------------------------------------------------------------------------- batches

class InMemory(dict):
    def __getitem__(self, video):
        return super().__getitem__(video).astype(np.float32)


def corpus_of(counts):
    """Video v3 with 5 captions has 'v3 c0' ... 'v3 c4'; its 1 to 4 frames have the feature 3."""
    captions = {f'v{v}': [f'v{v} c{c}' for c in range(n)] for v, n in enumerate(counts)}
    feats = InMemory({f'v{v}': np.full((1 + v % 4, 3), v) for v in range(len(counts))})
    return Corpus('test', 'train', captions, features={'x': feats})


def every_caption(corpus):
    return [caption for several in corpus.captions.values() for caption in several]


@pytest.mark.parametrize('world', [1, 2, 3])
@pytest.mark.parametrize('counts', [[5] * 7, [1, 12, 5, 3, 7], [40]])
def test_every_caption_is_used_exactly_once_per_epoch(counts, world):
    corpus = corpus_of(counts)
    vocabulary = Vocabulary.build(every_caption(corpus))
    batches = Batches(corpus, vocabulary, videos=4, captions=5)
    seen = Counter()
    ranks = [list(batches.epoch(3, rank=rank, world=world)) for rank in range(world)]
    for joined in zip(*ranks, strict=True):             # processes share each joined batch
        total = sum(len(batch['rows']) for batch in joined if batch['share'] > 0)
        assert sum(batch['share'] for batch in joined) == pytest.approx(1)
        for batch in joined:
            assert batch['share'] in (0, pytest.approx(len(batch['rows']) / total))
            assert len(batch['ids']) <= 4 and torch.bincount(batch['rows']).max() <= 5
            for words, row, number in zip(batch['captions'], batch['rows'], batch['caption_ids']):
                video = batch['ids'][row]
                assert vocabulary.decode(words).split()[0] == video             # its own caption
                frames = batch['feats']['x'][row][batch['mask']['x'][row]]
                assert (frames == int(video[1:])).all()                         # its own features
                if batch['share'] > 0:
                    seen[int(number), vocabulary.decode(words)] += 1
    assert seen == Counter(enumerate(every_caption(corpus)))
    assert {len(batches)} == {len(epoch) for epoch in ranks}


def test_the_order_depends_on_seed_and_epoch_and_a_late_start_continues_it():
    batches = Batches(corpus_of([3] * 10), Vocabulary.build(['a']), videos=3, captions=2)

    def order(*args, **options):
        return [batch['caption_ids'].tolist() for batch in batches.epoch(*args, **options)]

    assert order(0, 1) == order(0, 1) and order(0, 1)[2:] == order(0, 1, start=2)
    assert order(0, 1) != order(1, 1) and order(0, 1) != order(0, 2)
    first, other_seed, other_epoch = ([batch['ids'] for batch in batches.epoch(*which)]
                                      for which in ((0, 1), (0, 2), (1, 1)))
    assert first != other_seed and first != other_epoch
    ids = batches.corpus.ids
    assert [batch['ids'] for batch in batches.in_order()] == [ids[:3], ids[3:6], ids[6:9], ids[9:]]


def test_frames_are_padded_with_zeros_and_labels_and_categories_reach_the_batch():
    corpus = corpus_of([1, 1, 1, 1])
    corpus.labels = {'v0': [0, 2], 'v1': [1], 'v2': [], 'v3': [0]}
    corpus.classes = ['x', 'y', 'z']
    corpus.category = {'v0': 4, 'v1': 1, 'v2': 0, 'v3': 3}
    corpus.categories = list('pqrst')
    batch = next(Batches(corpus, videos=4).in_order())
    assert batch['mask']['x'].sum(1).tolist() == [1, 2, 3, 4]
    assert batch['feats']['x'].shape == (4, 4, 3)
    assert (batch['feats']['x'][~batch['mask']['x']] == 0).all()
    assert batch['labels'].tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 0, 0]]
    assert batch['category'].tolist() == [4, 1, 0, 3]


# ------------------------------------------------------------------------------- features on disk

def packed(folder, name, array, **info):
    """Write NAME.npy and NAME.json."""
    np.save(folder / f'{name}.npy', array)
    ids = [f'v{i}' for i in range(len(array))]
    (folder / f'{name}.json').write_text(json.dumps({'ids': ids, **info}))
    return folder


def one_by_one(folder, *arrays):
    """Write FOLDER/v0.npy, FOLDER/v1.npy, ..."""
    folder.mkdir()
    for i, array in enumerate(arrays):
        np.save(folder / f'v{i}.npy', array)


def test_features_are_packed_and_scaled_or_one_file_per_video_and_may_lack_frames(tmp_path):
    array = np.random.default_rng(0).integers(0, 255, (3, 4, 5)).astype(np.uint8)
    features = Features(packed(tmp_path, 'x', array, scale=[0.5, 2.0, 0.1], encoder='e'), 'x')
    assert isinstance(features.array, np.memmap) and features['v1'].dtype == np.float32
    assert np.allclose(features['v2'], array[2] * 0.1)
    assert features.check(['v0', 'v2']) == ([5], 4) and features.info == {'encoder': 'e'}
    one_by_one(tmp_path / 'y', np.zeros((2, 7, 7, 3)), np.ones((5, 7, 7, 3), np.float16))
    os.mkfifo(tmp_path / 'y' / 'v2.npy')                # opening it would wait forever
    features = Features(tmp_path, 'y')
    assert features.check(['v0', 'v1']) == ([7, 7, 3], 5) and list(features.rows) == ['v0', 'v1']
    audio = Features(packed(tmp_path, 'audio', np.ones((2, 128), np.float16)), 'audio')
    assert audio['v0'].shape == (1, 128) and audio.check(['v0']) == ([128], 1)


@pytest.mark.parametrize('ending', ['h5', 'hdf5'])
def test_features_in_hdf5_are_read_by_id(tmp_path, monkeypatch, ending):
    (tmp_path / f'x.{ending}').write_bytes(b'')
    monkeypatch.setitem(sys.modules, 'h5py', None)              # as if it were not installed
    with pytest.raises(BadInput, match='pip install h5py'):
        Features(tmp_path, 'x')
    stored = {'v0': np.ones((2, 3), np.float16), 'v1': np.zeros((4, 3), np.float16), 'group': {}}
    fake = SimpleNamespace(File=lambda path, mode: stored, Dataset=np.ndarray)
    monkeypatch.setitem(sys.modules, 'h5py', fake)
    features = Features(tmp_path, 'x')
    assert list(features.rows) == ['v0', 'v1']
    assert features.check(['v0', 'v1']) == ([3], 4)
    assert np.array_equal(features['v0'], np.ones((2, 3)))


@pytest.mark.parametrize('array', [
    np.zeros((1, 0, 4)), np.zeros((1, 2, 2, 2, 2, 2)), np.zeros(1), np.array(3.0),
    np.zeros((1, 2, 3), complex), np.full((1, 2, 3), 'text'), np.zeros((1, 2, 3), 'M8[s]'),
    np.zeros((1, 2), [('x', float), ('y', int)])], ids=lambda array: f'{array.dtype}{array.shape}')
def test_features_that_are_no_numbers_or_no_frames_are_named(tmp_path, array):
    packed(tmp_path, 'x', np.atleast_1d(array))
    np.save(tmp_path / 'x.npy', array)
    shape = array.shape[1:]
    with pytest.raises(BadInput, match=re.escape(f"the feature of 'v0' has shape {shape} and")):
        Features(tmp_path, 'x').check(['v0'])


@pytest.mark.parametrize('value, scale', [
    (np.float16(np.nan), 1), (np.float32(np.inf), 1), (np.float64(1e300), 1),
    (np.float32(1e20), 1e20)])
@pytest.mark.filterwarnings('ignore:overflow')
def test_headers_are_read_at_the_start_and_numbers_when_they_are_used(tmp_path, value, scale):
    array = np.ones((2, 3, 4), value.dtype)
    array[1, 2, 3] = value
    features = Features(packed(tmp_path, 'x', array, scale=[scale, scale]), 'x')
    assert features.check(['v0', 'v1']) == ([4], 3)
    assert (features['v0'] == np.float32(scale)).all()
    for _ in range(2):
        with pytest.raises(BadInput, match="the feature of 'v1' contains NaN or infinite numbers"):
            features['v1']


def test_missing_unequal_and_cut_off_features_are_named(tmp_path):
    features = Features(packed(tmp_path, 'x', np.zeros((2, 3, 4), np.float16)), 'x')
    message = "x.npy: 2 of 3 videos have no features, such as 'v7', 'v8'; extract .* --partial"
    with pytest.raises(BadInput, match=message):
        features.check(['v0', 'v7', 'v8'])
    (tmp_path / 'y.pt').touch()
    with pytest.raises(BadInput, match='for y.npy with y.json.*there: x.json, x.npy, y.pt'):
        Features(tmp_path, 'y')
    one_by_one(tmp_path / 'z', np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(BadInput, match=r"'v1' has \(4,\) per frame, but 'v0' has \(3,\)"):
        Features(tmp_path, 'z').check(['v0', 'v1'])
    whole = (tmp_path / 'z' / 'v0.npy').read_bytes()
    (tmp_path / 'z' / 'v0.npy').write_bytes(whole[:-8])
    with pytest.raises(BadInput, match='v0.npy: cannot be read; it is cut off'):
        Features(tmp_path, 'z').check(['v0'])


def header(shape):
    """The header of an .npy file, without numbers after it"""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + '\n'
    return b'\x93NUMPY\x01\x00' + len(text).to_bytes(2, 'little') + text.encode() + bytes(64)


BROKEN = {
    'x.npy: cannot be read': (
        b'', b'\x93NUMPY', b'text', b'PK\x03\x04 as in an .npz file', header('(99999999999, 7)'),
        header('(4294967296, 4294967296, 9)'), header('(-2, 3)')),
    'x.json: not JSON': (b'[' * 100_000, b'\xff', b'{'),
    'x.json: expected an object': (b'[]',),
    '2 rows, so x.json needs "ids"': (
        b'{"ids": [["v0"], {}]}', b'{"ids": ["v0", "v1", "v1"]}', b'{}', b'{"ids": ["a", "a"]}'),
    '"scale" must be a list of 2 numbers': [
        b'{"ids": ["v0", "v1"], "scale": %s}' % scale
        for scale in (b'[1e300, 1]', b'[NaN, 1]', b'[1]', b'3', b'[null, 1]')]}


@pytest.mark.filterwarnings('ignore:overflow')
@pytest.mark.parametrize('message', BROKEN)
def test_broken_feature_files_are_named(tmp_path, message):
    for content in BROKEN[message]:
        packed(tmp_path, 'x', np.zeros((2, 3, 4), np.float16))
        (tmp_path / ('x.npy' if 'x.npy' in message else 'x.json')).write_bytes(content)
        with pytest.raises(BadInput, match=message):
            Features(tmp_path, 'x')
            pytest.fail(f'{content[:40]} is read')


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('layout', ['rows', 'files'])
def test_damaged_features_are_refused_or_finite(tmp_path, layout):
    array = np.random.default_rng(0).standard_normal((3, 2, 5)).astype(np.float32)
    if layout == 'rows':
        packed(tmp_path, 'x', array, scale=[1.0, 2.0, 0.5], encoder='e')
        files = [tmp_path / 'x.npy', tmp_path / 'x.json']
    else:
        one_by_one(tmp_path / 'x', *array)
        (tmp_path / 'x' / 'info.json').write_text('{"encoder": "e", "part": ["a", 1]}')
        files = [tmp_path / 'x' / 'v1.npy', tmp_path / 'x' / 'info.json']
    for path in files:
        whole = path.read_bytes()
        for seed in range(helpers.TRIES):
            path.write_bytes(helpers.damaged(whole, seed))
            try:
                features = Features(tmp_path, 'x')
                shape, most = features.check(['v0', 'v1', 'v2'])
                for i in range(3):
                    value = features[f'v{i}']
                    assert np.isfinite(value).all() and list(value.shape[1:]) == shape, seed
                    assert len(value) <= most, seed
            except BadInput as error:
                assert path.stem in str(error) or path.parent.name in str(error), seed
        path.write_bytes(whole)
