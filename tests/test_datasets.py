"""Datasets as published, in miniature: files that the tests write."""
import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from unittest import mock

import numpy as np
import pytest

import data
import helpers
from data import BadInput, Corpus
from tools import datasets, flags
from tools.datasets import PARTS, Dataset


def write(root, files):
    """files: path below root -> str or bytes"""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def zipped(files):
    """-> the bytes of an archive"""
    file = io.BytesIO()
    with zipfile.ZipFile(file, 'w', zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


def load(name, root, split='train', kinds=(), **options):
    return Dataset(name, root, **options).split(split, kinds)


def ids(name, root, **options):
    """-> ids of train, val, test"""
    return [load(name, root, split, **options).ids for split in PARTS]


def refused(message, *args, **options):
    with pytest.raises(BadInput, match=message):
        load(*args, **options)


# --------------------------------------------------------------------------------------- captions

def test_lists_of_captions_and_the_papers_counts(tmp_path):
    write(tmp_path, {
        'msvd/sents_train.txt': 'vid1\ta man runs\n\nvid2\ta dog\nvid1\tA man is running!\n',
        'msvd/sents_val.txt': b'vid1\ta man\rvid2\ta dog\r',                # old Macintosh
        'mvad/train.txt': 'FILM_1\tSOMEONE walks in.\nFILM_2\tHe sits.\n',
        'mvad/test.txt': 'FILM_1\tfine\nFILM_2\t...\nFILM_1\t\N{BABY}\n'})
    expected = {'vid1': ['a man runs', 'a man is running'], 'vid2': ['a dog']}
    assert load('msvd', tmp_path).captions == expected
    assert load('msvd', tmp_path, limit=1).ids == ['vid1']
    assert load('msvd', tmp_path, 'val').captions == {'vid1': ['a man'], 'vid2': ['a dog']}
    corpus = load('mvad', tmp_path)
    assert corpus.captions == {'FILM_1': ['someone walks in'], 'FILM_2': ['he sits']}
    assert datasets.count(corpus) == 'mvad train: 2 videos (the papers have 36,920)'
    corpus = load('mvad', tmp_path, 'test')
    assert corpus.captions == {'FILM_1': ['fine']}
    assert datasets.count(corpus).endswith(', 2 captions without a word left out')
    hundred = Corpus('msvd', 'val', {f'vid{n}': ['x'] for n in range(100)})
    assert datasets.count(hundred) == 'msvd val: 100 videos, as in the papers'
    expected = datasets.EXPECTED
    assert expected['hmdb51'] == (51 * 63, 51 * 7, 51 * 30)
    assert sum(expected['hollywood2']) == 823 + 884
    assert sum(expected['msrvtt']) == sum(expected['msrvtt-vre']) == 10_000


CORPUS = '''VideoID,Start,End,WorkerID,Source,AnnotationTime,Language,Description
a_b,5,15,1,clean,20,English,"A man, ""Bob"", runs."
a_b,5,15,1,clean,20,German,Ein Mann
q,0,3,2,x,9,English,A hen.
zz,1,2,1,clean,20,English,not in the mapping
a_b,5,15,1,clean,20,English,
a_b,5,15,3,clean,20,English,"Two
lines"
c,1,2,1,clean,20,English,one
d,1,2,1,clean,20,English,two
e,1,2,1,clean,20,English,three
'''
MAPPING = ('q_0_3 vid1200\na_b_5_15 vid7\nc_1_2 vid1201\nd_1_2 vid1300\ne_1_2 vid1301\n'
           'never_1_2 vid8\n')


def test_msvd_from_the_official_corpus(tmp_path):
    write(tmp_path, {'msvd/corpus.csv': CORPUS, 'msvd/youtube_mapping.txt': MAPPING})
    corpus = load('msvd', tmp_path)
    assert corpus.captions == {'vid1200': ['a hen'], 'vid7': ['a man bob runs', 'two lines']}
    assert corpus.notes == ['from corpus.csv', '1 captions without a word left out']
    assert ids('msvd', tmp_path)[1:] == [['vid1201', 'vid1300'], ['vid1301']]
    write(tmp_path, {'msvd/sents_val.txt': 'vid1250\tfrom the list'})       # takes precedence
    assert ids('msvd', tmp_path) == [['vid1200', 'vid7'], ['vid1250'], ['vid1301']]


def test_msvd_from_the_list_of_all_descriptions(tmp_path):
    clips = sorted(f'{name}_{n}_{n + 9}' for name in 'aBz-_' for n in range(394))     # 1,970
    lines = ['# This file has the captions', '# of all clips', '']
    lines += [f'{clip} Clip {clip.split("_")[-2]} runs.' for clip in reversed(clips)]
    path = 'msvd/AllVideoDescriptions.txt'
    write(tmp_path, {path: '\n'.join([*lines, 'a_3_12 ...'])})
    assert ids('msvd', tmp_path) == [[f'vid{n}' for n in numbers] for numbers in (
        range(1, 1201), range(1201, 1301), range(1301, 1971))]
    number = clips[1969].split('_')[-2]                 # vid1970 is the last in the alphabet
    assert load('msvd', tmp_path, 'test').captions['vid1970'] == [f'clip {number} runs']
    assert load('msvd', tmp_path).notes[0] == 'from AllVideoDescriptions.txt'
    write(tmp_path, {path: '\n'.join(lines[:-1])})      # no longer all of them
    refused('youtube_mapping.txt is missing', 'msvd', tmp_path)
    write(tmp_path, {'msvd/youtube_mapping.txt': f'{clips[5]} vid7'})
    assert load('msvd', tmp_path).ids == ['vid7']


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


@pytest.mark.parametrize('is_zipped', [True, False])
def test_msrvtt_in_three_schemes(tmp_path, is_zipped):
    folder = tmp_path / 'msrvtt'
    notes = videodatainfo(('train', 0, 1004), ('validate', 1005, 1009))
    files = {'train_val_videodatainfo.json': notes, 'category.txt': 'people\t1\r\nmusic\t0\r\n'}
    if is_zipped:
        inner = {f'inner/{name}': content for name, content in files.items()}
        files = {'annotation.zip': zipped({'../outside.txt': 'never unpacked'} | inner)}
    write(folder, files | {'test_videodatainfo.json': videodatainfo(('test', 1010, 1012))})
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


def test_a_users_own_folder(tmp_path):
    path = 'folder/captions.csv'
    write(tmp_path, {path: '\ufefffile,caption,split\na.mp4,"A cat, sleeping.",train\n'
                           'sub/b.avi,a dog,test\na.mp4,Zzz!,train\nc.mov,a hen,val\n'})
    assert ids('folder', tmp_path) == [['a'], ['c'], ['b']]
    assert load('folder', tmp_path).captions == {'a': ['a cat sleeping', 'zzz']}
    assert datasets.count(load('folder', tmp_path, 'val')) == 'folder val: 1 videos'
    rows = [f'clip {n // 2},v{n // 2}.mp4' for n in range(26)]
    write(tmp_path, {path: '\n'.join(['caption,file', *rows])})
    train = [f'v{n}' for n in (0, 3, 4, 5, 6, 7, 8, 9, 10)]
    assert ids('folder', tmp_path) == [train, ['v1', 'v11'], ['v2', 'v12']]


# ---------------------------------------------------------------------------------------- actions

def test_ucf11_is_split_by_group(tmp_path):
    for action, name in (('walking', 'walk_dog'), ('basketball', 'shooting')):
        clips = [f'v_{name}_{group:02}/v_{name}_{group:02}_{clip:02}.mpg'
                 for group in range(1, 26) for clip in (1, 2)]
        others = [f'Annotation/v_{name}_01_01.xgtf', f'v_{name}_01/Thumbs.db']
        write(tmp_path / 'ucf11' / action, dict.fromkeys(clips + others, ''))
    corpora = [load('ucf11', tmp_path, split) for split in PARTS]
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
        clips = [f'{action}/{person}_{action}.avi' for person in people]
        write(tmp_path / 'weizmann', dict.fromkeys(clips, ''))
    for fold, test in enumerate(people, 1):
        found = []
        for split in PARTS:
            corpus = load('weizmann', tmp_path, split, fold=fold)
            assert corpus.classes == ['bend', 'walk']
            assert corpus.labels == {i: [int(i.endswith('walk'))] for i in corpus.labels}
            found.append({i[0] for i in corpus.labels})
        val = people[fold % 9]
        assert found == [set(people) - {test, val}, {val}, {test}]


def test_hmdb51_has_three_folds(tmp_path):
    actions = ['brush_hair', 'wave']
    for fold in (1, 2, 3):
        marked = {1: [], 2: []}                         # the clips of each action with this mark
        for a, action in enumerate(actions):
            marks = {f'{action}_#{n}': (n + fold + a) % 3 for n in range(30)}
            lines = [f'{clip}.avi {mark} \n' for clip, mark in marks.items()]
            write(tmp_path, {f'hmdb51/splits/{action}_test_split{fold}.txt': ''.join(lines)})
            for mark, clips in marked.items():
                clips.append([clip for clip in marks if marks[clip] == mark])
        expected = {'train': [clips[:9] for clips in marked[1]],
                    'val': [clips[9:] for clips in marked[1]], 'test': marked[2]}
        for split, (hair, wave) in expected.items():
            corpus = load('hmdb51', tmp_path, split, fold=fold)
            assert corpus.classes == actions and corpus.ids == hair + wave
            assert corpus.labels == dict.fromkeys(hair, [0]) | dict.fromkeys(wave, [1])
    refused('_test_split4.txt is missing', 'hmdb51', tmp_path, fold=4)


def test_hollywood2_clips_show_several_actions_or_none(tmp_path):
    for action, clips in {'Kiss': {1, 2, 10, 20}, 'Eat': {2, 3, 20}, 'Run': {4}}.items():
        lines = [f'clip{n:02}  {1 if n in clips else -1}\n' for n in range(1, 22)]
        write(tmp_path / 'hollywood2' / 'ClipSets', {
            f'{action}_train.txt': ''.join(lines), f'{action}_autotrain.txt': 'automatic01  1',
            'INT-Car_train.txt': 'scenecliptrain00001  1'})
    train, val = (load('hollywood2', tmp_path, split) for split in ('train', 'val'))
    assert train.classes == val.classes == ['Eat', 'Kiss', 'Run']
    assert val.labels == {'clip10': [1], 'clip20': [0, 1]}
    assert len(train.ids) == 19
    assert train.labels['clip02'] == [0, 1] and train.labels['clip05'] == []


# ----------------------------------------------------------------------- splits, parts of datasets

def features(folder, names, form='{}', width=4):
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(names):
        np.save(folder / (form.format(name) + '.npy'), np.full((2, width), i, np.float32))


def test_a_split_by_hash_is_8_to_1_to_1_and_the_same_everywhere(tmp_path):
    lines = [f'vid{n}\tclip {n}\n' for n in range(2300)]
    write(tmp_path, {'msvd/sents_train.txt': ''.join(lines[:2000]),         # no test captions
                     'msvd/sents_val.txt': ''.join(lines[2000:])})
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
    write(tmp_path, {'mvad/train.txt': ''.join(f'v{n}\tclip {n}\n' for n in range(50))})
    place = tmp_path / 'mvad' / 'features'
    features(place / 'x', [f'v{n}' for n in range(5, 40)])
    features(place / 'y', [f'v{n}' for n in range(20)], width=3)
    with pytest.raises(BadInput, match='x: 15 of 50 videos have no features, .* --partial'):
        datasets.check_features([load('mvad', tmp_path, 'train', ['x'])])
    _, run, _ = flags.parse(['--dataset', 'mvad', '--partial', '--split-scheme', 'hash'])
    assert run.dataset == Dataset('mvad', scheme='hash', partial=True)
    assert not flags.parse(['--dataset', 'mvad'])[1].dataset.partial
    corpus = load('mvad', tmp_path, 'train', ['x'], partial=True)
    assert corpus.ids == [f'v{n}' for n in range(5, 40)]
    assert datasets.count(corpus).endswith(', 35 of 50 videos have features')
    assert datasets.check_features([corpus]) == ({'x': [4]}, 2)
    corpus = load('mvad', tmp_path, 'train', ['x'], partial=True, limit=3)
    assert corpus.ids == ['v5', 'v6', 'v7']
    refused('train split of mvad only 15 of 50 videos have features, fewer than 20; extract more; '
            '--split-scheme hash', 'mvad', tmp_path, 'train', ['x', 'y'], partial=True)


@pytest.mark.parametrize('place, form', [
    ('i3d', '{}_rgb'), ('i3d_rgb', '{}_rgb'), ('i3d_rgb', '{}')])
def test_features_of_other_tools_load_by_name(tmp_path, place, form):
    clips = [f'a-{n}_b_{n}_9' for n in range(3)]
    mapping = ''.join(f'{clip} vid{n}\n' for n, clip in enumerate(clips, 1))
    write(tmp_path / 'msvd', {'youtube_mapping.txt': mapping,
                              'sents_train.txt': 'vid1\tone\nvid2\ttwo\nvid3\tthree\n'})
    features(tmp_path / 'msvd' / 'features' / place, clips, form)
    if place == 'i3d':
        features(tmp_path / 'msvd' / 'features' / place, clips, '{}_flow', width=5)
    corpus = load('msvd', tmp_path, 'train', ['i3d_rgb'])
    assert datasets.check_features([corpus]) == ({'i3d_rgb': [4]}, 2)
    assert [corpus.features['i3d_rgb'][video][0, 0] for video in corpus.ids] == [0, 1, 2]


def test_endings_are_kept_where_we_made_the_features(tmp_path):
    write(tmp_path / 'mvad', {'train.txt': 'a\tone\na_x\ttwo\n',
                              'features/x/info.json': '{"encoder": "clip"}'})
    features(tmp_path / 'mvad' / 'features' / 'x', ['a_x'])
    with pytest.raises(BadInput, match="1 of 2 videos have no features, such as 'a'"):
        datasets.check_features([load('mvad', tmp_path, 'train', ['x'])])


def test_a_pickle_is_refused_with_a_line_that_converts_it(tmp_path):
    write(tmp_path / 'mvad', {'train.txt': 'a\tone',
                              'features/x.pkl': pickle.dumps({'a': np.ones((2, 3))})})
    with pytest.raises(BadInput, match='x.pkl: a pickle can run any program') as refusal:
        load('mvad', tmp_path, 'train', ['x'])
    line = str(refusal.value).partition('convert it: ')[2].partition(', or make them')[0]
    subprocess.run(['sh', '-c', line.replace('python', sys.executable)], check=True)
    assert data.Features(tmp_path / 'mvad' / 'features', 'x').check(['a']) == ([3], 2)


# ----------------------------------------------------------------------- missing and damaged files

VIDEO3 = '{"videos": [{"video_id": "video3", "split": "test", "category": 20}], "sentences": %s}'
MSRVTT = 'msrvtt/test_videodatainfo.json'
OWN = 'folder/captions.csv'


@pytest.mark.parametrize('files, message', [
    ({'msvd/sents_train.txt': 'vid1\ta man'},
     'no test split in .*: sents_test.txt .or AllVideo.* is missing'),
    ({'msvd/sents_test.txt': 'vid1\ta man runs\nvid2 a dog'},
     "sents_test.txt, line 2: expected .video<TAB>caption., found 'vid2 a dog'"),
    ({'msvd/sents_test.txt': ''}, 'the test split in .* is empty'),
    ({'msvd/corpus.csv': CORPUS}, 'msvd has no test split in .*: youtube_mapping.txt is missing'),
    ({'msvd/corpus.csv': CORPUS, 'msvd/youtube_mapping.txt': 'q_0_3 vid1200\na_b_5_15'},
     'youtube_mapping.txt, line 2: expected .YOUTUBEID_START_END vidN., found'),
    ({'msvd/corpus.csv': 'VideoID;Start;End\na;1;2', 'msvd/youtube_mapping.txt': MAPPING},
     'corpus.csv, line 1: expected the columns VideoID, .*, found VideoID;Start;End'),
    ({'msvd/AllVideoDescriptions.txt': '# header\nnot a clip'},
     "Descriptions.txt, line 2: expected .YOUTUBEID_START_END caption., found 'not"),
    ({'mvad/test.txt': 'FILM_1\t...'}, 'test split in .* is empty; --split-scheme hash divides'),
    ({'msrvtt/category.txt': ''}, 'no test split in .*: test_videodatainfo.json is missing'),
    ({MSRVTT: '{"videos": [],\n"sentences" 3}'}, 'not in the format .*line 2 column'),
    ({MSRVTT: VIDEO3 % '[]'}, "info.json: not in the format .*KeyError: 'video3'"),
    ({MSRVTT: VIDEO3 % '[{"video_id": "video3", "caption": "x"}]'}, '20 is not in range'),
    ({MSRVTT: '[' * 100_000}, 'not in the format .*RecursionError'),
    ({MSRVTT: b'{"videos": "caf\xe9"}'}, 'test_videodatainfo.json: byte 15 is not UTF-8'),
    ({'msrvtt/cut.zip': 'PK\x03\x04 and no more'}, 'cut.zip: cannot be unpacked'),
    ({OWN: 'file,text\na.mp4,x'}, 'line 1: expected the columns file, caption, found file, text'),
    ({OWN: ''}, 'line 1: expected the columns file, caption, found'),
    ({OWN: 'file,caption\na.mp4,x\nb.mp4,a cat, sleeping'}, 'line 3: more fields than columns'),
    ({OWN: 'file,caption\na.mp4,"two\nlines"\nb.mp4, '}, 'line 4: the caption is empty'),
    ({OWN: 'file,caption\n,a cat'}, 'line 2: the file is empty'),
    ({OWN: 'file,caption,split\na.mp4,x,dev'}, "line 2: the split must be .*, not 'dev'"),
    ({OWN: 'file,caption,split\na.mp4,x'}, "line 2: the split must be .*, not ''"),
    ({OWN: 'file,caption,split\na.mp4,x,train\na.mp4,y,val'}, "line 3: 'a' was a.mp4 in train"),
    ({OWN: 'file,caption\na.mp4,x\na.avi,y'}, 'line 3: .* but here it is a.avi in train'),
    ({OWN: 'file,caption\na.mp4,' + 'x' * 200_000}, 'line 2: field larger than field limit'),
    ({'hmdb51/wave_test_split1.txt': 'a.avi 1\nb.avi 3'},
     "wave_test_split1.txt, line 2: expected .clip 0|1|2., found 'b.avi 3'"),
    ({'hollywood2/ClipSets/Kiss_train.txt': 'clip01 1'}, 'no test split in .*: <action>_test.txt'),
    ({'hollywood2/ClipSets/Kiss_test.txt': 'clip01 1\nclip02 0'},
     'Kiss_test.txt, line 2: expected .clip 1|-1., found')])
def test_missing_files_and_mistakes_are_named_by_line(tmp_path, files, message):
    write(tmp_path, files)
    name = next(iter(files)).split('/')[0]
    refused(f'captions.csv, {message}' if OWN in files else message, name, tmp_path, 'test')
    refused('there is no such folder; --root', name, tmp_path / 'nowhere')


def test_hostile_archives_are_named_and_what_cannot_be_read_is_not_opened(tmp_path, monkeypatch):
    folder = tmp_path / 'mvad'
    (folder / 'a folder.zip').mkdir(parents=True)
    os.mkfifo(folder / 'pipe.zip')
    os.mkfifo(folder / 'train.txt')
    refused('train.txt is missing', 'mvad', tmp_path)
    content = zipped({'val.txt': 'FILM_1\the sits\n' * 1000})
    entry = content.index(b'PK\x01\x02')
    for place, value in ((8, 1), (10, 77), (16, 99)):   # encrypted, unknown method, wrong checksum
        broken = bytearray(content)
        broken[entry + place] = value
        broken[place - 2] = value
        (folder / 'x.zip').write_bytes(broken)
        refused('x.zip: cannot be unpacked', 'mvad', tmp_path, 'val')
    (folder / 'x.zip').write_bytes(content)
    assert load('mvad', tmp_path, 'val').captions == {'FILM_1': ['he sits'] * 1000}
    monkeypatch.setattr(datasets, 'LARGEST', 10_000)    # so this archive is a bomb
    refused('x.zip: cannot be unpacked.*val.txt has more than 10,000 b', 'mvad', tmp_path, 'val')
    write(tmp_path, {'mvad/val.txt': 'a\tb'})
    denied = mock.Mock(side_effect=PermissionError(13, 'Permission denied'))
    monkeypatch.setattr(type(tmp_path), 'read_bytes', denied)
    refused(r'val.txt: cannot be read \(Permission denied\)', 'mvad', tmp_path, 'val')


@pytest.mark.parametrize('files', [
    {'msvd/sents_train.txt': 'vid1\ta man runs\nvid2\tA dog.\n'},
    {'msvd/AllVideoDescriptions.txt': '# header\n\na_b_1_2 A man runs.\nc_3_4 A dog.\n',
     'msvd/youtube_mapping.txt': 'a_b_1_2 vid1\nc_3_4 vid2\n'},
    {'msvd/corpus.csv': CORPUS, 'msvd/youtube_mapping.txt': MAPPING},
    {'msrvtt/train_val_videodatainfo.json': videodatainfo(('train', 0, 2)),
     'msrvtt/category.txt': 'people\t1\r\nmusic\t0\r\n'},
    {'mvad/x.zip': zipped({'train.txt': 'FILM_1\the sits\nFILM_2\tshe runs\n'})},
    {OWN: 'file,caption,split\na.mp4,"A, b",train\nc.mp4,d,train\n'},
    {'hmdb51/wave_test_split1.txt': 'a.avi 1 \nb.avi 2 \nc.avi 0 \n'},
    {'hollywood2/ClipSets/Kiss_train.txt': 'clip1  1\nclip2  -1\n'}], ids='-'.join)
def test_damaged_caption_files_are_refused_or_read(tmp_path, files):
    write(tmp_path, files)
    for file in files:
        name = file.split('/')[0]
        whole = (tmp_path / file).read_bytes()
        for seed in range(helpers.TRIES):
            (tmp_path / file).write_bytes(helpers.damaged(whole, seed))
            try:
                corpus = load(name, tmp_path)
            except BadInput as error:
                assert str(tmp_path / name) in str(error), seed
                continue
            assert corpus.ids and all(isinstance(video, str) for video in corpus.ids), seed
            for captions in corpus.captions.values():
                assert captions and all(caption == data.normalise(caption) != ''
                                        for caption in captions), seed
        (tmp_path / file).write_bytes(whole)
