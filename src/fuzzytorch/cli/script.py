"""One run of a script under noise: ``python -m fuzzytorch.cli.script SETTINGS SCRIPT ARGUMENTS``.

The script sees what it would see as ``python SCRIPT ARGUMENTS``: its own
``__main__`` module, ``sys.argv`` and ``sys.path[0]``.  Noise reaches what its main
thread does from the first statement to the last (not functions registered with
``atexit``).  SETTINGS is a JSON object with ``mode``, ``seed``, ``replica``, ``format`` and
``report``, the file that receives the coverage also when the script fails.
"""

from __future__ import annotations

import io
import json
import os
import sys
import types
from pathlib import Path

from fuzzytorch.fuzzy import fuzzy


def main(settings: str, script: str, *arguments: str) -> None:
    """Runs the script; whatever it raises, ``SystemExit`` included, is passed on."""
    options = json.loads(settings)
    report = Path(options.pop("report"))
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
        with context:
            exec(code, vars(module))
    finally:
        report.write_text(json.dumps(context.coverage.to_json()))


if __name__ == "__main__":
    main(*sys.argv[1:])
