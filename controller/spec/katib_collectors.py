"""Katib's `metricsCollectorSpec`, converted to the native `spec.metrics`.

Refuses what Katib refuses.

A collector of Katib is a sidecar that Katib adds; here it is a source that the controller or a
sidecar of ours reads. This module reads the section only; it does not know where trials run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from controller.core.line_pattern import LinePattern
from controller.spec.katib_section import Json, KatibFile, KatibSectionReader, shown

AT = "spec.metricsCollectorSpec"
_LOG, _EVENTS = "/var/log/katib/metrics.log", "/var/log/katib/tfevent/"  # Katib's defaults
_PORT, _PATH = 8080, "/metrics"
_KINDS = ("StdOut", "File", "TensorFlowEvent", "PrometheusMetric", "Push", "Custom")
# Katib's own filter for lines of text, which finds the end of a name such as val/loss:
# ([\w|-]+)\s*=\s*([+-]?\d*(\.\d+)?([Ee][+-]?\d+)?). This one also reads nan and inf.
DEFAULT_FILTER = (
    r"([\w|-]+)\s*=\s*([+-]?(?:(?i:nan|inf(?:inity)?)\b|\d*(?:\.\d+)?(?:[Ee][+-]?\d+)?))"
)
_NONE_HINT = (
    f"{AT}.collector.kind: None is read as Push, its newer name: trials report to Katib's DBManager"
)


@dataclass(frozen=True, slots=True)
class CustomCollector:
    """A container of the user's beside the trial.

    `folder`: a directory that both see; "" for none.
    """

    container: Json
    folder: str


class KatibCollectorReader(KatibSectionReader):
    """Reads the section of one file.

    `custom` is the container of a Custom collector, once `native` has been called.
    """

    custom: CustomCollector | None = None

    def __init__(self, file: KatibFile, spec: Json) -> None:
        super().__init__(file)
        self._spec = spec

    def native(self) -> Json:
        """Return the native `metrics`."""
        if self._spec.get("metricsCollectorSpec") is None:
            return {"pattern": DEFAULT_FILTER}
        section = self._part(self._spec, "metricsCollectorSpec", "spec", ("collector", "source"))
        collector = self._part(section, "collector", AT, ("kind", "customCollector"))
        source = self._part(section, "source", AT, ("filter", "fileSystemPath", "httpGet"))
        kind = collector.get("kind", "StdOut")
        if "customCollector" in collector and kind != "Custom":
            self._has_no_effect(f"{AT}.collector.customCollector", kind)
        match kind:
            case "StdOut":
                self._without(source, kind, "httpGet", "fileSystemPath")
                return self._patterns(source)
            case "File":
                self._without(source, kind, "httpGet")
                path, form = self._path(source, _LOG, "File", ("TEXT", "JSON"))
                if form == "JSON":
                    if "filter" in source:
                        message = "cannot be combined with format: JSON; remove it"
                        self._problems.add(f"{AT}.source.filter", message, at_key=True)
                    return {"file": path, "format": "json"}
                return {"file": path, **self._patterns(source)}
            case "TensorFlowEvent":
                self._without(source, kind, "httpGet", "filter")
                path, _ = self._path(source, _EVENTS, "Directory", ())
                return {"file": path.rstrip("/"), "format": "tensorboard"}
            case "PrometheusMetric":
                self._without(source, kind, "fileSystemPath", "filter")
                return {"prometheus": self._endpoint(source)}
            case "Push" | "None":
                self._without(source, kind, "httpGet", "fileSystemPath", "filter")
                if kind == "None":
                    self._file.warnings.append(_NONE_HINT)
                return {"dbManager": True}
            case "Custom":
                self._without(source, kind, "httpGet", "filter")
                self.custom = self._custom(collector, source)
                return {"dbManager": True}
        cure = f"write {', '.join(_KINDS)}"
        message = f"invalid metrics collector kind: {kind}; {cure}"
        self._problems.add(f"{AT}.collector.kind", message)
        return {}

    def _custom(self, collector: Json, source: Json) -> CustomCollector:
        at = f"{AT}.collector.customCollector"
        if collector.get("customCollector") is None:
            cure = "write the container that reports the metrics, or another kind"
            self._problems.add(at, f"must be specified; {cure}")
            return CustomCollector({}, "")
        container = self._part(collector, "customCollector", f"{AT}.collector")
        for key in ("name", "image"):
            if not isinstance(container.get(key), str):
                self._problems.add(f"{at}.{key}", f"must be specified; write the container's {key}")
        path = ""
        if source.get("fileSystemPath") is not None:
            place = self._part(source, "fileSystemPath", f"{AT}.source")
            is_file = place.get("kind") != "Directory"
            path, _ = self._path(
                source,
                _LOG,
                "File" if is_file else "Directory",
                ("TEXT", "JSON") if is_file else (),
            )
            path = path.rpartition("/")[0] if is_file else path.rstrip("/")
        return CustomCollector(container, path)

    def _part(self, parent: Json, key: str, at: str, keys: Iterable[str] | None = None) -> Json:
        """Return a mapping that may have these keys; {} if it is absent."""
        if parent.get(key) is None:
            return {}
        part = self._mapping(parent, key, at)
        if keys is not None:
            self._only(part, f"{at}.{key}", keys)
        return part

    def _without(self, source: Json, kind: str, *keys: str) -> None:
        for key in keys:
            if key in source:
                self._has_no_effect(f"{AT}.source.{key}", kind)

    def _has_no_effect(self, path: str, kind: str) -> None:
        message = f"has no effect with kind: {kind}, as in Katib; remove it"
        self._file.warnings.append(f"{path}: {message}")

    def _path(
        self, source: Json, default: str, kind: str, formats: tuple[str, ...]
    ) -> tuple[str, str]:
        """Return the path and the format of `fileSystemPath`."""
        at = f"{AT}.source.fileSystemPath"
        keys = ("path", "kind", "format")
        file_system_path = self._part(source, "fileSystemPath", f"{AT}.source", keys)
        path = file_system_path.get("path", default)
        if not isinstance(path, str) or not path.startswith("/"):
            self._problems.add(
                f"{at}.path",
                f"expected an absolute path, got {shown(path)}; write one such as {default}",
            )
            path = default
        if file_system_path.get("kind", kind) != kind:
            self._problems.add(
                f"{at}.kind",
                f"expected {kind}, got {shown(file_system_path['kind'])}; write {kind}",
            )
        form = file_system_path.get("format")
        if form is not None and form not in formats:
            cure = f"write {' or '.join(formats)}" if formats else "remove it"
            self._problems.add(
                f"{at}.format", f"{shown(form)} cannot be combined with this collector; {cure}"
            )
        return path, form if isinstance(form, str) else "TEXT"

    def _patterns(self, source: Json) -> Json:
        """Return the filters as patterns with two groups."""
        at = f"{AT}.source.filter"
        if source.get("filter") is None:
            return {"pattern": DEFAULT_FILTER}
        given = self._part(source, "filter", f"{AT}.source", ("metricsFormat",))
        formats = given.get("metricsFormat")
        if formats is None or formats == []:
            return {"pattern": DEFAULT_FILTER}
        if not isinstance(formats, list):
            self._problems.add(f"{at}.metricsFormat", "expected a list of regular expressions")
            return {}
        for i, text in enumerate(formats):
            try:
                if not isinstance(text, str):
                    raise ValueError(f"expected text, got {shown(text)}; write it in quotes")
                LinePattern(text)
            except ValueError as error:
                self._problems.add(f"{at}.metricsFormat[{i}]", str(error))
        return {"pattern": formats[0] if len(formats) == 1 else formats}

    def _endpoint(self, source: Json) -> Json:
        at = f"{AT}.source.httpGet"
        http_get = self._part(source, "httpGet", f"{AT}.source", ("path", "port", "scheme", "host"))
        port, path = http_get.get("port", _PORT), http_get.get("path", _PATH)
        if isinstance(port, str) and re.fullmatch(r"[0-9]{1,5}", port):
            # Katib takes both.
            port = int(port)
        if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
            self._problems.add(
                f"{at}.port", f"expected a port from 1 to 65535, got {shown(http_get.get('port'))}"
            )
        if not isinstance(path, str) or not path.startswith("/"):
            self._problems.add(
                f"{at}.path", f"expected a path that begins with /, got {shown(path)}"
            )
        if http_get.get("scheme") not in (None, "HTTP"):
            self._problems.add(
                f"{at}.scheme", f"{shown(http_get['scheme'])} is not supported; write HTTP"
            )
        if http_get.get("host") is not None:
            self._problems.add(f"{at}.host", "the endpoint is the trial's own; remove it")
        return {"port": port, "path": path}
