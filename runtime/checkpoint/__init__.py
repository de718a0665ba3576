"""A checkpoint's files: where tensors lie, and whether they are right.

A checkpoint is a Hugging Face folder: `config.json` and safetensors, in one file or in shards with an index. Names,
sizes and headers are checked before any weight is read. Loading tensors is the work of `model/weights.py`. Nothing
here needs torch, so that the gateway can use it.
"""

from runtime.checkpoint.folder import UnchangedFiles, check_config_digest, file_digest, read_json, resolve
from runtime.checkpoint.manifest import (
    MANIFEST,
    Manifest,
    check_weights_digest,
    make_manifest,
    read_manifest,
    write_manifest,
)
from runtime.checkpoint.reading import ReadDigests
from runtime.checkpoint.same_weights import ReadWeights, agreed_weights, digest_parts
from runtime.checkpoint.tensors import Shard, StoredTensor, index_tensors, open_shards, read_shards, refuse_holes
from runtime.checkpoint.text_model import TextModel, read_text_model

__all__ = [
    "MANIFEST",
    "Manifest",
    "ReadDigests",
    "ReadWeights",
    "Shard",
    "StoredTensor",
    "TextModel",
    "UnchangedFiles",
    "agreed_weights",
    "check_config_digest",
    "check_weights_digest",
    "digest_parts",
    "file_digest",
    "index_tensors",
    "make_manifest",
    "open_shards",
    "read_json",
    "read_manifest",
    "read_shards",
    "read_text_model",
    "refuse_holes",
    "resolve",
    "write_manifest",
]
