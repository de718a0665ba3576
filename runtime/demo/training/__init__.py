"""How the bundled model was made; not in the wheel."""
