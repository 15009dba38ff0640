"""Several nbgrader commands in one process, each as its own application: the imports are what takes the time.

Standard input: JSON list of [folder, argument, ...]. Standard output: JSON list of exit codes.
"""

import contextlib
import json
import os
import sys

from jupyter_core.application import NoStart
from nbgrader.apps import NbGraderApp


def run(folder: str, arguments: list[str]) -> int:
    os.chdir(folder)
    app = NbGraderApp.instance()
    try:
        app.initialize(arguments)
        with contextlib.suppress(NoStart):  # said when the sub-command is done
            app.start()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        for one in (app.subapp, app):
            if one is not None:
                type(one).clear_instance()
    return 0


if __name__ == "__main__":
    print(json.dumps([run(folder, arguments) for folder, *arguments in json.load(sys.stdin)]))
