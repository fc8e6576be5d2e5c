"""train.py and evaluate.py as a user runs them, on data small enough for a second an epoch."""
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import data
import evaluate
import shapes
import train
from data import BadInput

ROOT = Path(__file__).resolve().parents[1]
WORDS = 'a man woman dog runs jumps sings'.split()


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    """MSVD in miniature: 8 training, 4 validation videos, no test split; features of 3 frames x 6"""
    root, rng = tmp_path_factory.mktemp('data'), np.random.default_rng(0)
    (root / 'msvd' / 'features').mkdir(parents=True)
    ids = [f'vid{i}' for i in range(1, 13)]
    for split, some in (('train', ids[:8]), ('val', ids[8:])):
        lines = [f'{video}\ta {rng.choice(WORDS[1:4])} {rng.choice(WORDS[4:])}\n' for video in some for _ in range(3)]
        (root / 'msvd' / f'sents_{split}.txt').write_text(''.join(lines))
    np.save(root / 'msvd' / 'features' / 'tiny.npy', rng.standard_normal((12, 3, 6)).astype(np.float16))
    (root / 'msvd' / 'features' / 'tiny.json').write_text(json.dumps({'ids': ids}))
    return root


SMALL = dict(stats='--hidden 8 --embed 6 --attn 4 --visual 5 --epochs 3 --min-count 1 --reward bleu4 --reward-after 2 --captions-per-video 2',
             sta='--hidden 8 --embed 6 --epochs 3 --captions-per-video 2',
             vre='--hidden 8 --attn 4 --warm-epochs 1 --joint-epochs 2 --frozen-epochs 1 --reward-epochs 1 --min-count 1 --captions-per-video 2')


def flags(model, root, out, *more):
    return ['--model', model, '--dataset', 'msvd', '--features', 'tiny', '--root', str(root), '--out', str(out), '--videos-per-batch', '3',
            '--device', 'cpu', *SMALL[model].split(), *more]


@pytest.fixture
def no_report(monkeypatch):
    """Without the final scores, which take Java a second or two"""
    monkeypatch.setattr(evaluate, 'main', lambda argv: None)


def log(out):
    return [json.loads(line) for line in (Path(out) / 'log.jsonl').read_text().split('\n')[:-1]]


def numbers(out):
    """What an epoch's line says, without the time"""
    return [{k: v for k, v in line.items() if k != 'seconds'} for line in log(out) if 'epoch' in line]


def weights(path):
    return torch.load(path, weights_only=True)['state_dict']


def same(a, b):
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k].nan_to_num(), b[k].nan_to_num()) for k in a)


@pytest.fixture(scope='module')
def runs(root, tmp_path_factory):
    """One unbroken run per model"""
    outs = {model: tmp_path_factory.mktemp('runs') / model for model in SMALL}
    for model, out in outs.items():
        with pytest.MonkeyPatch.context() as patch:
            if model != 'stats':
                patch.setattr(evaluate, 'main', lambda argv: None)
            train.main(flags(model, root, out))
    return outs


def test_a_run_leaves_a_log_checkpoints_captions_and_a_picture(runs, root, capsys):
    out = runs['stats']
    head, *epochs = log(out)
    assert head['config']['hidden'] == 8 and head['args']['seed'] == 0 and head['torch'] == torch.__version__
    assert [e['epoch'] for e in epochs] == [1, 2, 3] and all(np.isfinite(e['val_CIDEr']) for e in epochs)
    assert 'reward' in epochs[2] and 'reward' not in epochs[1]                       # rewards begin after two epochs
    best = torch.load(out / 'best.pt', weights_only=True)
    assert best['best'] == max(e['val_CIDEr'] for e in epochs) and best['vocab'][:3] == ['<pad>', '<eos>', '<unk>']
    found = json.loads((out / 'captions-val.json').read_text())                      # there is no test split
    assert set(found['videos']) == {f'vid{i}' for i in range(9, 13)} and {'Bleu_1', 'Bleu_4', 'METEOR', 'ROUGE_L', 'CIDEr'} <= set(found['scores'])
    assert (out / 'attention.png').read_bytes()[:4] == b'\x89PNG'
    assert set(p.name for p in out.iterdir()) == {'log.jsonl', 'last.pt', 'best.pt', 'captions-val.json', 'attention.png'}


@pytest.mark.parametrize('model, batch', [('stats', 4), ('stats', 6), ('sta', 7), ('vre', 9), ('vre', 11)])
def test_an_interrupted_run_resumes_to_the_same_numbers(runs, root, tmp_path, monkeypatch, no_report, capsys, model, batch):
    """Ctrl-C in a batch (6 batches an epoch: also in the last one of an epoch)"""
    whole, calls = data.Batches.collate, []

    def collate(self, visits):
        if visits[0][1]:                                    # a batch with captions, not one of free-running captions
            calls.append(1)
            if len(calls) == batch:
                os.kill(os.getpid(), signal.SIGINT)
        return whole(self, visits)

    monkeypatch.setattr(data.Batches, 'collate', collate)
    with pytest.raises(SystemExit):
        train.main(flags(model, root, tmp_path / 'run'))
    assert f'to go on: python train.py --resume --out {tmp_path / "run"}' in capsys.readouterr().out
    monkeypatch.setattr(data.Batches, 'collate', whole)
    assert len(numbers(tmp_path / 'run')) < len(numbers(runs[model]))
    train.main(['--resume', '--out', str(tmp_path / 'run')])
    assert numbers(tmp_path / 'run') == numbers(runs[model])
    same(weights(tmp_path / 'run' / 'last.pt'), weights(runs[model] / 'last.pt'))


def test_a_resumed_run_knows_its_paper_and_takes_its_flags(runs, tmp_path, no_report, capsys):
    out = shutil.copytree(runs['vre'], tmp_path / 'run')
    train.main(['--resume', '--out', str(out), '--reward-epochs', '2'])
    assert [e['stage'] for e in log(out) if 'stage' in e] == ['warm', 'joint', 'joint', 'frozen', 'reward', 'reward']
    with pytest.raises(SystemExit):
        train.main(['--resume', '--out', str(out), '--visual', '5'])                # of another paper
    assert 'unrecognized arguments: --visual 5' in capsys.readouterr().err


def test_a_seed_gives_the_same_result_twice_and_another_does_not(runs, root, tmp_path, no_report):
    train.main(flags('stats', root, tmp_path / 'a'))
    same(weights(tmp_path / 'a' / 'last.pt'), weights(runs['stats'] / 'last.pt'))
    train.main(flags('stats', root, tmp_path / 'b', '--seed', '1', '--epochs', '1'))
    assert numbers(tmp_path / 'b')[0]['loss'] != numbers(runs['stats'])[0]['loss']


def test_a_stage_that_others_start_from_needs_an_epoch(root, tmp_path, no_report):
    with pytest.raises(BadInput, match='--frozen-epochs 0: the stage after it starts from its best model'):
        train.main(flags('vre', root, tmp_path / 'run', '--frozen-epochs', '0'))


def test_the_stages_of_vre_follow_one_another(runs):
    assert [e['stage'] for e in log(runs['vre'])[1:]] == ['warm', 'joint', 'joint', 'frozen', 'reward']
    joint, frozen = weights(runs['vre'] / 'best-joint.pt'), weights(runs['vre'] / 'best-frozen.pt')
    kept = [name for name in joint if name.startswith('encoder.')]
    assert kept and all(torch.equal(joint[name], frozen[name.replace('encoder.', 'frozen.', 1)]) for name in kept)


def test_two_processes_equal_one(root, tmp_path, no_report):
    """torchrun for real, dropout off: the same loss and weights as one process on the joined batches, and one log."""
    more = ['--dropout', '0', '--epochs', '2', '--clip', '1000', '--optimizer', 'adam', '--eta', '0', '--reward-after', '9']
    train.main(flags('stats', root, tmp_path / 'one', *more))
    command = [sys.executable, '-m', 'torch.distributed.run', '--nproc-per-node', '2', '--master-port', '29517', str(ROOT / 'train.py')]
    done = subprocess.run(command + flags('stats', root, tmp_path / 'two', *more), capture_output=True, text=True, timeout=300,
                          env={**os.environ, 'OMP_NUM_THREADS': '1'})
    assert done.returncode == 0, done.stderr[-2000:]
    one, two = weights(tmp_path / 'one' / 'last.pt'), weights(tmp_path / 'two' / 'last.pt')
    assert all(torch.allclose(one[k], two[k], atol=1e-5) for k in one)
    assert len(log(tmp_path / 'two')) == 3
    assert log(tmp_path / 'two')[2]['val_loss'] == pytest.approx(log(tmp_path / 'one')[2]['val_loss'], abs=1e-5)


def test_two_processes_share_the_rewards_that_vre_remembers(root, tmp_path, no_report):
    """Each process sees half of the captions; after an epoch both must know the rewards of all."""
    exact = ['--dropout', '0', '--sampling', '0', '--clip', '1000', '--rate', '0.01', '--stage']
    train.main(flags('vre', root, tmp_path / 'one', *exact, 'warm'))
    shutil.copytree(tmp_path / 'one', tmp_path / 'two')
    train.main(flags('vre', root, tmp_path / 'one', *exact, 'joint'))
    command = [sys.executable, '-m', 'torch.distributed.run', '--nproc-per-node', '2', '--master-port', '29518', str(ROOT / 'train.py')]
    done = subprocess.run(command + flags('vre', root, tmp_path / 'two', *exact, 'joint'), capture_output=True, text=True, timeout=300,
                          env={**os.environ, 'OMP_NUM_THREADS': '1'})
    assert done.returncode == 0, done.stderr[-2000:]
    one, two = weights(tmp_path / 'one' / 'last.pt'), weights(tmp_path / 'two' / 'last.pt')
    assert one['previous_reward'].isfinite().all() and one['previous_reward'].std() > 0
    assert all(torch.allclose(one[k], two[k], atol=1e-4) for k in one)


def test_a_loss_that_is_not_finite_stops_and_names_the_term(root, tmp_path, monkeypatch):
    import stats
    monkeypatch.setattr(stats, 'rank_loss', lambda w, *rest: w.sum(1) / 0)
    with pytest.raises(BadInput, match=r'the loss is .* in epoch 1, batch 1 \(rank = '):
        train.main(flags('stats', root, tmp_path / 'run'))


def test_a_full_disk_is_told_and_leaves_the_last_checkpoint_whole(root, tmp_path, monkeypatch, no_report):
    train.main(flags('sta', root, tmp_path / 'run', '--epochs', '1'))
    before = (tmp_path / 'run' / 'last.pt').read_bytes()

    def full(checkpoint, path):
        Path(path).write_bytes(b'half')
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(torch, 'save', full)
    with pytest.raises(BadInput, match='cannot write .*No space left on device.* is whole'):
        train.main(['--resume', '--out', str(tmp_path / 'run'), '--epochs', '2'])
    assert (tmp_path / 'run' / 'last.pt').read_bytes() == before and not list((tmp_path / 'run').glob('*.tmp'))


@pytest.mark.parametrize('more, message', [
    (['--features', 'nothing'], "no features 'nothing': looked for .*there: tiny.*or make them: python extract.py --dataset msvd"),
    (['--root', 'nowhere'], 'nowhere/msvd: there is no such folder; --root'),
    (['--resume'], 'nothing to resume'),
    (['--amp'], '--amp needs a GPU'),
    (['--reward', 'beauty'], "unknown reward 'beauty'.*known are cider"),
    (['--pool', 'swimming'], "pool 'swimming'"),
    (['--word2vec', 'nowhere.bin'], 'nowhere.bin: there is no such word2vec file')])
def test_mistakes_get_one_clear_sentence(root, tmp_path, more, message):
    with pytest.raises(BadInput, match=message):
        train.main(flags('stats', root, tmp_path / 'run', *more))


def test_a_folder_that_cannot_be_written_or_is_taken_is_told(runs, root, tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(BadInput, match='cannot make the folder'):
        train.main(flags('stats', root, tmp_path / 'file' / 'run'))
    with pytest.raises(BadInput, match='holds a run already: --resume goes on'):
        train.main(flags('stats', root, runs['stats']))


def test_word2vec_fills_the_embedding(root, tmp_path, no_report):
    (tmp_path / 'v.txt').write_text('man ' + ' '.join(['7.5'] * 6) + '\n')
    train.main(flags('sta', root, tmp_path / 'run', '--word2vec', str(tmp_path / 'v.txt'), '--rate', '0', '--epochs', '1'))
    saved = torch.load(tmp_path / 'run' / 'last.pt', weights_only=True)
    assert (saved['state_dict']['embed.weight'][saved['vocab'].index('man')] == 7.5).all()
    assert not (saved['state_dict']['embed.weight'] == 7.5).all()


def test_help_shows_every_field_of_the_paper_with_its_comment(capsys):
    with pytest.raises(SystemExit):
        train.main(['--model', 'stats', '--help'])
    text = ' '.join(capsys.readouterr().out.split())
    assert '--rank-weight' in text and 'learning rate, Sec. 4.1' in text and '--patience' in text
    with pytest.raises(SystemExit) as error:
        train.main(['--no-such-flag'])
    assert error.value.code == 2


def test_an_ensemble_of_two_runs_is_scored(runs, root, tmp_path, capsys):
    shutil.copytree(runs['stats'], tmp_path / 'other')
    evaluate.main([str(runs['stats']), str(tmp_path / 'other'), '--root', str(root), '--beam', '2', '--json', str(tmp_path / 'x.json'), '--device', 'cpu'])
    saved = json.loads((tmp_path / 'x.json').read_text())
    assert saved['beam'] == 2 and len(saved['videos']) == 4 and len(saved['runs']) == 2
    assert 'val split, 4 videos, beam 2' in capsys.readouterr().out
    for more, message in ((['--split', 'test'], 'msvd has no test split'), (['--grounding'], 'only shapes has, not msvd'),
                          (['--step', '1'], '--step is for runs of vre')):
        with pytest.raises(BadInput, match=message):
            evaluate.main([str(runs['stats']), '--root', str(root), *more])


@pytest.mark.parametrize('content', [b'', b'not a checkpoint', b'PK\x03\x04 cut off'])
def test_a_broken_checkpoint_is_told(tmp_path, content):
    (tmp_path / 'best.pt').write_bytes(content)
    with pytest.raises(BadInput, match='best.pt: not a checkpoint of train.py, or cut off'):
        evaluate.main([str(tmp_path)])
    with pytest.raises(BadInput, match='there is no such checkpoint; a run is a folder'):
        evaluate.main([str(tmp_path / 'nowhere')])


@pytest.fixture(scope='module')
def world(tmp_path_factory):
    """A root for the embedded world, of which eight clips a split are rendered once"""
    return tmp_path_factory.mktemp('world')


@pytest.mark.parametrize('more', [['--model', 'stats'], ['--model', 'sta'], ['--model', 'sta', '--task', 'recognise'],
                                  ['--model', 'astar'], ['--model', 'astar', '--variant', 'resnet'], ['--model', 'c3d', '--width', '1'],
                                  ['--model', 'vre', '--warm-epochs', '1', '--joint-epochs', '1', '--frozen-epochs', '1']], ids=' '.join)
def test_every_model_trains_on_the_embedded_world(world, tmp_path, no_report, more):
    epochs = [] if 'vre' in more else ['--epochs', '1']
    train.main([*more, *epochs, '--root', str(world), '--limit', '8', '--out', str(tmp_path / 'run'), '--device', 'cpu'])
    last = numbers(tmp_path / 'run')[-1]
    assert np.isfinite(last['val_accuracy' if '--task' in more or 'c3d' in more else 'val_slots'])


def test_a_recogniser_is_scored(world, tmp_path, capsys):
    train.main(['--model', 'sta', '--task', 'recognise', '--epochs', '1', '--root', str(world), '--limit', '8', '--out', str(tmp_path / 'run'),
                '--device', 'cpu'])
    saved = json.loads((tmp_path / 'run' / 'captions.json').read_text())
    assert len(saved['videos']) == 8 and set(saved['scores']) == {'accuracy', 'mAP'}
    assert all(row['class'] in shapes.ACTIONS and row['labels'] for row in saved['videos'].values())
    with pytest.raises(BadInput, match='--words is about captions'):
        evaluate.main([str(tmp_path / 'run'), '--root', str(world), '--words'])


def test_the_attention_of_several_runs_is_set_side_by_side(world, tmp_path, no_report, capsys, monkeypatch):
    runs = {'one': ['--model', 'stats'], 'two': ['--model', 'sta'], 'three': ['--model', 'sta', '--task', 'recognise']}
    for name, more in runs.items():
        train.main([*more, '--epochs', '1', '--root', str(world), '--limit', '8', '--out', str(tmp_path / name), '--device', 'cpu'])
    monkeypatch.undo()                                   # evaluate.main again
    true = data.load('shapes-8', world, 'test').captions
    monkeypatch.setattr(evaluate, 'describe', lambda *_, **__: {video: captions[0] for video, captions in true.items()})
    capsys.readouterr()
    evaluate.main([str(tmp_path / 'one'), str(tmp_path / 'two'), '--grounding', '--root', str(world), '--device', 'cpu'])
    first, second = (part.split('\n') for part in capsys.readouterr().out.strip().split('\n\n'))
    assert len(first) == 4 and all(row.count('|') == 8 for row in first) and '(0.' in first[2]
    assert [row.split(' | ')[1] for row in second[2:]] == ['ST', 'TS', 'gate'] and all(row.count('|') == 7 for row in second)
    with pytest.raises(BadInput, match='three recognises actions: give it by itself'):
        evaluate.main([str(tmp_path / 'one'), str(tmp_path / 'three'), '--grounding', '--root', str(world), '--device', 'cpu'])
