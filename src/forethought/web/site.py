"""One page and a few answers on 127.0.0.1, by the standard library's HTTP server.

There is one page for one user, without routes: a framework would add a dozen packages in place of
about a hundred lines here. Access is limited:

- To this machine: the socket is bound to 127.0.0.1, and another name in the Host header is refused,
  which prevents DNS rebinding.
- To requests with the token: 256 random bits in the fragment of the address (after #), which
  browsers do not send; the page sends the token in a header of its own. Other users of this machine
  get the empty page and no answers, and another site's page (CSRF) cannot set that header.
- The page can load nothing else and connect to no other server, by its Content-Security-Policy.

The page can start with a job's numbers. It saves files: a plan, or a job with the plan's budget.
"""

from __future__ import annotations

import copy
import hmac
import json
import re
import secrets
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

from forethought import jobs
from forethought.jobs.job import PERSON, from_file, to_toml
from forethought.values.checks import without_none
from forethought.web.planner import SettingError, Settings, seconds, shown

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}\.(json|toml)")
# Placeholders for the data of a new job, which its author replaces.
_TABLE = {"source": "csv:your-table.csv", "label": "your-label"}
_HEAD = "# Name your table and its label; forethought init TABLE writes its columns.\n"


@dataclass(frozen=True)
class Place:
    """The place where files are saved, and the job that they are for.

    Args:
        folder: an existing folder. job: the tables of a job file for the numbers; None: there is no
            job yet. notes: texts about the job's data for the page. loaded: the job with its data.
    """

    folder: Path
    job: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    loaded: jobs.load.Loaded | None = None

    def save(self, name: str, settings: Settings) -> Path:
        """Write the plan as ``NAME.json``, or a job as ``NAME.toml``; no file is replaced.

        Raises:
            SettingError: an invalid name, or an existing file. OSError: it cannot be written.
        """
        if not _NAME.fullmatch(name):
            raise SettingError(
                f"a file's name is letters, digits, - and _, then .json or .toml, not {name!r}"
            )
        plain = name.endswith(".toml")
        text = self._job(settings) if plain else settings.plan(self.loaded).to_json() + "\n"
        path = self.folder / name
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise SettingError(f"{path} exists: give another name") from None
        return path

    def _job(self, settings: Settings) -> str:
        tables = copy.deepcopy(dict(self.job or {"data": _TABLE}))
        tables["budget"] = without_none({"epsilon": settings.epsilon, "delta": settings.delta})
        job = None if self.loaded is None else self.loaded.request.job
        training = tables.setdefault("training", {})
        if job is not None and job.budget.epsilon is None:
            training.pop("noise_multiplier", None)  # the new budget determines it
        training.pop("epochs", None)
        if settings.epochs is not None:
            training.pop("rounds", None)
            training["epochs"] = settings.epochs
        if settings.records_per_person != (1 if job is None else job.data.most_of_one_person):
            tables["data"]["records_per_person"] = settings.records_per_person
        text = ("" if self.job else _HEAD) + to_toml(tables)
        # An open question of forethought init is a comment, which the tables have not.
        asked = () if self.loaded is None else PERSON.finditer(self.loaded.request.text)
        return text.replace("[data]", "\n".join(["[data]", *(line[0] for line in asked)]), 1)


def beginning(job_file: Path | None, folder: Path, data_dir: Path | None) -> tuple[Place, Settings]:
    """The place for files, and the first settings of the sliders.

    Args:
        job_file: its records are counted, and nothing else is read of them; None: no job.
        folder: for saved files. data_dir: folder of the job's data, in place of the job's own.

    Raises:
        ValueError: an invalid job, missing data, or numbers that no slider reaches.
    """
    if job_file is None:
        return Place(folder), Settings()
    loaded = jobs.load.load_job(from_file(job_file), data_dir)
    job, usual = loaded.request.job, Settings()  # the job with the choices made for its data
    start = Settings.of(
        {
            "epsilon": job.budget.epsilon or usual.epsilon,
            "delta": job.budget.delta,
            "records": loaded.examples,
            "persons": loaded.persons,
            "records_per_person": job.data.most_of_one_person,
            "epochs": job.training.epochs,
            "features": min(1000, loaded.features),
        }
    )
    # A saved job may have other numbers, so it does not keep the choices made for these.
    own = loaded.read[0].job if loaded.read else job
    tables = own.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    notes = tuple(f"Chosen: {one}" for one in loaded.request.settled)
    notes += tuple(f"Not here: {one}" for one in loaded.request.aside)
    notes += (loaded.advice,) if loaded.advice else ()
    if job.budget.epsilon is None:
        notes = (*notes, "the job gives no epsilon: the budget here takes the place of its noise")
    return Place(folder, tables, notes, loaded), start


HOST = "127.0.0.1"
_LONGEST = 1 << 14
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class PlannerServer(ThreadingHTTPServer):
    """The server of the planner's page.

    Args:
        place: where files are saved. start: first settings of the sliders.
        port: to listen on; 0: any free port.
    """

    daemon_threads = True

    def __init__(self, place: Place, start: Settings | None = None, port: int = 0) -> None:
        self.place, self.start = place, start or Settings()
        self.token = secrets.token_urlsafe(32)
        self.thinking = threading.Lock()  # one answer at a time, since sliders send many requests
        super().__init__((HOST, port), _Handler)

    @property
    def address(self) -> str:
        """The address to open in a browser; it holds the token."""
        return f"http://{HOST}:{self.server_address[1]}/#{self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error on the terminal, unless the page was only closed meanwhile."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @cached_property
    def names(self) -> frozenset[str]:
        """The allowed values of a Host header."""
        port = self.server_address[1]
        return frozenset({f"{HOST}:{port}", f"localhost:{port}"})

    def answer(self, path: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request of the page.

        Raises:
            ValueError: invalid settings, or no plan for them. KeyError: an unknown path.
        """
        with self.thinking:
            if path == "/start":
                place = self.place
                rounds = place.loaded and place.loaded.request.job.training.rounds
                of_job = {"job": place.job is not None, "notes": place.notes, "rounds": rounds}
                return vars(self.start) | of_job
            if path == "/plan":
                return shown(Settings.of(values), self.place.loaded)
            if path == "/time":
                return {"seconds": seconds(Settings.of(values), self.place.loaded)}
            if path == "/save":
                name = str(values.get("name", ""))
                path_written = self.place.save(name, Settings.of(values.get("settings", {})))
                return {"path": str(path_written)}
        raise KeyError(path)


class _Handler(BaseHTTPRequestHandler):
    server: PlannerServer
    protocol_version = "HTTP/1.1"
    timeout = 30
    server_version = "forethought"
    sys_version = ""

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.names:
            self._tell(HTTPStatus.MISDIRECTED_REQUEST, "this server answers to 127.0.0.1 only")
        elif self.path != "/":
            self._tell(HTTPStatus.NOT_FOUND, "nothing here")
        else:
            nonce = secrets.token_urlsafe(16)
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", page(nonce).encode(), nonce)

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        fits = bool(re.fullmatch("[0-9]{1,5}", length)) and int(length) <= _LONGEST
        body = self.rfile.read(int(length)) if fits else b""
        self.close_connection |= not fits
        refused = self._refused(fits)
        if refused is not None:
            self._tell(*refused)
            return
        try:
            values = json.loads(body)
            if not isinstance(values, dict):
                raise ValueError("a request is a JSON object")
            found = self.server.answer(self.path, values)
        except KeyError:
            self._tell(HTTPStatus.NOT_FOUND, "nothing here")
        except (ValueError, TypeError, AttributeError, RecursionError, OSError) as error:
            self._tell(HTTPStatus.BAD_REQUEST, str(error))
        else:
            self._send(HTTPStatus.OK, "application/json", json.dumps(found).encode())

    def _refused(self, fits: bool) -> tuple[HTTPStatus, str] | None:
        """The reason why a request gets no answer; None: it gets one."""
        given = self.headers.get("X-Forethought-Token", "")
        origin = self.headers.get("Origin")
        if self.headers.get("Host") not in self.server.names:
            return HTTPStatus.MISDIRECTED_REQUEST, "this server answers to 127.0.0.1 only"
        if origin is not None and origin.removeprefix("http://") not in self.server.names:
            return HTTPStatus.FORBIDDEN, "asked by another site's page"
        if not hmac.compare_digest(given.encode(), self.server.token.encode()):
            return HTTPStatus.FORBIDDEN, "open the whole address that forethought ui printed"
        if not fits:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too long"
        if self.headers.get("Content-Type") != "application/json":
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send JSON"
        return None

    def _tell(self, status: HTTPStatus, message: str) -> None:
        self._send(status, "application/json", json.dumps({"error": message}).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes, nonce: str = "") -> None:
        own = f"script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
        policy = f"default-src 'none'; {own if nonce else ''}base-uri 'none'; form-action 'none'"
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", f"{policy}; frame-ancestors 'none'")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, so that the terminal stays free for the user."""


def page(nonce: str) -> str:
    """The page as one HTML text; a nonce allows its style and script."""
    own = resources.files("forethought.web")
    body, style, script = (
        own.joinpath(f"planner.{kind}").read_text(encoding="utf-8")
        for kind in ("html", "css", "js")
    )
    return (
        body.replace("NONCE", nonce).replace("/* STYLE */", style).replace("/* SCRIPT */", script)
    )
