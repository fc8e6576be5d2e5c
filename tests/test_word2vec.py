"""Files of word vectors, in both formats, whole and broken."""
import numpy as np
import pytest
import torch

import helpers
from data import BadInput, Vocabulary
from tools.word2vec import fill_embedding


def word2vec(path, words, size):
    """-> {word: its vector}, for those of these words that the file contains"""
    vocabulary = Vocabulary(sorted(words))
    embedding = torch.nn.Embedding(len(words), size)
    before = embedding.weight.detach().clone()
    count = fill_embedding(embedding, path, vocabulary)
    filled = (embedding.weight.detach() != before).all(1)
    assert filled.sum() == count and torch.equal(embedding.weight[~filled], before[~filled])
    return {word: embedding.weight.detach()[vocabulary.index[word]].numpy()
            for word, row in zip(vocabulary.words, filled) if row}


def write_vectors(path, vectors):
    if path.suffix == '.txt':
        lines = [f'{word} {" ".join(map(str, v))}\n' for word, v in vectors.items()]
        path.write_text(''.join(lines), encoding='utf-8')
        return path
    body = f'{len(vectors)} {len(next(iter(vectors.values())))}\n'.encode()
    for word, vector in vectors.items():
        body += word.encode() + b' ' + np.array(vector, dtype='<f4').tobytes() + b'\n'
    path.write_bytes(body)
    return path


@pytest.mark.parametrize('name', ['v.bin', 'v.txt'])
def test_word2vec_is_read_in_both_formats(tmp_path, name):
    vectors = {'cat': [1.0, 2.5, -3.0], 'zebra': [9.0, 9.0, 9.0], 'a': [0.5, 0.25, 0.125]}
    path = write_vectors(tmp_path / name, vectors)
    found = word2vec(path, {'a', 'cat', 'runs'}, 3)
    assert {word: vector.tolist() for word, vector in found.items()} == {
        'a': vectors['a'], 'cat': vectors['cat']}
    with pytest.raises(BadInput, match='3 numbers, but the embedding has 5; use --embed 3'):
        word2vec(path, {'a', 'cat'}, 5)


CAT = b'cat ' + np.array([1, 2], '<f4').tobytes()


@pytest.mark.parametrize('name, content, message', [
    ('v.bin', b'', 'must begin with a line'),
    ('v.bin', b'\n' + CAT, 'must begin with a line'),
    ('v.bin', b'cat 0.5 0.25\n', 'must begin with a line'),
    ('v.bin', b'-1 2\n' + CAT, 'must begin with a line'),
    ('v.bin', b'1 0\n' + CAT, 'must begin with a line'),
    ('v.bin', b'1 999999999999\n' + CAT, 'must begin with a line'),
    ('v.bin', b'2 2\n' + CAT, 'ends inside word 2 of 2'),
    ('v.bin', b'1 2\n' + CAT + b'\n' + CAT, 'more in it than the 1 words of its first line'),
    ('v.bin', b'1 1\n' + CAT, '1 numbers, but the embedding has 2; use --embed 1'),
    ('v.bin', b'1 2\ncat ' + np.array([1, np.nan], '<f4').tobytes(), "'cat' is not finite"),
    ('v.txt', b'cat 1.0 2.0\ndog 1.0 x\n', 'v.txt, line 2: expected a word and numbers'),
    ('v.txt', b'cat 1.0 2.0\n\n', 'v.txt, line 2: expected a word and numbers'),
    ('v.txt', b'caf\xe9 1.0 2.0\n', 'v.txt: not UTF-8 text; unpack it'),
    ('v.txt', b'cat 1.0 nan\n', "the vector of 'cat' is not finite"),
    ('v.txt', b'cat 1.0 1e300\n', "the vector of 'cat' is not finite"),
    ('nowhere.bin', None, 'nowhere.bin: cannot be read .No such file')],
    ids=lambda given: str(given)[:20])
def test_broken_files_are_named(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=message):
        word2vec(tmp_path / name, {'cat'}, 2)


@pytest.mark.parametrize('name', ['v.bin', 'v.txt'])
def test_damaged_files_are_refused_or_finite(tmp_path, name):
    vectors = {'cat': [1.0, 2.5], 'zebra': [9.0, 9.0], 'a': [0.5, 0.25]}
    path = write_vectors(tmp_path / name, vectors)
    whole = path.read_bytes()
    for seed in range(helpers.TRIES):
        path.write_bytes(helpers.damaged(whole, seed))
        try:
            found = word2vec(path, {'a', 'cat'}, 2)
            assert all(np.isfinite(vector).all() for vector in found.values()), seed
        except BadInput as error:
            assert name in str(error), seed
