"""Reading videos, sampling, encoders with random weights, and extraction that is interrupted, damaged or mixed up."""
import os
import struct
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest
import torch

import c3d
import data
import extract
import shapes
from data import BadInput


def write_clip(path, frames=20, size=(64, 48), rate=10, codec='mpeg4', tone=None):
    """Frame i is grey of 10 * i, with a white block in its upper left corner; tone: hertz of a second of sound."""
    with av.open(str(path), 'w') as container:
        video = container.add_stream(codec, rate=rate)
        video.width, video.height, video.pix_fmt = *size, 'yuvj420p' if codec == 'mjpeg' else 'yuv420p'
        sound = container.add_stream('pcm_s16le', rate=16000, layout='mono') if tone else None
        for i in range(frames):
            picture = np.full((size[1], size[0], 3), min(10 * i, 200), np.uint8)
            picture[:16, :16] = 255
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture, 'rgb24')))
        container.mux(video.encode())
        if tone:
            wave = (20000 * np.sin(2 * np.pi * tone * np.arange(16000) / 16000)).astype(np.int16)
            frame = av.AudioFrame.from_ndarray(wave[None], 's16', 'mono')
            frame.sample_rate = 16000
            container.mux(sound.encode(frame))
            container.mux(sound.encode())
    return path


def grey(frames):
    """Which i each frame is, read from its lower right corner."""
    return np.rint(frames[:, -8:, -8:].mean((1, 2, 3)) / 10).astype(int).tolist()


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Three clips, and one file that is none."""
    place = tmp_path_factory.mktemp('videos')
    write_clip(place / 'a.avi')
    write_clip(place / 'b.mp4', frames=1)
    (place / 'inner').mkdir()
    write_clip(place / 'inner' / 'c.mkv', frames=5, size=(34, 50))
    (place / 'broken.avi').write_bytes(b'no video at all' * 50)
    (place / 'captions.csv').write_text('file,caption\n')
    return place


# ------------------------------------------------------------------------------------------------------- reading a video

@pytest.mark.parametrize('rule, frames, rate, numbers', [
    ('2fps', 30, 10.0, [0, 5, 10, 15, 20, 25]),
    ('2fps', 4, 3.0, [0, 1, 3]),                                            # at 0, 0.5 and 1.0 seconds
    ('2fps', 1, 25.0, [0]),
    ('uniform4', 10, 25.0, [0, 3, 6, 9]),
    ('uniform16', 16, 25.0, list(range(16))),                               # a clip of shapes as it is
    ('uniform3', 1, 25.0, [0, 0, 0]),
    ('sta3', 240, 25.0, [0, 120, 239]),
    ('sta3', 1000, 25.0, [0, 120, 239]),
    ('sta3', 120, 25.0, [0, -1, -1]),
    ('chunk4', 11, 25.0, [0, 1, 2, 3, 4, 5, 6, 7]),
    ('chunk4', 2, 25.0, [0, 1, 1, 1]),
    ('stride4', 11, 25.0, [0, 4]),
    ('stride4', 2, 25.0, [0]),
])
def test_each_rule_takes_the_frames_counted_by_hand(rule, frames, rate, numbers):
    assert extract.sample(rule, frames, rate).tolist() == numbers


def test_chunks_and_strides_give_features_that_are_aligned_in_time():
    for frames in (1, 15, 16, 17, 31, 32, 100):
        assert len(extract.sample('chunk16', frames, 25)) == 16 * len(extract.sample('stride16', frames, 25))


@pytest.mark.parametrize('rule', ['', 'uniform', '2', 'fps', 'sta2fps', 'uniform0', 'every3'])
def test_an_unknown_rule_is_told(rule):
    with pytest.raises(BadInput, match='--sampling'):
        extract.sample(rule, 10, 25.0)


def test_the_right_frames_are_read_with_black_ones_after_the_end(folder):
    assert grey(extract.read_frames(folder / 'a.avi', 'uniform20')) == list(range(20))
    assert grey(extract.read_frames(folder / 'a.avi', '2fps')) == [0, 5, 10, 15]            # 10 frames per second
    frames = extract.read_frames(folder / 'a.avi', 'sta26')                                 # 240 / 26: 0, 10, 19, then none
    assert frames.shape == (26, 48, 64, 3) and frames.dtype == np.uint8
    assert grey(frames)[:3] == [0, 10, 19] and not frames[3:].any() and frames[0, :8, :8].min() > 200


@pytest.mark.parametrize('name, codec, size', [('x.avi', 'mjpeg', (34, 18)), ('x.avi', 'msmpeg4v2', (176, 144)), ('x.mkv', 'libx264', (62, 46))])
def test_old_codecs_and_odd_sizes(tmp_path, name, codec, size):
    path = write_clip(tmp_path / name, frames=6, size=size, codec=codec)
    frames = extract.read_frames(path, 'uniform6')
    assert frames.shape == (6, size[1], size[0], 3) and grey(frames) == list(range(6))


def test_a_clip_filmed_sideways_is_turned_upright(tmp_path):
    path = write_clip(tmp_path / 'x.mp4', frames=2)
    content = bytearray(path.read_bytes())
    matrix = content.index(b'tkhd') + 44                                # of the track: a quarter turn clockwise, as telephones write it
    content[matrix:matrix + 36] = struct.pack('>9i', 0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
    path.write_bytes(content)
    frames = extract.read_frames(path, 'uniform1')
    assert frames.shape == (1, 64, 48, 3)
    assert frames[0, :8, -8:].min() > 200 and frames[0, :8, :8].max() < 50      # the block is in the upper right corner now


def test_one_frame_is_a_video(folder):
    assert extract.read_frames(folder / 'b.mp4', 'uniform16').shape == (16, 48, 64, 3)
    assert extract.features_of_video(folder / 'b.mp4', ['clip'])['clip'].shape == (16, 7, 7, 64)


def test_a_truncated_video_gives_the_frames_that_decode(tmp_path):
    path = write_clip(tmp_path / 'x.mkv', codec='mjpeg')
    path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])
    numbers = grey(extract.read_frames(path, 'chunk1'))
    assert 3 < len(numbers) < 20 and numbers[:-1] == list(range(len(numbers) - 1))       # the last may be half a frame


def test_damage_in_the_middle_costs_only_some_frames(tmp_path):
    path = write_clip(tmp_path / 'x.avi')
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle:middle + 40] = bytes(40)
    path.write_bytes(content)
    assert len(extract.read_frames(path, 'chunk1')) > 5


@pytest.mark.parametrize('content', [b'', b'words ' * 500, bytes(5000)])
def test_a_file_that_is_no_video_is_told_by_name(tmp_path, content):
    (tmp_path / 'clip.mp4').write_bytes(content)
    for name in ('clip', 'logmel'):
        with pytest.raises(BadInput, match='clip.mp4'):
            extract.features_of_video(tmp_path / 'clip.mp4', [name])


def test_no_file_no_frames_and_too_many_frames_are_told(tmp_path, folder, monkeypatch):
    with pytest.raises(BadInput, match='no such file'):
        extract.read_frames(tmp_path / 'absent.avi')
    with av.open(str(tmp_path / 'sound.wav'), 'w') as container:
        stream = container.add_stream('pcm_s16le', rate=8000, layout='mono')
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), 's16', 'mono')
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
    with pytest.raises(BadInput, match='not one frame'):
        extract.read_frames(tmp_path / 'sound.wav')
    monkeypatch.setattr(extract, 'MOST', 10)
    with pytest.raises(BadInput, match='cut the video'):
        extract.read_frames(folder / 'a.avi', 'chunk1')


# ------------------------------------------------------------------------------------------------------------- encoders

@pytest.mark.parametrize('encoder', ['googlenet', 'resnet152', 'vgg16', 's3d'])
def test_pictures_are_those_of_torchvisions_own_transforms(encoder):
    frame = np.random.default_rng(0).integers(0, 256, (90, 131, 3), dtype=np.uint8)
    ready = extract.transforms(encoder)
    expected = ready(torch.from_numpy(frame).permute(2, 0, 1)[None])
    expected = expected[:, 0] if encoder == 's3d' else expected[0]                                  # (3, 224, 224)
    found = torch.from_numpy(extract.picture(encoder, frame)).permute(2, 0, 1) / 255
    found = (found - torch.tensor(ready.mean)[:, None, None]) / torch.tensor(ready.std)[:, None, None]
    torch.testing.assert_close(found, expected)


def random_features(encoder, frames):
    """Pictures of noise through the random network."""
    noise = np.random.default_rng(0).integers(0, 256, (frames, 40, 60, 3), dtype=np.uint8)
    net = extract.network(encoder, 'none')
    if encoder == 'frcnn':
        net.transform.min_size = (96,)                                  # not 800: time
    found = extract.encode(encoder, net, np.stack([extract.picture(encoder, frame) for frame in noise]))
    extract.network.cache_clear()
    return found['']


@pytest.mark.parametrize('encoder, frames, shape', [
    ('googlenet', 2, (2, 7, 7, 1024)), ('resnet152', 1, (1, 7, 7, 2048)), ('vgg16', 1, (1, 4096)),
    ('s3d', 2, (1, 7, 7, 1024)), ('frcnn', 1, (1, 10, 1024))])
def test_an_encoder_gives_the_promised_shape_with_numbers_that_half_precision_holds(encoder, frames, shape):
    found = random_features(encoder, frames)
    assert found.shape == shape and found.dtype == np.float32
    half = found.astype(np.float16)
    assert np.isfinite(half).all() and half.astype(np.float32).std() > 1e-4
    if encoder == 'googlenet':
        assert not np.allclose(found[0], found[1])


def test_frames_are_encoded_one_by_one_whatever_the_batch():
    class Half(torch.nn.Module):                                        # in place of a network: a layer to hook, 224 -> 112
        def __init__(self):
            super().__init__()
            self.layer4 = torch.nn.AvgPool2d(112)

        def forward(self, x):
            return self.layer4(x).sum()

    x = np.random.default_rng(0).integers(0, 256, (17, 224, 224, 3), dtype=np.uint8)
    found = extract.encode('resnet101', Half(), x)['']                  # (17, 2, 2, 3): channels last
    ready = extract.transforms('resnet101')
    expected = (x[16, 112:, :112].mean((0, 1)) / 255 - ready.mean) / ready.std
    assert found.shape == (17, 2, 2, 3)
    np.testing.assert_allclose(found[16, 1, 0], expected, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope='module')
def small_c3d(tmp_path_factory):
    """A file of C3D weights as published, but 4 filters wide."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp('weights') / 'c3d.pt'
    torch.save({name: value for name, value in c3d.C3D(width=4).layers.state_dict().items()}, path)
    return path


def test_c3d_gives_its_five_features(folder, small_c3d):
    info = extract.settings('c3d', str(small_c3d))
    names = [f'c3d_{part}' for part in ('pool2', 'pool3', 'pool4', 'pool5', 'fc7')]
    found = extract.features_of_video(folder / 'a.avi', names, {name: info for name in names})
    shapes_ = [(2, 28, 28, 8), (1, 14, 14, 16), (1, 7, 7, 32), (1, 4, 4, 32), (1, 256)]                 # 4 frames, 2 per second
    assert [found[name].shape for name in names] == shapes_
    frames = extract.read_frames(folder / 'a.avi', '2fps')
    small = torch.nn.functional.interpolate(torch.from_numpy(frames).permute(0, 3, 1, 2), (112, 112), mode='bilinear', antialias=True)
    with torch.no_grad():
        maps = c3d.load_published(small_c3d).maps(c3d.to_input(small.permute(0, 2, 3, 1)[None]))
    np.testing.assert_allclose(found['c3d_pool4'][0, 2, 3], maps['pool4'][0, :, 0, 2, 3], rtol=2e-3, atol=1e-3)
    assert info['input']['colours'].startswith('blue') and info['input']['mean of red, green, blue'] == list(c3d.MEAN)


def test_c3d_without_a_file_of_weights_is_told():
    with pytest.raises(BadInput, match='--weights FILE'):
        extract.settings('c3d')


def test_a_file_with_other_weights_is_told(small_c3d):
    with pytest.raises(BadInput, match='not the weights of googlenet'):
        extract.network('googlenet', str(small_c3d))


def test_clip_features_are_those_of_shapes(tmp_path):
    frames = shapes.render(shapes.scene('test00000'))
    with av.open(str(tmp_path / 'x.mkv'), 'w') as container:
        video = container.add_stream('ffv1', rate=8)                    # loses nothing
        video.width, video.height, video.pix_fmt = 112, 112, 'bgr0'
        for frame in frames:
            container.mux(video.encode(av.VideoFrame.from_ndarray(frame, 'rgb24')))
        container.mux(video.encode())
    info = {'encoder': 'shapes.ClipCNN', 'weights': extract.settings('clip')['weights']}
    found = extract.features_of_video(tmp_path / 'x.mkv', ['clip'], {'clip': info})['clip']
    np.testing.assert_allclose(found, shapes.clip_features(frames).numpy(), rtol=2e-3, atol=1e-3)
    with pytest.raises(BadInput, match='other weights'):
        extract.features_of_video(tmp_path / 'x.mkv', ['clip'], {'clip': info | {'weights': 'an older file'}})


@pytest.mark.parametrize('hertz', [300, 1000, 4000])
def test_a_tone_is_loudest_in_its_own_band(tmp_path, hertz):
    found = extract.features_of_video(write_clip(tmp_path / 'x.avi', frames=2, tone=hertz), ['logmel'])['logmel']
    assert found.shape == (1, 128)
    mel = lambda f: 2595 * np.log10(1 + f / 700)
    band = (mel(hertz) - mel(125)) / (mel(7500) - mel(125)) * 129 - 1           # of 128 centres between 125 and 7500
    assert abs(found[0].argmax() - band) <= 1


def test_a_clip_without_sound_is_silent(folder):
    found = extract.features_of_video(folder / 'a.avi', ['logmel', 'audio'])
    np.testing.assert_allclose(found['logmel'], np.full((1, 128), np.log(0.01)), rtol=1e-3)
    quiet = [shapes.audio(one) for one in map(shapes.scene, (f'test{i:05d}' for i in range(60))) if not one['sound']]
    assert found['audio'].shape == (1, 128) and abs(found['audio'].mean() - np.mean(quiet)) < 0.05


def test_features_that_nobody_recorded_are_refused(folder):
    for infos in (None, {'vgg16_fc': {}}):
        with pytest.raises(BadInput, match="'vgg16_fc' do not tell"):
            extract.features_of_video(folder / 'a.avi', ['vgg16_fc'], infos)


# ------------------------------------------------------------------------------------------------------- a whole dataset

def run(folder, root, *more):
    return extract.main(['--dataset', 'folder', '--videos', str(folder), '--root', str(root), '--workers', '0', *more])


def test_a_folder_of_clips_becomes_features_and_bad_files_are_listed(folder, tmp_path, capsys):
    assert run(folder, tmp_path, '--encoder', 'clip') == 0
    told = capsys.readouterr()
    assert '3 of 4 clips' in told.out and 'broken.avi' in told.err and 'captions.csv' not in told.err
    features = data.Features(tmp_path / 'folder' / 'features', 'clip')
    assert sorted(features.rows) == ['a', 'b', 'c'] and features.raw('a').dtype == np.float16
    info = extract.recorded(tmp_path / 'folder' / 'features', 'clip')
    again = extract.features_of_video(folder / 'inner' / 'c.mkv', ['clip'], {'clip': info})
    np.testing.assert_array_equal(features['c'], again['clip'])
    assert (info['encoder'], info['sampling']) == ('clip', 'uniform16')


def test_extraction_goes_on_where_it_stopped_and_leaves_no_half_files(folder, tmp_path, monkeypatch):
    place, real = tmp_path / 'folder' / 'features' / 'clip', np.save

    def stop_at_second(file, value):
        if len(list(place.glob('*.npy'))) == 1:
            file.write(b'half a file')
            raise KeyboardInterrupt
        real(file, value)

    monkeypatch.setattr(np, 'save', stop_at_second)
    with pytest.raises(KeyboardInterrupt):
        run(folder, tmp_path, '--encoder', 'clip')
    assert [path.name for path in place.glob('*.npy')] == ['a.npy']
    monkeypatch.setattr(np, 'save', real)
    before, seen, encode = (place / 'a.npy').stat().st_mtime_ns, [], extract.encode
    monkeypatch.setattr(extract, 'encode', lambda *given: seen.append(1) or encode(*given))
    run(folder, tmp_path, '--encoder', 'clip')
    assert len(seen) == 2 and (place / 'a.npy').stat().st_mtime_ns == before
    assert sorted(path.name for path in place.iterdir()) == ['a.npy', 'b.npy', 'c.npy', 'info.json']


def test_other_settings_do_not_mix_into_a_folder(folder, tmp_path):
    run(folder, tmp_path, '--encoder', 'clip')
    with pytest.raises(BadInput, match="sampling 'uniform16' there, 'uniform4' now"):
        run(folder, tmp_path, '--encoder', 'clip', '--sampling', 'uniform4')
    assert run(folder, tmp_path, '--encoder', 'clip', '--sampling', 'uniform4', '--name', 'clip4') == 0
    assert data.Features(tmp_path / 'folder' / 'features', 'clip4')['a'].shape == (4, 7, 7, 64)
    (tmp_path / 'folder' / 'features' / 'clip' / 'info.json').unlink()
    with pytest.raises(BadInput, match='no info.json'):
        run(folder, tmp_path, '--encoder', 'clip')


def test_c3d_fills_five_folders(folder, tmp_path, small_c3d):
    run(folder, tmp_path, '--encoder', 'c3d', '--weights', str(small_c3d))
    place = tmp_path / 'folder' / 'features'
    assert sorted(path.name for path in place.iterdir()) == ['c3d_fc7', 'c3d_pool2', 'c3d_pool3', 'c3d_pool4', 'c3d_pool5']
    info = extract.recorded(place, 'c3d_fc7')
    assert info['part'] == 'fc7' and info['weights'] == str(small_c3d.resolve()) and info['sampling'] == '2fps'
    again = extract.features_of_video(folder / 'a.avi', ['c3d_fc7'], {'c3d_fc7': info})['c3d_fc7']
    np.testing.assert_array_equal(again, data.Features(place, 'c3d_fc7')['a'])
    with pytest.raises(BadInput, match='not the file any more'):
        extract.features_of_video(folder / 'a.avi', ['c3d_fc7'], {'c3d_fc7': info | {'sha256': 'another'}})


def test_processes_share_the_videos_and_workers_decode(folder, tmp_path):
    videos, info = extract.find_videos(folder), extract.settings('clip')
    assert [video for video, _ in videos] == ['a', 'b', 'broken', 'c']
    assert extract.extract(videos, tmp_path, info, 'clip', workers=1, rank=0, world=2).keys() == {'broken'}
    assert sorted(path.stem for path in (tmp_path / 'clip').glob('*.npy')) == ['a']
    assert extract.extract(videos, tmp_path, info, 'clip', rank=1, world=2) == {}
    assert sorted(path.stem for path in (tmp_path / 'clip').glob('*.npy')) == ['a', 'b', 'c']


def test_msvd_clips_get_the_ids_of_the_captions(tmp_path):
    for name in ('-4wsuPCjDBc_5_15.avi', 'abc_1_2.avi', 'vid7.avi'):
        (tmp_path / name).touch()
    (tmp_path / 'youtube_mapping.txt').write_text('-4wsuPCjDBc_5_15 vid1\nother_3_4 vid2\n')
    videos = extract.find_videos(tmp_path, tmp_path / 'youtube_mapping.txt')
    assert {video: path.name for video, path in videos} == {'vid1': '-4wsuPCjDBc_5_15.avi', 'abc_1_2': 'abc_1_2.avi', 'vid7': 'vid7.avi'}
    (tmp_path / 'vid1.mp4').touch()
    with pytest.raises(BadInput, match='same id'):
        extract.find_videos(tmp_path, tmp_path / 'youtube_mapping.txt')


def test_recognition_datasets_are_sampled_as_their_paper_says(folder, tmp_path, monkeypatch):
    taken = []
    monkeypatch.setattr(extract, 'extract', lambda videos, folder, info, *rest: taken.append(info['sampling']) or {})
    for dataset, more in (('hmdb51', []), ('msvd', []), ('hmdb51', ['--sampling', '6fps'])):
        extract.main(['--dataset', dataset, '--videos', str(folder), '--root', str(tmp_path), '--encoder', 'googlenet', '--weights', 'none', *more])
    assert taken == ['30fps', 'sta26', '6fps']


def test_the_command_line_tells_errors_without_a_trace(tmp_path):
    (tmp_path / 'notes.txt').write_text('no clips here')
    command = [sys.executable, str(Path(extract.__file__)), '--dataset', 'folder', '--videos', str(tmp_path), '--encoder', 'clip']
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=os.environ | {'OMP_NUM_THREADS': '1'})
    assert result.returncode == 1 and 'no video in it' in result.stderr and 'Traceback' not in result.stderr


@pytest.mark.parametrize('more, message', [
    (['--workers', '-1'], 'workers -1'), (['--root', '/dev/null'], 'cannot write /dev/null'), (['--dataset', 'foldr'], 'invalid choice'),
    (['--device', 'cuda'], 'no GPU'), (['--device', 'foo'], 'not one that torch knows')])
def test_flags_that_cannot_be_are_told(folder, tmp_path, more, message, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    with pytest.raises((BadInput, SystemExit)) as told:
        run(folder, tmp_path, '--encoder', 'clip', *more)
    assert message in str(told.value) + capsys.readouterr().err


@pytest.mark.parametrize('name, said', [
    ('resnet101', '--encoder resnet101'), ('c3d_pool2', '--encoder c3d --weights FILE'), ('mine', '--encoder NAME'),
    ('i3d_rgb', '--encoder s3d (the nearest to i3d_rgb that there is; then --features s3d)')])
def test_the_command_that_makes_missing_features_is_told(name, said):
    assert extract.how_to_make(name, 'msvd', 'data') == f'python extract.py --dataset msvd --root data --videos DIR {said}'


def test_pictures_show_the_frames_that_the_encoder_took(folder):
    frames = extract.frames_seen(folder / 'a.avi', 'mine', {'encoder': 'clip', 'sampling': 'sta26'})
    assert frames.shape == (26, 48, 64, 3) and grey(frames[:3]) == [0, 10, 19] and not frames[3:].any()
    frames = extract.frames_seen(folder / 'a.avi', 'mine', {'encoder': 'vgg16', 'weights': 'none', 'sampling': 'uniform2'})
    assert frames.shape == (2, 224, 224, 3)                     # cropped as the network sees them


def test_a_run_knows_its_encoder_wherever_the_features_are(folder, tmp_path, monkeypatch, capsys):
    """Features by other settings than the encoder's own; the clip is described with these, without --root, beside a bad file."""
    import evaluate
    import train
    lines = [f'{name},a clip named {name},{split}' for name, split in (('a.avi', 'train'), ('b.mp4', 'val'), ('c.mkv', 'test'))]
    (tmp_path / 'folder').mkdir()
    (tmp_path / 'folder' / 'captions.csv').write_text('\n'.join(['file,caption,split', *lines]))
    run(folder, tmp_path, '--encoder', 'clip', '--sampling', 'uniform5', '--name', 'mine')
    out, taken, took = tmp_path / 'run', [], extract.read_frames
    train.main(['--dataset', 'folder', '--root', str(tmp_path), '--features', 'mine', '--out', str(out), '--epochs', '1', '--hidden', '8'])
    monkeypatch.chdir(out)
    monkeypatch.setattr(extract, 'read_frames', lambda path, rule, picture: taken.append(rule) or took(path, rule, picture))
    capsys.readouterr()
    with pytest.raises(SystemExit, match='1 of 2 videos got no caption'):
        evaluate.main([str(out), '--video', str(folder / 'broken.avi'), '--video', str(folder / 'a.avi'), '--beam', '1'])
    told = capsys.readouterr()
    assert 'broken.avi: not a video' in told.err and f'{folder / "a.avi"}: ' in told.out and (out / 'a.png').is_file()
    assert set(taken) == {'uniform5'}
