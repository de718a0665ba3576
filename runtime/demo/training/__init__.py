"""How the bundled model was made. Not in the wheel: the runtime loads the model's files by path."""
