"""One run of a script under noise: ``python -m fuzzytorch.cli.script SETTINGS SCRIPT ARGUMENTS``.

The script sees what it would see as ``python SCRIPT ARGUMENTS``: its own
``__main__`` module, ``sys.argv`` and ``sys.path[0]``.  Noise reaches what its main
thread does from the first statement to the last (not functions registered with
``atexit``).  SETTINGS is a JSON object with ``report``, the file that receives the coverage also
when the script fails, and arguments of :class:`fuzzytorch.fuzzy`, among them ``mode``,
``seed``, ``replica`` and ``format``; its ``scopes`` are lists of a mode and perhaps a format.
"""

from __future__ import annotations

import io
import json
import os
import sys
import types
from pathlib import Path

from fuzzytorch.cli import selection
from fuzzytorch.fuzzy import fuzzy
from fuzzytorch.gaps import UncoveredError


def main(settings: str, script: str, *arguments: str) -> None:
    """Runs the script; whatever it raises, ``SystemExit`` included, is passed on."""
    given = json.loads(settings)
    report = Path(given.pop("report"))
    options = selection.options(given)
    path = os.path.abspath(script)
    with io.open_code(path) as source:
        code = compile(source.read(), path, "exec", dont_inherit=True)
    sys.argv = [script, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    module = types.ModuleType("__main__")
    module.__file__ = path
    vars(module)["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    context = fuzzy(**options)
    try:
        _run(context, code, module)
    except UncoveredError as error:
        print(f"fuzzytorch: {error}", file=sys.stderr)
        sys.exit(1)
    finally:
        report.write_text(json.dumps(context.coverage.to_json()))


def _run(context: fuzzy, code: types.CodeType, module: types.ModuleType) -> None:
    success: SystemExit | None = None
    with context:
        try:
            exec(code, vars(module))
        except SystemExit as ending:
            if ending.code not in (None, 0):
                raise
            # A script that says that it succeeded has run to its end; a strict mode may differ.
            success = ending
    if success is not None:
        raise success


if __name__ == "__main__":
    main(*sys.argv[1:])
