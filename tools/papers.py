"""The tables of differences from the papers in docs/PAPERS.md.

Comments in the paper files mark each difference with one of two tags:

    # DEVIATION: paper ..., here ..., because ...      we do not do what the paper says
    # UNSPECIFIED: ... we chose ...                    the paper does not say what to do

`python -m tools.results write` puts a table for each file with tags into the page. A tag runs to
the end of its comment block, or to the next tag. A block is a run of comment lines; a comment after
code is a block by itself.
"""
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / 'docs' / 'PAPERS.md'
PAPERS = ('c3d.py', 'astar.py', 'sta.py', 'stats.py', 'vre.py')
KINDS = {'DEVIATION': 'differs', 'UNSPECIFIED': 'open'}
TAG = re.compile(r'\b(DEVIATION|UNSPECIFIED):(.*?)(?=\b(?:DEVIATION|UNSPECIFIED):|\Z)', re.S)


def comment_blocks(source):
    """source code -> {line where a block of comments begins: its lines, without the #}"""
    blocks = {}
    first = next_line = 0   # where the current block begins, and which line would continue it
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            alone = token.line.lstrip().startswith('#')
            if not alone or line != next_line:
                first = line
            next_line = line + 1 if alone else 0
            blocks.setdefault(first, []).append(token.string.lstrip('#').strip())
    return blocks


def tags(source):
    """source code -> [(line, DEVIATION or UNSPECIFIED, text)]"""
    found = []
    for first, lines in comment_blocks(source).items():
        block = '\n'.join(lines)
        for tag in TAG.finditer(block):
            line = first + block.count('\n', 0, tag.start())
            found.append((line, tag[1], ' '.join(tag[2].split())))
    return found


def tagged_files():
    """-> {name: tags}: the papers, then the other files that have tags"""
    others = sorted([*ROOT.glob('shapes/*.py'), *ROOT.glob('tools/*.py')])
    names = [*PAPERS, *(path.relative_to(ROOT).as_posix() for path in others)]
    found = {name: tags((ROOT / name).read_text()) for name in names}
    return {name: several for name, several in found.items() if several}


def rows(name):
    """-> rows of the table of differences in this file"""
    table = [['line', 'kind', 'what']]
    for line, kind, text in tagged_files()[name]:
        text = re.sub(r'([|*<~])', r'\\\1', text)             # these mean something in Markdown
        table.append([f'[{line}](../{name}#L{line})', KINDS[kind], text])
    return table
