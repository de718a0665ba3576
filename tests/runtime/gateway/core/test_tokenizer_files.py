"""A gateway that starts again reads its deployment's tokenizer files, or does not start."""

import inspect
import re

import pytest

from runtime.checkpoint import text_model
from runtime.errors import RuntimeFailure
from runtime.gateway.core import chat_template, tokenizer, tokenizer_files
from runtime.gateway.core.tokenizer import TOKENIZER_FILES, load_tokenizer
from runtime.gateway.core.tokenizer_files import load_served_tokenizer


@pytest.fixture
def folder(write_checkpoint, tmp_path):
    """Return a checkpoint that a gateway has served with, without a template file and generation_config.json."""
    folder = write_checkpoint(tmp_path)
    load_served_tokenizer(folder, tmp_path / "memory")
    return folder


@pytest.mark.parametrize("name", TOKENIZER_FILES)
def test_a_gateway_does_not_start_with_a_file_that_changed(folder, name):
    """A gateway does not start with a changed or new file, and names it; with the old one it starts."""
    file = folder / name
    before = file.read_bytes() if file.exists() else None
    file.write_bytes((before or b"{}") + b"\n")
    with pytest.raises(RuntimeFailure, match=f": {re.escape(name)} changed; put back") as refusal:
        load_served_tokenizer(folder, folder / "memory")
    file.unlink()
    if before is not None:
        file.write_bytes(before)

    assert str(folder) in str(refusal.value)
    assert load_served_tokenizer(folder, folder / "memory")[0].num_token_ids == 320


def test_every_file_that_changed_is_named(folder):
    """Every changed or missing file is named."""
    (folder / "tokenizer.json").unlink()
    (folder / "generation_config.json").write_text('{"eos_token_id": 7}')

    with pytest.raises(RuntimeFailure, match=r": tokenizer\.json, generation_config\.json changed; put back"):
        load_served_tokenizer(folder, folder / "memory")


def test_a_file_that_changes_while_it_is_loaded_is_noticed(write_checkpoint, tmp_path, monkeypatch):
    """A file that changes while it is loaded is noticed, so that the deployment remembers the right one."""
    folder = write_checkpoint(tmp_path)

    def load_late(folder):
        (folder / "generation_config.json").write_text('{"eos_token_id": 7}')
        return load_tokenizer(folder)

    monkeypatch.setattr(tokenizer_files, "load_tokenizer", load_late)
    with pytest.raises(RuntimeFailure, match=r": generation_config\.json changed; put back"):
        load_served_tokenizer(folder, tmp_path / "memory")


def test_a_file_that_changes_while_it_is_loaded_is_noticed_without_a_memory(write_checkpoint, tmp_path, monkeypatch):
    """A file that changes while it is loaded is noticed even if nothing is remembered."""
    folder = write_checkpoint(tmp_path)

    def load_early(folder):
        loaded = load_tokenizer(folder)
        (folder / "tokenizer.json").write_text("{}")
        return loaded

    monkeypatch.setattr(tokenizer_files, "load_tokenizer", load_early)
    with pytest.raises(RuntimeFailure, match=r": tokenizer\.json changed; put back"):
        load_served_tokenizer(folder, None)


def test_without_a_memory_the_files_are_taken_as_they_are(folder):
    """Without a memory the files are taken as they are."""
    (folder / "generation_config.json").write_text('{"eos_token_id": 7}')

    assert load_served_tokenizer(folder, None)[0].stop_ids == (7,)
    assert load_served_tokenizer(folder, folder / "new memory")[0].stop_ids == (7,)


def test_a_full_disk_keeps_no_gateway_from_starting(folder, caplog):
    """On a full disk the gateway starts, and says that it cannot remember."""
    assert load_served_tokenizer(folder, folder / "missing" / "memory")[0].num_token_ids == 320
    assert "cannot remember the tokenizer's files in " in caplog.text


def test_no_file_is_read_that_is_not_compared():
    """Every file that the tokenizer's modules read is compared."""
    sources = "".join(map(inspect.getsource, (tokenizer, chat_template, text_model)))

    assert set(re.findall(r'folder / "([^"]+)"', sources)) == set(TOKENIZER_FILES)
