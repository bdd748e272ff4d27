"""Start a module of this package: ``python -I launch.py [--search DIRECTORY]... MODULE [ARGUMENT]...``.

An isolated interpreter (``-I``) ignores ``PYTHON*`` variables, the working directory and the user's site directory. It
therefore finds neither a package that was named by ``PYTHONPATH`` nor one that was installed for one user. This program
loads the package from the directory that contains this file and appends the directories after ``--search`` to the
search path of everything else. With ``--urgent`` it raises its own priority first, where that is permitted; the module
ends this with ``children.end_urgency`` before it starts threads or processes. Only the standard library is imported.
"""

import importlib.util
import os
import runpy
import sys

_HOST = os.path.dirname(os.path.realpath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(_HOST))
_NAME = "calabash"


def _load_package() -> None:
    """Import the package from this file's own tree."""
    place = os.path.join(_PACKAGE, "__init__.py")
    spec = importlib.util.spec_from_file_location(_NAME, place, submodule_search_locations=[_PACKAGE])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module
    spec.loader.exec_module(module)


def _raise_priority() -> None:
    """Raise the priority; the usual one is kept in the environment for ``children.end_urgency``."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, min(usual, -15))
    except OSError:
        return
    os.environ["CALABASH_USUAL_PRIORITY"] = str(usual)
    if os.getsid(0) == os.getpid():  # with autogroup, a session competes as one group, by this priority
        try:
            with open("/proc/self/autogroup", "w", encoding="ascii") as group:
                group.write("-15")
        except OSError:
            return


def main() -> None:
    """Run the module that the arguments name as the main program."""
    words = sys.argv[1:]
    if words[0] == "--urgent":
        del words[0]
        _raise_priority()
    while words[0] == "--search":
        if words[1] not in sys.path:
            sys.path.append(words[1])
        del words[:2]
    _load_package()
    sys.argv = words
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as error:
        sys.exit(_report(error))


def _report(error: ModuleNotFoundError) -> int:
    """Print the error and the hint if an extra is not installed, as daemons print errors; else raise the error again."""
    from calabash.model.extras import missing_import  # noqa: PLC0415 - the package is loaded by now

    known = missing_import(error)
    if known is None:
        raise error
    print(f"error [{known.reason}]: {known.message}\nhint: {known.hint}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    main()
