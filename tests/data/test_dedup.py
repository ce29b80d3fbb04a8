"""Deduplication: rules on small texts, the plain MinHash reference, and the score against the ground truth."""

import csv
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets import unpacked
from pretrace.data import near
from pretrace.data.corpus import CorpusSpec, Document, read, texts
from pretrace.data.dedup import USUAL, deduplicate
from pretrace.data.near import jaccard, minhash, shingle_hashes, words_of
from pretrace.errors import PretraceError

WORDS = [f"w{i}" for i in range(400)]


def documents(*texts):
    return [Document(f"d{i}", "mem", i, text) for i, text in enumerate(texts)]


def text(*numbers):
    return " ".join(WORDS[i] for i in numbers)


A, A_NEAR, B = text(*range(100)), text(*range(99), 200), text(*range(100, 200))


@pytest.mark.parametrize(("keep", "kept"), [("first", (0, 1)), ("last", (1, 3)), ("longest", (1, 2))])
def test_kept_copy_rule_and_order(keep, kept):
    texts = [A, B, A + "!!", A_NEAR]
    report = deduplicate(documents(*texts), USUAL.model_copy(update={"keep": keep}))
    assert report.kept == kept
    assert report.groups[0].dropped == tuple(i for i in (0, 2, 3) if i not in kept)


def test_exact_copies_are_found_even_where_no_word_is():
    report = deduplicate(documents("…", "…", "—", ""), USUAL)
    assert report.kept == (0, 2, 3)
    assert report.n_exact == 1


def test_texts_of_every_script_are_compared_by_their_own_words():
    russian = " ".join(f"слово{i}" for i in range(60))
    chinese, other = "今天天气很好我们去公园散步然后回家吃饭" * 2 + "ok", "昨天下雨了他没有出门一直在家里看书 ok"
    report = deduplicate(documents(russian, russian + " конец", chinese, chinese + "。", other, "ok"), USUAL)
    assert report.kept == (0, 2, 4, 5)  # one word in common ("ok") makes no copy
    assert words_of("Cafe\u0301 caf\u00e9") == ["caf\u00e9"] * 2  # the same word, however its accent is written
    assert words_of("x_1, ไทย") == ["x", "1", "ไ", "ท", "ย"]


def test_many_copies_cost_what_few_do(monkeypatch):
    notice = "This page was removed by its author"
    report = deduplicate(documents(*[notice] * 3000, B, notice + "!"), USUAL)
    assert report.kept == (0, 3000)
    assert (report.n_exact, report.n_candidates, len(report.pairs)) == (2999, 0, 3000)
    # The same with a date each: more than a bucket holds are compared with a leader.
    monkeypatch.setattr(near, "LARGE_BUCKET", 20)
    dated = [text(*range(60), 100 + i) for i in range(200)]
    report = deduplicate(documents(*dated), USUAL)
    assert report.kept == (0,)
    assert report.n_candidates < 1000  # each with each would be 19,900


def test_report_shows_the_least_similar_of_what_was_dropped():
    report = deduplicate(documents(A, A_NEAR, A), USUAL)
    assert report.examples(1) == [{"a": "d0", "b": "d1", "jaccard": round(95 / 97, 4)}]
    assert report.chars == len(A) * 2 + len(A_NEAR)


def test_jaccard_is_that_of_the_sets():
    a, b = shingle_hashes("a b c d e f", 5), shingle_hashes("a b c d e g", 5)
    assert jaccard(a, b) == 1 / 3
    assert len(shingle_hashes("a b", 5)) == 1
    assert len(shingle_hashes("", 5)) == 0


@given(st.lists(st.lists(st.integers(0, 30), min_size=0, max_size=25), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_pairs_are_those_of_comparing_every_two(numbers):
    texts = [text(*n) for n in numbers]
    report = deduplicate(documents(*texts), USUAL.model_copy(update={"threshold": 0.9}))
    sets = [
        {tuple(t.split()[i : i + 5]) for i in range(max(len(t.split()) - 4, min(1, len(t.split()))))} for t in texts
    ]
    found = {(p.first, p.second) for p in report.pairs}
    for i, j in itertools.combinations(range(len(texts)), 2):
        union = len(sets[i] | sets[j])
        similar = bool(union) and len(sets[i] & sets[j]) / union >= 0.9
        if similar or (i, j) in found:  # a similar pair is missed with probability (1 - 0.9^3)^42 = 1e-24
            assert ((i, j) in found) == (similar or texts[i] == texts[j])


def test_minhash_estimates_jaccard_as_a_plain_minhash_does():
    # Plain reference: k random linear hashes mod a Mersenne prime over the set, least value each.
    rng = np.random.default_rng(7)
    a, b = (shingle_hashes(t, 1) for t in (text(*range(0, 200)), text(*range(100, 300))))
    truth = jaccard(a, b)
    k, prime = 1024, (1 << 61) - 1
    factors, adds = (rng.integers(1, prime, k).tolist() for _ in range(2))
    plain = [[min((f * int(x) + c) % prime for x in s) for f, c in zip(factors[:256], adds[:256])] for s in (a, b)]
    estimate = np.mean(np.array(plain[0]) == np.array(plain[1]))
    ours = minhash([a, b], k, 3)
    bound = 4 * (truth * (1 - truth) / 256) ** 0.5  # four standard errors of the smaller sample
    assert abs(np.mean(ours[0] == ours[1]) - truth) < bound
    assert abs(estimate - truth) < bound


def test_documents_of_ids_are_refused_and_not_all_alike(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"ids": [1, 2]}\n{"ids": [3]}\n')
    spec = CorpusSpec(paths=(str(tmp_path / "a.jsonl"),), format="jsonl", field="ids", holds="ids")
    with pytest.raises(PretraceError, match="holds ids"):
        deduplicate(read(spec), USUAL)
    with pytest.raises(PretraceError, match="holds ids"):
        texts(spec)


def test_bands_must_divide_permutations():
    with pytest.raises(PretraceError, match="do not divide"):
        deduplicate(documents(A), USUAL.model_copy(update={"bands": 40}))


def test_books_with_known_duplicates_are_scored():
    corpus = unpacked("corpus")
    path = next(corpus.rglob("books_standard.jsonl*"))
    spec = CorpusSpec(paths=(str(path),), format="jsonl", field="text", holds="text", id_field="id")
    report = deduplicate(read(spec), USUAL)
    rows = list(csv.DictReader(next(corpus.rglob("duplicate_pairs.csv")).open()))
    truth = {frozenset((r["id_a"], r["id_b"])) for r in rows if float(r["jaccard_5gram"]) >= 0.8}
    found = {frozenset((report.names[p.first], report.names[p.second])) for p in report.pairs}
    assert len(truth) == 627
    assert len(truth & found) / len(truth) >= 0.98
    assert len(truth & found) / len(found) >= 0.95
    assert sum(r["exact"] == "1" for r in rows) == sum(p.exact for p in report.pairs) == 26
