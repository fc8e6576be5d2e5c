"""Tables from logs: every published number comes from a file in results/. And the runs that come
with the project."""
import argparse
import inspect
import json
import shutil

import pytest
import torch

import decode
import evaluate
import stats
from data import BadInput
from shapes import dataset, words
from tools import checkpoints, course, flags, grounding, results, runs, scores

SHIPPED = results.TOP / 'shapes' / 'runs'


def make_run(folder, slots):
    """A folder such as train.py leaves it"""
    folder.mkdir(parents=True)
    head = {'args': {}, 'seed': 1, 'git': 'abc', 'python': '3', 'torch': '2', 'threads': 1}
    log = [head, {'epoch': 1, 'stage': 'a', 'loss': 1.23456, 'seconds': 10.0},
           {'epoch': 2, 'stage': 'a', 'loss': 1.0, 'seconds': 20.0}, head,
           {'epoch': 1, 'stage': 'b', 'loss': 0.5, 'seconds': 7.0}]
    (folder / 'log.jsonl').write_text('\n'.join(map(json.dumps, log)))
    captions = {'split': 'test', 'beam': 2, 'length_penalty': 0.0, 'videos': {'v': {}},
                'scores': {'slots': slots}}
    (folder / 'captions.json').write_text(json.dumps(captions))


def test_a_record_keeps_the_epochs_and_adds_the_seconds_of_all_stages(tmp_path):
    make_run(tmp_path / 'run', 0.987654)
    found = results.record(tmp_path / 'run', '--model vre')
    assert found['command'] == 'python train.py --model vre --seed 1'
    assert found['seconds'] == 27.0
    assert [epoch['loss'] for epoch in found['epochs']] == [1.23456, 1.0, 0.5]
    assert found['scores'] == {'slots': 0.987654} and found['videos'] == 1


@pytest.mark.parametrize('values, text', [
    ([], ''), ([0.5], '0.50'), ([0.501, 0.499], '0.50'),
    ([0.9, 1.0], '0.95 (0.90 to 1.00)')])
def test_a_cell_has_the_mean_and_the_range(values, text):
    assert results.mean_and_range(values) == text


def test_the_mean_over_runs_such_as_folds(tmp_path, capsys):
    for name, slots in (('one', 0.5), ('two', 0.75)):
        make_run(tmp_path / name, slots)
    results.main(['mean', str(tmp_path / 'one'), str(tmp_path / 'two')])
    assert capsys.readouterr().out.split('\n')[-2] == '| mean | 0.625 |'
    with pytest.raises(BadInput, match='no scores there; make them: python evaluate.py'):
        results.main(['mean', str(tmp_path)])


def test_runs_that_have_a_file_are_not_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(results, 'RESULTS', tmp_path)
    monkeypatch.setitem(results.SPECS, 'puzzles', {'runs': {'order-st': ''}})
    (tmp_path / 'puzzles').mkdir()
    (tmp_path / 'puzzles' / 'order-st-1.json').write_text('{"scores": {"slots": 0.25}}')
    assert results.missing('puzzles', 3) == [('order-st', 0), ('order-st', 2)]
    assert results.puzzle_cells([('ST', 'order-st', 'slots')]) == 'ST 0.25'


def test_a_row_without_a_log_says_so_and_scores_come_before_numbers_of_the_last_epoch(
        tmp_path, monkeypatch):
    monkeypatch.setattr(results, 'RESULTS', tmp_path)
    spec = {'runs': {'one': '--x 1', 'two': '--x 2'}, 'columns': {'S': 'slots', 'G': 'gate'},
            'paper': {'heading': 'paper', 'two': '0.7'}}
    monkeypatch.setitem(results.SPECS, 'new', spec)
    (tmp_path / 'new').mkdir()
    log = {'scores': {'slots': 0.5}, 'epochs': [{'gate': 0.1}, {'slots': 0.9, 'gate': 0.25}]}
    (tmp_path / 'new' / 'one-0.json').write_text(json.dumps(log))
    assert results.runs_table('new') == [['run', 'seeds', 'S', 'G', 'paper'],
                                         ['`--x 1`', '1', '0.500', '0.250', ''],
                                         ['`--x 2`', '0', 'not run', '', '0.7']]
    other = {'of': 'new', 'labels': {'one': 'first'}, 'columns': {'G': 'gate'}, 'digits': 1}
    monkeypatch.setitem(results.SPECS, 'other', other)
    assert results.runs_table('other') == [['run', 'seeds', 'G'], ['first', '1', '0.2']]


@pytest.mark.parametrize('table', results.RUNNABLE)
def test_the_flags_of_every_row_are_accepted_and_are_those_of_its_logs(table, tmp_path):
    for row, flags_of_row in results.SPECS[table]['runs'].items():
        if flags_of_row.startswith(results.ENSEMBLE):
            continue
        words_of_row = results.command_of(table, row, 0).removeprefix(results.CONSTANT).split()
        _, run, _ = flags.parse([*words_of_row, '--root', str(tmp_path)])
        assert f'--model {run.paper.name}' in flags_of_row, row
        for log in results.read(table, row):
            if not log['epochs']:
                continue
            command = results.command_of(table, row, log['seed'])
            assert log['command'] == f'python train.py {command} --seed {log["seed"]}'
            assert len(log['epochs']) <= epochs_of(run), row        # fewer if it stopped early
            rewarded = [number for number, epoch in enumerate(log['epochs']) if 'baseline' in epoch]
            if rewarded and not run.paper.stages:   # a preset may have changed since the run
                assert rewarded[0] == run.training.reward_after, row


def epochs_of(run):
    if run.paper.stages:
        return sum(epochs for _, epochs, _ in run.paper.stages(run.cfg))
    return run.training.epochs


def test_blind_scores_by_hand():
    references = {'a': ['x y z w'], 'b': ['p q r s']}
    right = {'a': 'x y z w', 'b': 'p q r s'}
    found = results.blind_scores(references, right, {'a': {'CIDEr': 1.0}, 'b': {'CIDEr': 3.0}})
    assert found['CIDEr error'] == pytest.approx(1.0)      # sqrt(2) / sqrt(2)
    assert found['shuffled CIDEr'] == 0.0                  # no word is shared
    swapped = {'a': 'p q r s', 'b': 'x y z w'}
    found = results.blind_scores(references, swapped, {'a': {'CIDEr': 0.0}, 'b': {'CIDEr': 0.0}})
    assert found['shuffled CIDEr'] == pytest.approx(10.0)


@pytest.mark.parametrize('name', ['stats', 'vre'])
def test_a_record_says_where_the_attention_of_a_run_was(name, tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, 'SIZES', {'train': 1, 'val': 1, 'test': 4})
    run, model = checkpoints.load(SHIPPED / name, str(tmp_path))
    corpus = runs.open_split(run)
    captions = {i: several[0] for i, several in corpus.captions.items()}
    each = {i: {'CIDEr': float(n)} for n, i in enumerate(captions)}
    monkeypatch.setattr(scores, 'full_scores', lambda *_: ({}, captions, each))
    found = results.measure(SHIPPED / name, str(tmp_path))
    roles, keys = grounding.ground(run, model, corpus, captions)
    assert found['box subject'] == roles['subject', 'box'] > roles['subject', 'box chance']
    assert found['CIDEr error'] == pytest.approx((5 / 3) ** 0.5 / 2)    # of 0, 1, 2, 3
    assert ('refocused key' in found) == (name == 'vre') and keys.items() <= found.items()


def test_an_ensemble_of_equal_runs_scores_like_one_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, 'SIZES', {'train': 1, 'val': 1, 'test': 3})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match='an ensemble needs several runs, found 0'):
        results.ensemble_run('ensemble one', 'new', 'data')
    for seed in (0, 1):
        shutil.copytree(SHIPPED / 'stats', f'runs/new/one-{seed}')
    found = results.ensemble_run('ensemble one', 'new', 'data')
    run, model = checkpoints.load(SHIPPED / 'stats', 'data')
    alone, _, _ = evaluate.evaluate(run, model, runs.open_split(run), run.training.beam)
    assert found['runs'] == 2 and found['videos'] == 3
    for name in ('CIDEr', 'loss', 'slots'):
        assert found['scores'][name] == pytest.approx(alone[name], abs=1e-5)


def test_ensembles_come_last_and_have_one_run(tmp_path, monkeypatch):
    monkeypatch.setattr(results, 'RESULTS', tmp_path)
    spec = {'runs': {'both': 'ensemble one', 'one': '--x 1', 'same': 'constant --x 1'}}
    monkeypatch.setitem(results.SPECS, 'new', spec)
    made = []
    monkeypatch.setattr(results, 'make_run', lambda _, row, seed, root: made.append((row, seed)))
    results.make_runs('new', argparse.Namespace(jobs=1, seeds=2, root='data'))
    assert made == [('one', 0), ('one', 1), ('same', 0), ('both', 0)]


def test_the_constant_caption_is_the_one_that_fits_most_videos():
    references = {'1': ['a man talks', 'a man talks'], '2': ['a man talks', 'a dog runs'],
                  '3': ['a cat sleeps', 'a dog runs']}
    assert results.constant_caption(references) == 'a man talks'


def test_a_table_is_made_again_between_its_marks(monkeypatch):
    monkeypatch.setitem(results.TABLES, 'puzzles', lambda: [['a', 'b'], ['1', '2']])
    page = 'x\n<!-- table puzzles -->\nold\n<!-- end of table -->\ny'
    new = '| a | b |\n| --- | --- |\n| 1 | 2 |'
    assert results.fill(page) == page.replace('old', new)
    with pytest.raises(BadInput, match='end mark'):
        results.fill('<!-- table puzzles -->\nold')


def test_the_figure_has_a_line_for_every_seed_with_the_numbers_of_its_log(tmp_path):
    figure = results.draw_training(tmp_path / 'figure.png')
    for panel, axes in zip(results.PANELS, figure.axes, strict=True):
        drawn = [line.get_ydata().tolist() for line in axes.lines]
        expected = []
        for _, run, name in panel['lines']:
            logs = sorted(results.RESULTS.glob(f'{run}-?.json'))
            for log in map(json.loads, (path.read_text() for path in logs)):
                expected.append([epoch[name] for epoch in log['epochs'] if name in epoch])
        assert drawn == expected and all(drawn)
        assert len(axes.get_legend().texts) == len(panel['lines'])


@pytest.mark.parametrize('page', results.PAGES)
def test_the_tables_in_the_documents_are_those_of_the_logs(page):
    text = (results.TOP / page).read_text()
    assert results.fill(text) == text, 'run python -m tools.results write'


def test_the_course_names_the_lines_of_functions_and_methods():
    for part, name in ((stats.rank_loss, 'rank_loss'), (stats.Visual.forward, 'Visual.forward')):
        lines, first = inspect.getsourcelines(part)
        last = first + len(lines) - 1
        old = f'| [`{name}`](../stats.py#L1-L2) in stats.py | 1 to 2 | Eq. 1 |'
        link = f'[`{name}`](../stats.py#L{first}-L{last}) in stats.py'
        assert course.renew_lines(old) == f'| {link} | {first} to {last} | Eq. 1 |'


def test_the_course_shows_command_time_and_scores_of_a_run():
    log = {'command': 'python train.py --x 1 --seed 2', 'seed': 2, 'seconds': 61.7,
           'scores': {'slots': 0.5, 'verb': 0.5}}
    rows = course.expected(1, lambda table, name: [log], str)
    assert rows[1] == ['`python train.py --x 1`', '62', "[('slots', 'order-mean', 'slots')]"]
    log['scores']['noun'] = 0.5                         # a puzzle that asks for two words
    rows = course.expected(1, lambda table, name: [log], str)
    assert rows[1][2] == "[('noun', 'order-mean', 'noun'), ('verb', 'order-mean', 'verb')]"


# ------------------------------------------------------- runs that come with the project
@pytest.mark.parametrize('name', results.SPECS['shipped']['runs'])
def test_a_shipped_run_is_its_weights_alone_and_has_a_log(name):
    checkpoint = checkpoints.read_checkpoint(SHIPPED / name)
    run, model = checkpoints.load(SHIPPED / name)
    assert run.paper.name == name and run.dataset.name == 'shapes' and not model.training
    assert not {'optimizer', 'rng'} & checkpoint.keys()
    log = json.loads((results.RESULTS / 'shipped' / f'{name}-0.json').read_text())
    assert log['command'] == f'python train.py {results.SPECS["shipped"]["runs"][name]} --seed 0'
    assert log['videos'] == 500 and log['epochs'][-1]['epoch'] >= checkpoint['epoch']


def test_a_run_is_shipped_in_half_precision_without_its_optimizer(tmp_path, monkeypatch):
    kept = checkpoints.read_checkpoint(SHIPPED / 'stats')
    weights = {key: value.float() for key, value in kept['state_dict'].items()}
    torch.save({**kept, 'state_dict': weights, 'optimizer': {}, 'rng': 1}, tmp_path / 'best.pt')
    monkeypatch.setattr(results, 'TOP', tmp_path)
    results.ship(tmp_path, 'copy')
    found = torch.load(tmp_path / 'shapes' / 'runs' / 'copy' / 'best.pt', weights_only=True)
    assert found.keys() == kept.keys()
    for key, value in found['state_dict'].items():
        assert value.dtype == torch.float16 and torch.equal(value, kept['state_dict'][key])


def test_the_shipped_run_of_real_clips_is_that_of_the_table_and_describes_features_of_i3d():
    run, model = checkpoints.load(SHIPPED / 'msrvtt')
    log = json.loads((results.RESULTS / 'msrvtt' / 'stats-0.json').read_text())
    assert run.dataset.name == 'msrvtt' and run.encoders['i3d']['sampling'] == 'chunks8x16'
    assert log['command'] == f'python train.py {results.command_of("msrvtt", "stats", 0)} --seed 0'
    batch = {'feats': {'i3d': torch.rand(1, 8, 7, 7, 2048)},
             'mask': {'i3d': torch.ones(1, 8, dtype=torch.bool)}}
    with torch.no_grad():
        words, _ = decode.beam(model, *model.encode(batch), 20, run.training.beam)
    caption = run.vocabulary.decode(words[0].tolist())
    assert caption.startswith(('a ', 'people ', 'someone ', 'two ')) and len(caption.split()) > 2


def test_shipped_runs_are_small():
    sizes = {path.parent.name: path.stat().st_size for path in SHIPPED.glob('*/best.pt')}
    assert sizes.pop('msrvtt') < 20e6 and sum(sizes.values()) < 8e6
    assert sum(path.stat().st_size for path in results.RESULTS.rglob('*.json')) < 2e6


@pytest.mark.parametrize('name', ['stats', 'vre', 'sta', 'astar'])
def test_a_shipped_captioner_describes_clips_as_well_as_its_log_says(name, tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, 'SIZES', {'train': 1, 'val': 1, 'test': 40})
    run, model = checkpoints.load(SHIPPED / name, str(tmp_path))
    corpus = runs.open_split(run)
    captions = evaluate.describe(run, model, corpus, run.training.beam)
    log = json.loads((results.RESULTS / 'shipped' / f'{name}-0.json').read_text())
    assert words.slot_accuracy(captions, corpus.truth) == pytest.approx(log['scores']['slots'],
                                                                        abs=0.08)
