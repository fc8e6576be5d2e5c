"""Datasets as published, in miniature: files that the tests write."""
import json
import zipfile

import numpy as np
import pytest

from data import BadInput, Corpus, Vocabulary
from tools import datasets
from tools.datasets import Dataset
from tools.word2vec import word2vec


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(''.join(line + '\n' for line in lines), encoding='utf-8')
    return path


def load(name, root, split='train', **options):
    return Dataset(name, root, **options).split(split)


def ids(name, root, **options):
    """-> ids of train, val, test"""
    return [load(name, root, split, **options).ids for split in ('train', 'val', 'test')]


def refused(message, *args, **options):
    with pytest.raises(BadInput, match=message):
        load(*args, **options)


# ----------------------------------------------------------------------------------- MSVD, M-VAD

def test_msvd_text_files(tmp_path):
    folder = tmp_path / 'msvd'
    write(folder / 'sents_train.txt', 'vid1\ta man runs', 'vid2\ta dog', 'vid1\tA man is running!')
    expected = {'vid1': ['a man runs', 'a man is running'], 'vid2': ['a dog']}
    assert load('msvd', tmp_path).captions == expected
    assert load('msvd', tmp_path, limit=1).ids == ['vid1']
    refused('msvd has no test split in .*sents_test.txt is missing', 'msvd', tmp_path, 'test')
    write(folder / 'sents_train.txt', 'vid1\ta man runs', 'vid2 a dog')
    refused("sents_train.txt, line 2: expected .video<TAB>caption., found 'vid2 a dog'",
            'msvd', tmp_path)
    write(folder / 'sents_val.txt')
    refused('the val split in .* is empty', 'msvd', tmp_path, 'val')
    refused('there is no such folder; --root', 'msvd', tmp_path / 'nowhere')
    refused('--split-scheme vre is for msrvtt', 'msvd', tmp_path, scheme='vre')


def test_msvd_from_the_official_corpus(tmp_path):
    folder = tmp_path / 'msvd'
    write(folder / 'corpus.csv',
          'VideoID,Start,End,WorkerID,Source,AnnotationTime,Language,Description',
          'a_b,5,15,1,clean,20,English,"A man, ""Bob"", runs."',
          'a_b,5,15,1,clean,20,German,Ein Mann',
          'q,0,3,2,x,9,English,A hen.',
          'zz,1,2,1,clean,20,English,not in the mapping',
          'a_b,5,15,1,clean,20,English,',
          'a_b,5,15,3,clean,20,English,"Two\nlines"',
          'c,1,2,1,clean,20,English,one',
          'd,1,2,1,clean,20,English,two',
          'e,1,2,1,clean,20,English,three')
    refused('msvd has no train split in .*: youtube_mapping.txt is missing', 'msvd', tmp_path)
    mapping = folder / 'youtube_mapping.txt'
    write(mapping, 'q_0_3 vid1200', 'a_b_5_15 vid7', 'c_1_2 vid1201', 'd_1_2 vid1300',
          'e_1_2 vid1301', 'never_1_2 vid8')
    captions = {'vid1200': ['a hen'], 'vid7': ['a man bob runs', 'two lines']}
    assert load('msvd', tmp_path).captions == captions
    assert ids('msvd', tmp_path)[1:] == [['vid1201', 'vid1300'], ['vid1301']]
    write(folder / 'sents_val.txt', 'vid1250\tfrom the list')        # lists take precedence
    assert ids('msvd', tmp_path) == [['vid1200', 'vid7'], ['vid1250'], ['vid1301']]
    write(mapping, 'q_0_3 vid1200', 'a_b_5_15')
    refused('youtube_mapping.txt, line 2: expected .YOUTUBEID_START_END vidN., found',
            'msvd', tmp_path)
    write(mapping, 'q_0_3 vid1200')
    write(folder / 'corpus.csv', 'VideoID;Start;End', 'a;1;2')
    refused('corpus.csv, line 1: expected the columns VideoID, .*, found VideoID;Start;End',
            'msvd', tmp_path)


def test_mvad_lists_and_the_papers_counts(tmp_path):
    write(tmp_path / 'mvad' / 'train.txt', 'FILM_1\tSOMEONE walks in.', '', 'FILM_2\tHe sits.',
          'FILM_1\tLater')
    corpus = load('mvad', tmp_path)
    assert corpus.captions == {'FILM_1': ['someone walks in', 'later'], 'FILM_2': ['he sits']}
    assert datasets.count(corpus) == 'mvad train: 2 videos (the papers have 36,920)'
    write(tmp_path / 'mvad' / 'test.txt', 'FILM_1\tfine', '', 'FILM_2\t...')
    refused('test.txt, line 3: expected .video<TAB>caption., found', 'mvad', tmp_path, 'test')
    hundred = Corpus('msvd', 'val', {f'vid{n}': ['x'] for n in range(100)})
    assert datasets.count(hundred) == 'msvd val: 100 videos, as in the papers'
    expected = datasets.EXPECTED
    assert expected['hmdb51'] == (51 * 63, 51 * 7, 51 * 30)
    assert sum(expected['hollywood2']) == 823 + 884
    assert sum(expected['msrvtt']) == sum(expected['msrvtt-vre']) == 10_000


# --------------------------------------------------------------------------------------- MSR-VTT

def videodatainfo(*parts):
    """(split, first, last) ... -> the official layout, with two captions per video"""
    videos = []
    sentences = []
    for split, first, last in parts:
        for n in range(last, first - 1, -1):
            videos.append({'video_id': f'video{n}', 'split': split, 'category': n % 20})
            sentences.append({'video_id': f'video{n}', 'caption': f'A Cat {n}!'})
            sentences.append({'video_id': f'video{n}', 'caption': f'dogs {n}'})
    return json.dumps({'info': {}, 'videos': videos, 'sentences': sentences})


@pytest.mark.parametrize('zipped', [True, False])
def test_msrvtt_in_three_schemes(tmp_path, zipped):
    folder = tmp_path / 'msrvtt'
    folder.mkdir()
    notes = videodatainfo(('train', 0, 1004), ('validate', 1005, 1009))
    files = {'train_val_videodatainfo.json': notes, 'category.txt': 'people\t1\r\nmusic\t0\r\n'}
    if zipped:
        with zipfile.ZipFile(folder / 'annotation.zip', 'w') as archive:
            archive.writestr('../outside.txt', 'never unpacked')
            for name, text in files.items():
                archive.writestr(f'inner/{name}', text)
    else:
        for name, text in files.items():
            (folder / name).write_text(text)
    refused('msrvtt has no test split in .*: test_videodatainfo.json is missing',
            'msrvtt', tmp_path, 'test')
    (folder / 'test_videodatainfo.json').write_text(videodatainfo(('test', 1010, 1012)))
    numbers = {'official': ((0, 1004), (1005, 1009), (1010, 1012)),
               'vre': ((0, 1003), (1004, 1009), (1010, 1012)),
               'astar': ((0, 4), (1005, 1009), (5, 1004))}      # test: the last 1,000 of 1,005
    for scheme, ranges in numbers.items():
        wanted = [[f'video{n}' for n in range(first, last + 1)] for first, last in ranges]
        assert ids('msrvtt', tmp_path, scheme=scheme) == wanted
    corpus = load('msrvtt', tmp_path, 'val')
    assert corpus.captions['video1006'] == ['a cat 1006', 'dogs 1006']
    assert corpus.category['video1006'] == 6
    assert corpus.categories == ['music', 'people'] + [str(n) for n in range(2, 20)]
    assert not (tmp_path / 'outside.txt').exists()


def test_broken_msrvtt_files_are_named(tmp_path):
    path = write(tmp_path / 'msrvtt' / 'test_videodatainfo.json')
    one = '{"videos": [{"video_id": "video3", "split": "test", "category": 20}], "sentences": %s}'
    for content, message in (
            (b'{"videos": [],\n"sentences" 3}', 'not in the format .*: .*line 2 column'),
            ((one % '[]').encode(), "not in the format .*: KeyError.'video3'"),
            ((one % '[{"video_id": "video3", "caption": "x"}]').encode(), '20 is not in range'),
            (b'{"videos": "caf\xe9"}', 'byte 15 is not UTF-8')):
        path.write_bytes(content)
        refused(f'test_videodatainfo.json: .*{message}', 'msrvtt', tmp_path, 'test')
    (tmp_path / 'msrvtt' / 'cut.zip').write_bytes(b'PK\x03\x04 and no more')
    refused('cut.zip: not a zip file, or a damaged one', 'msrvtt', tmp_path)


# ------------------------------------------------------------------------------------ own videos

def test_a_users_own_folder(tmp_path):
    path = tmp_path / 'folder' / 'captions.csv'
    write(path, '\ufefffile,caption,split', 'a.mp4,"A cat, sleeping.",train',
          'sub/b.avi,a dog,test', 'a.mp4,Zzz!,train', 'c.mov,a hen,val')
    assert ids('folder', tmp_path) == [['a'], ['c'], ['b']]
    assert load('folder', tmp_path).captions == {'a': ['a cat sleeping', 'zzz']}
    assert datasets.count(load('folder', tmp_path, 'val')) == 'folder val: 1 videos'
    write(path, 'caption,file', *(f'clip {n // 2},v{n // 2}.mp4' for n in range(26)))
    train = [f'v{n}' for n in (0, 3, 4, 5, 6, 7, 8, 9, 10)]
    assert ids('folder', tmp_path) == [train, ['v1', 'v11'], ['v2', 'v12']]


@pytest.mark.parametrize('lines, message', [
    (['file,text', 'a.mp4,x'], 'line 1: expected the columns file, caption, found file, text'),
    ([], 'line 1: expected the columns file, caption, found'),
    (['file,caption', 'a.mp4,x', 'b.mp4,a cat, sleeping'], 'line 3: more fields than columns'),
    (['file,caption', 'a.mp4,"two', 'lines"', 'b.mp4,?'], 'line 4: the caption is empty'),
    (['file,caption', ',a cat'], 'line 2: the file is empty'),
    (['file,caption,split', 'a.mp4,x,dev'], "line 2: the split must be .*, not 'dev'"),
    (['file,caption,split', 'a.mp4,x'], "line 2: the split must be .*, not ''"),
    (['file,caption,split', 'a.mp4,x,train', 'a.mp4,y,val'], "line 3: 'a' was a.mp4 in train"),
    (['file,caption', 'a.mp4,x', 'a.avi,y'], 'line 3: .* but here it is a.avi in train'),
    (['file,caption', 'a.mp4,' + 'x' * 200_000], 'line 2: field larger than field limit')])
def test_mistakes_in_captions_csv_are_named_by_line(tmp_path, lines, message):
    write(tmp_path / 'folder' / 'captions.csv', *lines)
    refused(f'captions.csv, {message}', 'folder', tmp_path)


# ---------------------------------------------------------------------------------------- actions

def test_ucf11_is_split_by_group(tmp_path):
    for action, name in (('walking', 'walk_dog'), ('basketball', 'shooting')):
        folder = tmp_path / 'ucf11' / action
        for group in range(1, 26):
            for clip in (1, 2):
                write(folder / f'v_{name}_{group:02}' / f'v_{name}_{group:02}_{clip:02}.mpg')
        write(folder / 'Annotation' / f'v_{name}_01_01.xgtf')
        write(folder / f'v_{name}_01' / 'Thumbs.db')
    corpora = [load('ucf11', tmp_path, split) for split in ('train', 'val', 'test')]
    assert [len(corpus.ids) for corpus in corpora] == [52, 8, 40]
    groups = [{clip.split('_')[-2] for clip in corpus.ids} for corpus in corpora]
    assert set.union(*groups) == {f'{n:02}' for n in range(1, 26)}
    assert sum(map(len, groups)) == 25                          # no group is in two splits
    for corpus in corpora:
        assert corpus.classes == ['basketball', 'walking']
        assert all(label == [int('walk' in clip)] for clip, label in corpus.labels.items())


def test_hmdb51_has_three_folds(tmp_path):
    folder = tmp_path / 'hmdb51' / 'splits'
    actions = ['brush_hair', 'wave']
    for fold in (1, 2, 3):
        for a, action in enumerate(actions):
            lines = [f'{action}_#{n}.avi {(n + fold + a) % 3} ' for n in range(30)]
            write(folder / f'{action}_test_split{fold}.txt', *lines)
    for fold in (1, 2, 3):
        train, val, test = (load('hmdb51', tmp_path, split, fold=fold)
                            for split in ('train', 'val', 'test'))
        assert train.classes == val.classes == test.classes == actions
        for a, action in enumerate(actions):
            marked = {mark: [f'{action}_#{n}' for n in range(30) if (n + fold + a) % 3 == mark]
                      for mark in (1, 2)}
            for corpus, clips in ((test, marked[2]), (train, marked[1][:9]), (val, marked[1][9:])):
                assert [clip for clip in corpus.ids if clip.startswith(action)] == clips
                assert all(corpus.labels[clip] == [a] for clip in clips)
    refused('_test_split4.txt is missing', 'hmdb51', tmp_path, fold=4)
    write(folder / 'wave_test_split2.txt', 'a.avi 1', 'b.avi 3')
    refused("wave_test_split2.txt, line 2: expected .clip 0|1|2., found 'b.avi 3'",
            'hmdb51', tmp_path, fold=2)


def test_hollywood2_clips_show_several_actions_or_none(tmp_path):
    sets = tmp_path / 'hollywood2' / 'ClipSets'
    for action, clips in {'Kiss': {1, 2, 10, 20}, 'Eat': {2, 3, 20}, 'Run': {4}}.items():
        lines = [f'clip{n:02}  {1 if n in clips else -1}' for n in range(1, 22)]
        write(sets / f'{action}_train.txt', *lines)
        write(sets / f'{action}_autotrain.txt', 'automatic01  1')
    write(sets / 'INT-Car_train.txt', 'scenecliptrain00001  1')
    refused('hollywood2 has no test split in .*: <action>_test.txt is missing',
            'hollywood2', tmp_path, 'test')
    train, val = (load('hollywood2', tmp_path, split) for split in ('train', 'val'))
    assert train.classes == val.classes == ['Eat', 'Kiss', 'Run']
    assert val.labels == {'clip10': [1], 'clip20': [0, 1]}
    assert len(train.ids) == 19
    assert train.labels['clip02'] == [0, 1] and train.labels['clip05'] == []
    write(sets / 'Kiss_test.txt', 'clip01 1', 'clip02 0')
    refused('Kiss_test.txt, line 2: expected .clip 1|-1., found', 'hollywood2', tmp_path, 'test')


# --------------------------------------------------------------------------------------- word2vec

def write_vectors(path, vectors):
    if path.suffix == '.txt':
        return write(path, *(f'{word} {" ".join(map(str, v))}' for word, v in vectors.items()))
    body = f'{len(vectors)} {len(next(iter(vectors.values())))}\n'.encode()
    for word, vector in vectors.items():
        body += word.encode() + b' ' + np.array(vector, dtype='<f4').tobytes() + b'\n'
    path.write_bytes(body)
    return path


@pytest.mark.parametrize('name', ['v.bin', 'v.txt'])
def test_word2vec_is_read_in_both_formats(tmp_path, name):
    vectors = {'cat': [1.0, 2.5, -3.0], 'zebra': [9.0, 9.0, 9.0], 'a': [0.5, 0.25, 0.125]}
    path = write_vectors(tmp_path / name, vectors)
    read, found = word2vec(path, Vocabulary.build(['a cat runs']), 3)
    assert found.tolist() == [False, False, False, True, True, False]       # a, cat, but not runs
    assert read[3].tolist() == vectors['a'] and read[4].tolist() == vectors['cat']
    with pytest.raises(BadInput, match='3 numbers, but the embedding has 5; use --embed 3'):
        word2vec(path, Vocabulary.build(['a cat']), 5)


def test_broken_word2vec_files_are_named(tmp_path):
    words = Vocabulary.build(['cat'])
    path = write_vectors(tmp_path / 'v.bin', {'cat': [1.0, 2.0], 'dog': [3.0, 4.0]})
    path.write_bytes(path.read_bytes()[:-6])
    write(tmp_path / 'v.txt', 'cat 1.0 2.0', 'dog 1.0 x')
    for name, message in (('v.bin', 'ends inside word 2 of 2'), ('v.txt', 'v.txt, line 2'),
                          ('nowhere.bin', 'there is no such file')):
        with pytest.raises(BadInput, match=message):
            word2vec(tmp_path / name, words, 2)
