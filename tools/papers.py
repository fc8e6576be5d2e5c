"""List every difference from the papers in docs/PAPERS.md:  python -m tools.papers

Comments in the paper files mark each difference with one of two tags:

    # DEVIATION: paper ..., here ..., because ...      we do not do what the paper says
    # UNSPECIFIED: ... we chose ...                    the paper does not say what to do

This command collects the tags and rewrites the section between two markers in docs/PAPERS.md.
A tag runs to the end of its comment block, or to the next tag. A block is a run of comment lines;
a comment after code is a block by itself.
"""
import argparse
import io
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / 'docs' / 'PAPERS.md'
PAPERS = ('c3d.py', 'astar.py', 'sta.py', 'stats.py', 'vre.py')
START = '<!-- Made by `python -m tools.papers` from the tags in the code, up to the end mark. -->'
END = '<!-- End mark of `python -m tools.papers`. -->'
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


def section():
    """-> the section of the page, in Markdown: one table per file"""
    lines = []
    for name, several in tagged_files().items():
        lines += ['', f'### {name}', '', '| line | | |', '| --- | --- | --- |']
        for line, kind, text in several:
            text = re.sub(r'([|*<~])', r'\\\1', text)           # these mean something in Markdown
            lines.append(f'| [{line}](../{name}#L{line}) | {KINDS[kind]} | {text} |')
    return '\n'.join([*lines, ''])


def remade(page):
    """text of the page -> the same text with the section made from the source as it is now"""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise SystemExit(f'error: {PAGE}: expected these two lines:\n{START}\n{END}')
    return f'{before}{start}\n{section()}\n{end}{after}'


def main(argv):
    argparse.ArgumentParser(
        prog='python -m tools.papers', description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter).parse_args(argv)
    page = remade(PAGE.read_text())
    PAGE.write_text(page)
    print(f'{PAGE.name}: {page.count(" | differs | ")} differences from the papers, '
          f'{page.count(" | open | ")} choices that the papers leave open')


if __name__ == '__main__':
    main(sys.argv[1:])
