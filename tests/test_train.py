"""train.py and evaluate.py as a user runs them, on data so small that an epoch takes a second."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import data
import evaluate
import train
from data import BadInput
from shapes import words as shape_words
from tools import checkpoints, figures, machine, runs, scores
from tools.flags import claim_folder

torch.set_num_threads(1)             # the number of threads changes the last digits
ROOT = Path(__file__).resolve().parents[1]
NOUNS = ['man', 'woman', 'dog']
VERBS = ['runs', 'jumps', 'sings']
SMALL = {
    'stats': '--hidden 8 --embed 6 --attn 4 --visual 5 --epochs 3 --min-count 1 --reward bleu4 '
             '--reward-after 2 --captions-per-video 2',
    'sta': '--hidden 8 --embed 6 --epochs 3 --captions-per-video 2',
    'vre': '--hidden 8 --attn 4 --warm-epochs 1 --joint-epochs 2 --frozen-epochs 1 '
           '--reward-epochs 1 --min-count 1 --captions-per-video 2',
}


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    """MSVD in miniature: 8 training and 4 validation videos, no test split; 3 frames x 6"""
    root = tmp_path_factory.mktemp('data')
    rng = np.random.default_rng(0)
    features = root / 'msvd' / 'features'
    features.mkdir(parents=True)
    ids = [f'vid{i}' for i in range(1, 13)]
    for split, some in (('train', ids[:8]), ('val', ids[8:])):
        lines = []
        for video in some:
            lines += [f'{video}\ta {rng.choice(NOUNS)} {rng.choice(VERBS)}\n' for _ in range(3)]
        (root / 'msvd' / f'sents_{split}.txt').write_text(''.join(lines))
    np.save(features / 'tiny.npy', rng.standard_normal((12, 3, 6)).astype(np.float16))
    (features / 'tiny.json').write_text(json.dumps({'ids': ids}))
    return root


def flags(model, root, out, more=''):
    return (f'--model {model} --dataset msvd --features tiny --root {root} --out {out} '
            f'--device cpu --videos-per-batch 3 {SMALL[model]} {more}').split()


def resume(root, out, more=''):
    train.main(f'--resume --root {root} --out {out} {more}'.split())


@pytest.fixture
def no_report(monkeypatch):
    """Without the final scores, for which Java takes a second or two"""
    monkeypatch.setattr(evaluate, 'report', lambda *args: None)


def log(out):
    return [json.loads(line) for line in (Path(out) / 'log.jsonl').read_text().split('\n')[:-1]]


def epochs(out):
    """The log's lines about epochs, without the time"""
    found = [line for line in log(out) if 'epoch' in line]
    return [{k: v for k, v in line.items() if k != 'seconds'} for line in found]


def weights(path):
    return torch.load(path, weights_only=True)['state_dict']


def assert_same(a, b):
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k].nan_to_num(), b[k].nan_to_num()) for k in a)


def train_each(models, root, folder):
    """-> {model: folder of one uninterrupted run}; that of stats has its report"""
    for model in models:
        with pytest.MonkeyPatch.context() as patch:
            if model != 'stats':
                patch.setattr(evaluate, 'report', lambda *args: None)
            train.main(flags(model, root, folder / model))
    return {model: folder / model for model in models}


@pytest.fixture(scope='module')
def finished(root, tmp_path_factory):
    return train_each(SMALL, root, tmp_path_factory.mktemp('runs'))


def test_a_run_leaves_a_log_checkpoints_captions_and_a_picture(finished):
    out = finished['stats']
    head, *lines = log(out)
    assert head['config']['hidden'] == 8 and head['seed'] == 0
    assert head['torch'] == torch.__version__
    assert [line['epoch'] for line in lines] == [1, 2, 3]
    assert all(np.isfinite(line['val_CIDEr']) for line in lines)
    assert 'reward' in lines[2] and 'reward' not in lines[1]        # rewards begin after 2 epochs
    best = torch.load(out / 'best.pt', weights_only=True)
    assert best['best'] == max(line['val_CIDEr'] for line in lines)
    assert best['vocab'][:3] == ['<pad>', '<eos>', '<unk>']
    found = json.loads((out / 'captions-val.json').read_text())     # there is no test split
    assert set(found['videos']) == {f'vid{i}' for i in range(9, 13)}
    assert {'Bleu_1', 'Bleu_4', 'METEOR', 'ROUGE_L', 'CIDEr'} <= set(found['scores'])
    assert (out / 'attention.png').read_bytes()[:4] == b'\x89PNG'
    assert {path.name for path in out.iterdir()} == {
        'log.jsonl', 'last.pt', 'best.pt', 'captions-val.json', 'attention.png'}


# ---------------------------------------------------------------------- the same numbers again

@pytest.mark.parametrize('model, batch', [('stats', 4), ('stats', 6), ('sta', 7), ('vre', 9),
                                          ('vre', 11)])
def test_an_interrupted_run_resumes_to_the_same_numbers(finished, root, tmp_path, monkeypatch,
                                                        no_report, capsys, model, batch):
    """Ctrl-C or SIGTERM in a batch: 6 batches make an epoch, so also in the last batch of one"""
    collate = data.Batches.collate
    calls = []

    def interrupted(self, visits):
        if visits[0][1]:                                # a batch with captions, so of training
            calls.append(1)
            if len(calls) == batch:
                os.kill(os.getpid(), signal.SIGTERM if model == 'sta' else signal.SIGINT)
        return collate(self, visits)

    out = tmp_path / 'run'
    monkeypatch.setattr(data.Batches, 'collate', interrupted)
    with pytest.raises(SystemExit):
        train.main(flags(model, root, out))
    told = f'to continue: python train.py --resume --out {out} --root {root}'
    assert told in capsys.readouterr().out
    assert len(epochs(out)) < len(epochs(finished[model]))
    monkeypatch.setattr(data.Batches, 'collate', collate)
    resume(root, out)
    assert epochs(out) == epochs(finished[model])
    assert_same(weights(out / 'last.pt'), weights(finished[model] / 'last.pt'))


def test_a_seed_gives_the_same_result_twice_and_another_seed_does_not(finished, root, tmp_path,
                                                                      no_report, capsys):
    """And what is printed explains its columns once."""
    train.main(flags('stats', root, tmp_path / 'a'))
    printed = capsys.readouterr().out
    assert printed.count('columns: epoch; seconds so far; training loss per caption') == 1
    assert len(re.findall(r'epoch +\d .* training loss \d+\.\d+ \(nll .*rank ', printed)) == 3
    assert_same(weights(tmp_path / 'a' / 'last.pt'), weights(finished['stats'] / 'last.pt'))
    train.main(flags('stats', root, tmp_path / 'b', '--seed 1 --epochs 1'))
    assert epochs(tmp_path / 'b')[0]['loss'] != epochs(finished['stats'])[0]['loss']


def test_the_stages_of_vre_follow_one_another_and_a_resumed_run_takes_new_flags(
        finished, root, tmp_path, no_report):
    out = shutil.copytree(finished['vre'], tmp_path / 'run')
    stages = ['warm', 'joint', 'joint', 'frozen', 'reward']
    assert [line['stage'] for line in epochs(out)] == stages
    joint = weights(out / 'best-joint.pt')
    frozen = weights(out / 'best-frozen.pt')
    kept = [name for name in joint if name.startswith('encoder.')]
    assert kept
    for name in kept:
        assert torch.equal(joint[name], frozen[name.replace('encoder.', 'frozen.', 1)])
    with pytest.raises(BadInput, match='--frozen-epochs 0: .*from 1'):
        train.main(flags('vre', root, tmp_path / 'other', '--frozen-epochs 0'))
    resume(root, out, '--reward-epochs 2')
    assert [line['stage'] for line in epochs(out)] == [*stages, 'reward']
    for name, value, before in (('model', 'sta', 'vre'), ('limit', '4', None),
                                ('metric', 'loss', 'CIDEr'), ('features', 'x', 'tiny'),
                                ('optimizer', 'adamw', 'adam'), ('hidden', '9', '8')):
        with pytest.raises(BadInput, match=f'--{name} {value}: the run began with {before}'):
            resume(root, out, f'--{name} {value}')
    with pytest.raises(BadInput, match='unrecognized arguments: --visual 5'):
        resume(root, out, '--visual 5')


def test_resume_alone_continues_the_newest_run(finished, root, tmp_path, no_report, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for age, model in enumerate(('vre', 'stats', 'sta')):
        shutil.copytree(finished[model], tmp_path / 'runs' / f'{model}-msvd')
        os.utime(tmp_path / 'runs' / f'{model}-msvd' / 'last.pt', (age, age))
    train.main(f'--resume --epochs 4 --root {root}'.split())
    assert len(epochs('runs/sta-msvd')) == 4 and len(epochs('runs/stats-msvd')) == 3
    train.main(f'--resume --model stats --epochs 4 --root {root}'.split())
    assert len(epochs('runs/stats-msvd')) == 4


@pytest.mark.parametrize('metric, best, epochs_run', [('CIDEr', 2, 4), ('loss', 3, 5)])
def test_the_best_epoch_is_kept_and_patience_ends_the_run(root, tmp_path, no_report, monkeypatch,
                                                          metric, best, epochs_run):
    """CIDEr is best in epoch 2, the loss in epoch 3. Two epochs later the run stops."""
    scores = iter(zip([1.0, 3.0, 2.0, 2.0, 2.0, 9.0], [5.0, 4.0, 3.0, 4.0, 3.5, 0.0]))
    monkeypatch.setattr(evaluate, 'evaluate', lambda *args: (
        dict(zip(('CIDEr', 'loss'), next(scores))), {}, {}))
    train.main(flags('sta', root, tmp_path / 'run', f'--epochs 6 --patience 2 --metric {metric}'))
    assert len(epochs(tmp_path / 'run')) == epochs_run
    assert torch.load(tmp_path / 'run' / 'best.pt', weights_only=True)['best_epoch'] == best


def test_clipping_bounds_the_gradient(root, tmp_path, no_report):
    """Adam divides by |g| + 1e-8, so a gradient clipped to 1e-12 hardly moves a weight."""
    for name, more in (('clipped', '--clip 1e-12'), ('slow', '--rate 1e-12'), ('free', '')):
        train.main(flags('sta', root, tmp_path / name, f'--epochs 1 --weight-decay 0 {more}'))
    clipped, slow, free = (weights(tmp_path / name / 'last.pt')['w_p.weight']
                           for name in ('clipped', 'slow', 'free'))
    assert torch.allclose(clipped, slow, atol=1e-6) and not torch.allclose(free, slow, atol=1e-4)


# -------------------------------------------------------------------------------------- torchrun

@pytest.mark.parametrize('model, more, atol', [
    ('stats', '--eta 0 --reward-after 9 --epochs 2 --optimizer adam', 1e-5),
    ('vre', '--sampling 0 --rate 0.01 --stage joint', 1e-4)])
def test_two_processes_equal_one(root, tmp_path, no_report, model, more, atol):
    """Without chance: the same losses, scores and weights as one process on the joined batches.
    Each process sees half of the captions; after an epoch of vre both know the rewards of all."""
    more += ' --dropout 0 --clip 1000'
    one = tmp_path / 'one'
    two = tmp_path / 'two'
    if model == 'vre':
        train.main(flags(model, root, one, more.replace('joint', 'warm')))
        shutil.copytree(one, two)
    train.main(flags(model, root, one, more))
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node',
               '2', str(ROOT / 'train.py'), *flags(model, root, two, more)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300,
                          env={**os.environ, 'OMP_NUM_THREADS': '1'})
    assert done.returncode == 0, done.stderr[-2000:]
    ours = weights(one / 'last.pt')
    theirs = weights(two / 'last.pt')
    assert all(torch.allclose(ours[name], theirs[name], atol=atol) for name in ours)
    if model == 'vre':
        remembered = ours['previous_reward']
        assert remembered.isfinite().all() and remembered.std() > 0
    assert len(log(two)) == len(log(one))               # one log, not two
    for ours, theirs in zip(epochs(one), epochs(two)):
        assert ours == pytest.approx(theirs, abs=1e-4)


# -------------------------------------------------------------------------------------- mistakes

def test_a_loss_that_is_not_finite_names_its_term_and_leaves_no_folder(root, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, 'loss_per_word', lambda *args: float('nan'))
    with pytest.raises(BadInput, match='loss = nan in the val split, so nothing was saved'):
        train.main(flags('sta', root, tmp_path / 'run'))
    monkeypatch.setattr('stats.rank_loss', lambda w, *rest: w.sum(1) / 0)
    with pytest.raises(BadInput, match=r'loss = .*, rank = .* in epoch 1, batch 1'):
        train.main(flags('stats', root, tmp_path / 'run'))
    assert not list(tmp_path.iterdir())


def test_runs_that_start_at_once_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = SimpleNamespace(paper=SimpleNamespace(name='sta'), dataset=SimpleNamespace(name='shapes'),
                          given={})
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: claim_folder(SimpleNamespace(out=None), run), range(8)))
    assert len(set(found)) == 8 and all(path.is_dir() for path in found)


def test_a_run_repairs_its_log_is_not_overwritten_and_has_one_process(finished, root, tmp_path,
                                                                      no_report):
    out = shutil.copytree(finished['sta'], tmp_path / 'run')
    text = (out / 'log.jsonl').read_text()
    for cut in (len(text) - 1, len(text) - 9, text.rindex('{')):    # torn, torn, missing
        (out / 'log.jsonl').write_text(text[:cut])
        (out / 'last.pt.1.tmp').write_text('half')
        resume(root, out)
        assert epochs(out) == epochs(finished['sta']) and len(log(out)) == 5
        assert not list(out.glob('*.tmp'))
    with pytest.raises(BadInput, match='contains a run: add --resume, or choose'):
        train.main(flags('sta', root, out))
    with machine.locked(out), pytest.raises(BadInput, match='run is in use by another process'):
        resume(root, out)


def test_threads_are_counted_and_slow_steps_noticed_once(root, tmp_path, no_report):
    before = torch.get_num_threads()
    train.main(flags('sta', root, tmp_path / 'run', '--epochs 1 --threads 1'))
    assert log(tmp_path / 'run')[0]['threads'] == 1
    assert not any(machine.slowed_down({}, 1.0 if i < 20 else 9.0, ()) for i in range(50))
    torch.set_num_threads(2)
    pace = {}
    times = [1.0] * 20 + [9.0] * 3 + [1.0] * 20 + [3.1] * 20 + [9.0] * 20
    slow = [i for i, seconds in enumerate(times) if machine.slowed_down(pace, seconds, ('nll',))]
    assert slow == [47]                                 # when half of 10 steps were slow
    assert not any(machine.slowed_down(pace, 30.0, ('nll', 'reward')) for _ in range(20))
    torch.set_num_threads(before)


@pytest.mark.parametrize('more, message', [
    ('--features nothing',
     "no features 'nothing': .*there: tiny.*make them: python -m tools.extract --dataset msvd"),
    ('--root nowhere', 'nowhere/msvd: there is no such folder; --root'),
    ('--resume', 'run/last.pt: there is no such checkpoint'),
    ('--category', '--category: this dataset has no categories')])
def test_mistakes_get_one_clear_sentence(root, tmp_path, more, message):
    with pytest.raises(BadInput, match=message):
        train.main(flags('stats', root, tmp_path / 'run', more))
    assert not (tmp_path / 'run').exists()              # --resume must not find half a run


# ------------------------------------------------------------------------------- what else there is

def test_word2vec_fills_the_embedding(root, tmp_path, no_report):
    (tmp_path / 'v.txt').write_text('man ' + ' '.join(['7.5'] * 6) + '\n')
    more = f'--word2vec {tmp_path}/v.txt --rate 1e-9 --epochs 1'
    train.main(flags('sta', root, tmp_path / 'run', more))
    saved = torch.load(tmp_path / 'run' / 'last.pt', weights_only=True)
    filled = (saved['state_dict']['embed.weight'] - 7.5).abs() < 1e-4
    assert filled[saved['vocab'].index('man')].all() and not filled.all()


def test_an_ensemble_of_two_runs_is_scored(finished, root, tmp_path, capsys):
    shutil.copytree(finished['stats'], tmp_path / 'other')
    one = f'{finished["stats"]} --root {root} --device cpu'
    evaluate.main(f'{tmp_path}/other {one} --beam 2 --json {tmp_path}/x.json'.split())
    saved = json.loads((tmp_path / 'x.json').read_text())
    assert saved['beam'] == 2 and len(saved['videos']) == 4
    assert saved['runs'] == [str(tmp_path / 'other'), str(finished['stats'])]
    assert 'val split, 4 videos, beam 2' in capsys.readouterr().out
    for more, message in (('--split test', 'msvd has no test split'),
                          ('--beam 0', '--beam 0: the beam width must be from 1'),
                          (f'--json {tmp_path}', '--json .*: name a file'),
                          ('--step 1', '--step 1: .* is not a run of vre')):
        with pytest.raises(BadInput, match=message):
            evaluate.main(f'{one} {more}'.split())


@pytest.fixture(scope='module')
def world(tmp_path_factory):
    """A root for the embedded world: eight clips of each split are rendered once."""
    return tmp_path_factory.mktemp('world')


def small_world(world, out, more):
    return f'{more} --root {world} --limit 8 --out {out} --device cpu'.split()


@pytest.mark.parametrize('more', [
    '--model stats --epochs 1', '--model sta --epochs 1', '--model astar --epochs 1',
    '--model astar --variant resnet --epochs 1', '--model c3d --width 1 --epochs 1',
    '--model vre --warm-epochs 1 --joint-epochs 1 --frozen-epochs 1'])
def test_every_model_trains_on_the_embedded_world(world, tmp_path, no_report, more):
    train.main(small_world(world, tmp_path / 'run', more))
    last = epochs(tmp_path / 'run')[-1]
    assert np.isfinite(last['val_accuracy' if 'c3d' in more else 'val_slots'])


def test_a_recogniser_is_trained_and_scored(world, tmp_path, capsys):
    more = '--model sta --task recognise --epochs 1'
    train.main(small_world(world, tmp_path / 'run', more))
    saved = json.loads((tmp_path / 'run' / 'captions.json').read_text())
    assert len(saved['videos']) == 8 and set(saved['scores']) == {'accuracy', 'mAP'}
    for row in saved['videos'].values():
        assert row['class'] in shape_words.ACTIONS and row['labels']
        assert 0 < row['probability'] <= 1
    assert len(re.findall(r'^test\d+: .+ \| .+, \d\.\d\d$', capsys.readouterr().out, re.M)) == 5


# ------------------------------------------------------------------------- what the user is told

def test_ctrl_c_while_scoring_says_how_to_score(root, tmp_path, monkeypatch, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate, 'report', stop)
    assert train.main(flags('sta', root, tmp_path / 'run', '--epochs 1')) == 130
    told = f'python evaluate.py {tmp_path / "run"} --root {root}'
    assert told in capsys.readouterr().err


# Prints the help page, then does what train.py does. Importing torch takes longer than both.
HELP_AND_TRAIN = """
import contextlib, runpy
import train
with contextlib.suppress(SystemExit):
    train.main(['--help'])
runpy.run_path(train.__file__, run_name='__main__')
"""


def test_help_needs_no_docstrings_and_a_closed_pipe_saves_the_run_and_ends_quietly(root, tmp_path):
    command = [sys.executable, '-OO', '-c', HELP_AND_TRAIN, *flags('sta', root, tmp_path / 'run')]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as running:
        page = ''
        while not page.endswith('\nsta on msvd'):
            page += running.stdout.read(1)
        running.stdout.close()
        errors = running.stderr.read()
    assert '--even-mix' in page
    assert running.returncode == 130 and 'Traceback' not in errors and 'Error' not in errors
    assert (tmp_path / 'run' / 'last.pt').exists()


def test_a_run_is_scored_once_until_something_changes_and_shows_its_longest_right_caption(
        tmp_path, monkeypatch):
    out = tmp_path / 'run'
    train.main(['--dataset', 'puzzle-order', '--limit', '20', '--epochs', '1', '--out', str(out)])
    computed = []
    compute = evaluate.evaluate
    monkeypatch.setattr(evaluate, 'evaluate', lambda *args, **more: (
        computed.append(args), compute(*args, **more))[1])
    run, model = checkpoints.load(out)
    assert run.metric == 'slots'                        # a puzzle is about its words
    corpus = runs.open_split(run)
    first = scores.full_scores(run, model, corpus)
    with pytest.raises(BadInput, match='cannot write'):     # it is replaced as a whole
        scores.write_scores(tmp_path / 'nowhere' / 'captions.json', [run], corpus, first)
    assert not computed and first[0] == json.loads((out / 'captions.json').read_text())['scores']
    run.training.beam = 2
    scores.full_scores(run, model, corpus)
    assert len(computed) == 1
    assert scores.full_scores(run, model, corpus) == compute(run, model, corpus, 2, quick=False)
    assert len(computed) == 1
    checkpoint = checkpoints.read_checkpoint(out)
    torch.save({**checkpoint, 'epoch': 9}, out / 'best.pt')
    scores.full_scores(run, model, corpus)
    assert len(computed) == 2
    corpus.features['symbols'].path = tmp_path / 'features.npy'
    (tmp_path / 'features.npy').touch()                 # as if they were extracted again
    scores.full_scores(run, model, corpus)
    assert len(computed) == 3
    first, second = corpus.ids[:2]
    said = dict.fromkeys(corpus.ids, 'it')
    said |= {first: 'it opens and closes', second: corpus.captions[second][0]}
    drawn = []
    monkeypatch.setattr(scores, 'full_scores', lambda *some: ({}, said, {}))
    monkeypatch.setattr(figures, 'draw_video', lambda *some: drawn.append(some[2]))
    evaluate.report([run], model, corpus)
    said[second] = 'it'                                 # now none is right
    evaluate.report([run], model, corpus)
    assert drawn == [second, first]


# --------------------------------------------------------------------------------- a sixth paper

BLOCKS = re.findall(r'```python\n(.*?)```', (ROOT / 'README.md').read_text(), re.S)
PLAIN = next(block for block in BLOCKS if 'class Captioner' in block)


@pytest.fixture
def train_sixth(world, tmp_path, monkeypatch):
    """-> a function that trains a sixth paper, given its code"""
    monkeypatch.setattr(runs, 'TOP', tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, 'plain', raising=False)

    def train_it(code):
        (tmp_path / 'plain.py').write_text(code)
        train.main(small_world(world, tmp_path / 'run', '--model plain --epochs 2'))

    return train_it


def test_the_captioner_of_the_readme_is_a_sixth_paper(world, tmp_path, train_sixth):
    train_sixth(PLAIN)
    out = tmp_path / 'run'
    first, second = epochs(out)
    assert second['loss'] < first['loss']
    assert (out / 'attention.png').read_bytes()[:4] == b'\x89PNG'
    resume(world, out, '--epochs 3')
    assert len(epochs(out)) == 3
    evaluate.main([str(out), '--root', str(world), '--beam', '2', '--device', 'cpu'])


@pytest.mark.parametrize('before, after, message', [
    ('class Captioner', 'class Other', 'plain.py lacks a class Captioner'),
    ('def step', 'def other', 'plain.py lacks Captioner.step'),
    ('def forward', 'def other', 'plain.py lacks Captioner.forward'),
    ('@dataclass', '', 'plain.py lacks a dataclass Config'),
    ('    features: tuple', '    other: tuple', 'lacks the field `features` in Config')])
def test_what_a_paper_lacks_is_named_before_training(tmp_path, train_sixth, before, after, message):
    assert before in PLAIN
    with pytest.raises(BadInput, match=message):
        train_sixth(PLAIN.replace(before, after))
    assert not (tmp_path / 'run').exists()
