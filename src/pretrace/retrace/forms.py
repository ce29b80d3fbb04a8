"""Two file forms of one data set: where they read the same batches they are one hypothesis, and are not judged twice.

A released corpus may lie there twice, in corpus order with an index and ready shuffled. Listed side by side the two could never
be told apart, and the case would stay open for that reason alone. Whether they really agree is not believed, it is compared.
"""

from __future__ import annotations

from pretrace.data import first_difference, open_order
from pretrace.findings import Finding
from pretrace.retrace.case import Case, hypothesis_recipe, recipes_of


def merge_forms(case: Case) -> tuple[Case, tuple[Finding, ...]]:
    """The case without candidates that another form of their data set stands for already, and what was found.

    Raises
    ------
    PretraceError
        If a token file cannot be read.
    """
    if case.orders is None:
        return case, ()
    left_out: set[str] = set()
    findings = []
    for key, dataset in case.orders.datasets.items():
        for name in case.candidates_of(key) if dataset.form_of else ():
            twins = [other for other in case.candidates_of(str(dataset.form_of)) if other not in left_out]
            first = {twin: _parts_at(case, name, twin) for twin in twins}
            same = [twin for twin, step in first.items() if step is None]
            if same:
                # The claim keeps its own name; of any other two the first form stands for both.
                left_out.add(same[0] if name == case.claim else name)
                findings.append(_same(case, name, same[0]))
            elif twins:
                findings.append(_differ(case, name, {t: s for t, s in first.items() if s is not None}))
    return case.without(frozenset(left_out)), tuple(findings)


def _parts_at(case: Case, a: str, b: str) -> int | None:
    recipe, _ = recipes_of(case)
    one, other = (open_order(hypothesis_recipe(case, recipe, name).data) for name in (a, b))
    step = first_difference(one, other, recipe.step.global_batch, max(case.steps)).first_step
    return None if step is None else step + 1


def _same(case: Case, name: str, twin: str) -> Finding:
    steps = max(case.steps)
    text = f"{name} and {twin} read the same batches in all {steps} updates: they are judged as one hypothesis"
    return Finding("same-order", "info", text, "orders", {"steps": steps})


def _differ(case: Case, name: str, first: dict[str, int]) -> Finding:
    twin = max(first, key=lambda each: first[each])
    text = f"{name} and {twin} are said to be forms of one data set, and can be told apart from step {first[twin]} on"
    return Finding("forms-differ", "warning", text, "orders", {"first_step": first[twin]},
                   "find out which of the two was trained on; they are judged as two hypotheses")  # fmt: skip
