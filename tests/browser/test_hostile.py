"""Whatever a model, a file name or a record says stays text; and what slipped through would be stopped by the page's policy."""

from __future__ import annotations

import pytest

from tests.browser.conftest import HOSTILE, PHONE

_FOREIGN = """() => [...document.querySelectorAll('*')].filter((node) =>
  (node.tagName === 'SCRIPT' && !node.type && node !== document.scripts[document.scripts.length - 1])
  || ['IFRAME', 'OBJECT', 'EMBED', 'BASE', 'LINK', 'AUDIO', 'VIDEO', 'FORM'].includes(node.tagName) && !['filters', ''].includes(node.id)
  || [...node.attributes].some((one) => one.name.startsWith('on') || one.name === 'style' && !node.matches('.item, #spacer')
     || /^\\s*(javascript|https?|file):/i.test(one.value) && /^(src|href|xlink:href|action)$/.test(one.name)))
  .map((node) => node.outerHTML.slice(0, 200))"""


def test_a_run_full_of_hostile_texts_is_shown_as_text_and_fits_a_phone(opened, hostile):
    page = opened(hostile)
    assert page.evaluate(_FOREIGN) == []
    assert "<script>alert(1)</script>" in page.locator("main").inner_text()
    assert page.evaluate("document.querySelectorAll('main img').length") == 0
    page = opened(hostile, viewport=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_every_hostile_case_is_shown_as_text(opened, hostile):
    page = opened(hostile, "#cases")
    page.locator(".item").first.wait_for()
    for number, name in enumerate(HOSTILE):
        page.evaluate("place => choose(place)", number)
        page.wait_for_function("at => (document.querySelector('#case').ariaLabel || '').startsWith(`Case ${at + 1} of`)", arg=number)
        page.evaluate("document.querySelectorAll('#case details').forEach((one) => { one.open = true; })")
        assert page.evaluate(_FOREIGN) == [], name
        assert page.evaluate("document.querySelectorAll('#case img, #case a').length") == 0, name


def test_what_would_not_be_seen_is_shown_by_its_name(opened, hostile):
    page = opened(hostile, "#cases")
    page.locator(".item").first.wait_for()
    for name, marks in (("bidi", ["RLO", "U+202C"]), ("ansi", ["ESC", "BEL"]), ("controls", ["NUL", "DEL"]), ("surrogates", ["U+D83D"])):
        page.evaluate("place => choose(place)", list(HOSTILE).index(name))
        page.wait_for_function("name => document.querySelector('#case-title')?.textContent.startsWith(name)", arg=name)
        shown = page.locator("#case .ctl").all_text_contents()
        assert set(marks) <= set(shown), name


_ATTACKS = {
    "markup": "document.querySelector('main').innerHTML = '<img src=x onerror=attacked()>'",
    "handler": "document.body.setAttribute('onclick', 'attacked()'); document.body.click()",
    "timer": "setTimeout('attacked()')",
    "script": "{ const s = document.createElement('script'); s.text = 'attacked()'; document.body.append(s); }",
    "frame": "{ const f = document.createElement('iframe'); f.srcdoc = '<script>parent.attacked()</script>'; document.body.append(f); }",
    "network": "fetch('http://127.0.0.1:9/')",
    "picture": "new Image().src = 'http://127.0.0.1:9/x.png'",
    "link": "{ const a = document.createElement('a'); a.href = 'javascript:attacked()'; document.body.append(a); a.click(); }",
}


_WATCH = """() => {
  window.hits = window.blocked = 0;
  window.attacked = () => { window.hits += 1; };
  document.addEventListener('securitypolicyviolation', () => { window.blocked += 1; });
}"""


@pytest.mark.parametrize("attack", _ATTACKS.values(), ids=_ATTACKS)
def test_the_policy_stops_what_would_slip_through(opened, report, attack):
    page = opened(report)
    page.evaluate(_WATCH)
    page.evaluate(f"async () => {{ try {{ {attack}; }} catch {{}} await new Promise((done) => setTimeout(done, 50)); }}")
    assert page.evaluate("[window.hits, window.blocked > 0]") == [0, True]
    page.noted.clear()  # the browser's complaints, which are meant here
