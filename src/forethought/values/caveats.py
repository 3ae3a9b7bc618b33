"""Caveats of a Statement: typed values, and one registry with the words of every kind.

A caveat is an assumption, a limit or another fact that a Statement prints beside its numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from forethought.values.checks import settle
from forethought.values.serialisation import build

Role = Literal["breaks", "fact", "assumption", "not-covered", "choice"]
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True)
class Kind:
    """The role and the words of all caveats with one code.

    Args:
        role: ``"breaks"``: there is no guarantee at all. ``"fact"``: the accounting already
            includes it. ``"assumption"``: the guarantee rests on it. ``"not-covered"``: a use of
            private data outside the guarantee. ``"choice"``: how the plan's numbers were chosen.
        sentence: the printed words, without a full stop; ``{detail}`` stands for the detail.
        reason: why it matters, or the theorem or source behind it.
        earlier: the sentence in statements before schema 4, if it was different.
    """

    role: Role
    sentence: str
    reason: str
    earlier: str = ""

    @property
    def detailed(self) -> bool:
        """True if a caveat of this kind needs a detail."""
        return "{detail}" in self.sentence


# Statements print caveats of one role in this order; the most serious ones come first.
KINDS: dict[str, Kind] = {
    # No guarantee at all.
    "no-noise": Kind(
        "breaks",
        "no noise was added in at least one round",
        "a sum without noise can be compared with and without a record",
    ),
    "seeded-noise": Kind(
        "breaks",
        "the noise was drawn from a seed that a person chose: whoever knows, guesses or finds the "
        "seed can subtract the noise",
        "a seed has far less than 256 secret bits and is often found by trying dates",
    ),
    "seeded-search": Kind(
        "breaks",
        "the batches were drawn from a seed that a person chose, and rounds or trials were chosen "
        "by results",
        "no theorem known here holds for such a choice once the batches are known",
    ),
    "data-dependent-noise": Kind(
        "breaks",
        "the noise levels were computed from the private data: {detail}",
        "a noise level that depends on the data says something about them",
    ),
    # Already included in the accounting.
    "seeded-sampling": Kind(
        "fact",
        "the batches were drawn from a seed that a person chose, so no amplification by sampling "
        "is claimed: a record counts as part of every round that may hold it",
        "amplification needs batches that the attacker does not know",
    ),
    "statistics": Kind(
        "fact",
        "statistics of the records were asked for, and no model: {detail}; intervals and curves "
        "follow from the noised sums alone",
        "what is computed from a release costs nothing more",
    ),
    "correlated-noise": Kind(
        "fact",
        "the noise of a round is correlated with that of the rounds before it, so the guarantee is "
        "about all rounds together: no round has one of its own, only the run and its beginnings",
        "later rounds cancel a part of the noise of earlier ones",
    ),
    "stopped-early": Kind(
        "fact",
        "the run was stopped after {detail} rounds; all of them are accounted, whatever decided "
        "when to stop",
        "what a stopped run releases is a function of what the whole one would have released",
    ),
    "released-again": Kind(
        "fact",
        "{detail} rounds count as released again, on the same batch: the run was interrupted and "
        "went on from before them, and their sums came out otherwise; every release had noise of "
        "its own, and all of them are accounted",
        "several releases of a round tell as much as one with less noise",
    ),
    "presence-not-protected": Kind(
        "fact",
        "with the batches known, their positions follow from the number of records, so what a "
        "record says is protected and whether there is such a record is not",
        "one more record would move others between batches that the attacker knows",
    ),
    "several-holders": Kind(
        "fact",
        "one person's records may be held by several clients, whose releases are composed: "
        "{detail}",
        "sequential composition",
    ),
    "no-client-amplification": Kind(
        "fact",
        "which clients take part in a round counts as known: every round that this client took "
        "part in counts in full",
        "clients that are left out leave another client's records in the sum, so that leaving out "
        "says nothing of one record; docs/federation.md has the counterexample",
    ),
    "known-steps": Kind(
        "fact",
        "who stepped, and when, counts as known: every round of this worker counts in full, at its "
        "own rate",
        "a worker's neighbours see it in the weights that they are sent",
    ),
    "augmented": Kind(
        "fact",
        "the gradients of altered copies of a record are averaged before clipping: {detail}; this "
        "changes no guarantee",
        "the copies follow from one record and from random numbers that no record decides, so one "
        "record moves a sum by as much as without them",
    ),
    "in-the-book": Kind(
        "fact",
        "the run was paid from its data set's budget: {detail}",
        "the book reserves all that a run may release before it reads a record, and composes what "
        "was released; docs/ledger.md",
    ),
    # Assumptions of the guarantee.
    "public-size": Kind(
        "assumption",
        "the number of records is public",
        "rates, rounds and step sizes follow from it",
    ),
    "secret-batches": Kind(
        "assumption",
        "batches are drawn as stated, and which records are in them stays secret",
        "amplification by sampling",
    ),
    "stated-batches": Kind(
        "assumption",
        "batches are drawn as stated; nothing rests on their secrecy",
        "how often a record takes part follows from it",
    ),
    "secret-noise": Kind(
        "assumption",
        "the random numbers behind the noise stay secret",
        "who knows the noise can subtract it",
    ),
    "pseudo-random": Kind(
        "assumption",
        "the pseudo-random generators are indistinguishable from true randomness",
        "the proofs are about independent uniform bits",
    ),
    "floating-point-noise": Kind(
        "assumption",
        "noise is drawn in floating-point arithmetic, whose deviation from a real Gaussian is not "
        "counted",
        "Mironov 2012: low-order bits can tell sums apart; noise on a grid has no such bits",
    ),
    "separate-records": Kind(
        "assumption",
        "each contribution is computed from its own records alone: by construction, given that "
        "torch's batching rules and derivatives are right; that a record's numbers have the same "
        "bits at every place in a block of fixed size is tried on made-up records before the first "
        "round",
        "docs/gradients.md proves the rest and names the trusted base",
        "each contribution is computed from its own records alone: by construction, given that "
        "torch's batching rules and derivatives are right and that a row of a product does not "
        "depend on how many other rows there are",
    ),
    "other-runs": Kind(
        "assumption",
        "the initial weights do not depend on the private records, and every other run on the same "
        "records has a statement of its own, whose ε adds to this one",
        "sequential composition: this statement is about the releases it lists and no others",
    ),
    "persons": Kind(
        "assumption",
        "a record here is one person, with {detail} of their rows in the data, as the declared "
        "column tells persons apart",
        "the guarantee is about everything that the column says is one person's",
    ),
    "rows-of-persons": Kind(
        "assumption",
        "no person has more than {detail} records in the data, whose promise is for so many "
        "together",
        "the guarantee for a group of records is one for a person who has no more than these",
    ),
    "own-algorithm": Kind(
        "assumption",
        "the algorithm inside a group keeps nothing of one group for another where Python cannot "
        "put it back (files, other processes, state in C code): {detail}",
        "a group's update must follow from its own records; objects, closures and globals are put "
        "back after every group",
    ),
    "batch-dims": Kind(
        "assumption",
        "as its owner declares, the model treats the examples of a batch separately where it was "
        "told where they are: {detail}",
        "one example in each round was checked, which finds mistakes and proves nothing",
    ),
    "declared-slope": Kind(
        "assumption",
        "as its owner declares, the derivative of the loss treats each record by itself",
        "a linear model's outputs are a matrix; a function of one's own may mix its rows",
    ),
    "disjoint-holders": Kind(
        "assumption",
        "no person's records are held by two of them: {detail}",
        "parallel composition takes the largest ε only over disjoint data",
    ),
    "secure-aggregation": Kind(
        "assumption",
        "the server follows the protocol of secure aggregation, no more clients collude with it "
        "than stated, and X25519, HKDF and AES are as strong as they are taken for",
        "Bonawitz et al. 2017, Theorem 6.3",
    ),
    "others-noise": Kind(
        "assumption",
        "the other holders add the noise of their plans in every round, from random numbers that "
        "stay secret",
        "their noise is counted here",
    ),
    "single-updates-hidden": Kind(
        "assumption",
        "no single holder's update is shown to the attacker: connections are encrypted, and only "
        "models are published",
        "the noise of the others hides nothing in a single update",
    ),
    "distant-observer": Kind(
        "assumption",
        "the attacker is no more of the workers than stated, follows the protocol, and reads no "
        "messages but those sent to it; every round's exchanges average exactly, in real numbers",
        "gradients are then taken at weights that the attacker knows, so that rounds compose",
    ),
    "hidden-trials": Kind(
        "assumption",
        "the number of trials and their results stay secret; how long the search took tells "
        "something of their number",
        "Papernot and Steinke 2022, Theorems 2 and 6, count on a number of trials nobody sees",
    ),
    "disjoint-score": Kind(
        "assumption",
        "no record is both trained on and scored on",
        "the search charges a record for one of the two",
    ),
    "public-score": Kind(
        "assumption",
        "the records that trials were scored on are public",
        "their scores chose the result, without noise",
    ),
    "public-test": Kind(
        "assumption",
        "the records that accuracy was measured on are public",
        "their accuracy decided what ran, without noise",
    ),
    "public-proxy": Kind(
        "assumption",
        "the records that numbers of the plan were chosen on are public: {detail}",
        "a choice by private records would be a release",
    ),
    "declared-shape": Kind(
        "assumption",
        "as declared by the user, without looking at the private data: {detail}",
        "what was read from the data would be a release",
    ),
    # Uses of private data outside the guarantee.
    "trained-before": Kind(
        "not-covered",
        "this model was trained before, and what that spent comes on top: {detail}",
        "sequential composition",
    ),
    "search": Kind(
        "not-covered",
        "the private search that this plan comes from: an account of the plan alone leaves it out, "
        "the statement of the search does not",
        "the best of several runs says more than one run",
    ),
    "chosen-phases": Kind(
        "not-covered",
        "the choice of these phases by results: an account of the plan alone takes them as fixed "
        "in advance, the statement of the run does not",
        "composition of fixed rounds does not hold for rounds chosen by results",
    ),
    "unprotected-score": Kind(
        "not-covered",
        "the records that trials were scored on: their scores chose the result, without noise",
        "a choice by private records is a release",
    ),
    "steered-by-held-out": Kind(
        "not-covered",
        "accuracy on the held-out records, measured without noise, decided when the run stopped "
        "and which rounds it ran: those records are not protected",
        "a choice by private records is a release",
    ),
    "held-out-accuracy": Kind(
        "not-covered",
        "loss, accuracy and the like on the held-out records were measured without noise "
        "(metrics.csv, results.json, report.html); they say something about those records",
        "a figure without noise is a release",
    ),
    "diagnostics": Kind(
        "not-covered",
        "loss, share of clipped contributions and number of non-finite ones were taken on private "
        "batches without noise, for the operator (progress display, diagnostics.csv): not for "
        "publication",
        "a figure without noise is a release",
    ),
    "utility-graph-on-private-data": Kind(
        "not-covered",
        "clip norm and noise multiplier were chosen from a utility graph that was trained and "
        "measured without noise on the private data: what this choice reveals is in no ε",
        "a choice by private records is a release",
    ),
    "chosen-on-private-data": Kind(
        "not-covered",
        "these were chosen by looking at the private data, without accounting for it: {detail}",
        "a choice by private records is a release",
    ),
    "classes-from-data": Kind(
        "not-covered",
        "the classes are those found in the training data: {detail}",
        "one record can bring a class that no other has",
    ),
    "categories-from-data": Kind(
        "not-covered",
        "the categories of columns of words are those found in the training file",
        "one record can bring a category that no other has",
    ),
    "features-from-data": Kind(
        "not-covered",
        "the number of features is that found in the training data: {detail}",
        "one record can bring a feature that no other has",
    ),
    "kind-from-data": Kind(
        "not-covered",
        "whether the targets are classes or values was decided by looking at them: {detail}",
        "one record can turn classes into values",
    ),
    "preparation-from-data": Kind(
        "not-covered",
        "inputs were prepared with figures taken from the private data: {detail}",
        "a mean or a range without noise is a release",
    ),
    "split-from-data": Kind(
        "not-covered",
        "which records are held out follows from the records: {detail}",
        "a record must not move others across the split",
    ),
    "cached-features": Kind(
        "not-covered",
        "features of the private records are kept in an owner-only folder: {detail}",
        "whoever reads the folder reads the records",
    ),
    "clipped-counts": Kind(
        "not-covered",
        "how many rows and targets lay beyond their declared bounds was counted without noise, for "
        "the operator: not for publication",
        "a figure without noise is a release",
    ),
    "own-loop": Kind(
        "not-covered",
        "what the training loop, its owner's own code, did with the private records besides the "
        "rounds, in which it saw none of them: figures that it printed or kept, step sizes and an "
        "end that it chose by them (a scheduler of the training loss), plain numbers, objects and "
        "functions that it hung on the model, what hooks of the optimizer took from them",
        "a figure without noise, or a choice by one, is a release",
    ),
    "time-and-memory": Kind(
        "not-covered",
        "how long the run took and how much memory it used",
        "both can depend on the records",
    ),
    "arrival-times": Kind(
        "not-covered",
        "when updates arrive: without a fixed cadence it shows how long batches took, and so how "
        "large they were",
        "the size of a sampled batch depends on the records",
    ),
    "padded-times": Kind(
        "not-covered",
        "when updates arrive, should computing one ever take longer than the cadence of {detail} "
        "to which it is padded: how many beats it took would show, and so roughly how large the "
        "batch was",
        "the size of a sampled batch depends on the records",
    ),
    "refresh-times": Kind(
        "not-covered",
        "how the clock of a busy process may waver: whether a model that comes in the very moment "
        "at which one of the {detail} models of a round is replaced is met or missed",
        "models are replaced at steps of the cadence, whatever the records are",
    ),
    "stated": Kind(
        "not-covered", "{detail}", "named by the user or another program, in its own words"
    ),
    # How the numbers were chosen.
    "planned": Kind(
        "choice",
        "chosen by the planner from the number of records, the model's size and the budget, "
        "without looking at the private data",
        "nothing was released to choose them",
    ),
    "declared": Kind(
        "choice",
        "as declared by the user; whether the private data were looked at, nobody but the user "
        "knows",
        "a choice by private records would be a release",
    ),
    "declared-as": Kind(
        "choice", "as declared by the user: {detail}", "a choice by private records is a release"
    ),
    "candidates": Kind(
        "choice",
        "every trial drew its plan by chance from {detail} candidates",
        "the search is accounted for any of them",
    ),
    "phases-fixed": Kind(
        "choice",
        "phases of rounds were fixed in advance and all of them are accounted; results decided "
        "only when to stop: {detail}",
        "what a stopped run releases is a function of what the whole one would have released",
    ),
    "phases-by-results": Kind(
        "choice",
        "the phases after the first were chosen by the accuracy of those before: {detail}",
        "Feldman and Zrnic 2021, Theorem 4.3; Smith and Thakurta 2022",
    ),
    "sizes-by-results": Kind(
        "choice",
        "the sample sizes were chosen by what was released before, each round only where a filter "
        "of this budget allowed it: {detail}",
        "Feldman and Zrnic 2021, Theorem 4.3",
    ),
    "noise-by-releases": Kind(
        "choice",
        "the noise of every round followed from the noised sums before it: {detail}",
        "Smith and Thakurta 2022",
    ),
    "utility-graph": Kind(
        "choice",
        "clip norm and noise multiplier chosen from a utility graph {detail}",
        "trained and measured apart from the run",
    ),
    "not-stated": Kind("choice", "not stated", "only a mechanism was accounted"),
}


def one_line(text: str) -> str:
    """The text without characters that could end a line or control a terminal.

    Unprintable white space becomes a space, other unprintable characters become U+FFFD.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else " " if one.isspace() else "\N{REPLACEMENT CHARACTER}"
        for one in text
    )


@dataclass(frozen=True)
class Caveat:
    """One assumption, limit or other fact that a reader of a Statement has to know.

    Args:
        code: a key of :data:`KINDS`.
        detail: the words that stand for ``{detail}`` in the sentence; "" where there is no such
            place. It is made one line by :func:`one_line`.

    Raises:
        ValueError: an unknown code, a detail that the sentence has no place for, or a missing one.
        TypeError: the detail is no text.

    >>> print(Caveat("classes-from-data", "no, yes"))
    the classes are those found in the training data: no, yes
    """

    code: str
    detail: str = ""

    def __post_init__(self) -> None:
        if self.code not in KINDS:
            raise ValueError(
                f"unknown caveat {self.code!r}: this version knows {', '.join(KINDS)}. Say it in "
                'words with Caveat("stated", "…")'
            )
        if not isinstance(self.detail, str):
            raise TypeError(f"the detail of a caveat must be text, not {self.detail!r}")
        if self.kind.detailed != bool(self.detail):
            wanted = "needs a detail" if self.kind.detailed else "takes no detail"
            raise ValueError(f"caveat {self.code!r} {wanted}: its sentence is {self.sentence!r}")
        settle(self, detail=one_line(self.detail))

    @property
    def kind(self) -> Kind:
        """The entry of this code in :data:`KINDS`."""
        return KINDS[self.code]

    @property
    def role(self) -> Role:
        """The caveat's effect on the guarantee; see :class:`Kind`."""
        return self.kind.role

    @property
    def sentence(self) -> str:
        """The printed words with the detail, without a full stop."""
        # Not str.format: other braces in a sentence are plain text.
        return self.kind.sentence.replace("{detail}", self.detail)

    def __str__(self) -> str:
        return self.sentence

    def __contains__(self, words: str) -> bool:
        """True if ``words`` are in the sentence."""
        return words in self.sentence

    def to_dict(self) -> dict[str, str]:
        """A JSON-ready mapping; :meth:`from_dict` reads it back."""
        return {"code": self.code, "detail": self.detail}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Caveat:
        """The inverse of :meth:`to_dict`.

        Raises:
            ValueError: an unknown code or key.
        """
        return build(cls, values)


def caveat(value: Caveat | str) -> Caveat:
    """The caveat itself, or for a text the caveat with this sentence, else one of code "stated".

    Raises:
        TypeError: neither a caveat nor a text. ValueError: an empty text.
    """
    if isinstance(value, Caveat):
        return value
    if not isinstance(value, str):
        raise TypeError(f"a caveat is a Caveat or a sentence, not {type(value).__name__}")
    text = value.strip().removesuffix(".")
    known = _BY_SENTENCE.get(text)
    return Caveat("stated", text) if known is None else Caveat(known)


def caveats(values: Iterable[Caveat | str]) -> tuple[Caveat, ...]:
    """Each value as a :class:`Caveat`, once, in the order in which Statements print them.

    Raises:
        TypeError: one string instead of several, or a value that is no caveat.
    """
    if isinstance(values, str):
        raise TypeError(f"give several caveats, for example ({values!r},), not one string")
    found = dict.fromkeys(caveat(value) for value in values)
    return tuple(sorted(found, key=lambda item: _ORDER[item.code]))


def choice(value: Caveat | str) -> Caveat:
    """The caveat of role "choice" for the choice of a plan's numbers.

    Args:
        value: such a caveat, or the user's words, which become "declared-as" unless they are the
            sentence of one.

    Raises:
        TypeError: neither a caveat nor a text. ValueError: a caveat of another role, no words.
    """
    if isinstance(value, str):
        text = value.strip().removesuffix(".")
        known = _BY_SENTENCE.get(text)
        if known is not None and KINDS[known].role == "choice":
            return Caveat(known)
        return Caveat("declared-as", text.removeprefix("as declared by the user: "))
    found = caveat(value)
    if found.role != "choice":
        raise ValueError(f"caveat {found.code!r} does not say how hyperparameters were chosen")
    return found


def of_role(values: Iterable[Caveat], role: Role) -> tuple[Caveat, ...]:
    """The caveats of one role, in the given order."""
    return tuple(value for value in values if value.role == role)


_ORDER = {code: (ROLES.index(kind.role), place) for place, (code, kind) in enumerate(KINDS.items())}
# Sentence → code of the kinds without a detail, to recognise a caller's words.
_BY_SENTENCE = {kind.sentence: code for code, kind in KINDS.items() if not kind.detailed}
