"""What every captioner must do, whatever its paper: the contract, case by case."""
import dataclasses
import importlib

import pytest
import torch
import torch.nn.functional as F

import decode
import helpers
from astar import Config as AstarConfig
from data import PAD, Sizes
from tools import runs

GRID = {'v': [2, 3, 4]}
SINGLE = {'v': [5]}
MAPS = {'c3d_pool2': [28, 28, 2], 'c3d_pool3': [14, 14, 3], 'c3d_pool4': [7, 7, 4],
        'c3d_pool5': [4, 4, 4], 'c3d_fc7': [7]}
STATS = dict(embed=5, attn=4, visual=3, eta=0.0)
VRE = dict(attn=4, stage='joint', sampling=0.0)
ASTAR = dict(embed=5, attn=4, init=0.3)

CASES = {                       # name -> fields of Config, shape of one frame's feature by kind
    'stats': (STATS, GRID),
    'stats-wide': (STATS | dict(visual=7), GRID),
    'stats-regions': (STATS, {'v': [3, 4]}),
    'stats-single': (STATS, SINGLE),
    'stats-two-kinds': (STATS | dict(category=True), {'v': [2, 3, 4], 'w': [2, 2, 5]}),
    'stats-st': (STATS | dict(variant='st', pool='temporal'), GRID),
    'stats-ts': (STATS | dict(variant='ts'), GRID),
    'sta': (dict(embed=5), GRID),
    'sta-single': (dict(embed=5, penalty=0.0), SINGLE),
    'sta-first': (dict(embed=5, variant='first'), GRID),
    'sta-content': (dict(embed=5, scores='content', layers=2), GRID),
    'sta-avgpool': (dict(embed=5, variant='avgpool'), GRID),
    'vre': (VRE, {'v': [2, 3, 4], 'audio': [3]}),
    'vre-single': (VRE, SINGLE),
    'vre-frozen': (VRE | dict(stage='frozen'), GRID),
    'vre-meanpool': (VRE | dict(variant='meanpool'), GRID),
    'vre-random': (VRE | dict(stage='frozen', key='random'), GRID),
    'vre-vf+vs': (VRE | dict(variant='vf+vs'), GRID),
    'astar': (ASTAR, MAPS),
    'astar-pool4': (ASTAR | dict(variant='pool4'), {k: MAPS[k] for k in ('c3d_pool4', 'c3d_fc7')}),
    'astar-fc7': (ASTAR | dict(variant='fc7'), {'c3d_fc7': [7]}),
    'astar-fc7-every': (ASTAR | dict(variant='fc7-every'), MAPS),
    'astar-identity': (ASTAR | dict(align_init='identity'), MAPS),
    'astar-resnet': (ASTAR | dict(variant='resnet'), GRID),
}
MORE = {}                       # every other variant of astar
for variant in ('hard', 'pool2', 'pool3', 'pool5', 'mlp', 'maxpool', 'avgpool', 'hypercolumn',
                'layers-first'):
    read = AstarConfig(variant=variant).features
    MORE[f'astar-{variant}'] = ASTAR | dict(variant=variant), {name: MAPS[name] for name in read}
V = 7                                                   # words
FRAMES = (3, 1, 4)                                      # of the three videos
C3D_STRIDE = {'c3d_pool2': 2, 'c3d_pool3': 4, 'c3d_pool4': 8, 'c3d_pool5': 16}


def steps(kind, frames):
    """Steps in time of a kind of features. C3D's maps are those of 5 * frames frames."""
    if kind in ('audio', 'c3d_fc7'):
        return 1
    return -(-5 * frames // C3D_STRIDE[kind]) if kind in C3D_STRIDE else frames


def build(paper, config, shapes):
    sizes = Sizes(shapes, max(FRAMES), V, captions=4, categories=3)
    return paper.Captioner(paper.Config(**config), sizes)


@pytest.fixture(params=CASES | MORE)
def case(request):
    """-> model, batch of three videos of different length with four captions"""
    fields, shapes = (CASES | MORE)[request.param]
    paper = importlib.import_module(request.param.split('-')[0])
    torch.manual_seed(0)
    config = dict(hidden=6, dropout=0.5, max_len=6, features=tuple(shapes), **fields)
    model = build(paper, config, shapes)
    frames = {kind: [steps(kind, n) for n in FRAMES] for kind in shapes}
    batch = helpers.batch(shapes, frames, vocab=V)
    for kind in batch['feats'].keys() & MAPS.keys():    # C3D's maps come out of a ReLU
        batch['feats'][kind] = batch['feats'][kind].relu()
    return model, batch


def test_encode_and_step_have_the_contract_s_shapes(case):
    model, batch = case
    memory, state = model.encode(batch)
    leaves = []
    decode.tree_map(leaves.append, (memory, state))
    names = set()
    for token in (None, torch.tensor([2, 3, 4]), torch.tensor([5, 6, 2])):
        logits, state, aux = model.step(token, state, memory)
        decode.tree_map(leaves.append, (state, aux))
        assert logits.shape == (3, V)
        names.add(tuple(aux))
    assert all(len(leaf) == 3 for leaf in leaves)       # one row per video
    assert len(names) == 1                              # the same keys at every word


def test_bfloat16_changes_the_loss_little(case):
    """bfloat16 has 8 bits of precision. Hard attention is compared where it draws nothing."""
    model, batch = case
    exact = model.eval()(batch)[0]
    with torch.autocast('cpu', torch.bfloat16):         # what --amp does
        loss = model(batch)[0]
    assert loss.dtype == torch.float32
    assert abs(loss - exact) < 0.02 * exact.abs()


def test_every_parameter_gets_a_gradient(case):
    model, batch = case
    seen = set()
    for _ in range(2):                  # vre's refocusing loss needs a reward of the epoch before
        loss, logs = model(batch, epoch=0)
        assert loss.shape == () and all(isinstance(value, float) for value in logs.values())
        model.zero_grad()
        loss.backward()
        for name, p in model.named_parameters():
            if p.grad is not None and p.grad.abs().max() > 0:
                seen.add(name)
            p.data.add_(torch.randn_like(p) * 0.1)
    missing = [n for n, p in model.named_parameters() if p.requires_grad and n not in seen]
    if list(batch['feats']) == ['v'] and batch['feats']['v'].dim() == 3:
        # A softmax over one region is always 1, so its scores have no gradient.
        missing = [name for name in missing if not name.startswith('attend_space.w_')]
    assert not missing


def lengthen(batch, fixed):
    """The batch with more padding: 3 more <pad>, 3 more frames of nines unless their number is
    fixed"""
    longer = dict(batch, captions=F.pad(batch['captions'], (0, 3), value=PAD), feats={}, mask={})
    for kind, x in batch['feats'].items():
        room = 0 if fixed else steps(kind, 3)
        mask = F.pad(batch['mask'][kind], (0, room))
        x = F.pad(x, [0, 0] * (x.dim() - 2) + [0, room])
        real = mask.view(*mask.shape, *[1] * (x.dim() - 2))
        longer['feats'][kind] = torch.where(real, x, torch.full_like(x, 9.0))
        longer['mask'][kind] = mask
    return longer


def test_padding_changes_neither_loss_nor_captions(case):
    model, batch = case
    model.eval()
    longer = lengthen(batch, getattr(model.cfg, 'scores', '') == 'printed')     # sta as printed
    assert torch.allclose(model(longer)[0], model(batch)[0], atol=1e-5)
    words, _ = decode.greedy(model, *model.encode(batch), 6)
    assert torch.equal(decode.greedy(model, *model.encode(longer), 6)[0], words)


def test_a_batch_equals_its_videos_one_by_one(case):
    model, batch = case
    helpers.scale_up(model, 2.0)
    model.eval()
    words, _ = decode.beam(model, *model.encode(batch), 6, K=3)
    total = 0.0
    for i in range(3):
        part = helpers.one_video(batch, i)
        total += model(part)[0] * len(part['rows'])
        alone, _ = decode.beam(model, *model.encode(part), 6, K=3)
        assert [w for w in alone[0].tolist() if w] == [w for w in words[i].tolist() if w]
    assert torch.allclose(total / 4, model(batch)[0], atol=1e-4)


@pytest.mark.parametrize('seed', range(2))
def test_beams_replayed_by_teacher_forcing_have_the_same_score(case, seed):
    """A state that is not reordered with its beam, or that leaks between rows, fails here."""
    model, batch = case
    torch.manual_seed(seed)
    helpers.scale_up(model)
    model.eval()
    words, score = decode.beam(model, *model.encode(batch), 6, K=4)
    logp, _ = decode.teacher_force(model, *model.encode(batch), words)
    assert torch.allclose(logp.sum(1), score, atol=1e-3)


def test_config_sizes_and_state_dict_rebuild_the_model(case, tmp_path):
    model, batch = case
    paper = importlib.import_module(type(model).__module__)
    shapes = {kind: list(x.shape[2:]) for kind, x in batch['feats'].items()}
    saved = {'config': dataclasses.asdict(model.cfg), 'state': model.state_dict()}
    torch.save(saved, tmp_path / 'x.pt')
    saved = torch.load(tmp_path / 'x.pt', weights_only=True)
    copy = build(paper, saved['config'], shapes)
    copy.load_state_dict(saved['state'])
    ours = decode.greedy(model.eval(), *model.encode(batch), 6)
    theirs = decode.greedy(copy.eval(), *copy.encode(batch), 6)
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


def test_the_view_shows_a_distribution_over_frames_and_places_for_every_word(case):
    """VIEW['attention'] sums to 1, or to 0 for a word that looked nowhere."""
    model, batch = case
    part = helpers.one_video(batch, 2)
    _, aux = decode.teacher_force(model, *model.encode(part), torch.tensor([[3, 4, 5, 1]]))
    paper = runs.Paper(type(model).__module__)
    attention = paper.VIEW['attention']({name: value[0] for name, value in aux.items()})
    if attention is None:
        assert not any(name in aux for name in ('space', 'frames', 'ts_frames', 'st_space'))
        return
    assert attention.dim() == 3 and len(attention) == 4 and (attention >= 0).all()
    totals = attention.sum((1, 2))
    looks = torch.isclose(totals, torch.ones(4), atol=1e-5)
    assert (looks | (totals == 0)).all() and looks.any()
    for name, labels in paper.VIEW['bars'].items():
        if name in aux:
            assert aux[name][0].reshape(4, -1).shape[1] <= len(labels)
