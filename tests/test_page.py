"""The page of tools.show: what stands in it, and that it works in a real browser (Chromium)."""
import base64
import io
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request

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
from tools import datasets, figures, page, show

CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser')
DRIVER = shutil.which('chromedriver')
LEFT, UP, RIGHT, DOWN = '\ue012\ue013\ue014\ue015'      # WebDriver's names of the keys


class Browser:
    """The part of chromedriver's WebDriver interface that we need: w3.org/TR/webdriver2"""

    def __init__(self, profile):
        self.driver = subprocess.Popen([DRIVER, '--port=0'], stdout=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL, text=True)
        try:
            started = next(line for line in self.driver.stdout if 'successfully on port' in line)
            port = re.search(r'port (\d+)', started)[1]
            self.address = f'http://127.0.0.1:{port}/session'
            flags = ('headless no-sandbox disable-gpu disable-quic no-first-run disable-sync '
                     'disable-background-networking disable-dev-shm-usage '
                     f'disable-component-update user-data-dir={profile}').split()
            wanted = {'browserName': 'chrome',
                      'goog:chromeOptions': {'binary': CHROMIUM, 'args': flags},
                      'goog:loggingPrefs': {'browser': 'ALL', 'performance': 'ALL'}}
            session = self.ask('POST', '', {'capabilities': {'alwaysMatch': wanted}})
            self.address += '/' + session['sessionId']
            self.ask('POST', '/url', {'url': 'about:blank'})    # a new tab fetches things
            self.complaints()
            self.fetched()
        except BaseException:
            self.driver.kill()
            raise

    def ask(self, method, command, content=None):
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self.address + command, body, method=method,
                                         headers={'Content-Type': 'application/json'})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as answer:
                return json.load(answer)['value']
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()[:2000]) from None

    def run(self, script):
        """JavaScript, whose `return` is returned"""
        return self.ask('POST', '/execute/sync', {'script': script, 'args': []})

    def complaints(self):
        """What went to the console since the last call, except for advice on speed"""
        return [one['message'] for one in self.ask('POST', '/se/log', {'type': 'browser'})
                if one['source'] != 'rendering']

    def fetched(self):
        """The addresses that were asked for since the last call"""
        events = [json.loads(one['message'])['message']
                  for one in self.ask('POST', '/se/log', {'type': 'performance'})]
        return {event['params']['request']['url'] for event in events
                if event['method'] == 'Network.requestWillBeSent'}

    def resize(self, width, height=800):
        """The inside of the window, by emulation: a real window has a least width"""
        size = {'width': width, 'height': height, 'deviceScaleFactor': 1, 'mobile': width < 600}
        self.ask('POST', '/goog/cdp/execute',
                 {'cmd': 'Emulation.setDeviceMetricsOverride', 'params': size})

    def open(self, path, width=1200):
        self.resize(width)
        self.ask('POST', '/url', {'url': path.as_uri()})
        self.wait('film === null || film.image.complete')

    def wait(self, condition):
        for _ in range(200):
            if self.run(f'return Boolean({condition})'):
                return
            time.sleep(0.05)
        raise AssertionError(f'never came true: {condition}')

    def act(self, kind, *actions):
        more = {'parameters': {'pointerType': 'mouse'}} if kind == 'pointer' else {}
        one = {'type': kind, 'id': kind, 'actions': list(actions), **more}
        self.ask('POST', '/actions', {'actions': [one]})

    def hover(self, element, x=0.5):
        """element: an expression; x: where within it, 0 left to 1 right"""
        left, top = self.run(f'''const e = {element}; e.scrollIntoView({{block: "center"}});
            const b = e.getBoundingClientRect();
            return [Math.floor(b.left + {x} * b.width), Math.floor(b.top + b.height / 2)]''')
        self.act('pointer', {'type': 'pointerMove', 'x': left, 'y': top, 'duration': 0,
                             'origin': 'viewport'})

    def press(self, key):
        self.act('key', {'type': 'keyDown', 'value': key}, {'type': 'keyUp', 'value': key})

    def close(self):
        try:
            self.ask('DELETE', '')
        finally:
            self.driver.terminate()
            self.driver.wait()


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
def test_the_page_holds_the_weights_that_reached_each_word(written, several, corpus):
    found = content(written)
    assert [run['name'] for run in found['runs']] == [one.run.title for one in several]
    assert found['total'] == 4 and found['metric'] == 'CIDEr'
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


def test_the_pictures_are_the_frames(written):
    for one in content(written)['videos'][:2]:
        kind, picture = one['frames']['picture'].split(',')
        row = np.asarray(Image.open(io.BytesIO(base64.b64decode(picture)))).astype(float)
        assert kind == 'data:image/jpeg;base64' and row.shape == (112, 16 * 112, 3)
        frames = world.render(world.scene(one['id'])).astype(float)
        shown = np.stack(np.split(row, 16, axis=1))
        far = np.abs(shown[:, None] - frames).mean((2, 3, 4))           # JPEG is not exact
        assert far.argmin(1).tolist() == list(range(16)) and far.diagonal().max() < 9


def test_items_are_spread_from_the_first_to_the_last():
    assert figures.spread(range(11), 3) == [0, 5, 10]
    assert figures.spread(range(11), 40) == list(range(11))
    assert len(set(figures.spread(range(500), 40))) == 40


HOSTILE = '<img src=x onerror=document.title=1> </script><script>document.title=2</script> <!--'


def test_nothing_is_fetched_and_no_caption_ends_the_script(several, corpus, written, tmp_path):
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
    monkeypatch.setattr(show.java, 'check_java', lambda: None)
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


def test_captioners_and_recognisers_do_not_share_a_page(monkeypatch):
    known = {'one': make_run(), 'rec': make_run(task='recognise')}
    monkeypatch.setattr(show.checkpoints, 'load', lambda path, root, device: (known[path], None))
    with pytest.raises(BadInput, match='some recognise actions: make a page for each kind'):
        show.main(['page', 'one', 'rec', '--device', 'cpu'])


# ------------------------------------------------------- in a browser
@pytest.fixture(scope='module')
def browser(tmp_path_factory):
    if not (CHROMIUM and DRIVER):
        pytest.skip('chromium and chromedriver are not installed '
                    '(Debian: apt install chromium chromium-driver)')
    browser = Browser(tmp_path_factory.mktemp('profile'))
    yield browser
    browser.close()


@pytest.fixture
def opened(browser, written):
    """The page, fresh. Whatever a test does must not make it complain or ask the network."""
    browser.hover('document.body', 0)                   # the pointer rests where no word will be
    browser.open(written)
    yield browser
    assert browser.complaints() == []
    fetched = {address for address in browser.fetched() if not address.startswith('data:')}
    assert fetched == {written.as_uri()}


PICTURE = 'return cards[{}].canvas.toDataURL()'
CHOSEN = '''return [...document.querySelectorAll("#runs section")].map(
    s => s.querySelector(".words [aria-pressed=true]").firstChild.data)'''
LISTED = '''return [...document.querySelectorAll("#videos button")].map(
    b => b.textContent.split(" ")[0])'''
CURRENT = 'return document.querySelector("#video h2").textContent'
STATUS = 'return cards[0].status.textContent.split("” ")[1]'


def test_hovering_a_word_changes_the_overlay_in_every_run(opened):
    word = 'document.querySelectorAll("#runs section")[{}].querySelectorAll(".words button")[{}]'
    seen = []
    for run, nth in ((0, 0), (0, 2), (3, 1), (3, 3)):
        opened.hover(word.format(run, nth))
        expected = opened.run(f'return {word.format(run, nth)}.firstChild.data')
        assert opened.run(CHOSEN)[run] == expected
        seen.append([opened.run(PICTURE.format(n)) for n in range(4)])
    assert all(len({state[n] for state in seen}) >= 3 for n in range(4))
    chosen = opened.run(CHOSEN)                         # the others follow to the same word
    for look, mine in zip(opened.run('return video.runs'), chosen):
        assert chosen[3] not in look['words'] or mine == chosen[3]


@pytest.mark.parametrize('card, part', [(3, None), (0, None), (0, 0), (0, 1)])
def test_the_overlay_is_bright_where_the_attention_is(opened, written, card, part):
    """Light of the picture over that of the plain frame, place by place, against the map"""
    opened.run(f'choose({card}, 4)')
    look = content(written)['videos'][0]['runs'][card]
    frame = int(np.argmax(look['time'][4]))             # shown: the frame with the most weight
    canvas = f'cards[{card}].canvas' if part is None else f'cards[{card}].small[{part}].canvas'
    cells = opened.run(f'''paint(film.canvas, {frame});
        const cell = (canvas, n) => [...canvas.getContext("2d").getImageData(
          n % 7 * 32 + 15, Math.floor(n / 7) * 32 + 15, 2, 2).data]
          .filter((_, i) => i % 4 < 3).reduce((a, b) => a + b);
        return range(49).map(n => [cell({canvas}, n), cell(film.canvas, n)])''')
    shown, plain = np.array(cells).T
    wanted = light_of(look if part is None else look['parts'][part])[4, frame].ravel()
    assert np.corrcoef(shown / plain, wanted)[0, 1] > 0.98
    assert (shown / plain).max() > 0.25 + 0.7 * wanted.max()
    assert f'to frame {frame + 1} of 16' in opened.run(f'return cards[{card}].status.textContent')


def test_the_keys_step_through_words_and_videos_and_play(opened):
    listed = opened.run(LISTED)
    words = opened.run('return video.runs[0].words')
    assert opened.run(CHOSEN)[0] == words[1] and opened.run(CURRENT) == listed[0]
    opened.press(RIGHT)
    opened.press(RIGHT)
    assert opened.run(CHOSEN)[0] == words[3]
    assert opened.run('return document.activeElement.firstChild.data') == words[3]
    for _ in range(6):
        opened.press(LEFT)
    assert opened.run(CHOSEN)[0] == words[0]            # and no further
    opened.press(DOWN)
    opened.press(DOWN)
    assert opened.run(CURRENT) == listed[2] and opened.run('return scrollY') == 0
    opened.press(UP)
    opened.run('at("next").focus()')
    opened.press(' ')                                   # plays, whatever has the focus
    assert opened.run(CURRENT) == listed[1]
    assert 'pause' in opened.run('return at("play").textContent')
    first = opened.run('return state.frame')
    opened.wait(f'state.frame !== {first}')
    opened.press(' ')
    assert 'play' in opened.run('return at("play").textContent')
    assert opened.run('return state.timer') is None


def test_a_strip_shows_the_frame_under_the_pointer_and_truth_draws_boxes(opened):
    before = opened.run(PICTURE.format(1))
    opened.hover('cards[0].strips[0].box', 0.03)
    assert opened.run('return cards.map((_, r) => frameIn(r))') == [0] * 4      # in all runs
    opened.hover('film.box', 0.97)
    assert opened.run('return frameIn(0)') == 15 and opened.run(PICTURE.format(1)) != before
    plain = opened.run('return film.canvas.toDataURL()')
    assert opened.run('return getComputedStyle(film.band).display') == 'none'
    opened.run('at("truth").click()')
    left, width, first, last = opened.run('''const a = film.band.getBoundingClientRect();
        const b = film.box.getBoundingClientRect();
        return [(a.left - b.left) / b.width * 16, a.width / b.width * 16, ...video.truth.window]''')
    assert [left, width] == pytest.approx([first, last - first + 1], abs=0.05)
    seen = opened.run('return video.truth.boxes.some(boxes => boxes[15])')
    assert (opened.run('return film.canvas.toDataURL()') != plain) == seen


def test_videos_are_sorted_by_any_score_of_any_run(opened, corpus):
    ids = corpus.ids
    assert opened.run(LISTED) == ids                    # CIDEr falls from clip to clip
    opened.run('at("metric").value = "Bleu_4"; at("metric").onchange()')
    assert opened.run(LISTED) == ids[::-1]
    opened.run('at("turn").click()')
    assert opened.run(LISTED) == ids
    opened.run('data.videos[2].runs[1].scores.Bleu_4 = -1')
    opened.run('at("whose").value = "1"; at("whose").onchange()')
    assert opened.run(LISTED) == [ids[2], *ids[:2], ids[3]]
    opened.run('at("whose").value = "differ"; at("turn").click()')
    assert opened.run(LISTED)[0] == ids[2] and opened.run(CURRENT) == ids[0]


def test_key_frames_and_numbers_are_drawn(opened):
    key, left = opened.run('''const {box} = cards[2].strips[0], b = box.getBoundingClientRect();
        const k = box.querySelector(".key").getBoundingClientRect();
        return [video.runs[2].key, (k.left - b.left) / b.width * 16]''')
    assert left == pytest.approx(key, abs=0.05)
    for word in (0, 3):
        drawn, wanted = opened.run(f'''choose(0, {word});
            const width = e => e.getBoundingClientRect().width;
            return [cards[0].numbers[0].map(row => width(row.fill) / width(row.fill.parentNode)),
                    video.runs[0].numbers[0].values[{word}]]''')
        assert drawn == pytest.approx(wanted, abs=0.02)


def test_a_narrow_window_scrolls_in_one_direction_only(opened):
    for width in (360, 390, 800):
        opened.resize(width)
        for n in range(3):
            opened.run(f'open(state.order[{n}])')
            wide, inside = opened.run('''const page = document.documentElement;
                return [page.scrollWidth, page.clientWidth]''')
            assert wide == inside <= width
            labels = opened.run('''return [...document.querySelectorAll(".number")].map(
                e => e.getBoundingClientRect().height)''')
            assert max(labels) < 30                     # each on one line
    moved = '''return [...document.querySelectorAll("#runs section, #runs canvas, .strip")].map(
        e => e.getBoundingClientRect().top)'''
    opened.resize(360)
    before = opened.run(moved)
    for word in range(5):                               # nothing jumps
        opened.run(f'choose(1, {word})')
        assert opened.run(moved) == before


def test_steps_of_several_frames_and_words_that_look_at_nothing(browser, corpus, tmp_path):
    """As ASTAR: the first word has no attention, later ones look at a corner of a 4 x 4 grid"""
    view = {'bars': {'layers': ('low', 'high')}}
    layers = [[0.0, 0.0], [0.4, 0.6]]
    space = np.zeros((2, 2, 16))
    space[1, :, 0] = 0.25, 0.75
    model = Looks({'space': space, 'layers': layers})
    path = page.write_page(tmp_path / 'x.html', [scored('two', corpus, 0, model, view)], corpus)
    browser.open(path)
    status = browser.run('choose(0, 2);' + STATUS)
    assert status == 'gives 75% of its attention to frames 9 to 16 of 16'
    bars = 'return cards[0].strips[0].bar.map(bar => bar.style.height)'
    values = 'return cards[0].numbers[0].map(row => row.value.textContent)'
    assert browser.run(bars) == ['33.3333%', '100%'] and browser.run('return frameIn(0)') == 12
    assert browser.run(values) == ['0.40', '0.60']
    browser.hover('cards[0].strips[0].box', 0.45)       # frame 8, of the first step
    assert browser.run(STATUS) == 'gives 25% of its attention to frames 1 to 8 of 16'
    assert browser.run('choose(0, 0);' + STATUS) == 'has no attention'
    assert browser.run(bars) == ['0%', '0%'] and browser.run(values) == ['–', '–']
    meters = 'return cards[0].buttons.map(b => b.querySelectorAll(".meter").length)'
    assert browser.run(meters)[:3] == [0, 1, 1]
    model.aux['space'] = model.aux['space'].sum(1, keepdim=True)
    path = page.write_page(tmp_path / 'x.html', [scored('one', corpus, 0, model, view)], corpus)
    browser.open(path)                                  # one step covers all frames
    assert browser.run('choose(0, 2);' + STATUS) == 'has one map for all 16 frames'
    assert browser.run('choose(0, 0);' + STATUS) == 'has no attention'
    assert browser.complaints() == []


def test_recognisers_have_a_page(browser, corpus, tmp_path):
    one = scored('rec', corpus, 0, Sees())
    one.run.training.task = 'recognise'
    one.found = {video: np.array([0.2, 0.7, 0.1]) for video in corpus.ids}
    browser.open(page.write_page(tmp_path / 'x.html', [one], corpus))
    assert browser.run(LISTED)[0] == 'val00001'         # the only one of class 1, which it sees
    assert browser.run('return video.references') == ['b'] == browser.run(CHOSEN)
    assert browser.run(STATUS) == 'gives all 16 frames the same weight; here frame 9'
    assert browser.run('return cards[0].numbers[0][0].value.textContent') == '0.70'
    assert browser.complaints() == []


def test_pages_without_frames_and_with_hostile_captions_open(browser, corpus, tmp_path):
    elsewhere = Corpus('elsewhere', 'val', {video: [HOSTILE] for video in corpus.ids},
                       features=corpus.features)        # no frames, no truth
    one = scored('sta', corpus)
    one.run.path = '<b>bold<b>'
    one.found = dict.fromkeys(corpus.ids, HOSTILE)
    browser.open(page.write_page(tmp_path / 'x.html', [one], elsewhere))
    assert browser.run('return document.title') == 'What the models look at'
    assert not browser.run('return document.images.length')
    assert browser.run('return video.runs[0].words')[0] == '<img'
    assert browser.run(CURRENT) == corpus.ids[0]
    assert 'no pictures' in browser.run('return at("video").textContent')
    assert browser.run('return at("legend").offsetWidth') == 0
    browser.run('console.error("heard")')
    heard = browser.complaints()                        # that, and nothing of the page
    assert len(heard) == 1 and 'heard' in heard[0]
