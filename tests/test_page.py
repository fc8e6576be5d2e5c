"""The page of tools.show: what stands in it, and that it works in a real browser (Chromium)."""
import base64
import http.client
import io
import json
import re
import shutil
import subprocess
import time

import helpers
import nltk
import numpy as np
import pytest
import torch
from PIL import Image
from test_show import Looks, Sees, make_run, save

import evaluate
from data import BadInput, Corpus, Sizes, Vocabulary
from shapes import words as shape_words
from shapes import world
from tools import datasets, figures, java, page, show

CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser')
DRIVER = shutil.which('chromedriver')
LEFT, UP, RIGHT, DOWN = '\ue012\ue013\ue014\ue015'      # WebDriver's names of the keys


class Browser:
    """The part of chromedriver's WebDriver interface that we need: w3.org/TR/webdriver2"""

    def __init__(self, driver, profile):
        started = next(line for line in driver.stdout if 'successfully on port' in line)
        self.port = int(re.search(r'port (\d+)', started)[1])
        self.session = '/session'
        flags = ('headless no-sandbox disable-gpu disable-quic no-first-run disable-sync '
                 'disable-background-networking disable-dev-shm-usage '
                 f'disable-component-update user-data-dir={profile}')
        wanted = {'goog:chromeOptions': {'binary': CHROMIUM, 'args': flags.split()},
                  'goog:loggingPrefs': {'browser': 'ALL', 'performance': 'ALL'}}
        answer = self.ask('', capabilities={'alwaysMatch': wanted})
        self.session += '/' + answer['sessionId']
        self.open('about:blank')                        # a new tab fetches things
        self.complaints()
        self.fetched()

    def ask(self, command, method='POST', **content):
        driver = http.client.HTTPConnection('127.0.0.1', self.port, timeout=60)
        body = json.dumps(content) if method == 'POST' else None
        driver.request(method, self.session + command, body)
        answer = driver.getresponse()
        text = answer.read()
        assert answer.status == 200, text[:2000]
        return json.loads(text)['value']

    def run(self, script):
        """JavaScript, whose `return` is returned"""
        return self.ask('/execute/sync', script=script, args=[])

    def get(self, expression):
        return self.run(f'return {expression}')

    def complaints(self):
        """What went to the console since the last call, except for advice on speed"""
        return [one['message'] for one in self.ask('/se/log', type='browser')
                if one['source'] != 'rendering']

    def fetched(self):
        """The addresses that were asked for since the last call, except for those that are data"""
        events = [json.loads(one['message'])['message']
                  for one in self.ask('/se/log', type='performance')]
        addresses = {event['params']['request']['url'] for event in events
                     if event['method'] == 'Network.requestWillBeSent'}
        return {address for address in addresses if not address.startswith('data:')}

    def resize(self, width, height=800):
        """The inside of the window, by emulation: a real window has a least width"""
        size = {'width': width, 'height': height, 'deviceScaleFactor': 1, 'mobile': width < 600}
        self.ask('/goog/cdp/execute', cmd='Emulation.setDeviceMetricsOverride', params=size)

    def open(self, address, width=1200):
        self.resize(width)
        self.ask('/url', url=address)

    def show(self, path):
        """Open a page of tools.show."""
        self.open(path.as_uri())
        self.wait('film === null || film.image.complete')

    def wait(self, condition):
        for _ in range(200):
            if self.get(f'Boolean({condition})'):
                return
            time.sleep(0.05)
        raise AssertionError(f'never came true: {condition}')

    def widths(self):
        """-> of the whole page, of what the window shows of it"""
        return self.get('[document.documentElement.scrollWidth, '
                        'document.documentElement.clientWidth]')

    def act(self, kind, *actions, **more):
        self.ask('/actions', actions=[{'type': kind, 'id': kind, 'actions': actions, **more}])

    def hover(self, element, x=0.5):
        """element: an expression; x: where within it, 0 left to 1 right"""
        left, top = self.run(f'''const e = {element}; e.scrollIntoView({{block: "center"}});
            const b = e.getBoundingClientRect();
            return [Math.floor(b.left + {x} * b.width), Math.floor(b.top + b.height / 2)]''')
        self.act('pointer', {'type': 'pointerMove', 'x': left, 'y': top, 'duration': 0,
                             'origin': 'viewport'}, parameters={'pointerType': 'mouse'})

    def press(self, *keys):
        for key in keys:
            self.act('key', {'type': 'keyDown', 'value': key}, {'type': 'keyUp', 'value': key})


# ------------------------------------------------------- small runs: random, larger weights
SIZES = {'stats': dict(visual=5, embed=6, attn=4, hidden=8), 'vre': dict(hidden=8, attn=4),
         'sta': dict(hidden=8, embed=6)}


@pytest.fixture(scope='module')
def corpus():
    """Four clips of the embedded world, with random features"""
    rng = np.random.default_rng(0)
    found = Corpus('shapes', 'val', features={'clip': {}}, classes=['a', 'b', 'c'])
    for video in [f'val{n:05d}' for n in range(4)]:
        scene = world.scene(video)
        found.captions[video] = shape_words.captions(scene)
        found.truth[video] = world.truth(scene)
        found.labels[video] = [int(video[-1]) % 3]
        found.features['clip'][video] = rng.standard_normal((16, 7, 7, 6)).astype(np.float32)
    return found


def scored(name, corpus, nth=0, model=None, view=None, **fields):
    """A run that generates the nth reference of each clip. CIDEr falls from clip to clip, so that
    their order is known."""
    feats = {'clip': [7, 7, 6]}
    run = make_run('' if model else name.split('-')[0], view, feats, max_len=20, beam=2)
    run.path = name
    run.vocabulary = Vocabulary.build(sum(corpus.captions.values(), []))
    if model is None:
        run.cfg = run.paper.Config(features=('clip',), **SIZES[run.paper.name], **fields)
        run.sizes = Sizes(feats, 16, len(run.vocabulary), captions=5)
        torch.manual_seed(0)
        model = run.build().eval()
        helpers.scale_up(model)
    captions = {video: several[nth] for video, several in corpus.captions.items()}
    each = {video: {'Bleu_4': n / 9, 'CIDEr': 3 - n / 2} for n, video in enumerate(corpus.ids)}
    return page.Scored(run, model, {'CIDEr': 1.0, 'loss': 2.0}, captions, each)


@pytest.fixture(scope='module')
def several(corpus):
    return [scored('stats', corpus), scored('stats-st', corpus, 1, variant='st'),
            scored('vre', corpus, 2), scored('sta', corpus, 3)]


@pytest.fixture(scope='module')
def written(several, corpus, tmp_path_factory):
    return page.write_page(tmp_path_factory.mktemp('page') / 'report.html', several, corpus)


def content(path):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>',
                      path.read_text(), re.S)
    return json.loads(found[1])


def light_of(look):
    """The maps of the page -> (T, F, Y, X) from 0 to 1"""
    maps = look['maps']
    light = np.frombuffer(base64.b64decode(maps['bytes']), np.uint8) / 255
    return light.reshape(-1, look['steps'], maps['rows'], maps['columns'])


# ------------------------------------------------------- what stands in the page
def check_frames(one):
    """The pictures of one video on the page are its frames; JPEG is not exact."""
    kind, picture = one['frames']['picture'].split(',')
    row = np.asarray(Image.open(io.BytesIO(base64.b64decode(picture)))).astype(float)
    assert kind == 'data:image/jpeg;base64' and row.shape == (112, 16 * 112, 3)
    frames = world.render(world.scene(one['id'])).astype(float)
    shown = np.stack(np.split(row, 16, axis=1))
    far = np.abs(shown[:, None] - frames).mean((2, 3, 4))
    assert far.argmin(1).tolist() == list(range(16)) and far.diagonal().max() < 9


def test_the_page_holds_the_weights_that_reached_each_word(written, several, corpus):
    found = content(written)
    assert [run['name'] for run in found['runs']] == [one.run.title for one in several]
    assert found['total'] == 4 and found['metric'] == 'CIDEr'
    assert [one['id'] for one in found['videos']] == corpus.ids         # the best first
    for one in found['videos'][:2]:
        check_frames(one)
    for one in found['videos']:
        video = one['id']
        truth = corpus.truth[video]
        assert one['references'] == corpus.captions[video]
        assert one['truth'] == {'boxes': truth['boxes'], 'window': list(truth['window'])}
        for run, shown in zip(several, one['runs']):
            look = figures.look_at(run.run, run.model, corpus, video, run.found[video])
            assert shown['words'] == look.words == [*run.found[video].split(), '<eos>']
            assert shown['scores']['CIDEr'] == run.each[video]['CIDEr']
            assert shown['scores']['slots'] == 1            # a reference is right
            pairs = [(shown, look.weights)]
            pairs += zip(shown['parts'], look.parts.values())
            for part, weights in pairs:
                light = weights / weights.max((1, 2, 3), keepdims=True)
                assert np.abs(light_of(part) - light).max() <= 0.51 / 255 and np.ptp(light) > 0.1
                if part['time']:
                    assert np.allclose(part['time'], weights.sum((2, 3)), atol=1e-4)
            for numbers in shown['numbers']:
                assert numbers['labels'] == list(look.labels)
                assert np.allclose(numbers['values'], look.numbers, atol=1e-4)
        mixed, st, vre, sta = one['runs']
        assert [part['label'] for part in mixed['parts']] == ['ST', 'TS']
        assert [part['time'] is None for part in mixed['parts']] == [True, False]
        assert mixed['about_parts'].startswith('ST has no weights over frames')
        assert st['steps'] == 1 and st['time'] is None and st['parts'] == st['numbers'] == []
        assert [len(one['numbers']) for one in (mixed, vre, sta)] == [1, 0, 1]
        assert [one['key'] is None for one in (mixed, st, vre, sta)] == [True, True, False, True]
        assert vre['key'] == np.argmax(vre['focus'])
        assert sum(vre['focus']) == pytest.approx(1, abs=1e-3)


HOSTILE = '<img src=x onerror=document.title=1> </script><script>document.title=2</script> <!--'


def test_nothing_is_fetched_and_no_caption_ends_the_script(corpus, written, tmp_path):
    code = written.read_text().split('id="data">')[0]
    assert not re.search(r'//\w|url\((?!")|@import|<link (?!rel="icon" href="data:,")', code)
    assert not re.search(r'https?:', written.read_text())
    broken = scored('stats', corpus)
    broken.found = dict.fromkeys(corpus.ids, HOSTILE)
    path = page.write_page(tmp_path / 'x.html', [broken], corpus)
    text = path.read_text()
    assert text.count('<script') == 2 == text.count('</script')
    assert '<!--' not in text.split('id="data">')[1]
    assert content(path)['videos'][0]['runs'][0]['words'] == [*HOSTILE.split(), '<eos>']
    with pytest.raises(BadInput, match='cannot write'):
        page.write_page(tmp_path / 'nowhere' / 'x.html', [broken], corpus)


def test_runs_with_other_words_are_compared_without_frames(tmp_path, monkeypatch, capsys):
    """MSVD in miniature, with features alone"""
    folder = tmp_path / 'msvd' / 'features'
    folder.mkdir(parents=True)
    (tmp_path / 'msvd' / 'sents_val.txt').write_text(
        ''.join(f'vid{n}\ta man runs\nvid{n}\ta dog runs\n' for n in range(4)))
    np.save(folder / 'tiny.npy', np.random.default_rng(0).random((4, 3, 6)).astype(np.float16))
    (folder / 'tiny.json').write_text(json.dumps({'ids': [f'vid{n}' for n in range(4)]}))
    whole = evaluate.score                              # without Java
    monkeypatch.setattr(evaluate, 'score', lambda *some: whole(*some[:2], quick=True))
    monkeypatch.setattr(java, 'check_java', lambda: None)
    paths = []
    for name, words in (('one', 'a man runs'), ('two', 'a dog runs fast')):
        run = make_run('stats', feats={'tiny': [6]})
        run.cfg = run.paper.Config(features=('tiny',), **SIZES['stats'])
        run.vocabulary = Vocabulary(['<pad>', '<eos>', '<unk>', *words.split()])
        run.sizes = Sizes({'tiny': [6]}, 3, len(run.vocabulary))
        run.dataset = datasets.Dataset('msvd', str(tmp_path))
        paths.append(save(run, run.build(), tmp_path / name))
    out = tmp_path / 'report.html'
    show.main(['page', *paths, '--out', str(out), '--root', str(tmp_path), '--beam', '2',
               '--device', 'cpu'])
    found = content(out)
    assert [run['name'] for run in found['runs']] == ['one (stats)', 'two (stats)']
    assert len(found['videos']) == 4 and found['split'] == 'val'
    for one in found['videos']:
        assert one['frames'] is None and one['count'] == 3
        assert all(np.shape(look['time'])[1] == 3 for look in one['runs'])
    said = capsys.readouterr().out
    assert f'{out}, {out.stat().st_size / 1e6:.1f} MB' in said
    assert 'two (stats): msvd, val split, 4 videos, beam 2' in said
    monkeypatch.setattr(nltk.data, 'path', [])          # no tagger: reported before any work
    monkeypatch.setattr(show.runs, 'open_split', None)
    with pytest.raises(BadInput, match=r"missing; type: .*nltk.download\('averaged_percep"):
        show.main(['words', paths[0], '--device', 'cpu'])


# ------------------------------------------------------- in a browser
@pytest.fixture(scope='module')
def browser(tmp_path_factory):
    if not (CHROMIUM and DRIVER):
        pytest.skip('chromium and chromedriver are not installed '
                    '(Debian: apt install chromium chromium-driver)')
    with subprocess.Popen([DRIVER, '--port=0'], stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.DEVNULL) as driver:
        try:
            browser = Browser(driver, tmp_path_factory.mktemp('profile'))
            yield browser
            browser.ask('', 'DELETE')
        finally:
            driver.terminate()


@pytest.fixture
def opened(browser, written):
    """The page, fresh. Whatever a test does must not make it complain or ask the network."""
    browser.hover('document.body', 0)                   # the pointer rests where no word will be
    browser.show(written)
    yield browser
    assert browser.complaints() == []
    assert browser.fetched() == {written.as_uri()}


PICTURE = 'cards[{}].canvas.toDataURL()'
CHOSEN = """[...document.querySelectorAll("#runs section")].map(
    s => s.querySelector(".words [aria-pressed=true]").firstChild.data)"""
LISTED = '[...document.querySelectorAll("#videos button")].map(b => b.textContent.split(" ")[0])'
CURRENT = 'document.querySelector("#video h2").textContent'
STATUS = 'cards[0].status.textContent.split("” ")[1]'


def test_hovering_a_word_changes_the_overlay_in_every_run(opened):
    word = 'document.querySelectorAll("#runs section")[{}].querySelectorAll(".words button")[{}]'
    seen = []
    for run, nth in ((0, 0), (0, 2), (3, 1), (3, 3)):
        opened.hover(word.format(run, nth))
        assert opened.get(CHOSEN)[run] == opened.get(f'{word.format(run, nth)}.firstChild.data')
        seen.append([opened.get(PICTURE.format(n)) for n in range(4)])
    assert all(len({state[n] for state in seen}) >= 3 for n in range(4))
    chosen = opened.get(CHOSEN)                         # the others follow to the same word
    for look, mine in zip(opened.get('video.runs'), chosen):
        assert chosen[3] not in look['words'] or mine == chosen[3]


def test_the_overlay_is_bright_where_the_attention_is(opened, written):
    """Light of the picture over that of the plain frame, place by place, against the map"""
    for card, part in ((3, None), (0, None), (0, 0), (0, 1)):
        opened.run(f'choose({card}, 4)')
        look = content(written)['videos'][0]['runs'][card]
        frame = int(np.argmax(look['time'][4]))         # shown: the frame with the most weight
        canvas = f'cards[{card}].canvas' if part is None else f'cards[{card}].small[{part}].canvas'
        cells = opened.run(f"""paint(film.canvas, {frame});
            const cell = (canvas, n) => [...canvas.getContext("2d").getImageData(
              n % 7 * 32 + 15, Math.floor(n / 7) * 32 + 15, 2, 2).data]
              .filter((_, i) => i % 4 < 3).reduce((a, b) => a + b);
            return range(49).map(n => [cell({canvas}, n), cell(film.canvas, n)])""")
        shown, plain = np.array(cells).T
        wanted = light_of(look if part is None else look['parts'][part])[4, frame].ravel()
        assert np.corrcoef(shown / plain, wanted)[0, 1] > 0.98
        assert (shown / plain).max() > 0.25 + 0.7 * wanted.max()
        assert f'to frame {frame + 1} of 16' in opened.get(f'cards[{card}].status.textContent')


def test_the_keys_step_through_words_and_videos_and_play(opened):
    listed = opened.get(LISTED)
    words = opened.get('video.runs[0].words')
    assert opened.get(CHOSEN)[0] == words[1] and opened.get(CURRENT) == listed[0]
    opened.press(RIGHT, RIGHT)
    assert opened.get(CHOSEN)[0] == words[3]
    assert opened.get('document.activeElement.firstChild.data') == words[3]
    opened.press(*[LEFT] * 6)
    assert opened.get(CHOSEN)[0] == words[0]            # and no further
    opened.press(DOWN, DOWN)
    assert opened.get(CURRENT) == listed[2] and opened.get('scrollY') == 0
    opened.press(UP)
    opened.run('at("next").focus()')
    opened.press(' ')                                   # plays, whatever has the focus
    assert opened.get(CURRENT) == listed[1]
    assert 'pause' in opened.get('at("play").textContent')
    opened.wait(f'state.frame !== {opened.get("state.frame")}')
    opened.press(' ')
    assert 'play' in opened.get('at("play").textContent')
    assert opened.get('state.timer') is None


def test_strips_key_frames_numbers_and_the_true_boxes(opened):
    key, left = opened.run("""const {box} = cards[2].strips[0], b = box.getBoundingClientRect();
        const k = box.querySelector(".key").getBoundingClientRect();
        return [video.runs[2].key, (k.left - b.left) / b.width * 16]""")
    assert left == pytest.approx(key, abs=0.05)
    for word in (0, 3):
        drawn, wanted = opened.run(f"""choose(0, {word});
            const width = e => e.getBoundingClientRect().width;
            return [cards[0].numbers[0].map(row => width(row.fill) / width(row.fill.parentNode)),
                    video.runs[0].numbers[0].values[{word}]]""")
        assert drawn == pytest.approx(wanted, abs=0.02)
    before = opened.get(PICTURE.format(1))
    opened.hover('cards[0].strips[0].box', 0.03)
    assert opened.get('cards.map((_, r) => frameIn(r))') == [0] * 4             # in all runs
    opened.hover('film.box', 0.97)
    assert opened.get('frameIn(0)') == 15 and opened.get(PICTURE.format(1)) != before
    plain = opened.get('film.canvas.toDataURL()')
    assert opened.get('getComputedStyle(film.band).display') == 'none'
    opened.run('at("truth").click()')
    left, width, first, last = opened.run("""const a = film.band.getBoundingClientRect();
        const b = film.box.getBoundingClientRect();
        return [(a.left - b.left) / b.width * 16, a.width / b.width * 16, ...video.truth.window]""")
    assert [left, width] == pytest.approx([first, last - first + 1], abs=0.05)
    seen = opened.get('video.truth.boxes.some(boxes => boxes[15])')
    assert (opened.get('film.canvas.toDataURL()') != plain) == seen


def test_videos_are_sorted_by_any_score_of_any_run(opened, corpus):
    ids = corpus.ids
    assert opened.get(LISTED) == ids                    # CIDEr falls from clip to clip
    opened.run('at("metric").value = "Bleu_4"; at("metric").onchange()')
    assert opened.get(LISTED) == ids[::-1]
    opened.run('at("turn").click()')
    assert opened.get(LISTED) == ids
    opened.run('data.videos[2].runs[1].scores.Bleu_4 = -1')
    opened.run('at("whose").value = "1"; at("whose").onchange()')
    assert opened.get(LISTED) == [ids[2], *ids[:2], ids[3]]
    opened.run('at("whose").value = "differ"; at("turn").click()')
    assert opened.get(LISTED)[0] == ids[2] and opened.get(CURRENT) == ids[0]


def test_a_narrow_window_scrolls_in_one_direction_only(opened):
    for width in (800, 390, 360):
        opened.resize(width)
        for n in (0, 1, 2):
            opened.run(f'open(state.order[{n}])')
            wide, inside = opened.widths()
            assert wide == inside <= width
            labels = opened.get("""[...document.querySelectorAll(".number")].map(
                e => e.getBoundingClientRect().height)""")
            assert max(labels) < 30                     # each on one line
    tops = """[...document.querySelectorAll("#runs section, #runs canvas, .strip")].map(
        e => e.getBoundingClientRect().top)"""
    before = opened.get(tops)
    for word in range(5):                               # nothing jumps
        opened.run(f'choose(1, {word})')
        assert opened.get(tops) == before


def test_steps_of_several_frames_and_words_that_look_at_nothing(browser, corpus, tmp_path):
    """As ASTAR: the first word has no attention, later ones look at a corner of a 4 x 4 grid"""
    space = np.zeros((2, 2, 16))
    space[1, :, 0] = 0.25, 0.75
    model = Looks({'space': space, 'layers': [[0.0, 0.0], [0.4, 0.6]]})
    one = scored('two', corpus, 0, model, {'bars': {'layers': ('low', 'high')}})
    browser.show(page.write_page(tmp_path / 'x.html', [one], corpus))
    browser.run('choose(0, 2)')
    bars = 'cards[0].strips[0].bar.map(bar => bar.style.height)'
    values = 'cards[0].numbers[0].map(row => row.value.textContent)'
    assert browser.get(STATUS) == 'gives 75% of its attention to frames 9 to 16 of 16'
    assert browser.get(bars) == ['33.3333%', '100%'] and browser.get('frameIn(0)') == 12
    assert browser.get(values) == ['0.40', '0.60']
    browser.hover('cards[0].strips[0].box', 0.45)       # frame 8, of the first step
    assert browser.get(STATUS) == 'gives 25% of its attention to frames 1 to 8 of 16'
    browser.run('choose(0, 0)')
    assert browser.get(STATUS) == 'has no attention'
    assert browser.get(bars) == ['0%', '0%'] and browser.get(values) == ['–', '–']
    meters = 'cards[0].buttons.map(b => b.querySelectorAll(".meter").length)'
    assert browser.get(meters)[:3] == [0, 1, 1]
    model.aux['space'] = model.aux['space'].sum(1, keepdim=True)        # one step for all frames
    browser.show(page.write_page(tmp_path / 'x.html', [one], corpus))
    for word, expected in ((2, 'has one map for all 16 frames'), (0, 'has no attention')):
        browser.run(f'choose(0, {word})')
        assert browser.get(STATUS) == expected
    assert browser.complaints() == []


def test_recognisers_have_a_page(browser, corpus, tmp_path):
    one = scored('rec', corpus, 0, Sees())
    one.run.training.task = 'recognise'
    one.found = {video: np.array([0.2, 0.7, 0.1]) for video in corpus.ids}
    browser.show(page.write_page(tmp_path / 'x.html', [one], corpus))
    assert browser.get(LISTED)[0] == 'val00001'         # the only one of class 1, which it sees
    assert browser.get('video.references') == ['b'] == browser.get(CHOSEN)
    assert browser.get(STATUS) == 'gives all 16 frames the same weight; here frame 9'
    assert browser.get('cards[0].numbers[0][0].value.textContent') == '0.70'
    assert browser.complaints() == []


def test_pages_without_frames_and_with_hostile_captions_open(browser, corpus, tmp_path):
    elsewhere = Corpus('elsewhere', 'val', {video: [HOSTILE] for video in corpus.ids},
                       features=corpus.features)        # no frames, no truth
    one = scored('sta', corpus)
    one.run.path = '<b>bold<b>'
    one.found = dict.fromkeys(corpus.ids, HOSTILE)
    browser.show(page.write_page(tmp_path / 'x.html', [one], elsewhere))
    assert browser.get('document.title') == 'What the models look at'
    assert not browser.get('document.images.length')
    assert browser.get('video.runs[0].words')[0] == '<img'
    assert browser.get(CURRENT) == corpus.ids[0]
    assert 'no pictures' in browser.get('at("video").textContent')
    assert browser.get('at("legend").offsetWidth') == 0
    browser.run('console.error("heard")')
    heard = browser.complaints()                        # that, and nothing of the page
    assert len(heard) == 1 and 'heard' in heard[0]
