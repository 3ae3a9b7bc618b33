"""Persons in a federation: one contribution each, at one client; and what is refused there."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forethought.accounting.statement import Statement
from forethought.accounting.verification import verify
from forethought.jobs import members
from forethought.jobs.holders import Holders, Network, agreed, holders_of, section_of, simulate_job
from forethought.jobs.job import Job, JobError, JobRequest, from_file, paying
from forethought.jobs.load import count_of
from forethought.ledger.book import Account, BookError
from forethought.ledger.store import create
from forethought.training.folder import RunFolderExistsError
from forethought.values.mechanism import Budget, Persons

JOB = """
[data]
source = "csv:{path}"
label = "died"
classes = ["no", "yes"]
person = "patient"
records_per_person = 3
[data.columns]
age = [0, 110]
ward = ["A", "B"]
[budget]
epsilon = 8.0
[training]
batch = 40
rounds = 15
[federation]
clients = 2
"""


def table(path: Path, count: int = 900) -> Path:
    draw = np.random.default_rng(0)
    lines = ["patient,age,ward,died"]
    for _ in range(count):
        age = round(float(draw.uniform(20, 90)), 2)
        died = "yes" if age + draw.normal(0, 10) > 60 else "no"
        lines.append(f"P{draw.integers(count // 4)},{age},{'AB'[draw.integers(2)]},{died}")
    path.write_text("\n".join(lines) + "\n")
    return path


def written(folder: Path, text: str = JOB, count: int = 900) -> Path:
    path = folder / "job.toml"
    path.write_text(text.format(path=table(folder / "t.csv", count)))
    return path


@pytest.fixture(scope="module")
def federated(tmp_path_factory: pytest.TempPathFactory) -> Holders:
    return holders_of(from_file(written(tmp_path_factory.mktemp("persons"))), "federation")


def test_a_person_is_at_one_client_with_all_rows(federated: Holders) -> None:
    persons = federated.loaded.dataset.persons
    assert persons is not None
    own = [set(persons[part].tolist()) for part in federated.parts]
    assert not own[0] & own[1] and own[0] | own[1] == set(persons.tolist())
    assert sum(map(len, federated.parts)) == len(persons) > len(own[0]) + len(own[1])
    for client in range(2):
        plan = federated.agreed.plan(client)
        assert plan.contribution == Persons(3)
        share = federated.share(client)
        assert plan.examples == len(own[client]) == count_of(share) < len(share.train)
        assert share.persons is not None and set(share.persons.tolist()) == own[client]


def test_it_trains_and_its_statements_are_about_persons(federated: Holders) -> None:
    run, _ = simulate_job(federated)
    assert run.accuracy is not None and run.accuracy > 0.7
    for client, statement in enumerate(run.statements):
        assert statement is not None and 6 < statement.guarantee <= 8
        assert any(note.code == "persons" for note in statement.caveats)
        assert len(statement.mechanism) == federated.agreed.plan(client).rounds


@pytest.mark.slow
def test_a_federation_of_persons_over_the_network(tmp_path: Path) -> None:
    request, keys = from_file(written(tmp_path)), tmp_path / "keys"
    members.make_everybody(request, "federation", keys)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    results: dict[str, Any] = {}

    def run(name: str) -> None:
        way = members.serve_job if name == "server" else members.take_part_in_job
        results[name] = way(request, keys / name, tmp_path / name, address=address)

    names = ("server", "client-0", "client-1")
    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    served, accuracy = results["server"]
    assert served.finished and accuracy > 0.7
    for name in names[1:]:
        statement = Statement.load(tmp_path / name / "statement.json")
        assert verify(statement).guarantee == statement.guarantee <= 8
        assert any(note.code == "persons" for note in statement.caveats)


def test_an_account_of_records_pays_for_no_person(tmp_path: Path) -> None:
    request, keys, url = from_file(written(tmp_path)), tmp_path / "keys", f"sqlite:///{tmp_path}/b"
    members.make_everybody(request, "federation", keys)
    with contextlib.closing(create(url, actor="owner")) as book:
        book.open_account(Account("rows", Budget(9.0, 1e-2)), "renyi")

    def connect(*_: Any) -> Any:
        raise AssertionError("it was connected")

    asked, out = paying(request, f"{url}#rows"), tmp_path / "out"
    with pytest.raises(BookError, match="protects a record"):
        members.take_part_in_job(asked, keys / "client-0", out, carry=connect)


GOSSIP = "[gossip]\nworkers = 2\nrounds = 15\nexchange = 0.02\n"


@pytest.mark.slow
def test_a_gossip_of_persons_states_what_it_spends_on_them(tmp_path: Path) -> None:
    text = JOB.replace("[federation]\nclients = 2\n", GOSSIP).replace("rounds = 15\n[g", "[g")
    gossiping = holders_of(from_file(written(tmp_path, text)), "gossip")
    persons = gossiping.loaded.dataset.persons
    assert persons is not None
    own = [set(persons[part].tolist()) for part in gossiping.parts]
    assert not own[0] & own[1] and own[0] | own[1] == set(persons.tolist())
    run, _ = simulate_job(gossiping)
    assert run.accuracy is not None and run.accuracy > 0.7
    for worker, statement in enumerate(run.statements):
        plan = gossiping.gossip.plan(worker)
        assert plan.contribution == Persons(3) and plan.examples == len(own[worker])
        assert statement is not None and statement.guarantee <= 8
        assert any(note.code == "persons" for note in statement.caveats)


@pytest.mark.slow
def test_sites_gossip_about_persons(tmp_path: Path) -> None:
    text = JOB.replace("[federation]\nclients = 2\n", GOSSIP).replace("rounds = 15\n[g", "[g")
    for name in "ab":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            text += f'[[gossip.worker]]\nname = "{name}"\naddress = "127.0.0.1:'
            text += f'{free.getsockname()[1]}"\n'
    request, keys = from_file(written(tmp_path, text)), tmp_path / "keys"
    members.make_everybody(request, "gossip", keys)
    results: dict[str, Any] = {}

    def run(name: str) -> None:
        results[name] = members.site_worker(request, keys / name, tmp_path / name)

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    for name in "ab":
        statement = Statement.load(tmp_path / name / "statement.json")
        assert verify(statement).guarantee == statement.guarantee <= 8
        assert any(note.code == "persons" for note in statement.caveats)
        assert results[name].accuracy > 0.6


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('person = "patient"\n', "", "persons that a column tells apart"),
        ("batch = 40", 'batch = 40\nperson_as = "group"', "a person is one contribution"),
        (
            'person = "patient"\nrecords_per_person = 3',
            'standardise = "private"\nbounds = [0, 1]',
            "every member would standardise by figures of its own",
        ),
    ],
)
def test_what_a_federation_cannot_do_is_said(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    text = JOB.replace(old, new)
    assert text != JOB
    path = written(tmp_path, text)
    with pytest.raises(JobError, match=message):
        holders_of(from_file(path), "federation")
    with pytest.raises(JobError, match=message):  # before any member has read a record
        request = from_file(path)
        section = section_of(request.job, "federation")
        agreed(request, section, [100, 100], [1.0, 1.0], Network(10, "a"))


@pytest.mark.slow
def test_class_weights_are_used_by_every_client(tmp_path: Path) -> None:
    path = written(tmp_path, JOB.replace("batch = 40", "batch = 40\nclass_weights = [0.01, 1]"))
    text = path.read_text() + "[run]\nseed = 1\nnoise_seed = 1\n"
    weighted, _ = simulate_job(holders_of(JobRequest("t", text, Job.parse(text)), "federation"))
    plain = text.replace("class_weights = [0.01, 1]", "")
    even, _ = simulate_job(holders_of(JobRequest("t", plain, Job.parse(plain)), "federation"))
    assert not np.array_equal(weighted.simulated.weights, even.simulated.weights)


def test_members_leave_the_folder_of_another_run_alone(tmp_path: Path) -> None:
    digits = (
        '[data]\nsource = "digits"\n[budget]\nepsilon = 4.0\n[training]\nbatch = 20\nrounds = 2\n'
    )
    star, graph = (
        JobRequest("job", "", Job.parse(f"{digits}[{kind}]\n{members_of} = 2\n"))
        for kind, members_of in (("federation", "clients"), ("gossip", "workers"))
    )
    members.make_everybody(star, "federation", tmp_path / "keys")
    held, first = members.planned(graph, "gossip")
    run = tmp_path / "run"
    run.mkdir()
    (run / "model.safetensors").write_bytes(b"of a run")
    begins: list[Callable[[], object]] = [
        lambda: members.serve_job(star, tmp_path / "keys" / "server", run),
        lambda: members.take_part_in_job(star, tmp_path / "keys" / "client-0", run),
        lambda: members.begun_in(graph, held, first, run),
    ]
    for begin in begins:
        with pytest.raises(RunFolderExistsError, match="not empty"):
            begin()
    assert [path.name for path in run.iterdir()] == ["model.safetensors"]


SHORT = JOB.replace("rounds = 15", "rounds = 2").replace("batch = 40", "batch = 5")


def reached(*_: Any) -> Any:
    """In place of a connection."""
    raise ConnectionError("reached")


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('["no", "yes"]', '["yes", "no"]'),
        ('["A", "B"]', '["B", "A"]'),
        ("[0, 110]", "[0, 120]"),
        ('age = [0, 110]\nward = ["A", "B"]', 'ward = ["A", "B"]\nage = [0, 110]'),
        ("batch = 5", "batch = 5\nclass_weights = [1, 3]"),
    ],
)
@pytest.mark.parametrize("kind", ["federation", "gossip"])
def test_members_turn_records_into_the_same_inputs(
    tmp_path: Path, kind: Any, old: str, new: str
) -> None:
    text = SHORT
    if kind == "gossip":
        text = text.replace("[federation]\nclients", "[gossip]\nworkers")
    request = from_file(written(tmp_path, text, 200))
    keys = tmp_path / "keys"
    members.make_everybody(request, kind, keys)
    other = text.replace(old, new)
    assert other != text
    given = from_file(written(tmp_path, other, 200))
    with pytest.raises(JobError, match="into other inputs"):
        if kind == "federation":
            members.take_part_in_job(given, keys / "client-0", tmp_path / "a", carry=reached)
        else:
            members.site_worker(given, keys / "worker-0", tmp_path / "a")


PICTURES = """
[data]
source = "digits"
{data}
[budget]
epsilon = 8.0
[training]
batch = 50
{training}
[{kind}]
rounds = 3
{members} = 2
"""


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("agreed", "own"),
    [
        (("", ""), ("standardise = [0.0, 2.0]", "")),
        (("standardise = [0.0, 2.0]", ""), ("", "")),
        (("standardise = [0.0, 2.0]", ""), ("standardise = [0.5, 2.0]", "")),
        (("", ""), ("", "class_weights = [1, 1, 1, 1, 1, 1, 1, 1, 1, 5]")),
    ],
)
@pytest.mark.parametrize(("kind", "called"), [("federation", "clients"), ("gossip", "workers")])
def test_members_without_a_table_feed_one_model_the_same(
    tmp_path: Path, kind: Any, called: str, agreed: tuple[str, str], own: tuple[str, str]
) -> None:
    def job(name: str, data: str, training: str) -> Any:
        path = tmp_path / f"{name}.toml"
        known = {"kind": kind, "members": called}
        path.write_text(PICTURES.format(data=data, training=training, **known))
        return from_file(path)

    keys = tmp_path / "keys"
    members.make_everybody(job("agreed", *agreed), kind, keys)
    given = job("own", *own)
    with pytest.raises(JobError, match="into other inputs"):
        if kind == "federation":
            members.take_part_in_job(given, keys / "client-0", tmp_path / "a", carry=reached)
        else:
            members.site_worker(given, keys / "worker-0", tmp_path / "a", listen="127.0.0.1:0")
    if kind == "federation":
        with pytest.raises(ConnectionError, match="reached"):
            same = from_file(tmp_path / "agreed.toml")
            members.take_part_in_job(same, keys / "client-0", tmp_path / "a", carry=reached)


def test_members_write_their_files_as_they_like(tmp_path: Path) -> None:
    text, keys = SHORT, tmp_path / "keys"
    members.make_everybody(from_file(written(tmp_path, text, 200)), "federation", keys)
    other = text.replace("age = [0, 110]", "age = {{range = [0, 110], codes = [-9]}}")
    other = other.replace('label = "died"', 'label = "died"\nseparator = ","')
    other = other.replace('["A", "B"]', '[" A", "B "]')
    given = from_file(written(tmp_path, other, 200))
    with pytest.raises(ConnectionError, match="reached"):
        members.take_part_in_job(given, keys / "client-0", tmp_path / "a", carry=reached)


def test_a_member_is_told_what_it_lacks(tmp_path: Path) -> None:
    text, keys = SHORT, tmp_path / "keys"
    members.make_everybody(from_file(written(tmp_path, text, 200)), "federation", keys)
    nowhere = from_file(written(tmp_path, text + 'address = "hospital-server"\n', 200))
    for asked in ({}, {"address": "nobody"}, {"address": "127.0.0.1:0"}):
        with pytest.raises(JobError, match="give host:port"):
            members.take_part_in_job(nowhere, keys / "client-0", tmp_path / "a", **asked)
    for name, begin in (("server", members.serve_job), ("client-0", members.take_part_in_job)):
        with pytest.raises(ConnectionError, match="reached"):  # another carrier needs no address
            begin(nowhere, keys / name, tmp_path / name, carry=reached)
    other = from_file(written(tmp_path, text + "deadline = 9.0\n", 200))
    with pytest.raises(JobError, match="deadline differs"):
        members.serve_job(other, keys / "server", tmp_path / "server", carry=reached)
    fewer = from_file(written(tmp_path, text, 190))
    with pytest.raises(ValueError, match="without those held"):
        members.take_part_in_job(fewer, keys / "client-0", tmp_path / "a", carry=reached)
    (keys / "client-0" / "roster.json").unlink()
    with pytest.raises(FileNotFoundError, match="lacks roster"):
        members.Membership.load(keys / "client-0", "federation")


CODED = """
[data]
source = "csv:{path}"
label = "died"
classes = {classes}
[data.columns]
code = {code}
[budget]
epsilon = 8.0
[training]
batch = 5
rounds = 2
[federation]
clients = 2
"""


def coded(folder: Path, code: str, classes: str) -> JobRequest:
    path = folder / "t.csv"
    path.write_text("code,died\n" + "0,1\n1,0\n" * 100)
    text = CODED.replace("{path}", str(path)).replace("{code}", code)
    job = folder / "job.toml"
    job.write_text(text.replace("{classes}", classes))
    return from_file(job)


@pytest.mark.parametrize(
    ("code", "classes"),
    [
        ('["0.0", "1.0"]', "[0, 1]"),
        ('["false", "true"]', '["0", "1"]'),
        ('["0", "1"]', '["false", "true"]'),
        ('{categories = ["0", "1"], lenient = true}', "[0.0, 1.0]"),
    ],
)
def test_members_spell_a_word_as_their_files_do(tmp_path: Path, code: str, classes: str) -> None:
    keys = tmp_path / "keys"
    members.make_everybody(coded(tmp_path, '["0", "1"]', "[0, 1]"), "federation", keys)
    given = coded(tmp_path, code, classes)
    with pytest.raises(ConnectionError, match="reached"):
        members.take_part_in_job(given, keys / "client-0", tmp_path / "a", carry=reached)


def test_what_all_agree_on_says_nothing_of_an_undeclared_table(tmp_path: Path) -> None:
    declared = coded(tmp_path, '["0", "1"]', "[0, 1]")
    text = declared.text.replace('[data.columns]\ncode = ["0", "1"]\n', "")
    assert text != declared.text
    open_to_all = JobRequest("job", text, Job.parse(text))
    assert holders_of(declared, "federation").agreed.encoding
    assert not holders_of(open_to_all, "federation").agreed.encoding
    # A member whose records are no declared table has nothing to compare.
    keys = tmp_path / "keys"
    members.make_everybody(declared, "federation", keys)
    with pytest.raises((ConnectionError, ValueError)) as told:
        members.take_part_in_job(open_to_all, keys / "client-0", tmp_path / "a", carry=reached)
    assert "other inputs" not in str(told.value)
