"""What a run folder says of its model besides the weights: enough to apply it to new records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forethought.jobs.job import JobError
from forethought.serialisation import exact_keys

if TYPE_CHECKING:  # it loads polars
    from forethought.data import Encoder

CARD_NAME = "model.json"
PREPARED = "prepared.json"
SCHEMA = "forethought/model/1"
_KEYS = {
    "schema",
    "name",
    "options",
    "inputs",
    "classes",
    "features",
    "standardise",
    "encoder",
    "multilabel",
    "images",
}


@dataclass(frozen=True)
class ModelCard:
    """Architecture and encoding; the weights are in ``model.safetensors`` beside it.

    Args:
        name, options: the model, as a job names it.
        inputs: shape of one example. classes: how many there are; None for a regression.
        features: what images were turned into, such as ``"scattering"``; None: nothing.
        standardise: a public mean and deviation that inputs are standardised with, or a file beside
            this one that holds what was released for it; None: neither.
        encoder: how a row of a table becomes features; None: the data was no table.
        multilabel: whether ``classes`` counts labels, of which a record has several or none.
        images: shape of one image that features are made of; None: no features, or an older card.
    """

    name: str
    options: Mapping[str, Any]
    inputs: tuple[int, ...]
    classes: int | None
    features: str | None = None
    standardise: tuple[float, float] | str | None = None
    encoder: Encoder | None = None
    multilabel: bool = False
    images: tuple[int, ...] | None = None

    def to_json(self) -> str:
        """One JSON object; plain values only, nothing that runs."""
        values = {
            "schema": SCHEMA,
            "name": self.name,
            "options": dict(self.options),
            "inputs": list(self.inputs),
            "classes": self.classes,
            "features": self.features,
            "standardise": self.standardise,
            "encoder": None if self.encoder is None else self.encoder.to_dict(),
            "multilabel": self.multilabel,
        }
        if self.images is not None:
            values["images"] = list(self.images)
        return json.dumps(values, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def load(cls, path: Path) -> ModelCard:
        """Read a card.

        Raises:
            JobError: no such file, or damaged; says what to do.
        """
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            values = {"multilabel": False, "images": None, **read}
            exact_keys(
                str(path),
                values,
                _KEYS,
            )
        except FileNotFoundError:
            raise JobError(
                f"{path.parent} holds no model that can be applied: there is no {path.name} in it. "
                "Give a run folder that forethought train has finished"
            ) from None
        except (OSError, ValueError) as error:
            raise JobError(f"{path} is damaged: {error}. Restore it from a copy") from None
        if values["schema"] != SCHEMA:
            raise JobError(f"{path} has schema {values['schema']!r}; this version reads {SCHEMA}")
        encoder, scaled = None, values["standardise"]
        if values["encoder"] is not None:
            from forethought.data import Encoder

            encoder = Encoder.from_dict(values["encoder"])
        return cls(
            values["name"],
            values["options"],
            tuple(values["inputs"]),
            values["classes"],
            values["features"],
            tuple(scaled) if isinstance(scaled, list) else scaled,
            encoder,
            values["multilabel"],
            None if values["images"] is None else tuple(values["images"]),
        )
