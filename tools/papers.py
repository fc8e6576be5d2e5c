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
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / 'docs' / 'PAPERS.md'
PAPERS = ('c3d.py', 'astar.py', 'sta.py', 'stats.py', 'vre.py')
START = '<!-- Made by `python -m tools.papers` from the tags in the code, up to the end mark. -->'
END = '<!-- End mark of `python -m tools.papers`. -->'
KINDS = {'DEVIATION': 'differs', 'UNSPECIFIED': 'open'}


@dataclass
class Tag:
    line: int               # where the tag begins
    kind: str               # DEVIATION or UNSPECIFIED
    text: str


def comment_blocks(source):
    """source code -> blocks of comments, each a list of (line number, text without the #)"""
    blocks = []
    last = None             # line number of the comment line before, if it had no code
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        alone = token.line.lstrip().startswith('#')
        if not alone or last != line - 1:
            blocks.append([])
        blocks[-1].append((line, token.string.lstrip('#').strip()))
        last = line if alone else None
    return blocks


def tags(source):
    """source code -> its tags, in order"""
    found = []
    for block in comment_blocks(source):
        tag = None
        for line, text in block:
            before, *rest = re.split(r'\b(DEVIATION|UNSPECIFIED):\s*', text)
            if tag:
                tag.text = f'{tag.text} {before}'.strip()
            for kind, words in zip(rest[::2], rest[1::2]):
                tag = Tag(line, kind, words.strip())
                found.append(tag)
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
        for tag in several:
            text = re.sub(r'([|*<~])', r'\\\1', tag.text)       # these mean something in Markdown
            lines.append(f'| [{tag.line}](../{name}#L{tag.line}) | {KINDS[tag.kind]} | {text} |')
    return '\n'.join([*lines, ''])


def remade(page):
    """text of the page -> the same text with the section made from the source as it is now"""
    if page.count(START) != 1 or page.count(END) != 1:
        raise SystemExit(f'error: {PAGE}: expected these two lines, once each:\n{START}\n{END}')
    before = page[:page.index(START)]
    after = page[page.index(END):]
    return f'{before}{START}\n{section()}\n{after}'


def main(argv):
    parser = argparse.ArgumentParser(prog='python -m tools.papers',
                                     description='Make docs/PAPERS.md again.')
    parser.add_argument('--check', action='store_true',
                        help='write nothing; exit with 1 if the page is out of date')
    args = parser.parse_args(argv)
    page = PAGE.read_text()
    new = remade(page)
    if args.check:
        if new != page:
            print(f'{PAGE.name} is out of date: run python -m tools.papers', file=sys.stderr)
        return int(new != page)
    PAGE.write_text(new)
    print(f'{PAGE.name}: {new.count(" | differs | ")} differences from the papers, '
          f'{new.count(" | open | ")} choices that the papers leave open')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
