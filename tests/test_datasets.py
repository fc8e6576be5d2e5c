"""Datasets as published, in miniature: files that the tests write."""
import hashlib
import json
import os
import pickle
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import data
import helpers
from data import BadInput, Corpus
from tools import datasets, flags
from tools.datasets import Dataset


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
    (folder / 'sents_train.txt').write_bytes(b'vid1\ta man\rvid2\ta dog\r')     # old Macintosh
    assert load('msvd', tmp_path).captions == {'vid1': ['a man'], 'vid2': ['a dog']}


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
    assert load('msvd', tmp_path).notes == ['from corpus.csv',
                                            '1 captions without a word left out']
    write(folder / 'sents_val.txt', 'vid1250\tfrom the list')        # lists take precedence
    assert ids('msvd', tmp_path) == [['vid1200', 'vid7'], ['vid1250'], ['vid1301']]
    write(mapping, 'q_0_3 vid1200', 'a_b_5_15')
    refused('youtube_mapping.txt, line 2: expected .YOUTUBEID_START_END vidN., found',
            'msvd', tmp_path)
    write(mapping, 'q_0_3 vid1200')
    write(folder / 'corpus.csv', 'VideoID;Start;End', 'a;1;2')
    refused('corpus.csv, line 1: expected the columns VideoID, .*, found VideoID;Start;End',
            'msvd', tmp_path)


def test_msvd_from_the_list_of_all_descriptions(tmp_path):
    folder = tmp_path / 'msvd'
    clips = sorted(f'{name}_{n}_{n + 9}' for name in 'aBz-_' for n in range(394))     # 1,970
    lines = ['# This file has the captions', '# of all clips', '']
    lines += [f'{clip} Clip {clip.split("_")[-2]} runs.' for clip in reversed(clips)]
    write(folder / 'AllVideoDescriptions.txt', *lines, 'a_3_12 ...')
    found = ids('msvd', tmp_path)
    assert found == [[f'vid{n}' for n in numbers] for numbers in (
        range(1, 1201), range(1201, 1301), range(1301, 1971))]
    corpus = load('msvd', tmp_path, 'test')
    number = clips[1969].split('_')[-2]                 # vid1970 is the last in the alphabet
    assert corpus.captions['vid1970'] == [f'clip {number} runs']
    assert load('msvd', tmp_path).notes[0] == 'from AllVideoDescriptions.txt'
    write(folder / 'AllVideoDescriptions.txt', *lines[:-1])             # no longer all of them
    refused('youtube_mapping.txt is missing', 'msvd', tmp_path)
    write(folder / 'youtube_mapping.txt', f'{clips[5]} vid7')
    assert load('msvd', tmp_path).ids == ['vid7']
    write(folder / 'AllVideoDescriptions.txt', '# header', 'not a clip')
    refused("AllVideoDescriptions.txt, line 2: expected .YOUTUBEID_START_END caption., found 'not",
            'msvd', tmp_path)


def test_mvad_lists_and_the_papers_counts(tmp_path):
    write(tmp_path / 'mvad' / 'train.txt', 'FILM_1\tSOMEONE walks in.', '', 'FILM_2\tHe sits.',
          'FILM_1\tLater')
    corpus = load('mvad', tmp_path)
    assert corpus.captions == {'FILM_1': ['someone walks in', 'later'], 'FILM_2': ['he sits']}
    assert datasets.count(corpus) == 'mvad train: 2 videos (the papers have 36,920)'
    write(tmp_path / 'mvad' / 'test.txt', 'FILM_1\tfine', '', 'FILM_2\t...', 'FILM_1\t\N{BABY}')
    corpus = load('mvad', tmp_path, 'test')
    assert corpus.captions == {'FILM_1': ['fine']}
    assert datasets.count(corpus).endswith(', 2 captions without a word left out')
    write(tmp_path / 'mvad' / 'val.txt', 'FILM_1\t...')
    refused('the val split in .* is empty; --split-scheme hash divides', 'mvad', tmp_path, 'val')
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
            (b'[' * 100_000, 'not in the format .*: RecursionError'),
            (b'{"videos": "caf\xe9"}', 'byte 15 is not UTF-8')):
        path.write_bytes(content)
        refused(f'test_videodatainfo.json: .*{message}', 'msrvtt', tmp_path, 'test')
    (tmp_path / 'msrvtt' / 'cut.zip').write_bytes(b'PK\x03\x04 and no more')
    refused('cut.zip: cannot be unpacked', 'msrvtt', tmp_path)


def test_hostile_archives_are_named_and_what_is_no_file_is_not_opened(tmp_path, monkeypatch):
    folder = tmp_path / 'mvad'
    folder.mkdir()
    (folder / 'a folder.zip').mkdir()
    os.mkfifo(folder / 'pipe.zip')
    os.mkfifo(folder / 'train.txt')
    refused('train.txt is missing', 'mvad', tmp_path)
    with zipfile.ZipFile(folder / 'x.zip', 'w', zipfile.ZIP_DEFLATED) as archive:
        archive.writestr('val.txt', 'FILM_1\the sits\n' * 1000)
    assert load('mvad', tmp_path, 'val').captions == {'FILM_1': ['he sits'] * 1000}
    content = (folder / 'x.zip').read_bytes()
    entry = content.index(b'PK\x01\x02')
    for place, value in ((8, 1), (10, 77), (16, 99)):   # encrypted, unknown method, wrong checksum
        broken = bytearray(content)
        broken[entry + place] = value
        broken[place - 2] = value
        (folder / 'x.zip').write_bytes(broken)
        refused('x.zip: cannot be unpacked', 'mvad', tmp_path, 'val')
    (folder / 'x.zip').write_bytes(content)
    monkeypatch.setattr(datasets, 'LARGEST', 10_000)    # so this archive is a bomb
    refused('x.zip: cannot be unpacked .val.txt has more than 10,000 b', 'mvad', tmp_path, 'val')


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    def forbidden(path):
        raise PermissionError(13, 'Permission denied')

    path = write(tmp_path / 'mvad' / 'train.txt', 'a\tb')
    monkeypatch.setattr(type(path), 'read_bytes', forbidden)
    refused(r'train.txt: cannot be read \(Permission denied\)', 'mvad', tmp_path)


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
    (['file,caption', 'a.mp4,"two', 'lines"', 'b.mp4, '], 'line 4: the caption is empty'),
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


def test_weizmann_tests_on_one_person_and_validates_on_the_next(tmp_path):
    people = 'abcdefghi'
    for action in ('walk', 'bend'):
        (tmp_path / 'weizmann' / action).mkdir(parents=True)
        for person in people:
            (tmp_path / 'weizmann' / action / f'{person}_{action}.avi').touch()
    for fold, test in enumerate(people, 1):
        found = {}
        for split in ('train', 'val', 'test'):
            corpus = load('weizmann', tmp_path, split, fold=fold)
            assert corpus.classes == ['bend', 'walk']
            assert corpus.labels == {i: [int(i.endswith('walk'))] for i in corpus.labels}
            found[split] = {i[0] for i in corpus.labels}
        val = people[fold % 9]
        assert found == {'train': set(people) - {test, val}, 'val': {val}, 'test': {test}}


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


# ----------------------------------------------------------------------- splits, parts of datasets

def features(folder, names, form='{}', width=4):
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(names):
        np.save(folder / (form.format(name) + '.npy'), np.full((2, width), i, np.float32))


def test_a_split_by_hash_is_8_to_1_to_1_and_the_same_everywhere(tmp_path):
    lists = {'train': range(2000), 'val': range(2000, 2300)}            # and no test captions
    for split, numbers in lists.items():
        write(tmp_path / 'msvd' / f'sents_{split}.txt', *(f'vid{n}\tclip {n}' for n in numbers))
    found = ids('msvd', tmp_path, scheme='hash')
    expected = [[], [], []]
    for n in range(2300):                               # the definition, by a plain loop
        last = int(hashlib.sha256(f'vid{n}'.encode()).hexdigest(), 16) % 10
        expected[max(last - 7, 0)].append(f'vid{n}')
    assert found == expected
    assert abs(len(found[1]) - 230) < 60 and abs(len(found[2]) - 230) < 60
    corpus = load('msvd', tmp_path, 'test', scheme='hash')
    assert corpus.captions['vid4'] == ['clip 4']        # the sum of vid4 ends with the digit 9
    assert datasets.count(corpus) == (f'msvd-hash test: {len(found[2])} videos, from '
                                      'sents_train.txt, from sents_val.txt')


def test_part_of_a_dataset_is_used_and_counted(tmp_path):
    folder = tmp_path / 'mvad'
    write(folder / 'train.txt', *(f'v{n}\tclip {n}' for n in range(50)))
    features(folder / 'features' / 'x', [f'v{n}' for n in range(5, 40)])
    features(folder / 'features' / 'y', [f'v{n}' for n in range(20)], width=3)
    whole = Dataset('mvad', tmp_path)
    with pytest.raises(BadInput, match='x: 15 of 50 videos have no features, .* --partial'):
        datasets.check_features([whole.split('train', ['x'])])
    part = Dataset('mvad', tmp_path, partial=True)
    corpus = part.split('train', ['x'])
    assert corpus.ids == [f'v{n}' for n in range(5, 40)]
    assert datasets.count(corpus).endswith(', 35 of 50 videos have features')
    assert datasets.check_features([corpus]) == ({'x': [4]}, 2)
    part.limit = 3
    assert part.split('train', ['x']).ids == ['v5', 'v6', 'v7']
    with pytest.raises(BadInput, match='train split of mvad only 15 of 50 videos have features, '
                                       'fewer than 20; extract more; --split-scheme hash'):
        part.split('train', ['x', 'y'])


def test_the_flags_reach_the_dataset():
    _, run, _ = flags.parse(['--dataset', 'mvad', '--partial', '--split-scheme', 'hash'])
    assert run.dataset == Dataset('mvad', scheme='hash', partial=True)
    assert not flags.parse(['--dataset', 'mvad'])[1].dataset.partial


@pytest.mark.parametrize('place, form', [
    ('i3d', '{}_rgb'), ('i3d_rgb', '{}_rgb'), ('i3d_rgb', '{}')])
def test_features_of_other_tools_load_by_name(tmp_path, place, form):
    folder = tmp_path / 'msvd'
    clips = [f'a-{n}_b_{n}_9' for n in range(3)]
    write(folder / 'youtube_mapping.txt', *(f'{clip} vid{n}' for n, clip in enumerate(clips, 1)))
    write(folder / 'sents_train.txt', 'vid1\tone', 'vid2\ttwo', 'vid3\tthree')
    features(folder / 'features' / place, clips, form)
    if place == 'i3d':
        features(folder / 'features' / place, clips, '{}_flow', width=5)
    corpus = Dataset('msvd', tmp_path).split('train', ['i3d_rgb'])
    assert datasets.check_features([corpus]) == ({'i3d_rgb': [4]}, 2)
    assert [corpus.features['i3d_rgb'][video][0, 0] for video in corpus.ids] == [0, 1, 2]


def test_endings_are_kept_where_we_made_the_features(tmp_path):
    write(tmp_path / 'mvad' / 'train.txt', 'a\tone', 'a_x\ttwo')
    features(tmp_path / 'mvad' / 'features' / 'x', ['a_x'])
    write(tmp_path / 'mvad' / 'features' / 'x' / 'info.json', '{"encoder": "clip"}')
    corpus = Dataset('mvad', tmp_path).split('train', ['x'])
    with pytest.raises(BadInput, match="1 of 2 videos have no features, such as 'a'"):
        datasets.check_features([corpus])


def test_a_pickle_is_refused_with_a_line_that_converts_it(tmp_path):
    place = tmp_path / 'mvad' / 'features'
    place.mkdir(parents=True)
    write(tmp_path / 'mvad' / 'train.txt', 'a\tone')
    (place / 'x.pkl').write_bytes(pickle.dumps({'a': np.ones((2, 3))}))
    with pytest.raises(BadInput, match='x.pkl: a pickle can run any program') as refusal:
        Dataset('mvad', tmp_path).split('train', ['x'])
    line = str(refusal.value).partition('convert it: ')[2].partition(', or make them')[0]
    subprocess.run(['sh', '-c', line.replace('python', sys.executable)], check=True)
    assert data.Features(place, 'x').check(['a']) == ([3], 2)


# ------------------------------------------------------------------------------------ damaged files

WHOLE = {
    'msvd': {'sents_train.txt': b'vid1\ta man runs\nvid2\tA dog.\n'},
    'msvd ': {'AllVideoDescriptions.txt': b'# header\n\na_b_1_2 A man runs.\nc_3_4 A dog.\n',
              'youtube_mapping.txt': b'a_b_1_2 vid1\nc_3_4 vid2\n'},
    'msvd  ': {'corpus.csv': b'VideoID,Start,End,Language,Description\na,1,2,English,"A, b"\n',
               'youtube_mapping.txt': b'a_1_2 vid1\n'},
    'msrvtt': {'train_val_videodatainfo.json': videodatainfo(('train', 0, 2)).encode(),
               'category.txt': b'people\t1\r\nmusic\t0\r\n'},
    'mvad': {'x.zip': None},
    'folder': {'captions.csv': b'file,caption,split\na.mp4,"A, b",train\nc.mp4,d,train\n'},
    'hmdb51': {'wave_test_split1.txt': b'a.avi 1 \nb.avi 2 \nc.avi 0 \n'},
    'hollywood2': {'ClipSets/Kiss_train.txt': b'clip1  1\nclip2  -1\n'}}


@pytest.mark.parametrize('name', WHOLE)
def test_damaged_caption_files_are_refused_or_read(tmp_path, name):
    folder = tmp_path / name.strip()
    for file, content in WHOLE[name].items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            with zipfile.ZipFile(folder / file, 'w', zipfile.ZIP_DEFLATED) as archive:
                archive.writestr('train.txt', 'FILM_1\the sits\nFILM_2\tshe runs\n')
        else:
            (folder / file).write_bytes(content)
    for file in WHOLE[name]:
        whole = (folder / file).read_bytes()
        for seed in range(helpers.TRIES):
            (folder / file).write_bytes(helpers.damaged(whole, seed))
            try:
                corpus = load(name.strip(), tmp_path)
            except BadInput as error:
                assert str(folder) in str(error), seed
                continue
            assert corpus.ids and all(isinstance(video, str) for video in corpus.ids), seed
            for captions in corpus.captions.values():
                assert captions and all(caption == data.normalise(caption) != ''
                                        for caption in captions), seed
        (folder / file).write_bytes(whole)
