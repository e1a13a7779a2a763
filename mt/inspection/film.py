"""Attention through training: a frame a validation in the run's folder, and the page that shows them one after another.

A frame is a JSON file, film/<step>.json, whose weights are bytes (a 255th each) in base64: some 50 kB.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mt.inspection.attention_maps import SIDES, AttentionMap, attention_kind
from mt.inspection.explanation import ExplainedWord
from mt.inspection.heads import Scoreboard
from mt.inspection.words import words_of

TEMPLATE = Path(__file__).with_name("attention_page.html")


@dataclass(frozen=True)
class Scene:
    """One pair of sentences that can be chosen on the page."""

    source: str
    target: str
    """What the maps are forced to: a reference in a film, a hypothesis in a translation's page."""
    maps: Sequence[AttentionMap]
    translation: str = ""
    """In a film: what the model would have said by itself."""
    score: float | None = None
    words: Sequence[ExplainedWord] = ()
    """In a translation's page: the hypothesis's words with their alternatives."""


def write_frame(run: Path, step: int, scenes: Sequence[Scene], board: Scoreboard | None) -> None:
    path = run / "film" / f"{step:08}.json"
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(frame(step, scenes, board), ensure_ascii=False), "utf-8")
    part.replace(path)  # whole or not at all


def read_film(run: Path) -> list[dict[str, Any]]:
    """The frames of a run, in order. ValueError where it has none, or one is damaged."""
    paths = sorted((run / "film").glob("*.json"))
    if not paths:
        raise ValueError(f"no film in {run}: a run writes film/*.json at each validation (callbacks.film)")
    frames = []
    for path in paths:
        try:
            frames.append(json.loads(path.read_text("utf-8")))
        except ValueError:
            raise ValueError(f"{path}: damaged") from None
    if not frames[0]["scenes"]:
        raise ValueError(f"the film in {run} shows no sentence: all were longer than callbacks.film.max_pieces")
    return frames


def frame(step: int | None, scenes: Sequence[Scene], board: Scoreboard | None) -> dict[str, Any]:
    """What the page's script reads. step: None for a page of one translation."""
    heads = board and {"heads": [asdict(head) for head in board.heads], "mean_aer": board.mean_aer}
    return {"step": step, "scenes": [_scene(scene) for scene in scenes], "board": heads}


def attention_page(title: str, frames: Sequence[dict[str, Any]]) -> str:
    """One HTML file that needs no other, and no network."""
    content = json.dumps({"title": title, "frames": frames}, ensure_ascii=False).replace("<", "\\u003c")
    return TEMPLATE.read_text("utf-8").replace("/* the film */ null", content)


def _scene(scene: Scene) -> dict[str, Any]:
    texts = {"source": scene.source, "target": scene.target, "translation": scene.translation}
    maps, sides = [], {}
    for m in scene.maps:
        kind = attention_kind(m.name)
        for side, pieces in zip(SIDES[kind], (m.queries, m.keys), strict=True):
            sides[side] = {"pieces": pieces, **words_of(pieces)._asdict()}
        weights = (m.weights * 255).round().byte().numpy().tobytes()
        maps.append({"kind": kind, "heads": len(m.weights), "weights": base64.b64encode(weights).decode()})
    words = [asdict(word) for word in scene.words]
    return {**texts, "score": scene.score, "words": words, "sides": sides, "maps": maps}
