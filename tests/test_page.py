"""The page of `evaluate.py --html`: what stands in it, and that it works in a real browser (Chromium, where it is installed)."""
import base64
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
import torch

import data
import evaluate
import shapes
import show
import sta
import stats
import vre
from data import BadInput, Corpus, Vocabulary

CHROMIUM, DRIVER = shutil.which('chromium') or shutil.which('chromium-browser'), shutil.which('chromedriver')
LEFT, UP, RIGHT, DOWN = '\ue012\ue013\ue014\ue015'                                  # WebDriver's names of the keys


class Browser:
    """chromedriver's WebDriver interface, as far as it is needed: https://www.w3.org/TR/webdriver2"""

    def __init__(self, profile):
        self.driver = subprocess.Popen([DRIVER, '--port=0'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            started = next(line for line in self.driver.stdout if 'started successfully on port' in line)
            self.address = 'http://127.0.0.1:' + re.search(r'port (\d+)', started)[1] + '/session'
            flags = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-sync',
                     '--disable-background-networking', '--disable-dev-shm-usage', '--disable-component-update', f'--user-data-dir={profile}']
            wanted = {'browserName': 'chrome', 'goog:chromeOptions': {'binary': CHROMIUM, 'args': flags},
                      'goog:loggingPrefs': {'browser': 'ALL', 'performance': 'ALL'}}
            self.address += '/' + self.ask('POST', '', {'capabilities': {'alwaysMatch': wanted}})['sessionId']
            self.ask('POST', '/url', {'url': 'about:blank'})        # away from the page of new tabs, which fetches things
            self.complaints(), self.fetched()
        except BaseException:
            self.driver.kill()
            raise

    def ask(self, method, command, content=None):
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self.address + command, body, {'Content-Type': 'application/json'}, method=method)
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
                return json.load(answer)['value']
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()[:2000]) from None

    def run(self, script):
        """JavaScript, whose `return` is returned"""
        return self.ask('POST', '/execute/sync', {'script': script, 'args': []})

    def complaints(self):
        """What went to the console since the last call, but for advice on speed"""
        return [one['message'] for one in self.ask('POST', '/se/log', {'type': 'browser'}) if one['source'] != 'rendering']

    def fetched(self):
        """The addresses that were asked for since the last call"""
        events = [json.loads(one['message'])['message'] for one in self.ask('POST', '/se/log', {'type': 'performance'})]
        return {event['params']['request']['url'] for event in events if event['method'] == 'Network.requestWillBeSent'}

    def resize(self, width, height):
        """The window's inside: what the mobile emulation of the developer tools does, as a window has a least width"""
        self.ask('POST', '/goog/cdp/execute', {'cmd': 'Emulation.setDeviceMetricsOverride', 'params': {
            'width': width, 'height': height, 'deviceScaleFactor': 1, 'mobile': width < 600}})

    def open(self, path):
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
        self.ask('POST', '/actions', {'actions': [{'type': kind, 'id': kind, 'actions': list(actions), **more}]})

    def hover(self, element, x=0.5):
        """element: an expression; x: where within it, 0 left to 1 right"""
        left, top = self.run(f'const e = {element}; e.scrollIntoView({{block: "center"}}); const b = e.getBoundingClientRect();'
                             f'return [Math.floor(b.left + {x} * b.width), Math.floor(b.top + b.height / 2)]')
        self.act('pointer', {'type': 'pointerMove', 'x': left, 'y': top, 'duration': 0, 'origin': 'viewport'})

    def press(self, key):
        self.act('key', {'type': 'keyDown', 'value': key}, {'type': 'keyUp', 'value': key})

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.ask('GET', '/screenshot')))

    def close(self):
        try:
            self.ask('DELETE', '')
        finally:
            self.driver.terminate()
            self.driver.wait()


# ---------------------------------------------------------------- tiny runs: random weights, scaled up so that attention is uneven

def make_model(paper, corpus, vocabulary, **more):
    torch.manual_seed(0)
    feats = {'clip': [7, 7, 6]}
    sizes = dict(stats=dict(visual=5, embed=6, attn=4, hidden=8), vre=dict(hidden=8, attn=4), sta=dict(hidden=8, embed=6))[paper.__name__]
    model = paper.Captioner(paper.Config(vocab=len(vocabulary), feats=feats, features=('clip',), frames=16, captions=5, max_len=20,
                                         **sizes, **more)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    return model


@pytest.fixture(scope='module')
def world():
    """Four clips of the embedded world, with random features -> corpus, features, vocabulary"""
    videos = [f'val{n:05d}' for n in range(4)]
    scenes, rng = {video: shapes.scene(video) for video in videos}, np.random.default_rng(0)
    captions = {video: shapes.captions(scene) for video, scene in scenes.items()}
    corpus = Corpus('shapes', 'val', captions, truth={video: shapes.truth(scene) for video, scene in scenes.items()})
    features = {'clip': {video: rng.standard_normal((16, 7, 7, 6)).astype(np.float32) for video in videos}}
    return corpus, features, Vocabulary.build(caption for several in captions.values() for caption in several)


def make_run(name, paper, world, nth=0, **more):
    """A run that says the nth reference of each clip; CIDEr falls from clip to clip, so that their order is known"""
    corpus, features, vocabulary = world
    return {'name': name, 'model': make_model(paper, corpus, vocabulary, **more), 'features': features, 'vocabulary': vocabulary, 'beam': 2,
            'scores': {'CIDEr': 1.0, 'loss': 2.0}, 'captions': {video: several[nth] for video, several in corpus.captions.items()},
            'each': {video: {'Bleu_4': n / 9, 'CIDEr': 3 - n / 2} for n, video in enumerate(corpus.ids)}}


@pytest.fixture(scope='module')
def runs(world):
    return [make_run('both', stats, world), make_run('space first', stats, world, 1, variant='st'),
            make_run('vre', vre, world, 2), make_run('sta', sta, world, 3)]


def content(path):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.S)[1])


@pytest.fixture(scope='module')
def page(runs, world, tmp_path_factory):
    return show.page(tmp_path_factory.mktemp('page') / 'report.html', runs, world[0], 'cpu')


# ---------------------------------------------------------------- what stands in the page

def test_the_page_holds_what_the_replay_gives(page, runs, world):
    found, (corpus, features, _) = content(page), world
    assert [run['name'] for run in found['runs']] == ['both', 'space first', 'vre', 'sta'] and found['total'] == 4
    for one in found['videos']:
        video = one['id']
        assert one['references'] == corpus.captions[video]
        assert one['truth'] == {'boxes': corpus.truth[video]['boxes'], 'window': list(corpus.truth[video]['window'])}
        for run, look in zip(runs, one['runs']):
            batch = data.Batches(corpus, features).collate([(video, [])])
            words, aux = show.replay(run['model'], batch, run['vocabulary'], run['captions'][video])
            assert look['words'] == words == run['captions'][video].split() + ['<eos>']
            assert look['scores']['CIDEr'] == run['each'][video]['CIDEr'] and look['scores']['slots'] == 1     # a reference is right
            name, maps = run['name'], look['maps']
            cells = np.frombuffer(base64.b64decode(maps['bytes']), np.uint8).reshape(len(words), maps['steps'], 49).astype(float)
            space = {'both': 'ts_space', 'space first': 'st_space', 'vre': 'space', 'sta': 'space'}[name]
            wanted = aux[space] if name == 'sta' else aux[space][:, None]                       # (T, 16 or 1, 49)
            assert maps['side'] == 7 and maps['steps'] == wanted.shape[1] == (16 if name == 'sta' else 1)
            assert np.abs(cells / 255 - wanted / wanted.max(2, keepdims=True)).max() <= 0.51 / 255
            if name == 'both':
                st = np.frombuffer(base64.b64decode(look['st_maps']['bytes']), np.uint8).reshape(len(words), 49)
                assert np.abs(st / 255 - aux['st_space'] / aux['st_space'].max(1, keepdims=True)).max() <= 0.51 / 255
            assert (look['st_maps'] is None) == (name != 'both')
            assert np.ptp(wanted) > 0.01 and look['key'] == (int(aux['key'][0].argmax()) if name == 'vre' else None)
            if name == 'space first':
                assert look['time'] is None and look['numbers'] == []
                continue
            time = aux['space'].sum(2) if name == 'sta' else aux['frames' if name == 'vre' else 'ts_frames']
            assert np.abs(np.array(look['time']) - time).max() < 1e-4
            key = {'both': 'mix', 'sta': 'gate'}.get(name)
            assert [numbers['name'] for numbers in look['numbers']] == [key] * bool(key)
            if key:
                assert np.abs(np.array(look['numbers'][0]['values']) - aux[key].reshape(len(words), -1)).max() < 1e-4
        vre_look = one['runs'][2]
        assert vre_look['key'] == np.argmax(vre_look['focus']) and sum(vre_look['focus']) == pytest.approx(1, abs=1e-3)


def test_the_pictures_are_the_frames(page):
    from io import BytesIO

    from PIL import Image
    for one in content(page)['videos'][:2]:
        kind, picture = one['frames']['picture'].split(',')
        row = np.asarray(Image.open(BytesIO(base64.b64decode(picture)))).astype(float)
        assert kind == 'data:image/jpeg;base64' and row.shape == (112, 16 * 112, 3) and one['count'] == 16
        frames = shapes.render(shapes.scene(one['id'])).astype(float)
        shown = np.stack(np.split(row, 16, axis=1))
        far = np.abs(shown[:, None] - frames).mean((2, 3, 4))                       # (16, 16), JPEG is not exact
        assert far.argmin(1).tolist() == list(range(16)) and far.diagonal().max() < 9


def test_videos_are_spread_from_the_best_to_the_worst():
    score = {f'v{n}': n for n in range(11)}
    assert show.best_to_worst(score, 3) == ['v10', 'v5', 'v0'] and show.best_to_worst(score, 40) == [f'v{n}' for n in range(10, -1, -1)]
    assert len(set(show.best_to_worst({str(n): n * n for n in range(500)}, 40))) == 40


def test_nothing_is_fetched_and_no_caption_ends_the_script(runs, world, page, tmp_path):
    assert not re.search(r'https?:|//\w|url\((?!")|@import|<link (?!rel="icon" href="data:,")', page.read_text().split('id="data">')[0])
    assert not re.search(r'https?:', page.read_text())
    corpus, video = world[0], world[0].ids[0]
    broken = dict(runs[0], captions={**runs[0]['captions'], video: 'a </script><script>alert(1)</script> <!--'})
    path = show.page(tmp_path / 'x.html', [broken], corpus, 'cpu')
    assert path.read_text().count('<script') == 2 == path.read_text().count('</script') and '<!--' not in path.read_text().split('id="data">')[1]
    assert next(one for one in content(path)['videos'] if one['id'] == video)['runs'][0]['words'][1] == '</script><script>alert(1)</script>'
    with pytest.raises(BadInput, match='cannot write'):
        show.page(tmp_path / 'nowhere' / 'x.html', [runs[0]], corpus, 'cpu')


# ---------------------------------------------------------------- from the command line

@pytest.fixture
def saved(tmp_path, monkeypatch):
    """MSVD in miniature, features alone, and a function that saves a run of random weights -> its folder"""
    rng = np.random.default_rng(0)
    (tmp_path / 'msvd' / 'features').mkdir(parents=True)
    (tmp_path / 'msvd' / 'sents_val.txt').write_text(''.join(f'vid{n}\ta man runs\nvid{n}\ta dog runs\n' for n in range(4)))
    np.save(tmp_path / 'msvd' / 'features' / 'tiny.npy', rng.standard_normal((4, 3, 6)).astype(np.float16))
    (tmp_path / 'msvd' / 'features' / 'tiny.json').write_text(json.dumps({'ids': [f'vid{n}' for n in range(4)]}))
    whole = evaluate.score
    monkeypatch.setattr(evaluate, 'score', lambda *some, **more: whole(*some, **{**more, 'quick': True}))       # without Java

    def save(name, words='a man runs', **more):
        config = dict(vocab=3 + len(words.split()), feats={'tiny': [6]}, features=('tiny',), frames=3, visual=5, embed=6, attn=4, hidden=8)
        torch.manual_seed(0)
        model = stats.Captioner(stats.Config(**config))
        checkpoint = dict(model='stats', dataset='msvd', scheme='official', fold=1, limit=None, config=config, state_dict=model.state_dict(),
                          vocab=['<pad>', '<eos>', '<unk>', *words.split()])
        (tmp_path / name).mkdir()
        torch.save({**checkpoint, **more}, tmp_path / name / 'best.pt')
        return str(tmp_path / name)

    return save


def test_runs_with_other_words_are_compared_and_a_page_needs_no_frames(saved, tmp_path, capsys):
    runs, out = [saved('one'), saved('two', 'a dog runs fast')], tmp_path / 'report.html'
    evaluate.main([*runs, '--html', str(out), '--root', str(tmp_path), '--beam', '2', '--device', 'cpu'])
    found, said = content(out), capsys.readouterr().out
    assert [run['name'] for run in found['runs']] == ['one', 'two'] and len(found['videos']) == 4 and found['split'] == 'val'
    assert all(one['frames'] is None and one['count'] == 3 and np.shape(look['time'])[1] == 3 for one in found['videos'] for look in one['runs'])
    assert f'{out}, {out.stat().st_size / 1e6:.1f} MB' in said and 'two: msvd, val split, 4 videos, beam 2' in said


def test_what_cannot_be_compared_is_told_before_any_work(saved, tmp_path):
    first, page = saved('first'), ['--html', str(tmp_path / 'report.html'), '--root', str(tmp_path), '--device', 'cpu']
    for more, message in ((dict(dataset='shapes'), 'second learned from shapes, .*first from msvd'), (dict(scheme='vre'), 'or another split'),
                          (dict(fold=2), 'or another split'), (dict(limit=8), '--limit 8'), (dict(vocab=None), 'second recognises actions')):
        second = saved('second', **more)
        with pytest.raises(BadInput, match=message):
            evaluate.main([first, second, *page])
        (tmp_path / 'second' / 'best.pt').unlink()
        (tmp_path / 'second').rmdir()
    for more, message in ((['--words'], 'do that alone'), (['--html', str(tmp_path / 'a' / 'b')], 'there is no folder')):
        with pytest.raises(BadInput, match=message):
            evaluate.main([first, *page, *more])
    assert not (tmp_path / 'report.html').exists()


# ---------------------------------------------------------------- in a browser

@pytest.fixture(scope='module')
def browser(tmp_path_factory):
    if not (CHROMIUM and DRIVER):
        pytest.skip('chromium and chromedriver are not installed (Debian: apt install chromium chromium-driver)')
    browser = Browser(tmp_path_factory.mktemp('profile'))
    yield browser
    browser.close()


@pytest.fixture
def opened(browser, page):
    """The page, fresh; whatever the test does must not make it complain, nor ask the network"""
    browser.resize(1200, 800)
    browser.hover('document.body', 0)                       # the pointer rests where no word will be
    browser.open(page)
    yield browser
    assert browser.complaints() == []
    assert {address for address in browser.fetched() if not address.startswith('data:')} == {page.as_uri()}


PICTURE = 'return cards[{}].canvas.toDataURL()'
CHOSEN = 'return [...document.querySelectorAll("#runs section")].map(s => s.querySelector(".words [aria-pressed=true]").firstChild.data)'
LISTED = 'return [...document.querySelectorAll("#videos button")].map(b => b.textContent.split(" ")[0])'
CURRENT = 'return document.querySelector("#video h2").textContent'


def test_hovering_a_word_changes_the_overlay_in_every_run(opened):
    word = 'document.querySelectorAll("#runs section")[{}].querySelectorAll(".words button")[{}]'
    seen = []
    for run, nth in ((0, 0), (0, 2), (3, 1), (3, 3)):
        opened.hover(word.format(run, nth))
        assert opened.run(CHOSEN)[run] == opened.run(f'return {word.format(run, nth)}.firstChild.data')
        seen.append([opened.run(PICTURE.format(n)) for n in range(4)])
    assert all(len({state[n] for state in seen}) >= 3 for n in range(4))
    # the other runs follow to the same word where they say it
    said = [look['words'] for look in opened.run('return video.runs')]
    chosen = opened.run(CHOSEN)
    assert all(chosen[3] not in words or mine == chosen[3] for words, mine in zip(said, chosen))


def test_the_overlay_is_bright_where_the_attention_is(opened):
    """Light of the picture over that of the plain frame, cell by cell, against the map; and the frame with the highest weight is shown"""
    opened.run('choose(3, 2)')
    look = opened.run('return {...video.runs[3], maps: [...video.runs[3].maps.bytes]}')
    frame = int(np.argmax(look['time'][2]))
    light = '''const cell = (canvas, n) => [...canvas.getContext("2d").getImageData(n % 7 * 32 + 15, Math.floor(n / 7) * 32 + 15, 2, 2).data]
        .filter((_, i) => i % 4 < 3).reduce((a, b) => a + b);
        paint(film.canvas, FRAME); return range(49).map(n => [cell(cards[3].canvas, n), cell(film.canvas, n)])'''
    shown, plain = np.array(opened.run(light.replace('FRAME', str(frame)))).T
    wanted = np.array(look['maps']).reshape(-1, 16, 49)[2, frame] / 255
    assert np.corrcoef(shown / plain, wanted)[0, 1] > 0.98 and (shown / plain).max() > 0.95
    assert f'to frame {frame + 1} of 16' in opened.run('return cards[3].status.textContent')


def test_the_keys_step_through_words_and_videos_and_play(opened):
    listed = opened.run(LISTED)
    words = opened.run('return video.runs[0].words')
    assert opened.run(CHOSEN)[0] == words[1] and opened.run(CURRENT) == listed[0]
    opened.press(RIGHT)
    opened.press(RIGHT)
    assert opened.run(CHOSEN)[0] == words[3] and opened.run('return document.activeElement.firstChild.data') == words[3]
    for _ in range(6):
        opened.press(LEFT)
    assert opened.run(CHOSEN)[0] == words[0]                                        # and no further
    opened.press(DOWN)
    opened.press(DOWN)
    assert opened.run(CURRENT) == listed[2] and opened.run('return scrollY') == 0
    opened.press(UP)
    assert opened.run(CURRENT) == listed[1]
    opened.run('at("next").focus()')
    opened.press(' ')                                                               # plays, whatever has the focus
    assert opened.run(CURRENT) == listed[1] and 'pause' in opened.run('return at("play").textContent')
    first = opened.run('return state.frame')
    opened.wait(f'state.frame !== {first}')
    opened.press(' ')
    assert 'play' in opened.run('return at("play").textContent') and opened.run('return state.timer') is None


def test_a_strip_shows_the_frame_under_the_pointer_and_truth_draws_boxes(opened):
    before = opened.run(PICTURE.format(1))
    opened.hover('cards[0].strips[0].box', 0.03)
    assert opened.run('return cards.map((_, r) => frameIn(r))') == [0] * 4          # in all runs
    opened.hover('film.box', 0.97)
    assert opened.run('return frameIn(0)') == 15 and opened.run(PICTURE.format(1)) != before
    plain = opened.run('return film.canvas.toDataURL()')
    assert opened.run('return getComputedStyle(film.band).display') == 'none'
    opened.run('at("truth").click()')
    left, width, first, last = opened.run('const a = film.band.getBoundingClientRect(), b = film.box.getBoundingClientRect();'
                                          'return [(a.left - b.left) / b.width * 16, a.width / b.width * 16, ...video.truth.window]')
    assert [left, width] == pytest.approx([first, last - first + 1], abs=0.05)
    seen = opened.run('return video.truth.boxes.some(boxes => boxes[15])')
    assert (opened.run('return film.canvas.toDataURL()') != plain) == seen


def test_videos_are_sorted_by_any_score_of_any_run(opened, world):
    ids = world[0].ids
    assert opened.run(LISTED) == ids                                                # CIDEr falls from clip to clip
    opened.run('at("metric").value = "Bleu_4"; at("metric").onchange()')
    assert opened.run(LISTED) == ids[::-1]
    opened.run('at("turn").click()')
    assert opened.run(LISTED) == ids
    opened.run('data.videos[2].runs[1].scores.Bleu_4 = -1; at("whose").value = "1"; at("whose").onchange()')
    assert opened.run(LISTED) == [ids[2], *ids[:2], ids[3]]
    opened.run('at("whose").value = "differ"; at("turn").click()')
    assert opened.run(LISTED)[0] == ids[2] and opened.run(CURRENT) == ids[0]


def test_key_frames_and_numbers_are_drawn(opened):
    key, left = opened.run('const b = cards[2].strips[0].box.getBoundingClientRect(), k = cards[2].strips[0].box.querySelector(".key");'
                           'return [video.runs[2].key, (k.getBoundingClientRect().left - b.left) / b.width * 16]')
    assert left == pytest.approx(key, abs=0.05)
    for word in (0, 3):
        opened.run(f'choose(0, {word})')
        drawn, wanted = opened.run('return [cards[0].numbers[0].map(row => row.fill.getBoundingClientRect().width /'
                                   f'row.fill.parentNode.getBoundingClientRect().width), video.runs[0].numbers[0].values[{word}]]')
        assert drawn == pytest.approx(wanted, abs=0.02)


def test_a_phone_wide_window_scrolls_in_one_direction_alone(opened):
    for width in (360, 800):
        opened.resize(width, 740)
        for n in range(3):
            opened.run(f'open(state.order[{n}])')
            wide, inside = opened.run('return [document.documentElement.scrollWidth, document.documentElement.clientWidth]')
            assert wide == inside <= width
    moved = 'return [...document.querySelectorAll("#runs section, #runs canvas, .strip")].map(e => e.getBoundingClientRect().top)'
    opened.resize(360, 740)
    before = opened.run(moved)
    for word in range(5):                                                           # nothing jumps
        opened.run(f'choose(1, {word})')
        assert opened.run(moved) == before


class TwoSteps(torch.nn.Module):
    """Looks as ASTAR does: the first word at nothing, then at one corner of a 4 x 4 grid, in the second of two steps of time"""
    __module__ = 'astar'

    def __init__(self):
        super().__init__()
        self.cfg, self.anything = type('Config', (), {'max_len': 20, 'variant': 'soft'}), torch.nn.Parameter(torch.zeros(1))

    def encode(self, batch):
        return {}, torch.zeros(1, 1)

    def step(self, token, state, memory):
        space, layers = torch.zeros(1, 2, 4, 4), torch.zeros(1, 4)
        if token is not None:
            space[0, :, 0, 0], layers[0] = torch.tensor([0.25, 0.75]), torch.tensor([0.1, 0.2, 0.3, 0.4])
        return torch.zeros(1, 99), state, {'space': space, 'layers': layers}


def test_a_model_with_fewer_steps_than_frames_and_a_word_that_looks_at_nothing(browser, runs, world, tmp_path):
    path = show.page(tmp_path / 'x.html', [dict(runs[0], model=TwoSteps())], world[0], 'cpu')
    browser.resize(1200, 800)
    browser.open(path)
    shown = 'return [cards[0].status.textContent, cards[0].strips[0].bar.map(bar => bar.style.height), frameIn(0)]'
    assert browser.run('choose(0, 2);' + shown) == [browser.run('return `“${video.runs[0].words[2]}”`')
                                                    + ' gives 75% of its attention to frame 9 of 16', ['33.3333%', '100%'], 8]
    assert browser.run('return cards[0].numbers[0].map(row => row.value.textContent)') == ['0.10', '0.20', '0.30', '0.40']
    browser.hover('cards[0].strips[0].box', 0.45)                                   # frame 8, of the first step
    assert 'gives 25% of its attention to frame 8 of 16' in browser.run(shown)[0]
    first = browser.run('choose(0, 0);' + shown)
    assert 'looks at nothing' in first[0] and first[1] == ['0%', '0%'] and browser.complaints() == []


def test_pages_without_frames_and_with_hostile_captions_open(browser, runs, world, tmp_path):
    corpus, video = world[0], world[0].ids[0]
    hostile = '<img src=x onerror=document.title=1> </script><script>document.title=2</script>'
    elsewhere = Corpus('elsewhere', 'val', {i: [hostile] for i in corpus.ids})      # no frames, no truth
    captions = dict.fromkeys(corpus.ids, hostile)
    path = show.page(tmp_path / 'x.html', [dict(runs[3], captions=captions, name='<b>bold</b>')], elsewhere, 'cpu')
    browser.resize(1200, 800)
    browser.open(path)
    assert browser.run('return document.title') == 'What the models look at' and not browser.run('return document.images.length')
    assert browser.run('return video.runs[0].words')[0] == '<img' and browser.run(CURRENT) == video
    assert 'no pictures' in browser.run('return at("video").textContent') and browser.run('return at("legend").offsetWidth') == 0
    browser.run('console.error("heard")')
    heard = browser.complaints()                            # that, and nothing of the page
    assert len(heard) == 1 and 'heard' in heard[0]
