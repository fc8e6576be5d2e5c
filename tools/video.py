"""Read a video: the frames that a sampling rule selects, and the sound.

Sampling rules; M and N are numbers from 1 to 9999:

    Nfps       N frames per second (ASTAR: 2fps; STA's action recognition: 30fps)
    staN       N evenly spaced frames of the first 240; black frames after the end (STA: sta26)
    uniformN   N evenly spaced frames, from the first to the last (VRE: uniform20)
    chunkN     all frames, in complete chunks of N frames (STaTS: chunk16)
    strideN    the first frame of each such chunk
    chunksMxN  M evenly spaced chunks of N frames, or all complete ones if there are fewer

Letters: F frames, H W rows and columns of pixels, S sound samples.
"""
import contextlib
import itertools
import re
from pathlib import Path

import numpy as np

from data import BadInput

MOST = 4096         # frames of one video that we keep in memory


def decoded(path, kind='video'):
    """Yield the frames of the first stream of this kind: 'video' or 'audio'. Damaged parts are
    skipped. A file without such a stream yields nothing."""
    import av                               # here, because training does not need it
    path = Path(path).resolve()             # FFmpeg would take `12:30.avi` for a protocol named 12
    if not path.is_file():
        raise BadInput(f'{path}: there is no such file')
    try:
        container = av.open(str(path), metadata_errors='ignore')
    except (av.FFmpegError, OSError) as error:
        raise BadInput(f'{path}: not a readable video ({error.strerror or error})') from None
    with container, contextlib.suppress(av.FFmpegError):        # a damaged container: the end
        # A stream in an unknown format has no codec context.
        streams = [one for one in container.streams if one.type == kind and one.codec_context]
        for packet in container.demux(streams[0]) if streams else ():
            with contextlib.suppress(av.FFmpegError):           # the next packet may be good
                yield from packet.decode()


def sample(rule, frames, rate):
    """rule, number of frames in the video, frames per second -> numbers (F,) of the frames that
    the rule selects; -1 stands for a black frame"""
    parts = re.fullmatch(r'(uniform|sta|chunk|stride|chunks([1-9]\d{0,3})x)?'
                         r'([1-9]\d{0,3})(?(1)|fps)', rule)
    if not parts:
        raise BadInput(f'--sampling {rule}: use Nfps, staN, uniformN, chunkN, strideN or chunksMxN')
    kind = parts[1]                                     # None: Nfps
    n = int(parts[3])
    if kind == 'uniform':
        # UNSPECIFIED: which frames VRE takes; we chose evenly spaced ones with the first and last.
        return np.linspace(0, frames - 1, n).round().astype(int)
    if kind == 'sta':
        # UNSPECIFIED: which 26 of the first 240 frames STA takes; we chose evenly spaced ones,
        # frames 0 and 239 among them.
        numbers = np.linspace(0, 239, n).round().astype(int)
        return np.where(numbers < frames, numbers, -1)
    if kind in ('chunk', 'stride'):
        # UNSPECIFIED: what STaTS does with an incomplete chunk; we chose to drop it, or, if the
        # video has no other chunk, to fill it up with its last frame.
        numbers = np.arange(max(frames // n, 1) * n).clip(max=frames - 1)
        return numbers if kind == 'chunk' else numbers[::n]
    if kind:                                            # chunksMxN
        chunks = min(int(parts[2]), max(frames // n, 1))
        starts = np.linspace(0, max(frames - n, 0), chunks).round().astype(int)
        return (starts[:, None] + np.arange(n)).clip(max=frames - 1).flatten()
    return np.arange(0, frames, max(rate / n, 1e-3)).astype(int)


def read_frames(path, rule='uniform16', prepare=np.asarray):
    """One video -> uint8 (F, h, w, 3), red, green, blue: the frames that the rule selects.
    prepare: a function that is applied to each frame, uint8 (H, W, 3) -> uint8 (h, w, 3)

    The video is decoded twice, first to count its frames. The number in the file is often wrong,
    and all frames together may not fit into memory."""
    times = [frame.time or 0 for frame in decoded(path)]
    if not times:
        raise BadInput(f'{path}: none of its frames can be decoded')
    seconds = times[-1] - times[0]
    rate = (len(times) - 1) / seconds if seconds > 0 else 25.0      # 25: a guess, without times
    numbers = sample(rule, len(times), rate).tolist()
    if len(numbers) > MOST:
        raise BadInput(f'{path}: the rule {rule} selects {len(numbers)} frames, more than {MOST}; '
                       'cut the video into scenes, or choose another --sampling')
    kept = dict.fromkeys(numbers)
    size = {}
    for number, frame in enumerate(itertools.islice(decoded(path), max(numbers) + 1)):
        size = size or {'width': frame.width, 'height': frame.height}       # that of the first
        if number in kept:
            pixels = frame.to_ndarray(format='rgb24', **size)
            upright = np.rot90(pixels, frame.rotation // 90)        # phones often film sideways
            kept[number] = prepare(np.ascontiguousarray(upright))
    kept[-1] = np.zeros_like(kept[numbers[0]])
    return np.stack([kept[number] for number in numbers])


def read_sound(path, rate):
    """One video -> float32 (S,), one channel, `rate` samples per second, about -1 to 1. A sound of
    less than one second is padded with silence, and so is a video without sound."""
    import av
    resampler = av.AudioResampler('flt', 'mono', rate)
    pieces = [np.zeros(0, np.float32)]
    for frame in itertools.chain(decoded(path, 'audio'), [None]):   # None: the rest of the buffer
        pieces += [piece.to_ndarray()[0] for piece in resampler.resample(frame)]
    sound = np.concatenate(pieces)
    return np.pad(sound, (0, max(rate - len(sound), 0)))
