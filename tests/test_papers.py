"""docs/PAPERS.md: the list of differences is that of the source, and every test it names exists."""
import re

from tools import papers

SOURCE = '''"""A docstring may say DEVIATION: it is not a comment."""
x = 1                       # H. UNSPECIFIED: the size; we chose 1
# this line is about the next one, not about the size
y = '# DEVIATION: in a string'
# Words before the tag are not part of it. DEVIATION: paper a, here b,
# because c. UNSPECIFIED: d;
# we chose e

# a new block
if x:
    # UNSPECIFIED:
    # f; we chose g
    y = (2,                 # DEVIATION: paper h, here i, because j
         3)                 # a trailing comment does not continue the one above
'''


def test_a_tag_runs_to_the_next_tag_or_to_the_end_of_its_comment_block():
    assert papers.tags(SOURCE) == [
        (2, 'UNSPECIFIED', 'the size; we chose 1'),
        (5, 'DEVIATION', 'paper a, here b, because c.'),
        (6, 'UNSPECIFIED', 'd; we chose e'),
        (11, 'UNSPECIFIED', 'f; we chose g'),
        (13, 'DEVIATION', 'paper h, here i, because j'),
    ]


def test_no_tag_is_lost():
    listed = papers.tagged_files()
    assert list(listed)[:5] == list(papers.PAPERS)
    folders = (papers.ROOT, papers.ROOT / 'shapes', papers.ROOT / 'tools')
    paths = [path for folder in folders for path in folder.glob('*.py')]
    paths.remove(papers.ROOT / 'tools' / 'papers.py')           # its docstring explains the tags
    for path in paths:
        source = path.read_text()
        found = listed.get(path.relative_to(papers.ROOT).as_posix(), [])
        assert len(found) == len(re.findall(r'#.*?\b(?:DEVIATION|UNSPECIFIED):', source)), path
        for line, kind, text in found:
            assert kind in source.split('\n')[line - 1]
            assert len(text.split()) > 3, f'{path}, line {line}: too short to read alone'


def test_a_row_links_to_the_line_and_shows_signs_of_markdown(monkeypatch, tmp_path):
    (tmp_path / 'one.py').write_text('x = 1  # UNSPECIFIED: |x| of <eos>; we chose 1\n')
    monkeypatch.setattr(papers, 'ROOT', tmp_path)
    monkeypatch.setattr(papers, 'PAPERS', ('one.py',))
    expected = ['[1](../one.py#L1)', 'open', r'\|x\| of \<eos>; we chose 1']
    assert papers.rows('one.py')[1:] == [expected]


def test_the_page_has_a_table_for_every_file_with_tags():
    """test_results.py checks that the tables are those of the source."""
    listed = re.findall(r'<!-- table differences-(\S+) -->', papers.PAGE.read_text())
    assert listed == list(papers.tagged_files())


def test_every_test_that_the_page_names_exists():
    named = re.findall(r'`tests/(\w+\.py)::(\w+)`', papers.PAGE.read_text())
    assert len(named) > 5
    for file, function in named:
        source = (papers.ROOT / 'tests' / file).read_text()
        assert f'\ndef {function}(' in source, f'{file} has no {function}'
