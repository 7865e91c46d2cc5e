"""Operators' YAML files, read strictly: a duplicate key is an error.

Problems are reported by line only: the parser's own messages would quote
the file, which may hold a secret.
"""

from __future__ import annotations

from typing import Any

from suggest.errors import InvalidArgument
from suggest.nesting import TooNested, check_yaml


def load(content: bytes, *, place: str, page: str) -> Any:
    """Load YAML. `place` names the file in problems, `page` the page that explains it.

    Raises InvalidArgument.
    """
    import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own

    try:
        check_yaml(content)
        return yaml.load(content, Loader=_loader())
    except TooNested as e:
        raise InvalidArgument.at(
            f"{place}:{e.line}", f"{e}; {page} shows what it should look like"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        mark = getattr(e, "problem_mark", None)
        where = f"{place}:{mark.line + 1}" if mark else place
        message = (
            f"cannot be read as YAML, or has a name twice; {page} shows what it should look like"
        )
        raise InvalidArgument.at(where, message) from None


def _loader() -> Any:  # PyYAML's loaders have no common type
    """Return a loader that refuses duplicate keys.

    YAML would silently keep the last one, and mislead the operator.
    """
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                if str(key.value) in seen:
                    raise yaml.MarkedYAMLError(problem_mark=key.start_mark)
                seen.add(str(key.value))
            return super().construct_mapping(node, deep=deep)

    return Loader
