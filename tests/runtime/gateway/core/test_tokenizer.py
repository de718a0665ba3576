"""A checkpoint's tokenizer is read with one BOS and its stop ids, or refused in one sentence."""

import json
from dataclasses import replace

import pytest
import tokenizers
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tokenizers import processors
from tokenizers.pre_tokenizers import ByteLevel

from runtime.errors import CheckpointError
from runtime.gateway.core.tokenizer import Tokenizer, byte_characters, load_tokenizer

BOS, BOS_ID, ASSISTANT_ID = "<｜begin▁of▁sentence｜>", 0, 3


def test_byte_characters_are_those_of_the_tokenizers_library():
    """The table has the library's 256 characters for bytes."""
    assert sorted(byte_characters()) == sorted(ByteLevel.alphabet())


def test_a_plain_prompt_starts_with_one_bos(tokenizer):
    """A prompt gets BOS, unless it begins with one."""
    assert tokenizer.encode("mill") == tokenizer.encode(BOS + "mill")
    assert tokenizer.encode("mill").count(BOS_ID) == 1


def test_a_chat_starts_with_the_templates_bos_only(tokenizer):
    """A chat has only the BOS that the template writes."""
    text = tokenizer.chat_template.render([{"role": "user", "content": "hi"}], None, {})
    ids = tokenizer.encode_whole(text)

    assert ids[0] == BOS_ID
    assert ids.count(BOS_ID) == 1
    assert ids[-1] == ASSISTANT_ID


def test_no_prompt_is_cut_or_filled_up(write_checkpoint, tmp_path):
    """Truncation and padding saved with the tokenizer are not used."""
    folder = write_checkpoint(tmp_path)
    as_it_is = load_tokenizer(folder).encode("mill mill mill")
    encoder = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoder.enable_truncation(2)
    encoder.enable_padding(length=64)
    encoder.save(str(folder / "tokenizer.json"))

    assert load_tokenizer(folder).encode("mill mill mill") == as_it_is


def test_a_vocabulary_of_endless_ids_is_refused(write_checkpoint, tmp_path):
    """A vocabulary with an absurdly large id is refused."""
    folder = write_checkpoint(tmp_path)
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    document["model"]["vocab"]["mill"] = 2**31
    path.write_text(json.dumps(document))

    with pytest.raises(CheckpointError, match="token id 2,147,483,648"):
        load_tokenizer(folder)


def test_a_tokenizer_that_panics_is_one_sentence(write_checkpoint, tmp_path):
    """A tokenizer whose library panics is refused in one sentence."""
    folder = write_checkpoint(tmp_path)
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    document["normalizer"] = {"type": "Replace", "pattern": {"Regex": ""}, "content": "x"}
    path.write_text(json.dumps(document))

    with pytest.raises(CheckpointError, match=r"tokenizer\.json is no tokenizer"):
        load_tokenizer(folder)


@pytest.fixture(scope="module")
def space_tokenizer(write_checkpoint, tmp_path_factory):
    """Return a tokenizer with tokens of up to 32 spaces."""
    folder = write_checkpoint(tmp_path_factory.mktemp("runs"))
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    for length in (1, 2, 4, 8, 16):
        document["model"]["vocab"][2 * length * "Ġ"] = len(document["model"]["vocab"])
        document["model"]["merges"].append([length * "Ġ", length * "Ġ"])
    path.write_text(json.dumps(document))
    return load_tokenizer(folder)


def test_a_long_run_of_spaces_is_refused_by_its_beginning(space_tokenizer, monkeypatch):
    """A long run of spaces is refused once a longer beginning has too many tokens."""
    lengths, encode = [], Tokenizer.encode_whole
    monkeypatch.setattr(Tokenizer, "encode_whole", lambda self, text: lengths.append(len(text)) or encode(self, text))

    assert space_tokenizer.is_too_long(" " * 1_000_000, 256)
    assert lengths == [2048, 5 * 2048]


RUNS = st.tuples(st.sampled_from([" ", "mill ", "1", "日", "\n", "x", BOS, BOS[:-1], " \n"]), st.integers(1, 300))


@given(st.lists(RUNS, min_size=1, max_size=4), st.integers(1, 60))
@example([("x", 37), (BOS, 20)], 57)
def test_a_text_that_is_too_long_by_its_beginning_is_too_long(space_tokenizer, runs, max_tokens):
    """No text that fits is refused by its beginning, whatever is cut there."""
    text = "".join(piece * times for piece, times in runs)
    assume(space_tokenizer.is_too_long(text, max_tokens))

    assert len(space_tokenizer.encode_whole(text)) > max_tokens


def test_a_token_that_takes_the_spaces_before_it_may_end_a_long_run(space_tokenizer):
    """A beginning that ends with spaces does not count them, because the next token may take them."""
    encoder = tokenizers.Tokenizer.from_str(space_tokenizer.encoder.to_str())
    encoder.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
    stripping, text = replace(space_tokenizer, encoder=encoder), " " * 30_000 + "<mask>"

    assert len(stripping.encode_whole(text)) == 1
    assert not stripping.is_too_long(text, 64)
    assert stripping.is_too_long("x" * 1000 + text, 64)


@pytest.mark.parametrize("bos_token", [BOS, {"content": BOS, "lstrip": False}])
def test_bos_may_be_written_with_its_stripping_rules(write_checkpoint, tmp_path, bos_token):
    """bos_token may be an object or a string."""
    assert load_tokenizer(write_checkpoint(tmp_path, bos_token=bos_token)).bos_id == BOS_ID


def test_a_checkpoint_may_want_no_bos(write_checkpoint, tmp_path):
    """With add_bos_token: false no BOS is added."""
    assert BOS_ID not in load_tokenizer(write_checkpoint(tmp_path, add_bos_token=False)).encode("mill")


def test_without_add_bos_token_the_post_processor_decides(write_checkpoint, tmp_path):
    """A tokenizer whose post-processor adds BOS gets one, not two."""
    folder = write_checkpoint(tmp_path)
    encoder = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoder.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, BOS_ID)])
    encoder.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": BOS}))

    assert load_tokenizer(folder).encode("mill").count(BOS_ID) == 1


@pytest.mark.parametrize(
    ("config", "generation_config", "stop_ids"),
    [(1, None, (1,)), (1, 2, (2,)), (1, [1, 3], (1, 3)), (None, None, ())],
)
def test_generation_config_overrules_config(write_checkpoint, tmp_path, config, generation_config, stop_ids):
    """eos_token_id may be a number, a list or absent, and generation_config.json wins."""
    folder = write_checkpoint(tmp_path)
    (folder / "config.json").write_text(json.dumps({"vocab_size": 320, "hidden_size": 2, "eos_token_id": config}))
    if generation_config is not None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation_config}))

    assert load_tokenizer(folder).stop_ids == stop_ids


def test_a_text_model_beside_encoders_says_it_in_its_part_of_the_config(write_checkpoint, tmp_path):
    """Kimi-K2.5's vocabulary and end of text come from text_config, but a key outside it wins."""
    folder = write_checkpoint(tmp_path)
    for outside, stop_ids in (({}, (7,)), ({"eos_token_id": 8}, (8,))):
        config = {
            "model_type": "kimi_k25",
            "text_config": {"vocab_size": 4096, "hidden_size": 2, "eos_token_id": 7},
        } | outside
        (folder / "config.json").write_text(json.dumps(config))
        read = load_tokenizer(folder)

        assert (read.num_token_ids, read.stop_ids) == (4096, stop_ids)


def test_special_tokens_have_no_text(tokenizer):
    """Special tokens have no text."""
    assert [tokenizer.token_bytes[token_id] for token_id in range(4)] == [b""] * 4


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("tokenizer.json", None, "cannot read"),
        ("tokenizer.json", "{", "is not JSON"),
        ("tokenizer.json", '{"decoder": {"type": "ByteLevel"}}', "is no tokenizer"),
        ("tokenizer.json", '{"decoder": {"type": "Metaspace"}}', "'Metaspace'; the gateway reads ByteLevel only"),
        ("tokenizer_config.json", None, "cannot read"),
        ("tokenizer_config.json", '{"chat_template": "{% if %}"}', "chat_template in"),
        ("tokenizer_config.json", '{"chat_template": 7}', "chat_template"),
        ("tokenizer_config.json", '{"bos_token": 7}', "bos_token"),
        ("tokenizer_config.json", '{"bos_token": "<none>"}', "bos_token"),
        ("config.json", "{}", "vocab_size"),
        ("generation_config.json", '{"eos_token_id": "</s>"}', "eos_token_id"),
    ],
)
def test_a_broken_file_is_one_sentence(write_checkpoint, tmp_path, name, content, complaint):
    """A missing or broken file is a CheckpointError with its name."""
    folder = write_checkpoint(tmp_path)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)

    with pytest.raises(CheckpointError, match=complaint) as error:
        load_tokenizer(folder)
    assert name in str(error.value)
    assert "\n" not in str(error.value)
