"""A page as a browser lays it out, for tests of pages."""

from __future__ import annotations

from typing import Any

_WIDE = """(boxes) => [...document.querySelectorAll(boxes)].filter(
    (box) => box.scrollWidth > box.clientWidth + 1).length"""
_LABELS = """() => [...document.querySelectorAll("svg text")].filter((text) =>
    text.textContent && text.checkVisibility()).map((text) => {
    const svg = text.ownerSVGElement, frame = svg.getBoundingClientRect();
    const box = text.getBoundingClientRect();
    const size = parseFloat(getComputedStyle(text).fontSize);
    const out = Math.max(frame.left - box.left, box.right - frame.right,
      frame.top - box.top, box.bottom - frame.bottom);
    return [size * frame.width / svg.viewBox.baseVal.width, out, text.textContent]; })"""


def sideways(tab: Any, boxes: str = "html, .wide") -> int:
    """How many boxes scroll sideways: the page, and the tables in it."""
    return int(tab.evaluate(_WIDE, boxes))


def labels(tab: Any) -> list[tuple[float, float, str]]:
    """Of each label of a picture that is seen: its size, and how far it is cut, in pixels."""
    return [tuple(row) for row in tab.evaluate(_LABELS)]


def unreadable(tab: Any) -> list[tuple[float, float, str]]:
    """Labels smaller than 11 pixels, and those that reach out of their picture."""
    return [row for row in labels(tab) if row[0] < 10.99 or row[1] > 1.5]
