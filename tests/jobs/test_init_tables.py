"""A first job file of a table: its ranges, whom a row is about, what is no feature."""

from __future__ import annotations

import os
from datetime import date, time, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from forethought.cli import app
from forethought.data import DataError
from forethought.data.columns import outward
from forethought.jobs.init import ALL_DROPPED, job_for, job_for_arrays
from forethought.jobs.job import Job

ROWS = 900


def table(folder: Path, **columns: object) -> Path:
    draw = np.random.default_rng(7)
    made = {"outcome": draw.integers(0, 2, ROWS), **columns}
    pl.DataFrame(made).write_csv(folder / "table.csv")
    return folder / "table.csv"


def persons(count: int = 300) -> np.ndarray:
    return np.sort(np.random.default_rng(1).integers(0, count, ROWS))


@pytest.mark.parametrize(
    ("low", "high", "whole", "expected"),
    [
        (1985, 2000, True, (1985, 2000)),
        (6.96, 7.69, False, (6.95, 7.7)),
        (3.0, 187.0, False, (0, 190)),
        (0, 1, True, (0, 1)),
        (-12.0, 431.0, False, (-20, 440)),
        (5.0, 5.0, False, (5.0, 6.0)),
        (0.0, 3e-308, False, (0.0, 1.0)),
        (0.002, 0.019, False, (0.0, 0.019)),
        (-1e308, 1e308, False, (-1e308, 1e308)),
    ],
)
def test_ranges_are_a_tenth_wider_at_most(low, high, whole, expected):
    assert outward(low, high, whole) == expected


@pytest.mark.parametrize("low", [-1e6, -3.7, 0.0, 0.4, 1e5])
@pytest.mark.parametrize("width", [1e-6, 0.3, 17.0, 4e9])
def test_ranges_hold_what_was_seen(low, width):
    first, last = outward(low, low + width, False)
    rounding = 1e-9 * max(abs(low), width)
    assert first <= low + rounding and last >= low + width - rounding
    assert last - first <= 1.41 * width + rounding


def test_a_point_between_thousands_is_no_fraction(tmp_path):
    path = tmp_path / "t.csv"
    lines = [f"1.{place:03};{place},5;{place % 2}" for place in range(60)]
    path.write_text("\n".join(["amount;dose;outcome", *lines]))
    text = job_for(path, "outcome")
    assert 'decimal = ","' in text and 'amount = "drop"' in text and "dose = [0, 60" in text


NAMED = [
    "patient", "PatientID", "subject_no", "customer", "user_id", "household", "participant",
    "member_number", "client", "student", "employee", "case_id", "mrn", "personId", "Name",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_column_that_names_persons_is_proposed(tmp_path, name, shuffled):
    ids = persons()
    ids = np.random.default_rng(2).permutation(ids) if shuffled else ids
    text = job_for(table(tmp_path, **{name: ids}), "outcome")
    assert f'# person = "{name}"' in text
    assert Job.parse(text).data.columns == {name: "drop"}


@pytest.mark.parametrize(
    "values",
    [
        [f"{one:05x}" for one in np.random.default_rng(3).permutation(persons())],
        persons() * 37 + 100_000,  # under any name, where a person's rows stand together
    ],
)
def test_values_that_repeat_like_an_identifier_are_proposed(tmp_path, values):
    assert '# person = "code"' in job_for(table(tmp_path, code=values), "outcome")


def test_few_persons_whose_rows_stand_together_are_proposed_and_what_follows_from_them_is_not(
    tmp_path,
):
    herd = np.arange(ROWS) // 75
    made = {"quarter": herd % 6 + 1, "herd": [f"h{one}" for one in herd], "size": herd // 2 * 7}
    text = job_for(table(tmp_path, **made), "outcome")
    assert [line[:18] for line in text.splitlines() if "person =" in line] == ['# person = "herd" ']


def test_measured_numbers_are_no_persons(tmp_path):
    draw = np.random.default_rng(4)
    ages, temperatures = draw.integers(18, 90, ROWS), draw.normal(37, 0.5, ROWS).round(1)
    days = np.datetime64("2015-01-01") + draw.integers(0, 700, ROWS)
    text = job_for(table(tmp_path, age=ages, temperature=temperatures, admitted=days), "outcome")
    assert "person" not in text


def test_an_identifier_of_rows_that_are_a_person_each_is_only_dropped(tmp_path):
    text = job_for(
        table(tmp_path, patient_id=np.random.default_rng(5).permutation(ROWS)), "outcome"
    )
    assert "person" not in text.replace("one person", "").replace("a person's", "")
    assert Job.parse(text).data.columns == {"patient_id": "drop"}


def test_a_proposed_person_can_be_taken(tmp_path):
    text = job_for(table(tmp_path, patient=persons(), dose=np.arange(ROWS) % 7 + 0.5), "outcome")
    job = Job.parse(text.replace('# person = "patient"', 'person = "patient"'))
    assert job.load_data().persons is not None


def test_shares_and_costs_are_proposed_where_a_class_is_rare(tmp_path):
    rare = (np.arange(ROWS) % 50 == 0).astype(int)
    text = job_for(table(tmp_path, outcome=rare, age=np.arange(ROWS) % 70), "outcome")
    assert "# prevalence = [0.98, 0.02]" in text
    assert "# costs = [1.0, 50.0]" in text
    given = Job.parse(text)
    assert given.data.prevalence is None and given.predict.costs is None
    for line in ("prevalence", "[predict]", "costs", "[training]", "class_weights"):
        text = text.replace(f"# {line}", line)
    taken = Job.parse(text)
    assert (taken.data.prevalence, taken.predict.costs) == ((0.98, 0.02), (1.0, 50.0))
    assert taken.training.class_weights == "prevalence"
    usual = job_for(table(tmp_path, age=np.arange(ROWS) % 70), "outcome")
    assert "# prevalence = [0.48, 0.52]" in usual and "# costs" not in usual


def test_yes_or_no_names_nobody(tmp_path):
    text = job_for(table(tmp_path, student=["Yes", "No", "No"] * (ROWS // 3)), "outcome")
    assert "person" not in text and Job.parse(text).data.columns["student"] != "drop"


@pytest.mark.parametrize("kept", [1.0, 0.7])
def test_a_running_number_is_no_feature_in_a_table_of_any_length(tmp_path, kept):
    """Nor where some of its rows were left out."""
    number = np.arange(5, 3005)
    number = number[np.random.default_rng(8).random(3000) < kept]
    rows = np.arange(len(number))
    frame = pl.DataFrame({"": number, "x": rows % 9 + 0.5, "y": rows % 2})
    frame.write_csv(tmp_path / "long.csv")
    assert Job.parse(job_for(tmp_path / "long.csv", "y")).data.columns[""] == "drop"


def test_a_running_number_in_any_order_is_no_feature_and_amounts_that_all_differ_are(tmp_path):
    draw = np.random.default_rng(9)
    count = 3000
    columns = {
        "number": draw.permutation(count) + 17,
        "amount": draw.choice(10**9, count, replace=False),
        "y": np.arange(count) % 2,
    }
    pl.DataFrame(columns).write_csv(tmp_path / "long.csv")
    found = Job.parse(job_for(tmp_path / "long.csv", "y")).data.columns
    assert found["number"] == "drop" and found["amount"] != "drop"


def test_a_constant_is_no_feature_but_one_value_or_none_is(tmp_path):
    seldom = [None if row % 3 else 7 for row in range(ROWS)]
    columns = Job.parse(
        job_for(table(tmp_path, unit="mg", version=[2] * ROWS, asked=seldom), "outcome")
    ).data.columns
    assert columns["unit"] == columns["version"] == "drop"
    assert columns["asked"] == {"categories": ["7"], "missing": "category"}


def test_two_numbers_are_categories_and_few_are_asked_about(tmp_path):
    draw = np.random.default_rng(10)
    made = {"flag": draw.integers(0, 2, ROWS), "grade": draw.integers(1, 6, ROWS)}
    text = job_for(table(tmp_path, **made), "outcome")
    job = Job.parse(text)
    assert job.data.columns == {"flag": {"categories": ["0", "1"]}, "grade": [0, 5]}
    (asked,) = [line for line in text.splitlines() if line.startswith("grade")]
    assert 'codes, not amounts? Then {categories = ["1", "2", "3", "4", "5"]}' in asked
    # No curve is drawn between two values.
    encoder = job.load_data().encoder
    assert [encoder.titles[place] for place in encoder.numbers] == ["grade"]


@pytest.mark.parametrize("kind", ["classes", "number"])
def test_a_column_that_gives_the_label_away_is_dropped_with_what_it_would_be(tmp_path, kind):
    draw = np.random.default_rng(11)
    made = {"noise": draw.normal(0, 1, ROWS).round(2)}
    if kind == "classes":
        truth = draw.integers(0, 2, ROWS)
        made |= {"given": np.where(truth == 1, "died", "left")}
        made |= {"beyond": truth * 40 + draw.integers(0, 40, ROWS)}
    else:
        truth = draw.normal(0, 1, ROWS).round(3)
        made |= {"given": 1 - 3 * truth, "beyond": truth**3}
    near = (truth + draw.normal(0, 0.5, ROWS)).round(3)
    text = job_for(table(tmp_path, **made, near=near, outcome=truth), "outcome")
    columns = Job.parse(text).data.columns
    assert {name for name, value in columns.items() if value == "drop"} == {"given", "beyond"}
    lines = [line for line in text.splitlines() if line.startswith(("given", "beyond"))]
    for line in lines:
        assert "gives the label away" in line
        # What stands behind the question is what the column would be.
        name, kept = line.partition(" ")[0], line.partition("? ")[2]
        Job.parse(text.replace(line, f"{name} = {kept}")).load_data()


def test_a_label_of_whole_groups_is_given_away_by_the_group(tmp_path):
    group = np.arange(ROWS) % 60
    path = table(tmp_path, group=[f"g{one}" for one in group % 20], outcome=(group % 20) * 1.5)
    assert Job.parse(job_for(path, "outcome")).data.columns == {"group": "drop"}


def test_few_records_of_a_class_give_nothing_away(tmp_path):
    rare = np.arange(ROWS) < 4
    path = table(tmp_path, x=np.arange(ROWS) // 9 + 0.5, outcome=rare.astype(int))
    assert Job.parse(job_for(path, "outcome")).data.columns["x"] != "drop"


def test_labels_that_are_missing_are_proposed_to_be_left_out_and_move_no_other_row(tmp_path):
    draw = np.random.default_rng(12)
    age, outcome = draw.integers(18, 90, ROWS), draw.choice(["no", "yes"], ROWS)
    missing = draw.random(ROWS) < 0.2
    given = [None if lost else word for lost, word in zip(missing, outcome, strict=True)]
    text = job_for(table(tmp_path, age=age, outcome=given), "outcome")
    assert 'missing_label = "drop"' in text
    job = Job.parse(text)
    found = job.load_data()
    with pytest.raises(DataError, match="missing_label"):
        Job.parse(text.replace('missing_label = "drop"', "")).load_data()
    table(tmp_path, age=age[~missing], outcome=outcome[~missing])
    without = job.load_data()
    assert len(found.train) + len(found.test) == int((~missing).sum()) < ROWS
    for one, other in ((found.train, without.train), (found.test, without.test)):
        assert np.array_equal(one.inputs, other.inputs)
        assert np.array_equal(one.targets, other.targets)


def test_a_word_for_nothing_that_is_a_class_is_none_that_is_missing(tmp_path):
    pain = np.random.default_rng(13).choice(["none", "mild", "severe"], ROWS)
    text = job_for(table(tmp_path, age=np.arange(ROWS) % 70, pain=pain), "pain")
    assert "Is one of these a class: none?" in text
    job = Job.parse(text.replace('classes = ["mild"', 'classes = ["none", "mild"'))
    data = job.load_data()
    assert len(data.train) + len(data.test) == ROWS


def test_a_word_for_nothing_beside_one_other_is_a_class(tmp_path):
    words = np.where(np.arange(ROWS) % 3 > 0, "yes", "none")
    data = Job.parse(
        job_for(table(tmp_path, age=np.arange(ROWS) % 80, outcome=words), "outcome")
    ).load_data()
    assert data.classes == 2
    assert len(data.train) + len(data.test) == ROWS
    with pytest.raises(DataError, match="the same in"):
        job_for(table(tmp_path, age=words, outcome=np.where(words == "yes", "yes", "")), "outcome")


def test_a_table_without_features_says_so(tmp_path, capsys):
    text = job_for(table(tmp_path, number=np.arange(ROWS), same=["a"] * ROWS), "outcome")
    assert ALL_DROPPED in text
    assert ALL_DROPPED not in job_for(table(tmp_path, age=np.arange(ROWS) % 80), "outcome")


def test_columns_that_are_left_out_and_numbers_that_are_none_are_named(tmp_path):
    share = [f"{at % 900}%" for at in range(ROWS)]
    doses = ["inf", *(str(at * 37 % 80) for at in range(1, ROWS))]
    path = table(tmp_path, share=share, dose=doses, same=["a"] * ROWS)
    assert "(1 of the entries)" in job_for(path, "outcome")
    out = str(tmp_path / "job.toml")
    told = CliRunner().invoke(app, ["init", str(path), "--label", "outcome", "--out", out]).output
    assert "Left out: share: different in every record; numbers or days? Then write" in told
    assert "; same: the same in every record" in told


# Numbers and days as programs write them, with what no reader of numbers takes.
DRESSED = {
    "a share": "{}.5 %",
    "thousands": "{},250",
    "money": "€ {}.00",
    "a unit": "{} mmHg",
    "a bound": "<{}",
    "a pair": "{}/80",
    "a day": "{}-JAN-2015",
}


@pytest.mark.parametrize("form", DRESSED.values(), ids=DRESSED)
def test_numbers_and_days_that_are_written_as_words_are_told_when_they_are_left_out(tmp_path, form):
    lab = [form.format(row % 61 + 1) for row in range(ROWS)]
    text = job_for(table(tmp_path, lab=lab, age=np.arange(ROWS) % 70), "outcome")
    (told,) = [line for line in text.splitlines() if line.startswith("lab =")]
    assert told.startswith('lab = "drop"') and "numbers or days?" in told
    with pytest.raises(DataError, match="numbers or days"):
        job_for(tmp_path / "table.csv", "lab")


@pytest.mark.parametrize("form", ["P{:04}", "ward {}", "2B{}", "10{}"])
def test_codes_and_numbers_that_can_be_read_are_not_asked_about(tmp_path, form):
    made = {"code": [form.format(row * 7 % 61) for row in range(ROWS)]}
    assert "numbers or days?" not in job_for(table(tmp_path, **made), "outcome")


@pytest.mark.parametrize("entry", ["{},5", '"{},5"'])
@pytest.mark.parametrize("whole", [0, 300])
def test_a_decimal_comma_is_found_in_quotes_and_after_many_whole_numbers(tmp_path, entry, whole):
    doses = [str(row % 70) if row < whole else entry.format(row % 70) for row in range(ROWS)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["dose;y", *(f"{d};{row % 3 % 2}" for row, d in enumerate(doses))]))
    text = job_for(path)
    assert 'decimal = ","' in text and "dose = [0, 70" in text


@pytest.mark.parametrize("other", ['"{},{}"', "{},{}", '"{},1{:02}"'])
def test_commas_of_lists_and_thousands_beside_points_are_no_decimal_commas(tmp_path, other):
    path = tmp_path / "t.csv"
    entries = ((other if row > 30 else "{}").format(row % 5 + 1, row % 7) for row in range(ROWS))
    rows = (f"{one};{row % 70}.5;{row % 3 % 2}" for row, one in enumerate(entries))
    path.write_text("\n".join(["codes;dose;y", *rows]))
    text = job_for(path)
    assert "decimal" not in text and "dose = [0, 70]" in text


@pytest.mark.parametrize(("entry", "decimal"), [("{},{:03}", False), ("0,{}{:02}", True)])
def test_commas_that_may_all_separate_thousands_are_asked_about(tmp_path, entry, decimal):
    path = tmp_path / "t.csv"
    entries = (entry.format(row % 9 + 1, row % 90) for row in range(ROWS))
    rows = (f"{one};{row % 3 % 2}" for row, one in enumerate(entries))
    path.write_text("\n".join(["income;y", *rows]))
    text = job_for(path)
    assert ("decimal" in text) == decimal and ("numbers or days?" in text) != decimal


def test_a_damaged_letter_behind_good_ones_is_told(tmp_path):
    path = tmp_path / "t.csv"
    rows = [f"{row % 50},{'Süd' if row % 3 else 'Nord'},{row % 2}" for row in range(20_000)]
    content = "\n".join(["age,ward,y", *rows]).encode()
    path.write_bytes(content[:100_000] + content[100_000:].replace(b"Nord", b"Nor\xe9", 1))
    with pytest.raises(DataError, match="UTF-8 text"):
        job_for(path)


def test_a_letter_that_a_piece_ends_in_is_whole(tmp_path):
    path = tmp_path / "t.csv"
    rows = "\n".join(["age,y", *(f"{row % 50},{row % 2}" for row in range(200))]).encode()
    blank = b"\n" * ((1 << 20) - len(rows) - 3)
    path.write_bytes(rows + blank + "\n7ü,0\n".encode())
    assert "encoding" not in job_for(path)


def test_a_name_in_brackets_is_no_json(tmp_path):
    path = tmp_path / "t.csv"
    rows = [f"{row % 50},{row % 2}" for row in range(200)]
    path.write_bytes("\n".join(["[größe],[y]", *rows]).encode("cp1252"))
    assert 'encoding = "cp1252"' in job_for(path)


def test_separators_inside_of_quotes_separate_nothing(tmp_path):
    path = tmp_path / "t.csv"
    rows = [f"{row % 50};{row % 2}" for row in range(200)]
    path.write_text("\n".join(['"age, in years, at entry";y', *rows]))
    assert list(Job.parse(job_for(path)).data.columns) == ["age, in years, at entry"]


def test_a_letter_of_another_encoding_far_down_is_found(tmp_path):
    path = tmp_path / "t.csv"
    rows = [f"{row % 50},{'Süd' if row == 19_999 else 'Nord'},{row % 2}" for row in range(20_000)]
    path.write_bytes("\n".join(["age,ward,y", *rows]).encode("cp1252"))
    text = job_for(path)
    assert 'encoding = "cp1252"' in text and '"Süd"' in text


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"PK\x03\x04\xff\xfe\n\x00", "Excel workbook"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\n", "old Excel workbook"),
        (b"\xef\xbb\xbf<HTML>\xe4", "web page"),
        (b'[\n {"age": 1}]', "JSON"),
    ],
)
def test_what_is_no_text_is_called_by_its_kind(tmp_path, start, kind):
    path = tmp_path / "t.csv"
    path.write_bytes(start + bytes(100))
    with pytest.raises(DataError, match=kind):
        job_for(path)


def test_the_label_is_no_column_without_entries_or_name(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["age,y,", *(f"{row % 50},{row % 2}," for row in range(200))]))
    assert Job.parse(job_for(path)).data.label == "y"
    path.write_text("\n".join(["age,y,", *(f"{row % 50},{row % 2},1" for row in range(200))]))
    assert Job.parse(job_for(path)).data.label == "y"
    path.write_text("a b c\n1 2 0\n")
    with pytest.raises(DataError, match="semicolons"):
        job_for(path)


def test_a_label_that_cannot_be_one_is_named(tmp_path):
    with pytest.raises(DataError, match="the label unit"):
        job_for(table(tmp_path, unit=["mg"] * ROWS), "unit")


def test_classes_that_differ_in_capitals_and_numbers_above_columns_are_asked_about(tmp_path):
    words = np.array(["No", "Yes", "no", "yes"])[np.arange(ROWS) % 4]
    assert "capitals" in job_for(
        table(tmp_path, outcome=words, age=np.arange(ROWS) % 70), "outcome"
    )
    assert "capitals" not in job_for(table(tmp_path, age=np.arange(ROWS) % 70), "outcome")
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["2019,2020", *(f"{row % 50},{row % 2}" for row in range(200))]))
    assert "header = false  # the first line holds numbers" in job_for(path)


@pytest.mark.parametrize(("wrong", "asked"), [(6, True), (90, False)])
def test_a_column_that_says_nearly_every_label_is_asked_about(tmp_path, wrong, asked):
    truth = np.arange(ROWS) % 2
    said = np.where(np.arange(ROWS) < wrong, 1 - truth, truth)
    made = {"said": np.where(said == 1, "died", "left"), "outcome": truth}
    text = job_for(table(tmp_path, **made), "outcome")
    assert ("nearly every record" in text) is asked
    assert Job.parse(text).data.columns["said"] != "drop"


@pytest.mark.parametrize(("spread", "asked"), [(0.03, True), (0.5, False)])
def test_a_number_that_says_nearly_every_label_is_asked_about(tmp_path, spread, asked):
    draw = np.random.default_rng(17)
    score, noise = draw.normal(0, 1, (2, 2000))
    later = score + spread * noise
    sick = np.where(later > 0.3, "yes", "no")
    text = job_for(table(tmp_path, score=score.round(4), outcome=sick), "outcome")
    assert ("nearly every record" in text) is asked
    made = {"score": score.round(4), "outcome": np.exp(3 + later).round(3)}
    text = job_for(table(tmp_path, **made), "outcome")
    assert ("nearly every record" in text) is asked


def test_a_small_table_of_noise_gives_nothing_away(tmp_path):
    draw = np.random.default_rng(18)
    for rows in (50, 60, 200):
        made = {f"x{n}": draw.normal(0, 1, rows).round(3) for n in range(8)}
        text = job_for(table(tmp_path, **made, outcome=np.arange(rows) % 2), "outcome")
        assert "nearly every" not in text


def test_tables_of_parquet_may_hold_lists_fields_bytes_and_durations(tmp_path):
    count = range(ROWS)
    frame = pl.DataFrame({
        "outcome": np.random.default_rng(5).integers(0, 2, ROWS),
        "tags": [[number, 1] for number in count],
        "fields": [{"a": number} for number in count],
        "raw": [bytes([number % 7, 255]) for number in count],
        "stay": [timedelta(minutes=number % 90) for number in count],
    })  # fmt: skip
    frame.write_parquet(tmp_path / "table.parquet")
    text = job_for(tmp_path / "table.parquet", "outcome")
    columns = Job.parse(text).data.columns
    assert [columns[name] for name in ("tags", "fields", "raw")] == ["drop"] * 3
    data = Job.parse(text).load_data()
    low, high = columns["stay"]
    assert (low, high) == (0, 5500)
    assert len(set(data.train.inputs[:, 0].tolist())) == 90
    declared = text.replace('tags = "drop"', "tags = [0, 5]")
    with pytest.raises(DataError, match="lists"):
        Job.parse(declared).load_data()


def test_steps_of_ten_that_stand_in_runs_are_measured(tmp_path):
    runs = np.repeat(np.random.default_rng(3).permutation(ROWS // 6) % 36, 6)
    text = job_for(table(tmp_path, wind=10 * runs, place=10 * runs + runs % 3), "outcome")
    assert 'person = "place"' in text
    assert 'person = "wind"' not in text


def test_free_text_is_not_copied(tmp_path):
    note = [f"complained about a pain in the left arm, number {one % 20}" for one in range(ROWS)]
    text = job_for(table(tmp_path, note=note), "outcome")
    assert "complained" not in text and Job.parse(text).data.columns == {"note": "drop"}


def test_the_logarithm_of_a_skewed_amount_is_proposed(tmp_path):
    draw = np.random.default_rng(6)
    crp, ph = np.exp(draw.normal(1, 1.6, ROWS)).round(2), draw.normal(7.4, 0.1, ROWS).round(2)
    columns = Job.parse(job_for(table(tmp_path, crp=crp, ph=ph), "outcome")).data.columns
    assert columns["crp"]["log"] is True and isinstance(columns["ph"], list)


def test_a_table_without_names_says_so(tmp_path):
    path = tmp_path / "bare.csv"
    path.write_text("".join(f"{row % 7 + 0.5},{row % 11},{row % 2}\n" for row in range(60)))
    job = Job.parse(job_for(path))
    assert job.data.header is False and job.data.label == "2"
    assert len(job.load_data().train) + len(job.load_data().test) == 60


def test_a_label_in_another_case_is_suggested(tmp_path):
    with pytest.raises(DataError, match="mean 'outcome'"):
        job_for(table(tmp_path, dose=np.arange(ROWS) / 2), "Outcome")


def test_few_numbers_are_classes_and_the_file_says_how_they_would_be_a_number(
    tmp_path: Path,
) -> None:
    children = np.random.default_rng(2).integers(0, 6, ROWS)
    path = table(tmp_path, children=children)
    text = job_for(path, "children")
    assert Job.parse(text).data.classes == tuple("012345")
    asked = [line for line in text.splitlines() if "number to predict" in line]
    assert asked and 'task = "regression", target_range = [0, 5]' in asked[0]
    assert "number to predict" not in job_for(path, "outcome")
    many = job_for(table(tmp_path, days=np.arange(ROWS) % 100), "days")
    assert Job.parse(many).data.task == "regression"


def test_several_labels_are_ones_and_zeros(tmp_path):
    path = table(tmp_path, ill=np.arange(ROWS) % 2, ward=np.array(["A", "B", "C"] * (ROWS // 3)))
    assert 'task = "multilabel"' in job_for(path, ["outcome", "ill"])
    with pytest.raises(DataError, match="ward has other"):
        job_for(path, ["outcome", "ward"])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_the_line_that_excel_alone_reads_is_passed_over(encoding, tmp_path):
    path = tmp_path / "t.csv"
    lines = ["SEP=;", "age;outcome", *(f"{20 + n % 50};{n % 2}" for n in range(60))]
    path.write_text("\r\n".join(lines), encoding=encoding)
    text = job_for(path, "outcome")
    assert 'separator = ";"' in text and "age = [0, 120]" in text
    dataset = Job.parse(text).load_data()
    assert len(dataset.train) + len(dataset.test or ()) == 60


def test_times_of_day_and_first_days_are_ranges_of_days_that_can_be_read(tmp_path):
    days = [date(1, 1, 1), date(2020, 5, 17)] * (ROWS // 2)
    path = table(tmp_path, a=days)
    assert 'a = {date = ["0001-01-01", "2029-12-31"]}' in job_for(path, "outcome")
    times = [time(n % 24, n % 60) for n in range(200)]
    frame = pl.DataFrame({"a": times, "b": [n % 7 for n in range(200)], "y": ["no", "yes"] * 100})
    frame.write_excel(tmp_path / "t.xlsx")
    assert 'a = "drop"' in job_for(tmp_path / "t.xlsx", "y")


def test_large_whole_numbers_that_run_are_no_feature(tmp_path):
    path = table(tmp_path, a=[2**62 + 12345 * n for n in range(ROWS)])
    assert 'a = "drop"' in job_for(path, "outcome")
    for low, high in ((2.0**62, 2.0**62), (2.0**62, 2.0**62 + 2.0**20), (1e12, 1e12 + 0.25)):
        first, last = outward(low, high, low == 2.0**62)
        assert float(first) < float(last) and first <= low and high <= last


def test_numbers_near_zero_get_a_range_that_can_be_read(tmp_path):
    path = table(tmp_path, a=np.random.default_rng(0).uniform(0, 3e-308, ROWS))
    text = job_for(path, "outcome")
    assert "a = [" in text
    Job.parse(text).load_data()


def test_one_class_in_two_spellings_is_one(tmp_path):
    text = job_for(table(tmp_path, a=range(ROWS), y=["1", "1.0", "0", "0.0"] * (ROWS // 4)), "y")
    assert 'classes = ["0", "1"]' in text and "[0.5, 0.5]" in text


def test_an_entry_writes_no_line_into_the_job(tmp_path: Path) -> None:
    rows = "\n".join(f"{'yes' if i % 2 else 'no'},{i % 5}" for i in range(40))
    path = tmp_path / "in two\nlines.csv"
    path.write_text("y,a\n" + rows + '\nyes,"x\n[run]\nnoise_seed = 7\n#"\n')
    assert Job.parse(job_for(path, "y")).run.noise_seed is None


def test_rows_without_a_label_are_left_out_beside_a_class_called_none(tmp_path):
    labels = [("yes", "none", "")[i % 3] for i in range(90)]
    rows = [f"{i * i % 31},{label}" for i, label in enumerate(labels)]
    (tmp_path / "t.csv").write_text("\n".join(["size,pain", *rows]) + "\n")
    job = Job.parse(job_for(tmp_path / "t.csv", "pain"))
    assert job.data.classes == ("none", "yes")
    data = job.load_data()
    assert len(data.train) + len(data.test) == 60


@pytest.mark.skipif(os.name == "nt", reason="names of files are no bytes there")
@pytest.mark.parametrize("make", [job_for, job_for_arrays])
def test_a_file_whose_name_no_job_can_hold_is_told_of(tmp_path, make):
    try:
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.npz"))
        path.write_bytes(b"size,pain\n1,yes\n2,no\n")
    except OSError:
        pytest.skip("this file system takes no such names")
    with pytest.raises(DataError, match="rename it"):
        make(path)
