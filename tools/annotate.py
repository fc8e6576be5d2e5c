"""A paper's file as a page to read: prose on the left, code on the right.

    python -m tools.annotate stats              writes stats.html; `all`: one page per file

The prose consists of the docstrings and of the comments that have lines of their own. Each stands
beside the code it speaks of, together with the equations which that code computes. Hovering over a
name shows the shape that its tensor had in a real training step. One HTML file that needs no
network and no scripts.
"""
import argparse
import ast
import html
import re
from dataclasses import dataclass, field
from pathlib import Path

from latex2mathml import converter
from pygments.lexers import PythonLexer
from pygments.token import STANDARD_TYPES, Name

from data import BadInput
from tools import machine, papers, runs, trace
from tools.equations import EQUATIONS

ROOT = papers.ROOT
NUMBER = r'\d+(?:\.\d+)?'
MENTION = re.compile(rf'Eq\. {NUMBER}(?:(?:,\s|\sand\s| \+ |-){NUMBER})*(?: of the first version)?')
# A comment that begins with `Eq. 7`, `L in Eq. 7` and the like tells what its line computes.
COMPUTES = re.compile(rf'[\w ]{{0,12}}({MENTION.pattern})(?=$|  |[,;:])')


def numbers_in(mention):
    """'Eq. 4, 6' -> ['4', '6'];  'Eq. 12-14' -> ['12', '13', '14']"""
    if mention.endswith('version'):
        return [mention.removeprefix('Eq. ')]
    found = []
    for first, last in re.findall(rf'({NUMBER})(?:-({NUMBER}))?', mention):
        chapter, dot, low = first.rpartition('.')
        high = (last or first).rpartition('.')[2]
        found += [f'{chapter}{dot}{n}' for n in range(int(low), int(high) + 1)]
    return found


def link(text, known):
    """Plain text -> HTML, in which every equation that we know is a link"""
    def one(found):
        mention = found[0]
        if mention.endswith('version'):
            return f'<a href="#eq-{numbers_in(mention)[0].replace(" ", "-")}">{mention}</a>'
        return re.sub(rf'(Eq\. )?({NUMBER})', lambda part: part[0] if part[2] not in known else
                      f'<a href="#eq-{part[2]}">{part[0]}</a>', mention)
    return MENTION.sub(one, html.escape(text))


def sentence(text, known):
    """Plain text -> HTML with links, with `code` in another font, and with real arrows"""
    linked = link(text, known).replace('-&gt;', '→')
    return re.sub('`([^`]+)`', r'<code>\1</code>', linked)


def docstring_html(text, known):
    """A docstring -> HTML: paragraphs, and everything with columns or drawings as it is"""
    parts = []
    for block in re.split(r'\n\s*\n', text.strip('\n')):
        if re.search(r'[^.,\s] {2,}\S', block) or block.startswith(' '):
            parts.append(f'<pre>{link(block, known)}</pre>')
            continue
        for piece in re.split(r'((?:^ +\S.*\n?)+)', block, flags=re.M):     # indented: a formula
            drawn = piece.startswith(' ')
            if piece.strip():
                parts.append(f'<pre>{link(piece.rstrip(), known)}</pre>' if drawn
                             else f'<p>{sentence(piece, known)}</p>')
    return ''.join(parts)


def comment_html(text, known):
    """The text of a comment -> HTML: what differs from the paper, and what is open, is marked"""
    first, *tagged = re.split(r'\b(DEVIATION|UNSPECIFIED): ', text)
    parts = [f'<p>{sentence(first, known)}</p>'] if first.strip() else []
    for kind, words in zip(tagged[::2], tagged[1::2]):
        parts.append(f'<p class="{kind.lower()}"><b>{kind}</b> {sentence(words, known)}</p>')
    return ''.join(parts)


def code_lines(source, shapes, known):
    """-> the lines of the source as HTML: highlighted, with shapes and links"""
    lines = ['']
    named = set()                                       # an assigned name gets one title per line
    for kind, text in PythonLexer(stripnl=False, ensurenl=False).get_tokens(source):
        for nth, piece in enumerate(text.split('\n')):
            if nth:
                lines.append('')
            place = (len(lines), piece)
            title = ''
            if kind in Name and place in shapes and place not in named:
                named.add(place)
                title = f' title="{html.escape(f"{piece}: {shapes[place]}")}"'
            style = STANDARD_TYPES.get(kind, '')
            shown = link(piece, known)
            if piece.strip() and (style or title):
                shown = f'<span class="{style}"{title}>{shown}</span>'
            lines[-1] += shown
    return lines


# ------------------------------------------------------------------ rows and the page
@dataclass
class Row:
    """Lines first to last - 1 of the file, counted from 1, and what is said about them"""
    first: int
    last: int = 0
    prose: list = field(default_factory=list)           # HTML
    equations: list = field(default_factory=list)       # their numbers


def first_line(node):
    """A node of the syntax tree -> its first line, which may be that of a decorator"""
    decorators = getattr(node, 'decorator_list', ())
    return min([getattr(node, 'lineno', 1), *(one.lineno for one in decorators)])


def docstrings(source):
    """-> {first line of a function, class or module: its docstring}, lines of these docstrings"""
    texts = {}
    lines = set()
    for node in ast.walk(ast.parse(source)):
        documented = isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef))
        if documented and ast.get_docstring(node):
            texts[first_line(node)] = ast.get_docstring(node)
            lines.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return texts, lines


def computed(source):
    """-> {line: numbers of the equations that it computes, as its comment says}"""
    found = {}
    for block in papers.comment_blocks(source):
        line, text = block[0]
        mention = COMPUTES.match(text)
        if mention:
            found[line] = numbers_in(mention[1])
    return found


def rows_of(source, known):
    """-> list of Row, lines that are prose. A row begins where a passage of prose, a statement at
    the top level or an equation begins; but what follows a comment or docstring stays with it."""
    texts, said = docstrings(source)
    equations = computed(source)
    lines = source.split('\n')
    comments = {}
    for block in papers.comment_blocks(source):
        if lines[block[0][0] - 1].lstrip().startswith('#'):
            comments[block[0][0]] = ' '.join(text for _, text in block)
            said.update(line for line, _ in block)
    starts = {*texts, *(first_line(node) for node in ast.parse(source).body[1:])}
    starts |= {line for line in equations if line - 1 not in equations}
    starts = {1, *comments, *(line for line in starts if line - 1 not in said)}
    rows = []
    for line in range(1, len(lines) + 1):
        if line in starts:
            rows.append(Row(line))
        row = rows[-1]
        row.last = line + 1
        if line in comments:
            row.prose.append(comment_html(comments[line], known))
        if line in texts and line > 1:
            row.prose.append(docstring_html(texts[line], known))
        row.equations += [one for one in equations.get(line, ()) if one not in row.equations]
    return rows, said


def equation_html(number, latex, anchor=False):
    """-> one equation with its number, which links to the section of equations or is its target"""
    where = f'eq-{number.replace(" ", "-")}'
    label = f'id="{where}"' if anchor else ''
    return (f'<div class="equation" {label}><a class="number" href="#{where}">({number})</a>'
            f'<div class="formula">{converter.convert(latex, display="block")}</div></div>')


def legend(name, about):
    """-> HTML: the colours, the shapes, and a switch that needs no script"""
    listed = '<a href="#equations">Equations</a> lists them all. ' if EQUATIONS[name] else ''
    return f'''<div class="legend"><p><b>{name}.py</b>, rendered by
<code>python -m tools.annotate {name}</code>. {listed}<label><input type="checkbox" id="whole">
show docstrings and comments in the code, too</label></p>
<p class="deviation"><b>DEVIATION</b> the code does not do what the paper says</p>
<p class="unspecified"><b>UNSPECIFIED</b> the paper does not say what to do; we chose</p>
<p>Point at a <span title="like this">dotted name</span> to see the shape of its tensor in a
training step on {html.escape(about)}, after the last time that the line ran.</p></div>'''


def row_html(row, lines, said, known):
    """A Row -> HTML. Its code is complete, but what the left side says is hidden there."""
    left = ''.join(row.prose)
    left += ''.join(equation_html(number, known[number][0]) for number in row.equations)
    code = []
    for line in range(row.first, row.last):
        end = '\n' if line < len(lines) else ''
        style = 'line said' if line in said else 'line'
        code.append(f'<span class="{style}" id="L{line}" data-n="{line}">{lines[line - 1]}{end}'
                    '</span>')
    return f'<div class="row"><div class="prose">{left}</div><pre class="code">' + \
        ''.join(code) + '</pre></div>\n'


def page(name, source, shapes, about):
    """Name of a file, its text, {(line, name): shape}, description of the batch -> HTML"""
    known = EQUATIONS[name]
    title, _, rest = (ast.get_docstring(ast.parse(source)) or name).partition('\n')
    rows, said = rows_of(source.removesuffix('\n'), known)
    lines = code_lines(source.removesuffix('\n'), shapes, known)
    top = f'<h1>{link(title, known)}</h1><div class="prose">{docstring_html(rest, known)}</div>'
    section = ''
    if known:
        section = '<h2 id="equations">Equations</h2>\n'
    for number, (latex, note) in known.items():
        section += equation_html(number, latex, anchor=True)
        section += f'<p class="note">{sentence(note, known)}</p>\n' if note else '\n'
    parts = {'TITLE': html.escape(f'{name}.py: {title}'), 'LEGEND': top + legend(name, about),
             'ROWS': ''.join(row_html(row, lines, said, known) for row in rows),
             'EQUATIONS': section}
    template = Path(__file__).with_suffix('.html').read_text('utf-8')
    return re.sub(r'\b(TITLE|LEGEND|ROWS|EQUATIONS)\b', lambda word: parts[word[1]], template)


def main(argv):
    parser = runs.Parser(prog='python -m tools.annotate', description=__doc__,
                         formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('name', choices=[*EQUATIONS, 'all'], help='file to render, without .py')
    parser.add_argument('--out', help='page to write (default: NAME.html)')
    args = parser.parse_args(argv)
    if args.name == 'all' and args.out:
        raise BadInput('--out names one page, but `all` writes several: leave one of them out')
    for name in EQUATIONS if args.name == 'all' else [args.name]:
        path = args.out or f'{name}.html'
        text = page(name, (ROOT / f'{name}.py').read_text('utf-8'), *trace.shapes_of(name))
        with machine.replacing(path) as temporary:
            temporary.write_text(text, 'utf-8')
        print(f'{path}, {len(text.encode()) / 1e6:.2f} MB')


if __name__ == '__main__':
    runs.user_main(main)
