"""Vocabulary, features and batches on files that the tests write."""
import json
from collections import Counter

import numpy as np
import pytest
import torch

import data
from data import EOS, PAD, UNK, BadInput, Batches, Corpus, Features, Vocabulary, normalise


def test_captions_lose_case_and_punctuation():
    assert normalise("  A man's DOG, running -- fast.\n") == 'a man s dog running fast'


def test_a_vocabulary_counts_training_words_and_round_trips():
    words = Vocabulary.build(['a cat runs', 'a dog runs', 'a cat sleeps'], min_count=2)
    assert words.words == ['<pad>', '<eos>', '<unk>', 'a', 'cat', 'runs']          # 3, 2, 2 times; dog and sleeps once
    assert words.encode('a dog runs', max_len=9) == [3, UNK, 5, EOS]
    assert words.encode('a cat runs', max_len=2) == [3, 4, EOS]
    assert words.decode([3, 4, EOS, 5, PAD]) == 'a cat' and words.decode(torch.tensor([3, 4, 5])) == 'a cat runs'
    assert Vocabulary(words.words).index == words.index


def write_word2vec(path, vectors):
    if path.suffix == '.bin':
        body = b''.join(word.encode() + b' ' + np.array(v, dtype='<f4').tobytes() + b'\n' for word, v in vectors.items())
        path.write_bytes(f'{len(vectors)} {len(next(iter(vectors.values())))}\n'.encode() + body)
    else:
        path.write_text(''.join(f'{word} {" ".join(map(str, v))}\n' for word, v in vectors.items()))
    return path


@pytest.mark.parametrize('name', ['v.bin', 'v.txt'])
def test_word2vec_is_read_in_both_formats(tmp_path, name):
    path = write_word2vec(tmp_path / name, {'cat': [1.0, 2.5, -3.0], 'zebra': [9.0, 9.0, 9.0], 'a': [0.5, 0.25, 0.125]})
    vectors, found = data.word2vec(path, Vocabulary.build(['a cat runs']), 3)
    assert found.tolist() == [False, False, False, True, True, False]               # a, cat; not runs
    assert vectors[3].tolist() == [0.5, 0.25, 0.125] and vectors[4].tolist() == [1.0, 2.5, -3.0]
    with pytest.raises(BadInput, match='3 numbers, but the embedding has 5: use --embed 3'):
        data.word2vec(path, Vocabulary.build(['a cat']), 5)


def test_broken_word2vec_files_are_told(tmp_path):
    path = write_word2vec(tmp_path / 'v.bin', {'cat': [1.0, 2.0], 'dog': [3.0, 4.0]})
    path.write_bytes(path.read_bytes()[:-6])
    with pytest.raises(BadInput, match='ends inside word 2 of 2'):
        data.word2vec(path, Vocabulary.build(['cat']), 2)
    (tmp_path / 'v.txt').write_text('cat 1.0 2.0\ndog 1.0 x\n')
    with pytest.raises(BadInput, match='v.txt, line 2'):
        data.word2vec(tmp_path / 'v.txt', Vocabulary.build(['cat']), 2)


def corpus_of(counts):
    """captions: video v3 with 5 captions says 'v3 c0' ... 'v3 c4'"""
    return Corpus('test', 'train', {f'v{v}': [f'v{v} c{c}' for c in range(n)] for v, n in enumerate(counts)})


class InMemory(dict):
    def __getitem__(self, video):
        return super().__getitem__(video).astype(np.float32)


def features_of(corpus, frames=lambda v: 1 + v % 4):
    return InMemory({video: np.full((frames(v), 3), v) for v, video in enumerate(corpus.ids)})


@pytest.mark.parametrize('world', [1, 2, 3])
@pytest.mark.parametrize('counts', [[5] * 7, [1, 12, 5, 3, 7], [40]])
def test_every_caption_is_used_exactly_once_per_epoch(counts, world):
    corpus = corpus_of(counts)
    vocabulary = Vocabulary.build(c for several in corpus.captions.values() for c in several)
    seen, shares = Counter(), []
    for rank in range(world):
        batches = Batches(corpus, {'x': features_of(corpus)}, vocabulary, videos=4, captions=5, rank=rank, world=world)
        epoch = list(batches.epoch(3))
        assert len(epoch) == len(batches)
        shares.append([batch['share'] for batch in epoch])
        for batch in epoch:
            assert len(batch['ids']) <= 4 and torch.bincount(batch['rows']).max() <= 5
            for words, row, number in zip(batch['captions'], batch['rows'], batch['caption_ids']):
                assert vocabulary.decode(words).split()[0] == batch['ids'][row]      # the caption lies with its own video
                assert (batch['feats']['x'][row][batch['mask']['x'][row]] == int(batch['ids'][row][1:])).all()
                if batch['share'] > 0:
                    seen[int(number), vocabulary.decode(words)] += 1
    everything = [c for several in corpus.captions.values() for c in several]
    assert seen == Counter(enumerate(everything))
    assert np.allclose(np.sum(shares, 0), 1)                                         # the processes share each joined batch


def test_the_order_depends_on_seed_and_epoch_and_a_late_start_continues_it():
    corpus = corpus_of([3] * 10)
    batches = Batches(corpus, {'x': features_of(corpus)}, Vocabulary.build(['a']), videos=3, captions=2, seed=1)
    order = [batch['caption_ids'].tolist() for batch in batches.epoch(0)]
    assert order == [batch['caption_ids'].tolist() for batch in batches.epoch(0)]
    assert order[2:] == [batch['caption_ids'].tolist() for batch in batches.epoch(0, start=2)]
    assert order != [batch['caption_ids'].tolist() for batch in batches.epoch(1)]
    assert [batch['ids'] for batch in batches.in_order()] == [corpus.ids[i:i + 3] for i in range(0, 10, 3)]


def test_frames_are_padded_with_zeros_under_a_mask():
    corpus = corpus_of([1, 1, 1, 1])
    batch = next(Batches(corpus, {'x': features_of(corpus)}, videos=4).in_order())
    assert batch['feats']['x'].shape == (4, 4, 3) and batch['mask']['x'].sum(1).tolist() == [1, 2, 3, 4]
    assert (batch['feats']['x'][~batch['mask']['x']] == 0).all()


def test_labels_and_categories_reach_the_batch():
    corpus = Corpus('test', 'train', labels={'a': [0, 2], 'b': [1]}, classes=['x', 'y', 'z'], category={'a': 4, 'b': 1},
                    categories=list('pqrst'))
    batch = next(Batches(corpus, {}, videos=2).in_order())
    assert batch['labels'].tolist() == [[1, 0, 1], [0, 1, 0]] and batch['category'].tolist() == [4, 1]


def packed(folder, name, array, **info):
    folder.mkdir(exist_ok=True)
    np.save(folder / f'{name}.npy', array)
    (folder / f'{name}.json').write_text(json.dumps({'ids': [f'v{i}' for i in range(len(array))], **info}))
    return folder


def test_packed_features_are_read_lazily_and_scaled(tmp_path):
    array = np.random.default_rng(0).integers(0, 255, (3, 4, 5)).astype(np.uint8)
    features = Features(packed(tmp_path, 'x', array, scale=[0.5, 2.0, 0.1]), 'x')
    assert isinstance(features.array, np.memmap) and features['v1'].dtype == np.float32
    assert np.allclose(features['v2'], array[2] * 0.1) and data.check(features, ['v0', 'v2']) == ([5], 4)


def test_a_folder_of_files_and_vectors_without_frames(tmp_path):
    (tmp_path / 'x').mkdir()
    np.save(tmp_path / 'x' / 'v0.npy', np.zeros((2, 7, 7, 3), np.float16))
    np.save(tmp_path / 'x' / 'v1.npy', np.ones((5, 7, 7, 3), np.float16))
    assert data.check(Features(tmp_path, 'x'), ['v0', 'v1']) == ([7, 7, 3], 5)
    features = Features(packed(tmp_path, 'audio', np.ones((2, 128), np.float16)), 'audio')
    assert features['v0'].shape == (1, 128) and data.check(features, ['v0']) == ([128], 1)


@pytest.mark.parametrize('array, message', [
    (np.array([[[1.0, np.nan]]], np.float16), "the feature of 'v0' holds NaN or infinite"),
    (np.array([[[1.0, np.inf]]], np.float32), "the feature of 'v0' holds NaN or infinite"),
    (np.zeros((1, 0, 4), np.float32), "the feature of 'v0' is empty"),
    (np.zeros((1, 2, 2, 2, 2, 2), np.float32), r"has shape \(2, 2, 2, 2, 2\)")])
def test_bad_features_are_told_by_name(tmp_path, array, message):
    with pytest.raises(BadInput, match=message):
        data.check(Features(packed(tmp_path, 'x', array), 'x'), ['v0'])


def test_missing_and_unequal_features_are_told_by_name(tmp_path):
    features = Features(packed(tmp_path, 'x', np.zeros((2, 3, 4), np.float16)), 'x')
    with pytest.raises(BadInput, match="video 'v7' has no features in .*x.npy"):
        data.check(features, ['v0', 'v7'])
    with pytest.raises(BadInput, match='looked for y.npy with y.json.*there: x'):
        Features(tmp_path, 'y')
    (tmp_path / 'z').mkdir()
    np.save(tmp_path / 'z' / 'v0.npy', np.zeros((2, 3)))
    np.save(tmp_path / 'z' / 'v1.npy', np.zeros((2, 4)))
    with pytest.raises(BadInput, match=r"'v1' has \(4,\) per frame, where 'v0' has \(3,\)"):
        data.check(Features(tmp_path, 'z'), ['v0', 'v1'])


def write_msvd(root, **splits):
    (root / 'msvd').mkdir(exist_ok=True)
    for split, lines in splits.items():
        (root / 'msvd' / f'sents_{split}.txt').write_text(''.join(line + '\n' for line in lines))


def test_msvd_text_files(tmp_path):
    write_msvd(tmp_path, train=['vid1\ta man runs', 'vid2\ta dog', 'vid1\tA man is running!'])
    assert data.load('msvd', tmp_path, 'train').captions == {'vid1': ['a man runs', 'a man is running'], 'vid2': ['a dog']}
    with pytest.raises(BadInput, match='msvd has no test split under .*sents_test.txt is absent'):
        data.load('msvd', tmp_path, 'test')
    write_msvd(tmp_path, train=['vid1\ta man runs', 'vid2 a dog'], val=[])
    with pytest.raises(BadInput, match=r"sents_train.txt, line 2: expected .vidN<TAB>caption., found 'vid2 a dog'"):
        data.load('msvd', tmp_path, 'train')
    with pytest.raises(BadInput, match='the val split under .* is empty'):
        data.load('msvd', tmp_path, 'val')
    with pytest.raises(BadInput, match='there is no such folder; --root'):
        data.load('msvd', tmp_path / 'nowhere', 'val')
