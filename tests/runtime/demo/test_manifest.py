"""The bundled model has the manifest of its weights, so every rank that loads it checks them."""

from runtime.checkpoint import MANIFEST, make_manifest, open_shards, write_manifest


def test_the_demo_models_manifest_is_of_its_weights(demo, tmp_path):
    """The manifest is the one that `tidemill checkpoint digest` writes, byte for byte."""
    with open_shards(demo) as shards:
        write_manifest(make_manifest(demo, shards, 1, lambda _: None), tmp_path / "again.json")

    assert (tmp_path / "again.json").read_bytes() == (demo / MANIFEST).read_bytes()
