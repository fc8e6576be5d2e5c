"""The promises of the layout: what a paper's file opens with, imports and numbers, and that the
house stays as small and plain as it says."""
import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAPERS = ('c3d', 'astar', 'sta', 'stats', 'vre')
SOURCES = sorted(path for path in ROOT.rglob('*.py')
                 if path.parent.name in (ROOT.name, 'shapes', 'tools', 'tests'))
HOUSE = {'data.py', 'decode.py', 'train.py', 'evaluate.py'}


def source(name):
    return (ROOT / f'{name}.py').read_text()


def test_the_top_level_holds_the_papers_what_they_share_and_the_two_commands():
    names = {path.name for path in ROOT.glob('*.py')}
    assert names == HOUSE | {f'{paper}.py' for paper in PAPERS}


@pytest.mark.parametrize('name', PAPERS)
def test_a_paper_opens_with_its_question_citation_and_letters(name):
    docstring = ast.get_docstring(ast.parse(source(name)))
    assert '?' in docstring.split('\n')[0]
    for heading in ('Paper:', 'Covers:', 'Leaves out:', 'Letters:'):
        assert heading in docstring
    assert re.search(r'arXiv:\d{4}\.\d{5}|doi', docstring, re.I)


def imports(path):
    """Top-level names that a file imports"""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split('.')[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module.split('.')[0])
    return found


@pytest.mark.parametrize('name', PAPERS)
def test_a_paper_imports_torch_and_the_two_shared_files_alone(name):
    allowed = {'torch', 'data', 'decode', *sys.stdlib_module_names}
    if name == 'astar':
        allowed.add('c3d')
    assert imports(ROOT / f'{name}.py') <= allowed


def test_imports_point_one_way():
    ours = {*PAPERS, 'data', 'decode', 'shapes', 'tools', 'evaluate', 'train'}
    assert imports(ROOT / 'data.py') & ours == set()
    assert imports(ROOT / 'decode.py') & ours == {'data'}
    for path in (ROOT / 'shapes').glob('*.py'):
        assert not imports(path) & {'evaluate', 'train'}, path
        assert not re.search(r'^(import|from) tools', path.read_text().replace(
            'from tools import machine\n', ''), re.M), path
    for path in [*(ROOT / 'tools').glob('*.py'), ROOT / 'evaluate.py']:
        assert 'train' not in imports(path), path


@pytest.mark.parametrize('path', SOURCES, ids=lambda path: f'{path.parent.name}/{path.name}')
def test_lines_fit_a_window_and_nothing_dangerous_is_called(path):
    text = path.read_text()
    assert max(map(len, text.split('\n'))) <= 100
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        assert name not in ('eval', 'exec', 'os.system', 'pickle.load', 'pickle.loads')
        assert name != 'torch.load' or keywords.get('weights_only') == 'True'
        assert keywords.get('shell') != 'True'
        assert not re.search(r'\.squeeze\(\)$', ast.unparse(node)), 'it removes a batch of one'


def test_no_function_is_longer_than_a_screen_or_takes_more_than_five_arguments():
    for path in SOURCES:
        if path.parent.name == 'tests':
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef):
                continue
            place = f'{path.name}, {node.name}'
            assert node.end_lineno - node.lineno < 60, place
            names = [argument.arg for argument in node.args.args]
            if node.name != '__init__':                 # a layer may have more sizes
                assert len([name for name in names if name not in ('self', 'cls')]) <= 5, place


def test_only_the_decoder_loop_calls_step():
    for path in SOURCES:
        if path.parent.name == 'tests' or path.name == 'decode.py':
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith('.step'):
                called = ast.unparse(node.func)
                assert 'optimizer' in called or 'schedule' in called, f'{path.name}: {called}'
