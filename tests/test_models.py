"""What every captioner must do, whatever its paper: the contract, by name."""
import dataclasses
import importlib

import pytest
import torch

import decode
from data import EOS, PAD

SMALL = dict(hidden=6, dropout=0.0, max_len=6)
GRID, SINGLE = {'v': [2, 3, 4]}, {'v': [5]}
MAPS = {'c3d_pool2': [28, 28, 2], 'c3d_pool3': [14, 14, 3], 'c3d_pool4': [7, 7, 4], 'c3d_pool5': [4, 4, 4], 'c3d_fc7': [7]}

CASES = {                                           # name -> module, fields of Config, shape of a frame's feature by kind
    'stats': ('stats', dict(embed=5, attn=4, visual=3, eta=0.0), GRID),
    'stats-wide': ('stats', dict(embed=5, attn=4, visual=7, eta=0.0), GRID),
    'stats-regions': ('stats', dict(embed=5, attn=4, visual=3, eta=0.0), {'v': [3, 4]}),
    'stats-single': ('stats', dict(embed=5, attn=4, visual=3, eta=0.0), SINGLE),
    'stats-two-kinds': ('stats', dict(embed=5, attn=4, visual=3, eta=0.0, category=True), {'v': [2, 3, 4], 'w': [2, 2, 5]}),
    'stats-st': ('stats', dict(embed=5, attn=4, visual=3, eta=0.0, variant='st', pool='temporal'), GRID),
    'stats-ts': ('stats', dict(embed=5, attn=4, visual=3, eta=0.0, variant='ts'), GRID),
    'sta': ('sta', dict(embed=5), GRID),
    'sta-single': ('sta', dict(embed=5, penalty=0.0), SINGLE),
    'sta-first': ('sta', dict(embed=5, variant='first'), GRID),
    'sta-avgpool': ('sta', dict(embed=5, variant='avgpool'), GRID),
    'vre': ('vre', dict(attn=4, stage='joint', sampling=0.0), {'v': [2, 3, 4], 'audio': [3]}),
    'vre-single': ('vre', dict(attn=4, stage='joint', sampling=0.0), SINGLE),
    'vre-frozen': ('vre', dict(attn=4, stage='frozen', sampling=0.0), GRID),
    'vre-vf+vs': ('vre', dict(attn=4, stage='joint', sampling=0.0, variant='vf+vs'), GRID),
    'astar': ('astar', dict(embed=5, attn=4, init=0.3), MAPS),
    'astar-pool4': ('astar', dict(embed=5, attn=4, init=0.3, variant='pool4'), {k: MAPS[k] for k in ('c3d_pool4', 'c3d_fc7')}),
    'astar-fc7': ('astar', dict(embed=5, attn=4, init=0.3, variant='fc7'), {'c3d_fc7': [7]}),
    'astar-resnet': ('astar', dict(embed=5, attn=4, init=0.3, variant='resnet'), GRID),
}
V, FRAMES = 7, (3, 1, 4)                            # words; frames of the three videos
STEPS = {'audio': lambda n: 1, 'c3d_fc7': lambda n: 1, 'c3d_pool2': lambda n: -(-5 * n // 2), 'c3d_pool3': lambda n: -(-5 * n // 4),
         'c3d_pool4': lambda n: -(-5 * n // 8), 'c3d_pool5': lambda n: -(-5 * n // 16)}       # of C3D: of 5 n frames
ROWS, LENGTHS = (0, 0, 1, 2), (3, 1, 4, 2)          # the video and the number of words of four captions


@pytest.fixture(params=CASES)
def case(request):
    """-> model, batch of three videos of different length with four captions"""
    module, fields, shapes = CASES[request.param]
    paper = importlib.import_module(module)
    torch.manual_seed(0)
    cfg = paper.Config(**{**SMALL, **fields}, vocab=V, feats=shapes, features=tuple(shapes), frames=max(FRAMES), captions=4, categories=3)
    model = paper.Captioner(cfg)
    feats, mask = {}, {}
    for name, shape in shapes.items():
        steps = torch.tensor([STEPS.get(name, lambda n: n)(n) for n in FRAMES])
        mask[name] = torch.arange(steps.max())[None] < steps[:, None]
        feats[name] = torch.randn(3, steps.max(), *shape) * mask[name].view(*mask[name].shape, *[1] * len(shape))
        feats[name] = feats[name].relu() if name.startswith('c3d') else feats[name]
    captions = torch.randint(2, V, (4, 5))
    for row, n in enumerate(LENGTHS):
        captions[row, n], captions[row, n + 1:] = EOS, PAD
    return model, dict(feats=feats, mask=mask, captions=captions, rows=torch.tensor(ROWS), caption_ids=torch.arange(4),
                       ids=['a', 'b', 'c'], category=torch.tensor([2, 0, 1]))


def videos(batch, keep):
    """The batch with these videos alone, and their captions"""
    captions = torch.tensor([row in keep for row in ROWS])
    rows = torch.tensor([keep.index(row) for row in ROWS if row in keep])
    return dict(feats=decode.select(batch['feats'], torch.tensor(keep)), mask=decode.select(batch['mask'], torch.tensor(keep)), rows=rows,
                captions=batch['captions'][captions], caption_ids=batch['caption_ids'][captions], ids=[batch['ids'][i] for i in keep],
                category=batch['category'][keep])


def scale_up(model, factor=4.0):
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(factor)


def test_encode_and_step_have_the_contract_s_shapes(case):
    model, batch = case
    memory, state = model.encode(batch)
    decode.tree_map(lambda x: pytest.fail('a row per video') if len(x) != 3 else x, (memory, state))
    names = None
    for token in (None, torch.tensor([2, 3, 4]), torch.tensor([5, 6, 2])):
        logits, state, aux = model.step(token, state, memory)
        assert logits.shape == (3, V) and all(len(x) == 3 for x in aux.values())
        assert names in (None, set(aux))                                              # the same keys at every word
        names = set(aux)
        decode.tree_map(lambda x: pytest.fail('a row per video') if len(x) != 3 else x, state)


def test_every_parameter_gets_a_gradient(case):
    model, batch = case
    seen = set()
    for _ in range(2):                              # vre's refocusing loss needs a reward of the epoch before
        loss, logs = model(batch, epoch=0)
        assert loss.shape == () and all(isinstance(value, float) for value in logs.values())
        model.zero_grad()
        loss.backward()
        seen |= {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p) * 0.1)
    never = 'attend_space.w_' if batch['feats'].get('v', batch['rows']).dim() == 3 else '-'    # a softmax over one region is always 1
    assert not [name for name, p in model.named_parameters() if p.requires_grad and name not in seen and not name.startswith(never)]


def test_padding_changes_neither_loss_nor_captions(case):
    model, batch = case
    model.eval()
    loss, words = model(batch)[0], decode.greedy(model, *model.encode(batch), 6)[0]
    longer = dict(batch, captions=torch.nn.functional.pad(batch['captions'], (0, 3), value=PAD), feats={}, mask={})
    for name, x in batch['feats'].items():
        room = 0 if model.__class__.__module__ == 'sta' else STEPS.get(name, lambda n: n)(3)      # sta's frames are a fixed number
        mask = torch.nn.functional.pad(batch['mask'][name], (0, room))
        x = torch.nn.functional.pad(x, [0, 0] * (x.dim() - 2) + [0, room])
        longer['feats'][name] = torch.where(mask.view(*mask.shape, *[1] * (x.dim() - 2)), x, torch.full_like(x, 9.0))     # not even zeros
        longer['mask'][name] = mask
    assert torch.allclose(model(longer)[0], loss, atol=1e-5)
    assert torch.equal(decode.greedy(model, *model.encode(longer), 6)[0], words)


def test_a_batch_equals_its_videos_one_by_one(case):
    model, batch = case
    scale_up(model, 2.0)
    model.eval()
    whole, words = model(batch)[0], decode.beam(model, *model.encode(batch), 6, K=3)[0]
    parts = [videos(batch, [i]) for i in range(3)]
    assert torch.allclose(sum(model(part)[0] * len(part['rows']) for part in parts) / 4, whole, atol=1e-4)
    for i, part in enumerate(parts):
        alone = decode.beam(model, *model.encode(part), 6, K=3)[0][0]
        assert [w for w in alone.tolist() if w] == [w for w in words[i].tolist() if w]


@pytest.mark.parametrize('seed', range(2))
def test_beams_replayed_by_teacher_forcing_have_the_same_score(case, seed):
    """A state that is not re-ordered with its beam, or an aux that leaks between rows, fails here."""
    model, batch = case
    torch.manual_seed(seed)
    scale_up(model)
    model.eval()
    words, score = decode.beam(model, *model.encode(batch), 6, K=4)
    logp, _ = decode.teacher_force(model, *model.encode(batch), words)
    assert torch.allclose(logp.sum(1), score, atol=1e-3)


def test_config_and_state_dict_rebuild_the_model(case, tmp_path):
    model, batch = case
    torch.save({'config': dataclasses.asdict(model.cfg), 'state_dict': model.state_dict()}, tmp_path / 'x.pt')
    saved = torch.load(tmp_path / 'x.pt', weights_only=True)
    paper = importlib.import_module(model.__class__.__module__)
    copy = paper.Captioner(paper.Config(**saved['config']))
    copy.load_state_dict(saved['state_dict'])
    a, b = (decode.greedy(m.eval(), *m.encode(batch), 6) for m in (model, copy))
    assert torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])
