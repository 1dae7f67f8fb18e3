"""The result of the gate as JUnit XML, which CI systems show as a test run: one test case for each metric."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import NamedTuple
from xml.etree import ElementTree

from imageevalkit.common.text import printable

# characters that XML 1.0 does not allow, not even as a reference
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Case(NamedTuple):
    """A test case. ``failure`` is empty if it passed, ``skipped`` if it ran; both are one line."""

    classname: str
    name: str
    failure: str = ""
    skipped: str = ""


def junit_xml(suite: str, cases: Sequence[Case], properties: Mapping[str, str], output: str) -> str:
    """Return one test suite as XML that is valid by the schemas of Jenkins and Apache Ant.

    ``output`` becomes the standard output of the suite."""
    root = ElementTree.Element(
        "testsuite",
        {
            "name": _text(suite),
            "tests": str(len(cases)),
            "failures": str(sum(bool(one.failure) for one in cases)),
            "errors": "0",
            "skipped": str(sum(bool(one.skipped) for one in cases)),
            "time": "0",
            "timestamp": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S"),
            "hostname": _text(socket.gethostname()),
        },
    )
    listed = ElementTree.SubElement(root, "properties")
    for name, value in properties.items():
        ElementTree.SubElement(listed, "property", {"name": _text(name), "value": _text(value)})
    for one in cases:
        about = {"classname": _text(one.classname), "name": _text(one.name), "time": "0"}
        case = ElementTree.SubElement(root, "testcase", about)
        if one.failure:
            attributes = {"message": _text(one.failure), "type": "gate"}
            ElementTree.SubElement(case, "failure", attributes).text = _text(one.failure)
        elif one.skipped:
            ElementTree.SubElement(case, "skipped", {"message": _text(one.skipped)})
    ElementTree.SubElement(root, "system-out").text = _text(output)
    ElementTree.SubElement(root, "system-err")
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _text(text: str) -> str:
    return _NOT_XML.sub("", printable(text))
