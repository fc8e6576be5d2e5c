"""The flags of train.py: what is refused at once in one sentence, and what --help says.

`flags.parse` renders, loads and trains nothing, so a thousand tries take seconds."""
import random
import re

import pytest
import torch

import helpers
from data import BadInput
from shapes import dataset as shapes
from tools import flags, runs

PAPERS = ('astar', 'c3d', 'sta', 'stats', 'vre')


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder to work in, which must stay empty"""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('COLUMNS', '300')
    yield tmp_path
    assert not [path for path in tmp_path.iterdir() if path.name != 'file']


# The message repeats the last flag of the line, then says this.
CHOICES = {
    '--model foo': 'astar, c3d', '--metric BLEU': 'CIDEr, Bleu_1', '--pool foo': 'mean, lstm',
    '--dataset foo': 'folder, hmdb51, hollywood2, msrvtt, msvd, mvad, shapes, ucf11, weizmann',
    '--dataset msvd --metric slots': 'CIDEr', '--features foo': 'clip, audio',
    '--variant foo': 'st, ts, stats', '--model sta --variant maxpool': 'soft, avgpool, first',
    '--model sta --task recognize --variant first': 'soft', '--reward beauty': 'cider',
    '--optimizer sgd': 'adam, adamw, rmsprop', '--schedule linear': 'constant, cosine',
    '--task foo': 'describe, recognise', '--model vre --stage foo': 'all, warm'}
RANGES = {
    '--limit 0': 'from 1', '--seed -1': 'from 0', '--hidden 0': 'from 1', '--max-len 0': 'from 1',
    '--videos-per-batch 0': 'from 1', '--beam 0': 'from 1 to 100', '--eta nan': 'from 0',
    '--rate nan': 'above 0 and at most', '--rate inf': 'above 0 and at most',
    '--clip 0.0': 'above 0', '--dropout 1.0': 'from 0 to 0.999',
    '--model vre --sampling 2.0': 'from 0 to 0.999'}
REASONS = {
    '--device meta': 'choose cpu, cuda', '--device nonsense': 'choose cpu, cuda',
    '--device cuda:99': 'torch finds no such GPU', '--word2vec nowhere.bin': 'there is no such',
    '--task recognise': 'stats.py can describe, and',
    '--model c3d --task describe': 'c3d.py can recognise, and',
    '--split-scheme official': 'shapes has only its official',
    '--fold 1': 'shapes has one split; hmdb51 and weizmann have several',
    '--features clip clip': "'clip' occurs twice", '--features ../x': "'../x' .*has letters",
    '--model c3d --features clip': 'C3D reads frames',
    '--model astar --variant soft --features clip': 'the variant soft reads pool2',
    '--model vre --epochs 1': 'vre trains in stages; use --warm-epochs, --joint',
    '--model sta --reward cider': 'sta.py does not use it',
    '--model c3d --beam 5': 'c3d generates no captions here',
    '--model sta --task recognise --embed 5': 'only --task describe uses it',
    '--model sta --block 2': 'only --task recognise uses it'}
SAID = {line: f'choose one of {text}' for line, text in CHOICES.items()}
SAID |= {line: f'must be {text}' for line, text in RANGES.items()} | REASONS
MISTAKES = [(line, f'--{line.rpartition("--")[2]}: .*{text}') for line, text in SAID.items()] + [
    ('--root', 'argument --root: expected one argument'),
    ('--no-such-flag', 'unrecognized arguments: --no-such-flag'),
    ('--out=', '--out is empty'),
    ('--out file/run', '--out .*file/run: .*/file is not a folder that can be written to'),
    ('--dataset ucf11', 'dataset ucf11 can teach to recognise: choose another'),
    ('--model sta --task recognise --dataset msvd', 'dataset msvd can teach to describe:'),
    ('--dataset msvd --split-scheme vre', "--split-scheme: invalid choice: 'vre' .*official"),
    ('--dataset ucf11 --model sta --split-scheme hash', "--split-scheme: invalid choice: 'hash'"),
    ('--partial', '--partial True: all clips of shapes have features'),
    ('--model sta --dataset hmdb51 --fold 4', '--fold: invalid choice: 4 .choose from 1, 2, 3'),
    ('--hidden 1.5', "argument --hidden: invalid int value: '1.5'"),
    ('--model vre --reward=', '--reward is empty, but stage reward needs a metric'),
    ('--resume', 'nothing to resume: there is no runs/'),
    ('--resume --out file', 'file/last.pt: there is no such checkpoint')]


@pytest.mark.parametrize('line, message', MISTAKES)
def test_a_mistake_is_one_sentence_and_leaves_nothing_behind(folder, line, message):
    (folder / 'file').write_text('')
    with pytest.raises(BadInput, match=message) as error:
        flags.parse(line.split())
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('line, task', [
    ('--model sta --task recognize', 'recognise'), ('--model sta', 'describe'),
    ('--model sta --dataset ucf11', 'recognise'), ('--model c3d', 'recognise'),
    ('--model c3d --task recognise', 'recognise'), ('--task describe', 'describe')])
def test_both_spellings_of_a_task_and_what_a_paper_or_dataset_decides(line, task):
    _, run, _ = flags.parse(line.split())
    assert run.training.task == task
    assert getattr(run.cfg, 'task', task) == task


def help_page(capsys, *more):
    with pytest.raises(SystemExit) as error:
        flags.parse([*more, '--help'])
    assert not error.value.code
    return ' '.join(capsys.readouterr().out.split())


@pytest.mark.parametrize('paper', PAPERS)
def test_help_gives_the_default_of_every_flag(capsys, paper):
    page = help_page(capsys, '--model', paper)
    assert page.index(' the run: ') < page.index(' the model ') < page.index(' the training: ')
    entries = re.split(r' (?=--[a-z])', page[page.index('--model NAME the paper'):])
    entries = [entry for entry in entries if not re.match(r'--[a-z0-9-]+,$', entry)]
    assert len(entries) > 20
    for entry in entries:
        assert 'default: ' in entry, entry


def test_help_is_that_of_the_paper_the_dataset_and_the_task(capsys):
    page = help_page(capsys)
    assert 'E, size of a word embedding, Sec. 4.1 (default: 64 for shapes, 256 in stats.py)' in page
    assert 'mean, lstm, mean+lstm, temporal, mean+temporal, ranked, mean+ranked; how ST' in page
    assert '--layers' not in page and '--split-scheme' not in page
    page = help_page(capsys, '--dataset', 'msrvtt')
    assert 'E, size of a word embedding, Sec. 4.1 (default: 256)' in page
    assert '--split-scheme' in page
    page = help_page(capsys, '--model', 'c3d')
    assert '--beam' not in page and '--word2vec' not in page and '--reward' not in page
    page = help_page(capsys, '--model', 'sta')
    assert '--block' not in page and '--beam' in page and '--task' in page
    page = help_page(capsys, '--model', 'sta', '--task', 'recognize')
    assert '--block' in page and '--beam' not in page and '(default: 128 for shapes' in page
    page = help_page(capsys, '--model', 'vre')
    assert ' --epochs' not in page and '--warm-epochs' in page and '--reward-after' not in page


# ------------------------------------------------------------------------------------- the fuzzer

HOSTILE = ('0', '-1', '1', '2', '0.5', 'nan', 'inf', '-inf', '1e300', '1e-300', '10' * 20, '',
           ' ', 'foo', '\u03bb', '../..', '/', '--', '--hidden', '\n', '$\\frac$', 'x' * 5000,
           'None', 'True', '[]', '1_000', '0x10', 'clip', 'cider+', '+', 'meta')


def tries(seed, count):
    """-> command lines with one hostile value, or with two. Every flag occurs."""
    draw = random.Random(seed)
    for i in range(count):
        paper = runs.Paper(PAPERS[i % len(PAPERS)])
        task = draw.choice(paper.tasks)
        options = flags.make_parser(paper, 'shapes', task)._option_string_actions
        known = sorted(option for option in options if option.startswith('--'))
        words = ['--model', paper.name, '--task', task]
        for name in [known[i // len(PAPERS) % len(known)], *draw.choices(known, k=i % 7 == 0)]:
            words += draw.choice(([name, draw.choice(HOSTILE)], [f'{name}={draw.choice(HOSTILE)}'],
                                  [name]))
        yield words


def test_no_value_of_any_flag_ends_in_a_traceback(capsys):
    refused = accepted = 0
    for words in tries(seed=0, count=5 * helpers.TRIES):
        try:
            _, run, _ = flags.parse(words)
            values = flags.values_of(run.cfg, run.training)
            assert all(0 <= v < 1e7 for v in values.values() if isinstance(v, (int, float))), words
            accepted += 1
        except BadInput:
            refused += 1
        except SystemExit as error:
            assert not error.code and '--help' in str(words), words
            accepted += 1
        except Exception as error:
            pytest.fail(f'{words}: {error!r}')
    assert refused > 150 and accepted >= 20


def test_the_known_sizes_of_the_features_are_those_that_are_rendered(tmp_path_factory):
    root = tmp_path_factory.mktemp('world')
    run = flags.parse(['--root', str(root), '--limit', '1', '--features', *[
        name for name in shapes.FEATURES if name != 'video']])[1]
    corpus = run.dataset.split('val', shapes.FEATURES)
    for name, shape in shapes.FEATURES.items():
        assert list(corpus.features[name].check(corpus.ids)[0]) == shape
    assert torch.is_tensor(torch.from_numpy(corpus.features['clip'][corpus.ids[0]]))


def test_a_preset_for_features_goes_before_one_for_the_dataset():
    paper = runs.Paper('stats')
    assert flags.preset(paper, 'msvd', 'describe')['features'] == ('i3d',)
    chosen = flags.preset(paper, 'msvd', 'describe', ('vgg16_fc',))
    assert chosen['rate'] == 5e-4 and chosen['min_count'] == 3      # the second is of the dataset
    assert 'rate' not in flags.preset(paper, 'msvd', 'describe', ('vgg16_fc', 'i3d'))
