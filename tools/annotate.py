"""A paper's file as a page to read: prose on the left, code on the right.

    python -m tools.annotate stats              writes stats.html; `all`: one page per file

The prose consists of the docstrings and of the comments that have lines of their own. Each is
beside the code that it explains, together with the equations that this code computes. Hovering over
a name shows the shape that its tensor had in a real training step. The page is one HTML file that
needs no network and no scripts.
"""
import ast
import html
import itertools
import re
from pathlib import Path

import pygments
from latex2mathml import converter
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from data import BadInput
from tools import machine, papers, runs, trace

ROOT = papers.ROOT
NUMBER = r'\d+(?:\.\d+)?(?: of the first version)?'
MENTION = re.compile(rf'Eq\. {NUMBER}(?:(?:,\s|\sand\s| \+ |-){NUMBER})*')
# A comment that begins with `Eq. 7`, `L in Eq. 7` and the like tells what its line computes.
COMPUTES = re.compile(rf'[\w ]{{0,12}}({MENTION.pattern})(?=$|  |[,;:])')


def read_equations(name):
    """-> {number: (LaTeX, note)}, the equations of a file, from docs/EQUATIONS.md"""
    page = (ROOT / 'docs' / 'EQUATIONS.md').read_text('utf-8')
    section = page.partition(f'\n## {name}.py\n')[2].partition('\n## ')[0]
    found = re.findall(r'^\*\*\((.+)\)\*\*([^`]*)```math\n([^`]*)```', section, re.M)
    return {number: (latex, ' '.join(note.split())) for number, note, latex in found}


def numbers_in(mention):
    """'Eq. 4, 6' -> ['4', '6'];  'Eq. 12-14' -> ['12', '13', '14']"""
    found = []
    for first, last in re.findall(rf'({NUMBER})(?:-({NUMBER}))?', mention):
        found.append(first)
        if last:
            chapter, dot, low = first.rpartition('.')
            high = last.rpartition('.')[2]
            found += [f'{chapter}{dot}{n}' for n in range(int(low) + 1, int(high) + 1)]
    return found


# ------------------------------------------------------------------ from text to HTML
def anchor(number):
    return f'eq-{number.replace(" ", "-")}'


def link(text, known):
    """HTML -> HTML, in which every equation that we know is a link"""
    def one(part):
        return f'<a href="#{anchor(part[1])}">{part[0]}</a>' if part[1] in known else part[0]
    return MENTION.sub(lambda mention: re.sub(rf'(?:Eq\. )?({NUMBER})', one, mention[0]), text)


def sentence(text, known):
    """Plain text -> HTML with links, with `code` in another font, and with real arrows"""
    linked = link(html.escape(text), known).replace('-&gt;', '→')
    return re.sub('`([^`]+)`', r'<code>\1</code>', linked)


def docstring_html(text, known):
    """A docstring -> HTML: paragraphs, and everything with columns or drawings as it is"""
    parts = []
    for block in re.split(r'\n\s*\n', text.strip('\n')):
        table = re.search(r'[^.,\s] {2,}\S', block) or block.startswith(' ')
        formulas = r'((?:^ +\S.*\n?)+)'                 # they are indented
        for piece in [block] if table else re.split(formulas, block, flags=re.M):
            if table or piece.startswith(' '):
                parts.append(f'<pre>{link(html.escape(piece.rstrip()), known)}</pre>')
            elif piece:
                parts.append(f'<p>{sentence(piece, known)}</p>')
    return ''.join(parts)


def comment_html(text, known):
    """The text of a comment -> HTML: what differs from the paper, and what is open, is marked"""
    first, *tagged = re.split(r'\b(DEVIATION|UNSPECIFIED): ', text)
    parts = [f'<p>{sentence(first, known)}</p>'] if first.strip() else []
    for kind, words in zip(tagged[::2], tagged[1::2]):
        parts.append(f'<p class="{kind.lower()}"><b>{kind}</b> {sentence(words, known)}</p>')
    return ''.join(parts)


def equation_html(number, latex, target=''):
    """-> one equation with its number, which links to the section of equations"""
    return (f'<div class="equation" {target}><a class="number" href="#{anchor(number)}">({number})'
            f'</a><div class="formula">{converter.convert(latex, display="block")}</div></div>')


def code_lines(source, shapes, known):
    """-> the lines of the source as HTML: highlighted, with shapes and links"""
    lexer = PythonLexer(stripnl=False, ensurenl=False)
    coloured = pygments.highlight(source, lexer, HtmlFormatter(nowrap=True))
    lines = link(coloured, known).splitlines()
    for (line, name), shape in shapes.items():
        title = html.escape(f'{name}: {shape}')
        name_ends = f'>{name}</span>'
        lines[line - 1] = lines[line - 1].replace(name_ends, f' title="{title}"{name_ends}', 1)
    return lines


# ------------------------------------------------------------------ rows and the page
def read_prose(source, known):
    """-> {line: HTML of the docstring or comment that is about the code from there on}, and the
    lines of these docstrings and comments"""
    prose = {}
    said = set()
    for line, texts in papers.comment_blocks(source).items():
        if source.split('\n')[line - 1].lstrip().startswith('#'):
            prose[line] = comment_html(' '.join(texts), known)
            said.update(range(line, line + len(texts)))
    for node in ast.walk(ast.parse(source)):
        documented = isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef))
        if documented and ast.get_docstring(node):
            prose[trace.first_line(node)] = docstring_html(ast.get_docstring(node), known)
            said.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return prose, said


def computed(source):
    """-> {line: numbers of the equations that it computes, as its comment says}"""
    found = {}
    for line, texts in papers.comment_blocks(source).items():
        mention = COMPUTES.match(texts[0])
        if mention:
            found[line] = numbers_in(mention[1])
    return found


def rows_html(source, shapes, known):
    """-> HTML of all rows. A row begins where a passage of prose, a statement at the top level or
    an equation begins; but what follows a comment or docstring stays with it. The code is complete,
    but prose that is on the left is hidden in it."""
    prose, said = read_prose(source, known)
    equations = computed(source)
    lines = code_lines(source, shapes, known)
    starts = {*prose, *map(trace.first_line, ast.parse(source).body)}
    starts |= {line for line in equations if line - 1 not in equations}
    starts = sorted(line for line in starts if line - 1 not in said)
    parts = []
    for first, last in itertools.pairwise([*starts, len(lines) + 1]):
        left = ''
        code = ''
        numbers = {}                                    # of equations, each once
        for line in range(first, last):
            left += prose.get(line, '') if line > 1 else ''
            numbers |= dict.fromkeys(equations.get(line, ()))
            style = 'line said' if line in said else 'line'
            code += f'<span class="{style}" id="L{line}" data-n="{line}">{lines[line - 1]}\n</span>'
        left += ''.join(equation_html(number, known[number][0]) for number in numbers)
        parts.append(f'<div class="row"><div class="prose">{left}</div>'
                     f'<pre class="code">{code}</pre></div>\n')
    return ''.join(parts)


def page(name, source, shapes, about):
    """Name of a file, its text, {(line, name): shape}, description of the batch -> HTML"""
    known = read_equations(name)
    title, _, rest = ast.get_docstring(ast.parse(source)).partition('\n')
    section = '' if known else '<p>This file computes no numbered equation.</p>'
    for number, (latex, note) in known.items():
        section += equation_html(number, latex, f'id="{anchor(number)}"')
        section += f'<p class="note">{sentence(note, known)}</p>\n'
    parts = {'NAME': name, 'TITLE': html.escape(title), 'ABOUT': html.escape(about),
             'INTRODUCTION': docstring_html(rest, known), 'EQUATIONS': section,
             'ROWS': rows_html(source, shapes, known)}
    template = Path(__file__).with_suffix('.html').read_text('utf-8')
    return re.sub(rf'\b({"|".join(parts)})\b', lambda word: parts[word[1]], template)


def main(argv):
    parser = runs.Parser(prog='python -m tools.annotate', description=__doc__)
    parser.add_argument('name', choices=[*trace.RUNS, 'all'], help='file to render, without .py')
    parser.add_argument('--out', help='page to write (default: NAME.html)')
    args = parser.parse_args(argv)
    if args.name == 'all' and args.out:
        raise BadInput('--out names one page, but `all` writes several: leave one of them out')
    for name in trace.RUNS if args.name == 'all' else [args.name]:
        path = args.out or f'{name}.html'
        text = page(name, (ROOT / f'{name}.py').read_text('utf-8'), *trace.shapes_of(name))
        with machine.replacing(path) as temporary:
            temporary.write_text(text, 'utf-8')
        print(f'{path}, {len(text.encode()) / 1e6:.2f} MB')


if __name__ == '__main__':
    runs.user_main(main)
