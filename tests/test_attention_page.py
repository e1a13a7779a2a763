"""The page of attention in a real browser: the machine's own Chromium."""

import base64
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float
from playwright.sync_api import Browser, Page, expect, sync_playwright
from torch import Tensor

from mt.inspection.attention_maps import AttentionMap
from mt.inspection.explanation import ExplainedWord, Share
from mt.inspection.film import Scene, attention_page, frame, read_film, write_frame
from mt.inspection.heads import HeadScore, Scoreboard
from mt.inspection.words import merge
from mt.training.module import TranslationModule

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: the page is not tested")

SOURCE = ["▁The", "▁re", "d", "▁house", "</s>"]
PRODUCED, READ = ["▁La", "▁casa", "▁ros", "sa", "</s>"], ["<s>", "▁La", "▁casa", "▁ros", "sa"]
SIDES = {"encoder": (SOURCE, SOURCE), "decoder": (PRODUCED, READ), "cross": (PRODUCED, SOURCE)}
NAMES = {
    "encoder": "encoder.layers.{}.self_attention",
    "decoder": "decoder.layers.{}.self_attention",
    "cross": "decoder.layers.{}.cross_attention",
}
STEPS = [10, 20, 30]


def maps(step: int) -> dict[tuple[str, int], AttentionMap]:
    """By kind and layer, from 1; three heads each."""
    torch.manual_seed(step)
    found = {}
    for kind, (queries, keys) in SIDES.items():
        for layer in (1, 2):
            scores: Float[Tensor, "3 5 5"] = torch.randn(3, 5, 5) * 2
            if kind == "decoder":
                scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
            name = NAMES[kind].format(layer - 1)
            found[kind, layer] = AttentionMap(name, scores.softmax(dim=-1), queries, keys)
    return found


def board(step: int) -> Scoreboard:
    """Layer 2 head 3 is the best from step 20 on."""
    aers = {(layer, head): 0.9 - 0.01 * head for layer in (1, 2) for head in (1, 2, 3)}
    aers[2, 3] = {10: 0.95, 20: 0.4, 30: 0.35}[step]
    return Scoreboard([HeadScore(*place, aer, 1.5, 0.25, 0.5) for place, aer in aers.items()], 0.5)


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("una corsa è")
    for step in STEPS:
        scenes = [
            Scene("The red house", "La casa rossa", [*maps(step).values()], translation=f"La casa {step}"),
            Scene("</script><b>x</b>", "<img src=http://example.org/x.png>", [*maps(step + 1).values()]),
        ]
        write_frame(run, step, scenes, board(step))
    (run / "attention.html").write_text(attention_page("<i>run</i>", read_film(run)), encoding="utf-8")
    return run / "attention.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a file; afterwards there must have been no error, no message and no request but for the file itself."""
    said: list[str] = []
    pages = []

    def opens(path: Path, width: int = 1440, **how: Any) -> Page:
        page = browser.new_page(viewport={"width": width, "height": 900}, **how)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        pages.append(page)
        return page

    yield opens
    for page in pages:
        page.close()
    assert said == []


def slide(page: Page, slider: str, value: int) -> None:
    page.locator(f"#{slider}").fill(str(value))


def shares(page: Page, side: str) -> list[float]:
    texts = page.locator(f"#{side} .word small").all_inner_texts()
    return [float(text.rstrip("%")) / 100 if text else 0.0 for text in texts]


def shown(page: Page) -> Float[Tensor, "Q K"]:
    """The large map, read from its cells."""
    cells = page.locator("rect.cell").evaluate_all("cells => cells.map(c => +c.getAttribute('fill-opacity'))")
    return torch.tensor(cells).view(page.locator("#queries .word").count(), -1)


def close(found: Any, expected: Any) -> None:
    """To a 255th of a weight, and to a percent where one is written."""
    torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(expected), atol=0.011, rtol=0)


@in_a_browser
@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_its_width_in_light_and_dark_and_can_be_read(
    opened: Callable[..., Page], film: Path, width: int, scheme: str
) -> None:
    page = opened(film, width, color_scheme=scheme)
    for _ in range(2):
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.get_by_role("button", name="all heads at once").click()
    background, ink = (
        page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color")
    )
    light = [sum(map(int, re.findall(r"\d+", colour)[:3])) / 3 for colour in (background, ink)]
    assert abs(light[0] - light[1]) > 180 and (light[0] > light[1]) == (scheme == "light")
    texts = page.locator("p, dd, td, text, .word span")
    sizes = texts.evaluate_all("texts => texts.map(text => parseFloat(getComputedStyle(text).fontSize))")
    assert min(sizes) >= 11
    page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != background


@in_a_browser
def test_the_sliders_choose_step_layer_and_head(opened: Callable[..., Page], film: Path) -> None:
    page = opened(film)
    for index, layer, head in ((0, 1, 2), (2, 2, 3), (1, 2, 1)):
        slide(page, "step", index)
        slide(page, "layer", layer)
        slide(page, "head", head)
        close(shown(page), merge(maps(STEPS[index])["cross", layer]).weights[head - 1])
        assert page.locator("#translation").inner_text() == f"La casa {STEPS[index]}"
        assert page.locator("#stepText").inner_text() == f"{STEPS[index]} of 30"
    slide(page, "head", 0)
    close(shown(page), merge(maps(20)["cross", 2]).weights.mean(dim=0))


@in_a_browser
@pytest.mark.parametrize("kind", ["cross", "encoder", "decoder"])
def test_a_word_shows_what_it_looks_at_and_what_looks_at_it(opened: Callable[..., Page], film: Path, kind: str) -> None:
    page = opened(film)
    page.locator(f"#kinds button[value={kind}]").click()
    slide(page, "layer", 1)
    slide(page, "head", 2)
    expected = merge(maps(30)[kind, 1])
    assert page.locator("#queries .word span").all_inner_texts() == expected.queries
    assert page.locator("#keys .word span").all_inner_texts() == expected.keys
    page.locator("#queries .word").nth(2).hover()
    close(shares(page, "keys"), expected.weights[1, 2])
    heaviest = expected.keys[int(expected.weights[1, 2].argmax())]
    assert re.match(rf"{expected.queries[2]} looks at {re.escape(heaviest)} \d+%", page.locator("#note").inner_text())
    page.locator("#keys .word").nth(1).hover()
    close(shares(page, "queries"), expected.weights[1, :, 1])
    assert f"{expected.keys[1]} is looked at by" in page.locator("#note").inner_text()
    page.mouse.move(0, 0)
    assert "Point at a word" in page.locator("#note").inner_text()


@in_a_browser
def test_a_tap_holds_a_word_and_the_map_names_a_row_too(opened: Callable[..., Page], film: Path) -> None:
    page = opened(film, 360, has_touch=True)
    slide(page, "layer", 1)
    slide(page, "head", 1)
    expected = merge(maps(30)["cross", 1]).weights[0]
    page.locator("#queries .word").nth(1).tap()
    close(shares(page, "keys"), expected[1])
    slide(page, "step", 0)
    close(shares(page, "keys"), merge(maps(10)["cross", 1]).weights[0, 1])
    page.locator("rect.cell").nth(2 * 4 + 1).click()
    assert page.locator("#queries .word.chosen span").inner_text() == "rossa"
    page.keyboard.press("Escape")
    assert page.locator(".word.chosen").count() == 0


@in_a_browser
def test_pieces_are_shown_as_they_are(opened: Callable[..., Page], film: Path) -> None:
    page = opened(film)
    page.get_by_role("button", name="pieces", exact=True).click()
    assert page.locator("#queries .word span").all_inner_texts() == PRODUCED
    slide(page, "layer", 2)
    slide(page, "head", 3)
    close(shown(page), maps(30)["cross", 2].weights[2])


@in_a_browser
def test_all_heads_at_once_are_all_heads_and_one_can_be_chosen(opened: Callable[..., Page], film: Path) -> None:
    page = opened(film)
    page.keyboard.press("a")
    pixels = "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
    colours = page.locator(".heads canvas").evaluate_all(f"all => all.map({pixels})")
    expected = torch.cat([merge(maps(30)["cross", layer]).weights for layer in (1, 2)])
    close(torch.tensor(colours).view(6, 4, 4, 4)[..., 3] / 255, expected)
    assert "AER 0.35" in page.locator(".heads button").nth(5).inner_text()
    page.locator(".heads button").nth(1).click()
    close(shown(page), expected[1])


@in_a_browser
def test_everything_can_be_reached_from_the_keyboard(opened: Callable[..., Page], film: Path) -> None:
    page = opened(film)
    press = page.keyboard.press
    press("ArrowLeft")
    assert page.locator("#stepText").inner_text() == "20 of 30"
    press("ArrowDown")
    assert page.locator("#headText").inner_text() == "2 of 3"
    press("[")
    close(shown(page), merge(maps(20)["cross", 1]).weights[1])
    press("w")
    press("k")
    close(shown(page), maps(20)["encoder", 1].weights[1])
    page.locator("#queries .word").first.focus()
    press("Tab")
    assert page.locator(".word.chosen span").inner_text() == SOURCE[1]
    press("n")
    assert page.locator("#source").inner_text() == "</script><b>x</b>"
    page.locator("body").click(position={"x": 2, "y": 2})
    press(" ")
    expect(page.locator("#stepText")).to_have_text("30 of 30")


@in_a_browser
def test_the_page_says_which_head_aligns_and_when_it_learnt_to(opened: Callable[..., Page], film: Path) -> None:
    page = opened(film)
    assert "layer 2 head 3 aligns best, as it does since step 20: AER 0.35" in page.locator("#bestHead").inner_text()
    assert "from 0.95 at step 10 to 0.35 at step 30" in page.locator("#learnt").inner_text()
    assert page.locator("#learnt").inner_text().endswith("by step 20.")
    assert page.locator("#headText").inner_text() == "3 of 3" and page.locator("#layerText").inner_text() == "2 of 2"
    rows = page.locator("#board tbody tr").all_inner_texts()
    assert len(rows) == 6 and rows[0].split() == ["layer", "2", "head", "3", "0.35", "1.50", "25%", "0.50"]
    slide(page, "step", 0)
    assert "layer 1 head 3 aligns best" in page.locator("#bestHead").inner_text()
    page.get_by_role("button", name="layer 1 head 2").click()
    close(shown(page), merge(maps(10)["cross", 1]).weights[1])


@in_a_browser
def test_a_page_of_one_translation_shows_the_alternatives(opened: Callable[..., Page], tmp_path: Path) -> None:
    words = [ExplainedWord(w, 0.5, [], []) for w in ("La", "casa")]
    words += [ExplainedWord("rossa", 0.63, [], [Share("rosso", 0.25), Share("blu", 0.001)])]
    words += [ExplainedWord("</s>", 1.0, [], [])]
    best = Scene("The red house", "La casa rossa", [*maps(1).values()], score=-0.25, words=words)
    other = Scene("The red house", "Casa rossa", [*maps(2).values()], score=-0.5, words=words)
    page_file = tmp_path / "una pagina.html"
    page_file.write_text(attention_page("The red house", [frame(None, [best, other], None)]), encoding="utf-8")
    page = opened(page_file)
    assert not page.locator("#step").is_visible() and not page.locator("#board").is_visible()
    page.locator("#queries .word").nth(2).hover()
    note = page.locator("#note").inner_text()
    assert "probability 63%; or else rosso 25%" in note and "blu" not in note
    page.get_by_role("button", name="Casa rossa -0.50").click()
    close(shown(page), merge(maps(2)["cross", 1]).weights.mean(dim=0))


@in_a_browser
def test_a_model_without_attention_or_with_that_over_its_source_alone_has_a_page_too(
    opened: Callable[..., Page], tmp_path: Path
) -> None:
    none = [frame(step, [Scene("a b", "c d", [], translation=f"c {step}")], None) for step in (1, 2)]
    one_head = AttentionMap("decoder.attention", maps(1)["cross", 1].weights[:1], PRODUCED, SOURCE)
    for name, frames in (("none", none), ("one", [frame(1, [Scene("a", "b", [one_head])], None)])):
        (tmp_path / f"{name}.html").write_text(attention_page(name, frames), encoding="utf-8")
    page = opened(tmp_path / "none.html")
    assert "no attention" in page.locator("#note").inner_text()
    assert page.locator("#translation").inner_text() == "c 2"
    for key in ("ArrowUp", "k", "]", "n"):
        page.keyboard.press(key)
    assert "no attention" in page.locator("#note").inner_text()
    page = opened(tmp_path / "one.html")
    assert page.locator("#kinds button:disabled").count() == 2
    close(shown(page), merge(one_head).weights[0])


def test_a_frame_is_small_and_holds_the_weights_to_a_255th(film: Path) -> None:
    paths = sorted((film.parent / "film").glob("*"))
    assert [path.name for path in paths] == ["00000010.json", "00000020.json", "00000030.json"]
    scene = json.loads(paths[1].read_text("utf-8"))["scenes"][0]
    for found, (key, expected) in zip(scene["maps"], maps(20).items(), strict=True):
        weights = torch.frombuffer(bytearray(base64.b64decode(found["weights"])), dtype=torch.uint8).view(3, 5, 5)
        assert found["kind"] == key[0]
        torch.testing.assert_close(weights / 255, expected.weights, atol=0.5 / 255 + 1e-6, rtol=0)


def test_a_page_is_one_file_that_names_no_other(film: Path) -> None:
    text = film.read_text("utf-8")
    assert text.count("</script>") == 1 and text.count("<script>") == 1
    assert not re.search(r"(src|href)=[\"'](?!data:)", text) and "@import" not in text and "url(" not in text


def test_a_run_without_a_film_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no film"):
        read_film(tmp_path)
    (tmp_path / "film").mkdir()
    (tmp_path / "film" / "00000001.json").write_text('{"step": ')
    with pytest.raises(ValueError, match=r"00000001\.json: damaged"):
        read_film(tmp_path)
    write_frame(tmp_path, 1, [], None)
    with pytest.raises(ValueError, match=r"shows no sentence: all were longer than callbacks\.film\.max_pieces"):
        read_film(tmp_path)
    assert [path.name for path in (tmp_path / "film").iterdir()] == ["00000001.json"]


def test_the_scenes_of_a_translation_are_its_hypotheses_with_the_maps_and_words_of_each(
    module: TranslationModule,
) -> None:
    scenes = module.translator.scenes("You sell his guitar.", beam=3)
    (translation,) = module.translator.translate(["You sell his guitar."], beam=3, nbest=3)
    assert [scene.target for scene in scenes] == [text for text, _ in translation.hypotheses]
    for scene in scenes:
        cross = next(m for m in scene.maps if "cross" in m.name)
        assert [word.word for word in scene.words] == merge(cross).queries
    (blank,) = module.translator.scenes(" ")
    assert blank.target == "" and attention_page("", [frame(None, [blank], None)])
