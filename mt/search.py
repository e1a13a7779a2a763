"""Greedy and beam search over a protocol: any model that can take one step after another.

A hypothesis's score is the sum of its pieces' log-probabilities, EOS included, divided by length ** length_penalty
(length counts EOS; a penalty of 0 leaves the sum). At every step the best continuations of all unfinished hypotheses
of a sentence are kept, as many as the beam still has places; one that ends takes its place with it. A sentence is done
when `nbest` finished hypotheses score at least what the best unfinished one could still reach: its sum so far, divided
by the longest allowed length to that power. So no hypothesis is thrown away, a longer one may win, and a beam of 1 is
greedy search whatever the penalty.
"""

import heapq
import itertools
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mt.special_tokens import BOS, EOS, NEVER, PAD

State = TypeVar("State")


@runtime_checkable
class Stepwise(Protocol[State]):
    """What search needs of a model. B sentences with W hypotheses each, all of the same length."""

    def start(self, src: Int[Tensor, "B S"]) -> State: ...

    def step(self, state: State, last: Int[Tensor, "B W"]) -> tuple[State, Float[Tensor, "B W V"]]: ...

    def select(self, state: State, sentences: Int[Tensor, "B"], parents: Int[Tensor, "B W"]) -> State: ...


@dataclass(frozen=True)
class Hypothesis:
    ids: list[int]
    """Without BOS and EOS."""
    score: float
    """See above; comparable among the hypotheses of one sentence."""
    log_probability: float
    """Sum over the pieces and EOS."""
    cut: bool
    """It reached the bound on its length, and EOS was put after it by force."""


Length = TypeVar("Length", int, Int[Tensor, "B"])


def default_max_length(src_length: Length) -> Length:
    """Pieces, EOS included, for a source of src_length pieces with its EOS."""
    return 2 * src_length + 10


WIDEST = 64  # hypotheses of a sentence: memory and time grow with them


def check_options(*, beam: int, length_penalty: float, nbest: int = 1, max_length: int | None = None) -> None:
    """ValueError for options that `search` can't work with."""
    if not 1 <= beam <= WIDEST or not 1 <= nbest <= beam:
        raise ValueError(f"beam={beam}, nbest={nbest}: the beam is 1 to {WIDEST}, and nbest 1 to the beam")
    if not 0 <= length_penalty <= 10:
        raise ValueError(f"length_penalty={length_penalty} is not in [0, 10]")
    if max_length is not None and not 1 <= max_length < 2**31:
        raise ValueError(f"max_length={max_length} is not from 1 on, or no length at all")


@torch.inference_mode()
def search(
    model: Stepwise[State],
    src: Int[Tensor, "B S"],
    *,
    beam: int,
    length_penalty: float,
    nbest: int = 1,
    max_length: int | None = None,
) -> list[list[Hypothesis]]:
    """The nbest best hypotheses of every row of src (ids with EOS, padded at the end), best first.

    max_length: bound on pieces with EOS, for every row; None follows each source's own length.
    """
    check_options(beam=beam, length_penalty=length_penalty, nbest=nbest, max_length=max_length)
    bounds = torch.full_like(src[:, 0], max_length or 0)
    if max_length is None:
        bounds = default_max_length((src != PAD).sum(dim=1))
    finished: list[list[Hypothesis]] = [[] for _ in bounds]
    enough = torch.full(bounds.shape, -torch.inf, device=src.device)  # the nbest-th best score of the finished
    never = torch.tensor(NEVER, device=src.device)
    places = torch.arange(beam, device=src.device)

    alive = torch.arange(len(src), device=src.device)  # the sentence of every row that is still searched
    state = model.start(src)
    # By sentence and hypothesis: one each at first, then up to `beam`, those that are over or missing with a sum of -∞.
    last = torch.full_like(src[:, :1], BOS)
    sums = torch.zeros(len(src), 1, device=src.device)
    prefixes = torch.empty(len(src), 1, 0, dtype=torch.long, device=src.device)
    free = torch.full_like(alive, beam)
    for length in itertools.count(1):
        state, logits = model.step(state, last)
        logits = logits.float()
        log_z = logits.logsumexp(dim=-1)
        allowed = logits.index_fill(-1, never, -torch.inf)
        at_bound = bounds[alive] == length
        forced = torch.zeros_like(last, dtype=torch.bool)  # to end, by the bound
        if at_bound.any():
            forced = at_bound[:, None] & (allowed.argmax(dim=-1) != EOS)
            allowed[at_bound, :, :EOS] = -torch.inf
            allowed[at_bound, :, EOS + 1 :] = -torch.inf

        # The best pieces of each hypothesis, then the best of all that go on from a sentence's hypotheses.
        best, pieces = allowed.topk(min(beam, allowed.shape[-1]), dim=-1)
        continuations = (best + (sums - log_z)[..., None]).flatten(start_dim=1)
        continued, index = continuations.topk(min(beam, continuations.shape[1]), dim=1)
        parents, last = index // best.shape[-1], pieces.flatten(start_dim=1).gather(1, index)
        continued = continued.masked_fill(places[: continued.shape[1]] >= free[:, None], -torch.inf)
        prefixes = prefixes.take_along_dim(parents[..., None], dim=1)

        ended = (last == EOS) & (continued > -torch.inf)
        of_ended = (alive[ended.nonzero()[:, 0]], prefixes[ended], continued[ended], forced.gather(1, parents)[ended])
        for sentence, ids, log_probability, cut in zip(*(part.tolist() for part in of_ended), strict=True):
            score = log_probability / length**length_penalty
            found = finished[sentence]
            found.append(Hypothesis(ids=ids, score=score, log_probability=log_probability, cut=cut))
            if len(found) >= nbest:
                enough[sentence] = heapq.nlargest(nbest, (h.score for h in found))[-1]
        free = free - ended.sum(dim=1)
        sums = continued.masked_fill(ended, -torch.inf)
        prefixes = torch.cat([prefixes, last[..., None]], dim=-1)

        reachable = sums.amax(dim=1) / bounds[alive].float() ** length_penalty
        going_on = (~at_bound & (enough[alive] < reachable)).nonzero()[:, 0]
        if not len(going_on):
            break
        state = model.select(state, going_on, parents[going_on])
        alive, last, sums = alive[going_on], last[going_on], sums[going_on]
        prefixes, free = prefixes[going_on], free[going_on]
    return [sorted(found, key=lambda h: h.score, reverse=True)[:nbest] for found in finished]
