"""An installation of its own with the fake driver: the whole way from the API to the worker, in milliseconds."""

import json
import pathlib

from installation import Installation

# Commands run on the host itself: as root, in a directory that is there.
RECIPE = {"name": "seed", "packages": [], "user": "root", "workdir": "/tmp"}


def tiny_installation(build, **more):
    """Runs, with a template of the fewest packages, which it keeps for the next run. The caller stops it and takes it down."""
    state = pathlib.Path(build) / "e2e-tiny"
    inst = Installation(build, state, fake=True, **more)
    inst.up()
    try:
        recipe = state / "recipe"
        recipe.mkdir(exist_ok=True)
        (recipe / "recipe.json").write_text(json.dumps(RECIPE))
        inst.ensure_template("seed", recipe)
    except BaseException:
        inst.stop()
        inst.down()
        raise
    return inst
