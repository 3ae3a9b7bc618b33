"""The keys of a run: one small file, written once, wiped in place when the run ends.

Whoever has the keys can draw the noise again and subtract it. They are in no other file, so that
wiping this one is enough where the file system overwrites in place. Journaling, copying and
compressing file systems, and flash memory, may keep traces of wiped blocks: use an encrypted disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from forethought.rounds.randomness import SECRET_BYTES, Secrets, Seeds
from forethought.training.checkpoint import CheckpointError, replace_file, sync_folder

KEYS = "keys"
KEYS_SCHEMA = "forethought/keys/1"


@dataclass(frozen=True)
class Keys:
    """All secrets of a run.

    Args:
        secrets: of sampling and noise.
        identity: under which data, model and loss are hashed to be recognised; 32 bytes.
    """

    secrets: Secrets
    identity: bytes

    @classmethod
    def draw(cls, seeds: Seeds) -> Keys:
        """New keys; see :meth:`Secrets.draw`."""
        return cls(Secrets.draw(seeds), secrets.token_bytes(SECRET_BYTES))

    def write(self, folder: Path) -> None:
        """Write the key file, readable by its owner only.

        Raises:
            OSError: cannot be written.
        """
        values = {
            "schema": KEYS_SCHEMA,
            "sampling": self.secrets.sampling.hex(),
            "noise": self.secrets.noise.hex(),
            "identity": self.identity.hex(),
            "seeded_sampling": self.secrets.seeded_sampling,
            "seeded_noise": self.secrets.seeded_noise,
        }
        replace_file(folder / KEYS, json.dumps(values).encode(), mode=0o600)

    @classmethod
    def read(cls, folder: Path) -> Keys:
        """The keys in ``folder``.

        Raises:
            CheckpointError: none there, or damaged.
        """
        path = folder / KEYS
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if values["schema"] != KEYS_SCHEMA:
                raise ValueError(f"schema {values['schema']!r}, expected {KEYS_SCHEMA!r}")
            own = Secrets(
                bytes.fromhex(values["sampling"]),
                bytes.fromhex(values["noise"]),
                bool(values["seeded_sampling"]),
                bool(values["seeded_noise"]),
            )
            return cls(own, bytes.fromhex(values["identity"]))
        except FileNotFoundError as error:
            raise CheckpointError(
                f"cannot resume: {path} is gone, and with it the keys of the noise. Start a new "
                "run in another folder; what this one released adds to it"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} holds no keys: {error}") from error


def wipe(path: Path) -> None:
    """Overwrite a file in place, then delete it; nothing where there is none.

    Raises:
        OSError: cannot be overwritten.
    """
    with contextlib.suppress(FileNotFoundError):
        with path.open("r+b", buffering=0) as file:
            left = path.stat().st_size
            while left > 0:
                left -= file.write(bytes(min(left, 1 << 20)))
            os.fsync(file.fileno())
        path.unlink()
        sync_folder(path.parent)
