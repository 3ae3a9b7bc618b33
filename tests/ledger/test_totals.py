"""Rules of an account's totals."""

import pytest

from forethought.ledger.book import Account, Charge
from forethought.ledger.totals import RULES, Rule
from forethought.values.mechanism import Budget, Mechanism, Rounds
from forethought.values.samplings import FullBatch, Poisson

ACCOUNT = Account("patients", Budget(8.0, 1e-6))


@pytest.mark.parametrize("kind", RULES)
def test_rule_is_read_back(kind: str) -> None:
    rule = Rule.of(ACCOUNT, kind)
    assert Rule.from_dict(rule.to_dict()) == rule


@pytest.mark.parametrize("kind", RULES)
def test_charges_fit_until_they_do_not(kind: str) -> None:
    rule = Rule.of(ACCOUNT, kind)
    charge = Charge(Mechanism(Rounds(4.0, 1, FullBatch()), Rounds(1.5, 100, Poisson(0.01))))
    count = rule.more(rule.nothing, charge)
    cost = rule.costs(charge)
    assert rule.fits([count * c for c in cost])
    assert not rule.fits([(count + 1) * c for c in cost])
