"""How this package and its extras are installed, for errors."""

PACKAGE = "agentrl-system"
LOCKED_APART = {"reasoning-gym"}  # extras that `make setup` does not install


def install_hint(extra: str = "") -> str:
    """Return how to install the package, with an extra if given."""
    what = f"'{PACKAGE}[{extra}]'" if extra else PACKAGE
    in_clone = "" if extra in LOCKED_APART else ", or in a clone `make setup`"
    return f"run `pip install {what}`{in_clone}"
