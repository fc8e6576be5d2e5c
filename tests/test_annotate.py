"""The pages of tools.annotate: equations, code, shapes, and a look in Chromium."""
import ast
import html
import re
import runpy
from xml.etree import ElementTree

import pytest
import torch
from latex2mathml import converter
from test_page import HOSTILE, browser  # noqa: F401  (a fixture)

from data import BadInput
from tools import annotate, papers, trace

NAMES = [*trace.RUNS]
SOURCES = {name: (annotate.ROOT / f'{name}.py').read_text() for name in NAMES}
EQUATIONS = {name: annotate.read_equations(name) for name in NAMES}


def code_column(page):
    """-> the text of the code column, and the titles in it: [(line, title)]"""
    code = ''.join(re.findall('<pre class="code">(.*?)</pre>', page, re.S))
    titles = []
    for line, content in re.findall(r'data-n="(\d+)">(.*?)\n</span>', code):
        for title in re.findall('title="([^"]*)"', content):
            titles.append((int(line), html.unescape(title)))
    return html.unescape(re.sub('<[^>]*>', '', code)), titles


@pytest.fixture(scope='module')
def pages():
    return {name: annotate.page(name, SOURCES[name], *trace.shapes_of(name)) for name in NAMES}


@pytest.mark.parametrize('name', NAMES)
def test_every_equation_that_a_file_covers_stands_on_a_line_and_has_its_latex(name, pages):
    mentioned = set()
    for lines in papers.comment_blocks(SOURCES[name]).values():
        for mention in annotate.MENTION.findall(' '.join(lines)):
            mentioned.update(annotate.numbers_in(mention))
    beside = set(sum(annotate.computed(SOURCES[name]).values(), []))    # the code stands beside it
    covers = ast.get_docstring(ast.parse(SOURCES[name])).partition('Covers:')[2]
    covers = ' '.join(covers.partition('Leaves out:')[0].split())
    promised = set(sum(map(annotate.numbers_in, annotate.MENTION.findall(covers)), []))
    assert promised == mentioned == beside == set(EQUATIONS[name])
    targets = set(re.findall(r'id="(eq-[^"]+)"', pages[name]))
    assert targets == {f'eq-{number.replace(" ", "-")}' for number in mentioned}
    assert set(re.findall(r'href="#(eq-[^"]+)"', pages[name])) == targets
    assert bool(EQUATIONS[name]) == (name not in ('c3d', 'decode'))
    for number, (latex, _) in EQUATIONS[name].items():
        found = converter.convert(latex, display='block')
        ElementTree.fromstring(found)
        assert '\\' not in found, number                # no command that it does not know


@pytest.mark.parametrize('name', NAMES)
def test_the_code_column_is_the_file(name, pages):
    assert code_column(pages[name])[0] == SOURCES[name]
    _, said = annotate.read_prose(SOURCES[name], EQUATIONS[name])
    marked = re.findall(r'<p class="(?:deviation|unspecified)"><b>(\w+)</b>', pages[name])
    own_lines = [kind for line, kind, _ in papers.tags(SOURCES[name]) if line in said]
    assert marked == ['DEVIATION', 'UNSPECIFIED', *own_lines]       # the first two: the legend


def test_mentions_are_ranges_and_lists_and_a_formula_leaves_the_rest_prose():
    assert annotate.numbers_in('Eq. 2.1, 2.2') == ['2.1', '2.2']
    assert annotate.numbers_in('Eq. 12-14') == ['12', '13', '14']
    assert annotate.link('Eq. 1 and 19', {'1': ''}) == '<a href="#eq-1">Eq. 1</a> and 19'
    found = annotate.docstring_html('By Schwarz\n    a >= b,\nas c = 0.\n\nName:  x\n       y', {})
    assert found == ('<p>By Schwarz\n</p><pre>    a &gt;= b,</pre><p>as c = 0.</p>'
                     '<pre>Name:  x\n       y</pre>')


def test_titles_are_the_shapes_of_the_batch(pages):
    """5 videos with 2 captions each, 8 frames of 3 x 3 places; sizes from trace.SMALL"""
    lines = SOURCES['stats'].split('\n')
    titles = {(lines[line - 1].split('#')[0].strip(), title)
              for line, title in code_column(pages['stats'])[1]}
    assert ('tau = (score / self.temperature).softmax(1)', 'tau: (10, 8)') in titles
    assert ('x_bar = x.mean(2)', 'x_bar: (5, 8, 24)') in titles
    assert ('q = torch.cat([state[\'h\'], s], 1)', 'q: (10, 48)') in titles
    assert ('def rank_loss(w, x, margin, mask):', 'x: (10, 8, 24)') in titles
    assert ('mix = torch.full_like(mix, 0.5)', 'mix: (10, 2)') not in titles     # never ran


def test_the_tracer_sees_arguments_several_lines_and_only_that_file(tmp_path):
    path = tmp_path / 'traced.py'
    path.write_text('import torch\n\n\ndef f(a,\n      b):\n    a = torch.cat(\n        [a, a])\n'
                    '    n = 3\n    return {"both": [a, b]}\n\n\ndone = None\n')
    other = tmp_path / 'other.py'
    other.write_text('import torch\n\n\n\n\na = torch.ones(9)\n')

    def run():
        runpy.run_path(str(path))['f'](torch.zeros(2, 3), torch.zeros(4))
        runpy.run_path(str(other))

    assert trace.trace(path, run) == {(4, 'a'): '(2, 3)', (5, 'b'): '(4,)', (6, 'a'): '(4, 3)'}
    assert trace.describe({'x': [torch.zeros(1), 2], 'y': 'z'}) == '{x (1,)}'


def test_hostile_text_is_escaped():
    text = f'"""{HOSTILE}\n\n{HOSTILE} Eq. 1"""\n# {HOSTILE}\nx = "{HOSTILE}"  # {HOSTILE}\n'
    made = annotate.page('stats', text, {(5, 'x'): f'"{HOSTILE}'}, HOSTILE)
    assert '<img' not in made and '<script' not in made and made.count('<!--') == 1
    assert code_column(made) == (text, [(5, f'x: "{HOSTILE}')])


def test_the_command_writes_pages_and_reports_mistakes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    annotate.main(['decode'])
    assert 'decode.html, 0.' in capsys.readouterr().out
    for argv, message in (('train', 'invalid choice'), ('decode --out no/x.html', 'cannot write'),
                          ('all --out x.html', 'leave one of them out')):
        with pytest.raises(BadInput, match=message):
            annotate.main(argv.split())
    assert [path.name for path in tmp_path.iterdir()] == ['decode.html']


@pytest.mark.parametrize('name', NAMES)
def test_pages_open_in_a_browser(browser, name, pages, tmp_path):  # noqa: F811
    path = tmp_path / 'x.html'
    path.write_text(pages[name])
    browser.fetched()
    for width in (390, 1280):
        browser.open(path.as_uri(), width)
        wide, inside = browser.widths()
        assert wide == inside <= width
        sizes = browser.get("""[...document.querySelectorAll("math")].map(
            e => [e.getBoundingClientRect().width, e.getBoundingClientRect().height])""")
        assert len(sizes) >= len(EQUATIONS[name]) and all(min(size) > 10 for size in sizes)
        left, right = browser.get("""[...document.querySelectorAll(".row")[10].children].map(
            e => e.getBoundingClientRect().left)""")
        assert (left == right) == (width == 390)        # one column on a phone
    cut = browser.get("""[...document.querySelectorAll(".row .formula")].filter(
        e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)""")
    assert not cut                                      # a projector shows whole equations
    hidden = 'document.querySelector("#L1").offsetHeight'
    assert browser.get(hidden) == 0
    browser.run('document.querySelector("#whole").click()')
    assert browser.get(hidden) > 0
    assert browser.complaints() == [] and browser.fetched() == {path.as_uri()}
