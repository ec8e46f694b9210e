"""Small real models: an n-gram model in ARPA, a fastText classifier and two classifiers in ONNX."""

from __future__ import annotations

import itertools
import math
import pathlib
import struct

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

_MAGIC, _VERSION = 793712314, 12
_SOFTMAX, _SUPERVISED = 3, 3


def write_arpa(path: pathlib.Path, sentences: list[str], fillers: int = 0) -> pathlib.Path:
    """Unigrams and bigrams by maximum likelihood, with a constant back-off; `fillers` more words that nobody uses."""
    lines = [["<s>", *sentence.split(), "</s>"] for sentence in sentences]
    words = sorted({word for line in lines for word in line} - {"<s>"})
    counts = {word: sum(line.count(word) for line in lines) for word in words}
    total = sum(counts.values())
    after: dict[str, dict[str, int]] = {}
    for line in lines:
        for first, second in itertools.pairwise(line):
            followers = after.setdefault(first, {})
            followers[second] = followers.get(second, 0) + 1
    bigrams = [
        f"{math.log10(0.9 * count / sum(followers.values())):.6f}\t{first} {second}"
        for first, followers in sorted(after.items())
        for second, count in sorted(followers.items())
    ]
    unigrams = ["-6.0\t<unk>\t0", "-99\t<s>\t-1"]
    unigrams += [f"{math.log10(counts[word] / total):.6f}\t{word}\t-1" for word in words]
    unigrams += [f"-9\tfiller{number}\t0" for number in range(fillers)]
    sizes = f"\\data\\\nngram 1={len(unigrams)}\nngram 2={len(bigrams)}\n"
    body = "\n".join(["\\1-grams:", *unigrams, "", "\\2-grams:", *bigrams, "", "\\end\\", ""])
    path.write_text(f"{sizes}\n{body}")
    return path


def write_fasttext(path: pathlib.Path, words: dict[str, list[float]], labels: list[str], buckets: int = 0) -> None:
    """A supervised model without n-grams: a text's vector is the mean of its words', and each label has one axis.

    `buckets` are rows of the matrix that n-grams would use; they only make the model larger.
    """
    dimensions = len(labels)
    header = (dimensions, 5, 1, 1, 5, 1, _SOFTMAX, _SUPERVISED, buckets, 0, 0, 100)
    entries = [(word, 1, 0) for word in ["</s>", *words]] + [(f"__label__{label}", 1, 1) for label in labels]
    with path.open("wb") as file:
        file.write(struct.pack("<2i12id", _MAGIC, _VERSION, *header, 1e-4))
        file.write(struct.pack("<3i2q", len(entries), len(words) + 1, len(labels), 100, -1))
        for entry, count, kind in entries:
            file.write(entry.encode() + b"\0" + struct.pack("<qb", count, kind))
        rows = np.array([[0.0] * dimensions, *words.values()], np.float32)
        file.write(struct.pack("<?2q", False, len(rows) + buckets, dimensions) + rows.tobytes())
        block = np.random.default_rng(1).random((min(buckets, 1 << 16), dimensions), np.float32)
        for at in range(0, buckets, 1 << 16):
            file.write(block[: buckets - at].tobytes())
        file.write(struct.pack("<?2q", False, dimensions, dimensions) + np.eye(dimensions, dtype=np.float32).tobytes())


def write_text_onnx(path: pathlib.Path, words: list[str]) -> None:
    """On `[1]` strings: whether the text is one of `words`, as two classes `[1, 2]`."""
    chosen = helper.make_node(
        "LabelEncoder", ["text"], ["found"], domain="ai.onnx.ml", keys_strings=words, values_floats=[2.0] * len(words),
        default_float=-2.0,
    )  # fmt: skip
    nodes = [
        chosen,
        helper.make_node("Neg", ["found"], ["other"]),
        helper.make_node("Unsqueeze", ["other", "axis"], ["left"]),
        helper.make_node("Unsqueeze", ["found", "axis"], ["right"]),
        helper.make_node("Concat", ["left", "right"], ["logits"], axis=1),
    ]
    axis = numpy_helper.from_array(np.array([1], np.int64), "axis")
    _save(path, nodes, [("text", TensorProto.STRING, [None])], [("logits", [None, 2])], [axis])


def write_token_onnx(path: pathlib.Path, vectors: npt.NDArray[np.float32]) -> None:
    """On `input_ids` and `attention_mask` `[1, tokens]`: the mean of the tokens' `vectors` `[tokens, classes]`."""
    nodes = [
        helper.make_node("Gather", ["vectors", "input_ids"], ["looked_up"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["wide"]),
        helper.make_node("Mul", ["looked_up", "wide"], ["masked"]),
        helper.make_node("ReduceMean", ["masked", "middle"], ["logits"], keepdims=0),
    ]
    constants = [
        numpy_helper.from_array(vectors, "vectors"),
        numpy_helper.from_array(np.array([2], np.int64), "last"),
        numpy_helper.from_array(np.array([1], np.int64), "middle"),
    ]
    ids = [(name, TensorProto.INT64, [None, None]) for name in ("input_ids", "attention_mask")]
    _save(path, nodes, ids, [("logits", [None, vectors.shape[1]])], constants)


def _save(path: pathlib.Path, nodes: list, inputs: list, outputs: list, constants: list) -> None:
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info(*given) for given in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs],
        constants,
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
