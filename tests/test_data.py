"""Vocabulary, features and batches on files that the tests write."""
import json
import sys
import zipfile
from collections import Counter
from types import SimpleNamespace

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
    with pytest.raises(BadInput, match="x.npy: 2 of 3 videos have no features, such as 'v7', 'v8': extract"):
        data.check(features, ['v0', 'v7', 'v8'])
    with pytest.raises(BadInput, match='looked for y.npy with y.json.*there: x'):
        Features(tmp_path, 'y')
    (tmp_path / 'z').mkdir()
    np.save(tmp_path / 'z' / 'v0.npy', np.zeros((2, 3)))
    np.save(tmp_path / 'z' / 'v1.npy', np.zeros((2, 4)))
    with pytest.raises(BadInput, match=r"'v1' has \(4,\) per frame, where 'v0' has \(3,\)"):
        data.check(Features(tmp_path, 'z'), ['v0', 'v1'])


@pytest.mark.parametrize('file, content, message', [
    ('x.npy', b'', 'x.npy: cannot be read'), ('x.npy', b'\x93NUMPY', 'x.npy: cannot be read'), ('x.npy', b'text', 'x.npy: cannot be read'),
    ('x.json', b'{', 'x.json: not JSON'), ('x.json', b'[]', 'x.json: expected an object'), ('x.json', b'{}', '2 rows, so x.json.* needs "ids"'),
    ('x.json', b'{"ids": ["a", "a"]}', '2 rows, so x.json.* needs "ids"'),
    ('x.json', b'{"ids": ["v0", "v1"], "scale": [1]}', '"scale" is a list of 2 numbers'),
    ('x.json', b'{"ids": ["v0", "v1"], "scale": 3}', '"scale" is a list of 2 numbers'),
    ('x.json', b'{"ids": ["v0", "v1"], "scale": [null, 1]}', '"scale" is a list of 2 numbers')])
def test_broken_feature_files_are_told_by_name(tmp_path, file, content, message):
    folder = packed(tmp_path, 'x', np.zeros((2, 3, 4), np.float16))
    (folder / file).write_bytes(content)
    with pytest.raises(BadInput, match=message):
        Features(folder, 'x')


def test_a_feature_file_that_is_cut_off_is_told_by_name(tmp_path):
    (tmp_path / 'x').mkdir()
    np.save(tmp_path / 'x' / 'v0.npy', np.zeros((20, 30)))
    whole = (tmp_path / 'x' / 'v0.npy').read_bytes()
    (tmp_path / 'x' / 'v0.npy').write_bytes(whole[:-8])
    with pytest.raises(BadInput, match='v0.npy: cannot be read, cut off'):
        data.check(Features(tmp_path, 'x'), ['v0'])


def test_features_in_hdf5_are_read_by_id(tmp_path, monkeypatch):
    (tmp_path / 'x.h5').write_bytes(b'')
    monkeypatch.setitem(sys.modules, 'h5py', None)              # as where it is not installed
    with pytest.raises(BadInput, match='pip install h5py'):
        Features(tmp_path, 'x')
    stored = {'v0': np.ones((2, 3), np.float16), 'v1': np.zeros((4, 3), np.float16)}
    monkeypatch.setitem(sys.modules, 'h5py', SimpleNamespace(File=lambda path, mode: stored))
    features = Features(tmp_path, 'x')
    assert data.check(features, ['v0', 'v1']) == ([3], 4) and np.array_equal(features['v0'], np.ones((2, 3)))


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
    with pytest.raises(BadInput, match=r"sents_train.txt, line 2: expected .video<TAB>caption., found 'vid2 a dog'"):
        data.load('msvd', tmp_path, 'train')
    with pytest.raises(BadInput, match='the val split under .* is empty'):
        data.load('msvd', tmp_path, 'val')
    with pytest.raises(BadInput, match='there is no such folder; --root'):
        data.load('msvd', tmp_path / 'nowhere', 'val')


def refused(message, *args, **kwargs):
    with pytest.raises(BadInput, match=message):
        data.load(*args, **kwargs)


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(''.join(line + '\n' for line in lines), encoding='utf-8')
    return path


def everything(dataset, root, **choice):
    """-> ids of train, val, test"""
    return [data.load(dataset, root, split, **choice).ids for split in ('train', 'val', 'test')]


CORPUS = 'VideoID,Start,End,WorkerID,Source,AnnotationTime,Language,Description'


def test_msvd_from_the_official_corpus(tmp_path):
    write(tmp_path / 'msvd' / 'corpus.csv', CORPUS,
          'a_b,5,15,1,clean,20,English,"A man, ""Bob"", runs."', 'a_b,5,15,1,clean,20,German,Ein Mann', 'q,0,3,2,x,9,English,A hen.',
          'zz,1,2,1,clean,20,English,not in the mapping', 'a_b,5,15,1,clean,20,English,', 'a_b,5,15,3,clean,20,English,"Two\nlines"',
          'c,1,2,1,clean,20,English,one', 'd,1,2,1,clean,20,English,two', 'e,1,2,1,clean,20,English,three')
    refused('msvd has no train split under .*: youtube_mapping.txt is absent', 'msvd', tmp_path, 'train')
    write(tmp_path / 'msvd' / 'youtube_mapping.txt', 'q_0_3 vid1200', 'a_b_5_15 vid7', 'c_1_2 vid1201', 'd_1_2 vid1300', 'e_1_2 vid1301',
          'never_1_2 vid8')
    assert data.load('msvd', tmp_path, 'train').captions == {'vid1200': ['a hen'], 'vid7': ['a man bob runs', 'two lines']}
    assert everything('msvd', tmp_path)[1:] == [['vid1201', 'vid1300'], ['vid1301']]
    write_msvd(tmp_path, val=['vid1250\tfrom the list'])                           # the lists win where they are
    assert everything('msvd', tmp_path) == [['vid1200', 'vid7'], ['vid1250'], ['vid1301']]
    write(tmp_path / 'msvd' / 'youtube_mapping.txt', 'q_0_3 vid1200', 'a_b_5_15')
    refused('youtube_mapping.txt, line 2: expected .YOUTUBEID_START_END vidN., found', 'msvd', tmp_path, 'train')
    write(tmp_path / 'msvd' / 'corpus.csv', 'VideoID;Start;End', 'a;1;2')
    write(tmp_path / 'msvd' / 'youtube_mapping.txt', 'q_0_3 vid1200')
    refused('corpus.csv, line 1: expected the columns VideoID, .*, found VideoID;Start;End', 'msvd', tmp_path, 'train')


def videodatainfo(*parts):
    """(split, first, last) ... -> the official layout: two captions a video, not in the order of the videos"""
    videos = [{'video_id': f'video{n}', 'id': n, 'split': split, 'category': n % 20} for split, a, b in parts for n in range(a, b + 1)]
    sentences = [{'video_id': f'video{n}', 'caption': f'{what} {n}!', 'sen_id': 0} for what in ('A Cat', 'dogs')
                 for _, a, b in parts for n in range(b, a - 1, -1)]
    return json.dumps({'info': {}, 'videos': videos[::-1], 'sentences': sentences})


@pytest.mark.parametrize('zipped', [True, False])
def test_msrvtt_in_three_schemes(tmp_path, zipped):
    folder = tmp_path / 'msrvtt'
    folder.mkdir()
    files = {'train_val_videodatainfo.json': videodatainfo(('train', 0, 1004), ('validate', 1005, 1009)),
             'category.txt': 'people\t1\r\nmusic\t0\r\n'}
    if zipped:
        with zipfile.ZipFile(folder / 'annotation.zip', 'w') as archive:
            archive.writestr('../outside.txt', 'never unpacked')
            for name, text in files.items():
                archive.writestr(f'inner/{name}', text)
    else:
        for name, text in files.items():
            (folder / name).write_text(text)
    refused('msrvtt has no test split under .*: test_videodatainfo.json is absent', 'msrvtt', tmp_path, 'test')
    (folder / 'test_videodatainfo.json').write_text(videodatainfo(('test', 1010, 1012)))
    numbers = {'official': ((0, 1004), (1005, 1009), (1010, 1012)), 'vre': ((0, 1003), (1004, 1009), (1010, 1012)),
               'astar': ((0, 4), (1005, 1009), (5, 1004))}                          # test: the last 1,000 of 1,005
    for scheme in data.SCHEMES:
        wanted = [[f'video{n}' for n in range(a, b + 1)] for a, b in numbers[scheme]]
        assert everything('msrvtt', tmp_path, scheme=scheme) == wanted
    corpus = data.load('msrvtt', tmp_path, 'val')
    assert corpus.captions['video1006'] == ['a cat 1006', 'dogs 1006'] and corpus.category['video1006'] == 6
    assert corpus.categories == ['music', 'people'] + [str(n) for n in range(2, 20)]
    assert len(list(folder.iterdir())) == (2 if zipped else 3) and not (tmp_path / 'outside.txt').exists()
    refused("no split scheme 'mine' for msrvtt: msrvtt has official, astar, vre", 'msrvtt', tmp_path, 'val', scheme='mine')
    refused("no split scheme 'vre' for msvd", 'msvd', tmp_path, 'val', scheme='vre')


def test_broken_msrvtt_files_are_told(tmp_path):
    path = write(tmp_path / 'msrvtt' / 'test_videodatainfo.json', '{"videos": [],', '"sentences" 3}')
    refused('test_videodatainfo.json: not as MSR-VTT publishes it: .*line 2 column', 'msrvtt', tmp_path, 'test')
    path.write_text('{"videos": [{"video_id": "video3", "split": "test", "category": 20}], "sentences": []}')
    refused("test_videodatainfo.json: not as .*: KeyError.'video3'", 'msrvtt', tmp_path, 'test')
    path.write_text(path.read_text().replace('[]', '[{"video_id": "video3", "caption": "x"}]'))
    refused('test_videodatainfo.json: not as .*: .*20 is not in range', 'msrvtt', tmp_path, 'test')
    path.write_bytes(b'{"videos": "caf\xe9"}')
    refused('test_videodatainfo.json: byte 15 is no UTF-8', 'msrvtt', tmp_path, 'test')
    (tmp_path / 'msrvtt' / 'cut.zip').write_bytes(b'PK\x03\x04 and no more')
    refused('cut.zip: no zip file, or a damaged one', 'msrvtt', tmp_path, 'train')


def test_mvad_lists(tmp_path):
    write(tmp_path / 'mvad' / 'train.txt', 'FILM_DVS1\tSOMEONE walks in.', '', 'FILM_DVS2\tHe sits, alone.', 'FILM_DVS1\tLater')
    corpus = data.load('mvad', tmp_path, 'train')
    assert corpus.captions == {'FILM_DVS1': ['someone walks in', 'later'], 'FILM_DVS2': ['he sits alone']}
    assert data.count(corpus) == 'mvad train: 2 videos, where the papers have 36,920'
    refused('mvad has no val split under .*: val.txt is absent', 'mvad', tmp_path, 'val')
    write(tmp_path / 'mvad' / 'test.txt', 'FILM_DVS1\tfine', '', 'FILM_DVS2\t...')
    refused('test.txt, line 3: expected .video<TAB>caption., found', 'mvad', tmp_path, 'test')


def test_a_users_own_folder(tmp_path):
    path = tmp_path / 'folder' / 'captions.csv'
    write(path, '\ufefffile,caption,split', 'a.mp4,"A cat, sleeping.",train', 'sub/b.avi,a dog,test', 'a.mp4,Zzz!,train', 'c.mov,a hen,val')
    assert everything('folder', tmp_path) == [['a'], ['c'], ['b']]
    assert data.load('folder', tmp_path, 'train').captions == {'a': ['a cat sleeping', 'zzz']}
    assert data.count(data.load('folder', tmp_path, 'val')) == 'folder val: 1 videos'
    write(path, 'caption,file', *(f'clip {n},v{n}.mp4' for n in range(13) for _ in range(2)))
    assert everything('folder', tmp_path) == [[f'v{n}' for n in (0, 3, 4, 5, 6, 7, 8, 9, 10)], ['v1', 'v11'], ['v2', 'v12']]


@pytest.mark.parametrize('lines, message', [
    (['file,text', 'a.mp4,x'], 'captions.csv, line 1: expected the columns file, caption, found file, text'),
    ([], 'captions.csv, line 1: expected the columns file, caption, found'),
    (['file,caption', 'a.mp4,x', 'b.mp4,a cat, sleeping'], 'captions.csv, line 3: more fields than columns'),
    (['file,caption', 'a.mp4,"two', 'lines"', 'b.mp4,?'], 'captions.csv, line 4: the caption is empty'),
    (['file,caption', ',a cat'], 'captions.csv, line 2: the file is empty'),
    (['file,caption,split', 'a.mp4,x,dev'], "captions.csv, line 2: the split is train, val or test, not 'dev'"),
    (['file,caption,split', 'a.mp4,x'], "captions.csv, line 2: the split is train, val or test, not ''"),
    (['file,caption,split', 'a.mp4,x,train', 'a.mp4,y,val'], "line 3: 'a' was a.mp4 in train, here it is a.mp4 in val"),
    (['file,caption', 'a.mp4,x', 'a.avi,y'], "line 3: 'a' was a.mp4 in train, here it is a.avi in train"),
    (['file,caption', 'a.mp4,' + 'x' * 200_000], 'captions.csv, line 2: field larger than field limit')])
def test_mistakes_in_captions_csv_are_told_by_line(tmp_path, lines, message):
    write(tmp_path / 'folder' / 'captions.csv', *lines)
    refused(message, 'folder', tmp_path, 'train')


def test_ucf11_is_split_by_group(tmp_path):
    for action, name in (('walking', 'walk_dog'), ('basketball', 'shooting')):
        for group in range(1, 26):
            for clip in (1, 2):
                write(tmp_path / 'ucf11' / action / f'v_{name}_{group:02}' / f'v_{name}_{group:02}_{clip:02}.mpg')
        write(tmp_path / 'ucf11' / action / 'Annotation' / f'v_{name}_01_01.xgtf')
        write(tmp_path / 'ucf11' / action / f'v_{name}_01' / 'Thumbs.db')
    corpora = [data.load('ucf11', tmp_path, split) for split in ('train', 'val', 'test')]
    groups = [{clip.split('_')[-2] for clip in corpus.ids} for corpus in corpora]
    assert [len(corpus.ids) for corpus in corpora] == [52, 8, 40] and set.union(*groups) == {f'{n:02}' for n in range(1, 26)}
    assert sum(map(len, groups)) == 25                                              # no group in two splits
    for corpus in corpora:
        assert corpus.classes == ['basketball', 'walking']
        assert all(labels == [int('walk' in clip)] for clip, labels in corpus.labels.items())


def test_hmdb51_has_three_splits(tmp_path):
    for fold in (1, 2, 3):
        for a, action in enumerate(('brush_hair', 'wave')):
            write(tmp_path / 'hmdb51' / 'splits' / f'{action}_test_split{fold}.txt',
                  *(f'{action}_#{n}.avi {(n + fold + a) % 3} ' for n in range(30)))
    for fold in (1, 2, 3):
        train, val, test = (data.load('hmdb51', tmp_path, split, fold=fold) for split in ('train', 'val', 'test'))
        assert train.classes == val.classes == test.classes == ['brush_hair', 'wave']
        for a, action in enumerate(train.classes):
            clips = {mark: [f'{action}_#{n}' for n in range(30) if (n + fold + a) % 3 == mark] for mark in (1, 2)}
            assert [clip for clip in test.ids if clip.startswith(action)] == clips[2]
            assert [clip for clip in train.ids if clip.startswith(action)] == clips[1][:9]
            assert [clip for clip in val.ids if clip.startswith(action)] == clips[1][9:]
            assert all(corpus.labels[clip] == [a] for corpus in (train, val, test) for clip in corpus.ids if clip.startswith(action))
    refused('hmdb51 has no train split under .*: <action>_test_split4.txt is absent', 'hmdb51', tmp_path, 'train', fold=4)
    path = write(tmp_path / 'hmdb51' / 'splits' / 'wave_test_split2.txt', 'a.avi 1', 'b.avi 3')
    refused(f"{path.name}, line 2: expected .clip 0|1|2., found 'b.avi 3'", 'hmdb51', tmp_path, 'train', fold=2)


def test_hollywood2_clips_show_several_actions_or_none(tmp_path):
    sets = tmp_path / 'hollywood2' / 'ClipSets'
    shown = {'Kiss': {1, 2, 10, 20}, 'Eat': {2, 3, 20}, 'Run': {4}}
    for action, clips in shown.items():
        write(sets / f'{action}_train.txt', *(f'actioncliptrain{n:05}  {1 if n in clips else -1}' for n in range(1, 22)))
        write(sets / f'{action}_autotrain.txt', 'actionclipautotrain00001  1')
    write(sets / 'INT-Car_train.txt', 'scenecliptrain00001  1')
    refused('hollywood2 has no test split under .*: <action>_test.txt is absent', 'hollywood2', tmp_path, 'test')
    train, val = (data.load('hollywood2', tmp_path, split) for split in ('train', 'val'))
    assert train.classes == val.classes == ['Eat', 'Kiss', 'Run']
    assert val.labels == {'actioncliptrain00010': [1], 'actioncliptrain00020': [0, 1]}
    assert len(train.ids) == 19 and train.labels['actioncliptrain00002'] == [0, 1] and train.labels['actioncliptrain00005'] == []
    write(sets / 'Kiss_test.txt', 'actioncliptest00001 1', 'actioncliptest00002 0')
    refused('Kiss_test.txt, line 2: expected .clip 1|-1., found', 'hollywood2', tmp_path, 'test')


def test_counts_are_set_beside_the_papers():
    corpus = Corpus('msvd', 'val', {f'vid{n}': ['x'] for n in range(1201, 1301)})
    assert data.count(corpus) == 'msvd val: 100 videos, as in the papers'
    assert data.EXPECTED['hmdb51'] == (51 * 63, 51 * 7, 51 * 30) and sum(data.EXPECTED['hollywood2']) == 823 + 884 == 1707
    assert {sum(data.EXPECTED[name]) for name in ('msrvtt', 'msrvtt-vre')} == {10_000}
