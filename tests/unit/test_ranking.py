"""The order of the candidates of a search, and their scores."""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import fmean, pstdev

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reverie.memory.choice import diversify, drop_duplicates
from reverie.memory.names import names_in, strip_names
from reverie.memory.ranking import (
    ENCODER,
    STATIC,
    TEXT_ONLY,
    Candidate,
    Population,
    Question,
    Ranked,
    bm25,
    population_of_text,
    rank,
    text_ceiling,
    weights_of,
)

DAY = 24 * 3600 * 1000
NOW = 20_000 * DAY
USUAL = Population(
    items=100, text_mean=1.0, text_deviation=2.0, cosine_mean=0.1, cosine_deviation=0.1, average_length=10
)


def order(*candidates: Candidate, weights=STATIC, **question) -> list[int]:
    return [hit.seq for hit in rank(candidates, USUAL, Question(**question), weights)]


# -- text scores -------------------------------------------------------------------------------------


def test_rare_words_and_short_texts_score_higher() -> None:
    postings = {"tea": [(1, 1, 10), (2, 1, 10), (3, 1, 30)], "uji": [(2, 1, 10)]}
    scores = bm25(postings, 100, 10.0)
    assert scores[2] > scores[1] > scores[3] > 0
    assert bm25({"uji": [(2, 1, 10)]}, 100, 10.0)[2] > scores[1]


def test_a_repeated_word_adds_less_and_less() -> None:
    one, two, nine = (bm25({"tea": [(1, count, 10)]}, 100, 10.0)[1] for count in (1, 2, 9))
    assert two - one > (nine - two) / 7 > 0


def test_a_text_of_average_length_with_every_word_reaches_the_ceiling() -> None:
    scores = bm25({"tea": [(1, 1, 10), (2, 1, 10)], "uji": [(1, 1, 10)]}, 100, 10.0)
    assert scores[1] == pytest.approx(text_ceiling({"tea": 2, "uji": 1}, 100))
    assert scores[1] < text_ceiling({"tea": 2, "uji": 1, "unknown": 0}, 100)


@pytest.mark.parametrize(("items", "average_length"), [(0, 0.0), (1, 1.0), (-1, -1.0)])
def test_counts_that_do_not_agree_with_the_postings_do_no_harm(items: int, average_length: float) -> None:
    assert bm25({"tea": [(1, 1, 0), (2, 3, 5)], "uji": []}, items, average_length)[1] >= 0


@given(scores=st.lists(st.floats(0, 50), min_size=1), others=st.integers(0, 50))
def test_the_population_counts_items_without_a_score(scores: list[float], others: int) -> None:
    mean, deviation = population_of_text(scores, len(scores) + others)
    whole = scores + [0.0] * others
    assert mean == pytest.approx(fmean(whole))
    assert deviation == pytest.approx(pstdev(whole), abs=1e-5)


def test_an_empty_population() -> None:
    assert population_of_text([], 0) == (0.0, 0.0)


# -- signals -----------------------------------------------------------------------------------------


def test_words_and_vectors_add_up() -> None:
    both = Candidate(1, 5.0, 0.5)
    assert order(Candidate(2, 5.0, 0.1), Candidate(3, 0.0, 0.5), both)[0] == 1


def test_an_item_without_a_vector_counts_as_an_average_one() -> None:
    assert order(Candidate(1, 5.0, None), Candidate(2, 5.0, 0.5), Candidate(3, 5.0, -0.3)) == [2, 1, 3]


def test_a_vector_that_is_like_no_other_does_not_outweigh_the_very_word() -> None:
    population = msgspec.structs.replace(USUAL, cosine_deviation=0.001)
    named, others = Candidate(seq=1, text_score=9.0, cosine=-0.2), Candidate(seq=2, cosine=0.1)
    assert [hit.seq for hit in rank([named, others], population, Question(), STATIC)] == [1, 2]


def test_neighbours_lend_a_part_of_their_score() -> None:
    question = Candidate(1, 9.0, session="s", place=4)
    answer = Candidate(2, 0.0, session="s", place=5)
    assert order(question, answer, Candidate(3, 0.0, session="s", place=9)) == [1, 2, 3]
    assert order(question, answer, Candidate(3, 0.0, session="t", place=3)) == [1, 2, 3]


def test_the_speaker_that_is_named_is_raised() -> None:
    ann, bob = Candidate(1, 3.0, speaker="Ann"), Candidate(2, 3.0, speaker="Bob")
    assert order(ann, bob, names={"Ann"}) == [1, 2]
    assert order(ann, bob, names={"Bob"}) == [2, 1]
    assert order(ann, bob, names={"Ann", "Bob"}) == [2, 1]


@pytest.mark.parametrize(
    ("better", "worse", "question"),
    [
        ({"session": 1}, {"session": 2}, {"sessions": {1, 3}}),
        ({"held_at": NOW - 5 * DAY}, {"held_at": NOW}, {"interval": (NOW - 6 * DAY, NOW - 4 * DAY)}),
        ({"held_at": NOW}, {"held_at": NOW - 400 * DAY}, {"now": NOW}),
        ({"importance": 0.9}, {"importance": 0.1}, {}),
        ({"access_count": 5}, {"access_count": 0}, {}),
        ({"length": 10}, {"length": 1}, {}),
        ({"is_question": False}, {"is_question": True}, {}),
    ],
)
def test_of_two_equal_texts_one_is_raised(better: dict, worse: dict, question: dict) -> None:
    assert order(Candidate(1, 3.0, **better), Candidate(2, 3.0, **worse), **question) == [1, 2]


def test_an_old_item_that_matches_better_wins() -> None:
    old, fresh = Candidate(1, 6.0, 0.4, held_at=0), Candidate(2, 4.0, 0.3, held_at=NOW)
    assert order(old, fresh, now=NOW) == [1, 2]


def test_a_session_with_several_good_items_is_raised() -> None:
    together = [Candidate(seq, 5.0, session="s", place=10 * seq) for seq in (1, 2, 3)]
    alone = Candidate(9, 5.0, session="t", place=0)
    assert order(*together, alone)[-1] == 9


def test_equal_candidates_come_newest_first() -> None:
    assert order(Candidate(1, 1.0), Candidate(3, 1.0), Candidate(2, 1.0)) == [3, 2, 1]


def test_signals_say_what_the_fused_score_is_made_of() -> None:
    candidates = [
        Candidate(seq, float(seq), 0.1 * seq, "s", seq, "Ann", NOW - seq * DAY, 0.7, seq, 12, seq % 2 == 0)
        for seq in range(6)
    ]
    question = Question({"Ann"}, {"s"}, (NOW - 3 * DAY, NOW), NOW, 10.0)
    hits = rank(candidates, USUAL, question, STATIC)
    for hit in hits:
        assert sum(hit.signals.values()) == pytest.approx(hit.fused)
    assert set(hits[0].signals) >= {"text", "vector", "neighbours", "speaker", "session_prior", "age"}


candidates = st.builds(
    Candidate,
    seq=st.integers(0, 5),
    text_score=st.floats(0, 1000),
    cosine=st.none() | st.floats(-1, 1),
    session=st.none() | st.sampled_from("st"),
    place=st.none() | st.integers(0, 5),
    speaker=st.none() | st.sampled_from(["Ann", "Bob"]),
    held_at=st.integers(-(2**62), 2**62),
    importance=st.floats(0, 1),
    access_count=st.integers(0, 2**62),
    length=st.none() | st.integers(0, 2**62),
)


@given(
    candidates=st.lists(candidates, max_size=8),
    population=st.builds(Population, st.integers(0, 9), *[st.floats(0, 1)] * 5),
    question=st.builds(
        Question,
        st.sampled_from([set(), {"Ann"}]),
        st.sampled_from([set(), {"s"}]),
        st.none() | st.just((0, NOW)),
        st.none() | st.just(NOW),
        st.floats(0, 50),
    ),
    weights=st.sampled_from([TEXT_ONLY, STATIC, ENCODER]),
    limit=st.integers(0, 9),
)
def test_any_candidates_can_be_ranked(candidates, population, question, weights, limit: int) -> None:
    hits = rank(candidates, population, question, weights, limit)
    assert len(hits) == min(limit, len(candidates))
    assert all(0 <= hit.score <= 1 for hit in hits)
    for better, worse in pairwise(hits):
        assert better.fused >= worse.fused
        assert better.score >= worse.score


def test_a_deviation_that_is_mere_rounding_counts_as_none() -> None:
    population = Population(items=3, text_mean=5.0, text_deviation=1e-310, cosine_deviation=1e-310)
    hits = rank([Candidate(seq, 5.0, 0.0) for seq in range(3)], population, Question(), STATIC)
    assert [hit.fused for hit in hits] == [0.0, 0.0, 0.0]


def test_eight_hundred_candidates_are_ranked_quickly() -> None:
    many = [
        Candidate(seq, seq % 7.0, seq % 11 / 11, str(seq // 20), seq % 20, "Ann", seq * DAY, length=seq % 30)
        for seq in range(800)
    ]
    took = []
    for _ in range(20):
        start = time.perf_counter()
        rank(many, USUAL, Question({"Ann"}, {"3"}, (0, NOW), NOW, 10.0), STATIC)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.02  # 2 ms on a quiet machine; coverage and loaded machines are slower


# -- scores ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [TEXT_ONLY, STATIC, ENCODER])
def test_the_threshold_is_between_a_good_and_a_chance_hit(weights) -> None:
    usual = weights.calibration.usual_cosine or 0.0
    population = msgspec.structs.replace(USUAL, cosine_mean=usual)
    good = Candidate(1, 7.0, usual + 0.4 * (1 - usual))
    chance = Candidate(1, 1.0, usual + 0.1 * (1 - usual))
    question = Question(text_ceiling=12.0)
    assert rank([good], population, question, weights)[0].score > 0.45
    assert rank([chance], population, question, weights)[0].score < 0.45


@pytest.mark.parametrize("weights", [STATIC, ENCODER])
def test_the_only_item_of_a_tenant_is_judged_by_what_is_usual(weights) -> None:
    usual = weights.calibration.usual_cosine
    for closeness, expected in ((0.8, True), (0.0, False)):
        cosine = usual + closeness * (1 - usual)
        population = Population(items=1, cosine_mean=cosine)
        (hit,) = rank([Candidate(1, 0.0, cosine)], population, Question(), weights)
        assert (hit.score > 0.45) is expected


@pytest.mark.parametrize(
    ("embedder", "good", "chance"),
    [
        ("wordllama-256", 0.6, 0.05),
        ("onnx:e5-small-v2-q:0b450822a46a", 0.87, 0.74),
        ("onnx:bge-small-en-v1.5-q:06f655947b0b", 0.65, 0.37),
        ("onnx:all-minilm-l6-v2-q:b629f279aab3", 0.6, 0.12),
        ("openai:text-embedding-3-small", 0.6, 0.15),
    ],
)
def test_a_few_items_are_judged_by_what_is_usual_of_the_embedder(embedder, good, chance) -> None:
    population = Population(items=3, text_mean=1.0, text_deviation=1.0, cosine_mean=(good + 2 * chance) / 3)
    candidates = [Candidate(1, 3.0, good), Candidate(2, 0.0, chance), Candidate(3, 0.0, chance)]
    question = Question(text_ceiling=9.0)
    best, *others = rank(candidates, population, question, weights_of(embedder))
    assert (best.seq, best.score > 0.45) == (1, True)
    assert all(hit.score < 0.45 for hit in others)


# -- names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ("What did Ann say?", {"Ann Lee"}),
        ("what did ann lee say", {"Ann Lee"}),
        ("Ann's dog", {"Ann Lee"}),
        ("Annual report", set()),
        ("Will it rain?", set()),
        ("When will Bob come?", {"Bob"}),
        ("What did Will say to Bob?", {"Will", "Bob"}),
        ("王芳住在哪里", {"王芳"}),
        ("Où est Zoë ?", {"Zoë"}),
        ("", set()),
    ],
)
def test_names_in_a_question(question: str, found: set[str]) -> None:
    assert names_in(question, ["Ann Lee", "Bob", "Will", "王芳", "Zoë", "", "?"]) == found


@pytest.mark.parametrize(
    ("question", "names", "left"),
    [
        ("What is Ann's dog called?", {"Ann Lee"}, "What is dog called?"),
        ("Did Ann Lee meet Bob?", {"Ann Lee", "Bob"}, "Did meet ?"),
        ("the Joneses\u2019 and Jones\u2019s cars", {"Jones"}, "the Joneses\u2019 and cars"),
        ("Annual report of Ann", {"Ann"}, "Annual report of"),
        ("王芳住在哪里", {"王芳"}, "住在哪里"),
        ("Ann?", {"Ann"}, "Ann?"),
        ("no name", set(), "no name"),
    ],
)
def test_names_are_stripped(question: str, names: set[str], left: str) -> None:
    assert strip_names(question, names) == left


@given(question=st.text(), names=st.lists(st.text(max_size=5), max_size=4))
def test_names_may_be_any_text(question: str, names: list[str]) -> None:
    strip_names(question, names_in(question, names))
    strip_names(question, names)


# -- diversity ---------------------------------------------------------------------------------------


def hits(*fused: float) -> list[Ranked]:
    return [Ranked(seq, 0.5, score, {}) for seq, score in enumerate(fused)]


def alike(*pairs: tuple[int, int]):
    return lambda one, other: 1.0 if (one, other) in pairs or (other, one) in pairs else 0.0


def test_similar_hits_give_way_to_different_ones() -> None:
    ranked = hits(5.0, 4.9, 4.8, 1.0)
    chosen = diversify(ranked, alike((0, 1)), 2, balance=0.5)
    assert [hit.seq for hit in chosen] == [0, 2]
    assert diversify(ranked, alike((0, 1)), 2, balance=1.0) == ranked[:2]
    assert diversify(ranked, alike((0, 1)), 9) == ranked
    assert diversify([], alike(), 3) == []


def test_hits_that_are_nearly_equal_to_a_better_one_are_left_out() -> None:
    ranked = hits(5.0, 4.9, 4.8, 1.0)
    assert [hit.seq for hit in drop_duplicates(ranked, alike((0, 1), (2, 3)), 9)] == [0, 2]
    assert [hit.seq for hit in drop_duplicates(ranked, alike(), 2)] == [0, 1]
