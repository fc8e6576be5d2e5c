"""The promises of the layout: what a paper's file opens with, imports and numbers, and that the README tells every difference."""
import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAPERS = [name for name in ('c3d', 'astar', 'sta', 'stats', 'vre') if (ROOT / f'{name}.py').exists()]
SOURCES = sorted(ROOT.glob('*.py')) + sorted((ROOT / 'tests').glob('*.py'))


def source(name):
    return (ROOT / f'{name}.py').read_text()


def expand(text):
    """'Eq. 2-4, 6' -> {'2', '3', '4', '6'};  'Eq. 2.6-2.7' -> {'2.6', '2.7'}"""
    numbers = set()
    for first, last in re.findall(r'(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?', text):
        chapter, dot, low = first.rpartition('.')
        numbers |= {f'{chapter}{dot}{n}' for n in range(int(low), int((last or first).rpartition('.')[2]) + 1)}
    return numbers


@pytest.mark.parametrize('name', PAPERS)
def test_a_paper_opens_with_its_question_citation_and_letters(name):
    docstring = ast.get_docstring(ast.parse(source(name)))
    assert '?' in docstring.split('\n')[0]
    for heading in ('Paper:', 'Covers:', 'Leaves out:', 'Letters:'):
        assert heading in docstring
    assert re.search(r'arXiv:\d{4}\.\d{5}|doi', docstring, re.I)


@pytest.mark.parametrize('name', PAPERS)
def test_a_paper_imports_torch_and_the_two_shared_files_alone(name):
    allowed = {'torch', 'data', 'decode', *sys.stdlib_module_names} | ({'c3d'} if name == 'astar' else set())
    for node in ast.walk(ast.parse(source(name))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module] if isinstance(node, ast.ImportFrom) else []
        assert {n.split('.')[0] for n in names} <= allowed


@pytest.mark.parametrize('name', PAPERS)
def test_every_equation_that_a_paper_covers_stands_on_a_line_and_no_other(name):
    docstring = ast.get_docstring(ast.parse(source(name)))
    covers = docstring[docstring.index('Covers:'):docstring.index('Leaves out:')]
    promised = set().union(*(expand(part) for part in re.findall(r'Eq\. ([\d., -]*\d)', covers.split('; the LSTM')[0])), set())
    comments = [line.split('#', 1)[1] for line in source(name).split('\n') if '#' in line]
    found = set().union(*(expand(part) for line in comments for part in re.findall(r'Eq\. (\d[\d., -]*)', line)), set())
    assert promised == found, f'promised, not found: {promised - found}; found, not promised: {found - promised}'


def test_the_readme_tells_every_difference_from_the_papers():
    readme = (ROOT / 'README.md').read_text()
    table = readme[readme.index('## Differences from the papers'):]
    for name in PAPERS:
        tags = len(re.findall(r'(DEVIATION|UNSPECIFIED):', source(name)))
        rows = len(re.findall(rf'^\| `?{name}\.py`? \|', table, re.M))
        assert rows == tags, f'{name}.py has {tags} tags, the README {rows} rows'


@pytest.mark.parametrize('path', SOURCES, ids=lambda path: path.name)
def test_lines_fit_a_window_and_nothing_dangerous_is_called(path):
    text = path.read_text()
    assert max(map(len, text.split('\n'))) <= (130 if path.parent == ROOT else 160)
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    for call in calls:
        name = ast.unparse(call.func)
        keywords = {k.arg: ast.unparse(k.value) for k in call.keywords}
        assert name not in ('eval', 'exec', 'os.system', 'pickle.load', 'pickle.loads')
        assert name != 'torch.load' or keywords.get('weights_only') == 'True'
        assert keywords.get('shell') != 'True'
        assert not re.search(r'\.squeeze\(\)$', ast.unparse(call)), 'squeeze() without a dim eats a batch of one'


def test_only_the_decoder_loop_calls_step():
    for path in sorted(ROOT.glob('*.py')):
        calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call) and ast.unparse(n.func).endswith('.step')]
        calls = [n for n in calls if 'optimizer' not in ast.unparse(n.func) and 'schedule' not in ast.unparse(n.func)]
        assert not calls or path.name == 'decode.py', f'{path.name} calls step itself: {ast.unparse(calls[0])}'
